//! `snapshot restore`: a verified snapshot becomes a data directory that etcd starts on.
//!
//! Order of work, so that nothing has its name before everything is known:
//!
//! 1. look at the target;
//! 2. examine the snapshot whole, and copy its database beside the target meanwhile;
//! 3. decide identity and revision, and plan the rows that change;
//! 4. write the rows that change behind the copied pages, and WAL and `.snap`;
//! 5. read back what was written and compare it with the plan;
//! 6. sync, rename.
//!
//! Until the rename the target is as it was. The end state is etcdutl's for the same explicit
//! flags (ids, rows, WAL), but for what `docs/ARCHITECTURE.md` lists as intended differences, and
//! nothing unverified gets through.
//!
//! Source: etcdutl `snapshot/v3_snapshot.go` `Restore` (3.5.35, 3.6.16, 3.7.3).

pub mod build;
pub mod bump;
pub mod compat;
pub mod evidence;
pub mod identity;
mod old_data;
pub mod report;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub use report::{Report, Step};

use super::examine::{Examined, Level, Seal, examine_and_copy};
use super::stage::{self, Target};
use super::{Error, ExitCode, Progress, audit, shell_word, status};
use crate::bolt::overlay::Edits;
use crate::etcd::rows::AlarmKind;
use crate::etcd::schema;
use crate::etcd::survey::Report as Rows;
use crate::format::finding::Code;
use crate::kube::manifest::{self, EtcdManifest};
use bump::Bump;
use identity::{Host, Identity};

/// What to restore, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The snapshot file.
    pub snapshot: PathBuf,
    /// Where the data directory goes; with all members, a folder with one for each in it.
    pub data_dir: PathBuf,
    /// Where the WAL goes, if not into the data directory.
    pub wal_dir: Option<PathBuf>,
    /// Who the member is.
    pub identity: identity::Wanted,
    /// Which revision it starts at.
    pub revision: bump::Wanted,
    /// A revision that is known to have been served.
    pub newest_revision: Option<i64>,
    /// Data directories of dead members, which tell what they served.
    pub old_data_dirs: Vec<PathBuf>,
    /// Running members to ask for their revision.
    #[cfg(feature = "live")]
    pub running: Option<crate::live::Settings>,
    /// Ask every member that their cluster has.
    #[cfg(feature = "live")]
    pub whole_cluster: bool,
    /// Static-pod manifest that gives name, peer URLs and owner.
    pub manifest: Option<PathBuf>,
    /// A full check stands in for a trailer that is not there.
    pub skip_hash_check: bool,
    /// SHA-256 of a file whose wrong trailer is accepted.
    pub accept_damaged: Option<String>,
    /// A CORRUPT alarm inside is accepted, and kept.
    pub accept_corrupt: bool,
    /// What this version does not know is carried over as it is.
    pub accept_unknown: bool,
    /// NOSPACE alarms of members that no longer exist are kept.
    pub keep_alarms: bool,
    /// What is at the target is moved aside.
    pub force: bool,
    /// Decide and report, change nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// Everything that is decided before anything is made.
#[derive(Debug)]
pub struct Plan {
    examined: Examined,
    target: Target,
    wal_dir: Option<PathBuf>,
    all_members: bool,
    identity: Identity,
    bump: Bump,
    edits: Edits,
    owner: Option<(u32, u32)>,
    warnings: Vec<String>,
    alarms_dropped: Vec<String>,
    alarms_kept: Vec<String>,
}

impl Plan {
    fn rows(&self) -> Result<&Rows, Error> {
        self.examined.rows.as_ref().ok_or_else(|| status::damaged(&self.examined))
    }
}

