//! What is concluded from which answers.

use std::time::Duration;

use proptest::prelude::*;

use super::verdict::{Urgency, Verdict};
use super::wait::Condition;
use super::*;
use crate::live::{Header, Members};

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;

/// A healthy cluster of three with a quota of 4 GiB.
fn three() -> Gathered {
    let rounds = (1..=3).map(|id| healthy(id, 3)).collect();
    Gathered { rounds, ..Gathered::default() }
}

fn url(id: u64) -> String {
    format!("http://10.0.0.{id}:2379")
}

fn member(id: u64) -> Member {
    let (name, client_urls) = (format!("m{id}"), vec![url(id)]);
    Member { id, name, client_urls, ..Member::default() }
}

fn healthy(id: u64, members: u64) -> Round {
    let header = Header { cluster_id: 7, member_id: id, revision: 500, raft_term: 2 };
    let status = Status {
        header,
        version: "3.6.16".into(),
        storage_version: "3.6.0".into(),
        db_size: 10 * MIB,
        db_size_in_use: 9 * MIB,
        db_size_quota: 4 * GIB,
        leader: 1,
        raft_index: 900,
        raft_applied_index: 900,
        raft_term: 2,
        ..Status::default()
    };
    Round {
        endpoint: url(id),
        status: Ok(status),
        members: Some(Ok(Members { header, members: (1..=members).map(member).collect() })),
        read: Some(Ok(Read { header, took: Duration::from_millis(3) })),
        quota: None,
    }
}

fn failed(cause: Cause) -> live::Error {
    live::Error::of("there", cause)
}

fn unavailable() -> live::Error {
    failed(Cause::Answer { code: 14, what: "etcdserver: request timed out".into() })
}

fn down(round: &mut Round, cause: Cause) {
    let endpoint = round.endpoint.clone();
    let status = Err(failed(cause));
    *round = Round { endpoint, status, members: None, read: None, quota: None };
}

fn status(gathered: &mut Gathered, place: usize) -> &mut Status {
    gathered.rounds[place].status.as_mut().unwrap()
}

/// Changes what was gathered, concludes, and holds the result to verdict, codes of `status` and
/// `health`, and the findings' urgencies and ids.
#[track_caller]
fn holds(
    change: impl FnOnce(&mut Gathered),
    verdict: Verdict,
    codes: (ExitCode, ExitCode),
    findings: &[(Urgency, &str)],
) -> View {
    let mut gathered = three();
    change(&mut gathered);
    let view = View::of(&gathered);
    let found: Vec<_> = view.findings.iter().map(|f| (f.severity, f.id)).collect();
    assert_eq!(found, findings, "{:#?}", view.findings);
    assert_eq!(view.verdict, verdict);
    assert_eq!((view.status_code(), view.health_code()), codes);
    view
}

use ExitCode as Code;
use Urgency::{Critical, Info, Warning};

#[test]
fn a_healthy_cluster_has_no_findings() {
    let view = holds(|_| {}, Verdict::Ok, (Code::Ok, Code::Ok), &[]);
    assert_eq!((view.quorum.healthy, view.quorum.may_fail), (3, Some(1)));
    assert_eq!(view.members[0].is_leader, Some(true));
    assert_eq!(view.members[2].name.as_deref(), Some("m3"));
    for condition in [Condition::Healthy, Condition::Leader, Condition::NoAlarm] {
        assert_eq!(condition.check(&view), Ok(()));
    }
}

