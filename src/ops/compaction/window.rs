//! Which revision a window of history means. Nothing is asked here: evidence in, decision out.
//!
//! A window in revisions is arithmetic. One in time needs revisions of which it is certain how old
//! they are at least, and etcd keeps no times. What counts is what this program saw itself: a
//! sample says that a revision was there at a moment (`samples.rs`).
//!
//! **The key of Kubernetes' API servers**, `compact_rev_key`, holds no age. Once in an interval, 5
//! minutes unless a flag says otherwise, one of them puts the newest revision of an interval ago
//! into it, and compacts to that at once; what it compacts to in the next interval is the revision
//! of that very write, or later (kubernetes/apiserver pkg/storage/etcd3/compact.go, `Compact`,
//! checked at 0.34.4). So its value is compacted already, as a rule; the revision of its last
//! change is one below which no API server counts on history for longer than an interval. When it
//! was changed it does not tell, nor how long the interval is, so that nothing is dated by it.

use std::time::Duration;

/// Fewer revisions than this are a small window for Kubernetes: clients that watch come back with
/// a revision that they saw last, and must list everything anew where it is gone.
pub const SMALL: i64 = 1000;

/// How much history is to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What this revision and later ones need.
    From(i64),
    /// So many revisions below the newest.
    Revisions(i64),
    /// What is younger than this.
    Duration(Duration),
    /// What is right without knowing more: what Kubernetes' API servers count on where they are,
    /// else [`SMALL`] revisions.
    Default,
}

/// The key in which Kubernetes' API servers agree on compactions.
pub const KUBERNETES_KEY: &str = "compact_rev_key";

/// What [`KUBERNETES_KEY`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// Its value: the revision that an API server compacted to last.
    pub value: i64,
    /// The revision of its last change: the one that it compacts to next, at the earliest.
    pub changed: i64,
}

impl Kubernetes {
    /// Reads the record; `None` where it is none that an API server would write.
    #[must_use]
    pub fn read(value: &[u8], mod_revision: i64) -> Option<Self> {
        // The longest number has 19 digits.
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= 19)?;
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|_| is_plain)?;
        // A value from a later revision is another cluster's.
        (value <= mod_revision).then_some(Self { value, changed: mod_revision })
    }
}

/// A revision, and for how long it has been there at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged {
    /// The revision.
    pub revision: i64,
    /// Its least age.
    pub age: Duration,
}

/// What is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The newest revision.
    pub newest: i64,
    /// The revision up to which is compacted; 0 for never.
    pub compacted: i64,
    /// The key of Kubernetes' API servers, where it is there.
    pub kubernetes: Option<Kubernetes>,
    /// Revisions of known ages, in any order.
    pub aged: Vec<Aged>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Compact at this revision; it may be compacted already, or still to come.
    At {
        /// The revision.
        revision: i64,
        /// Why this one, as a clause.
        why: String,
    },
    /// Nothing is known to be old enough.
    TooYoung {
        /// When something will be, counted from now.
        after: Duration,
    },
}

/// Decides at which revision to compact.
#[must_use]
pub fn decide(keep: Keep, evidence: &Evidence) -> Decision {
    let newest = evidence.newest;
    match keep {
        Keep::From(revision) => Decision::At { revision, why: "as given".to_owned() },
        Keep::Revisions(count) => {
            let revision = newest.saturating_sub(count.max(0)).max(0);
            Decision::At { revision, why: format!("{count} revisions below the newest, {newest}") }
        }
        Keep::Duration(least) => by_age(least, evidence),
        Keep::Default => match evidence.kubernetes {
            Some(key) if key.changed <= newest => {
                let why = "what Kubernetes' API server compacts to next".to_owned();
                Decision::At { revision: key.changed, why }
            }
            _ => decide(Keep::Revisions(SMALL), evidence),
        },
    }
}

fn by_age(least: Duration, evidence: &Evidence) -> Decision {
    let known = || evidence.aged.iter().filter(|aged| aged.revision <= evidence.newest);
    let old = known().filter(|aged| aged.age >= least);
    if let Some(best) = old.max_by_key(|aged| (aged.revision, aged.age)) {
        let why = format!("it was there {} ago", words(best.age));
        return Decision::At { revision: best.revision, why };
    }
    // What is compacted already is nothing to wait for.
    let useful = known().filter(|aged| aged.revision > evidence.compacted);
    let oldest = useful.map(|aged| aged.age).max().unwrap_or_default();
    Decision::TooYoung { after: least.saturating_sub(oldest) }
}

/// Says what a compaction at a revision takes from who watches a Kubernetes keyspace, where it
/// takes anything that an API server would have left.
#[must_use]
pub fn warning(keep: Keep, revision: i64, evidence: &Evidence) -> Option<String> {
    let key = evidence.kubernetes?;
    let kept = evidence.newest.saturating_sub(revision);
    let relist = "what watches from below it must list everything again";
    if revision <= evidence.compacted || revision > evidence.newest || keep == Keep::Default {
        return None;
    }
    if kept < SMALL && !matches!(keep, Keep::Duration(_)) {
        return Some(format!(
            "Kubernetes: {kept} revisions are left below the newest, fewer than {SMALL}; {relist}"
        ));
    }
    (revision > key.changed).then(|| {
        format!(
            "Kubernetes: the API server keeps what is above revision {} for now; {relist}",
            key.changed
        )
    })
}

