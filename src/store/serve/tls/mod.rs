//! TLS of a listener: what is shown, who is let in, and files that change while we serve.
//!
//! 1. Everything is checked before the first connection: what cannot be served is refused with the
//!    file and the reason.
//! 2. Certificate, key, authorities and revocation list are looked at before each handshake and
//!    read again when they changed. A pair that is half written or unfit leaves the one before in
//!    use, and is told once.
//! 3. What was asked for is looked at or refused, never dropped: a connection that is let in showed
//!    what the flags want, and is not a resumed one that showed it before.
//! 4. A handshake ends within its time, whatever the other side does or does not send.
//!
//! Cryptography is ring's, named at every place; the process's default is not looked at.
//!
//! Source: etcd client/pkg/transport, server/embed, 3.7.3. etcd reads certificate, key and
//! revocation list at each handshake, and authorities once.

mod cipher;
mod client;
mod files;
mod self_signed;
mod settings;
#[cfg(test)]
mod tests;
mod told;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::format::certificate::Facts;
use crate::format::{pem, signature};
use crate::store::lines::{Field, Level, Log};
use client::{Authorities, Check, Names, Revoked};
use files::Files;

pub use settings::{Auto, Settings, Side, TlsError};

/// Longest file of certificates or keys, in bytes.
const PAIR_MAX: u64 = 4 << 20;
/// Longest revocation list, in bytes.
const LIST_MAX: u64 = 16 << 20;
/// What is spoken over TLS, best first.
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// TLS of a listener. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    plan: cipher::Plan,
    names: Names,
    state: Mutex<State>,
    /// Whose turn it is to look at the files.
    turn: Arc<Semaphore>,
}

/// What was read, and what is made of it.
#[derive(Debug)]
struct State {
    pair: (Files, Arc<CertifiedKey>),
    authorities: Option<(Option<Files>, Authorities)>,
    revoked: (Option<Files>, Revoked),
    config: Arc<ServerConfig>,
    /// Seconds since 1970 from which the configuration is to be made anew.
    until: i64,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Whether the connection is over TLS.
    pub is_tls: bool,
    /// The common name in the certificate that the client showed and that was believed; empty where
    /// it says none. `None` without [`Settings::client_cert_auth`].
    pub common_name: Option<String>,
    /// What both sides agreed to speak; `None` where the client did not say what it can.
    pub protocol: Option<Protocol>,
}

/// What is spoken over TLS (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `h2`.
    H2,
    /// `http/1.1`.
    Http1,
}

impl Tls {
    /// Reads and checks all files; with [`Settings::auto`], makes a certificate.
    ///
    /// # Errors
    ///
    /// [`TlsError::Flags`] for settings that do not go together, in etcd's words where it has some;
    /// [`TlsError::File`] for a file that is not fit, with the reason.
    pub fn open(settings: &Settings) -> Result<Self, TlsError> {
        let (settings, now) = (settings.clone(), now());
        let plan =
            cipher::plan(&settings.cipher_suites, &settings.min_version, &settings.max_version)?;
        settings.check_files()?;
        let log = &settings.log;
        if !plan.left_out.is_empty() {
            let names = plan.left_out.join(", ");
            log.warn(&format!("cipher suites that are too weak to be offered here: {names}"), &[]);
        }
        let names = Names::of(&settings)?;
        let paths = match (&settings.cert_file, &settings.key_file, &settings.auto) {
            (Some(cert), Some(key), auto) => {
                if auto.is_some() {
                    log.warn("ignoring client auto TLS since certs given", &[]);
                }
                [cert.clone(), key.clone()]
            }
            (_, _, Some(auto)) => self_signed::ensure(auto, settings.side, log, now)?,
            _ => return Err(TlsError::Flags("there is no certificate".to_owned())),
        };
        let flags = ["cert-file", "key-file"].map(|name| settings.flag(name)).join(", ");
        let pair = first(paths.to_vec(), PAIR_MAX, &flags, |texts| pair(&paths, texts, log))?;
        if let (Some(cert), Some(key)) = (&settings.client_cert_file, &settings.client_key_file) {
            let paths = [cert.clone(), key.clone()];
            let flags = ["client-cert-file", "client-key-file"].map(|name| settings.flag(name));
            first(paths.to_vec(), PAIR_MAX, &flags.join(", "), |texts| {
                self::pair(&paths, texts, log)
            })?;
        }
        let authorities = match (&settings.trusted_ca_file, settings.client_cert_auth) {
            (Some(path), _) => {
                let flag = settings.flag("trusted-ca-file");
                let (files, read) = first(vec![path.clone()], PAIR_MAX, &flag, |texts| {
                    Authorities::read(path, only(texts), now)
                })?;
                Some((Some(files), read))
            }
            (None, true) => {
                log.warn(&format!(
                    "{} without {}: whoever shows a certificate of an authority that this system \
                     trusts is let in",
                    settings.flag("client-cert-auth"),
                    settings.flag("trusted-ca-file"),
                ), &[]);
                Some((None, Authorities::of_the_system()))
            }
            (None, false) => None,
        };
        let revoked = match &settings.crl_file {
            Some(path) => {
                let flag = settings.flag("crl-file");
                let (files, read) = first(vec![path.clone()], LIST_MAX, &flag, |texts| {
                    Revoked::read(path, only(texts))
                })?;
                (Some(files), read)
            }
            None => (None, Revoked::default()),
        };
        let trusted = authorities.as_ref().map(|(_, read)| read);
        let (config, until) = config(&plan, &pair.1, trusted, &revoked.1, &names, now)?;
        let state = Mutex::new(State { pair, authorities, revoked, config, until });
        let turn = Arc::new(Semaphore::new(1));
        Ok(Self(Arc::new(Inner { settings, plan, names, state, turn })))
    }

