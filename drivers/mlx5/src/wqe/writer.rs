// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes units of a WQE to the ring, from a basic block on. A WQE wraps at the ring's end.
#![cfg_attr(all(target_arch = "x86_64", not(miri)), expect(unsafe_code))]
// UNSAFETY: stores of 16 bytes to words of the ring.

use crate::memory::{BlockIndex, Segment, SqAddrs, SqView, UnitIndex};
use core::sync::atomic::{AtomicU64, Ordering};

/// A WQE in the ring. The device does not read it before the doorbell.
#[derive(Clone, Copy)]
pub(crate) struct WqeWriter<'r> {
    ring: SqView<'r>,
    /// The first basic block, which never wraps.
    head: &'r [AtomicU64; 8],
    place: BlockIndex,
}

impl<'r> WqeWriter<'r> {
    /// The WQE that begins at `place`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn new(ring: SqView<'r>, place: BlockIndex) -> Self {
        Self { ring, head: ring.at(place), place }
    }

    /// The WQE's first block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn place(self) -> BlockIndex {
        self.place
    }

    /// The ring and the place, as arguments of a function that is not inlined.
    // codegen: words
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn ring_and_place(self) -> (&'r SqAddrs, BlockIndex) {
        (self.ring.addrs_by_ref(), self.place)
    }

    /// `count` units from `unit` on, if they do not wrap at the ring's end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn units(self, unit: u32, count: usize) -> Option<&'r [[AtomicU64; 2]]> {
        self.ring.units_from(self.place.unit(unit), count)
    }

    /// Writes the 16 bytes at `unit`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put(self, unit: u32, words: [u64; 2]) {
        // In the first block, which is known at compile time in most calls, the index needs no mask.
        if unit < 4 {
            self.head[unit as usize * 2].store(words[0], Ordering::Relaxed);
            self.head[unit as usize * 2 + 1].store(words[1], Ordering::Relaxed);
        } else {
            self.put_far(unit, words);
        }
    }

    /// [`put`](Self::put) for a `unit` that is not known at compile time.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_far(self, unit: u32, words: [u64; 2]) {
        let place = self.ring.unit_at(self.place.unit(unit));
        place[0].store(words[0], Ordering::Relaxed);
        place[1].store(words[1], Ordering::Relaxed);
    }

    /// Writes a `unit` of the `nth` block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_pair(self, nth: u32, unit: usize, words: [u64; 2]) {
        let block = self.ring.at(self.place.after(nth));
        let Some([first, second]) = block.as_chunks::<2>().0.get(unit) else { return };
        first.store(words[0], Ordering::Relaxed);
        second.store(words[1], Ordering::Relaxed);
    }

    /// The place of a segment of `len` bytes at `unit`; `None` if it wraps at the ring's end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn segment(self, unit: u32, len: usize) -> Option<Segment<'r>> {
        self.ring.segment(self.place.unit(unit), len)
    }

    /// Writes 0 to a `unit` of the `nth` block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_zeros(self, nth: u32, unit: usize) {
        let block = self.ring.at(self.place.after(nth));
        let Some(unit) = block.as_chunks::<2>().0.get(unit) else { return };
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{__m128i, _mm_setzero_si128};
            // SAFETY: every x86-64 CPU has SSE2.
            let zeros = unsafe { _mm_setzero_si128() };
            let to = unit.as_ptr().cast_mut().cast::<__m128i>();
            // SAFETY: 16 bytes of a block, which is aligned to 64 bytes and consists of atomics. Only this poster accesses a
            // block that is not published, so no access of another size is concurrent.
            unsafe { to.write_volatile(zeros) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        unit.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Writes the control segment's first word.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_ctrl0(self, word: u64) {
        self.head[0].store(word, Ordering::Relaxed);
    }

    /// Writes the control segment's second word.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_ctrl1(self, word: u64) {
        self.head[1].store(word, Ordering::Relaxed);
    }

    /// The opcode in the control segment.
    pub(crate) fn opcode(self) -> u8 {
        (u64::from_be(self.head[0].load(Ordering::Relaxed)) >> 32) as u8
    }

    /// Changes the WQE to one that does nothing.
    pub(crate) fn put_nop(self) {
        /// Opcode and its modifier.
        const OPERATION: u64 = 0xff00_00ff << 32;
        let word = u64::from_be(self.head[0].load(Ordering::Relaxed));
        self.put_ctrl0((word & !OPERATION).to_be());
    }

    /// Adds the stream of a DC initiator to the control segment.
    pub(crate) fn add_stream(self, stream: u16) {
        let word = u64::from_be(self.head[1].load(Ordering::Relaxed));
        self.put_ctrl1((word | u64::from(stream) << 40).to_be());
    }

    /// Adds a small fence to a WQE that was written without one, unless it has a fence bit already.
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

/// Copies bytes into a WQE, piece by piece.
pub(crate) struct InlineWriter<'r> {
    ring: SqView<'r>,
    start: UnitIndex,
    /// The number of bytes after `start` that are written.
    end: u32,
}

impl<'r> InlineWriter<'r> {
    /// A writer whose first byte is at `unit`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn new(writer: WqeWriter<'r>, unit: u32) -> Self {
        Self { ring: writer.ring, start: writer.place.unit(unit), end: 0 }
    }

    /// Adds `bytes`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.ring.store_bytes(self.start, self.end, bytes);
        self.end += bytes.len() as u32;
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
        fn pieces_are_copied_one_after_the_other_and_nothing_else_is_written(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..6),
            index in 0_u32..8,
            unit in 0_u32..8,
        ) {
            let ring = SqRing::new(QueueBuf::new(4096).unwrap(), 0, 8).unwrap();
            ring.buf().words().iter().for_each(|w| w.store(u64::MAX, Ordering::Relaxed));
            let mut writer = InlineWriter::new(WqeWriter::new(ring.view(), BlockIndex::of(index)), unit);
            pieces.iter().for_each(|p| writer.push(p));
            let mut expected = pieces.concat();
            // No other byte is written, in the ring or after it.
            expected.resize(512, 0xff);
            prop_assert_eq!(bytes(&ring, index * 8 + unit * 2, 512), expected);
            prop_assert!(ring.buf().words()[64..].iter().all(|w| w.load(Ordering::Relaxed) == u64::MAX));
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
