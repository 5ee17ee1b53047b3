//! Where the members are, as whom to ask, and how long to wait.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How to reach a cluster; the defaults are etcdctl's (etcdctl/ctlv3/ctl.go, checked at 3.7.3).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Endpoints as `--endpoints` spells them.
    pub endpoints: Vec<String>,
    /// Certificates.
    pub tls: Tls,
    /// Who asks; `None` where authentication is off, or a client certificate says it.
    pub user: Option<Credentials>,
    /// A token that stands in for user and password (etcd's `--auth-token=jwt`).
    pub token: Option<Token>,
    /// Limit for one connection, name resolution and TLS included.
    pub dial_timeout: Duration,
    /// Limit for one question to one member, the connection included.
    pub command_timeout: Duration,
    /// Time without a byte after which a busy connection is asked for a sign of life; etcd takes
    /// it ill below ten seconds, so that it is never asked more often.
    pub keepalive_time: Duration,
    /// Limit for that sign.
    pub keepalive_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoints: vec!["127.0.0.1:2379".to_owned()],
            tls: Tls::default(),
            user: None,
            token: None,
            dial_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(5),
            keepalive_time: Duration::from_secs(2),
            keepalive_timeout: Duration::from_secs(6),
        }
    }
}

impl Settings {
    /// Writes the flags with which the same members are reached, by etcdctl or by us; the password
    /// stays where it is.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        let tls = &self.tls;
        let files = [("cacert", &tls.cacert), ("cert", &tls.cert), ("key", &tls.key)];
        let named = files.into_iter().filter_map(|(flag, file)| {
            file.as_ref().map(|file| format!("--{flag}={}", file.display()))
        });
        let mut flags: Vec<String> = named.collect();
        if tls.insecure_skip_verify {
            flags.push("--insecure-skip-tls-verify".into());
        }
        if tls.required {
            flags.push("--insecure-transport=false".into());
        }
        flags.extend(self.user.as_ref().map(|user| format!("--user={}", user.shown())));
        flags
    }
}

/// Certificates, as PEM files.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Authorities that members' certificates must come from; `None`: those of the system.
    pub cacert: Option<PathBuf>,
    /// The certificate to show.
    pub cert: Option<PathBuf>,
    /// Its key: PKCS#8, PKCS#1 or SEC1.
    pub key: Option<PathBuf>,
    /// Take any certificate of a member.
    pub insecure_skip_verify: bool,
    /// Endpoints without a scheme use TLS even where no file is named.
    pub required: bool,
}

impl Tls {
    /// Tells whether endpoints without a scheme use TLS.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.required || self.cacert.is_some() || self.cert.is_some() || self.key.is_some()
    }
}

/// A user's name and password; the password shows nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name.
    pub name: String,
    /// Password.
    pub password: String,
}

impl Credentials {
    /// Returns the name without what may be a password behind a colon, to be shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.name.split(':').next().unwrap_or_default()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.shown()).finish_non_exhaustive()
    }
}

/// A token that says who asks; it shows nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_show_nowhere() {
        let user = Credentials { name: "root".into(), password: "hunter2".into() };
        let token = Some(Token("hunter2".into()));
        let settings = Settings { user: Some(user), token, ..Settings::default() };
        let text = format!("{settings:?}");
        assert!(text.contains("root") && !text.contains("hunter2"), "{text}");
    }
}
