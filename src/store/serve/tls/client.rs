//! Whether a client's certificate is believed, as etcd decides it.
//!
//! webpki builds and checks the chain. On top of it, as in Go: authorities out of their time or not
//! made to sign clients count for nothing; a certificate that is itself in the file of authorities
//! is believed; serial numbers are looked for in the revocation list, of all certificates that were
//! shown; then the common name or the host names must fit.
//!
//! Source: etcd client/pkg/transport (`TLSInfo.ServerConfig`, `TLSInfo.baseConfig`, `checkCRL`),
//! 3.7.3; Go 1.26 crypto/x509 (`Certificate.Verify`, `CheckSignatureFrom`, `VerifyHostname`).

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::settings::{Settings, TlsError};
use crate::format::certificate::{Facts, significant};
use crate::format::{pem, signature};

/// Who may vouch for clients.
#[derive(Clone, Debug)]
pub(super) struct Authorities {
    all: Arc<Vec<(CertificateDer<'static>, Facts)>>,
    /// Whether clients are told whom they are to be signed by.
    are_told: bool,
}

impl Authorities {
    /// Reads authorities in PEM.
    ///
    /// # Errors
    ///
    /// [`TlsError::File`] where there is none, one is damaged, or none is of use at `now`.
    pub(super) fn read(path: &Path, text: &[u8], now: i64) -> Result<Self, TlsError> {
        let all = pem::certificates(text).map_err(|what| TlsError::file(path, what))?;
        let all: Option<Vec<_>> =
            all.into_iter().map(|der| Facts::read(&der).map(|facts| (der, facts))).collect();
        let all = all.ok_or_else(|| TlsError::file(path, "a certificate in it is damaged"))?;
        if !all.iter().any(|(_, facts)| facts.is_in_time(now)) {
            let first = all.first().map(|(_, facts)| facts.dates()).unwrap_or_default();
            let what = format!("no authority in it is valid today: {first}");
            return Err(TlsError::file(path, what));
        }
        Ok(Self { all: Arc::new(all), are_told: true })
    }

    /// Takes the authorities that this system trusts.
    pub(super) fn of_the_system() -> Self {
        let all = rustls_native_certs::load_native_certs().certs;
        let all = all.into_iter().filter_map(|der| Facts::read(&der).map(|facts| (der, facts)));
        Self { all: Arc::new(all.collect()), are_told: false }
    }

    /// Returns the first moment after `now` at which another set of them is in its time.
    fn until(&self, now: i64) -> i64 {
        let ends = self
            .all
            .iter()
            .flat_map(|(_, facts)| [facts.not_before, facts.not_after.saturating_add(1)]);
        ends.filter(|end| *end > now).min().unwrap_or(i64::MAX)
    }
}

/// Serial numbers that are revoked, without the zeros before them.
#[derive(Clone, Default)]
pub(super) struct Revoked(Arc<HashSet<Vec<u8>>>);

impl fmt::Debug for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Revoked({})", self.0.len())
    }
}

impl Revoked {
    /// Reads a revocation list. As in etcd, neither who signed it nor its dates are looked at.
    ///
    /// # Errors
    ///
    /// [`TlsError::File`] where it is no list.
    pub(super) fn read(path: &Path, text: &[u8]) -> Result<Self, TlsError> {
        let lists = pem::revocation_lists(text).map_err(|what| TlsError::file(path, what))?;
        let mut all = HashSet::new();
        for list in lists {
            let Ok((_, list)) = CertificateRevocationList::from_der(&list) else {
                return Err(TlsError::file(path, "it is no revocation list, or a damaged one"));
            };
            let serials = list.iter_revoked_certificates();
            all.extend(serials.map(|one| significant(one.raw_serial()).to_vec()));
        }
        Ok(Self(Arc::new(all)))
    }

    fn holds(&self, der: &CertificateDer<'_>) -> Result<bool, Error> {
        if self.0.is_empty() {
            return Ok(false);
        }
        let facts = Facts::read(der).ok_or(CertificateError::BadEncoding)?;
        Ok(self.0.contains(&facts.serial))
    }
}

