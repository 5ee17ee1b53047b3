//! A client as any other: what the demo asks goes over the network.

use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, CompactionOptions, ConnectOptions, GetOptions,
};
use tokio::runtime::{Builder, Runtime};

use crate::live::{self, Settings};
use crate::ops::{Error, ExitCode};

/// Limit for one call.
const LIMIT: Duration = Duration::from_secs(20);

pub(super) struct Client {
    runtime: Runtime,
    client: etcd_client::Client,
    cluster: live::Cluster,
    endpoint: String,
}

impl Client {
    pub(super) fn connect(endpoint: &str) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Error::new(ExitCode::Failed, format!("demo: start a thread: {error}"))
        })?;
        let options = ConnectOptions::new().with_connect_timeout(LIMIT).with_timeout(LIMIT);
        let connecting = etcd_client::Client::connect([endpoint], Some(options));
        let client = runtime.block_on(connecting).map_err(failed)?;
        let endpoints = vec![endpoint.to_owned()];
        let cluster = live::Cluster::open(Settings { endpoints, ..Settings::default() })?;
        Ok(Self { runtime, client, cluster, endpoint: endpoint.to_owned() })
    }

    pub(super) fn status(&self) -> Result<live::Status, Error> {
        Ok(self.cluster.status(&self.endpoint)?)
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.try_put(key, value)?.map_err(|refusal| {
            let key = String::from_utf8_lossy(key);
            Error::new(ExitCode::Failed, format!("demo: write {key}: {refusal}"))
        })
    }

    /// Writes a key; the inner error is what the server said.
    pub(super) fn try_put(&self, key: &[u8], value: &[u8]) -> Result<Result<(), String>, Error> {
        match self.runtime.block_on(self.client.kv_client().put(key, value, None)) {
            Ok(_) => Ok(Ok(())),
            Err(etcd_client::Error::GRpcStatus(status)) => Ok(Err(status.message().to_owned())),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let got = self.runtime.block_on(self.client.kv_client().get(key, None)).map_err(failed)?;
        Ok(got.kvs().first().map(|kv| kv.value().to_owned()))
    }

    pub(super) fn count(&self, prefix: &[u8]) -> Result<i64, Error> {
        let options = GetOptions::new().with_prefix().with_count_only();
        let got = self.runtime.block_on(self.client.kv_client().get(prefix, Some(options)));
        Ok(got.map_err(failed)?.count())
    }

    /// Returns how many keys were deleted.
    pub(super) fn delete(&self, key: &[u8]) -> Result<i64, Error> {
        let deleted = self.runtime.block_on(self.client.kv_client().delete(key, None));
        Ok(deleted.map_err(failed)?.deleted())
    }

    pub(super) fn compact(&self, revision: i64) -> Result<(), Error> {
        let options = CompactionOptions::new().with_physical();
        let mut client = self.client.kv_client();
        self.runtime.block_on(client.compact(revision, Some(options))).map(drop).map_err(failed)
    }

    pub(super) fn defragment(&self) -> Result<(), Error> {
        let mut client = self.client.maintenance_client();
        self.runtime.block_on(client.defragment()).map(drop).map_err(failed)
    }

    /// Disarms NOSPACE of every member, as `etcdctl alarm disarm` does.
    pub(super) fn disarm(&self) -> Result<(), Error> {
        let mut client = self.client.maintenance_client();
        let every = client.alarm(AlarmAction::Get, AlarmType::None, None);
        let alarms = self.runtime.block_on(every).map_err(failed)?;
        for alarm in alarms.alarms() {
            let mut options = AlarmOptions::new();
            options.with_member(alarm.member_id());
            let ended = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options));
            self.runtime.block_on(ended).map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(error: etcd_client::Error) -> Error {
    Error::new(ExitCode::Failed, format!("demo: {error}"))
}
