//! What flags say about TLS, and what of it is wrong before any file is read.
//!
//! Source: etcd server/embed (`Config.Validate`, `configureClientListeners`), client/pkg/transport
//! (`TLSInfo.baseConfig`) and client/pkg/tlsutil, 3.7.3.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cipher;
use crate::store::lines::Log;

/// How long a handshake may take, as in etcd.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What a listener's TLS is to be. The fields are etcd's flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whose flags these are, for what errors say.
    pub side: Side,
    /// `--cert-file`.
    pub cert_file: Option<PathBuf>,
    /// `--key-file`.
    pub key_file: Option<PathBuf>,
    /// `--client-cert-file`: etcd's gateway shows it to etcd. It is checked, and used for nothing.
    pub client_cert_file: Option<PathBuf>,
    /// `--client-key-file`.
    pub client_key_file: Option<PathBuf>,
    /// `--trusted-ca-file`. Where it is given, clients must show a certificate, as in etcd, with or
    /// without `client_cert_auth`.
    pub trusted_ca_file: Option<PathBuf>,
    /// `--client-cert-auth`. Without `trusted_ca_file` the system's authorities are meant.
    pub client_cert_auth: bool,
    /// `--client-crl-file`: in DER, as etcd reads it, or PEM.
    pub crl_file: Option<PathBuf>,
    /// Common names of which a client's certificate must have one.
    pub allowed_names: Vec<String>,
    /// `--client-cert-allowed-hostname`: hosts of which a client's certificate must be for one.
    pub allowed_hostnames: Vec<String>,
    /// `--cipher-suites`, in Go's names.
    pub cipher_suites: Vec<String>,
    /// `--tls-min-version`; empty is `TLS1.2`.
    pub min_version: String,
    /// `--tls-max-version`; empty is the highest there is.
    pub max_version: String,
    /// `--auto-tls`; where a certificate is given it is of no effect.
    pub auto: Option<Auto>,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Where news of files and of refused connections goes.
    pub log: Log,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            side: Side::Client,
            cert_file: None,
            key_file: None,
            client_cert_file: None,
            client_key_file: None,
            trusted_ca_file: None,
            client_cert_auth: false,
            crl_file: None,
            allowed_names: Vec::new(),
            allowed_hostnames: Vec::new(),
            cipher_suites: Vec::new(),
            min_version: String::new(),
            max_version: String::new(),
            auto: None,
            handshake: HANDSHAKE,
            log: Log::default(),
        }
    }
}

/// A certificate that the server makes for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// Where `cert.pem` and `key.pem` are kept; etcd's is `fixtures/client` in the data directory.
    pub dir: PathBuf,
    /// `HOST:PORT` of the URLs that are listened on.
    pub hosts: Vec<String>,
    /// `--self-signed-cert-validity`.
    pub years: u32,
}

/// Which of etcd's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `--cert-file` and so on.
    Client,
    /// `--peer-cert-file` and so on.
    Peer,
}

/// Why TLS cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// Flags that do not go together or say what is not understood; etcd's words where it has some.
    #[error("{0}")]
    Flags(String),
    /// A file that does not hold what it should, or cannot be read or made.
    #[error("{}: {what}", path.display())]
    File {
        /// The file, or folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        what: String,
    },
}

impl TlsError {
    pub(super) fn file(path: &Path, what: impl fmt::Display) -> Self {
        Self::File { path: path.to_owned(), what: what.to_string() }
    }
}

