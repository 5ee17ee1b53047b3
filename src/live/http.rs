//! One bounded question in HTTP/1.0, to learn who answers at a port.
//!
//! Owns no connection and keeps none. Reads at most [`ANSWER_MAX`] bytes, whatever the other side
//! sends, and never decodes more of it than the status, the head and the rest as it came: HTTP/1.0
//! has no chunks. What has come by the deadline is the answer.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

/// Most bytes of an answer; a members list of a cluster is far shorter.
pub(super) const ANSWER_MAX: usize = 32 * 1024;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An answer in HTTP.
    Http {
        /// Its status, as 200.
        status: u16,
        /// The head in lower case, line by line.
        head: String,
        /// The rest, as far as it was read.
        body: Vec<u8>,
    },
    /// Other bytes, or none.
    Other(Vec<u8>),
}

/// Asks for one path and reads the answer.
pub(super) async fn get(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    path: &str,
    deadline: Instant,
) -> Answer {
    let question = format!(
        "GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: etcdkit\r\nAccept: */*\r\n\r\n"
    );
    read(say(stream, question.as_bytes(), ANSWER_MAX, deadline).await)
}

/// Tells whether HTTP/2 is spoken: its first frame answers ours (RFC 9113, 3.4).
pub(super) async fn speaks_http2(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    deadline: Instant,
) -> bool {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let answer = say(stream, PREFACE, 9, deadline).await;
    matches!(answer.as_slice(), [0, _, _, 4, _, 0, 0, 0, 0])
}

/// Sends bytes, and returns at most so many of the answer.
async fn say(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes: &[u8],
    most: usize,
    deadline: Instant,
) -> Vec<u8> {
    // A server may answer and close before it has read all of this: what it says counts.
    let _ = timeout_at(deadline, async {
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
    })
    .await;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 4096];
    while let Ok(Ok(count @ 1..)) = timeout_at(deadline, stream.read(&mut buffer)).await {
        let room = most.saturating_sub(answer.len());
        answer.extend(buffer.iter().take(count.min(room)));
        if answer.len() >= most {
            break;
        }
    }
    answer
}

fn read(bytes: Vec<u8>) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
    let (head, rest) = bytes.split_at_checked(end).unwrap_or((&bytes, &[]));
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let status = head
        .strip_prefix("http/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|status| status.get(..3)?.parse().ok());
    match status {
        Some(status) => {
            Answer::Http { status, body: rest.get(4..).unwrap_or_default().to_vec(), head }
        }
        None => Answer::Other(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_status_head_and_body() {
        let Answer::Http { status, head, body } =
            read(b"HTTP/1.0 404 Not Found\r\nServer: X\r\n\r\nno\r\n\r\n".to_vec())
        else {
            panic!("no answer");
        };
        assert_eq!((status, body.as_slice()), (404, &b"no\r\n\r\n"[..]));
        assert!(head.contains("server: x"), "{head}");
    }

    #[test]
    fn the_rest_is_no_answer() {
        for bytes in [&b""[..], b"SSH-2.0-x", b"HTTP/1.1", b"HTTP/1.1 ab", b"HTTP/2 200", b"\xff"] {
            assert_eq!(read(bytes.to_vec()), Answer::Other(bytes.to_vec()));
        }
    }
}
