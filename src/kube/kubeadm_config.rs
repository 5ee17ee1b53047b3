//! kubeadm's ClusterConfiguration: what it says of etcd, and the same with another data directory.
//!
//! **Shape**: a `ClusterConfiguration` of `kubeadm.k8s.io/v1beta2` to `v1beta4`, as a document of a
//! kubeadm file, or as the text `data.ClusterConfiguration` of a `ConfigMap` (YAML or JSON, any
//! kind of scalar). `etcd.local.extraArgs` is a mapping up to v1beta3, a list of `name` and `value`
//! from v1beta4 on.
//!
//! Changes are made with [`yaml::splice`], so every other byte is kept. Pure: bytes in, bytes out.
//!
//! **Errors**: [`Error`] with line and column.
//!
//! **Source**: Kubernetes 1.22 to 1.35, `cmd/kubeadm/app/apis/kubeadm/v1beta*/types.go`, and how
//! `cmd/kubeadm/app/phases/etcd/local.go` makes flags of it: `extraArgs` stand in for its own.

use super::manifest::edit::{Directories, NOT_PLAIN, is_plain};
use super::yaml::{self, Change, Document, New, Node, Position, Refusal, Step, Value, Why};

/// A configuration that is not read, or not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Error {
    /// Which kind of trouble.
    pub trouble: Trouble,
    /// Where; for the text in a `ConfigMap`, counted within that text.
    pub at: Position,
    /// What is wrong, as a clause.
    pub what: String,
}

/// Kinds of trouble with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Not YAML within the limits, or not clear in what it means.
    Syntax,
    /// No `ClusterConfiguration` in it, or more than one.
    NotThere,
    /// Of a version that is not known here.
    Version,
    /// A field of another type than a `ClusterConfiguration` has.
    Shape,
    /// etcd is elsewhere: the configuration names no data directory.
    External,
    /// Read well, but the change does not fit it, or cannot be made with proof.
    Edit,
}

/// What a configuration says of the etcd of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterConfiguration {
    /// `v1beta2`, `v1beta3` or `v1beta4`.
    pub version: String,
    /// `kubernetesVersion`.
    pub kubernetes_version: Option<String>,
    /// `clusterName`.
    pub cluster_name: Option<String>,
    /// `controlPlaneEndpoint`.
    pub control_plane_endpoint: Option<String>,
    /// Tells whether etcd is elsewhere (`etcd.external`).
    pub external: bool,
    /// `etcd.local.dataDir`; without it kubeadm takes `/var/lib/etcd`.
    pub data_dir: Option<String>,
    /// `etcd.local.extraArgs` as (name, value), in order; a name may stand more than once.
    pub extra_args: Vec<(String, String)>,
    /// `etcd.local.imageTag`.
    pub image_tag: Option<String>,
}

