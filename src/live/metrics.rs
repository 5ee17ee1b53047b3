//! The one figure that etcd 3.5 says on `/metrics` only: how large its database may become.
//!
//! `/metrics` stands on the client port beside gRPC, asks for no user, and speaks HTTP/1 there
//! (etcd server/embed/etcd.go, `serveClients`, checked at 3.5.35). What comes is read up to
//! [`READ_MAX`] bytes and no further.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::dial::{Both, Dialer, Limit};
use super::tls::Purpose;
use super::trace::Trace;
use super::{Cause, Endpoint, Place};

/// A gauge (etcd server/etcdserver/metrics.go, `quotaBackendBytes`, checked at 3.5.35).
const QUOTA: &[u8] = b"etcd_server_quota_backend_bytes ";
/// Bytes that are read at most; etcd answers about 150 KB.
const READ_MAX: usize = 8 << 20;
/// Bytes of one line that are looked at.
const LINE_MAX: usize = 4096;

/// Asks a member for its quota in bytes; below 0 there is no limit.
///
/// # Errors
///
/// Every cause of a connection, and [`Cause::NotEtcd`] where the figure is not there.
pub(super) async fn quota(dialer: &Dialer, endpoint: &Endpoint) -> Result<i64, Cause> {
    let (limit, trace) = (Limit::new(dialer.timeout), Arc::new(Trace::default()));
    let plain = dialer.plain(endpoint, limit).await?;
    let mut stream: Box<dyn Both> = match dialer.is_secure(endpoint) {
        true => Box::new(dialer.secured(endpoint, plain, Purpose::Http, &trace, limit).await?),
        false => plain,
    };
    let host = match endpoint.place() {
        Place::Tcp { host, .. } if host.contains(':') => format!("[{host}]"),
        Place::Tcp { host, .. } => host.clone(),
        Place::Unix(_) => "localhost".to_owned(),
    };
    let broken = |error: std::io::Error| Cause::Broken { what: error.to_string() };
    // HTTP/1.0: the answer ends with the connection and is not sent in chunks.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut lines = Lines::default();
    let mut buffer = vec![0; 16 << 10];
    let mut left = READ_MAX;
    while left > 0 {
        // An end that is no clean one is an end.
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        let Some(bytes) = buffer.get(..count.min(left)).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        left -= bytes.len();
        if let Some(quota) = lines.take(bytes) {
            return Ok(quota);
        }
    }
    let what = "/metrics does not say its quota".to_owned();
    lines.take(b"\n").ok_or(Cause::NotEtcd { what })
}

/// Lines that come in pieces; of a long one only the beginning is kept.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) -> Option<i64> {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LINE_MAX {
                    self.line.push(*byte);
                }
                continue;
            }
            let found = figure(&self.line);
            self.line.clear();
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// Reads the figure out of its line: `NAME 2.147483648e+09`.
fn figure(line: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(line.strip_prefix(QUOTA)?).ok()?;
    let number: f64 = text.trim().parse().ok()?;
    // Whole numbers below 2^53 are exact in a float.
    let is_whole = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    is_whole.then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_figure_however_it_is_cut() {
        let text = b"HTTP/1.0 200 OK\r\n\r\n# TYPE etcd_server_quota_backend_bytes gauge\n\
            etcd_server_quota_backend_bytes_more 7\n\
            etcd_server_quota_backend_bytes 2.147483648e+09\nprocess_open_fds 9\n";
        for piece in 1..text.len() {
            let mut lines = Lines::default();
            let found: Vec<i64> = text.chunks(piece).filter_map(|p| lines.take(p)).collect();
            assert_eq!(found, [2_147_483_648], "{piece}");
        }
    }

    #[test]
    fn other_lines_are_no_figure() {
        for text in [
            "",
            "etcd_server_quota_backend_bytes",
            "etcd_server_quota_backend_bytes many",
            "etcd_server_quota_backend_bytes NaN",
            "etcd_server_quota_backend_bytes +Inf",
            "etcd_server_quota_backend_bytes 1e300",
            "etcd_server_quota_backend_bytes 1.5",
        ] {
            assert_eq!(figure(text.as_bytes()), None, "{text}");
        }
        assert_eq!(figure(b"etcd_server_quota_backend_bytes -1"), Some(-1));
    }

    #[test]
    fn a_line_without_an_end_is_not_kept() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            assert_eq!(lines.take(&[b'x'; 1000]), None);
        }
        assert_eq!(lines.line.len(), LINE_MAX);
    }
}
