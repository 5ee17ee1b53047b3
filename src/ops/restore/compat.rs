//! Which etcd versions start on a restored directory.
//!
//! Rules, each seen on real etcd 3.5.35, 3.6.16 and 3.7.3 (`tests/interop.rs` repeats them):
//! 3.6 and later refuse a storage version or a cluster version above their own; 3.5 reads neither
//! from a restored directory, so it starts on anything, and leaves a storage version in place that
//! no longer fits.

use serde::Serialize;

use crate::etcd::schema::Version;

/// What one etcd version does with the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Boot {
    /// Minor version, such as `3.6`.
    pub etcd: &'static str,
    /// Whether it starts.
    pub boots: bool,
    /// Why not, or what to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Predicts what etcd 3.5, 3.6 and 3.7 do.
#[must_use]
pub fn boots(storage: Option<Version>, cluster: Option<Version>) -> Vec<Boot> {
    let minors = [("3.5", 5), ("3.6", 6), ("3.7", 7)];
    minors.map(|(etcd, minor)| boot(etcd, (3, minor), storage, cluster)).to_vec()
}

fn boot(
    etcd: &'static str,
    own: (u32, u32),
    storage: Option<Version>,
    cluster: Option<Version>,
) -> Boot {
    let above = |version: &Version| (version.major, version.minor) > own;
    let newest = storage.filter(above).or(cluster.filter(above));
    if own == (3, 5) {
        let why = newest.map(|version| {
            format!(
                "a step down from {version}: it starts, but its data may hold what 3.5 does \
                     not know"
            )
        });
        return Boot { etcd, boots: true, why };
    }
    if let Some(version) = storage.filter(above) {
        let why = Some(format!("storage version {version} is not supported by it"));
        return Boot { etcd, boots: false, why };
    }
    if let Some(version) = cluster.filter(above) {
        let why = Some(format!("cluster version {version} would be an invalid downgrade"));
        return Boot { etcd, boots: false, why };
    }
    Boot { etcd, boots: true, why: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_data_is_for_newer_servers() {
        let boots_on = |storage: Option<&str>, cluster: Option<&str>| {
            let parse = |text: &str| Version::parse(text.as_bytes()).unwrap();
            let all = boots(storage.map(parse), cluster.map(parse));
            all.iter().filter(|boot| boot.boots).map(|boot| boot.etcd).collect::<Vec<_>>()
        };
        assert_eq!(boots_on(None, Some("3.5.0")), ["3.5", "3.6", "3.7"]);
        assert_eq!(boots_on(Some("3.6.0"), Some("3.6.0")), ["3.5", "3.6", "3.7"]);
        assert_eq!(boots_on(Some("3.7.0"), Some("3.7.0")), ["3.5", "3.7"]);
        assert_eq!(boots_on(None, Some("3.7.0")), ["3.5", "3.7"]);
    }
}