impl ClusterConfiguration {
    /// Returns the value that the last of `extraArgs` gives a flag.
    #[must_use]
    pub fn extra_arg(&self, name: &str) -> Option<&str> {
        let mut all = self.extra_args.iter().rev();
        all.find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Reads the configuration of a kubeadm file or `ConfigMap`.
///
/// # Errors
///
/// [`Error`] with [`Trouble::NotThere`] when there is none, else as its kinds say.
pub fn parse(bytes: &[u8]) -> Result<ClusterConfiguration, Error> {
    Place::of(bytes)?.read()
}

/// Sets `etcd.local.dataDir`, and `data-dir` of its `extraArgs` where that is set, to `to.data`;
/// `wal-dir` of `extraArgs`, where that is set, to `to.wal`.
///
/// A `to.wal` without such a `wal-dir` is left out: a patch of the manifest sets it then.
///
/// # Errors
///
/// [`Error`]; [`Trouble::External`] when etcd is elsewhere, [`Trouble::Edit`] when `wal-dir` is set
/// and `to.wal` is not given, and when the change could not be made with proof.
pub fn set_data_dir(bytes: &[u8], to: &Directories<'_>) -> Result<Vec<u8>, Error> {
    let place = Place::of(bytes)?;
    let old = place.local()?;
    if ![Some(to.data), to.wal].into_iter().flatten().all(is_plain) {
        return Err(place.unfit(NOT_PLAIN));
    }
    let mut new = if old.data_dir.is_some() {
        let way: Vec<_> = DATA_DIR.iter().map(|key| Step::Key(key)).collect();
        yaml::splice(bytes, &place.to(&way), &Change::Set(to.data))?
    } else {
        place.put(bytes, DATA_DIR, to.data.into())?
    };
    let mut expected = ClusterConfiguration { data_dir: Some(to.data.to_owned()), ..old.clone() };
    for (name, value) in [("data-dir", Some(to.data)), ("wal-dir", to.wal)] {
        if old.extra_arg(name).is_none() {
            continue;
        }
        let Some(value) = value else {
            let what =
                "etcd keeps its log apart (wal-dir of extraArgs): say where that one is to be";
            return Err(place.unfit(what));
        };
        new = place.set_args(new, name, value)?;
        set_all(&mut expected, name, value);
    }
    place.finish(new, &expected)
}

/// Sets `quota-backend-bytes` of `etcd.local.extraArgs`, which is put there where it is not.
///
/// # Errors
///
/// As [`set_data_dir`], and for a quota that is not above 0.
pub fn set_quota(bytes: &[u8], quota: i64) -> Result<Vec<u8>, Error> {
    const NAME: &str = "quota-backend-bytes";
    let place = Place::of(bytes)?;
    let mut expected = place.local()?;
    if quota <= 0 {
        return Err(place.unfit("a quota has to be above 0"));
    }
    let value = quota.to_string();
    let new = if expected.extra_arg(NAME).is_some() {
        set_all(&mut expected, NAME, &value);
        place.set_args(bytes.to_vec(), NAME, &value)?
    } else {
        let new = place.put_arg(bytes, NAME, &value)?;
        expected.extra_args.push((NAME.to_owned(), value));
        new
    };
    place.finish(new, &expected)
}

fn set_all(configuration: &mut ClusterConfiguration, name: &str, value: &str) {
    for (found, old) in &mut configuration.extra_args {
        if found == name {
            value.clone_into(old);
        }
    }
}

const KIND: Document<'_> = Document::Where(&[("kind", "ClusterConfiguration")]);
const MAP: Document<'_> = Document::Where(&[("kind", "ConfigMap")]);

/// A file's own document.
const DIRECT: &[Step<'_>] = &[Step::Document(KIND)];
/// The text in a `ConfigMap`.
const WITHIN: &[Step<'_>] = &[
    Step::Document(MAP),
    Step::Key("data"),
    Step::Key("ClusterConfiguration"),
    Step::Document(KIND),
];

/// Where in a text the configuration is.
struct Place {
    way: &'static [Step<'static>],
    root: Node,
}

impl Place {
    fn of(bytes: &[u8]) -> Result<Self, Error> {
        let found = |way| match yaml::find(bytes, way) {
            Ok(root) => Ok(Some(Self { way, root })),
            Err(refusal) if matches!(refusal.why, Why::Missing) => Ok(None),
            Err(Refusal { why, at, what }) => {
                let trouble = match why {
                    Why::Twice => Trouble::NotThere,
                    Why::Shape => Trouble::Shape,
                    _ => Trouble::Syntax,
                };
                Err(Error { trouble, at, what })
            }
        };
        let no = |what: &str| {
            let at = Position { line: 1, column: 1 };
            Err(Error { trouble: Trouble::NotThere, at, what: what.to_owned() })
        };
        match (found(DIRECT)?, found(WITHIN)?) {
            (Some(_), Some(_)) => no("a ClusterConfiguration, and a ConfigMap that holds another"),
            (Some(place), None) | (None, Some(place)) => Ok(place),
            (None, None) => no("no ClusterConfiguration, and no ConfigMap that holds one"),
        }
    }

    fn read(&self) -> Result<ClusterConfiguration, Error> {
        let root = &self.root;
        let group = text(root, "apiVersion")?.unwrap_or_default();
        let version = group.strip_prefix("kubeadm.k8s.io/").unwrap_or_default();
        if !matches!(version, "v1beta2" | "v1beta3" | "v1beta4") {
            let what = "not of kubeadm.k8s.io/v1beta2, v1beta3 or v1beta4";
            return Err(error(Trouble::Version, root, what));
        }
        let etcd = mapping(root, "etcd")?;
        let external = etcd.is_some_and(|etcd| etcd.get("external").is_some());
        let local = match etcd {
            Some(etcd) => mapping(etcd, "local")?,
            None => None,
        };
        if let Some(local) = local.filter(|_| external) {
            return Err(error(Trouble::Shape, local, "etcd.local beside etcd.external"));
        }
        let of_local = |key| local.map_or(Ok(None), |local| text(local, key));
        let mut read = ClusterConfiguration {
            version: version.to_owned(),
            kubernetes_version: text(root, "kubernetesVersion")?,
            cluster_name: text(root, "clusterName")?,
            control_plane_endpoint: text(root, "controlPlaneEndpoint")?,
            external,
            data_dir: of_local("dataDir")?,
            extra_args: Vec::new(),
            image_tag: of_local("imageTag")?,
        };
        if let Some(args) = local.and_then(|local| local.get("extraArgs")) {
            read.extra_args = arguments(args)?;
        }
        Ok(read)
    }

    /// Reads the configuration of an etcd that kubeadm runs.
    fn local(&self) -> Result<ClusterConfiguration, Error> {
        let read = self.read()?;
        if read.external {
            let etcd = self.root.get("etcd").unwrap_or(&self.root);
            let what = "etcd is elsewhere (etcd.external), so that nothing here names its data \
                        directory or its flags";
            return Err(error(Trouble::External, etcd, what));
        }
        Ok(read)
    }

    fn unfit(&self, what: &str) -> Error {
        error(Trouble::Edit, &self.root, what)
    }

    /// Returns the way to a place of the configuration.
    fn to<'a>(&self, steps: &[Step<'a>]) -> Vec<Step<'a>> {
        [self.way, steps].concat()
    }

    /// Puts a value under keys that are not all there, with mappings for those that are missing.
    fn put<'a>(&self, bytes: &[u8], keys: &[&'a str], value: New<'a>) -> Result<Vec<u8>, Error> {
        let mut node = &self.root;
        let mut there = 0_usize;
        for key in keys {
            let Some(child) = node.get(key) else { break };
            node = child;
            there = there.saturating_add(1);
        }
        let (way, missing) = keys.split_at_checked(there).unwrap_or((keys, &[]));
        let Some((first, rest)) = missing.split_first() else {
            return Err(error(Trouble::Edit, node, "there already"));
        };
        let value = rest.iter().rev().fold(value, |value, key| New::Map(vec![(*key, value)]));
        let steps: Vec<_> = way.iter().map(|key| Step::Key(key)).collect();
        Ok(yaml::splice(bytes, &self.to(&steps), &Change::Put(first, value))?)
    }

    /// Sets every one of `extraArgs` of this name.
    fn set_args(&self, bytes: Vec<u8>, name: &str, value: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = bytes;
        let args = LOCAL_ARGS.iter().try_fold(&self.root, |node, key| node.get(key));
        let set = Change::Set(value);
        match args.map(|args| &args.value) {
            Some(Value::Mapping(_)) => {
                let way = [ARGS, &[Step::Key(name)]].concat();
                bytes = yaml::splice(&bytes, &self.to(&way), &set)?;
            }
            Some(Value::Sequence(items)) => {
                for (index, item) in items.iter().enumerate() {
                    if item.get("name").and_then(Node::text) == Some(name) {
                        let way = [ARGS, &[Step::Index(index), Step::Key("value")]].concat();
                        bytes = yaml::splice(&bytes, &self.to(&way), &set)?;
                    }
                }
            }
            _ => {}
        }
        Ok(bytes)
    }

    /// Puts one of `extraArgs` behind the others.
    fn put_arg(&self, bytes: &[u8], name: &str, value: &str) -> Result<Vec<u8>, Error> {
        let item = || New::Map(vec![("name", name.into()), ("value", value.into())]);
        let args = LOCAL_ARGS.iter().try_fold(&self.root, |node, key| node.get(key));
        let change = match args.map(|args| &args.value) {
            Some(Value::Mapping(_)) => Change::Put(name, value.into()),
            Some(Value::Sequence(_)) => Change::Push(item()),
            _ => {
                let version = text(&self.root, "apiVersion")?.unwrap_or_default();
                let new = if version.ends_with("/v1beta4") {
                    New::List(vec![item()])
                } else {
                    New::Map(vec![(name, value.into())])
                };
                return self.put(bytes, LOCAL_ARGS, new);
            }
        };
        Ok(yaml::splice(bytes, &self.to(ARGS), &change)?)
    }

    /// Reads the result, and returns it when it says what is expected of it.
    fn finish(&self, new: Vec<u8>, expected: &ClusterConfiguration) -> Result<Vec<u8>, Error> {
        if parse(&new)? == *expected {
            return Ok(new);
        }
        Err(self.unfit("the change would not have the effect that it is for"))
    }
}

