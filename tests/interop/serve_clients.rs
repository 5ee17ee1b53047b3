//! Real etcdctl, of each version, against the store's server and against a real etcd: what it
//! prints and how it ends is the same, apart from ids, sizes and times.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::programs::{Etcd, Real, free_ports, real, until};
use crate::support::{Ran, Sandbox};

/// Longest wait for what a client does in the background.
const WAIT: Duration = Duration::from_secs(20);

/// What any etcdctl asks, a command a line; `<` and what follows is its input, `|` for new lines.
const CORE: &str = r#"
put a 1
put a 2 --prev-kv
put b 3
put c 4
get a
get a -w json
get nothing
get --prefix "" --keys-only
get --prefix "" --limit 2 -w fields
get --prefix "" --count-only -w fields
get a d --sort-by=MODIFY --order=DESCEND
get "" --prefix --rev 3
get a --rev 100
get a --rev 2 -w json
del b --prev-kv
del nothing
put y --ignore-value
put a 9 --lease 123
txn <value("a") = "2"|version("b") = "0"||put t 1|get a||get b||
txn -w json <mod("a") > "100"||put t 1||del --prefix t|get a||
txn <||put t 1|put t 2|||
lease timetolive 7b
lease revoke 7b
lease list
compaction 3
compaction 3
compaction 1000
get a --rev 2
compaction 5 --physical
defrag
alarm list
alarm disarm
endpoint health
endpoint hashkv --rev 1
endpoint hashkv --rev 100
endpoint hashkv -w fields
member list -w fields
member add foo --peer-urls=foo
member remove 1234
member promote 1234
member update 1234 --peer-urls=http://127.0.0.1:9999
move-leader 1234
"#;

/// What only 3.7's knows, or prints in another way.
const NEWEST: &str = r#"
get --stream "" --prefix
get --stream "" --prefix --limit 1
get --stream "" --prefix --sort-by=MODIFY
get --stream "" --prefix --rev 1
downgrade validate 3.6
downgrade validate 3.5
downgrade validate nonsense
downgrade cancel
"#;

/// Users and roles, with auth off and on.
const AUTH: &str = r#"
auth status
user add root:pw
user add u1:p1
user add u1:p2
user add nopw --no-password
user list
user get u1
user get nobody
role add r1
role add r1
role list
role get r1
role get none
role grant-permission r1 readwrite foo
role grant-permission r1 read bar baz
role grant-permission r1 write pre --prefix
role grant-permission none read foo
role get r1
role revoke-permission r1 bar baz
role revoke-permission r1 nobar
role get r1 -w json
user grant-role u1 r1
user grant-role u1 none
user grant-role nobody r1
user revoke-role u1 none
user get u1 --detail
auth enable
role add root
user grant-role root root
auth enable
get foo
get foo --user u1:bad
get foo --user nobody:x
get foo --user nopw:
put foo 1 --user u1:p1
put pre1 2 --user u1:p1
put pre1 2 --prev-kv --user u1:p1
get foo --user u1:p1
get pre1 --user u1:p1
del foo --prev-kv --user u1:p1
txn --user u1:p1 <||put foo 3|get other|||
user list --user u1:p1
user get u1 --user u1:p1
user get root --user u1:p1
role get r1 --user u1:p1
role get root --user u1:p1
compaction 6 --user u1:p1
defrag --user u1:p1
alarm list --user u1:p1
alarm disarm --user u1:p1
endpoint hashkv --user u1:p1
member list -w fields --user u1:p1
member remove 1234 --user u1:p1
lease list --user u1:p1
lease list
role get root --user root:pw
user passwd u1 --interactive=false --user root:pw <p2|
get foo --user u1:p1
get foo --user u1:p2
user delete root --user root:pw
role delete root --user root:pw
user revoke-role root root --user root:pw
role delete r1 --user root:pw
user get u1 --user root:pw
user delete u1 --user root:pw
auth status -w json --user root:pw
auth disable --user root:pw
user list
"#;

/// Starts the store's server as an etcd is started.
fn ours<'a>(real: &'a Real, sandbox: &Sandbox, more: &[&str]) -> Etcd<'a> {
    let [client, peer] = free_ports();
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let data_dir = sandbox.text("ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
    command.env_clear().stdin(Stdio::null());
    command.args(["serve", "--name", "m", "--data-dir", &data_dir]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("m={peer}")]).args(more);
    let mut served = real.launch(command, &data_dir, client);
    served.come_up().unwrap_or_else(|why| panic!("the store is not served: {why:?}"));
    served
}