    /// Tells of a connection that was refused, as etcd does.
    pub(super) fn rejected(&self, remote: &str, error: &io::Error) {
        // Whoever looks whether a port is open says nothing.
        let level = match error.kind() {
            io::ErrorKind::UnexpectedEof => Level::Debug,
            _ => Level::Warn,
        };
        let message = match self.0.settings.side {
            Side::Client => "rejected connection on client endpoint",
            Side::Peer => "rejected connection on peer endpoint",
        };
        let fields: &[(&str, &dyn Field)] =
            &[("remote-addr", &remote.to_owned()), ("error", &error.to_string())];
        self.0.settings.log.line(level, message, fields);
    }

    /// Waits for a client's handshake, within its time.
    ///
    /// # Errors
    ///
    /// Why there is no connection, in the words of Go's crypto/tls where it has some: the client
    /// broke off, spoke no TLS or another one, or showed a certificate that is not believed;
    /// [`io::ErrorKind::TimedOut`] where it took too long.
    pub async fn accept<IO>(&self, io: IO) -> io::Result<(TlsStream<IO>, Peer)>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let limit = self.0.settings.handshake;
        let accepting = async {
            let config = self.current().await?;
            TlsAcceptor::from(config).accept(io).await.map_err(told::failure)
        };
        let stream = match timeout(limit, accepting).await {
            Ok(done) => done?,
            Err(_) => {
                let text = format!("tls: no handshake within {} ms", limit.as_millis());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        };
        let (_, session) = stream.get_ref();
        let protocol = match session.alpn_protocol() {
            Some(H2) => Some(Protocol::H2),
            Some(HTTP1) => Some(Protocol::Http1),
            _ => None,
        };
        let leaf = session.peer_certificates().and_then(<[_]>::first);
        // A certificate says who asks only where every client must show one, as in etcd.
        let leaf = leaf.filter(|_| self.0.settings.client_cert_auth);
        let facts = leaf.and_then(|der| Facts::read(der));
        let peer =
            Peer { is_tls: true, common_name: facts.map(|facts| facts.common_name), protocol };
        Ok((stream, peer))
    }
}

impl Tls {
    /// Returns what a handshake is made with now. The files are looked at on a thread that may wait
    /// for them, and on one alone.
    async fn current(&self) -> io::Result<Arc<ServerConfig>> {
        let inner = Arc::clone(&self.0);
        // The semaphore is never closed.
        let turn = Arc::clone(&inner.turn).acquire_owned().await.ok();
        let look = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            inner.current()
        });
        look.await.map_err(io::Error::other)
    }
}

