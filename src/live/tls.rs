//! Certificates: what we trust and what we show, read once; and what each connection learnt.
//!
//! The provider of cryptography is named at every place: the process may have none, or another.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InconsistentKeys, RootCertStore,
    SignatureScheme,
};

use crate::format::certificate::Facts;
use crate::format::{pem, signature};

use super::certificate::{Own, now};
use super::settings::Tls;
use super::{Cause, Error};

/// Protocol that gRPC speaks over TLS.
const H2: &[u8] = b"h2";
/// Longest file of certificates or keys.
const FILE_MAX: u64 = 4 << 20;

/// What connections over TLS are made with.
pub(super) struct Material {
    /// Without a verifier and a certificate to show, which are each connection's own.
    base: ClientConfig,
    provider: Arc<CryptoProvider>,
    /// The authorities that were named; `None` for the system's.
    given: Option<Vec<CertificateDer<'static>>>,
    any: bool,
    /// Made when the first connection needs it: the system's certificates take time to read.
    verifier: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
    key: Option<Arc<CertifiedKey>>,
    /// The certificate that is shown.
    pub(super) own: Option<Own>,
}

/// What a connection over TLS is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Questions in gRPC.
    Grpc,
    /// One question in HTTP/1.
    Http,
    /// To see whether TLS is spoken; nothing is trusted and nothing is shown.
    Look,
}

/// What one connection learnt from the server.
#[derive(Debug, Default)]
pub(super) struct Shown(Mutex<Learnt>);

#[derive(Clone, Debug, Default)]
struct Learnt {
    certificate: Option<CertificateDer<'static>>,
    asked: Option<Vec<Vec<u8>>>,
}

impl Shown {
    fn note(&self, change: impl FnOnce(&mut Learnt)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the server's certificate.
    pub(super) fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).certificate.clone()
    }

    /// Returns the authorities that the server named when it asked for a certificate; `None` where
    /// it asked for none.
    pub(super) fn asked(&self) -> Option<Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }
}

/// Reads the files that are named.
///
/// # Errors
///
/// [`Cause::Material`] for a file that cannot be read or holds something else, and for a
/// certificate without its key.
pub(super) fn material(tls: &Tls) -> Result<Material, Error> {
    let provider = signature::provider();
    let given = match &tls.cacert {
        Some(file) => Some(anchors(file)?),
        None => None,
    };
    let (key, own) = match (&tls.cert, &tls.key) {
        (None, None) => (None, None),
        (Some(cert), Some(key)) => {
            let (key, own) = identity(cert, key, &provider)?;
            (Some(key), Some(own))
        }
        (Some(cert), None) => return Err(unusable(cert, "it needs its key too (--key)")),
        (None, Some(key)) => return Err(unusable(key, "it needs its certificate too (--cert)")),
    };
    let nobody = Watch { trust: Trust::Nobody, shown: Arc::default(), provider: provider.clone() };
    let mut base = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(Path::new("TLS"), error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(nobody))
        .with_no_client_auth();
    // A connection that takes up an old one sees no certificate.
    base.resumption = Resumption::disabled();
    let any = tls.insecure_skip_verify;
    Ok(Material { base, provider, given, any, verifier: OnceLock::new(), key, own })
}

impl Material {
    /// Makes what one connection needs; it tells `shown` what it learns.
    pub(super) fn config(&self, purpose: Purpose, shown: &Arc<Shown>) -> Arc<ClientConfig> {
        let mut config = self.base.clone();
        let trust = match self.any || purpose == Purpose::Look {
            true => Trust::Anybody,
            false => match self.verifier() {
                Some(verifier) => Trust::Signed(verifier, self.given.clone().unwrap_or_default()),
                None => Trust::Nobody,
            },
        };
        let watch = Watch { trust, shown: shown.clone(), provider: self.provider.clone() };
        config.dangerous().set_certificate_verifier(Arc::new(watch));
        let key = self.key.clone().filter(|_| purpose != Purpose::Look);
        config.client_auth_cert_resolver = Arc::new(Showing { key, shown: shown.clone() });
        if purpose == Purpose::Grpc {
            config.alpn_protocols = vec![H2.to_vec()];
        }
        Arc::new(config)
    }

    /// Makes sure that an authority that was named is valid today.
    ///
    /// # Errors
    ///
    /// [`Cause::Material`] with the dates of the first one, where none is and one is needed.
    pub(super) fn check_dates(&self, tls: &Tls) -> Result<(), Error> {
        let (Some(file), Some(given), false) = (&tls.cacert, &self.given, self.any) else {
            return Ok(());
        };
        if given.iter().any(is_in_time) {
            return Ok(());
        }
        let first = given.first().and_then(|first| Facts::read(first)).unwrap_or_default();
        Err(unusable(file, format!("no authority in it is valid today: {}", first.dates())))
    }

