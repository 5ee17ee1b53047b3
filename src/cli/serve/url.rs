//! The URLs of etcd's flags: where to listen, what to tell others.
//!
//! **Source**: etcd client/pkg/types/urls.go, 3.7.3; what Go's net/url refuses, with its words.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// How a URL is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
    Unix,
    Unixs,
}

/// A URL, with what stands where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: Scheme,
    /// `host:port`, as it stands.
    authority: String,
    /// What follows, of a socket file.
    path: String,
    text: String,
}

impl Url {
    /// Reads one URL.
    ///
    /// # Errors
    ///
    /// etcd's words for what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (scheme, rest) = split_scheme(text).map_err(|why| parse_error(text, &why))?;
        let (authority, path) = split_authority(rest).map_err(|why| parse_error(text, &why))?;
        let scheme = match scheme.as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(format!("URL scheme must be http, https, unix, or unixs: {text}")),
        };
        if !scheme.is_socket_file() {
            if split_host_port(authority).is_none() {
                return Err(format!("URL address does not have the form \"host:port\": {text}"));
            }
            if !path.is_empty() {
                return Err(format!("URL must not contain a path: {text}"));
            }
        }
        let shown = text.get(scheme.name().len()..).unwrap_or_default();
        Ok(Self {
            scheme,
            authority: authority.to_owned(),
            path: path.to_owned(),
            text: format!("{}{shown}", scheme.name()),
        })
    }

    /// Reads a list with commas; sorted, each once.
    ///
    /// # Errors
    ///
    /// etcd's words for what is wrong with the first that is wrong.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let mut urls = text.split(',').map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        urls.sort_by(|one, other| one.text.cmp(&other.text));
        urls.dedup();
        Ok(urls)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Host without brackets, and port; `None` of a socket file.
    pub(crate) fn host_port(&self) -> Option<(&str, &str)> {
        split_host_port(&self.authority).filter(|_| !self.scheme.is_socket_file())
    }

    /// `host:port`, or the path of the socket file.
    pub(crate) fn address(&self) -> String {
        match self.scheme.is_socket_file() {
            true => format!("{}{}", self.authority, self.path),
            false => self.authority.clone(),
        }
    }

    /// The socket file, where it is one.
    pub(crate) fn socket_file(&self) -> Option<PathBuf> {
        self.scheme.is_socket_file().then(|| self.address().into())
    }

    /// Returns the URL with another host and port in it.
    pub(crate) fn at(&self, host: &str, port: &str) -> Self {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authority = format!("{host}:{port}");
        let text = format!("{}://{authority}", self.scheme.name());
        Self { scheme: self.scheme, authority, path: String::new(), text }
    }

    /// Checks that it can be listened on: an address, not a name.
    ///
    /// # Errors
    ///
    /// etcd's words.
    pub(crate) fn check_bind(&self) -> Result<(), String> {
        match self.host_port() {
            Some((host, _)) if host != "localhost" && host.parse::<IpAddr>().is_err() => {
                Err(format!("expected IP in URL for binding ({self})"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that others can connect to it.
    ///
    /// # Errors
    ///
    /// etcd's words.
    pub(crate) fn check_host(&self) -> Result<(), String> {
        match self.host_port() {
            Some(("", _)) => Err(format!("unexpected empty host ({self})")),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Scheme {
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Unixs)
    }

    pub(crate) fn is_socket_file(self) -> bool {
        matches!(self, Self::Unix | Self::Unixs)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Unix => "unix",
            Self::Unixs => "unixs",
        }
    }
}

fn parse_error(text: &str, why: &str) -> String {
    format!("parse {}: {why}", super::value::quoted(text))
}

/// Splits off the scheme, in small letters; an empty one where there is none.
fn split_scheme(text: &str) -> Result<(String, &str), String> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".into()),
            ':' => {
                let (scheme, rest) = text.split_at_checked(at).unwrap_or((text, ""));
                return Ok((scheme.to_ascii_lowercase(), rest.get(1..).unwrap_or_default()));
            }
            _ => break,
        }
    }
    let segment = text.split('/').next().unwrap_or_default();
    match segment.contains(':') {
        true => Err("first path segment in URL cannot contain colon".into()),
        false => check_escapes(text).map(|()| (String::new(), text)),
    }
}

/// Splits what follows the scheme into authority and path.
fn split_authority(rest: &str) -> Result<(&str, &str), String> {
    let rest = rest.split(['#', '?']).next().unwrap_or_default();
    let Some(rest) = rest.strip_prefix("//") else {
        // `unix:/path` has a path only, and `unix:path` what Go calls opaque, which nobody reads.
        return Ok(("", if rest.starts_with('/') { rest } else { "" }));
    };
    let (authority, path) =
        rest.split_at_checked(rest.find('/').unwrap_or(rest.len())).unwrap_or((rest, ""));
    check_escapes(path)?;
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let port = match host.strip_prefix('[') {
        Some(inner) => match inner.rsplit_once(']') {
            Some((_, port)) => port,
            None => return Err("missing ']' in host".into()),
        },
        None => host.rfind(':').and_then(|at| host.get(at..)).unwrap_or_default(),
    };
    let digits = port.strip_prefix(':').unwrap_or_default();
    if !(port.is_empty() || port.starts_with(':') && digits.bytes().all(|b| b.is_ascii_digit())) {
        return Err(format!("invalid port {} after host", super::value::quoted(port)));
    }
    check_escapes(host)?;
    match host
        .chars()
        .find(|c| matches!(c, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '}' | '|'))
    {
        Some(c) => Err(format!("invalid character \"{}\" in host name", c.escape_default())),
        None => Ok((host, path)),
    }
}

fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text.get(at..).unwrap_or_default().chars().take(3).collect();
        if escape.len() < 3 || !escape.chars().skip(1).all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape {}", super::value::quoted(&escape)));
        }
    }
    Ok(())
}

