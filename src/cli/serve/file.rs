//! The configuration file: YAML whose keys are the flags, with other shapes here and there.
//!
//! **Shape**: as etcd's, numbers and times (nanoseconds) as numbers, `log-outputs` and
//! `cipher-suites` as sequences, URLs as one text with commas; TLS in the mappings
//! `client-transport-security` and `peer-transport-security`.
//!
//! **Errors**: etcd's words where a value has the wrong type. What nobody knows is a warning: etcd
//! says nothing, and whoever wrote it expects something.
//!
//! **Source**: etcd server/embed/config.go, `configYAML`, 3.7.3.

use super::flags::{self, Flag};
use super::settings::Settings;
use super::value::{Kind, Value};
use super::{Note, Refusal, Told};
use crate::kube::yaml::{self, Node};

/// Flags for which the file has no key, or another one.
const NOT_IN_FILE: &[&str] = &[
    "auto-tls",
    "cert-file",
    "client-cert-allowed-hostname",
    "client-cert-auth",
    "client-cert-file",
    "client-crl-file",
    "client-key-file",
    "config-file",
    "discovery-cacert",
    "discovery-cert",
    "discovery-dial-timeout",
    "discovery-endpoints",
    "discovery-fallback",
    "discovery-insecure-skip-tls-verify",
    "discovery-insecure-transport",
    "discovery-keepalive-time",
    "discovery-keepalive-timeout",
    "discovery-key",
    "discovery-password",
    "discovery-request-timeout",
    "discovery-token",
    "discovery-user",
    "key-file",
    "raft-read-timeout",
    "raft-write-timeout",
    "socket-reuse-address",
    "socket-reuse-port",
    "trusted-ca-file",
    "version",
];

/// Keys of the mappings for TLS, and the flag without `peer-`; `None` has no flag.
const SECURITY: &[(&str, Option<&str>)] = &[
    ("cert-file", Some("cert-file")),
    ("key-file", Some("key-file")),
    ("client-cert-file", Some("client-cert-file")),
    ("client-key-file", Some("client-key-file")),
    ("client-cert-auth", Some("client-cert-auth")),
    ("trusted-ca-file", Some("trusted-ca-file")),
    ("auto-tls", Some("auto-tls")),
    ("allowed-cn", Some("cert-allowed-cn")),
    ("allowed-hostname", Some("cert-allowed-hostname")),
    ("skip-client-san-verification", None),
];