fn theirs<'a>(real: &'a Real, sandbox: &Sandbox, more: &[&str]) -> Etcd<'a> {
    let start =
        crate::programs::Start { data_dir: sandbox.path("theirs"), name: "m", peer: None, more };
    real.etcd("3.7", &start)
}

/// Runs one line against a server.
fn ask(real: &Real, ctl: &str, etcd: &Etcd<'_>, line: &str) -> Ran {
    let (line, input) = match line.split_once(" <") {
        Some((line, input)) => (line, Some(input.replace('|', "\n"))),
        None => (line, None),
    };
    let mut command = real.program(ctl);
    command.args(["--endpoints", &etcd.endpoint, "--command-timeout=20s"]);
    command.args(crate::programs::shell_words(line));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("etcdctl starts");
    let mut stdin = child.stdin.take().expect("its input");
    // It may have ended without reading.
    let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
    drop(stdin);
    Ran::wait(line, child)
}

/// Takes out what differs between two servers that do the same.
fn plain(text: &str, endpoint: &str) -> String {
    let address = endpoint.trim_start_matches("http://");
    let mut plain = String::new();
    for line in text.replace(address, "ADDRESS").lines() {
        if line.starts_with("\"PeerURL\"") {
            continue;
        }
        // A line of the client's log: what the server answered is in it.
        if line.starts_with("{\"level\"") {
            let error = line.split_once("\"error\":").map_or("", |(_, error)| error);
            plain.push_str(error);
        } else {
            plain.push_str(line.split_once(" took ").map_or(line, |(line, _)| line));
        }
        plain.push('\n');
    }
    mask(&plain)
}

/// Masks numbers of many digits: ids and the like.
fn mask(text: &str) -> String {
    let mut masked = String::new();
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        if c.is_ascii_hexdigit() {
            word.push(c);
            continue;
        }
        let is_number = word.len() >= 9 && word.chars().any(|c| c.is_ascii_digit());
        masked.push_str(if is_number { "NUMBER" } else { &word });
        word.clear();
        masked.push(c);
    }
    masked
}

#[track_caller]
fn compare(real: &Real, ctl: &str, ours: &Etcd<'_>, theirs: &Etcd<'_>, lines: &str) {
    let mut differences = Vec::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (got, wanted) = (ask(real, ctl, ours, line), ask(real, ctl, theirs, line));
        let show = |ran: &Ran, etcd: &Etcd<'_>| {
            let (stdout, stderr) =
                (plain(&ran.stdout, &etcd.endpoint), plain(&ran.stderr, &etcd.endpoint));
            format!("{} {stdout}{stderr}", ran.code)
        };
        let (got, wanted) = (show(&got, ours), show(&wanted, theirs));
        if got != wanted {
            differences.push(format!("{line}\nours:   {got}\ntheirs: {wanted}"));
        }
    }
    assert!(differences.is_empty(), "{ctl}:\n{}", differences.join("\n"));
}

#[test]
fn etcdctl_prints_the_same_of_the_store_and_of_etcd() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let sandbox = Sandbox::new();
        let (ours, theirs) = (ours(&real, &sandbox, &[]), theirs(&real, &sandbox, &[]));
        let ctl = format!("etcdctl-{version}");
        // Both have decided their version.
        for etcd in [&ours, &theirs] {
            until("a version of the cluster", WAIT, || {
                etcd.ctl(&["downgrade", "validate", "3.6"]).code.eq(&0).then_some(())
            });
        }
        compare(&real, &ctl, &ours, &theirs, CORE);
        if version == "3.7" {
            compare(&real, &ctl, &ours, &theirs, NEWEST);
        }
        compare(&real, &ctl, &ours, &theirs, AUTH);
    }
}

