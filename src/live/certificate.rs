//! What a certificate says, and why one was not accepted, from its bytes.
//!
//! Never panics and never trusts: whatever a server shows is text that was cut, with control
//! characters escaped.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::{AlertDescription, CertificateError};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use super::{Cause, Certificate, Problem, Side};

/// Most names of one kind that are kept.
const NAMES_MAX: usize = 24;
/// Longest name that is kept, in characters.
const NAME_MAX: usize = 200;

/// What a certificate says of itself; nothing where it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) subject: String,
    pub(super) issuer: String,
    /// The common name of the subject, which is the user where no user is named.
    pub(super) common_name: String,
    /// The issuer as its bytes.
    pub(super) issuer_der: Vec<u8>,
    pub(super) names: Vec<String>,
    /// Seconds since 1970.
    pub(super) not_before: i64,
    /// Seconds since 1970.
    pub(super) not_after: i64,
    /// Empty where it does not say, which allows everything.
    pub(super) uses: Vec<String>,
    pub(super) for_servers: bool,
    pub(super) for_clients: bool,
}

/// Our own certificate, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) file: String,
    pub(super) facts: Facts,
    /// Who signed the certificate and each one that goes with it, as bytes.
    pub(super) issuers: Vec<Vec<u8>>,
}

impl Facts {
    /// Tells whether its time has come and is not over.
    pub(super) fn is_in_time(&self) -> bool {
        (self.not_before..=self.not_after).contains(&now())
    }

    /// Says its dates in words.
    pub(super) fn dates(&self) -> String {
        format!(
            "{} is valid from {} to {}",
            self.subject,
            date(self.not_before),
            date(self.not_after)
        )
    }

    pub(super) fn read(der: &[u8]) -> Option<Self> {
        let (_, read) = X509Certificate::from_der(der).ok()?;
        let mut facts = Self {
            subject: shown(&read.subject().to_string()),
            issuer: shown(&read.issuer().to_string()),
            common_name: common_name(read.subject()),
            issuer_der: read.issuer().as_raw().to_vec(),
            not_before: read.validity().not_before.timestamp(),
            not_after: read.validity().not_after.timestamp(),
            for_servers: true,
            for_clients: true,
            ..Self::default()
        };
        if facts.subject.is_empty() {
            "(empty)".clone_into(&mut facts.subject);
        }
        for extension in read.extensions().iter().map(|extension| extension.parsed_extension()) {
            match extension {
                ParsedExtension::SubjectAlternativeName(all) => {
                    let names = all.general_names.iter().take(NAMES_MAX);
                    facts.names = names.filter_map(name).collect();
                }
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    let known = [
                        (usage.any, "any use"),
                        (usage.server_auth, "server authentication"),
                        (usage.client_auth, "client authentication"),
                        (usage.code_signing, "signing of programs"),
                        (usage.email_protection, "mail"),
                        (usage.time_stamping, "time stamps"),
                        (usage.ocsp_signing, "OCSP"),
                    ];
                    let known = known.into_iter().filter(|(on, _)| *on);
                    let other =
                        usage.other.iter().take(NAMES_MAX).map(|oid| shown(&oid.to_string()));
                    facts.uses = known.map(|(_, word)| word.to_owned()).chain(other).collect();
                    facts.for_servers = usage.any || usage.server_auth;
                    facts.for_clients = usage.any || usage.client_auth;
                }
                _ => {}
            }
        }
        Some(facts)
    }

    fn told(&self, side: Side, problem: Problem) -> Box<Certificate> {
        Box::new(Certificate {
            side,
            problem,
            subject: self.subject.clone(),
            issuer: self.issuer.clone(),
            names: self.names.clone(),
            not_before: date(self.not_before),
            not_after: date(self.not_after),
            uses: self.uses.clone(),
            file: String::new(),
            authorities: Vec::new(),
            clock: date(now()),
        })
    }
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
    Cause::Certificate(facts.told(Side::Server, problem))
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
        return Some(Cause::Certificate(Facts::default().told(Side::Client, Problem::Missing)));
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
    let mut told = facts.told(Side::Client, problem);
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

/// Returns text that may be shown: cut, on one line, in printable characters.
pub(super) fn shown(text: &str) -> String {
    text.chars()
        .take(NAME_MAX)
        .flat_map(|c| match c {
            ' '..='~' => vec![c],
            c if c.is_alphanumeric() => vec![c],
            c => c.escape_default().collect(),
        })
        .collect()
}

/// Returns seconds since 1970 by this machine's clock.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn date(seconds: i64) -> String {
    // The zero of a certificate that could not be read is no date.
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) if seconds != 0 => time.to_string(),
        _ => String::new(),
    }
}

fn common_name(name: &X509Name<'_>) -> String {
    let mut names = name.iter_common_name();
    names.next().and_then(|name| name.as_str().ok()).map(shown).unwrap_or_default()
}

fn authority(der: &[u8]) -> Option<String> {
    let (_, name) = X509Name::from_der(der).ok()?;
    Some(shown(&name.to_string()))
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some(shown(name)),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_certificate_say_nothing() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", &[0x30; 400]] {
            assert_eq!(Facts::read(bytes), None);
        }
        let cause = theirs(&CertificateError::Expired, Some(b"\x30"), "cp-1");
        assert!(cause.to_string().contains("expired"), "{cause}");
    }

    #[test]
    fn text_of_others_stays_on_its_line() {
        assert_eq!(shown("a\nb\u{1b}[2Jc"), "a\\nb\\u{1b}[2Jc");
        assert_eq!(shown(&"x".repeat(10_000)).len(), NAME_MAX);
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
