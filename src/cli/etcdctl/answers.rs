//! Answers of running members as etcdctl prints them, in each of its formats.
//!
//! Pure: answers in, text out. Ids are numbers with every digit in JSON, as in etcdctl; with
//! `--hex` they are text in hex where etcdctl 3.7 makes them so: `member list` and `fields`.
//!
//! **Source**: etcdctl/ctlv3/command, `printer*.go`, checked at 3.7.3; 3.5 and 3.6 print the same
//! keys and columns or fewer. JSON follows the tags of api/etcdserverpb: what is zero, empty or
//! false is left out.

use serde_json::{Map, Value, json};

use super::text::size;
use super::{go_values, table};
use crate::cli::WriteOut;
use crate::cli::output::shown;
use crate::live::{Alarms, HashKv, Header, Health, Member, Members, Status};

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Format {
    pub(in crate::cli) write_out: WriteOut,
    pub(in crate::cli) is_hex: bool,
}

/// What goes where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Printed {
    pub(in crate::cli) stdout: String,
    pub(in crate::cli) stderr: String,
}

impl From<String> for Printed {
    fn from(stdout: String) -> Self {
        Self { stdout, stderr: String::new() }
    }
}

const STATUS_COLUMNS: &[&str] = &[
    "endpoint",
    "ID",
    "version",
    "storage version",
    "db size",
    "in use",
    "percentage not in use",
    "quota",
    "is leader",
    "is learner",
    "raft term",
    "raft index",
    "raft applied index",
    "errors",
    "downgrade target version",
    "downgrade enabled",
];

/// Prints `endpoint status`.
pub(in crate::cli) fn statuses(format: Format, answers: &[(String, Status)]) -> Printed {
    let rows = || answers.iter().map(|(endpoint, status)| status_row(endpoint, status));
    let printed = match format.write_out {
        WriteOut::Simple => lines(rows()),
        WriteOut::Table => table(STATUS_COLUMNS, &rows().collect::<Vec<_>>()),
        WriteOut::Json => go_values::json(&list(answers.iter().map(
            |(endpoint, status)| json!({"Endpoint": endpoint, "Status": status_json(status)}),
        ))),
        WriteOut::Fields => {
            let blocks = answers
                .iter()
                .map(|(endpoint, status)| status_fields(format.is_hex, endpoint, status));
            blocks.collect()
        }
    };
    printed.into()
}

fn status_row(endpoint: &str, status: &Status) -> Vec<String> {
    let (enabled, target) = downgrade(status);
    vec![
        endpoint.to_owned(),
        format!("{:x}", status.header.member_id),
        status.version.clone(),
        status.storage_version.clone(),
        size(status.db_size.cast_unsigned()),
        size(status.db_size_in_use.cast_unsigned()),
        format!("{}%", percent_not_in_use(status)),
        size(status.db_size_quota.cast_unsigned()),
        (status.leader == status.header.member_id).to_string(),
        status.is_learner.to_string(),
        status.raft_term.to_string(),
        status.raft_index.to_string(),
        status.raft_applied_index.to_string(),
        status.errors.join(", "),
        target.to_owned(),
        enabled.to_string(),
    ]
}

/// Rounded as etcdctl rounds, which stops where the size is 0; then nothing is not in use.
fn percent_not_in_use(status: &Status) -> i128 {
    let (size, in_use) = (i128::from(status.db_size), i128::from(status.db_size_in_use));
    (in_use * 100).checked_div(size).map_or(0, |used| 100 - used)
}

fn downgrade(status: &Status) -> (bool, &str) {
    status.downgrade.as_ref().map_or((false, ""), |(enabled, target)| (*enabled, target))
}

