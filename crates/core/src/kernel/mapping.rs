// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with the kernel or the device.
// UNSAFETY: a mapping is memory that the kernel, the device and other threads write. Its constructors have a contract
// about the address, and its address needs `unsafe impl`s of `Send` and `Sync`.
#![expect(unsafe_code)]

use super::Kernel;
use crate::errno::Errno;
use crate::error::Error;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page of this machine.
#[must_use]
pub fn page_size() -> u32 {
    // SAFETY: sysconf(3) has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(bytes).unwrap_or(4096)
}

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

/// Why memory is not that of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// Read-only, or not aligned.
    Mapping,
    /// The elements are too small for their contents, or not a multiple of 8 bytes.
    ElementSize(usize),
    /// The number of elements is not a power of two, or too large.
    Elements(u64),
    /// The queue does not fit in the mapping.
    TooShort,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapping => f.write_str("the mapping is not writable or not aligned"),
            Self::ElementSize(bytes) => write!(f, "elements of {bytes} bytes"),
            Self::Elements(elements) => write!(f, "{elements} elements"),
            Self::TooShort => f.write_str("the mapping is shorter than the queue"),
        }
    }
}

impl core::error::Error for MemoryError {}

/// `len` bytes at `ptr` that the kernel, the device or another thread may read and write at any time. Unmapped (or
/// returned to their owner) on drop.
///
/// The type gives no reference to the bytes: all accesses use the pointer, are volatile or atomic, and the values read
/// are not trusted.
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    is_writable: bool,
    _owner: Box<dyn Owner>,
}

impl Mapping {
    /// Memory that `owner` keeps in place.
    ///
    /// # Safety
    /// `len` bytes at `ptr` are readable and writable from any thread until `owner` is dropped, and there is no Rust
    /// reference to them that such accesses would violate. Memory of atomics, or mapped memory, meets this.
    #[must_use]
    pub unsafe fn new(ptr: NonNull<u8>, len: usize, owner: impl Send + Sync + 'static) -> Self {
        Self { ptr, len, is_writable: true, _owner: Box::new(owner) }
    }

    /// As [`new`](Self::new), for memory that is only readable.
    ///
    /// # Safety
    /// As [`new`](Self::new), except that the bytes need not be writable.
    #[must_use]
    pub unsafe fn read_only(ptr: NonNull<u8>, len: usize, owner: impl Send + Sync + 'static) -> Self {
        Self { ptr, len, is_writable: false, _owner: Box::new(owner) }
    }

    /// Whether it may be written: a store to a read-only mapping ends the process by a signal. Callers check this even
    /// after a request for [`Protection::ReadWrite`], because the implementation of the port is not trusted.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
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

