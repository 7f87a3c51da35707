// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: creation, states, destruction (ibv_create_qp(3), ibv_create_qp_ex(3), ibv_open_qp(3),
//! ibv_modify_qp(3)).
//!
//! Posting is in [`data`](crate::data).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::locking::locked;
use super::pd::PdPrivate;
use super::whole::{Handled, Numbered, Owned, Whole, create_of, handled};
use super::{cq, queue_memory, srq};
use crate::abi::Zeroed as _;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_cq, ibv_pd, ibv_srq, ibv_xrcd};
use crate::abi::qp::{ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::abi::wq::ibv_rwq_ind_table;
use crate::arg::Arg;
use crate::context;
use crate::convert::qp as convert;
use crate::data::qp_ex;
use crate::errno::{Errno, Outcome, ensure};
use crate::events;
use crate::live::{Claim, Live, Used};
use crate::verbs::{AnyTd, Open};
use core::any::Any;
use core::mem::ManuallyDrop;
use core::{ptr, slice};
use std::sync::OnceLock;
use uverbs_core::attr::{
    Ece, QpAttr, QpAttrMask, QpCap, QpCreateFlags, QpInitAttr, QpRateLimitAttr, QpType, RxHashConf,
    RxHashFields, SendOpsFlags,
};
use uverbs_core::provider::{Driver, Object as _, QpCreate, QpObject as _, QpParts, RssQpCreate};
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_mlx5::dv::QpOptions;

/// Our part.
pub(crate) struct QpPrivate<D: Driver> {
    /// First, because the data path needs nothing else.
    pub(crate) send: Option<Locked<D::SendQueue, Dynamic>>,
    pub(crate) recv: Option<Locked<D::RecvQueue, Dynamic>>,
    object: ManuallyDrop<D::Qp>,
    cap: QpCap,
    /// Whether it has the functions of ibv_wr_post(3).
    pub(crate) has_builder: bool,
    /// Its number in events.
    number: u64,
    pub(crate) extension: Extension,
}

impl<D: Driver> QpPrivate<D> {
    pub(crate) fn object(&self) -> &D::Qp {
        &self.object
    }
}

/// Additions to a queue pair, or to a completion queue, by the functions of a driver-specific library (libmlx5, libefa).
#[derive(Default)]
pub(crate) struct Extension {
    /// The data of these functions.
    pub(crate) data: OnceLock<Box<dyn Any + Send + Sync>>,
}

handled! { QpPrivate<D>: object, D::Qp; }

impl<D: Driver> Numbered for QpPrivate<D> {
    fn number(&self) -> u64 {
        self.number
    }
}

/// The driver's object.
pub(crate) fn of<'a, D: Driver>(open: &Open<D>, qp: &'a Live<'_, ibv_qp>) -> Outcome<&'a D::Qp> {
    Ok(&qp.own_of(open)?.object)
}

// SAFETY: `ibv_qp_ex` begins with an `ibv_qp`; only this module makes such objects.
unsafe impl<D: Driver> Owned<D> for ibv_qp {
    /// Of the extended size.
    type Public = ibv_qp_ex;
    type Own = QpPrivate<D>;
}

/// Our part of a queue pair, for the data path.
///
/// # Safety
/// `qp` is a queue pair of a context of this driver, which is not freed as long as the reference is used.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) unsafe fn private<'a, D: Driver>(qp: *mut ibv_qp) -> &'a QpPrivate<D> {
    // SAFETY: an object of this type (`Owned`), which exists (contract of this function); no mutable reference to its own part exists.
    unsafe { &(*qp.cast::<Whole<ibv_qp_ex, QpPrivate<D>>>()).own }
}

/// The objects from which a queue pair is created.
pub(crate) struct Parents<'a> {
    pub(crate) pd: Option<Used<'a, ibv_pd>>,
    pub(crate) xrcd: Option<Used<'a, ibv_xrcd>>,
    pub(crate) send_cq: Option<Used<'a, ibv_cq>>,
    pub(crate) recv_cq: Option<Used<'a, ibv_cq>>,
    pub(crate) srq: Option<Used<'a, ibv_srq>>,
    pub(crate) table: Option<Used<'a, ibv_rwq_ind_table>>,
}