/// What a client's certificate must say.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    common: Vec<String>,
    hosts: Vec<ServerName<'static>>,
}

impl Names {
    /// Takes the names that are allowed; all, where none is given.
    ///
    /// # Errors
    ///
    /// [`TlsError::Flags`] for what cannot be the name of a host.
    pub(super) fn of(settings: &Settings) -> Result<Self, TlsError> {
        let hosts = settings.allowed_hostnames.iter().map(|host| {
            let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            ServerName::try_from(bare.unwrap_or(host).to_owned()).map_err(|_| {
                let flag = settings.flag("cert-allowed-hostname");
                TlsError::Flags(format!("{flag}: {host:?} is neither a host name nor an address"))
            })
        });
        Ok(Self { common: settings.allowed_names.clone(), hosts: hosts.collect::<Result<_, _>>()? })
    }

    fn allow(&self, der: &CertificateDer<'_>) -> Result<bool, Error> {
        if !self.common.is_empty() {
            let facts = Facts::read(der).ok_or(CertificateError::BadEncoding)?;
            return Ok(self.common.contains(&facts.common_name));
        }
        if self.hosts.is_empty() {
            return Ok(true);
        }
        let parsed = ParsedCertificate::try_from(der)?;
        Ok(self.hosts.iter().any(|host| verify_server_name(&parsed, host).is_ok()))
    }
}

/// Decides on the certificates of clients, for as long as the same authorities are in their time.
#[derive(Debug)]
pub(super) struct Check {
    authorities: Authorities,
    /// `None` where no authority is in its time.
    chains: Option<Arc<dyn ClientCertVerifier>>,
    revoked: Revoked,
    names: Names,
    hints: Vec<DistinguishedName>,
    /// Seconds since 1970 from which another check is to be made.
    pub(super) until: i64,
}

impl Check {
    pub(super) fn new(
        authorities: &Authorities,
        revoked: &Revoked,
        names: &Names,
        now: i64,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        let mut hints = Vec::new();
        for (der, facts) in authorities.all.iter().filter(|(_, facts)| facts.is_in_time(now)) {
            if authorities.are_told {
                hints.push(DistinguishedName::from(facts.subject_der.clone()));
            }
            if facts.may_sign && facts.for_clients {
                // One that webpki cannot read vouches for nobody.
                roots.add_parsable_certificates([der.clone()]);
            }
        }
        let provider = signature::provider();
        let chains = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Self {
            authorities: authorities.clone(),
            chains: chains.build().ok(),
            revoked: revoked.clone(),
            names: names.clone(),
            hints,
            until: authorities.until(now),
        }
    }

    fn chain(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if let Some((_, facts)) = self.authorities.all.iter().find(|(given, _)| given == leaf) {
            return itself(facts, now);
        }
        let chains = self.chains.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        chains.verify_client_cert(leaf, others, now).map(|_| ())
    }
}

impl ClientCertVerifier for Check {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.chain(end_entity, intermediates, now)?;
        if !self.names.allow(end_entity)? {
            return Err(CertificateError::Other(OtherError(Arc::new(NotAllowed))).into());
        }
        for one in std::iter::once(end_entity).chain(intermediates) {
            if self.revoked.holds(one)? {
                return Err(CertificateError::Revoked.into());
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = signature::provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, &known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = signature::provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, &known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature::provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A certificate that says none of the names that are allowed; in etcd's words.
#[derive(Debug, thiserror::Error)]
#[error("client certificate authentication failed")]
pub(super) struct NotAllowed;

/// Checks the dates and the use of a certificate that was given as an authority.
fn itself(facts: &Facts, now: UnixTime) -> Result<(), Error> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > facts.not_after {
        return Err(CertificateError::Expired.into());
    }
    if now < facts.not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    match facts.for_clients {
        true => Ok(()),
        false => Err(CertificateError::InvalidPurpose.into()),
    }
}
