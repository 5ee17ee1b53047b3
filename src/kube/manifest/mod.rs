//! The static pod that runs etcd: its flags, its paths on the host, and who it runs as.
//!
//! Reads what kubeadm writes (1.28 to 1.35) and what people make of it by hand: flags in `command`
//! or `args`, as `--flag=value` or `--flag value`, and `ETCD_*` environment variables where there
//! is no flag, in the order of precedence that etcd itself has. Never guesses: a container whose
//! command is a shell line, or whose settings stand in a file, is refused.
//!
//! **Shape**: a Pod, `apiVersion: v1`, in YAML or JSON, the first document of the file (the kubelet
//! reads no further). Flags as etcd's `embed` package defines them; paths as
//! `spec.containers[].volumeMounts` and `spec.volumes[].hostPath` map them, the longest
//! `mountPath` first; the owner as `securityContext`, the container's before the pod's.
//!
//! **Errors**: [`Error::At`] with line and column, [`Error::Read`] for the file itself.

pub mod edit;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::flags::Settings;
use super::yaml::{self, Node, Position, Value};

/// A manifest that cannot be used, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The text is not a manifest that says how etcd runs.
    #[error("{at}: {what}")]
    At {
        /// Which kind of trouble.
        trouble: Trouble,
        /// Where.
        at: Position,
        /// What is wrong, as a clause.
        what: String,
    },
}

/// Kinds of trouble with a manifest's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Not one plain YAML document within the limits.
    Syntax,
    /// Not a Pod, or a field of another type than a Pod has.
    Shape,
    /// No container runs etcd.
    NoEtcd,
    /// The container's command is a shell line, or the image decides what runs.
    Command,
    /// etcd reads its settings from a file and ignores its flags.
    ConfigFile,
    /// A value depends on a variable that only the running pod knows.
    Variable,
    /// A flag's value is not of the form that etcd wants.
    Flag,
    /// Read well, but a change does not fit it, or cannot be made with proof.
    Edit,
}

/// How an etcd runs, by its static pod.
///
/// A flag that is not given is `None` or empty: etcd's own defaults are not filled in, since they
/// are never what a control plane means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdManifest {
    /// `--name`.
    pub name: Option<String>,
    /// `--initial-advertise-peer-urls`.
    pub initial_advertise_peer_urls: Vec<String>,
    /// `--initial-cluster` as (name, peer URL), in order; a name with two URLs stands twice.
    ///
    /// kubeadm rewrites it to the node alone at each upgrade: it says nothing about membership.
    pub initial_cluster: Vec<(String, String)>,
    /// `--initial-cluster-state`: `new` or `existing`.
    pub initial_cluster_state: Option<String>,
    /// `--initial-cluster-token`; kubeadm does not set it.
    pub initial_cluster_token: Option<String>,
    /// `--data-dir`, a path in the container.
    pub data_dir: Option<String>,
    /// Where the data directory is on the host.
    pub data_dir_home: Home,
    /// `--wal-dir`, a path in the container, when the WAL is kept apart.
    pub wal_dir: Option<String>,
    /// `--listen-client-urls`.
    pub listen_client_urls: Vec<String>,
    /// `--advertise-client-urls`.
    pub advertise_client_urls: Vec<String>,
    /// `--cert-file`, a path in the container, as are the next five.
    pub cert_file: Option<String>,
    /// `--key-file`.
    pub key_file: Option<String>,
    /// `--trusted-ca-file`.
    pub trusted_ca_file: Option<String>,
    /// `--peer-cert-file`.
    pub peer_cert_file: Option<String>,
    /// `--peer-key-file`.
    pub peer_key_file: Option<String>,
    /// `--peer-trusted-ca-file`.
    pub peer_trusted_ca_file: Option<String>,
    /// `--quota-backend-bytes`; without it etcd's limit is 2 GiB.
    pub quota_backend_bytes: Option<i64>,
    /// The container's image.
    pub image: Option<String>,
    /// User that etcd runs as, so the owner of its files; `None` is the image's, root as a rule.
    pub run_as_user: Option<u32>,
    /// Group that etcd runs as.
    pub run_as_group: Option<u32>,
    mounts: Vec<Mount>,
}

