//! `alarm list`, in etcdctl's shapes.

use clap::Subcommand;

use super::linked::Program;
use super::{Global, Outcome, WriteOut, etcdctl, output};
use crate::ops::{Error, ExitCode};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the alarms that are raised
    List,
}

pub(super) fn run(global: &Global, command: &Command) -> Outcome {
    let Command::List = command;
    let cluster = global.cluster()?;
    let alarms = cluster.alarms()?;
    if global.program == Program::Etcdctl && global.write_out == WriteOut::Table {
        return Err(Error::usage("table not supported as output format").into());
    }
    output::print(&etcdctl::alarms(global.format(), &alarms))?;
    Ok(ExitCode::Ok)
}