/// Writes a duration for people, to the second.
#[must_use]
pub fn words(duration: Duration) -> String {
    let all = duration.as_secs();
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    let parts = [(hours, 'h'), (minutes, 'm'), (seconds, 's')];
    let text: String = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(n, unit)| format!("{n}{unit}"))
        .collect();
    match text.as_str() {
        "" if duration.is_zero() => "0s".to_owned(),
        "" => format!("{}ms", duration.as_millis()),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(count * 60)
    }

    fn aged(ages: &[(i64, u64)]) -> Vec<Aged> {
        ages.iter()
            .map(|(revision, age)| Aged { revision: *revision, age: minutes(*age) })
            .collect()
    }

    fn at(keep: Keep, evidence: &Evidence) -> i64 {
        match decide(keep, evidence) {
            Decision::At { revision, .. } => revision,
            young @ Decision::TooYoung { .. } => panic!("{young:?}"),
        }
    }

    #[test]
    fn a_window_in_revisions_is_below_the_newest_and_never_below_0() {
        let evidence = Evidence { newest: 100, ..Evidence::default() };
        for (count, revision) in [(0, 100), (10, 90), (100, 0), (101, 0), (i64::MAX, 0), (-5, 100)]
        {
            assert_eq!(at(Keep::Revisions(count), &evidence), revision, "{count}");
        }
        assert_eq!(at(Keep::From(7), &evidence), 7);
        assert_eq!(at(Keep::From(700), &evidence), 700);
    }

    #[test]
    fn a_window_in_time_takes_the_newest_that_is_surely_old_enough() {
        let samples = aged(&[(10, 90), (40, 60), (70, 30), (100, 0)]);
        let evidence = Evidence { newest: 100, aged: samples, ..Evidence::default() };
        for (least, revision) in
            [(90, 10), (61, 10), (60, 40), (31, 40), (30, 70), (1, 70), (0, 100)]
        {
            assert_eq!(at(Keep::Duration(minutes(least)), &evidence), revision, "{least}");
        }
        let young = Decision::TooYoung { after: minutes(30) };
        assert_eq!(decide(Keep::Duration(minutes(120)), &evidence), young);
        // What is compacted is not waited for.
        let compacted = Evidence { compacted: 40, ..evidence.clone() };
        let young = Decision::TooYoung { after: minutes(90) };
        assert_eq!(decide(Keep::Duration(minutes(120)), &compacted), young);
        let none = Evidence { newest: 100, ..Evidence::default() };
        let young = Decision::TooYoung { after: minutes(120) };
        assert_eq!(decide(Keep::Duration(minutes(120)), &none), young);
        // One from beyond the newest is not of this cluster.
        let beyond = Evidence { newest: 100, aged: aged(&[(101, 90)]), ..Evidence::default() };
        assert!(matches!(decide(Keep::Duration(minutes(1)), &beyond), Decision::TooYoung { .. }));
    }

    #[test]
    fn no_age_is_taken_from_kubernetes_key() {
        let kubernetes = Some(Kubernetes { value: 50, changed: 80 });
        let evidence = Evidence { newest: 100, kubernetes, ..Evidence::default() };
        let young = decide(Keep::Duration(minutes(1)), &evidence);
        assert_eq!(young, Decision::TooYoung { after: minutes(1) });
        assert_eq!(at(Keep::Default, &evidence), 80);
        let none = Evidence { newest: 5000, ..Evidence::default() };
        assert_eq!(at(Keep::Default, &none), 4000);
    }

    #[test]
    fn kubernetes_key_is_read_only_where_an_api_server_could_have_written_it() {
        let read = |value: &[u8]| Kubernetes::read(value, 100).map(|key| key.value);
        for (value, expected) in [
            (&b"0"[..], Some(0)),
            (b"42", Some(42)),
            (b"100", Some(100)),
            (b"101", None),
            (b"", None),
            (b"-1", None),
            (b"+1", None),
            (b"42\n", None),
            (b"9223372036854775808", None),
            (b"99999999999999999999999999", None),
            (b"\xff", None),
        ] {
            assert_eq!(read(value), expected, "{value:?}");
        }
    }

    #[test]
    fn only_what_kubernetes_counts_on_is_warned_of() {
        let kubernetes = Some(Kubernetes { value: 5000, changed: 7000 });
        let compacted = 5000;
        let evidence = Evidence { newest: 9000, compacted, kubernetes, aged: Vec::new() };
        let warned = |keep, revision| warning(keep, revision, &evidence).unwrap_or_default();
        let hour = Keep::Duration(minutes(60));
        assert_eq!(warned(Keep::From(6000), 6000), "");
        assert!(warned(Keep::From(7001), 7001).contains("above revision 7000"));
        assert!(warned(Keep::From(8001), 8001).contains("999 revisions"));
        assert!(warned(Keep::Revisions(10), 8990).contains("10 revisions"));
        assert!(warned(hour, 8990).contains("above revision 7000"));
        assert_eq!(warned(hour, 6000), "");
        assert_eq!(warned(Keep::Default, 7000), "");
        assert_eq!(warned(Keep::From(4000), 4000), "");
        let plain = Evidence { kubernetes: None, ..evidence.clone() };
        assert_eq!(warning(Keep::From(8999), 8999, &plain), None);
    }

    #[test]
    fn durations_are_for_people() {
        for (millis, text) in [(0, "0s"), (30, "30ms"), (61_000, "1m1s"), (7_200_000, "2h")] {
            assert_eq!(words(Duration::from_millis(millis)), text);
        }
    }
}
