//! What a certificate says of itself, from its bytes.
//!
//! Never panics and never trusts: what is for people's eyes is text that was cut, with control
//! characters escaped. Whether a certificate is to be believed is webpki's matter, not ours.
//!
//! Source: RFC 5280; Go's crypto/x509 where programs differ (`Certificate.CheckSignatureFrom`,
//! `pkix.Name.FillFromRDNSequence`), as of Go 1.26.

use std::net::IpAddr;

use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{X509Name, X509Version};

/// Most names of one kind that are kept.
pub(crate) const NAMES_MAX: usize = 24;
/// Longest name that is shown, in characters.
const NAME_MAX: usize = 200;

/// What a certificate says of itself; nothing where it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// For people's eyes.
    pub(crate) subject: String,
    /// For people's eyes.
    pub(crate) issuer: String,
    /// The common name of the subject as it is, which is the user where no user is named; the last
    /// one of several, as in Go.
    pub(crate) common_name: String,
    /// The subject as its bytes.
    pub(crate) subject_der: Vec<u8>,
    /// The issuer as its bytes.
    pub(crate) issuer_der: Vec<u8>,
    pub(crate) serial: Vec<u8>,
    pub(crate) names: Vec<String>,
    /// Seconds since 1970.
    pub(crate) not_before: i64,
    /// Seconds since 1970.
    pub(crate) not_after: i64,
    /// Empty where it does not say, which allows everything.
    pub(crate) uses: Vec<String>,
    pub(crate) for_servers: bool,
    pub(crate) for_clients: bool,
    /// Whether programs in Go take it for the authority of others.
    pub(crate) may_sign: bool,
}

impl Facts {
    /// Tells whether its time has come and is not over; `at` in seconds since 1970.
    pub(crate) fn is_in_time(&self, at: i64) -> bool {
        (self.not_before..=self.not_after).contains(&at)
    }

    /// Says its dates in words.
    pub(crate) fn dates(&self) -> String {
        format!(
            "{} is valid from {} to {}",
            self.subject,
            date(self.not_before),
            date(self.not_after)
        )
    }

    /// Reads a certificate in DER.
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let (_, read) = X509Certificate::from_der(der).ok()?;
        let mut facts = Self {
            subject: shown(&read.subject().to_string()),
            issuer: shown(&read.issuer().to_string()),
            common_name: common_name(read.subject()),
            subject_der: read.subject().as_raw().to_vec(),
            issuer_der: read.issuer().as_raw().to_vec(),
            serial: significant(read.raw_serial()).to_vec(),
            not_before: read.validity().not_before.timestamp(),
            not_after: read.validity().not_after.timestamp(),
            for_servers: true,
            for_clients: true,
            ..Self::default()
        };
        if facts.subject.is_empty() {
            "(empty)".clone_into(&mut facts.subject);
        }
        let mut is_authority = None;
        let mut use_allows = true;
        for extension in read.extensions().iter().map(|extension| extension.parsed_extension()) {
            match extension {
                ParsedExtension::SubjectAlternativeName(all) => {
                    let names = all.general_names.iter().take(NAMES_MAX);
                    facts.names = names.filter_map(name).collect();
                }
                ParsedExtension::BasicConstraints(basic) => is_authority = Some(basic.ca),
                ParsedExtension::KeyUsage(usage) => {
                    use_allows = usage.flags == 0 || usage.key_cert_sign();
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
        // Authorities of the first version have no extensions to say that they are.
        let is_authority = is_authority.unwrap_or(read.version() != X509Version::V3);
        facts.may_sign = is_authority && use_allows;
        Some(facts)
    }
}

/// Returns a serial number without the zeros before it, as numbers are compared.
pub(crate) fn significant(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    serial.get(zeros..).unwrap_or_default()
}

/// Returns text that may be shown: cut, on one line, in printable characters.
pub(crate) fn shown(text: &str) -> String {
    text.chars()
        .take(NAME_MAX)
        .flat_map(|c| match c {
            ' '..='~' => vec![c],
            c if c.is_alphanumeric() => vec![c],
            c => c.escape_default().collect(),
        })
        .collect()
}

/// Returns the name of an authority, in DER, for people's eyes.
pub(crate) fn authority(der: &[u8]) -> Option<String> {
    let (_, name) = X509Name::from_der(der).ok()?;
    Some(shown(&name.to_string()))
}

/// Writes seconds since 1970 as a date; nothing for the zero of what could not be read.
pub(crate) fn date(seconds: i64) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) if seconds != 0 => time.to_string(),
        _ => String::new(),
    }
}

fn common_name(name: &X509Name<'_>) -> String {
    let Some(last) = name.iter_common_name().last() else {
        return String::new();
    };
    let value = last.attr_value();
    if value.tag() == Tag::BmpString {
        let pairs = value.data.chunks_exact(2);
        let units = pairs.filter_map(|two| Some(u16::from_be_bytes(two.try_into().ok()?)));
        return char::decode_utf16(units)
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
    }
    last.as_str().unwrap_or_default().to_owned()
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
    }

    #[test]
    fn text_of_others_stays_on_its_line() {
        assert_eq!(shown("a\nb\u{1b}[2Jc"), "a\\nb\\u{1b}[2Jc");
        assert_eq!(shown(&"x".repeat(10_000)).len(), NAME_MAX);
    }

    #[test]
    fn serial_numbers_are_compared_as_numbers() {
        assert_eq!(significant(&[0, 0, 0x9a, 0]), [0x9a, 0]);
        assert_eq!(significant(&[0]), [0_u8; 0]);
    }
}