impl Parents<'_> {
    /// Our part of the domain.
    pub(crate) fn pd(&self) -> Outcome<&PdPrivate> {
        Ok(self.pd.as_ref().ok_or(Errno::EINVAL)?.own())
    }
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

/// Creates a queue pair with the attributes `attr`, whose `comp_mask` was checked, and writes its sizes to `attr`.
///
/// # Safety
/// The key of the hash in `attr` is NULL or valid for reads.
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
    parents: &Parents<'_>,
) -> Outcome<*mut ibv_qp> {
    if attr.comp_mask & (mask::IND_TABLE | mask::RX_HASH) != 0 {
        let make = |create: &RssQpCreate<'_>| open.driver.create_rss_qp(create);
        // SAFETY: the contract of this function.
        return unsafe { create_rss_with(open, context, attr, parents, make) };
    }
    let init = init_attr(attr)?;
    if init.qp_type == QpType::Driver {
        // Such a queue pair can be created only by functions of the driver-specific library.
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(allocator) = parents.pd.as_ref().and_then(|pd| pd.own().allocator()) {
        let open = queue_memory::mlx5(open)?;
        let options = QpOptions { allocator: Some(&allocator), ..QpOptions::default() };
        let make = |create: &QpCreate<'_, _>| {
            // SAFETY: data in completions are copied to addresses of this process, as in C (the contract of ibv_post_send(3)).
            unsafe { open.driver.create_qp_with(create, &options) }
        };
        return create_with(open, context, attr, parents, &init, make);
    }
    // SAFETY: data in completions are copied to addresses of this process, as in C (the contract of ibv_post_send(3)).
    let make = |create: &QpCreate<'_, D>| unsafe { open.driver.create_qp(create) };
    create_with(open, context, attr, parents, &init, make)
}

/// [`create`] with another verb of the driver.
pub(crate) fn create_with<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
    parents: &Parents<'_>,
    init: &QpInitAttr,
    make: impl FnOnce(&QpCreate<'_, D>) -> uverbs_core::Result<QpParts<D>>,
) -> Outcome<*mut ibv_qp> {
    let (sends, receives) = (init.qp_type.has_send_queue(), init.qp_type.has_recv_queue());
    // As in C, fields that a type does not use are ignored.
    let pd = parents.pd.as_ref().filter(|_| sends);
    let xrcd = parents.xrcd.as_ref().filter(|_| !sends);
    let send_cq = parents.send_cq.as_ref().filter(|_| sends);
    let recv_cq = parents.recv_cq.as_ref().filter(|_| receives);
    let srq = parents.srq.as_ref().filter(|_| receives);
    ensure(pd.is_some() == sends && xrcd.is_some() != sends)?;
    let domain = pd.map(|pd| pd.own());
    let td: Option<&AnyTd> = domain.and_then(PdPrivate::td);
    let here = context.open()?;
    let send_parts = send_cq.map(|cq| cq::of(open, cq)).transpose()?;
    let recv_parts = recv_cq.map(|cq| cq::of(open, cq)).transpose()?;
    let srq_parts = srq.map(|srq| srq::of(open, srq)).transpose()?;
    let number = here.new_number()?;
    let create = QpCreate::<D> {
        pd: domain.map(PdPrivate::handle),
        send_cq: send_parts,
        recv_cq: recv_parts,
        srq: srq_parts,
        xrcd: xrcd.map(|xrcd| &**xrcd.own()),
        attr: init,
        td: td.and_then(|td| td.downcast_ref()),
        exclusive: td.is_some(),
        // As in libmlx5, which copies short data to the entries' addresses unless `MLX5_SCATTER_TO_CQE` is 0.
        data_in_completions: true,
        user_handle: number,
    };
    let parts = make(&create).inspect_err(|_| {
        here.forget(number);
    })?;
    attr.cap = convert::cap_to_c(&parts.cap);
    let has_builder = attr.comp_mask & mask::SEND_OPS_FLAGS != 0 && parts.send.is_some();
    let mut public = ibv_qp_ex::zeroed();
    let base = &mut public.qp_base;
    base.qp_context = attr.qp_context;
    (base.pd, base.srq) = (pointer_to(pd), pointer_to(srq));
    (base.send_cq, base.recv_cq) = (pointer_to(send_cq), pointer_to(recv_cq));
    base.qp_type = attr.qp_type;
    if has_builder {
        qp_ex::set_functions::<D>(&mut public);
        #[cfg(feature = "hca")]
        // SAFETY: the context of a queue pair that is created is live.
        unsafe {
            crate::data::faulty::set_session::<D>(&mut public, context.pointer());
        }
    }
    let private = private_of(parts, number, has_builder, td.is_none());
    finish(open, context.pointer(), here, public, private)
}

