//! Flags and environment that say where the members are and as whom to ask: etcdctl's.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration;
use crate::live::{Credentials, Settings, Tls};
use crate::ops::Error;

/// Heading of these flags in every help text.
const HEADING: &str = "Connection (for commands that ask running members)";

/// Flags of every command that asks running members.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct Connection {
    /// Client URLs of the members [default: 127.0.0.1:2379] [env: ETCDCTL_ENDPOINTS]
    #[arg(long, global = true, value_name = "URL,...", value_delimiter = ',')]
    endpoints: Vec<String>,
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
}

impl Connection {
    /// Tells whether members were named on the command line.
    pub(super) fn is_given(&self) -> bool {
        !self.endpoints.is_empty()
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

    /// Fills in the environment and the defaults.
    ///
    /// # Errors
    ///
    /// [`crate::ops::ExitCode::Usage`] for a variable or a user that cannot be read.
    pub(super) fn settings(&self) -> Result<Settings, Error> {
        let defaults = Settings::default();
        let endpoints = match (self.endpoints.is_empty(), variable("ENDPOINTS")) {
            (false, _) => self.endpoints.clone(),
            (true, Some(list)) => list.split(',').map(str::to_owned).collect(),
            (true, None) => defaults.endpoints,
        };
        let file = |flag: &Option<PathBuf>, name| {
            flag.clone().or_else(|| variable(name).map(PathBuf::from))
        };
        let tls = Tls {
            cacert: file(&self.cacert, "CACERT"),
            cert: file(&self.cert, "CERT"),
            key: file(&self.key, "KEY"),
            insecure_skip_verify: flag(self.insecure_skip_tls_verify, "INSECURE_SKIP_TLS_VERIFY")?
                .unwrap_or(false),
            required: !flag(self.insecure_transport, "INSECURE_TRANSPORT")?.unwrap_or(true),
        };
        Ok(Settings {
            endpoints,
            tls,
            user: self.credentials()?,
            dial_timeout: limit(self.dial_timeout, "DIAL_TIMEOUT")?
                .unwrap_or(defaults.dial_timeout),
            command_timeout: limit(self.command_timeout, "COMMAND_TIMEOUT")?
                .unwrap_or(defaults.command_timeout),
        })
    }

    fn credentials(&self) -> Result<Option<Credentials>, Error> {
        let Some(user) = self.user.clone().or_else(|| variable("USER")) else { return Ok(None) };
        let given = self.password.clone().or_else(|| variable("PASSWORD"));
        // etcdctl takes a colon for the password's only where no password is given apart.
        let (name, password) = match (given, user.split_once(':')) {
            (Some(password), _) => (user, password),
            (None, Some((name, password))) => (name.to_owned(), password.to_owned()),
            (None, None) => {
                let password = self.password_of(&user)?;
                (user, password)
            }
        };
        Ok(Some(Credentials { name, password }))
    }

    fn password_of(&self, user: &str) -> Result<String, Error> {
        let file = self.password_file.clone();
        let Some(path) = file.or_else(|| variable("PASSWORD_FILE").map(PathBuf::from)) else {
            return Err(Error::usage(format!("the user {user} has no password"))
                .hint("set ETCDCTL_PASSWORD, or give --password-file FILE"));
        };
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::io(&error, "read", &path))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }
}

/// Reads `ETCDKIT_NAME`, else `ETCDCTL_NAME`; an empty one counts as none.
fn variable(name: &str) -> Option<String> {
    ["ETCDKIT_", "ETCDCTL_"]
        .iter()
        .find_map(|prefix| std::env::var(format!("{prefix}{name}")).ok().filter(|v| !v.is_empty()))
}

fn flag(given: Option<bool>, name: &str) -> Result<Option<bool>, Error> {
    match (given, variable(name)) {
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
    match (given, variable(name)) {
        (Some(given), _) => Ok(Some(given)),
        (None, None) => Ok(None),
        (None, Some(text)) => duration::parse(&text)
            .map(Some)
            .map_err(|what| Error::usage(format!("{name} in the environment: {what}"))),
    }
}
