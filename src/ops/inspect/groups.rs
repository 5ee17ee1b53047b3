//! Keys grouped by what their names begin with: by resource and namespace where a Kubernetes API
//! server wrote them, by path segments elsewhere.
//!
//! At most [`GROUPS_MAX`] groups are kept; keys that belong to none of them are one group more.

use std::collections::HashMap;

use serde::Serialize;

use crate::format::finding::bytes_text;
use crate::kube::registry::{self, DEFAULT_PREFIX};

/// Most groups that are kept apart.
pub const GROUPS_MAX: usize = 10_000;

/// Most bytes of a group's prefix: longer ones are cut, so their groups are larger.
const PREFIX_BYTES_MAX: usize = 256;

/// Keys that begin alike. Sizes are of rows: revision and record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// What their names begin with; `null` for all that are in no other group.
    pub prefix: Option<String>,
    /// Kubernetes resource, such as `deployments.apps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Its namespace, where there is one and the grouping goes so deep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Living keys.
    pub keys: u64,
    /// Records, history included.
    pub revisions: u64,
    /// Bytes of living records.
    pub live_bytes: u64,
    /// Bytes of superseded records and tombstones.
    pub history_bytes: u64,
}

impl Group {
    /// Bytes of all its records.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.history_bytes)
    }

    /// Names the group for people.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.prefix, &self.resource, &self.namespace) {
            (None, ..) => "(other)".into(),
            (_, Some(resource), Some(namespace)) => format!("{resource} in {namespace}"),
            (_, Some(resource), None) => resource.clone(),
            (Some(prefix), ..) if prefix.is_empty() => "(no / in the key)".into(),
            (Some(prefix), ..) => prefix.clone(),
        }
    }
}

/// How deep keys are told apart: for Kubernetes 1 is the resource and 2 the namespace too, for
/// paths it is the number of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Depth {
    pub(in crate::ops) kubernetes: u32,
    pub(in crate::ops) path: u32,
}

#[derive(Debug)]
pub(in crate::ops) struct Groups {
    depth: Depth,
    places: HashMap<Vec<u8>, usize>,
    groups: Vec<Group>,
    other: Group,
}

impl Groups {
    pub(in crate::ops) fn new(depth: Depth) -> Self {
        let (places, groups, other) = (HashMap::new(), Vec::new(), Group::default());
        Self { depth, places, groups, other }
    }

    /// Returns what keys of the same group as this one begin with.
    #[cfg(feature = "live")]
    pub(in crate::ops) fn prefix_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let end = self.end(key, registry::parse_key(key, DEFAULT_PREFIX));
        key.get(..end.min(PREFIX_BYTES_MAX)).unwrap_or_default()
    }

    fn end(&self, key: &[u8], stored: Option<registry::StoredKey<'_>>) -> usize {
        match stored {
            Some(stored) if self.depth.kubernetes == 1 => {
                let below = stored.namespace.map_or(0, |namespace| namespace.len() + 1);
                key.len() - stored.name.len() - below
            }
            Some(stored) => key.len() - stored.name.len(),
            None => path_end(key, self.depth.path),
        }
    }

    /// Returns the group of a key. A key has the same one for ever: once there are as many as are
    /// kept, none is added.
    pub(in crate::ops) fn of(&mut self, key: &[u8]) -> &mut Group {
        let stored = registry::parse_key(key, DEFAULT_PREFIX);
        let end = self.end(key, stored);
        let prefix = key.get(..end.min(PREFIX_BYTES_MAX)).unwrap_or_default();
        if let Some(place) = self.places.get(prefix) {
            return self.groups.get_mut(*place).unwrap_or(&mut self.other);
        }
        if self.groups.len() >= GROUPS_MAX {
            return &mut self.other;
        }
        self.places.insert(prefix.to_vec(), self.groups.len());
        let deep = self.depth.kubernetes > 1;
        let group = Group {
            prefix: Some(bytes_text(prefix)),
            resource: stored.map(|stored| bytes_text(stored.resource_name().as_bytes())),
            namespace: stored
                .and_then(|stored| stored.namespace)
                .filter(|_| deep)
                .map(|namespace| bytes_text(namespace.as_bytes())),
            ..Group::default()
        };
        self.groups.push(group);
        self.groups.last_mut().unwrap_or(&mut self.other)
    }

    /// Tells whether a key's group is one of its own, not that of all other keys.
    #[cfg(feature = "live")]
    pub(in crate::ops) fn has_own(&self, key: &[u8]) -> bool {
        self.places.contains_key(self.prefix_of(key))
    }

    /// Returns all groups, largest first; the one of all other keys last, where there are any.
    pub(in crate::ops) fn into_sorted(mut self) -> Vec<Group> {
        self.groups.sort_by(|a, b| b.bytes().cmp(&a.bytes()).then_with(|| a.prefix.cmp(&b.prefix)));
        if self.other.revisions > 0 {
            self.groups.push(self.other);
        }
        self.groups
    }
}

