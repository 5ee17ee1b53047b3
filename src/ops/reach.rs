//! What a failure to reach a member means to the one who ran the command: exit code, next command.

use super::{Error, ExitCode, shell_line, shell_word};
use crate::live::{self, Cause, Certificate, Problem, Side};

/// The usual ports of etcd and of what stands beside it.
const PEER: &str = ":2380";
const METRICS: &str = ":2381";

impl From<live::Error> for Error {
    fn from(error: live::Error) -> Self {
        let mut made = Self::new(code(&error.cause), error.to_string());
        let is_auth =
            matches!(error.cause, Cause::NotAuthenticated { .. } | Cause::NotPermitted { .. });
        made.reason = is_auth.then_some("auth");
        made.hints = hints(&error);
        made
    }
}

/// Returns the exit code of a cause.
#[must_use]
pub fn code(cause: &Cause) -> ExitCode {
    match cause {
        Cause::NoEndpoints | Cause::Malformed { .. } => ExitCode::Usage,
        Cause::Material { .. }
        | Cause::WantsTls
        | Cause::WantsPlain
        | Cause::Certificate(_)
        | Cause::Tls { .. }
        | Cause::NotAuthenticated { .. }
        | Cause::NotPermitted { .. } => ExitCode::Tls,
        Cause::NameNotResolved { .. }
        | Cause::Refused { .. }
        | Cause::Unreachable { .. }
        | Cause::Timeout { .. }
        | Cause::Broken { .. }
        | Cause::PeerPort { .. }
        | Cause::NotEtcd { .. } => ExitCode::Unreachable,
        // UNAVAILABLE and DEADLINE_EXCEEDED, as "etcdserver: no leader".
        Cause::Answer { code: 4 | 14, .. } => ExitCode::Unreachable,
        // DATA_LOSS: "etcdserver: corrupt cluster", while a CORRUPT alarm is raised.
        Cause::Answer { code: 15, .. } => ExitCode::Damage,
        _ => ExitCode::Failed,
    }
}

/// Returns what to do next, most useful first.
fn hints(error: &live::Error) -> Vec<String> {
    let (endpoint, flags) = (error.endpoint.as_str(), &*error.flags);
    match &error.cause {
        Cause::NoEndpoints => many(&[
            "name a member's client URL, as --endpoints https://10.0.0.1:2379",
            "on a kubeadm node --from-kubeadm finds it",
        ]),
        Cause::Malformed { .. } => one("an endpoint is written as https://10.0.0.1:2379"),
        Cause::Material { path, what } => material(path, what),
        Cause::Runtime { .. } => one("the machine has no threads or files left: ulimit -a"),
        Cause::NameNotResolved { host, .. } => one(format!("getent hosts {}", shell_word(host))),
        Cause::Refused { address } if address.starts_with('/') => {
            one(format!("ss -xlp | grep {}", shell_word(address)))
        }
        Cause::Refused { .. } => vec![
            format!(
                "is etcd running there? on that machine: ss -tlnp 'sport = :{}'",
                port(endpoint)
            ),
            remark("on a kubeadm node: crictl ps -a --name etcd", "then crictl logs of it"),
        ],
        Cause::Unreachable { .. } => one(format!("ip route get {}", shell_word(host(endpoint)))),
        Cause::Timeout { doing, .. } => timeout(doing, endpoint),
        Cause::Broken { .. } => {
            vec![health(endpoint, flags, "run it again; if it stays so, etcd's log may tell")]
        }
        Cause::PeerPort { client_urls } => match client_urls.as_slice() {
            [] => one("clients are served at --listen-client-urls, port 2379 as a rule"),
            urls => one(health(&urls.join(","), flags, "")),
        },
        Cause::NotEtcd { .. } => not_etcd(endpoint),
        Cause::WantsTls => wants_tls(endpoint, flags),
        Cause::WantsPlain => {
            let plain: Vec<String> =
                flags.iter().filter(|flag| flag.starts_with("--user")).cloned().collect();
            let what = "without TLS: what is sent can be read on the way";
            one(health(&with_scheme(endpoint, "http"), &plain, what))
        }
        Cause::Certificate(certificate) => certificates(certificate, endpoint, flags),
        Cause::Tls { .. } => one(remark(
            &format!("openssl s_client -connect {} </dev/null", shell_word(address(endpoint))),
            "shows what the server offers",
        )),
        Cause::NotAuthenticated { what } => not_authenticated(what),
        Cause::NotPermitted { .. } => {
            let user = flags.iter().find_map(|flag| flag.strip_prefix("--user="));
            let words = ["user", "get", user.unwrap_or("NAME")];
            vec![
                "use a user with the role root, as --user root, with the password in \
                 ETCDCTL_PASSWORD"
                    .to_owned(),
                command("etcdctl", &words, endpoint, flags, "tells the roles of a user"),
            ]
        }
        Cause::Answer { what, .. } if what.contains("no leader") => {
            let what = "which members answer? a majority must run to have a leader";
            one(command("etcdkit", &["status"], endpoint, flags, what))
        }
        // So etcd answers a login that no majority hears of.
        Cause::Answer { what, .. } if what.contains("request timed out") => no_majority(),
        _ => Vec::new(),
    }
}

