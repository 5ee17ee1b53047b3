//! Questions to the members of a cluster.
//!
//! A question goes to every endpoint at once, and each has its own limit; or to one endpoint after
//! the other until one answers.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    AlarmAction, AlarmResponse, AlarmType, Client, ConnectOptions, GetOptions, MemberListResponse,
    ResponseHeader,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use crate::format::certificate::shown;

use super::dial::{self, Dialer, Latest, Line};
use super::settings::Token;
use super::{Cause, Credentials, Endpoint, Error, Settings, diagnose, tls};

/// One answer an endpoint, in the order given, under the text given.
pub type Answers<T> = Vec<(String, Result<T, Error>)>;

/// What a question waits for once it is asked.
pub(super) const ANSWER: &str = "waiting for its answer";

/// What stands at the head of every answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Cluster id.
    pub cluster_id: u64,
    /// Id of the member that answered.
    pub member_id: u64,
    /// Its revision then; 0 where the answer does not say.
    pub revision: i64,
    /// Its raft term then.
    pub raft_term: u64,
}

/// What a member says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Who answered.
    pub header: Header,
    /// Version of its program.
    pub version: String,
    /// Bytes of its database file.
    pub db_size: i64,
    /// Bytes of it that are in use.
    pub db_size_in_use: i64,
    /// Limit of the file in bytes; 0 before etcd 3.6, which does not say.
    pub db_size_quota: i64,
    /// Id of the leader that it knows, 0 for none.
    pub leader: u64,
    /// Raft index that it knows to be committed.
    pub raft_index: u64,
    /// Raft term.
    pub raft_term: u64,
    /// Raft index up to which it has applied.
    pub raft_applied_index: u64,
    /// Alarms and troubles in its own words.
    pub errors: Vec<String>,
    /// Whether it is a learner.
    pub is_learner: bool,
    /// Storage version; empty before etcd 3.6.
    pub storage_version: String,
    /// Whether a downgrade is under way, and to which version.
    pub downgrade: Option<(bool, String)>,
}

/// A member's answer to a HashKV request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashKv {
    /// Who answered.
    pub header: Header,
    /// The hash.
    pub hash: u32,
    /// Revision that was hashed; 0 before etcd 3.6, which does not say.
    pub hash_revision: i64,
    /// Compaction revision that the hash was made with; -1 before the first compaction.
    pub compact_revision: i64,
}

/// A read that went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Who answered.
    pub header: Header,
    /// How long it took.
    pub took: Duration,
}

/// The members as one of them knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Who answered.
    pub header: Header,
    /// In the order of the answer.
    pub members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Id.
    pub id: u64,
    /// Name; empty before its first start.
    pub name: String,
    /// Where members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty before its first start.
    pub client_urls: Vec<String>,
    /// Whether it is a learner.
    pub is_learner: bool,
}

/// The alarms that are raised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// Who answered.
    pub header: Header,
    /// In the order of the answer.
    pub alarms: Vec<Alarm>,
}

/// One alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Whose it is.
    pub member_id: u64,
    /// Which.
    pub kind: AlarmKind,
}

/// Which alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    /// No type was given when it was raised.
    None,
    /// The database has reached its quota.
    NoSpace,
    /// Members hold different data.
    Corrupt,
}

impl AlarmKind {
    /// Returns etcd's word: `NONE`, `NOSPACE` or `CORRUPT`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        }
    }

    /// Returns etcd's number for it.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::NoSpace => 1,
            Self::Corrupt => 2,
        }
    }
}

/// Connections to the members of a cluster, made when they are needed and kept.
pub struct Cluster {
    runtime: Option<Runtime>,
    settings: Settings,
    dialer: Arc<Dialer>,
    targets: Vec<Arc<Target>>,
}

/// One endpoint, and the client where one is connected.
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    client: Mutex<Option<Kept>>,
}

/// A connected client.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) client: Client,
    pub(super) latest: Latest,
    /// Whether the user that was named is logged in: not where authentication is off.
    logged_in: bool,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping it would wait for a name resolution that is still under way, however long.
            runtime.shutdown_background();
        }
    }
}

