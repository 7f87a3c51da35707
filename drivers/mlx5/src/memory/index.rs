// SPDX-License-Identifier: MIT OR Apache-2.0
//! Index types of a send queue.

/// The index of a basic block, not masked, times 16: so it is the offset of a record, and with a factor that x86 has in an
/// address, of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockIndex(pub(super) u32);

impl BlockIndex {
    pub(super) const SHIFT: u32 = 4;

    /// The block of this index.
    #[inline(always)]
    pub(crate) const fn of(index: u32) -> Self {
        Self(index << Self::SHIFT)
    }

    /// The block whose index is the upper half of `word`; what is in the lower does not matter.
    #[inline(always)]
    pub(crate) const fn of_upper(word: u32) -> Self {
        // The rest of the lower half is below a place's first bit, which masks leave out.
        Self(word >> (16 - Self::SHIFT))
    }

    /// Its index modulo 2^16, as WQEs and doorbell records have it.
    #[inline(always)]
    pub(crate) const fn index(self) -> u32 {
        self.0 >> Self::SHIFT & 0xffff
    }

    /// [`index`](Self::index), shifted left by `by`, at least 4.
    #[inline(always)]
    pub(crate) const fn index_at(self, by: u32) -> u64 {
        (self.0 as u64 & 0xf_fff0) << (by - Self::SHIFT)
    }

    /// The 16 bytes at `unit` from this block on.
    #[inline(always)]
    pub(crate) const fn unit(self, unit: u32) -> UnitIndex {
        UnitIndex(self.0.wrapping_add(unit << UnitIndex::SHIFT))
    }

    /// So many blocks back.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn before(self, count: BlockCount) -> Self {
        Self(self.0.wrapping_sub(count.0))
    }

    /// So many blocks further.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn after(self, blocks: u32) -> Self {
        Self(self.0.wrapping_add(blocks << Self::SHIFT))
    }
}

/// The index of 16 bytes of a block, not masked, times 4: the scale of [`BlockIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitIndex(pub(super) u32);

impl UnitIndex {
    const SHIFT: u32 = 2;
    /// The bits of a unit within its block.
    pub(super) const MASK: u32 = 3 << Self::SHIFT;
}

/// How far apart two places are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockCount(u32);

impl BlockCount {
    /// Nothing is so short.
    pub(crate) const NONE: Self = Self(0);

    /// So many blocks.
    pub(crate) const fn of(blocks: u32) -> Self {
        Self(blocks << BlockIndex::SHIFT)
    }

    /// A number for it, whose lowest four bits are 0.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// The distance with these [`bits`](Self::bits).
    #[inline(always)]
    pub(crate) const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// How many blocks.
    #[inline(always)]
    pub(crate) const fn blocks(self) -> u32 {
        self.0 >> BlockIndex::SHIFT
    }
}