/// Where a path of the container really is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// On the host.
    Host(HostPath),
    /// In a volume that is no plain directory of the host.
    Volume {
        /// The volume's name.
        volume: String,
    },
    /// In the container itself: lost when the container ends.
    #[default]
    Container,
}

/// A directory of the host behind a path of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// The path on the host: the volume's path plus what lies below the mount.
    pub path: String,
    /// The volume's name.
    pub volume: String,
    /// The volume's own path on the host.
    pub volume_path: String,
    /// Where the volume is mounted in the container.
    pub mount_path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Cleaned, absolute.
    mount_path: String,
    /// Path below the volume that is mounted; empty for all of it.
    sub_path: String,
    volume: String,
    /// `None` when the volume is no host path or the sub path is made at run time.
    volume_path: Option<String>,
}

impl EtcdManifest {
    /// Finds where an absolute path of the container is on the host.
    #[must_use]
    pub fn home_of(&self, path: &str) -> Home {
        home(&self.mounts, path)
    }
}

/// Finds where an absolute path of a container is on the host.
pub(super) fn home(mounts: &[Mount], path: &str) -> Home {
    let Some(path) = clean(path) else { return Home::Container };
    let deepest = mounts
        .iter()
        .filter_map(|mount| Some((mount, below(&path, &mount.mount_path)?)))
        .max_by_key(|(mount, _)| mount.mount_path.len());
    let Some((mount, rest)) = deepest else { return Home::Container };
    let Some(volume_path) = &mount.volume_path else {
        return Home::Volume { volume: mount.volume.clone() };
    };
    let parts = [volume_path.as_str(), mount.sub_path.as_str(), rest];
    Home::Host(HostPath {
        path: clean(&parts.join("/")).unwrap_or_else(|| volume_path.clone()),
        volume: mount.volume.clone(),
        volume_path: volume_path.clone(),
        mount_path: mount.mount_path.clone(),
    })
}

/// Reads a manifest file; it is not changed, and never waited for.
///
/// # Errors
///
/// [`Error::Read`] when it is not a regular file or cannot be read, [`Error::At`] for its text.
pub fn read(path: &Path) -> Result<EtcdManifest, Error> {
    parse(&bytes_of(path)?)
}

/// Reads the bytes of a manifest file, as far as a manifest may be long.
pub(super) fn bytes_of(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    // Without NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        let kind = std::io::ErrorKind::InvalidInput;
        return Err(failed(std::io::Error::new(kind, "not a regular file")));
    }
    let mut bytes = Vec::new();
    let limit = crate::format::u64_of(yaml::SIZE_LIMIT).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Reads a manifest's text.