fn status_json(status: &Status) -> Value {
    let mut map = Map::new();
    map.insert("header".into(), header_json(&status.header));
    put(&mut map, "version", json!(status.version));
    put(&mut map, "dbSize", json!(status.db_size));
    put(&mut map, "leader", json!(status.leader));
    put(&mut map, "raftIndex", json!(status.raft_index));
    put(&mut map, "raftTerm", json!(status.raft_term));
    put(&mut map, "raftAppliedIndex", json!(status.raft_applied_index));
    put(&mut map, "errors", json!(status.errors));
    put(&mut map, "dbSizeInUse", json!(status.db_size_in_use));
    put(&mut map, "isLearner", json!(status.is_learner));
    put(&mut map, "storageVersion", json!(status.storage_version));
    put(&mut map, "dbSizeQuota", json!(status.db_size_quota));
    if let Some((enabled, target)) = &status.downgrade {
        let mut downgrade = Map::new();
        put(&mut downgrade, "enabled", json!(enabled));
        put(&mut downgrade, "targetVersion", json!(target));
        map.insert("downgradeInfo".into(), downgrade.into());
    }
    map.into()
}

fn status_fields(is_hex: bool, endpoint: &str, status: &Status) -> String {
    let (enabled, target) = downgrade(status);
    let quoted = go_values::quoted;
    let errors: Vec<String> = status.errors.iter().map(|error| shown(error)).collect();
    let fields = [
        ("Version", quoted(&status.version)),
        ("StorageVersion", quoted(&status.storage_version)),
        ("DBSize", status.db_size.to_string()),
        ("DBSizeInUse", status.db_size_in_use.to_string()),
        ("DBSizeQuota", status.db_size_quota.to_string()),
        ("Leader", status.leader.to_string()),
        ("IsLearner", status.is_learner.to_string()),
        ("RaftIndex", status.raft_index.to_string()),
        ("RaftAppliedIndex", status.raft_applied_index.to_string()),
        ("Errors", format!("[{}]", errors.join(" "))),
        ("Endpoint", quoted(endpoint)),
        ("DowngradeTargetVersion", quoted(target)),
        ("DowngradeEnabled", enabled.to_string()),
    ];
    header_fields(is_hex, &status.header) + &field_lines(fields) + "\n"
}

/// Prints `endpoint hashkv`.
pub(in crate::cli) fn hash_kvs(format: Format, answers: &[(String, HashKv)]) -> Printed {
    let rows = || {
        answers.iter().map(|(endpoint, answer)| {
            vec![endpoint.clone(), answer.hash.to_string(), answer.hash_revision.to_string()]
        })
    };
    let printed = match format.write_out {
        WriteOut::Simple => lines(rows()),
        WriteOut::Table => {
            table(&["endpoint", "hash", "hash_revision"], &rows().collect::<Vec<_>>())
        }
        WriteOut::Json => go_values::json(&list(answers.iter().map(|(endpoint, answer)| {
            let mut map = Map::new();
            map.insert("header".into(), header_json(&answer.header));
            put(&mut map, "hash", json!(answer.hash));
            put(&mut map, "compact_revision", json!(answer.compact_revision));
            put(&mut map, "hash_revision", json!(answer.hash_revision));
            json!({"Endpoint": endpoint, "HashKV": map})
        }))),
        WriteOut::Fields => {
            let blocks = answers.iter().map(|(endpoint, answer)| {
                let fields = [
                    ("Endpoint", go_values::quoted(endpoint)),
                    ("Hash", answer.hash.to_string()),
                    ("HashRevision", answer.hash_revision.to_string()),
                ];
                header_fields(format.is_hex, &answer.header) + &field_lines(fields) + "\n"
            });
            blocks.collect()
        }
    };
    printed.into()
}

