//! `demo`, `version`, `completions`, `man`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use serde_json::json;

use super::output::{self, WriteOut};
#[cfg(all(feature = "live", feature = "serve"))]
use super::terminal::Terminal;
use super::{Global, Outcome};
#[cfg(all(feature = "live", feature = "serve"))]
use crate::ops::demo;
use crate::ops::{Error, ExitCode};

#[cfg(all(feature = "live", feature = "serve"))]
pub(super) fn demo(global: &Global) -> Outcome {
    let terminal = Terminal::new(global);
    let proof = demo::demo(&terminal)?;
    terminal.clear();
    match global.write_out {
        WriteOut::Json => output::print_json(&json!(proof))?,
        WriteOut::Fields => output::print_fields(&json!(proof))?,
        WriteOut::Simple | WriteOut::Table => output::print_lines(&proof.lines())?,
    }
    Ok(ExitCode::Ok)
}

pub(super) fn version(global: &Global) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let built_in = [("live", cfg!(feature = "live")), ("serve", cfg!(feature = "serve"))];
    let features = built_in.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name);
    let features: Vec<&str> = features.collect();
    match global.write_out {
        WriteOut::Json | WriteOut::Fields => {
            let value = json!({
                "version": version,
                "features": features,
                "storage_version_max": crate::etcd::schema::STORAGE_VERSION_MAX.to_string(),
            });
            if global.write_out == WriteOut::Json {
                output::print_json(&value)?;
            } else {
                output::print_fields(&value)?;
            }
        }
        WriteOut::Simple | WriteOut::Table => output::print_lines(&[
            format!("etcdkit version: {version}"),
            format!("newest storage version: {}", crate::etcd::schema::STORAGE_VERSION_MAX),
            format!("features: {}", features.join(" ")),
        ])?,
    }
    Ok(ExitCode::Ok)
}

pub(super) fn completions(shell: clap_complete::Shell, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "etcdkit", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::Ok)
}

pub(super) fn man(mut command: Command, words: &[String], all: Option<&Path>) -> Outcome {
    command.build();
    if let Some(folder) = all {
        fs::create_dir_all(folder).map_err(|error| Error::io(&error, "make", folder))?;
        write_pages(&command, folder).map_err(|error| Error::io(&error, "write into", folder))?;
        return Ok(ExitCode::Ok);
    }
    let mut found = &command;
    for word in words {
        found = found.find_subcommand(word).ok_or_else(|| {
            Error::usage(format!("there is no command {word:?}")).hint("etcdkit --help")
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(found.clone()).render(&mut page)?;
    io::stdout().lock().write_all(&page)?;
    Ok(ExitCode::Ok)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut file = fs::File::create(folder.join(man.get_filename()))?;
    file.write_all(&page)?;
    // A page of `help` would only say to read the others.
    let mut subs = command.get_subcommands().filter(|sub| sub.get_name() != "help");
    subs.try_for_each(|sub| write_pages(sub, folder))
}
