// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a device memory object.
// UNSAFETY: a part of it is accessed by address, as all memory of the process.
#![expect(unsafe_code)]

use super::lend::OwnedRange;
use crate::process::ProcessRange;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// Memory of the device, in whole pages.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    pub(super) words: Arc<[AtomicU64]>,
    /// Bytes as requested.
    pub(super) len: u64,
    /// Number of its first page, by which it is mapped.
    pub(super) page: u16,
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