    /// `None` where there is no authority at all: then no server is trusted.
    fn verifier(&self) -> Option<Arc<WebPkiServerVerifier>> {
        let made = self.verifier.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            match &self.given {
                Some(given) => {
                    let given = given.iter().filter(|one| is_in_time(one)).cloned();
                    roots.add_parsable_certificates(given)
                }
                None => {
                    let system = rustls_native_certs::load_native_certs().certs;
                    roots.add_parsable_certificates(system.into_iter().filter(is_in_time))
                }
            };
            let builder =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone());
            builder.build().ok()
        });
        made.clone()
    }
}

fn anchors(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = certificates(file)?;
    let mut roots = RootCertStore::empty();
    for certificate in &all {
        roots.add(certificate.clone()).map_err(|error| unusable(file, error))?;
    }
    Ok(all)
}

/// webpki takes the authorities of its caller without a look at their dates.
fn is_in_time(authority: &CertificateDer<'_>) -> bool {
    Facts::read(authority).is_some_and(|facts| facts.is_in_time(now()))
}

fn identity(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<(Arc<CertifiedKey>, Own), Error> {
    let chain = certificates(cert)?;
    let private = pem::private_key(&read(key)?, &key.display().to_string())
        .map_err(|what| unusable(key, what))?;
    let facts = chain.first().and_then(|first| Facts::read(first)).unwrap_or_default();
    let issuers = chain.iter().filter_map(|der| Some(Facts::read(der)?.issuer_der)).collect();
    let own = Own { file: cert.display().to_string(), facts, issuers };
    let certified =
        CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                unusable(key, format!("it is not the key of the certificate {}", cert.display()))
            }
            error => unusable(key, error),
        })?;
    Ok((Arc::new(certified), own))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let file = std::fs::File::open(path).map_err(|error| unusable(path, error))?;
    let mut bytes = Vec::new();
    let limit = FILE_MAX.saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| unusable(path, error))?;
    if u64::try_from(bytes.len()).is_ok_and(|size| size > FILE_MAX) {
        return Err(unusable(path, "it is too long for certificates or a key"));
    }
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    pem::certificates(&read(path)?).map_err(|what| unusable(path, what))
}

fn unusable(path: &Path, what: impl ToString) -> Error {
    let path = path.display().to_string();
    Error::of("", Cause::Material { path, what: what.to_string() })
}

/// Shows our certificate, and notes that it was asked for.
#[derive(Debug)]
struct Showing {
    key: Option<Arc<CertifiedKey>>,
    shown: Arc<Shown>,
}

impl ResolvesClientCert for Showing {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let asked = root_hint_subjects.iter().map(|subject| subject.to_vec()).collect();
        self.shown.note(|learnt| learnt.asked = Some(asked));
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

#[derive(Debug)]
enum Trust {
    Anybody,
    Nobody,
    /// Whom the authorities signed, and the authorities themselves.
    Signed(Arc<WebPkiServerVerifier>, Vec<CertificateDer<'static>>),
}

/// Checks a server's certificate, and keeps it to say what was wrong with it.
#[derive(Debug)]
struct Watch {
    trust: Trust,
    shown: Arc<Shown>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Watch {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let kept = end_entity.clone().into_owned();
        self.shown.note(|learnt| learnt.certificate = Some(kept));
        let (verifier, given) = match &self.trust {
            Trust::Anybody => return Ok(ServerCertVerified::assertion()),
            Trust::Nobody => return Err(CertificateError::UnknownIssuer.into()),
            Trust::Signed(verifier, given) => (verifier, given),
        };
        match verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            // A certificate that was itself given as an authority is trusted, as other programs
            // do, even where it may sign others; rustls has no name for its refusal.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if given.iter().any(|given| given == end_entity) =>
            {
                itself(end_entity, server_name, now)
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks the dates, the use and the name of a certificate that was given as an authority.
fn itself(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, rustls::Error> {
    let facts = Facts::read(certificate).ok_or(CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > facts.not_after {
        return Err(CertificateError::Expired.into());
    }
    if now < facts.not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if !facts.for_servers {
        return Err(CertificateError::InvalidPurpose.into());
    }
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    Ok(ServerCertVerified::assertion())
}
