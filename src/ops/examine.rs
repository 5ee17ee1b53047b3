//! Looks at a snapshot file once and says everything about it: what it is, whether its trailer
//! fits, whether its pages and rows are whole, and what they hold.
//!
//! The hash of the file and the walk over its pages run at the same time. Nothing is written, and
//! a file that a server has open is not read but refused, with the server's pid.
//!
//! The trailer: etcd appends the SHA-256 of the database, 32 bytes. A database is a multiple of
//! 512 bytes, so a file has one if its size is 32 more than that (etcdutl's rule, 3.4 to 3.7).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::digest::{self, CopyTo, Digests, TRAILER_BYTES, digest};
use super::disk::OutFile;
use super::{Error, Progress, holder, tail};
use crate::bolt::walk::{Walk, walk};
use crate::bolt::{self, At, File, Source, Visit};
use crate::etcd::survey::{Report as Rows, Survey};
use crate::format::finding::{Code, Finding, Findings, Place};
use crate::format::kind::{self, TextMarks};
use crate::format::{hex, u64_of};

const PIECE_BYTES: usize = 1 << 20;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The trailer and the meta pages.
    Quick,
    /// Every page and every row besides.
    Full,
}

/// What the trailer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seal {
    /// It fits the bytes before it.
    Good,
    /// There is none.
    Missing,
    /// It does not fit: the hash that stands there and the hash of the bytes, in hex.
    Broken {
        /// What the trailer says.
        stored: String,
        /// What the bytes give.
        computed: String,
    },
}

/// Everything that is known about a file.
#[derive(Debug)]
pub struct Examined {
    /// The path as given.
    pub path: PathBuf,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// SHA-256 of the whole file in hex, as `sha256sum` prints it.
    pub sha256: String,
    /// The trailer.
    pub seal: Seal,
    /// How much was looked at.
    pub level: Level,
    /// The open file, where it is a database at all.
    pub file: Option<File>,
    /// Pages, where they were walked.
    pub walk: Option<Walk>,
    /// Rows, where they were walked.
    pub rows: Option<Rows>,
    /// The command that unwraps the file, where it is compressed, encrypted or encoded.
    pub unwrap: Option<String>,
    /// The data directory whose database the file is, where a log lies in that.
    pub data_dir: Option<PathBuf>,
    /// Findings about the file itself and its trailer.
    pub findings: Findings,
    stamp: Stamp,
}

/// What changes when somebody writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Self {
        let modified = (meta.mtime(), meta.mtime_nsec());
        Self { size: meta.len(), modified, inode: meta.ino() }
    }
}

impl Examined {
    /// Tells whether any part of the file is damaged; a CORRUPT alarm in it is not damage of it.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.findings.has_errors() || self.pages_damaged() || self.records_damaged()
    }

    /// Tells whether the page walk found damage.
    #[must_use]
    pub fn pages_damaged(&self) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.findings.has_errors())
    }

    /// Tells whether all rows could be read; damage to the freelist does not hide any.
    #[must_use]
    pub fn tree_is_whole(&self) -> bool {
        self.walk.as_ref().is_some_and(Walk::tree_is_whole)
    }

    /// Tells whether rows are damaged.
    #[must_use]
    pub fn records_damaged(&self) -> bool {
        let Some(rows) = &self.rows else { return false };
        rows.findings.errors().any(|code| code != Code::AlarmCorrupt)
    }

    /// Tells whether the file holds something that this version does not know.
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.findings.has_unknown())
    }

    /// Returns every finding: file, pages, rows.
    #[must_use]
    pub fn all_findings(&self) -> Findings {
        let mut all = self.findings.clone();
        if let Some(walk) = &self.walk {
            all.append(walk.findings.clone());
        }
        if let Some(rows) = &self.rows {
            all.append(rows.findings.clone());
        }
        all
    }

    /// Makes sure that nobody wrote to the file since it was examined.
    ///
    /// # Errors
    /// Somebody did.
    pub fn still_the_same(&self) -> Result<(), Error> {
        let open = self.file.as_ref().and_then(|file| file.source().file());
        let now = open.and_then(|file| file.metadata().ok()).map(|meta| Stamp::of(&meta));
        if now.is_some_and(|now| now != self.stamp) {
            return Err(self.changed());
        }
        Ok(())
    }

    /// Makes the error of a file that somebody wrote to meanwhile.
    #[must_use]
    pub fn changed(&self) -> Error {
        changed(&self.path)
    }
}

