//! Which revision a restored keyspace begins at.
//!
//! Clients of the dead cluster remember revisions. If the restored one reaches a remembered
//! revision again with other data behind it, caches believe to be current and are not. So a
//! Kubernetes keyspace begins above everything that was ever served, and everything below is
//! marked compacted, so that every watcher must list again.
//!
//! New revision = the highest of: snapshot's + 10^9; highest known + 10^9; Unix time in
//! milliseconds (so that restoring the same old snapshot twice still goes forward). It stays below
//! 2^53, which JSON readers hold exactly.

use serde::Serialize;

use crate::ops::{Error, clock};

/// Room that is left above the highest known revision.
pub const MARGIN: i64 = 1_000_000_000;
/// First revision that is too high: 2^53.
pub const LIMIT: i64 = 1 << 53;
/// 2025-01-01 and 2100-01-01 in milliseconds: a clock outside of these is no evidence.
const CLOCK_PLAUSIBLE_MS: std::ops::Range<i64> = 1_735_689_600_000..4_102_444_800_000;

/// What the caller says about revisions.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `--bump-revision`, as text: a number that does not fit is answered with the largest one.
    pub bump: Option<String>,
    /// `--mark-compacted`.
    pub mark_compacted: bool,
    /// `--no-bump`.
    pub no_bump: bool,
}

/// A revision that somebody has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Where it comes from.
    pub source: String,
    /// The revision; `None` where the source had none to give.
    pub revision: Option<i64>,
    /// What is to be known about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bump {
    /// Revision that the snapshot would start at.
    pub old: i64,
    /// Revision that the restored member starts at.
    pub new: i64,
    /// What is added to the last record's revision: etcdutl's `--bump-revision`; 0 for none.
    pub bump: i64,
    /// Everything below the new revision counts as compacted.
    pub mark_compacted: bool,
    /// Revisions may be served a second time, which a person must hear.
    #[serde(skip)]
    pub goes_back: bool,
    /// Why, for people.
    pub why: String,
    /// What was known.
    pub evidence: Vec<Evidence>,
}

/// Revisions that the snapshot itself holds.
#[derive(Clone, Copy, Debug)]
pub struct Inside {
    /// Main revision of the last record; a bump counts from here, as etcdutl's does.
    pub last: i64,
    /// Revision that a server starts at; above `last` after a compaction or an open bump.
    pub current: i64,
    /// A Kubernetes API server wrote it.
    pub is_kubernetes: bool,
}

/// Decides the revision.
///
/// # Errors
/// Usage for flags that contradict each other or do not fit; refused where the result would lie
/// below a revision that is known, or above the limit.
pub fn decide(wanted: &Wanted, inside: Inside, evidence: Vec<Evidence>) -> Result<Bump, Error> {
    let now = i64::try_from(clock::unix_ms()).unwrap_or(i64::MAX);
    decide_at(wanted, inside, evidence, now)
}

