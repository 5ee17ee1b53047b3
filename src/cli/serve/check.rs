//! What is refused, in etcd's order and with its words, before the disk or the network is touched.
//!
//! **Source**: etcd server/embed/config.go (`Validate`, `setupLogging`), server/embed/etcd.go
//! (`StartEtcd`), server/config/config.go (`VerifyBootstrap`), 3.6.16 and 3.7.3.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::config::{Config, Founding, LogSettings, tls_of};
use super::flags::{self, Effect};
use super::settings::Settings;
use super::url::{Scheme, Url};
use super::value::{Value, quoted, read_time};
use super::{Note, Refusal, Told};
use crate::store::auto_compact::Retention;
use crate::store::lines::{Form, Level, Output, go_duration};
use crate::store::serve::jwt;
use crate::store::serve::tls::Side;

/// Longest election timeout, in milliseconds.
const ELECTION_MS_MAX: u64 = 50_000;
/// How long a signed token is valid, where nothing is set.
const TOKEN_TTL: Duration = Duration::from_secs(300);
/// Largest quota that is not warned of.
const QUOTA_BYTES_MAX: i64 = 8 << 30;

/// Checks settings and puts them into their places.
///
/// # Errors
///
/// See [`Refusal`].
pub(super) fn settle(
    mut settings: Settings,
    is_file: bool,
    notes: &mut Vec<Note>,
) -> Result<Box<Config>, Box<Refusal>> {
    settle_defaults(&mut settings, is_file);
    settle_old(&mut settings, notes).map_err(Refusal::flags)?;
    if settings.text("discovery-fallback") == "proxy" {
        let text =
            "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"";
        return Err(Refusal::flags(text).into());
    }
    let log = log_settings(&settings)?;
    let logged = |mut refusal: Refusal| {
        refusal.log = log.clone();
        Box::new(refusal)
    };
    valid(&settings, notes).map_err(|text| logged(Refusal::flags(text)))?;
    let (auto_compaction, signed_tokens) =
        startable(&settings, notes).map_err(|text| logged(Refusal::start(text)))?;
    warn_of_effects(&settings, notes);
    Ok(Box::new(Config::of(&settings, log, auto_compaction, signed_tokens)))
}

/// Takes defaults back that something else that was given takes the ground from.
fn settle_defaults(settings: &mut Settings, is_file: bool) {
    let is_set = |settings: &Settings, name: &str| settings.is_given(name);
    let is_advertised = is_set(settings, "advertise-client-urls");
    if is_file {
        if settings.text("initial-cluster-state").is_empty() {
            settings.put("initial-cluster-state", Value::Text("new".into()));
        }
        if settings.uint("self-signed-cert-validity") == 0 {
            settings.put("self-signed-cert-validity", Value::Uint(1));
        }
    } else if is_set(settings, "listen-client-urls") && !is_set(settings, "advertise-client-urls") {
        settings.put("advertise-client-urls", Value::Urls(Vec::new()));
    }
    if settings.some_text("read-only").is_some() {
        // It is looked into beside an etcd that runs: its peer port is taken, and its URL is not
        // where this is served.
        if !is_set(settings, "listen-peer-urls") {
            settings.put("listen-peer-urls", Value::Urls(Vec::new()));
        }
        if !is_advertised {
            settings.put("advertise-client-urls", settings.value("listen-client-urls"));
        }
    }
    if !is_set(settings, "initial-cluster") {
        let has_discovery = ["discovery", "discovery-srv", "discovery-srv-name"]
            .iter()
            .any(|name| settings.some_text(name).is_some());
        if has_discovery || has_endpoints(settings) {
            settings.put("initial-cluster", Value::Text(String::new()));
        }
    }
}

fn has_endpoints(settings: &Settings) -> bool {
    matches!(settings.value("discovery-endpoints"), Value::Words(words) if !words.is_empty())
}

