// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a device memory object.
// UNSAFETY: a part of it is accessed by address, as all memory of the process.
#![expect(unsafe_code)]

use crate::process::ProcessRange;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_core::kernel::page_size;
use uverbs_softkernel::program_memory::OwnedRange;

/// Bytes of a page of it, by which it is mapped: those of a page of the machine.
pub(super) fn page_bytes() -> u64 {
    page_size().into()
}

/// Bytes that the device has: as many pages as [`DmPages`] has bits.
pub(super) fn all_bytes() -> u64 {
    u64::from(u32::BITS) * page_bytes()
}

/// Memory of the device, in whole pages.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(super) words: Arc<[AtomicU64]>,
    /// Bytes as requested.
    pub(super) len: u64,
    /// Number of its first page, by which it is mapped.
    pub(super) page: u16,
}

/// The pages of device memory that objects of all contexts have, one bit for each.
#[derive(Debug, Default)]
pub(super) struct DmPages(u32);

impl DmPages {
    fn mask(first: u64, count: u64) -> u32 {
        (((1_u64 << count) - 1) << first) as u32
    }

    /// The first of the first `count` free pages in sequence.
    pub(super) fn alloc(&mut self, count: u64) -> Option<u16> {
        let last = u64::from(u32::BITS).checked_sub(count)?;
        let first = (0..=last).find(|first| self.0 & Self::mask(*first, count) == 0)?;
        self.0 |= Self::mask(first, count);
        u16::try_from(first).ok()
    }

    pub(super) fn free(&mut self, memory: &DeviceMemory) {
        self.0 &= !Self::mask(memory.page.into(), memory.words.len() as u64 * 8 / page_bytes());
    }
}

/// A part of a device memory, which it keeps alive.
pub(super) type Part = OwnedRange<Arc<[AtomicU64]>>;

impl DeviceMemory {
    /// A part of it; `None` if it is not inside.
    pub(super) fn part(&self, offset: u64, len: u64) -> Option<Part> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let addr = self.words.as_ptr().expose_provenance() as u64 + offset;
        // SAFETY: inside of the words (checked), which are atomics, and alive while the part holds them.
        let range = unsafe { ProcessRange::new(addr, len) }?;
        Some(Part { range, _owner: Arc::clone(&self.words) })
    }
}
