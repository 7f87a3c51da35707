// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of a [`Device`]: creates its objects, keeps the order between the kernel and the queues, and removes what has ended.
#![expect(unsafe_code)]
// UNSAFETY: registers memory and destroys objects whose creation has failed; both have contracts.

use crate::cq_state::{CompletionQueue, CqShared, CqState};
use crate::device::{Created, Device, KernelRef, QpRings, corrupt, send_bell};
use crate::doorbell::KernelBell;
use crate::object::{Cq, Qp, Srq};
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::shared::QpShared;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, AhAttr, CqInitAttr, QpCap, QpInitAttr, QpState, SrqType};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle, QpHandle,
    SrqParents as KernelParents,
};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    CompletionQueue as _, CqParts, Driver, Import, Kept, NoWq, QpCreate, QpParts, SrqCreate, SrqParts,
    or_destroy, same_context,
};
use uverbs_core::sync::{ControlBarrier, ProcessMutex};
use uverbs_core::wr::Sge;
use uverbs_core::{Errno, Error, Result};

/// A context on a device.
#[derive(Debug)]
pub struct Soft<D> {
    kernel: KernelRef,
    /// How control calls stop posters and pollers.
    barrier: ControlBarrier,
    common: Arc<Common<D>>,
}

/// What a context and its objects have in common.
#[derive(Debug)]
pub(crate) struct Common<D> {
    pub(crate) device: D,
    /// Held while a QP is created, and while one is destroyed and its completions are removed, if the kernel reuses numbers.
    pub(crate) numbers: ProcessMutex<()>,
}

/// A thread domain. It has no resources, because the doorbell is a system call.
#[derive(Debug)]
pub struct ThreadDomain(());

const CREATE_QP: &str = "create_qp";

/// What posters, pollers and control calls share, in errors.
const STATE: &str = "memory for the queue's state";

type Queues<D> =
    (Arc<QpShared<D>>, SendQueue<D, KernelBell>, Option<RecvQueue<D, <D as Device>::FlushBell>>, QpCap);

/// A ring's real capacity: kernels may return the requested number instead.
pub(crate) fn at_least(verb: &'static str, capacity: u32, asked: u32) -> Result<u32> {
    if capacity < asked {
        return Err(Error::protocol(verb, format!("a ring of {capacity} instead of {asked}")));
    }
    Ok(capacity)
}

impl<D: Device> Soft<D> {
    /// The queues of a new QP.
    fn queues(
        &self,
        handle: &QpHandle,
        attr: &QpInitAttr,
        cqs: Vec<Arc<CqShared<D>>>,
        mut cap: QpCap,
        rings: QpRings<D>,
    ) -> Result<Queues<D>> {
        let shared = QpShared::create(QpState::RESET, self.barrier, cqs, handle.qp_num())
            .map_err(|e| Error::no_memory(CREATE_QP, STATE, &e))?;
        let shared = Arc::new(shared);
        let bell = send_bell(&self.kernel, handle.handle());
        let send = SendQueue::new(rings.send, rings.config, Arc::clone(&shared), bell)
            .map_err(|e| corrupt(CREATE_QP, e))?;
        cap.max_send_wr = at_least(CREATE_QP, send.capacity(), attr.cap.max_send_wr)?;
        let mut recv = None;
        if let Some(ring) = rings.recv {
            let bell = D::flush_bell(&self.kernel, handle.handle());
            let queue = RecvQueue::new(ring, cap.max_recv_sge, Arc::clone(&shared), bell)
                .map_err(|e| corrupt(CREATE_QP, e))?;
            cap.max_recv_wr = at_least(CREATE_QP, queue.capacity(), attr.cap.max_recv_wr)?;
            recv = Some(queue);
        }
        Ok((shared, send, recv, cap))
    }
}

impl<D: Device> Import for Soft<D> {}

impl<D: Device> Driver for Soft<D> {
    const NAME: &'static str = D::NAME;
    const DRIVER_ID: u32 = D::DRIVER_ID;

    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = D::Ah;
    type SendQueue = SendQueue<D, KernelBell>;
    type RecvQueue = RecvQueue<D, D::FlushBell>;
    type SharedRecvQueue = RecvQueue<D, D::FlushBell>;
    type CompletionQueue = CompletionQueue<D, D::ArmBell>;
    type Qp = Qp<D>;
    type Cq = Cq<D>;
    type Srq = Srq<D>;
    type Wq = NoWq;
    type Td = ThreadDomain;

