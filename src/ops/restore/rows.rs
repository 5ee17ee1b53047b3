//! Copies a database row by row into a packed new one, with planned rows changed on the way.
//!
//! What is changed is planned before the copy and recorded while it happens; every other row is
//! copied byte for byte, sequences included. The copy sums the rows that it reads and the rows
//! that it writes, so the caller can prove that it read what was verified and wrote what was
//! planned.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, Write};

use serde::Serialize;

use crate::bolt::builder::{self, Builder};
use crate::bolt::{At, Visit};
use crate::format::finding::bytes_text;
use crate::ops::Progress;

/// Rows of one bucket: a value to be put, or `None` for a row to be dropped.
type Planned = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Rows to be changed.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    /// Buckets whose rows are all dropped before others are put.
    clear: BTreeSet<Vec<u8>>,
    /// Rows by bucket.
    rows: BTreeMap<Vec<u8>, Planned>,
}

impl Edits {
    /// Plans a row to be put.
    pub fn put(&mut self, bucket: &[u8], key: &[u8], value: &[u8]) {
        let rows = self.rows.entry(bucket.to_vec()).or_default();
        rows.insert(key.to_vec(), Some(value.to_vec()));
    }

    /// Plans a row to be dropped.
    pub fn drop_row(&mut self, bucket: &[u8], key: &[u8]) {
        self.rows.entry(bucket.to_vec()).or_default().insert(key.to_vec(), None);
    }

    /// Plans a bucket to be emptied, or made where it is missing.
    pub fn clear(&mut self, bucket: &[u8]) {
        self.clear.insert(bucket.to_vec());
        self.rows.entry(bucket.to_vec()).or_default();
    }
}

/// One row that the copy changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The bucket's name.
    pub bucket: String,
    /// The row's key.
    pub key: String,
    /// `added`, `replaced` or `removed`.
    pub change: &'static str,
}

/// What a copy did.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    /// Rows that were changed, in file order.
    pub changes: Vec<Change>,
    /// CRC-32C over the source's bucket names and rows, as `snapshot status` sums them.
    pub source_sum: u32,
    /// The same over what was written.
    pub written_sum: u32,
    /// Rows written.
    pub rows: u64,
}

/// Visits a source and writes the copy.
pub struct Copier<'a, W> {
    builder: Option<Builder<W>>,
    edits: Edits,
    progress: &'a dyn Progress,
    page_bytes: u64,
    open: Vec<Vec<u8>>,
    /// Planned rows of the open top-level bucket that are still to come.
    planned: Planned,
    /// The open top-level bucket loses every row that is not planned.
    clears: bool,
    copied: Copied,
    error: Option<builder::Error>,
    stopped: bool,
}

impl<'a, W: Write + Seek> Copier<'a, W> {
    /// Starts a copy into `builder`.
    pub fn new(
        builder: Builder<W>,
        edits: Edits,
        page_bytes: u32,
        progress: &'a dyn Progress,
    ) -> Self {
        Self {
            builder: Some(builder),
            edits,
            progress,
            page_bytes: u64::from(page_bytes),
            open: Vec::new(),
            planned: Planned::new(),
            clears: false,
            copied: Copied::default(),
            error: None,
            stopped: false,
        }
    }

    /// Writes what is left and the metas.
    ///
    /// # Errors
    /// The first error that the copy met. `None` in the result: the copy was told to stop.
    pub fn finish(mut self, txid: u64) -> Result<Option<(Copied, W)>, builder::Error> {
        if self.stopped {
            return Ok(None);
        }
        let mut rest = || {
            self.close_to(0)?;
            self.open_planned_before(None)
        };
        let rest = rest();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        rest?;
        let Some(builder) = self.builder.take() else { return Err(builder::Error::Nesting) };
        let (_, out) = builder.finish(txid)?;
        Ok(Some((self.copied, out)))
    }

    fn builder(&mut self) -> Result<&mut Builder<W>, builder::Error> {
        self.builder.as_mut().ok_or(builder::Error::Nesting)
    }

