// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC domains (ibv_open_xrcd(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::whole::{Owned, create};
use crate::abi::attr::ibv_xrcd_init_attr;
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_xrcd;
use crate::arg::Arg;
use crate::errno::{Errno, ensure, number, pointer};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use uverbs_core::control::{XrcdHandle, xrcd};

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for ibv_xrcd {
    type Public = Self;
    type Own = ManuallyDrop<XrcdHandle>;
}

/// `IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS`
const ALL_ATTRS: u32 = 3;

/// # Safety
/// As in ibv_open_xrcd(3).
pub(crate) unsafe extern "C" fn open_xrcd(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_xrcd_init_attr>,
) -> *mut ibv_xrcd {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        ensure(attr.comp_mask == ALL_ATTRS)?;
        // SAFETY: the descriptor is not negative, and the program does not close it during this call (contract of the
        // man page).
        let fd = (attr.fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(attr.fd) });
        let has = |flag| attr.oflags & flag != 0;
        let handle = xrcd::open(here.kernel(), fd, has(libc::O_CREAT), has(libc::O_EXCL))?;
        Ok(create(here, ibv_xrcd { context: context.pointer() }, ManuallyDrop::new(handle)))
    })
}

/// # Safety
/// As in ibv_open_xrcd(3).
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: Arg<'_, ibv_xrcd>) -> c_int {
    number(|| xrcd.claim()?.destroy(XrcdHandle::destroy))
}