/// Prints `endpoint health`; as `simple`, what is unhealthy goes to standard error.
pub(in crate::cli) fn healths(format: Format, answers: &[(String, Health)]) -> Printed {
    let words = |health: &Health| health.trouble.as_ref().map(|trouble| trouble.words());
    let mut printed = Printed::default();
    match format.write_out {
        WriteOut::Simple => {
            for (endpoint, health) in answers {
                match words(health) {
                    None => {
                        printed.stdout += &format!(
                            "{endpoint} is healthy: successfully committed proposal: took = {}\n",
                            go_values::duration(health.took)
                        );
                    }
                    Some(words) => {
                        printed.stderr += &format!(
                            "{endpoint} is unhealthy: failed to commit proposal: {}\n",
                            shown(&words)
                        );
                    }
                }
            }
        }
        WriteOut::Table => {
            let rows = answers.iter().map(|(endpoint, health)| {
                let took = go_values::duration(health.took);
                let words = words(health).unwrap_or_default();
                vec![endpoint.clone(), health.is_good().to_string(), took, words]
            });
            let columns = ["endpoint", "health", "took", "error"];
            printed.stdout = table(&columns, &rows.collect::<Vec<_>>());
        }
        WriteOut::Json => {
            let rows = answers.iter().map(|(endpoint, health)| {
                let mut row = json!({
                    "endpoint": endpoint,
                    "health": health.is_good(),
                    "took": go_values::duration(health.took),
                });
                if let (Some(words), Some(row)) = (words(health), row.as_object_mut()) {
                    row.insert("error".into(), words.into());
                }
                row
            });
            printed.stdout = go_values::json(&list(rows));
        }
        WriteOut::Fields => {
            for (endpoint, health) in answers {
                let fields = [
                    ("Endpoint", go_values::quoted(endpoint)),
                    ("Health", health.is_good().to_string()),
                    ("Took", go_values::duration(health.took)),
                    ("Error", shown(&words(health).unwrap_or_default())),
                ];
                printed.stdout += &(field_lines(fields) + "\n");
            }
        }
    }
    printed
}

/// Prints `member list`.
pub(in crate::cli) fn members(format: Format, answer: &Members) -> Printed {
    let rows = || answer.members.iter().map(member_row);
    let printed = match format.write_out {
        WriteOut::Simple => lines(rows()),
        WriteOut::Table => {
            let columns = ["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"];
            table(&columns, &rows().collect::<Vec<_>>())
        }
        WriteOut::Json => go_values::json(&members_json(format.is_hex, answer)),
        WriteOut::Fields => {
            let mut printed = header_fields(format.is_hex, &answer.header);
            for member in &answer.members {
                printed += &field_lines([
                    ("ID", id(format.is_hex, member.id)),
                    ("Name", go_values::quoted(&member.name)),
                ]);
                let urls = |name, urls: &[String]| -> String {
                    field_lines(urls.iter().map(|url| (name, go_values::quoted(url))))
                };
                printed += &urls("PeerURL", &member.peer_urls);
                printed += &urls("ClientURL", &member.client_urls);
                printed += &(field_lines([("IsLearner", member.is_learner.to_string())]) + "\n");
            }
            printed
        }
    };
    printed.into()
}

fn member_row(member: &Member) -> Vec<String> {
    vec![
        format!("{:x}", member.id),
        if member.name.is_empty() { "unstarted" } else { "started" }.to_owned(),
        member.name.clone(),
        member.peer_urls.join(","),
        member.client_urls.join(","),
        member.is_learner.to_string(),
    ]
}

fn members_json(is_hex: bool, answer: &Members) -> Value {
    let members = answer.members.iter().map(|member| {
        let mut map = Map::new();
        if is_hex {
            map.insert("ID".into(), format!("{:x}", member.id).into());
        } else {
            put(&mut map, "ID", json!(member.id));
        }
        put(&mut map, "name", json!(member.name));
        put(&mut map, "peerURLs", json!(member.peer_urls));
        put(&mut map, "clientURLs", json!(member.client_urls));
        put(&mut map, "isLearner", json!(member.is_learner));
        Value::from(map)
    });
    let mut map = Map::new();
    let header = match header_json(&answer.header) {
        Value::Object(mut header) if is_hex => {
            // Hex makes texts of them, which are there even where they are zero.
            let mut hex = Map::new();
            for (name, id) in
                [("cluster_id", answer.header.cluster_id), ("member_id", answer.header.member_id)]
            {
                header.shift_remove(name);
                hex.insert(name.into(), format!("{id:x}").into());
            }
            hex.append(&mut header);
            hex.into()
        }
        header => header,
    };
    map.insert("header".into(), header);
    let members: Vec<Value> = members.collect();
    if is_hex {
        map.insert("members".into(), members.into());
    } else {
        put(&mut map, "members", members.into());
    }
    map.into()
}

