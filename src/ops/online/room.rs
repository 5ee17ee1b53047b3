//! Room on the disk of a member that runs on this host.
//!
//! A defragmentation writes all that is in use into `db.tmp*` beside the database; up to etcd 3.6
//! one that fills the disk may end the server. Where the data is comes from the flag, or from the
//! process that listens at the endpoint and has `member/snap/db` open, where `/proc` shows it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::live::{Endpoint, Place};
use crate::ops::disk;

/// Bytes to be free beside what is copied.
const MARGIN_BYTES: u64 = 16 << 20;
const LEFTOVER: &str = "db.tmp";
const DATABASE: &str = "member/snap/db";

/// What is known of a member's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// The folder of the database.
    pub(super) folder: PathBuf,
    /// Bytes that are free there.
    pub(super) free_bytes: u64,
    /// Copies that killed defragmentations left.
    pub(super) leftovers: Vec<String>,
}

impl Room {
    /// Looks at the disk of a member; `None` where it is not here, or not seen.
    pub(super) fn of(endpoint: &str, data_dir: Option<&Path>) -> Option<Self> {
        let endpoint = Endpoint::parse(endpoint).ok()?;
        let Place::Tcp { host, port } = endpoint.place() else { return None };
        let address = own_address(host)?;
        let database = match data_dir {
            Some(dir) => Some(dir.join(DATABASE)).filter(|path| path.is_file()),
            None => database_of(address, *port),
        }?;
        Self::at(database.parent()?)
    }

    fn at(folder: &Path) -> Option<Self> {
        let names = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(LEFTOVER).then_some(name)
        });
        let mut leftovers: Vec<String> = names.collect();
        leftovers.sort();
        let free_bytes = disk::free_bytes(folder)?;
        Some(Self { folder: folder.to_owned(), free_bytes, leftovers })
    }

    /// Returns how many bytes a defragmentation needs.
    pub(super) fn needed(in_use_bytes: i64) -> u64 {
        let bytes = u64::try_from(in_use_bytes).unwrap_or(0);
        bytes.saturating_add(bytes / 10).saturating_add(MARGIN_BYTES)
    }
}

/// Returns the address of a host, where it is this one; names but `localhost` are not asked for.
fn own_address(host: &str) -> Option<IpAddr> {
    if host == "localhost" {
        return Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let address: IpAddr = host.parse().ok()?;
    // Only an address of this host can be had.
    UdpSocket::bind((address, 0)).ok().map(|_| address)
}

/// Finds the database of whoever listens at an address.
fn database_of(address: IpAddr, port: u16) -> Option<PathBuf> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).ok());
    let inodes: Vec<u64> =
        tables.iter().flatten().flat_map(|table| listeners(table, address, port)).collect();
    let sockets: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().chars().all(|c| c.is_ascii_digit()));
    processes.map(|entry| entry.path()).find_map(|process| {
        let open = fs::read_dir(process.join("fd")).ok()?.flatten();
        let open: Vec<PathBuf> = open.filter_map(|file| fs::read_link(file.path()).ok()).collect();
        let listens = open.iter().any(|path| sockets.iter().any(|name| path == Path::new(name)));
        let database = open.iter().find(|path| path.ends_with(DATABASE)).filter(|_| listens)?;
        // A container sees its own root.
        let inside = process.join("root").join(database.strip_prefix("/").ok()?);
        [inside, database.clone()].into_iter().find(|path| path.is_file())
    })
}

/// Reads the sockets that listen at an address, or at all, out of `/proc/net/tcp` or `tcp6`: after
/// a header, lines of `sl local_address rem_address st ...`, the inode in the tenth column; an
/// address is hex, in words of 32 bits of this machine, and the port behind a colon.
fn listeners(table: &str, address: IpAddr, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let found = table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_whitespace();
        let local = columns.nth(1)?;
        let state = columns.nth(1)?;
        let inode = columns.nth(5)?.parse().ok()?;
        let (at, at_port) = local.split_once(':')?;
        let at = decode_address(at)?;
        let is_there = at.is_unspecified() || at == address;
        let is_port = u16::from_str_radix(at_port, 16).ok()? == port;
        (state == LISTEN && is_there && is_port).then_some(inode)
    });
    found.collect()
}

fn decode_address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hex.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_le_bytes())
    };
    match hex.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let mut bytes = [0_u8; 16];
            for (at, part) in bytes.chunks_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "  sl  local_address rem_address   st and so on
   0: 0100007F:094B 00000000:0000 0A 0:0 00:0 0 0 0 4711 1 0 100
   1: 0200007F:094B 00000000:0000 0A 0:0 00:0 0 0 0 4712 1 0 100
   2: 0100007F:094B 0100007F:1234 01 0:0 00:0 0 0 0 4713 1 0 100
   3: 00000000:094C 00000000:0000 0A 0:0 00:0 0 0 0 4714 1 0 100
 nonsense
";
    const V6: &str = "  sl  local_address                         remote_address
   0: 00000000000000000000000000000000:094B 0:0000 0A 0:0 00:0 0 0 0 5001 1 0
   1: 00000000000000000000000001000000:094C 0:0000 0A 0:0 00:0 0 0 0 5002 1 0
   2: 0000000000000000FFFF00000100007F:094C 0:0000 0A 0:0 00:0 0 0 0 5003 1 0
";

    #[test]
    fn who_listens_is_found() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(listeners(V4, local, 2379), [4711]);
        assert_eq!(listeners(V4, local, 2380), [4714]);
        assert_eq!(listeners(V4, "127.0.0.2".parse().unwrap(), 2379), [4712]);
        assert_eq!(listeners(V6, local, 2379), [5001]);
        assert_eq!(listeners(V6, local, 2380), [5003]);
        assert_eq!(listeners(V6, "::1".parse().unwrap(), 2380), [5002]);
        assert_eq!(decode_address("01"), None);
        assert_eq!(decode_address("0100007G"), None);
    }

    #[test]
    fn only_this_host_is_looked_at() {
        assert!(own_address("localhost").is_some());
        assert!(own_address("127.0.0.1").is_some());
        assert!(own_address("192.0.2.1").is_none(), "an address of nobody");
        assert!(own_address("etcd.example").is_none());
    }

    #[test]
    fn leftovers_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let snap = dir.path().join("member/snap");
        fs::create_dir_all(&snap).unwrap();
        fs::write(snap.join("db"), "x").unwrap();
        fs::write(snap.join("db.tmp.123"), "x").unwrap();
        let room = Room::of("http://127.0.0.1:1", Some(dir.path())).unwrap();
        assert_eq!(room.leftovers, ["db.tmp.123"]);
        assert!(room.free_bytes > 0);
        assert_eq!(Room::of("http://192.0.2.1:1", Some(dir.path())), None);
        assert_eq!(Room::of("http://127.0.0.1:1", Some(&snap)), None, "no data directory");
        assert_eq!(Room::needed(-1), MARGIN_BYTES);
        assert_eq!(Room::needed(100), MARGIN_BYTES + 110);
    }
}
