//! The newest revision that running members know, as evidence for a restore.
//!
//! A restored keyspace must start above every revision that a client may have seen; what the
//! members still running answer is the best witness there is.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions};

use super::{Endpoint, Error};

/// An endpoint as it was given, and the revision that it answered.
pub type Answer = (String, Result<i64, Error>);

/// Asks every endpoint for its revision, all at once.
///
/// Returns one answer an endpoint, in the order given, under the text given. The revision is the
/// member's own: a member that lags answers a lower one, so callers take the highest. `timeout`
/// is the limit for the whole call, connections and name resolution included.
///
/// # Errors
///
/// [`Error::NoEndpoints`] and [`Error::Runtime`] for the call; every other kind stands at its
/// endpoint.
pub fn highest_revision(endpoints: &[String], timeout: Duration) -> Result<Vec<Answer>, Error> {
    if endpoints.is_empty() {
        return Err(Error::NoEndpoints);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let answers = runtime.block_on(async {
        let mut asked = Vec::with_capacity(endpoints.len());
        for given in endpoints {
            // Spawned before the first is awaited, so that they share the one limit.
            let answer = Endpoint::parse(given)
                .map(|endpoint| tokio::spawn(async move { revision_of(&endpoint, timeout).await }));
            asked.push((shown(given), answer));
        }
        let mut answers = Vec::with_capacity(asked.len());
        for (name, answer) in asked {
            let revision = match answer {
                Err(error) => Err(error),
                Ok(task) => task.await.unwrap_or_else(|error| {
                    Err(Error::Unreachable { endpoint: name.clone(), what: error.to_string() })
                }),
            };
            answers.push((name, revision));
        }
        answers
    });
    // Dropping it would wait for a name resolution that is still under way, however long.
    runtime.shutdown_background();
    Ok(answers)
}

/// Names an endpoint without a user and password that may stand in it.
fn shown(given: &str) -> String {
    given.trim().rsplit('@').next().unwrap_or_default().to_owned()
}

async fn revision_of(endpoint: &Endpoint, timeout: Duration) -> Result<i64, Error> {
    let given = || endpoint.given().to_owned();
    let ask = async {
        let options = ConnectOptions::new().with_connect_timeout(timeout).with_timeout(timeout);
        let mut client = Client::connect([endpoint.url()], Some(options)).await?;
        client.status().await
    };
    let late = || Error::Timeout { endpoint: given(), after: timeout };
    let answer = tokio::time::timeout(timeout, ask).await.map_err(|_| late())?;
    let status = answer.map_err(|error| describe(given(), timeout, &error))?;
    match status.header().map(|header| header.revision()) {
        Some(revision) if revision > 0 => Ok(revision),
        _ => Err(Error::Answer { endpoint: given(), what: "no revision in it".to_owned() }),
    }
}

/// Sorts a client's error into unreachable, late and answered.
fn describe(endpoint: String, after: Duration, error: &etcd_client::Error) -> Error {
    use etcd_client::Error as Client;
    let Client::GRpcStatus(status) = error else {
        return Error::Unreachable { endpoint, what: causes(error) };
    };
    match i32::from(status.code()) {
        // Numbers of the gRPC specification: 1 and 4 are our own limits passing.
        1 | 4 => Error::Timeout { endpoint, after },
        // 2 and 14 with a cause below come from this side: the transport never got an answer.
        2 | 14 if std::error::Error::source(status).is_some() => {
            // The causes repeat the status's own message.
            let what = std::error::Error::source(status).map(causes).unwrap_or_default();
            Error::Unreachable { endpoint, what }
        }
        _ => Error::Answer { endpoint, what: status.message().to_owned() },
    }
}

/// Joins an error and its causes, leaving out what a cause above has said.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        // tonic's outermost words, which say nothing.
        if !text.contains(&words) && words != "transport error" {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&words);
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn nothing_to_ask_is_an_error_of_the_call() {
        assert!(matches!(highest_revision(&[], Duration::from_secs(1)), Err(Error::NoEndpoints)));
    }

    #[test]
    fn silent_refusing_and_wrong_endpoints_each_say_so() {
        // Accepts connections in the kernel and never says a word.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent_port = silent.local_addr().unwrap().port();
        // A port that was free a moment ago and that nobody listens on.
        let refused = TcpListener::bind("127.0.0.1:0").unwrap();
        let refused_port = refused.local_addr().unwrap().port();
        drop(refused);

        let endpoints = [
            format!("http://127.0.0.1:{silent_port}"),
            format!("127.0.0.1:{refused_port}"),
            "https://127.0.0.1:2379".to_owned(),
            "http://root:hunter2@127.0.0.1:2379".to_owned(),
        ];
        let start = Instant::now();
        let answers = highest_revision(&endpoints, Duration::from_millis(300)).unwrap();
        // Far above the limit: only an endless wait fails here.
        assert!(start.elapsed() < Duration::from_secs(30));
        let [silent, refused, https, user] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(silent.0, endpoints[0]);
        assert!(matches!(&silent.1, Err(Error::Timeout { .. })), "{silent:?}");
        assert!(matches!(&refused.1, Err(Error::Unreachable { .. })), "{refused:?}");
        assert!(refused.1.as_ref().unwrap_err().to_string().contains("refused"), "{refused:?}");
        assert!(matches!(&https.1, Err(Error::Tls { .. })), "{https:?}");
        assert_eq!(user.0, "127.0.0.1:2379");
        assert!(!format!("{user:?}").contains("hunter2"));
    }
}
