//! A server that the system gives little: few files, or files that may not grow.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::serve_child::{LONG, Served, get, program, run, until};

/// Bytes of a value; a segment of the log has room for 64 such.
const LARGE: usize = 1 << 20;

#[test]
fn connections_leave_files_to_the_store() {
    let served = Served::start_after("ulimit -n 200", &[]);
    run(async {
        let mut client = served.client().await;
        client.put("first", "value", None).await.unwrap();
        let held: Vec<TcpStream> = (0..300)
            .map(|_| {
                let mut stream = TcpStream::connect(served.address).unwrap();
                stream.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n").unwrap();
                stream
            })
            .collect();
        until("the connections", || served.descriptors() > 60);
        // Enough that the log goes on in another file.
        for number in 0..70 {
            client.put(format!("k{number}"), vec![7; LARGE], None).await.unwrap();
        }
        let open = served.descriptors();
        assert!(open < 150, "{open} files are open");
        drop(held);
    });
    until("room", || get(served.address, "/health").is_ok_and(|(code, _)| code == 200));
    served.serves();
}

#[test]
fn too_few_files_are_refused_before_a_directory_is_founded() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let mut command = program("ulimit -n 150");
    let output = command.args(["serve", "--data-dir"]).arg(&dir).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let words = "file descriptor limit of etcd process is too low; please set higher: 150 files";
    assert!(text.contains(words), "{text}");
    assert!(!dir.exists());
}

#[test]
fn a_server_that_cannot_write_any_more_ends() {
    // What would make a file longer than 80 MiB fails; the shell counts in 512 bytes.
    let mut served = Served::start_after("trap '' XFSZ; ulimit -f 163840", &[]);
    run(async {
        let mut client = served.client().await;
        for number in 0..400 {
            let put = client.put(format!("k{number}"), vec![7; LARGE], None);
            // Once it is gone the client tries for ever.
            match tokio::time::timeout(Duration::from_secs(15), put).await {
                Ok(Ok(_)) => assert!(number < 399, "no write failed"),
                Ok(Err(_)) | Err(_) => break,
            }
        }
    });
    assert_eq!(served.ended(LONG).code(), Some(1));
}