/// Makes the error of a file that somebody wrote to meanwhile.
fn changed(path: &Path) -> Error {
    let message = format!("{} changed while it was read", path.display());
    let finding = Finding::new(Code::FileChanged, Place::default(), message.clone());
    let mut error = Error::new(super::ExitCode::Damage, message)
        .hint("copy the file to a place that nobody writes to, and run this again");
    error.findings.push(finding);
    error
}

/// Examines a file.
///
/// # Errors
/// The file cannot be opened or read, somebody writes to it, or the operation was told to stop.
/// Damage is no error: see [`Examined::findings`].
pub fn examine(path: &Path, level: Level, progress: &dyn Progress) -> Result<Examined, Error> {
    examine_and_copy(path, level, None, progress)
}

/// Examines a file, and writes the database in it, without what follows, to a new file meanwhile.
///
/// The copy holds the bytes that were summed. It is whole only if the file is a database.
///
/// # Errors
/// As for [`examine`], and when the copy cannot be written.
pub fn examine_and_copy(
    path: &Path,
    level: Level,
    copy: Option<&OutFile>,
    progress: &dyn Progress,
) -> Result<Examined, Error> {
    let io = |error: io::Error| Error::io(&error, "read", path);
    if path.is_dir() {
        return Err(directory(path));
    }
    let source = Source::open(path).map_err(io)?;
    let Some(open) = source.file() else { return Err(Error::interrupted()) };
    holder::share(open, path)?;
    let stamp = Stamp::of(&open.metadata().map_err(io)?);
    let size_bytes = source.len();
    let head = source.read_up_to(0, 512).map_err(io)?;
    let handle = open.try_clone().and_then(Source::from_file).map_err(io)?;

    let mut examined = Examined {
        path: path.to_owned(),
        size_bytes,
        sha256: String::new(),
        seal: Seal::Missing,
        level,
        file: None,
        walk: None,
        rows: None,
        unwrap: None,
        data_dir: data_dir_with_log(path),
        findings: Findings::default(),
        stamp,
    };
    match File::from_source(source) {
        Ok(file) => examined.file = Some(file),
        Err(bolt::Error::Io(error)) => return Err(io(error)),
        Err(error) => not_a_database(&mut examined, &handle, &head, &error).map_err(io)?,
    }
    let copy = copy.zip(examined.file.as_ref());
    let mut copy = copy.map(|(out, file)| CopyTo { out, bytes: file.meta().size_bytes() });
    if let (Some(wanted), Some(open)) = (copy, handle.file())
        && wanted.bytes <= size_bytes
        && wanted.out.share_blocks(open).map_err(io)?
    {
        // Both files have the same blocks now, until one of them is written.
        let cut = wanted.out.set_len(wanted.bytes);
        cut.map_err(|error| Error::io(&error, "copy", path))?;
        copy = None;
    }
    progress.step("verify", size_bytes);
    let hashed = match (&examined.file, level) {
        (Some(file), Level::Full) => {
            let (hashed, walked) = std::thread::scope(|scope| {
                let hashing = std::thread::Builder::new()
                    .spawn_scoped(scope, || digest(&handle, copy, progress, false));
                let walked = walk_rows(file, progress);
                let hashed = match hashing {
                    // A panic in there is a bug of ours and goes on as one.
                    Ok(hashing) => {
                        hashing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    }
                    // No second thread to be had: one after the other.
                    Err(_) => digest(&handle, copy, progress, false),
                };
                (hashed, walked)
            });
            let (walked, rows) = walked;
            if walked.stopped {
                return Err(Error::interrupted());
            }
            examined.walk = Some(walked);
            examined.rows = Some(rows);
            hashed
        }
        _ => digest(&handle, copy, progress, true),
    };
    let hashed = hashed.map_err(|error| match error {
        digest::Error::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => changed(path),
        digest::Error::Read(error) => io(error),
        digest::Error::Write(error) => Error::io(&error, "copy", path),
        digest::Error::Stopped => Error::interrupted(),
    })?;
    examined.sha256 = hex(&hashed.file);
    seal(&mut examined, &hashed);
    if let Some(file) = &examined.file {
        if level == Level::Quick {
            for finding in file.check_metas() {
                examined.findings.push(finding);
            }
        }
        shape(&mut examined, &handle).map_err(io)?;
    }
    examined.still_the_same()?;
    Ok(examined)
}

