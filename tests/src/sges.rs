// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scatter/gather entries of a region, in C's form and in the driver's.

use core::ops::Range;
use uverbs::provider::WireSge;
use uverbs::wr::Sge;
use uverbs::{Driver, MemoryRegion, PostError, StableBuf};

/// An entry of these bytes of a region, in C's form. Nothing is checked, because tests use invalid ones, too.
pub fn sge<D: Driver, B: StableBuf, A>(mr: &MemoryRegion<D, B, A>, range: Range<usize>) -> Sge {
    Sge { addr: mr.addr() + range.start as u64, length: range.len() as u32, lkey: mr.lkey() }
}

/// Entries in the driver's own form.
pub fn wire<D: Driver>(sges: &[Sge]) -> Result<Vec<D::Sge>, PostError> {
    sges.iter().map(|s| D::Sge::new(s.addr, s.length, s.lkey)).collect()
}
