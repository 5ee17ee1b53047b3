//! Keys in order with a few numbers each, packed: what leaves and inner nodes are made of.
//!
//! What all keys begin with is there once. The eight bytes after that are a number, `heads`, big
//! end first and filled up with zeros, so that a search compares numbers; the rest of the key, its
//! tail, is needed where heads are equal.
//!
//! **Shape** of `rows`: a row of packed little-endian fields for each key, each field as wide as
//! the widest value in this block needs (0 to 8 bytes), then 8 bytes so that a field can be read
//! as 8 bytes anywhere. A put that fits changes its row where it is.
//!
//! **Shape** of `text`: the prefix, then the tails.

use std::cmp::Ordering;
use std::ops::Range;

/// Bytes of a key that are in its head.
const HEAD: usize = 8;
const PAD: usize = 8;
/// Number of fields.
const FIELDS: usize = 8;
/// Rows that a block may grow by before it must move.
const SPARE: usize = 6;

/// A field of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field(u8);

/// Where the key's tail ends in `text`.
const END: Field = Field(0);
/// How many bytes of the head are not there.
const SHORT: Field = Field(1);

impl Field {
    /// The fields that are for the user.
    pub(super) const A: Self = Self(2);
    pub(super) const B: Self = Self(3);
    pub(super) const C: Self = Self(4);
    pub(super) const D: Self = Self(5);
    pub(super) const E: Self = Self(6);
    pub(super) const F: Self = Self(7);

