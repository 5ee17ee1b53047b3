//! The store's server over TLS, asked by real etcdctls, while its files change.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::certs::{Certs, Issue, Pair};
use crate::programs::{Etcd, Real, free_ports, real};
use crate::support::{Ran, Sandbox};

const ETCDCTLS: [&str; 3] = ["etcdctl-3.5", "etcdctl-3.6", "etcdctl-3.7"];

fn serve<'a>(real: &'a Real, sandbox: &Sandbox, name: &str, flags: &[&str]) -> Etcd<'a> {
    let [client, peer] = free_ports();
    let (client, peer) =
        (format!("https://localhost:{client}"), format!("http://127.0.0.1:{peer}"));
    let data_dir = sandbox.path(name).display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
    command.env_clear().stdin(Stdio::null());
    let listen = client.replace("localhost", "127.0.0.1");
    command.args(["serve", "--name", "m1", "--data-dir", &data_dir]);
    command.args(["--listen-client-urls", &listen, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("m1={peer}")]).args(flags);
    let mut server = real.launch(command, &data_dir, client);
    server.come_up().expect("a server");
    server
}

fn ask(real: &Real, program: &str, server: &Etcd<'_>, ca: &Path, as_client: Option<&Pair>) -> Ran {
    let mut command = real.program(program);
    command.args(["--endpoints", &server.endpoint, "--command-timeout=4s", "--dial-timeout=4s"]);
    command.arg("--cacert").arg(ca);
    if let Some(pair) = as_client {
        command.arg("--cert").arg(&pair.cert).arg("--key").arg(&pair.key);
    }
    Ran::of(program, command.args(["put", "a", "b"]))
}

fn words<'a>(flags: &'a [(&'a str, &'a Path)]) -> Vec<&'a str> {
    flags.iter().flat_map(|(flag, path)| [*flag, path.to_str().expect("a plain path")]).collect()
}

#[test]
fn real_etcdctls_speak_mutual_tls_while_certificates_are_changed() {
    let Some(real) = real() else { return };
    let (sandbox, certs) = (Sandbox::new(), Certs::new());
    let pair = certs.server();
    let (root, rsa) = (
        certs.issue("root", &Issue::client("root")),
        certs.issue("rsa", &Issue::client("rsa").rsa()),
    );
    let list = certs.revoke("revoked", &[]);
    let ca = certs.ca();
    let files = [
        ("--cert-file", pair.cert.as_path()),
        ("--key-file", &pair.key),
        ("--trusted-ca-file", &ca),
        ("--client-crl-file", &list),
    ];
    let stranger = certs.issue("x", &Issue::client("root").stranger());
    let over = certs.issue("y", &Issue::client("root").expired());
    let flags = [words(&files), vec!["--client-cert-auth"]].concat();
    let server = serve(&real, &sandbox, "m1", &flags);
    let put = |program: &str, ca: &Path, client| ask(&real, program, &server, ca, client);
    for program in ETCDCTLS {
        for client in [&root, &rsa] {
            put(program, &certs.ca(), Some(client)).expect(0, &["OK"]);
        }
        for client in [None, Some(&stranger), Some(&over)] {
            assert_ne!(put(program, &certs.ca(), client).code, 0, "{client:?}");
        }
        assert_ne!(put(program, &certs.stranger_ca(), Some(&root)).code, 0);
    }
    assert!(server.log().contains("rejected connection on client endpoint"), "{}", server.log());

    // Of another authority, so that it shows whether the new one is served.
    let next = certs.issue("next", &Issue::server().stranger());
    fs::copy(&next.cert, &pair.cert).expect("a copy");
    put("etcdctl-3.7", &certs.ca(), Some(&root)).expect(0, &["OK"]);
    fs::copy(&next.key, &pair.key).expect("a copy");
    for program in ETCDCTLS {
        put(program, &certs.stranger_ca(), Some(&root)).expect(0, &["OK"]);
        assert_ne!(put(program, &certs.ca(), Some(&root)).code, 0);
    }
    certs.revoke("revoked", &[&root]);
    assert_ne!(put("etcdctl-3.7", &certs.stranger_ca(), Some(&root)).code, 0);
    put("etcdctl-3.7", &certs.stranger_ca(), Some(&rsa)).expect(0, &["OK"]);
    server.stop();
}

#[test]
fn what_etcd_and_we_made_for_ourselves_is_taken_by_real_etcdctls() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    for name in ["ours", "theirs"] {
        let made = sandbox.path(name).join("fixtures/client");
        if name == "theirs" {
            fs::create_dir_all(&made).expect("a folder");
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/etcd-auto-tls");
            for file in ["cert.pem", "key.pem"] {
                fs::copy(from.join(file), made.join(file)).expect("a copy");
            }
        }
        let mut server = serve(&real, &sandbox, name, &["--auto-tls"]);
        // The certificate is for the address.
        server.endpoint = server.endpoint.replace("localhost", "127.0.0.1");
        for program in ETCDCTLS {
            ask(&real, program, &server, &made.join("cert.pem"), None).expect(0, &["OK"]);
        }
        server.stop();
    }
}