    /// The first of `len` elements of `size` bytes at `offset`, which are inside the mapping, aligned to `align`.
    ///
    /// # Errors
    /// [`MemoryError::TooShort`], [`MemoryError::Mapping`].
    pub fn part(
        &self,
        offset: usize,
        len: usize,
        size: usize,
        align: usize,
    ) -> Result<NonNull<u8>, MemoryError> {
        let end = len.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > self.len) {
            return Err(MemoryError::TooShort);
        }
        // SAFETY: `offset` is at most `end`, which is inside the mapping.
        let first = unsafe { self.ptr.add(offset) };
        if first.addr().get().is_multiple_of(align) { Ok(first) } else { Err(MemoryError::Mapping) }
    }

    /// Words of 4 bytes, if they are inside and aligned.
    fn words(&self, offset: usize, bytes: usize) -> Option<&[AtomicU32]> {
        let first = self.part(offset, bytes, 1, 4).ok()?;
        // SAFETY: in range and aligned (`part`); alive while `self` is borrowed; others may write it at any time,
        // and all accesses are atomic (`new`).
        Some(unsafe { core::slice::from_raw_parts(first.cast().as_ptr(), bytes / 4) })
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

// SAFETY: the memory is accessible from any thread (the contract of `new`), and the owner is `Send`.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` only allows the address and the length to be read, and atomic accesses.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("ptr", &self.ptr).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Maps memory of a queue, which `what` names in errors.
///
/// # Errors
/// The errno of the kernel.
pub fn map_queue(
    kernel: &dyn Kernel,
    verb: &'static str,
    what: &str,
    (offset, len): (u64, usize),
    protection: Protection,
) -> Result<Mapping, Error> {
    let refused = |errno| Error::os(verb, format!("{what} of {} at {offset:#x}", kernel.name()), errno);
    kernel.mmap(offset, len, protection).map_err(refused)
}

/// Memory in the device, mapped for reading and writing.
#[derive(Debug)]
pub struct DeviceMapping(Mapping);

impl DeviceMapping {
    /// Maps device memory. The meaning of `offset` depends on the driver.
    ///
    /// # Errors
    /// The kernel's errno; `EINVAL` if it mapped less than requested, or not for writing.
    pub fn map(kernel: &dyn Kernel, offset: u64, len: usize) -> Result<Self, Errno> {
        let mapping = kernel.mmap(offset, len, Protection::ReadWrite)?;
        if mapping.len() < len || !mapping.is_writable() { Err(Errno::EINVAL) } else { Ok(Self(mapping)) }
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    /// Copies bytes to it by stores of 4 bytes, which device memory needs; offset and length are multiples of 4.
    /// `false` if they are not, or if they are out of range.
    #[must_use]
    pub fn copy_in(&self, offset: usize, data: &[u8]) -> bool {
        let (words, rest) = data.as_chunks::<4>();
        rest.is_empty()
            && self.0.words(offset, data.len()).is_some_and(|to| {
                to.iter()
                    .zip(words)
                    .for_each(|(to, word)| to.store(u32::from_ne_bytes(*word), Ordering::Relaxed));
                true
            })
    }

    /// Copies bytes out, by loads of 4 bytes; as [`copy_in`](Self::copy_in).
    #[must_use]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        let length = out.len();
        let (words, rest) = out.as_chunks_mut::<4>();
        rest.is_empty()
            && self.0.words(offset, length).is_some_and(|from| {
                words
                    .iter_mut()
                    .zip(from)
                    .for_each(|(word, from)| *word = from.load(Ordering::Relaxed).to_ne_bytes());
                true
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{DoorbellPage, RawCommand, Registers, WriteCommand};
    use core::sync::atomic::AtomicU64;
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

    #[test]
    fn copies_use_words_and_stay_inside() {
        let memory: Arc<[AtomicU64; 2]> = Arc::default();
        let ptr = NonNull::from(&memory[..]).cast();
        // SAFETY: the array is alive while the `Arc` that is the owner is, and consists of atomics.
        let mapping = DeviceMapping(unsafe { Mapping::new(ptr, 16, Arc::clone(&memory)) });
        assert!(mapping.copy_in(4, &[1, 2, 3, 4, 5, 6, 7, 8]));
        let mut out = [0; 12];
        assert!(mapping.copy_out(4, &mut out));
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
        for (offset, length) in [(2, 4), (0, 3), (12, 8), (16, 4), (usize::MAX - 3, 4)] {
            assert!(!mapping.copy_in(offset, &[0; 8][..length]), "{length} at {offset}");
        }
        assert!(mapping.copy_in(16, &[]) && !mapping.copy_out(8, &mut [0; 12]));
    }

    /// A port that always maps read-only.
    #[derive(Debug)]
    struct ReadOnly;

    impl Kernel for ReadOnly {
        fn ioctl(&self, _: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
            Err(Errno::EINVAL)
        }
        fn write(&self, _: &mut WriteCommand<'_>) -> Result<(), Errno> {
            Err(Errno::EINVAL)
        }
        fn mmap(&self, _: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len as u64).unwrap();
            let map = memmap2::MmapOptions::new().len(len).map_raw_read_only(&file).unwrap();
            let ptr = NonNull::new(map.as_mut_ptr()).unwrap();
            // SAFETY: a mapping for reading, which `map` keeps.
            Ok(unsafe { Mapping::read_only(ptr, len, map) })
        }
        fn attribute(&self, _: &str) -> Result<Vec<u8>, Errno> {
            Err(Errno::ENOENT)
        }
        fn driver_id(&self) -> u32 {
            0
        }
        fn name(&self) -> &str {
            "read-only"
        }
        fn is_creator_process(&self) -> bool {
            true
        }
    }

    #[test]
    fn read_only_mappings_are_no_doorbells_or_device_memory() {
        assert_eq!(DoorbellPage::map(&ReadOnly, 0, 4096).unwrap_err(), Errno::EINVAL);
        assert_eq!(DeviceMapping::map(&ReadOnly, 0, 4096).unwrap_err(), Errno::EINVAL);
        let mapping = ReadOnly.mmap(0, 4096, Protection::ReadWrite).unwrap();
        assert!(Registers::new(Arc::new(mapping)).is_none());
    }
}
