// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::whole::{Owned, create};
use crate::abi::object::ibv_pd;
use crate::abi::qp::{ibv_mw_bind, ibv_qp};
use crate::arg::Arg;
use crate::data::post;
use crate::errno::{Errno, ensure, number, pointer};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::attr::MwType;
use uverbs_core::control::{MwHandle, mw};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::Driver;
use uverbs_core::wr::{IbvMw, SendWr, WrBindMw, WrOpcode, WrTail};

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for IbvMw {
    type Public = Self;
    type Own = ManuallyDrop<MwHandle>;
}

/// # Safety
/// As in ibv_alloc_mw(3).
pub(crate) unsafe extern "C" fn alloc_mw(pd: Arg<'_, ibv_pd>, mw_type: u32) -> *mut IbvMw {
    pointer(|| {
        let pd = pd.enter()?;
        let kind = MwType::from_raw(mw_type).ok_or(Errno::EINVAL)?;
        let handle = mw::alloc(pd.own().handle(), kind, Uhw::none())?;
        let public = IbvMw {
            context: pd.context().cast(),
            pd: pd.pointer().cast(),
            rkey: handle.rkey(),
            handle: handle.handle(),
            mw_type,
        };
        Ok(create(pd.here(), public, ManuallyDrop::new(handle)))
    })
}

/// # Safety
/// As in ibv_alloc_mw(3).
pub(crate) unsafe extern "C" fn dealloc_mw(mw: Arg<'_, IbvMw>) -> c_int {
    number(|| mw.claim()?.destroy(MwHandle::destroy))
}

/// The bind of a type 1 window is a work request like that of a type 2 window, with a key that this library selects:
/// the present one with the next tag.
///
/// # Safety
/// As in ibv_bind_mw(3).
pub(crate) unsafe extern "C" fn bind_mw<D: Driver>(
    qp: *mut ibv_qp,
    mw: *mut IbvMw,
    bind: Option<&ibv_mw_bind>,
) -> c_int {
    number(|| {
        ensure(!qp.is_null() && !mw.is_null())?;
        let bind = bind.ok_or(Errno::EINVAL)?;
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
