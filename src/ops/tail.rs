//! A dead member's data directory: its database, its log, and what the log adds to the database.
//!
//! Nothing in the directory is changed or locked for writing. A directory that a server has open is
//! refused at once, with the server's pid.
//!
//! How much of the log counts: all of it where the member is the sole voter, since what it
//! acknowledged may be there only; else what is known to be committed, unless more is asked for.

use std::fs;
use std::path::{Path, PathBuf};

use super::examine::Level;
use super::{Error, ExitCode, Progress, holder, shell_word, stage};
use crate::bolt::File;
use crate::etcd::apply::{self, Rules, Unreadable};
use crate::etcd::data_dir;
use crate::etcd::log::{Log, Reach, Tail as LogTail};
use crate::etcd::members::{Member, MemberId};
use crate::etcd::replay::{self, Replayed};
use crate::etcd::request::Fault;
use crate::etcd::schema;
use crate::format::finding::Code;
use crate::format::wal::{ConfState, Snapshot};

/// A data directory that no server runs on.
#[derive(Debug)]
pub struct Dead {
    /// The data directory, absolute.
    pub data_dir: PathBuf,
    /// The database: `member/snap/db`, or what a leader sent to take its place.
    pub database: PathBuf,
    /// The log.
    pub log: Log,
}

/// What a log adds to a database.
#[derive(Debug)]
pub struct Tail {
    /// The rows that change, and what was found on the way.
    pub replayed: Replayed,
    /// How far the log counts.
    pub reach: Reach,
    /// Entries of the log that do not count.
    pub left_out: u64,
    /// Entries that are not known to be committed, and count because that was asked for.
    pub uncommitted: u64,
}

/// Finds the data directory that a path names: itself, or the one whose folder `member` it is.
///
/// A folder without any of that is returned as it is.
///
/// # Errors
/// It is not there, may not be looked into, or is something inside a data directory, which is
/// named then.
pub fn data_dir(path: &Path) -> Result<PathBuf, Error> {
    const WANTED: &str = "give the folder that etcd has as --data-dir";
    let io = |error: std::io::Error| Error::io(&error, "read", path);
    let meta = fs::metadata(path).map_err(|error| io(error).hint(WANTED))?;
    if meta.is_dir() {
        match fs::metadata(path.join("member")) {
            Ok(member) if member.is_dir() => return Ok(path.to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(io(error));
            }
            _ => {}
        }
    }
    let Some(data_dir) = around(path) else {
        if meta.is_dir() {
            return Ok(path.to_owned());
        }
        let message = format!("{} is a file, and a data directory is wanted", path.display());
        return Err(Error::usage(message).hint(WANTED));
    };
    if meta.is_dir() && fs::canonicalize(path).is_ok_and(|path| path.ends_with("member")) {
        return Ok(data_dir);
    }
    let message = format!("{} lies inside a data directory and is none", path.display());
    Err(Error::usage(message)
        .hint(format!("the data directory is {}", shell_word(&data_dir.display().to_string()))))
}

/// Finds the data directory that a file or folder lies in, by the names of etcd's folders.
#[must_use]
pub fn around(path: &Path) -> Option<PathBuf> {
    let full = fs::canonicalize(path).ok()?;
    let depth = full.ancestors().take(4).position(|folder| folder.ends_with("member"))?;
    let is_member = |member: &Path| member.join("snap").is_dir() || member.join("wal").is_dir();
    let (member, data_dir) = (full.ancestors().nth(depth)?, full.ancestors().nth(depth + 1)?);
    if !is_member(member) {
        return None;
    }
    // As it was given where that is the same, since that is easier to recognize.
    let given = path.ancestors().nth(depth + 1).filter(|given| !given.as_os_str().is_empty());
    let same = |given: &&Path| fs::canonicalize(given).is_ok_and(|given| given == data_dir);
    Some(given.filter(same).unwrap_or(data_dir).to_owned())
}

