//! Keys in order with a few numbers each, packed: what leaves and inner nodes are made of.
//!
//! What all keys begin with is there once. The eight bytes after that are a number, the head, big
//! end first and filled up with zeros, so that a search compares numbers; the rest of the key, its
//! tail, is needed where heads are equal.
//!
//! **Shape**, all in one allocation, so that to find a key few places of memory are looked at:
//!
//! | bytes | meaning |
//! |---|---|
//! | as many as all rows | a row for each key, of packed little-endian fields |
//! | 8 | zeros, so that any field can be read as 8 bytes |
//! | the rest | text: the prefix, then the tails |
//!
//! A field is as wide as its widest value in this block needs, 0 to 8 bytes: a put that fits
//! changes its row where it is.

use std::cmp::Ordering;
use std::ops::Range;

/// Bytes of a key that are in its head.
const HEAD_BYTES: usize = 8;
const PAD: usize = 8;
/// Number of fields.
const FIELDS: usize = 9;
/// Of these ours.
const OWN: usize = 3;
/// Rows that a block may grow by before it must move.
const SPARE: usize = 6;

/// A field of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field(u8);

/// The first bytes of the key after the prefix.
const HEAD: Field = Field(0);
/// Where the key's tail ends in the text.
const END: Field = Field(1);
/// How many bytes of the head are not there.
const SHORT: Field = Field(2);

impl Field {
    /// The fields that are for the user.
    pub(super) const A: Self = Self(3);
    pub(super) const B: Self = Self(4);
    pub(super) const C: Self = Self(5);
    pub(super) const D: Self = Self(6);
    pub(super) const E: Self = Self(7);
    pub(super) const F: Self = Self(8);

