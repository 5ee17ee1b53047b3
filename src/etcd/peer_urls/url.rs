//! URLs as Go's `net/url` reads and writes them, as far as peer URLs go.
//!
//! Source: Go 1.26 `net/url` (`Parse`, `URL.String`), `net.SplitHostPort`; etcd's
//! `netutil.normalizeHost`, 3.7.3.

use std::net::{IpAddr, Ipv6Addr};

use crate::format::hex;

/// A URL in parts, each as it will be written.
#[derive(Clone, Debug, Default)]
pub(super) struct Url {
    pub(super) scheme: String,
    /// What follows the scheme when that is no `/`; then there is no host and no path.
    opaque: String,
    /// Whether `//` stood before the host.
    has_authority: bool,
    /// With the `@`.
    user: String,
    pub(super) host: String,
    pub(super) path: String,
    /// With the `?` or the `#`.
    rest: String,
}

impl Url {
    /// Splits a URL; the error is what Go says is wrong, with the part of the text it names.
    pub(super) fn parse(text: &str) -> Result<Self, (String, String)> {
        let (body, fragment) = text.split_once('#').unwrap_or((text, ""));
        let mut url = Self::parse_body(body).map_err(|what| (body.to_owned(), what))?;
        if !fragment.is_empty() {
            let fragment =
                normalise(fragment, is_fragment_byte).map_err(|what| (text.to_owned(), what))?;
            url.rest.push('#');
            url.rest.push_str(&fragment);
        }
        Ok(url)
    }

    fn parse_body(text: &str) -> Result<Self, String> {
        if text.bytes().any(|b| b < b' ' || b == 0x7f) {
            return Err("net/url: invalid control character in URL".into());
        }
        let (scheme, body) = split_scheme(text)?;
        let (body, query) =
            body.split_at_checked(body.find('?').unwrap_or(body.len())).unwrap_or((body, ""));
        let scheme = scheme.to_ascii_lowercase();
        let mut url = Self { scheme, rest: query.to_owned(), ..Self::default() };
        if !body.starts_with('/') {
            if !url.scheme.is_empty() {
                body.clone_into(&mut url.opaque);
                return Ok(url);
            }
            if body.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err("first path segment in URL cannot contain colon".into());
            }
        }
        let mut path = body;
        if let Some(after) = body.strip_prefix("//") {
            let end = after.find('/').unwrap_or(after.len());
            let (authority, rest) = after.split_at_checked(end).unwrap_or((after, ""));
            url.has_authority = true;
            path = rest;
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, authority),
            };
            url.host = parse_host(host, url.scheme.starts_with("http"))?;
            url.user = user.map_or(Ok(String::new()), parse_user)?;
        }
        url.path = normalise(path, is_path_byte)?;
        Ok(url)
    }

    pub(super) fn text(&self) -> String {
        let Self { scheme, opaque, has_authority, user, host, path, rest } = self;
        let is_empty = user.is_empty() && host.is_empty() && path.is_empty();
        let slashes = if *has_authority && !is_empty { "//" } else { "" };
        format!("{scheme}:{opaque}{slashes}{user}{host}{path}{rest}")
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && self.path == other.path
            && canonical_host(&self.host) == canonical_host(&other.host)
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".into()),
            ':' => return Ok(text.split_once(':').unwrap_or(("", text))),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Checks `host`, `host:port`, `[v6]` or `[v6%25zone]:port`, and returns it as it is written.
fn parse_host(text: &str, is_http: bool) -> Result<String, String> {
    let port = match (text.rfind('['), text.rsplit_once(']')) {
        (Some(0), Some((_, port))) => port,
        (Some(0), None) => return Err("missing ']' in host".into()),
        (Some(_), _) => return Err("invalid IP-literal".into()),
        // Go counts all colons of http and https, and of the other schemes the last one.
        (None, _) if is_http => text.find(':').and_then(|at| text.get(at..)).unwrap_or(""),
        (None, _) => text.rfind(':').and_then(|at| text.get(at..)).unwrap_or(""),
    };
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_digits) {
        return Err(format!("invalid port {} after host", quote(port)));
    }
    let bytes = unescape(text, |escaped| escaped >= 0x80 || escaped == b'%', is_host_byte)?;
    if let Some(literal) = text.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) {
        let address = literal.0.split_once("%25").map_or(literal.0, |(address, _)| address);
        address.parse::<Ipv6Addr>().map_err(|_| "invalid IP-literal".to_owned())?;
    }
    Ok(escape(&bytes, is_host_byte))
}