/// Returns the way out where a log cannot be used: what is lost, and the command.
#[must_use]
pub fn without_log(data_dir: &Path, database: &Path) -> [String; 2] {
    let word = |path: &Path| shell_word(&path.display().to_string());
    let mut restored = data_dir.as_os_str().to_owned();
    restored.push(".restored");
    [
        "to do without the log, which loses what the database had not taken in from it, keep a \
         copy of the directory and restore its database"
            .into(),
        format!(
            "etcdkit snapshot restore {} --skip-hash-check --old-data-dir {} --data-dir {}",
            word(database),
            word(data_dir),
            word(Path::new(&restored))
        ),
    ]
}

impl Dead {
    /// Opens a data directory and reads its log.
    ///
    /// # Errors
    /// It is no data directory, is in use, or its log is damaged or not there.
    pub fn open(
        data_dir: &Path,
        wal_dir: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let data_dir = stage::absolute(&self::data_dir(data_dir)?)?;
        let snap = data_dir.join("member").join("snap");
        let wal = match wal_dir {
            Some(wal) => stage::absolute(wal)?,
            None => data_dir.join("member").join("wal"),
        };
        let database = snap.join("db");
        if let Err(error) = fs::metadata(&database) {
            return Err(no_database(&error, &database, &data_dir, wal_dir, progress));
        }
        let way_out =
            |error: Error| without_log(&data_dir, &database).into_iter().fold(error, Error::hint);
        if let Some(who) = holder::of_member(&data_dir.join("member"), &wal) {
            let message = format!("{} is in use by {who}", data_dir.display());
            return Err(Error::new(ExitCode::InUse, message)
                .hint("etcdkit snapshot save FILE, which asks the running member for a snapshot")
                .hint("or stop that process first"));
        }
        progress.step("log", 0);
        let mut read = 0_u64;
        let log = Log::open_watched(&wal, &mut |bytes| {
            read = read.saturating_add(bytes);
            progress.advance(read);
            !progress.stopped()
        });
        let log = log.map_err(|error| {
            if progress.stopped() {
                return Error::interrupted();
            }
            let failed = Error::io(&error.source, "read", &error.path);
            if error.source.kind() != std::io::ErrorKind::NotFound {
                return failed;
            }
            way_out(failed.hint("give --wal-dir where etcd had one"))
        })?;
        if log.is_empty() {
            let message = format!("there is no log in {}", wal.display());
            let error = Error::new(ExitCode::Damage, message);
            return Err(way_out(error.hint("give --wal-dir where etcd had one")));
        }
        if let Some(finding) = log.obstacle() {
            let file = finding.place.file.as_deref().unwrap_or_default();
            let message = format!("{}: {}", wal.join(file).display(), finding.detail);
            let mut error = Error::new(ExitCode::Damage, message).hint(
                "save from another member, where there is one; of several dead ones the newest \
                 revision counts most",
            );
            error.findings.push(finding.clone());
            return Err(way_out(error));
        }
        let database = pick_database(&snap, &database, &log).map_err(way_out)?;
        Ok(Self { data_dir, database, log })
    }

    /// Applies to the database what its log holds beyond it.
    ///
    /// `uncommitted`: entries count that this member was not told to be committed. Some of them may
    /// have been acknowledged by a majority that it was part of; a cluster that starts again from
    /// the most advanced log of a majority commits them all.
    ///
    /// # Errors
    /// Something in the log is missing, damaged or not understood, or it is another member's.
    pub fn replay(
        &self,
        file: &File,
        uncommitted: bool,
        progress: &dyn Progress,
    ) -> Result<Tail, Error> {
        progress.step("replay", 0);
        self.check_member(file)?;
        let fallback = self.conf_state(file)?;
        let reach = self.log.reach(fallback.as_ref());
        let last_index = self.log.last_index();
        let until = if uncommitted { reach.index.max(last_index) } else { reach.index };
        let after = replay::consistent_index(file).map_err(|error| self.unreadable(&error))?;
        self.check_end(after)?;
        let replayed = self.apply(file, after, until, progress);
        let replayed = replayed.map_err(|error| self.failed(&error))?;
        let end = replayed.index.max(until);
        let uncommitted = until.saturating_sub(reach.index.max(replayed.from_index));
        Ok(Tail { left_out: last_index.saturating_sub(end), replayed, reach, uncommitted })
    }