#[test]
fn a_member_that_is_down_is_named_and_the_others_are_shown() {
    let partial = (Code::Partial, Code::Partial);
    let wanted = [(Critical, "member-down"), (Critical, "no-more-failures")];
    let view = holds(
        |g| down(&mut g.rounds[1], Cause::Refused { address: String::new() }),
        Verdict::Critical,
        partial,
        &wanted,
    );
    let member = &view.members[1];
    assert_eq!(
        (member.name.as_deref(), member.id, member.healthy),
        (Some("m2"), Some(2), Some(false))
    );
    assert_eq!(view.quorum.may_fail, Some(0));
    let missing = Condition::Healthy.check(&view).unwrap_err();
    assert!(missing.contains("2 of 3") && missing.contains("m2: connection refused"), "{missing}");
    assert_eq!(Condition::Leader.check(&view), Ok(()));
    // Five of which one is down can lose one more.
    let change = |g: &mut Gathered| {
        g.rounds = (1..=5).map(|id| healthy(id, 5)).collect();
        down(&mut g.rounds[4], Cause::Refused { address: String::new() });
    };
    let view = holds(change, Verdict::Warning, partial, &[(Warning, "member-down")]);
    assert_eq!(view.quorum.may_fail, Some(1));
}

#[test]
fn nobody_answers() {
    let all = |cause: fn(usize) -> Cause| {
        move |g: &mut Gathered| {
            g.rounds.iter_mut().enumerate().for_each(|(i, round)| down(round, cause(i)));
        }
    };
    let three = [(Critical, "no-answer"); 3];
    let dead = (Code::Unreachable, Code::Unreachable);
    let view = holds(
        all(|_| Cause::Refused { address: String::new() }),
        Verdict::Unreachable,
        dead,
        &three,
    );
    for condition in [Condition::Healthy, Condition::Leader, Condition::NoAlarm] {
        assert!(condition.check(&view).unwrap_err().contains("refused"), "{condition:?}");
    }
    let mixed =
        |i| if i == 0 { Cause::Refused { address: String::new() } } else { Cause::WantsTls };
    let wanted = [(Critical, "no-access"), (Critical, "no-answer")];
    holds(all(mixed), Verdict::Unreachable, dead, &wanted);
}

#[test]
fn no_leader_and_no_quorum() {
    let leaderless = |g: &mut Gathered| {
        down(&mut g.rounds[0], Cause::Refused { address: String::new() });
        for place in [1, 2] {
            status(g, place).leader = 0;
            g.rounds[place].read = Some(Err(unavailable()));
        }
    };
    let wanted = [(Critical, "no-leader"), (Critical, "no-quorum"), (Warning, "member-down")];
    let codes = (Code::Partial, Code::Unreachable);
    let view = holds(leaderless, Verdict::Critical, codes, &wanted);
    assert_eq!(view.quorum.has_quorum, Some(false));
    assert_eq!(Condition::Leader.check(&view).unwrap_err(), "m2 knows no leader");
    assert_eq!(Condition::NoAlarm.check(&view), Ok(()));
    // One member that is cut off does not make the cluster lose its quorum.
    let alone = |g: &mut Gathered| {
        status(g, 2).leader = 0;
        g.rounds[2].read = Some(Err(unavailable()));
    };
    let wanted = [(Critical, "no-leader"), (Critical, "no-more-failures")];
    holds(alone, Verdict::Critical, (Code::Ok, Code::Partial), &wanted);
}

#[test]
fn one_member_that_is_cut_off_does_not_speak_for_the_others() {
    let alone = |g: &mut Gathered| {
        g.rounds.truncate(1);
        g.rounds[0].read = Some(Err(unavailable()));
    };
    let wanted = [(Warning, "member-down"), (Info, "not-asked")];
    let view = holds(alone, Verdict::Warning, (Code::Ok, Code::Unreachable), &wanted);
    assert_eq!(view.quorum.has_quorum, None);
    assert!(Condition::Leader.check(&view).is_err());
}

