//! Why a request was not done, by etcd's own words and codes.
//!
//! Source: etcd `api/v3rpc/rpctypes/error.go` and `v3rpc/util.go`, 3.6.16 and 3.7.3.

use crate::etcd::apply::Refusal;

/// A status code of gRPC, which etcd's clients look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Code {
    /// 1
    Canceled = 1,
    /// 2
    Unknown = 2,
    /// 3
    InvalidArgument = 3,
    /// 4
    DeadlineExceeded = 4,
    /// 5
    NotFound = 5,
    /// 7
    PermissionDenied = 7,
    /// 8
    ResourceExhausted = 8,
    /// 9
    FailedPrecondition = 9,
    /// 11
    OutOfRange = 11,
    /// 13
    Internal = 13,
    /// 14
    Unavailable = 14,
    /// 15
    DataLoss = 15,
    /// 16
    Unauthenticated = 16,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The state forbids it.
    #[error("{}", words(*.0))]
    Refused(#[from] Refusal),
    /// No key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// A value where the old one is to be kept.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A lease where the old one is to be kept.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// More operations than a transaction may have.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A key that one transaction changes twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// A sort order or target that there is not.
    #[error("etcdserver: invalid sort option")]
    InvalidSort,
    /// A request that is larger than allowed.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// An alarm action or kind that there is not.
    #[error("etcdserver: invalid alarm request")]
    InvalidAlarm,
    /// More requests than are done in time.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// A password of more than 72 bytes.
    #[error("bcrypt: password length exceeds 72 bytes")]
    PasswordTooLong,
    /// A log-in by password of a user who has none.
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    /// A token that is none, or is not valid any more.
    #[error("etcdserver: invalid auth token")]
    InvalidToken,
    /// A log-in where tokens are signed by others.
    #[error("auth: token signing attempted with verify-only key")]
    VerifyOnly,
    /// It took too long; whether it was done is not known.
    #[error("etcdserver: request timed out")]
    Timeout,
    /// The store is closed; whether it was done is not known.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The store opened a snapshot or was told not to write.
    #[error("etcdserver: not capable")]
    ReadOnly,
    /// A member that would need others to agree.
    #[error("etcdserver: unhealthy cluster")]
    UnhealthyCluster,
    /// Peer URLs that are none.
    #[error("etcdserver: given member URLs are invalid")]
    InvalidUrls,
    /// The only member, which is to be removed.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    LastMember,
    /// A leader that is to be replaced by itself only.
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    /// A version to go down to that is none.
    #[error("etcdserver: wrong downgrade target version format")]
    DowngradeFormat,
    /// A version to go down to that is not the one before.
    #[error("etcdserver: invalid downgrade target version")]
    DowngradeTarget,
    /// A downgrade while another is on its way.
    #[error("etcdserver: cluster has a downgrade job in progress")]
    DowngradeInProcess,
    /// A cluster whose version is not decided.
    #[error("etcdserver: cluster version not found during downgrade")]
    ClusterVersionUnknown,
    /// A downgrade of a running store.
    #[error("etcdserver: not capable")]
    NoDowngrade,
    /// An action that there is not.
    #[error("etcdserver: unknown method")]
    UnknownMethod,
    /// A request that callers do not have logged.
    #[error("a request {request} cannot be submitted: {why}")]
    NotSubmitted {
        /// etcd's name of it.
        request: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The disk, or what is on it, failed; the text says where.
    #[error("{0}")]
    Storage(String),
}

impl Error {
    /// Returns the code that a client sees.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => code_of(*refusal),
            Self::EmptyKey
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOps
            | Self::DuplicateKey
            | Self::InvalidSort
            | Self::TooLarge
            | Self::InvalidAlarm
            | Self::NotSubmitted { .. }
            | Self::DowngradeFormat
            | Self::DowngradeTarget
            | Self::InvalidUrls => Code::InvalidArgument,
            Self::InvalidToken => Code::Unauthenticated,
            Self::Timeout | Self::Stopped | Self::UnhealthyCluster => Code::Unavailable,
            Self::ReadOnly
            | Self::BadTransferee
            | Self::DowngradeInProcess
            | Self::ClusterVersionUnknown
            | Self::NoDowngrade => Code::FailedPrecondition,
            Self::TooManyRequests
            | Self::LastMember
            | Self::UnknownMethod
            | Self::PasswordTooLong
            | Self::NoPasswordUser
            | Self::VerifyOnly
            | Self::Storage(_) => Code::Unknown,
        }
    }
}

/// Returns what a client reads: of members another text than etcd's log has.
fn words(refusal: Refusal) -> String {
    let text = match refusal {
        Refusal::MemberNotFound | Refusal::MemberRemoved => "etcdserver: member not found",
        Refusal::MemberExists => "etcdserver: member ID already exist",
        Refusal::MemberNotLearner => "etcdserver: can only promote a learner member",
        Refusal::PeerUrlExists => "etcdserver: Peer URLs already exists",
        Refusal::TooManyLearners => "etcdserver: too many learner members in cluster",
        other => return other.to_string(),
    };
    text.to_owned()
}

fn code_of(refusal: Refusal) -> Code {
    use Refusal as R;
    match refusal {
        R::NoSpace => Code::ResourceExhausted,
        R::Corrupt => Code::DataLoss,
        R::Compacted | R::FutureRevision | R::LeaseTtlTooLarge => Code::OutOfRange,
        R::LeaseNotFound | R::MemberNotFound | R::MemberRemoved => Code::NotFound,
        R::PermissionDenied => Code::PermissionDenied,
        R::KeyNotFound
        | R::AuthOldRevision
        | R::UserEmpty
        | R::RoleEmpty
        | R::PermissionNotGiven
        | R::InvalidAuthManagement
        | R::AuthFailed => Code::InvalidArgument,
        R::LeaseExists
        | R::UserNotFound
        | R::UserExists
        | R::RoleNotFound
        | R::RoleExists
        | R::RoleNotGranted
        | R::PermissionNotGranted
        | R::RootUserMissing
        | R::RootRoleMissing
        | R::AuthNotEnabled
        | R::MemberExists
        | R::MemberNotLearner
        | R::PeerUrlExists
        | R::TooManyLearners => Code::FailedPrecondition,
        _ => Code::Unknown,
    }
}