    const ALL: [Self; FIELDS] = [END, SHORT, Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The numbers of a key.
pub(super) type Values = [u64; FIELDS - 2];

/// The keys and their numbers.
#[derive(Clone, Debug)]
pub(super) struct Block {
    heads: Vec<u64>,
    rows: Vec<u8>,
    text: Vec<u8>,
    prefix: u32,
    /// Where each field begins in a row; the last one is the length of a row.
    offsets: [u8; FIELDS + 1],
}

impl Default for Block {
    fn default() -> Self {
        Self {
            heads: Vec::new(),
            rows: Vec::new(),
            text: Vec::new(),
            prefix: 0,
            offsets: [0; FIELDS + 1],
        }
    }
}

const MASKS: [u64; 9] = [
    0,
    0xff,
    0xffff,
    0xff_ffff,
    0xffff_ffff,
    0xff_ffff_ffff,
    0xffff_ffff_ffff,
    0xff_ffff_ffff_ffff,
    u64::MAX,
];

fn mask(width: usize) -> u64 {
    MASKS.get(width).copied().unwrap_or(u64::MAX)
}

/// Bytes that a number needs.
fn width_of(value: u64) -> u8 {
    (u64::BITS - value.leading_zeros()).div_ceil(8) as u8
}

fn offsets_of(widths: [u8; FIELDS]) -> [u8; FIELDS + 1] {
    let mut offsets = [0; FIELDS + 1];
    let mut sum = 0;
    for (offset, width) in offsets.iter_mut().skip(1).zip(widths) {
        sum += width;
        *offset = sum;
    }
    offsets
}

/// A key without its prefix.
#[derive(Clone, Copy)]
struct Cut<'a> {
    head: u64,
    short: u8,
    tail: &'a [u8],
}

impl<'a> Cut<'a> {
    fn new(suffix: &'a [u8]) -> Self {
        match suffix.split_first_chunk::<HEAD>() {
            Some((head, tail)) => Self { head: u64::from_be_bytes(*head), short: 0, tail },
            None => {
                let mut head = [0; HEAD];
                for (to, from) in head.iter_mut().zip(suffix) {
                    *to = *from;
                }
                let short = (HEAD - suffix.len()) as u8;
                Self { head: u64::from_be_bytes(head), short, tail: &[] }
            }
        }
    }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Block {
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Bytes of key text, what is shared counted once.
    pub(super) fn text_bytes(&self) -> usize {
        self.text.len()
    }

    fn row_bytes(&self) -> usize {
        let [.., last] = self.offsets;
        last.into()
    }

    fn widths(&self) -> [u8; FIELDS] {
        let mut widths = [0; FIELDS];
        for (width, ends) in widths.iter_mut().zip(self.offsets.array_windows::<2>()) {
            let [start, end] = ends;
            *width = end - start;
        }
        widths
    }

    fn field(&self, field: Field) -> (usize, usize) {
        let at = |index: usize| usize::from(self.offsets.get(index).copied().unwrap_or(0));
        let start = at(field.index());
        (start, at(field.index() + 1) - start)
    }

    /// Reads a number of a key.
    pub(super) fn value(&self, at: usize, field: Field) -> u64 {
        let (offset, width) = self.field(field);
        let start = at * self.row_bytes() + offset;
        let word = self.rows.get(start..).and_then(|rest| rest.first_chunk::<8>());
        word.map_or(0, |word| u64::from_le_bytes(*word) & mask(width))
    }

    /// Changes a number of a key.
    pub(super) fn set(&mut self, at: usize, field: Field, value: u64) {
        let (offset, width) = self.field(field);
        if value > mask(width) {
            self.widen(field, width_of(value));
            return self.set(at, field, value);
        }
        let start = at * self.row_bytes() + offset;
        let word = self.rows.get_mut(start..).and_then(|rest| rest.first_chunk_mut::<8>());
        if let Some(word) = word {
            let others = u64::from_le_bytes(*word) & !mask(width);
            *word = (others | value).to_le_bytes();
        }
    }

    /// Tells whether any key has another number than 0 there, or had.
    pub(super) fn has(&self, field: Field) -> bool {
        self.field(field).1 > 0
    }

    /// Changes all numbers of a key.
    pub(super) fn set_values(&mut self, at: usize, values: Values) {
        for (field, value) in Field::ALL.into_iter().skip(2).zip(values) {
            self.set(at, field, value);
        }
    }

    fn widen(&mut self, field: Field, width: u8) {
        let mut widths = self.widths();
        if let Some(old) = widths.get_mut(field.index()) {
            *old = width;
        }
        let mut new = Self { offsets: offsets_of(widths), ..Self::default() };
        new.rows = vec![0; self.len() * new.row_bytes() + PAD];
        for at in 0..self.len() {
            for field in Field::ALL {
                new.set(at, field, self.value(at, field));
            }
        }
        self.rows = new.rows;
        self.offsets = new.offsets;
    }

    fn prefix(&self) -> &[u8] {
        self.text.get(..self.prefix as usize).unwrap_or_default()
    }

    /// Where the tail of a key lies.
    fn tail(&self, at: usize) -> Range<usize> {
        let start = match at.checked_sub(1) {
            Some(before) => self.value(before, END) as usize,
            None => self.prefix as usize,
        };
        start..self.value(at, END) as usize
    }

    /// Puts a key into `key`.
    pub(super) fn read_key(&self, at: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        let head = self.heads.get(at).copied().unwrap_or(0).to_be_bytes();
        let short = self.value(at, SHORT) as usize;
        key.extend_from_slice(&head);
        if short > 0 {
            key.truncate(key.len() - short);
        } else {
            key.extend_from_slice(self.text.get(self.tail(at)).unwrap_or_default());
        }
    }

    /// Tells whether a key is the one at a place.
    pub(super) fn is(&self, at: usize, key: &[u8]) -> bool {
        let Some((start, suffix)) = key.split_at_checked(self.prefix as usize) else {
            return false;
        };
        // The beginning differs least.
        self.compare(at, &Cut::new(suffix)).is_eq() && start == self.prefix()
    }

    fn compare(&self, at: usize, cut: &Cut<'_>) -> Ordering {
        let head = self.heads.get(at).copied().unwrap_or(0);
        head.cmp(&cut.head)
            .then_with(|| u64::from(cut.short).cmp(&self.value(at, SHORT)))
            .then_with(|| self.text.get(self.tail(at)).unwrap_or_default().cmp(cut.tail))
    }

    /// Finds a key among those from place `from` on, or where it would be.
    pub(super) fn search(&self, from: usize, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let (start, suffix) = key.split_at_checked(prefix.len()).unwrap_or((key, &[]));
        match start.cmp(prefix) {
            Ordering::Less => return Err(from),
            Ordering::Greater => return Err(self.len()),
            Ordering::Equal => {}
        }
        let cut = Cut::new(suffix);
        let heads = self.heads.get(from..).unwrap_or_default();
        let mut low = from + heads.partition_point(|head| *head < cut.head);
        // Mostly there is one with this head, or none.
        match self.heads.get(low..).unwrap_or_default() {
            [first, ..] if *first != cut.head => return Err(low),
            [] => return Err(low),
            [_] => {}
            [_, second, ..] if *second != cut.head => {}
            [_, rest @ ..] => {
                let mut high = low + 1 + rest.partition_point(|head| *head == cut.head);
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    match self.compare(middle, &cut) {
                        Ordering::Greater => high = middle,
                        Ordering::Less | Ordering::Equal => low = middle,
                    }
                }
            }
        }
        match self.compare(low, &cut) {
            Ordering::Less => Err(low + 1),
            Ordering::Equal => Ok(low),
            Ordering::Greater => Err(low),
        }
    }

