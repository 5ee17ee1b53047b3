//! A certificate that the server makes for itself, where `--auto-tls` asks for one.
//!
//! As etcd's: names of the URLs that are listened on, for servers, its own authority, in `cert.pem`
//! and `key.pem`. Ours is of the curve P-256 rather than P-521, and a new one is made when the old
//! one is over, where etcd goes on with it.
//!
//! Source: etcd client/pkg/transport (`SelfCert`), 3.7.3.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

use super::settings::{Auto, Side, TlsError};
use crate::format::certificate::{Facts, date};
use crate::format::pem;
use crate::store::lines::Log;

/// As in etcd: no leap years.
const YEAR_SECONDS: i64 = 365 * 24 * 60 * 60;
/// The longest that the form of dates has room for.
const YEARS_MAX: u32 = 1000;

/// Makes sure that there is a certificate and its key, and returns their files.
///
/// # Errors
///
/// [`TlsError::File`] where they cannot be made or are no certificate; [`TlsError::Flags`] for a
/// validity of no years.
pub(super) fn ensure(
    auto: &Auto,
    side: Side,
    log: &Log,
    now: i64,
) -> Result<[PathBuf; 2], TlsError> {
    if !(1..=YEARS_MAX).contains(&auto.years) {
        return Err(TlsError::Flags(match auto.years {
            0 => "selfSignedCertValidity is invalid,it should be greater than 0".to_owned(),
            _ => format!("--self-signed-cert-validity is at most {YEARS_MAX} years"),
        }));
    }
    let (cert, key) = (auto.dir.join("cert.pem"), auto.dir.join("key.pem"));
    // etcd makes a new pair where one of the two is missing.
    let is_there = |path: &Path| match path.try_exists() {
        Ok(is_there) => Ok(is_there),
        Err(error) => Err(TlsError::file(path, error)),
    };
    if is_there(&cert)? && is_there(&key)? {
        let text = fs::read(&cert).map_err(|error| TlsError::file(&cert, error))?;
        let first = pem::certificates(&text).map_err(|what| broken(&cert, &what))?;
        let facts = first.first().and_then(|der| Facts::read(der));
        let facts = facts.ok_or_else(|| broken(&cert, "the certificate in it is damaged"))?;
        if facts.is_in_time(now) {
            return Ok([cert, key]);
        }
        log.warn(&format!("{}: {}; a new one is made", cert.display(), facts.dates()), &[]);
    }
    make(auto, side, now, &cert, &key)?;
    let until = now.saturating_add(i64::from(auto.years).saturating_mul(YEAR_SECONDS));
    log.info(&format!("made the certificate {}, valid until {}", cert.display(), date(until)), &[]);
    Ok([cert, key])
}

fn broken(path: &Path, what: &str) -> TlsError {
    TlsError::file(path, format!("{what}; remove it, and a new pair is made"))
}

fn make(auto: &Auto, side: Side, now: i64, cert: &Path, key: &Path) -> Result<(), TlsError> {
    let unmade = |error: rcgen::Error| TlsError::file(cert, format!("it cannot be made: {error}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    let start = Duration::from_secs(u64::try_from(now).unwrap_or(0));
    let length = u64::try_from(i64::from(auto.years).saturating_mul(YEAR_SECONDS)).unwrap_or(0);
    params.not_before = date_time_ymd(1970, 1, 1) + start;
    params.not_after = params.not_before + Duration::from_secs(length);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::CrlSign,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    if side == Side::Peer {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    for host in &auto.hosts {
        params.subject_alt_names.push(name(host).map_err(unmade)?);
    }
    let pair = KeyPair::generate().map_err(unmade)?;
    let made = params.self_signed(&pair).map_err(unmade)?;
    let mut folders = DirBuilder::new();
    let folders = folders.recursive(true).mode(0o700).create(&auto.dir);
    folders.map_err(|error| TlsError::file(&auto.dir, format!("it cannot be made: {error}")))?;
    // The key first: a certificate that is there has its key.
    write(key, &pair.serialize_pem(), 0o600)?;
    write(cert, &made.pem(), 0o644)
}

/// Takes the port off, as Go's `SplitHostPort` does.
fn name(host: &str) -> Result<SanType, rcgen::Error> {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(host.try_into()?)),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let mut new = path.to_owned();
    new.set_extension("pem.new");
    let written = || -> io::Result<()> {
        let options =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new);
        let mut file: File = options?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|error| TlsError::file(path, format!("it cannot be written: {error}")))
}
