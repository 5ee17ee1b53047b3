//! Who a stored object is, by the bytes of its value.
//!
//! Reads the identity only: type, name, namespace, uid, time of creation. The rest of a value is
//! walked over and never copied, so that no secret can end up in a report.
//!
//! | value begins with | encoding |
//! |---|---|
//! | `k8s\0` | protobuf, as below |
//! | `k8s:enc:PROVIDER:VERSION:KEY:` | encrypted; for `kms` KEY is the plugin's name |
//! | `{` | JSON: custom resources, and all with `--storage-media-type=application/json` |
//! | `d9 d9 f7` | CBOR: custom resources; named, not read |
//! | a YAML mapping with `apiVersion` or `kind` | YAML: `--storage-media-type=application/yaml` |
//!
//! Protobuf is `Unknown {1 TypeMeta {1 apiVersion 2 kind} 2 raw 3 contentEncoding 4 contentType}`;
//! field 1 of raw is `ObjectMeta {1 name 3 namespace 5 uid 8 creationTimestamp {1 seconds}}`.
//!
//! **Errors**: [`Error`] for a value whose encoding is known and whose bytes are damaged. A value
//! of another kind is no error: [`Encoding::Other`].
//!
//! **Source**: k8s.io/apimachinery `pkg/runtime/generated.proto`,
//! `pkg/apis/meta/v1/generated.proto` and `pkg/runtime/serializer/protobuf`, k8s.io/apiserver
//! `pkg/storage/value/encrypt` (1.34).

use serde::Deserialize;

use super::yaml;
use crate::format::pb::{self, Field};

/// Longest name, type or uid that is taken for one, in bytes; Kubernetes allows 253.
pub const TEXT_LIMIT: usize = 1024;

const PROTOBUF: &[u8] = b"k8s\0";
const ENCRYPTED: &[u8] = b"k8s:enc:";
const CBOR: &[u8] = b"\xd9\xd9\xf7";

/// A value whose identity cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The protobuf envelope or the object's metadata is damaged.
    #[error("protobuf object: {0}")]
    Protobuf(#[from] crate::format::Error),
    /// The JSON is damaged or no object; the parser's text is left out, it may quote a value.
    #[error("JSON object: damaged at line {line}, column {column}")]
    Json {
        /// Line, counted from 1.
        line: usize,
        /// Column in bytes, counted from 1.
        column: usize,
    },
    /// The YAML is damaged or beyond the limits.
    #[error("YAML object: {0}")]
    Yaml(#[from] yaml::Error),
    /// A name, type or uid is longer than [`TEXT_LIMIT`] or not UTF-8.
    #[error("{0} is not a text that Kubernetes would store")]
    Text(&'static str),
}

/// How a value is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Kubernetes protobuf.
    Protobuf,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// CBOR; the identity is not read.
    Cbor,
    /// Encrypted at rest; the identity cannot be read.
    Encrypted {
        /// `aescbc`, `aesgcm`, `secretbox` or `kms`.
        provider: String,
        /// Version of the provider's layout, such as `v1`.
        version: String,
        /// Name of the key, or of the kms plugin; never the key itself.
        key: String,
    },
    /// Anything else, such as a plain number.
    #[default]
    Other,
}

/// Identity of a stored object; a part that is not stored is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredObject {
    /// How the value is stored.
    pub encoding: Encoding,
    /// `v1`, `apps/v1` and so on.
    pub api_version: Option<String>,
    /// `Pod`, `Deployment` and so on.
    pub kind: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Unique id, which a recreated object does not share.
    pub uid: Option<String>,
    /// Time of creation in seconds since 1970 UTC, by the API server's clock.
    pub creation_timestamp: Option<i64>,
}

/// Reads the identity of a value; O(bytes of the value), nothing but the identity is held.
///
/// # Errors
///
/// [`Error`] when the encoding is known and the bytes are damaged.
pub fn read_identity(value: &[u8]) -> Result<StoredObject, Error> {
    if let Some(envelope) = value.strip_prefix(PROTOBUF) {
        return from_protobuf(envelope);
    }
    if let Some(rest) = value.strip_prefix(ENCRYPTED) {
        return Ok(from_encrypted(rest));
    }
    if value.starts_with(CBOR) {
        return Ok(StoredObject { encoding: Encoding::Cbor, ..StoredObject::default() });
    }
    match value.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => from_json(value),
        Some(byte) if byte.is_ascii_lowercase() && looks_like_yaml(value) => from_yaml(value),
        _ => Ok(StoredObject::default()),
    }
}