/// Gives what old flags say to those that took their place.
fn settle_old(settings: &mut Settings, notes: &mut Vec<Note>) -> Result<(), String> {
    let mut gates = settings.gates();
    let before = gates.clone();
    let given: Vec<_> = flags::all().filter(|flag| settings.is_given(flag.name)).collect();
    for flag in given {
        let old = flag.name;
        match flag.effect {
            Effect::WasGate(gate) => {
                let (value, on) = (settings.is_on(old), before.is_on(gate));
                if before.is_set(gate) {
                    return Err(format!(
                        "cannot specify both flags: --{old}={value} and \
                         --feature-gates={gate}={on} at the same time, please just use \
                         --feature-gates={gate}={on}"
                    ));
                }
                gates.set(gate, value)?;
                let now = format!("--feature-gates={gate}={value}");
                notes.push(Note::warn(format!("--{old} is no flag of etcd 3.7: use {now}")));
            }
            Effect::Was(now) => {
                if settings.is_given(now) {
                    return Err(match now {
                        "warning-unary-request-duration" => {
                            format!("both --{old} and --{now} flags are set. Use only --{now}")
                        }
                        now => format!(
                            "cannot set --{old} and --{now} at the same time, please use --{now} \
                             only"
                        ),
                    });
                }
                if now == "compact-hash-check-time" && settings.int(old) <= 0 {
                    return Err(not_above_0(old, settings.int(old)));
                }
                settings.put(now, settings.value(old));
                notes.push(Note::warn(format!("--{old} is no flag of etcd 3.7: use --{now}")));
            }
            _ => {}
        }
    }
    settings.put("feature-gates", Value::Gates(gates));
    Ok(())
}

fn not_above_0(name: &str, nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let text = go_duration(std::time::Duration::from_nanos(nanos.unsigned_abs()));
    format!("--{name} must be >0 (set to {sign}{text})")
}

/// Decides where log lines go.
fn log_settings(settings: &Settings) -> Result<LogSettings, Box<Refusal>> {
    let bad = |text: String| Err(Box::new(Refusal::flags(text)));
    match settings.text("logger").as_str() {
        "zap" => {}
        "capnslog" => return bad("--logger=capnslog is removed in v3.5".into()),
        other => return bad(format!("unknown logger option {}", quoted(other))),
    }
    let mut outputs = settings.words("log-outputs");
    if outputs.is_empty() {
        outputs.push("default".into());
    }
    if outputs.len() > 1 && outputs.iter().any(|output| output == "default") {
        return bad("multi logoutput for \"default\" is not supported yet".into());
    }
    let files = outputs.iter().filter(|o| !matches!(o.as_str(), "default" | "stderr" | "stdout"));
    if settings.is_on("enable-log-rotation") {
        if files.count() != 1 {
            let text = "--log-outputs requires a single file path when --log-rotate-config-json is \
                        defined";
            return bad(text.into());
        }
        let text = settings.text("log-rotation-config-json");
        if let Err(error) = serde_json::from_str::<serde_json::Value>(&text) {
            return bad(format!("improperly formatted log rotation config: {error}"));
        }
    }
    if outputs.iter().any(|output| output == "systemd/journal") {
        return bad("can't find journal (etcdkit writes to stderr, which systemd reads)".into());
    }
    let level = settings.text("log-level");
    let Some(level) = Level::of_name(&level) else {
        let text = format!("unrecognized level: {}", quoted(&level));
        return Err(Refusal::new(Told::Plain, 2, text).into());
    };
    let form = match settings.text("log-format").as_str() {
        "" | "json" => Form::Json,
        "console" => Form::Console,
        other => {
            return bad(format!("unknown log format: {other}, supported values json, console"));
        }
    };
    let output = |output: &String| match output.as_str() {
        "default" | "stderr" => Output::Stderr,
        "stdout" => Output::Stdout,
        path => Output::File(PathBuf::from(path)),
    };
    // Who names it wants nothing anywhere.
    let nowhere = outputs.iter().any(|output| output == "/dev/null");
    let outputs = if nowhere { Vec::new() } else { outputs.iter().map(output).collect() };
    Ok(LogSettings { level, form, outputs })
}

