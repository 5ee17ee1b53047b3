//! The status hash in parts, so that it can be told for a database of which some rows changed.

/// Most buckets whose sums are kept; etcd has ten.
const BUCKETS_MAX: usize = 100;
/// Longest bucket name that is kept, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// CRC-32C of every top-level bucket: its name, then each key and value, nothing between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketSums {
    buckets: Vec<(Vec<u8>, u32, usize)>,
    is_cut: bool,
}

impl BucketSums {
    pub(super) fn push(&mut self, name: &[u8], crc: u32, bytes: usize) {
        if self.buckets.len() < BUCKETS_MAX && name.len() <= NAME_BYTES_MAX {
            self.buckets.push((name.to_vec(), crc, bytes));
        } else {
            self.is_cut = true;
        }
    }

    /// Returns a bucket's sum, and how many bytes it covers.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<(u32, usize)> {
        let found = self.buckets.iter().find(|(bucket, ..)| bucket == name);
        found.map(|(_, crc, bytes)| (*crc, *bytes))
    }

    /// Puts another sum in the place of a bucket's, or adds the bucket.
    pub fn set(&mut self, name: &[u8], crc: u32, bytes: usize) {
        let place = self.buckets.binary_search_by(|(bucket, ..)| bucket.as_slice().cmp(name));
        match place {
            Ok(at) => {
                if let Some((_, old, old_bytes)) = self.buckets.get_mut(at) {
                    (*old, *old_bytes) = (crc, bytes);
                }
            }
            Err(at) => self.buckets.insert(at, (name.to_vec(), crc, bytes)),
        }
    }

    /// Returns the hash over all buckets; `None` when there are too many to keep.
    #[must_use]
    pub fn status_hash(&self) -> Option<u32> {
        let sum = |sum, (_, crc, bytes): &(Vec<u8>, u32, usize)| {
            crc32c::crc32c_combine(sum, *crc, *bytes)
        };
        (!self.is_cut).then(|| self.buckets.iter().fold(0, sum))
    }
}
