// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC domains (ibv_open_xrcd(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::destroy_handle;
use crate::abi::attr::ibv_xrcd_init_attr;
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_xrcd;
use crate::context;
use crate::errno::{Errno, ensure, number, pointer};
use crate::live;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use uverbs_core::control::{XrcdHandle, xrcd};

/// An XRC domain.
#[repr(C)]
struct Xrcd {
    public: ibv_xrcd,
    private: ManuallyDrop<XrcdHandle>,
}

/// `IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS`
const ALL_ATTRS: u32 = 3;

/// The kernel's object.
///
/// # Safety
/// `xrcd` is a live domain of this library.
pub(crate) unsafe fn handle<'a>(xrcd: *mut ibv_xrcd) -> &'a XrcdHandle {
    // SAFETY: `xrcd` is a live object of this type (contract of this function); no mutable reference to its private
    // part exists.
    unsafe { &(*xrcd.cast::<Xrcd>()).private }
}

/// # Safety
/// As in ibv_open_xrcd(3).
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        ensure(attr.comp_mask == ALL_ATTRS)?;
        // SAFETY: the descriptor is not negative, and the program does not close it during this call (contract of the
        // man page).
        let fd = (attr.fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(attr.fd) });
        let has = |flag| attr.oflags & flag != 0;
        let handle = xrcd::open(here.kernel(), fd, has(libc::O_CREAT), has(libc::O_EXCL))?;
        let xrcd = Xrcd { public: ibv_xrcd { context }, private: ManuallyDrop::new(handle) };
        // SAFETY: a new object; the context is not closed during this call (contract of the man page).
        Ok(unsafe { live::add(Box::into_raw(Box::new(xrcd)).cast()) })
    })
}

/// # Safety
/// As in ibv_open_xrcd(3).
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    number(|| {
        // SAFETY: `xrcd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(xrcd) }?;
        // SAFETY: `xrcd` is a live object of this type (contract of the man page); no mutable reference to its private
        // part exists.
        let handle = unsafe { &(*xrcd.cast::<Xrcd>()).private };
        // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
        // the man page).
        unsafe { destroy_handle(handle, XrcdHandle::destroy) }?;
        live::remove(&here, xrcd);
        // SAFETY: `open_xrcd` allocated it as a `Box` of this type; the program does not use it after this call
        // (contract of the man page).
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
        Ok(())
    })
}
