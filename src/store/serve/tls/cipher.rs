//! Versions of TLS and cipher suites, by the names that Go has for them.
//!
//! Source: etcd client/pkg/tlsutil (`GetTLSVersion`, `GetCipherSuite`) and server/embed
//! (`Config.Validate`), 3.7.3; crypto/tls of Go 1.26 (`CipherSuites`, `InsecureCipherSuites`).

use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use super::settings::TlsError;
use crate::format::signature;

/// What begins the names of suites of TLS 1.3 with us, where Go says `TLS_`.
const OUR_TLS13: &str = "TLS13_";

/// Suites that Go knows and ring has not: without forward secrecy, or with CBC, RC4 or 3DES.
const GOS_ALONE: &[&str] = &[
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// What is offered.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) suites: Vec<SupportedCipherSuite>,
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
    /// Suites that were named and cannot be offered.
    pub(super) left_out: Vec<String>,
}

/// Finds what to offer. Suites are for TLS 1.2; those of TLS 1.3 cannot be chosen, as in Go.
pub(super) fn plan(names: &[String], min: &str, max: &str) -> Result<Plan, TlsError> {
    let (lowest, highest) = (version(min)?.unwrap_or(2), version(max)?);
    if highest.is_some_and(|highest| lowest > highest) {
        return Err(TlsError::Flags(format!(
            "min version ({min}) is greater than max version ({max})"
        )));
    }
    if lowest == 3 && !names.is_empty() {
        return Err(TlsError::Flags(
            "cipher suites cannot be configured when only TLS1.3 is enabled".to_owned(),
        ));
    }
    let ours = &signature::provider().cipher_suites;
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for name in names {
        // What they were called before the hash was part of the name.
        let name = match name.strip_suffix("_CHACHA20_POLY1305") {
            Some(old) if old.starts_with("TLS_ECDHE_") => &format!("{name}_SHA256"),
            _ => name,
        };
        match ours.iter().find(|suite| go_name(suite) == *name) {
            Some(suite) => chosen.push(*suite),
            None if GOS_ALONE.contains(&name.as_str()) => left_out.push(name.clone()),
            None => {
                return Err(TlsError::Flags(format!("unexpected TLS cipher suite {name:?}")));
            }
        }
    }
    chosen.retain(|suite| suite.tls13().is_none());
    let of_12 = match names.is_empty() {
        true => ours.iter().filter(|suite| suite.tls13().is_none()).copied().collect(),
        false => chosen,
    };
    let offers_12 = lowest == 2 && !of_12.is_empty();
    let offers_13 = highest != Some(2);
    if of_12.is_empty() && (!left_out.is_empty() || !offers_13) {
        return Err(TlsError::Flags(format!(
            "none of the cipher suites is offered here for TLS1.2: {}; those are {}",
            names.join(", "),
            ours.iter()
                .filter(|suite| suite.tls13().is_none())
                .map(go_name)
                .collect::<Vec<_>>()
                .join(", "),
        )));
    }
    let mut plan = Plan { suites: Vec::new(), versions: Vec::new(), left_out };
    if offers_13 {
        plan.suites.extend(ours.iter().filter(|suite| suite.tls13().is_some()));
        plan.versions.push(&TLS13);
    }
    if offers_12 {
        plan.suites.extend(of_12);
        plan.versions.push(&TLS12);
    }
    Ok(plan)
}

/// Reads a version: 2 or 3, nothing for the default.
fn version(name: &str) -> Result<Option<u8>, TlsError> {
    match name {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(2)),
        "TLS1.3" => Ok(Some(3)),
        other => Err(TlsError::Flags(format!(
            "unexpected TLS version {other:?} (must be one of: TLS1.2, TLS1.3)"
        ))),
    }
}

fn go_name(suite: &SupportedCipherSuite) -> String {
    let ours = suite.suite().as_str().unwrap_or_default();
    match ours.strip_prefix(OUR_TLS13) {
        Some(rest) => format!("TLS_{rest}"),
        None => ours.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], min: &str, max: &str) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let plan = plan(&names, min, max).map_err(|error| error.to_string())?;
        assert!(!plan.versions.is_empty());
        Ok(plan.suites.iter().map(go_name).collect())
    }

    #[test]
    fn names_are_gos_and_those_of_tls_13_always_stay() {
        let all = named(&[], "", "").unwrap();
        assert_eq!(all.len(), 9);
        let one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        let chosen = named(&[one], "TLS1.2", "").unwrap();
        assert_eq!(chosen.len(), 4);
        assert_eq!(chosen.last().unwrap(), one);
        assert_eq!(named(&[one], "", "TLS1.2").unwrap(), [one]);
        let old = named(&["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"], "", "TLS1.2").unwrap();
        assert_eq!(old, ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]);
        assert_eq!(named(&["TLS_AES_128_GCM_SHA256"], "", "").unwrap().len(), 3);
        assert_eq!(named(&[], "TLS1.3", "").unwrap().len(), 3);
    }

    #[test]
    fn what_etcd_refuses_is_refused_in_its_words() {
        let refused = |names: &[&str], min, max| named(names, min, max).unwrap_err();
        assert_eq!(refused(&["x\"y"], "", ""), "unexpected TLS cipher suite \"x\\\"y\"");
        assert_eq!(
            refused(&[], "TLS1.1", ""),
            "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)"
        );
        assert_eq!(
            refused(&[], "TLS1.3", "TLS1.2"),
            "min version (TLS1.3) is greater than max version (TLS1.2)"
        );
        assert_eq!(
            refused(&["TLS_AES_128_GCM_SHA256"], "TLS1.3", ""),
            "cipher suites cannot be configured when only TLS1.3 is enabled"
        );
    }

    #[test]
    fn a_suite_that_ring_has_not_is_left_out_unless_it_is_the_last() {
        let weak = "TLS_RSA_WITH_AES_128_CBC_SHA".to_owned();
        let good = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384".to_owned();
        let both = plan(&[weak.clone(), good], "", "").unwrap();
        assert_eq!((both.left_out, both.versions.len()), (vec![weak.clone()], 2));
        let text = plan(&[weak], "", "").unwrap_err().to_string();
        assert!(text.contains("TLS_RSA_WITH_AES_128_CBC_SHA; those are TLS_ECDHE_"), "{text}");
        let text = named(&["TLS_AES_128_GCM_SHA256"], "", "TLS1.2").unwrap_err();
        assert!(text.starts_with("none of the cipher suites"), "{text}");
    }
}
