//! What a restore did, or would do: for people, for JSON and for the audit record.

use std::collections::BTreeSet;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use super::bump::Bump;
use super::compat::{self, Boot};
use super::{Options, Plan};
use crate::bolt::overlay;
use crate::format::finding::bytes_text;
use crate::ops::verify;
use crate::ops::{Error, shell_line, shell_word, status};

/// How long a step took.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The step.
    pub step: &'static str,
    /// Milliseconds.
    pub ms: u64,
}

impl Step {
    pub(super) fn since(step: &'static str, began: Instant) -> Self {
        Self { step, ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX) }
    }
}

/// One row that the restore changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The bucket's name.
    pub bucket: String,
    /// The row's key.
    pub key: String,
    /// `added`, `replaced` or `removed`.
    pub change: &'static str,
}

impl Change {
    pub(super) fn of(change: &overlay::Change) -> Self {
        let kind = match change.kind {
            overlay::ChangeKind::Added => "added",
            overlay::ChangeKind::Replaced => "replaced",
            overlay::ChangeKind::Removed => "removed",
        };
        Self { bucket: bytes_text(&change.bucket), key: bytes_text(&change.key), change: kind }
    }
}

/// The report of a restore; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape in JSON.
    pub version: u32,
    /// Nothing was changed.
    pub dry_run: bool,
    /// The snapshot: path, sizes, hash, verdicts.
    pub snapshot: Value,
    /// The data directory; with all members, the folder that holds one for each.
    pub data_dir: String,
    /// The WAL directory, where it is another place.
    pub wal_dir: Option<String>,
    /// The member's name; none when all members are restored.
    pub name: Option<String>,
    /// Where name and URLs come from.
    pub identity_source: String,
    /// The member's id in hex; none when all members are restored.
    pub member_id: Option<String>,
    /// The cluster's id in hex.
    pub cluster_id: String,
    /// The cluster's token.
    pub token: String,
    /// The token was made for this restore.
    pub token_is_fresh: bool,
    /// All members.
    pub members: Value,
    /// Old and new revision, and why.
    pub revision: Bump,
    /// Rows that differ from the snapshot's.
    pub changes: Vec<Change>,
    /// Rows in the restored database.
    pub rows_copied: u64,
    /// Hash that `snapshot status` prints of the restored database.
    pub status_hash: Option<u32>,
    /// Alarms that are not in the restored data.
    pub alarms_dropped: Vec<String>,
    /// Alarms that still are.
    pub alarms_kept: Vec<String>,
    /// Leases; each restarts with its full TTL.
    pub leases: u64,
    /// Auth is on in the restored data.
    pub auth_enabled: bool,
    /// Which etcd versions start on it.
    pub boots_on: Vec<Boot>,
    /// Owner that the files were given to.
    pub owner: Option<String>,
    /// Where what was at the target stands now.
    pub moved_aside: Option<String>,
    /// How long each step took.
    pub steps: Vec<Step>,
    /// The ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
    /// What should be read.
    pub warnings: Vec<String>,
}

