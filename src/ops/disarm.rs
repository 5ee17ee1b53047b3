//! `alarm disarm`: alarms go one by one, and none whose cause is still there.
//!
//! etcd disarms whatever it is told to: NOSPACE of a member that is still at its quota is raised
//! again by the next write, and CORRUPT is the only thing that keeps a member with other data from
//! serving. So the sizes are looked at before, and the alarms are listed again afterwards.
//!
//! An alarm without a type, of member 0 or of a member that is gone has no cause that could be
//! looked at, and goes. etcdctl cannot take away one of member 0 without a type: it takes it for
//! the word for all (client/v3/maintenance.go, `AlarmDisarm`, checked at 3.7.3).

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::cluster::{MemberView, View, attend};
use super::online::Lookout;
use super::reclaim::line::Line;
use super::{Error, ExitCode, Progress, admin, audit, cluster};
use crate::live::{Alarm, AlarmKind, Cluster, Settings};

/// What to disarm, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the members are reached.
    pub settings: Settings,
    /// Disarm NOSPACE although a member is at its quota, or nobody knows.
    pub force: bool,
    /// Disarm CORRUPT.
    pub accept_corrupt: bool,
    /// Find out and report, change nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Those that were raised.
    pub before: Vec<Named>,
    /// Those that were disarmed, as the members say it; in a dry run those that would be.
    pub disarmed: Vec<Alarm>,
    /// Those that are raised now; in a dry run none.
    pub left: Vec<Named>,
    /// What is to be known.
    pub warnings: Vec<String>,
    /// The ordinary command that does the same.
    pub equivalent: Vec<String>,
}

/// Members' names by their ids.
pub type Names = Vec<(u64, String)>;

/// An alarm with what is known of whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The alarm.
    pub alarm: Alarm,
    /// Whose it is, for people.
    pub whose: String,
}

impl Named {
    /// Says it in a sentence: `NOSPACE of m1 (8e9e05c52164694d)`.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} of {}", kind(self.alarm.kind), self.whose)
    }
}

fn kind(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::None => "an alarm without a type",
        kind => kind.word(),
    }
}

/// Says what an alarm means.
#[must_use]
pub fn meaning(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::None => "it means nothing to etcd, and can be disarmed",
        AlarmKind::NoSpace => {
            "its database has reached the quota: no member takes puts or leases until there is \
             room again and the alarm is disarmed"
        }
        AlarmKind::Corrupt => {
            "its data differs from the other members': compare them before anything else"
        }
    }
}

/// Names the members that alarms are of.
#[must_use]
pub fn named(alarms: &[Alarm], names: &[(u64, String)]) -> Vec<Named> {
    let whose = |id: u64| {
        let known = names.iter().find(|(member, _)| *member == id);
        match known.map(|(_, name)| name.as_str()) {
            _ if id == 0 => "no member (0)".to_owned(),
            Some("") => format!("a member without a name ({id:x})"),
            Some(name) => format!("{name} ({id:x})"),
            None => format!("a member that is gone ({id:x})"),
        }
    };
    alarms.iter().map(|alarm| Named { alarm: *alarm, whose: whose(alarm.member_id) }).collect()
}

/// What stands against a disarm.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bar {
    /// CORRUPT is raised for these.
    Corrupt(Vec<String>),
    /// Members are at their quota, or nobody knows: a sentence each.
    Full(Vec<String>),
}

/// Says what stands against disarming these, the worse first.
fn bars(alarms: &[Alarm], view: &View) -> Vec<Bar> {
    let member = |id: u64| view.members.iter().find(|member| member.id == Some(id));
    let mut bars = Vec::new();
    let corrupt = alarms.iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt);
    let corrupt: Vec<String> = corrupt
        .map(|alarm| {
            let label = member(alarm.member_id).map(MemberView::label);
            label.unwrap_or_else(|| format!("{:x}", alarm.member_id))
        })
        .collect();
    if !corrupt.is_empty() {
        bars.push(Bar::Corrupt(corrupt));
    }
    // Whoever is at the quota raises it again, whosever alarm it was.
    let is_raised = |member: &MemberView| {
        let own = |alarm: &&Alarm| Some(alarm.member_id) == member.id;
        alarms.iter().filter(own).any(|alarm| alarm.kind == AlarmKind::NoSpace)
    };
    let any_of_members = view.members.iter().any(is_raised);
    let full = view.members.iter().filter(|_| any_of_members).filter_map(|member| {
        match Line::of(member) {
            Line::Over { size, quota } => Some(format!(
                "the database of {} has {size} bytes, its quota is {quota}",
                member.label()
            )),
            Line::Unknown if is_raised(member) => Some(Line::unknown_text(member)),
            _ => None,
        }
    });
    let full: Vec<String> = full.collect();
    if !full.is_empty() {
        bars.push(Bar::Full(full));
    }
    bars
}