    fn begin(&mut self, path: &[Vec<u8>], sequence: u64) -> Result<(), builder::Error> {
        let (name, above) = path.split_last().ok_or(builder::Error::Nesting)?;
        let shared = self.open.iter().zip(above).take_while(|(a, b)| a == b).count();
        self.close_to(shared)?;
        match above.len() {
            0 => self.open_planned_before(Some(name))?,
            1 => self.put_planned_before(Some(name))?,
            _ => {}
        }
        self.open_bucket(name, sequence)
    }

    fn open_bucket(&mut self, name: &[u8], sequence: u64) -> Result<(), builder::Error> {
        // The sum counts a nested bucket as a row without a value, and nothing in it.
        if self.open.len() < 2 {
            self.copied.written_sum = crc32c::crc32c_append(self.copied.written_sum, name);
        }
        if self.open.is_empty() {
            self.planned = self.edits.rows.remove(name).unwrap_or_default();
            self.clears = self.edits.clear.contains(name);
        }
        self.builder()?.begin_bucket(name, sequence)?;
        self.open.push(name.to_vec());
        Ok(())
    }

    /// Closes buckets until `depth` of them are open; planned rows that are left come first.
    fn close_to(&mut self, depth: usize) -> Result<(), builder::Error> {
        while self.open.len() > depth {
            if self.open.len() == 1 {
                self.put_planned_before(None)?;
            }
            self.builder()?.end_bucket()?;
            self.open.pop();
        }
        Ok(())
    }

    /// Makes buckets that the plan has and the source has not.
    fn open_planned_before(&mut self, name: Option<&[u8]>) -> Result<(), builder::Error> {
        while let Some((planned, _)) = self.edits.rows.first_key_value() {
            if name.is_some_and(|name| planned.as_slice() >= name) {
                return Ok(());
            }
            let planned = planned.clone();
            self.open_bucket(&planned, 0)?;
            self.close_to(0)?;
        }
        Ok(())
    }

    /// Puts planned rows of the open bucket whose keys are below `key`.
    fn put_planned_before(&mut self, key: Option<&[u8]>) -> Result<(), builder::Error> {
        while let Some((first, _)) = self.planned.first_key_value() {
            if key.is_some_and(|key| first.as_slice() >= key) {
                return Ok(());
            }
            if let Some((planned, Some(value))) = self.planned.pop_first() {
                self.change(&planned, "added");
                self.write(&planned, &value)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) -> Result<(), builder::Error> {
        self.close_to(at.bucket.len())?;
        if at.bucket.len() > 1 || (self.planned.is_empty() && !self.clears) {
            return self.write(key, value);
        }
        self.put_planned_before(Some(key))?;
        match self.planned.remove(key) {
            Some(Some(new)) => {
                if new != value {
                    self.change(key, "replaced");
                }
                self.write(key, &new)
            }
            Some(None) => {
                self.change(key, "removed");
                Ok(())
            }
            None if self.clears => {
                self.change(key, "removed");
                Ok(())
            }
            None => self.write(key, value),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), builder::Error> {
        if self.open.len() == 1 {
            let sum = crc32c::crc32c_append(self.copied.written_sum, key);
            self.copied.written_sum = crc32c::crc32c_append(sum, value);
        }
        self.copied.rows += 1;
        self.builder()?.put(key, value)
    }

    fn change(&mut self, key: &[u8], change: &'static str) {
        let bucket = self.open.first().map(|name| bytes_text(name)).unwrap_or_default();
        let key = bytes_text(key);
        self.copied.changes.push(Change { bucket, key, change });
    }

    fn note(&mut self, outcome: Result<(), builder::Error>) {
        if let Err(error) = outcome
            && self.error.is_none()
        {
            self.error = Some(error);
        }
    }
}

impl<W: Write + Seek> Visit for Copier<'_, W> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        if self.error.is_some() {
            return;
        }
        if let [name] | [_, name] = at.bucket {
            self.copied.source_sum = crc32c::crc32c_append(self.copied.source_sum, name);
        }
        let outcome = self.begin(at.bucket, sequence);
        self.note(outcome);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        if self.error.is_some() {
            return;
        }
        if at.bucket.len() == 1 {
            let sum = crc32c::crc32c_append(self.copied.source_sum, key);
            self.copied.source_sum = crc32c::crc32c_append(sum, value);
        }
        let outcome = self.row(at, key, value);
        self.note(outcome);
    }

