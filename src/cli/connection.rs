//! Flags and environment that say where the members are and as whom to ask: etcdctl's.
//!
//! What is given on the command line wins over `ETCDKIT_*`, that over `ETCDCTL_*`, and that over
//! what `--from-kubeadm` finds. Variables are read by commands that ask members and by no others.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{duration, output, prompt};
use crate::live::{Credentials, Settings, Tls, Token};
use crate::ops::Error;
use crate::ops::kubeadm::{self, Found};

/// Heading of these flags in every help text.
const HEADING: &str = "Connection (for commands that ask running members)";

/// Flags of every command that asks running members.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct Connection {
    /// Client URLs of the members [default: 127.0.0.1:2379] [env: ETCDCTL_ENDPOINTS]
    #[arg(long, global = true, value_name = "URL,...", value_delimiter = ',')]
    endpoints: Vec<String>,
    /// Take endpoints and certificates from this node's static pod: etcd.yaml, a folder of
    /// manifests, or the root of a node [default: /etc/kubernetes/manifests/etcd.yaml]
    #[arg(long, global = true, value_name = "PATH", num_args = 0..=1, require_equals = true,
        default_missing_value = kubeadm::DEFAULT_PATH)]
    from_kubeadm: Option<PathBuf>,
    /// Ask every member that the cluster has
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    cluster: Option<bool>,
    /// Authority that members' certificates must come from [env: ETCDCTL_CACERT]
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Certificate to show to members [env: ETCDCTL_CERT]
    #[arg(long, global = true, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Key of that certificate [env: ETCDCTL_KEY]
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Take any certificate of a member [env: ETCDCTL_INSECURE_SKIP_TLS_VERIFY]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    insecure_skip_tls_verify: Option<bool>,
    /// Use plain http for endpoints without a scheme where no certificate is named
    /// [default: true] [env: ETCDCTL_INSECURE_TRANSPORT]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    insecure_transport: Option<bool>,
    /// User, where authentication is on; the password is better not given here
    /// [env: ETCDCTL_USER]
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]")]
    user: Option<String>,
    /// Password; better in the environment or a file, since command lines are seen by everybody
    /// [env: ETCDCTL_PASSWORD]
    #[arg(long, global = true, value_name = "PASSWORD")]
    password: Option<String>,
    /// File whose first line is the password [env: ETCDKIT_PASSWORD_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Limit for making a connection [default: 2s] [env: ETCDCTL_DIAL_TIMEOUT]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration::parse)]
    dial_timeout: Option<Duration>,
    /// Limit for one question to one member [default: 5s] [env: ETCDCTL_COMMAND_TIMEOUT]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration::parse)]
    command_timeout: Option<Duration>,
    /// A token instead of user and password [env: ETCDCTL_AUTH_JWT_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with_all = ["user", "password"])]
    auth_jwt_token: Option<String>,
    /// Time after which a silent connection is asked for a sign of life [default: 2s, as
    /// etcdctl's; below 10s it is 10s] [env: ETCDCTL_KEEPALIVE_TIME]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration::parse)]
    keepalive_time: Option<Duration>,
    /// Limit for that sign [default: 6s] [env: ETCDCTL_KEEPALIVE_TIMEOUT]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration::parse)]
    keepalive_timeout: Option<Duration>,
    /// Whether notes are JSON.
    #[arg(skip)]
    json: bool,
}

impl Connection {
    /// Says whether notes are JSON.
    pub(super) fn noting(self, json: bool) -> Self {
        Self { json, ..self }
    }

    /// Tells whether members were named on the command line.
    pub(super) fn is_given(&self) -> bool {
        !self.endpoints.is_empty() || self.from_kubeadm.is_some()
    }

    /// Tells whether every member that the cluster has is to be asked.
    pub(super) fn whole_cluster(&self) -> bool {
        self.cluster.unwrap_or(false)
    }

