// SPDX-License-Identifier: MIT OR Apache-2.0
//! CQs and QPs with mlx5's own options, DC initiators and targets (mlx5dv_create_cq(3), mlx5dv_create_qp(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::attr::ibv_cq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::{mlx5dv_cq_init_attr, mlx5dv_qp_init_attr};
use crate::abi::object::ibv_cq_ex;
use crate::abi::qp::{ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::context;
use crate::errno::{Errno, Outcome, ensure, pointer};
use crate::export::qp as export;
use crate::object::qp::{self, mask};
use crate::object::{cq, pd, srq};
use crate::verbs::Open;
use core::any::Any;
use core::{mem, ptr};
use uverbs_core::attr::{CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType};
use uverbs_core::control::CompChannelHandle;
use uverbs_core::provider::{DcDriver, DctCreate, DctParts, QpCreate, QpParts, RssQpCreate};
use uverbs_mlx5::Mlx5;
use uverbs_mlx5::dv::{CqOptions, QpFlags, QpOptions};

/// `enum mlx5dv_cq_init_attr_mask`. This library does not read compressed entries, and does not request padded ones.
mod cq_mask {
    pub(super) const CQE_SIZE: u64 = 1 << 2;
}

/// # Safety
/// As in mlx5dv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    mlx5_attr: *mut mlx5dv_cq_init_attr,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let open = unsafe { super::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
        let request = unsafe { cq::extended_request(context, attr) }?;
        ensure(!mlx5_attr.is_null())?;
        // SAFETY: `mlx5_attr` is valid for reads (contract of the man page).
        let mlx5_attr = unsafe { mlx5_attr.read() };
        if mlx5_attr.comp_mask & !cq_mask::CQE_SIZE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let asked = mlx5_attr.comp_mask & cq_mask::CQE_SIZE != 0;
        let allocator = request.allocator.clone();
        let options =
            CqOptions { cqe_size: asked.then_some(mlx5_attr.cqe_size.into()), allocator: allocator.as_ref() };
        let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
            // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
            unsafe { open.driver.create_cq_with(attr, options, channel, number) }
        };
        // SAFETY: the objects in the request are live and of this context, as `extended_request` checked.
        Ok(unsafe { cq::create_with(open, context, &request, make) }?.cast())
    })
}

/// `enum mlx5dv_qp_init_attr_mask`
mod qp_mask {
    pub(super) const CREATE_FLAGS: u64 = 1 << 0;
    pub(super) const DC: u64 = 1 << 1;
    pub(super) const SEND_OPS_FLAGS: u64 = 1 << 2;
    pub(super) const ALL: u64 = CREATE_FLAGS | DC | SEND_OPS_FLAGS;
}

/// `enum mlx5dv_qp_create_flags`. That which concerns signatures (`SIG_PIPELINING`) is missing.
mod create_flag {
    pub(super) const TUNNEL_OFFLOADS: u32 = 1 << 0;
    pub(super) const TIR_ALLOW_SELF_LOOPBACK_UC: u32 = 1 << 1;
    pub(super) const TIR_ALLOW_SELF_LOOPBACK_MC: u32 = 1 << 2;
    pub(super) const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
    pub(super) const ALLOW_SCATTER_TO_CQE: u32 = 1 << 4;
    pub(super) const PACKET_BASED_CREDIT_MODE: u32 = 1 << 5;
    pub(super) const OOO_DP: u32 = 1 << 7;
}

/// `MLX5DV_QP_EX_WITH_RAW_WQE` of `enum mlx5dv_qp_create_send_ops_flags`. The others are about indirect keys and copies by
/// the device.
const WITH_RAW_WQE: u64 = 1 << 3;

/// `enum mlx5dv_dc_type`
const DCT: u32 = 1;
const DCI: u32 = 2;