    fn page(&mut self, entered: u64) -> bool {
        self.progress.advance(entered.saturating_mul(self.page_bytes));
        self.stopped |= self.progress.stopped();
        !self.stopped && self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::bolt::File;
    use crate::bolt::walk::walk;
    use crate::ops::Silent;

    fn source() -> File {
        let mut builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
        for (bucket, keys) in [("b", &["1", "2", "4"][..]), ("d", &["x"]), ("f", &[])] {
            builder.begin_bucket(bucket.as_bytes(), 3).unwrap();
            keys.iter().for_each(|key| builder.put(key.as_bytes(), b"old").unwrap());
            if bucket == "d" {
                builder.begin_bucket(b"y", 0).unwrap();
                builder.put(b"inner", b"kept").unwrap();
                builder.end_bucket().unwrap();
                builder.put(b"z", b"old").unwrap();
            }
            builder.end_bucket().unwrap();
        }
        File::from_bytes(builder.finish(4).unwrap().1.into_inner()).unwrap()
    }

    #[derive(Default)]
    struct Text(Vec<String>);

    impl Visit for Text {
        fn bucket(&mut self, at: &At<'_>, _: u64) {
            self.0.push(crate::format::finding::bucket_text(at.bucket));
        }
        fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
            let bucket = crate::format::finding::bucket_text(at.bucket);
            self.0.push(format!("{bucket}:{}={}", bytes_text(key), bytes_text(value)));
        }
    }

    fn copy(edits: Edits) -> (Copied, Vec<String>) {
        let file = source();
        let builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
        let mut copier = Copier::new(builder, edits, 4096, &Silent);
        walk(&file, &mut copier);
        let (copied, out) = copier.finish(9).unwrap().unwrap();
        let file = File::from_bytes(out.into_inner()).unwrap();
        let mut text = Text::default();
        let walked = walk(&file, &mut text);
        assert_eq!(walked.findings.kept(), &[]);
        (copied, text.0)
    }

    #[test]
    fn nothing_planned_is_a_true_copy() {
        let (copied, text) = copy(Edits::default());
        let rows = "b b:1=old b:2=old b:4=old d d:x=old d/y d/y:inner=kept d:z=old f";
        assert_eq!(text.join(" "), rows);
        assert_eq!(copied.source_sum, copied.written_sum);
        assert_eq!(copied.changes, []);
    }

    #[test]
    fn planned_rows_land_in_order() {
        let mut edits = Edits::default();
        edits.put(b"a", b"n", b"new");
        edits.put(b"b", b"0", b"new");
        edits.drop_row(b"b", b"1");
        edits.put(b"b", b"2", b"new");
        edits.put(b"b", b"3", b"new");
        edits.put(b"b", b"5", b"new");
        edits.drop_row(b"b", b"not there");
        edits.put(b"c", b"n", b"new");
        edits.clear(b"d");
        edits.put(b"d", b"a", b"new");
        edits.clear(b"e");
        edits.put(b"f", b"n", b"new");
        edits.put(b"g", b"n", b"new");
        let (copied, text) = copy(edits);
        let rows = "a a:n=new b b:0=new b:2=new b:3=new b:4=old b:5=new c c:n=new d d:a=new \
                    d/y d/y:inner=kept e f f:n=new g g:n=new";
        assert_eq!(text.join(" "), rows);
        let changes = |kind: &str| copied.changes.iter().filter(|c| c.change == kind).count();
        assert_eq!((changes("added"), changes("replaced"), changes("removed")), (8, 1, 3));
    }
}
