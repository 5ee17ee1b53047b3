//! Who answers at a port that is no client port of an etcd.
//!
//! Runs only after a connection has failed in a way that another program there, or the other of
//! http and https, would explain. Asks a few short questions over fresh connections, all within
//! [`LIMIT`]; shows no password, and our certificate only to a server that is trusted. Where
//! nothing is learnt, the first cause stands.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt;

use crate::format::certificate::shown;

use super::dial::{Dialer, Limit};
use super::http::{self, Answer};
use super::tls::Purpose;
use super::trace::{Ended, Trace, ended};
use super::{Cause, Endpoint, Place};

/// Limit for all questions together.
const LIMIT: Duration = Duration::from_millis(1500);
/// Limit for what a server says of its own accord.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// Most client URLs that are told.
const URLS_MAX: usize = 16;

/// How a question is put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
    /// Over TLS, whoever it is, without a certificate of ours.
    Look,
}

/// Finds a cause that says more than the one of the failed connection.
pub(super) async fn refine(dialer: &Dialer, endpoint: &Endpoint, cause: Cause) -> Cause {
    let strange = match &cause {
        Cause::NotEtcd { .. } | Cause::WantsTls | Cause::WantsPlain | Cause::Broken { .. } => true,
        Cause::Tls { .. } => true,
        // Somebody listens there.
        Cause::Timeout { doing, .. } => doing.contains("word") || doing.contains("hands"),
        _ => false,
    };
    if !strange {
        return cause;
    }
    let is_secure = dialer.is_secure(endpoint);
    if is_secure
        && matches!(cause, Cause::Broken { .. })
        && let Some(refusal) = refusal(dialer, endpoint).await
    {
        return refusal;
    }
    let probe = Probe { dialer, endpoint, limit: Limit::new(LIMIT.min(dialer.timeout)) };
    let learnt = match is_secure {
        true => probe.after_tls().await,
        false => probe.after_plain().await,
    };
    match (learnt, cause) {
        (Some(learnt), _) => learnt,
        (None, Cause::WantsTls) => {
            Cause::NotEtcd { what: "it answers with something that looks like TLS".to_owned() }
        }
        (None, Cause::WantsPlain) => {
            Cause::NotEtcd { what: "it speaks neither TLS nor HTTP".to_owned() }
        }
        (None, cause) => cause,
    }
}

/// Connects once more and only listens, for the reason why the server refuses us.
///
/// In TLS 1.3 a server checks our certificate when we take the handshake for done. What we send
/// from then on meets a connection that it has closed, and is answered with a reset, which may be
/// noticed before the alert that tells why. Who sends nothing is sent no reset.
async fn refusal(dialer: &Dialer, endpoint: &Endpoint) -> Option<Cause> {
    let (trace, limit) = (Trace::default(), Limit::new(dialer.timeout));
    let stream = dialer.plain(endpoint, limit).await.ok()?;
    match dialer.secured(endpoint, stream, Purpose::Grpc, &trace, limit).await {
        Err(cause @ (Cause::Certificate(_) | Cause::Tls { .. })) => Some(cause),
        Err(_) => None,
        Ok(mut tls) => {
            let word = tokio::time::timeout(FIRST_WORD, tls.read_u8()).await.ok()?;
            match ended(&word.err()?) {
                Ended::Tls(error) => Some(dialer.tls_cause(&error, &trace, "")),
                Ended::Closed | Ended::Io(..) => None,
            }
        }
    }
}

struct Probe<'a> {
    dialer: &'a Dialer,
    endpoint: &'a Endpoint,
    limit: Limit,
}

impl Probe<'_> {
    async fn after_plain(&self) -> Option<Cause> {
        if let Some(server) = self.who(Way::Plain).await {
            return Some(server.cause());
        }
        if !self.speaks_tls().await {
            return None;
        }
        match self.who(Way::Look).await {
            Some(server @ Server::PeerPort(_)) => Some(server.cause()),
            _ => Some(Cause::WantsTls),
        }
    }

    async fn after_tls(&self) -> Option<Cause> {
        if let Some(server) = self.who(Way::Tls).await {
            return Some(server.cause());
        }
        match self.who(Way::Plain).await {
            Some(server @ Server::PeerPort(_)) => Some(server.cause()),
            Some(_) => Some(Cause::WantsPlain),
            // A port for gRPC alone knows no HTTP/1.
            None => {
                let mut stream = self.dialer.plain(self.endpoint, self.limit).await.ok()?;
                let speaks = http::speaks_http2(&mut stream, self.limit.at).await;
                speaks.then_some(Cause::WantsPlain)
            }
        }
    }

    async fn speaks_tls(&self) -> bool {
        let trace = Arc::new(Trace::default());
        let Ok(stream) = self.dialer.plain(self.endpoint, self.limit).await else { return false };
        let tls = self.dialer.secured(self.endpoint, stream, Purpose::Look, &trace, self.limit);
        // A server that refuses us in TLS speaks TLS, and has shown its certificate or an alert.
        match tls.await {
            Ok(_) | Err(Cause::Certificate(_)) => true,
            Err(Cause::Tls { .. }) => true,
            Err(_) => trace.shown.certificate().is_some(),
        }
    }

    /// Asks what tells the programs apart.
    async fn who(&self, way: Way) -> Option<Server> {
        let (status, head, body) = self.ask(way, "/members").await?;
        if let Some(urls) = peer_answer(&body, self.endpoint) {
            return Some(Server::PeerPort(urls));
        }
        if let Some(server) = kubernetes(&body) {
            return Some(server);
        }
        if let Some((_, _, body)) = self.ask(way, "/version").await
            && let Ok(version) = serde_json::from_slice::<Value>(&body)
        {
            if version.get("etcdserver").is_some() {
                return Some(Server::EtcdHttp);
            }
            if version.get("gitVersion").is_some() {
                return Some(Server::Kubernetes);
            }
        }
        if let Some((_, _, body)) = self.ask(way, "/health").await
            && let Ok(health) = serde_json::from_slice::<Value>(&body)
            && health.get("health").is_some()
        {
            return Some(Server::Metrics);
        }
        let name = head.lines().find_map(|line| line.strip_prefix("server:"));
        Some(Server::Other { status, name: name.map(|name| shown(name.trim())) })
    }

    async fn ask(&self, way: Way, path: &str) -> Option<(u16, String, Vec<u8>)> {
        let mut stream = self.dialer.plain(self.endpoint, self.limit).await.ok()?;
        let host = match self.endpoint.place() {
            Place::Tcp { .. } => self.endpoint.address(),
            Place::Unix(_) => "localhost".to_owned(),
        };
        let purpose = match way {
            Way::Plain => None,
            Way::Tls => Some(Purpose::Http),
            Way::Look => Some(Purpose::Look),
        };
        let answer = match purpose {
            None => http::get(&mut stream, &host, path, self.limit.at).await,
            Some(purpose) => {
                let trace = Trace::default();
                let tls =
                    self.dialer.secured(self.endpoint, stream, purpose, &trace, self.limit).await;
                http::get(&mut tls.ok()?, &host, path, self.limit.at).await
            }
        };
        match answer {
            Answer::Http { status, head, body } => Some((status, head, body)),
            Answer::Other(_) => None,
        }
    }
}

