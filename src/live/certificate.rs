//! Why a certificate was not accepted, theirs or ours, in our words.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls::{AlertDescription, CertificateError};

use crate::format::certificate::{Facts, NAMES_MAX, authority, date, shown};

use super::{Cause, Certificate, Problem, Side};

/// Our own certificate, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) file: String,
    pub(super) facts: Facts,
    /// Who signed the certificate and each one that goes with it, as bytes.
    pub(super) issuers: Vec<Vec<u8>>,
}

fn told(facts: &Facts, side: Side, problem: Problem) -> Box<Certificate> {
    Box::new(Certificate {
        side,
        problem,
        subject: facts.subject.clone(),
        issuer: facts.issuer.clone(),
        names: facts.names.clone(),
        not_before: date(facts.not_before),
        not_after: date(facts.not_after),
        uses: facts.uses.clone(),
        file: String::new(),
        authorities: Vec::new(),
        clock: date(now()),
    })
}

/// Says why a server's certificate was not accepted.
pub(super) fn theirs(error: &CertificateError, der: Option<&[u8]>, wanted: &str) -> Cause {
    let facts = der.and_then(Facts::read).unwrap_or_default();
    let problem = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Problem::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Problem::NotYetValid
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            Problem::UnknownAuthority
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Problem::WrongName { wanted: wanted.to_owned() }
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Problem::WrongPurpose
        }
        // rustls has no name for webpki's refusal of an authority that serves by itself.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            match facts.subject == facts.issuer {
                true => Problem::UnknownAuthority,
                false => Problem::Other { what: "it is marked as an authority's".to_owned() },
            }
        }
        other => Problem::Other { what: shown(&other.to_string()) },
    };
    Cause::Certificate(told(&facts, Side::Server, problem))
}

/// Says why a server refused us, as far as our certificate can be the reason.
///
/// `asked` are the authorities that the server named when it asked for a certificate, `None` where
/// it asked for none.
pub(super) fn ours(
    alert: AlertDescription,
    own: Option<&Own>,
    asked: Option<&[Vec<u8>]>,
) -> Option<Cause> {
    use AlertDescription as Alert;
    let about_certificates = matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
    );
    // Some servers say no more than that the handshake failed.
    let after_asking = alert == Alert::HandshakeFailure && asked.is_some();
    if !about_certificates && !after_asking {
        return None;
    }
    let Some(own) = own else {
        return Some(Cause::Certificate(told(&Facts::default(), Side::Client, Problem::Missing)));
    };
    let facts = &own.facts;
    let hints = asked.unwrap_or_default();
    let foreign = !hints.is_empty() && !own.issuers.iter().any(|issuer| hints.contains(issuer));
    let problem = match now() {
        now if now > facts.not_after => Problem::Expired,
        now if now < facts.not_before => Problem::NotYetValid,
        _ if !facts.for_clients => Problem::WrongPurpose,
        _ if foreign || alert == Alert::UnknownCA => Problem::UnknownAuthority,
        // Its clock, not ours.
        _ if alert == Alert::CertificateExpired => Problem::Other {
            what: "by the server's clock its time is over or has not come".to_owned(),
        },
        _ => Problem::Refused { alert: words(alert) },
    };
    let mut told = told(facts, Side::Client, problem);
    told.file.clone_from(&own.file);
    told.authorities = hints.iter().take(NAMES_MAX).filter_map(|der| authority(der)).collect();
    Some(Cause::Certificate(told))
}

/// Returns an alert in words.
pub(super) fn words(alert: AlertDescription) -> String {
    use AlertDescription as Alert;
    let words = match alert {
        Alert::HandshakeFailure => "handshake failure",
        Alert::BadCertificate => "bad certificate",
        Alert::UnsupportedCertificate => "unsupported certificate",
        Alert::CertificateRevoked => "certificate revoked",
        Alert::CertificateExpired => "certificate expired",
        Alert::CertificateUnknown => "certificate unknown",
        Alert::UnknownCA => "unknown CA",
        Alert::AccessDenied => "access denied",
        Alert::CertificateRequired => "certificate required",
        Alert::ProtocolVersion => "no common version of TLS",
        Alert::NoApplicationProtocol => "no common protocol, it does not speak HTTP/2",
        Alert::InternalError => "internal error",
        Alert::UnrecognisedName => "unrecognised name",
        other => return format!("alert {}", u8::from(other)),
    };
    words.to_owned()
}

/// Returns seconds since 1970 by this machine's clock.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_of_bytes_that_are_no_certificate() {
        let cause = theirs(&CertificateError::Expired, Some(b"\x30"), "cp-1");
        assert!(cause.to_string().contains("expired"), "{cause}");
    }

    #[test]
    fn an_alert_of_another_kind_is_not_about_our_certificate() {
        for alert in [AlertDescription::HandshakeFailure, AlertDescription::ProtocolVersion] {
            assert_eq!(ours(alert, None, None), None, "{alert:?}");
        }
        let missing = ours(AlertDescription::HandshakeFailure, None, Some(&[])).unwrap();
        assert!(missing.to_string().contains("wants a client certificate"), "{missing}");
    }
}
