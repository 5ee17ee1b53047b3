//! The static pod that runs kube-apiserver: which etcd it uses, and with which certificates.
//!
//! **Shape**: a Pod as in [`super::manifest`]; the flags `--etcd-servers`, `--etcd-cafile`,
//! `--etcd-certfile` and `--etcd-keyfile` of kube-apiserver (Kubernetes
//! `staging/src/k8s.io/apiserver/pkg/server/options/etcd.go`, 1.34), the last one of each.
//!
//! **Errors**: [`Error`] with line and column.

use std::path::Path;

use super::flags::words;
use super::manifest::{self, Error, Home, Mount, Trouble, at, base_name, items, mapping};
use super::yaml;

/// Which etcd a kube-apiserver uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServerManifest {
    /// `--etcd-servers`.
    pub etcd_servers: Vec<String>,
    /// `--etcd-cafile`, a path in the container, as are the next two.
    pub etcd_ca_file: Option<String>,
    /// `--etcd-certfile`.
    pub etcd_cert_file: Option<String>,
    /// `--etcd-keyfile`.
    pub etcd_key_file: Option<String>,
    mounts: Vec<Mount>,
}

impl ApiServerManifest {
    /// Finds where an absolute path of the container is on the host.
    #[must_use]
    pub fn home_of(&self, path: &str) -> Home {
        manifest::home(&self.mounts, path)
    }
}

/// Reads a manifest file; it is not changed, and never waited for.
///
/// # Errors
///
/// [`Error::Read`] when it is not a regular file or cannot be read, [`Error::At`] for its text.
pub fn read(path: &Path) -> Result<ApiServerManifest, Error> {
    parse(&manifest::bytes_of(path)?)
}

/// Reads a manifest's text.
///
/// # Errors
///
/// [`Error::At`], with the line and column that it is about.
pub fn parse(bytes: &[u8]) -> Result<ApiServerManifest, Error> {
    let root = yaml::parse(bytes).map_err(|yaml::Error { at, what }| Error::At {
        trouble: Trouble::Syntax,
        at,
        what,
    })?;
    let Some(spec) = mapping(&root, "spec")? else {
        return Err(at(Trouble::Shape, &root, "a Pod without a spec"));
    };
    for container in items(spec, "containers")? {
        let words: Vec<_> = words(container)?.into_iter().map(|word| word.text).collect();
        let program = words.first().map(|word| base_name(word));
        if program == Some("kube-apiserver") {
            let flag = |name: &str| flag(&words, name);
            let servers = flag("etcd-servers").unwrap_or_default();
            let servers = servers.split(',').map(str::trim).filter(|url| !url.is_empty());
            return Ok(ApiServerManifest {
                etcd_servers: servers.map(str::to_owned).collect(),
                etcd_ca_file: flag("etcd-cafile"),
                etcd_cert_file: flag("etcd-certfile"),
                etcd_key_file: flag("etcd-keyfile"),
                mounts: manifest::mounts(spec, container)?,
            });
        }
    }
    Err(at(Trouble::Command, spec, "no container whose command is kube-apiserver"))
}

fn flag(words: &[&str], name: &str) -> Option<String> {
    let mut found = None;
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        match flag.split_once('=') {
            Some((flag, value)) if flag == name => found = Some(value),
            None if flag == name => found = rest.next().copied(),
            _ => {}
        }
    }
    found.filter(|value| !value.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "\
apiVersion: v1
kind: Pod
spec:
  containers:
  - command:
    - kube-apiserver
    - --etcd-cafile=/etc/etcd/pki/ca.crt
    - --etcd-servers
    - https://10.0.1.11:2379,https://10.0.1.12:2379
    volumeMounts:
    - mountPath: /etc/etcd/pki
      name: pki
  volumes:
  - name: pki
    hostPath:
      path: /srv/pki
";

    #[test]
    fn reads_which_etcd_it_uses() {
        let read = parse(POD.as_bytes()).unwrap();
        assert_eq!(read.etcd_servers, ["https://10.0.1.11:2379", "https://10.0.1.12:2379"]);
        let Home::Host(host) = read.home_of(&read.etcd_ca_file.clone().unwrap()) else {
            panic!("not on the host");
        };
        assert_eq!(host.path, "/srv/pki/ca.crt");
        assert_eq!(read.etcd_cert_file, None);
    }

    #[test]
    fn refuses_what_runs_something_else() {
        for text in ["", "a: b", "spec: 1", "spec:\n  containers:\n  - command: [etcd]\n"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