    /// Puts a key with its numbers in front of the one at `at`.
    pub(super) fn insert(&mut self, at: usize, key: &[u8], values: Values) {
        if self.len() == 0 {
            let spare = std::mem::take(&mut self.heads);
            *self = Self { heads: spare, ..Self::default() };
            self.text = key.to_vec();
            self.prefix = key.len() as u32;
            self.rows = vec![0; PAD];
        }
        let shared = common(self.prefix(), key);
        if shared < self.prefix as usize {
            *self = Self::gather(&[(self, 0..self.len())], shared, SPARE);
        }
        let cut = Cut::new(key.get(self.prefix as usize..).unwrap_or_default());
        if self.heads.len() == self.heads.capacity() {
            self.heads.reserve_exact(SPARE);
        }
        self.heads.insert(at.min(self.heads.len()), cut.head);
        let start = match at.checked_sub(1) {
            Some(before) => self.value(before, END) as usize,
            None => self.prefix as usize,
        };
        open(&mut self.text, start, cut.tail.len());
        if let Some(place) = self.text.get_mut(start..start + cut.tail.len()) {
            place.copy_from_slice(cut.tail);
        }
        let row_bytes = self.row_bytes();
        open(&mut self.rows, at * row_bytes, row_bytes);
        // The row holds anything yet, which each field replaces.
        let grown = cut.tail.len() as u64;
        if grown > 0 {
            let longest = self.text.len() as u64;
            if longest > mask(self.field(END).1) {
                self.widen(END, width_of(longest));
            }
            self.shift_ends(at + 1, grown);
        }
        self.set(at, END, start as u64 + grown);
        self.set(at, SHORT, cut.short.into());
        self.set_values(at, values);
    }

    /// Adds to the ends of tails from a place on.
    fn shift_ends(&mut self, from: usize, by: u64) {
        let row_bytes = self.row_bytes();
        if self.field(END).1 != 2 {
            for at in from..self.len() {
                self.set(at, END, self.value(at, END).wrapping_add(by));
            }
            return;
        }
        let rows = self.rows.get_mut(from * row_bytes..self.heads.len() * row_bytes);
        for row in rows.unwrap_or_default().chunks_exact_mut(row_bytes) {
            if let Some(end) = row.first_chunk_mut::<2>() {
                *end = u16::from_le_bytes(*end).wrapping_add(by as u16).to_le_bytes();
            }
        }
    }