///
/// # Errors
///
/// [`Error::At`], with the line and column that it is about.
pub fn parse(bytes: &[u8]) -> Result<EtcdManifest, Error> {
    let root = yaml::parse(bytes).map_err(|yaml::Error { at, what }| Error::At {
        trouble: Trouble::Syntax,
        at,
        what,
    })?;
    let version = text_of(&root, "apiVersion")?.unwrap_or_default();
    let kind = text_of(&root, "kind")?.unwrap_or_default();
    if (version, kind) != ("v1", "Pod") {
        return Err(at(Trouble::Shape, &root, "not a Pod of apiVersion v1"));
    }
    let Some(spec) = mapping(&root, "spec")? else {
        return Err(at(Trouble::Shape, &root, "a Pod without a spec"));
    };
    let container = etcd_container(spec)?;
    let settings = Settings::read(container)?;
    let mut manifest = EtcdManifest {
        name: settings.text("name"),
        initial_advertise_peer_urls: settings.list("initial-advertise-peer-urls"),
        initial_cluster: settings.members("initial-cluster")?,
        initial_cluster_state: settings.text("initial-cluster-state"),
        initial_cluster_token: settings.text("initial-cluster-token"),
        data_dir: settings.text("data-dir"),
        data_dir_home: Home::Container,
        wal_dir: settings.text("wal-dir"),
        listen_client_urls: settings.list("listen-client-urls"),
        advertise_client_urls: settings.list("advertise-client-urls"),
        cert_file: settings.text("cert-file"),
        key_file: settings.text("key-file"),
        trusted_ca_file: settings.text("trusted-ca-file"),
        peer_cert_file: settings.text("peer-cert-file"),
        peer_key_file: settings.text("peer-key-file"),
        peer_trusted_ca_file: settings.text("peer-trusted-ca-file"),
        quota_backend_bytes: settings.number("quota-backend-bytes")?,
        image: text_of(container, "image")?.map(str::to_owned),
        run_as_user: owner(spec, container, "runAsUser")?,
        run_as_group: owner(spec, container, "runAsGroup")?,
        mounts: mounts(spec, container)?,
    };
    if let Some(dir) = &manifest.data_dir {
        manifest.data_dir_home = manifest.home_of(dir);
    }
    Ok(manifest)
}

/// Finds the container whose program is etcd.
fn etcd_container(spec: &Node) -> Result<&Node, Error> {
    let containers = items(spec, "containers")?;
    let mut found = None;
    for container in containers {
        let first = items(container, "command")?.first().or(items(container, "args")?.first());
        if first.and_then(Node::text).is_some_and(|program| base_name(program) == "etcd") {
            if found.is_some() {
                return Err(at(Trouble::Shape, container, "a second container that runs etcd"));
            }
            found = Some(container);
        }
    }
    if let Some(container) = found {
        return Ok(container);
    }
    // Say why the one that was meant cannot be used, rather than that there is none.
    for container in containers {
        let command = items(container, "command")?;
        let program = command.first().and_then(Node::text).map(base_name);
        let named = text_of(container, "name")? == Some("etcd")
            || text_of(container, "image")?.is_some_and(|image| image_name(image) == "etcd");
        let mentioned = command
            .iter()
            .chain(items(container, "args")?)
            .any(|node| node.text().is_some_and(|text| text.contains("etcd")));
        match (program, command.first()) {
            (Some("sh" | "bash" | "ash" | "dash" | "busybox" | "env"), Some(node))
                if named || mentioned =>
            {
                let what = "the command is run by a shell, so etcd's flags cannot be read; \
                            write them as a list that begins with etcd";
                return Err(at(Trouble::Command, node, what));
            }
            (Some(_), Some(node)) if named => {
                let what = "the etcd container runs another program than etcd";
                return Err(at(Trouble::Command, node, what));
            }
            (None, _) if named => {
                let what = "the etcd container has no command, so the image decides what runs";
                return Err(at(Trouble::Command, container, what));
            }
            _ => {}
        }
    }
    Err(at(Trouble::NoEtcd, spec, "no container runs etcd"))
}

/// Reads the container's mounts together with the volumes behind them.
pub(super) fn mounts(spec: &Node, container: &Node) -> Result<Vec<Mount>, Error> {
    let mut volumes = BTreeMap::new();
    for volume in items(spec, "volumes")? {
        let Some(name) = text_of(volume, "name")? else {
            return Err(at(Trouble::Shape, volume, "a volume without a name"));
        };
        let path = match mapping(volume, "hostPath")? {
            Some(host) => {
                inside(host, "path")?;
                Some(absolute(host, "path")?)
            }
            None => None,
        };
        volumes.insert(name, path);
    }
    let mut all = Vec::new();
    for mount in items(container, "volumeMounts")? {
        let Some(volume) = text_of(mount, "name")? else {
            return Err(at(Trouble::Shape, mount, "a mount without a name"));
        };
        let Some(volume_path) = volumes.get(volume) else {
            return Err(at(Trouble::Shape, mount, "a mount of a volume that is not there"));
        };
        let at_run_time = mount.get("subPathExpr").is_some();
        all.push(Mount {
            mount_path: absolute(mount, "mountPath")?,
            sub_path: inside(mount, "subPath")?,
            volume: volume.to_owned(),
            volume_path: volume_path.clone().filter(|_| !at_run_time),
        });
    }
    Ok(all)
}

