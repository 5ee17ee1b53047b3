//! `alarm list`, in etcdctl's shapes.

use clap::Subcommand;

use super::{Global, Outcome, etcdctl, output};
use crate::ops::ExitCode;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the alarms that are raised
    List,
}

pub(super) fn run(global: &Global, command: &Command) -> Outcome {
    let Command::List = command;
    let cluster = global.cluster()?;
    let alarms = cluster.alarms()?;
    output::print(&etcdctl::alarms(global.format(), &alarms))?;
    Ok(ExitCode::Ok)
}
