// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that the library allocates (ibv_alloc_buf(3)). They are ordinary memory: no device of ours asks for another kind,
//! so none is backed by a DMA-BUF.
#![expect(unsafe_code)]
// UNSAFETY: memory of the allocator, and C's pointers to objects.

use super::mr;
use crate::abi::object::ibv_pd;
use crate::context;
use crate::errno::{Errno, Outcome, ensure, minus_one, nothing, pointer};
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
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut Buf,
) -> *mut c_void {
    pointer(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; that is not closed during
        // this call (contract of the man page).
        let _used = unsafe { context::of_object(pd) }?;
        ensure(size != 0 && !buf.is_null())?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| Errno::ENOMEM)?.pad_to_align();
        // SAFETY: the size is not 0 (checked above).
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(Errno::ENOMEM);
        }
        let handle = Box::into_raw(Box::new(Buf { pd, start, size, layout }));
        // SAFETY: `buf` is not NULL (checked above), and valid for writes (contract of the man page).
        unsafe { buf.write(handle) };
        Ok(start.cast())
    })
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    nothing(|| {
        ensure(!buf.is_null())?;
        // SAFETY: `ibv_alloc_buf` made the handle as a `Box` of this type, and the program does not use it after this call
        // (contract of the man page).
        let buf = unsafe { Box::from_raw(buf) };
        // SAFETY: it was allocated with this layout, and the program does not use it after this call (contract of the man
        // page).
        unsafe { dealloc(buf.start, buf.layout) };
        Ok(())
    });
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    pointer(|| {
        // SAFETY: `buf` is NULL or a handle that was not freed (contract of the man page), and nothing changes it.
        unsafe { buf.as_ref() }.ok_or(Errno::EINVAL)?.check(pd, addr, length)?;
        // SAFETY: `pd` is the buffer's domain, which exists, and the buffer is not freed as long as it is registered
        // (contract of the man page).
        unsafe { mr::register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
    })
}

/// # Safety
/// As in ibv_alloc_buf(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut Buf) -> c_int {
    minus_one(|| Err(if buf.is_null() { Errno::EINVAL } else { Errno::ENODATA }))
}