impl Cluster {
    /// Reads the endpoints and the certificates; connects to nothing yet.
    ///
    /// # Errors
    ///
    /// [`Cause::NoEndpoints`], [`Cause::Malformed`], [`Cause::Material`] or [`Cause::Runtime`].
    pub fn open(settings: Settings) -> Result<Self, Error> {
        if settings.endpoints.is_empty() {
            return Err(Error::of("", Cause::NoEndpoints));
        }
        let targets = targets(&settings.endpoints)?;
        let material = tls::material(&settings.tls)?;
        let tls_wanted = settings.tls.is_wanted();
        if targets.iter().any(|target| target.endpoint.is_secure(tls_wanted)) {
            material.check_dates(&settings.tls)?;
        }
        let dialer = Dialer {
            tls: material,
            tls_wanted,
            timeout: settings.dial_timeout.min(settings.command_timeout),
            keepalive_time: settings.keepalive_time,
            keepalive_timeout: settings.keepalive_timeout,
            token: settings.token.clone(),
            flags: settings.flags().into(),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| Error::of("", Cause::Runtime { what: error.to_string() }))?;
        Ok(Self { runtime: Some(runtime), settings, dialer: Arc::new(dialer), targets })
    }

    /// Returns the endpoints that are asked.
    #[must_use]
    pub fn endpoints(&self) -> Vec<&str> {
        self.targets.iter().map(|target| target.endpoint.given()).collect()
    }

    /// Returns how it connects.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Asks from now on every member that the cluster has (`--cluster`), at all client URLs that it
    /// advertises, as etcdctl does.
    ///
    /// # Errors
    ///
    /// As [`Cluster::members`].
    pub fn discover(&mut self) -> Result<(), Error> {
        let members = self.members()?;
        let urls: Vec<String> =
            members.members.into_iter().flat_map(|member| member.client_urls).collect();
        if urls.is_empty() {
            return Err(Error::of("", Cause::NoEndpoints));
        }
        self.targets = targets(&urls)?;
        Ok(())
    }

    /// Asks every endpoint for its status.
    #[must_use]
    pub fn statuses(&self) -> Answers<Status> {
        self.each(status)
    }

