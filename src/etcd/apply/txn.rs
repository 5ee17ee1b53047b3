//! Transactions: conditions, the list of operations that they choose, and all checks before the
//! first write.
//!
//! The conditions of every level are evaluated on the state before the entry. A condition on a
//! range holds when it holds for every key in it; on a range without keys it is evaluated on a
//! record of zeros, and one on a value does not hold there at all.
//!
//! Source: etcd `txn.compareToPath`, `applyCompare`, `checkTxn`, `executeTxn`, 3.6.16 and 3.7.3.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::keys::{Writer, check_put};
use super::{Context, Effect, Latest, Refusal, State, Step, Stop, permission};
use crate::etcd::request::{Compare, Op, Operand, Range, Txn, span};
use crate::etcd::revision::Revision;

pub(super) fn apply<'a>(
    context: &Context<'_, '_>,
    request: &Txn<'a>,
    effect: &mut Effect<'a>,
) -> Result<(), Stop> {
    permission::check_txn(context, request)?;
    let mut path = Vec::new();
    choose(context.state, request, &mut path)?;
    check(context.state, request, &mut path.iter())?;
    let mut writer = Writer::new(context.state);
    execute(&mut writer, request, &mut path.iter())?;
    writer.finish(effect);
    Ok(())
}

/// Does what [`apply`] does with a transaction that writes nothing.
pub(super) fn read(state: &dyn State, request: &Txn<'_>) -> Result<Vec<Step>, Stop> {
    let mut path = Vec::new();
    choose(state, request, &mut path)?;
    check(state, request, &mut path.iter())?;
    let mut writer = Writer::new(state);
    execute(&mut writer, request, &mut path.iter())?;
    if writer.change_count() > 0 {
        return Err(Stop::Impossible("a transaction that was to read, and writes".into()));
    }
    Ok(writer.into_steps())
}

/// Whether a transaction's conditions hold, and how many were looked at.
#[derive(Clone, Copy, Default)]
struct Chosen {
    succeeded: bool,
    compared: usize,
}

/// Notes, for a transaction and then for each one in its list, whether its conditions hold.
fn choose(state: &dyn State, request: &Txn<'_>, path: &mut Vec<Chosen>) -> Result<(), Stop> {
    let mut at = Chosen { succeeded: true, compared: 0 };
    for compare in &request.compare {
        at.compared = at.compared.saturating_add(1);
        if !holds(state, compare)? {
            at.succeeded = false;
            break;
        }
    }
    path.push(at);
    for op in chosen(request, at.succeeded) {
        if let Op::Txn(inner) = op {
            choose(state, inner, path)?;
        }
    }
    Ok(())
}

fn chosen<'t, 'a>(request: &'t Txn<'a>, succeeded: bool) -> &'t [Op<'a>] {
    if succeeded { &request.success } else { &request.failure }
}

fn holds(state: &dyn State, compare: &Compare<'_>) -> Result<bool, Stop> {
    const VALUE: u64 = 3;
    let (mut found, mut holds) = (false, true);
    let mut values: Vec<Revision> = Vec::new();
    let mut look = |latest: &Latest| {
        found = true;
        if compare.target == VALUE {
            values.push(latest.modified);
        } else {
            holds = decide(compare, order_number(compare, latest));
        }
        if holds { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    match span(compare.key, compare.range_end) {
        crate::etcd::request::Span::Key(key) => {
            if let Some(latest) = state.latest(key)? {
                let _ = look(&latest);
            }
        }
        many => state.each_live(many, &mut |_, latest| look(latest))?,
    }
    if !found {
        let zeros = Latest::default();
        return Ok(compare.target != VALUE && decide(compare, order_number(compare, &zeros)));
    }
    let wanted = match compare.operand {
        Some(Operand::Value(value)) => value,
        _ => &[],
    };
    for revision in values {
        if !decide(compare, state.value(revision)?.as_slice().cmp(wanted)) {
            return Ok(false);
        }
    }
    Ok(holds)
}

/// Compares a number of the record with the operand; a target that is not known is always equal.
fn order_number(compare: &Compare<'_>, latest: &Latest) -> Ordering {
    let (has, wanted) = match (compare.target, compare.operand) {
        (0, Some(Operand::Version(wanted))) => (latest.version, wanted),
        (0, _) => (latest.version, 0),
        (1, Some(Operand::CreateRevision(wanted))) => (latest.create_revision, wanted),
        (1, _) => (latest.create_revision, 0),
        (2, Some(Operand::ModRevision(wanted))) => (latest.modified.main, wanted),
        (2, _) => (latest.modified.main, 0),
        (4, Some(Operand::Lease(wanted))) => (latest.lease, wanted),
        (4, _) => (latest.lease, 0),
        _ => (0, 0),
    };
    has.cmp(&wanted)
}

fn decide(compare: &Compare<'_>, order: Ordering) -> bool {
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        3 => order.is_ne(),
        _ => true,
    }
}

fn check(
    state: &dyn State,
    request: &Txn<'_>,
    path: &mut std::slice::Iter<'_, Chosen>,
) -> Result<(), Stop> {
    let Chosen { succeeded, .. } = path.next().copied().unwrap_or_default();
    for op in chosen(request, succeeded) {
        match op {
            Op::Range(range) => check_range(state, range)?,
            Op::Put(put) => check_put(state, put)?,
            Op::Txn(inner) => check(state, inner, path)?,
            Op::DeleteRange(_) | Op::Nothing => {}
        }
    }
    Ok(())
}

fn check_range(state: &dyn State, range: &Range<'_>) -> Result<(), Stop> {
    match range.revision {
        0 => Ok(()),
        revision if revision > state.current_revision() => Err(Refusal::FutureRevision.into()),
        revision if revision < state.compact_revision() => Err(Refusal::Compacted.into()),
        _ => Ok(()),
    }
}

fn execute<'a>(
    writer: &mut Writer<'_, 'a>,
    request: &Txn<'a>,
    path: &mut std::slice::Iter<'_, Chosen>,
) -> Result<(), Stop> {
    let Chosen { succeeded, compared } = path.next().copied().unwrap_or_default();
    let ops = chosen(request, succeeded);
    writer.step(Step::Txn { succeeded, compared, ops: ops.len() });
    for op in ops {
        match op {
            Op::Range(_) => writer.step(Step::Range(writer.change_count())),
            Op::Put(put) => writer.put(put)?,
            Op::DeleteRange(delete) => writer.delete(delete)?,
            Op::Txn(inner) => execute(writer, inner, path)?,
            Op::Nothing => writer.step(Step::Nothing),
        }
    }
    Ok(())
}