/// C's pointer to an object, or NULL.
pub(crate) fn pointer_to<T>(object: Option<&Used<'_, T>>) -> *mut T {
    object.map_or(ptr::null_mut(), |object| object.pointer())
}

/// `MLX5_RX_HASH_FUNC_TOEPLITZ`, `IBV_RX_HASH_FUNC_TOEPLITZ`
const TOEPLITZ: u8 = 1;

/// Creates a queue pair that distributes packets over a table of work queues, by a verb of the driver. It has no state; its
/// rules select the packets that it receives.
///
/// # Safety
/// The key of the hash in `attr` is NULL or valid for reads.
pub(crate) unsafe fn create_rss_with<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    attr: &ibv_qp_init_attr_ex,
    parents: &Parents<'_>,
    make: impl FnOnce(&RssQpCreate<'_>) -> uverbs_core::Result<D::Qp>,
) -> Outcome<*mut ibv_qp> {
    const BOTH: u32 = mask::IND_TABLE | mask::RX_HASH;
    let hash = attr.rx_hash_conf;
    ensure(attr.comp_mask & BOTH == BOTH)?;
    let (pd, table) = (parents.pd()?, parents.table.as_ref().ok_or(Errno::EINVAL)?);
    ensure(attr.qp_type == QpType::RawPacket as u32 && !hash.rx_hash_key.is_null())?;
    let other = mask::MAX_TSO_HEADER | mask::SEND_OPS_FLAGS;
    // rdma-core's tests set the bit of the flags, and no flag.
    let has_flags = attr.comp_mask & mask::CREATE_FLAGS != 0 && attr.create_flags != 0;
    if hash.rx_hash_function != TOEPLITZ || attr.comp_mask & other != 0 || has_flags {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the key is not NULL (checked above) and has as many bytes (contract of this function).
    let key = unsafe { slice::from_raw_parts(hash.rx_hash_key, hash.rx_hash_key_len.into()) };
    let here = context.open()?;
    let number = here.new_number()?;
    let create = RssQpCreate {
        pd: pd.handle(),
        table: table.own(),
        hash: RxHashConf::new(key, RxHashFields::from_bits_retain(hash.rx_hash_fields_mask)),
        user_handle: number,
    };
    let object = make(&create).inspect_err(|_| {
        here.forget(number);
    })?;
    let mut public = ibv_qp_ex::zeroed();
    (public.qp_base.qp_context, public.qp_base.pd) = (attr.qp_context, attr.pd);
    public.qp_base.qp_type = attr.qp_type;
    let private = private_without_queues(object, number);
    finish(open, context.pointer(), here, public, private)
}

/// As in ibv_open_qp(3).
pub(crate) fn open<D: Driver>(
    open: &Open<D>,
    context: Arg<'_, ibv_context>,
    xrcd: &Live<'_, ibv_xrcd>,
    qp_num: u32,
) -> Outcome<*mut ibv_qp> {
    let here = context.open()?;
    let number = here.new_number()?;
    let object = open.driver.open_qp(xrcd.own(), qp_num, number).inspect_err(|_| {
        here.forget(number);
    })?;
    let mut public = ibv_qp_ex::zeroed();
    public.qp_base.qp_type = QpType::XrcRecv as u32;
    finish(open, context.pointer(), here, public, private_without_queues(object, number))
}

/// Our part of a new queue pair.
pub(crate) fn private_of<D: Driver>(
    parts: QpParts<D>,
    number: u64,
    has_builder: bool,
    shared_by_threads: bool,
) -> QpPrivate<D> {
    let QpParts { qp, send, recv, cap } = parts;
    QpPrivate {
        send: send.map(|queue| locked::<D, _>(queue, shared_by_threads)),
        recv: recv.map(|queue| locked::<D, _>(queue, shared_by_threads)),
        object: ManuallyDrop::new(qp),
        cap,
        has_builder,
        number,
        extension: Extension::default(),
    }
}

/// [`private_of`] for one without queues of its own.
pub(crate) fn private_without_queues<D: Driver>(qp: D::Qp, number: u64) -> QpPrivate<D> {
    private_of(QpParts { qp, send: None, recv: None, cap: QpCap::default() }, number, false, true)
}

/// Creates a queue pair from its two parts.
pub(crate) fn finish<D: Driver>(
    open: &Open<D>,
    context: *mut ibv_context,
    here: &context::Private,
    mut public: ibv_qp_ex,
    private: QpPrivate<D>,
) -> Outcome<*mut ibv_qp> {
    public.qp_base.context = context;
    let handle = private.object.handle();
    (public.qp_base.handle, public.qp_base.qp_num) = (handle.handle(), handle.qp_num());
    let number = private.number;
    let qp = create_of(open, here, public, private)?;
    events::complete(here, number, events::Numbered::Qp(qp));
    Ok(qp)
}

/// As in ibv_modify_qp(3).
pub(crate) fn modify<D: Driver>(
    open: &Open<D>,
    qp: &Live<'_, ibv_qp>,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Outcome<()> {
    let object = of(open, qp)?;
    object.modify(attr, mask)?;
    if let Some(dctn) = object.dct_number() {
        // SAFETY: the target exists as long as `qp`.
        unsafe { (*qp.pointer()).qp_num = dctn };
    }
    Ok(())
}

/// The attributes, and whether all of its work requests are signaled.
pub(crate) fn query<D: Driver>(
    open: &Open<D>,
    qp: &Live<'_, ibv_qp>,
    mask: QpAttrMask,
) -> Outcome<(QpAttr, bool)> {
    let own = qp.own_of(open)?;
    // The kernel's drivers refuse or ignore undefined bits.
    let (mut attr, init) = own.object.query(mask & QpAttrMask::all())?;
    // The driver stores the sizes of the queues. Not every kernel reports them (mlx5_ib reports 0).
    attr.cap = own.cap;
    Ok((attr, init.sq_sig_all))
}

/// As in ibv_query_ece(3).
pub(crate) fn query_ece<D: Driver>(open: &Open<D>, qp: &Live<'_, ibv_qp>) -> Outcome<Ece> {
    Ok(of(open, qp)?.query_ece()?)
}

/// As in ibv_set_ece(3).
pub(crate) fn set_ece<D: Driver>(open: &Open<D>, qp: &Live<'_, ibv_qp>, ece: Ece) -> Outcome<()> {
    Ok(of(open, qp)?.set_ece(ece)?)
}

/// As in ibv_modify_qp_rate_limit(3).
pub(crate) fn modify_rate_limit<D: Driver>(
    open: &Open<D>,
    qp: &Live<'_, ibv_qp>,
    attr: &QpRateLimitAttr,
) -> Outcome<()> {
    Ok(of(open, qp)?.modify_rate_limit(attr)?)
}

/// As in ibv_destroy_qp(3).
pub(crate) fn destroy<D: Driver>(open: &Open<D>, qp: Claim<'_, ibv_qp>) -> Outcome<()> {
    qp.destroy_with_events(open)
}
