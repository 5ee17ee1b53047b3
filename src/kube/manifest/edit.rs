//! etcd.yaml pointed at other directories, or given another quota; every other byte is kept.
//!
//! Pure: bytes in, bytes out. Each function makes its changes one after the other with
//! [`yaml::splice`], reads the result as a manifest, and returns it only when it says exactly what
//! the old one did but for what was asked for.
//!
//! **Errors**: [`Error::At`] with the line and column of what stands in the way:
//! [`Trouble::Edit`] when the manifest is read well, but the change does not fit it.

use super::super::flags::{self, Settings};
use super::super::yaml::{self, Change, New, Refusal, Step, Why};
use super::{
    Error, EtcdManifest, Home, HostPath, Mount, Node, Trouble, at, below, clean, etcd_container,
    items, mapping, parse, text_of,
};

/// Where etcd is to keep its data: absolute paths without `.`, `..` and a slash at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directories<'a> {
    /// The data directory, on the host and in the container.
    pub data: &'a str,
    /// The directory of the log, where the manifest keeps it apart (`--wal-dir`); `None` where it
    /// does not.
    pub wal: Option<&'a str>,
}

/// Moves etcd to another data directory the way kubeadm would write it: the volume's path on the
/// host, its mount and `--data-dir` are all `to.data`, so that kubeadm sees no difference to a
/// configuration with that `dataDir`. `--wal-dir`, where it is set, moves the same way to `to.wal`.
///
/// # Errors
///
/// [`Error::At`] as in the module's text; among others when the manifest keeps the log apart and
/// `to.wal` is not given or the other way round, when a directory is no plain one of the host, and
/// when a volume is used by something else as well.
pub fn set_data_dir(bytes: &[u8], to: &Directories<'_>) -> Result<Vec<u8>, Error> {
    let mut edit = Edit::new(bytes)?;
    edit.check(to)?;
    let (data, mount) = edit.moved("data-dir", to.data)?;
    if let Some(wal) = to.wal {
        let old = edit.old.wal_dir.clone().unwrap_or_default();
        if below(&old, &mount.mount_path).is_some()
            && edit.home("wal-dir", &old)?.volume == data.volume
        {
            // Both are in one volume, which has moved.
            edit.inside(wal, to.data)?;
            edit.set_flag("wal-dir", wal)?;
        } else {
            edit.moved("wal-dir", wal)?;
        }
    }
    edit.finish(|expected, new| {
        expected.data_dir = Some(to.data.to_owned());
        expected.wal_dir = to.wal.map(str::to_owned);
        expected.data_dir_home = new.data_dir_home.clone();
        expected.mounts.clone_from(&new.mounts);
        on_host(new, to.data, to.data) && to.wal.is_none_or(|wal| on_host(new, wal, wal))
    })
}

/// Moves etcd's data on the host alone: only the volume's path changes, so that the same paths in
/// the container lead to `to.data`, and `--wal-dir`, where it is set, to `to.wal`.
///
/// # Errors
///
/// As [`set_data_dir`]; also when what lies below the mount, as in `--data-dir=/var/lib/etcd/data`
/// under a mount of `/var/lib/etcd`, is not how the new directory ends.
pub fn host_path_only(bytes: &[u8], to: &Directories<'_>) -> Result<Vec<u8>, Error> {
    let mut edit = Edit::new(bytes)?;
    edit.check(to)?;
    let data = edit.old.data_dir.clone().unwrap_or_default();
    let volume = edit.set_host("data-dir", &data, to.data)?;
    let wal_dir = edit.old.wal_dir.clone().unwrap_or_default();
    if let Some(wal) = to.wal
        && edit.home("wal-dir", &wal_dir)?.volume != volume
    {
        edit.set_host("wal-dir", &wal_dir, wal)?;
    }
    edit.finish(|expected, new| {
        expected.data_dir_home = new.data_dir_home.clone();
        expected.mounts.clone_from(&new.mounts);
        on_host(new, &data, to.data) && to.wal.is_none_or(|wal| on_host(new, &wal_dir, wal))
    })
}

/// Sets `--quota-backend-bytes`; where it is not given yet, it is put behind the other flags.
///
/// # Errors
///
/// [`Error::At`] as in the module's text, and for a quota that is not above 0.
pub fn set_quota(bytes: &[u8], quota: i64) -> Result<Vec<u8>, Error> {
    let mut edit = Edit::new(bytes)?;
    if quota <= 0 {
        return Err(edit.unfit("a quota has to be above 0"));
    }
    if edit.settings.given("quota-backend-bytes").next().is_some() {
        edit.set_flag("quota-backend-bytes", &quota.to_string())?;
    } else {
        let words = flags::words(&edit.container)?;
        let list = words.last().map_or("command", |word| word.list);
        let flag = format!("--quota-backend-bytes={quota}");
        let new = New::from(flag.as_str());
        edit.splice(&[Step::Key(list)], &Change::Push(new))?;
    }
    edit.finish(|expected, _| {
        expected.quota_backend_bytes = Some(quota);
        true
    })
}