    /// Asks one of the endpoints for its status.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn status(&self, endpoint: &str) -> Result<Status, Error> {
        self.at(endpoint, self.settings.command_timeout, status)
    }

    /// Asks every endpoint for its HashKV at a revision; 0 is its newest.
    ///
    /// One after the other: a member takes no write while it hashes (etcd
    /// server/storage/mvcc/kvstore.go, `hashByRev`, checked at 3.7.3), and all of them at once
    /// would stop the cluster.
    #[must_use]
    pub fn hash_kvs(&self, revision: i64) -> Answers<HashKv> {
        let limit = self.settings.command_timeout;
        let ask = |endpoint: &str| (endpoint.to_owned(), self.hash_kv(endpoint, revision, limit));
        self.endpoints().into_iter().map(ask).collect()
    }

    /// Asks one endpoint for its HashKV at a revision.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn hash_kv(&self, endpoint: &str, revision: i64, limit: Duration) -> Result<HashKv, Error> {
        self.at(endpoint, limit, move |mut client: Client| async move {
            let answer = client.hash_kv(revision).await?;
            Ok(HashKv {
                header: header(answer.header()),
                hash: answer.hash(),
                hash_revision: answer.hash_revision(),
                compact_revision: answer.compact_version(),
            })
        })
    }

    /// Reads one key through every endpoint; a linearizable read needs a leader and a majority.
    ///
    /// The key is `health`, as etcdctl reads it; whether it is there does not matter.
    #[must_use]
    pub fn reads(&self, linearizable: bool) -> Answers<Read> {
        self.each(move |client| read(client, linearizable))
    }

    /// Asks the first endpoint that answers for the members.
    ///
    /// # Errors
    ///
    /// The most telling one of those of all endpoints, or of those before the first that no other
    /// endpoint can mend ([`Cause::NotPermitted`] and [`Cause::NotAuthenticated`]).
    pub fn members(&self) -> Result<Members, Error> {
        let (_, members) =
            self.first(|mut client| async move { Ok(members(&client.member_list().await?)) })?;
        Ok(members)
    }

    /// Asks the first endpoint that answers for the alarms.
    ///
    /// # Errors
    ///
    /// As [`Cluster::members`].
    pub fn alarms(&self) -> Result<Alarms, Error> {
        let (_, alarms) = self.first(|mut client| async move {
            let answer = client.alarm(AlarmAction::Get, AlarmType::None, None).await?;
            Ok(Alarms { header: header(answer.header()), alarms: alarms(&answer) })
        })?;
        Ok(alarms)
    }

    /// Asks every endpoint at once, each within the limit for a question.
    pub(super) fn each<T, F>(
        &self,
        ask: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        self.each_of(self.targets.iter().collect(), self.settings.command_timeout, ask)
    }

    fn each_of<T, F>(
        &self,
        targets: Vec<&Arc<Target>>,
        limit: Duration,
        ask: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let names: Vec<String> =
            targets.iter().map(|target| target.endpoint.given().to_owned()).collect();
        let answers = self.block_on(async {
            let tasks: Vec<_> = targets
                .iter()
                .map(|target| tokio::spawn(self.ask_within(limit, target, ask.clone())))
                .collect();
            let mut answers = Vec::with_capacity(tasks.len());
            for (task, target) in tasks.into_iter().zip(&targets) {
                answers.push(task.await.unwrap_or_else(|error| {
                    let cause = Cause::Runtime { what: error.to_string() };
                    Err(Error::of(target.endpoint.given(), cause))
                }));
            }
            answers
        });
        names.into_iter().zip(answers).collect()
    }

    /// Asks one endpoint after the other until one answers.
    pub(super) fn first<T, F>(
        &self,
        ask: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(String, T), Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        self.first_within(self.settings.command_timeout, ask)
    }

    /// The same with a limit of its own for each.
    pub(super) fn first_within<T, F>(
        &self,
        limit: Duration,
        ask: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(String, T), Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let mut failures = Vec::new();
        for target in &self.targets {
            match self.block_on(self.ask_within(limit, target, ask.clone())) {
                Ok(answer) => return Ok((target.endpoint.given().to_owned(), answer)),
                Err(error) => {
                    let final_word = matches!(
                        error.cause,
                        Cause::NotPermitted { .. } | Cause::NotAuthenticated { .. }
                    );
                    failures.push(error);
                    if final_word {
                        break;
                    }
                }
            }
        }
        Err(Error::of_all(failures))
    }

    /// Asks one endpoint within a limit.
    pub(super) fn at<T, F>(
        &self,
        endpoint: &str,
        limit: Duration,
        ask: impl Fn(Client) -> F + Send + Sync + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let no_endpoint = || Error::of(endpoint, Cause::NoEndpoints);
        let target = self.target(endpoint).ok_or_else(no_endpoint)?;
        self.block_on(self.ask_within(limit, target, ask))
    }

    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        // The runtime is there until drop.
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            None => unreachable!("a cluster is asked while it is dropped"),
        }
    }

    pub(super) fn target(&self, endpoint: &str) -> Option<&Arc<Target>> {
        self.targets.iter().find(|target| target.endpoint.given() == endpoint)
    }

    pub(super) fn targets(&self) -> &[Arc<Target>] {
        &self.targets
    }

    pub(super) fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    /// Sets another limit for one question to one member.
    pub fn limit_questions(&mut self, limit: Duration) {
        self.settings.command_timeout = limit;
    }

    /// Asks one endpoint within the limit for a question, the connection included.
    pub(super) fn ask<T, F>(
        &self,
        target: &Arc<Target>,
        ask: impl Fn(Client) -> F + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'static
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        self.ask_within(self.settings.command_timeout, target, ask)
    }

    /// Asks one endpoint within a limit, the connection included.
    fn ask_within<T, F>(
        &self,
        limit: Duration,
        target: &Arc<Target>,
        ask: impl Fn(Client) -> F + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'static
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        let (target, dialer, login) = (target.clone(), self.dialer.clone(), self.login());
        async move {
            let failed = |cause| dialer.failed(target.endpoint.given(), cause);
            let began = Instant::now();
            // Connecting has limits of its own, and says what took so long.
            let kept = target.client(&dialer, login.as_ref(), limit).await?;
            let rest = limit.saturating_sub(began.elapsed()).max(limit / 4);
            let late = Cause::Timeout { after: limit, doing: ANSWER };
            match tokio::time::timeout(rest, ask(kept.client)).await {
                Err(_) => Err(failed(late)),
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => {
                    let cause = dialer.call_cause(&error, &kept.latest);
                    // It speaks HTTP/2 and is no etcd: find out who it is.
                    Err(failed(match cause {
                        cause @ Cause::NotEtcd { .. } => {
                            diagnose::refine(&dialer, &target.endpoint, cause).await
                        }
                        cause => cause,
                    }))
                }
            }
        }
    }

    /// Returns a connected client for a stream, which has limits of its own.
    pub(super) fn client(&self, target: &Target) -> Result<Kept, Error> {
        let limit = self.settings.command_timeout;
        self.block_on(target.client(&self.dialer, self.login().as_ref(), limit))
    }

    /// Tells whether the user that was named is logged in somewhere.
    pub(super) fn is_logged_in(&self) -> bool {
        self.block_on(async {
            for target in &self.targets {
                if target.client.lock().await.as_ref().is_some_and(|kept| kept.logged_in) {
                    return true;
                }
            }
            false
        })
    }

    /// Returns the name in our certificate that counts as a user where none is named.
    pub(super) fn certificate_user(&self) -> Option<String> {
        let own = self.dialer.tls.own.as_ref()?;
        let secure = self.targets.iter().any(|target| self.dialer.is_secure(&target.endpoint));
        secure.then(|| shown(&own.facts.common_name)).filter(|name| !name.is_empty())
    }

    /// Says as whom to log in, and where.
    fn login(&self) -> Option<Login> {
        let user = self.settings.user.clone()?;
        Some(Login { user, targets: self.targets.clone() })
    }

    pub(super) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        self.runtime.as_ref().map(|runtime| runtime.spawn(task).abort_handle())
    }
}