    /// Replays what counts, only to see whether it can be; returns what stands in the way.
    ///
    /// # Errors
    /// The database cannot be read, or it was told to stop.
    pub(super) fn try_replay(
        &self,
        file: &File,
        progress: &dyn Progress,
    ) -> Result<Option<replay::Error>, Error> {
        progress.step("replay", 0);
        let until = self.log.reach(self.conf_state(file)?.as_ref()).index;
        let after = replay::consistent_index(file).map_err(|error| self.unreadable(&error))?;
        match self.apply(file, after, until, progress) {
            Ok(_) => Ok(None),
            Err(replay::Error::Stopped) => Err(Error::interrupted()),
            Err(error) => Ok(Some(error)),
        }
    }

    /// Applies the entries after one up to another.
    fn apply(
        &self,
        file: &File,
        after: u64,
        until: u64,
        progress: &dyn Progress,
    ) -> Result<Replayed, replay::Error> {
        let entries = |error| Unreadable(format!("the log cannot be read: {error}"));
        let mut feed = |visit: &mut replay::Visit<'_>| {
            let mut log = self.log.entries(after).map_err(entries)?;
            while let Some(entry) = log.read_next().map_err(entries)? {
                if entry.index > until {
                    break;
                }
                visit(&entry)?;
            }
            Ok(())
        };
        replay::replay(file, &Rules::default(), &mut feed, &|| progress.stopped())
    }

    /// Makes sure that nothing which the database has is lost with the end of the log.
    fn check_end(&self, applied: u64) -> Result<(), Error> {
        let findings = self.log.findings.kept().iter();
        let mut ends = findings.filter(|f| [Code::WalTorn, Code::WalAfterEnd].contains(&f.code));
        let Some(end) = ends.next() else { return Ok(()) };
        let file = end.place.file.as_deref().unwrap_or_default();
        let file = self.log.dir.join(file).display().to_string();
        if applied <= self.log.last_index() {
            return Ok(());
        }
        let message = format!(
            "{file}: {}; the database stands at index {applied}, so the log went on once, and what \
             was acknowledged after that may be lost with it",
            end.detail
        );
        let mut error = Error::new(ExitCode::Damage, message);
        error.findings.push(end.clone());
        Err(without_log(&self.data_dir, &self.database).into_iter().fold(error, Error::hint))
    }

    /// Says what the log lost at its end, where its last write was cut short.
    #[must_use]
    pub fn torn(&self) -> Option<String> {
        let LogTail::Torn { dropped_bytes } = self.log.tail else { return None };
        Some(format!(
            "the log ends with a write that was cut short: {dropped_bytes} bytes after entry {} \
             do not count, as a server drops them too; after a power loss nobody was told of them",
            self.log.last_index()
        ))
    }

    /// Makes sure that the log is that of a member of this database.
    fn check_member(&self, file: &File) -> Result<(), Error> {
        let Some(metadata) = self.log.metadata else { return Ok(()) };
        let id = MemberId(metadata.node_id);
        let members = members(file).map_err(|error| self.unreadable(&error))?;
        let has = |bucket: &[u8], key: &[u8]| {
            let row = row(file, bucket, key).map_err(|error| self.unreadable(&error))?;
            Ok::<_, Error>(row.is_some())
        };
        let applied = replay::consistent_index(file).map_err(|error| self.unreadable(&error))?;
        let owner = data_dir::Owner {
            members: &members,
            is_removed: has(schema::MEMBERS_REMOVED, id.to_string().as_bytes())?,
            has_term: has(schema::META, schema::META_TERM)?,
            consistent_index: applied,
        };
        if !data_dir::is_foreign(&self.log, &owner) {
            return Ok(());
        }
        let dir = self.log.dir.display();
        let message =
            format!("the log in {dir} is that of member {id}, which the database does not know");
        Err(Error::refused(message).hint("give the --wal-dir that belongs to the data directory"))
    }

    /// Finds who votes, for logs whose snapshot records do not say.
    fn conf_state(&self, file: &File) -> Result<Option<ConfState>, Error> {
        let members = members(file).map_err(|error| self.unreadable(&error))?;
        let snap = self.data_dir.join("member").join("snap");
        let in_file = |record: &Snapshot| data_dir::voters_in_snap_file(&snap, record);
        Ok(data_dir::voters_elsewhere(&self.log, &in_file, &members))
    }

    fn unreadable(&self, error: &Unreadable) -> Error {
        let path = self.database.display();
        Error::new(ExitCode::Damage, format!("{path}: {error}"))
            .hint(format!("etcdkit snapshot verify {}", shell_word(&path.to_string())))
    }

    fn failed(&self, error: &replay::Error) -> Error {
        let data_dir = self.data_dir.display();
        let code = exit_code(error);
        if code == ExitCode::Interrupted {
            return Error::interrupted();
        }
        let copy = shell_word(&format!("{data_dir}.copy"));
        let data_dir = shell_word(&data_dir.to_string());
        Error::new(code, format!("{data_dir}: {error}")).hint(format!(
            "start etcd of its own version on a copy (cp -a {data_dir} {copy}) and save from that"
        ))
    }
}

