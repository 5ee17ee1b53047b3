//! Golden texts are what etcdctl 3.7.3 printed for these answers.

use std::time::Duration;

use super::*;
use crate::cli::WriteOut;
use crate::live::{
    Alarm, AlarmKind, Alarms, Cause, Error, HashKv, Header, Health, Member, Members, Status,
    Trouble,
};

const ALL: [WriteOut; 4] = [WriteOut::Simple, WriteOut::Table, WriteOut::Json, WriteOut::Fields];

fn format(write_out: WriteOut) -> Format {
    Format { write_out, is_hex: false }
}

const HEX: fn(WriteOut) -> Format = |write_out| Format { write_out, is_hex: true };

/// Boxes in ASCII, so that they can stand here.
fn ascii(text: &str) -> String {
    let plain = |c: char| match c {
        '\u{2500}' => '-',
        '\u{2502}' => '|',
        '\u{250c}' | '\u{252c}' | '\u{2510}' | '\u{251c}' | '\u{253c}' | '\u{2524}'
        | '\u{2514}' | '\u{2534}' | '\u{2518}' => '+',
        c => c,
    };
    text.chars().map(plain).collect()
}

fn header(member_id: u64, revision: i64) -> Header {
    Header { cluster_id: 9_032_660_648_303_697_416, member_id, revision, raft_term: 2 }
}

fn old() -> Status {
    Status {
        header: header(8_048_172_907_000_392_618, 1),
        version: "3.5.35".into(),
        db_size: 20_480,
        db_size_in_use: 16_384,
        leader: 8_048_172_907_000_392_618,
        raft_index: 20,
        raft_term: 2,
        raft_applied_index: 20,
        ..Status::default()
    }
}

fn new() -> Status {
    Status {
        header: header(4_839_983_441_604_137_412, 1),
        version: "3.6.16".into(),
        storage_version: "3.5.0".into(),
        db_size_quota: 2_147_483_648,
        downgrade: Some((false, String::new())),
        ..old()
    }
}

fn two() -> Vec<(String, Status)> {
    vec![("127.0.0.1:23791".into(), old()), ("127.0.0.1:23792".into(), new())]
}

#[test]
fn statuses_are_etcdctls() {
    assert_eq!(
        statuses(format(WriteOut::Simple), &two()).stdout,
        "127.0.0.1:23791, 6fb0da9e2cae6baa, 3.5.35, , 20 kB, 16 kB, 20%, 0 B, true, false, 2, 20, \
         20, , , false\n127.0.0.1:23792, 432b134bfb9651c4, 3.6.16, 3.5.0, 20 kB, 16 kB, 20%, 2.1 \
         GB, false, false, 2, 20, 20, , , false\n"
    );
    let json = "[{\"Endpoint\":\"127.0.0.1:23791\",\"Status\":{\"header\":{\"cluster_id\":\
        9032660648303697416,\"member_id\":8048172907000392618,\"revision\":1,\"raft_term\":2},\
        \"version\":\"3.5.35\",\"dbSize\":20480,\"leader\":8048172907000392618,\"raftIndex\":20,\
        \"raftTerm\":2,\"raftAppliedIndex\":20,\"dbSizeInUse\":16384}},{\"Endpoint\":\
        \"127.0.0.1:23792\",\"Status\":{\"header\":{\"cluster_id\":9032660648303697416,\
        \"member_id\":4839983441604137412,\"revision\":1,\"raft_term\":2},\"version\":\"3.6.16\",\
        \"dbSize\":20480,\"leader\":8048172907000392618,\"raftIndex\":20,\"raftTerm\":2,\
        \"raftAppliedIndex\":20,\"dbSizeInUse\":16384,\"storageVersion\":\"3.5.0\",\
        \"dbSizeQuota\":2147483648,\"downgradeInfo\":{}}}]\n";
    assert_eq!(statuses(format(WriteOut::Json), &two()).stdout, json);
    assert_eq!(statuses(HEX(WriteOut::Json), &two()).stdout, json);
    assert_eq!(
        statuses(format(WriteOut::Fields), &two()[1..]).stdout,
        "\"ClusterID\" : 9032660648303697416\n\"MemberID\" : 4839983441604137412\n\"Revision\" : \
         1\n\"RaftTerm\" : 2\n\"Version\" : \"3.6.16\"\n\"StorageVersion\" : \"3.5.0\"\n\"DBSize\" \
         : 20480\n\"DBSizeInUse\" : 16384\n\"DBSizeQuota\" : 2147483648\n\"Leader\" : \
         8048172907000392618\n\"IsLearner\" : false\n\"RaftIndex\" : 20\n\"RaftAppliedIndex\" : \
         20\n\"Errors\" : []\n\"Endpoint\" : \"127.0.0.1:23792\"\n\"DowngradeTargetVersion\" : \
         \"\"\n\"DowngradeEnabled\" : false\n\n"
    );
    let hex = statuses(HEX(WriteOut::Fields), &two()[..1]).stdout;
    let ids = "\"ClusterID\" : 7d5a7500a6ca9e08\n\"MemberID\" : 6fb0da9e2cae6baa\n";
    assert!(hex.starts_with(ids) && hex.contains("\"Leader\" : 8048172907000392618\n"), "{hex}");
    assert_eq!(statuses(format(WriteOut::Json), &[]).stdout, "null\n");
    assert_eq!(statuses(format(WriteOut::Table), &[]).stdout.lines().count(), 3);
}

