// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that can be registered: it stays where it is, however its owner moves.
#![expect(unsafe_code)]
// UNSAFETY: an anonymous mapping, and the trait by which owned buffers promise to stay put.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};

/// A buffer that stays at its address, and valid, until it is dropped.
///
/// # Safety
/// - `ptr()` and `len()` always give the same range, also after the owner was moved.
/// - The range is readable and writable until the owner is dropped, and only the owner gives access to it.
pub unsafe trait StableBuf: Send + 'static {
    /// First byte.
    fn ptr(&self) -> NonNull<u8>;
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Zeroed, page-aligned memory in its own mapping, for example for rings of messages.
///
/// Page alignment keeps other data off the pages that a device writes, and off those that a fork would have to keep.
///
/// Before its registration it is a slice. A region owns it and does not lend it, so after that the bytes are accessed by
/// the region's methods.
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
    /// At least `len` bytes, zeroed.
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
        // SAFETY: the mapping is readable, initialised with zeros, and this value's own. It is written through `&mut self` only:
        // a device writes it while a region owns this value, and a region lends no reference to its buffer.
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

// SAFETY: a Vec's heap block stays while the Vec is neither grown nor dropped, and a registered one is never lent as
// `&mut Vec`. Only the initialised part counts.
unsafe impl StableBuf for Vec<u8> {
    fn ptr(&self) -> NonNull<u8> {
        NonNull::new(self.as_ptr().cast_mut()).unwrap_or(NonNull::dangling())
    }
    fn len(&self) -> usize {
        self.len()
    }
}

/// Memory with another owner.
#[derive(Debug)]
pub struct ForeignBuf {
    ptr: NonNull<u8>,
    len: usize,
}

impl ForeignBuf {
    /// # Safety
    /// `len` bytes at `ptr` are readable and writable as long as the value (and the region made from it) lives, and all
    /// other accesses to them follow Rust's rules.
    #[must_use]
    pub const unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len }
    }
}

// SAFETY: the caller of `new` promises access from any thread that has the value.
unsafe impl Send for ForeignBuf {}
// SAFETY: `new`'s caller promises it.
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
