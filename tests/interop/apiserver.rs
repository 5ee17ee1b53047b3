//! A real kube-apiserver on our store: it comes up, serves, lives through the death of the store,
//! and finds everything again when a real etcd takes the directory over, and when ours does again.
//!
//! Both run with the flags that kubeadm wrote (`fixtures/kubernetes/manifests`), with other
//! addresses and folders, over TLS with certificates that kubeadm makes. The programs are built
//! from their published module by `tests/interop/build apiserver`, which takes minutes, so this
//! runs only where it is asked for: `cargo test --test interop apiserver -- --ignored`. With
//! `ETCDKIT_APISERVER=etcd` the real etcd is the store all the time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::programs::{Etcd, Real, bounded, free_ports, real, until};
use crate::support::{Ran, Sandbox};

/// Longest build of the programs from nothing.
const BUILD: Duration = Duration::from_secs(2400);
/// Longest wait for the API server, on a machine that does other things too.
const READY: Duration = Duration::from_secs(180);
/// Longest wait for an event or for an answer of a server that runs.
const SOON: Duration = Duration::from_secs(30);
/// The address of the node in the manifests, and the one that it has here.
const NODE: [&str; 2] = ["10.0.0.111", "127.0.0.2"];

const CUSTOM: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind":
    "CustomResourceDefinition", "metadata": {"name": "parcels.shop.example"}, "spec": {"group":
    "shop.example", "scope": "Namespaced", "names": {"plural": "parcels", "singular": "parcel",
    "kind": "Parcel", "listKind": "ParcelList"}, "versions": [{"name": "v1", "served": true,
    "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec":
    {"type": "object", "properties": {"weight": {"type": "integer"}}}}}}}]}}"#;

/// A program that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command of a container, with addresses, ports and folders of this run.
fn container_command(manifest: &str, changes: &[(String, String)]) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kubernetes/manifests");
    let text = fs::read_to_string(path.join(manifest)).expect(manifest);
    let lines = text.lines().skip_while(|line| line.trim() != "- command:").skip(1);
    let words = lines.map_while(|line| line.strip_prefix("    - "));
    let change = |word: &str| {
        changes.iter().fold(word.to_owned(), |word, (from, to)| word.replace(from, to))
    };
    words.map(change).collect()
}

struct Cluster<'a> {
    real: &'a Real,
    sandbox: &'a Sandbox,
    metrics: u16,
    store_words: Vec<String>,
    api_words: Vec<String>,
}

impl<'a> Cluster<'a> {
    /// Makes certificates and the command lines.
    fn new(real: &'a Real, sandbox: &'a Sandbox) -> Self {
        let [client, peer, metrics, api] = free_ports();
        let pki = sandbox.text("pki");
        let configuration = [
            json!({
                "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration",
                "localAPIEndpoint": {"advertiseAddress": NODE[0], "bindPort": api},
                "nodeRegistration": {"name": "cp-1", "criSocket": "unix:///run/none.sock"},
            }),
            json!({
                "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration",
                "kubernetesVersion": "v1.34.4", "certificatesDir": pki,
                "controlPlaneEndpoint": format!("127.0.0.1:{api}"),
                "apiServer": {"certSANs": ["127.0.0.1"]},
                "etcd": {"local": {"dataDir": sandbox.text("data"), "serverCertSANs": [NODE[1]],
                    "peerCertSANs": [NODE[1]]}},
            }),
        ];
        let configuration = configuration.map(|part| part.to_string()).join("\n---\n");
        sandbox.write("kubeadm.yaml", configuration.as_bytes());
        let file = sandbox.text("kubeadm.yaml");
        let phase = ["init", "phase"];
        real.ok("kubeadm", &[&phase[..], &["certs", "all", "--config", &file]].concat());
        let words = ["kubeconfig", "super-admin", "--config", &file, "--kubeconfig-dir"];
        real.ok("kubeadm", &[&phase[..], &words, &[sandbox.text("kube").as_str()]].concat());

        let changes = [
            (format!("https://{}", NODE[0]), format!("https://{}", NODE[1])),
            (":2379".into(), format!(":{client}")),
            (":2380".into(), format!(":{peer}")),
            (":2381".into(), format!(":{metrics}")),
            ("=6443".into(), format!("={api}")),
            ("/etc/kubernetes/pki".into(), pki),
            ("/var/lib/etcd".into(), sandbox.text("data")),
        ];
        let mut api_words = container_command("kube-apiserver.yaml", &changes);
        api_words.push("--bind-address=127.0.0.1".into());
        api_words.push("--endpoint-reconciler-type=none".into());
        let store_words = container_command("single-v1beta4.yaml", &changes);
        Self { real, sandbox, metrics, store_words, api_words }
    }