impl Report {
    pub(super) fn of_plan(options: &Options, plan: &Plan) -> Result<Self, Error> {
        let rows = plan.rows()?;
        let identity = &plan.identity;
        let verified = verify::judge(&plan.examined, options.skip_hash_check);
        let snapshot = json!({
            "file": plan.examined.path.display().to_string(),
            "size_bytes": plan.examined.size_bytes,
            "sha256": plan.examined.sha256,
            "trailer": verified.trailer,
            "pages": verified.pages,
            "records": verified.records,
            "verdict": verified.verdict,
            "keys": rows.live_keys,
            "kubernetes": rows.is_kubernetes,
            "members": status::members(rows),
        });
        let local = identity.locals().pop().filter(|_| !plan.all_members);
        let mut all: Vec<_> = identity.members.iter().collect();
        if plan.all_members {
            // Ids change with a fresh token; names do not.
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let members = all.into_iter().map(|member| {
            let mut shown = json!({
                "id": member.id.to_string(),
                "name": member.name,
                "peerURLs": member.peer_urls,
            });
            if plan.all_members {
                shown["data_dir"] = json!(home(plan, &member.name));
                shown["start"] = json!(start(plan, &member.name));
            }
            shown
        });
        Ok(Self {
            version: 1,
            dry_run: options.dry_run,
            snapshot,
            data_dir: plan.target.path().display().to_string(),
            wal_dir: plan.wal_dir.as_ref().map(|path| path.display().to_string()),
            name: local.as_ref().map(|(name, _)| name.clone()),
            identity_source: identity.source.clone(),
            member_id: local.as_ref().map(|(_, id)| id.to_string()),
            cluster_id: identity.cluster_id.to_string(),
            token: identity.token.clone(),
            token_is_fresh: identity.token_is_fresh,
            members: members.collect(),
            revision: plan.bump.clone(),
            changes: Vec::new(),
            rows_copied: 0,
            status_hash: None,
            alarms_dropped: plan.alarms_dropped.clone(),
            alarms_kept: plan.alarms_kept.clone(),
            leases: rows.lease_count,
            auth_enabled: rows.auth.enabled,
            boots_on: compat::boots(rows.storage_version, rows.cluster_version),
            owner: plan.owner.map(|(uid, gid)| format!("{uid}:{gid}")),
            moved_aside: None,
            steps: Vec::new(),
            equivalent: equivalent(options, plan),
            next: next(options, plan),
            warnings: plan.warnings.clone(),
        })
    }

    /// What was there before, for the audit record.
    #[must_use]
    pub fn audit_before(&self) -> Value {
        json!({ "snapshot": self.snapshot, "revision": self.revision.old })
    }

    /// What is there now, for the audit record.
    #[must_use]
    pub fn audit_after(&self) -> Value {
        json!({
            "data_dir": self.data_dir,
            "wal_dir": self.wal_dir,
            "member_id": self.member_id,
            "cluster_id": self.cluster_id,
            "revision": self.revision.new,
            "status_hash": self.status_hash,
            "changes": self.changes,
            "moved_aside": self.moved_aside,
        })
    }
}

/// A member's data directory.
fn home(plan: &Plan, name: &str) -> String {
    let target = plan.target.path();
    match plan.all_members {
        true => target.join(name).display().to_string(),
        false => target.display().to_string(),
    }
}

fn etcdutl(options: &Options, plan: &Plan, name: &str) -> String {
    let identity = &plan.identity;
    let mut words: Vec<String> = ["etcdutl", "snapshot", "restore"].map(Into::into).to_vec();
    words.push(options.snapshot.display().to_string());
    let mut flags = vec![
        ("--data-dir", home(plan, name)),
        ("--name", name.to_owned()),
        ("--initial-cluster", identity.cluster.to_string()),
        ("--initial-advertise-peer-urls", identity.peer_urls(name)),
        ("--initial-cluster-token", identity.token.clone()),
    ];
    if let Some(wal) = &plan.wal_dir {
        flags.push(("--wal-dir", wal.display().to_string()));
    }
    if plan.bump.bump > 0 {
        flags.push(("--bump-revision", plan.bump.bump.to_string()));
    }
    words.extend(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    if plan.bump.bump > 0 {
        words.push("--mark-compacted".into());
    }
    if options.skip_hash_check || options.accept_damaged.is_some() {
        words.push("--skip-hash-check".into());
    }
    shell_line(&words)
}

/// The command that starts a restored member.
fn start(plan: &Plan, name: &str) -> String {
    let identity = &plan.identity;
    let peers = identity.peer_urls(name);
    let inside = plan.examined.rows.iter().flat_map(|rows| &rows.members);
    let own = identity.cluster.members.get(name).map(Vec::as_slice).unwrap_or_default();
    let clients = inside
        .filter(|member| member.name == name)
        .filter_map(|member| moved_urls(&member.client_urls, &member.peer_urls, own))
        .find(|urls| !urls.is_empty());
    let mut words: Vec<String> = vec!["etcd".into(), "--name".into(), name.to_owned()];
    let mut flag = |name: &str, value: &str| {
        words.extend([format!("--{name}"), value.to_owned()]);
    };
    flag("data-dir", &home(plan, name));
    if let Some(wal) = &plan.wal_dir {
        flag("wal-dir", &wal.display().to_string());
    }
    flag("listen-peer-urls", &peers);
    flag("initial-advertise-peer-urls", &peers);
    if let Some(clients) = clients {
        flag("listen-client-urls", &clients);
        flag("advertise-client-urls", &clients);
    }
    if plan.all_members {
        flag("initial-cluster", &identity.cluster.to_string());
        flag("initial-cluster-token", &identity.token);
        // Not needed where the data is; where it is not, `new` would found an empty cluster.
        flag("initial-cluster-state", "existing");
    }
    shell_line(&words)
}

/// Says what a start command leaves out where URLs are https.
fn certificates(plan: &Plan) -> Option<String> {
    let inside = plan.examined.rows.iter().flat_map(|rows| &rows.members);
    let urls = inside.flat_map(|member| &member.client_urls);
    let mut urls = urls.chain(plan.identity.members.iter().flat_map(|member| &member.peer_urls));
    urls.any(|url| url.starts_with("https:") || url.starts_with("unixs:")).then(|| {
        "with https, add the certificate flags that the member had: --cert-file, --key-file, \
         --trusted-ca-file and --client-cert-auth, and the same four with --peer- in front"
            .to_owned()
    })
}

/// A member's client URLs, comma-separated, on the host where its peer URLs now are; `None` where
/// that does not follow from the addresses of before.
fn moved_urls(clients: &[String], before: &[String], now: &[String]) -> Option<String> {
    let hosts = |urls: &[String]| -> BTreeSet<String> {
        urls.iter().filter_map(|url| Some(split_url(url)?.1.to_owned())).collect()
    };
    let (before, now) = (hosts(before), hosts(now));
    if before == now {
        return Some(clients.join(","));
    }
    let (Some(old), Some(new)) = (before.first(), now.first()) else { return None };
    if before.len() > 1 || now.len() > 1 {
        return None;
    }
    let moved = clients.iter().map(|url| {
        let (scheme, host, port) = split_url(url)?;
        (host == old).then(|| format!("{scheme}://{new}{port}"))
    });
    Some(moved.collect::<Option<Vec<_>>>()?.join(","))
}

/// Splits a URL into scheme, host, and what comes after it, from the port's colon on.
fn split_url(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = match rest.strip_prefix('[') {
        Some(inside) => inside.find(']')?.checked_add(2)?,
        None => rest.find([':', '/']).unwrap_or(rest.len()),
    };
    Some((scheme, rest.get(..end)?, rest.get(end..)?))
}

/// The same with etcdutl and ordinary commands.
fn equivalent(options: &Options, plan: &Plan) -> Vec<String> {
    let identity = &plan.identity;
    let mut lines = Vec::new();
    let target = plan.target.path().display().to_string();
    if !plan.target.in_the_way().is_empty() {
        lines.push(format!(
            "mv {} {}",
            shell_word(&target),
            shell_word(&format!("{target}.before"))
        ));
    }
    for (name, _) in identity.locals() {
        lines.push(etcdutl(options, plan, &name));
    }
    if let Some((uid, gid)) = plan.owner {
        let wal = plan.wal_dir.as_ref().map(|wal| shell_word(&wal.display().to_string()));
        let wal = wal.map(|wal| format!(" {wal}")).unwrap_or_default();
        lines.push(format!("chown -R {uid}:{gid} {}{wal}", shell_word(&target)));
    }
    if !plan.alarms_dropped.is_empty() {
        lines.push("etcdctl alarm disarm    # once the restored member runs".into());
    }
    lines
}

fn next(options: &Options, plan: &Plan) -> Vec<String> {
    let identity = &plan.identity;
    let target = plan.target.path().display().to_string();
    let stop =
        "stop the API servers first: move kube-apiserver.yaml out of the manifests directory";
    let kubeadm =
        "set dataDir in kubeadm-config to the same, or the next kubeadm upgrade undoes this";
    if let Some(manifest) = options.manifest.as_ref().filter(|_| !plan.all_members) {
        return vec![
            stop.into(),
            format!(
                "in {}: set the etcd-data hostPath (and --data-dir, if it names another place) \
                 to {target}",
                manifest.display()
            ),
            kubeadm.into(),
        ];
    }
    if plan.all_members {
        let mut lines = vec![
            "no old member may run any more; copy each directory to its member's host as root, so \
             that owners are kept"
                .to_owned(),
        ];
        let names = identity.locals().into_iter().map(|(name, _)| name);
        if options.manifest.is_some() {
            lines.push(stop.into());
            // Never the folder that holds them all: etcd would found an empty cluster there.
            lines.extend(names.map(|name| {
                format!(
                    "on the host of {name}: in its etcd.yaml, set the etcd-data hostPath to where \
                     the copy of {} is",
                    home(plan, &name)
                )
            }));
            lines.push(kubeadm.into());
        } else {
            lines.extend(names.map(|name| start(plan, &name)));
            lines.extend(certificates(plan));
        }
        return lines;
    }
    let mut lines = vec![start(plan, &identity.name)];
    lines.extend(certificates(plan));
    let others: Vec<_> =
        identity.members.iter().filter(|member| member.name != identity.name).collect();
    for member in others {
        lines.push(format!(
            "restore {} on its host with the same token and revision flags, then start it too",
            member.name
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_urls_move_with_the_peer_urls() {
        let urls = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let moved = |clients, before, now| moved_urls(&urls(clients), &urls(before), &urls(now));
        let before = "https://10.0.0.1:2380";
        let client = "https://10.0.0.1:2379";
        assert_eq!(moved(client, before, "https://10.0.0.1:12380").as_deref(), Some(client));
        let now = moved(client, before, "https://10.0.0.9:2380");
        assert_eq!(now.as_deref(), Some("https://10.0.0.9:2379"));
        let now = moved("http://[fd00::1]:2379", "http://[fd00::1]:2380", "http://[fd00::2]:2380");
        assert_eq!(now.as_deref(), Some("http://[fd00::2]:2379"));
        // Another name, or more than one host: nothing follows from that.
        assert_eq!(moved("https://m1:2379", before, "https://10.0.0.9:2380"), None);
        let two = "https://10.0.0.9:2380,https://10.0.1.9:2380";
        assert_eq!(moved(client, before, two), None);
    }
}