/// A value of YAML 1.1, as JSON would have it.
enum Shape<'a> {
    Null,
    Bool(bool),
    /// As it stands; a whole number where it is one.
    Number(&'a str, Option<i128>),
    Text(&'a str),
    Array(&'a [Node]),
    Object,
}

/// Reads a file.
///
/// # Errors
///
/// etcd's words.
pub(super) fn read(bytes: &[u8], notes: &mut Vec<Note>) -> Result<Settings, Box<Refusal>> {
    let mut settings = Settings::default();
    let node = match yaml::parse(bytes) {
        Ok(node) => node,
        Err(error) if error.what == "no document" => return Ok(settings),
        Err(error) => {
            let text = format!("error converting YAML to JSON: yaml: {error}");
            return Err(Refusal::flags(text).into());
        }
    };
    let yaml::Value::Mapping(entries) = &node.value else {
        return match shape(&node) {
            Shape::Null => Ok(settings),
            other => Err(wrong(&other, "value of type embed.configYAML")),
        };
    };
    for entry in entries {
        let key = entry.key.to_ascii_lowercase();
        match key.as_str() {
            "client-transport-security" => security(&mut settings, notes, &entry.node, "")?,
            "peer-transport-security" => security(&mut settings, notes, &entry.node, "peer-")?,
            "socket-options" => {
                for (key, name) in
                    [("reuse-port", "socket-reuse-port"), ("reuse-address", "socket-reuse-address")]
                {
                    if let Some(node) = entry.node.get(key) {
                        put(&mut settings, name, node, &format!("SocketOpts.{key}"))?;
                    }
                }
            }
            "discovery-config" => {
                let endpoints: Vec<String> =
                    (entry.node.get("client").and_then(|it| it.get("endpoints")).into_iter())
                        .flat_map(Node::items)
                        .filter_map(|node| node.text().map(str::to_owned))
                        .collect();
                let token = entry.node.get("token").and_then(Node::text).unwrap_or_default();
                settings.put("discovery-endpoints", Value::Words(endpoints));
                settings.put("discovery-token", Value::Text(token.to_owned()));
            }
            // A name that 3.6 has beside the flag's.
            "experimental-snapshot-catch-up-entries" => {
                let name = "experimental-snapshot-catchup-entries";
                put(&mut settings, name, &entry.node, &place(name))?;
            }
            key => match flags::find(key).filter(|flag| is_in_file(flag)) {
                Some(flag) => put(&mut settings, flag.name, &entry.node, &place(flag.name))?,
                None => notes.push(
                    Note::warn("the configuration file has a key that nobody reads")
                        .with("key", &entry.key),
                ),
            },
        }
    }
    Ok(settings)
}

fn is_in_file(flag: &Flag) -> bool {
    let is_tls_of_peers = flag.name.starts_with("peer-");
    !NOT_IN_FILE.contains(&flag.name) && !is_tls_of_peers && flag.kind != Kind::Ignored
}

fn place(key: &str) -> String {
    let is_json = key.ends_with("-urls") && key != "listen-metrics-urls";
    let part = match key {
        "cors" | "host-whitelist" | "feature-gates" => "configJSON",
        _ if is_json => "configJSON",
        _ => "Config",
    };
    format!("configYAML.{part}.{key}")
}

/// Reads a mapping for TLS.
fn security(
    settings: &mut Settings,
    notes: &mut Vec<Note>,
    node: &Node,
    prefix: &str,
) -> Result<(), Box<Refusal>> {
    let block = if prefix.is_empty() { "client" } else { "peer" };
    let block = format!("{block}-transport-security");
    let yaml::Value::Mapping(entries) = &node.value else {
        let place = format!("struct field configYAML.configJSON.{block}");
        return match shape(node) {
            Shape::Null => Ok(()),
            other => Err(wrong(&other, &format!("{place} of type embed.securityConfig"))),
        };
    };
    for entry in entries {
        let key = entry.key.to_ascii_lowercase();
        let place = format!("securityConfig.configJSON.{block}.{key}");
        let found = SECURITY.iter().find(|(known, _)| *known == key);
        let flag = found.and_then(|(_, flag)| *flag);
        let name = match flag {
            Some("cert-allowed-hostname") if prefix.is_empty() => {
                "client-cert-allowed-hostname".into()
            }
            Some(flag) => format!("{prefix}{flag}"),
            None if found.is_some() => continue,
            None => String::new(),
        };
        if name == "cert-allowed-cn" {
            settings.client_names = texts(&entry.node, &place)?.unwrap_or_default();
        } else if let Some(flag) = flags::find(&name) {
            put(settings, flag.name, &entry.node, &place)?;
        } else {
            let note = Note::warn("the configuration file has a key that nobody reads");
            notes.push(note.with("key", &format!("{block}.{}", entry.key)));
        }
    }
    Ok(())
}

/// Gives a flag the value of a node.
fn put(settings: &mut Settings, name: &str, node: &Node, place: &str) -> Result<(), Box<Refusal>> {
    let Some(flag) = flags::find(name) else { return Ok(()) };
    let found = shape(node);
    let wants = match flag.kind {
        Kind::Bool => "bool",
        Kind::Uint if name.contains("snapshot-c") => "uint64",
        Kind::Uint => "uint",
        Kind::Uint32 => "uint32",
        Kind::Int if name == "quota-backend-bytes" => "int64",
        Kind::Int => "int",
        Kind::Time => "time.Duration",
        _ => "string",
    };
    let unfit = |found: &Shape<'_>| wrong(found, &format!("struct field {place} of type {wants}"));
    let value = match (flag.kind, &found) {
        (_, Shape::Null) => return Ok(()),
        (Kind::Bool, Shape::Bool(on)) => Value::Bool(*on),
        (Kind::Uint, Shape::Number(_, Some(number))) => {
            Value::Uint(u64::try_from(*number).map_err(|_| unfit(&found))?)
        }
        (Kind::Uint32, Shape::Number(_, Some(number))) => {
            Value::Uint(u32::try_from(*number).map_err(|_| unfit(&found))?.into())
        }
        (Kind::Int, Shape::Number(_, Some(number))) => {
            Value::Int(i64::try_from(*number).map_err(|_| unfit(&found))?)
        }
        (Kind::Time, Shape::Number(_, Some(number))) => {
            Value::Time(i64::try_from(*number).map_err(|_| unfit(&found))?)
        }
        (Kind::Names | Kind::List, _) if name != "host-whitelist" => match texts(node, place)? {
            Some(words) => Value::Words(words),
            None => return Ok(()),
        },
        // What may be none of a flag's words is checked with the rest.
        (Kind::Text | Kind::AnyOf(_) | Kind::OneOf(_), Shape::Text(text)) if name != "compat" => {
            Value::Text((*text).to_owned())
        }
        (Kind::Urls | Kind::Origins | Kind::Names, Shape::Text("")) => return Ok(()),
        (kind, Shape::Text(text)) if wants == "string" => {
            let before = settings.value(name);
            kind.read(&before, text).map_err(|why| match kind {
                Kind::Urls => {
                    let text = format!("unexpected error setting up {name}: {why}");
                    Refusal::new(Told::Plain, 1, text)
                }
                Kind::Origins => Refusal::new(Told::Plain, 2, format!("{name}: {why}")),
                _ => Refusal::flags(why),
            })?
        }
        _ => return Err(unfit(&found)),
    };
    settings.put(flag.name, value);
    Ok(())
}

/// Reads a sequence of texts; `None` where there is nothing.
fn texts(node: &Node, place: &str) -> Result<Option<Vec<String>>, Box<Refusal>> {
    let items = match shape(node) {
        Shape::Null => return Ok(None),
        Shape::Array(items) => items,
        other => return Err(wrong(&other, &format!("struct field {place} of type []string"))),
    };
    let text = |node| match shape(node) {
        Shape::Text(text) => Ok(text.to_owned()),
        other => Err(wrong(&other, &format!("struct field {place} of type string"))),
    };
    items.iter().map(text).collect::<Result<_, _>>().map(Some)
}

fn wrong(found: &Shape<'_>, into: &str) -> Box<Refusal> {
    let found = match found {
        Shape::Null => "null".to_owned(),
        Shape::Bool(_) => "bool".to_owned(),
        // Go shows the number where another would have done.
        Shape::Number(text, _) if into.contains("int") || into.ends_with("Duration") => {
            format!("number {text}")
        }
        Shape::Number(..) => "number".to_owned(),
        Shape::Text(_) => "string".to_owned(),
        Shape::Array(_) => "array".to_owned(),
        Shape::Object => "object".to_owned(),
    };
    let what = format!("json: cannot unmarshal {found} into Go {into}");
    Refusal::flags(format!("error unmarshaling JSON: while decoding JSON: {what}")).into()
}

/// Resolves a plain scalar as YAML 1.1 does.
fn shape(node: &Node) -> Shape<'_> {
    match &node.value {
        _ if node.is_null() => Shape::Null,
        yaml::Value::Sequence(items) => Shape::Array(items),
        yaml::Value::Mapping(_) => Shape::Object,
        yaml::Value::Scalar { text, plain: false } => Shape::Text(text),
        yaml::Value::Scalar { text, plain: true } => match text.as_str() {
            "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
                Shape::Bool(true)
            }
            "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
                Shape::Bool(false)
            }
            text => number(text).unwrap_or(Shape::Text(text)),
        },
    }
}

fn number(text: &str) -> Option<Shape<'_>> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Value::Uint(number) = Kind::Uint.read(&Value::Ignored, digits).unwrap_or(Value::Ignored)
    {
        let number = i128::from(number);
        return Some(Shape::Number(text, Some(if is_negative { -number } else { number })));
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let number: f64 = digits.parse().ok()?;
    // A fraction of none is a whole number, as far as a float can tell.
    let is_whole = number.fract() == 0.0 && number < 9e15;
    let whole = is_whole.then(|| format!("{number:.0}").parse::<i128>().ok()).flatten();
    Some(Shape::Number(text, whole.map(|whole| if is_negative { -whole } else { whole })))
}