    /// Returns the limit for a command where one was given, as etcdctl has it for all of one.
    ///
    /// # Errors
    ///
    /// [`crate::ops::ExitCode::Usage`] for a variable that cannot be read.
    pub(super) fn command_limit(&self) -> Result<Option<Duration>, Error> {
        limit(self.command_timeout, "COMMAND_TIMEOUT")
    }

    /// Fills in the environment, what a node's manifests say, and the defaults.
    ///
    /// # Errors
    ///
    /// [`crate::ops::ExitCode::Usage`] for a variable or a user that cannot be read, and those of
    /// [`kubeadm::find`].
    pub(super) fn settings(&self) -> Result<Settings, Error> {
        let defaults = Settings::default();
        let found = match &self.from_kubeadm {
            Some(path) => kubeadm::find(path)?,
            None => Found::default(),
        };
        // What the command line names wins over the environment, a node's manifests too: a cron job
        // must not save another cluster because of a variable.
        let is_found = self.from_kubeadm.is_some();
        if self.endpoints.iter().all(|one| one.trim().is_empty()) && !self.endpoints.is_empty() {
            return Err(Error::usage("--endpoints is empty: it names no member").hint(
                "give --endpoints https://10.0.0.1:2379, or leave it out for 127.0.0.1:2379",
            ));
        }
        let endpoints = match (self.endpoints.is_empty(), variable("ENDPOINTS")?) {
            (false, _) => self.endpoints.clone(),
            (true, _) if !found.endpoints.is_empty() => found.endpoints.clone(),
            (true, Some(list)) => list.split(',').map(str::to_owned).collect(),
            (true, None) => defaults.endpoints,
        };
        if let Some(elsewhere) = &found.elsewhere {
            self.note(elsewhere);
        }
        let file = |flag: &Option<PathBuf>, name| {
            let named = || variable_os(name).filter(|_| !is_found).map(PathBuf::from);
            flag.clone().or_else(named)
        };
        let (cert, key) = (file(&self.cert, "CERT"), file(&self.key, "KEY"));
        // One of the two belongs to the other, wherever they come from.
        let (cert, key) = match (cert, key) {
            (None, None) => {
                found.notes.iter().for_each(|note| self.note(note));
                (found.cert, found.key)
            }
            given => given,
        };
        let tls = Tls {
            cacert: file(&self.cacert, "CACERT").or(found.cacert),
            cert,
            key,
            insecure_skip_verify: match (self.insecure_skip_tls_verify, is_found) {
                // A variable does not take the node's own authority away.
                (given, true) => given.unwrap_or(false),
                (given, false) => flag(given, "INSECURE_SKIP_TLS_VERIFY")?.unwrap_or(false),
            },
            required: !flag(self.insecure_transport, "INSECURE_TRANSPORT")?.unwrap_or(true),
        };
        let limit = |given, name, default| limit(given, name).map(|limit| limit.unwrap_or(default));
        let token = self.token()?;
        Ok(Settings {
            endpoints,
            tls,
            user: if token.is_none() { self.credentials()? } else { None },
            token,
            dial_timeout: limit(self.dial_timeout, "DIAL_TIMEOUT", defaults.dial_timeout)?,
            command_timeout: limit(
                self.command_timeout,
                "COMMAND_TIMEOUT",
                defaults.command_timeout,
            )?,
            keepalive_time: limit(self.keepalive_time, "KEEPALIVE_TIME", defaults.keepalive_time)?,
            keepalive_timeout: limit(
                self.keepalive_timeout,
                "KEEPALIVE_TIMEOUT",
                defaults.keepalive_timeout,
            )?,
        })
    }

    fn note(&self, note: &str) {
        let line = match self.json {
            true => json!({ "note": note }).to_string(),
            false => format!("note: {note}"),
        };
        output::say(&line);
    }

