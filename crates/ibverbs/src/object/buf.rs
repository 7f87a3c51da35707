// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that the library allocates (ibv_alloc_buf(3)). They are ordinary memory: no device of ours asks for another kind,
//! so none is backed by a DMA-BUF.
#![expect(unsafe_code)]
// UNSAFETY: memory of the allocator, and C's pointers to objects.

use super::mr;
use crate::abi::object::ibv_pd;
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, minus_one, pointer};
use core::alloc::Layout;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::alloc::{alloc_zeroed, dealloc};
use uverbs_core::wr::IbvMr;

/// A buffer begins at a page and has whole pages, so that no other memory is on a page which is registered.
const PAGE: usize = 4096;

/// What a handle points to; C programs do not look inside.
pub(crate) struct Buf {
    pd: *mut ibv_pd,
    start: *mut u8,
    /// As it was asked for; the allocation has whole pages.
    size: usize,
    layout: Layout,
}

impl Buf {
    /// Fails unless `pd` is the domain of the buffer, and the range is inside of the buffer.
    pub(super) fn check(&self, pd: *mut ibv_pd, addr: *mut c_void, length: usize) -> Outcome<()> {
        let offset = addr.addr().checked_sub(self.start.addr()).ok_or(Errno::EINVAL)?;
        let end = offset.checked_add(length).ok_or(Errno::EINVAL)?;
        ensure(ptr::eq(pd, self.pd) && end <= self.size)
    }
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: Arg<'_, ibv_pd>,
    size: usize,
    buf: *mut *mut Buf,
) -> *mut c_void {
    pointer(|| {
        let _used = pd.enter()?;
        ensure(size != 0 && !buf.is_null())?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| Errno::ENOMEM)?.pad_to_align();
        // SAFETY: the size is not 0 (checked above).
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(Errno::ENOMEM);
        }
        let handle = Box::into_raw(Box::new(Buf { pd: pd.pointer(), start, size, layout }));
        // SAFETY: `buf` is not NULL (checked above), and valid for writes (contract of the man page).
        unsafe { buf.write(handle) };
        Ok(start.cast())
    })
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: Option<Box<Buf>>) {
    if let Some(buf) = buf {
        // SAFETY: it was allocated with this layout, and the program does not use it after this call (contract of the man
        // page).
        unsafe { dealloc(buf.start, buf.layout) };
    }
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: Arg<'_, ibv_pd>,
    buf: Option<&Buf>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    pointer(|| {
        buf.ok_or(Errno::EINVAL)?.check(pd.pointer(), addr, length)?;
        // SAFETY: `pd` is the buffer's domain, which exists, and the buffer is not freed as long as it is registered
        // (contract of the man page).
        unsafe { mr::register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
    })
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: Option<&Buf>) -> c_int {
    minus_one(|| Err(if buf.is_none() { Errno::EINVAL } else { Errno::ENODATA }))
}
