//! Progress on a terminal, and the signals that stop an operation.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::output::shown;
use super::{Global, WriteOut};
use crate::ops::Progress;

/// Shows a bar on stderr when that is a terminal, and notes always.
pub(super) struct Terminal {
    stop: Arc<AtomicBool>,
    bar: Mutex<ProgressBar>,
    show: bool,
    /// Notes are JSON too.
    json: bool,
}

impl Terminal {
    /// Starts listening to SIGINT, SIGTERM and SIGHUP: the first one asks the operation to stop
    /// and clean up, a second one ends the program at once.
    pub(super) fn new(global: &Global) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Without a handler the program still works; it only cleans up less.
            let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone());
            let _ = signal_hook::flag::register(signal, stop.clone());
        }
        let show = !global.quiet && io::stderr().is_terminal();
        let json = global.write_out == WriteOut::Json;
        Self { stop, bar: Mutex::new(ProgressBar::hidden()), show, json }
    }

    fn with_bar(&self, act: impl FnOnce(&mut ProgressBar)) {
        if let Ok(mut bar) = self.bar.lock() {
            act(&mut bar);
        }
    }

    /// Takes the bar off the screen.
    pub(super) fn clear(&self) {
        self.with_bar(|bar| bar.finish_and_clear());
    }
}

impl Progress for Terminal {
    fn step(&self, name: &str, total: u64) {
        if !self.show {
            return;
        }
        self.with_bar(|bar| {
            bar.finish_and_clear();
            *bar = ProgressBar::new(total);
            let style = "{msg:12} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar.set_message(name.to_owned());
        });
    }

    fn advance(&self, done: u64) {
        if self.show {
            self.with_bar(|bar| bar.set_position(done));
        }
    }

    fn note(&self, text: &str) {
        let line = if self.json { json!({ "note": text }).to_string() } else { shown(text) };
        self.with_bar(|bar| {
            bar.suspend(|| {
                let _ = writeln!(io::stderr(), "{line}");
            });
        });
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.clear();
    }
}
