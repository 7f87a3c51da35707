// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a WQE is written: from a basic block on, over the end of the ring to its start where it must.

use crate::memory::{BlockIndex, SqAddrs, SqView};
use core::sync::atomic::{AtomicU64, Ordering};

/// The place of one WQE. Nothing that is written here is seen before the doorbell rings.
#[derive(Clone, Copy)]
pub(crate) struct WqeWriter<'r> {
    ring: SqView<'r>,
    /// The first basic block, which never wraps.
    head: &'r [AtomicU64; 8],
    place: BlockIndex,
}

impl<'r> WqeWriter<'r> {
    /// The WQE that begins at this place.
    #[inline(always)]
    pub(crate) fn new(ring: SqView<'r>, place: BlockIndex) -> Self {
        Self { ring, head: ring.at(place), place }
    }

    /// Where it begins.
    #[inline(always)]
    pub(crate) fn place(self) -> BlockIndex {
        self.place
    }

    /// Ring and place, for a function that is not inlined, which finds the block by itself.
    #[inline(always)]
    pub(crate) fn lend(self) -> (&'r SqAddrs, BlockIndex) {
        (self.ring.lend(), self.place)
    }

    /// `count` words from `word` on, if they do not go over the ring's end.
    #[inline(always)]
    pub(crate) fn words(self, word: u32, count: usize) -> Option<&'r [AtomicU64]> {
        self.ring.words_from(self.place, word, count)
    }

    /// Writes the 16 bytes at `unit`.
    #[inline(always)]
    pub(crate) fn put(self, unit: u32, words: [u64; 2]) {
        // In the first block, where most calls know to be, the place needs no mask.
        if unit < 4 {
            self.head[unit as usize * 2].store(words[0], Ordering::Relaxed);
            self.head[unit as usize * 2 + 1].store(words[1], Ordering::Relaxed);
        } else {
            self.put_far(unit, words);
        }
    }

    /// The same for a `unit` that only the run tells.
    #[inline(always)]
    pub(crate) fn put_far(self, unit: u32, words: [u64; 2]) {
        let place = self.ring.unit_from(self.place, unit);
        place[0].store(words[0], Ordering::Relaxed);
        place[1].store(words[1], Ordering::Relaxed);
    }

    /// Writes the 8 bytes at `word`.
    #[inline(always)]
    fn put_word(self, word: u32, value: u64) {
        if word < 8 {
            self.head[word as usize].store(value, Ordering::Relaxed);
        } else {
            let block = self.ring.at(self.place.after(word / 8));
            block[(word % 8) as usize].store(value, Ordering::Relaxed);
        }
    }

    /// Writes the first word.
    #[inline(always)]
    pub(crate) fn put_ctrl0(self, word: u64) {
        self.head[0].store(word, Ordering::Relaxed);
    }

    /// Writes the second word.
    #[inline(always)]
    pub(crate) fn put_ctrl1(self, word: u64) {
        self.head[1].store(word, Ordering::Relaxed);
    }

    /// Names the stream of a DC initiator that the WR belongs to.
    pub(crate) fn add_stream(self, stream: u16) {
        let word = u64::from_be(self.head[1].load(Ordering::Relaxed));
        self.put_ctrl1((word | u64::from(stream) << 40).to_be());
    }

    /// Gives a WQE the fence that it was written without, unless it asks for a stronger one.
    #[cold]
    pub(crate) fn add_small_fence(self) {
        const FENCES: u64 = 0xe0 << 32;
        let word = u64::from_be(self.head[1].load(Ordering::Relaxed));
        if word & FENCES == 0 {
            let fence = u64::from(uverbs_mlx5_hw::wqe::MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE) << 32;
            self.put_ctrl1((word | fence).to_be());
        }
    }
}