    fn open(kernel: KernelRef) -> Result<(Self, ContextInfo)> {
        let (device, info) = D::open(&kernel)?;
        let barrier = ControlBarrier::register();
        let common = Arc::new(Common { device, numbers: ProcessMutex::new(()) });
        Ok((Self { kernel, barrier, common }, info))
    }

    fn kernel(&self) -> &KernelRef {
        &self.kernel
    }

    unsafe fn reg_mr(
        &self,
        core: CoreSupport,
        pd: &PdHandle,
        range: MrRange,
        access: AccessFlags,
    ) -> Result<MrHandle> {
        // SAFETY: the contract of this function.
        unsafe { self.common.device.reg_mr(core, pd, range, access) }
    }

    fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        const VERB: &str = "create_cq";
        attr.only_standard(D::NAME)?;
        let Created { handle, rings } =
            self.common.device.create_cq(&self.kernel, attr, channel, user_handle)?;
        let made = rings.and_then(|ring| {
            let state = CqState::new(ring).map_err(|e| corrupt(VERB, e))?;
            let bell = D::arm_bell(&self.kernel, handle.handle());
            let queue = CompletionQueue::new(state, self.barrier, bell)
                .map_err(|e| Error::no_memory(VERB, STATE, &e))?;
            let cqe = at_least(VERB, queue.cqe(), attr.cqe)?;
            Ok((queue, cqe))
        });
        let (handle, (queue, cqe)) = or_destroy(handle, made, CqHandle::destroy)?;
        let state = (Arc::clone(&self.common), Arc::clone(queue.shared()));
        Ok(CqParts { cq: Cq(Kept::new(handle, state)), queue, cqe })
    }

    fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        const VERB: &str = "create_srq";
        create.check(&self.kernel)?;
        if create.attr.srq_type != SrqType::Basic || create.xrc.is_some() {
            let what = format!("{} has no SRQs of type {:?}", D::NAME, create.attr.srq_type);
            return Err(Error::unsupported(VERB, what));
        }
        let parents = KernelParents { pd: create.pd, xrcd: None, cq: None };
        let (Created { handle, rings }, mut attr) =
            self.common.device.create_srq(&self.kernel, parents, create.attr, create.user_handle)?;
        let made = rings.and_then(|ring| {
            // An SRQ has no state: it is treated as a QP that always takes receives and never flushes.
            let shared = QpShared::create(QpState::RTR, self.barrier, Vec::new(), 0)
                .map_err(|e| Error::no_memory(VERB, STATE, &e))?;
            let (shared, bell) = (Arc::new(shared), D::flush_bell(&self.kernel, handle.handle()));
            let queue = RecvQueue::new(ring, attr.max_sge, Arc::clone(&shared), bell)
                .map_err(|e| corrupt(VERB, e))?;
            let max_wr = at_least(VERB, queue.capacity(), create.attr.attr.max_wr)?;
            Ok((shared, queue, max_wr))
        });
        // SAFETY: the object has no other user yet.
        let (handle, (shared, queue, max_wr)) = or_destroy(handle, made, |srq| unsafe { srq.destroy() })?;
        attr.max_wr = max_wr;
        let state = (Arc::clone(&self.common), shared);
        Ok(SrqParts { srq: Srq(Kept::new(handle, state)), queue, attr })
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        create.check(&self.kernel)?;
        create.without_mkeys()?;
        self.common.device.check_qp(&self.kernel, create.attr)?;
        let mut cqs: Vec<_> =
            create.send_cq.iter().chain(&create.recv_cq).map(|cq| Arc::clone(cq.shared())).collect();
        cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let forked = |_| Error::os(CREATE_QP, "context of the parent process", Errno::ESTALE);
        let _one = D::REUSES_QP_NUMBERS.then(|| self.common.numbers.lock()).transpose().map_err(forked)?;
        let (Created { handle, rings }, cap) =
            self.common.device.create_qp(&self.kernel, create.parents(), create.attr, create.user_handle)?;
        let queues = rings.and_then(|rings| self.queues(&handle, create.attr, cqs, cap, rings));
        // SAFETY: the object has no other user yet.
        let (handle, (shared, send, recv, cap)) = or_destroy(handle, queues, |qp| unsafe { qp.destroy() })?;
        if D::WATCHES_FLUSHES {
            shared.attach();
        }
        let state = (Arc::clone(&self.common), shared);
        Ok(QpParts { qp: Qp(Kept::new(handle, state)), send: Some(send), recv, cap })
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, D::Ah)> {
        same_context("create_ah", &self.kernel, &[("pd", Some(pd.kernel()))])?;
        self.common.device.create_ah(&self.kernel, pd, attr)
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        Ok(ThreadDomain(()))
    }
}
