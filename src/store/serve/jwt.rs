//! JSON Web Tokens, as etcd gives and takes them: `--auth-token=jwt,sign-method=...`.
//!
//! A token is `HEADER.CLAIMS.SIGNATURE`, each in base64 for URLs. The claims are `username`,
//! `revision` (of the rules when it was made) and `exp` (seconds since 1970). Nothing of it is kept
//! here, so that one stays valid when the store starts again, until its time is over. Others may
//! make them as well: one without `exp` is valid for ever, and of one with `nbf` the time must have
//! come; what else it claims does not count.
//!
//! | method | signature | keys |
//! |---|---|---|
//! | RS256 RS384 RS512 | RSA, PKCS #1 v1.5 | of 2048 bits and more |
//! | PS256 PS384 PS512 | RSA, PSS, salt as long as the hash | of 2048 bits and more |
//! | ES256 ES384 ES512 | ECDSA | of P-256, P-384, P-521 |
//! | EdDSA | Ed25519 | |
//! | HS256 HS384 HS512 | HMAC | the private key's file as it is |
//!
//! A token of another method than the one that was set is refused before its signature is looked
//! at, whatever its header says.
//!
//! Source: etcd `server/auth/{jwt,options}.go`, 3.7.3; RFC 7515, 7518, 7519, 8037.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::hmac;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    AlgorithmIdentifier, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, alg_id,
};
use rustls::sign::Signer;
use rustls::{SignatureScheme, pki_types::CertificateDer};
use serde::Deserialize;
use serde_json::{Number, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::format::{pem, signature};
use crate::store::error::Error;
use crate::store::guard::{SignedTokens, User};

/// Longest token that is looked at, in bytes.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Largest file of a key that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How tokens are signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Name of the method, such as `RS256`.
    pub method: String,
    /// File of the public key, or of a certificate with it, in PEM.
    pub public_key: Option<PathBuf>,
    /// File of the private key in PEM, or the secret of HMAC; without it tokens that others made
    /// are taken, and none are made.
    pub private_key: Option<PathBuf>,
    /// How long a token is valid.
    pub ttl: Duration,
}

/// The tokens of one method and key.
pub struct Jwt {
    method: String,
    ttl: Duration,
    key: Key,
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("method", &self.method).finish_non_exhaustive()
    }
}

enum Key {
    Secret(hmac::Key),
    Pair(Pair),
}

struct Pair {
    algorithm: &'static dyn SignatureVerificationAlgorithm,
    /// What the algorithm calls a key: without the name of its kind.
    public: Vec<u8>,
    signer: Option<Box<dyn Signer>>,
    /// Bytes of one of the two numbers of a signature by ECDSA; 0: it is not two numbers.
    number_len: usize,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    username: String,
    revision: Number,
    exp: Option<Number>,
    nbf: Option<Number>,
}

impl Jwt {
    /// Reads the keys.
    ///
    /// # Errors
    ///
    /// The reason: an unknown method, no key, a file that cannot be read, a key of another kind, or
    /// two that do not belong together.
    pub fn open(settings: &Settings) -> Result<Self, String> {
        let private = settings.private_key.as_deref().map(read).transpose()?;
        let public = settings.public_key.as_deref().map(read).transpose()?;
        let key = match hmac_of(&settings.method) {
            Some(algorithm) => match &private {
                Some((secret, _)) if !secret.is_empty() => {
                    Key::Secret(hmac::Key::new(algorithm, secret))
                }
                _ => return Err("auth: missing key data: priv-key is the secret".to_owned()),
            },
            None => Key::Pair(Pair::of(&settings.method, private, public)?),
        };
        Ok(Self { method: settings.method.clone(), ttl: settings.ttl, key })
    }
}

impl SignedTokens for Jwt {
    fn sign(&self, user: &User, unix_ms: u64) -> Result<String, Error> {
        let exp = Duration::from_millis(unix_ms).saturating_add(self.ttl).as_secs();
        let header = json!({"alg": self.method, "typ": "JWT"}).to_string();
        let claims = json!({"exp": exp, "revision": user.auth_revision, "username": user.name});
        let text = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims.to_string()));
        let signature = self.key.sign(text.as_bytes())?;
        Ok(format!("{text}.{}", BASE64.encode(signature)))
    }

    fn verify(&self, token: &str, unix_ms: u64) -> Option<User> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (text, signature) = token.rsplit_once('.')?;
        let (header, claims) = text.split_once('.')?;
        let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.alg != self.method {
            return None;
        }
        self.key.verify(text.as_bytes(), &BASE64.decode(signature).ok()?)?;
        let claims: Claims = serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()?;
        let millis = |seconds: &Number| whole(seconds).map(|seconds| seconds.saturating_mul(1000));
        let is_over = match &claims.exp {
            Some(exp) => millis(exp)? <= unix_ms,
            None => false,
        };
        let is_early = match &claims.nbf {
            Some(nbf) => millis(nbf)? > unix_ms,
            None => false,
        };
        if is_over || is_early {
            return None;
        }
        Some(User { name: claims.username, auth_revision: whole(&claims.revision)? })
    }
}

