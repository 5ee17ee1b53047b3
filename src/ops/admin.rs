//! Who is no administrator is told before anything starts.

use super::cluster::attend;
use super::{Error, ExitCode, Progress};
use crate::live::{Access, Cluster, Settings};

/// Asks the members what the one who asks may do, and refuses who may not do this, named as in
/// `compact`. What else is wrong with the members is left to the questions that follow.
///
/// # Errors
///
/// As [`check`]; wrong settings, TLS and logins that are refused, an interruption.
pub(super) fn ask(settings: &Settings, what: &str, progress: &dyn Progress) -> Result<(), Error> {
    let asked = settings.clone();
    match attend(progress, move || Ok(Cluster::open(asked)?.access()?)) {
        Ok(access) => check(&access, what),
        Err(error) => match error.code {
            ExitCode::Tls | ExitCode::Interrupted | ExitCode::Usage => Err(error),
            _ => Ok(()),
        },
    }
}

/// Refuses who may not do this, named as in `compact`.
///
/// # Errors
///
/// [`ExitCode::Tls`]: who it is, which roles it has, and which one it needs.
pub(super) fn check(access: &Access, what: &str) -> Result<(), Error> {
    if access.is_admin() {
        return Ok(());
    }
    let who = match access.user.as_str() {
        "" => "whoever asks".to_owned(),
        user => format!("the user {user}"),
    };
    let has = match access.roles.as_slice() {
        [] => String::new(),
        roles => format!("; it has {}", roles.join(", ")),
    };
    let message = format!("{who} may not {what}: that needs the role root{has}; nothing was done");
    Err(Error::new(ExitCode::Tls, message).because("auth").hint(
        "use a user with the role root, as --user root with the password in ETCDCTL_PASSWORD, or: \
         etcdctl user grant-role NAME root",
    ))
}
