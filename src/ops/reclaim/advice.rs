//! What to do where living data fills a quota: the prefixes to look at, and the quota raised,
//! the room cleaned, the quota lowered again.

use super::line::{FREE_PERCENT_MIN, Line};
use super::report::{Outcome, Report};
use super::space::Taker;
use crate::ops::cluster::View;
use crate::ops::cluster::quota::ADVISED_BYTES_MAX;
use crate::ops::shell_word;

/// A command of a program, with how the members are reached.
pub(super) type Command<'a> = dyn Fn(&str, &[&str]) -> String + 'a;

/// Says it for a cluster.
pub(super) fn of(report: &Report, view: &View, command: &Command<'_>) -> Vec<String> {
    let silent = view.members.iter().filter(|member| Line::of(member) == Line::Unknown);
    let silent: Vec<String> = silent.map(|member| member.label()).collect();
    let mut lines = Vec::new();
    if !silent.is_empty() {
        lines.push(format!("{} did not answer: start it, and run this again", silent.join(", ")));
    }
    let is_tight = view.members.iter().any(|m| !Line::of(m).is_roomy() && m.answered());
    if !is_tight {
        lines.push(command("etcdkit", &["health"]));
        return lines;
    }
    let groups = report.space.as_ref().map(|space| space.groups.as_slice()).unwrap_or_default();
    lines.extend(look_at(groups));
    if report.space.is_none() {
        lines.push("run it without --no-scan to see which keys fill the space".to_owned());
    }
    lines.extend(report.compaction.as_ref().and_then(|compaction| {
        let at = compaction.revision.unwrap_or(0).max(compaction.compact_revision_before);
        let kept = compaction.newest_revision.saturating_sub(at);
        let again = command("etcdkit", &["reclaim", "--keep-revisions", "0"]);
        (kept > 0).then(|| {
            format!(
                "the history of the newest {kept} revisions was kept for watchers; where they may \
                 list everything anew instead: {again}"
            )
        })
    }));
    let quota = view.members.iter().filter_map(|member| member.quota).min().unwrap_or(0);
    let size = view.members.iter().filter_map(|member| member.db_size).max().unwrap_or(0);
    lines.extend(raise(quota, size, report.outcome == Outcome::Full));
    let first = groups.iter().find(|group| is_safe(&group.prefix));
    let prefix = first.map_or("PREFIX".to_owned(), |group| group.prefix.clone());
    lines.push(format!(
        "then delete what is not needed, through the API server where Kubernetes wrote it; \
         otherwise: {}",
        command("etcdctl", &["del", "--prefix", &prefix])
    ));
    lines.push(format!(
        "then give the room back: {}",
        command("etcdkit", &["reclaim", "--keep-revisions", "0"])
    ));
    lines.push(format!("then lower the quota again: --quota-backend-bytes={quota}"));
    lines
}

/// A prefix that may stand in a command that deletes.
fn is_safe(prefix: &str) -> bool {
    prefix.len() > 1 && !prefix.starts_with("0x")
}

/// Names what takes most.
pub(super) fn look_at(groups: &[Taker]) -> Vec<String> {
    let shown = groups.iter().take(5).map(|group| {
        let about = if group.exact { "" } else { "about " };
        let prefix = match group.prefix.as_str() {
            "" => String::new(),
            prefix if prefix == group.name => String::new(),
            prefix => format!(" ({})", shell_word(prefix)),
        };
        format!("look at {}{prefix}: {} keys, {about}{} bytes", group.name, group.keys, group.bytes)
    });
    shown.collect()
}

/// Says how the quota is raised.
pub(super) fn raise(quota: i64, size: i64, is_full: bool) -> Vec<String> {
    let wanted = raised(quota, size);
    let why = match is_full {
        true => "the living data fills the quota; no write is taken until it is raised",
        false => "the living data fills most of the quota",
    };
    let mut lines = vec![format!(
        "{why}: on every member, one after the other, set --quota-backend-bytes={wanted} and \
         restart it; on a kubeadm node that is one line of /etc/kubernetes/manifests/etcd.yaml: \
         - --quota-backend-bytes={wanted}"
    )];
    if wanted > ADVISED_BYTES_MAX {
        lines.push(format!("etcd advises {ADVISED_BYTES_MAX} bytes at most"));
    }
    if is_full {
        lines.push("then run this again: it disarms NOSPACE and proves that writes go".to_owned());
    }
    lines
}

/// The quota of which the size leaves a third free: a whole multiple of the old one, twice that at
/// least.
fn raised(quota: i64, size: i64) -> i64 {
    let quota = i128::from(quota.max(1));
    // Of the new one so much may be used.
    let used = i128::from(100 - FREE_PERCENT_MIN - 13);
    let fitting = (i128::from(size.max(0)) * 100 + used - 1) / used;
    let times = ((fitting + quota - 1) / quota).max(2);
    i64::try_from(quota * times).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_that_is_advised_leaves_a_third_free() {
        for (quota, size, wanted) in
            [(1000, 1000, 2000), (1000, 1340, 2000), (1000, 1341, 3000), (1000, 5000, 8000)]
        {
            assert_eq!(raised(quota, size), wanted, "{quota} {size}");
        }
        assert!(raised(i64::MAX, i64::MAX) > 0);
        assert_eq!(raised(0, i64::MAX), i64::MAX);
    }

    #[test]
    fn the_advice_has_the_numbers_and_no_prefix_that_is_everything() {
        let lines = raise(1000, 1000, true).join("\n");
        assert!(lines.contains("--quota-backend-bytes=2000"), "{lines}");
        assert!(lines.contains("run this again"), "{lines}");
        assert!(!raise(1000, 900, false).join("\n").contains("run this again"));
        assert!(raise(9 << 30, 9 << 30, true).join("\n").contains("advises"));
        assert!(!is_safe("") && !is_safe("/") && !is_safe("0x00ff") && is_safe("/a/"));
    }
}
