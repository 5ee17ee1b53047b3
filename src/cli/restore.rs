//! `snapshot restore`: its flags, and its report for people.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::output::{self, WriteOut};
use super::terminal::Terminal;
use super::{Global, Outcome};
use crate::ops::restore::{self, Options, Report, bump, identity};
use crate::ops::{Error, ExitCode};

/// Flags of `snapshot restore`; the first block is etcdutl's.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The snapshot file
    file: PathBuf,
    /// Put the restored data here; must not exist or be empty [env: ETCDKIT_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Put the WAL here instead of into the data directory
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
    /// Name of the member
    #[arg(long)]
    name: Option<String>,
    /// Members of the restored cluster, as NAME=URL,NAME=URL
    #[arg(long, value_name = "NAME=URL,..")]
    initial_cluster: Option<String>,
    /// Token of the restored cluster; a fresh one for a single member if not given
    #[arg(long, value_name = "TOKEN")]
    initial_cluster_token: Option<String>,
    /// Peer URLs of the member
    #[arg(long, value_name = "URL,..")]
    initial_advertise_peer_urls: Option<String>,
    /// Let a full check stand in for a sha256 trailer that is not there
    #[arg(long)]
    skip_hash_check: bool,
    /// Accepted for etcdutl's sake; nothing is mapped here
    #[arg(long, value_name = "BYTES", hide_short_help = true)]
    initial_memory_map_size: Option<u64>,
    /// Add this to the revision, and mark everything below as compacted
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    bump_revision: Option<String>,
    /// Mark all revisions of the snapshot as compacted; the bump is computed if not given
    #[arg(long)]
    mark_compacted: bool,

    /// Restore every member at once: DIR/NAME becomes the data directory of member NAME
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["data_dir", "wal_dir", "name", "initial_advertise_peer_urls"]
    )]
    all_members: Option<PathBuf>,
    /// Start at the snapshot's own revision, whatever is known to have been served
    #[arg(long)]
    no_bump: bool,
    /// Highest revision that the lost cluster is known to have reached
    #[arg(long, value_name = "REVISION")]
    newest_revision: Option<i64>,
    /// Data directory of a dead member, whose database and log tell which revisions were served;
    /// may be given several times
    #[arg(long, value_name = "DIR")]
    old_data_dir: Vec<PathBuf>,
    /// Static-pod manifest of etcd that gives name, peer URLs and owner
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Move what is at the target aside; nothing is deleted
    #[arg(long)]
    force: bool,
    /// Show what would be done and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep NOSPACE alarms of members that no longer exist
    #[arg(long)]
    keep_alarms: bool,
    /// Restore although a CORRUPT alarm is inside, and keep it
    #[arg(long)]
    accept_corrupt: bool,
    /// Carry over what this version does not know
    #[arg(long)]
    accept_unknown: bool,
    /// Accept the wrong trailer of the file with this sha256, if its pages and records are whole
    #[arg(long, value_name = "SHA256")]
    accept_damaged: Option<String>,
}