/// Splits `host:port` or `[host]:port`.
fn split_host_port(authority: &str) -> Option<(&str, &str)> {
    if let Some(inner) = authority.strip_prefix('[') {
        let (host, port) = inner.split_once(']')?;
        return Some((host, port.strip_prefix(':')?));
    }
    let (host, port) = authority.rsplit_once(':')?;
    (!host.contains([':', '[', ']'])).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_etcd_reads() {
        for (text, scheme, address) in [
            ("http://127.0.0.1:2379", Scheme::Http, "127.0.0.1:2379"),
            (" HTTPS://[::1]:1 ", Scheme::Https, "[::1]:1"),
            ("http://:2379", Scheme::Http, ":2379"),
            ("http://localhost:", Scheme::Http, "localhost:"),
            ("unix://etcd.unix:1", Scheme::Unix, "etcd.unix:1"),
            ("unix:///run/etcd.sock", Scheme::Unix, "/run/etcd.sock"),
            ("unixs:/run/etcd.sock", Scheme::Unixs, "/run/etcd.sock"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.scheme, url.address().as_str()), (scheme, address), "{text}");
        }
        let urls = Url::parse_list("http://b:1,http://a:1,http://b:1").unwrap();
        assert_eq!(urls.iter().map(Url::as_str).collect::<Vec<_>>(), ["http://a:1", "http://b:1"]);
    }

    #[test]
    fn refuses_with_etcds_words() {
        for (text, words) in [
            ("localhost:2379", "URL scheme must be http, https, unix, or unixs: localhost:2379"),
            ("", "URL scheme must be http, https, unix, or unixs: "),
            (
                "http://localhost",
                "URL address does not have the form \"host:port\": http://localhost",
            ),
            ("http://a:b:1", "URL address does not have the form \"host:port\": http://a:b:1"),
            ("http://a:1/p", "URL must not contain a path: http://a:1/p"),
            ("http://[::1:2379", "parse \"http://[::1:2379\": missing ']' in host"),
            ("http://a:abc", "parse \"http://a:abc\": invalid port \":abc\" after host"),
            (":2379", "parse \":2379\": missing protocol scheme"),
            ("%zz", "parse \"%zz\": invalid URL escape \"%zz\""),
            (
                "127.0.0.1:2379",
                "parse \"127.0.0.1:2379\": first path segment in URL cannot contain colon",
            ),
        ] {
            assert_eq!(Url::parse(text).unwrap_err(), words);
        }
        let bind = |text: &str| Url::parse(text).unwrap().check_bind();
        assert!(bind("http://localhost:1").is_ok() && bind("http://[::1]:1").is_ok());
        let words = "expected IP in URL for binding (http://foo.bar:2379)";
        assert_eq!(bind("http://foo.bar:2379").unwrap_err(), words);
        assert!(bind("http://:1").is_err());
    }
}
