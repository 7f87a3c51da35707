// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trait of a driver: the queue types of its data path, and the control verbs that need its private data.
//!
//! A service that is generic over `D: Driver` compiles to direct, inlined code. The control verbs are not on the data
//! path; those to which no driver adds anything (regions, windows, domains) are in [`crate::control`].

#![expect(unsafe_code)]
// UNSAFETY: declares the contract of the verbs that create, change and destroy objects with queues, and relies on it in
// the default bodies of some of them.

use super::completion::CompletionQueue;
use super::parts::{
    CqParts, DctCreate, DctParts, DmParts, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate,
    WqParts,
};
use super::recv::RecvQueue;
use super::send::WrBuilder;
use super::wire::{WireRemote, WireSge};
use crate::attr::{
    AccessFlags, AhAttr, CqInitAttr, DeviceAttr, Ece, FlowAttr, QpAttr, QpAttrMask, QpInitAttr,
    QpRateLimitAttr, SrqAttr, SrqAttrMask, WqAttr,
};
use crate::control::{
    self, AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CountersHandle, CqHandle, FlowHandle,
    MrHandle, MrRange, PdHandle, QpHandle, SrqHandle, WqHandle, XrcdHandle,
};
use crate::device::DriverMatch;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Uhw};
use std::sync::Arc;