    const ALL: [Self; FIELDS] =
        [HEAD, END, SHORT, Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The numbers of a key.
pub(super) type Values = [u64; FIELDS - OWN];

/// The keys and their numbers.
#[derive(Clone, Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    len: u32,
    prefix: u32,
    /// Where each field begins in a row; the last one is the length of a row.
    offsets: [u8; FIELDS + 1],
}

impl Default for Block {
    fn default() -> Self {
        Self { bytes: Vec::new(), len: 0, prefix: 0, offsets: [0; FIELDS + 1] }
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
    /// How many bytes of the head a suffix of this length does not fill.
    fn missing(suffix_bytes: usize) -> u8 {
        HEAD_BYTES.saturating_sub(suffix_bytes) as u8
    }

    fn new(suffix: &'a [u8]) -> Self {
        match suffix.split_first_chunk::<HEAD_BYTES>() {
            Some((head, tail)) => Self { head: u64::from_be_bytes(*head), short: 0, tail },
            None => {
                let mut head = [0; HEAD_BYTES];
                for (to, from) in head.iter_mut().zip(suffix) {
                    *to = *from;
                }
                let short = Self::missing(suffix.len());
                Self { head: u64::from_be_bytes(head), short, tail: &[] }
            }
        }
    }
}

fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Block {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Where the text begins.
    fn text_start(&self) -> usize {
        self.len() * self.row_bytes() + PAD
    }

    fn text(&self) -> &[u8] {
        self.bytes.get(self.text_start()..).unwrap_or_default()
    }

    /// Bytes of key text, what is shared counted once.
    pub(super) fn text_bytes(&self) -> usize {
        self.bytes.len().saturating_sub(self.text_start())
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
        let word = self.bytes.get(start..).and_then(|rest| rest.first_chunk::<8>());
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
        let word = self.bytes.get_mut(start..).and_then(|rest| rest.first_chunk_mut::<8>());
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
        self.set_all(at, Field::ALL.get(OWN..).unwrap_or_default(), &values);
    }

    /// Changes some numbers of a key, as [`Block::set`] does one by one.
    fn set_all(&mut self, at: usize, fields: &[Field], values: &[u64]) {
        for (field, value) in fields.iter().zip(values) {
            let width = self.field(*field).1;
            if *value > mask(width) {
                self.widen(*field, width_of(*value));
            }
        }
        let (start, offsets) = (at * self.row_bytes(), self.offsets);
        let row = self.bytes.get_mut(start..).unwrap_or_default();
        for (field, value) in fields.iter().zip(values) {
            let Some([from, to]) = offsets.get(field.index()..).and_then(|ends| ends.first_chunk())
            else {
                continue;
            };
            let mask = mask(usize::from(*to - *from));
            let place = row.get_mut(usize::from(*from)..).and_then(|rest| rest.first_chunk_mut());
            if let Some(word) = place.filter(|_| mask > 0) {
                *word = (u64::from_le_bytes(*word) & !mask | value).to_le_bytes();
            }
        }
    }

    fn widen(&mut self, field: Field, width: u8) {
        let mut widths = self.widths();
        if let Some(old) = widths.get_mut(field.index()) {
            *old = width;
        }
        let offsets = offsets_of(widths);
        let mut new = Self { bytes: Vec::new(), offsets, ..*self };
        new.bytes = Vec::with_capacity(new.text_start() + self.text_bytes());
        new.bytes.resize(new.text_start(), 0);
        for at in 0..self.len() {
            for field in Field::ALL {
                new.set(at, field, self.value(at, field));
            }
        }
        new.bytes.extend_from_slice(self.text());
        *self = new;
    }

    fn prefix(&self) -> &[u8] {
        self.text().get(..self.prefix as usize).unwrap_or_default()
    }

    /// Where the tail of a key begins.
    fn tail_start(&self, at: usize) -> usize {
        match at.checked_sub(1) {
            Some(before) => self.value(before, END) as usize,
            None => self.prefix as usize,
        }
    }

    fn tail(&self, at: usize) -> &[u8] {
        let tail = self.tail_start(at)..self.value(at, END) as usize;
        self.text().get(tail).unwrap_or_default()
    }

    /// Puts a key into `key`.
    pub(super) fn read_key(&self, at: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(&self.value(at, HEAD).to_be_bytes());
        let short = self.value(at, SHORT) as usize;
        if short > 0 {
            key.truncate(key.len() - short);
        } else {
            key.extend_from_slice(self.tail(at));
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
        (self.value(at, HEAD).cmp(&cut.head))
            .then_with(|| u64::from(cut.short).cmp(&self.value(at, SHORT)))
            .then_with(|| self.tail(at).cmp(cut.tail))
    }

    /// Finds the first of the places `low..high` whose head is not `before` what is looked for.
    fn partition(&self, low: usize, high: usize, before: impl Fn(u64) -> bool) -> usize {
        let [mut low, mut left] = [low, high.saturating_sub(low)];
        while left > 0 {
            let half = left / 2;
            let is_before = before(self.value(low + half, HEAD));
            low += if is_before { half + 1 } else { 0 };
            left = if is_before { left - half - 1 } else { half };
        }
        low
    }

    /// Finds a key among those from place `from` on, or where it would be.
    pub(super) fn search(&self, from: usize, key: &[u8]) -> Result<usize, usize> {
        let len = self.len();
        let prefix = self.prefix();
        let (start, suffix) = key.split_at_checked(prefix.len()).unwrap_or((key, &[]));
        match start.cmp(prefix) {
            Ordering::Less => return Err(from),
            Ordering::Greater => return Err(len),
            Ordering::Equal => {}
        }
        let cut = Cut::new(suffix);
        let mut low = self.partition(from, len, |head| head < cut.head);
        let has_head = |at: usize| at < len && self.value(at, HEAD) == cut.head;
        if !has_head(low) {
            return Err(low);
        }
        // Mostly it is the only one.
        if has_head(low + 1) {
            let mut high = self.partition(low + 2, len, |head| head == cut.head);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match self.compare(middle, &cut) {
                    Ordering::Greater => high = middle,
                    Ordering::Less | Ordering::Equal => low = middle,
                }
            }
        }
        match self.compare(low, &cut) {
            Ordering::Less => Err(low + 1),
            Ordering::Equal => Ok(low),
            Ordering::Greater => Err(low),
        }
    }

    /// Tells whether all keys are below one.
    pub(super) fn ends_before(&self, key: &[u8]) -> bool {
        let Some(last) = self.len().checked_sub(1) else { return true };
        let prefix = self.prefix();
        let (start, suffix) = key.split_at_checked(prefix.len()).unwrap_or((key, &[]));
        match start.cmp(prefix) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => self.compare(last, &Cut::new(suffix)).is_lt(),
        }
    }

    /// Gives back spare room.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Puts a key with its numbers in front of the one at `at`.
    pub(super) fn insert(&mut self, at: usize, key: &[u8], values: Values) {
        if self.len == 0 {
            *self = Self { prefix: key.len() as u32, ..Self::default() };
            self.bytes = [&[0; PAD], key].concat();
        }
        let shared = shared_bytes(self.prefix(), key);
        if shared < self.prefix as usize {
            *self = Self::gather(&[(self, 0..self.len())], shared);
        }
        let cut = Cut::new(key.get(self.prefix as usize..).unwrap_or_default());
        let at = at.min(self.len());
        let start = self.tail_start(at);
        let grown = cut.tail.len() as u64;
        let longest = self.text_bytes() as u64 + grown;
        if longest > mask(self.field(END).1) {
            self.widen(END, width_of(longest));
        }
        let row_bytes = self.row_bytes();
        let more = row_bytes + cut.tail.len();
        if self.bytes.capacity() - self.bytes.len() < more {
            self.bytes.reserve_exact(more * SPARE);
        }
        let text = self.text_start() + start;
        open(&mut self.bytes, text, cut.tail.len());
        if let Some(place) = self.bytes.get_mut(text..text + cut.tail.len()) {
            place.copy_from_slice(cut.tail);
        }
        // The row holds anything yet, which each field replaces.
        open(&mut self.bytes, at * row_bytes, row_bytes);
        self.len += 1;
        self.shift_ends(at + 1, grown);
        self.set_all(at, &[HEAD, END, SHORT], &[cut.head, start as u64 + grown, cut.short.into()]);
        self.set_values(at, values);
    }

