//! What the one who asks may do, learned before anything starts.
//!
//! A HashKV request for a revision that no member has reached is refused to everybody: to who is
//! no administrator for that, to who is one for the revision. It needs no leader, costs the member
//! nothing and writes nothing, unlike an `AuthStatus` or `UserGet`, which are entries in the log
//! (etcd etcdserver/api/v3rpc/maintenance.go, `authMaintenanceServer`, and mvcc/kvstore.go,
//! `hashByRev`, checked at 3.5.35, 3.6.16 and 3.7.3).

use super::{Cause, Cluster, Error};

/// Who asks, and whether that is an administrator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The user that was named, or the name in our certificate that counts as one; empty where
    /// authentication is off.
    pub user: String,
    /// Its roles; empty where authentication is off, and where they could not be learnt.
    pub roles: Vec<String>,
    /// Whether authentication is on.
    pub auth_enabled: bool,
    /// Whether it was refused what only administrators may do.
    pub refused: bool,
}

impl Access {
    /// Tells whether snapshot, defrag, compaction, HashKV and alarm disarm are allowed: without
    /// authentication, or with the role `root` (etcd server/auth/store.go, `IsAdminPermitted`,
    /// checked at 3.7.3). What could not be learnt counts as allowed.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        !self.refused
    }
}

impl Cluster {
    /// Learns what the one who asks may do.
    ///
    /// # Errors
    ///
    /// [`Cause::NotAuthenticated`] where authentication is on and nobody or an unknown user asks,
    /// and every cause of a call.
    pub fn access(&self) -> Result<Access, Error> {
        let user = self.settings().user.as_ref().map(|user| user.name.clone());
        let by_certificate = self.certificate_user().filter(|_| user.is_none());
        let asked = self.first(|mut client| async move {
            match client.hash_kv(i64::MAX).await {
                // Refused for the revision: the others need not be asked.
                Err(etcd_client::Error::GRpcStatus(status)) if i32::from(status.code()) == 11 => {
                    Ok(())
                }
                asked => asked.map(|_| ()),
            }
        });
        let refused = match asked {
            Err(Error { cause: Cause::NotPermitted { .. }, .. }) => true,
            Err(Error { endpoint, cause: Cause::Answer { what, .. }, flags, .. })
                if what.contains("user name not found") || what.contains("user not found") =>
            {
                let name = user.or(by_certificate).unwrap_or_default();
                let what = format!("etcd has no user {name}, which the certificate names");
                let cause = Cause::NotAuthenticated { what };
                return Err(Error { flags, ..Error::of(&endpoint, cause) });
            }
            // Refused for the revision, or by something between that does not pass it on.
            Ok(_) | Err(Error { cause: Cause::Answer { code: 2 | 3 | 11 | 12, .. }, .. }) => false,
            Err(error) => return Err(error),
        };
        let auth_enabled = refused || self.is_auth_on(user.is_some(), by_certificate.is_some());
        if !auth_enabled {
            return Ok(Access::default());
        }
        let user = user.or(by_certificate).unwrap_or_default();
        let roles = match refused {
            false => vec!["root".to_owned()],
            true => self.roles(&user),
        };
        Ok(Access { user, roles, auth_enabled, refused })
    }

    /// Tells whether authentication is on, for somebody who was admitted.
    fn is_auth_on(&self, by_user: bool, by_certificate: bool) -> bool {
        if by_user {
            return self.is_logged_in();
        }
        if !by_certificate {
            // Nobody is no administrator.
            return false;
        }
        // A login of nobody is refused, for this reason or for that; neither leaves an entry.
        let nobody = Some((String::new(), String::new()));
        let answer = self.first(move |mut client| {
            let nobody = nobody.clone();
            async move { client.update_user(nobody).await }
        });
        matches!(answer, Err(Error { cause: Cause::NotAuthenticated { .. }, .. }))
    }

    /// Asks for the roles of a user, who may know his own.
    fn roles(&self, user: &str) -> Vec<String> {
        let name = user.to_owned();
        let asked = self.first(move |mut client| {
            let name = name.clone();
            async move { Ok(client.user_get(name).await?.roles().to_vec()) }
        });
        asked.map(|(_, roles)| roles).unwrap_or_default()
    }
}