    /// Drops a key.
    pub(super) fn remove(&mut self, at: usize) {
        if at >= self.len() {
            return;
        }
        let tail = self.tail(at);
        let shrunk = tail.len() as u64;
        if shrunk > 0 {
            self.shift_ends(at + 1, shrunk.wrapping_neg());
        }
        self.text.drain(tail);
        self.heads.remove(at);
        let row_bytes = self.row_bytes();
        self.rows.drain(at * row_bytes..(at + 1) * row_bytes);
    }

    /// Reads all numbers of a key.
    pub(super) fn values(&self, at: usize) -> Values {
        let mut values = [0; FIELDS - 2];
        for (value, field) in values.iter_mut().zip(Field::ALL.into_iter().skip(2)) {
            *value = self.value(at, field);
        }
        values
    }

    /// Makes a block of parts of others, as small as can be, with a prefix of at most
    /// `prefix_max` bytes.
    pub(super) fn gather(parts: &[(&Self, Range<usize>)], prefix_max: usize, spare: usize) -> Self {
        let keys =
            || parts.iter().flat_map(|(block, part)| part.clone().map(move |at| (*block, at)));
        let Some((block, at)) = keys().next() else { return Self::default() };
        let mut first = Vec::new();
        block.read_key(at, &mut first);
        let mut key = Vec::with_capacity(first.len() + HEAD);
        let mut prefix = prefix_max.min(first.len());
        let mut text = 0;
        let mut widths = [0; FIELDS];
        for (block, at) in keys() {
            block.read_key(at, &mut key);
            prefix = common(first.get(..prefix).unwrap_or_default(), &key);
            text += key.len();
            let fields = widths.iter_mut().zip(Field::ALL).skip(2);
            for (width, field) in fields {
                *width = width_of(block.value(at, field)).max(*width);
            }
        }
        let count = keys().count();
        let shared = prefix + HEAD;
        let text = (text + prefix).saturating_sub(count * shared) + prefix;
        let mut gathered = Self {
            heads: Vec::with_capacity(count + spare),
            rows: Vec::new(),
            text: Vec::with_capacity(text),
            prefix: prefix as u32,
            offsets: [0; FIELDS + 1],
        };
        gathered.text.extend_from_slice(first.get(..prefix).unwrap_or_default());
        let mut ends = Vec::with_capacity(count);
        for (block, at) in keys() {
            block.read_key(at, &mut key);
            let cut = Cut::new(key.get(prefix..).unwrap_or_default());
            gathered.heads.push(cut.head);
            gathered.text.extend_from_slice(cut.tail);
            ends.push((gathered.text.len() as u64, u64::from(cut.short)));
            let [_, short, ..] = &mut widths;
            *short = width_of(cut.short.into()).max(*short);
        }
        let [end, ..] = &mut widths;
        *end = width_of(gathered.text.len() as u64);
        gathered.offsets = offsets_of(widths);
        let row_bytes = gathered.row_bytes();
        gathered.rows = Vec::with_capacity((count + spare) * row_bytes + PAD);
        gathered.rows.resize(count * row_bytes + PAD, 0);
        for (to, ((block, at), (end, short))) in keys().zip(ends).enumerate() {
            gathered.set(to, END, end);
            gathered.set(to, SHORT, short);
            for field in Field::ALL.into_iter().skip(2) {
                gathered.set(to, field, block.value(at, field));
            }
        }
        gathered
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.heads.capacity() * 8 + self.rows.capacity() + self.text.capacity()
    }
}

/// Makes room for `more` bytes at a place.
fn open(bytes: &mut Vec<u8>, at: usize, more: usize) {
    let old = bytes.len();
    if bytes.capacity() - old < more {
        bytes.reserve_exact(more * SPARE);
    }
    bytes.resize(old + more, 0);
    bytes.copy_within(at.min(old)..old, at.min(old) + more);
}