/// As whom to log in, and the endpoints where that can be tried.
struct Login {
    user: Credentials,
    targets: Vec<Arc<Target>>,
}

impl Login {
    /// Gets a token from a member that gives one.
    ///
    /// Tokens go through the log, so that every member knows those of the others (etcd
    /// server/auth/simple_token.go, `assign`, and server/etcdserver/apply, checked at 3.7.3).
    async fn token_from_another(&self, dialer: &Arc<Dialer>, than: &Endpoint) -> Option<Token> {
        for target in self.targets.iter().filter(|target| target.endpoint != *than) {
            let Ok(line) = dialer.channel(&target.endpoint).await else { continue };
            let Ok(client) = Client::from_channel(line.channel, None).await else { continue };
            let (name, password) = (self.user.name.clone(), self.user.password.clone());
            if let Ok(answer) = client.auth_client().authenticate(name, password).await {
                return Some(Token(answer.token().to_owned()));
            }
        }
        None
    }
}

impl Target {
    /// Returns the client that is kept, or connects one, and logs in within a limit.
    async fn client(
        &self,
        dialer: &Arc<Dialer>,
        login: Option<&Login>,
        limit: Duration,
    ) -> Result<Kept, Error> {
        let mut kept = self.client.lock().await;
        if let Some(kept) = &*kept {
            return Ok(kept.clone());
        }
        let failed = |cause| dialer.failed(self.endpoint.given(), cause);
        let mut line = dialer.channel(&self.endpoint).await?;
        let mut client = client_of(&line).await.map_err(|error| failed(dial::cause(&error)))?;
        let mut logged_in = false;
        if let Some(login) = login {
            let user = Some((login.user.name.clone(), login.user.password.clone()));
            let late = Cause::Timeout { after: limit, doing: "logging in" };
            let asked = tokio::time::timeout(limit, client.update_user(user)).await;
            match asked.map_err(|_| failed(late.clone()))? {
                Ok(()) => logged_in = true,
                Err(error) if is_auth_off(&error) => {}
                // A learner lets nobody log in, but knows who has logged in elsewhere.
                Err(error) if is_learner(&error) => {
                    let token = login.token_from_another(dialer, &self.endpoint);
                    let token = tokio::time::timeout(limit, token).await;
                    if let Some(token) = token.map_err(|_| failed(late))? {
                        line = dialer.channel_as(&self.endpoint, Some(&token)).await?;
                        client =
                            client_of(&line).await.map_err(|error| failed(dial::cause(&error)))?;
                        logged_in = true;
                    }
                }
                Err(error) => {
                    return Err(failed(match dialer.call_cause(&error, &line.latest) {
                        cause @ Cause::NotEtcd { .. } => {
                            diagnose::refine(dialer, &self.endpoint, cause).await
                        }
                        cause => cause,
                    }));
                }
            }
        }
        Ok(kept.insert(Kept { client, latest: line.latest, logged_in }).clone())
    }
}

