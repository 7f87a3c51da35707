// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs of queue pairs, as C calls them (ibv_create_qp(3), ibv_modify_qp(3), ibv_query_qp(3),
//! ibv_attach_mcast(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::Zeroed as _;
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_pd;
use crate::abi::qp::{
    ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_qp_rate_limit_attr,
};
use crate::arg::Arg;
use crate::convert::qp as convert;
use crate::driver_library::{self, in_order_cap};
use crate::errno::{Errno, Outcome, ensure, nothing, number, pointer};
use crate::object::qp::{Parents, mask};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use uverbs_core::attr::{Ece, Gid, QpAttrMask, QpRateLimitAttr, QpType};
use uverbs_core::control::{QpHandle, mcast};

/// # Safety
/// As in ibv_create_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: Arg<'_, ibv_pd>,
    attr: Option<&mut ibv_qp_init_attr>,
) -> *mut ibv_qp {
    pointer(|| {
        let context = pd.enter()?.context_arg();
        let attr = attr.ok_or(Errno::EINVAL)?;
        let mut ex = extended(attr, pd);
        // SAFETY: the objects in `ex` are NULL or exist (contract of the man page).
        let qp = unsafe { create(context, &mut ex) }?;
        attr.cap = ex.cap;
        Ok(qp)
    })
}

/// The same attributes in the extended struct.
pub(crate) fn extended(attr: &ibv_qp_init_attr, pd: Arg<'_, ibv_pd>) -> ibv_qp_init_attr_ex {
    let mut ex = ibv_qp_init_attr_ex::zeroed();
    (ex.qp_context, ex.send_cq, ex.recv_cq, ex.srq) = (attr.qp_context, attr.send_cq, attr.recv_cq, attr.srq);
    (ex.cap, ex.qp_type, ex.sq_sig_all) = (attr.cap, attr.qp_type, attr.sq_sig_all);
    (ex.comp_mask, ex.pd) = (mask::PD, pd.pointer());
    ex
}

/// # Safety
/// As in ibv_create_qp_ex(3).
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: Arg<'_, ibv_context>,
    attr: Option<&mut ibv_qp_init_attr_ex>,
) -> *mut ibv_qp {
    pointer(|| {
        let attr = attr.ok_or(Errno::EINVAL)?;
        // A program's struct of an older version may end before the fields whose bits are not set.
        let mut copy = *attr;
        // SAFETY: `context` is not closed during this call, and the objects in `copy` are NULL or exist (contract of
        // the man page).
        let qp = unsafe { create(context, &mut copy) }?;
        attr.cap = copy.cap;
        Ok(qp)
    })
}

/// # Safety
/// As in ibv_create_qp_ex(3).
unsafe fn create(context: Arg<'_, ibv_context>, attr: &mut ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    let here = context.open()?;
    // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
    let parents = unsafe { parents(context, attr) }?;
    // SAFETY: the key of the hash is NULL or valid (contract of the man page).
    unsafe { here.verbs().create_qp(context, attr, &parents) }
}

/// The objects from which a queue pair is created, which must be of this context. Those that the mask does not name are cleared.
///
/// # Safety
/// As in ibv_create_qp_ex(3).
pub(crate) unsafe fn parents<'a>(
    context: Arg<'a, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
) -> Outcome<Parents<'a>> {
    if attr.comp_mask & mask::PD == 0 {
        attr.pd = ptr::null_mut();
    }
    if attr.comp_mask & mask::XRCD == 0 {
        attr.xrcd = ptr::null_mut();
    }
    if attr.comp_mask & mask::IND_TABLE == 0 {
        attr.rwq_ind_tbl = ptr::null_mut();
    }
    ensure(attr.comp_mask & !mask::ALL == 0)?;
    let context = context.pointer();
    Ok(Parents {
        // SAFETY: the context is not closed during this call (contract of the man page).
        pd: unsafe { Arg::new(attr.pd) }.enter_in(context)?,
        // SAFETY: as for the domain.
        xrcd: unsafe { Arg::new(attr.xrcd) }.enter_in(context)?,
        // SAFETY: as for the domain.
        send_cq: unsafe { Arg::new(attr.send_cq) }.enter_in(context)?,
        // SAFETY: as for the domain.
        recv_cq: unsafe { Arg::new(attr.recv_cq) }.enter_in(context)?,
        // SAFETY: as for the domain.
        srq: unsafe { Arg::new(attr.srq) }.enter_in(context)?,
        // SAFETY: as for the domain.
        table: unsafe { Arg::new(attr.rwq_ind_tbl) }.enter_in(context)?,
    })
}

