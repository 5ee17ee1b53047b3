//! The note `FILE.json` that a snapshot is saved with: what it is, of which cluster, how new.
//!
//! A restore reads it to learn which revisions clients may have seen, so that none is served
//! twice. It is a JSON object; readers skip fields that they do not know.
//!
//! | field | type | meaning |
//! |---|---|---|
//! | `kind` | text | `etcdkit.snapshot` |
//! | `version` | number | 1 |
//! | `sha256` | text | of the whole file with its trailer, 64 hex digits |
//! | `size_bytes` | number | of the whole file |
//! | `revision` | number | of the snapshot |
//! | `highest_revision_seen` | number | of any member when it was saved; at least `revision` |
//! | `cluster_id`, `member_id` | text | hex, empty when not known |
//! | `member_name`, `etcd_version`, `storage_version` | text | empty when not known |
//! | `saved_at` | text | RFC 3339 |
//! | `endpoint` | text | where that member was asked; left out when not known |
//! | `duration_ms` | number | how long the save took; left out when not known |
//! | `quorum` | bool | `false`: no majority answered, so newer writes may exist; else left out |
//! | `hashkv` | list | [`HashKv`] of each member then; left out when there is none |
//!
//! No number is above 2^53, so that every JSON reader sees the same one.

use serde::{Deserialize, Serialize};

/// Largest number that every JSON reader keeps whole.
pub const NUMBER_MAX: u64 = 1 << 53;

/// Value of [`Sidecar::kind`].
pub const KIND: &str = "etcdkit.snapshot";

/// Value of [`Sidecar::version`].
pub const VERSION: u64 = 1;

/// The note beside a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sidecar {
    /// [`KIND`].
    pub kind: String,
    /// [`VERSION`].
    pub version: u64,
    /// SHA-256 of the whole file, trailer included, in lower-case hex.
    pub sha256: String,
    /// Length of the whole file in bytes.
    pub size_bytes: u64,
    /// Revision of the snapshot.
    pub revision: u64,
    /// Highest revision that any member had when it was saved.
    #[serde(default)]
    pub highest_revision_seen: u64,
    /// Cluster id in hex; empty when not known.
    #[serde(default)]
    pub cluster_id: String,
    /// Id of the member that it was saved from, in hex; empty when not known.
    #[serde(default)]
    pub member_id: String,
    /// Name of that member; empty when not known.
    #[serde(default)]
    pub member_name: String,
    /// Version that that member ran; empty when not known.
    #[serde(default)]
    pub etcd_version: String,
    /// Storage version inside; empty before etcd 3.6.
    #[serde(default)]
    pub storage_version: String,
    /// When it was saved, as RFC 3339.
    pub saved_at: String,
    /// Client URL of that member; empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// How long the save took in milliseconds; 0 when not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duration_ms: u64,
    /// `false` where no majority of the cluster answered; else not known or true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<bool>,
    /// What the members said about their keys then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashkv: Vec<HashKv>,
}

/// One member's answer to a HashKV request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashKv {
    /// Endpoint that answered.
    #[serde(default)]
    pub endpoint: String,
    /// Member id in hex.
    #[serde(default)]
    pub member_id: String,
    /// The hash.
    pub hash: u32,
    /// Revision that was hashed.
    pub hash_revision: i64,
    /// Compaction revision that the hash was made with; -1 before the first compaction.
    pub compact_revision: i64,
}

