//! Planned changes to a file's rows, and the file seen as if they were done.
//!
//! [`Merge`] stands between a walk and a visitor: the visitor sees buckets and rows in key order,
//! with the planned ones in their places. Nothing is written.
//!
//! 1. Plans are for rows of top-level buckets; nested buckets pass through untouched.
//! 2. A bucket that is planned and not there is made, with sequence 0.
//! 3. A planned row that equals what is there is no change; one to be dropped that is not there is
//!    none either.

use std::collections::{BTreeMap, BTreeSet};

use super::{At, Visit};

/// Rows of one bucket: a value to be put, or `None` for a row to be dropped.
pub type Planned = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Rows to be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Buckets whose rows are all dropped before others are put.
    clear: BTreeSet<Vec<u8>>,
    /// Rows by bucket.
    rows: BTreeMap<Vec<u8>, Planned>,
}

impl Edits {
    /// Plans a row to be put.
    pub fn put(&mut self, bucket: &[u8], key: &[u8], value: &[u8]) {
        self.plan(bucket, key, Some(value.to_vec()));
    }

    /// Plans a row to be dropped.
    pub fn drop_row(&mut self, bucket: &[u8], key: &[u8]) {
        self.plan(bucket, key, None);
    }

    /// Plans a row to be put or, without a value, to be dropped.
    pub fn plan(&mut self, bucket: &[u8], key: &[u8], value: Option<Vec<u8>>) {
        if let Some(rows) = self.rows.get_mut(bucket) {
            rows.insert(key.to_vec(), value);
        } else {
            self.rows.insert(bucket.to_vec(), Planned::from([(key.to_vec(), value)]));
        }
    }

    /// Plans a bucket to be emptied, or made where it is missing; rows that are planned stay.
    pub fn clear(&mut self, bucket: &[u8]) {
        self.clear.insert(bucket.to_vec());
        self.rows.entry(bucket.to_vec()).or_default();
    }

    /// Tells whether nothing is planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Tells whether a bucket is to be emptied.
    #[must_use]
    pub fn clears(&self, bucket: &[u8]) -> bool {
        self.clear.contains(bucket)
    }

    /// Returns what is planned for a row: `Some(None)` for one to be dropped.
    #[must_use]
    pub fn get(&self, bucket: &[u8], key: &[u8]) -> Option<Option<&[u8]>> {
        self.rows.get(bucket)?.get(key).map(Option::as_deref)
    }

    /// Returns the buckets that something is planned for, ascending, with their rows.
    pub fn buckets(&self) -> impl Iterator<Item = (&[u8], &Planned)> {
        self.rows.iter().map(|(name, rows)| (name.as_slice(), rows))
    }
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// It had another value.
    Replaced,
    /// It was there.
    Removed,
}

/// One row that a plan changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The bucket's name.
    pub bucket: Vec<u8>,
    /// The row's key.
    pub key: Vec<u8>,
    /// What became of it.
    pub kind: ChangeKind,
}

/// Most changes that [`Merge`] lists.
pub const CHANGES_MAX: usize = 1000;

/// Shows a walked file to a visitor with planned changes made.
#[derive(Debug)]
pub struct Merge<V> {
    inner: V,
    edits: Edits,
    open: Vec<Vec<u8>>,
    /// Planned rows of the open top-level bucket that are still to come.
    planned: Planned,
    /// The open top-level bucket loses every row that is not planned.
    clears: bool,
    changes: Vec<Change>,
}

impl<V: Visit> Merge<V> {
    /// Stands before `inner`.
    pub fn new(edits: Edits, inner: V) -> Self {
        Self {
            inner,
            edits,
            open: Vec::new(),
            planned: Planned::new(),
            clears: false,
            changes: Vec::new(),
        }
    }

    /// Shows what is planned behind the file's last row; returns the visitor and the first
    /// [`CHANGES_MAX`] changes in file order.
    pub fn finish(mut self) -> (V, Vec<Change>) {
        self.close_to(0);
        self.open_planned_before(None);
        (self.inner, self.changes)
    }

    fn open_bucket(&mut self, at: &At<'_>, sequence: u64) {
        if let [name] = at.bucket {
            self.planned = self.edits.rows.remove(name).unwrap_or_default();
            self.clears = self.edits.clear.contains(name);
        }
        self.inner.bucket(at, sequence);
        self.open = at.bucket.to_vec();
    }

    /// Leaves buckets until `depth` of them are open; planned rows that are left come first.
    fn close_to(&mut self, depth: usize) {
        if depth == 0 && !self.open.is_empty() {
            self.show_planned_before(None);
            self.clears = false;
        }
        self.open.truncate(depth);
    }