#[test]
fn members_that_keep_us_out_are_not_down() {
    let all = |cause: Cause| {
        move |g: &mut Gathered| {
            for round in &mut g.rounds {
                down(round, cause.clone());
            }
        }
    };
    let password = Cause::NotAuthenticated { what: "authentication failed".into() };
    let wanted = [(Critical, "no-access")];
    let codes = (Code::Tls, Code::Tls);
    for cause in [password.clone(), Cause::WantsTls, Cause::Tls { what: "no".into() }] {
        let view = holds(all(cause), Verdict::NoAccess, codes, &wanted);
        assert_eq!(view.members[0].barrier(), Some(Barrier::Refused));
        assert_eq!(view.members[0].healthy, None);
        let told = format!("{}, {}, {} refuse us: ", url(1), url(2), url(3));
        assert!(view.findings[0].message.starts_with(&told), "{:?}", view.findings);
    }
    let port = Cause::PeerPort { client_urls: Vec::new() };
    let codes = (Code::Unreachable, Code::Unreachable);
    let view = holds(all(port), Verdict::NoAccess, codes, &wanted);
    assert_eq!(view.members[0].barrier(), Some(Barrier::WrongPort));
    // Of one that keeps us out it is not known whether it serves.
    let one = |g: &mut Gathered| down(&mut g.rounds[1], password);
    let codes = (Code::Partial, Code::Partial);
    let view = holds(one, Verdict::Warning, codes, &[(Warning, "no-access")]);
    assert_eq!(view.quorum.may_fail, None);
    assert!(view.findings[0].message.starts_with("m2 (http://10.0.0.2:2379) refuses us: "));
}

#[test]
fn a_leader_is_named_by_itself_or_a_voter() {
    let leader = |change: &dyn Fn(&mut Gathered)| {
        let mut gathered = three();
        change(&mut gathered);
        View::of(&gathered).leader()
    };
    let dead = |g: &mut Gathered, place: usize| {
        down(&mut g.rounds[place], Cause::Refused { address: String::new() });
    };
    assert_eq!(leader(&|_| {}), Some(1));
    // It denies it, or does not answer.
    assert_eq!(leader(&|g| status(g, 0).leader = 0), None);
    assert_eq!(leader(&|g| dead(g, 0)), None);
    // Not asked; a learner's word counts for nothing.
    let without = |g: &mut Gathered| drop(g.rounds.remove(0));
    assert_eq!(leader(&without), Some(1));
    let learners = |g: &mut Gathered| {
        without(g);
        for place in [0, 1] {
            status(g, place).is_learner = true;
        }
    };
    assert_eq!(leader(&learners), None);
    // Whoever is asked and not known may be it.
    let unknown = |g: &mut Gathered| {
        without(g);
        g.rounds.push(healthy(9, 3));
        dead(g, 2);
    };
    assert_eq!(leader(&unknown), None);
    // The newest claim counts.
    let newer = |g: &mut Gathered| {
        status(g, 1).leader = 2;
        status(g, 1).raft_term = 3;
    };
    assert_eq!(leader(&newer), Some(2));
}

#[test]
fn members_that_could_not_be_discovered_are_missing() {
    let change = |g: &mut Gathered| g.undiscovered = Some("rpc not supported for learner".into());
    let codes = (Code::Partial, Code::Partial);
    let view = holds(change, Verdict::Warning, codes, &[(Warning, "not-discovered")]);
    assert!(Condition::Healthy.check(&view).unwrap_err().contains("not supported"));
}

#[test]
fn printed_commands_run_as_they_stand() {
    let mut settings = Settings::default();
    settings.tls.cacert = Some("/a b/ca.crt".into());
    let command = |settings: &Settings| {
        Access::of(settings).command("etcdkit", Some("https://a:1,https://b:1"), &["status"])
    };
    let line = "etcdkit --endpoints=https://a:1,https://b:1 '--cacert=/a b/ca.crt' status";
    assert_eq!(command(&settings), line);
    let (name, password) = ("root".to_owned(), "secret".to_owned());
    settings.user = Some(live::Credentials { name, password });
    let line = line.replace(" status", " --user=root status");
    let line = format!("{line} # with the password in ETCDCTL_PASSWORD");
    assert_eq!(command(&settings), line);
}