/// # Safety
/// As in mlx5dv_create_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let open = unsafe { super::of(context) }?;
        ensure(!attr.is_null())?;
        // SAFETY: `attr` is valid for reads (contract of the man page).
        let mut copy = unsafe { attr.read() };
        // SAFETY: the objects in `copy` are NULL or exist (contract of the man page).
        let _parents = unsafe { export::check(context, &mut copy) }?;
        // SAFETY: `mlx5_attr` is NULL or valid for reads (contract of the man page).
        let special = unsafe { mlx5_attr.as_ref() }.map(special).transpose()?.unwrap_or_default();
        let made = match special.kind {
            // SAFETY: the objects in `copy` are live and of this context, as checked above.
            Kind::Queue => unsafe { queue(open, context, &mut copy, special) },
            // SAFETY: the objects in `copy` are live and of this context, as checked above.
            Kind::Initiator => unsafe { initiator(open, context, &mut copy, special) },
            // SAFETY: the objects in `copy` are live and of this context, as checked above.
            Kind::Target(key) => unsafe { target(open, context, &copy, special, key) },
        }?;
        // SAFETY: the struct is valid for writes (contract of the man page).
        unsafe { (*attr).cap = copy.cap };
        Ok(made)
    })
}

/// The attributes that only this function has.
#[derive(Clone, Copy, Default)]
struct Special {
    kind: Kind,
    without_data_in_completions: bool,
    flags: QpFlags,
    raw_wqes: bool,
    out_of_order: bool,
}

#[derive(Clone, Copy, Default)]
enum Kind {
    /// A queue pair of a type that ibv_create_qp(3) has, too.
    #[default]
    Queue,
    Initiator,
    /// With its access key.
    Target(u64),
}