/// Checks what `embed.Config.Validate` checks.
fn valid(settings: &Settings, notes: &mut Vec<Note>) -> Result<(), String> {
    let is_36 = settings.text("compat") == "3.6";
    let listen = |name: &str| settings.urls(name).iter().try_for_each(Url::check_bind);
    listen("listen-peer-urls")?;
    listen("listen-client-urls")?;
    listen("listen-client-http-urls")?;
    listen("listen-metrics-urls")?;
    let told = |name: &str, form: &str| {
        let urls = settings.urls(name);
        urls.iter().try_for_each(Url::check_host).map_err(|why| {
            let urls = urls.iter().map(Url::to_string).collect::<Vec<_>>().join(",");
            format!("--{name} {} must be {form} ({why})", quoted(&urls))
        })
    };
    told("initial-advertise-peer-urls", "\"host:port\"")?;
    let form = "in the format \"host:port\", \"unix:/path/to/socket\" or \"unixs:/path/to/socket\"";
    told("advertise-client-urls", if is_36 { "\"host:port\"" } else { form })?;
    let state = settings.text("initial-cluster-state");
    if state != "new" && state != "existing" {
        return Err(format!("unexpected clusterState {}", quoted(&state)));
    }
    discovery(settings, is_36)?;
    let (tick, election) = (settings.uint("heartbeat-interval"), settings.uint("election-timeout"));
    for (name, number) in [("heartbeat-interval", tick), ("election-timeout", election)] {
        if number == 0 {
            return Err(format!("--{name} must be >0 (set to 0ms)"));
        }
    }
    if tick.saturating_mul(5) > election {
        return Err(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as \
             --heartbeat-interval[{tick}ms]"
        ));
    }
    if election > ELECTION_MS_MAX {
        return Err(format!(
            "--election-timeout[{election}ms] is too long, and should be set less than \
             {ELECTION_MS_MAX}ms"
        ));
    }
    if settings.urls("advertise-client-urls").is_empty() {
        let text =
            "--advertise-client-urls is required when --listen-client-urls is set explicitly";
        let note = Note::warn("advertise client URLs are not set");
        notes.push(note.with("error", text));
        return Err(text.into());
    }
    match settings.text("auto-compaction-mode").as_str() {
        "periodic" | "revision" => {}
        "" => return Err("undefined auto-compaction-mode".into()),
        other => return Err(format!("unknown auto-compaction-mode {}", quoted(other))),
    }
    if settings.is_on("enable-distributed-tracing") {
        let rate = settings.int("distributed-tracing-sampling-rate");
        let why = match rate {
            0..=1_000_000 => None,
            ..0 => Some("tracing sampling rate must be positive"),
            _ => Some("tracing sampling rate must be less than 1000000"),
        };
        if let Some(why) = why {
            return Err(format!("distributed tracing configurition is not valid: ({why})"));
        }
    }
    let gates = settings.gates();
    match (gates.is_on("LeaseCheckpoint"), gates.is_on("LeaseCheckpointPersist")) {
        (true, false) => notes.push(Note::warn(
            "Detected that checkpointing is enabled without persistence. Consider enabling feature \
             gate LeaseCheckpointPersist",
        )),
        (false, true) => {
            let text = "enabling feature gate LeaseCheckpointPersist requires enabling feature \
                        gate LeaseCheckpoint";
            return Err(text.into());
        }
        _ => {}
    }
    for (gate, why) in gates.idle() {
        notes.push(Note::warn(format!("the feature gate {gate} has no effect: {why}")));
    }
    let time = settings.int("compact-hash-check-time");
    if time <= 0 {
        return Err(not_above_0("compact-hash-check-time", time));
    }
    tls_of(settings, Side::Client).check().map_err(|error| error.to_string())?;
    if settings.text("metrics") != "basic" && settings.text("metrics") != "extensive" {
        notes.push(Note::warn("--metrics is neither basic nor extensive: basic it is"));
    }
    Ok(())
}

