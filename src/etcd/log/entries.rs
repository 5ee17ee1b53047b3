//! The second pass: the entries that survived, one at a time, in order of their indexes.

use super::segment::{Reader, Step};
use super::{Log, ReadError};
use crate::format::wal::{Entry, kind};

/// Why entries cannot be handed out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntriesError {
    /// The log begins later than was asked for.
    #[error("entry {wanted} is not in the log, which begins at {first}")]
    Purged {
        /// Index of the first entry that was asked for.
        wanted: u64,
        /// Index of the first one that is there.
        first: u64,
    },
    /// A segment is not what it was when the log was opened.
    #[error("{segment} changed while it was read, at byte {offset}")]
    Changed {
        /// Name of the segment.
        segment: String,
        /// Offset of the record.
        offset: u64,
    },
    /// A segment cannot be read from the disk.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Entries that are being handed out; see [`Log::entries`].
#[derive(Debug)]
pub struct Entries<'a> {
    log: &'a Log,
    after: u64,
    reader: Option<Reader>,
    segment: usize,
    /// Number of the next entry record.
    ordinal: u64,
    /// First of the log's cuts that lies at or after that record.
    cut: usize,
}

impl Log {
    /// Hands out the entries with an index above `after` up to the last good one, also those that
    /// are not known to be committed: see [`Log::reach`].
    ///
    /// # Errors
    ///
    /// The entry after `after` was purged, or lies before a gap that a snapshot covers.
    pub fn entries(&self, after: u64) -> Result<Entries<'_>, EntriesError> {
        let wanted = after.saturating_add(1);
        let asked = self.last.is_some_and(|last| wanted <= last.index);
        if let Some(first) = self.first.filter(|first| asked && wanted < first.index) {
            return Err(EntriesError::Purged { wanted, first: first.index });
        }
        let old = |segment: &&super::Segment| segment.index_max.is_none_or(|max| max <= after);
        let segment = if asked {
            self.segments.iter().take_while(old).count()
        } else {
            // Nothing to hand out: begin behind the last one.
            self.segments.len()
        };
        let ordinal = self.segments.get(segment).map_or(0, |segment| segment.entries_before);
        let cut = self.cuts.iter().take_while(|cut| cut.ordinal < ordinal).count();
        Ok(Entries { log: self, after, reader: None, segment, ordinal, cut })
    }
}

/// What a record turned out to be.
enum Found {
    Entry,
    Other,
    End,
}

impl Entries<'_> {
    /// Returns the next entry, `None` after the last one.
    ///
    /// # Errors
    ///
    /// A segment changed since the log was opened, or cannot be read.
    pub fn read_next(&mut self) -> Result<Option<Entry<'_>>, EntriesError> {
        loop {
            match self.advance()? {
                Found::End => return Ok(None),
                Found::Other => {}
                Found::Entry => break,
            }
        }
        let data = self.reader.as_ref().map(Reader::data).unwrap_or_default();
        // It was decoded a moment ago.
        Ok(Entry::decode(data).ok())
    }

    /// Reads one record, and tells whether it is an entry to hand out.
    fn advance(&mut self) -> Result<Found, EntriesError> {
        let Some(segment) = self.log.segments.get(self.segment) else { return Ok(Found::End) };
        let path = self.log.dir.join(&segment.name);
        let failed = |error| EntriesError::Read(ReadError::new(&path, error));
        let changed = |offset| EntriesError::Changed { segment: segment.name.clone(), offset };
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(Reader::open(&path, 0).map_err(failed)?),
        };
        let end = &self.log.end;
        let offset = reader.offset();
        if self.segment > end.segment || (self.segment == end.segment && offset >= end.offset) {
            return Ok(Found::End);
        }
        let record = match reader.step().map_err(failed)? {
            Step::Record(record) => record,
            Step::Stop(_) => return Err(changed(offset)),
            Step::End => {
                self.reader = None;
                self.segment = self.segment.saturating_add(1);
                return Ok(Found::Other);
            }
        };
        if record.kind != kind::ENTRY {
            return Ok(Found::Other);
        }
        let ordinal = self.ordinal;
        self.ordinal = ordinal.saturating_add(1);
        let index = Entry::decode(record.data).map_err(|_| changed(offset))?.index;
        while self.log.cuts.get(self.cut).is_some_and(|cut| cut.ordinal <= ordinal) {
            self.cut = self.cut.saturating_add(1);
        }
        let is_cut = self.log.cuts.get(self.cut).is_some_and(|cut| cut.index <= index);
        let first = self.log.first.map_or(u64::MAX, |first| first.index);
        let last = self.log.last.map_or(0, |last| last.index);
        let is_wanted = index > self.after && index >= first && index <= last;
        Ok(if is_wanted && !is_cut { Found::Entry } else { Found::Other })
    }
}
