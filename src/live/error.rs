//! Why a member gave no answer, told apart.

use std::fmt;
use std::time::Duration;

/// What went wrong, and at which endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The endpoint as it was given; empty where the trouble is none of an endpoint's.
    pub endpoint: String,
    /// Why.
    pub cause: Cause,
    /// The flags that it was asked with, as [`super::Settings::flags`] writes them.
    pub flags: Box<[String]>,
    /// What other endpoints said, where several were asked for one answer.
    pub also: Box<[Error]>,
}

impl Error {
    /// Makes an error of an endpoint.
    #[must_use]
    pub fn of(endpoint: &str, cause: Cause) -> Self {
        Self { endpoint: endpoint.to_owned(), cause, flags: Box::default(), also: Box::default() }
    }

    /// Makes one of the errors of several endpoints: the most telling one, which has the others
    /// beside it.
    pub(super) fn of_all(mut errors: Vec<Self>) -> Self {
        let most = errors.iter().enumerate().min_by_key(|(_, error)| error.cause.rank());
        let Some((index, _)) = most else { return Self::of("", Cause::NoEndpoints) };
        let mut most = errors.remove(index);
        most.also = errors.into();
        most
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.endpoint.as_str() {
            "" => self.cause.fmt(f)?,
            endpoint => write!(f, "{endpoint}: {}", self.cause)?,
        }
        self.also.iter().try_for_each(|other| write!(f, "; also {other}"))
    }
}

impl std::error::Error for Error {}

/// Why a member gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// No endpoint was given.
    #[error("no endpoints were given")]
    NoEndpoints,
    /// A text is no endpoint.
    #[error("{what}")]
    Malformed {
        /// What is wrong.
        what: String,
    },
    /// A certificate or key of ours cannot be used.
    #[error("cannot use {path}: {what}")]
    Material {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The runtime that drives connections did not start.
    #[error("cannot start the connection runtime: {what}")]
    Runtime {
        /// What the system said.
        what: String,
    },
    /// The host has no address.
    #[error("the name {host} cannot be resolved: {what}")]
    NameNotResolved {
        /// The name.
        host: String,
        /// What the resolver said.
        what: String,
    },
    /// Nobody listens there.
    #[error("connection refused: nothing listens on {address}")]
    Refused {
        /// The address that was tried last; for a socket in the file system its path.
        address: String,
    },
    /// No way there, or the connection could not be made for another reason of the system's.
    #[error("cannot be reached: {what}")]
    Unreachable {
        /// What the system said.
        what: String,
    },
    /// A limit passed.
    #[error("no answer within {} while {doing}", seconds(.after))]
    Timeout {
        /// The limit.
        after: Duration,
        /// What was under way, as `connecting`.
        doing: &'static str,
    },
    /// The connection broke.
    #[error("the connection broke: {what}")]
    Broken {
        /// How.
        what: String,
    },
    /// It is a port for other members.
    #[error("that is the member's peer port, not its client port{}", clients(.client_urls))]
    PeerPort {
        /// Where it serves clients, as far as it said.
        client_urls: Vec<String>,
    },
    /// Something else answers there.
    #[error("what answers there is not etcd's client port: {what}")]
    NotEtcd {
        /// What it is, as far as can be told.
        what: String,
    },
    /// The endpoint was given as http and wants TLS.
    #[error("the server speaks TLS, and the endpoint was asked in plain http")]
    WantsTls,
    /// The endpoint was given as https and speaks plain http.
    #[error("the server speaks plain http, and the endpoint was asked over TLS")]
    WantsPlain,
    /// A certificate, theirs or ours, is not accepted.
    #[error("{0}")]
    Certificate(Box<Certificate>),
    /// TLS failed for a reason that is no certificate's.
    #[error("TLS failed: {what}")]
    Tls {
        /// How.
        what: String,
    },
    /// Authentication is on, and the member does not know who asks.
    #[error("not authenticated: {what}")]
    NotAuthenticated {
        /// The member's words.
        what: String,
    },
    /// The user may not do that.
    #[error("not permitted: {what}")]
    NotPermitted {
        /// The member's words.
        what: String,
    },
    /// The member answered with another error.
    #[error("{what}")]
    Answer {
        /// Number of the gRPC code.
        code: i32,
        /// The member's words.
        what: String,
    },
}

impl Cause {
    /// Orders causes by how much they tell of why nobody answered, the most telling first: what a
    /// member says itself, then what stands in the way of one that is there.
    fn rank(&self) -> u8 {
        match self {
            // Damage, no leader and no time: numbers of the gRPC specification.
            Self::Answer { code: 15, .. } => 0,
            Self::NotAuthenticated { .. } | Self::NotPermitted { .. } => 1,
            // What another member says tells more than that this one does not vote.
            Self::Answer { what, .. } if what.contains("not supported for learner") => 5,
            Self::Answer { code: 4 | 14, .. } => 4,
            Self::Answer { .. } => 2,
            Self::Material { .. }
            | Self::Certificate(_)
            | Self::Tls { .. }
            | Self::WantsTls
            | Self::WantsPlain => 3,
            Self::PeerPort { .. } | Self::NotEtcd { .. } => 5,
            _ => 6,
        }
    }
}

fn clients(urls: &[String]) -> String {
    match urls {
        [] => String::new(),
        urls => format!("; it serves clients at {}", urls.join(", ")),
    }
}