/// Checks the flags of discovery; whatever is left of it when they agree is refused later.
fn discovery(settings: &Settings, is_36: bool) -> Result<(), String> {
    let has = |name: &str| settings.some_text(name).is_some();
    let ways =
        [has("initial-cluster"), has("discovery-srv"), has_endpoints(settings), has("discovery")];
    if ways.iter().filter(|way| **way).count() > 1 {
        let v2 = if is_36 { " \"discovery\"," } else { "" };
        return Err(format!(
            "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\",{v2} \
             \"discovery-endpoints\" or \"discovery-srv\""
        ));
    }
    if has("discovery-token") != has_endpoints(settings) {
        return Err("both --discovery-token and --discovery-endpoints must be set".into());
    }
    match settings.value("discovery-endpoints") {
        Value::Words(words) if words.iter().any(|word| word.trim().is_empty()) => {
            Err("--discovery-endpoints must not contain empty endpoints".into())
        }
        _ => Ok(()),
    }
}

/// Checks what stops an etcd while it starts.
fn startable(
    settings: &Settings,
    notes: &mut Vec<Note>,
) -> Result<(Retention, Option<jwt::Settings>), String> {
    for flag in flags::all() {
        if let Effect::Refused(why) = flag.effect
            && settings.is_given(flag.name)
            && settings.value(flag.name) != flag.kind.default(flag.default)
        {
            return Err(format!("--{} is refused: {why}", flag.name));
        }
    }
    let retention = settings.some_text("auto-compaction-retention").unwrap_or_else(|| "0".into());
    let is_number = retention.parse::<u64>().is_ok();
    if !is_number && read_time(&retention).is_none() {
        let what = format!("time: invalid duration {}", quoted(&retention));
        return Err(format!("error parsing CompactionRetention: {what}"));
    }
    let auto_compaction = Retention::of_flags(&settings.text("auto-compaction-mode"), &retention)
        .map_err(|why| format!("--auto-compaction-retention: {why}"))?;
    tls(settings, notes)?;
    let signed_tokens = tokens(&settings.text("auth-token"), notes)?;
    let cost = settings.uint("bcrypt-cost");
    if !(4..=31).contains(&cost) {
        let note = Note::warn("use default bcrypt cost instead of the invalid given cost");
        notes.push(note.with("given-cost", &cost.to_string()).with("default-cost", "10"));
    }
    let quota = settings.int("quota-backend-bytes");
    if quota > QUOTA_BYTES_MAX {
        let note = Note::warn("quota exceeds the maximum value");
        let note = note.with("quota-size-bytes", &quota.to_string());
        notes.push(note.with("quota-maximum-size-bytes", &QUOTA_BYTES_MAX.to_string()));
    }
    Ok((auto_compaction, signed_tokens))
}

/// Reads what tokens there are to be: a kind, and options after commas; `None` are simple ones.
fn tokens(text: &str, notes: &mut Vec<Note>) -> Result<Option<jwt::Settings>, String> {
    const INVALID: &str = "auth: invalid auth options";
    let (kind, rest) = text.split_once(',').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
    let mut options = BTreeMap::new();
    for option in rest.iter().flat_map(|rest| rest.split(',')) {
        let (name, value) = option.split_once('=').ok_or(INVALID)?;
        if value.contains('=') || options.insert(name, value).is_some() {
            return Err(INVALID.into());
        }
    }
    match kind {
        "simple" => return Ok(None),
        "" => {
            notes.push(Note::warn("--auth-token is empty: simple tokens are given"));
            return Ok(None);
        }
        "jwt" => {}
        _ => return Err(INVALID.into()),
    }
    let mut take = |name: &str| options.remove(name).filter(|value| !value.is_empty());
    let ttl = match take("ttl").map(read_time) {
        None => TOKEN_TTL,
        Some(nanos) => Duration::from_nanos(nanos.and_then(|n| n.try_into().ok()).ok_or(INVALID)?),
    };
    let signed = jwt::Settings {
        method: take("sign-method").unwrap_or_default().to_owned(),
        public_key: take("pub-key").map(PathBuf::from),
        private_key: take("priv-key").map(PathBuf::from),
        ttl,
    };
    if !options.is_empty() {
        let names: Vec<_> = options.into_keys().collect();
        notes.push(Note::warn("unknown JWT options").with("keys", &names.join(",")));
    }
    Ok(Some(signed))
}