fn special(attr: &mlx5dv_qp_init_attr) -> Outcome<Special> {
    use create_flag as flag;
    const FLAGS: [(u32, QpFlags); 5] = [
        (flag::TUNNEL_OFFLOADS, QpFlags::TUNNEL_OFFLOADS),
        (flag::TIR_ALLOW_SELF_LOOPBACK_UC, QpFlags::SELF_LOOPBACK_UNICAST),
        (flag::TIR_ALLOW_SELF_LOOPBACK_MC, QpFlags::SELF_LOOPBACK_MULTICAST),
        (flag::ALLOW_SCATTER_TO_CQE, QpFlags::REQUESTER_DATA_IN_COMPLETIONS),
        (flag::PACKET_BASED_CREDIT_MODE, QpFlags::PACKET_BASED_CREDITS),
    ];
    let has = |bit| attr.comp_mask & bit != 0;
    let flags = if has(qp_mask::CREATE_FLAGS) { attr.create_flags } else { 0 };
    let ops = if has(qp_mask::SEND_OPS_FLAGS) { attr.send_ops_flags } else { 0 };
    let known = FLAGS.iter().fold(flag::DISABLE_SCATTER_TO_CQE | flag::OOO_DP, |all, (bit, _)| all | bit);
    if has(!qp_mask::ALL) || flags & !known != 0 || ops & !WITH_RAW_WQE != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    const BOTH: u32 = flag::DISABLE_SCATTER_TO_CQE | flag::ALLOW_SCATTER_TO_CQE;
    ensure(flags & BOTH != BOTH)?;
    let kind = match attr.dc_init_attr.dc_type {
        _ if !has(qp_mask::DC) => Kind::Queue,
        DCI => Kind::Initiator,
        DCT => Kind::Target(attr.dc_init_attr.dct_access_key),
        _ => return Err(Errno::EINVAL),
    };
    Ok(Special {
        kind,
        without_data_in_completions: flags & flag::DISABLE_SCATTER_TO_CQE != 0,
        flags: FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, ours)| *ours).collect(),
        raw_wqes: ops & WITH_RAW_WQE != 0,
        out_of_order: flags & flag::OOO_DP != 0,
    })
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn queue(
    open: &Open<Mlx5>,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    special: Special,
) -> Outcome<*mut ibv_qp> {
    if attr.comp_mask & (mask::IND_TABLE | mask::RX_HASH) != 0 {
        if special.out_of_order {
            return Err(Errno::EOPNOTSUPP);
        }
        let make = |create: &RssQpCreate<'_>| open.driver.create_rss_qp_with(create, special.flags);
        // SAFETY: the contract of this function.
        return unsafe { qp::create_rss_with::<Mlx5>(context, attr, make) };
    }
    let init = qp::init_attr(attr)?;
    // Such a queue pair is a DC initiator or target.
    ensure(init.qp_type != QpType::Driver)?;
    // SAFETY: the contract of this function.
    unsafe { create_by(open, context, attr, &init, special) }
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn create_by(
    open: &Open<Mlx5>,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    init: &QpInitAttr,
    special: Special,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: `attr.pd` is NULL or a live object of this driver (contract of `Verbs`).
    let allocator = unsafe { pd::allocator(attr.pd) };
    let Special { flags, raw_wqes, out_of_order, .. } = special;
    let options = QpOptions { allocator: allocator.as_ref(), raw_wqes, flags, out_of_order };
    let make = |create: &QpCreate<'_, Mlx5>| {
        let data_in_completions = create.data_in_completions && !special.without_data_in_completions;
        // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
        unsafe { open.driver.create_qp_with(&QpCreate { data_in_completions, ..*create }, &options) }
    };
    // SAFETY: the contract of this function.
    unsafe { qp::create_with(open, context, attr, init, make) }
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn initiator(
    open: &Open<Mlx5>,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    special: Special,
) -> Outcome<*mut ibv_qp> {
    ensure(attr.qp_type == QpType::Driver as u32 && !attr.pd.is_null() && !attr.send_cq.is_null())?;
    // An initiator has no receives.
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge, attr.srq) = (0, 0, ptr::null_mut());
    if attr.recv_cq.is_null() {
        attr.recv_cq = attr.send_cq;
    }
    let init = qp::init_attr(attr)?;
    // SAFETY: the contract of this function.
    unsafe { create_by(open, context, attr, &init, special) }
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn target(
    open: &Open<Mlx5>,
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr_ex,
    special: Special,
    dc_key: u64,
) -> Outcome<*mut ibv_qp> {
    ensure(attr.qp_type == QpType::Driver as u32 && !attr.pd.is_null())?;
    // As in libmlx5, a target has no other options. Its short data are never in completions.
    ensure(attr.comp_mask == mask::PD && special.flags.is_empty() && !special.raw_wqes)?;
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    // SAFETY: `attr.recv_cq` is NULL or a live object of this driver (contract of `Verbs`).
    let cq = unsafe { cq::parts::<Mlx5>(attr.recv_cq) }.ok_or(Errno::EINVAL)?;
    // SAFETY: `attr.srq` is NULL or a live object of this driver (contract of `Verbs`).
    let srq = unsafe { srq::parts::<Mlx5>(attr.srq) }.ok_or(Errno::EINVAL)?;
    let number = here.new_number()?;
    let create = DctCreate::<Mlx5> {
        // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
        pd: unsafe { pd::handle(attr.pd) },
        cq,
        srq,
        dc_key,
        data_in_completions: false,
        user_handle: number,
    };
    // SAFETY: the parts of each pair are of one object, and all objects are of this context (contract of `Verbs`).
    // `destroy` has the kernel destroy the target before it frees the other parts.
    let DctParts { handle, shared } = unsafe { open.driver.create_dct_with(&create, special.out_of_order) }
        .inspect_err(|_| {
        here.forget(number);
    })?;
    // SAFETY: integers, pointers and optional functions: zeros are values of all of them.
    let mut public: ibv_qp_ex = unsafe { mem::zeroed() };
    let base = &mut public.qp_base;
    base.qp_context = attr.qp_context;
    (base.pd, base.send_cq, base.recv_cq, base.srq) = (attr.pd, attr.send_cq, attr.recv_cq, attr.srq);
    base.qp_type = attr.qp_type;
    let parts = QpParts::<Mlx5> { handle, shared, send: None, recv: None, cap: QpCap::default() };
    let mut private = qp::private_of(parts, number, false, true);
    private.extension.modify = Some(modify_target);
    Ok(qp::finish(context, here, public, private))
}

/// Changes the state of a target, which gets its number in RTR.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
unsafe fn modify_target(open: &dyn Any, qp: *mut ibv_qp, attr: &QpAttr, mask: QpAttrMask) -> Outcome<()> {
    let open: &Open<Mlx5> = open.downcast_ref().ok_or(Errno::EINVAL)?;
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { qp::private::<Mlx5>(qp) };
    // SAFETY: the target's own parts.
    let dctn = unsafe { open.driver.modify_dct(this.handle(), this.shared()?, attr, mask) }?;
    if let Some(dctn) = dctn {
        // SAFETY: `qp` points to the public part of an existing target (contract of `Verbs`).
        unsafe { (*qp).qp_num = dctn };
    }
    debug_assert!(dctn.is_none() || attr.qp_state == QpState::RTR);
    Ok(())
}