/// Tells what is not understood from what is wrong.
pub(super) fn exit_code(error: &replay::Error) -> ExitCode {
    match error {
        replay::Error::Stopped => ExitCode::Interrupted,
        replay::Error::Apply(apply::Error::Request { fault: Fault::Malformed { .. }, .. }) => {
            ExitCode::Damage
        }
        replay::Error::Apply(apply::Error::Request { .. } | apply::Error::Entry { .. })
        | replay::Error::Passwords(_) => ExitCode::Refused,
        _ => ExitCode::Damage,
    }
}

/// Makes the error of a directory without a database; a log that is whole makes one anew.
fn no_database(
    error: &std::io::Error,
    database: &Path,
    data_dir: &Path,
    wal_dir: Option<&Path>,
    progress: &dyn Progress,
) -> Error {
    let failed = Error::io(error, "read", database);
    if error.kind() != std::io::ErrorKind::NotFound {
        return failed;
    }
    match super::verify_dir::verify(data_dir, wal_dir, Level::Quick, progress) {
        Ok(verified) => verified.next().into_iter().fold(failed, Error::hint),
        Err(error) if error.code != ExitCode::NotFound => error,
        Err(_) => failed.hint("give the folder that etcd has as --data-dir"),
    }
}

/// Returns the database that a server would open: a leader's, where the log says that it was
/// received and the old one lies before it.
pub(super) fn pick_database(snap: &Path, database: &Path, log: &Log) -> Result<PathBuf, Error> {
    let Some(snapshot) = log.newest_snapshot().filter(|snapshot| snapshot.index > 0) else {
        return Ok(database.to_owned());
    };
    // What cannot be opened is named when it is examined.
    let Ok(file) = File::open(database) else { return Ok(database.to_owned()) };
    let Ok(index) = replay::consistent_index(&file) else { return Ok(database.to_owned()) };
    if index >= snapshot.index {
        return Ok(database.to_owned());
    }
    let received = snap.join(format!("{:016x}.snap.db", snapshot.index));
    if received.is_file() {
        return Ok(received);
    }
    let message = format!(
        "{} stands at index {index} and the log begins anew at {}; what is between is missing",
        database.display(),
        snapshot.index
    );
    Err(Error::new(ExitCode::Damage, message)
        .hint(format!("the leader's database {} is not there", received.display()))
        .hint("save from another member, where there is one"))
}

fn row(file: &File, bucket: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, Unreadable> {
    let failed = |error: crate::bolt::Error| Unreadable(error.to_string());
    let bucket = file.bucket(&[bucket]).map_err(failed)?;
    bucket.map_or(Ok(None), |bucket| bucket.get(key)).map_err(failed)
}

fn members(file: &File) -> Result<Vec<Member>, Unreadable> {
    let failed = |error: crate::bolt::Error| Unreadable(error.to_string());
    let mut members = Vec::new();
    let Some(bucket) = file.bucket(&[schema::MEMBERS]).map_err(failed)? else {
        return Ok(members);
    };
    let mut cursor = bucket.cursor();
    while let Some(row) = cursor.next_row().map_err(failed)? {
        members.push(Member::decode(row.value).map_err(Unreadable)?.member);
    }
    Ok(members)
}
