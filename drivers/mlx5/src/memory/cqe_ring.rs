// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a completion queue for its poller: it reads the last 64 bytes of each element, which are the entry, also
//! in larger elements.
//!
//! A [`BlockPosition`] keeps the address of the next element, so that a poll of an empty queue costs one load. A [`BlockCursor`]
//! continues from there, in stretches that end where the ring wraps.
// UNSAFETY: accesses queue memory by computed addresses; every one is that of an element of the ring.

use super::StrideRing;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// The last 64 bytes of an element.
pub(crate) type Block = [AtomicU64; 8];

/// A ring whose elements have at least 64 bytes.
///
/// # Invariants
/// `first` is the address of the last 64 bytes of the first element; `end` is one element after the last 64 bytes of the
/// last element.
#[derive(Debug)]
pub struct BlockRing {
    ring: StrideRing,
    first: NonNull<Block>,
    end: *mut Block,
}

// SAFETY: `first` and `end` point into the ring, which is owned; all access is by atomics.
unsafe impl Send for BlockRing {}
// SAFETY: `&BlockRing` only allows atomic accesses to memory that the ring owns.
unsafe impl Sync for BlockRing {}

impl BlockRing {
    /// The blocks of a ring; `None` if its elements have less than 64 bytes.
    pub(crate) fn new(ring: StrideRing) -> Option<Self> {
        let before = ring.stride().checked_sub(size_of::<Block>())?;
        // SAFETY: `before + 64` is the size of the first element, so the block is inside it.
        let first = unsafe { ring.base.byte_add(before) }.cast::<Block>();
        let end = first.as_ptr().wrapping_byte_add((ring.mask as usize + 1) << ring.shift);
        Some(Self { ring, first, end })
    }

    /// The ring of the whole elements.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn ring(&self) -> &StrideRing {
        &self.ring
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn address(&self, index: u32) -> NonNull<Block> {
        let at = ((index & self.ring.mask) as usize) << self.ring.shift;
        // SAFETY: the masked index names an element; its block has the same distance from `first` as the element from the
        // first one.
        unsafe { self.first.byte_add(at) }
    }

    /// The index of a block of this ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn index(&self, block: NonNull<Block>) -> u32 {
        (block.addr().get().wrapping_sub(self.first.addr().get()) >> self.ring.shift) as u32
    }

    /// The block at `index`, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn block(&self, index: u32) -> &Block {
        // SAFETY: 64 bytes inside the memory, aligned, which exist while `self` is borrowed and are used by atomics only.
        unsafe { self.address(index).as_ref() }
    }
}

/// The address of a block, and the owner of its memory.
///
/// # Invariants
/// `block` is a block of `ring`.
pub(crate) struct BlockPosition {
    block: NonNull<Block>,
    ring: Arc<BlockRing>,
}

// SAFETY: `block` is the address of atomics, in memory that `ring` owns.
unsafe impl Send for BlockPosition {}
// SAFETY: `&BlockPosition` only allows atomic accesses to memory that `ring` owns.
unsafe impl Sync for BlockPosition {}

impl BlockPosition {
    /// A position at the block at `index`, modulo the ring.
    pub(crate) fn new(ring: Arc<BlockRing>, index: u32) -> Self {
        Self { block: ring.address(index), ring }
    }

    /// Moves to the block at `index`, modulo the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn move_to(&mut self, index: u32) {
        self.block = self.ring.address(index);
    }

    /// The block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn block(&self) -> &Block {
        // SAFETY: 64 bytes inside the memory, aligned, which exist while `self` is borrowed and are used by atomics only.
        unsafe { self.block.as_ref() }
    }

    /// A cursor that starts at this block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn cursor(&self) -> BlockCursor<'_> {
        BlockCursor { at: self.block, stop: self.block, stride: self.ring.ring.stride(), ring: &self.ring }
    }

    /// The block's index.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn index(&self) -> u32 {
        self.ring.index(self.block)
    }

    /// The number of blocks in the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn count(&self) -> u32 {
        self.ring.ring.mask + 1
    }

    /// Moves to the next block. Returns whether that is the ring's first one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn step(&mut self) -> bool {
        let mut cursor = self.cursor();
        let wraps = cursor.step();
        self.block = cursor.at;
        wraps
    }

    /// Moves to the block of another position.
    ///
    /// # Safety
    /// Both positions are of one ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) unsafe fn set_to(&mut self, other: &Self) {
        self.block = other.block;
    }

    /// Moves to the block of a cursor.
    ///
    /// # Safety
    /// The position and the cursor are of one ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) unsafe fn set_to_cursor(&mut self, cursor: &BlockCursor<'_>) {
        self.block = cursor.at;
    }
}

/// A position in a ring, and a stop up to which steps need no check for the ring's end.
///
/// # Invariants
/// `at` and `stop` are blocks of the ring; `stop` is `at` or has a larger index; `stride` is the ring's.
pub(crate) struct BlockCursor<'r> {
    at: NonNull<Block>,
    stop: NonNull<Block>,
    /// The ring's stride.
    // codegen: reload
    stride: usize,
    ring: &'r BlockRing,
}

