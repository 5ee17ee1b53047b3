//! Whether the member is alive, ready and well.
//!
//! A check reads a key that is hardly ever there, from memory, where it stands. Writes that failed
//! make etcd end; this store reads on, and its checks fail, so that whoever watches it ends it.

use ::http::{Method, Response, StatusCode, Uri, header};
use tonic::body::Body;

use super::super::Shared;
use super::{error, only, set, text};
use crate::etcd::request::{Alarm, Range};
use crate::store::Error;

/// A check, and what it is of.
type Check = (&'static str, fn(&Shared) -> Result<(), String>);

const LIVE: &[Check] = &[("serializable_read", read)];
const READY: &[Check] = &[
    ("data_corruption", no_corruption),
    ("serializable_read", read),
    ("linearizable_read", read),
    // The only member has a vote.
    ("non_learner", |_| Ok(())),
];

/// Answers what is about health; `None` for all else.
pub(super) fn answer(shared: &Shared, method: &Method, uri: &Uri) -> Option<Response<Body>> {
    let (first, rest) = match uri.path().get(1..)?.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (uri.path().get(1..)?, None),
    };
    let (kind, checks) = match first {
        "health" if rest.is_none() => {
            return Some(only(method, &Method::GET).unwrap_or_else(|| health(shared, uri)));
        }
        "livez" => ("livez", LIVE),
        "readyz" => ("readyz", READY),
        _ => return None,
    };
    let pairs = query(uri);
    let has = |key: &str, value: &str| pairs.iter().any(|(k, v)| k == key && v == value);
    let wanted: Vec<&Check> = match rest {
        None => checks.iter().filter(|(name, _)| !has("exclude", name)).collect(),
        Some(rest) => vec![checks.iter().find(|(name, _)| *name == rest)?],
    };
    if let Some(refusal) = only(method, &Method::GET) {
        return Some(refusal);
    }
    let (mut told, mut is_well) = (String::new(), true);
    for (name, check) in wanted {
        let checked = check(shared);
        shared.metrics.check(kind, name, checked.is_ok());
        told.push_str(&match checked {
            Ok(()) => format!("[+]{name} ok\n"),
            Err(why) => {
                is_well = false;
                format!("[-]{name} failed: {why}\n")
            }
        });
    }
    if !is_well {
        return Some(error(StatusCode::SERVICE_UNAVAILABLE, &told));
    }
    if !pairs.iter().any(|(key, _)| key == "verbose") {
        told.clear();
    }
    let mut response = text(StatusCode::OK, told + "ok\n");
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    Some(response)
}

fn health(shared: &Shared, uri: &Uri) -> Response<Body> {
    let pairs = query(uri);
    let is_excluded = |alarm: &str| pairs.iter().any(|(k, v)| k == "exclude" && v == alarm);
    let reason = match alarms(shared) {
        Err(why) => Some(why),
        Ok(alarms) => match alarms.into_iter().find(|alarm| !is_excluded(alarm)) {
            Some(alarm) => Some(format!("ALARM {alarm}")),
            None => read(shared).err().map(|why| format!("RANGE ERROR:{why}")),
        },
    };
    let json = |health: &str, reason: &str| {
        let mut json = format!("{{\"health\":\"{health}\",\"reason\":");
        super::json::text(&mut json, reason, super::json::Style::Html);
        json.push('}');
        json
    };
    shared.metrics.health(reason.is_none());
    match reason {
        None => text(StatusCode::OK, json("true", "")),
        Some(reason) => error(StatusCode::SERVICE_UNAVAILABLE, &json("false", &reason)),
    }
}

fn alarms(shared: &Shared) -> Result<Vec<&'static str>, String> {
    let caller = shared.store.caller_named("root");
    let get = Alarm { action: 0, member_id: 0, alarm: 0 };
    let alarms = shared.store.alarm(&caller, get).map_err(|error| error.to_string())?;
    Ok(alarms.body.iter().map(|(_, kind)| name(*kind)).collect())
}

fn name(alarm: u64) -> &'static str {
    match alarm {
        1 => "NOSPACE",
        2 => "CORRUPT",
        _ => "UNKNOWN",
    }
}

fn no_corruption(shared: &Shared) -> Result<(), String> {
    match alarms(shared)?.contains(&"CORRUPT") {
        true => Err("alarm activated: CORRUPT".into()),
        false => Ok(()),
    }
}

/// Reads a key. What a read sees is never older than what was answered before it, so that it makes
/// no difference how it is asked for.
fn read(shared: &Shared) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    if let Some(failure) = shared.store.failure() {
        return Err(said(failure));
    }
    let caller = shared.store.caller_named("root");
    let request =
        Range { key: b"health", limit: 1, keys_only: true, serializable: true, ..Range::default() };
    shared.store.range(&caller, &request).map(drop).map_err(said)
}

/// Reads the pairs of a query.
fn query(uri: &Uri) -> Vec<(String, String)> {
    let parts = uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty());
    // What has a bad escape or a semicolon is none.
    let pairs = parts.filter(|part| !part.contains(';')).filter_map(|part| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        Some((unescape(key)?, unescape(value)?))
    });
    pairs.collect()
}

fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        out.push(match first {
            b'+' => b' ',
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let digits = std::str::from_utf8(digits).ok()?;
                if digits.starts_with('+') {
                    return None;
                }
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}
