// SPDX-License-Identifier: MIT OR Apache-2.0
//! The access of this process to the bytes of a region: copies, atomics, slices.
//!
//! The bounds of the buffer are queried once, when it is registered. After that the region accesses the memory by its address
//! only, not through the owner `B`, which need not be `Sync`.
#![expect(unsafe_code)]
// UNSAFETY: reads and writes registered memory through its pointer.

use super::{Exposed, MemoryRegion, Private};
use crate::buf::StableBuf;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::accessed;
use uverbs_core::provider::Driver;
use uverbs_core::sync::copy::{load_bytes, store_bytes};

/// Regions that [`MemoryRegion::write_at`] may write through `&`: those that lend no `&[u8]`.
pub trait WritableShared {}
impl WritableShared for Exposed {}

impl<D: Driver, B: StableBuf, A> MemoryRegion<B, A, D> {
    /// Copies bytes from the region. Data that a peer writes at the same time may be copied in part.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region; `Unsupported` for a dma-buf.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let from = self.memory_at(offset..offset.saturating_add(out.len()))?;
        accessed(from.as_ptr().addr() as u64, out.len(), false);
        // SAFETY: `StableBuf` guarantees these bytes as long as `self.buf` exists. A `&mut` to them exists only while a
        // private region is borrowed mutably.
        unsafe { load_bytes(from.as_ptr(), out) };
        Ok(())
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<()>
    where
        A: WritableShared,
    {
        let to = self.memory_at(offset..offset.saturating_add(data.len()))?;
        accessed(to.as_ptr().addr() as u64, data.len(), true);
        // SAFETY: `StableBuf` guarantees these bytes as long as `self.buf` exists. A region of such a type lends no
        // references except to atomics.
        unsafe { store_bytes(data, to.as_ptr()) };
        Ok(())
    }

    /// The first byte of the buffer.
    fn memory(&self) -> NonNull<u8> {
        NonNull::new(self.raw.addr.cast()).unwrap_or(NonNull::dangling())
    }

    /// The address of these bytes.
    fn memory_at(&self, range: Range<usize>) -> Result<NonNull<u8>> {
        self.check("mr", &range)?;
        if range.end > self.mapped {
            return Err(Error::unsupported("mr", "the memory of a dma-buf is not mapped in this process"));
        }
        // SAFETY: inside the buffer.
        Ok(unsafe { self.memory().add(range.start) })
    }
}

impl<D: Driver, B: StableBuf> MemoryRegion<B, Exposed, D> {
    /// The aligned 8-byte word at `offset`, on which remote atomics operate.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the word is not inside the region, or not aligned; `Unsupported` for a dma-buf.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.memory_at(offset..offset.saturating_add(8))?.cast::<AtomicU64>();
        if !at.is_aligned() {
            return Err(Error::invalid(
                "mr",
                "offset",
                format!("{offset} is not aligned to 8 bytes in memory"),
            ));
        }
        // SAFETY: 8 bytes in range and aligned, checked above, as long as `self.buf` lives. This process accesses them
        // by atomics of this size, all aligned, so none of them overlaps another, and by copies that are not accesses
        // of the Rust program.
        Ok(unsafe { at.as_ref() })
    }
}

impl<D: Driver, B: StableBuf> MemoryRegion<B, Private, D> {
    /// A part of the bytes. The device may write other parts at the same time, for example the slots of receives that
    /// are still posted. (The contract of each post excludes that the device writes this part.)
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region.
    pub fn slice(&self, range: Range<usize>) -> Result<&[u8]> {
        let (at, length) = (self.memory_at(range.clone())?, range.len());
        // SAFETY: `length` bytes from `at` on are inside the buffer, and `StableBuf` guarantees them as long as
        // `self.buf` exists. No peer may write them, and this process writes only through `&mut self`.
        Ok(unsafe { core::slice::from_raw_parts(at.as_ptr(), length) })
    }

    /// A part of the bytes, mutable. The device may access other parts at the same time.
    ///
    /// # Errors
    /// As [`slice`](Self::slice).
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<&mut [u8]> {
        let (at, length) = (self.memory_at(range.clone())?, range.len());
        // SAFETY: `length` bytes from `at` on are inside the buffer, and `StableBuf` guarantees them as long as
        // `self.buf` exists. No peer may write them, and `&mut self` excludes other accesses by this process.
        Ok(unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), length) })
    }

    /// All bytes, for a region in which no receive or read is posted, because the device could write there during the
    /// borrow. [`slice`](Self::slice) lends the slots of a ring that is in use.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `StableBuf` guarantees the bytes as long as `self.buf` exists; no peer may write them, and this
        // process writes only through `as_mut_slice`'s `&mut self`.
        unsafe { core::slice::from_raw_parts(self.memory().as_ptr(), self.mapped) }
    }

    /// All bytes, mutable, otherwise as [`as_slice`](Self::as_slice).
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `StableBuf` guarantees the bytes as long as `self.buf` exists; no peer may write them, and `&mut
        // self` excludes other accesses by this process.
        unsafe { core::slice::from_raw_parts_mut(self.memory().as_ptr(), self.mapped) }
    }
}
