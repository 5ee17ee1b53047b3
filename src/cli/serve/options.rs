//! A [`Config`] as the store and its server want it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use super::Config;
use super::config::Listen;
use super::url::Url;
use crate::store::guard::Quota;
use crate::store::lines::Log;
use crate::store::serve::jwt::Jwt;
use crate::store::serve::tls::{self, Tls};
use crate::store::serve::{self, Address, Listener, Role};
use crate::store::{Compat, Identity, Options};

/// What etcd gives a request besides two elections.
const REQUEST: Duration = Duration::from_secs(5);

impl Config {
    /// How long a request may take; a stop waits as long for what is under way.
    pub(super) fn request_timeout(&self) -> Duration {
        REQUEST.saturating_add(self.member.election.saturating_mul(2))
    }

    /// Returns how the store is opened.
    ///
    /// # Errors
    ///
    /// Keys of tokens that are not fit.
    pub(super) fn store_options(&self) -> Result<Options, String> {
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
            .warning_apply_duration(self.warning_apply)
            .watch_progress_interval(self.watch_progress_interval)
            .wal_dir(self.member.wal_dir.clone())
            .shown_at(self.read_only.is_some().then(|| texts(&self.advertise_client)))
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
        if let Some(settings) = &self.auth.signed_tokens {
            let tokens = Jwt::open(settings).map_err(|why| format!("--auth-token: {why}"))?;
            options = options.signed_tokens(Some(Arc::new(tokens) as Arc<_>));
        }
        Ok(options)
    }

    /// Returns how it is served.
    ///
    /// # Errors
    ///
    /// A host that has no address, or files of TLS that are not fit.
    pub(super) fn server_options(
        &self,
        compat: Compat,
        log: &Log,
    ) -> Result<serve::Options, String> {
        let limits = &self.limits;
        let mut options = serve::Options::default()
            .listeners(self.listeners(log)?)
            .cors(self.http.cors.clone())
            .host_whitelist(self.http.hosts.clone())
            .log(log.clone())
            .request_bytes_max(count(limits.request_bytes_max))
            .streams_max(limits.streams_max)
            .gateway(self.http.has_gateway)
            .reuse_port(self.listen.reuse_port)
            .warning_unary(self.warning_unary)
            .extensive_metrics(self.http.is_extensive)
            .features(self.gates.features(compat))
            .stops_on_defrag(self.gates.is_on("StopGRPCServiceOnDefrag"));
        // As in etcd, one that is no time takes the other with it.
        if !limits.ping_interval.is_zero() && !limits.ping_timeout.is_zero() {
            options = options
                .keepalive_interval(limits.ping_interval)
                .keepalive_timeout(limits.ping_timeout);
        }
        Ok(options)
    }

    /// Puts address, role and TLS of every URL together; the files of each side are read once.
    pub(super) fn listeners(&self, log: &Log) -> Result<Vec<Listener>, String> {
        let mut sides: [Option<Tls>; 2] = [None, None];
        let mut listeners = Vec::new();
        for (url, role) in self.listen.urls() {
            let address = place_of(url).map_err(|error| format!("listen on {url}: {error}"))?;
            let [of_clients, of_peers] = &mut sides;
            let (side, settings) = match role {
                Role::Peer => (of_peers, &self.peer_tls),
                _ => (of_clients, &self.client_tls),
            };
            let tls = match (url.scheme.is_tls(), &*side) {
                (false, _) => None,
                (true, Some(tls)) => Some(tls.clone()),
                (true, None) => {
                    let settings = tls::Settings { log: log.clone(), ..settings.clone() };
                    let tls = Tls::open(&settings).map_err(|error| error.to_string())?;
                    *side = Some(tls.clone());
                    Some(tls)
                }
            };
            listeners.push(Listener { address, role, tls });
        }
        Ok(listeners)
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
}

/// Finds where to listen.
pub(super) fn place_of(url: &Url) -> io::Result<Address> {
    match url.socket_file() {
        Some(path) => Ok(Address::Unix(path)),
        None => address_of(url).map(Address::Tcp),
    }
}

/// Finds the address to listen on; of several the first of IPv4, as Go does.
pub(super) fn address_of(url: &Url) -> io::Result<SocketAddr> {
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