#[test]
fn etcdctl_watches_keeps_leases_locks_and_elects() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let served = ours(&real, &sandbox, &[]);
    let begin = |words: &[&str], out: &str| {
        let mut command = real.program("etcdctl-3.7");
        command.args(["--endpoints", &served.endpoint]).args(words);
        command.stdin(Stdio::piped());
        command.stdout(fs::File::create(sandbox.path(out)).expect("a file"));
        Ended(command.spawn().expect("etcdctl starts"))
    };
    let told = |out: &str, what: &str| {
        until(what, WAIT, || {
            let text = fs::read_to_string(sandbox.path(out)).expect("a file");
            text.contains(what).then_some(text)
        })
    };
    let ctl = |words: &[&str]| served.ctl(words).expect(0, &[]).stdout;

    let _watch = begin(&["watch", "w", "--prefix", "--prev-kv", "--progress-notify"], "watch");
    until("the watcher", WAIT, || {
        ctl(&["put", "w1", "one"]);
        let text = fs::read_to_string(sandbox.path("watch")).expect("a file");
        text.contains("one").then_some(())
    });
    ctl(&["put", "w2", "two"]);
    ctl(&["del", "w2"]);
    // A key without a value is told with the one before.
    let text = told("watch", "DELETE\nw2\ntwo\nw2\n");
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    let wanted = ["PUT", "w2", "two", "DELETE", "w2", "two", "w2"];
    assert!(lines.ends_with(&wanted), "{text}");

    // A lease is kept, given up, and takes its key along.
    let granted = ctl(&["lease", "grant", "2"]);
    let lease = granted.split(' ').nth(1).expect("an id").to_owned();
    ctl(&["put", "leased", "1", "--lease", &lease]);
    let keeper = begin(&["lease", "keep-alive", &lease], "keeper");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(ctl(&["get", "leased", "--print-value-only"]), "1\n");
    drop(keeper);
    until("the end of the lease", WAIT, || ctl(&["get", "leased"]).is_empty().then_some(()));

    // Locks pass from one to the next; so do elections.
    let first = begin(&["lock", "l"], "first");
    told("first", "l/");
    let _second = begin(&["lock", "l"], "second");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(fs::read_to_string(sandbox.path("second")).expect("a file"), "");
    drop(first);
    told("second", "l/");
    let first = begin(&["elect", "e", "one"], "one");
    told("one", "one");
    let _second = begin(&["elect", "e", "two"], "two");
    let _listener = begin(&["elect", "-l", "e"], "listener");
    told("listener", "one");
    drop(first);
    told("two", "two");
    told("listener", "two");

    // All keys go to another server as they come.
    let other_sandbox = Sandbox::new();
    let other = theirs(&real, &other_sandbox, &[]);
    let _mirror = begin(&["make-mirror", &other.endpoint, "--prefix", "m/"], "mirror");
    until("a mirrored key", WAIT, || {
        ctl(&["put", "m/1", "mirrored"]);
        other.ctl(&["get", "m/1"]).stdout.contains("mirrored").then_some(())
    });
}

