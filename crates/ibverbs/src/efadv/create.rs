// SPDX-License-Identifier: MIT OR Apache-2.0
//! SRD QPs, and CQs with EFA's options (efadv_create_driver_qp(3), efadv_create_qp_ex(3), efadv_create_cq(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::{end_of, functions, of, read};
use crate::abi::Zeroed as _;
use crate::abi::attr::ibv_cq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::efadv::{efadv_cq_init_attr, efadv_qp_init_attr};
use crate::abi::object::{ibv_cq_ex, ibv_pd};
use crate::abi::qp::{ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, pointer};
use crate::export::qp as export;
use crate::object::{cq, qp};
use uverbs_core::attr::{CqInitAttr, QpType};
use uverbs_core::control::CompChannelHandle;
use uverbs_core::provider::QpCreate;
use uverbs_efa::Efa;
use uverbs_efa::control::{CqOptions, QpOptions};
use uverbs_uapi::efa::{
    EFA_QP_DRIVER_TYPE_SRD, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV,
};

/// `EFADV_QP_FLAGS_*`
mod qp_flag {
    pub(super) const UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
    pub(super) const INLINE_WRITE: u16 = 1 << 1;
    pub(super) const ALL: u16 = UNSOLICITED_WRITE_RECV | INLINE_WRITE;
}

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
        && special.wr_flags & !functions::WITH_PROCESSING_HINTS == 0
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
    functions::choose_of_qp(qp, special.wr_flags);
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
            (functions::WITH_SGID, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID),
            (functions::WITH_IS_UNSOLICITED, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV),
        ];
        let known = known.iter().filter(|(_, cap)| limits.has(*cap)).fold(0, |all, (flag, _)| all | flag);
        // The only flag is memory of the program for the queue.
        if special.wc_flags & !known != 0 || special.flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
        let request = unsafe { cq::extended_request(context, attr) }?;
        let options = CqOptions { source_gid: special.wc_flags & functions::WITH_SGID != 0 };
        let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
            open.driver.new_cq(attr, options, channel, number)
        };
        let cq = cq::create_with(open, context, &request, make)?;
        functions::choose_of_cq(cq, special.wc_flags);
        Ok(cq.cast())
    })
}
