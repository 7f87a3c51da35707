// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path: opens the device, creates kernel objects on memory of this process, and tracks their states.
#![expect(unsafe_code)]
// UNSAFETY: the verbs of `Driver` have contracts, which the operations on kernel handles rely on.

mod ah;
pub(crate) mod av;
mod calls;
mod context;
mod core_clock;
mod cq;
mod dct;
pub mod devx;
mod dm;
pub mod dv;
mod extra;
mod firmware;
mod flow;
mod ops;
mod options;
mod qp;
pub(crate) mod size;
mod srq;
pub mod steering;
#[cfg(test)]
mod tests;
mod uars;
mod wq;

pub use options::{Devx, Options};
pub use qp::QpControl;
pub use srq::SrqControl;

use self::context::Facts;
use self::core_clock::CoreClock;
use self::dv::{QpFlags, QpOptions};
use self::firmware::QpnBlocks;
use crate::control::uars::{BfReg, Posters, Uars};
use crate::cq::{CompletionQueue, CqShared};
use crate::doorbell::ArmRegister;
use crate::memory::dbrec::DbRecPages;
use crate::shared::QpAccess;
use crate::shared::{UserIndex, UserIndices};
use std::io;
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::{
    AhAttr, CqInitAttr, DeviceAttr, Ece, FlowAttr, QpAttr, QpAttrMask, QpRateLimitAttr, SrqAttr, SrqAttrMask,
    WqAttr,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CountersHandle, CqHandle, FlowHandle, PdHandle, QpHandle,
    SrqHandle, WqHandle, XrcdHandle, pd,
};
use uverbs_core::device::{DriverMatch, PciId};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, QueueAccess, Uhw};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{
    CqParts, DcDriver, DctCreate, DctParts, DmParts, Driver, QpCreate, QpParts, RssQpCreate, SrqCreate,
    SrqParts, WqCreate, WqParts,
};
use uverbs_core::sync::{ControlBarrier, ProcessMutex};
use uverbs_mlx5_hw::wqe::MLX5_INVALID_LKEY;
use uverbs_uapi::mlx5::mlx5_ib_alloc_pd_resp;
use uverbs_uapi::verbs::RDMA_DRIVER_MLX5;
use zerocopy::IntoBytes;

/// The PCI vendor ID of mlx5's ECE options.
const VENDOR: u32 = 0x15b3;
/// The user index of an object without one (`MLX5_IB_DEFAULT_UIDX` of `mlx5_ib.h`).
pub(crate) const NO_UIDX: u32 = 0xff_ffff;

/// A context on an mlx5 device.
#[derive(Debug)]
pub struct Mlx5 {
    kernel: Arc<dyn Kernel>,
    facts: Facts,
    options: Options,
    uars: Arc<Uars>,
    /// The register by which all CQs are armed.
    arm: Arc<ArmRegister>,
    dbrecs: DbRecPages,
    indices: Arc<UserIndices>,
    /// How the control path waits for the data path.
    barrier: ControlBarrier,
    /// The device's clock, mapped at its first use; `None` if that is impossible.
    core_clock: OnceLock<Option<CoreClock>>,
    /// The QP numbers that the firmware reserves for this context.
    qpns: ProcessMutex<QpnBlocks>,
}

/// A thread domain: each of its QPs gets a doorbell register that no other QP uses, until the registers run out. The
/// register of the first QP is allocated with the domain.
#[derive(Debug)]
pub struct ThreadDomain {
    first: ProcessMutex<Option<BfReg>>,
}

impl ThreadDomain {
    fn take(&self) -> Option<BfReg> {
        self.first.lock().ok()?.take()
    }
}

impl Mlx5 {
    /// Opens a context with `options` instead of those of the environment.
    ///
    /// # Errors
    /// The kernel's error, or an invalid answer.
    pub fn open_with(kernel: Arc<dyn Kernel>, options: &Options) -> Result<(Self, ContextInfo)> {
        let opened = context::open(&kernel, options)?;
        Self::with_context(kernel, options, opened)
    }

    fn with_context(
        kernel: Arc<dyn Kernel>,
        options: &Options,
        (facts, info): (Facts, ContextInfo),
    ) -> Result<(Self, ContextInfo)> {
        let uars = Uars::open(&kernel, facts.uars, *options)?;
        let arm = uars
            .arm_register()
            .ok_or_else(|| Error::protocol("open_device", "a UAR page without a CQ doorbell"))?;
        let this = Self {
            kernel,
            facts,
            options: *options,
            uars,
            arm: Arc::new(arm),
            dbrecs: DbRecPages::default(),
            indices: Arc::default(),
            barrier: if options.full_fences { ControlBarrier::Fence } else { ControlBarrier::register() },
            core_clock: OnceLock::new(),
            qpns: ProcessMutex::default(),
        };
        Ok((this, info))
    }