/// Finds where the first segments of a path end, the slash behind them included. The last segment
/// is the key's own name and belongs to no prefix.
fn path_end(key: &[u8], segments: u32) -> usize {
    let (mut end, mut left, mut in_segment) = (0, segments, false);
    for (at, byte) in key.iter().enumerate() {
        if *byte != b'/' {
            in_segment = true;
            continue;
        }
        end = at + 1;
        if in_segment {
            left -= 1;
            in_segment = false;
            if left == 0 {
                break;
            }
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(depth: u32, keys: &[&str]) -> Vec<(String, u64)> {
        let mut groups = Groups::new(Depth { kubernetes: depth, path: depth });
        for key in keys {
            let group = groups.of(key.as_bytes());
            group.revisions += 1;
            group.live_bytes += 1;
        }
        groups.into_sorted().iter().map(|group| (group.name(), group.revisions)).collect()
    }

    #[test]
    fn kubernetes_keys_go_by_resource_and_namespace() {
        let keys = [
            "/registry/pods/a/x",
            "/registry/pods/a/y",
            "/registry/pods/b/x",
            "/registry/services/specs/a/x",
            "/registry/farm.example.com/widgets/a/x",
            "/registry/namespaces/a",
            "/registry/health",
            "compact_rev_key",
        ];
        let flat = named(1, &keys);
        assert_eq!(flat[0], ("pods".into(), 3));
        let mut names: Vec<_> = flat.into_iter().map(|(name, _)| name).collect();
        names.sort();
        let want = [
            "(no / in the key)",
            "/registry/",
            "namespaces",
            "pods",
            "services",
            "widgets.farm.example.com",
        ];
        assert_eq!(names, want);
        let deep = named(2, &keys);
        assert_eq!(deep[0], ("pods in a".into(), 2));
        assert!(deep.contains(&("pods in b".into(), 1)), "{deep:?}");
        assert!(deep.contains(&("namespaces".into(), 1)), "{deep:?}");
    }

    #[test]
    fn other_keys_go_by_path_segments() {
        for (key, depth, want) in [
            ("/a/b/c", 1, "/a/"),
            ("/a/b/c", 2, "/a/b/"),
            ("/a/b/c", 9, "/a/b/"),
            ("a/b", 1, "a/"),
            ("//a//b/c", 1, "//a/"),
            ("//a//b/c", 2, "//a//b/"),
            ("/a", 1, "/"),
            ("a", 1, ""),
            ("", 3, ""),
        ] {
            assert_eq!(&key[..path_end(key.as_bytes(), depth)], want, "{key} {depth}");
        }
    }

    #[test]
    fn groups_are_bounded() {
        let mut groups = Groups::new(Depth { kubernetes: 1, path: 1 });
        for round in 0..2 {
            for number in 0..GROUPS_MAX + 7 {
                let group = groups.of(format!("/{number}/x").as_bytes());
                assert_eq!(group.prefix.is_none(), number >= GROUPS_MAX, "{number}");
                group.revisions += 1 + round;
            }
        }
        groups.of(&[&[b'/'; 1000][..], b"x/y"].concat()).revisions += 1;
        let sorted = groups.into_sorted();
        assert_eq!(sorted.len(), GROUPS_MAX + 1);
        assert_eq!(sorted[GROUPS_MAX].revisions, 7 * 3 + 1);
        assert_eq!(sorted[GROUPS_MAX].name(), "(other)");
    }
}