impl WqeWriter<'_> {
    /// Writes, from `word` on, the 4 bytes of `head` and then `bytes`, with zeros up to the end of the last word. `false`, and
    /// nothing of use written, if there are no bytes or they go over the ring's end.
    #[inline(always)]
    pub(crate) fn put_bytes(self, word: u32, head: u32, bytes: &[u8]) -> bool {
        let head = u64::from(head);
        let (Some((start, [rest @ .., _])), Some(end)) =
            (bytes.split_first_chunk::<4>(), bytes.last_chunk::<8>())
        else {
            return put_few(self.lend(), word, head, bytes);
        };
        // The last word overlaps the one before it in `bytes`; what is not its own is shifted out.
        let chunks = rest.as_chunks::<8>().0;
        let Some([first, words @ .., last]) = self.words(word, chunks.len() + 2) else { return false };
        first.store((head | u64::from(u32::from_le_bytes(*start)) << 32).to_le(), Ordering::Relaxed);
        put_words(words, chunks);
        let padding = (rest.len() as u32 + 1).wrapping_neg() % 8 * 8;
        last.store((u64::from_le_bytes(*end) >> padding).to_le(), Ordering::Relaxed);
        true
    }
}

/// [`WqeWriter::put_bytes`] of fewer than 8 bytes.
#[inline(never)]
fn put_few((ring, place): (&SqAddrs, BlockIndex), word: u32, head: u64, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return false;
    }
    let (start, rest) = bytes.split_at(bytes.len().min(4));
    let count = if rest.is_empty() { 1 } else { 2 };
    let Some([first, second @ ..]) = ring.view().words_from(place, word, count) else { return false };
    first.store((head | short(start) << 32).to_le(), Ordering::Relaxed);
    if let [second] = second {
        second.store(short(rest).to_le(), Ordering::Relaxed);
    }
    true
}

/// Stores as many chunks as there are words. Four at a time, and what remains by halves: the usual lengths take fewer branches
/// than a loop over single words.
#[inline(always)]
fn put_words(mut words: &[AtomicU64], mut chunks: &[[u8; 8]]) {
    let put = |word: &AtomicU64, chunk: &[u8; 8]| word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    while let ([w0, w1, w2, w3, words_left @ ..], [c0, c1, c2, c3, chunks_left @ ..]) = (words, chunks) {
        put(w0, c0);
        put(w1, c1);
        put(w2, c2);
        put(w3, c3);
        (words, chunks) = (words_left, chunks_left);
    }
    if let ([w0, w1, words_left @ ..], [c0, c1, chunks_left @ ..]) = (words, chunks) {
        put(w0, c0);
        put(w1, c1);
        (words, chunks) = (words_left, chunks_left);
    }
    if let ([w0, ..], [c0, ..]) = (words, chunks) {
        put(w0, c0);
    }
}

/// Copies bytes into a WQE, by words: bytes come in pieces of any length, words go out at their places.
pub(crate) struct InlineWriter<'r> {
    slot: WqeWriter<'r>,
    /// The next word's place.
    word: u32,
    /// Its first bytes, from the low bits up.
    part: u64,
    /// How many.
    filled: u32,
}

impl<'r> InlineWriter<'r> {
    /// Begins at `word` with the first `filled` bytes of `part`, counted from its low bits; fewer than 8.
    #[inline(always)]
    pub(crate) fn new(slot: WqeWriter<'r>, word: u32, part: u64, filled: u32) -> Self {
        Self { slot, word, part, filled }
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.slot.put_word(self.word, self.part.to_le());
        self.word += 1;
    }