/// Restores a snapshot.
///
/// # Errors
/// Every refusal and failure, with the target as it was.
pub fn restore(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let mut steps = Vec::new();
    let began = Instant::now();
    let early = Early::look(options)?;
    let place = match options.dry_run {
        true => None,
        false => Some(build::Place::make(early.target.clone(), early.wal_dir.as_deref())?),
    };
    let copy = place.as_ref().map(|place| &place.database);
    let examined = examine_and_copy(&options.snapshot, Level::Full, copy, progress)?;
    let plan = plan(options, early, examined, progress)?;
    steps.push(Step::since("verify", began));
    for warning in &plan.warnings {
        progress.note(&format!("warning: {warning}"));
    }
    let mut report = Report::of_plan(options, &plan)?;
    let Some(place) = place else {
        report.steps = steps;
        return Ok(report);
    };
    let by_hand = report.equivalent.clone();
    build::build(place, &plan, &mut report, &mut steps, progress).map_err(|error| {
        by_hand.iter().fold(error, |error, line| error.hint(format!("by hand: {line}")))
    })?;
    report.steps = steps;
    let record = audit::Record {
        operation: "snapshot restore",
        result: audit::OK.into(),
        before: report.audit_before(),
        after: report.audit_after(),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    if let Err(error) = audit::append(&options.audit_log, &record) {
        let path = options.audit_log.display();
        let warning = format!("the audit record could not be written to {path}: {error}");
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
    Ok(report)
}

/// What is looked at before the snapshot is read.
struct Early {
    target: Target,
    wal_dir: Option<PathBuf>,
    manifest: Option<EtcdManifest>,
    warnings: Vec<String>,
}

impl Early {
    fn look(options: &Options) -> Result<Self, Error> {
        let target = Target::inspect(&options.data_dir, options.force);
        let target = match options.identity.all {
            true => target.map_err(of_all_members)?.as_whole()?,
            false => target?,
        };
        let wal_dir = wal_dir(options, &target)?;
        check_audit_log(options, &target)?;
        let manifest = options.manifest.as_deref().map(read_manifest).transpose()?;
        let mut warnings = Vec::new();
        for dead in target.dead() {
            let verb = if options.dry_run { "would be" } else { "is" };
            warnings.push(format!(
                "{} was left by a run that was killed; it {verb} removed",
                dead.display()
            ));
        }
        for kept in target.left_alone() {
            warnings.push(format!(
                "{} may be the directory that a killed run was moving aside; it is left alone",
                kept.display()
            ));
        }
        let in_the_way = target.in_the_way();
        if !in_the_way.is_empty() {
            warnings.push(format!("moved aside: {}", in_the_way.join(", ")));
        }
        if let Ok(meta) = std::fs::metadata(&options.snapshot) {
            check_space(&target, meta.len())?;
        }
        Ok(Self { target, wal_dir, manifest, warnings })
    }
}

fn plan(
    options: &Options,
    early: Early,
    examined: Examined,
    progress: &dyn Progress,
) -> Result<Plan, Error> {
    let Early { target, wal_dir, manifest, mut warnings } = early;
    gate(options, &examined, &mut warnings)?;
    let Some(rows) = &examined.rows else { return Err(status::damaged(&examined)) };

    let inside = bump::Inside {
        last: rows.revision,
        current: rows.current_revision,
        is_kubernetes: rows.is_kubernetes,
    };
    let known = evidence::collect(options, &examined, &mut warnings, progress)?;
    let bump = bump::decide(&options.revision, inside, known)?;
    let commands = |host: &Host<'_>| command_of(options, host, &bump);
    let identity =
        identity::decide(&options.identity, manifest.as_ref(), &rows.members, &commands)?;
    let revision = &options.revision;
    let decided = revision.bump.is_some() || revision.no_bump;
    if identity.cluster.members.len() > 1 && !decided && !options.identity.all {
        let who = "no revision is given, and --initial-cluster names";
        return Err(identity::per_host(&identity.cluster, &identity.token, &commands, who));
    }
    if bump.goes_back {
        warnings.push(bump.why.clone());
    }
    for learner in rows.members.iter().filter(|member| member.is_learner) {
        warnings.push(identity::left_out(learner));
    }

    let mut plan = Plan {
        target,
        wal_dir,
        all_members: options.identity.all,
        identity,
        bump,
        edits: Edits::default(),
        owner: None,
        warnings,
        alarms_dropped: Vec::new(),
        alarms_kept: Vec::new(),
        examined,
    };
    plan_owner(&mut plan, manifest.as_ref());
    plan_rows(options, &mut plan)?;
    let copies = u64::try_from(plan.identity.locals().len()).unwrap_or(u64::MAX);
    check_space(&plan.target, plan.examined.size_bytes.saturating_mul(copies.saturating_sub(1)))?;
    Ok(plan)
}

/// Names the flag that was given where all members are restored.
fn of_all_members(mut error: Error) -> Error {
    for text in error.hints.iter_mut().chain([&mut error.message]) {
        *text = text.replace("--data-dir", "--all-members");
        if let Some(rest) = text.strip_prefix("data-dir ") {
            *text = rest.to_owned();
        }
    }
    error
}

/// Keeps the record out of the snapshot and out of what is being made.
fn check_audit_log(options: &Options, target: &Target) -> Result<(), Error> {
    let log = stage::absolute(&options.audit_log)?;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let is_snapshot = id(&log).is_some() && id(&log) == id(&options.snapshot);
    if is_snapshot || log.starts_with(target.path()) {
        let message = format!("{} is no place for the audit record", log.display());
        return Err(Error::usage(message).hint("give another --audit-log"));
    }
    Ok(())
}

/// Refuses what must not become a data directory.
fn gate(options: &Options, examined: &Examined, warnings: &mut Vec<String>) -> Result<(), Error> {
    if let Some(accepted) = &options.accept_damaged
        && !accepted.eq_ignore_ascii_case(&examined.sha256)
    {
        let message = format!("--accept-damaged is not the sha256 of {}", examined.path.display());
        return Err(Error::refused(message).hint(format!(
            "that is {}: accept it only after reading the findings",
            examined.sha256
        )));
    }
    let other_damage = examined.findings.errors().any(|code| code != Code::SealBroken);
    if !examined.tree_is_whole() || examined.records_damaged() || other_damage {
        return Err(status::damaged(examined));
    }
    // What is left is damage to the freelist: a restore does without it and writes none.
    if examined.pages_damaged() {
        if options.accept_damaged.is_none() {
            return Err(status::damaged(examined)
                .hint(
                    "use another backup if there is one: only the freelist is damaged in this one",
                )
                .hint(format!(
                    "if it is the only one left: --accept-damaged={} (every row can be read)",
                    examined.sha256
                )));
        }
        warnings.push("THE FREELIST IS DAMAGED AND WAS ACCEPTED: every row could be read".into());
    }
    match &examined.seal {
        Seal::Good => {}
        Seal::Broken { .. } if options.accept_damaged.is_some() => {
            warnings.push(format!(
                "THE TRAILER IS WRONG AND WAS ACCEPTED: the bytes of {} are not the saved ones, \
                 though every page and row can be read",
                examined.path.display()
            ));
        }
        Seal::Broken { .. } => {
            return Err(status::damaged(examined)
                .hint("use another backup if there is one: some byte in this one is wrong")
                .hint(format!(
                    "if it is the only one left: --accept-damaged={} (every page and row can be \
                     read)",
                    examined.sha256
                )));
        }
        Seal::Missing if options.skip_hash_check => {
            warnings
                .push("no sha256 trailer: a full check of pages and rows stood in for it".into());
            let all = examined.findings.kept().iter();
            let live = all.filter(|finding| finding.code == Code::FileLiveCopy);
            warnings.extend(live.map(|finding| finding.detail.clone()));
        }
        Seal::Missing => {
            let message = format!(
                "{} has no sha256 trailer: snapshot missing hash but --skip-hash-check=false",
                examined.path.display()
            );
            return Err(Error::refused(message)
                .hint("use the file that snapshot save wrote, unchanged")
                .hint("or --skip-hash-check: all pages and rows were read and are whole"));
        }
    }
    if examined.has_unknown() && !options.accept_unknown {
        let mut error = Error::refused(format!(
            "{} holds what this version does not know",
            examined.path.display()
        ));
        let all = examined.all_findings();
        error.findings = all.kept().iter().filter(|f| f.code.is_unknown()).cloned().collect();
        return Err(error
            .hint("use a newer etcdkit, or etcdutl of the version that wrote the snapshot")
            .hint("or --accept-unknown, which carries those rows over as they are"));
    }
    Ok(())
}

fn wal_dir(options: &Options, target: &Target) -> Result<Option<PathBuf>, Error> {
    let Some(wal) = &options.wal_dir else { return Ok(None) };
    let wal = stage::absolute(wal)?;
    if wal == target.path().join("member").join("wal") {
        return Ok(None);
    }
    if target.path().starts_with(&wal) {
        let message = format!("the data directory lies inside wal-dir {}", wal.display());
        return Err(Error::usage(message).hint("give a --wal-dir beside the data directory"));
    }
    if wal.starts_with(target.path()) {
        return Err(Error::usage(format!(
            "wal-dir {} lies inside the data directory",
            wal.display()
        ))
        .hint("leave --wal-dir out: the WAL is then in the data directory"));
    }
    if std::fs::symlink_metadata(&wal).is_ok() {
        let message = format!("wal-dir {} exists", shell_word(&wal.display().to_string()));
        return Err(Error::refused(message).hint("choose a --wal-dir that does not exist yet"));
    }
    Ok(Some(wal))
}

fn read_manifest(path: &Path) -> Result<EtcdManifest, Error> {
    manifest::read(path).map_err(|error| match error {
        manifest::Error::Read { source, .. } => Error::io(&source, "read", path),
        error => Error::new(ExitCode::Failed, format!("{}: {error}", path.display()))
            .hint("or leave --manifest out and give --name and --initial-advertise-peer-urls"),
    })
}

fn plan_owner(plan: &mut Plan, manifest: Option<&EtcdManifest>) {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (uid, gid) = plan.target.owner().unwrap_or(own);
    let uid = manifest.and_then(|manifest| manifest.run_as_user).unwrap_or(uid);
    let gid = manifest.and_then(|manifest| manifest.run_as_group).unwrap_or(gid);
    if (uid, gid) != own {
        plan.owner = Some((uid, gid));
    }
}

fn plan_rows(options: &Options, plan: &mut Plan) -> Result<(), Error> {
    let rows = plan.rows()?;
    let mut edits = Edits::default();
    edits.clear(schema::MEMBERS);
    edits.clear(schema::MEMBERS_REMOVED);
    for member in &plan.identity.members {
        edits.put(schema::MEMBERS, &member.row_key(), &member.encode());
    }
    let index = u64::try_from(plan.identity.members.len()).unwrap_or(u64::MAX);
    edits.put(schema::META, schema::META_CONSISTENT_INDEX, &index.to_be_bytes());
    let term = crate::etcd::restore_log::TERM.to_be_bytes();
    edits.put(schema::META, schema::META_TERM, &term);
    if plan.bump.bump > 0 {
        let marker = crate::etcd::revision::Revision::new(plan.bump.new, 0).encode();
        // As etcdutl's bump: an empty value, which etcd takes for a record of the key "".
        edits.put(schema::KEY, &marker, &[]);
        edits.put(schema::META, schema::META_SCHEDULED_COMPACT, &marker);
    }
    let (mut dropped, mut kept) = (Vec::new(), Vec::new());
    for alarm in &rows.alarms {
        let text = format!("{} of member {}", alarm.kind.name(), alarm.member_id);
        if alarm.kind == AlarmKind::Corrupt && !options.accept_corrupt {
            let message = format!(
                "the snapshot carries a CORRUPT alarm of member {}: the cluster found its members \
                 to hold different data",
                alarm.member_id
            );
            return Err(Error::new(ExitCode::Damage, message)
                .hint("use a snapshot from before the alarm, or one of a member that is known good")
                .hint("or --accept-corrupt, which keeps the alarm in the restored data"));
        }
        let exists = plan.identity.members.iter().any(|member| member.id == alarm.member_id);
        if alarm.kind == AlarmKind::NoSpace && !exists && !options.keep_alarms {
            dropped.push((text, alarm.clone()));
        } else {
            kept.push(text);
        }
    }
    for (_, alarm) in &dropped {
        edits.drop_row(schema::ALARM, &alarm.row_key);
    }
    plan.edits = edits;
    plan.alarms_dropped = dropped.into_iter().map(|(text, _)| text).collect();
    plan.alarms_kept = kept;
    if !plan.alarms_kept.is_empty() {
        let kept = plan.alarms_kept.join(", ");
        plan.warnings.push(format!(
            "alarms stay in the restored data: {kept}; a server refuses \
                                    writes until they are disarmed"
        ));
    }
    Ok(())
}

fn check_space(target: &Target, bytes: u64) -> Result<(), Error> {
    let need = bytes.saturating_add(1 << 20);
    match target.free_bytes() {
        Some(free) if free < need => {
            let message = format!(
                "not enough space for {}: {need} bytes are needed, {free} are free",
                target.path().display()
            );
            Err(Error::new(ExitCode::Failed, message).hint("nothing was changed; free some space"))
        }
        _ => Ok(()),
    }
}

/// Makes the command line that restores one host of several.
fn command_of(options: &Options, host: &Host<'_>, bump: &Bump) -> Vec<String> {
    let mut words = vec!["etcdkit".into(), "snapshot".into(), "restore".into()];
    words.push(options.snapshot.display().to_string());
    let mut flag = |name: &str, value: &str| {
        words.push(format!("--{name}"));
        words.push(value.to_owned());
    };
    flag("data-dir", &options.data_dir.display().to_string());
    if let Some(wal) = &options.wal_dir {
        flag("wal-dir", &wal.display().to_string());
    }
    if let Some(manifest) = &options.manifest {
        flag("manifest", &manifest.display().to_string());
    }
    if options.audit_log != Path::new(audit::DEFAULT_PATH) {
        flag("audit-log", &options.audit_log.display().to_string());
    }
    flag("name", host.name);
    flag("initial-cluster", host.initial_cluster);
    flag("initial-advertise-peer-urls", host.peer_urls);
    flag("initial-cluster-token", host.token);
    // Hosts that are restored one by one are told what all of them at once would decide.
    if bump.bump == 0 {
        words.push("--no-bump".into());
    } else {
        flag("bump-revision", &bump.bump.to_string());
        words.push("--mark-compacted".into());
    }
    let switches = [
        (options.skip_hash_check, "--skip-hash-check"),
        (options.accept_corrupt, "--accept-corrupt"),
        (options.accept_unknown, "--accept-unknown"),
        (options.keep_alarms, "--keep-alarms"),
        (options.force, "--force"),
        (options.dry_run, "--dry-run"),
    ];
    words.extend(switches.iter().filter(|(on, _)| *on).map(|(_, word)| (*word).to_owned()));
    if let Some(sha256) = &options.accept_damaged {
        words.push(format!("--accept-damaged={sha256}"));
    }
    words
}