/// Checks `user` or `user:password`, and returns it as it is written, with the `@`.
fn parse_user(text: &str) -> Result<String, String> {
    if !text.bytes().all(is_user_byte) {
        return Err("net/url: invalid userinfo".into());
    }
    let part = |part| {
        let bytes = unescape(part, |_| true, |_| true)?;
        Ok::<_, String>(escape(&bytes, |b| is_unreserved(b) || b"$&+,;=".contains(&b)))
    };
    match text.split_once(':') {
        None => Ok(format!("{}@", part(text)?)),
        Some((user, password)) => Ok(format!("{}:{}@", part(user)?, part(password)?)),
    }
}

/// Returns a path or fragment as it is when it is well encoded, else encoded anew.
fn normalise(text: &str, is_plain: fn(u8) -> bool) -> Result<String, String> {
    let bytes = unescape(text, |_| true, |_| true)?;
    if text.bytes().all(|b| is_plain(b) || b"!'()*[]%".contains(&b)) {
        Ok(text.to_owned())
    } else {
        Ok(escape(&bytes, is_plain))
    }
}

/// Quotes a text as Go's `%q` does, as far as the texts of URLs go.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '\u{7f}' if !"\n\r\t".contains(c) => {
                let mut byte = [0; 4];
                out.push_str("\\x");
                out.push_str(&hex(c.encode_utf8(&mut byte).as_bytes()));
            }
            '\'' => out.push(c),
            c if c.is_ascii() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn is_unreserved(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-_.~".contains(&b)
}

fn is_host_byte(b: u8) -> bool {
    is_unreserved(b) || b"!$&'()*+,;=:[]<>\"".contains(&b)
}

fn is_path_byte(b: u8) -> bool {
    is_unreserved(b) || b"$&+,/:;=@".contains(&b)
}

fn is_fragment_byte(b: u8) -> bool {
    is_path_byte(b) || b"?!()*".contains(&b)
}

fn is_user_byte(b: u8) -> bool {
    is_unreserved(b) || b"!$&'()*+,;=:%@".contains(&b)
}

/// Decodes `%xx`; both a byte that may not be escaped and one that must be are errors.
fn unescape(
    text: &str,
    may_be_escaped: impl Fn(u8) -> bool,
    may_be_plain: impl Fn(u8) -> bool,
) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first != b'%' {
            if first.is_ascii() && !may_be_plain(*first) {
                let seen = quote(&char::from(*first).to_string());
                return Err(format!("invalid character {seen} in host name"));
            }
            out.push(*first);
            rest = tail;
            continue;
        }
        let digit = |at| tail.get(at).and_then(|b| char::from(*b).to_digit(16));
        let byte = match (digit(0), digit(1)) {
            (Some(high), Some(low)) => u8::try_from((high << 4) | low).ok(),
            _ => None,
        };
        let Some(byte) = byte.filter(|byte| may_be_escaped(*byte)) else {
            let seen = String::from_utf8_lossy(rest.get(..3).unwrap_or(rest)).into_owned();
            return Err(format!("invalid URL escape {}", quote(&seen)));
        };
        out.push(byte);
        rest = tail.get(2..).unwrap_or_default();
    }
    Ok(out)
}

fn escape(bytes: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if is_plain(*byte) {
            out.push(char::from(*byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[*byte]).to_ascii_uppercase());
        }
    }
    out
}

/// Splits `host:port` or `[host]:port`; `None` where Go's `net.SplitHostPort` fails.
pub(super) fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(literal) => {
            let (host, after) = literal.split_once(']')?;
            (host, after.strip_prefix(':')?)
        }
        None => text.rsplit_once(':').filter(|(host, _)| !host.contains(':'))?,
    };
    let is_clean = !host.contains(['[', ']']) && !port.contains(['[', ']', ':']);
    is_clean.then_some((host, port))
}

/// Writes an address in the one way that all spellings of it share; a name stays as it is.
fn canonical_host(host: &str) -> String {
    let (name, port) = split_host_port(host).unwrap_or((host, ""));
    let port = if port.is_empty() { String::new() } else { format!(":{port}") };
    match name.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V6(address)) => format!("[{address}]{port}"),
        Ok(IpAddr::V4(address)) => format!("{address}{port}"),
        Err(_) => host.to_owned(),
    }
}