    /// Adds `bytes`.
    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.filled != 0 {
            let room = 8 - self.filled as usize;
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.part |= short(now) << (self.filled * 8);
            self.filled += now.len() as u32;
            rest = later;
            if self.filled < 8 {
                return;
            }
            self.flush();
        }
        let (words, tail) = rest.as_chunks::<8>();
        self.put_words(words);
        (self.part, self.filled) = (short(tail), tail.len() as u32);
    }

    /// Writes whole words.
    #[inline(always)]
    fn put_words(&mut self, words: &[[u8; 8]]) {
        let from = self.word as usize;
        // Mostly all of them are in the first block: one test for all.
        if let Some(places) = self.slot.head.get(from..from.saturating_add(words.len())) {
            for (place, word) in places.iter().zip(words) {
                place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            self.word += words.len() as u32;
        } else {
            self.put_words_far(words);
        }
    }

    fn put_words_far(&mut self, words: &[[u8; 8]]) {
        for word in words {
            self.part = u64::from_le_bytes(*word);
            self.flush();
        }
    }

    /// Writes what is left, and zeros up to the end of its word.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        if self.filled != 0 {
            self.flush();
        }
    }
}

/// Up to 8 bytes as a number, the first in the low bits. By at most two loads that overlap: a loop over bytes would become
/// a call.
#[inline(always)]
fn short(bytes: &[u8]) -> u64 {
    let n = bytes.len();
    if let (Some(low), Some(high)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let high = u64::from(u32::from_le_bytes(*high));
        return u64::from(u32::from_le_bytes(*low)) | high << ((n - 4) * 8);
    }
    match *bytes {
        [a] => a.into(),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c] => u64::from(u16::from_le_bytes([a, b])) | u64::from(c) << 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{QueueBuf, SqRing};
    use proptest::prelude::*;

    fn bytes(ring: &SqRing, from: u32, len: usize) -> Vec<u8> {
        let words = (0..).map(|i| ring.view().word(from + i).load(Ordering::Relaxed).to_ne_bytes());
        words.flatten().take(len).collect()
    }

    proptest! {
        #[test]
        fn pieces_are_copied_one_after_the_other(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..6),
            index in 0_u32..8,
            filled in 0_u32..8,
        ) {
            let ring = SqRing::new(QueueBuf::new(4096).unwrap(), 0, 8).unwrap();
            ring.buf().words().iter().for_each(|w| w.store(u64::MAX, Ordering::Relaxed));
            let head = 0x1716_1514_1312_1110_u64 & ((1 << (filled * 8)) - 1);
            let mut writer = InlineWriter::new(WqeWriter::new(ring.view(), BlockIndex::of(index)), 3, head, filled);
            pieces.iter().for_each(|p| writer.push(p));
            writer.finish();
            let mut expected = head.to_le_bytes()[..filled as usize].to_vec();
            pieces.iter().for_each(|p| expected.extend_from_slice(p));
            let got = bytes(&ring, index * 8 + 3, expected.len());
            prop_assert_eq!(&got, &expected);
            // Nothing behind it but the rest of its last word.
            let end = expected.len().div_ceil(8) as u32;
            prop_assert_eq!(bytes(&ring, index * 8 + 3 + end, 8), vec![0xff; 8]);
        }

        #[test]
        fn short_reads_little_endian(bytes in proptest::collection::vec(any::<u8>(), 0..=8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(short(&bytes), u64::from_le_bytes(padded));
        }
    }

    #[test]
    fn units_wrap_and_fences_are_added_once() {
        let ring = SqRing::new(QueueBuf::new(4096).unwrap(), 0, 4).unwrap();
        let slot = WqeWriter::new(ring.view(), BlockIndex::of(7));
        (0..8).for_each(|i| slot.put(i, [u64::from(i) << 32, 0]));
        let at = |unit| {
            u32::from_ne_bytes(
                ring.view().unit(unit)[0].load(Ordering::Relaxed).to_ne_bytes()[4..].try_into().unwrap(),
            )
        };
        assert_eq!([at(12), at(13), at(15), at(0), at(3)], [0, 1, 3, 4, 7]);
        for (before, after) in [(0x00, 0x20), (0x88, 0x88), (0x0a, 0x2a), (0x20, 0x20)] {
            slot.put_ctrl1(super::super::ctrl1(before, 9));
            slot.add_small_fence();
            assert_eq!(slot.head[1].load(Ordering::Relaxed), super::super::ctrl1(after, 9));
        }
    }
}
