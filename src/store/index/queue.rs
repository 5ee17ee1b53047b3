//! A queue of small things that stay where they are: in pieces, so that neither growth nor
//! shrinking ever copies what is in it, and what was taken gives its memory back.

use std::collections::VecDeque;

/// Things in one piece.
const PIECE: usize = 512;

/// The queue. Each thing has a number that it keeps: how many were pushed before it.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// All are full but the last one.
    pieces: VecDeque<Vec<T>>,
    /// How many of the first piece were taken.
    taken: usize,
    /// Number of the first one that is in.
    first: u64,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), taken: 0, first: 0, len: 0 }
    }
}

impl<T: Copy> Queue<T> {
    /// Number of the next thing pushed.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.len as u64
    }

    pub(super) fn push(&mut self, thing: T) {
        match self.pieces.back_mut() {
            Some(piece) if piece.len() < PIECE => piece.push(thing),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(thing);
                self.pieces.push_back(piece);
            }
        }
        self.len += 1;
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.pieces.front()?.get(self.taken)
    }

    /// Drops the first one.
    pub(super) fn pop(&mut self) {
        if self.len == 0 {
            return;
        }
        self.len -= 1;
        self.first += 1;
        self.taken += 1;
        if self.len == 0 || self.taken == PIECE {
            self.pieces.pop_front();
            self.taken = 0;
        }
        if self.pieces.len() < self.pieces.capacity() / 4 {
            self.pieces.shrink_to(self.pieces.len() * 2);
        }
    }

    /// Where a number lies: its piece, and its place there.
    fn place(&self, number: u64) -> Option<(usize, usize)> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?.checked_add(self.taken)?;
        Some((at / PIECE, at % PIECE))
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        let (piece, at) = self.place(number)?;
        self.pieces.get(piece)?.get(at)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (piece, at) = self.place(number)?;
        self.pieces.get_mut(piece)?.get_mut(at)
    }

    /// Number of the first one that is not `before` what is looked for; all that are come first.
    pub(super) fn find(&self, before: impl Fn(&T) -> bool) -> u64 {
        let piece = self.pieces.partition_point(|piece| piece.last().is_some_and(&before));
        let within = self.pieces.get(piece).map_or(0, |piece| piece.partition_point(&before));
        // What was taken from the first piece still lies there, and is before everything.
        let at = (piece * PIECE + within).saturating_sub(self.taken).min(self.len);
        self.first + at as u64
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.pieces.len() * PIECE * size_of::<T>() + self.pieces.capacity() * size_of::<Vec<T>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_memory_goes() {
        let mut queue = Queue::default();
        for thing in 0..5_000_u64 {
            assert_eq!(queue.next_number(), thing);
            queue.push(thing * 2);
        }
        for taken in 0..5_000_u64 {
            assert_eq!(queue.front(), Some(&(taken * 2)));
            queue.pop();
            assert_eq!(queue.first, taken + 1);
            assert_eq!(queue.get(taken), None);
            let last = (taken < 4_999).then_some(&9_998);
            assert_eq!(queue.get(4_999), last);
            let wanted = (taken + 1).max(4_000);
            assert_eq!(queue.find(|thing| *thing < 2 * wanted), wanted);
            assert_eq!(queue.find(|thing| *thing < 2 * wanted - 1), wanted);
        }
        queue.pop();
        assert_eq!((queue.first, queue.next_number()), (5_000, 5_000));
        assert!(queue.memory_bytes() < 1_000);
        queue.push(7);
        assert_eq!((queue.get(5_000), queue.get(5_001)), (Some(&7), None));
    }
}