/// Disarms what is raised.
///
/// # Errors
///
/// [`ExitCode::Tls`] for who is no administrator; [`ExitCode::Damage`] where CORRUPT is raised and
/// [`ExitCode::Refused`] where a member is at its quota, unless told; [`ExitCode::Partial`] where
/// some could not be disarmed, or were raised again; [`ExitCode::Unreachable`] where nobody tells
/// which are raised now; and what members answer.
pub fn disarm(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let asked = options.settings.clone();
    let (cluster, access) = attend(progress, move || {
        let cluster = Cluster::open(asked)?;
        let access = cluster.access()?;
        Ok((Arc::new(cluster), access))
    })?;
    admin::check(&access, "disarm alarms")?;
    let (alarms, names) = list(&cluster, progress)?;
    let how = cluster::Access::of(&options.settings);
    let endpoints = options.settings.endpoints.join(",");
    let ctl = |program: &str, words: &[&str]| how.command(program, Some(&endpoints), words);
    let mut report = Report {
        dry_run: options.dry_run,
        before: named(&alarms, &names),
        equivalent: vec![ctl("etcdctl", &["alarm", "disarm"])],
        ..Report::default()
    };
    if alarms.is_empty() {
        return Ok(report);
    }
    let view = Lookout::new(options.settings.clone()).look(progress)?;
    for bar in bars(&alarms, &view) {
        match bar {
            Bar::Corrupt(whose) if !options.accept_corrupt => {
                return Err(corrupt(&whose.join(", "), &ctl));
            }
            Bar::Full(why) if !options.force => return Err(full(&why.join("; "), &ctl)),
            Bar::Corrupt(whose) => {
                let whose = whose.join(", ");
                report
                    .warnings
                    .push(format!("CORRUPT of {whose} was accepted by --accept-corrupt"));
            }
            Bar::Full(why) => {
                let why = why.join("; ");
                report
                    .warnings
                    .push(format!("--force: {why}; the next write raises NOSPACE again"));
            }
        }
    }
    for warning in &report.warnings {
        progress.note(&format!("warning: {warning}"));
    }
    if options.dry_run {
        report.disarmed = alarms;
        return Ok(report);
    }
    for line in &report.equivalent {
        progress.note(&format!("same as    {line}"));
    }
    let (disarmed, failed) = one_by_one(&cluster, &alarms, progress);
    report.disarmed = disarmed;
    let mut trouble = failed;
    match list(&cluster, progress) {
        Ok((left, names)) => {
            report.left = named(&left, &names);
            if trouble.is_none() && !report.left.is_empty() {
                let left: Vec<String> = report.left.iter().map(Named::text).collect();
                let message = format!("raised again, or still: {}", left.join(", "));
                let error = Error::new(ExitCode::Partial, message);
                trouble = Some(error.hint(ctl("etcdkit", &["reclaim"])));
            }
        }
        Err(error) => {
            let error = unlisted(trouble.take(), error);
            trouble = Some(error.hint(ctl("etcdkit", &["alarm", "list"])));
        }
    }
    if !report.disarmed.is_empty() || trouble.is_some() {
        let result = trouble.as_ref().map_or(audit::OK, |error| error.message.as_str()).to_owned();
        record(options, &mut report, result, progress);
    }
    match trouble {
        Some(mut error) => {
            let count = report.disarmed.len();
            error.message += &format!("; {count} of {} were disarmed", report.before.len());
            error.hints.extend(report.equivalent);
            Err(error)
        }
        None => Ok(report),
    }
}

/// What is raised now is not known: says so beside what failed before.
fn unlisted(before: Option<Error>, error: Error) -> Error {
    let unknown = format!(
        "which alarms are raised now is not known, as they could not be listed again: {}",
        error.message
    );
    match before {
        Some(mut before) => {
            before.message += &format!("; {unknown}");
            before
        }
        None if error.code == ExitCode::Interrupted => Error { message: unknown, ..error },
        None => Error { code: ExitCode::Unreachable, message: unknown, ..error },
    }
}

fn corrupt(whose: &str, ctl: &dyn Fn(&str, &[&str]) -> String) -> Error {
    let message = format!(
        "CORRUPT is raised for {whose}: members hold different data, and without the alarm all of \
         it is served; nothing was disarmed"
    );
    Error::new(ExitCode::Damage, message)
        .hint(ctl("etcdkit", &["consistency"]))
        .hint("replace the member that differs; --accept-corrupt disarms all the same")
}

fn full(why: &str, ctl: &dyn Fn(&str, &[&str]) -> String) -> Error {
    let message = format!(
        "{why}: NOSPACE would be raised again by the next write, so that nothing was disarmed"
    );
    Error::refused(message)
        .hint(ctl("etcdkit", &["reclaim"]))
        .hint(format!("which does this: {}", ctl("etcdctl", &["compaction", "REV"])))
        .hint(format!("then, member by member: {}", ctl("etcdctl", &["defrag"])))
        .hint("--force disarms all the same")
}

/// Asks for alarms and for the members' names.
pub(super) fn list(
    cluster: &Arc<Cluster>,
    progress: &dyn Progress,
) -> Result<(Vec<Alarm>, Names), Error> {
    let asked = Arc::clone(cluster);
    attend(progress, move || {
        let alarms = asked.alarms()?.alarms;
        // A name more or less changes nothing.
        let members = asked.members().map(|members| members.members).unwrap_or_default();
        Ok((alarms, members.into_iter().map(|member| (member.id, member.name)).collect()))
    })
}