fn one(hint: impl Into<String>) -> Vec<String> {
    vec![hint.into()]
}

fn many(hints: &[&str]) -> Vec<String> {
    hints.iter().map(|hint| (*hint).to_owned()).collect()
}

/// Puts what a command is for behind it, so that the whole line can still be run.
fn remark(command: &str, what: &str) -> String {
    match what {
        "" => command.to_owned(),
        what => format!("{command}    # {what}"),
    }
}

/// Writes a command that asks the same member in the same way.
fn command(program: &str, words: &[&str], endpoints: &str, flags: &[String], what: &str) -> String {
    let mut line = vec![program.to_owned()];
    line.extend(words.iter().map(|word| (*word).to_owned()));
    line.extend(["--endpoints".to_owned(), endpoints.to_owned()]);
    line.extend(flags.iter().cloned());
    let has_user = flags.iter().any(|flag| flag.starts_with("--user="));
    let password = if has_user { "with the password in ETCDCTL_PASSWORD" } else { "" };
    let what: Vec<&str> = [password, what].into_iter().filter(|what| !what.is_empty()).collect();
    remark(&shell_line(&line), &what.join("; "))
}

fn health(endpoints: &str, flags: &[String], what: &str) -> String {
    command("etcdkit", &["endpoint", "health"], endpoints, flags, what)
}

fn wants_tls(endpoint: &str, flags: &[String]) -> Vec<String> {
    let mut flags = flags.to_vec();
    let is_file = |flag: &String| ["--cacert=", "--cert="].iter().any(|f| flag.starts_with(f));
    let has_files = flags.iter().any(is_file);
    if !has_files {
        let files = ["--cacert=CA.crt", "--cert=CLIENT.crt", "--key=CLIENT.key"];
        flags.extend(files.map(str::to_owned));
    }
    vec![
        health(&with_scheme(endpoint, "https"), &flags, ""),
        "on a kubeadm node --from-kubeadm finds the certificates".to_owned(),
    ]
}

/// What is left where a majority is gone and a user must log in.
fn no_majority() -> Vec<String> {
    vec![
        "a majority of the members must run for that: start those that are down".to_owned(),
        remark(
            "etcdkit snapshot save FILE --from-data-dir DIR",
            "or this, on a member's host once etcd is stopped there: it needs no login",
        ),
    ]
}

/// The endpoint without its scheme.
fn address(endpoint: &str) -> &str {
    endpoint.split_once("://").map_or(endpoint, |(_, address)| address).trim_end_matches('/')
}

