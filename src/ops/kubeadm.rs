//! Where a control-plane node's etcd is and which certificates open it, by its static pods.
//!
//! Reads `etcd.yaml`; where the node has none, its etcd is elsewhere and `kube-apiserver.yaml`
//! beside it says where. Opens no connection. The certificate for clients is the one that kubeadm
//! makes for its own health checks; it lies beside the authority's (kubeadm 1.28 to 1.35, checked
//! at 1.34.4).

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::{Error, ExitCode};
use crate::kube::apiserver;
use crate::kube::manifest::{self, EtcdManifest, Home};

/// Where kubeadm puts the manifest.
pub const DEFAULT_PATH: &str = "/etc/kubernetes/manifests/etcd.yaml";
/// The folder of manifests, below the root of a node.
const MANIFESTS: &str = "etc/kubernetes/manifests";
const ETCD: &str = "etcd.yaml";
const API_SERVER: &str = "kube-apiserver.yaml";

/// What the manifests say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Endpoints to ask.
    pub endpoints: Vec<String>,
    /// Authority of the members' certificates.
    pub cacert: Option<PathBuf>,
    /// Certificate to show.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The file that said so.
    pub manifest: PathBuf,
    /// That the etcd is elsewhere, as a sentence, where it is.
    pub elsewhere: Option<String>,
    /// What is not as kubeadm makes it about the certificate to show, as sentences.
    pub notes: Vec<String>,
}

/// Reads a node's manifests: `path` is etcd.yaml, the folder of manifests, or the root of a node.
///
/// # Errors
///
/// [`ExitCode::NotFound`] when there is no manifest, [`ExitCode::Failed`] when one cannot be read
/// or does not say how etcd is reached.
pub fn find(path: &Path) -> Result<Found, Error> {
    let file = manifest_at(path);
    let root = root_of(&file);
    match manifest::read(&file) {
        Ok(etcd) => own(&etcd, &file, root.as_deref()),
        Err(manifest::Error::Read { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            // Beside a file of another name there is no folder of manifests.
            let is_usual = file.file_name().is_some_and(|name| name == ETCD);
            let beside = is_usual.then(|| file.with_file_name(API_SERVER));
            match &beside {
                Some(beside) if beside.is_file() => external(beside, &file, root.as_deref()),
                _ => Err(missing(&file, beside.as_deref())),
            }
        }
        Err(error) => Err(unreadable(&file, &error)),
    }
}

/// Finds the manifest in a folder that was named.
fn manifest_at(path: &Path) -> PathBuf {
    if !path.is_dir() {
        return path.to_owned();
    }
    let below = path.join(MANIFESTS);
    match below.is_dir() {
        true => below.join(ETCD),
        false => path.join(ETCD),
    }
}

/// The root of the node, where it is not the root of this machine: as a pod sees its node.
fn root_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    let parts = Path::new(MANIFESTS);
    if !folder.ends_with(parts) {
        return None;
    }
    let root = folder.ancestors().nth(parts.components().count())?;
    (root != Path::new("/") && root != Path::new("")).then(|| root.to_owned())
}

/// Returns a path of the node as this machine has it.
fn on_this_machine(path: &str, root: Option<&Path>) -> PathBuf {
    let plain = PathBuf::from(path);
    let below = root.map(|root| root.join(path.trim_start_matches('/')));
    // A file that is there beats one that is not: the root may be a copy of the manifests alone.
    below.filter(|below| below.exists() || !plain.exists()).unwrap_or(plain)
}

fn own(etcd: &EtcdManifest, file: &Path, root: Option<&Path>) -> Result<Found, Error> {
    let mut found = Found { manifest: file.to_owned(), ..Found::default() };
    let lists = [&etcd.listen_client_urls, &etcd.advertise_client_urls];
    let urls = lists.into_iter().find(|urls| !urls.is_empty());
    let Some(url) = urls.and_then(|urls| chosen(urls)) else {
        return Err(silent(file, "at which URLs etcd serves clients (--listen-client-urls)"));
    };
    let is_plain = url.starts_with("http://");
    found.endpoints = vec![url];
    if is_plain {
        return Ok(found);
    }
    let on_host = |path: &Option<String>| -> Result<Option<PathBuf>, Error> {
        match path {
            Some(path) => host_path(etcd.home_of(path), path, file, root).map(Some),
            None => Ok(None),
        }
    };
    let server = (on_host(&etcd.cert_file)?, on_host(&etcd.key_file)?);
    found.cacert = match on_host(&etcd.trusted_ca_file)? {
        Some(authority) => Some(authority),
        None => {
            let beside = server.0.as_ref().map(|cert| cert.with_file_name("ca.crt"));
            beside.filter(|beside| beside.exists())
        }
    };
    let folder = found.cacert.as_ref().or(server.0.as_ref()).and_then(|file| file.parent());
    let made = folder.map(|folder| {
        (folder.join("healthcheck-client.crt"), folder.join("healthcheck-client.key"))
    });
    let peer = (on_host(&etcd.peer_cert_file)?, on_host(&etcd.peer_key_file)?);
    let whole = |(cert, key): (Option<PathBuf>, Option<PathBuf>)| cert.zip(key);
    let candidates = [made.clone(), whole(server), whole(peer)];
    let there = |(cert, key): &(PathBuf, PathBuf)| cert.exists() && key.exists();
    let Some(pair) = candidates.into_iter().flatten().find(there) else {
        if let Some((cert, _)) = &made {
            found.notes.push(format!(
                "there is no {}, nor a server's or peer's certificate with its key",
                cert.display()
            ));
        }
        return Ok(found);
    };
    if let Some((cert, _)) = made.filter(|made| *made != pair) {
        let (cert, used) = (cert.display(), pair.0.display());
        found.notes.push(format!("there is no {cert} with its key; {used} is shown instead"));
    }
    (found.cert, found.key) = (Some(pair.0), Some(pair.1));
    Ok(found)
}