/// Disarms one after the other; returns those that went, and why it stopped.
pub(super) fn one_by_one(
    cluster: &Arc<Cluster>,
    alarms: &[Alarm],
    progress: &dyn Progress,
) -> (Vec<Alarm>, Option<Error>) {
    let mut disarmed = Vec::new();
    for alarm in alarms {
        let (asked, alarm) = (Arc::clone(cluster), *alarm);
        // One that is gone already is none of those that this took away.
        match attend(progress, move || Ok(asked.disarm(alarm)?.alarms)) {
            Ok(gone) => disarmed.extend(gone),
            Err(error) => return (disarmed, Some(error)),
        }
    }
    (disarmed, None)
}

fn record(options: &Options, report: &mut Report, result: String, progress: &dyn Progress) {
    let alarms = |named: &[Named]| -> Value {
        let alarms = named.iter().map(|named| {
            let Alarm { member_id, kind } = named.alarm;
            json!({ "id": format!("{member_id:x}"), "alarm": kind.word() })
        });
        json!({ "alarms": alarms.collect::<Vec<_>>() })
    };
    let record = audit::Record {
        operation: "alarm disarm",
        result,
        before: alarms(&report.before),
        after: alarms(&report.left),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    if let Err(error) = audit::append(&options.audit_log, &record) {
        let log = options.audit_log.display();
        let warning = format!("the audit record could not be written to {log}: {error}");
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cluster::Gathered;

    const NOSPACE: AlarmKind = AlarmKind::NoSpace;

    fn member(id: u64, size: Option<i64>) -> MemberView {
        let version = size.map(|_| "3.6.16".to_owned());
        let mut member = MemberView { version, ..MemberView::default() };
        (member.id, member.name) = (Some(id), Some(format!("m{id}")));
        (member.db_size, member.quota) = (size, Some(1000));
        member
    }

    fn view(members: &[MemberView]) -> View {
        let mut view = View::of(&Gathered::default());
        view.members = members.to_vec();
        view
    }

    fn alarm(member_id: u64, kind: AlarmKind) -> Alarm {
        Alarm { member_id, kind }
    }

    #[test]
    fn what_is_still_full_or_not_known_bars() {
        let full = |alarms: &[Alarm], members: &[MemberView]| bars(alarms, &view(members));
        let text = |bars: Vec<Bar>| format!("{bars:?}");
        assert_eq!(full(&[alarm(1, NOSPACE)], &[member(1, Some(999))]), []);
        let at = text(full(&[alarm(1, NOSPACE)], &[member(1, Some(1000))]));
        assert!(at.contains("m1 has 1000 bytes, its quota is 1000"), "{at}");
        // Another member at its quota raises it again at once.
        let other = [member(1, Some(10)), member(2, Some(1001))];
        assert!(text(full(&[alarm(1, NOSPACE)], &other)).contains("m2 has 1001"));
        let unknown = [member(1, None), member(2, None)];
        let unknown = text(full(&[alarm(1, NOSPACE)], &unknown));
        assert!(unknown.contains("of m1 is was not told") && !unknown.contains("m2"), "{unknown}");
        let mut no_limit = member(1, Some(5000));
        no_limit.quota = None;
        assert_eq!(full(&[alarm(1, NOSPACE)], &[no_limit]), []);
    }

    #[test]
    fn alarms_without_a_cause_go_and_corrupt_does_not() {
        let members = [member(1, Some(5000))];
        for odd in [alarm(0, NOSPACE), alarm(9, NOSPACE), alarm(1, AlarmKind::None)] {
            assert_eq!(bars(&[odd], &view(&members)), [], "{odd:?}");
        }
        for id in [0, 1, 9] {
            let bars = bars(&[alarm(id, AlarmKind::Corrupt)], &view(&members));
            assert!(matches!(bars.as_slice(), [Bar::Corrupt(_)]), "{bars:?}");
        }
        let both = [alarm(1, NOSPACE), alarm(1, AlarmKind::Corrupt)];
        let both = bars(&both, &view(&members));
        assert!(matches!(both.as_slice(), [Bar::Corrupt(_), Bar::Full(_)]), "{both:?}");
    }

    #[test]
    fn alarms_are_named_whosever_they_are() {
        let names = [(1, "m1".to_owned()), (2, String::new())];
        let alarms = [(1, NOSPACE), (2, AlarmKind::Corrupt), (0, AlarmKind::None), (0xa, NOSPACE)];
        let named = named(&alarms.map(|(id, kind)| alarm(id, kind)), &names);
        let texts: Vec<String> = named.iter().map(Named::text).collect();
        assert_eq!(
            texts,
            [
                "NOSPACE of m1 (1)",
                "CORRUPT of a member without a name (2)",
                "an alarm without a type of no member (0)",
                "NOSPACE of a member that is gone (a)",
            ]
        );
    }
}
