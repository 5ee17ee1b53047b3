//! Members: their ids, and the rows of bucket `members`.
//!
//! | what | how |
//! |---|---|
//! | member id | first 8 bytes, big-endian, of SHA-1(peer URLs sorted and joined, then the token) |
//! | cluster id | first 8 bytes, big-endian, of SHA-1(member ids ascending, u64 big-endian each) |
//! | row key | the id in lower-case hex without leading zeros |
//! | row value | `{"id":N,"peerURLs":[..],"isLearner":true,"name":"..","clientURLs":[..]}` |
//!
//! `isLearner`, `name` and `clientURLs` are left out when false or empty. `id` is a decimal number
//! that may be above 2^53. A member that was added to a running cluster has an id by another rule,
//! so an id in a file is never checked against the one above.
//!
//! Source: etcd `membership.computeMemberID`, `RaftCluster.genID`, `Member`, `types.ID`, and
//! Go 1.25's `encoding/json`; checked against etcd 3.4.45 to 3.7.3.

use std::fmt;
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::IgnoredAny;
use sha1::{Digest, Sha1};

use crate::format::array_at;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Reads 1 to 16 hex digits of either case, as etcd does; no sign and no prefix.
            #[must_use]
            pub fn parse(text: &[u8]) -> Option<Self> {
                parse_hex(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

ids! {
    /// Identity of a member; shown and serialized as lower-case hex without leading zeros.
    MemberId;
    /// Identity of a cluster; shown and serialized as lower-case hex without leading zeros.
    ClusterId;
}

fn parse_hex(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

impl MemberId {
    /// Computes the id of a member of a new or restored cluster.
    ///
    /// `peer_urls` are normalised strings in any order; `token` is `--initial-cluster-token`.
    #[must_use]
    pub fn of_new_cluster(peer_urls: &[String], token: &str) -> Self {
        let mut sorted: Vec<&str> = peer_urls.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let mut sha1 = Sha1::new();
        for url in sorted {
            sha1.update(url);
        }
        sha1.update(token);
        Self(first_u64(&sha1.finalize()))
    }
}

impl ClusterId {
    /// Computes the id of the cluster of these members, in any order.
    #[must_use]
    pub fn of_members(ids: &[MemberId]) -> Self {
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        let mut sha1 = Sha1::new();
        for id in sorted {
            sha1.update(id.0.to_be_bytes());
        }
        Self(first_u64(&sha1.finalize()))
    }
}

fn first_u64(digest: &[u8]) -> u64 {
    array_at(digest, 0).map_or(0, u64::from_be_bytes)
}

/// A member, as a row of bucket `members` or the context of a membership change holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Identity.
    pub id: MemberId,
    /// Where the other members reach it.
    pub peer_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// Name; empty until the member has started once.
    pub name: String,
    /// Where clients reach it; empty until the member has started once.
    pub client_urls: Vec<String>,
}

/// A member row that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRow {
    /// The member.
    pub member: Member,
    /// The first field that no known etcd writes.
    pub unknown_field: Option<String>,
}

#[derive(Deserialize)]
struct Shape {
    id: u64,
    #[serde(rename = "peerURLs")]
    peer_urls: Option<Vec<String>>,
    #[serde(rename = "isLearner", default)]
    is_learner: bool,
    #[serde(default)]
    name: String,
    #[serde(rename = "clientURLs", default)]
    client_urls: Option<Vec<String>>,
    #[serde(flatten)]
    others: std::collections::BTreeMap<String, IgnoredAny>,
}

impl Member {
    /// Encodes the row value exactly as etcd does.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = format!("{{\"id\":{},\"peerURLs\":", self.id.0);
        put_json_texts(&mut out, &self.peer_urls);
        if self.is_learner {
            out.push_str(",\"isLearner\":true");
        }
        if !self.name.is_empty() {
            out.push_str(",\"name\":");
            put_json_text(&mut out, &self.name);
        }
        if !self.client_urls.is_empty() {
            out.push_str(",\"clientURLs\":");
            put_json_texts(&mut out, &self.client_urls);
        }
        out.push('}');
        out.into_bytes()
    }

    /// Encodes what raft must know, the `raftAttributes` of the v2 store.
    #[must_use]
    pub fn encode_raft_attributes(&self) -> String {
        let mut out = String::from("{\"peerURLs\":");
        put_json_texts(&mut out, &self.peer_urls);
        if self.is_learner {
            out.push_str(",\"isLearner\":true");
        }
        out.push('}');
        out
    }

    /// Encodes what the member says of itself, the `attributes` of the v2 store.
    #[must_use]
    pub fn encode_attributes(&self) -> String {
        let mut out = String::from("{");
        if !self.name.is_empty() {
            out.push_str("\"name\":");
            put_json_text(&mut out, &self.name);
        }
        if !self.client_urls.is_empty() {
            out.push_str(if self.name.is_empty() { "\"clientURLs\":" } else { ",\"clientURLs\":" });
            put_json_texts(&mut out, &self.client_urls);
        }
        out.push('}');
        out
    }

    /// Returns the row's key: the id in hex.
    #[must_use]
    pub fn row_key(&self) -> Vec<u8> {
        self.id.to_string().into_bytes()
    }

    /// Reads a row value.
    ///
    /// # Errors
    ///
    /// What is wrong, as a noun phrase: no JSON object, no `id`, or a field of another type.
    pub fn decode(value: &[u8]) -> Result<MemberRow, String> {
        let shape: Shape =
            serde_json::from_slice(value).map_err(|error| format!("a member row: {error}"))?;
        Ok(MemberRow {
            member: Self {
                id: MemberId(shape.id),
                peer_urls: shape.peer_urls.unwrap_or_default(),
                is_learner: shape.is_learner,
                name: shape.name,
                client_urls: shape.client_urls.unwrap_or_default(),
            },
            unknown_field: shape.others.into_keys().next(),
        })
    }
}

