//! The v2 store in a raft snapshot: the part that etcd 3.4 to 3.6 still read, its members.
//!
//! A node is `{"Path":..,"Value":..,"Children":{name: node} or null}`; the tree hangs below `Root`.
//!
//! | path | value |
//! |---|---|
//! | `/0/members/<id>/raftAttributes` | `{"peerURLs":[..],"isLearner":true}` |
//! | `/0/members/<id>/attributes` | `{"name":..,"clientURLs":[..]}`, once the member has started |
//! | `/0/removed_members/<id>` | nothing |
//! | `/0/version` | cluster version |
//! | `/1`, `/2` | keys and auth of users of the v2 API |
//!
//! Memory: what is named above, at most [`MEMBERS_MAX`] members; everything else is read past.
//!
//! Source: etcd `v2store.store`, `membership.RaftCluster.Recover` and `IsMetaStoreOnly`; 3.5.35
//! and 3.6.16.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// Most members, and most removed members, that are read.
const MEMBERS_MAX: usize = 10_000;

/// A member in the v2 store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V2Member {
    /// Id in hex, as it stands.
    pub id: String,
    /// JSON of what raft must know; etcd 3.4 and 3.5 need it.
    pub raft_attributes: Option<String>,
    /// JSON of what the member says of itself.
    pub attributes: Option<String>,
}

/// What the v2 store says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V2Store {
    /// Members, as they stand.
    pub members: Vec<V2Member>,
    /// Ids of removed members in hex, as they stand.
    pub removed: Vec<String>,
    /// Cluster version.
    pub version: Option<String>,
    /// Whether there are keys or users of the v2 API, which etcd 3.6 refuses.
    pub has_v2_data: bool,
}

impl V2Store {
    /// Reads the data of a raft snapshot.
    ///
    /// # Errors
    ///
    /// What is wrong: no JSON object, a node of another shape, nesting beyond 128, or too many
    /// members.
    pub fn decode(data: &[u8]) -> Result<Self, String> {
        let top: Top = serde_json::from_slice(data).map_err(|error| error.to_string())?;
        let mut store = Self::default();
        for (name, node) in top.root.unwrap_or_default().children.0 {
            match node {
                Branch::Cluster(cluster) => store.take(*cluster),
                Branch::Other { children, grandchildren } => {
                    let is_auth = name == "2";
                    let inside = if is_auth { grandchildren } else { children };
                    store.has_v2_data |= inside > 0;
                }
            }
        }
        Ok(store)
    }

    fn take(&mut self, cluster: Cluster) {
        let members = cluster.members.unwrap_or_default().children.0;
        self.members = members
            .into_iter()
            .map(|(id, node)| V2Member {
                id,
                raft_attributes: node.children.raft_attributes.map(|leaf| leaf.value),
                attributes: node.children.attributes.map(|leaf| leaf.value),
            })
            .collect();
        let removed = cluster.removed.unwrap_or_default().children.0;
        self.removed = removed.into_iter().map(|(id, _)| id).collect();
        self.version = cluster.version.map(|leaf| leaf.value);
    }
}

#[derive(Deserialize)]
struct Top {
    #[serde(rename = "Root")]
    root: Option<Directory<Pairs<Branch>>>,
}

#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de> + Default")]
struct Directory<T: Default> {
    #[serde(rename = "Children", default, deserialize_with = "or_null")]
    children: T,
}

impl<T: Default> Default for Directory<T> {
    fn default() -> Self {
        Self { children: T::default() }
    }
}

/// Go writes `null` for a map without entries.
fn or_null<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
struct Leaf {
    #[serde(rename = "Value")]
    value: String,
}

#[derive(Default, Deserialize)]
struct Cluster {
    members: Option<Directory<Pairs<Directory<Attributes>>>>,
    #[serde(rename = "removed_members")]
    removed: Option<Directory<Pairs<IgnoredAny>>>,
    version: Option<Leaf>,
}

#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(rename = "raftAttributes")]
    raft_attributes: Option<Leaf>,
    attributes: Option<Leaf>,
}

/// A child of the root.
enum Branch {
    Cluster(Box<Cluster>),
    Other { children: u64, grandchildren: u64 },
}

/// Entries of an object, in order, at most [`MEMBERS_MAX`].
struct Pairs<T>(Vec<(String, T)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Reads an object's value by its name.
trait Named<'de>: Sized {
    fn read<M: MapAccess<'de>>(name: &str, map: &mut M) -> Result<Self, M::Error>;
}

impl<'de> Named<'de> for Branch {
    fn read<M: MapAccess<'de>>(name: &str, map: &mut M) -> Result<Self, M::Error> {
        if name == "0" {
            let node: Directory<Cluster> = map.next_value()?;
            return Ok(Self::Cluster(Box::new(node.children)));
        }
        let node: Directory<Count<Directory<Count<IgnoredAny>>>> = map.next_value()?;
        let Count { entries, inner, .. } = node.children;
        Ok(Self::Other { children: entries, grandchildren: inner })
    }
}

