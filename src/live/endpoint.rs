//! The address of one member's client port, as `--endpoints` spells it.
//!
//! **Shape**: `http://HOST:PORT`, or `HOST:PORT` which means the same (as in etcdctl). HOST is a
//! name, an IPv4 address or an IPv6 address in brackets.
//!
//! **Errors**: [`Error::Tls`] for https, [`Error::Malformed`] for anything else.

use super::Error;

/// An endpoint that can be asked over plain http.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    given: String,
    url: String,
}

impl Endpoint {
    /// Reads an endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Tls`] when it is https, [`Error::Malformed`] when it has another scheme, a path, a
    /// user, no port or odd characters.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let malformed = |what| Err(Error::Malformed { what });
        let text = text.trim();
        // First of all: from here on the text may be shown.
        if text.contains('@') {
            return malformed("it holds a user or password");
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return malformed("it holds blanks or control characters");
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if scheme.eq_ignore_ascii_case("https") {
            return Err(Error::Tls { endpoint: text.to_owned() });
        }
        if !scheme.eq_ignore_ascii_case("http") {
            return malformed("its scheme is neither http nor https");
        }
        let address = rest.strip_suffix('/').unwrap_or(rest);
        if address.contains(['/', '?', '#']) {
            return malformed("it has a path");
        }
        let Some((host, port)) = address.rsplit_once(':') else {
            return malformed("it has no port");
        };
        if host.is_empty()
            || (host.contains(':') && !(host.starts_with('[') && host.ends_with(']')))
        {
            return malformed("its host is neither a name nor an address");
        }
        if port.parse::<u16>().map_or(true, |port| port == 0) {
            return malformed("its port is not a number from 1 to 65535");
        }
        Ok(Self { given: text.to_owned(), url: format!("http://{address}") })
    }

    /// Returns the endpoint as it was given, without blanks around it.
    #[must_use]
    pub fn given(&self) -> &str {
        &self.given
    }

    /// Returns `http://HOST:PORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_etcdctl_takes() {
        for (given, url) in [
            ("http://10.0.0.1:2379", "http://10.0.0.1:2379"),
            ("10.0.0.1:2379", "http://10.0.0.1:2379"),
            (" cp-1:2379/ ", "http://cp-1:2379"),
            ("HTTP://[::1]:2379", "http://[::1]:2379"),
        ] {
            assert_eq!(Endpoint::parse(given).unwrap().url(), url);
        }
    }

    #[test]
    fn refuses_the_rest() {
        for (given, what) in [
            ("", "no port"),
            ("cp-1", "no port"),
            ("http://cp-1:0", "port is not"),
            ("http://cp-1:http", "port is not"),
            ("http://:2379", "host is neither"),
            ("::1:2379", "host is neither"),
            ("http://cp-1:2379/v3", "a path"),
            ("unix:///run/etcd.sock", "scheme is neither"),
            ("http://cp 1:2379", "blanks"),
        ] {
            let error = Endpoint::parse(given).unwrap_err();
            assert!(error.to_string().contains(what), "{given}: {error}");
        }
        let error = Endpoint::parse("https://cp-1:2379").unwrap_err();
        assert!(matches!(&error, Error::Tls { .. }));
        assert!(error.to_string().contains("TLS flags"));
    }

    #[test]
    fn a_password_is_never_shown() {
        let error = Endpoint::parse("http://root:hunter2@cp-1:2379").unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}
