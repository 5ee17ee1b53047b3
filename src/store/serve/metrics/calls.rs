//! What gRPC calls are counted in: without locks, each thread for itself.

use std::array;
use std::sync::OnceLock;
use std::time::Duration;

use tonic::Code;

use super::family::{Families, Kind};
use super::method::{Method, Shape};
use crate::store::figures::Distribution;
use crate::store::figures::histogram::{Counter, Histogram, Scale, Shards, to_f64};
use crate::store::open::Compat;

/// Bytes that gRPC puts before each message, which are none of the message.
const PREFIX: u64 = 5;
/// Versions of clients that are told apart by name.
const VERSIONS_MAX: usize = 31;
/// Bytes of a version that are kept; any version of etcd is shorter.
const VERSION_BYTES: usize = 32;

/// Codes by their numbers.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// gRPC's own buckets: 5 ms to 10 s.
static HANDLING: Scale = Scale {
    bounds: &[
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
        2_500_000_000,
        5_000_000_000,
        10_000_000_000,
    ],
    per_unit: 1e9,
};

/// Figures of one method.
#[derive(Debug)]
struct OfMethod {
    started: Counter,
    received: Counter,
    sent: Counter,
    handled: [Counter; CODES.len()],
    handling: Histogram,
}

impl Default for OfMethod {
    fn default() -> Self {
        Self {
            started: Counter::default(),
            received: Counter::default(),
            sent: Counter::default(),
            handled: array::from_fn(|_| Counter::default()),
            handling: Histogram::new(&HANDLING),
        }
    }
}

#[derive(Debug)]
struct Shard {
    methods: [OfMethod; Method::COUNT],
    bytes_in: Counter,
    bytes_out: Counter,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            methods: array::from_fn(|_| OfMethod::default()),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
        }
    }
}

impl Shard {
    fn of(&self, method: Method) -> Option<&OfMethod> {
        self.methods.get(usize::from(method as u8))
    }
}

/// Calls of clients of one version.
#[derive(Debug)]
struct OfVersion {
    name: String,
    unary: Shards<Counter>,
    streams: Shards<Counter>,
}

impl OfVersion {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), unary: Shards::default(), streams: Shards::default() }
    }
}

/// The calls of a server.
#[derive(Debug)]
pub(in crate::store::serve) struct Calls {
    /// On the heap: it is large.
    shards: Box<Shards<Shard>>,
    versions: [OnceLock<OfVersion>; VERSIONS_MAX],
    /// Clients that do not say what they speak.
    unknown: OfVersion,
    /// What is no version, and versions that came when there was no room for their names.
    other: OfVersion,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            shards: Box::default(),
            versions: array::from_fn(|_| OnceLock::new()),
            unknown: OfVersion::new("unknown"),
            other: OfVersion::new("other"),
        }
    }
}

impl Calls {
    /// A call begins; `version` is what its client says that it speaks.
    pub(in crate::store::serve) fn started(&self, method: Method, version: Option<&str>) {
        if let Some(of) = self.shards.own().of(method) {
            of.started.add(1);
        }
        let of = version.map_or(&self.unknown, |name| self.version(name));
        let counts = if method.shape() == Shape::Unary { &of.unary } else { &of.streams };
        counts.own().add(1);
    }

    fn version(&self, name: &str) -> &OfVersion {
        if !is_version(name) {
            return &self.other;
        }
        let mut slots = self.versions.iter().map(|slot| slot.get_or_init(|| OfVersion::new(name)));
        slots.find(|of| of.name == name).unwrap_or(&self.other)
    }

    /// Messages of a client came, or the first bytes of them; `bytes` of the connection.
    pub(in crate::store::serve) fn received(&self, method: Method, messages: u64, bytes: usize) {
        let shard = self.shards.own();
        if let Some(of) = shard.of(method) {
            of.received.add(messages);
        }
        shard.bytes_in.add(payload(messages, bytes));
    }

    /// Messages went to a client.
    pub(in crate::store::serve) fn sent(&self, method: Method, messages: u64, bytes: usize) {
        let shard = self.shards.own();
        if let Some(of) = shard.of(method) {
            of.sent.add(messages);
        }
        shard.bytes_out.add(payload(messages, bytes));
    }

