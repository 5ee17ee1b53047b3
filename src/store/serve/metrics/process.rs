//! Figures of the process, from Linux's /proc; elsewhere there are none.
//!
//! Source: `client_golang`'s process collector; proc(5).

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::family::{Families, Kind};
use crate::format::u64_of;
use crate::store::figures::histogram::to_f64;

pub(super) fn put(out: &mut Families) {
    let gauge = |out: &mut Families, name: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            out.one(name, help, Kind::Gauge, &[], value);
        }
    };
    let own = fs::read_to_string("/proc/self/stat").ok().and_then(|text| Own::parse(&text));
    if let Some(own) = own {
        let ticks = to_f64(rustix::param::clock_ticks_per_second());
        let cpu = to_f64(own.cpu_ticks) / ticks;
        let help = "Time of processors that the process used, in seconds.";
        out.one("process_cpu_seconds_total", help, Kind::Counter, &[], cpu);
        let help = "Unix time at which the process began, in seconds.";
        let began = boot_time_s().map(|boot| to_f64(boot) + to_f64(own.began_ticks) / ticks);
        gauge(out, "process_start_time_seconds", help, began);
        let help = "Bytes of memory that are the process's alone or shared.";
        let resident = own.resident_pages.wrapping_mul(u64_of(rustix::param::page_size()));
        gauge(out, "process_resident_memory_bytes", help, Some(to_f64(resident)));
        let help = "Bytes of address space in use.";
        gauge(out, "process_virtual_memory_bytes", help, Some(to_f64(own.virtual_bytes)));
    }
    let limit = |of| to_f64(getrlimit(of).current.unwrap_or(u64::MAX));
    let help = "Bytes of address space that the process may use.";
    gauge(out, "process_virtual_memory_max_bytes", help, Some(limit(Resource::As)));
    let files = fs::read_dir("/proc/self/fd").ok().map(|files| to_f64(u64_of(files.count())));
    let files_max = Some(limit(Resource::Nofile));
    gauge(out, "process_open_fds", "Open files.", files);
    gauge(out, "process_max_fds", "Files that may be open.", files_max);
    gauge(out, "os_fd_used", "Open files.", files);
    gauge(out, "os_fd_limit", "Files that may be open.", files_max);
    if let Some((received, sent)) = network_bytes() {
        for (word, value) in [("receive", received), ("transmit", sent)] {
            let name = format!("process_network_{word}_bytes_total");
            let help = "Bytes over IP in the process's network namespace.";
            out.one(&name, help, Kind::Counter, &[], to_f64(value));
        }
    }
}

/// What `/proc/self/stat` tells.
#[derive(Debug, PartialEq, Eq)]
struct Own {
    cpu_ticks: u64,
    began_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Own {
    fn parse(text: &str) -> Option<Self> {
        // The name, in parentheses, may have any bytes.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // The first of them is the third one of the file.
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.checked_add(field(15)?)?,
            began_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn boot_time_s() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn network_bytes() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let pairs: Vec<_> = names.split(' ').zip(values.split(' ')).collect();
    let of = |wanted| pairs.iter().find(|(name, _)| *name == wanted)?.1.parse().ok();
    Some((of("InOctets")?, of("OutOctets")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_anything_in_it_is_read_over() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 100 20 13 14 15 16 17 18 900 4096 12 99";
        let own = Own { cpu_ticks: 120, began_ticks: 900, virtual_bytes: 4096, resident_pages: 12 };
        assert_eq!(Own::parse(text), Some(own));
        assert_eq!(Own::parse("7 (a) S 1"), None);
        assert_eq!(Own::parse(""), None);
    }

    #[test]
    fn the_tests_own_process_is_told() {
        let mut out = Families::default();
        put(&mut out);
        let text = out.encode();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
        };
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-5.0..100_000.0).contains(&age), "the process is {age} seconds old");
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_virtual_memory_max_bytes") >= value("process_virtual_memory_bytes"));
    }
}