#[test]
fn learners_do_not_speak_for_the_voters() {
    let learner = |g: &mut Gathered| {
        g.rounds.truncate(1);
        status(g, 0).is_learner = true;
        status(g, 0).leader = 2;
        g.rounds[0].members = Some(Err(unavailable()));
    };
    let wanted = [(Warning, "only-learners"), (Info, "learner")];
    let view = holds(learner, Verdict::Warning, (Code::Ok, Code::Partial), &wanted);
    let told = "only a learner was asked; it cannot tell whether there is a quorum";
    assert_eq!(view.findings[0].message, told);
    assert!(Condition::Healthy.check(&view).is_err());
    // Voters were asked too, and nothing came.
    let dead = |g: &mut Gathered| {
        learner(g);
        g.rounds.extend([healthy(2, 3), healthy(3, 3)]);
        for place in [1, 2] {
            down(&mut g.rounds[place], Cause::Refused { address: String::new() });
        }
    };
    let wanted = [
        (Warning, "only-learners"),
        (Warning, "member-down"),
        (Warning, "member-down"),
        (Info, "learner"),
    ];
    let view = holds(dead, Verdict::Warning, (Code::Partial, Code::Partial), &wanted);
    assert!(view.findings[0].message.starts_with("only a learner answered"));
}

#[test]
fn leaders_that_differ() {
    let change = |g: &mut Gathered| status(g, 1).leader = 2;
    let ok = (Code::Ok, Code::Ok);
    let view = holds(change, Verdict::Critical, ok, &[(Critical, "leaders-differ")]);
    assert!(Condition::Healthy.check(&view).is_err());
    let change = |g: &mut Gathered| {
        status(g, 1).leader = 2;
        status(g, 1).raft_term = 3;
    };
    holds(change, Verdict::Warning, ok, &[(Warning, "leaders-differ")]);
}

#[test]
fn alarms_name_their_member() {
    // Every member holds the alarms of all, one that is behind not yet.
    let raise = |told: &'static str| {
        move |g: &mut Gathered| {
            for place in [0, 2] {
                status(g, place).errors = vec![told.into()];
            }
        }
    };
    let full = (Code::Ok, Code::Partial);
    let nospace = raise("memberID:2 alarm:NOSPACE ");
    let view = holds(nospace, Verdict::Critical, full, &[(Critical, "nospace")]);
    assert_eq!(view.members[1].alarms, ["NOSPACE"]);
    assert_eq!(view.quorum.healthy, 3);
    let next = &view.findings[0].next;
    assert!(next[0].starts_with("etcdkit ") && next[0].ends_with(" reclaim"), "{next:?}");
    let compaction =
        "etcdctl --endpoints=http://10.0.0.1:2379 compaction 500 # unless it is compacted";
    assert!(next[1].starts_with(compaction), "{next:?}");
    assert!(next[2].contains("10.0.0.2") && next[4].contains("10.0.0.1"), "{next:?}");
    assert!(next[5].ends_with("alarm disarm"));
    assert_eq!(Condition::NoAlarm.check(&view).unwrap_err(), "raised: NOSPACE of m2");
    assert_eq!(Condition::Leader.check(&view), Ok(()));

    let damage = (Code::Damage, Code::Damage);
    let corrupt = raise("memberID:3  alarm:CORRUPT");
    let view = holds(corrupt, Verdict::Critical, damage, &[(Critical, "corrupt")]);
    assert!(view.findings[0].message.contains("m3"));
    let stale = raise("memberID:99 alarm:NOSPACE");
    let view = holds(stale, Verdict::Critical, (Code::Ok, Code::Ok), &[(Critical, "nospace")]);
    assert!(view.findings[0].message.contains("63, which is not among the members"));
    holds(raise("memberID:1 "), Verdict::Warning, full, &[(Warning, "alarm")]);
}

#[test]
fn words_of_a_status_are_read() {
    for (text, alarm) in [
        (
            "memberID:10276657743932975437 alarm:NOSPACE ",
            Some((10_276_657_743_932_975_437, "NOSPACE")),
        ),
        ("memberID:5  alarm:CORRUPT", Some((5, "CORRUPT"))),
        ("memberID:5", Some((5, "NONE"))),
        ("alarm:NOSPACE", Some((0, "NOSPACE"))),
        ("", None),
        ("memberID:x alarm:NOSPACE", None),
        ("memberID:5 alarm:OTHER", None),
        ("memberID:5 alarm:NOSPACE and more", None),
        ("etcdserver: no leader", None),
    ] {
        assert_eq!(alarm_of(text), alarm, "{text}");
    }
    let says = |g: &mut Gathered| status(g, 0).errors = vec!["disk is odd".into()];
    holds(says, Verdict::Warning, (Code::Ok, Code::Ok), &[(Warning, "member-says")]);
}

