//! Whether members serve: the questions that etcdctl's `endpoint health` and `member list` ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmType, Client, GetOptions};

use super::{Alarm, AlarmKind, Cause, Cluster, Error, Members, cluster};

/// What an endpoint's health is judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How long the read took, or its failure; the connection included.
    pub took: Duration,
    /// What is wrong.
    pub trouble: Option<Trouble>,
}

/// Why an endpoint is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The linearizable read failed.
    Read(Error),
    /// The read went through; the question for alarms did not.
    AlarmList(Error),
    /// Alarms are raised, of this member or another.
    Alarms(Vec<Alarm>),
}

/// A read that went through, and what the member then answered to the question for alarms.
type Checked = (Duration, Result<Vec<Alarm>, etcd_client::Error>);

impl Cluster {
    /// Asks every endpoint for a linearizable read and then for its alarms, as `etcdctl endpoint
    /// health` (etcdctl/ctlv3/command/ep_command.go, `epHealthCommandFunc`, checked at 3.7.3).
    ///
    /// A user who may not read the key is no trouble: the refusal has gone through consensus.
    #[must_use]
    pub fn healths(&self) -> Vec<(String, Health)> {
        let answers = self.each_timed(check);
        let judged = answers.into_iter().map(|(endpoint, all, answer)| {
            let health = match answer {
                Ok((took, Ok(alarms))) => {
                    let trouble = (!alarms.is_empty()).then_some(Trouble::Alarms(alarms));
                    Health { took, trouble }
                }
                Ok((took, Err(error))) => {
                    let error = Error::of(&endpoint, super::dial::cause(&error));
                    Health { took, trouble: Some(Trouble::AlarmList(error)) }
                }
                Err(error) => Health { took: all, trouble: Some(Trouble::Read(error)) },
            };
            (endpoint, health)
        });
        judged.collect()
    }

    /// Asks the first endpoint that answers for the members, after a linearizable read: every
    /// change of membership that was acknowledged before is in the answer.
    ///
    /// # Errors
    ///
    /// As [`Cluster::members`]; without a leader or a majority there is no answer.
    pub fn members_linearizable(&self) -> Result<Members, Error> {
        let (_, members) = self.first(|mut client| async move {
            // The client library asks for members in a serializable way only.
            match nothing(client.clone()).await {
                Err(error) if !is_refused_after_consensus(&error) => return Err(error),
                _ => {}
            }
            Ok(cluster::members(&client.member_list().await?))
        })?;
        Ok(members)
    }

    /// Asks every endpoint at once and tells how long each took.
    fn each_timed<T, F>(
        &self,
        ask: impl Fn(Client) -> F + Clone + Send + Sync + 'static,
    ) -> Vec<(String, Duration, Result<T, Error>)>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
    {
        self.block_on(async {
            let began = Instant::now();
            let targets = self.targets().iter().map(Arc::clone);
            let tasks: Vec<_> = targets
                .map(|target| {
                    let asked = self.ask(&target, ask.clone());
                    let name = target.endpoint.given().to_owned();
                    let timed = async move { (asked.await, began.elapsed()) };
                    (name, tokio::spawn(timed))
                })
                .collect();
            let mut answers = Vec::with_capacity(tasks.len());
            for (name, task) in tasks {
                let (answer, took) = task.await.unwrap_or_else(|error| {
                    let cause = Cause::Runtime { what: error.to_string() };
                    (Err(Error::of(&name, cause)), began.elapsed())
                });
                answers.push((name, took, answer));
            }
            answers
        })
    }
}

async fn check(mut client: Client) -> Result<Checked, etcd_client::Error> {
    let began = Instant::now();
    match nothing(client.clone()).await {
        Err(error) if !is_not_permitted(&error) => return Err(error),
        _ => {}
    }
    let took = began.elapsed();
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await;
    let alarms = alarms.map(|answer| cluster::alarms(&answer));
    Ok((took, alarms))
}

/// Reads the key that etcdctl reads; whether it is there does not matter.
async fn nothing(mut client: Client) -> Result<(), etcd_client::Error> {
    let options = GetOptions::new().with_limit(1).with_keys_only();
    client.get("health", Some(options)).await.map(|_| ())
}

/// PERMISSION_DENIED, with etcd's words (api/v3rpc/rpctypes/error.go, `ErrGRPCPermissionDenied`).
fn is_not_permitted(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status)
        if status.message().contains("permission denied"))
}

/// Tells whether a member refused to read for the asker only after its linearizable part went
/// through (server/etcdserver/v3_server.go, `Range`, checked at 3.7.3); members are told to all.
fn is_refused_after_consensus(error: &etcd_client::Error) -> bool {
    is_not_permitted(error)
        || matches!(error, etcd_client::Error::GRpcStatus(status)
            if ["user name is empty", "corrupt cluster"]
                .iter()
                .any(|words| status.message().contains(words)))
}

impl Health {
    /// Tells whether nothing is wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.trouble.is_none()
    }
}

impl Trouble {
    /// Returns etcdctl's words for it, and what the endpoint said where that is told.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Read(error) => error.cause.to_string(),
            Self::AlarmList(_) => "Unable to fetch the alarm list".to_owned(),
            Self::Alarms(alarms) => {
                let words = alarms.iter().map(|alarm| match alarm.kind {
                    AlarmKind::None => "UNKNOWN ",
                    kind => kind.word(),
                });
                words.fold("Active Alarm(s): ".to_owned(), |all, word| all + word.trim_end() + " ")
            }
        }
    }
}
