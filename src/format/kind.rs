//! What a file is, from its first bytes: the ways in which a snapshot arrives as something else.
//!
//! Source of the magic numbers: RFC 1952 (gzip), RFC 8878 (zstd), APPNOTE.TXT (zip), tukaani.org
//! (xz), age-encryption.org/v1, POSIX ustar.

/// A format that is not bbolt but may hold a snapshot inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrapping {
    /// What it is called.
    pub name: &'static str,
    /// The command that takes the snapshot out, with `FILE` for the file's name.
    pub unwrap: &'static str,
}

const MAGICS: &[(usize, &[u8], Wrapping)] = &[
    (0, b"\x1f\x8b", Wrapping { name: "gzip", unwrap: "gzip -dc FILE > snapshot.db" }),
    (0, b"\x28\xb5\x2f\xfd", Wrapping { name: "zstd", unwrap: "zstd -dc FILE > snapshot.db" }),
    (0, b"PK\x03\x04", Wrapping { name: "zip", unwrap: "unzip -p FILE > snapshot.db" }),
    (0, b"\xfd7zXZ\0", Wrapping { name: "xz", unwrap: "xz -dc FILE > snapshot.db" }),
    (0, b"BZh", Wrapping { name: "bzip2", unwrap: "bzip2 -dc FILE > snapshot.db" }),
    (0, b"\x04\x22\x4d\x18", Wrapping { name: "lz4", unwrap: "lz4 -dc FILE > snapshot.db" }),
    (
        0,
        b"age-encryption.org/v1",
        Wrapping { name: "age", unwrap: "age -d -i KEYFILE FILE > snapshot.db" },
    ),
    (
        0,
        b"-----BEGIN AGE ENCRYPTED FILE-----",
        Wrapping { name: "age (armored)", unwrap: "age -d -i KEYFILE FILE > snapshot.db" },
    ),
    (
        0,
        b"-----BEGIN PGP MESSAGE-----",
        Wrapping { name: "OpenPGP", unwrap: "gpg -d FILE > snapshot.db" },
    ),
    (0, b"Salted__", Wrapping { name: "openssl enc", unwrap: "openssl enc -d -in FILE" }),
    (257, b"ustar", Wrapping { name: "tar", unwrap: "tar -xf FILE" }),
];

/// Recognises a wrapped file by its first bytes; 512 are enough.
#[must_use]
pub fn wrapping(head: &[u8]) -> Option<Wrapping> {
    let known = MAGICS.iter().find(|(at, magic, _)| {
        head.get(*at..at.saturating_add(magic.len())).is_some_and(|bytes| bytes == *magic)
    });
    if let Some((_, _, wrapping)) = known {
        return Some(*wrapping);
    }
    let base64 =
        |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'\n' | b'\r');
    if head.len() >= 128 && head.iter().all(base64) {
        return Some(Wrapping { name: "base64", unwrap: "base64 -d FILE > snapshot.db" });
    }
    None
}

/// Counts over a file's bytes that give a text-mode transfer away.
///
/// Feed it the file in order, in pieces of any size.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextMarks {
    line_feeds: u64,
    line_feeds_after_return: u64,
    replacement_characters: u64,
    high_bytes: u64,
    last: [u8; 2],
}

impl TextMarks {
    /// Counts a further piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let [before, previous] = self.last;
            if byte == b'\n' {
                self.line_feeds = self.line_feeds.saturating_add(1);
                if previous == b'\r' {
                    self.line_feeds_after_return = self.line_feeds_after_return.saturating_add(1);
                }
            }
            if byte >= 0x80 {
                self.high_bytes = self.high_bytes.saturating_add(1);
            }
            if [before, previous, byte] == [0xef, 0xbf, 0xbd] {
                self.replacement_characters = self.replacement_characters.saturating_add(1);
            }
            self.last = [previous, byte];
        }
    }

    /// Says what was done to the bytes, where the counts leave no reasonable doubt.
    #[must_use]
    pub fn verdict(&self) -> Option<&'static str> {
        if self.replacement_characters >= 8 {
            return Some("bytes were replaced as if the file were UTF-8 text");
        }
        if self.line_feeds >= 8 && self.line_feeds == self.line_feeds_after_return {
            return Some("every line feed became carriage return and line feed");
        }
        None
    }

    /// Tells whether every byte had its top bit cut off: no high byte in a large file.
    #[must_use]
    pub fn seven_bit(&self) -> bool {
        self.high_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappings_are_named() {
        assert_eq!(wrapping(b"\x1f\x8b\x08\0").unwrap().name, "gzip");
        assert_eq!(wrapping(b"age-encryption.org/v1\n-> X").unwrap().name, "age");
        assert_eq!(wrapping(&[b'A'; 200]).unwrap().name, "base64");
        assert_eq!(wrapping(&[0; 600]), None);
        assert_eq!(wrapping(b""), None);
    }

    #[test]
    fn text_mode_shows() {
        let mut marks = TextMarks::default();
        (0..20).for_each(|_| marks.feed(b"ab\r\n\x81"));
        assert!(marks.verdict().is_some());
        let mut marks = TextMarks::default();
        (0..20).for_each(|_| marks.feed(b"ab\n\r\n\x81"));
        assert_eq!(marks.verdict(), None);
        assert!(!marks.seven_bit());
    }
}
