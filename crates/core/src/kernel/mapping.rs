// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with the kernel or the device.
// UNSAFETY: a mapping is an address that others write to; constructing one takes a promise about that address, and
// sending one to another thread takes an `unsafe impl`.
#![expect(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;

/// How a mapping may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// `PROT_READ`
    Read,
    /// `PROT_READ | PROT_WRITE`
    ReadWrite,
}

trait Owner: Send + Sync {}
impl<T: Send + Sync> Owner for T {}

/// `len` bytes at `ptr` that the kernel, the device or another thread may read and write at any time. Unmapped (or
/// given back to whoever lent them) on drop.
///
/// There is no reference to be had: access goes through the pointer, volatile or atomic, and what is read is not
/// trusted.
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    _owner: Box<dyn Owner>,
}

impl Mapping {
    /// Memory that `owner` keeps in place.
    ///
    /// # Safety
    /// `len` bytes at `ptr` are readable (and writable, if asked for so) from any thread until `owner` is dropped,
    /// and nobody holds a Rust reference to them that such accesses would violate: memory made of atomics, or mapped.
    #[must_use]
    pub unsafe fn new(ptr: NonNull<u8>, len: usize, owner: impl Send + Sync + 'static) -> Self {
        Self { ptr, len, _owner: Box::new(owner) }
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

// SAFETY: the address is good from any thread (`new`), and the owner may be dropped on any.
unsafe impl Send for Mapping {}
// SAFETY: shared access hands out nothing but the address and the length.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("ptr", &self.ptr).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    #[test]
    fn the_owner_lives_as_long_as_the_mapping() {
        let memory: Arc<[AtomicU64; 2]> = Arc::default();
        let ptr = NonNull::from(&memory[..]).cast();
        // SAFETY: the array is alive while the `Arc` that is the owner is, and consists of atomics.
        let mapping = unsafe { Mapping::new(ptr, 16, Arc::clone(&memory)) };
        assert_eq!((mapping.len(), mapping.is_empty()), (16, false));
        assert_eq!(Arc::strong_count(&memory), 2);
        // SAFETY: the address is that of an atomic, and the mapping is alive.
        let first = unsafe { mapping.as_ptr().cast::<AtomicU64>().as_ref() };
        first.store(5, Ordering::Relaxed);
        assert_eq!(memory[0].load(Ordering::Relaxed), 5);
        drop(mapping);
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}
