// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::{destroy_handle, pd};
use crate::abi::object::ibv_pd;
use crate::abi::qp::{ibv_mw_bind, ibv_qp};
use crate::context;
use crate::data::post;
use crate::errno::{Errno, ensure, number, pointer};
use crate::live;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::attr::MwType;
use uverbs_core::control::{MwHandle, mw};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::Driver;
use uverbs_core::wr::{IbvMw, SendWr, WrBindMw, WrOpcode, WrTail};

/// A window.
#[repr(C)]
struct Mw {
    public: IbvMw,
    private: ManuallyDrop<MwHandle>,
}

/// # Safety
/// As in ibv_alloc_mw(3).
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut IbvMw {
    pointer(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let _used = unsafe { context::of_object(pd) }?;
        let kind = MwType::from_raw(mw_type).ok_or(Errno::EINVAL)?;
        // SAFETY: `pd` is a live object of this library: its context was found above.
        let handle = mw::alloc(unsafe { pd::handle(pd) }, kind, Uhw::none())?;
        let public = IbvMw {
            // SAFETY: `pd` is a live object (contract of the man page).
            context: unsafe { (*pd).context }.cast(),
            pd: pd.cast(),
            rkey: handle.rkey(),
            handle: handle.handle(),
            mw_type,
        };
        let mw = Box::into_raw(Box::new(Mw { public, private: ManuallyDrop::new(handle) }));
        // SAFETY: a new object; the context is not closed during this call (contract of the man page).
        Ok(unsafe { live::add(mw.cast()) })
    })
}

/// # Safety
/// As in ibv_alloc_mw(3).
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut IbvMw) -> c_int {
    number(|| {
        // SAFETY: `mw` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(mw) }?;
        // SAFETY: `mw` is a live object of this type (contract of the man page); no mutable reference to its private
        // part exists.
        let handle = unsafe { &(*mw.cast::<Mw>()).private };
        // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
        // the man page).
        unsafe { destroy_handle(handle, MwHandle::destroy) }?;
        live::remove(&here, mw);
        // SAFETY: `alloc_mw` allocated it as a `Box` of this type; the program does not use it after this call
        // (contract of the man page).
        drop(unsafe { Box::from_raw(mw.cast::<Mw>()) });
        Ok(())
    })
}

/// The bind of a type 1 window is a work request like that of a type 2 window, with a key that this library selects:
/// the present one with the next tag.
///
/// # Safety
/// As in ibv_bind_mw(3).
pub(crate) unsafe extern "C" fn bind_mw<D: Driver>(
    qp: *mut ibv_qp,
    mw: *mut IbvMw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    number(|| {
        ensure(!qp.is_null() && !mw.is_null())?;
        // SAFETY: `bind` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let bind = unsafe { bind.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: `mw` is not NULL (checked above), so the window exists (contract of the man page).
        let rkey = unsafe { (*mw).rkey };
        let rkey = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
        let mut wr = SendWr::new(bind.wr_id, WrOpcode::BIND_MW);
        wr.send_flags = bind.send_flags;
        wr.tail = WrTail { bind_mw: WrBindMw { mw, rkey, bind_info: bind.bind_info } };
        let mut bad = ptr::null_mut();
        // SAFETY: `qp`, `mw` and the region exist (contract of the man page). The list has one node, a local.
        match unsafe { post::post_send::<D>(qp, &raw mut wr, &raw mut bad) } {
            0 => {
                // SAFETY: `mw` is not NULL (checked above), so the window exists (contract of the man page).
                unsafe { (*mw).rkey = rkey };
                Ok(())
            }
            errno => Err(Errno::from_raw(errno)),
        }
    })
}
