// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that can be registered: its address does not change when its owner is moved.
#![expect(unsafe_code)]
// UNSAFETY: an anonymous mapping, and a trait whose implementations guarantee that a buffer keeps its address.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};

/// A buffer whose address does not change, and which is valid, until it is dropped.
///
/// # Safety
/// - `ptr()` and `len()` always give the same range, also after the owner was moved.
/// - The range is readable and writable until the owner is dropped, and can be accessed through the owner only.
pub unsafe trait StableBuf: Send + 'static {
    /// The first byte.
    fn ptr(&self) -> NonNull<u8>;
    /// The number of bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Zeroed, page-aligned memory in its own mapping, for example for rings of messages.
///
/// With page alignment, the pages that a device writes contain no other data. So if these pages are excluded from a
/// fork (`MADV_DONTFORK`), a child lacks no other data.
///
/// Before its registration the buffer dereferences to a slice. A region owns the buffer and does not lend it, so
/// registered bytes are accessed by the region's methods.
/// ```
/// let mut buf = uverbs::PageBuf::new(4096)?;
/// buf[..5].copy_from_slice(b"hello");
/// assert!(buf.starts_with(b"hello\0"));
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug)]
pub struct PageBuf {
    map: memmap2::MmapRaw,
}

impl PageBuf {
    /// Allocates at least `len` bytes, zeroed.
    ///
    /// # Errors
    /// The error of mmap(2), such as `ENOMEM`.
    pub fn new(len: usize) -> Result<Self> {
        let map = memmap2::MmapOptions::new().len(len.max(1)).map_anon().map_err(|e| {
            Error::os("mmap", format!("{len} bytes"), Errno::from_raw(e.raw_os_error().unwrap_or(0)))
        })?;
        Ok(Self { map: map.into() })
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialised with zeros, and owned by this value. It is written through `&mut
        // self` only, except by a device while a region owns this value; a region lends no reference to its `PageBuf`.
        unsafe { core::slice::from_raw_parts(self.map.as_ptr(), self.map.len()) }
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable, and `&mut self` excludes other references.
        unsafe { core::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.map.len()) }
    }
}

// SAFETY: a private mapping that this value owns; it is unmapped only by drop.
unsafe impl StableBuf for PageBuf {
    fn ptr(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }
    fn len(&self) -> usize {
        self.map.len()
    }
}

// SAFETY: the heap block of a Vec keeps its address while the Vec is neither grown nor dropped, and a region does not
// lend its Vec as `&mut Vec`. The range is the initialised part.
unsafe impl StableBuf for Vec<u8> {
    fn ptr(&self) -> NonNull<u8> {
        NonNull::new(self.as_ptr().cast_mut()).unwrap_or(NonNull::dangling())
    }
    fn len(&self) -> usize {
        self.len()
    }
}

/// Memory that this value does not own.
#[derive(Debug)]
pub struct ForeignBuf {
    ptr: NonNull<u8>,
    len: usize,
}

impl ForeignBuf {
    /// # Safety
    /// `len` bytes at `ptr` are readable and writable as long as the value (and the region created from it) exists, and
    /// all other accesses to them follow Rust's rules.
    #[must_use]
    pub const unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len }
    }
}

// SAFETY: the contract of `new` allows access from any thread that has the value.
unsafe impl Send for ForeignBuf {}
// SAFETY: the contract of `new` includes that of `StableBuf`: the range is valid as long as this value exists.
unsafe impl StableBuf for ForeignBuf {
    fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// No memory of this process, for dma-buf regions.
#[derive(Clone, Copy, Debug)]
pub struct NoBuf;

// SAFETY: an empty range is always readable and writable.
unsafe impl StableBuf for NoBuf {
    fn ptr(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    fn len(&self) -> usize {
        0
    }
}