/// Checks that listeners of TLS have what they need.
fn tls(settings: &Settings, notes: &mut Vec<Note>) -> Result<(), String> {
    let (cert, key) = (settings.text("cert-file"), settings.text("key-file"));
    let is_auto = settings.is_on("auto-tls");
    if is_auto && !(cert.is_empty() && key.is_empty()) {
        notes.push(Note::warn("ignoring client auto TLS since certs given"));
    }
    let is_empty = cert.is_empty() && key.is_empty() && !is_auto;
    let is_half = cert.is_empty() != key.is_empty();
    let half = || format!("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]");
    let clients = ["listen-client-urls", "listen-client-http-urls"];
    for url in clients.iter().flat_map(|name| settings.urls(name)) {
        if url.scheme.is_tls() {
            if is_empty {
                return Err(format!(
                    "TLS key/cert (--cert-file, --key-file) must be provided for client url {url} \
                     with HTTPS scheme"
                ));
            }
            if is_half {
                return Err(half());
            }
            continue;
        }
        let ignored = |what: &str| Note::warn(what).with("client-url", url.as_str());
        if !(cert.is_empty() && key.is_empty()) {
            notes.push(ignored(
                "scheme is http or unix while key and cert files are present; ignoring key and \
                 cert files",
            ));
        }
        if settings.is_on("client-cert-auth") {
            notes.push(ignored(
                "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert \
                 auth for this URL",
            ));
        }
    }
    for url in settings.urls("listen-metrics-urls").iter().filter(|url| url.scheme.is_tls()) {
        if is_empty {
            let what = "client TLS key/cert (--cert-file, --key-file) must be provided for metrics";
            return Err(format!("{what} secure url"));
        }
        if is_half {
            return Err(format!("{}: {url}", half()));
        }
    }
    let (cert, key) = (settings.text("peer-cert-file"), settings.text("peer-key-file"));
    let has_auto = settings.is_on("peer-auto-tls") && cert.is_empty() && key.is_empty();
    for url in settings.urls("listen-peer-urls") {
        if url.scheme == Scheme::Https && !has_auto {
            let address = url.address();
            let cannot = |why: String| format!("cannot listen on TLS for {address}: {why}");
            if cert.is_empty() && key.is_empty() {
                return Err(cannot("KeyFile and CertFile are not presented".into()));
            }
            if cert.is_empty() || key.is_empty() {
                let files = format!("[key: {key}, cert: {cert}]");
                return Err(cannot(format!("KeyFile and CertFile must both be present{files}")));
            }
        }
    }
    Ok(())
}