#[test]
fn etcdctl_clears_a_full_quota_and_saves_a_snapshot() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let served = ours(&real, &sandbox, &["--quota-backend-bytes", "1048576"]);
    let ctl = |words: &[&str]| served.ctl(words).expect(0, &[]).stdout;
    let value = "v".repeat(50_000);
    let full = until("a full quota", WAIT, || {
        let ran = served.ctl(&["put", "big", &value]);
        (ran.code != 0).then_some(ran.stderr)
    });
    assert!(full.contains("etcdserver: mvcc: database space exceeded"), "{full}");
    let listed = ctl(&["alarm", "list"]);
    assert!(listed.starts_with("memberID:") && listed.ends_with("alarm:NOSPACE \n"), "{listed}");
    let status = ctl(&["endpoint", "status", "-w", "json"]);
    assert!(status.contains("alarm:NOSPACE"), "{status}");
    let revision = ctl(&["get", "big", "-w", "fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
    ctl(&["compaction", revision.expect("a revision"), "--physical"]);
    ctl(&["defrag"]);
    assert!(ctl(&["alarm", "disarm"]).contains("NOSPACE"));
    assert_eq!(ctl(&["alarm", "list"]), "");
    ctl(&["put", "after", "1"]);

    for version in ["3.5", "3.6", "3.7"] {
        let file = sandbox.text(&format!("{version}.db"));
        let words = ["--endpoints", &served.endpoint, "snapshot", "save", &file];
        real.ok(&format!("etcdctl-{version}"), &words);
        let status = real.ok("etcdutl-3.7", &["snapshot", "status", &file, "-w", "json"]).json();
        assert_eq!(status["version"], "3.7.0", "{status}");
        let data_dir = sandbox.text(&format!("restored-{version}"));
        real.ok("etcdutl-3.7", &["snapshot", "restore", &file, "--data-dir", &data_dir]);
    }
}

/// A client that is asked to end when it is dropped, as a user would.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// What the services for locks and elections answer, refusals too.
async fn locks_and_elections(endpoint: &str) -> Vec<String> {
    use etcd_client::{Client, LockOptions, ProclaimOptions, ResignOptions};

    fn told<T>(answer: Result<T, etcd_client::Error>) -> String {
        match answer {
            Ok(_) => "ok".to_owned(),
            Err(etcd_client::Error::GRpcStatus(status)) => {
                format!("{:?} {}", status.code(), status.message())
            }
            Err(other) => other.to_string(),
        }
    }

    let mut client = Client::connect([endpoint], None).await.expect("a server");
    let mut lines = Vec::new();
    let lease = client.lease_grant(60, None).await.expect("a lease").id();
    let options = |lease| Some(LockOptions::new().with_lease(lease));
    let locked = client.lock("l", options(lease)).await.expect("a lock");
    lines.push(format!("{}", locked.key() == format!("l/{lease:x}").as_bytes()));
    lines.push(format!("revision {}", locked.header().expect("a header").revision()));
    let again = client.lock("l", options(lease)).await.expect("a lock");
    lines.push(format!("revision {}", again.header().expect("a header").revision()));
    lines.push(told(client.lock("l", options(4711)).await));
    lines.push(told(client.unlock("").await));
    lines.push(told(client.unlock("nothing").await));
    let unlocked = client.unlock(locked.key()).await.expect("no lock");
    lines.push(format!("revision {}", unlocked.header().expect("a header").revision()));
    lines.push(told(client.leader("e").await));
    lines.push(told(client.campaign("e", "x", 4711).await));
    let elected = client.campaign("e", "one", lease).await.expect("a leader");
    let leader = elected.leader().expect("a leader").clone();
    lines.push(format!("{} {}", leader.rev(), String::from_utf8_lossy(leader.name())));
    let again = client.campaign("e", "two", lease).await.expect("a leader");
    lines.push(format!("revision {}", again.header().expect("a header").revision()));
    let seen = client.leader("e").await.expect("a leader");
    let kv = seen.kv().expect("a key");
    lines.push(format!("{} {}", kv.mod_revision(), String::from_utf8_lossy(kv.value())));
    let with = |leader| Some(ProclaimOptions::new().with_leader(leader));
    let proclaimed = client.proclaim("three", with(leader.clone())).await.expect("a leader");
    lines.push(format!("revision {}", proclaimed.header().expect("a header").revision()));
    let mut observed = client.observe("e").await.expect("a stream");
    let first = observed.message().await.expect("a leader").expect("a leader");
    lines.push(String::from_utf8_lossy(first.kv().expect("a key").value()).into_owned());
    let leave = || Some(ResignOptions::new().with_leader(leader.clone()));
    let resigned = client.resign(leave()).await.expect("no leader");
    lines.push(format!("revision {}", resigned.header().expect("a header").revision()));
    lines.push(told(client.resign(leave()).await));
    lines.push(told(client.resign(None).await));
    lines.push(told(client.proclaim("four", with(leader.clone())).await));
    client.campaign("e", "five", lease).await.expect("a leader");
    let next = observed.message().await.expect("a leader").expect("a leader");
    let header = next.header().expect("a header").revision();
    let value = String::from_utf8_lossy(next.kv().expect("a key").value()).into_owned();
    lines.push(format!("{header} {value}"));
    lines
}

#[test]
fn locks_and_elections_are_answered_as_etcd_answers() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let (ours, theirs) = (ours(&real, &sandbox, &[]), theirs(&real, &sandbox, &[]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ask = |endpoint: &str| {
        runtime.block_on(async {
            let answers = tokio::time::timeout(WAIT, locks_and_elections(endpoint));
            answers.await.expect("answers in time")
        })
    };
    assert_eq!(ask(&ours.endpoint), ask(&theirs.endpoint));
}