    /// The ECE options to request for a new QP: "begin, version 1" if the kernel supports them.
    fn ece(&self) -> u32 {
        if self.facts.ece { 0x1000_0000 } else { 0 }
    }

    fn no_memory(&self, verb: &'static str, error: &io::Error) -> Error {
        let errno = error.raw_os_error().map_or(uverbs_core::Errno::ENOMEM, uverbs_core::Errno::from_raw);
        Error::os(verb, format!("queue memory on {}", self.kernel.name()), errno)
    }

    /// A `QpAccess` for the queues of a new QP.
    fn qp_access(&self, verb: &'static str) -> Result<QpAccess> {
        QpAccess::new(self.barrier).map_err(|e| self.no_memory(verb, &e))
    }

    /// A `QueueAccess` for a new CQ or SRQ.
    fn queue_access(&self, verb: &'static str) -> Result<QueueAccess> {
        // The queue defines the meaning of the word.
        QueueAccess::new(1, self.barrier).map_err(|e| self.no_memory(verb, &e))
    }

    fn user_index(&self, verb: &'static str) -> Result<UserIndex> {
        self.indices.take().ok_or_else(|| {
            Error::os(verb, format!("user index on {}", self.kernel.name()), uverbs_core::Errno::ENOMEM)
        })
    }
}

/// Vendors whose devices may belong to the kernel's mlx5 driver. The probe determines whether they do.
const fn is_mellanox(id: PciId) -> bool {
    const MELLANOX: u16 = 0x15b3;
    id.vendor == MELLANOX
}

impl Driver for Mlx5 {
    const NAME: &'static str = "mlx5";
    const DRIVER_ID: u32 = RDMA_DRIVER_MLX5;
    const MATCH: DriverMatch = DriverMatch { driver_id: RDMA_DRIVER_MLX5, pci: is_mellanox };