impl<'r> BlockCursor<'r> {
    /// The block at the position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn block(&self) -> &'r Block {
        // SAFETY: 64 bytes inside the memory, aligned, which exist while the ring is borrowed and are used by atomics only.
        unsafe { self.at.as_ref() }
    }

    /// The block at the position, if that is before the stop.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn block_before_stop(&self) -> Option<&'r Block> {
        if self.at == self.stop { None } else { Some(self.block()) }
    }

    /// The block's index.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn index(&self) -> u32 {
        self.ring.index(self.at)
    }

    /// Sets the stop to `further` blocks after the position, but at most to the ring's last block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn set_stop(&mut self, further: u32) {
        let stride = self.stride;
        let rest = self.ring.end.addr() - stride - self.at.addr().get();
        // SAFETY: `rest` is the distance to the last block, so the stop is a block of the ring.
        self.stop = unsafe { self.at.byte_add((further as usize * stride).min(rest)) };
    }

    /// Moves to the next block, but not past the stop.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn step_to_stop(&mut self) {
        if self.at != self.stop {
            // SAFETY: `stop` is a block with a larger index (invariant), so the next block is in the ring.
            self.at = unsafe { self.at.byte_add(self.stride) };
        }
    }

    /// Moves to the next block and sets the stop there. Returns whether it is the ring's first one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn step(&mut self) -> bool {
        let next = self.at.as_ptr().wrapping_byte_add(self.stride);
        let wraps = next == self.ring.end;
        // SAFETY: `next` is not `end`, so it is the address of the next block, which is not NULL.
        self.at = if wraps { self.ring.first } else { unsafe { NonNull::new_unchecked(next) } };
        self.stop = self.at;
        wraps
    }
}

impl fmt::Debug for BlockPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockPosition").field("block", &self.block).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::QueueBuf;

    fn offset(ring: &BlockRing, block: &Block) -> u64 {
        core::ptr::from_ref(block).addr() as u64 - ring.ring().buf().addr()
    }

    #[test]
    fn blocks_are_at_the_end_of_elements() {
        let buf = QueueBuf::new(4096).unwrap();
        let ring = |count, stride| StrideRing::new(Arc::clone(&buf), 0, count, stride).unwrap();
        assert!(BlockRing::new(ring(16, 32)).is_none());
        for (stride, before) in [(64, 0), (128, 64), (256, 192)] {
            let ring = BlockRing::new(ring(8, stride)).unwrap();
            for index in [0, 7, 8, 19, u32::MAX] {
                let want = u64::from(index % 8 * stride + before);
                assert_eq!(offset(&ring, ring.block(index)), want);
            }
        }
    }

    #[test]
    fn a_cursor_wraps_at_the_rings_end() {
        for (count, stride) in [(1, 64), (4, 64), (4, 128), (16, 256)] {
            let buf = QueueBuf::new(4096).unwrap();
            let ring = Arc::new(BlockRing::new(StrideRing::new(buf, 0, count, stride).unwrap()).unwrap());
            let mut position = BlockPosition::new(Arc::clone(&ring), 0);
            for start in [0, 1, count - 1, count, u32::MAX] {
                let from = BlockPosition::new(Arc::clone(&ring), start);
                let mut cursor = from.cursor();
                for i in 0..40 {
                    let index = start.wrapping_add(i);
                    assert_eq!(offset(&ring, cursor.block()), offset(&ring, ring.block(index)));
                    assert_eq!(cursor.index(), index % count);
                    assert_eq!(cursor.step(), index.wrapping_add(1).is_multiple_of(count));
                }
                // SAFETY: the position and the cursor are of the same ring.
                unsafe { position.set_to_cursor(&cursor) };
                assert_eq!(offset(&ring, position.block()), offset(&ring, cursor.block()));
            }
        }
    }

    #[test]
    fn a_cursor_stops_at_the_stop_or_the_last_block() {
        let buf = QueueBuf::new(4096).unwrap();
        let ring = Arc::new(BlockRing::new(StrideRing::new(buf, 0, 8, 64).unwrap()).unwrap());
        for (start, further, reached) in
            [(0, 0, 0), (0, 3, 3), (2, 5, 7), (2, 6, 7), (5, u32::MAX, 7), (7, 1, 7)]
        {
            let from = BlockPosition::new(Arc::clone(&ring), start);
            let mut cursor = from.cursor();
            assert!(cursor.block_before_stop().is_none());
            cursor.step_to_stop();
            assert_eq!(cursor.index(), start);
            cursor.set_stop(further);
            while cursor.block_before_stop().is_some() {
                cursor.step_to_stop();
            }
            assert_eq!(cursor.index(), reached);
            assert_eq!(cursor.step(), reached == 7);
            assert!(cursor.block_before_stop().is_none());
        }
    }
}