#[test]
fn space_is_judged_by_thresholds() {
    let with = |size: i64, in_use: i64, quota: i64| {
        move |g: &mut Gathered| {
            for place in 0..3 {
                let status = status(g, place);
                (status.db_size, status.db_size_in_use) = (size, in_use);
                status.db_size_quota = quota;
            }
        }
    };
    let ok = (Code::Ok, Code::Ok);
    let each = |finding| [finding; 3];
    holds(with(74 * MIB, 70 * MIB, 100 * MIB), Verdict::Ok, ok, &[]);
    let (warning, critical) = (each((Warning, "quota")), each((Critical, "quota")));
    holds(with(75 * MIB, 70 * MIB, 100 * MIB), Verdict::Warning, ok, &warning);
    holds(with(89 * MIB, 80 * MIB, 100 * MIB), Verdict::Warning, ok, &warning);
    holds(with(90 * MIB, 80 * MIB, 100 * MIB), Verdict::Critical, ok, &critical);
    holds(with(120 * MIB, 80 * MIB, 100 * MIB), Verdict::Critical, ok, &critical);
    let fragmented = each((Warning, "fragmented"));
    holds(with(101 * MIB, 50 * MIB, GIB), Verdict::Warning, ok, &fragmented);
    holds(with(100 * MIB, 50 * MIB, GIB), Verdict::Ok, ok, &[]);
    holds(with(MIB, MIB, 2 * GIB), Verdict::Ok, ok, &[(Info, "quota-default")]);
    holds(with(MIB, MIB, 8 * GIB), Verdict::Ok, ok, &[]);
    holds(with(MIB, MIB, 8 * GIB + 1), Verdict::Ok, ok, &[(Info, "quota-large")]);
    holds(with(MIB, MIB, -1), Verdict::Ok, ok, &[(Info, "quota-off")]);
    let view = holds(with(MIB, MIB, 0), Verdict::Ok, ok, &[(Info, "quota-assumed")]);
    assert_eq!(view.members[0].quota_source, Some(Source::Assumed));
    // What a server says of itself may be anything.
    holds(with(i64::MIN, i64::MAX, i64::MAX), Verdict::Ok, ok, &[(Info, "quota-large")]);
    let differ = |g: &mut Gathered| status(g, 0).db_size_quota = 3 * GIB;
    holds(differ, Verdict::Warning, ok, &[(Warning, "quotas-differ")]);
    let metrics = |g: &mut Gathered| {
        for place in 0..3 {
            status(g, place).db_size_quota = 0;
            g.rounds[place].quota = Some(Ok(11 * MIB));
        }
    };
    let view = holds(metrics, Verdict::Critical, ok, &critical);
    assert_eq!(view.members[0].quota_source, Some(Source::Metrics));
}

#[test]
fn members_that_are_behind() {
    let ok = (Code::Ok, Code::Ok);
    let raft = |g: &mut Gathered| {
        for place in [0, 1] {
            let status = status(g, place);
            (status.raft_index, status.raft_applied_index) = (1900, 1900);
            status.header.revision = 900;
        }
    };
    let view = holds(raft, Verdict::Warning, ok, &[(Warning, "raft-lag")]);
    assert_eq!((view.members[2].raft_lag, view.members[2].revision_lag), (Some(1000), Some(400)));
    let apply = |lag: u64| {
        move |g: &mut Gathered| {
            for place in 0..3 {
                (status(g, place).raft_index, status(g, place).raft_applied_index) = (9000, 9000);
            }
            status(g, 1).raft_applied_index = 9000 - lag;
        }
    };
    holds(apply(999), Verdict::Ok, ok, &[]);
    holds(apply(1000), Verdict::Warning, ok, &[(Warning, "apply-lag")]);
    holds(apply(5000), Verdict::Warning, ok, &[(Warning, "apply-lag")]);
    holds(apply(5001), Verdict::Critical, ok, &[(Critical, "apply-lag")]);
    let slow = |g: &mut Gathered| {
        let took = Duration::from_millis(SLOW_READ_MS + 1);
        g.rounds[0].read = Some(Ok(Read { header: Header::default(), took }));
    };
    holds(slow, Verdict::Warning, ok, &[(Warning, "slow")]);
}