const LOCAL_ARGS: &[&str] = &["etcd", "local", "extraArgs"];
const ARGS: &[Step<'_>] = &[Step::Key("etcd"), Step::Key("local"), Step::Key("extraArgs")];
const DATA_DIR: &[&str] = &["etcd", "local", "dataDir"];

/// Reads `extraArgs` of either shape.
fn arguments(args: &Node) -> Result<Vec<(String, String)>, Error> {
    let scalar = |node: &Node| match &node.value {
        Value::Scalar { text, .. } => Ok(text.clone()),
        _ => Err(error(Trouble::Shape, node, "an argument that is not a text")),
    };
    match &args.value {
        Value::Mapping(entries) => {
            entries.iter().map(|entry| Ok((entry.key.clone(), scalar(&entry.node)?))).collect()
        }
        Value::Sequence(items) => items
            .iter()
            .map(|item| {
                let name = text(item, "name")?;
                let name = name.ok_or_else(|| error(Trouble::Shape, item, "no name"))?;
                Ok((name, item.get("value").map_or(Ok(String::new()), scalar)?))
            })
            .collect(),
        Value::Scalar { .. } => Err(error(Trouble::Shape, args, "extraArgs is a scalar")),
    }
}

fn text(holder: &Node, key: &str) -> Result<Option<String>, Error> {
    match holder.get(key) {
        None => Ok(None),
        Some(node) => match node.text() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(error(Trouble::Shape, node, &format!("{key} is {}", node.kind()))),
        },
    }
}

fn mapping<'a>(holder: &'a Node, key: &str) -> Result<Option<&'a Node>, Error> {
    match holder.get(key) {
        None => Ok(None),
        Some(node) if matches!(node.value, Value::Mapping(_)) => Ok(Some(node)),
        Some(node) => Err(error(Trouble::Shape, node, &format!("{key} is {}", node.kind()))),
    }
}

fn error(trouble: Trouble, node: &Node, what: &str) -> Error {
    Error { trouble, at: node.at, what: what.to_owned() }
}

impl From<Refusal> for Error {
    fn from(Refusal { why, at, what }: Refusal) -> Self {
        let trouble = match why {
            Why::Syntax => Trouble::Syntax,
            Why::Missing | Why::Shape => Trouble::Shape,
            _ => Trouble::Edit,
        };
        Self { trouble, at, what }
    }
}

#[cfg(test)]
#[path = "kubeadm_config_tests.rs"]
mod tests;