    type Sge = crate::Sge;
    type Remote = crate::Remote;
    type Ah = crate::Ah;
    type SendQueue = crate::SendQueue;
    type RecvQueue = crate::RecvQueue;
    type SharedRecvQueue = crate::SharedRecvQueue;
    type CompletionQueue = CompletionQueue;
    type QpShared = QpControl;
    type CqShared = CqShared;
    type SrqShared = SrqControl;
    type Td = ThreadDomain;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        Self::open_with(kernel, &Options::from_env()?)
    }

    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        let imported = context::import(&kernel)?;
        Self::with_context(kernel, &Options::from_env()?, imported)
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        context::query_device(&self.kernel, &self.facts)
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        // The kernel requires a response with the number.
        let mut resp = mlx5_ib_alloc_pd_resp::default();
        pd::alloc(&self.kernel, Uhw::answer(resp.as_mut_bytes()))
    }

    unsafe fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        cq::create(self, attr, (self.options.cqe_size, None), channel, user_handle)
    }

    unsafe fn resize_cq(&self, handle: &CqHandle, queue: &mut CompletionQueue, cqe: u32) -> Result<u32> {
        cq::resize(self, handle, queue, cqe)
    }

    fn cq_event(&self, shared: &CqShared) {
        shared.event();
    }

    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        srq::create(self, create, None)
    }

    fn srq_number(&self, shared: &SrqControl) -> Option<u32> {
        Some(shared.shared().srqn)
    }

    unsafe fn modify_srq(
        &self,
        handle: &SrqHandle,
        queue: &mut Self::SharedRecvQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Result<()> {
        srq::modify(handle, queue, attr, mask)
    }

    unsafe fn destroy_srq(
        &self,
        handle: SrqHandle,
        shared: &Arc<SrqControl>,
    ) -> Result<u32, (SrqHandle, Error)> {
        // SAFETY: the handle belongs to `shared`, and its queue is not used any more ([`Driver`], "Safety of the
        // verbs"); its entries in the CQ are removed by `detach`.
        unsafe { handle.destroy() }.inspect(|_| shared.detach())
    }

    fn close_srq(&self, shared: &SrqControl) {
        shared.close();
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        qp::create(self, create, &QpOptions::default())
    }

    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<QpParts<Self>> {
        qp::open(self, xrcd, qp_num, user_handle)
    }

    unsafe fn modify_qp(
        &self,
        handle: &QpHandle,
        shared: &QpControl,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        qp::modify(self, handle, shared, attr, mask)
    }

    unsafe fn destroy_qp(&self, handle: QpHandle, shared: &Arc<QpControl>) -> Result<u32, (QpHandle, Error)> {
        shared.destroy_with("destroy_qp", handle, |handle| {
            // SAFETY: the handle belongs to `shared`, and its queues are not used any more ([`Driver`], "Safety of the
            // verbs"); its entries in the CQs are removed.
            unsafe { handle.destroy() }
        })
    }

    fn close_queues(&self, shared: &QpControl) {
        shared.shared().set_state(StateWord::REMOVED);
    }

    fn keep_removed(&self, shared: &QpControl) {
        shared.shared().removed.keep();
    }

    fn take_removed(&self, shared: &QpControl) -> Vec<u64> {
        shared.shared().removed.take()
    }

    fn query_ece(&self, shared: &QpControl) -> Result<Ece> {
        Ok(Ece { vendor_id: VENDOR, options: shared.ece()? })
    }

    fn set_ece(&self, shared: &QpControl, ece: Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        if ece.vendor_id != VENDOR {
            return Err(Error::invalid(VERB, "vendor_id", format!("{:#x} is not mlx5's", ece.vendor_id)));
        }
        if !self.facts.ece {
            return Err(Error::unsupported(VERB, "the kernel's driver has no ECE"));
        }
        shared.set_ece(ece.options)?;
        Ok(())
    }

    fn modify_qp_rate_limit(&self, handle: &QpHandle, attr: &QpRateLimitAttr) -> Result<()> {
        let bursts = attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0;
        if bursts && (attr.rate_limit == 0 || !self.facts.paces_bursts) {
            let reason = "a burst or packet size needs a rate limit, and a device that supports it";
            return Err(Error::invalid("modify_qp_rate_limit", "max_burst_sz", reason));
        }
        calls::modify_qp_rate_limit(handle, attr)
    }

    fn query_raw_clock(&self) -> Result<u64> {
        if let Some(now) = self.kernel.device_clock() {
            return Ok(now);
        }
        let map = || {
            let page = calls::map_core_clock(&*self.kernel).ok()?;
            CoreClock::new(page, self.facts.core_clock?)
        };
        let clock = self.core_clock.get_or_init(map).as_ref();
        let clock = clock.ok_or_else(|| Error::unsupported("query_rt_values", "the clock is not mapped"))?;
        Ok(clock.read())
    }

    fn null_lkey(&self) -> Result<u32> {
        match self.facts.dump_fill_mkey {
            MLX5_INVALID_LKEY => Err(Error::unsupported("alloc_null_mr", "the device has no such key")),
            lkey => Ok(lkey),
        }
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DmParts> {
        dm::alloc(self, length, log_align)
    }

    unsafe fn import_pd(&self, handle: u32) -> Result<PdHandle> {
        // SAFETY: the caller meets the contract of `pd::import`, which is also that of this function.
        let pd = unsafe { pd::import(&self.kernel, handle) }?;
        calls::query_pd(&pd)?;
        Ok(pd)
    }

    unsafe fn import_dm(&self, handle: u32) -> Result<DmParts> {
        // SAFETY: the caller meets the contract of `dm::import`, which is also that of this function.
        unsafe { dm::import(self, handle) }
    }

    unsafe fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        wq::create(self, create, None)
    }

    unsafe fn modify_wq(&self, handle: &WqHandle, shared: &QpControl, attr: &WqAttr) -> Result<()> {
        wq::modify(handle, shared, attr)
    }

    unsafe fn destroy_wq(&self, handle: WqHandle, shared: &Arc<QpControl>) -> Result<u32, (WqHandle, Error)> {
        shared.destroy_with("destroy_wq", handle, |handle| {
            // SAFETY: the handle belongs to `shared`, and its queue is not used any more ([`Driver`], "Safety of the
            // verbs"); its entries in the CQ are removed.
            unsafe { handle.destroy() }
        })
    }

    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<QpHandle> {
        wq::create_rss(create, QpFlags::empty())
    }

    fn create_flow(
        &self,
        qp: &QpHandle,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Result<FlowHandle> {
        flow::create(qp, attr, counters)
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, crate::Ah)> {
        ah::create(self, pd, attr)
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        let first = self.uars.for_qp(Posters::ThreadDomain)?;
        // If its register is shared with others, its QPs allocate registers one by one.
        Ok(ThreadDomain { first: ProcessMutex::new(first.filter(BfReg::is_dedicated)) })
    }
}

impl DcDriver for Mlx5 {
    unsafe fn create_dct(&self, create: &DctCreate<'_, Self>) -> Result<DctParts<Self>> {
        dct::create(self, create, false)
    }

    unsafe fn modify_dct(
        &self,
        handle: &QpHandle,
        shared: &QpControl,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<u32>> {
        dct::modify(handle, shared, attr, mask)
    }
}