    /// Shows buckets that the plan has and the file has not.
    fn open_planned_before(&mut self, name: Option<&[u8]>) {
        while let Some((planned, _)) = self.edits.rows.first_key_value() {
            if name.is_some_and(|name| planned.as_slice() >= name) {
                return;
            }
            let path = [planned.clone()];
            self.open_bucket(&At { bucket: &path, page: 0, offset: 0 }, 0);
            self.close_to(0);
        }
    }

    /// Shows planned rows of the open top-level bucket whose keys are below `key`.
    fn show_planned_before(&mut self, key: Option<&[u8]>) {
        while let Some(first) = self.planned.first_entry() {
            if key.is_some_and(|key| first.key().as_slice() >= key) {
                return;
            }
            let (planned, value) = first.remove_entry();
            let Some(value) = value else { continue };
            self.note(&planned, ChangeKind::Added);
            let path = self.open.get(..1).unwrap_or_default();
            self.inner.entry(&At { bucket: path, page: 0, offset: 0 }, &planned, &value);
        }
    }

    fn note(&mut self, key: &[u8], kind: ChangeKind) {
        if self.changes.len() < CHANGES_MAX {
            let bucket = self.open.first().cloned().unwrap_or_default();
            self.changes.push(Change { bucket, key: key.to_vec(), kind });
        }
    }
}

impl<V: Visit> Visit for Merge<V> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        let Some((name, above)) = at.bucket.split_last() else {
            return self.inner.bucket(at, sequence);
        };
        let shared = self.open.iter().zip(above).take_while(|(a, b)| a == b).count();
        self.close_to(shared);
        match above.len() {
            0 => self.open_planned_before(Some(name)),
            1 => self.show_planned_before(Some(name)),
            _ => {}
        }
        self.open_bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        if self.open.len() != at.bucket.len() {
            self.close_to(at.bucket.len());
        }
        if at.bucket.len() != 1 || (self.planned.is_empty() && !self.clears) {
            return self.inner.entry(at, key, value);
        }
        self.show_planned_before(Some(key));
        match self.planned.remove(key) {
            Some(Some(new)) => {
                if new != value {
                    self.note(key, ChangeKind::Replaced);
                }
                self.inner.entry(at, key, &new);
            }
            None if !self.clears => self.inner.entry(at, key, value),
            Some(None) | None => self.note(key, ChangeKind::Removed),
        }
    }

    fn page(&mut self, entered: u64) -> bool {
        self.inner.page(entered)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::bolt::File;
    use crate::bolt::builder::Builder;
    use crate::bolt::rebuild::Rebuild;
    use crate::bolt::walk::walk;
    use crate::format::finding::{bucket_text, bytes_text};

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
        fn bucket(&mut self, at: &At<'_>, sequence: u64) {
            self.0.push(format!("{}#{sequence}", bucket_text(at.bucket)));
        }
        fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
            let bucket = bucket_text(at.bucket);
            self.0.push(format!("{bucket}:{}={}", bytes_text(key), bytes_text(value)));
        }
    }

    /// What a merged walk shows, and the same again of a file that was rebuilt from it.
    fn merged(edits: &Edits) -> (Vec<Change>, String) {
        let mut shown = Merge::new(edits.clone(), Text::default());
        walk(&source(), &mut shown);
        let (shown, changes) = shown.finish();
        let builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
        let mut rebuilt = Merge::new(edits.clone(), Rebuild::new(builder));
        walk(&source(), &mut rebuilt);
        let (_, out) = rebuilt.finish().0.finish(9).unwrap();
        let mut again = Text::default();
        let walked = walk(&File::from_bytes(out.into_inner()).unwrap(), &mut again);
        assert_eq!(walked.findings.kept(), &[]);
        assert_eq!(again.0, shown.0);
        (changes, shown.0.join(" "))
    }

    #[test]
    fn nothing_planned_changes_nothing() {
        let (changes, text) = merged(&Edits::default());
        let rows = "b#3 b:1=old b:2=old b:4=old d#3 d:x=old d/y#0 d/y:inner=kept d:z=old f#3";
        assert_eq!((changes, text.as_str()), (Vec::new(), rows));
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
        let (changes, text) = merged(&edits);
        let rows = "a#0 a:n=new b#3 b:0=new b:2=new b:3=new b:4=old b:5=new c#0 c:n=new d#3 \
                    d:a=new d/y#0 d/y:inner=kept e#0 f#3 f:n=new g#0 g:n=new";
        assert_eq!(text, rows);
        let count = |kind| changes.iter().filter(|change| change.kind == kind).count();
        let counts = [ChangeKind::Added, ChangeKind::Replaced, ChangeKind::Removed].map(count);
        assert_eq!(counts, [8, 1, 3]);
    }
}