fn host(endpoint: &str) -> &str {
    let address = address(endpoint);
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn port(endpoint: &str) -> &str {
    address(endpoint).rsplit_once(':').map_or("2379", |(_, port)| port)
}

fn with_scheme(endpoint: &str, scheme: &str) -> String {
    match endpoint.split_once("://") {
        Some(("unix" | "unixs", path)) if scheme == "https" => format!("unixs://{path}"),
        Some(("unix" | "unixs", path)) => format!("unix://{path}"),
        _ => format!("{scheme}://{}", address(endpoint)),
    }
}

fn material(path: &str, what: &str) -> Vec<String> {
    let path = shell_word(path);
    if what.contains("ermission denied") {
        return vec![format!("run this as root, or as the owner: ls -l {path}")];
    }
    if what.contains("No such file") {
        return one("on a kubeadm node the files are in /etc/kubernetes/pki/etcd");
    }
    if what.contains("not the key of") {
        let show = format!("openssl pkey -pubout -in {path}");
        return vec![remark(&show, "shows what belongs to the key")];
    }
    if what.contains("needs its") || what.contains("encrypted") || what.contains("DER") {
        return Vec::new();
    }
    one(remark(&format!("head -1 {path}"), "should show -----BEGIN"))
}

fn timeout(doing: &str, endpoint: &str) -> Vec<String> {
    let longer = match doing {
        // A login goes through the log, and waits for a majority however long.
        "logging in" => return no_majority(),
        "waiting for its answer" => {
            "etcd may be slow or without a leader; --command-timeout 30s waits longer"
        }
        "resolving its name" => {
            let host = shell_word(host(endpoint));
            return vec![
                format!("time getent hosts {host}"),
                "--dial-timeout 10s waits longer".to_owned(),
            ];
        }
        "connecting" => "a firewall may drop it; --dial-timeout 10s waits longer",
        doing if doing.contains("snapshot") => "run it again, or from another member",
        _ => "something listens there and stays silent; --dial-timeout 10s waits longer",
    };
    one(longer)
}

fn not_etcd(endpoint: &str) -> Vec<String> {
    let place = address(endpoint);
    if place.ends_with(METRICS) {
        return one("clients are served at --listen-client-urls, port 2379 as a rule, not 2381");
    }
    vec![
        "clients of etcd are served at --listen-client-urls, port 2379 as a rule".to_owned(),
        format!("on that machine: ss -tlnp 'sport = :{}'", port(endpoint)),
    ]
}

fn not_authenticated(what: &str) -> Vec<String> {
    if what.contains("authentication failed") {
        return many(&[
            "the user or the password is wrong; give --user NAME, with the password in \
             ETCDCTL_PASSWORD or a file named with --password-file",
        ]);
    }
    if what.contains("invalid auth token") || what.contains("auth store is old") {
        return one("users or roles were changed meanwhile; run it again");
    }
    if what.contains("has no user") {
        return one("give --user NAME, or etcdctl user add that name");
    }
    one("give --user NAME, with the password in ETCDCTL_PASSWORD or a file named with \
         --password-file")
}

fn certificates(certificate: &Certificate, endpoint: &str, flags: &[String]) -> Vec<String> {
    let place = address(endpoint);
    let show = format!(
        "openssl s_client -connect {} </dev/null | openssl x509 -noout -text",
        shell_word(place)
    );
    let file = shell_word(&certificate.file);
    let mut hints = match (certificate.side, &certificate.problem) {
        (Side::Server, Problem::UnknownAuthority) => {
            let issuer = &certificate.issuer;
            many(&[
                &format!("name the file of its authority ({issuer}) with --cacert FILE"),
                "on a kubeadm node that is /etc/kubernetes/pki/etcd/ca.crt, and --from-kubeadm \
                 finds it",
            ])
        }
        (Side::Server, Problem::Expired) => many(&[
            "renew it on the member and restart etcd; with kubeadm: kubeadm certs renew \
             etcd-server",
            "if the clock here is wrong: timedatectl",
        ]),
        (_, Problem::NotYetValid) => {
            many(&["the clock here or the one that it was made with is wrong: timedatectl"])
        }
        (Side::Server, Problem::WrongName { .. }) => match usable_name(certificate) {
            Some(name) => {
                let scheme = with_scheme(&format!("{name}:{}", port(endpoint)), "https");
                vec![health(&scheme, flags, "")]
            }
            None => vec![show],
        },
        (Side::Server, _) => vec![show],
        (Side::Client, Problem::Missing) => many(&[
            "give a certificate with --cert FILE --key FILE",
            "on a kubeadm node: --from-kubeadm, or /etc/kubernetes/pki/etcd/healthcheck-client.crt \
             and .key",
        ]),
        (Side::Client, Problem::Expired) => many(&[
            "give another with --cert and --key; with kubeadm: kubeadm certs renew \
             etcd-healthcheck-client",
            "if the clock here is wrong: timedatectl",
        ]),
        (Side::Client, Problem::UnknownAuthority) => vec![
            "the server trusts the authorities in its --trusted-ca-file".to_owned(),
            remark(&format!("openssl x509 -noout -issuer -in {file}"), "shows who signed ours"),
        ],
        (Side::Client, _) => {
            let show = format!("openssl x509 -noout -text -in {file}");
            vec![remark(&show, "shows what it is for; give one for clients")]
        }
    };
    if certificate.side == Side::Server
        && certificate.names.iter().any(|name| name == "kubernetes.default.svc")
    {
        hints.insert(0, "that is a Kubernetes API server; etcd listens on port 2379".to_owned());
    }
    if place.ends_with(PEER) {
        hints.insert(
            0,
            "2380 is the port for other members as a rule, 2379 the one for clients".to_owned(),
        );
    }
    hints
}

/// A name of the certificate that can be asked for, an address before a name.
fn usable_name(certificate: &Certificate) -> Option<String> {
    let names = || certificate.names.iter().filter(|name| !name.contains(['*', '/', '\\']));
    let address = names().find_map(|name| name.parse::<std::net::IpAddr>().ok());
    match address {
        Some(std::net::IpAddr::V6(address)) => Some(format!("[{address}]")),
        Some(address) => Some(address.to_string()),
        None => names().next().cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn certificate(side: Side, problem: Problem) -> Cause {
        let text = |text: &str| text.to_owned();
        Cause::Certificate(Box::new(Certificate {
            side,
            problem,
            subject: text("CN=m1"),
            issuer: text("CN=etcd-ca"),
            names: vec![text("localhost"), text("10.0.0.1")],
            not_before: text("2020-01-01T00:00:00Z"),
            not_after: text("2021-01-01T00:00:00Z"),
            uses: vec![text("server authentication")],
            file: text("/pki/c.crt"),
            authorities: Vec::new(),
            clock: text("2026-01-01T00:00:00Z"),
        }))
    }

    #[test]
    fn every_cause_has_its_code_and_its_next_step() {
        let what = || "words".to_owned();
        let after = Duration::from_secs(2);
        let (server, client) = (Side::Server, Side::Client);
        let wanted = "cp-1".to_owned();
        let urls = vec!["https://10.0.0.1:2379".to_owned()];
        for (cause, code, words, hint) in [
            (Cause::NoEndpoints, 2, "no endpoints", "--endpoints"),
            (Cause::Malformed { what: what() }, 2, "words", "https://"),
            (Cause::Material { path: "k".into(), what: what() }, 5, "cannot use k", "head -1 k"),
            (
                Cause::NameNotResolved { host: "cp-1".into(), what: what() },
                4,
                "cp-1 cannot be resolved",
                "getent hosts cp-1",
            ),
            (Cause::Refused { address: "[::1]:1".into() }, 4, "on [::1]:1", "ss -tlnp"),
            (Cause::Unreachable { what: what() }, 4, "cannot be reached", "ip route get h"),
            (Cause::Timeout { after, doing: "connecting" }, 4, "2 s while connecting", "firewall"),
            (Cause::Broken { what: what() }, 4, "broke", "run it again"),
            (Cause::PeerPort { client_urls: Vec::new() }, 4, "peer port", "2379"),
            (
                Cause::PeerPort { client_urls: urls },
                4,
                "at https://10.0.0.1:2379",
                "etcdkit endpoint health --endpoints https://10.0.0.1:2379",
            ),
            (Cause::NotEtcd { what: what() }, 4, "not etcd", "2379"),
            (Cause::WantsTls, 5, "speaks TLS", "--endpoints https://h:1 --cacert"),
            (Cause::WantsPlain, 5, "plain http", "--endpoints http://h:1"),
            (Cause::Tls { what: what() }, 5, "TLS failed", "openssl s_client -connect h:1"),
            (Cause::NotAuthenticated { what: what() }, 5, "not authenticated", "--user"),
            (Cause::NotPermitted { what: what() }, 5, "not permitted", "root"),
            (
                Cause::Answer { code: 14, what: "etcdserver: no leader".into() },
                4,
                "no leader",
                "majority",
            ),
            (certificate(server, Problem::UnknownAuthority), 5, "that we trust", "--cacert"),
            (certificate(server, Problem::Expired), 5, "clock says 2026", "timedatectl"),
            (certificate(server, Problem::NotYetValid), 5, "valid only from", "timedatectl"),
            (
                certificate(server, Problem::WrongName { wanted }),
                5,
                "not for cp-1, but for localhost, 10.0.0.1",
                "https://10.0.0.1:1",
            ),
            (certificate(server, Problem::WrongPurpose), 5, "for a server", "openssl"),
            (certificate(client, Problem::Missing), 5, "wants a client", "--cert"),
            (certificate(client, Problem::Expired), 5, "/pki/c.crt expired", "kubeadm certs renew"),
            (certificate(client, Problem::WrongPurpose), 5, "for a client", "/pki/c.crt"),
            (certificate(client, Problem::UnknownAuthority), 5, "the server trusts", "-issuer"),
        ] {
            let error = Error::from(live::Error::of("https://h:1", cause.clone()));
            assert_eq!(error.code.number(), code, "{cause:?}");
            assert!(error.message.contains(words), "{words}: {}", error.message);
            assert!(error.message.starts_with("https://h:1: "), "{}", error.message);
            let hints = error.hints.join("\n");
            assert!(hints.contains(hint), "{cause:?}: {hints}");
        }
    }

    #[test]
    fn commands_ask_as_the_command_did_that_failed() {
        let flags = ["--cacert=/pki/my ca.crt", "--cert=c", "--key=k", "--user=app"];
        let hint = |cause: Cause| {
            let flags = flags.map(str::to_owned).into();
            let error = live::Error { flags, ..live::Error::of("https://h:1", cause) };
            Error::from(error).hints.remove(0)
        };
        let wrong = Problem::WrongName { wanted: "h".to_owned() };
        assert_eq!(
            hint(certificate(Side::Server, wrong)),
            "etcdkit endpoint health --endpoints https://10.0.0.1:1 '--cacert=/pki/my ca.crt' \
             --cert=c --key=k --user=app    # with the password in ETCDCTL_PASSWORD"
        );
        assert_eq!(
            hint(Cause::WantsPlain),
            "etcdkit endpoint health --endpoints http://h:1 --user=app    # with the password in \
             ETCDCTL_PASSWORD; without TLS: what is sent can be read on the way"
        );
        let broken = hint(Cause::Broken { what: "reset".to_owned() });
        assert!(broken.contains("--cert=c --key=k") && broken.contains("    # "), "{broken}");
    }

    #[test]
    fn who_cannot_log_in_without_a_majority_is_not_told_to_wait() {
        let late = Cause::Timeout { after: Duration::from_secs(5), doing: "logging in" };
        let refused = Cause::Answer { code: 14, what: "etcdserver: request timed out".into() };
        for cause in [late, refused] {
            let hints = Error::from(live::Error::of("https://h:1", cause)).hints.join("\n");
            assert!(hints.contains("majority"), "{hints}");
            assert!(hints.contains("snapshot save FILE --from-data-dir DIR"), "{hints}");
            assert!(!hints.contains("--command-timeout"), "{hints}");
        }
    }

    #[test]
    fn what_stands_behind_a_command_is_a_remark() {
        let after = Duration::from_secs(2);
        for cause in [
            Cause::Broken { what: String::new() },
            Cause::WantsTls,
            Cause::WantsPlain,
            Cause::Tls { what: String::new() },
            Cause::Timeout { after, doing: "logging in" },
            Cause::NotPermitted { what: String::new() },
            Cause::PeerPort { client_urls: vec!["https://h:2379".to_owned()] },
            Cause::Answer { code: 14, what: "etcdserver: no leader".into() },
            certificate(Side::Server, Problem::WrongPurpose),
            certificate(Side::Client, Problem::WrongPurpose),
        ] {
            let error = Error::from(live::Error::of("https://h:1", cause));
            let programs = ["etcdkit ", "etcdctl ", "openssl ", "head "];
            for hint in &error.hints {
                if programs.iter().any(|program| hint.starts_with(program)) {
                    let line = hint.split("    # ").next().unwrap();
                    let prose = [", ", "; ", " shows", " tells", " without "];
                    assert!(!prose.iter().any(|word| line.contains(word)), "{hint}");
                }
            }
        }
    }
}