    /// A call ended. To gRPC's figures a unary call that failed has sent a message as well.
    pub(in crate::store::serve) fn handled(&self, method: Method, code: Code, took: Duration) {
        let Some(of) = self.shards.own().of(method) else { return };
        let code = usize::try_from(i32::from(code)).ok();
        if let Some(handled) = code.and_then(|code| of.handled.get(code)) {
            handled.add(1);
        }
        if method.shape() == Shape::Unary && code != Some(0) {
            of.sent.add(1);
        }
        of.handling.time(took);
    }

    pub(super) fn put(&self, out: &mut Families, compat: Compat, is_extensive: bool) {
        for &method in Method::ALL {
            let sum = |of: fn(&OfMethod) -> u64| {
                self.shards.sum(move |shard| shard.of(method).map_or(0, of))
            };
            let started = sum(|of| of.started.get());
            if started == 0 && !method.is_shown_at_once(compat) {
                continue;
            }
            let shape = method.shape().label();
            let labels = [
                ("grpc_method", method.name()),
                ("grpc_service", method.service()),
                ("grpc_type", shape),
            ];
            for (name, help, value) in [
                ("started", "Calls that began.", started),
                ("msg_received", "Messages that clients sent.", sum(|of| of.received.get())),
                ("msg_sent", "Messages that clients were sent.", sum(|of| of.sent.get())),
            ] {
                let name = format!("grpc_server_{name}_total");
                out.one(&name, help, Kind::Counter, &labels, to_f64(value));
            }
            for (number, code) in CODES.into_iter().enumerate() {
                let handled = self.shards.sum(|shard| {
                    let of = shard.of(method).and_then(|of| of.handled.get(number));
                    of.map_or(0, Counter::get)
                });
                let [name, service, shape] = labels;
                let labels = [("grpc_code", code), name, service, shape];
                let help = "Calls that ended, by how they did.";
                let family = "grpc_server_handled_total";
                out.one(family, help, Kind::Counter, &labels, to_f64(handled));
            }
            if is_extensive {
                let mut all = Distribution::default();
                let of = self.shards.iter().filter_map(|shard| shard.of(method));
                of.for_each(|of| all.add(&of.handling.read()));
                let help = "How long calls took, in seconds.";
                out.distribution("grpc_server_handling_seconds", help, &labels, &all);
            }
        }
        let bytes = [
            ("received", "Bytes of messages that clients sent.", bytes_in as fn(&Shard) -> u64),
            ("sent", "Bytes of messages that clients were sent.", bytes_out),
        ];
        for (word, help, of) in bytes {
            let name = format!("etcd_network_client_grpc_{word}_bytes_total");
            out.one(&name, help, Kind::Counter, &[], to_f64(self.shards.sum(of)));
        }
        let named = self.versions.iter().map_while(OnceLock::get);
        for of in named.chain([&self.unknown, &self.other]) {
            for (word, counts) in [("stream", &of.streams), ("unary", &of.unary)] {
                let count = counts.sum(Counter::get);
                if count > 0 {
                    let labels = [("client_api_version", of.name.as_str()), ("type", word)];
                    let help = "Calls by the version that their clients speak.";
                    let name = "etcd_server_client_requests_total";
                    out.one(name, help, Kind::Counter, &labels, to_f64(count));
                }
            }
        }
    }
}

/// Tells whether a text is a version of etcd's API: two or three numbers.
fn is_version(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    text.len() <= VERSION_BYTES
        && (2..=3).contains(&text.split('.').count())
        && text.split('.').all(is_number)
}

fn bytes_in(shard: &Shard) -> u64 {
    shard.bytes_in.get()
}

fn bytes_out(shard: &Shard) -> u64 {
    shard.bytes_out.get()
}

/// Bytes without prefixes. A prefix may have come partly before: the sum of all is right.
fn payload(messages: u64, bytes: usize) -> u64 {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    bytes.wrapping_sub(messages.wrapping_mul(PREFIX))
}