fn put_json_texts(out: &mut String, texts: &[String]) {
    out.push('[');
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        put_json_text(out, text);
    }
    out.push(']');
}

/// Appends a JSON string with the escapes that Go's `json.Marshal` makes, for HTML too.
pub fn put_json_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn urls(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ids_equal_etcds() {
        let id = MemberId::of_new_cluster(&urls(&["http://localhost:2380"]), "etcd-cluster");
        assert_eq!(id.to_string(), "8e9e05c52164694d");
        assert_eq!(ClusterId::of_members(&[id]).to_string(), "cdf818194e3a8c32");

        let tok1 = |texts: &[&str]| MemberId::of_new_cluster(&urls(texts), "tok1");
        let one = tok1(&["http://127.0.0.1:23301"]);
        let two = tok1(&["http://127.0.0.1:23303", "http://10.0.0.9:23303"]);
        let three = tok1(&["http://127.0.0.1:23305"]);
        assert_eq!(one, MemberId(0x1800_7bf6_1c84_e324));
        assert_eq!(two, MemberId(0xe2a6_dc66_1703_ebbb));
        assert_eq!(three, MemberId(0x1ed5_8c75_a995_f3f9));
        let cluster = ClusterId::of_members(&[two, one, three]);
        assert_eq!(cluster, ClusterId(0x29f3_3499_c73f_ac99));
    }

    #[test]
    fn ids_are_unpadded_hex() {
        assert_eq!(MemberId(0x0fdc_eafb_1c57_c367).to_string(), "fdceafb1c57c367");
        assert_eq!(MemberId::parse(b"fdceafb1c57c367"), Some(MemberId(0x0fdc_eafb_1c57_c367)));
        assert_eq!(MemberId::parse(b"FF"), Some(MemberId(255)));
        for bad in [&b""[..], b"+1", b"0x1", b"g", b"11112222333344445", b"\xff"] {
            assert_eq!(MemberId::parse(bad), None);
        }
        assert_eq!(serde_json::to_string(&MemberId(10)).unwrap(), "\"a\"");
    }

    #[test]
    fn rows_have_etcds_bytes() {
        let mut member = Member {
            id: MemberId(10_276_657_743_932_975_437),
            peer_urls: urls(&["http://localhost:2380"]),
            name: "default".into(),
            ..Member::default()
        };
        let short =
            r#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#;
        assert_eq!(member.encode(), short.as_bytes());
        assert_eq!(member.encode().len(), 81);
        member.is_learner = true;
        member.client_urls = urls(&["http://a:1", "http://b:2"]);
        member.name = "a<b>&\"\\\u{1}\u{2028}\u{e9}".into();
        let long = concat!(
            r#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"isLearner":true,"#,
            r#""name":"a\u003cb\u003e\u0026\"\\\u0001\u2028"#,
            "\u{e9}",
            r#"","clientURLs":["http://a:1","http://b:2"]}"#,
        );
        assert_eq!(String::from_utf8(member.encode()).unwrap(), long);
        assert_eq!(Member::decode(long.as_bytes()).unwrap().member, member);
    }

    #[test]
    fn unknown_fields_are_named() {
        let row = Member::decode(br#"{"id":1,"peerURLs":null,"zone":{"a":[1]}}"#).unwrap();
        assert_eq!(row.unknown_field.as_deref(), Some("zone"));
        assert_eq!(row.member.id, MemberId(1));
        for bad in ["", "{}", "[]", "null", r#"{"id":-1}"#, r#"{"id":1,"peerURLs":[1]}"#] {
            assert!(Member::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_row_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Member::decode(&bytes).is_ok();
            let _ = MemberId::parse(&bytes).is_some();
        }

        #[test]
        fn what_is_written_is_read(
            id in any::<u64>(),
            peer_urls in proptest::collection::vec(".*", 0..3),
            is_learner in any::<bool>(),
            name in ".*",
            client_urls in proptest::collection::vec(".*", 0..3),
        ) {
            let member = Member { id: MemberId(id), peer_urls, is_learner, name, client_urls };
            let row = Member::decode(&member.encode()).unwrap();
            prop_assert_eq!(row.member, member);
            prop_assert_eq!(row.unknown_field, None);
        }
    }
}
