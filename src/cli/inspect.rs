//! `snapshot inspect`.

use std::path::PathBuf;

use clap::Args;
use comfy_table::CellAlignment;

use super::output::{self, WriteOut, size};
use super::terminal::Terminal;
use super::{Global, Outcome};
use crate::ops::inspect::{self, GROUPS_MAX, Options, Report};

#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// A snapshot file, a db file, or a data directory whose server is stopped
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Where a data directory's log is, if etcd has a --wal-dir
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
    /// Tell keys apart to this depth: of Kubernetes 1 is the resource, 2 the namespace too, of
    /// other keys the number of path segments [default: 1, and 2 for paths]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// Show so many of the largest
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
}

pub(super) fn run(global: &Global, args: Inspect) -> Outcome {
    let terminal = Terminal::new(global);
    let top = usize::try_from(args.top).unwrap_or(inspect::TOP_MAX);
    let options = Options { path: args.path, wal_dir: args.wal_dir, depth: args.depth, top };
    let report = inspect::inspect(&options, &terminal)?;
    terminal.clear();
    match global.write_out {
        WriteOut::Json => output::print_json(&report.json())?,
        WriteOut::Fields => output::print_fields(&report.json())?,
        WriteOut::Simple | WriteOut::Table => {
            let is_table = global.write_out == WriteOut::Table;
            output::print_lines(&lines(&report, top, is_table))?;
        }
    }
    Ok(report.exit_code())
}

/// Figures in columns under a title.
struct Section {
    title: String,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Section {
    /// Writes the section; the first column is text, the others are figures.
    fn lines(&self, is_table: bool) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        if is_table {
            let mut table = output::table();
            table.set_header(self.header.iter().map(|name| name.to_uppercase()));
            for row in &self.rows {
                table.add_row(row.iter().map(|cell| output::shown(cell)));
            }
            for column in table.column_iter_mut().skip(1) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            return [vec![self.title.clone()], output::drawn(&table)].concat();
        }
        let header = self.header.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| {
            all.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                0 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
        };
        std::iter::once(self.title.clone()).chain(all.into_iter().map(line)).collect()
    }
}

fn lines(report: &Report, top: usize, is_table: bool) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {}, {} keys with {} revisions{}{}",
        report.path,
        size(report.size_bytes),
        report.keys,
        report.revisions,
        if report.kubernetes { ", Kubernetes" } else { "" },
        if report.with_log { ", with what its log adds" } else { "" },
    )];
    lines.push(format!("etcd counts {} of it against its quota", size(report.db_bytes)));
    if report.partial {
        lines.push("PARTIAL: the file is damaged, and this is what could be read".into());
    }
    for section in [
        space(report),
        groups(report, top),
        rewritten(report),
        largest(report),
        buckets(report, top),
    ] {
        lines.extend(section.lines(is_table));
    }
    let compaction = &report.compaction;
    if let Some(defrag_bytes) = report.defrag_bytes {
        lines.push(format!(
            "a compaction at revision {} would free {} in {} records, inside of the file",
            compaction.revision,
            size(compaction.bytes),
            compaction.records
        ));
        lines.push(format!(
            "a defragmentation would take about {} off the database as it is, and {} after that \
             compaction",
            size(defrag_bytes),
            size(defrag_bytes.saturating_add(compaction.bytes))
        ));
    }
    lines.extend(output::findings_lines(&report.findings));
    lines.extend(report.next.iter().map(|line| format!("next: {line}")));
    lines
}

fn space(report: &Report) -> Section {
    let share = |bytes: u64| {
        let tenths = u128::from(bytes) * 1000 / u128::from(report.size_bytes.max(1));
        format!("{}.{} %", tenths / 10, tenths % 10)
    };
    let mut parts = report.space.parts();
    parts.sort_by_key(|(.., bytes)| std::cmp::Reverse(*bytes));
    let parts = parts.into_iter().filter(|(.., bytes)| *bytes > 0);
    let rows = parts.map(|(_, what, bytes)| vec![what.to_owned(), size(bytes), share(bytes)]);
    let title = if report.with_log { "bytes of the file, without its log" } else { "bytes" };
    Section { title: title.into(), header: vec!["what", "size", "share"], rows: rows.collect() }
}

/// Most characters of a key in a column; JSON has all of them.
const KEY_WIDTH: usize = 96;

/// Cuts a key that would make the lines too long, in the middle: both ends tell keys apart.
fn cut(key: &str) -> String {
    let count = key.chars().count();
    if count <= KEY_WIDTH {
        return key.to_owned();
    }
    let half = (KEY_WIDTH - 3) / 2;
    let end: String = key.chars().skip(count - half).collect();
    format!("{}...{end}", key.chars().take(half).collect::<String>())
}

fn groups(report: &Report, top: usize) -> Section {
    let count = report.groups.len();
    let shown = report.groups.iter().take(top);
    let rows = shown.map(|group| {
        let figures = [group.keys, group.revisions].map(|figure| figure.to_string());
        let sizes = [group.live_bytes, group.history_bytes].map(size);
        std::iter::once(cut(&group.name())).chain(figures).chain(sizes).collect()
    });
    let mut title = "keys by what they begin with".to_owned();
    if count > top {
        title.push_str(&format!(", the {top} largest of {count}"));
    }
    if report.groups.iter().any(|group| group.prefix.is_none()) {
        title.push_str(&format!(" (only {GROUPS_MAX} are told apart)"));
    }
    let header = vec!["prefix", "keys", "revisions", "live", "history"];
    Section { title, header, rows: rows.collect() }
}

fn rewritten(report: &Report) -> Section {
    let rows = report
        .most_rewritten
        .iter()
        .map(|key| vec![cut(&key.key), key.revisions.to_string(), size(key.history_bytes)]);
    Section {
        title: "keys with the most revisions".into(),
        header: vec!["key", "revisions", "history"],
        rows: rows.collect(),
    }
}

fn largest(report: &Report) -> Section {
    let rows = report.largest_values.iter().map(|value| {
        let state = if value.is_live { "live" } else { "history" };
        let revision = value.revision.to_string();
        vec![cut(&value.key), size(value.value_bytes), revision, state.into()]
    });
    Section {
        title: "keys with the largest values".into(),
        header: vec!["key", "value", "revision", ""],
        rows: rows.collect(),
    }
}

fn buckets(report: &Report, top: usize) -> Section {
    let filled = report.buckets.iter().filter(|bucket| bucket.rows > 0);
    let rows = filled.take(top).map(|bucket| {
        let name = bucket.name.clone().unwrap_or_else(|| "(other)".into());
        vec![name, bucket.rows.to_string(), size(bucket.bytes)]
    });
    Section {
        title: "buckets".into(),
        header: vec!["bucket", "rows", "size"],
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_are_cut_in_the_middle() {
        assert_eq!(cut(&"a".repeat(KEY_WIDTH)), "a".repeat(KEY_WIDTH));
        let text = cut(&format!("begin{}end", "\\xff".repeat(100)));
        assert!(text.starts_with("begin") && text.ends_with("end") && text.contains("..."));
        assert!(text.chars().count() <= KEY_WIDTH, "{text}");
    }
}