impl Sidecar {
    /// Encodes the note as indented JSON that ends in a line feed.
    ///
    /// # Errors
    ///
    /// What is wrong in it, as a sentence without a full stop: see [`Sidecar::decode`].
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let mut out = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        out.push(b'\n');
        Ok(out)
    }

    /// Reads a note; a `highest_revision_seen` that is not there is the snapshot's revision.
    ///
    /// # Errors
    ///
    /// What is wrong, as a sentence without a full stop: no JSON of this shape, another kind or
    /// version, a hash or id that is no hex, a number above 2^53, or a highest revision below the
    /// snapshot's own.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut note: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("the note is no etcdkit.snapshot JSON: {error}"))?;
        if note.highest_revision_seen == 0 {
            note.highest_revision_seen = note.revision;
        }
        note.check()?;
        Ok(note)
    }

    fn check(&self) -> Result<(), String> {
        if self.kind != KIND {
            return Err(format!("the note's kind is {:?}, not {KIND:?}", self.kind));
        }
        if self.version != VERSION {
            return Err(format!("the note's version is {}, and only 1 is known", self.version));
        }
        let numbers = [
            ("size_bytes", self.size_bytes),
            ("revision", self.revision),
            ("highest_revision_seen", self.highest_revision_seen),
            ("duration_ms", self.duration_ms),
        ];
        let hashes = self.hashkv.iter().flat_map(|hash| {
            [("hash_revision", hash.hash_revision), ("compact_revision", hash.compact_revision)]
                .map(|(name, n)| (name, n.unsigned_abs()))
        });
        for (name, number) in numbers.into_iter().chain(hashes) {
            if number > NUMBER_MAX {
                return Err(format!("the note's {name} is {number}, above 2^53"));
            }
        }
        if self.highest_revision_seen < self.revision {
            return Err("the note's highest_revision_seen is below its revision".into());
        }
        if self.sha256.len() != 64 || !is_hex(&self.sha256) {
            return Err("the note's sha256 is not 64 hex digits".into());
        }
        let ids = self.hashkv.iter().map(|hash| &hash.member_id);
        for id in ids.chain([&self.cluster_id, &self.member_id]) {
            if id.len() > 16 || !is_hex(id) {
                return Err(format!("the note's id {id:?} is not up to 16 hex digits"));
            }
        }
        Ok(())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for this shape")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Sidecar {
        Sidecar {
            kind: KIND.into(),
            version: VERSION,
            sha256: "0a".repeat(32),
            size_bytes: 61_472,
            revision: 91,
            highest_revision_seen: 92,
            cluster_id: "cdf818194e3a8c32".into(),
            member_id: "8e9e05c52164694d".into(),
            member_name: "m1".into(),
            etcd_version: "3.6.16".into(),
            storage_version: "3.6.0".into(),
            saved_at: "2026-11-30T04:40:00Z".into(),
            endpoint: "https://10.0.0.1:2379".into(),
            duration_ms: 1_234,
            quorum: Some(false),
            hashkv: vec![HashKv { hash: 7, compact_revision: -1, ..HashKv::default() }],
        }
    }

    #[test]
    fn a_note_reads_back() {
        let bytes = sample().encode().unwrap();
        assert_eq!(Sidecar::decode(&bytes).unwrap(), sample());
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("{\n  \"kind\": \"etcdkit.snapshot\",\n  \"version\": 1,\n"));
        assert!(text.ends_with("}\n"));
    }

    #[test]
    fn little_is_enough_and_unknown_fields_are_skipped() {
        let text = format!(
            r#"{{"kind":"etcdkit.snapshot","version":1,"sha256":"{}","size_bytes":1,"revision":5,
               "saved_at":"","later":{{"a":[1]}}}}"#,
            "00".repeat(32)
        );
        let note = Sidecar::decode(text.as_bytes()).unwrap();
        assert_eq!((note.highest_revision_seen, note.member_id.as_str()), (5, ""));
        assert!(!String::from_utf8(note.encode().unwrap()).unwrap().contains("hashkv"));
    }

    #[test]
    fn wrong_notes_are_refused() {
        type Change = fn(&mut Sidecar);
        let wrong: [(&str, Change); 8] = [
            ("kind", |note| note.kind = "other".into()),
            ("version", |note| note.version = 2),
            ("2^53", |note| note.size_bytes = NUMBER_MAX + 1),
            ("2^53", |note| note.highest_revision_seen = u64::MAX),
            ("2^53", |note| note.hashkv[0].hash_revision = i64::MIN),
            ("below", |note| note.highest_revision_seen = 90),
            ("sha256", |note| note.sha256 = "0A".repeat(32)),
            ("id", |note| note.cluster_id = "12345678123456781".into()),
        ];
        for (want, change) in wrong {
            let mut note = sample();
            change(&mut note);
            let error = note.encode().unwrap_err();
            assert!(error.contains(want), "{error}");
            let bytes = serde_json::to_vec(&note).unwrap();
            assert_eq!(Sidecar::decode(&bytes).unwrap_err(), error);
        }
        for bad in ["", "[]", "{}", "{\"kind\":\"etcdkit.snapshot\"}"] {
            assert!(Sidecar::decode(bad.as_bytes()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Sidecar::decode(&bytes).is_err());
        }
    }
}
