//! What is written to a file that must not change: kept in memory, above the file's own bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{PoisonError, RwLock};

use crate::format::{u64_of, usize_of};

/// Bytes that are kept together.
const BLOCK_BYTES: u64 = 4096;
/// Most bytes that are kept; what would need more fails as on a disk that is full.
const KEPT_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 512 << 20 };

/// The bytes above a file.
#[derive(Debug)]
pub(super) struct Above(RwLock<Kept>);

#[derive(Debug)]
struct Kept {
    /// By number; each of [`BLOCK_BYTES`].
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// Length in bytes that the file seems to have.
    len: u64,
    /// From here on the file's own bytes do not count any more.
    own: u64,
}

impl Above {
    /// Begins with nothing above a file of a length.
    pub(super) fn new(len: u64) -> Self {
        Self(RwLock::new(Kept { blocks: BTreeMap::new(), len, own: len }))
    }

    pub(super) fn len(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len
    }

    /// Fills a buffer from a place on.
    ///
    /// # Errors
    /// The file seems to end before, or cannot be read.
    pub(super) fn read(&self, file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let end = offset.checked_add(u64_of(buffer.len())).filter(|end| *end <= kept.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        kept.read_own(file, buffer, offset)?;
        let first = offset.checked_div(BLOCK_BYTES).unwrap_or_default();
        let last = end.div_ceil(BLOCK_BYTES).max(first);
        for (number, block) in kept.blocks.range(first..last) {
            copy(buffer, offset, block, number.saturating_mul(BLOCK_BYTES));
        }
        Ok(())
    }

    /// Keeps bytes at a place; the file seems to grow where it must.
    ///
    /// # Errors
    /// There is too much to keep, or the file cannot be read.
    pub(super) fn write(&self, file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let end = offset.checked_add(u64_of(bytes.len())).ok_or(io::ErrorKind::InvalidInput)?;
        let first = offset.checked_div(BLOCK_BYTES).unwrap_or_default();
        for number in first..end.div_ceil(BLOCK_BYTES) {
            let start = number.saturating_mul(BLOCK_BYTES);
            let mut block = match kept.blocks.remove(&number) {
                Some(block) => block,
                None => {
                    let kept_bytes = u64_of(kept.blocks.len()).saturating_mul(BLOCK_BYTES);
                    if kept_bytes >= KEPT_BYTES_MAX {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                    let mut block = vec![0; usize_of(BLOCK_BYTES)].into_boxed_slice();
                    kept.read_own(file, &mut block, start)?;
                    block
                }
            };
            copy(&mut block, start, bytes, offset);
            kept.blocks.insert(number, block);
        }
        kept.len = kept.len.max(end);
        Ok(())
    }

    /// Lets the file seem to have another length; what is behind its end is zeros.
    pub(super) fn set_len(&self, len: u64) {
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        kept.own = kept.own.min(len);
        kept.blocks.retain(|number, block| {
            let start = number.saturating_mul(BLOCK_BYTES);
            let left = usize_of(len.saturating_sub(start));
            block.get_mut(left..).unwrap_or_default().fill(0);
            start < len
        });
        kept.len = len;
    }
}

impl Kept {
    /// Fills a buffer with the file's own bytes, and zeros where there are none.
    fn read_own(&self, file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let own = usize_of(self.own.saturating_sub(offset)).min(buffer.len());
        let (own, rest) = buffer.split_at_mut_checked(own).unwrap_or_default();
        rest.fill(0);
        file.read_exact_at(own, offset)
    }
}

/// Copies the bytes from `source`, which begins at `start`, that lie in `buffer`, which begins at
/// `offset`.
fn copy(buffer: &mut [u8], offset: u64, source: &[u8], start: u64) {
    let to = usize_of(start.saturating_sub(offset));
    let from = usize_of(offset.saturating_sub(start));
    let to = buffer.get_mut(to..).unwrap_or_default();
    let from = source.get(from..).unwrap_or_default();
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let write = (0..20_000_u64, proptest::collection::vec(any::<u8>(), 0..9_000))
            .prop_map(|(offset, bytes)| Step::Write(offset, bytes));
        let step = prop_oneof![3 => write, 1 => (0..25_000_u64).prop_map(Step::SetLen)];
        proptest::collection::vec(step, 0..12)
    }

    proptest! {
        #[test]
        fn it_reads_as_a_file_that_was_changed(own in 0..15_000_usize, steps in steps()) {
            let own: Vec<u8> = (0..own).map(|at| (at % 251) as u8 | 1).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&own).unwrap();
            let above = Above::new(u64_of(own.len()));
            let mut model = own.clone();
            for step in steps {
                match step {
                    Step::Write(offset, bytes) => {
                        above.write(&file, &bytes, offset).unwrap();
                        let offset = usize_of(offset);
                        if model.len() < offset + bytes.len() {
                            model.resize(offset + bytes.len(), 0);
                        }
                        model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                    Step::SetLen(len) => {
                        above.set_len(len);
                        model.resize(usize_of(len), 0);
                    }
                }
                prop_assert_eq!(above.len(), u64_of(model.len()));
                let mut all = vec![9; model.len()];
                above.read(&file, &mut all, 0).unwrap();
                prop_assert_eq!(&all, &model);
                let mut part = vec![9; model.len() / 3];
                above.read(&file, &mut part, u64_of(model.len() / 2)).unwrap();
                prop_assert_eq!(&part[..], &model[model.len() / 2..][..part.len()]);
            }
            prop_assert!(above.read(&file, &mut [0], u64_of(model.len())).is_err());
            let mut left = vec![0; own.len()];
            file.read_exact_at(&mut left, 0).unwrap();
            prop_assert_eq!(left, own);
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let file = tempfile::tempfile().unwrap();
        let above = Above::new(0);
        let mut offset = 0;
        let refused = loop {
            match above.write(&file, &[7; 4096], offset) {
                Ok(()) => offset += 8192,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(offset, KEPT_BYTES_MAX * 2);
    }
}
