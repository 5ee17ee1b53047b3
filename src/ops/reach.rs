//! What a failure to reach a member means to the one who ran the command: exit code, next command.

use super::{Error, ExitCode};
use crate::live::{self, Cause, Problem, Side};

impl From<live::Error> for Error {
    fn from(error: live::Error) -> Self {
        let mut made = Self::new(code(&error.cause), error.to_string());
        made.hints = hints(&error);
        made
    }
}

/// Returns the exit code of a cause.
#[must_use]
pub fn code(cause: &Cause) -> ExitCode {
    match cause {
        Cause::NoEndpoints | Cause::Malformed { .. } => ExitCode::Usage,
        Cause::Material { .. }
        | Cause::WantsTls
        | Cause::WantsPlain
        | Cause::Certificate(_)
        | Cause::Tls { .. }
        | Cause::NotAuthenticated { .. }
        | Cause::NotPermitted { .. } => ExitCode::Tls,
        Cause::NameNotResolved { .. }
        | Cause::Refused
        | Cause::Unreachable { .. }
        | Cause::Timeout { .. }
        | Cause::Broken { .. }
        | Cause::PeerPort
        | Cause::NotEtcd { .. } => ExitCode::Unreachable,
        // UNAVAILABLE and DEADLINE_EXCEEDED, as "etcdserver: no leader".
        Cause::Answer { code: 4 | 14, .. } => ExitCode::Unreachable,
        // DATA_LOSS: "etcdserver: corrupt cluster", while a CORRUPT alarm is raised.
        Cause::Answer { code: 15, .. } => ExitCode::Damage,
        _ => ExitCode::Failed,
    }
}

fn hints(error: &live::Error) -> Vec<String> {
    let hint = match &error.cause {
        Cause::NoEndpoints => "name a member's client URL with --endpoints",
        Cause::PeerPort => "clients are served on the port of --listen-client-urls, 2379 as a rule",
        Cause::WantsTls => "use https:// and --cacert, --cert and --key",
        Cause::WantsPlain => "use http:// and no certificate flags",
        Cause::NotAuthenticated { .. } => "give --user NAME, with the password in ETCDCTL_PASSWORD",
        Cause::NotPermitted { .. } => "use a user with the role root",
        Cause::Certificate(certificate) => match (certificate.side, &certificate.problem) {
            (Side::Client, Problem::Missing) => "give a certificate with --cert and --key",
            (Side::Server, Problem::UnknownAuthority) => "name its authority with --cacert",
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![hint.to_owned()]
}