/// Says of a directory that it is not of the form that [`is_plain`] asks for.
pub(in super::super) const NOT_PLAIN: &str =
    "the new directory is not an absolute path without `..`, `:`, `$`, `,` and a slash at the end";

/// Tells whether a directory is an absolute path that means the same to the host, to Kubernetes,
/// which splits mounts at `:` and puts values in for `$(NAME)`, and to etcd.
pub(in super::super) fn is_plain(dir: &str) -> bool {
    dir != "/"
        && clean(dir).as_deref() == Some(dir)
        && !dir.contains([':', '$', ','])
        && !dir.chars().any(char::is_control)
}

fn on_host(manifest: &EtcdManifest, path: &str, host: &str) -> bool {
    matches!(manifest.home_of(path), Home::Host(home) if home.path == host)
}

/// A manifest on its way to another one.
struct Edit {
    /// With the changes that were made so far.
    bytes: Vec<u8>,
    /// What it said before any of them.
    old: EtcdManifest,
    spec: Node,
    container: Node,
    /// Which container runs etcd.
    number: usize,
    settings: Settings,
}

impl Edit {
    fn new(bytes: &[u8]) -> Result<Self, Error> {
        let old = parse(bytes)?;
        let root = yaml::parse(bytes).map_err(|yaml::Error { at, what }| Error::At {
            trouble: Trouble::Syntax,
            at,
            what,
        })?;
        let spec = mapping(&root, "spec")?.cloned();
        let spec = spec.ok_or_else(|| at(Trouble::Shape, &root, "a Pod without a spec"))?;
        let container = etcd_container(&spec)?;
        let number =
            items(&spec, "containers")?.iter().position(|one| std::ptr::eq(one, container));
        let settings = Settings::read(container)?;
        let container = container.clone();
        let number = number.unwrap_or_default();
        Ok(Self { bytes: bytes.to_vec(), old, spec, container, number, settings })
    }

    /// Refuses directories that do not fit the manifest, or each other.
    fn check(&self, to: &Directories<'_>) -> Result<(), Error> {
        for dir in [Some(to.data), to.wal].into_iter().flatten() {
            if !is_plain(dir) {
                return Err(self.unfit(NOT_PLAIN));
            }
        }
        if to.wal.is_some_and(|wal| below(to.data, wal).is_some()) {
            return Err(self.unfit("the log cannot be in the data directory itself or above it"));
        }
        match (&self.old.wal_dir, to.wal) {
            (Some(_), None) => {
                Err(self.unfit("etcd keeps its log apart (--wal-dir): say where that one is to be"))
            }
            (None, Some(_)) => Err(self.unfit("etcd does not keep its log apart (no --wal-dir)")),
            _ => Ok(()),
        }
    }

    fn unfit(&self, what: &str) -> Error {
        at(Trouble::Edit, &self.container, what)
    }

    /// Finds where a directory is on the host.
    fn home(&self, flag: &str, dir: &str) -> Result<HostPath, Error> {
        match self.old.home_of(dir) {
            Home::Host(home) => Ok(home),
            Home::Volume { volume } => {
                let what = format!("--{flag} is in volume {volume}, which is no path of the host");
                Err(self.unfit(&what))
            }
            Home::Container if dir.is_empty() => Err(self.unfit(&format!("--{flag} is not given"))),
            Home::Container => {
                let what = format!("--{flag} is in no volume, so it is lost when etcd stops");
                Err(self.unfit(&what))
            }
        }
    }

