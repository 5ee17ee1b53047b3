//! Certificates: what we trust, what we show, and why one was not accepted.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::settings::Tls;
use super::{Cause, Error};

/// Protocol that gRPC speaks over TLS.
const H2: &[u8] = b"h2";

/// What connections over TLS are made with.
pub(super) struct Material {
    pub(super) config: Arc<ClientConfig>,
    /// The certificate that the last server showed.
    pub(super) shown: Arc<Shown>,
}

/// The certificate that a server showed last.
#[derive(Debug, Default)]
pub(super) struct Shown(Mutex<Option<CertificateDer<'static>>>);

impl Shown {
    fn set(&self, certificate: &CertificateDer<'_>) {
        let certificate = certificate.clone().into_owned();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(certificate);
    }

    pub(super) fn take(&self) -> Option<CertificateDer<'static>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reads the files that are named.
///
/// # Errors
///
/// [`Cause::Material`] for a file that cannot be read or holds something else, and for a
/// certificate without its key.
pub(super) fn material(tls: &Tls) -> Result<Material, Error> {
    let provider = Arc::new(ring::default_provider());
    let shown = Arc::new(Shown::default());
    let verifier = verifier(tls, &provider)?;
    let verifier = Arc::new(Watch { verifier, shown: shown.clone(), provider: provider.clone() });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(Path::new("TLS"), error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&tls.cert, &tls.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let key_pair =
                PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unusable(key, error))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key_pair)
                .map_err(|error| unusable(cert, error))?
        }
        (Some(cert), None) => return Err(unusable(cert, "it needs its key too (--key)")),
        (None, Some(key)) => return Err(unusable(key, "it needs its certificate too (--cert)")),
    };
    config.alpn_protocols = vec![H2.to_vec()];
    Ok(Material { config: Arc::new(config), shown })
}

fn verifier(
    tls: &Tls,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<WebPkiServerVerifier>>, Error> {
    if tls.insecure_skip_verify {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    let from = match &tls.cacert {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| unusable(file, error))?;
            }
            file.as_path()
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Path::new("the system's certificates")
        }
    };
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map(Some)
        .map_err(|error| unusable(from, error))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| unusable(path, error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| unusable(path, error))?;
    if all.is_empty() {
        return Err(unusable(path, "it holds no PEM certificate"));
    }
    Ok(all)
}

fn unusable(path: &Path, what: impl ToString) -> Error {
    let path = path.display().to_string();
    Error::of("", Cause::Material { path, what: what.to_string() })
}

/// Checks a server's certificate as always, and keeps it to say what was wrong with it.
#[derive(Debug)]
struct Watch {
    /// `None` takes any certificate.
    verifier: Option<Arc<WebPkiServerVerifier>>,
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
        self.shown.set(end_entity);
        let Some(verifier) = &self.verifier else { return Ok(ServerCertVerified::assertion()) };
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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