fn seconds(after: &Duration) -> String {
    match after.subsec_millis() {
        0 => format!("{} s", after.as_secs()),
        _ => format!("{} ms", after.as_millis()),
    }
}

/// Whose certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The member's.
    Server,
    /// Ours.
    Client,
}

/// A certificate that was not accepted, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whose.
    pub side: Side,
    /// Why it was not accepted.
    pub problem: Problem,
    /// Its subject; empty when not known.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// Names and addresses that it is made for.
    pub names: Vec<String>,
    /// From when, as RFC 3339.
    pub not_before: String,
    /// Until when, as RFC 3339.
    pub not_after: String,
    /// What it may be used for; empty when it does not say, which allows everything.
    pub uses: Vec<String>,
    /// The file, when it is ours.
    pub file: String,
    /// Authorities that the server said it takes certificates from, when it is ours.
    pub authorities: Vec<String>,
    /// What this machine's clock said, as RFC 3339.
    pub clock: String,
}

/// Why a certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// No authority that is trusted signed it.
    UnknownAuthority,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// It is made for other names than this one.
    WrongName {
        /// The name or address that was wanted.
        wanted: String,
    },
    /// It is not made for this use.
    WrongPurpose,
    /// The server wants one and there is none.
    Missing,
    /// The server refused ours and said no more than this.
    Refused {
        /// The alert.
        alert: String,
    },
    /// Anything else.
    Other {
        /// The checker's words.
        what: String,
    },
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match (self.side, self.file.as_str()) {
            (Side::Server, _) => "the server's certificate".to_owned(),
            (Side::Client, "") => "our certificate".to_owned(),
            (Side::Client, file) => format!("our certificate {file}"),
        };
        match &self.problem {
            Problem::UnknownAuthority if self.side == Side::Server => {
                write!(f, "{whose} was not signed by an authority that we trust")?;
            }
            Problem::UnknownAuthority => {
                write!(f, "{whose} was not signed by an authority that the server trusts")?;
                if !self.authorities.is_empty() {
                    write!(f, ", which are {}", self.authorities.join("; "))?;
                }
            }
            Problem::Expired => {
                let (end, clock) = (&self.not_after, &self.clock);
                write!(f, "{whose} expired at {end}; this machine's clock says {clock}")?;
            }
            Problem::NotYetValid => {
                let (begin, clock) = (&self.not_before, &self.clock);
                write!(f, "{whose} is valid only from {begin}; this machine's clock says {clock}")?;
            }
            Problem::WrongName { wanted } if self.names.is_empty() => {
                write!(f, "{whose} is not for {wanted}: it names no host at all")?;
            }
            Problem::WrongName { wanted } => {
                write!(f, "{whose} is not for {wanted}, but for {}", self.names.join(", "))?;
            }
            Problem::WrongPurpose => {
                let purpose = match self.side {
                    Side::Server => "a server",
                    Side::Client => "a client",
                };
                write!(f, "{whose} is not made for {purpose}, but for {}", self.uses.join(", "))?;
            }
            Problem::Missing => write!(f, "the server wants a client certificate")?,
            Problem::Refused { alert } => write!(f, "the server refused {whose}: {alert}")?,
            Problem::Other { what } => write!(f, "{whose} is not accepted: {what}")?,
        }
        if !self.subject.is_empty() {
            write!(f, " (subject {}, issuer {}", self.subject, self.issuer)?;
            let dates = !matches!(self.problem, Problem::Expired | Problem::NotYetValid);
            if dates && !self.not_after.is_empty() {
                write!(f, ", valid from {} until {}", self.not_before, self.not_after)?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_of_several_comes_first_and_none_is_left_out() {
        let of = |endpoint: &str, cause| Error::of(endpoint, cause);
        let refused = || Cause::Refused { address: "[::1]:1".into() };
        let all = vec![of("a", refused()), of("b", Cause::WantsTls), of("c", refused())];
        let error = Error::of_all(all);
        assert_eq!(error.cause, Cause::WantsTls);
        let text = error.to_string();
        assert!(text.starts_with("b: the server speaks TLS"), "{text}");
        assert!(text.contains("; also a: connection refused"), "{text}");
        assert!(text.contains("; also c: connection refused"), "{text}");
        let no_leader = || Cause::Answer { code: 14, what: "etcdserver: no leader".into() };
        let denied = || Cause::NotPermitted { what: "no".into() };
        let learner =
            || Cause::Answer { code: 9, what: "etcdserver: rpc not supported for learner".into() };
        let future = || Cause::Answer { code: 11, what: "etcdserver: mvcc: future".into() };
        let of_learner_first = vec![of("a", learner()), of("b", future())];
        assert_eq!(Error::of_all(of_learner_first).cause, future());
        let corrupt = || Cause::Answer { code: 15, what: "etcdserver: corrupt cluster".into() };
        let causes = [refused(), no_leader(), Cause::WantsTls, denied(), corrupt()];
        for (index, cause) in causes.iter().enumerate() {
            let before = causes.iter().take(index + 1);
            let error = Error::of_all(before.map(|cause| of("x", cause.clone())).collect());
            assert_eq!(error.cause, *cause);
            assert_eq!(error.also.len(), index);
        }
        assert_eq!(Error::of_all(Vec::new()).cause, Cause::NoEndpoints);
    }
}
