//! A member's data directory: what lies in it, and whether its parts agree.
//!
//! | path | what |
//! |---|---|
//! | `member/snap/db` | the database |
//! | `member/wal/*.wal` | the log, or in a directory of its own |
//! | `member/snap/<term>-<index>.snap` | raft snapshots, which say who the members are |
//! | `member/snap/<index>.snap.db` | a whole database that a leader sent |
//!
//! [`DataDir::inspect`] looks at files and reads the snapshot files. [`agree()`] holds database,
//! log and snapshot files against each other, and ends in [`Facts`], from which [`starts_on`] says
//! what each version of etcd does with the directory. Nothing is written.
//!
//! Source: etcd `server/etcdserver/bootstrap.go`, `snap.Snapshotter`, `datadir`; formats and
//! decisions seen on 3.5.35, 3.6.16 and 3.7.3, and on 3.4.45 where it says so.

mod agree;
mod requests;
mod starts;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub use agree::{Facts, Owner, agree, is_foreign, voters_elsewhere};
pub use requests::Requests;
pub use starts::{Start, Starts, starts_on};

use super::log::ReadError;
use crate::bolt::Source;
use crate::format::finding::{Code, Finding, Findings, Place};
use crate::format::snap::{self, Snap, V2Store};
use crate::format::usize_of;
use crate::format::wal::{ConfState, Snapshot};

/// Longest snapshot file that is read, in bytes: more than the members of any cluster take.
pub const SNAP_BYTES_MAX: u64 = 64 << 20;

/// A raft snapshot file.
#[derive(Clone, Debug)]
pub struct SnapFile {
    /// Name in `member/snap`.
    pub name: String,
    /// Index of the last entry that it covers.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// Who votes, and the v2 store or why that cannot be read.
    pub content: Result<(ConfState, Result<V2Store, String>), String>,
}

/// What lies in a data directory.
#[derive(Clone, Debug)]
pub struct DataDir {
    /// The directory as given.
    pub path: PathBuf,
    /// Its folder `member`.
    pub member: PathBuf,
    /// Where the log is.
    pub wal_dir: PathBuf,
    /// The database, where there is one.
    pub database: Option<PathBuf>,
    /// Whether there is any segment of a log.
    pub has_log: bool,
    /// Snapshot files, newest first as a server tries them.
    pub snaps: Vec<SnapFile>,
    /// Indexes of databases that a leader sent, ascending.
    pub snap_databases: Vec<u64>,
    /// Whether a folder `proxy` lies beside `member`.
    pub has_proxy: bool,
    /// What is odd about the files; `place.file` is a path below the directory.
    pub findings: Findings,
}

impl DataDir {
    /// Looks at a data directory, or at its folder `member`.
    ///
    /// # Errors
    ///
    /// A folder or a snapshot file cannot be read from the disk.
    pub fn inspect(path: &Path, wal_dir: Option<&Path>) -> Result<Self, ReadError> {
        let inside = path.join("member");
        let (top, member) =
            if inside.is_dir() { (Some(path), inside) } else { (None, path.to_owned()) };
        let wal_dir = wal_dir.map_or_else(|| member.join("wal"), Path::to_owned);
        let mut dir = Self {
            path: path.to_owned(),
            member,
            wal_dir,
            database: None,
            has_log: false,
            snaps: Vec::new(),
            snap_databases: Vec::new(),
            has_proxy: false,
            findings: Findings::default(),
        };
        dir.look_at_top(top)?;
        dir.look_at_snap()?;
        for name in names(&dir.wal_dir)? {
            dir.has_log |= name.ends_with(".wal");
        }
        Ok(dir)
    }

    fn find(&mut self, code: Code, file: &str, detail: String) {
        let place = Place { file: Some(file.to_owned()), ..Place::default() };
        self.findings.push(Finding::new(code, place, detail));
    }