#[test]
fn versions_learners_and_clusters() {
    let ok = (Code::Ok, Code::Ok);
    let version = |version: &'static str| {
        move |g: &mut Gathered| version.clone_into(&mut status(g, 2).version)
    };
    holds(version("3.6.15"), Verdict::Ok, ok, &[(Info, "versions")]);
    holds(version("3.5.35"), Verdict::Warning, ok, &[(Warning, "versions")]);
    let down = |g: &mut Gathered| status(g, 0).downgrade = Some((true, "3.5.0".into()));
    holds(down, Verdict::Warning, ok, &[(Warning, "downgrade")]);
    let learner = |g: &mut Gathered| {
        status(g, 2).is_learner = true;
        for round in &mut g.rounds {
            round.members.as_mut().unwrap().as_mut().unwrap().members[2].is_learner = true;
        }
    };
    let view = holds(
        learner,
        Verdict::Ok,
        ok,
        &[(Info, "no-more-failures"), (Info, "learner"), (Info, "even")],
    );
    assert_eq!((view.quorum.voters, view.quorum.healthy), (Some(2), 2));
    let mixed = |g: &mut Gathered| status(g, 2).header.cluster_id = 8;
    let view = holds(
        mixed,
        Verdict::Critical,
        (Code::Partial, Code::Partial),
        &[(Critical, "mixed-clusters")],
    );
    assert_eq!(view.cluster_id, None);
}

#[test]
fn users_who_may_not_and_users_nobody_knows() {
    let reads = |cause: Cause| {
        move |g: &mut Gathered| {
            for round in &mut g.rounds {
                round.read = Some(Err(failed(cause.clone())));
            }
        }
    };
    let ok = (Code::Ok, Code::Ok);
    let denied = Cause::NotPermitted { what: "etcdserver: permission denied".into() };
    let view = holds(reads(denied), Verdict::Ok, ok, &[]);
    assert_eq!(view.members[0].healthy, Some(true));
    let unknown = Cause::NotAuthenticated { what: "etcdserver: user name is empty".into() };
    let wanted = [(Warning, "reads-refused")];
    let view = holds(reads(unknown), Verdict::Warning, (Code::Ok, Code::Tls), &wanted);
    assert_eq!((view.members[0].healthy, view.quorum.has_quorum), (None, None));
}

#[test]
fn members_that_nobody_asked_are_named() {
    let first = |g: &mut Gathered| g.rounds.truncate(1);
    let view = holds(first, Verdict::Ok, (Code::Ok, Code::Ok), &[(Info, "not-asked")]);
    assert_eq!(view.members.len(), 3);
    assert_eq!((view.members[1].endpoint.as_deref(), view.members[1].healthy), (None, None));
    assert_eq!(view.quorum.may_fail, None);
    assert_eq!(Condition::Healthy.check(&view), Ok(()));
    // All were to be asked: one that was not reached is missing.
    let all = |g: &mut Gathered| {
        g.rounds.truncate(2);
        g.whole_cluster = true;
    };
    let partial = (Code::Partial, Code::Partial);
    let wanted = [(Critical, "no-more-failures"), (Warning, "member-not-reached")];
    let view = holds(all, Verdict::Critical, partial, &wanted);
    assert!(Condition::Healthy.check(&view).unwrap_err().contains("m3: it was not reached"));
}

