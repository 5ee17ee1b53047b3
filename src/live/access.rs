//! What the one who asks may do, learned before anything starts.

use super::{Cause, Cluster, Error};

/// Who asks, and whether that is an administrator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The user, where one was named.
    pub user: String,
    /// Its roles; empty where authentication is off.
    pub roles: Vec<String>,
    /// Whether authentication is on.
    pub auth_enabled: bool,
}

impl Access {
    /// Tells whether snapshot, defrag, compaction, HashKV and alarm disarm are allowed: without
    /// authentication, or with the role `root` (etcd server/auth/store.go, `IsAdminPermitted`,
    /// checked at 3.7.3).
    #[must_use]
    pub fn is_admin(&self) -> bool {
        !self.auth_enabled || self.roles.iter().any(|role| role == "root")
    }
}

impl Cluster {
    /// Learns what the user that was named may do.
    ///
    /// # Errors
    ///
    /// [`Cause::NotAuthenticated`] where authentication is on and nobody or an unknown user asks,
    /// and every cause of a call.
    pub fn access(&self) -> Result<Access, Error> {
        let Some(user) = self.settings().user.as_ref().map(|user| user.name.clone()) else {
            // A read of nothing: refused to nobody, allowed where authentication is off.
            return match self.linearizable_read() {
                Ok(_) => Ok(Access::default()),
                Err(error) => Err(error),
            };
        };
        let name = user.clone();
        let asked = self.first(move |mut client| {
            let name = name.clone();
            async move { Ok(client.user_get(name).await?.roles().to_vec()) }
        });
        match asked {
            Ok((_, roles)) => Ok(Access { user, roles, auth_enabled: true }),
            Err(Error { cause: Cause::Answer { what, .. }, .. })
                if what.contains("authentication is not enabled") =>
            {
                Ok(Access { user, roles: Vec::new(), auth_enabled: false })
            }
            Err(error) => Err(error),
        }
    }
}
