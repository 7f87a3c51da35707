// SPDX-License-Identifier: MIT OR Apache-2.0
//! SRD QPs, and CQs with EFA's options (efadv_create_driver_qp(3), efadv_create_qp_ex(3), efadv_create_cq(3)); the functions of
//! `struct efadv_cq` (efadv_create_cq(3)) and `struct efadv_qp` (efadv_wr_set_processing_hints(3)).
//!
//! An object has the struct from its first use on. Functions that were not requested when the object was created are NULL.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::{efadv_cq, efadv_cq_init_attr, efadv_qp, efadv_qp_init_attr, end_of, of, read};
use crate::abi::Zeroed as _;
use crate::abi::attr::ibv_cq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_cq, ibv_cq_ex, ibv_pd};
use crate::abi::qp::{ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, pointer};
use crate::export::qp as export;
use crate::object::{cq, qp};
use crate::verbs::driver;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use uverbs_core::attr::{CqInitAttr, QpType};
use uverbs_core::control::CompChannelHandle;
use uverbs_core::provider::{CompletionQueue as _, QpCreate};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_efa::control::{CqOptions, QpOptions};
use uverbs_efa::{Completion, Efa, SendQueue};
use uverbs_uapi::efa::{
    EFA_QP_DRIVER_TYPE_SRD, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV,
};

/// `EFADV_QP_FLAGS_*`
mod qp_flag {
    pub(super) const UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
    pub(super) const INLINE_WRITE: u16 = 1 << 1;
    pub(super) const ALL: u16 = UNSOLICITED_WRITE_RECV | INLINE_WRITE;
}

/// `EFADV_WC_EX_*`
const WITH_SGID: u64 = 1 << 0;
const WITH_IS_UNSOLICITED: u64 = 1 << 1;

/// `EFADV_WR_EX_WITH_PROCESSING_HINTS`
const WITH_PROCESSING_HINTS: u64 = 1 << 0;

/// `EFADV_WR_PROCESSING_HINT_BURST_PPS_SENSITIVE`, which has the value of the device's bit
/// (`EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE`).
const BURST_PPS_SENSITIVE: u32 = 1 << 0;

/// Creates an SRD QP with the attributes of both structs.
///
/// # Safety
/// The objects in `attr` are NULL or exist.
unsafe fn create(
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
    special: &efadv_qp_init_attr,
) -> Outcome<*mut ibv_qp> {
    let open = of(context)?;
    let is_known = special.driver_qp_type == EFA_QP_DRIVER_TYPE_SRD
        && special.flags & !qp_flag::ALL == 0
        && special.wr_flags & !WITH_PROCESSING_HINTS == 0
        && attr.comp_mask & !(qp::mask::PD | qp::mask::SEND_OPS_FLAGS) == 0;
    if !is_known {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the objects in `attr` are NULL or exist (the contract of this function).
    let parents = unsafe { export::parents(context, attr) }?;
    ensure(parents.send_cq.is_some() && parents.recv_cq.is_some())?;
    let init = qp::init_attr(attr)?;
    let options = QpOptions {
        unsolicited_write_recv: special.flags & qp_flag::UNSOLICITED_WRITE_RECV != 0,
        inline_write: special.flags & qp_flag::INLINE_WRITE != 0,
        sl: special.sl,
    };
    let make = |create: &QpCreate<'_, Efa>| open.driver.new_qp(create, options);
    let qp = qp::create_with(open, context, attr, &parents, &init, make)?;
    choose_of_qp(qp, special.wr_flags);
    Ok(qp)
}

/// # Safety
/// As in efadv_create_driver_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_create_driver_qp(
    pd: Arg<'_, ibv_pd>,
    attr: Option<&mut ibv_qp_init_attr>,
    driver_qp_type: u32,
) -> *mut ibv_qp {
    pointer(|| {
        let context = pd.enter()?.context_arg();
        of(context)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        ensure(attr.qp_type == QpType::Driver as u32)?;
        let mut ex = export::extended(attr, pd);
        let special = efadv_qp_init_attr { driver_qp_type, ..efadv_qp_init_attr::zeroed() };
        // SAFETY: the objects in `ex` are NULL or exist (contract of the man page).
        let qp = unsafe { create(context, &mut ex, &special) }?;
        attr.cap = ex.cap;
        Ok(qp)
    })
}

