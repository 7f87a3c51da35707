// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trait of a driver: the queue types of its data path, and the control verbs that need its private data.
//!
//! A service that is generic over `D: Driver` compiles to direct, inlined code. The control verbs are not on the data
//! path; those to which no driver adds anything (regions, windows, domains) are in [`crate::control`].

#![expect(unsafe_code)]
// UNSAFETY: declares the contract of the verbs that pass memory to the device, and relies on it in a default body.

use super::completion::{Completion, CompletionQueue};
use super::mkey::MkeyObject;
use super::object::{CqObject, QpObject, SrqObject, WqObject};
use super::parts::{
    CqParts, DctCreate, DmParts, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate, WqParts,
};
use super::recv::RecvQueue;
use super::send::WrBuilder;
use super::wire::{WireRemote, WireSge};
use crate::attr::{AccessFlags, AhAttr, CqInitAttr, DeviceAttr, DriverQp};
use crate::control::{
    self, AhHandle, CompChannelHandle, ContextInfo, CoreSupport, MrHandle, MrRange, PdHandle, XrcdHandle,
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
/// A verb that creates an object with queues returns the [object](super::object) and its engines. The object owns what the device uses, so
/// creating, changing and destroying it is safe; objects of two contexts, or an engine with the object of another one, are
/// [`Error::Invalid`]. Unsafe is only what passes memory, or numbers that nobody checks, to the device: [`reg_mr`](Self::reg_mr),
/// [`import_pd`](Import::import_pd), [`import_dm`](Import::import_dm), and data in completions ([`create_qp`](Self::create_qp),
/// [`DcDriver::create_dct`]). A completion means that the device is done with the memory of its work request, which is what posting
/// relies on.
///
/// ```compile_fail,E0133
/// use uverbs_core::provider::{Driver, QpCreate};
/// fn safe<D: Driver>(driver: &D, create: &QpCreate<'_, D>) {
///     let _ = driver.create_qp(create);
/// }
/// ```
/// The handle's own verbs bypass the object:
/// ```compile_fail,E0133
/// use uverbs_core::{control::QpHandle, provider::{Driver, Object}};
/// fn safe(handle: QpHandle) {
///     let _ = handle.destroy();
/// }
/// ```
/// ```compile_fail,E0133
/// use uverbs_core::{attr::{QpAttr, QpAttrMask}, control::QpHandle, kernel::Uhw};
/// fn safe(handle: &QpHandle, attr: &QpAttr) {
///     let _ = handle.modify(None, attr, QpAttrMask::STATE, Uhw::none());
/// }
/// ```
pub trait Driver: Import + Send + Sync + core::fmt::Debug + 'static {
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
    /// A QP.
    type Qp: QpObject;
    /// A completion queue.
    type Cq: CqObject<Engine = Self::CompletionQueue>;
    /// A shared receive queue; [`NoSrq`](super::NoSrq) if the device has none.
    type Srq: SrqObject<Engine = Self::SharedRecvQueue>;
    /// A work queue; [`NoWq`](super::NoWq) if the device has none.
    type Wq: WqObject;
    /// A thread domain: doorbell resources for the queues of one thread.
    type Td: Send + Sync + core::fmt::Debug;

    /// Opens a context on the device behind `kernel`.
    ///
    /// # Errors
    /// The kernel refuses the context, or its answer is not one of this driver.
    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)>;

    /// The kernel port of the context.
    fn kernel(&self) -> &Arc<dyn Kernel>;

    /// [`NAME`](Self::NAME), of the driver that the device has.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// What its QPs of type [`QpType::Driver`](crate::attr::QpType) are; `None` if it has none.
    fn driver_qp(&self) -> Option<DriverQp> {
        None
    }

    /// [`Completion::IN_ORDER`], of the driver that the device has.
    fn completes_in_order(&self) -> bool {
        <Self::CompletionQueue as CompletionQueue>::Completion::<'static>::IN_ORDER
    }

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
    /// [`Error::Unsupported`] if the device lacks a flag of `attr`; otherwise a size is out of range, or the kernel refuses, also a
    /// channel of another context.
    fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>>;

    /// Creates a shared receive queue. Only for devices that have them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks the type; [`Error::Invalid`] for an object of another context;
    /// otherwise a size is out of range, or the kernel refuses.
    fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        let _ = create;
        Err(Error::unsupported("create_srq", format!("{} has no shared receive queues", Self::NAME)))
    }

    /// Creates a queue pair. [`Error::Unsupported`] if the device does not support the QP type or an operation in
    /// `send_ops_flags`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as above; [`Error::Invalid`] for an object of another context; otherwise a size is out of range, or the
    /// kernel refuses.
    ///
    /// # Safety
    /// If [`QpCreate::data_in_completions`] is set, every entry of a receive, a read or an atomic of the QP, and of a receive of its SRQ,
    /// has an address at which this process reaches the entry's memory.
    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>>;

    /// Opens an XRC receive QP that another process created; it has no queues. Only for devices with XRC.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no XRC; otherwise the domain has no QP with this number, or the
    /// kernel refuses.
    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<Self::Qp> {
        let _ = (xrcd, qp_num, user_handle);
        Err(Error::unsupported("open_qp", format!("{} has no XRC", Self::NAME)))
    }

    /// Reads the clock of the completion timestamps. Only for devices that have one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no clock that this process can read.
    fn query_raw_clock(&self) -> Result<u64> {
        Err(Error::unsupported("query_rt_values", format!("{} has no clock", Self::NAME)))
    }

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

    /// Creates an indirect key without memory, with room for a list of `max_entries`. Only for devices that have such keys.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no indirect keys, or the context may not create them; otherwise the kernel refuses.
    fn create_mkey(&self, pd: &PdHandle, max_entries: u16) -> Result<Box<dyn MkeyObject<Self::SendQueue>>> {
        let _ = (pd, max_entries);
        Err(Error::unsupported("create_mkey", format!("{} has no indirect keys", Self::NAME)))
    }

    /// Creates a work queue: receives without a QP. Only for devices that have work queues.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no work queues; [`Error::Invalid`] for an object of another
    /// context; otherwise a size is out of range, or the kernel refuses.
    fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        let _ = create;
        Err(Error::unsupported("create_wq", format!("{} has no work queues", Self::NAME)))
    }

    /// Creates a raw packet QP that spreads received packets over the work queues of a table. Only for devices that
    /// support this.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not hash packets; [`Error::Invalid`] for an object of another context;
    /// otherwise the kernel refuses the hash function or its fields.
    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<Self::Qp> {
        let _ = create;
        Err(Error::unsupported("create_qp", format!("{} does not hash packets", Self::NAME)))
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

/// The verbs by which processes share a context. Only for drivers whose kernel driver reports contexts; the others implement none of them.
pub trait Import: Sized {
    /// Uses the context of a device file that another process, or another part of this one, has opened.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver does not import contexts; otherwise the kernel refuses, or the context is
    /// of another driver.
    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        let what = format!("the driver of {} does not import contexts", kernel.name());
        Err(Error::unsupported("import_device", what))
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
        Err(Error::unsupported("import_pd", "the driver does not import domains"))
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
        Err(Error::unsupported("import_dm", "the device has no memory"))
    }
}

/// A driver whose devices have dynamic connections: initiators that send to many targets, one after the other.
///
/// An initiator is a QP of type [`QpType::Driver`](crate::attr::QpType), created by [`Driver::create_qp`]; each of its
/// WRs has a destination ([`DcTarget`](super::DcTarget)).
pub trait DcDriver: Driver {
    /// Creates a target. It has no queues: it receives into its SRQ. It gets its [number](QpObject::dct_number) when it goes to RTR.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no dynamic connections; [`Error::Invalid`] for an object of another context; otherwise
    /// the kernel refuses.
    ///
    /// # Safety
    /// As [`Driver::create_qp`], for [`DctCreate::data_in_completions`] and the receives of its SRQ.
    unsafe fn create_dct(&self, create: &DctCreate<'_, Self>) -> Result<Self::Qp>;
}
