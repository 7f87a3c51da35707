// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path: opens the device, creates kernel objects on memory of this process, and tracks their states.
#![expect(unsafe_code)]
// UNSAFETY: some verbs have contracts, which are those of operations on kernel handles.

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
mod mkey;
mod object;
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

pub use cq::Cq;
pub(crate) use mkey::Mkey;
pub use object::{Qp, Wq};
pub use options::{Devx, Options};
pub use qp::QpControl;
pub use srq::Srq;

use self::context::Facts;
use self::core_clock::CoreClock;
use self::dv::{CqOptions, QpFlags, QpOptions};
use self::firmware::QpnBlocks;
use crate::control::uars::{BfReg, Posters, Uars};
use crate::cq::CompletionQueue;
use crate::doorbell::ArmRegister;
use crate::memory::dbrec::DbRecPages;
use crate::shared::QpAccess;
use crate::shared::mkey::MkeyTable;
use crate::shared::{UserIndex, UserIndices};
use std::io;
use std::sync::{Arc, MutexGuard, OnceLock};
use uverbs_core::attr::{AhAttr, CqInitAttr, DeviceAttr, DriverQp};
use uverbs_core::control::{AhHandle, CompChannelHandle, ContextInfo, PdHandle, XrcdHandle, pd};
use uverbs_core::device::{DriverMatch, PciId};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, QueueAccess, Uhw};
use uverbs_core::provider::{
    CqParts, DcDriver, DctCreate, DmParts, Driver, Import, MkeyObject, QpCreate, QpParts, RssQpCreate,
    SrqCreate, SrqParts, WqCreate, WqParts,
};
use uverbs_core::sync::{ControlBarrier, ProcessMutex};
use uverbs_mlx5_hw::wqe::MLX5_INVALID_LKEY;
use uverbs_uapi::mlx5::mlx5_ib_alloc_pd_resp;
use uverbs_uapi::verbs::RDMA_DRIVER_MLX5;
use zerocopy::IntoBytes;

/// The user index of an object without one (`MLX5_IB_DEFAULT_UIDX` of `mlx5_ib.h`).
pub(crate) const NO_UIDX: u32 = 0xff_ffff;

/// A context on an mlx5 device.
#[derive(Debug)]
pub struct Mlx5 {
    kernel: Arc<dyn Kernel>,
    facts: Arc<Facts>,
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
    /// The indirect keys with signatures, whose errors are in completion queues.
    mkeys: Arc<MkeyTable>,
}

/// A thread domain: each of its QPs gets a doorbell register that no other QP uses, until the registers run out. The
/// register of the first QP is allocated with the domain.
#[derive(Debug)]
pub struct ThreadDomain {
    first: ProcessMutex<Option<BfReg>>,
    context: Arc<UserIndices>,
}

impl ThreadDomain {
    fn take(&self) -> Option<BfReg> {
        self.first.lock().ok()?.take()
    }

    fn context(&self) -> &Arc<UserIndices> {
        &self.context
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
            facts: Arc::new(facts),
            options: *options,
            uars,
            arm: Arc::new(arm),
            dbrecs: DbRecPages::default(),
            indices: Arc::default(),
            barrier: if options.full_fences { ControlBarrier::Fence } else { ControlBarrier::register() },
            core_clock: OnceLock::new(),
            qpns: ProcessMutex::default(),
            mkeys: Arc::default(),
        };
        Ok((this, info))
    }

    /// The ECE options to request for a new QP: "begin, version 1" if the kernel supports them.
    fn ece(&self) -> u32 {
        if self.facts.ece { 0x1000_0000 } else { 0 }
    }

    fn no_memory(&self, verb: &'static str, error: &io::Error) -> Error {
        no_memory(verb, &self.kernel, error)
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

    /// Refuses an object of another context, which the user indices identify: two contexts of one device file have the same kernel port.
    fn owns(
        &self,
        verb: &'static str,
        field: &'static str,
        context: Option<&Arc<UserIndices>>,
    ) -> Result<()> {
        match context {
            Some(context) if !Arc::ptr_eq(context, &self.indices) => {
                Err(Error::invalid(verb, field, format!("of another context of {}", self.kernel.name())))
            }
            _ => Ok(()),
        }
    }

    /// Excludes that an object is destroyed whose number the new one gets, if completions name it by its number; see
    /// [`UserIndices::numbers`].
    fn number(&self, verb: &'static str) -> Result<Option<MutexGuard<'_, ()>>> {
        let forked = |_| Error::os(verb, "context of the parent process", uverbs_core::Errno::ESTALE);
        (self.facts.cqe_version == 0).then(|| self.indices.numbers()).transpose().map_err(forked)
    }

    fn user_index(&self, verb: &'static str) -> Result<UserIndex> {
        self.indices.take().ok_or_else(|| {
            Error::os(verb, format!("user index on {}", self.kernel.name()), uverbs_core::Errno::ENOMEM)
        })
    }
}

/// The error if there is no memory for a queue.
fn no_memory(verb: &'static str, kernel: &Arc<dyn Kernel>, error: &io::Error) -> Error {
    Error::no_memory(verb, format!("queue memory on {}", kernel.name()), error)
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
    type Qp = Qp;
    type Cq = Cq;
    type Srq = Srq;
    type Wq = Wq;
    type Td = ThreadDomain;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        Self::open_with(kernel, &Options::from_env()?)
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }

    fn driver_qp(&self) -> Option<DriverQp> {
        Some(DriverQp::Dc)
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        context::query_device(&self.kernel, &self.facts)
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        // The kernel requires a response with the number.
        let mut resp = mlx5_ib_alloc_pd_resp::default();
        pd::alloc(&self.kernel, Uhw::answer(resp.as_mut_bytes()))
    }

    fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        cq::create(self, attr, CqOptions::default(), channel, user_handle)
    }

    fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        srq::create(self, create, None)
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        qp::create(self, create, &QpOptions::default())
    }

    fn create_mkey(&self, pd: &PdHandle, max_entries: u16) -> Result<Box<dyn MkeyObject<crate::SendQueue>>> {
        let made = Self::create_mkey(self, pd, dv::MkeyOptions { max_entries, ..Default::default() })?;
        Ok(Box::new(made))
    }

    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<Qp> {
        qp::open(self, xrcd, qp_num, user_handle)
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

    fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        wq::create(self, create, None)
    }

    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<Qp> {
        wq::create_rss(self, create, QpFlags::empty())
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, crate::Ah)> {
        ah::create(self, pd, attr)
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        let first = self.uars.for_qp(Posters::ThreadDomain)?;
        // If its register is shared with others, its QPs allocate registers one by one.
        let first = ProcessMutex::new(first.filter(BfReg::is_dedicated));
        Ok(ThreadDomain { first, context: Arc::clone(&self.indices) })
    }
}

impl Import for Mlx5 {
    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        let imported = context::import(&kernel)?;
        Self::with_context(kernel, &Options::from_env()?, imported)
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
}

impl DcDriver for Mlx5 {
    unsafe fn create_dct(&self, create: &DctCreate<'_, Self>) -> Result<Qp> {
        dct::create(self, create, false)
    }
}