impl Inner {
    /// Returns what a handshake is made with now, after a look at the files.
    fn current(&self) -> Arc<ServerConfig> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, now) = (&self.settings.log, now());
        let State { pair, authorities, revoked, .. } = &mut *state;
        let mut is_new = false;
        let paths = pair.0.paths().to_vec();
        if let Some(read) = pair.0.renewed(log, |texts| self::pair(&paths, texts, log)) {
            pair.1 = read;
            is_new = true;
            log.info(&format!("read the certificate {} again", names(&paths)), &[]);
        }
        if let Some((Some(files), authorities)) = authorities
            && let Some(path) = files.paths().first().cloned()
            && let Some(read) =
                files.renewed(log, |texts| Authorities::read(&path, only(texts), now))
        {
            *authorities = read;
            is_new = true;
            log.info(&format!("read the authorities {} again", path.display()), &[]);
        }
        if let (Some(files), revoked) = revoked
            && let Some(path) = files.paths().first().cloned()
            && let Some(read) = files.renewed(log, |texts| Revoked::read(&path, only(texts)))
        {
            *revoked = read;
            is_new = true;
            log.info(&format!("read the revocation list {} again", path.display()), &[]);
        }
        if is_new || now >= state.until {
            let trusted = state.authorities.as_ref().map(|(_, read)| read);
            let made =
                config(&self.plan, &state.pair.1, trusted, &state.revoked.1, &self.names, now);
            match made {
                Ok((config, until)) => (state.config, state.until) = (config, until),
                Err(error) => log.warn(&error.to_string(), &[]),
            }
        }
        state.config.clone()
    }
}

/// Reads files for the first time; an error says which flag named them.
fn first<T>(
    paths: Vec<PathBuf>,
    limit: u64,
    flag: &str,
    make: impl FnOnce(&[Vec<u8>]) -> Result<T, TlsError>,
) -> Result<(Files, T), TlsError> {
    let read = Files::open(paths, limit).and_then(|(files, texts)| Ok((files, make(&texts)?)));
    read.map_err(|error| match error {
        TlsError::File { path, what } => TlsError::File { path, what: format!("{what} ({flag})") },
        error => error,
    })
}

fn only(texts: &[Vec<u8>]) -> &[u8] {
    texts.first().map(Vec::as_slice).unwrap_or_default()
}

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(" and ")
}

/// Makes a certificate with its key of their files.
fn pair(paths: &[PathBuf], texts: &[Vec<u8>], log: &Log) -> Result<Arc<CertifiedKey>, TlsError> {
    let ([cert, key], [cert_text, key_text]) = (paths, texts) else {
        return Err(TlsError::Flags("a certificate has one key".to_owned()));
    };
    let chain = pem::certificates(cert_text).map_err(|what| TlsError::file(cert, what))?;
    let facts = chain.first().and_then(|der| Facts::read(der));
    let facts = facts.ok_or_else(|| TlsError::file(cert, "the certificate in it is damaged"))?;
    let private = pem::private_key(key_text, &key.display().to_string())
        .map_err(|what| TlsError::file(key, what))?;
    let made = CertifiedKey::from_der(chain, private, &signature::provider());
    let made = made.map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::file(
            key,
            format!(
                "tls: private key does not match public key: it is not the key of {}",
                cert.display()
            ),
        ),
        error => TlsError::file(key, error),
    })?;
    if !facts.is_in_time(now()) {
        // Clients refuse it; etcd serves it all the same.
        log.warn(&format!("{}: {}", cert.display(), facts.dates()), &[]);
    }
    Ok(Arc::new(made))
}

/// Makes what handshakes are made with, and says until when it holds.
fn config(
    plan: &cipher::Plan,
    pair: &Arc<CertifiedKey>,
    authorities: Option<&Authorities>,
    revoked: &Revoked,
    names: &Names,
    now: i64,
) -> Result<(Arc<ServerConfig>, i64), TlsError> {
    let mut provider = (*signature::provider()).clone();
    provider.cipher_suites.clone_from(&plan.suites);
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&plan.versions)
        .map_err(|error| TlsError::Flags(error.to_string()))?;
    let check = authorities.map(|given| Arc::new(Check::new(given, revoked, names, now)));
    let until = check.as_ref().map_or(i64::MAX, |check| check.until);
    let wants_clients = check.is_some();
    let builder = match check {
        Some(check) => builder.with_client_cert_verifier(check),
        None => builder.with_no_client_auth(),
    };
    let shown = SingleCertAndKey::from(Arc::clone(pair));
    let mut config = builder.with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    if wants_clients {
        // A resumed connection would get by without a look at its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok((Arc::new(config), until))
}

/// Returns seconds since 1970 by this machine's clock.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