pub(super) fn run(global: &Global, args: Restore) -> Outcome {
    let terminal = Terminal::new(global);
    // Not for clap to fill in: a variable must not contradict a flag.
    let variable = || std::env::var_os("ETCDKIT_DATA_DIR").filter(|dir| !dir.is_empty());
    let data_dir = args.all_members.clone().or(args.data_dir);
    let data_dir = data_dir.or_else(|| variable().map(PathBuf::from)).ok_or_else(|| {
        Error::usage("neither --data-dir nor --all-members says where the restored data goes")
            .hint("add --data-dir DIR; for every member of a cluster, --all-members DIR")
    })?;
    let options = Options {
        snapshot: args.file,
        data_dir,
        wal_dir: args.wal_dir,
        identity: identity::Wanted {
            name: args.name,
            initial_cluster: args.initial_cluster,
            token: args.initial_cluster_token,
            peer_urls: args.initial_advertise_peer_urls,
            all: args.all_members.is_some(),
        },
        revision: bump::Wanted {
            bump: args.bump_revision,
            mark_compacted: args.mark_compacted,
            no_bump: args.no_bump,
        },
        newest_revision: args.newest_revision,
        old_data_dirs: args.old_data_dir,
        #[cfg(feature = "live")]
        running: match global.connection.is_given() {
            true => Some(global.connection.settings()?),
            false => None,
        },
        #[cfg(feature = "live")]
        whole_cluster: global.connection.whole_cluster(),
        manifest: args.manifest,
        skip_hash_check: args.skip_hash_check,
        accept_damaged: args.accept_damaged,
        accept_corrupt: args.accept_corrupt,
        accept_unknown: args.accept_unknown,
        keep_alarms: args.keep_alarms,
        force: args.force,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let report = restore::restore(&options, &terminal)?;
    terminal.clear();
    match global.write_out {
        _ if global.program.is_linked() => output::print_aside(&restored(&report)),
        WriteOut::Json => output::print_json(&json!(report))?,
        WriteOut::Fields => output::print_fields(&json!(report))?,
        WriteOut::Simple | WriteOut::Table => output::print_lines(&restored(&report))?,
    }
    Ok(ExitCode::Ok)
}

fn restored(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let verb = if report.dry_run { "would restore" } else { "restored" };
    let snapshot = &report.snapshot;
    let word = |key: &str| snapshot[key].as_str().unwrap_or("-");
    lines.push(format!("{verb} {} into {}", word("file"), report.data_dir));
    lines.push(format!(
        "  verified   trailer {}, pages {}, records {}; {} keys; sha256 {}",
        word("trailer"),
        word("pages"),
        word("records"),
        snapshot["keys"],
        word("sha256")
    ));
    let fresh = if report.token_is_fresh { " (fresh)" } else { "" };
    let of = format!(
        "of cluster {}, from {}; token {}{fresh}",
        report.cluster_id, report.identity_source, report.token
    );
    match (&report.name, &report.member_id) {
        (Some(name), Some(id)) => lines.push(format!("  member     {name} = {id} {of}")),
        _ => {
            lines.push(format!("  members    all {of}"));
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            for member in report.members.as_array().into_iter().flatten() {
                let [name, id, home] = ["name", "id", "data_dir"].map(|key| text(&member[key]));
                lines.push(format!("  member     {name} = {id} in {home}"));
            }
        }
    }
    let revision = &report.revision;
    if revision.bump > 0 {
        lines.push(format!(
            "  revision   {} -> {}, all below marked compacted: {}",
            revision.old, revision.new, revision.why
        ));
    } else {
        lines.push(format!("  revision   {} (no bump): {}", revision.old, revision.why));
    }
    for evidence in &revision.evidence {
        let known = evidence.revision.map_or("nothing known".into(), |r| r.to_string());
        let note = evidence.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        lines.push(format!("             {}: {known}{note}", evidence.source));
    }
    for change in &report.changes {
        lines.push(format!("  changed    {}/{} {}", change.bucket, change.key, change.change));
    }
    for alarm in &report.alarms_dropped {
        lines.push(format!("  alarm      {alarm} dropped: that member no longer exists"));
    }
    if report.leases > 0 {
        lines.push(format!("  leases     {}; each restarts with its full TTL", report.leases));
    }
    for boot in &report.boots_on {
        let starts = if boot.boots { "starts" } else { "refuses" };
        let why = boot.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!("  etcd {}   {starts}{why}", boot.etcd));
    }
    if let Some(owner) = &report.owner {
        lines.push(format!("  owner      {owner}"));
    }
    if let Some(aside) = &report.moved_aside {
        lines.push(format!("  moved      what was there is now {aside}"));
    }
    let steps: Vec<_> = report.steps.iter().map(|s| format!("{} {} ms", s.step, s.ms)).collect();
    lines.push(format!("  time       {}", steps.join(", ")));
    lines.extend(report.equivalent.iter().map(|line| format!("  same as    {line}")));
    lines.extend(report.next.iter().map(|line| format!("  next       {line}")));
    lines
}