    /// A user on the command line wins over a token in the environment.
    fn token(&self) -> Result<Option<Token>, Error> {
        let given = match (&self.auth_jwt_token, &self.user) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(_)) => None,
            (None, None) => variable("AUTH_JWT_TOKEN")?,
        };
        let Some(token) = given.filter(|token| !token.is_empty()) else { return Ok(None) };
        if !token.chars().all(|c| c.is_ascii_graphic()) {
            return Err(Error::usage("the token holds blanks or odd characters"));
        }
        Ok(Some(Token(token)))
    }

    fn credentials(&self) -> Result<Option<Credentials>, Error> {
        let user = match &self.user {
            Some(user) => Some(user.clone()),
            None => variable("USER")?,
        };
        let Some(user) = user.filter(|user| !user.is_empty()) else { return Ok(None) };
        let on_the_line = match (&self.password, &self.password_file, &self.user) {
            (Some(password), ..) => Some(password.clone()),
            (None, Some(file), _) => Some(password_in(file)?),
            // A password behind a colon is one too, and is not to be taken for a part of the name.
            (None, None, Some(user)) if user.contains(':') => None,
            (None, None, _) => variable("PASSWORD")?,
        };
        let given = on_the_line.filter(|password| !password.is_empty());
        // etcdctl takes a colon for the password's only where no password is given apart.
        let (name, password) = match (given, user.split_once(':')) {
            (Some(password), _) => (user, password),
            (None, Some((name, password))) => (name.to_owned(), password.to_owned()),
            (None, None) => {
                let password = password_of(&user)?;
                (user, password)
            }
        };
        Ok(Some(Credentials { name, password }))
    }
}

/// Finds a password that was not given: in the file that a variable names, or at the terminal.
fn password_of(user: &str) -> Result<String, Error> {
    if let Some(path) = variable_os("PASSWORD_FILE") {
        return password_in(Path::new(&path));
    }
    prompt::password(user)?.ok_or_else(|| {
        Error::usage(format!("the user {user} has no password"))
            .hint("set ETCDCTL_PASSWORD, or give --password-file FILE")
    })
}

/// Reads a file's first line.
fn password_in(path: &Path) -> Result<String, Error> {
    let bytes = read_start(path).map_err(|error| Error::io(&error, "read", path))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let shown = path.display();
    match std::str::from_utf8(line) {
        Ok("") => Err(Error::usage(format!("the first line of {shown} is empty"))
            .hint("it must be the password")),
        Ok(password) => Ok(password.to_owned()),
        Err(_) => Err(Error::usage(format!("the first line of {shown} is no text in UTF-8"))),
    }
}

/// Reads what a password may take of a file.
fn read_start(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    io::Read::read_to_end(&mut io::Read::take(file, 64 * 1024), &mut bytes)?;
    Ok(bytes)
}

/// Reads `ETCDKIT_NAME`, else `ETCDCTL_NAME`; an empty one counts as none.
fn variable_os(name: &str) -> Option<OsString> {
    ["ETCDKIT_", "ETCDCTL_"].iter().find_map(|prefix| {
        std::env::var_os(format!("{prefix}{name}")).filter(|value| !value.is_empty())
    })
}

/// Reads a variable that is text.
fn variable(name: &str) -> Result<Option<String>, Error> {
    let unreadable = |_| Error::usage(format!("{name} in the environment is no text in UTF-8"));
    variable_os(name).map(|value| value.into_string().map_err(unreadable)).transpose()
}

fn flag(given: Option<bool>, name: &str) -> Result<Option<bool>, Error> {
    match (given, variable(name)?) {
        (Some(given), _) => Ok(Some(given)),
        (None, None) => Ok(None),
        (None, Some(text)) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Some(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Some(false)),
            _ => Err(Error::usage(format!("{name} in the environment is neither true nor false"))),
        },
    }
}

