//! What to do where living data fills a quota: the prefixes to look at, and the quota raised,
//! the room cleaned, the quota lowered again.

use super::line::{FREE_PERCENT_MIN, Line};
use super::report::{Outcome, Report};
use super::space::Taker;
use crate::etcd::schema;
use crate::ops::cluster::quota::ADVISED_BYTES_MAX;
use crate::ops::cluster::{MemberView, View};
use crate::ops::compaction::Keep;
use crate::ops::shell_word;

/// Commands, with how the members are reached.
pub(super) struct Commands<'a> {
    /// Of `etcdkit`.
    pub(super) kit: &'a dyn Fn(&[&str]) -> String,
    /// Of `etcdctl`.
    pub(super) ctl: &'a dyn Fn(&[&str]) -> String,
    /// This run once more, with another history kept where one is named.
    pub(super) again: &'a dyn Fn(Option<Keep>) -> String,
}

/// Says it for a cluster.
pub(super) fn of(report: &Report, view: &View, command: &Commands<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let silent: Vec<String> =
        view.members.iter().filter(|m| m.db_size.is_none()).map(MemberView::label).collect();
    if !silent.is_empty() {
        lines.push(format!("{} did not answer: start it, and run this again", silent.join(", ")));
    }
    let untold =
        view.members.iter().filter(|m| m.db_size.is_some() && Line::of(m) == Line::Unknown);
    let untold: Vec<String> = untold.map(MemberView::label).collect();
    if !untold.is_empty() {
        lines.push(format!(
            "the quota of {} was not told: {} --quota-backend-bytes=BYTES, with what its server \
             was started with",
            untold.join(", "),
            (command.again)(None)
        ));
        return lines;
    }
    let is_tight = view.members.iter().any(|m| !Line::of(m).is_roomy() && m.answered());
    if !is_tight {
        lines.push((command.kit)(&["health"]));
        if report.outcome == Outcome::Unproved {
            lines.push(format!("then: {}", (command.again)(None)));
        }
        return lines;
    }
    let groups = report.space.as_ref().map(|space| space.groups.as_slice()).unwrap_or_default();
    lines.extend(look_at(groups));
    if report.space.is_none() {
        lines.push("run it without --no-scan to see which keys fill the space".to_owned());
    }
    let without_history = || (command.again)(Some(Keep::Revisions(0)));
    lines.extend(report.compaction.as_ref().and_then(|compaction| {
        let at = compaction.revision.unwrap_or(0).max(compaction.compact_revision_before);
        let kept = compaction.newest_revision.saturating_sub(at);
        (kept > 0).then(|| {
            format!(
                "the history of the newest {kept} revisions was kept for watchers; where they may \
                 list everything anew instead: {}",
                without_history()
            )
        })
    }));
    let quota = view.members.iter().filter_map(|member| member.quota).min().unwrap_or(0);
    let size = view.members.iter().filter_map(|member| member.db_size).max().unwrap_or(0);
    lines.extend(raise(quota, size, report.outcome == Outcome::Full));
    lines.extend(delete(groups, &(command.ctl)(&["del", "--prefix", "PREFIX"])));
    lines.push(format!("then give the room back: {}", without_history()));
    lines.push(format!("then lower the quota again: --quota-backend-bytes={quota}"));
    lines
}

/// Says how keys are deleted: of Kubernetes never here, since its API server must see it, and of
/// others by nobody who has not put the prefix there with a thought.
fn delete(groups: &[Taker], command: &str) -> Vec<String> {
    let is_kubernetes = |group: &&Taker| schema::is_kubernetes_key(group.prefix.as_bytes());
    let mut lines = Vec::new();
    if let Some(first) = groups.iter().find(is_kubernetes) {
        lines.push(format!(
            "then delete what is not needed with kubectl, or the tool of whoever made it, and \
             never in etcd: {} most of all",
            first.name
        ));
    }
    if groups.is_empty() || !groups.iter().all(|group| is_kubernetes(&group)) {
        lines.push(format!(
            "then delete what is not needed, with the program that wrote it, or: {command}"
        ));
    }
    lines
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
    fn the_advice_has_the_numbers() {
        let lines = raise(1000, 1000, true).join("\n");
        assert!(lines.contains("--quota-backend-bytes=2000"), "{lines}");
        assert!(lines.contains("run this again"), "{lines}");
        assert!(!raise(1000, 900, false).join("\n").contains("run this again"));
        assert!(raise(9 << 30, 9 << 30, true).join("\n").contains("advises"));
    }

    #[test]
    fn no_command_deletes_what_kubernetes_wrote() {
        let taker = |prefix: &str| Taker {
            prefix: prefix.into(),
            name: prefix.into(),
            keys: 1,
            bytes: 1,
            exact: true,
        };
        let of = |prefixes: &[&str]| {
            let groups: Vec<Taker> = prefixes.iter().map(|prefix| taker(prefix)).collect();
            delete(&groups, "etcdctl del --prefix PREFIX").join("\n")
        };
        let pods = of(&["/registry/pods/", "/registry/events/"]);
        assert!(pods.contains("kubectl") && pods.contains("/registry/pods/ most"), "{pods}");
        assert!(!pods.contains("etcdctl"), "{pods}");
        let app = of(&["/app/cache/"]);
        assert!(app.ends_with("del --prefix PREFIX") && !app.contains("kubectl"), "{app}");
        assert_eq!(of(&["/app/cache/", "/registry/pods/"]).lines().count(), 2);
        assert_eq!(of(&[]).lines().count(), 1);
    }
}