#[test]
fn a_size_of_nothing_stops_nothing() {
    let empty = [("e".to_owned(), Status::default())];
    for write_out in ALL {
        assert!(!statuses(format(write_out), &empty).stdout.is_empty());
    }
    let row = "e, 0, , , 0 B, 0 B, 0%, 0 B, true, false, 0, 0, 0, , , false\n";
    assert_eq!(statuses(format(WriteOut::Simple), &empty).stdout, row);
}

#[test]
fn tables_are_etcdctls() {
    let answers: Vec<(String, HashKv)> = [1, 2]
        .map(|last| {
            let answer = HashKv {
                header: header(4_839_983_441_604_137_412, 1),
                hash: 1_084_519_789,
                hash_revision: 1,
                compact_revision: -1,
            };
            (format!("127.0.0.1:2379{last}"), answer)
        })
        .to_vec();
    let drawn = hash_kvs(format(WriteOut::Table), &answers).stdout;
    assert!(drawn.starts_with("\u{250c}\u{2500}") && drawn.ends_with("\u{2500}\u{2518}\n"));
    assert_eq!(
        ascii(&drawn),
        "+-----------------+------------+---------------+\n\
         |    ENDPOINT     |    HASH    | HASH REVISION |\n\
         +-----------------+------------+---------------+\n\
         | 127.0.0.1:23791 | 1084519789 |             1 |\n\
         | 127.0.0.1:23792 | 1084519789 |             1 |\n\
         +-----------------+------------+---------------+\n"
    );
    assert_eq!(
        hash_kvs(format(WriteOut::Json), &answers[1..]).stdout,
        "[{\"Endpoint\":\"127.0.0.1:23792\",\"HashKV\":{\"header\":{\"cluster_id\":\
         9032660648303697416,\"member_id\":4839983441604137412,\"revision\":1,\"raft_term\":2},\
         \"hash\":1084519789,\"compact_revision\":-1,\"hash_revision\":1}}]\n"
    );
}

fn three_members() -> Members {
    let member = |id, name: &str, last: u8, is_learner| Member {
        id,
        name: name.into(),
        peer_urls: vec![format!("http://127.0.0.1:2370{last}")],
        client_urls: match name {
            "" => Vec::new(),
            _ => vec![format!("http://127.0.0.1:2379{last}")],
        },
        is_learner,
    };
    Members {
        header: header(8_048_172_907_000_392_618, 0),
        members: vec![
            member(4_839_983_441_604_137_412, "b", 2, false),
            member(6_098_122_533_685_110_627, "", 3, true),
        ],
    }
}

#[test]
fn members_are_etcdctls() {
    let members_ = three_members();
    assert_eq!(
        members(format(WriteOut::Simple), &members_).stdout,
        "432b134bfb9651c4, started, b, http://127.0.0.1:23702, http://127.0.0.1:23792, false\n\
         54a0e222991b2763, unstarted, , http://127.0.0.1:23703, , true\n"
    );
    assert_eq!(
        members(format(WriteOut::Json), &members_).stdout,
        "{\"header\":{\"cluster_id\":9032660648303697416,\"member_id\":8048172907000392618,\
         \"raft_term\":2},\"members\":[{\"ID\":4839983441604137412,\"name\":\"b\",\"peerURLs\":\
         [\"http://127.0.0.1:23702\"],\"clientURLs\":[\"http://127.0.0.1:23792\"]},{\"ID\":\
         6098122533685110627,\"peerURLs\":[\"http://127.0.0.1:23703\"],\"isLearner\":true}]}\n"
    );
    assert_eq!(
        members(HEX(WriteOut::Json), &members_).stdout,
        "{\"header\":{\"cluster_id\":\"7d5a7500a6ca9e08\",\"member_id\":\"6fb0da9e2cae6baa\",\
         \"raft_term\":2},\"members\":[{\"ID\":\"432b134bfb9651c4\",\"name\":\"b\",\"peerURLs\":\
         [\"http://127.0.0.1:23702\"],\"clientURLs\":[\"http://127.0.0.1:23792\"]},{\"ID\":\
         \"54a0e222991b2763\",\"peerURLs\":[\"http://127.0.0.1:23703\"],\"isLearner\":true}]}\n"
    );
    assert_eq!(
        members(HEX(WriteOut::Fields), &members_).stdout,
        "\"ClusterID\" : 7d5a7500a6ca9e08\n\"MemberID\" : 6fb0da9e2cae6baa\n\"RaftTerm\" : 2\n\
         \"ID\" : 432b134bfb9651c4\n\"Name\" : \"b\"\n\"PeerURL\" : \"http://127.0.0.1:23702\"\n\
         \"ClientURL\" : \"http://127.0.0.1:23792\"\n\"IsLearner\" : false\n\n\"ID\" : \
         54a0e222991b2763\n\"Name\" : \"\"\n\"PeerURL\" : \"http://127.0.0.1:23703\"\n\
         \"IsLearner\" : true\n\n"
    );
}