fn decide_at(
    wanted: &Wanted,
    inside: Inside,
    mut evidence: Vec<Evidence>,
    now_ms: i64,
) -> Result<Bump, Error> {
    let old = inside.current;
    if wanted.no_bump && (wanted.bump.is_some() || wanted.mark_compacted) {
        return Err(Error::usage("--no-bump contradicts --bump-revision and --mark-compacted"));
    }
    let known = evidence.iter().filter_map(|evidence| evidence.revision).max();
    if wanted.no_bump {
        let why = match known.filter(|known| *known > old) {
            Some(known) => format!(
                "--no-bump: revisions {old} to {known} will be served again with other data; \
                 restart every client that watches"
            ),
            None if inside.is_kubernetes => format!(
                "--no-bump: what was served above revision {old} will be served again with other \
                 data; restart every client that watches"
            ),
            None => "--no-bump".into(),
        };
        let goes_back = inside.is_kubernetes || known.is_some_and(|known| known > old);
        let (new, bump) = (old, 0);
        return Ok(Bump { old, new, bump, mark_compacted: false, goes_back, why, evidence });
    }
    if let Some(known) = known.filter(|known| *known >= LIMIT - MARGIN) {
        let message = format!("a known revision of {known} leaves no room below 2^53");
        return Err(Error::refused(message)
            .hint("check --newest-revision and FILE.json: no cluster reaches that")
            .hint("or --no-bump, which starts at the snapshot's own revision"));
    }
    if let Some(text) = &wanted.bump {
        return explicit(text, inside, known, evidence);
    }
    let newer = known.is_some_and(|known| known > old);
    if !inside.is_kubernetes && !wanted.mark_compacted && !newer {
        let why = "not a Kubernetes keyspace, and no newer revision is known".into();
        let (new, bump) = (old, 0);
        return Ok(Bump { old, new, bump, mark_compacted: false, goes_back: false, why, evidence });
    }
    let mut new = old.saturating_add(MARGIN);
    let mut why = format!("the snapshot's revision {old} + 10^9");
    if let Some(from) = known.map(|known| known.saturating_add(MARGIN)).filter(|from| *from > new) {
        new = from;
        why = "the highest known revision + 10^9".into();
    }
    if CLOCK_PLAUSIBLE_MS.contains(&now_ms) {
        if now_ms > new {
            new = now_ms;
            why = "Unix time in milliseconds, so that each restore starts above the one before"
                .into();
        }
    } else {
        evidence.push(Evidence {
            source: "this machine's clock".into(),
            revision: None,
            note: Some(format!("{now_ms} ms since 1970 is implausible; not used")),
        });
    }
    if new >= LIMIT {
        return Err(too_high(new, inside));
    }
    let bump = new.saturating_sub(inside.last);
    Ok(Bump { old, new, bump, mark_compacted: true, goes_back: false, why, evidence })
}

fn explicit(
    text: &str,
    inside: Inside,
    known: Option<i64>,
    evidence: Vec<Evidence>,
) -> Result<Bump, Error> {
    let largest = LIMIT.saturating_sub(1).saturating_sub(inside.last);
    let bump = text.parse::<i64>().ok().filter(|bump| (1..=largest).contains(bump));
    let Some(bump) = bump else {
        let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
        if text == "0" {
            return Err(Error::usage("--bump-revision 0 bumps nothing")
                .hint("--no-bump, if the snapshot's own revision is meant"));
        }
        let message = if plain {
            format!("--bump-revision {text} is too large: at most {largest} for this snapshot")
        } else {
            format!("--bump-revision {text} is not a number from 1 to {largest}")
        };
        return Err(Error::usage(message));
    };
    let new = inside.last.saturating_add(bump);
    let floor = known.unwrap_or(0).max(inside.current);
    // Equal is too low already: a watcher that saw `floor` goes on at the next one, unwarned.
    if new <= floor {
        let least = floor.saturating_sub(inside.last).saturating_add(1);
        let message = format!(
            "--bump-revision {bump} gives revision {new}, not above {floor}, which is known to \
             have been served"
        );
        return Err(Error::refused(message)
            .hint(format!("--bump-revision {least} or more"))
            .hint("or leave it out: a safe one is computed"));
    }
    let why = "--bump-revision; it marks everything below as compacted too".into();
    let old = inside.current;
    Ok(Bump { old, new, bump, mark_compacted: true, goes_back: false, why, evidence })
}