/// `IBV_QP_OPEN_ATTR_*`
mod open_mask {
    pub(super) const NUM: u32 = 1 << 0;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CONTEXT: u32 = 1 << 2;
    pub(super) const TYPE: u32 = 1 << 3;
    pub(super) const ALL: u32 = (1 << 4) - 1;
}

/// # Safety
/// As in ibv_open_qp(3).
pub(crate) unsafe extern "C" fn open_qp(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_qp_open_attr>,
) -> *mut ibv_qp {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.comp_mask & bit != 0;
        ensure(!has(!open_mask::ALL) && has(open_mask::NUM) && has(open_mask::XRCD) && has(open_mask::TYPE))?;
        ensure(attr.qp_type == QpType::XrcRecv as u32)?;
        // SAFETY: `attr.xrcd` is NULL or a live object, which begins with the pointer to its context (contract of the
        // man page).
        let xrcd = unsafe { Arg::new(attr.xrcd) }.enter_in(context.pointer())?.ok_or(Errno::EINVAL)?;
        let qp = here.verbs().open_qp(context, &xrcd, attr.qp_num)?;
        if has(open_mask::CONTEXT) {
            // SAFETY: `qp` was created by the call above, and the program does not have it yet.
            unsafe { (*qp).qp_context = attr.qp_context };
        }
        Ok(qp)
    })
}

/// # Safety
/// As in ibv_qp_to_qp_ex(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: Arg<'_, ibv_qp>) -> *mut ibv_qp_ex {
    let has_builder = qp.peek().and_then(|qp| qp.verbs().has_builder(&qp)) == Ok(true);
    if has_builder { qp.pointer().cast() } else { ptr::null_mut() }
}

/// # Safety
/// As in ibv_modify_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: Arg<'_, ibv_qp>,
    attr: Option<&ibv_qp_attr>,
    attr_mask: c_int,
) -> c_int {
    number(|| {
        let qp = qp.enter()?;
        // rdma-core and the kernel refuse unknown bits with this errno (`ibv_cmd_modify_qp()`, `ib_uverbs_ex_modify_qp()`).
        let mask = QpAttrMask::from_bits(attr_mask.cast_unsigned()).ok_or(Errno::EOPNOTSUPP)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        qp.verbs().modify_qp(&qp, &convert::from_c(attr), mask)?;
        if mask.contains(QpAttrMask::STATE) {
            // SAFETY: the queue pair exists as long as `qp`.
            unsafe { (*qp.pointer()).state = attr.qp_state };
        }
        Ok(())
    })
}

/// # Safety
/// As in ibv_query_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: Arg<'_, ibv_qp>,
    attr: Option<&mut MaybeUninit<ibv_qp_attr>>,
    attr_mask: c_int,
    init_attr: Option<&mut MaybeUninit<ibv_qp_init_attr>>,
) -> c_int {
    number(|| {
        let qp = qp.enter()?;
        let (Some(attr), Some(init_attr)) = (attr, init_attr) else { return Err(Errno::EINVAL) };
        let mask = QpAttrMask::from_bits_retain(attr_mask.cast_unsigned());
        let (found, sq_sig_all) = qp.verbs().query_qp(&qp, mask)?;
        // SAFETY: the queue pair exists as long as `qp`. Its public part is copied.
        let public = unsafe { qp.pointer().read() };
        let init = ibv_qp_init_attr {
            qp_context: public.qp_context,
            send_cq: public.send_cq,
            recv_cq: public.recv_cq,
            srq: public.srq,
            cap: convert::cap_to_c(&found.cap),
            qp_type: public.qp_type,
            sq_sig_all: sq_sig_all.into(),
        };
        attr.write(convert::to_c(&found));
        init_attr.write(init);
        if mask.contains(QpAttrMask::STATE) {
            // SAFETY: the queue pair exists as long as `qp`.
            unsafe { (*qp.pointer()).state = found.qp_state.0 };
        }
        Ok(())
    })
}