    /// Finds the mount of a volume, the only one of it in the whole Pod.
    fn mount(&self, home: &HostPath) -> Result<(usize, &Mount), Error> {
        let mut uses = 0_usize;
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            for container in items(&self.spec, list)? {
                for mount in items(container, "volumeMounts")? {
                    if text_of(mount, "name")? == Some(home.volume.as_str()) {
                        uses = uses.saturating_add(1);
                    }
                }
            }
        }
        if uses > 1 {
            let what = format!("volume {} is mounted more than once", home.volume);
            return Err(self.unfit(&what));
        }
        let mut all = self.old.mounts.iter().enumerate();
        let found = all.find(|(_, mount)| mount.volume == home.volume);
        found.ok_or_else(|| self.unfit("the volume is not mounted"))
    }

    /// Sets volume, mount and flag of a directory to another one.
    fn moved(&mut self, flag: &str, to: &str) -> Result<(HostPath, Mount), Error> {
        let old = match flag {
            "data-dir" => self.old.data_dir.clone(),
            _ => self.old.wal_dir.clone(),
        };
        let home = self.home(flag, &old.unwrap_or_default())?;
        let (index, mount) = self.mount(&home)?;
        let mount = mount.clone();
        if !mount.sub_path.is_empty() {
            let what = format!("volume {} is mounted with a subPath", home.volume);
            return Err(self.unfit(&what));
        }
        let others = self.old.mounts.iter().filter(|other| other.volume != home.volume);
        for other in others {
            if self.is_wal(other) {
                continue;
            }
            let nested = below(to, &other.mount_path).or_else(|| below(&other.mount_path, to));
            if nested.is_some() {
                let what = format!("volume {} is mounted there already", other.volume);
                return Err(self.unfit(&what));
            }
        }
        self.not_nested(&home, to)?;
        self.no_other_user(&mount.mount_path)?;
        self.splice_host(&home.volume, to)?;
        let way = [Step::Key("volumeMounts"), Step::Index(index), Step::Key("mountPath")];
        self.splice(&way, &Change::Set(to))?;
        self.set_flag(flag, to)?;
        Ok((home, mount))
    }

    /// Tells whether a mount is where the log is kept, which moves as well.
    fn is_wal(&self, mount: &Mount) -> bool {
        let wal = self.old.wal_dir.as_deref().unwrap_or_default();
        matches!(self.old.home_of(wal), Home::Host(home) if home.volume == mount.volume)
    }

    /// Refuses a new directory inside of the old one: who removes the old one loses both.
    fn not_nested(&self, old: &HostPath, to: &str) -> Result<(), Error> {
        if below(to, &old.path).is_some_and(|rest| !rest.is_empty()) {
            return Err(self.unfit("the new directory is inside of the old one"));
        }
        Ok(())
    }

    /// Refuses to move a mount that other flags lead into.
    fn no_other_user(&self, mount_path: &str) -> Result<(), Error> {
        let ours: Vec<_> = ["data-dir", "wal-dir"]
            .into_iter()
            .flat_map(|flag| self.settings.given(flag))
            .map(|given| (given.list, given.index))
            .collect();
        for word in flags::words(&self.container)? {
            let value = word.text.split_once('=').map_or(word.text, |(_, value)| value);
            let inside = clean(value).is_some_and(|path| below(&path, mount_path).is_some());
            if inside && !ours.contains(&(word.list, word.index)) {
                let what = "another flag with a path in the volume that is to move";
                return Err(at(Trouble::Edit, word.node, what));
            }
        }
        Ok(())
    }

    /// Refuses a directory that is not below another one.
    fn inside(&self, dir: &str, outer: &str) -> Result<(), Error> {
        if below(dir, outer).is_none_or(str::is_empty) {
            let what = "the log is in the volume of the data, so it has to stay below the data \
                        directory";
            return Err(self.unfit(what));
        }
        Ok(())
    }

    /// Sets the path of the volume so that a directory of the container is another one on the host.
    /// Returns the volume.
    fn set_host(&mut self, flag: &str, dir: &str, to: &str) -> Result<String, Error> {
        let home = self.home(flag, dir)?;
        let (_, mount) = self.mount(&home)?;
        self.not_nested(&home, to)?;
        self.no_other_user(&mount.mount_path)?;
        let rest = below(&home.path, &home.volume_path).unwrap_or_default();
        let path = match rest {
            "" => Some(to),
            rest => to.strip_suffix(rest).and_then(|path| path.strip_suffix('/')),
        };
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            let what = format!(
                "--{flag} lies below its mount, so the new directory has to end with /{rest}"
            );
            return Err(self.unfit(&what));
        };
        self.splice_host(&home.volume, path)?;
        Ok(home.volume)
    }

    fn splice_host(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        let way = [
            Step::Key("spec"),
            Step::Key("volumes"),
            Step::Named("name", volume),
            Step::Key("hostPath"),
            Step::Key("path"),
        ];
        self.bytes = yaml::splice(&self.bytes, &way, &Change::Set(path))?;
        Ok(())
    }

    /// Sets every word that gives a flag.
    fn set_flag(&mut self, flag: &str, value: &str) -> Result<(), Error> {
        let words: Vec<_> = self
            .settings
            .given(flag)
            .map(|given| (given.list, given.index, format!("{}{value}", given.lead)))
            .collect();
        if words.is_empty() {
            let what = format!("--{flag} is given by a variable; make it a flag of the command");
            return Err(self.unfit(&what));
        }
        for (list, index, word) in words {
            self.splice(&[Step::Key(list), Step::Index(index)], &Change::Set(&word))?;
        }
        Ok(())
    }

    /// Changes a place of the container.
    fn splice(&mut self, way: &[Step<'_>], change: &Change<'_>) -> Result<(), Error> {
        let container = [Step::Key("spec"), Step::Key("containers"), Step::Index(self.number)];
        self.bytes = yaml::splice(&self.bytes, &[&container, way].concat(), change)?;
        Ok(())
    }

    /// Reads the result, and returns it when it is the old manifest but for what `change` makes.
    fn finish(
        self,
        change: impl FnOnce(&mut EtcdManifest, &EtcdManifest) -> bool,
    ) -> Result<Vec<u8>, Error> {
        let new = parse(&self.bytes)?;
        let mut expected = self.old.clone();
        let reached = change(&mut expected, &new);
        if reached && expected == new {
            return Ok(self.bytes);
        }
        Err(self.unfit("the change would not have the effect that it is for"))
    }
}

impl From<Refusal> for Error {
    fn from(Refusal { why, at, what }: Refusal) -> Self {
        let trouble = match why {
            Why::Syntax => Trouble::Syntax,
            Why::Missing | Why::Shape => Trouble::Shape,
            _ => Trouble::Edit,
        };
        Self::At { trouble, at, what }
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
