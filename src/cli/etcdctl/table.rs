//! Tables as etcdctl 3.7 draws them: boxes, headings in the middle, cells to the right.
//!
//! **Source**: tablewriter 1.1.4 as etcdctl/ctlv3/command/printer_table.go sets it up, checked at
//! 3.7.3. Older ones draw the same cells with `+`, `-` and `|`.

use crate::cli::output::shown;

/// Draws a table; headings are put in capitals, their underscores become blanks.
pub(in crate::cli) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> =
        headings.iter().map(|name| name.replace('_', " ").to_uppercase()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| shown(cell.trim())).collect()).collect();
    let mut widths: Vec<usize> = headings.iter().map(|name| width(name)).collect();
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    let mut drawn = rule(&widths, '\u{250c}', '\u{252c}', '\u{2510}');
    drawn += &line(&headings, &widths, |cell, width| format!("{cell:^width$}"));
    if !rows.is_empty() {
        drawn += &rule(&widths, '\u{251c}', '\u{253c}', '\u{2524}');
    }
    for row in &rows {
        drawn += &line(row, &widths, |cell, width| format!("{cell:>width$}"));
    }
    drawn + &rule(&widths, '\u{2514}', '\u{2534}', '\u{2518}')
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn rule(widths: &[usize], left: char, between: char, right: char) -> String {
    let dashes: Vec<String> = widths.iter().map(|width| "\u{2500}".repeat(width + 2)).collect();
    format!("{left}{}{right}\n", dashes.join(&between.to_string()))
}

fn line(cells: &[String], widths: &[usize], place: impl Fn(&str, usize) -> String) -> String {
    let cells: Vec<String> =
        cells.iter().zip(widths).map(|(cell, width)| place(cell, *width)).collect();
    format!("\u{2502} {} \u{2502}\n", cells.join(" \u{2502} "))
}