/// Prints `alarm list`; etcdctl has no table of alarms.
///
/// An alarm of no member or of no type is named as such: etcdctl leaves out what is zero, down to
/// an empty line.
pub(in crate::cli) fn alarms(format: Format, answer: &Alarms) -> Printed {
    alarms_under(format, Some(&answer.header), answer)
}

/// Prints `alarm disarm`: the alarms that were disarmed. etcdctl puts the answers of several
/// requests together, and so has no header; with `-w fields` it stops at that.
pub(in crate::cli) fn disarmed(format: Format, answer: &Alarms) -> Printed {
    alarms_under(format, None, answer)
}

fn alarms_under(format: Format, header: Option<&Header>, answer: &Alarms) -> Printed {
    let printed = match format.write_out {
        WriteOut::Simple => {
            let lines = answer.alarms.iter();
            let lines = lines
                .map(|alarm| format!("memberID:{} alarm:{}\n", alarm.member_id, alarm.kind.word()));
            lines.collect()
        }
        WriteOut::Table => {
            let rows = answer.alarms.iter();
            let rows = rows
                .map(|alarm| vec![format!("{:x}", alarm.member_id), alarm.kind.word().to_owned()]);
            table(&["member ID", "alarm"], &rows.collect::<Vec<_>>())
        }
        WriteOut::Json => {
            let alarms = answer.alarms.iter().map(|alarm| {
                let mut map = Map::new();
                put(&mut map, "memberID", json!(alarm.member_id));
                put(&mut map, "alarm", json!(alarm.kind.number()));
                Value::from(map)
            });
            let mut map = Map::new();
            if let Some(header) = header {
                map.insert("header".into(), header_json(header));
            }
            put(&mut map, "alarms", alarms.collect());
            go_values::json(&map.into())
        }
        WriteOut::Fields => {
            let mut printed =
                header.map_or_else(String::new, |header| header_fields(format.is_hex, header));
            for alarm in &answer.alarms {
                let fields = [
                    ("MemberID", id(format.is_hex, alarm.member_id)),
                    ("AlarmType", alarm.kind.word().to_owned()),
                ];
                printed += &(field_lines(fields) + "\n");
            }
            printed
        }
    };
    printed.into()
}

fn header_json(header: &Header) -> Value {
    let mut map = Map::new();
    put(&mut map, "cluster_id", json!(header.cluster_id));
    put(&mut map, "member_id", json!(header.member_id));
    put(&mut map, "revision", json!(header.revision));
    put(&mut map, "raft_term", json!(header.raft_term));
    map.into()
}

fn header_fields(is_hex: bool, header: &Header) -> String {
    let ids =
        [("ClusterID", id(is_hex, header.cluster_id)), ("MemberID", id(is_hex, header.member_id))];
    let revision = (header.revision > 0).then(|| ("Revision", header.revision.to_string()));
    let term = ("RaftTerm", header.raft_term.to_string());
    field_lines(ids.into_iter().chain(revision).chain([term]))
}

fn id(is_hex: bool, id: u64) -> String {
    if is_hex { format!("{id:x}") } else { id.to_string() }
}

fn field_lines(fields: impl IntoIterator<Item = (&'static str, String)>) -> String {
    fields.into_iter().map(|(name, value)| format!("\"{name}\" : {value}\n")).collect()
}

fn lines(rows: impl Iterator<Item = Vec<String>>) -> String {
    rows.map(|row| shown(&row.join(", ")) + "\n").collect()
}

/// A list; none at all is `null`, as Go writes it.
fn list(items: impl Iterator<Item = Value>) -> Value {
    let items: Vec<Value> = items.collect();
    if items.is_empty() { Value::Null } else { items.into() }
}

/// Puts a value in unless it is zero, empty or false.
fn put(map: &mut Map<String, Value>, name: &str, value: Value) {
    let is_empty = match &value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    };
    if !is_empty {
        map.insert(name.to_owned(), value);
    }
}