fn too_high(new: i64, inside: Inside) -> Error {
    let message = format!("revision {new} would not stay below 2^53");
    let mut error = Error::refused(message);
    let largest = LIMIT.saturating_sub(1).saturating_sub(inside.last);
    if largest > 0 {
        error = error.hint(format!("--bump-revision {largest} is the largest one left"));
    }
    error.hint("or --no-bump, which starts at the snapshot's own revision")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::ExitCode;

    const NOW: i64 = 1_800_000_000_000;
    const KUBERNETES: Inside = Inside { last: 296, current: 296, is_kubernetes: true };

    fn known(revision: i64) -> Vec<Evidence> {
        vec![Evidence { source: "test".into(), revision: Some(revision), note: None }]
    }

    fn bump(text: &str) -> Wanted {
        Wanted { bump: Some(text.into()), ..Wanted::default() }
    }

    #[test]
    fn kubernetes_goes_forward_each_time() {
        let first = decide_at(&Wanted::default(), KUBERNETES, vec![], NOW).unwrap();
        assert_eq!((first.new, first.bump, first.mark_compacted), (NOW, NOW - 296, true));
        let again = decide_at(&Wanted::default(), KUBERNETES, vec![], NOW + 1).unwrap();
        assert!(again.new > first.new);
        let newer = decide_at(&Wanted::default(), KUBERNETES, known(NOW), NOW).unwrap();
        assert_eq!(newer.new, NOW + MARGIN);
    }

    #[test]
    fn an_implausible_clock_is_no_evidence() {
        for now in [0, i64::MAX, LIMIT] {
            let bump = decide_at(&Wanted::default(), KUBERNETES, vec![], now).unwrap();
            assert_eq!(bump.new, 296 + MARGIN);
            assert_eq!(bump.evidence.len(), 1);
        }
    }

    #[test]
    fn others_keep_their_revision_unless_told() {
        let plain = Inside { is_kubernetes: false, ..KUBERNETES };
        assert_eq!(decide_at(&Wanted::default(), plain, vec![], NOW).unwrap().new, 296);
        assert_eq!(decide_at(&Wanted::default(), plain, known(296), NOW).unwrap().new, 296);
        assert_eq!(decide_at(&Wanted::default(), plain, known(400), NOW).unwrap().new, NOW);
        let marked = Wanted { mark_compacted: true, ..Wanted::default() };
        assert_eq!(decide_at(&marked, plain, vec![], NOW).unwrap().new, NOW);
    }

    #[test]
    fn what_etcdutl_wraps_is_refused() {
        for text in ["18446744073709551615", "9223372036854775807", "-1", "0", "x", ""] {
            let error = decide_at(&bump(text), KUBERNETES, vec![], NOW).unwrap_err();
            assert_eq!(error.code, ExitCode::Usage, "{text}");
        }
        let largest = LIMIT - 1 - 296;
        let error = decide_at(&bump("9007199254740992"), KUBERNETES, vec![], NOW).unwrap_err();
        assert!(error.message.contains(&largest.to_string()), "{}", error.message);
        let ok = decide_at(&bump(&largest.to_string()), KUBERNETES, vec![], NOW).unwrap();
        assert_eq!(ok.new, LIMIT - 1);
    }

    #[test]
    fn nothing_goes_below_what_is_known() {
        let error = decide_at(&bump("100"), KUBERNETES, known(1000), NOW).unwrap_err();
        assert_eq!(error.code, ExitCode::Refused);
        assert_eq!(error.hints[0], "--bump-revision 705 or more");
        assert!(decide_at(&bump("704"), KUBERNETES, known(1000), NOW).is_err());
        assert_eq!(decide_at(&bump("705"), KUBERNETES, known(1000), NOW).unwrap().new, 1001);
        let none = Wanted { no_bump: true, ..Wanted::default() };
        assert_eq!(decide_at(&none, KUBERNETES, known(1000), NOW).unwrap().new, 296);
        let error = decide_at(&Wanted::default(), KUBERNETES, known(LIMIT), NOW).unwrap_err();
        assert_eq!(error.code, ExitCode::Refused);
    }

    #[test]
    fn an_open_bump_counts() {
        // A restored and never started directory: its compaction is scheduled far above.
        let inside = Inside { last: 1_000_000_296, current: 1_000_000_296, is_kubernetes: true };
        let again = decide_at(&Wanted::default(), inside, vec![], 0).unwrap();
        assert_eq!(again.new, 2_000_000_296);
    }
}
