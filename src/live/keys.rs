//! Keys, read in bounded pages and changed on conditions; leases.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KvClient, LeaseGrantOptions, PutOptions, Txn, TxnOp,
};

use super::cluster::header;
use super::{Cluster, Error, Header};

/// Which keys, and what of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first key.
    pub key: Vec<u8>,
    /// The key behind the last; empty for `key` alone, `[0]` for all that follow.
    pub end: Vec<u8>,
    /// Revision at which they are read; 0 for the newest.
    pub revision: i64,
    /// Records at most; 0 for all.
    pub limit: i64,
    /// Leaves values out.
    pub keys_only: bool,
    /// Leaves records out.
    pub count_only: bool,
    /// Read from the member alone, without asking the others.
    pub serializable: bool,
}

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value; empty where it was left out.
    pub value: Vec<u8>,
    /// Revision at which the key was created.
    pub create_revision: i64,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// Changes since it was created.
    pub version: i64,
    /// The lease that it hangs on; 0 for none.
    pub lease: i64,
}

/// Records in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Who answered.
    pub header: Header,
    /// The records.
    pub records: Vec<Record>,
    /// Whether there are more than the limit.
    pub more: bool,
    /// Keys in the range.
    pub count: i64,
}

/// What came of a change on a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Who answered.
    pub header: Header,
    /// Whether the condition held, and the change was made.
    pub succeeded: bool,
    /// The record that is there instead, where there is one.
    pub found: Option<Record>,
}

impl Cluster {
    /// Reads keys at the first endpoint that answers.
    ///
    /// # Errors
    ///
    /// Every cause of a call; [`super::Cause::Answer`] with code 11 where the revision is compacted
    /// or still to come.
    pub fn range(&self, range: &Range) -> Result<Page, Error> {
        let range = range.clone();
        Ok(self.first(move |client| read(client, range.clone()))?.1)
    }

    /// Reads keys at one endpoint.
    ///
    /// # Errors
    ///
    /// As [`Cluster::range`].
    pub fn range_at(&self, endpoint: &str, range: &Range) -> Result<Page, Error> {
        let (limit, range) = (self.settings().command_timeout, range.clone());
        self.at(endpoint, limit, move |client| read(client, range.clone()))
    }

    /// Reads keys at one endpoint, in an answer of so many bytes at most: one that has more is an
    /// error before it is in memory ([`super::Cause::Answer`] with code 11, OUT_OF_RANGE).
    ///
    /// # Errors
    ///
    /// As [`Cluster::range`].
    pub fn range_limited(
        &self,
        endpoint: &str,
        range: &Range,
        bytes_max: usize,
    ) -> Result<Page, Error> {
        let (limit, range) = (self.settings().command_timeout, range.clone());
        self.at(endpoint, limit, move |client| {
            read_by(client.kv_client().max_decoding_message_size(bytes_max), range.clone())
        })
    }

    /// Puts a key that is not there, at the first endpoint that answers.
    ///
    /// # Errors
    ///
    /// Every cause of a call. Where the connection broke or the time was over, it may be there.
    pub fn create(&self, key: &[u8], value: &[u8], lease: i64) -> Result<Changed, Error> {
        let (key, value) = (key.to_vec(), value.to_vec());
        let (_, changed) = self.first(move |mut client| {
            let (key, value) = (key.clone(), value.clone());
            async move {
                let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
                let put = TxnOp::put(key.clone(), value, Some(PutOptions::new().with_lease(lease)));
                let get = TxnOp::get(key, None);
                let txn = Txn::new().when([absent]).and_then([put]).or_else([get]);
                let answer = client.txn(txn).await?;
                let found = answer.op_responses().into_iter().find_map(|response| match response {
                    etcd_client::TxnOpResponse::Get(get) => get.kvs().first().map(record),
                    _ => None,
                });
                let header = header(answer.header());
                Ok(Changed { header, succeeded: answer.succeeded(), found })
            }
        })?;
        Ok(changed)
    }

    /// Asks one endpoint whether writes are accepted, and changes nothing: a transaction whose
    /// condition never holds, with a put where it does. A member at its quota refuses it all the
    /// same ([`super::is_out_of_space`]), and raises the alarm for it, as for any write; a learner
    /// too, that has not been defragmented yet. Any other takes no revision for it.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn prove_writes(&self, endpoint: &str) -> Result<Header, Error> {
        const KEY: &str = "etcdkit/proof-of-writes";
        let limit = self.settings().command_timeout;
        self.at(endpoint, limit, |mut client: Client| async move {
            // No revision is below 0.
            let never = Compare::mod_revision(KEY, CompareOp::Less, 0);
            let txn = Txn::new().when([never]).and_then([TxnOp::put(KEY, "", None)]);
            let answer = client.txn(txn).await?;
            Ok(header(answer.header()))
        })
    }

    /// Grants a lease; returns its id.
    ///
    /// # Errors
    ///
    /// Every cause of a call; members at their quota grant none.
    pub fn grant(&self, ttl: Duration) -> Result<i64, Error> {
        let ttl_s = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let (_, id) = self.first(move |mut client| async move {
            let answer = client.lease_grant(ttl_s, None::<LeaseGrantOptions>).await?;
            Ok(answer.id())
        })?;
        Ok(id)
    }

    /// Lets a lease begin anew; returns the seconds that it has now, 0 where it is over.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn keep_alive(&self, lease: i64) -> Result<i64, Error> {
        let (_, ttl_s) = self.first(move |mut client| async move {
            let (mut keeper, mut stream) = match client.lease_keep_alive(lease).await {
                // So the client says that the answer was a time of 0.
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Ok(0),
                begun => begun?,
            };
            // It took the first answer for itself.
            keeper.keep_alive().await?;
            Ok(stream.message().await?.map_or(0, |answer| answer.ttl()))
        })?;
        Ok(ttl_s)
    }

    /// Asks how many seconds a lease has left; -1 where it is over.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn time_to_live(&self, lease: i64) -> Result<i64, Error> {
        let (_, ttl_s) = self.first(move |mut client| async move {
            Ok(client.lease_time_to_live(lease, None).await?.ttl())
        })?;
        Ok(ttl_s)
    }

    /// Ends a lease and what hangs on it.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn revoke(&self, lease: i64) -> Result<(), Error> {
        self.first(move |mut client| async move { client.lease_revoke(lease).await.map(|_| ()) })?;
        Ok(())
    }
}

async fn read(client: Client, range: Range) -> Result<Page, etcd_client::Error> {
    read_by(client.kv_client(), range).await
}

async fn read_by(mut client: KvClient, range: Range) -> Result<Page, etcd_client::Error> {
    let Range { key, end, revision, limit, keys_only, count_only, serializable } = range;
    let mut options = GetOptions::new().with_revision(revision).with_limit(limit);
    if !end.is_empty() {
        options = options.with_range(end);
    }
    if keys_only {
        options = options.with_keys_only();
    }
    if count_only {
        options = options.with_count_only();
    }
    if serializable {
        options = options.with_serializable();
    }
    let answer = client.get(key, Some(options)).await?;
    Ok(Page {
        header: header(answer.header()),
        records: answer.kvs().iter().map(record).collect(),
        more: answer.more(),
        count: answer.count(),
    })
}

fn record(kv: &etcd_client::KeyValue) -> Record {
    Record {
        key: kv.key().to_vec(),
        value: kv.value().to_vec(),
        create_revision: kv.create_revision(),
        mod_revision: kv.mod_revision(),
        version: kv.version(),
        lease: kv.lease(),
    }
}