/// Examines a file that was written just now, summed and found to fit its trailer on the way: only
/// its pages and rows are read.
///
/// # Errors
/// The file cannot be read, or the operation was told to stop.
#[cfg(feature = "live")]
pub(super) fn examine_written(
    path: &Path,
    written: &fs::File,
    sha256: &str,
    progress: &dyn Progress,
) -> Result<Examined, Error> {
    let io = |error: io::Error| Error::io(&error, "read", path);
    let open = || written.try_clone().and_then(Source::from_file).map_err(io);
    let handle = open()?;
    let mut examined = Examined {
        path: path.to_owned(),
        size_bytes: handle.len(),
        sha256: sha256.to_owned(),
        seal: Seal::Good,
        level: Level::Full,
        file: None,
        walk: None,
        rows: None,
        unwrap: None,
        data_dir: None,
        findings: Findings::default(),
        stamp: Stamp::of(&written.metadata().map_err(io)?),
    };
    match File::from_source(open()?) {
        Ok(file) => {
            progress.step("verify", examined.size_bytes);
            let (walked, rows) = walk_rows(&file, progress);
            if walked.stopped {
                return Err(Error::interrupted());
            }
            (examined.walk, examined.rows, examined.file) = (Some(walked), Some(rows), Some(file));
            shape(&mut examined, &handle).map_err(io)?;
        }
        Err(bolt::Error::Io(error)) => return Err(io(error)),
        Err(error) => {
            let head = handle.read_up_to(0, 512).map_err(io)?;
            not_a_database(&mut examined, &handle, &head, &error).map_err(io)?;
        }
    }
    Ok(examined)
}

/// Makes the error of a directory where a file is wanted.
fn directory(path: &Path) -> Error {
    let message = format!("{} is a directory, and a snapshot file is wanted", path.display());
    let inside = ["member", "snap", "wal"].iter().any(|name| path.join(name).is_dir());
    let error = Error::usage(message);
    match tail::data_dir(path) {
        Ok(data_dir) if inside => error.hint(save_command(&data_dir)),
        _ => match tail::around(path) {
            Some(data_dir) => error.hint(save_command(&data_dir)),
            None => error,
        },
    }
}

/// Makes the command that saves what a data directory holds, its log included.
#[must_use]
pub fn save_command(data_dir: &Path) -> String {
    let data_dir = super::shell_word(&data_dir.display().to_string());
    format!("etcdkit snapshot save FILE --from-data-dir {data_dir}")
}

/// Finds the data directory whose database a file is, where a log lies in that.
fn data_dir_with_log(path: &Path) -> Option<PathBuf> {
    if !fs::canonicalize(path).is_ok_and(|path| path.ends_with("member/snap/db")) {
        return None;
    }
    let data_dir = tail::around(path)?;
    let mut log = fs::read_dir(data_dir.join("member").join("wal")).ok()?.flatten();
    log.any(|entry| entry.file_name().as_encoded_bytes().ends_with(b".wal")).then_some(data_dir)
}

/// Walks and surveys all pages and rows, showing progress.
pub(super) fn walk_rows(file: &File, progress: &dyn Progress) -> (Walk, Rows) {
    struct Listen<'a> {
        survey: Survey,
        progress: &'a dyn Progress,
        page_bytes: u64,
    }
    impl Visit for Listen<'_> {
        fn bucket(&mut self, at: &At<'_>, sequence: u64) {
            self.survey.bucket(at, sequence);
        }
        fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
            self.survey.entry(at, key, value);
        }
        fn page(&mut self, entered: u64) -> bool {
            if entered.is_multiple_of(256) {
                self.progress.advance(entered.saturating_mul(self.page_bytes));
            }
            !self.progress.stopped()
        }
    }
    let page_bytes = u64::from(file.page_size());
    let mut listen = Listen { survey: Survey::new(), progress, page_bytes };
    let walked = walk(file, &mut listen);
    (walked, listen.survey.finish())
}

fn seal(examined: &mut Examined, hashed: &Digests) {
    if examined.size_bytes % 512 != TRAILER_BYTES || examined.file.is_none() {
        return;
    }
    if hashed.body == hashed.tail {
        examined.seal = Seal::Good;
        return;
    }
    let (stored, computed) = (hex(&hashed.tail), hex(&hashed.body));
    let place = Place {
        offset: Some(examined.size_bytes.saturating_sub(TRAILER_BYTES)),
        ..Place::default()
    };
    let detail = format!("the trailer says sha256 {stored}, the bytes give {computed}");
    examined.findings.push(Finding::new(Code::SealBroken, place, detail));
    examined.seal = Seal::Broken { stored, computed };
}