    fn look_at_top(&mut self, top: Option<&Path>) -> Result<(), ReadError> {
        let mut folders = vec![self.member.clone(), self.member.join("snap"), self.wal_dir.clone()];
        if let Some(top) = top {
            folders.push(top.to_owned());
            for name in names(top)? {
                match name.as_str() {
                    "member" => {}
                    "proxy" => {
                        self.has_proxy = true;
                        let detail = "a server does not start with both `member` and `proxy`";
                        self.find(Code::DirProxy, &name, detail.into());
                    }
                    _ => self.find(Code::DirStray, &name, format!("{name} lies beside `member`")),
                }
            }
        }
        for name in names(&self.member)? {
            if !["snap", "wal"].contains(&name.as_str()) {
                let file = format!("member/{name}");
                self.find(Code::DirStray, &file, format!("{name} lies beside `snap` and `wal`"));
            }
        }
        for folder in folders {
            self.look_at_mode(&folder);
        }
        self.look_at_mode(&self.member.join("snap").join("db"));
        Ok(())
    }

    /// Says when others than the owner may do anything.
    fn look_at_mode(&mut self, path: &Path) {
        let Ok(meta) = fs::metadata(path) else { return };
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let shown = path.strip_prefix(&self.path).unwrap_or(path).display().to_string();
            let shown = if shown.is_empty() { ".".to_owned() } else { shown };
            let want = if meta.is_dir() { "700" } else { "600" };
            let detail = format!("{shown} has mode {mode:o}, and should have {want}");
            self.find(Code::DirMode, &shown, detail);
        }
    }

    fn look_at_snap(&mut self) -> Result<(), ReadError> {
        let folder = self.member.join("snap");
        let mut found = names(&folder)?;
        // As a server tries them: the newest term and index first.
        found.sort_unstable_by(|a, b| b.cmp(a));
        for name in found {
            let file = format!("member/snap/{name}");
            let index = name.strip_suffix(".snap.db").filter(|text| text.len() == 16);
            if name == "db" {
                self.database = Some(folder.join(&name));
            } else if let Some((term, index)) = snap::parse_file_name(&name) {
                let content = read_snap(&folder.join(&name))
                    .map_err(|source| ReadError { path: folder.join(&name), source })?;
                if let Err(error) = &content {
                    let detail = format!("{name}: {error}");
                    self.find(Code::DirSnapBroken, &file, detail);
                }
                self.snaps.push(SnapFile { name, index, term, content });
            } else if let Some(index) = index.and_then(|text| u64::from_str_radix(text, 16).ok()) {
                self.snap_databases.push(index);
                let detail = format!("a database that a leader sent, as of entry {index}");
                self.find(Code::DirLeftover, &file, detail);
            } else if name.starts_with("db.tmp") {
                let detail =
                    format!("{name} is an unfinished copy of the database, and not a backup of it");
                self.find(Code::DirDefragLeftover, &file, detail);
            } else if name.ends_with(".broken") {
                let detail = format!("{name} was set aside by a server that could not read it");
                self.find(Code::DirLeftover, &file, detail);
            } else if name.starts_with("tmp") {
                let detail = format!("{name} is an unfinished file; a server deletes it at start");
                self.find(Code::DirLeftover, &file, detail);
            } else {
                self.find(Code::DirStray, &file, format!("{name} is none of etcd's files"));
            }
        }
        self.snap_databases.sort_unstable();
        Ok(())
    }
}

/// Lists a folder's names; a folder that is not there has none.
fn names(folder: &Path) -> Result<Vec<String>, ReadError> {
    let failed = |source| ReadError { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads who votes from the snapshot file of a record; `None` where there is none to be read.
#[must_use]
pub fn voters_in_snap_file(snap_dir: &Path, record: &Snapshot) -> Option<ConfState> {
    let name = format!("{:016x}-{:016x}.snap", record.term, record.index);
    let (voters, _) = read_snap(&snap_dir.join(name)).ok()?.ok()?;
    Some(voters)
}

type SnapContent = Result<(ConfState, Result<V2Store, String>), String>;

fn read_snap(path: &Path) -> io::Result<SnapContent> {
    let source = match Source::open(path) {
        Ok(source) => source,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Ok(Err(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    if source.len() > SNAP_BYTES_MAX {
        return Ok(Err(format!("{} bytes are more than is read of such a file", source.len())));
    }
    let bytes = source.read_up_to(0, usize_of(source.len()))?;
    Ok(match Snap::decode(&bytes) {
        Ok(snap) => Ok((snap.conf_state, V2Store::decode(snap.data))),
        Err(error) => Err(error.to_string()),
    })
}
