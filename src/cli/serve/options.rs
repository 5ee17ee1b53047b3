//! A [`Config`] as the store and its server want it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::Config;
use super::config::Listen;
use super::url::Url;
use crate::store::guard::Quota;
use crate::store::serve::{self, Address, Listener, Role};
use crate::store::{Identity, Options};

/// What etcd gives a request besides two elections.
const REQUEST: Duration = Duration::from_secs(5);

impl Config {
    /// How long a request may take; a stop waits as long for what is under way.
    pub(super) fn request_timeout(&self) -> Duration {
        REQUEST.saturating_add(self.member.election.saturating_mul(2))
    }

    /// Returns how the store is opened.
    pub(super) fn store_options(&self) -> Options {
        let texts = |urls: &[Url]| urls.iter().map(Url::to_string).collect::<Vec<_>>();
        let identity = Identity::default()
            .name(self.member.name.clone())
            .peer_urls(texts(&self.founding.peer_urls))
            .client_urls(texts(&self.advertise_client))
            .token(self.founding.token.clone());
        let storage = &self.storage;
        let mut options = Options::default()
            .identity(identity)
            .compat(self.compat)
            .quota(Quota::of_flag(storage.quota_bytes))
            .snapshot_count(storage.snapshot_count)
            .snaps_max(count(storage.snaps_max))
            .wals_max(count(storage.wals_max))
            .compaction_batch_limit(count(storage.compaction_batch_limit))
            .auto_compaction(storage.auto_compaction)
            .request_bytes_max(count(self.limits.request_bytes_max))
            .txn_ops_max(count(self.limits.txn_ops_max))
            .request_timeout(self.request_timeout())
            .heartbeat(self.member.heartbeat)
            .election(self.member.election)
            .auth_token_ttl(self.auth.token_ttl)
            .bcrypt_cost(self.auth.bcrypt_cost)
            .watch_progress_interval(self.watch_progress_interval)
            .wal_dir(self.member.wal_dir.clone())
            .force_new_cluster(self.member.force_new_cluster)
            .unsafe_no_fsync(self.member.unsafe_no_fsync);
        if self.gates.is_on("LeaseCheckpoint") {
            options = options.lease_checkpoints(Some(Duration::ZERO));
        }
        // Of these a 0 is no number.
        if !storage.batch_interval.is_zero() {
            options = options.batch_interval(storage.batch_interval);
        }
        if storage.batch_limit > 0 {
            options = options.batch_limit(count(storage.batch_limit));
        }
        if !storage.compaction_sleep.is_zero() {
            options = options.compaction_sleep(storage.compaction_sleep);
        }
        options
    }

    /// Returns how it is served.
    ///
    /// # Errors
    ///
    /// A host that has no address.
    pub(super) fn server_options(&self) -> io::Result<serve::Options> {
        let limits = &self.limits;
        let mut options = serve::Options::default()
            .listeners(self.listen.listeners()?)
            .request_bytes_max(count(limits.request_bytes_max))
            .streams_max(limits.streams_max)
            .gateway(self.http.has_gateway);
        if !limits.ping_interval.is_zero() {
            options = options.keepalive_interval(limits.ping_interval);
        }
        if !limits.ping_timeout.is_zero() {
            options = options.keepalive_timeout(limits.ping_timeout);
        }
        Ok(options)
    }
}

impl Listen {
    /// Returns every URL that is listened on, with what is served there.
    pub(super) fn urls(&self) -> Vec<(&Url, Role)> {
        let clients = if self.client_http.is_empty() { Role::Client } else { Role::Grpc };
        let mut urls = Vec::new();
        urls.extend(self.peer.iter().map(|url| (url, Role::Peer)));
        urls.extend(self.client.iter().map(|url| (url, clients)));
        urls.extend(self.client_http.iter().map(|url| (url, Role::Http)));
        urls.extend(self.metrics.iter().map(|url| (url, Role::Metrics)));
        urls
    }

    fn listeners(&self) -> io::Result<Vec<Listener>> {
        let listener = |(url, role): (&Url, Role)| {
            let address = match url.socket_file() {
                Some(path) => Address::Unix(path),
                None => Address::Tcp(address_of(url)?),
            };
            Ok(Listener { address, role, tls: None })
        };
        self.urls().into_iter().map(listener).collect()
    }
}

/// Finds the address to listen on; of several the first of IPv4, as Go does.
fn address_of(url: &Url) -> io::Result<SocketAddr> {
    let (host, port) = url.host_port().unwrap_or_default();
    let port: u16 = match port {
        "" => 0,
        port => port.parse().map_err(|_| io::Error::other(format!("{url} has no port")))?,
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok((address, port).into());
    }
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first());
    Ok(first.copied().unwrap_or_else(|| (Ipv4Addr::LOCALHOST, port).into()))
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
