// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: creation, states, destruction (ibv_create_qp(3), ibv_create_qp_ex(3), ibv_open_qp(3),
//! ibv_modify_qp(3)).
//!
//! Posting is in [`data`](crate::data).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::locking::locked;
use super::{cq, destroy_handle, pd, queue_memory, srq, wq, xrcd};
use crate::abi::context::ibv_context;
use crate::abi::field;
use crate::abi::object::ibv_xrcd;
use crate::abi::qp::{ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::context;
use crate::convert::qp as convert;
use crate::data::qp_ex;
use crate::errno::{Errno, Outcome, ensure};
use crate::events::{self, Numbered};
use crate::live;
use crate::verbs::{AnyTd, Open};
use core::any::Any;
use core::mem::{self, ManuallyDrop};
use core::{ptr, slice};
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::{
    Ece, QpAttr, QpAttrMask, QpCap, QpCreateFlags, QpInitAttr, QpRateLimitAttr, QpType, RxHashConf,
    RxHashFields, SendOpsFlags,
};
use uverbs_core::control::QpHandle;
use uverbs_core::provider::{Driver, QpCreate, QpParts, RssQpCreate};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_mlx5::dv::QpOptions;

/// A queue pair: C's part, of the extended size, and ours.
#[repr(C)]
struct Qp<D: Driver> {
    public: ibv_qp_ex,
    private: QpPrivate<D>,
}

/// Our part.
pub(crate) struct QpPrivate<D: Driver> {
    /// First, because the data path needs nothing else.
    pub(crate) send: Option<Locked<D::SendQueue, Dynamic>>,
    pub(crate) recv: Option<Locked<D::RecvQueue, Dynamic>>,
    /// `None` for a QP over a table of work queues, which has no queues of its own.
    shared: Option<Arc<D::QpShared>>,
    handle: ManuallyDrop<QpHandle>,
    cap: QpCap,
    has_builder: bool,
    /// Its number in events.
    number: u64,
    pub(crate) extension: Extension,
}

impl<D: Driver> QpPrivate<D> {
    /// The shared state; `EOPNOTSUPP` for a queue pair over a table of work queues.
    pub(crate) fn shared(&self) -> Outcome<&Arc<D::QpShared>> {
        self.shared.as_ref().ok_or(Errno::EOPNOTSUPP)
    }

    pub(crate) fn handle(&self) -> &QpHandle {
        &self.handle
    }
}

/// A verb that changes the state. Its first argument is the [`Open`] of the queue pair's driver. Its contract is that
/// of [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) type Modify = unsafe fn(&dyn Any, *mut ibv_qp, &QpAttr, QpAttrMask) -> Outcome<()>;

/// Additions to a queue pair by the functions of a driver-specific library (libmlx5).
#[derive(Default)]
pub(crate) struct Extension {
    /// Instead of the driver's `modify_qp`.
    pub(crate) modify: Option<Modify>,
    /// The data of these functions.
    pub(crate) data: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// Our part of a queue pair.
///
/// # Safety
/// `qp` is a live queue pair of this driver.
#[inline(always)]
pub(crate) unsafe fn private<'a, D: Driver>(qp: *mut ibv_qp) -> &'a QpPrivate<D> {
    // SAFETY: `qp` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*qp.cast::<Qp<D>>()).private }
}

/// `IBV_QP_INIT_ATTR_*`
pub(crate) mod mask {
    pub(crate) const PD: u32 = 1 << 0;
    pub(crate) const XRCD: u32 = 1 << 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const MAX_TSO_HEADER: u32 = 1 << 3;
    /// Packets are distributed over work queues: both bits or neither.
    pub(crate) const IND_TABLE: u32 = 1 << 4;
    pub(crate) const RX_HASH: u32 = 1 << 5;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
    pub(crate) const ALL: u32 = (1 << 7) - 1;
}

/// Converts the attributes. Fields that the type of the QP does not use are ignored.
pub(crate) fn init_attr(attr: &ibv_qp_init_attr_ex) -> Outcome<QpInitAttr> {
    let has = |bit| attr.comp_mask & bit != 0;
    let qp_type = QpType::from_raw(attr.qp_type).ok_or(Errno::EINVAL)?;
    let mut init = QpInitAttr::new(qp_type);
    init.cap = convert::cap_from_c(&attr.cap);
    init.sq_sig_all = attr.sq_sig_all != 0;
    if has(mask::CREATE_FLAGS) {
        init.create_flags = QpCreateFlags::from_bits_retain(attr.create_flags);
        if init.create_flags.contains(QpCreateFlags::SOURCE_QPN) {
            init.source_qpn = attr.source_qpn;
        }
    }
    if has(mask::MAX_TSO_HEADER) {
        init.max_tso_header = attr.max_tso_header;
    }
    if has(mask::SEND_OPS_FLAGS) {
        init.send_ops_flags = SendOpsFlags::from_bits_retain(attr.send_ops_flags);
    }
    if !qp_type.has_send_queue() {
        (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (0, 0, 0);
    }
    if !qp_type.has_recv_queue() {
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    Ok(init)
}

/// Creates a queue pair with the attributes `attr`, whose `comp_mask` and pointers were checked, and writes its sizes
/// to `attr`.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Outcome<*mut ibv_qp> {
    if attr.comp_mask & (mask::IND_TABLE | mask::RX_HASH) != 0 {
        // SAFETY: this function has the same contract.
        return unsafe { create_rss_with::<D>(context, attr, |create| open.driver.create_rss_qp(create)) };
    }
    let init = init_attr(attr)?;
    if init.qp_type == QpType::Driver {
        // Such a queue pair can be created only by functions of the driver-specific library.
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: `attr.pd` is NULL or a live object of this driver (contract of `Verbs`).
    if let Some(allocator) = unsafe { pd::allocator(attr.pd) } {
        let open = queue_memory::mlx5(open)?;
        let options = QpOptions { allocator: Some(&allocator), ..QpOptions::default() };
        let make = |create: &QpCreate<'_, _>| {
            // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
            unsafe { open.driver.create_qp_with(create, &options) }
        };
        // SAFETY: the contract of this function.
        return unsafe { create_with(open, context, attr, &init, make) };
    }
    // SAFETY: `create_with`, which calls this, fulfils the contract of the driver's verb.
    let make = |create: &QpCreate<'_, D>| unsafe { open.driver.create_qp(create) };
    // SAFETY: the contract of this function.
    unsafe { create_with(open, context, attr, &init, make) }
}

/// [`create`] with another verb of the driver. The verb may rely on the contract of [`Driver::create_qp`].
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create_with<D: Driver>(
    _: &Open<D>,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    init: &QpInitAttr,
    make: impl FnOnce(&QpCreate<'_, D>) -> uverbs_core::Result<QpParts<D>>,
) -> Outcome<*mut ibv_qp> {
    let (sends, receives) = (init.qp_type.has_send_queue(), init.qp_type.has_recv_queue());
    // As in C, fields that a type does not use are ignored.
    if !sends {
        (attr.pd, attr.send_cq) = (ptr::null_mut(), ptr::null_mut());
    } else {
        attr.xrcd = ptr::null_mut();
    }
    if !receives {
        (attr.recv_cq, attr.srq) = (ptr::null_mut(), ptr::null_mut());
    }
    ensure(attr.pd.is_null() != sends && attr.xrcd.is_null() == sends)?;
    // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
    let pd = sends.then(|| unsafe { pd::handle(attr.pd) });
    // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
    let td: Option<&AnyTd> = if sends { unsafe { pd::td(attr.pd) } } else { None };
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    let number = here.new_number()?;
    let create = QpCreate::<D> {
        pd,
        // SAFETY: `attr.send_cq` is NULL or a live object of this driver (contract of `Verbs`).
        send_cq: unsafe { cq::parts::<D>(attr.send_cq) },
        // SAFETY: `attr.recv_cq` is NULL or a live object of this driver (contract of `Verbs`).
        recv_cq: unsafe { cq::parts::<D>(attr.recv_cq) },
        // SAFETY: `attr.srq` is NULL or a live object of this driver (contract of `Verbs`).
        srq: unsafe { srq::parts::<D>(attr.srq) },
        // SAFETY: `attr.xrcd` is a live object of this driver (contract of `Verbs`).
        xrcd: (!sends).then(|| unsafe { xrcd::handle(attr.xrcd) }),
        attr: init,
        td: td.and_then(|td| td.downcast_ref()),
        exclusive: td.is_some(),
        // As in libmlx5, which copies short data to the entries' addresses unless `MLX5_SCATTER_TO_CQE` is 0.
        data_in_completions: true,
        user_handle: number,
    };
    // The parts of each pair are of one object, and all objects are of this context (contract of `Verbs`). `destroy`
    // has the kernel destroy the queue pair before it frees the other parts. Until then the queue pair exists, and its
    // parts with it, or they are leaked.
    let parts = make(&create).inspect_err(|_| {
        here.forget(number);
    })?;
    attr.cap = convert::cap_to_c(&parts.cap);
    let has_builder = attr.comp_mask & mask::SEND_OPS_FLAGS != 0 && parts.send.is_some();
    // SAFETY: integers, pointers and optional functions: zeros are values of all of them.
    let mut public: ibv_qp_ex = unsafe { mem::zeroed() };
    let base = &mut public.qp_base;
    base.qp_context = attr.qp_context;
    (base.pd, base.send_cq, base.recv_cq, base.srq) = (attr.pd, attr.send_cq, attr.recv_cq, attr.srq);
    base.qp_type = attr.qp_type;
    if has_builder {
        qp_ex::set_functions::<D>(&mut public);
    }
    let private = private_of(parts, number, has_builder, td.is_none());
    Ok(finish(context, here, public, private))
}

/// `MLX5_RX_HASH_FUNC_TOEPLITZ`, `IBV_RX_HASH_FUNC_TOEPLITZ`
const TOEPLITZ: u8 = 1;

/// Creates a queue pair that distributes packets over a table of work queues, by a verb of the driver. It has no state; its
/// rules select the packets that it receives.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create_rss_with<D: Driver>(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    make: impl FnOnce(&RssQpCreate<'_>) -> uverbs_core::Result<QpHandle>,
) -> Outcome<*mut ibv_qp> {
    const BOTH: u32 = mask::IND_TABLE | mask::RX_HASH;
    let hash = attr.rx_hash_conf;
    ensure(attr.comp_mask & BOTH == BOTH && !attr.pd.is_null() && !attr.rwq_ind_tbl.is_null())?;
    ensure(attr.qp_type == QpType::RawPacket as u32 && !hash.rx_hash_key.is_null())?;
    let other = mask::MAX_TSO_HEADER | mask::SEND_OPS_FLAGS;
    // rdma-core's tests set the bit of the flags, and no flag.
    let has_flags = attr.comp_mask & mask::CREATE_FLAGS != 0 && attr.create_flags != 0;
    if hash.rx_hash_function != TOEPLITZ || attr.comp_mask & other != 0 || has_flags {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the key is not NULL (checked above) and has as many bytes (contract of `Verbs`).
    let key = unsafe { slice::from_raw_parts(hash.rx_hash_key, hash.rx_hash_key_len.into()) };
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    let number = here.new_number()?;
    let create = RssQpCreate {
        // SAFETY: `attr.pd` is a live object of this driver (contract of `Verbs`).
        pd: unsafe { pd::handle(attr.pd) },
        // SAFETY: `attr.rwq_ind_tbl` is a live object of this driver (contract of `Verbs`).
        table: unsafe { wq::table_handle(attr.rwq_ind_tbl) },
        hash: RxHashConf { key, fields: RxHashFields::from_bits_retain(hash.rx_hash_fields_mask) },
        user_handle: number,
    };
    let handle = make(&create).inspect_err(|_| {
        here.forget(number);
    })?;
    // SAFETY: integers, pointers and optional functions: zeros are values of all of them.
    let mut public: ibv_qp_ex = unsafe { mem::zeroed() };
    (public.qp_base.qp_context, public.qp_base.pd) = (attr.qp_context, attr.pd);
    public.qp_base.qp_type = attr.qp_type;
    let private = QpPrivate::<D> {
        send: None,
        recv: None,
        shared: None,
        handle: ManuallyDrop::new(handle),
        cap: QpCap::default(),
        has_builder: false,
        number,
        extension: Extension::default(),
    };
    Ok(finish(context, here, public, private))
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn open<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    qp_num: u32,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: `context` is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of(context) }?;
    let number = here.new_number()?;
    // SAFETY: `xrcd` is a live object of this driver (contract of `Verbs`).
    let parts = open.driver.open_qp(unsafe { xrcd::handle(xrcd) }, qp_num, number).inspect_err(|_| {
        here.forget(number);
    })?;
    // SAFETY: integers, pointers and optional functions: zeros are values of all of them.
    let mut public: ibv_qp_ex = unsafe { mem::zeroed() };
    public.qp_base.qp_type = QpType::XrcRecv as u32;
    Ok(finish(context, here, public, private_of(parts, number, false, true)))
}

/// Our part of a new queue pair.
pub(crate) fn private_of<D: Driver>(
    parts: QpParts<D>,
    number: u64,
    has_builder: bool,
    shared_by_threads: bool,
) -> QpPrivate<D> {
    let QpParts { handle, shared, send, recv, cap } = parts;
    QpPrivate {
        send: send.map(|queue| locked::<D, _>(queue, shared_by_threads)),
        recv: recv.map(|queue| locked::<D, _>(queue, shared_by_threads)),
        shared: Some(shared),
        handle: ManuallyDrop::new(handle),
        cap,
        has_builder,
        number,
        extension: Extension::default(),
    }
}

/// Creates a queue pair from its two parts.
pub(crate) fn finish<D: Driver>(
    context: *mut ibv_context,
    here: &context::Private,
    mut public: ibv_qp_ex,
    private: QpPrivate<D>,
) -> *mut ibv_qp {
    public.qp_base.context = context;
    public.qp_base.handle = private.handle.handle();
    public.qp_base.qp_num = private.handle.qp_num();
    let number = private.number;
    let qp: *mut ibv_qp = Box::into_raw(Box::new(Qp { public, private })).cast();
    events::complete(here, number, Numbered::Qp(qp));
    // SAFETY: a new object, whose context is not closed during this call: its verb is in progress.
    unsafe { live::add(qp) }
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn modify<D: Driver>(
    open: &Open<D>,
    qp: *mut ibv_qp,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Outcome<()> {
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(qp) };
    if let Some(modify) = this.extension.modify {
        // SAFETY: the contract of this function is that of the verb.
        return unsafe { modify(open, qp, attr, mask) };
    }
    // A queue pair over a table has no state.
    let shared = this.shared()?;
    // SAFETY: the queue pair's own parts.
    unsafe { open.driver.modify_qp(&this.handle, shared, attr, mask) }?;
    Ok(())
}

/// The attributes, and whether all of its work requests are signaled.
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn query<D: Driver>(
    open: &Open<D>,
    qp: *mut ibv_qp,
    mask: QpAttrMask,
) -> Outcome<(QpAttr, bool)> {
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(qp) };
    let shared = this.shared.as_ref().ok_or(Errno::EOPNOTSUPP)?;
    // The kernel's drivers refuse or ignore undefined bits.
    let (mut attr, init) = open.driver.query_qp(&this.handle, shared, mask & QpAttrMask::all())?;
    // The driver stores the sizes of the queues. Not every kernel reports them (mlx5_ib reports 0).
    attr.cap = this.cap;
    Ok((attr, init.sq_sig_all))
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn query_ece<D: Driver>(open: &Open<D>, qp: *mut ibv_qp) -> Outcome<Ece> {
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    let shared = unsafe { private::<D>(qp) }.shared.as_ref().ok_or(Errno::EOPNOTSUPP)?;
    Ok(open.driver.query_ece(shared)?)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn set_ece<D: Driver>(open: &Open<D>, qp: *mut ibv_qp, ece: Ece) -> Outcome<()> {
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    let shared = unsafe { private::<D>(qp) }.shared.as_ref().ok_or(Errno::EOPNOTSUPP)?;
    Ok(open.driver.set_ece(shared, ece)?)
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn modify_rate_limit<D: Driver>(
    open: &Open<D>,
    qp: *mut ibv_qp,
    attr: &QpRateLimitAttr,
) -> Outcome<()> {
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    Ok(open.driver.modify_qp_rate_limit(unsafe { &private::<D>(qp).handle }, attr)?)
}

/// Whether it has the functions of ibv_wr_post(3).
///
/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn has_builder<D: Driver>(_: &Open<D>, qp: *mut ibv_qp) -> bool {
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    unsafe { private::<D>(qp) }.has_builder
}

/// The kernel's object.
///
/// # Safety
/// `qp` is a live queue pair of this driver.
pub(crate) unsafe fn handle<'a, D: Driver>(qp: *mut ibv_qp) -> &'a QpHandle {
    // SAFETY: `qp` is a live object of this driver (contract of this function).
    unsafe { &private::<D>(qp).handle }
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn destroy<D: Driver>(open: &Open<D>, qp: *mut ibv_qp) -> Outcome<()> {
    // SAFETY: the caller has claimed the object; the context is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of_known(qp) }?;
    // SAFETY: `qp` is a live object of this driver (contract of `Verbs`).
    let this = unsafe { private::<D>(qp) };
    let end = |handle: QpHandle| match &this.shared {
        // SAFETY: the queue pair's own parts, of which the engines are freed after this.
        Some(shared) => unsafe { open.driver.destroy_qp(handle, shared) },
        // SAFETY: it has no queues.
        None => unsafe { handle.destroy() },
    };
    // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
    // `Verbs`).
    let reported = unsafe { destroy_handle(&this.handle, end) }?;
    live::mark_gone(qp);
    // SAFETY: the queue pair exists until it is freed below.
    unsafe { events::wait_for_acks([(field!(qp, ibv_qp.events_completed), reported)]) };
    here.forget(this.number);
    live::remove(here, qp);
    // SAFETY: `finish` allocated it as a `Box` of this type; the program does not use it after this call (contract of
    // `Verbs`).
    drop(unsafe { Box::from_raw(qp.cast::<Qp<D>>()) });
    Ok(())
}