/// # Safety
/// As in ibv_destroy_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: Arg<'_, ibv_qp>) -> c_int {
    number(|| {
        let qp = qp.claim()?;
        qp.here().verbs().destroy_qp(qp)
    })
}

/// Calls a verb for a group, whose GID has no alignment.
fn group(
    qp: Arg<'_, ibv_qp>,
    gid: Option<&[u8; 16]>,
    lid: u16,
    verb: fn(&QpHandle, Gid, u16) -> uverbs_core::Result<()>,
) -> c_int {
    number(|| {
        let qp = qp.enter()?;
        let gid = gid.ok_or(Errno::EINVAL)?;
        Ok(verb(qp.verbs().qp_handle(&qp)?, Gid(*gid), lid)?)
    })
}

/// # Safety
/// As in ibv_attach_mcast(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: Arg<'_, ibv_qp>,
    gid: Option<&[u8; 16]>,
    lid: u16,
) -> c_int {
    group(qp, gid, lid, mcast::attach)
}

/// # Safety
/// As in ibv_attach_mcast(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: Arg<'_, ibv_qp>,
    gid: Option<&[u8; 16]>,
    lid: u16,
) -> c_int {
    group(qp, gid, lid, mcast::detach)
}

/// # Safety
/// As in ibv_query_ece(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(
    qp: Arg<'_, ibv_qp>,
    ece: Option<&mut MaybeUninit<ibv_ece>>,
) -> c_int {
    number(|| {
        let qp = qp.enter()?;
        let ece = ece.ok_or(Errno::EINVAL)?;
        let Ece { vendor_id, options } = qp.verbs().query_ece(&qp)?;
        ece.write(ibv_ece { vendor_id, options, comp_mask: 0 });
        Ok(())
    })
}

/// # Safety
/// As in ibv_set_ece(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: Arg<'_, ibv_qp>, ece: Option<&ibv_ece>) -> c_int {
    number(|| {
        let qp = qp.enter()?;
        let ece = ece.ok_or(Errno::EINVAL)?;
        if ece.vendor_id == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        ensure(ece.comp_mask == 0)?;
        let ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        qp.verbs().set_ece(&qp, ece)
    })
}

/// # Safety
/// As in ibv_modify_qp_rate_limit(3).
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: Arg<'_, ibv_qp>,
    attr: Option<&ibv_qp_rate_limit_attr>,
) -> c_int {
    number(|| {
        let qp = qp.enter()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        ensure(attr.comp_mask == 0)?;
        let limit = QpRateLimitAttr::new(attr.rate_limit)
            .max_burst_sz(attr.max_burst_sz)
            .typical_pkt_sz(attr.typical_pkt_sz);
        qp.verbs().modify_qp_rate_limit(&qp, &limit)
    })
}

/// `enum ibv_query_qp_data_in_order_flags`
mod in_order_flag {
    pub(super) const RETURN_CAPS: u32 = 1 << 0;
    pub(super) const DEVICE_ONLY: u32 = 1 << 1;
}

/// The guarantees are those of the device for a QP; its answer is the same for all operations. Only x86 processors keep
/// the order, so for others 0 is returned unless the flag `DEVICE_ONLY` is set.
///
/// # Safety
/// As in ibv_query_qp_data_in_order(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: Arg<'_, ibv_qp>,
    _op: u32,
    flags: u32,
) -> c_int {
    let mut caps = 0;
    nothing(|| {
        ensure(flags & !(in_order_flag::RETURN_CAPS | in_order_flag::DEVICE_ONLY) == 0)?;
        ensure(cfg!(target_arch = "x86_64") || flags & in_order_flag::DEVICE_ONLY != 0)?;
        caps = driver_library::in_order(qp)?;
        Ok(())
    });
    if flags & in_order_flag::RETURN_CAPS != 0 { caps } else { (caps & in_order_cap::WHOLE_MSG != 0).into() }
}