    /// Adds to the ends of tails from a place on.
    fn shift_ends(&mut self, from: usize, by: u64) {
        if by == 0 {
            return;
        }
        let (offset, width) = self.field(END);
        if width != 2 {
            for at in from..self.len() {
                self.set(at, END, self.value(at, END).wrapping_add(by));
            }
            return;
        }
        let row_bytes = self.row_bytes();
        let rows = self.bytes.get_mut(from * row_bytes..self.len as usize * row_bytes);
        for row in rows.unwrap_or_default().chunks_exact_mut(row_bytes) {
            if let Some(end) = row.get_mut(offset..).and_then(|row| row.first_chunk_mut::<2>()) {
                *end = u16::from_le_bytes(*end).wrapping_add(by as u16).to_le_bytes();
            }
        }
    }

    /// Drops a key.
    pub(super) fn remove(&mut self, at: usize) {
        if at >= self.len() {
            return;
        }
        let tail = self.tail(at).len();
        let text = self.text_start() + self.tail_start(at);
        self.shift_ends(at + 1, (tail as u64).wrapping_neg());
        self.bytes.drain(text..text + tail);
        let row_bytes = self.row_bytes();
        self.bytes.drain(at * row_bytes..(at + 1) * row_bytes);
        self.len -= 1;
        let used = self.bytes.len();
        if self.bytes.capacity() / 3 > used / 2 {
            self.bytes.shrink_to(used + used / 8);
        }
    }

    /// Reads all numbers of a key.
    pub(super) fn values(&self, at: usize) -> Values {
        let mut values = [0; FIELDS - OWN];
        for (value, field) in values.iter_mut().zip(Field::ALL.into_iter().skip(OWN)) {
            *value = self.value(at, field);
        }
        values
    }

    /// Makes a block of parts of others, as small as can be, with a prefix of at most
    /// `prefix_max` bytes.
    pub(super) fn gather(parts: &[(&Self, Range<usize>)], prefix_max: usize) -> Self {
        let keys =
            || parts.iter().flat_map(|(block, part)| part.clone().map(move |at| (*block, at)));
        let Some((block, at)) = keys().next() else { return Self::default() };
        let mut first = Vec::new();
        block.read_key(at, &mut first);
        first.truncate(prefix_max);
        let mut key = Vec::new();
        let [mut len, mut text] = [0, 0];
        let mut widths = [0; FIELDS];
        for (block, at) in keys() {
            block.read_key(at, &mut key);
            first.truncate(shared_bytes(&first, &key));
            len += 1;
            text += key.len();
            for (width, field) in widths.iter_mut().zip(Field::ALL).skip(OWN) {
                *width = width_of(block.value(at, field)).max(*width);
            }
        }
        let prefix = first.len();
        // Where all keys are long enough this is exact.
        let text = (text + prefix).saturating_sub(len * (prefix + HEAD_BYTES)).max(prefix);
        let mut short = 0;
        for (block, at) in keys() {
            let key_bytes = block.key_bytes(at);
            short = Cut::missing(key_bytes - prefix).max(short);
        }
        let [head_width, end_width, short_width, ..] = &mut widths;
        *head_width = HEAD_BYTES as u8;
        *end_width = width_of((text + len * HEAD_BYTES) as u64);
        *short_width = width_of(short.into());
        let mut gathered = Self {
            bytes: Vec::new(),
            len: len as u32,
            prefix: prefix as u32,
            offsets: offsets_of(widths),
        };
        let rows = gathered.text_start();
        gathered.bytes = Vec::with_capacity(rows + text);
        gathered.bytes.resize(rows, 0);
        gathered.bytes.extend_from_slice(&first);
        for (to, (block, at)) in keys().enumerate() {
            block.read_key(at, &mut key);
            let cut = Cut::new(key.get(prefix..).unwrap_or_default());
            gathered.bytes.extend_from_slice(cut.tail);
            let end = gathered.bytes.len() - rows;
            gathered.set(to, HEAD, cut.head);
            gathered.set(to, END, end as u64);
            gathered.set(to, SHORT, cut.short.into());
            for field in Field::ALL.into_iter().skip(OWN) {
                gathered.set(to, field, block.value(at, field));
            }
        }
        gathered
    }

    fn key_bytes(&self, at: usize) -> usize {
        let head = HEAD_BYTES - self.value(at, SHORT) as usize;
        self.prefix as usize + head + self.tail(at).len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Makes room for `more` bytes at a place.
fn open(bytes: &mut Vec<u8>, at: usize, more: usize) {
    let old = bytes.len();
    bytes.resize(old + more, 0);
    bytes.copy_within(at.min(old)..old, at.min(old) + more);
}