/// A driver, opened on one device.
///
/// The engines that it returns are sound for any values that the device and the kernel write to shared memory: indices
/// are masked, lengths are checked.
///
/// # Safety of the verbs
/// The parts of an object (the kernel's handle, the shared state, the engine) are separate values, because C's order of
/// destruction requires that, and the types do not connect them. So the verbs that create, change or destroy an object
/// with queues are `unsafe`. The caller, a face, guarantees:
/// - **One context.** Handles, shared states, engines and thread domains in a call are of this context.
/// - **Parts together.** A handle is passed with the shared state and the engine that were created with it, and with no
///   other; this also applies to the pairs in [`QpCreate`], [`SrqCreate`], [`WqCreate`] and [`DctCreate`].
/// - **Order.** The engine and the shared state of an object are dropped only after the kernel has destroyed its handle
///   (by the `destroy_*` verb, or [`CqHandle::destroy`]). If the kernel refuses, or if the verb is not called, they are
///   leaked, because the device may still use their memory. The objects that they were created from live at least as
///   long.
/// - **These verbs only.** The object is changed and destroyed by these verbs, not by the handle's own methods.
/// - **Data in completions.** If [`QpCreate::data_in_completions`] is set, every entry of a receive, a read or an
///   atomic of that QP, and of a receive of its SRQ, has an address at which this process reaches the entry's memory.
///
/// With all of that a completion means that the device is done with the memory of its work request, which is what
/// posting relies on. Verbs of objects without queues are safe.
///
/// ```compile_fail,E0133
/// use uverbs_core::{attr::CqInitAttr, provider::Driver};
/// fn safe<D: Driver>(driver: &D) {
///     let _ = driver.create_cq(&CqInitAttr::default(), None, 0);
/// }
/// ```
/// ```compile_fail,E0133
/// use uverbs_core::{control::QpHandle, provider::Driver};
/// use std::sync::Arc;
/// fn safe<D: Driver>(driver: &D, handle: QpHandle, shared: &Arc<D::QpShared>) {
///     let _ = driver.destroy_qp(handle, shared);
/// }
/// ```
/// ```compile_fail,E0133
/// use uverbs_core::{attr::{QpAttr, QpAttrMask}, control::QpHandle, kernel::Uhw};
/// fn safe(handle: &QpHandle, attr: &QpAttr) {
///     let _ = handle.modify(None, attr, QpAttrMask::STATE, Uhw::none());
/// }
/// ```
pub trait Driver: Sized + Send + Sync + core::fmt::Debug + 'static {
    /// The name of rdma-core's provider, such as `mlx5`.
    const NAME: &'static str;
    /// The `driver_id` that the ioctl header must carry (`enum rdma_driver_id`).
    const DRIVER_ID: u32;
    /// The ids that it can open, in the order in which they are probed: one, unless it stands for several drivers.
    const DRIVER_IDS: &'static [u32] = &[Self::DRIVER_ID];
    /// How its devices are recognised before they are opened. No PCI device is one of a software device's driver.
    const MATCH: DriverMatch = DriverMatch { driver_id: Self::DRIVER_ID, pci: |_| false };

    /// Scatter/gather entry in the WQE's own form.
    type Sge: WireSge;
    /// Remote address in the WQE's own form.
    type Remote: WireRemote;
    /// The data of an address handle that the encoder needs.
    type Ah: Send + Sync + core::fmt::Debug;
    /// Send queue engine.
    type SendQueue: WrBuilder<Sge = Self::Sge, Remote = Self::Remote, Ah = Self::Ah> + 'static;
    /// Receive queue engine of a QP.
    type RecvQueue: RecvQueue<Sge = Self::Sge> + 'static;
    /// Engine of a shared receive queue.
    type SharedRecvQueue: RecvQueue<Sge = Self::Sge> + 'static;
    /// Completion queue engine.
    type CompletionQueue: CompletionQueue + 'static;
    /// The state that a QP's poster, its pollers and the control path share.
    type QpShared: Send + Sync + core::fmt::Debug;
    /// The state that a CQ's poller and the QPs that complete to it share.
    type CqShared: Send + Sync + core::fmt::Debug;
    /// The state that an SRQ's poster and the CQs that free its entries share.
    type SrqShared: Send + Sync + core::fmt::Debug;
    /// A thread domain: doorbell resources for the queues of one thread.
    type Td: Send + Sync + core::fmt::Debug;

    /// Opens a context on the device behind `kernel`.
    ///
    /// # Errors
    /// The kernel refuses the context, or its answer is not one of this driver.
    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)>;

    /// Uses the context of a device file that another process, or another part of this one, has opened. Only for
    /// drivers whose kernel driver reports contexts.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver does not import contexts; otherwise the kernel refuses, or the context is
    /// of another driver.
    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        let _ = kernel;
        Err(Error::unsupported("import_device", format!("{} does not import contexts", Self::NAME)))
    }

    /// The kernel port of the context.
    fn kernel(&self) -> &Arc<dyn Kernel>;

    /// Queries the device's attributes, including those that only the driver-private answer has.
    ///
    /// # Errors
    /// The kernel refuses the query.
    fn query_device(&self) -> Result<DeviceAttr> {
        control::query::device(self.kernel(), Uhw::none())
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The kernel refuses the domain.
    fn alloc_pd(&self) -> Result<PdHandle> {
        control::pd::alloc(self.kernel(), Uhw::none())
    }

    /// Registers memory. [`Error::Unsupported`] if the device can't name it by `range.iova`, or lacks an access right.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as above; otherwise the kernel refuses: the range is not mapped, or the limit of locked
    /// memory is reached.
    ///
    /// # Safety
    /// As [`control::mr::reg`].
    unsafe fn reg_mr(
        &self,
        core: CoreSupport,
        pd: &PdHandle,
        range: MrRange,
        access: AccessFlags,
    ) -> Result<MrHandle> {
        // SAFETY: the contract of this function.
        unsafe { control::mr::reg(core, pd, range, access, Uhw::none()) }
    }

    /// Creates a completion queue. Its events carry `user_handle`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks a flag of `attr`; otherwise a size is out of range, or the kernel
    /// refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>>;

    /// Resizes a CQ. Completions may arrive in the meantime; none is lost. Returns the new capacity.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not resize queues; otherwise the completions that are not polled do
    /// not fit, or the kernel refuses. The queue is unchanged then.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn resize_cq(&self, handle: &CqHandle, queue: &mut Self::CompletionQueue, cqe: u32)
    -> Result<u32>;

    /// Notes that an event of the queue was read (`ibv_get_cq_event`); the doorbell that arms it next may depend on
    /// that.
    fn cq_event(&self, shared: &Self::CqShared) {
        let _ = shared;
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks the type; otherwise a size is out of range, or the kernel refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>>;

    /// The device's number of an SRQ that is not an XRC one, if the driver has it (`ibv_get_srq_num`). C programs with
    /// DC targets need it. The number of an XRC SRQ is in its handle.
    fn srq_number(&self, shared: &Self::SrqShared) -> Option<u32> {
        let _ = shared;
        None
    }

    /// Changes the limit of an SRQ, or its size if the device supports that.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not resize queues; otherwise a value is out of range, or the kernel
    /// refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn modify_srq(
        &self,
        handle: &SrqHandle,
        queue: &mut Self::SharedRecvQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Result<()>;

    /// Destroys an SRQ in the kernel, detaches it from the CQ that completes it, and returns how many of its events
    /// were read. On failure the handle is returned and its memory must stay.
    ///
    /// # Errors
    /// The kernel refuses, for example because a QP still uses the SRQ.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn destroy_srq(
        &self,
        handle: SrqHandle,
        shared: &Arc<Self::SrqShared>,
    ) -> Result<u32, (SrqHandle, Error)> {
        let _ = shared;
        // SAFETY: the handle is of this context, and its queue is not used any more ([`Driver`], "Safety of the
        // verbs"). A driver with this default has no state of the object to change.
        unsafe { handle.destroy() }
    }

    /// The device was removed: the posts to the SRQ fail with [`PostError::Removed`](super::PostError::Removed) from now on. Not called
    /// inside a queue.
    fn close_srq(&self, shared: &Self::SrqShared) {
        let _ = shared;
    }

    /// Creates a queue pair. [`Error::Unsupported`] if the device does not support the QP type or an operation in
    /// `send_ops_flags`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as above; otherwise a size is out of range, or the kernel refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>>;

    /// Opens an XRC receive QP that another process created; it has no queues. Only for devices with XRC.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no XRC; otherwise the domain has no QP with this number, or the
    /// kernel refuses.
    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<QpParts<Self>> {
        let _ = (xrcd, qp_num, user_handle);
        Err(Error::unsupported("open_qp", format!("{} has no XRC", Self::NAME)))
    }

    /// `ibv_modify_qp`; it stores the state for the queues in `shared`.
    ///
    /// # Errors
    /// The transition or an attribute is not allowed, or the kernel refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn modify_qp(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()>;

    /// `ibv_query_qp`. A driver adds what its kernel driver does not report.
    ///
    /// # Errors
    /// The kernel refuses the query.
    fn query_qp(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        mask: QpAttrMask,
    ) -> Result<(QpAttr, QpInitAttr)> {
        let _ = shared;
        handle.query(mask)
    }

    /// Whether [`modify_qp`](Self::modify_qp) has moved the QP to ERR, and it is certain that all its completions are in its CQs and
    /// that it takes no more receives. The kernel drivers of most devices flush later, and raise `QP_LAST_WQE_REACHED` then; for
    /// their QPs it is `false`.
    fn is_flushed(&self, shared: &Self::QpShared) -> bool {
        let _ = shared;
        false
    }

    /// The device was removed: the posts to the QP's own queues fail with [`PostError::Removed`](super::PostError::Removed) from now on.
    /// Not called inside a queue.
    fn close_queues(&self, shared: &Self::QpShared) {
        let _ = shared;
    }

    /// From now on [`take_removed`](Self::take_removed) returns what is removed. For a new QP whose shared receive queue owns its
    /// buffers.
    fn keep_removed(&self, shared: &Self::QpShared) {
        let _ = shared;
    }

    /// The `wr_id`s of the completions that a RESET of the QP or its destruction has removed from its CQs since the last call, also
    /// after the destruction. No poll reports these. The driver may leave out those that are not of receives of a shared queue.
    fn take_removed(&self, shared: &Self::QpShared) -> Vec<u64> {
        let _ = shared;
        Vec::new()
    }

    /// The options of enhanced connection establishment that the QP offers, or has agreed on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such options.
    fn query_ece(&self, shared: &Self::QpShared) -> Result<Ece> {
        let _ = shared;
        Err(Error::unsupported("query_ece", format!("{} has no ECE", Self::NAME)))
    }

    /// Sets the options that the next `modify_qp` passes on to the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such options; otherwise the options are of another vendor.
    fn set_ece(&self, shared: &Self::QpShared, ece: Ece) -> Result<()> {
        let _ = (shared, ece);
        Err(Error::unsupported("set_ece", format!("{} has no ECE", Self::NAME)))
    }

    /// `ibv_modify_qp_rate_limit`. Only for devices that pace packets.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not pace packets; otherwise the limit is out of range, or the kernel
    /// refuses.
    fn modify_qp_rate_limit(&self, handle: &QpHandle, attr: &QpRateLimitAttr) -> Result<()> {
        let _ = (handle, attr);
        Err(Error::unsupported("modify_qp_rate_limit", format!("{} does not pace packets", Self::NAME)))
    }

    /// Reads the clock of the completion timestamps. Only for devices that have one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no clock that this process can read.
    fn query_raw_clock(&self) -> Result<u64> {
        Err(Error::unsupported("query_rt_values", format!("{} has no clock", Self::NAME)))
    }

    /// Destroys a QP in the kernel, detaches it from the CQs that complete it, and returns how many of its events were
    /// read. On failure the handle is returned and its memory must stay.
    ///
    /// # Errors
    /// The kernel refuses, for example because the QP is attached to a multicast group.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn destroy_qp(
        &self,
        handle: QpHandle,
        shared: &Arc<Self::QpShared>,
    ) -> Result<u32, (QpHandle, Error)>;

    /// The key of the null region: writes to it are dropped, and reads return zeros (`ibv_alloc_null_mr`). Only for
    /// devices that have one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no null region; otherwise the kernel refuses the query.
    fn null_lkey(&self) -> Result<u32> {
        Err(Error::unsupported("alloc_null_mr", format!("{} has no null region", Self::NAME)))
    }

    /// Allocates memory in the device, aligned to `1 << log_align`. Only for devices that have memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no memory; otherwise too little is left, or the kernel refuses.
    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DmParts> {
        let _ = (length, log_align);
        Err(Error::unsupported("alloc_dm", format!("{} has no device memory", Self::NAME)))
    }

    /// Imports a protection domain of an imported context by its kernel handle.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver does not import domains; otherwise the context has no domain with this
    /// handle.
    ///
    /// # Safety
    /// As [`control::pd::import`].
    unsafe fn import_pd(&self, handle: u32) -> Result<PdHandle> {
        let _ = handle;
        Err(Error::unsupported("import_pd", format!("{} does not import domains", Self::NAME)))
    }

    /// Imports device memory of an imported context by its kernel handle.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no memory; otherwise the context has no device memory with this
    /// handle.
    ///
    /// # Safety
    /// As [`control::dm::import`].
    unsafe fn import_dm(&self, handle: u32) -> Result<DmParts> {
        let _ = handle;
        Err(Error::unsupported("import_dm", format!("{} has no device memory", Self::NAME)))
    }

    /// Creates a work queue: receives without a QP. Only for devices that have work queues.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no work queues; otherwise a size is out of range, or the kernel
    /// refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        let _ = create;
        Err(Error::unsupported("create_wq", format!("{} has no work queues", Self::NAME)))
    }

    /// `ibv_modify_wq`; it stores the state for the queue in `shared`.
    ///
    /// # Errors
    /// The transition is not allowed, or the kernel refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn modify_wq(&self, handle: &WqHandle, shared: &Self::QpShared, attr: &WqAttr) -> Result<()> {
        let _ = shared;
        // SAFETY: the handle is of this context ([`Driver`], "Safety of the verbs"). A driver with this default has no
        // state of the object to change.
        unsafe { handle.modify(attr, Uhw::none()) }
    }

    /// Destroys a work queue in the kernel, detaches it from the CQ that completes it, and returns how many of its
    /// events were read. On failure the handle is returned and its memory must stay.
    ///
    /// # Errors
    /// The kernel refuses, for example because a table still has the queue.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn destroy_wq(
        &self,
        handle: WqHandle,
        shared: &Arc<Self::QpShared>,
    ) -> Result<u32, (WqHandle, Error)> {
        let _ = shared;
        // SAFETY: the handle is of this context, and its queue is not used any more ([`Driver`], "Safety of the
        // verbs"). A driver with this default has no state of the object to change.
        unsafe { handle.destroy() }
    }

    /// Creates a raw packet QP that spreads received packets over the work queues of a table. Only for devices that
    /// support this.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not hash packets; otherwise the kernel refuses the hash function or
    /// its fields.
    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<QpHandle> {
        let _ = create;
        Err(Error::unsupported("create_qp", format!("{} does not hash packets", Self::NAME)))
    }

    /// Adds a steering rule; `counters` count its packets.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if `counters` is given and the device does not count packets; otherwise the kernel
    /// refuses the rule.
    fn create_flow(
        &self,
        qp: &QpHandle,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Result<FlowHandle> {
        if counters.is_some() {
            return Err(Error::unsupported("create_flow", format!("{} does not count packets", Self::NAME)));
        }
        control::flow::create(qp, attr, None, Uhw::none())
    }

    /// Creates an address handle.
    ///
    /// # Errors
    /// The destination is not complete or cannot be resolved, or the kernel refuses.
    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Self::Ah)>;

    /// Allocates a thread domain.
    ///
    /// # Errors
    /// The kernel refuses a page of doorbells.
    fn alloc_td(&self) -> Result<Self::Td>;
}

/// A driver whose devices have dynamic connections: initiators that send to many targets, one after the other.
///
/// An initiator is a QP of type [`QpType::Driver`](crate::attr::QpType), created by [`Driver::create_qp`]; each of its
/// WRs has a destination ([`DcTarget`](super::DcTarget)).
pub trait DcDriver: Driver {
    /// Creates a target. It has no queues: it receives into its SRQ. It gets its number when it goes to RTR.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no dynamic connections; otherwise the kernel refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn create_dct(&self, create: &DctCreate<'_, Self>) -> Result<DctParts<Self>>;

    /// Moves a target to INIT or RTR. RTR returns its number, 24 bits.
    ///
    /// # Errors
    /// The transition is not allowed, or the kernel refuses.
    ///
    /// # Safety
    /// See [Safety of the verbs](Driver#safety-of-the-verbs).
    unsafe fn modify_dct(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<u32>>;
}
