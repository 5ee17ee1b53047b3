//! Writes what a walk shows into a packed new file.

use std::io::{Seek, Write};

use super::builder::{Builder, Built, Error};
use super::{At, Visit};

/// A visitor that copies every bucket, sequence and row into a [`Builder`].
///
/// The first error ends the copy and, through [`Visit::page`], the walk; [`Rebuild::finish`]
/// returns it.
#[derive(Debug)]
pub struct Rebuild<W> {
    builder: Builder<W>,
    open: Vec<Vec<u8>>,
    rows: u64,
    error: Option<Error>,
}

impl<W: Write + Seek> Rebuild<W> {
    /// Starts a copy.
    #[must_use]
    pub fn new(builder: Builder<W>) -> Self {
        Self { builder, open: Vec::new(), rows: 0, error: None }
    }

    /// Returns how many rows were written.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes what is left and the metas; the caller syncs.
    ///
    /// # Errors
    /// The first error that the copy met.
    pub fn finish(mut self, txid: u64) -> Result<(Built, W), Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.close_to(0)?;
        self.builder.finish(txid)
    }

    fn close_to(&mut self, depth: usize) -> Result<(), Error> {
        while self.open.len() > depth {
            self.builder.end_bucket()?;
            self.open.pop();
        }
        Ok(())
    }

    fn begin(&mut self, path: &[Vec<u8>], sequence: u64) -> Result<(), Error> {
        let (name, above) = path.split_last().ok_or(Error::Nesting)?;
        let shared = self.open.iter().zip(above).take_while(|(a, b)| a == b).count();
        self.close_to(shared)?;
        self.builder.begin_bucket(name, sequence)?;
        self.open.push(name.clone());
        Ok(())
    }

    fn row(&mut self, depth: usize, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.close_to(depth)?;
        self.rows = self.rows.saturating_add(1);
        self.builder.put(key, value)
    }
}

impl<W: Write + Seek> Visit for Rebuild<W> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        if self.error.is_none() {
            self.error = self.begin(at.bucket, sequence).err();
        }
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        if self.error.is_none() {
            self.error = self.row(at.bucket.len(), key, value).err();
        }
    }

    fn page(&mut self, _entered: u64) -> bool {
        self.error.is_none()
    }
}