/// Says of what was given that it changes nothing, where somebody may count on it.
fn warn_of_effects(settings: &Settings, notes: &mut Vec<Note>) {
    for flag in flags::all().filter(|flag| settings.is_given(flag.name)) {
        let text = match (flag.name, flag.effect) {
            ("max-snapshots", _) => {
                "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.".to_owned()
            }
            ("v2-deprecation", _) => "--v2-deprecation is deprecated and scheduled for removal in \
                                      v3.8. The default value is enforced, ignoring user input."
                .to_owned(),
            (name, Effect::Warns(why))
                if settings.value(name) != flag.kind.default(flag.default) =>
            {
                format!("--{name} has no effect: {why}")
            }
            _ => continue,
        };
        notes.push(Note::warn(text));
    }
    let is_read_only = settings.some_text("read-only").is_some();
    if is_read_only {
        let idle = ["data-dir", "force-new-cluster", "auto-compaction-retention"];
        for name in idle.into_iter().filter(|name| settings.is_given(name)) {
            notes.push(Note::warn(format!(
                "--{name} has no effect: --read-only names what is served, and nothing is changed"
            )));
        }
    }
    if settings.text("name") == "default" && !is_read_only {
        let note = Note::warn("it isn't recommended to use default name, please set --name");
        notes.push(note.with("name", "default"));
    }
}

impl Founding {
    /// Checks that a new directory can be founded as told, and is to be of one member. `resolve`
    /// finds the address of a `host:port`.
    ///
    /// # Errors
    ///
    /// What does not fit, mostly in etcd's words.
    pub(crate) fn check(
        &self,
        name: &str,
        resolve: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let mut own: Vec<Url> = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        for pair in self.initial_cluster.split(',').filter(|pair| !pair.is_empty()) {
            let (of, url) = pair.split_once('=').unwrap_or((pair, ""));
            let url = Url::parse(url)
                .map_err(|why| format!("error setting up initial cluster: {why}"))?;
            if of == name {
                own.push(url);
            } else {
                others.push(of);
            }
        }
        if self.is_existing {
            let why =
                "cannot fetch cluster info from peer urls: could not retrieve cluster information";
            return Err(format!(
                "{why} from the given URLs: --initial-cluster-state is existing, the directory is \
                 empty, and this store joins no cluster"
            ));
        }
        if own.is_empty() {
            let name = quoted(name);
            return Err(format!(
                "couldn't find local name {name} in the initial cluster configuration"
            ));
        }
        own.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        self.check_own(name, &own, resolve)?;
        match others.as_slice() {
            [] => Ok(()),
            others => Err(format!(
                "--initial-cluster names other members ({}), and this store is one member: name \
                 it alone, or start etcd",
                others.join(", ")
            )),
        }
    }

    /// Holds the URLs of the cluster against those that are told to peers.
    fn check_own(
        &self,
        name: &str,
        own: &[Url],
        resolve: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let texts = |urls: &[Url]| urls.iter().map(Url::to_string).collect::<Vec<_>>();
        let resolved = |url: &Url| match url.host_port() {
            Some((host, port)) if host != "localhost" => {
                resolve(&format!("{host}:{port}")).unwrap_or_else(|| url.address())
            }
            _ => url.address(),
        };
        let told = &self.peer_urls;
        let why = if told.len() != own.len() {
            let list = |urls: &[Url]| {
                let urls: Vec<_> = urls.iter().map(|url| quoted(url.as_str())).collect();
                format!("[{}]", urls.join(" "))
            };
            format!("len({}) != len({})", list(told), list(own))
        } else {
            let differs = |(one, other): &(&Url, &Url)| {
                one.as_str() != other.as_str()
                    && (one.scheme != other.scheme || resolved(one) != resolved(other))
            };
            match told.iter().zip(own).find(differs) {
                None => return Ok(()),
                Some((one, other)) => {
                    format!("resolved urls: {} != {}", quoted(one.as_str()), quoted(other.as_str()))
                }
            }
        };
        let list = texts(told).join(",");
        let missing = |from: &[Url], of: &[Url]| {
            let missing = from.iter().filter(|url| !of.contains(url));
            missing.map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",")
        };
        let in_told = missing(own, told);
        if !in_told.is_empty() {
            return Err(format!(
                "--initial-cluster has {in_told} but missing from \
                 --initial-advertise-peer-urls={list} ({why})"
            ));
        }
        Err(format!(
            "--initial-advertise-peer-urls has {list} but missing from --initial-cluster={}",
            self.initial_cluster
        ))
    }
}
