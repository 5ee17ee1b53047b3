//! The address of one member's client port, as `--endpoints` spells it.
//!
//! **Shape**: `http://HOST:PORT`, `https://HOST:PORT`, `unixs://PATH`, or `HOST:PORT` and
//! `unix://PATH`, which use TLS where TLS flags are given and none elsewhere (etcd client/v3,
//! internal/endpoint, `translateEndpoint`, checked at 3.7.3). HOST is a name, an IPv4 address or
//! an IPv6 address in brackets. `unix:PATH` and `unixs:PATH` are taken too.
//!
//! **Errors**: [`Cause::Malformed`].

use super::{Cause, Error};

/// Whether connections to an endpoint use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Never: the scheme is `http`.
    Plain,
    /// Always: the scheme is `https` or `unixs`.
    Tls,
    /// Where TLS flags are given: there is no scheme, or it is `unix`.
    AsFlagsSay,
}

/// Where an endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A name or address (an IPv6 address without its brackets), and a port.
    Tcp {
        /// Name or address.
        host: String,
        /// From 1 to 65535.
        port: u16,
    },
    /// A socket in the file system.
    Unix(String),
}

/// An endpoint that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    given: String,
    security: Security,
    place: Place,
}

impl Endpoint {
    /// Reads an endpoint.
    ///
    /// # Errors
    ///
    /// [`Cause::Malformed`] when it has another scheme, a path, a user, no port or odd characters.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        // First of all: from here on the text may be shown.
        if text.contains('@') {
            let what = "it holds a user or password (give those with --user)".to_owned();
            return Err(Error::of("", Cause::Malformed { what }));
        }
        let malformed = |what: &str| {
            let what = format!("{:?} is no endpoint: {what}", text);
            Err(Error::of("", Cause::Malformed { what }))
        };
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return malformed("it holds blanks or control characters");
        }
        let local = ["unix", "unixs"]
            .into_iter()
            .find_map(|scheme| Some((Some(scheme), text.strip_prefix(scheme)?.strip_prefix(':')?)));
        let (scheme, rest) = match (text.split_once("://"), local) {
            (Some((scheme, rest)), _) => (Some(scheme), rest),
            (None, Some(local)) => local,
            (None, None) => (None, text),
        };
        let security = match scheme.map(str::to_ascii_lowercase).as_deref() {
            None | Some("unix") => Security::AsFlagsSay,
            Some("http") => Security::Plain,
            Some("https" | "unixs") => Security::Tls,
            Some(_) => return malformed("its scheme is not http, https, unix or unixs"),
        };
        if scheme.is_some_and(|scheme| scheme.to_ascii_lowercase().starts_with("unix")) {
            if rest.is_empty() {
                return malformed("it has no path");
            }
            let place = Place::Unix(rest.to_owned());
            return Ok(Self { given: text.to_owned(), security, place });
        }
        let address = rest.strip_suffix('/').unwrap_or(rest);
        if address.contains(['/', '?', '#']) {
            return malformed("it has a path");
        }
        let Some((host, port)) = address.rsplit_once(':') else {
            return malformed("it has no port");
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || (host.contains(':') && bare.is_none()) {
            return malformed("its host is neither a name nor an address");
        }
        let Ok(port @ 1..) = port.parse::<u16>() else {
            return malformed("its port is not a number from 1 to 65535");
        };
        let place = Place::Tcp { host: bare.unwrap_or(host).to_owned(), port };
        Ok(Self { given: text.to_owned(), security, place })
    }

    /// Returns the endpoint as it was given, without blanks around it.
    #[must_use]
    pub fn given(&self) -> &str {
        &self.given
    }

    /// Tells when connections use TLS.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// Returns the name or address that its certificate must be for: the host, or the name of the
    /// socket's file up to a colon.
    #[must_use]
    pub fn server_name(&self) -> &str {
        match &self.place {
            // A zone says which of our interfaces leads there.
            Place::Tcp { host, .. } => host.split('%').next().unwrap_or(host),
            Place::Unix(path) => {
                let name = path.rsplit('/').next().unwrap_or(path);
                name.split(':').next().unwrap_or(name)
            }
        }
    }

    /// Returns the address with its port as a URL has it, or the path of the socket.
    #[must_use]
    pub fn address(&self) -> String {
        match &self.place {
            Place::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp { host, port } => format!("{host}:{port}"),
            Place::Unix(path) => path.clone(),
        }
    }

    /// Tells whether connections use TLS; `wanted` where endpoints without a scheme do.
    #[must_use]
    pub fn is_secure(&self, wanted: bool) -> bool {
        match self.security {
            Security::Plain => false,
            Security::Tls => true,
            Security::AsFlagsSay => wanted,
        }
    }

    /// Returns where it listens.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_etcdctl_takes() {
        let tcp = |host: &str, port| Place::Tcp { host: host.into(), port };
        for (given, security, place) in [
            ("http://10.0.0.1:2379", Security::Plain, tcp("10.0.0.1", 2379)),
            ("10.0.0.1:2379", Security::AsFlagsSay, tcp("10.0.0.1", 2379)),
            (" cp-1:2379/ ", Security::AsFlagsSay, tcp("cp-1", 2379)),
            ("HTTP://[::1]:2379", Security::Plain, tcp("::1", 2379)),
            ("https://cp-1:2379", Security::Tls, tcp("cp-1", 2379)),
            ("unix:///run/e.sock", Security::AsFlagsSay, Place::Unix("/run/e.sock".into())),
            ("unix:e.sock", Security::AsFlagsSay, Place::Unix("e.sock".into())),
            ("unixs:/run/e.sock", Security::Tls, Place::Unix("/run/e.sock".into())),
            ("unixs://etcd.sock:1", Security::Tls, Place::Unix("etcd.sock:1".into())),
            ("unix:2379", Security::AsFlagsSay, Place::Unix("2379".into())),
        ] {
            let endpoint = Endpoint::parse(given).unwrap();
            assert_eq!((endpoint.security(), endpoint.place()), (security, &place), "{given}");
        }
    }

    #[test]
    fn names_what_a_certificate_must_be_for() {
        for (given, name, address) in [
            ("https://cp-1:2379", "cp-1", "cp-1:2379"),
            ("https://[::1]:2379", "::1", "[::1]:2379"),
            ("https://[fe80::1%eth0]:2379", "fe80::1", "[fe80::1%eth0]:2379"),
            ("unixs:///run/localhost:m1", "localhost", "/run/localhost:m1"),
        ] {
            let endpoint = Endpoint::parse(given).unwrap();
            assert_eq!((endpoint.server_name(), endpoint.address().as_str()), (name, address));
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
            ("ftp://cp-1:21", "scheme is not"),
            ("unix://", "no path"),
            ("http://cp 1:2379", "blanks"),
        ] {
            let error = Endpoint::parse(given).unwrap_err();
            assert!(error.to_string().contains(what), "{given}: {error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let error = Endpoint::parse("http://root:hunter2@cp-1:2379").unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}
