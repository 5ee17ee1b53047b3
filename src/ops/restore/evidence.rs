//! What is known of revisions that the dead cluster served.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::bump::Evidence;
use super::{Options, old_data};
use crate::format::sidecar::Sidecar;
use crate::ops::examine::Examined;
use crate::ops::{Error, Progress};

/// Largest sidecar that is read, in bytes.
const SIDECAR_BYTES_MAX: u64 = 1 << 20;

/// Collects evidence from the flags, the note beside the snapshot, a dead member's data directory
/// and running members.
///
/// # Errors
/// A flag's revision is impossible, a data directory is in use or none, or endpoints were given
/// that this build cannot ask. A source that gives nothing is no error: it is listed without a
/// revision.
pub(super) fn collect(
    options: &Options,
    examined: &Examined,
    warnings: &mut Vec<String>,
    progress: &dyn Progress,
) -> Result<Vec<Evidence>, Error> {
    let mut all = Vec::new();
    if let Some(revision) = options.newest_revision {
        if revision < 1 {
            return Err(Error::usage("--newest-revision must be 1 or more"));
        }
        let source = "--newest-revision".into();
        all.push(Evidence { source, revision: Some(revision), note: None });
    }
    all.push(beside(&options.snapshot, examined, warnings));
    for dir in &options.old_data_dirs {
        all.push(old_data::evidence(dir, progress, warnings)?);
    }
    #[cfg(feature = "live")]
    all.extend(live(options.running.as_ref(), options.whole_cluster, warnings)?);
    Ok(all)
}

fn sidecar_path(snapshot: &Path) -> PathBuf {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Why there is no note to use.
struct NoNote {
    why: String,
    is_there: bool,
}

fn read_note(path: &Path) -> Result<Sidecar, NoNote> {
    let regular = std::fs::metadata(path).map(|meta| meta.is_file());
    if !matches!(regular, Ok(true)) {
        return Err(NoNote { why: "no such note".into(), is_there: regular.is_ok() });
    }
    let unusable = |why: String| NoNote { why, is_there: true };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(SIDECAR_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| unusable(error.to_string()))?;
    Sidecar::decode(&bytes).map_err(unusable)
}

/// Says what the note beside a snapshot warns of, where it is about this very file.
pub(crate) fn warning_of_note(snapshot: &Path, sha256: &str) -> Option<String> {
    let path = sidecar_path(snapshot);
    let note = read_note(&path).ok()?;
    let is_short = note.quorum == Some(false) && note.sha256.eq_ignore_ascii_case(sha256);
    is_short.then(|| {
        format!(
            "{}: NO MAJORITY OF THE CLUSTER ANSWERED when this was saved: writes that were \
             acknowledged may be missing from it",
            path.display()
        )
    })
}

fn beside(snapshot: &Path, examined: &Examined, warnings: &mut Vec<String>) -> Evidence {
    let path = sidecar_path(snapshot);
    let source = path.display().to_string();
    let sidecar = match read_note(&path) {
        Ok(sidecar) => sidecar,
        Err(NoNote { why, is_there }) => {
            if is_there {
                warnings.push(format!("{}: {why}; not used", path.display()));
            }
            return Evidence { source, revision: None, note: Some(why) };
        }
    };
    warnings.extend(warning_of_note(snapshot, &examined.sha256));
    // A note for another file still tells what the cluster had reached, and higher is safer.
    let note = (!sidecar.sha256.eq_ignore_ascii_case(&examined.sha256)).then(|| {
        let note = "the note is about a file with another sha256";
        warnings.push(format!("{}: {note}; its revision is used all the same", path.display()));
        note.to_owned()
    });
    let revision = i64::try_from(sidecar.highest_revision_seen).ok();
    Evidence { source, revision, note }
}

#[cfg(feature = "live")]
fn live(
    running: Option<&crate::live::Settings>,
    whole_cluster: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<Evidence>, Error> {
    use crate::live::Cluster;
    use crate::ops::reach;

    let Some(settings) = running else { return Ok(Vec::new()) };
    let mut cluster = Cluster::open(settings.clone())?;
    if whole_cluster {
        cluster.discover().map_err(|error| {
            let message = format!("no revision from --endpoints: {error}");
            Error::new(reach::code(&error.cause), message)
                .hint("leave --endpoints out, and give what is known with --newest-revision")
        })?;
    }
    let answers = cluster.statuses();
    // Asked for and not had is not the same as not asked for.
    if answers.iter().all(|(_, answer)| answer.is_err()) {
        let errors: Vec<_> =
            answers.iter().filter_map(|(_, answer)| answer.as_ref().err()).collect();
        let code =
            errors.first().map_or(crate::ops::ExitCode::Unreachable, |e| reach::code(&e.cause));
        let all: Vec<_> = errors.iter().map(ToString::to_string).collect();
        return Err(Error::new(code, format!("no revision from --endpoints: {}", all.join("; ")))
            .hint("leave --endpoints out, and give what is known with --newest-revision"));
    }
    let evidence = answers.into_iter().map(|(source, answer)| match answer {
        Ok(status) => Evidence { source, revision: Some(status.header.revision), note: None },
        Err(error) => {
            warnings.push(format!("no revision from a running member: {error}"));
            Evidence { source, revision: None, note: Some(error.to_string()) }
        }
    });
    Ok(evidence.collect())
}