#[test]
fn endpoints_of_one_member_are_one_row() {
    let twice = |g: &mut Gathered| {
        let mut again = g.rounds[0].clone();
        again.endpoint = "http://127.0.0.1:2379".into();
        g.rounds.push(again);
    };
    let view = holds(twice, Verdict::Ok, (Code::Ok, Code::Ok), &[]);
    assert_eq!(view.members.len(), 3);
    assert_eq!(view.members[0].also_at, ["http://127.0.0.1:2379"]);
    // A second address that is dead is said; the member is not.
    let dead = |g: &mut Gathered| {
        let mut gone = g.rounds[0].clone();
        gone.endpoint = "http://127.0.0.1:9".into();
        down(&mut gone, Cause::Refused { address: String::new() });
        for round in &mut g.rounds {
            let members = &mut round.members.as_mut().unwrap().as_mut().unwrap().members;
            members[0].client_urls.push("http://127.0.0.1:9".into());
        }
        g.rounds.push(gone);
    };
    let view = holds(dead, Verdict::Warning, (Code::Ok, Code::Ok), &[(Warning, "url-dead")]);
    assert!(view.findings[0].message.contains("--advertise-client-urls"), "{:?}", view.findings);
    // All tell the same loopback address, where the first one answers.
    let local = |g: &mut Gathered| {
        g.whole_cluster = true;
        g.rounds.truncate(1);
        g.rounds[0].endpoint = "http://127.0.0.1:2379".into();
        let members = &mut g.rounds[0].members.as_mut().unwrap().as_mut().unwrap().members;
        members[1].client_urls = vec!["http://127.0.0.1:2379".into()];
        members.truncate(2);
    };
    let wanted = [
        (Critical, "no-more-failures"),
        (Warning, "member-not-reached"),
        (Warning, "url-of-another"),
        (Info, "even"),
    ];
    let view = holds(local, Verdict::Critical, (Code::Partial, Code::Partial), &wanted);
    assert!(view.findings[2].message.contains("where m1 answers"), "{:?}", view.findings);
}

fn any_round() -> impl Strategy<Value = Round> {
    let cause = prop_oneof![
        Just(Cause::Refused { address: String::new() }),
        Just(Cause::WantsTls),
        Just(Cause::NotAuthenticated { what: "who".into() }),
        Just(Cause::NotPermitted { what: "no".into() }),
        Just(Cause::Answer { code: 14, what: "etcdserver: no leader".into() }),
    ];
    let number = prop_oneof![Just(0), Just(1), Just(2), any::<u64>()];
    let bytes = prop_oneof![Just(0), Just(90 * MIB), Just(100 * MIB), any::<i64>()];
    (1..5_u64, 1..4_u64, cause.clone(), 0..4_u8, number.clone(), number, bytes.clone(), bytes)
        .prop_map(|(at, id, cause, kind, leader, index, size, in_use)| {
            let mut round = healthy(id, 3);
            round.endpoint = url(at);
            if let Ok(status) = &mut round.status {
                status.leader = leader % 4;
                status.raft_applied_index = index;
                (status.db_size, status.db_size_in_use) = (size, in_use);
                status.is_learner = kind == 3;
                status.header.revision = size;
            }
            match kind {
                0 => round.read = Some(Err(failed(cause))),
                1 => down(&mut round, cause),
                _ => {}
            }
            round
        })
}

proptest! {
    #[test]
    fn the_order_of_endpoints_does_not_matter(
        rounds in prop::collection::vec(any_round(), 0..6),
        turn in 0..6_usize,
        whole_cluster: bool,
    ) {
        // One round an endpoint.
        let mut rounds: Vec<Round> = rounds;
        rounds.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        rounds.dedup_by(|a, b| a.endpoint == b.endpoint);
        let mut gathered = Gathered { rounds, whole_cluster, ..Gathered::default() };
        let first = View::of(&gathered);
        let places = gathered.rounds.len().max(1);
        gathered.rounds.rotate_left(turn % places);
        prop_assert_eq!(&View::of(&gathered), &first);
        gathered.rounds.reverse();
        let last = View::of(&gathered);
        prop_assert_eq!(last.status_code(), first.status_code());
        prop_assert_eq!(last.health_code(), first.health_code());
        prop_assert_eq!(last, first);
    }
}