/// Says what a file is that is no bbolt database.
fn not_a_database(
    examined: &mut Examined,
    source: &Source,
    head: &[u8],
    error: &bolt::Error,
) -> io::Result<()> {
    let name = examined.path.display().to_string();
    let (code, detail) = if examined.size_bytes == 0 {
        (Code::FileEmpty, "the file is empty: nothing was ever saved into it".into())
    } else if let Some(wrapping) = kind::wrapping(head) {
        // A name of its own, beside the file: an output that is there already would be lost.
        let unwrapped = super::shell_word(&format!("{name}.unwrapped"));
        let command = wrapping.unwrap.replace("snapshot.db", &unwrapped);
        let dashed = if name.starts_with('-') { format!("./{name}") } else { name.clone() };
        let command = command.replace("FILE", &super::shell_word(&dashed));
        let detail =
            format!("this is a {} file, not a snapshot; unwrap it: {command}", wrapping.name);
        examined.unwrap = Some(command);
        (Code::FileWrapped, detail)
    } else if let Some(verdict) = text_marks(source)?.verdict() {
        (Code::FileMangled, format!("{verdict}; copy the file again in binary mode"))
    } else if matches!(error, bolt::Error::NoMeta(a, b) if a.has_magic() || b.has_magic()) {
        (Code::MetaNone, error.to_string())
    } else if examined.size_bytes < 8192 {
        (
            Code::FileForeign,
            format!("{} bytes are too few for a database: {error}", examined.size_bytes),
        )
    } else {
        (Code::FileForeign, error.to_string())
    };
    examined.findings.push(Finding::new(code, Place::default(), detail));
    Ok(())
}

/// Says what is odd about a database's length, metas and name.
fn shape(examined: &mut Examined, source: &Source) -> io::Result<()> {
    let Some(file) = &examined.file else { return Ok(()) };
    let (size, database) = (examined.size_bytes, file.meta().size_bytes());
    let page_bytes = u64::from(file.page_size());
    let differ = match file.metas() {
        [Ok(a), Ok(b)] => a.root != b.root || a.high_water_mark != b.high_water_mark,
        _ => false,
    };
    let mut add = |code, offset: Option<u64>, detail: String| {
        let place = Place { offset, ..Place::default() };
        examined.findings.push(Finding::new(code, place, detail));
    };
    let extra = size.saturating_sub(database);
    let tail = source.read_up_to(size.saturating_sub(2), 2)?;
    let broken = matches!(examined.seal, Seal::Broken { .. });
    let mut live = false;
    if (extra == 33 && tail.ends_with(b"\n")) || (extra == 34 && tail == b"\r\n") {
        let at = Some(database.saturating_add(32));
        add(Code::FileMangled, at, "a line end was added behind the trailer; cut it off".into());
    } else if size > database && extra != TRAILER_BYTES {
        live = extra.is_multiple_of(page_bytes) && examined.seal == Seal::Missing;
        if !live {
            let detail = format!("{extra} bytes follow the database's {database}");
            add(Code::FileExtra, Some(database), detail);
        }
    }
    if (broken || size < database || size % 512 > TRAILER_BYTES)
        && let Some(verdict) = text_marks(source)?.verdict()
    {
        add(Code::FileMangled, None, format!("{verdict}; copy the file again in binary mode"));
    }
    if examined.seal == Seal::Missing {
        let torn = examined.walk.as_ref().is_some_and(|walk| walk.findings.has_errors());
        if let Some(data_dir) = &examined.data_dir {
            let detail = format!(
                "this is the database of the data directory {}, and what its log holds beyond it \
                 is not in here: {}",
                data_dir.display(),
                save_command(data_dir)
            );
            add(Code::FileLiveCopy, None, detail);
        } else if live || differ {
            let hint = if torn {
                "; it was copied while a server wrote to it"
            } else {
                "; what was written after its last commit is in the WAL beside it, not in here"
            };
            let detail = format!("this looks like member/snap/db, not like a saved snapshot{hint}");
            add(Code::FileLiveCopy, None, detail);
        }
        let detail = if size < database {
            "the end of the file is missing, and the sha256 trailer with it"
        } else {
            "no sha256 trailer: the file was not made by snapshot save, or lost its last 32 bytes"
        };
        add(Code::SealMissing, Some(size), detail.into());
    }
    let name = examined.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if [".part", ".partial", ".tmp"].iter().any(|end| name.ends_with(end)) {
        let detail = if examined.seal == Seal::Good {
            "the name is that of an unfinished download, but the file is whole"
        } else {
            "the name is that of an unfinished download; save the snapshot again"
        };
        add(Code::FilePartial, None, detail.into());
    }
    Ok(())
}

fn text_marks(source: &Source) -> io::Result<TextMarks> {
    let mut marks = TextMarks::default();
    let mut at = 0;
    while at < source.len() {
        let piece = source.read_up_to(at, PIECE_BYTES)?;
        marks.feed(&piece);
        at += u64_of(piece.len());
    }
    Ok(marks)
}