impl Key {
    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, Error> {
        let pair = match self {
            Self::Secret(key) => return Ok(hmac::sign(key, text).as_ref().to_vec()),
            Self::Pair(pair) => pair,
        };
        let signer = pair.signer.as_ref().ok_or(Error::VerifyOnly)?;
        let signed = signer.sign(text).map_err(|error| Error::Storage(error.to_string()))?;
        if pair.number_len == 0 {
            return Ok(signed);
        }
        ecdsa::joined(&signed, pair.number_len)
            .ok_or_else(|| Error::Storage("a signature is not two numbers".to_owned()))
    }

    fn verify(&self, text: &[u8], signature: &[u8]) -> Option<()> {
        match self {
            Self::Secret(key) => hmac::verify(key, text, signature).ok(),
            Self::Pair(pair) if pair.number_len == 0 => pair.verify(text, signature),
            Self::Pair(pair) => pair.verify(text, &ecdsa::apart(signature, pair.number_len)?),
        }
    }
}

/// A file's bytes, and its name.
type File = (Vec<u8>, String);

impl Pair {
    fn of(method: &str, private: Option<File>, public: Option<File>) -> Result<Self, String> {
        let Some((key, signature_id, scheme, number_len)) = method_of(method) else {
            return Err(format!(
                "auth: invalid auth options: sign-method={method:?} is none of RS256 RS384 RS512 \
                 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA HS256 HS384 HS512"
            ));
        };
        let provider = signature::provider();
        let all = provider.signature_verification_algorithms.all;
        let is_it = |algorithm: &&&'static dyn SignatureVerificationAlgorithm| {
            algorithm.public_key_alg_id() == key && algorithm.signature_alg_id() == signature_id
        };
        let algorithm = all.iter().find(is_it).copied();
        let algorithm = algorithm.ok_or_else(|| format!("{method} is not known here"))?;
        let not_fit = |name: &str| format!("{name} is no key for {method}");

        let public = match public {
            Some((text, name)) => {
                let spki = public_key(&text).map_err(|why| format!("{name}: {why}"))?;
                Some(bits(&spki, &key).ok_or_else(|| not_fit(&name))?)
            }
            None => None,
        };
        let Some((text, name)) = private else {
            let public = public.ok_or("auth: missing key data: priv-key or pub-key is wanted")?;
            return Ok(Self { algorithm, public, signer: None, number_len });
        };
        let private = pem::private_key(&text, &name).map_err(|why| format!("{name}: {why}"))?;
        let private = provider.key_provider.load_private_key(private);
        let private = private.map_err(|error| format!("{name}: {error}"))?;
        let signer = private.choose_scheme(&[scheme]).ok_or_else(|| not_fit(&name))?;
        let own = private.public_key().and_then(|spki| bits(&spki, &key));
        let own = own.ok_or_else(|| not_fit(&name))?;
        if public.is_some_and(|public| public != own) {
            return Err("auth: public and private keys don't match".to_owned());
        }
        Ok(Self { algorithm, public: own, signer: Some(signer), number_len })
    }

    fn verify(&self, text: &[u8], signature: &[u8]) -> Option<()> {
        self.algorithm.verify_signature(&self.public, text, signature).ok()
    }
}