/// # Safety
/// As in efadv_create_qp_ex(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_create_qp_ex(
    context: Arg<'_, ibv_context>,
    attr: Option<&mut ibv_qp_init_attr_ex>,
    efa_attr: *const efadv_qp_init_attr,
    inlen: u32,
) -> *mut ibv_qp {
    pointer(|| {
        of(context)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        // SAFETY: `efa_attr` is NULL or has `inlen` bytes (contract of the man page).
        let special = unsafe { read(efa_attr, inlen, end_of!(efadv_qp_init_attr, driver_qp_type)) }?;
        ensure(attr.qp_type == QpType::Driver as u32 && special.comp_mask == 0 && special.reserved == 0)?;
        // A program's struct of an older version may end before the fields whose bits are not set.
        let mut copy = *attr;
        // SAFETY: the objects in `copy` are NULL or exist (contract of the man page).
        let qp = unsafe { create(context, &mut copy, &special) }?;
        attr.cap = copy.cap;
        Ok(qp)
    })
}

/// # Safety
/// As in efadv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_create_cq(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_cq_init_attr_ex>,
    efa_attr: *const efadv_cq_init_attr,
    inlen: u32,
) -> *mut ibv_cq_ex {
    pointer(|| {
        let open = of(context)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        // SAFETY: `efa_attr` is NULL or has `inlen` bytes (contract of the man page).
        let special = unsafe { read(efa_attr, inlen, end_of!(efadv_cq_init_attr, wc_flags)) }?;
        ensure(special.comp_mask == 0)?;
        let limits = open.driver.limits();
        let known = [
            (WITH_SGID, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID),
            (WITH_IS_UNSOLICITED, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV),
        ];
        let known = known.iter().filter(|(_, cap)| limits.has(*cap)).fold(0, |all, (flag, _)| all | flag);
        // The only flag is memory of the program for the queue.
        if special.wc_flags & !known != 0 || special.flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
        let request = unsafe { cq::extended_request(context, attr) }?;
        let options = CqOptions { source_gid: special.wc_flags & WITH_SGID != 0 };
        let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
            open.driver.new_cq(attr, options, channel, number)
        };
        let cq = cq::create_with(open, context, &request, make)?;
        choose_of_cq(cq, special.wc_flags);
        Ok(cq.cast())
    })
}

/// C's part, and the object that it belongs to.
#[repr(C)]
struct Functions<P, T> {
    public: P,
    object: *mut T,
}

// SAFETY: the pointer is used only in functions that C calls, whose contract allows any thread.
unsafe impl<P: Send, T> Send for Functions<P, T> {}
// SAFETY: as for `Send`; the struct is not changed after its creation.
unsafe impl<P: Sync, T> Sync for Functions<P, T> {}

type OfCq = Functions<efadv_cq, ibv_cq>;
type OfQp = Functions<efadv_qp, ibv_qp>;

/// The functions of a CQ: those of these flags, if it has none yet.
fn of_cq(cq: Arg<'_, ibv_cq>, wc_flags: u64) -> Outcome<*mut efadv_cq> {
    let cq = cq.peek()?;
    let open = driver::<Efa>(cq.here())?;
    let functions = cq.own_of(open)?.extension.data.get_or_init(|| {
        let mut public = efadv_cq::zeroed();
        public.wc_read_sgid = (wc_flags & WITH_SGID != 0).then_some(wc_read_sgid as _);
        public.wc_is_unsolicited = (wc_flags & WITH_IS_UNSOLICITED != 0).then_some(wc_is_unsolicited as _);
        Box::new(OfCq { public, object: cq.pointer() })
    });
    let functions = functions.downcast_ref::<OfCq>().ok_or(Errno::EINVAL)?;
    Ok(ptr::from_ref(functions).cast_mut().cast())
}

/// The functions of a QP: those of these flags, if it has none yet.
fn of_qp(qp: Arg<'_, ibv_qp>, wr_flags: u64) -> Outcome<*mut efadv_qp> {
    let qp = qp.peek()?;
    let open = driver::<Efa>(qp.here())?;
    let functions = qp.own_of(open)?.extension.data.get_or_init(|| {
        let mut public = efadv_qp::zeroed();
        public.wr_set_processing_hints =
            (wr_flags & WITH_PROCESSING_HINTS != 0).then_some(wr_set_processing_hints as _);
        Box::new(OfQp { public, object: qp.pointer() })
    });
    let functions = functions.downcast_ref::<OfQp>().ok_or(Errno::EINVAL)?;
    Ok(ptr::from_ref(functions).cast_mut().cast())
}

