// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a completion queue for its poller: it reads the last 64 bytes of each element, which are the entry, also
//! in larger elements.
//!
//! A [`Watch`] keeps the address of the next element, so that a poll of an empty queue costs one load. A [`Walk`]
//! continues from there, and computes an address only when the ring wraps.
// UNSAFETY: as the module above; every address is one of an element that the ring has.

use super::StrideRing;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// The last 64 bytes of an element.
pub(crate) type Block = [AtomicU64; 8];

/// A ring whose elements have 64 bytes at least.
///
/// # Invariants
/// An element of `ring` has 64 bytes or more, and `first` is 64 bytes before the end of the first.
#[derive(Debug)]
pub struct BlockRing {
    ring: StrideRing,
    first: NonNull<Block>,
    end: *mut Block,
}

// SAFETY: `first` points into the ring, which is owned; all access is by atomics.
unsafe impl Send for BlockRing {}
// SAFETY: as for `Send`.
unsafe impl Sync for BlockRing {}

impl BlockRing {
    /// `None` if the elements are smaller.
    pub(crate) fn new(ring: StrideRing) -> Option<Self> {
        let before = ring.stride().checked_sub(size_of::<Block>())?;
        // SAFETY: inside the first element, which has so many bytes and 64 more.
        let first = unsafe { ring.base.byte_add(before) }.cast::<Block>();
        let end = first.as_ptr().wrapping_byte_add((ring.mask as usize + 1) << ring.shift);
        Some(Self { ring, first, end })
    }

    /// The ring, by whole elements.
    #[inline(always)]
    pub(crate) fn ring(&self) -> &StrideRing {
        &self.ring
    }

    #[inline(always)]
    fn address(&self, index: u32) -> NonNull<Block> {
        let at = ((index & self.ring.mask) as usize) << self.ring.shift;
        // SAFETY: the masked index names an element, as far from the first as its block is from the first block.
        unsafe { self.first.byte_add(at) }
    }

    /// The block at `index`, modulo the ring.
    #[inline(always)]
    pub(crate) fn block(&self, index: u32) -> &Block {
        // SAFETY: 64 bytes inside the memory, aligned, alive while `self` is borrowed, used by atomics only.
        unsafe { self.address(index).as_ref() }
    }
}

/// The address of one block, and what keeps it.
///
/// # Invariants
/// `block` is one of `ring`'s.
pub(crate) struct Watch {
    block: NonNull<Block>,
    ring: Arc<BlockRing>,
}

// SAFETY: the address of atomics, and the owner of their memory.
unsafe impl Send for Watch {}
// SAFETY: as for `Send`.
unsafe impl Sync for Watch {}

impl Watch {
    /// Of the block at `index`, modulo the ring.
    pub(crate) fn new(ring: Arc<BlockRing>, index: u32) -> Self {
        Self { block: ring.address(index), ring }
    }

    /// Turns to the block at `index`, modulo the ring.
    #[inline(always)]
    pub(crate) fn turn_to(&mut self, index: u32) {
        self.block = self.ring.address(index);
    }

    /// The block.
    #[inline(always)]
    pub(crate) fn block(&self) -> &Block {
        // SAFETY: 64 bytes inside the memory, aligned, alive while `self` is borrowed, used by atomics only.
        unsafe { self.block.as_ref() }
    }

    /// The blocks from this one on, round and round.
    #[inline(always)]
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk { at: self.block, end: self.ring.end, stride: self.ring.ring.stride(), ring: &self.ring }
    }

    /// The block's address.
    #[inline(always)]
    pub(crate) fn address(&self) -> BlockAddress {
        BlockAddress { block: self.block, first: self.ring.first }
    }

    /// Turns to a block of the same ring; of another ring, to none.
    #[inline(always)]
    pub(crate) fn turn_to_address(&mut self, address: BlockAddress) {
        if address.first == self.ring.first {
            self.block = address.block;
        }
    }

    /// Goes on to the next block; whether that is the ring's first.
    #[inline(always)]
    pub(crate) fn step(&mut self) -> bool {
        let next = self.block.as_ptr().wrapping_byte_add(self.ring.ring.stride());
        let wraps = next == self.ring.end;
        // SAFETY: not the end, so the address of a block (invariant of `Walk`), which is not NULL.
        self.block = if wraps { self.ring.first } else { unsafe { NonNull::new_unchecked(next) } };
        wraps
    }

    /// Moves to the position of a walk, if that is in the same ring.
    #[inline(always)]
    pub(crate) fn follow(&mut self, walk: &Walk<'_>) {
        if core::ptr::eq(walk.ring, &raw const *self.ring) {
            self.block = walk.at;
        }
    }
}

/// The address of a block.
///
/// # Invariants
/// `block` is one of the ring whose first block is `first`.
#[derive(Clone, Copy)]
pub(crate) struct BlockAddress {
    block: NonNull<Block>,
    first: NonNull<Block>,
}

/// A position in a ring.
///
/// # Invariants
/// `at` is the address of one of the ring's blocks; so is what is `stride` further, unless that is `end`.
pub(crate) struct Walk<'r> {
    at: NonNull<Block>,
    end: *mut Block,
    stride: usize,
    ring: &'r BlockRing,
}

impl<'r> Walk<'r> {
    /// The block at the position.
    #[inline(always)]
    pub(crate) fn block(&self) -> &'r Block {
        // SAFETY: 64 bytes inside the memory, aligned, alive while the ring is borrowed, used by atomics only.
        unsafe { self.at.as_ref() }
    }

    /// The block's address.
    #[inline(always)]
    pub(crate) fn address(&self) -> BlockAddress {
        BlockAddress { block: self.at, first: self.ring.first }
    }

    /// The block, for as long as the ring is borrowed.
    #[inline(always)]
    pub(crate) fn into_block(self) -> &'r Block {
        // SAFETY: as in `block`.
        unsafe { self.at.as_ref() }
    }

    /// Goes on to the next; whether that is the ring's first.
    #[inline(always)]
    pub(crate) fn step(&mut self) -> bool {
        let next = self.at.as_ptr().wrapping_byte_add(self.stride);
        if next == self.end {
            self.at = self.ring.first;
            return true;
        }
        // SAFETY: not the end, so the address of a block (invariant).
        self.at = unsafe { NonNull::new_unchecked(next) };
        false
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("block", &self.block).finish_non_exhaustive()
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
    fn a_walk_goes_round() {
        for (count, stride) in [(1, 64), (4, 64), (4, 128), (16, 256)] {
            let buf = QueueBuf::new(4096).unwrap();
            let ring = Arc::new(BlockRing::new(StrideRing::new(buf, 0, count, stride).unwrap()).unwrap());
            let mut watch = Watch::new(Arc::clone(&ring), 0);
            for start in [0, 1, count - 1, count, u32::MAX] {
                let from = Watch::new(Arc::clone(&ring), start);
                let mut walk = from.walk();
                for i in 0..40 {
                    let index = start.wrapping_add(i);
                    assert_eq!(offset(&ring, walk.block()), offset(&ring, ring.block(index)));
                    assert_eq!(walk.step(), index.wrapping_add(1).is_multiple_of(count));
                }
                watch.follow(&walk);
                assert_eq!(offset(&ring, watch.block()), offset(&ring, walk.block()));
            }
        }
    }
}