fn external(file: &Path, own: &Path, root: Option<&Path>) -> Result<Found, Error> {
    let elsewhere = format!("there is no {}, so {} says", own.display(), file.display());
    let told = |error: Error| error.hint(format!("{elsewhere} which etcd to ask"));
    let server = apiserver::read(file).map_err(|error| told(unreadable(file, &error)))?;
    if server.etcd_servers.is_empty() {
        return Err(told(silent(file, "which etcd is used (--etcd-servers)")));
    }
    let on_host = |path: &Option<String>| -> Result<Option<PathBuf>, Error> {
        match path {
            Some(path) => host_path(server.home_of(path), path, file, root).map(Some).map_err(told),
            None => Ok(None),
        }
    };
    Ok(Found {
        cacert: on_host(&server.etcd_ca_file)?,
        cert: on_host(&server.etcd_cert_file)?,
        key: on_host(&server.etcd_key_file)?,
        endpoints: server.etcd_servers,
        manifest: file.to_owned(),
        elsewhere: Some(format!("{elsewhere} which etcd is asked and with which certificates")),
        notes: Vec::new(),
    })
}

/// Chooses the URL that this node reaches most surely: one of its loopback, else the first.
fn chosen(urls: &[String]) -> Option<String> {
    let usable = || urls.iter().filter(|url| url.starts_with("http"));
    let is_loopback = |url: &&String| match host_of(url) {
        Some("localhost") => true,
        Some(host) => host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
        None => false,
    };
    let url = usable().find(is_loopback).or_else(|| usable().next())?;
    // What listens everywhere is asked at the loopback.
    match host_of(url).and_then(|host| host.parse::<IpAddr>().ok()) {
        Some(IpAddr::V4(address)) if address.is_unspecified() => {
            Some(url.replacen("0.0.0.0", "127.0.0.1", 1))
        }
        Some(IpAddr::V6(address)) if address.is_unspecified() => {
            Some(url.replacen("[::]", "[::1]", 1))
        }
        _ => Some(url.clone()),
    }
}