async fn client_of(line: &Line) -> Result<Client, etcd_client::Error> {
    // A token lives for minutes, and who watches asks for longer.
    let options = ConnectOptions::new().with_auto_token_refresh(true);
    Client::from_channel(line.channel.clone(), Some(options)).await
}

/// Tells whether a member answered that it knows no users, which is fine, as in etcdctl.
fn is_auth_off(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status)
        if status.message().contains("authentication is not enabled"))
}

fn is_learner(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status)
        if status.message().contains("rpc not supported for learner"))
}

fn targets(endpoints: &[String]) -> Result<Vec<Arc<Target>>, Error> {
    let parsed = endpoints.iter().map(|given| {
        let endpoint = Endpoint::parse(given)?;
        Ok(Arc::new(Target { endpoint, client: Mutex::new(None) }))
    });
    parsed.collect()
}

pub(super) async fn status(mut client: Client) -> Result<Status, etcd_client::Error> {
    let answer = client.status().await?;
    Ok(Status {
        header: header(answer.header()),
        version: answer.version().to_owned(),
        db_size: answer.db_size(),
        db_size_in_use: answer.raft_used_db_size(),
        db_size_quota: answer.db_size_quota(),
        leader: answer.leader(),
        raft_index: answer.raft_index(),
        raft_term: answer.raft_term(),
        raft_applied_index: answer.raft_applied_index(),
        errors: answer.errors().to_vec(),
        is_learner: answer.is_learner(),
        storage_version: answer.storage_version().to_owned(),
        downgrade: answer
            .downgrade_info()
            .map(|info| (info.enabled(), info.target_version().to_owned())),
    })
}

pub(super) async fn read(
    mut client: Client,
    linearizable: bool,
) -> Result<Read, etcd_client::Error> {
    let began = Instant::now();
    let options = GetOptions::new().with_limit(1);
    let options = if linearizable { options } else { options.with_serializable() };
    let answer = client.get("health", Some(options)).await?;
    Ok(Read { header: header(answer.header()), took: began.elapsed() })
}

pub(super) fn members(answer: &MemberListResponse) -> Members {
    let members = answer.members().iter().map(|member| Member {
        id: member.id(),
        name: member.name().to_owned(),
        peer_urls: member.peer_urls().to_vec(),
        client_urls: member.client_urls().to_vec(),
        is_learner: member.is_learner(),
    });
    Members { header: header(answer.header()), members: members.collect() }
}

pub(super) fn alarms(answer: &AlarmResponse) -> Vec<Alarm> {
    let alarms = answer.alarms().iter().map(|alarm| Alarm {
        member_id: alarm.member_id(),
        kind: match alarm.alarm() {
            AlarmType::None => AlarmKind::None,
            AlarmType::Nospace => AlarmKind::NoSpace,
            AlarmType::Corrupt => AlarmKind::Corrupt,
        },
    });
    alarms.collect()
}

pub(super) fn header(header: Option<&ResponseHeader>) -> Header {
    header.map_or_else(Header::default, |header| Header {
        cluster_id: header.cluster_id(),
        member_id: header.member_id(),
        revision: header.revision(),
        raft_term: header.raft_term(),
    })
}