impl Settings {
    /// Tells whether there is neither a certificate nor a key, nor one to be made: etcd then serves
    /// no https.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_none() && self.key_file.is_none() && self.auto.is_none()
    }

    /// Checks what needs no file: versions and cipher suites, as etcd does with or without TLS.
    ///
    /// # Errors
    ///
    /// [`TlsError::Flags`] with etcd's words.
    pub fn check(&self) -> Result<(), TlsError> {
        cipher::plan(&self.cipher_suites, &self.min_version, &self.max_version).map(|_| ())
    }

    /// Tells whether clients must show a certificate.
    #[must_use]
    pub fn wants_client_certificates(&self) -> bool {
        self.trusted_ca_file.is_some() || self.client_cert_auth
    }

    /// Returns how a flag is written on this side.
    pub(super) fn flag(&self, name: &str) -> String {
        match (self.side, name) {
            (Side::Client, "crl-file" | "cert-allowed-hostname" | "cert-allowed-cn") => {
                format!("--client-{name}")
            }
            (Side::Client, name) => format!("--{name}"),
            (Side::Peer, name) => format!("--peer-{name}"),
        }
    }

    /// Checks which files go together.
    pub(super) fn check_files(&self) -> Result<(), TlsError> {
        let name = |file: &Option<PathBuf>| {
            file.as_ref().map(|file| file.display().to_string()).unwrap_or_default()
        };
        let flags = |text| Err(TlsError::Flags(text));
        let is_given = self.cert_file.is_some() || self.key_file.is_some();
        if (is_given || self.auto.is_none())
            && (self.cert_file.is_none() || self.key_file.is_none())
        {
            return flags(format!(
                "KeyFile and CertFile must both be present[key: {}, cert: {}]: {} and {} belong \
                 together",
                name(&self.key_file),
                name(&self.cert_file),
                self.flag("cert-file"),
                self.flag("key-file"),
            ));
        }
        if self.client_cert_file.is_some() != self.client_key_file.is_some() {
            return flags(format!(
                "ClientKeyFile and ClientCertFile must both be present or both absent: key: {}, \
                 cert: {}]",
                name(&self.client_key_file),
                name(&self.client_cert_file),
            ));
        }
        if !self.allowed_names.is_empty() && !self.allowed_hostnames.is_empty() {
            return flags(format!(
                "AllowedCNs and AllowedHostnames are mutually exclusive (cns={}, hostnames={})",
                quoted(&self.allowed_names),
                quoted(&self.allowed_hostnames),
            ));
        }
        // etcd drops each of these in silence.
        if !is_given && self.wants_client_certificates() {
            return flags(format!(
                "{} serves everybody, with or without a certificate: give {} and {} of your own, \
                 or leave {} and {} away",
                self.flag("auto-tls"),
                self.flag("cert-file"),
                self.flag("key-file"),
                self.flag("client-cert-auth"),
                self.flag("trusted-ca-file"),
            ));
        }
        let rules = [
            ("crl-file", self.crl_file.is_some()),
            ("cert-allowed-hostname", !self.allowed_hostnames.is_empty()),
            ("cert-allowed-cn", !self.allowed_names.is_empty()),
        ];
        match rules.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) if !self.wants_client_certificates() => flags(format!(
                "{} looks at certificates of clients, and none is asked for: give {} and {}",
                self.flag(flag),
                self.flag("client-cert-auth"),
                self.flag("trusted-ca-file"),
            )),
            _ => Ok(()),
        }
    }
}

/// Writes a list as Go's `%q` does.
fn quoted(list: &[String]) -> String {
    let list: Vec<String> = list.iter().map(|one| format!("{one:?}")).collect();
    format!("[{}]", list.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(settings: &Settings) -> String {
        settings.check_files().unwrap_err().to_string()
    }

    #[test]
    fn files_that_belong_together_are_missed_in_etcds_words() {
        let mut settings = Settings { cert_file: Some("/c".into()), ..Settings::default() };
        let text = told(&settings);
        assert!(
            text.starts_with("KeyFile and CertFile must both be present[key: , cert: /c]"),
            "{text}"
        );
        settings.auto = Some(Auto { dir: "/d".into(), hosts: Vec::new(), years: 1 });
        assert_eq!(told(&settings), text, "a certificate without its key is not made up for");
        settings.key_file = Some("/k".into());
        settings.client_key_file = Some("/x".into());
        assert!(told(&settings).contains("both be present or both absent: key: /x, cert: ]"));
        settings.client_key_file = None;
        settings.allowed_names = vec!["a".to_owned(), "b".to_owned()];
        settings.allowed_hostnames = vec!["c".to_owned()];
        let text = told(&settings);
        assert!(text.contains("(cns=[\"a\" \"b\"], hostnames=[\"c\"])"), "{text}");
    }

    #[test]
    fn what_would_not_be_looked_at_is_refused() {
        let mut settings = Settings {
            auto: Some(Auto { dir: "/d".into(), hosts: Vec::new(), years: 1 }),
            client_cert_auth: true,
            ..Settings::default()
        };
        assert!(told(&settings).starts_with("--auto-tls serves everybody"));
        settings.client_cert_auth = false;
        assert_eq!(settings.check_files(), Ok(()));
        settings.crl_file = Some("/r".into());
        assert!(told(&settings).starts_with("--client-crl-file looks at certificates"));
        settings.side = Side::Peer;
        settings.crl_file = None;
        settings.allowed_names = vec!["a".to_owned()];
        assert!(told(&settings).starts_with("--peer-cert-allowed-cn looks"));
    }
}
