// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scatter/gather entries of a region.

use core::ops::Range;
use uverbs::wr::Sge;
use uverbs::{Driver, MemoryRegion, StableBuf};

/// An entry of these bytes of a region, in C's form. Nothing is checked, because tests use invalid ones, too.
pub fn sge<D: Driver, B: StableBuf, A>(mr: &MemoryRegion<B, A, D>, range: Range<usize>) -> Sge {
    Sge { addr: mr.addr() + range.start as u64, length: range.len() as u32, lkey: mr.lkey() }
}