    /// Starts a store with kubeadm's flags and waits until its probes are content.
    fn store(&self, program: &str) -> Etcd<'a> {
        let mut command = self.real.program(program);
        if program == "ours" {
            let ours = self.sandbox.path("etcd");
            if !self.sandbox.exists("etcd") {
                symlink(env!("CARGO_BIN_EXE_etcdkit"), &ours).expect("a link");
            }
            command = Command::new(ours);
            command.env_clear().stdin(Stdio::null());
        }
        command.args(&self.store_words[1..]);
        let mut etcd = self.real.launch(command, &self.sandbox.text("data"), String::new());
        if let Err(refusal) = etcd.come_up() {
            panic!("{program} does not start: {refusal:?}");
        }
        for probe in ["/livez", "/readyz"] {
            until(&format!("{program} answers {probe}"), SOON, || {
                self.get(probe).filter(|answer| answer.starts_with("HTTP/1.1 200"))
            });
        }
        etcd
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn api_server(&self) -> Running {
        let log = File::create(self.sandbox.path("apiserver.log")).expect("a log");
        let mut command = self.real.program("kube-apiserver");
        command.args(&self.api_words[1..]).current_dir(self.sandbox.mkdir("api"));
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Running(command.spawn().expect("kube-apiserver starts"))
    }

    fn kubectl(&self, words: &[&str]) -> Command {
        let mut command = self.real.program("kubectl");
        command.env("HOME", self.sandbox.mkdir("home"));
        command.env("KUBECONFIG", self.sandbox.path("kube/super-admin.conf"));
        command.current_dir(self.sandbox.path("")).args(words);
        command
    }