fn from_protobuf(envelope: &[u8]) -> Result<StoredObject, Error> {
    let mut object = StoredObject { encoding: Encoding::Protobuf, ..StoredObject::default() };
    let mut raw: &[u8] = &[];
    let mut encoded = false;
    for field in pb::fields(envelope) {
        let field = field?;
        match field.number {
            1 => {
                for field in pb::fields(field.bytes()?) {
                    let field = field?;
                    match field.number {
                        1 => object.api_version = text(&field, "apiVersion")?,
                        2 => object.kind = text(&field, "kind")?,
                        _ => {}
                    }
                }
            }
            2 => raw = field.bytes()?,
            // Set when raw is compressed: nobody does today, but then raw is no message.
            3 => encoded = !field.bytes()?.is_empty(),
            _ => {}
        }
    }
    if encoded {
        return Ok(object);
    }
    for field in pb::fields(raw) {
        let field = field?;
        // The fields after the metadata differ by kind; whether they are whole is looked at too.
        if field.number == 1 {
            metadata(field.bytes()?, &mut object)?;
        }
    }
    Ok(object)
}

fn metadata(bytes: &[u8], object: &mut StoredObject) -> Result<(), Error> {
    for field in pb::fields(bytes) {
        let field = field?;
        match field.number {
            1 => object.name = text(&field, "name")?,
            3 => object.namespace = text(&field, "namespace")?,
            5 => object.uid = text(&field, "uid")?,
            8 => {
                // Empty stands for a time that was never set.
                for field in pb::fields(field.bytes()?) {
                    let field = field?;
                    if field.number == 1 {
                        object.creation_timestamp = Some(field.int64()?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads a short text; empty ones are written for fields that are not set.
fn text(field: &Field<'_>, what: &'static str) -> Result<Option<String>, Error> {
    let text = std::str::from_utf8(field.bytes()?).map_err(|_| Error::Text(what))?;
    bounded(text, what)
}

fn bounded(text: &str, what: &'static str) -> Result<Option<String>, Error> {
    if text.len() > TEXT_LIMIT {
        return Err(Error::Text(what));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn from_encrypted(rest: &[u8]) -> StoredObject {
    // The names are short and plain; what follows the last colon is ciphertext.
    let mut parts = rest.get(..TEXT_LIMIT).unwrap_or(rest).splitn(4, |byte| *byte == b':');
    let mut name = || {
        let part = parts.next().and_then(|part| std::str::from_utf8(part).ok());
        part.filter(|part| part.bytes().all(|byte| byte.is_ascii_graphic())).map(str::to_owned)
    };
    let encoding = match (name(), name(), name(), parts.next()) {
        (Some(provider), Some(version), Some(key), Some(_)) => {
            Encoding::Encrypted { provider, version, key }
        }
        _ => Encoding::Other,
    };
    StoredObject { encoding, ..StoredObject::default() }
}

/// The few fields of a JSON object that are read; serde walks over the others.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Fields {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    creation_timestamp: Option<String>,
}

fn from_json(value: &[u8]) -> Result<StoredObject, Error> {
    let fields: Fields = serde_json::from_slice(value)
        .map_err(|error| Error::Json { line: error.line(), column: error.column() })?;
    object_of(Encoding::Json, fields)
}

fn looks_like_yaml(value: &[u8]) -> bool {
    let marks: [&[u8]; 2] = [b"apiVersion:", b"kind:"];
    value.split(|byte| *byte == b'\n').any(|line| marks.iter().any(|mark| line.starts_with(mark)))
}

fn from_yaml(value: &[u8]) -> Result<StoredObject, Error> {
    let root = yaml::parse(value)?;
    let text =
        |node: &yaml::Node, key: &str| node.get(key).and_then(yaml::Node::text).map(str::to_owned);
    let fields = Fields {
        api_version: text(&root, "apiVersion"),
        kind: text(&root, "kind"),
        metadata: root.get("metadata").map(|node| Metadata {
            name: text(node, "name"),
            namespace: text(node, "namespace"),
            uid: text(node, "uid"),
            creation_timestamp: text(node, "creationTimestamp"),
        }),
    };
    object_of(Encoding::Yaml, fields)
}

fn object_of(encoding: Encoding, fields: Fields) -> Result<StoredObject, Error> {
    let metadata = fields.metadata.unwrap_or_default();
    let text = |text: Option<String>, what| bounded(text.as_deref().unwrap_or_default(), what);
    let time = match metadata.creation_timestamp.as_deref() {
        None | Some("") => None,
        Some(time) => match time.parse::<jiff::Timestamp>() {
            Ok(time) => Some(time.as_second()),
            Err(_) => return Err(Error::Text("creationTimestamp")),
        },
    };
    Ok(StoredObject {
        encoding,
        api_version: text(fields.api_version, "apiVersion")?,
        kind: text(fields.kind, "kind")?,
        namespace: text(metadata.namespace, "namespace")?,
        name: text(metadata.name, "name")?,
        uid: text(metadata.uid, "uid")?,
        creation_timestamp: time,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        let path = format!("{}/fixtures/kubernetes/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).expect(&path)
    }

    fn kubeadm_config(name: &str) -> StoredObject {
        let object = read_identity(&fixture(name)).unwrap();
        assert_eq!(object.api_version.as_deref(), Some("v1"));
        assert_eq!(object.kind.as_deref(), Some("ConfigMap"));
        assert_eq!(object.namespace.as_deref(), Some("kube-system"));
        assert_eq!(object.name.as_deref(), Some("kubeadm-config"));
        assert_eq!(object.uid.as_ref().map(String::len), Some(36));
        // 2026-11-30, when the API server wrote it.
        assert!((1_795_000_000..1_797_000_000).contains(&object.creation_timestamp.unwrap()));
        object
    }

    #[test]
    fn one_object_in_three_encodings() {
        let protobuf = kubeadm_config("configmap/single-v1beta4.etcd-value.bin");
        assert_eq!(protobuf.encoding, Encoding::Protobuf);
        let json = kubeadm_config("storage/kubeadm-config.json-media.bin");
        assert_eq!(json.encoding, Encoding::Json);
        let yaml = kubeadm_config("storage/kubeadm-config.yaml-media.bin");
        assert_eq!(yaml.encoding, Encoding::Yaml);
    }

    #[test]
    fn encrypted_ones_name_provider_and_key() {
        for provider in ["aescbc", "aesgcm"] {
            let value = fixture(&format!("storage/enc-{provider}.bin"));
            let expected = Encoding::Encrypted {
                provider: provider.to_owned(),
                version: "v1".to_owned(),
                key: "key1".to_owned(),
            };
            assert_eq!(read_identity(&value).unwrap().encoding, expected);
        }
        assert_eq!(read_identity(b"k8s:enc:aescbc:v1:key").unwrap().encoding, Encoding::Other);
    }

    #[test]
    fn others_are_named_and_no_error() {
        let cbor = read_identity(&fixture("storage/widget.cbor.bin")).unwrap();
        assert_eq!((cbor.encoding, cbor.name), (Encoding::Cbor, None));
        for value in [b"12345".as_slice(), b"", b"plain words", b"\xff\xfe", b"a: b\nc: d\n"] {
            assert_eq!(read_identity(value).unwrap(), StoredObject::default());
        }
    }

    #[test]
    fn damage_is_an_error_that_shows_no_value() {
        let mut value = fixture("configmap/single-v1beta4.etcd-value.bin");
        value.truncate(100);
        assert!(matches!(read_identity(&value), Err(Error::Protobuf(_))));
        let error = read_identity(b"{\"kind\": \"hunter2").unwrap_err();
        assert!(matches!(error, Error::Json { line: 1, .. }));
        assert!(!error.to_string().contains("hunter2"));
        let error = read_identity(b"{\"kind\": 7, \"metadata\": \"hunter2\"}").unwrap_err();
        assert!(!format!("{error}{error:?}").contains("hunter2"));
        let long = format!("{{\"kind\": \"{}\"}}", "x".repeat(TEXT_LIMIT + 1));
        assert_eq!(read_identity(long.as_bytes()), Err(Error::Text("kind")));
        assert!(matches!(
            read_identity(b"apiVersion: v1\nkind: &a Pod\nx: *a\n"),
            Err(Error::Yaml(_))
        ));
    }

    proptest! {
        #[test]
        fn any_change_is_answered(at in 0_usize..708, byte: u8, cut in 0_usize..708) {
            let protobuf = "configmap/single-v1beta4.etcd-value.bin";
            for name in [protobuf, "storage/kubeadm-config.json-media.bin"] {
                let mut value = fixture(name);
                value[at] = byte;
                drop(read_identity(&value));
                value.truncate(cut);
                drop(read_identity(&value));
            }
        }
    }
}