/// Gives a new CQ the functions of these flags.
fn choose_of_cq(cq: *mut ibv_cq, wc_flags: u64) {
    // SAFETY: the CQ was just created, and the program does not have it yet.
    let _ = of_cq(unsafe { Arg::new(cq) }, wc_flags);
}

/// Gives a new QP the functions of these flags.
fn choose_of_qp(qp: *mut ibv_qp, wr_flags: u64) {
    // SAFETY: the QP was just created, and the program does not have it yet.
    let _ = of_qp(unsafe { Arg::new(qp) }, wr_flags);
}

/// NULL if the CQ is not of an EFA device.
///
/// # Safety
/// As in efadv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_cq_from_ibv_cq_ex(cq: Arg<'_, ibv_cq>) -> *mut efadv_cq {
    of_cq(cq, 0).unwrap_or(ptr::null_mut())
}

/// NULL if the QP is not of an EFA device.
///
/// # Safety
/// As in efadv_wr_set_processing_hints(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_qp_from_ibv_qp_ex(qp: Arg<'_, ibv_qp>) -> *mut efadv_qp {
    of_qp(qp, 0).unwrap_or(ptr::null_mut())
}

/// The current completion of the session in which a function is called, or the last one of the session before.
///
/// # Safety
/// `cq` is from [`uverbs_efadv_cq_from_ibv_cq_ex`], its CQ exists, and this thread has its session, or had the last one and no other
/// thread polls meanwhile.
unsafe fn completion(cq: *mut efadv_cq) -> Option<Completion> {
    // SAFETY: `cq` points to the first field of an `OfCq` (the contract of this function), which is not changed.
    let cq = unsafe { (*cq.cast::<OfCq>()).object };
    // SAFETY: the CQ exists, and is of this driver (the contract of this function).
    let queue = unsafe { &cq::private::<Efa>(cq).queue };
    // SAFETY: no other thread uses the engine (the contract of this function).
    unsafe { queue.entered() }.last()
}

/// 0, or `-ENOENT` if the completion has no GID: the device reports that of unknown peers only.
///
/// # Safety
/// As in efadv_create_cq(3).
unsafe extern "C" fn wc_read_sgid(cq: *mut efadv_cq, sgid: Option<&mut MaybeUninit<[u8; 16]>>) -> c_int {
    // SAFETY: the contract of the man page is that of `completion`.
    let gid = unsafe { completion(cq) }.and_then(|completion| completion.source_gid());
    match (gid, sgid) {
        (Some(gid), Some(sgid)) => {
            sgid.write(gid.0);
            0
        }
        (None, _) => -libc::ENOENT,
        (Some(_), None) => -libc::EINVAL,
    }
}

/// # Safety
/// As in efadv_create_cq(3).
unsafe extern "C" fn wc_is_unsolicited(cq: *mut efadv_cq) -> bool {
    // SAFETY: the contract of the man page is that of `completion`.
    unsafe { completion(cq) }.is_some_and(|completion| completion.is_unsolicited())
}

/// Hints that this library does not know are ignored, as by libefa.
///
/// # Safety
/// As in efadv_wr_set_processing_hints(3).
unsafe extern "C" fn wr_set_processing_hints(qp: *mut efadv_qp, hints: u32) {
    // SAFETY: `qp` points to the first field of an `OfQp` (contract of the man page), which is not changed.
    let qp = unsafe { (*qp.cast::<OfQp>()).object };
    // SAFETY: the QP exists, and is of this driver (contract of the man page).
    let Some(queue): Option<&Locked<SendQueue, Dynamic>> = unsafe { qp::private::<Efa>(qp) }.send.as_ref()
    else {
        return;
    };
    // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the same time (contract of the man
    // page). Outside a session the queue ignores the call.
    unsafe { queue.entered() }.wr_set_processing_hints((hints & BURST_PPS_SENSITIVE) as u8);
}
