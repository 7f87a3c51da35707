// SPDX-License-Identifier: MIT OR Apache-2.0
//! Index types of a send queue.

/// The index of a basic block, not masked, times 16. So it is the byte offset of the block's record, and with an address
/// factor of 4, which x86 has, the byte offset of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockIndex(pub(super) u32);

impl BlockIndex {
    pub(super) const SHIFT: u32 = 4;

    /// The block at `index`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn of(index: u32) -> Self {
        Self(index << Self::SHIFT)
    }

    /// The block whose index is the upper half of `word`; the lower half is ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn of_upper(word: u32) -> Self {
        // The remaining bits of the lower half are below the index and are masked out.
        Self(word >> (16 - Self::SHIFT))
    }

    /// The index modulo 2^16, as in WQEs and doorbell records.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn index(self) -> u32 {
        self.0 >> Self::SHIFT & 0xffff
    }

    /// [`index`](Self::index), shifted left by `by`, at least 4.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn index_at(self, by: u32) -> u64 {
        (self.0 as u64 & 0xf_fff0) << (by - Self::SHIFT)
    }

    /// The unit `unit` of a WQE that begins at this block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn unit(self, unit: u32) -> UnitIndex {
        UnitIndex(self.0.wrapping_add(unit << UnitIndex::SHIFT))
    }

    /// The block that is `count` blocks before this one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub(crate) const fn before(self, count: BlockCount) -> Self {
        Self(self.0.wrapping_sub(count.0))
    }

    /// The block that is `blocks` blocks after this one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub(crate) const fn after(self, blocks: u32) -> Self {
        Self(self.0.wrapping_add(blocks << Self::SHIFT))
    }
}

/// The index of a unit of 16 bytes, not masked, times 4: it has the scale of [`BlockIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitIndex(pub(super) u32);

impl UnitIndex {
    const SHIFT: u32 = 2;
    /// The bits of the unit within its block.
    pub(super) const MASK: u32 = 3 << Self::SHIFT;
}

/// A number of blocks, in the scale of [`BlockIndex`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockCount(u32);

impl BlockCount {
    /// Shorter than any WQE.
    pub(crate) const NONE: Self = Self(0);

    /// `blocks` blocks.
    pub(crate) const fn of(blocks: u32) -> Self {
        Self(blocks << BlockIndex::SHIFT)
    }

    /// The number as bits, of which the lowest four are 0.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// The number with these [`bits`](Self::bits).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The number of blocks.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn blocks(self) -> u32 {
        self.0 >> BlockIndex::SHIFT
    }
}