fn hmac_of(method: &str) -> Option<hmac::Algorithm> {
    match method {
        "HS256" => Some(hmac::HMAC_SHA256),
        "HS384" => Some(hmac::HMAC_SHA384),
        "HS512" => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

/// Finds the kind of key, the kind of signature, how TLS calls both, and how long a number is.
fn method_of(
    name: &str,
) -> Option<(AlgorithmIdentifier, AlgorithmIdentifier, SignatureScheme, usize)> {
    use SignatureScheme as S;
    let rsa = alg_id::RSA_ENCRYPTION;
    Some(match name {
        "RS256" => (rsa, alg_id::RSA_PKCS1_SHA256, S::RSA_PKCS1_SHA256, 0),
        "RS384" => (rsa, alg_id::RSA_PKCS1_SHA384, S::RSA_PKCS1_SHA384, 0),
        "RS512" => (rsa, alg_id::RSA_PKCS1_SHA512, S::RSA_PKCS1_SHA512, 0),
        "PS256" => (rsa, alg_id::RSA_PSS_SHA256, S::RSA_PSS_SHA256, 0),
        "PS384" => (rsa, alg_id::RSA_PSS_SHA384, S::RSA_PSS_SHA384, 0),
        "PS512" => (rsa, alg_id::RSA_PSS_SHA512, S::RSA_PSS_SHA512, 0),
        "ES256" => (alg_id::ECDSA_P256, alg_id::ECDSA_SHA256, S::ECDSA_NISTP256_SHA256, 32),
        "ES384" => (alg_id::ECDSA_P384, alg_id::ECDSA_SHA384, S::ECDSA_NISTP384_SHA384, 48),
        "ES512" => (alg_id::ECDSA_P521, alg_id::ECDSA_SHA512, S::ECDSA_NISTP521_SHA512, 66),
        "EdDSA" => (alg_id::ED25519, alg_id::ED25519, S::ED25519, 0),
        _ => return None,
    })
}

fn read(path: &Path) -> Result<File, String> {
    let name = path.display().to_string();
    let size = fs::metadata(path).map_err(|error| format!("{name}: {error}"))?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{name}: {size} bytes are no key"));
    }
    let bytes = fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    Ok((bytes, name))
}

/// Reads a public key in PEM, or the one of a certificate.
fn public_key(text: &[u8]) -> Result<SubjectPublicKeyInfoDer<'static>, String> {
    if let Ok(key) = SubjectPublicKeyInfoDer::from_pem_slice(text) {
        return Ok(key);
    }
    let certificate = CertificateDer::from_pem_slice(text).map_err(|_| {
        "it holds no public key in PEM (BEGIN PUBLIC KEY), and no certificate".to_owned()
    })?;
    let (_, certificate) = X509Certificate::from_der(&certificate)
        .map_err(|error| format!("its certificate cannot be read: {error}"))?;
    Ok(certificate.public_key().raw.to_vec().into())
}

/// Returns a key without the name of its kind, where it is of that kind.
fn bits(spki: &SubjectPublicKeyInfoDer<'_>, kind: &AlgorithmIdentifier) -> Option<Vec<u8>> {
    let (both, _) = der::element(spki, der::SEQUENCE)?;
    let (found, rest) = der::element(both, der::SEQUENCE)?;
    let (bits, _) = der::element(rest, der::BIT_STRING)?;
    // Before the bits stands how many of the last byte are none.
    let bits = bits.strip_prefix(&[0])?;
    (found == kind.as_ref()).then(|| bits.to_vec())
}

fn whole(number: &Number) -> Option<u64> {
    let float = || number.as_f64().filter(|float| *float >= 0.0);
    // Of what is too large the largest is made.
    number.as_u64().or_else(|| float().map(|float| float as u64))
}

/// Signatures of ECDSA: tokens have two numbers of fixed length, TLS has them in DER.
mod ecdsa {
    use super::der;

    pub(super) fn apart(joined: &[u8], number_len: usize) -> Option<Vec<u8>> {
        let (r, s) = joined.split_at_checked(number_len)?;
        if s.len() != number_len {
            return None;
        }
        let numbers = [r, s].map(|number| {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            let number = number.get(zeros..).unwrap_or_default();
            // A number that begins with a set bit would be below zero.
            let is_positive = number.first().is_some_and(|byte| *byte < 0x80);
            let zero = if is_positive { &[][..] } else { &[0][..] };
            der::of(der::INTEGER, &[zero, number].concat())
        });
        Some(der::of(der::SEQUENCE, &numbers.concat()))
    }

    pub(super) fn joined(apart: &[u8], number_len: usize) -> Option<Vec<u8>> {
        let (numbers, _) = der::element(apart, der::SEQUENCE)?;
        let (r, rest) = der::element(numbers, der::INTEGER)?;
        let (s, _) = der::element(rest, der::INTEGER)?;
        let mut joined = Vec::new();
        for number in [r, s] {
            let number = number.strip_prefix(&[0]).unwrap_or(number);
            joined.resize(joined.len() + number_len.checked_sub(number.len())?, 0);
            joined.extend_from_slice(number);
        }
        Some(joined)
    }
}

/// As much of DER as signatures and public keys need.
mod der {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const BIT_STRING: u8 = 0x03;
    pub(super) const SEQUENCE: u8 = 0x30;

    /// Takes an element of a kind from the front; returns what is in it, and what follows.
    pub(super) fn element(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
        let (found, rest) = bytes.split_first()?;
        if *found != kind {
            return None;
        }
        let (len, rest) = match *rest.first()? {
            0x81 => (usize::from(*rest.get(1)?), rest.get(2..)?),
            0x82 => {
                let len = [*rest.get(1)?, *rest.get(2)?];
                (usize::from(u16::from_be_bytes(len)), rest.get(3..)?)
            }
            len if len < 0x80 => (usize::from(len), rest.get(1..)?),
            _ => return None,
        };
        rest.split_at_checked(len)
    }

    /// Makes an element; one of more than 255 bytes is none that is needed here.
    pub(super) fn of(kind: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap_or(u8::MAX);
        let head: &[u8] = if len < 0x80 { &[kind, len] } else { &[kind, 0x81, len] };
        [head, content].concat()
    }
}

#[cfg(test)]
mod tests;