    #[track_caller]
    fn ask(&self, words: &[&str]) -> Ran {
        bounded(&mut self.kubectl(words), READY)
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> Ran {
        let ran = self.ask(words);
        if ran.code == 0 { ran } else { panic!("{ran}\n{}", self.end_of_log()) }
    }

    #[track_caller]
    fn apply(&self, name: &str, text: &str) {
        self.sandbox.write(name, text.as_bytes());
        self.ok(&["apply", "--server-side", "-f", name]);
    }

    fn end_of_log(&self) -> String {
        let log = fs::read_to_string(self.sandbox.path("apiserver.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Waits until the API server is ready; nobody touches it meanwhile.
    #[track_caller]
    fn ready(&self, what: &str, server: &mut Running) {
        let began = Instant::now();
        until(&format!("the API server is ready {what}"), READY, || {
            let ended = server.0.try_wait().expect("a child to look at");
            assert!(ended.is_none(), "kube-apiserver ended {what}:\n{}", self.end_of_log());
            let ran = self.ask(&["get", "--raw", "/readyz", "--request-timeout=5s"]);
            (ran.code == 0 && ran.stdout == "ok").then_some(())
        });
        println!("ready {what} after {:.1} s", began.elapsed().as_secs_f64());
    }

    /// Uid and resource version of everything that nobody but this test changes.
    #[track_caller]
    fn held(&self) -> BTreeMap<String, String> {
        let kinds = "namespaces,configmaps,deployments,customresourcedefinitions,parcels,\
                     clusterroles,services";
        let list: Value = self.ok(&["get", kinds, "--all-namespaces", "--output=json"]).json();
        let items = list["items"].as_array().expect("items");
        let text = |item: &Value, at: &str| item.pointer(at).unwrap_or(&Value::Null).to_string();
        let name = |item: &Value| {
            ["/kind", "/metadata/namespace", "/metadata/name"].map(|at| text(item, at)).join(" ")
        };
        let version = |item: &Value| {
            ["/metadata/uid", "/metadata/resourceVersion"].map(|at| text(item, at)).join(" ")
        };
        items.iter().map(|item| (name(item), version(item))).collect()
    }
}

fn kill(child: &Etcd<'_>) {
    let pid = i32::try_from(child.pid()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::KILL).expect("a process to kill");
}

#[test]
#[ignore = "builds Kubernetes, which takes minutes"]
fn a_kube_apiserver_serves_and_recovers() {
    let Some(real) = real() else { return };
    let choice = std::env::var("ETCDKIT_APISERVER").unwrap_or_default();
    let ours = match choice.as_str() {
        "" => "ours",
        "etcd" => "etcd-3.7",
        other => panic!("ETCDKIT_APISERVER={other}"),
    };
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/build");
    let built = bounded(Command::new(build).arg("apiserver").stdin(Stdio::null()), BUILD);
    assert_eq!(built.code, 0, "{built}");

    let sandbox = Sandbox::new();
    let cluster = Cluster::new(&real, &sandbox);
    let store = cluster.store(ours);
    let mut server = cluster.api_server();
    cluster.ready("at first", &mut server);

    // A watch that is open until the end.
    cluster.ok(&["create", "namespace", "shop"]);
    let seen = sandbox.path("seen");
    let mut watch = cluster.kubectl(&["get", "configmaps", "--namespace=shop", "--watch"]);
    watch.arg("--output-watch-events");
    watch.stdout(File::create(&seen).expect("a file")).stderr(Stdio::null());
    let mut watch = Running(watch.spawn().expect("kubectl starts"));
    let sees = |event: &str| {
        until(&format!("the watch sees {event}"), READY, || {
            let text = fs::read_to_string(&seen).expect("what the watch saw");
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines
                .any(|words| words.get(..2).is_some_and(|two| two.join(" ") == event))
                .then_some(())
        });
    };

    for number in 0..25 {
        let name = format!("settings-{number:02}");
        let value = format!("--from-literal=number={number}");
        cluster.ok(&["create", "configmap", &name, "--namespace=shop", &value]);
    }
    let shop = "--namespace=shop";
    cluster.ok(&["create", "deployment", "front", "--image=registry/front:1", shop]);
    cluster.apply("crd.json", CUSTOM);
    cluster.ok(&["wait", "--for=condition=established", "crd/parcels.shop.example"]);
    let parcel = json!({
        "apiVersion": "shop.example/v1", "kind": "Parcel",
        "metadata": {"name": "first", "namespace": "shop"}, "spec": {"weight": 3},
    });
    cluster.apply("parcel.json", &parcel.to_string());
    sees("ADDED settings-24");
    cluster.ok(&["delete", "configmap", "settings-24", shop]);
    sees("DELETED settings-24");
    // In pieces of ten, as a client with many keys reads.
    let names = cluster.ok(&["get", "configmaps", shop, "--chunk-size=10", "--output=name"]);
    assert_eq!(names.stdout.matches("configmap/settings-").count(), 24, "{names}");
    cluster.ok(&["scale", "deployment", "front", "--replicas=3", shop]);
    let image = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image}";
    let front = cluster.ok(&["get", "deployment", "front", shop, "--output", image]);
    assert_eq!(front.stdout, "3 registry/front:1");

    // The store dies, and comes back; then others have the directory in turn.
    let mut store = store;
    for (round, next) in [ours, "etcd-3.7", ours].into_iter().enumerate() {
        let before = cluster.held();
        if round == 0 {
            kill(&store);
            drop(store);
        } else {
            store.stop();
        }
        store = cluster.store(next);
        let what = format!("after {next} took over in turn {round}");
        cluster.ready(&what, &mut server);
        assert_eq!(cluster.held(), before, "{what}");
        let name = format!("after-{round}");
        until("writes go on", READY, || {
            (cluster.ask(&["create", "configmap", &name, shop]).code == 0).then_some(())
        });
        sees(&format!("ADDED {name}"));
    }
    assert!(watch.0.try_wait().expect("a child to look at").is_none(), "the watch has ended");

    // Nobody runs controllers here, so the last step of a deletion is done by hand.
    cluster.ok(&["delete", "parcel,configmap,deployment", "--all", shop]);
    cluster.ok(&["delete", "crd", "parcels.shop.example"]);
    cluster.ok(&["delete", "namespace", "shop", "--wait=false"]);
    let mut namespace = cluster.ok(&["get", "namespace", "shop", "--output=json"]).json();
    assert_eq!(namespace["status"]["phase"], "Terminating");
    namespace["spec"]["finalizers"] = json!([]);
    sandbox.write("namespace.json", namespace.to_string().as_bytes());
    let path = "/api/v1/namespaces/shop/finalize";
    cluster.ok(&["replace", "--raw", path, "-f", "namespace.json"]);
    let names = cluster.ok(&["get", "namespaces", "--output=name"]);
    assert!(!names.stdout.contains("shop"), "{names}");
    let held = cluster.ask(&["get", "parcels", shop]);
    assert_ne!(held.code, 0, "{held}");
    drop(server);
    store.stop();
}