fn host_of(url: &str) -> Option<&str> {
    let (_, address) = url.split_once("://")?;
    let (host, _) = address.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

fn host_path(home: Home, path: &str, file: &Path, root: Option<&Path>) -> Result<PathBuf, Error> {
    match home {
        Home::Host(host) => Ok(on_this_machine(&host.path, root)),
        Home::Volume { volume } => {
            let what = format!("{path} is in the volume {volume}, which is no folder of the node");
            Err(Error::new(ExitCode::Failed, format!("{}: {what}", file.display()))
                .hint("give --cacert, --cert and --key"))
        }
        Home::Container => {
            let what = format!("{path} is in the image, not on the node");
            Err(Error::new(ExitCode::Failed, format!("{}: {what}", file.display()))
                .hint("give --cacert, --cert and --key"))
        }
    }
}

fn missing(file: &Path, beside: Option<&Path>) -> Error {
    let file = file.display();
    let message = match beside.map(Path::display) {
        Some(beside) => format!("there is no {file}, and no {beside} that would name another etcd"),
        None => format!("there is no {file}"),
    };
    Error::new(ExitCode::NotFound, message)
        .hint("run this on a control-plane node, or give --from-kubeadm=PATH of etcd.yaml")
        .hint("or give --endpoints, --cacert, --cert and --key")
}

fn unreadable(file: &Path, error: &manifest::Error) -> Error {
    let message = match error {
        manifest::Error::Read { .. } => error.to_string(),
        error => format!("{}: {error}", file.display()),
    };
    let denied = matches!(error, manifest::Error::Read { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied);
    let error = Error::new(ExitCode::Failed, message);
    match denied {
        true => error.hint("manifests are root's to read: run this as root"),
        false => error.hint("give --endpoints, --cacert, --cert and --key"),
    }
}

fn silent(file: &Path, what: &str) -> Error {
    Error::new(ExitCode::Failed, format!("{} does not say {what}", file.display()))
        .hint("give --endpoints, --cacert, --cert and --key")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn node() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join(MANIFESTS);
        fs::create_dir_all(&manifests).unwrap();
        fs::create_dir_all(dir.path().join("etc/kubernetes/pki/etcd")).unwrap();
        (dir, manifests)
    }

    fn fixture(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kubernetes/manifests");
        fs::read(Path::new(folder).join(name)).unwrap()
    }

    fn make(dir: &Path, names: &[&str]) {
        for name in names {
            fs::write(dir.join("etc/kubernetes/pki/etcd").join(name), "x").unwrap();
        }
    }

    #[test]
    fn a_node_of_kubeadm_is_read_by_any_of_its_names() {
        let (dir, manifests) = node();
        fs::write(manifests.join(ETCD), fixture("single-v1beta4.yaml")).unwrap();
        let pairs = ["healthcheck-client.crt", "healthcheck-client.key", "server.crt", "ca.crt"];
        make(dir.path(), &pairs);
        let pki = dir.path().join("etc/kubernetes/pki/etcd");
        for path in [dir.path(), &manifests, &manifests.join(ETCD)] {
            let found = find(path).unwrap();
            assert_eq!(found.endpoints, ["https://127.0.0.1:2379"]);
            assert_eq!(found.cacert, Some(pki.join("ca.crt")));
            assert_eq!(found.cert, Some(pki.join("healthcheck-client.crt")));
            assert_eq!(found.key, Some(pki.join("healthcheck-client.key")));
            assert!(found.notes.is_empty(), "{:?}", found.notes);
        }
    }

    #[test]
    fn the_servers_certificate_stands_in_and_that_is_said() {
        let (dir, manifests) = node();
        fs::write(manifests.join(ETCD), fixture("single-v1beta4.yaml")).unwrap();
        make(dir.path(), &["healthcheck-client.crt", "server.crt", "server.key", "ca.crt"]);
        let found = find(dir.path()).unwrap();
        assert!(found.cert.unwrap().ends_with("server.crt"));
        assert!(found.notes[0].contains("healthcheck-client.crt"), "{:?}", found.notes);
        fs::remove_file(dir.path().join("etc/kubernetes/pki/etcd/server.key")).unwrap();
        make(dir.path(), &["peer.crt", "peer.key"]);
        assert!(find(dir.path()).unwrap().cert.unwrap().ends_with("peer.crt"));
    }

    #[test]
    fn an_etcd_elsewhere_is_found_through_the_api_server() {
        let (dir, manifests) = node();
        fs::write(manifests.join(API_SERVER), fixture("kube-apiserver-external.yaml")).unwrap();
        let found = find(dir.path()).unwrap();
        let servers = ["11", "12", "13"].map(|last| format!("https://10.0.1.{last}:2379"));
        assert_eq!(found.endpoints, servers);
        assert_eq!(found.cacert, Some(dir.path().join("etc/etcd/pki/ca.crt")));
        assert!(found.key.unwrap().ends_with("apiserver-etcd-client.key"));
        let elsewhere = found.elsewhere.unwrap();
        for name in [ETCD, API_SERVER] {
            assert!(elsewhere.contains(name), "{elsewhere}");
        }
        fs::write(manifests.join(API_SERVER), "kind: [").unwrap();
        let hints = find(dir.path()).unwrap_err().hints.join("\n");
        assert!(hints.contains(ETCD), "{hints}");
    }

    #[test]
    fn what_is_missing_or_mute_is_said() {
        let (dir, manifests) = node();
        let error = find(dir.path()).unwrap_err();
        assert_eq!(error.code, ExitCode::NotFound);
        assert!(error.message.contains("etcd.yaml"), "{}", error.message);
        let none = dir.path().join("none");
        let error = find(&none).unwrap_err();
        assert_eq!(error.message, format!("there is no {}", none.display()));
        let pod = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [etcd]\n";
        fs::write(manifests.join(ETCD), pod).unwrap();
        let error = find(dir.path()).unwrap_err();
        assert!(error.message.contains("--listen-client-urls"), "{}", error.message);
        fs::write(manifests.join(ETCD), "kind: [").unwrap();
        let error = find(dir.path()).unwrap_err();
        assert!(error.message.contains("etcd.yaml: line "), "{}", error.message);
    }

    #[test]
    fn the_loopback_is_chosen_and_everywhere_is_the_loopback() {
        let pick =
            |urls: &[&str]| chosen(&urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>());
        assert_eq!(pick(&["https://10.0.0.1:1", "https://[::1]:1"]).unwrap(), "https://[::1]:1");
        assert_eq!(pick(&["https://10.0.0.1:1", "https://a:1"]).unwrap(), "https://10.0.0.1:1");
        assert_eq!(pick(&["https://0.0.0.0:2379"]).unwrap(), "https://127.0.0.1:2379");
        assert_eq!(pick(&["http://[::]:2379"]).unwrap(), "http://[::1]:2379");
        assert_eq!(pick(&["unix:///run/etcd"]), None);
    }
}