/// Reads a user or group id, the container's before the pod's.
fn owner(spec: &Node, container: &Node, key: &str) -> Result<Option<u32>, Error> {
    for holder in [container, spec] {
        if let Some(context) = mapping(holder, "securityContext")?
            && let Some(node) = context.get(key)
        {
            let id = node.text().and_then(|text| text.parse().ok());
            return match id {
                Some(id) => Ok(Some(id)),
                None => Err(at(Trouble::Shape, node, "not a user or group id")),
            };
        }
    }
    Ok(None)
}

fn absolute(holder: &Node, key: &str) -> Result<String, Error> {
    let path = text_of(holder, key)?.and_then(clean);
    path.ok_or_else(|| at(Trouble::Shape, holder, &format!("{key} is not an absolute path")))
}

/// Reads a path that must not climb: Kubernetes refuses `..` in it.
fn inside(holder: &Node, key: &str) -> Result<String, Error> {
    let path = text_of(holder, key)?.unwrap_or_default();
    if path.split('/').any(|part| part == "..") {
        return Err(at(Trouble::Shape, holder, &format!("{key} holds `..`")));
    }
    Ok(path.to_owned())
}

/// Returns the text under a key.
pub(super) fn text_of<'a>(holder: &'a Node, key: &str) -> Result<Option<&'a str>, Error> {
    match holder.get(key) {
        None => Ok(None),
        Some(node) => match node.text() {
            Some(text) => Ok(Some(text)),
            None => Err(at(Trouble::Shape, node, &format!("{key} is {}", node.kind()))),
        },
    }
}

pub(super) fn mapping<'a>(holder: &'a Node, key: &str) -> Result<Option<&'a Node>, Error> {
    match holder.get(key) {
        None => Ok(None),
        Some(node) if matches!(node.value, Value::Mapping(_)) => Ok(Some(node)),
        Some(node) => Err(at(Trouble::Shape, node, &format!("{key} is {}", node.kind()))),
    }
}

/// Returns the items of the sequence under a key.
pub(super) fn items<'a>(holder: &'a Node, key: &str) -> Result<&'a [Node], Error> {
    match holder.get(key) {
        None => Ok(&[]),
        Some(node) if matches!(node.value, Value::Sequence(_)) => Ok(node.items()),
        Some(node) => Err(at(Trouble::Shape, node, &format!("{key} is {}", node.kind()))),
    }
}

/// Makes an error at a node.
pub(super) fn at(trouble: Trouble, node: &Node, what: &str) -> Error {
    Error::At { trouble, at: node.at, what: what.to_owned() }
}

pub(super) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Takes `etcd` out of `registry.example/path/etcd:3.6.5-0@sha256:...`.
fn image_name(image: &str) -> &str {
    let last = base_name(image.split('@').next().unwrap_or(image));
    last.split(':').next().unwrap_or(last)
}

/// Cleans an absolute path by its text: no empty part, no `.`, no `..`, no slash at the end.
fn clean(path: &str) -> Option<String> {
    let rest = path.strip_prefix('/')?;
    let mut parts = Vec::new();
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// Returns what a cleaned path has below a cleaned folder, `""` when they are the same.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    if folder == "/" {
        return path.strip_prefix('/');
    }
    match path.strip_prefix(folder)? {
        "" => Some(""),
        rest => rest.strip_prefix('/'),
    }
}

#[cfg(test)]
mod tests;