#[test]
fn health_goes_where_etcdctl_sends_it() {
    let good = Health { took: Duration::from_nanos(6_901_624), trouble: None };
    let failed = Error::of("e", Cause::Refused { address: "1.2.3.4:5".into() });
    let took = Duration::from_nanos(5_001_755);
    let dead = Health { took, trouble: Some(Trouble::Read(failed)) };
    let alarms = [AlarmKind::NoSpace, AlarmKind::Corrupt, AlarmKind::None]
        .map(|kind| Alarm { member_id: 1, kind });
    let full = Health { took, trouble: Some(Trouble::Alarms(alarms.to_vec())) };
    let all = [("a", good), ("b", dead), ("c", full)].map(|(name, h)| (name.to_owned(), h));
    let simple = healths(format(WriteOut::Simple), &all);
    assert_eq!(simple.stdout, "a is healthy: successfully committed proposal: took = 6.901624ms\n");
    assert_eq!(
        simple.stderr,
        "b is unhealthy: failed to commit proposal: connection refused: nothing listens on \
         1.2.3.4:5\nc is unhealthy: failed to commit proposal: Active Alarm(s): NOSPACE CORRUPT \
         UNKNOWN \n"
    );
    let json = healths(format(WriteOut::Json), &all);
    assert_eq!(json.stderr, "");
    assert_eq!(
        json.stdout,
        "[{\"endpoint\":\"a\",\"health\":true,\"took\":\"6.901624ms\"},{\"endpoint\":\"b\",\
         \"health\":false,\"took\":\"5.001755ms\",\"error\":\"connection refused: nothing listens \
         on 1.2.3.4:5\"},{\"endpoint\":\"c\",\"health\":false,\"took\":\"5.001755ms\",\"error\":\
         \"Active Alarm(s): NOSPACE CORRUPT UNKNOWN \"}]\n"
    );
    assert_eq!(
        healths(format(WriteOut::Fields), &all[1..2]).stdout,
        "\"Endpoint\" : \"b\"\n\"Health\" : false\n\"Took\" : 5.001755ms\n\"Error\" : connection \
         refused: nothing listens on 1.2.3.4:5\n\n"
    );
    assert_eq!(healths(format(WriteOut::Table), &all).stdout.lines().count(), 7);
}

#[test]
fn odd_alarms_are_whole_lines() {
    let alarm = |member_id, kind| Alarm { member_id, kind };
    let odd = Alarms {
        header: header(1, 1),
        alarms: vec![
            alarm(u64::MAX, AlarmKind::NoSpace),
            alarm(u64::MAX, AlarmKind::NoSpace),
            alarm(0, AlarmKind::Corrupt),
            alarm(7, AlarmKind::None),
        ],
    };
    assert_eq!(
        alarms(format(WriteOut::Simple), &odd).stdout,
        "memberID:18446744073709551615 alarm:NOSPACE\nmemberID:18446744073709551615 \
         alarm:NOSPACE\nmemberID:0 alarm:CORRUPT\nmemberID:7 alarm:NONE\n"
    );
    assert_eq!(
        alarms(format(WriteOut::Json), &odd).stdout,
        "{\"header\":{\"cluster_id\":9032660648303697416,\"member_id\":1,\"revision\":1,\
         \"raft_term\":2},\"alarms\":[{\"memberID\":18446744073709551615,\"alarm\":1},{\
         \"memberID\":18446744073709551615,\"alarm\":1},{\"alarm\":2},{\"memberID\":7}]}\n"
    );
    let fields = alarms(HEX(WriteOut::Fields), &odd).stdout;
    assert!(fields.contains("\"MemberID\" : ffffffffffffffff\n\"AlarmType\" : NOSPACE\n\n"));
    assert!(fields.contains("\"MemberID\" : 0\n\"AlarmType\" : CORRUPT\n\n"), "{fields}");
    assert_eq!(alarms(format(WriteOut::Table), &odd).stdout.lines().count(), 8);
}

#[test]
fn names_cannot_play_with_the_terminal() {
    let mut odd = three_members();
    odd.members[0].name = "x\u{1b}[2J<&>\n\"y".into();
    let simple = members(format(WriteOut::Simple), &odd).stdout;
    assert!(simple.contains("started, x\\x1b[2J<&>\\x0a\"y, http"), "{simple}");
    let json = members(format(WriteOut::Json), &odd).stdout;
    assert!(json.contains(r#""name":"x\u001b[2J\u003c\u0026\u003e\n\"y""#), "{json}");
    let fields = members(format(WriteOut::Fields), &odd).stdout;
    assert!(fields.contains(r#""Name" : "x\x1b[2J<&>\n\"y""#), "{fields}");
}