/// Programs that are known by their answers.
#[derive(Debug, PartialEq, Eq)]
enum Server {
    /// An etcd's peer port, and where that member serves clients.
    PeerPort(Vec<String>),
    /// A port of an etcd that serves HTTP and no gRPC (`--listen-client-http-urls`).
    EtcdHttp,
    /// A port of `--listen-metrics-urls`.
    Metrics,
    Kubernetes,
    Other {
        status: u16,
        name: Option<String>,
    },
}

impl Server {
    fn cause(self) -> Cause {
        let what = match self {
            Self::PeerPort(client_urls) => return Cause::PeerPort { client_urls },
            Self::EtcdHttp => "it is a port of etcd that serves HTTP and no gRPC".to_owned(),
            Self::Metrics => "it is etcd's port for metrics and health".to_owned(),
            Self::Kubernetes => "it is a Kubernetes API server".to_owned(),
            Self::Other { status, name: Some(name) } => {
                format!("it is an HTTP server ({name}), which answers with status {status}")
            }
            Self::Other { status, name: None } => {
                format!("it is an HTTP server, which answers with status {status}")
            }
        };
        Cause::NotEtcd { what }
    }
}

/// Reads the members as a peer port tells them, and picks the client URLs of the one that was
/// asked; of all where none has that peer URL (etcd etcdserver/api/etcdhttp, `peerMembersHandler`,
/// checked at 3.7.3).
fn peer_answer(body: &[u8], endpoint: &Endpoint) -> Option<Vec<String>> {
    let members: Value = serde_json::from_slice(body).ok()?;
    let members = members.as_array()?;
    members.iter().find(|member| member.get("peerURLs").is_some())?;
    let list = |member: &Value, key: &str| -> Vec<String> {
        let urls = member.get(key).and_then(Value::as_array);
        let texts = urls.into_iter().flatten().filter_map(Value::as_str);
        texts.map(shown).collect()
    };
    let address = endpoint.address();
    let is_asked = |member: &&Value| {
        list(member, "peerURLs").iter().any(|url| url.split("://").nth(1) == Some(&address))
    };
    let asked: Vec<&Value> = members.iter().filter(is_asked).collect();
    let chosen = if asked.is_empty() { members.iter().collect() } else { asked };
    let urls = chosen.into_iter().flat_map(|member| list(member, "clientURLs"));
    Some(urls.take(URLS_MAX).collect())
}

fn kubernetes(body: &[u8]) -> Option<Server> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let is_status = answer.get("kind")? == "Status" && answer.get("apiVersion")? == "v1";
    is_status.then_some(Server::Kubernetes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_urls_are_those_of_the_member_that_was_asked() {
        let body = br#"[{"id":1,"peerURLs":["https://10.0.0.1:2380"],"name":"a",
            "clientURLs":["https://10.0.0.1:2379"]},{"id":2,"peerURLs":["https://10.0.0.2:2380"],
            "name":"b","clientURLs":["https://10.0.0.2:2379"]}]"#;
        let asked = |url: &str| peer_answer(body, &Endpoint::parse(url).unwrap());
        assert_eq!(asked("https://10.0.0.2:2380"), Some(vec!["https://10.0.0.2:2379".to_owned()]));
        assert_eq!(asked("http://cp-1:2380").unwrap().len(), 2);
    }

    #[test]
    fn other_answers_are_no_peer_port() {
        let endpoint = Endpoint::parse("http://10.0.0.1:2380").unwrap();
        for body in [&b""[..], b"[]", b"{}", b"[1,2]", b"[{\"name\":1}]", b"404 page not found\n"] {
            assert_eq!(peer_answer(body, &endpoint), None);
        }
        let deep = "[".repeat(20_000);
        assert_eq!(peer_answer(deep.as_bytes(), &endpoint), None);
    }
}
