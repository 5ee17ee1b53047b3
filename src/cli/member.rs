//! `member list`, in etcdctl's shapes.

use clap::{Subcommand, ValueEnum};

use super::{Global, Outcome, etcdctl, output};
use crate::ops::ExitCode;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the members of the cluster
    List {
        /// Ask for what a majority agrees on (l), or for what the member that answers knows (s),
        /// which needs no leader
        #[arg(long, value_enum, default_value_t = Consistency::Linearizable)]
        consistency: Consistency,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Consistency {
    #[value(name = "l")]
    Linearizable,
    #[value(name = "s")]
    Serializable,
}

pub(super) fn run(global: &Global, command: &Command) -> Outcome {
    let Command::List { consistency } = command;
    let cluster = global.cluster()?;
    let members = match consistency {
        Consistency::Linearizable => cluster.members_linearizable()?,
        Consistency::Serializable => cluster.members()?,
    };
    output::print(&etcdctl::members(global.format(), &members))?;
    Ok(ExitCode::Ok)
}
