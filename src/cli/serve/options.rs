//! A [`Config`] as the store and its server want it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::Config;
use super::config::{Listen, TlsVersion};
use super::url::Url;
use crate::store::guard::Quota;
use crate::store::lines::Log;
use crate::store::serve::tls::{self, Auto, Side, Tls, TlsError};
use crate::store::serve::{self, Address, Listener, Role};
use crate::store::{Identity, Options};

/// What etcd gives a request besides two elections.
const REQUEST: Duration = Duration::from_secs(5);

/// TLS of each kind of listener, where a URL wants it.
#[derive(Clone, Debug, Default)]
pub(super) struct Secured {
    client: Option<Tls>,
    peer: Option<Tls>,
}

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

    /// Reads what TLS is spoken with, where a URL wants it; as etcd, makes certificates.
    ///
    /// # Errors
    ///
    /// What is not fit, in etcd's words where it has some.
    pub(super) fn open_tls(&self, log: &Log) -> Result<Secured, TlsError> {
        let mut secured = Secured::default();
        for (url, role) in self.listen.urls() {
            let (side, place) = match role {
                Role::Peer => (Side::Peer, &mut secured.peer),
                _ => (Side::Client, &mut secured.client),
            };
            if url.scheme.is_tls() && place.is_none() {
                *place = Some(Tls::open(&self.tls_settings(side, log))?);
            }
        }
        Ok(secured)
    }

    fn tls_settings(&self, side: Side, log: &Log) -> tls::Settings {
        let (given, folder, urls) = match side {
            Side::Client => {
                let urls = self.listen.client.iter().chain(&self.listen.client_http);
                (&self.client_tls, "client", urls.collect::<Vec<_>>())
            }
            Side::Peer => (&self.peer_tls, "peer", self.listen.peer.iter().collect()),
        };
        let auto = || Auto {
            dir: self.member.data_dir.join("fixtures").join(folder),
            hosts: urls.iter().map(|url| url.address()).collect(),
            years: u32::try_from(given.auto_years).unwrap_or(u32::MAX),
        };
        let version = |version| match version {
            TlsVersion::V1_2 => "TLS1.2".to_owned(),
            TlsVersion::V1_3 => "TLS1.3".to_owned(),
        };
        tls::Settings {
            side,
            cert_file: given.cert_file.clone(),
            key_file: given.key_file.clone(),
            trusted_ca_file: given.trusted_ca_file.clone(),
            client_cert_auth: given.wants_client_cert,
            crl_file: given.crl_file.clone(),
            allowed_names: given.allowed_names.clone(),
            allowed_hostnames: given.allowed_hostnames.clone(),
            cipher_suites: given.cipher_suites.clone(),
            min_version: version(given.min),
            max_version: given.max.map(version).unwrap_or_default(),
            auto: (given.is_auto && given.is_empty()).then(auto),
            log: log.clone(),
            ..tls::Settings::default()
        }
    }

    /// Returns how it is served.
    ///
    /// # Errors
    ///
    /// A host that has no address.
    pub(super) fn server_options(&self, secured: &Secured) -> io::Result<serve::Options> {
        let limits = &self.limits;
        let mut options = serve::Options::default()
            .listeners(self.listen.listeners(secured)?)
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

    fn listeners(&self, secured: &Secured) -> io::Result<Vec<Listener>> {
        let listener = |(url, role): (&Url, Role)| {
            let address = match url.socket_file() {
                Some(path) => Address::Unix(path),
                None => Address::Tcp(address_of(url)?),
            };
            let tls = match role {
                Role::Peer => &secured.peer,
                _ => &secured.client,
            };
            Ok(Listener { address, role, tls: tls.clone().filter(|_| url.scheme.is_tls()) })
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