fn limit(given: Option<Duration>, name: &str) -> Result<Option<Duration>, Error> {
    let limit = match (given, variable(name)?) {
        (Some(given), _) => given,
        (None, None) => return Ok(None),
        (None, Some(text)) => duration::parse(&text)
            .map_err(|what| Error::usage(format!("{name} in the environment: {what}")))?,
    };
    // etcdctl waits for ever then, or not at all.
    if limit.is_zero() {
        let flag = name.to_ascii_lowercase().replace('_', "-");
        return Err(Error::usage(format!("--{flag} 0 is no time to wait"))
            .hint(format!("give a limit, as --{flag} 30s")));
    }
    Ok(Some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, FromArgMatches, Parser};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        connection: Connection,
    }

    fn parse(words: &[&str]) -> Result<Connection, clap::Error> {
        let all = std::iter::once(&"etcdkit").chain(words);
        let matches = Words::command().try_get_matches_from(all)?;
        Ok(Words::from_arg_matches(&matches)?.connection)
    }

    #[test]
    fn a_user_is_read_as_etcdctl_reads_it() {
        for (words, name, password) in [
            (&["--user", "root:pw"][..], "root", "pw"),
            (&["--user=root:p:w"], "root", "p:w"),
            (&["--user=root", "--password=pw"], "root", "pw"),
            (&["--user=root:x", "--password=pw"], "root:x", "pw"),
        ] {
            let user = parse(words).unwrap().settings().unwrap().user.unwrap();
            assert_eq!((user.name.as_str(), user.password.as_str()), (name, password));
        }
        assert_eq!(parse(&["--password=pw"]).unwrap().settings().unwrap().user, None);
        assert!(parse(&["--user=a", "--auth-jwt-token=b"]).is_err());
        let token = parse(&["--auth-jwt-token=a.b"]).unwrap().settings().unwrap().token;
        assert_eq!(token, Some(Token("a.b".to_owned())));
        assert!(parse(&["--auth-jwt-token=a b"]).unwrap().settings().is_err());
    }

    #[test]
    fn a_password_stands_in_the_first_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let flag = format!("--password-file={}", file.display());
        let password = || {
            let settings = parse(&["--user=root", &flag]).unwrap().settings()?;
            Ok::<_, Error>(settings.user.unwrap().password)
        };
        assert!(password().is_err());
        for (bytes, expected) in [
            (&b"pw\nrest"[..], Some("pw")),
            (b"p w\r\n", Some("p w")),
            (b"\n", None),
            (b"\xff", None),
        ] {
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(password().ok().as_deref(), expected);
        }
    }

    #[test]
    fn an_empty_list_of_endpoints_is_said_to_be_one() {
        for words in [&["--endpoints", ""][..], &["--endpoints=,"], &["--endpoints= "]] {
            let error = parse(words).unwrap().settings().unwrap_err();
            assert!(error.message.contains("--endpoints is empty"), "{}", error.message);
            assert_eq!(error.code.number(), 2);
        }
    }

    #[test]
    fn no_wait_is_without_a_limit() {
        for flag in ["--dial-timeout", "--command-timeout", "--keepalive-timeout"] {
            assert!(parse(&[flag, "0"]).unwrap().settings().is_err());
            assert!(parse(&[flag, "90s"]).unwrap().settings().is_ok());
        }
    }

    #[test]
    fn what_is_given_wins_over_what_is_found() {
        let fixture = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/fixtures/kubernetes/manifests/kube-apiserver-external.yaml"
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixture, dir.path().join("kube-apiserver.yaml")).unwrap();
        let flag = format!("--from-kubeadm={}", dir.path().display());
        let connection = parse(&[&flag]).unwrap();
        assert!(connection.is_given());
        let found = connection.settings().unwrap();
        assert_eq!(found.endpoints.len(), 3);
        assert_eq!(found.tls.cacert.as_deref(), Some(Path::new("/etc/etcd/pki/ca.crt")));
        let words = [&flag, "--endpoints=a:1", "--cert=c", "--key=k", "--cacert=ca"];
        let given = parse(&words).unwrap().settings().unwrap();
        assert_eq!(given.endpoints, ["a:1"]);
        let files = [given.tls.cacert, given.tls.cert, given.tls.key];
        assert_eq!(files.map(|file| file.unwrap()), ["ca", "c", "k"].map(PathBuf::from));
    }
}