impl<'de> Named<'de> for Directory<Attributes> {
    fn read<M: MapAccess<'de>>(_: &str, map: &mut M) -> Result<Self, M::Error> {
        map.next_value()
    }
}

impl<'de> Named<'de> for IgnoredAny {
    fn read<M: MapAccess<'de>>(_: &str, map: &mut M) -> Result<Self, M::Error> {
        map.next_value()
    }
}

impl<'de, T: Named<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);
        impl<'de, T: Named<'de>> Visitor<'de> for Read<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of nodes")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs<T>, M::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if pairs.len() >= MEMBERS_MAX {
                        return Err(M::Error::custom("more nodes than any cluster has members"));
                    }
                    let value = T::read(&name, &mut map)?;
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Read(PhantomData))
    }
}

/// How many entries an object has, and how many those have together.
struct Count<T> {
    entries: u64,
    inner: u64,
    of: PhantomData<T>,
}

impl<T> Default for Count<T> {
    fn default() -> Self {
        Self { entries: 0, inner: 0, of: PhantomData }
    }
}

/// What counts as inside of an entry.
trait Inside {
    fn count(&self) -> u64;
}

impl Inside for IgnoredAny {
    fn count(&self) -> u64 {
        0
    }
}

impl Inside for Directory<Count<IgnoredAny>> {
    fn count(&self) -> u64 {
        self.children.entries
    }
}

impl<'de, T: Deserialize<'de> + Inside> Deserialize<'de> for Count<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Inside> Visitor<'de> for Read<T> {
            type Value = Count<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of nodes")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Count<T>, M::Error> {
                let mut count = Count::default();
                while let Some((_, value)) = map.next_entry::<IgnoredAny, T>()? {
                    count.entries = count.entries.saturating_add(1);
                    count.inner = count.inner.saturating_add(value.count());
                }
                Ok(count)
            }
        }
        deserializer.deserialize_map(Read(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_versions_and_users_data_are_read() {
        let store = V2Store::decode(
            br#"{"Root":{"Path":"/","Children":{
                "0":{"Path":"/0","Value":"","Children":{
                  "members":{"Children":{"a1":{"Children":{
                    "attributes":{"Value":"{\"name\":\"m1\"}","Children":null},
                    "raftAttributes":{"Value":"{\"peerURLs\":[]}","Children":null}}},
                    "b2":{"Children":null}}},
                  "removed_members":{"Children":{"c3":{"Value":""}}},
                  "version":{"Value":"3.5.0","Children":null}}},
                "1":{"Path":"/1","Children":{}}}},
              "WatcherHub":{"EventHistory":{}},"CurrentIndex":7,"CurrentVersion":2}"#,
        )
        .unwrap();
        assert_eq!(store.members.len(), 2);
        assert_eq!(store.members[0].raft_attributes.as_deref(), Some("{\"peerURLs\":[]}"));
        assert_eq!(store.members[1], V2Member { id: "b2".into(), ..V2Member::default() });
        assert_eq!((store.removed, store.version), (vec!["c3".into()], Some("3.5.0".into())));
        assert!(!store.has_v2_data);
    }

    #[test]
    fn users_data_is_told_from_empty_folders() {
        let has = |children: &str| {
            let text = format!("{{\"Root\":{{\"Children\":{{{children}}}}}}}");
            V2Store::decode(text.as_bytes()).unwrap().has_v2_data
        };
        assert!(has(r#""1":{"Children":{"key":{"Value":"x","Children":null}}}"#));
        assert!(!has(r#""1":{"Children":null},"2":{"Children":{"users":{"Children":{}}}}"#));
        assert!(!has(r#""2":{"Children":{"enabled":{"Value":"false","Children":null}}}"#));
        assert!(has(r#""2":{"Children":{"users":{"Children":{"root":{}}}}}"#));
    }

    #[test]
    fn what_is_no_store_is_an_error() {
        assert_eq!(V2Store::decode(b"{}"), Ok(V2Store::default()));
        let deep = format!("{{\"x\":{}", "[".repeat(100_000));
        for bad in ["", "[]", "{\"Root\":{\"Children\":[]}}", "{\"Root\":7}", deep.as_str()] {
            assert!(V2Store::decode(bad.as_bytes()).is_err());
        }
        let many: Vec<_> = (0..=MEMBERS_MAX).map(|n| format!("\"{n:x}\":{{}}")).collect();
        let many = format!(
            "{{\"Root\":{{\"Children\":{{\"0\":{{\"Children\":{{\"members\":{{\"Children\":{{{}}}\
             }}}}}}}}}}}}",
            many.join(",")
        );
        assert!(V2Store::decode(many.as_bytes()).unwrap_err().contains("more nodes"));
    }
}
