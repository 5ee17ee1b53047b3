//! Keys and signatures of TLS: ring's, and those of the curve P-521.
//!
//! etcd makes its own certificates with that curve (`--auto-tls`; etcd client/pkg/transport,
//! `SelfCert`, checked at 3.7.3), and ring does not know it. The process may have another provider
//! of cryptography, or none: ours is named at every place.

use std::sync::{Arc, LazyLock};

use p521::SecretKey;
use p521::ecdsa::signature::{Signer as _, Verifier};
use p521::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p521::pkcs8::DecodePrivateKey;
use rustls::crypto::{CryptoProvider, KeyProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm,
    SubjectPublicKeyInfoDer, alg_id,
};
use rustls::sign::{Signer, public_key_to_spki};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// Returns ring's cryptography, with P-521 added.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        Arc::new(CryptoProvider {
            signature_verification_algorithms: *ALGORITHMS,
            key_provider: &Keys,
            ..ring::default_provider()
        })
    });
    Arc::clone(&PROVIDER)
}

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

/// What ring understands, and P-521.
static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let known = ring::default_provider().signature_verification_algorithms;
    let all: Vec<Algorithm> = known.all.iter().copied().chain([P521]).collect();
    let ours = (SignatureScheme::ECDSA_NISTP521_SHA512, &[P521][..]);
    let mapping: Vec<_> = known.mapping.iter().copied().chain([ours]).collect();
    // Made once, and wanted for as long as the program runs.
    WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() }
});

/// ECDSA over P-521 with SHA-512.
const P521: Algorithm = &EcdsaP521;

#[derive(Debug)]
struct EcdsaP521;

impl SignatureVerificationAlgorithm for EcdsaP521 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = DerSignature::from_bytes(signature).map_err(|_| InvalidSignature)?;
        key.verify(message, &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA512
    }
}

/// Private keys that ring reads, and those of P-521.
#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(
        &self,
        key: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn rustls::sign::SigningKey>, Error> {
        let ours = match &key {
            PrivateKeyDer::Sec1(der) => SecretKey::from_sec1_der(der.secret_sec1_der()).ok(),
            PrivateKeyDer::Pkcs8(der) => SecretKey::from_pkcs8_der(der.secret_pkcs8_der()).ok(),
            _ => None,
        };
        match ours {
            Some(key) => Ok(Arc::new(Own(Arc::new(SigningKey::from(key))))),
            None => ring::default_provider().key_provider.load_private_key(key),
        }
    }
}

/// A private key of P-521.
#[derive(Clone, Debug)]
struct Own(Arc<SigningKey>);

impl rustls::sign::SigningKey for Own {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer: Box<dyn Signer> = Box::new(self.clone());
        offered.contains(&signer.scheme()).then_some(signer)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        let point = self.0.verifying_key().to_sec1_point(false);
        Some(public_key_to_spki(&alg_id::ECDSA_P521, point.as_bytes()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for Own {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature: Result<DerSignature, _> = self.0.try_sign(message);
        let signature = signature.map_err(|_| Error::General("P-521 did not sign".to_owned()))?;
        Ok(signature.as_bytes().to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_and_signatures_are_refused() {
        for key in [&b""[..], b"\x04", &[4; 133], &[0; 133]] {
            for signature in [&b""[..], b"\x30\x06\x02\x01\x01\x02\x01\x01", &[0x30; 200]] {
                assert!(EcdsaP521.verify_signature(key, b"text", signature).is_err());
            }
        }
    }
}
