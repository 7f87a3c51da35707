// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path: creates kernel objects, maps their rings, and tracks the state of QPs.
#![expect(unsafe_code)]
// UNSAFETY: the verbs of `Driver` have contracts, which the operations on kernel handles rely on.

use crate::cq_shared::{CqShared, CqState};
use crate::doorbell::{KernelBell, SendBell as _};
use crate::queue::{Element, Ring};
use crate::send::{SendConfig, ring_bell};
use crate::shared::QpShared;
use crate::wqe::Ah;
use crate::{CompletionQueue, RecvQueue, SendQueue};
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqFlags, CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
    SendOpsFlags, SrqAttr, SrqAttrMask, SrqType, WcExFlags,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle, QpHandle,
    QpParents, SrqHandle, SrqParents, context, cq, mr, qp, srq,
};
use uverbs_core::kernel::{Kernel, Protection, Uhw};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{CompletionQueue as _, CqParts, Driver, QpCreate, QpParts, SrqCreate, SrqParts};
use uverbs_core::sync::{ControlBarrier, ProcessMutex};
use uverbs_core::wr::Sge;
use uverbs_core::{Errno, Error, Result};
use uverbs_uapi::siw::{
    SIW_INVAL_UOBJ_KEY, SIW_MAX_INLINE, siw_ureq_reg_mr, siw_uresp_alloc_ctx, siw_uresp_create_cq,
    siw_uresp_create_qp, siw_uresp_create_srq, siw_uresp_reg_mr,
};
use uverbs_uapi::verbs::RDMA_DRIVER_SIW;
use zerocopy::IntoBytes;

/// A context on a siw device.
#[derive(Debug)]
pub struct Siw {
    kernel: Arc<dyn Kernel>,
    /// How control calls stop posters and pollers.
    barrier: ControlBarrier,
    /// Held while a QP is created, and while one is destroyed and its completions are removed: the kernel may give the
    /// number of a destroyed QP to the next one.
    numbers: ProcessMutex<()>,
}

/// The state that an SRQ's poster and its consumers share: none, because the kernel consumes in order.
#[derive(Debug)]
pub struct SrqShared(());

/// A thread domain. It has no resources, because siw's doorbell is a system call.
#[derive(Debug)]
pub struct ThreadDomain(());

const CREATE_QP: &str = "create_qp";
const MODIFY_QP: &str = "modify_qp";

impl Siw {
    /// Maps a ring whose number of elements and offset the kernel returned.
    fn ring<E: Element>(&self, verb: &'static str, slots: u32, key: u64) -> Result<Ring<E>> {
        if key == SIW_INVAL_UOBJ_KEY {
            return Err(Error::protocol(verb, "the kernel has no ring for the object"));
        }
        let len = Ring::<E>::bytes(slots).map_err(|e| corrupt(verb, e))?;
        let mapping = self
            .kernel
            .mmap(key, len, Protection::ReadWrite)
            .map_err(|errno| Error::os(verb, format!("ring of {} at {key:#x}", self.kernel.name()), errno))?;
        Ring::new(mapping, slots).map_err(|e| corrupt(verb, e))
    }

    /// A QP's queues on the rings that the kernel made.
    fn queues(
        &self,
        handle: &QpHandle,
        attr: &QpInitAttr,
        cqs: Vec<Arc<CqShared>>,
        has_srq: bool,
        mut cap: QpCap,
        resp: &siw_uresp_create_qp,
    ) -> Result<QueueParts> {
        if resp.qp_id != handle.qp_num() {
            return Err(corrupt(CREATE_QP, format!("QP {} has the number {}", handle.qp_num(), resp.qp_id)));
        }
        let shared = QpShared::create(QpState::RESET, self.barrier, cqs, handle.qp_num())
            .map_err(|e| no_memory(CREATE_QP, &e))?;
        let shared = Arc::new(shared);
        cap.max_inline_data = SIW_MAX_INLINE;
        let config = SendConfig {
            send_ops_flags: attr.send_ops_flags,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            sq_sig_all: attr.sq_sig_all,
        };
        let ring = self.ring(CREATE_QP, resp.num_sqe, resp.sq_key)?;
        let bell = KernelBell::new(Arc::clone(&self.kernel), handle.handle());
        let send = SendQueue::new(ring, &config, Arc::clone(&shared), bell);
        cap.max_send_wr = at_least(CREATE_QP, send.capacity(), attr.cap.max_send_wr)?;
        let mut recv = None;
        if !has_srq {
            let ring = self.ring(CREATE_QP, resp.num_rqe, resp.rq_key)?;
            let queue = RecvQueue::new(ring, cap.max_recv_sge, Arc::clone(&shared));
            cap.max_recv_wr = at_least(CREATE_QP, queue.capacity(), attr.cap.max_recv_wr)?;
            recv = Some(queue);
        }
        Ok((shared, send, recv, cap))
    }

    /// Refuses features that siw never has, before the kernel is called.
    fn check_qp(create: &QpCreate<'_, Self>) -> Result<()> {
        const OPS: SendOpsFlags = SendOpsFlags::SEND
            .union(SendOpsFlags::SEND_WITH_INV)
            .union(SendOpsFlags::RDMA_WRITE)
            .union(SendOpsFlags::RDMA_READ);
        let attr = create.attr;
        let missing = |what: String| Err(Error::unsupported(CREATE_QP, format!("siw has no {what}")));
        if attr.qp_type != QpType::Rc {
            return missing(format!("{} QPs", attr.qp_type));
        }
        if !attr.create_flags.is_empty() {
            return missing(format!("create_flags {:?}", attr.create_flags));
        }
        let ops = attr.send_ops_flags.difference(OPS);
        if !ops.is_empty() {
            return missing(format!("send_ops_flags {ops:?}"));
        }
        if attr.max_tso_header != 0 {
            return missing("segmentation offload (max_tso_header)".into());
        }
        Ok(())
    }

    /// The state of a QP. Kernels before 6.8 report RESET for each QP (`siw_query_qp()`).
    ///
    /// The doorbell of an empty ring then distinguishes a connected QP from one that is not connected. It also succeeds after the
    /// kernel has moved the QP to ERR by itself: that is known only since a flushed work request was polled.
    fn state(&self, handle: &QpHandle, shared: &QpShared, reported: QpState) -> QpState {
        match (shared.state(), reported) {
            (QpState::INIT | QpState::RTR | QpState::RTS, QpState::RESET) => {}
            // The kernel's name of RESET and INIT is the same.
            (QpState::RESET, _) => return QpState::RESET,
            (stored @ (QpState::ERR | QpState::INIT | QpState::RTR), QpState::INIT) => return stored,
            (QpState::ERR, _) | (_, QpState::ERR | QpState::SQE) => return QpState::ERR,
            (QpState::SQD, _) => return QpState::SQD,
            (_, reported) => return reported,
        }
        let bell = KernelBell::new(Arc::clone(&self.kernel), handle.handle());
        let rung = if shared.was_connected() { ring_bell(&bell) } else { bell.ring() };
        match rung {
            Err(Errno::ENOTCONN) if shared.was_connected() => QpState::ERR,
            Err(_) => shared.state(),
            Ok(()) => {
                shared.note_connected();
                // A flush may have been polled in the meantime.
                if shared.state() == QpState::ERR { QpState::ERR } else { QpState::RTS }
            }
        }
    }

    /// Refuses a change that the device does not have, or that the kernel would ignore.
    fn check_modify(before: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let by_cm = mask & (QpAttrMask::AV | QpAttrMask::DEST_QPN | QpAttrMask::ALT_PATH);
        if !by_cm.is_empty() {
            let why = format!("{by_cm:?}: iWARP QPs are connected by the connection manager");
            return Err(Error::unsupported(MODIFY_QP, why));
        }
        if !mask.contains(QpAttrMask::STATE) {
            return Ok(());
        }
        match attr.qp_state {
            QpState::RESET if before != QpState::RESET => Err(Error::unsupported(
                MODIFY_QP,
                "siw does not reset QPs: destroy it and create another one",
            )),
            QpState::SQE => Err(Error::unsupported(MODIFY_QP, "siw has no state SQE")),
            QpState::INIT | QpState::RTR if matches!(before, QpState::SQD | QpState::ERR) => {
                Err(Error::invalid(MODIFY_QP, "qp_state", format!("{} after {before}", attr.qp_state)))
            }
            _ => Ok(()),
        }
    }
}

type QueueParts = (Arc<QpShared>, SendQueue<KernelBell>, Option<RecvQueue>, QpCap);

fn corrupt(verb: &'static str, what: impl core::fmt::Display) -> Error {
    Error::protocol(verb, format!("the kernel's ring: {what}"))
}

/// The error if there is no memory for the words that posters, pollers and control calls share.
fn no_memory(verb: &'static str, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw);
    Error::os(verb, "memory for the queue's state", errno)
}

/// A ring's capacity.
fn at_least(verb: &'static str, capacity: u32, asked: u32) -> Result<u32> {
    if capacity < asked {
        return Err(Error::protocol(verb, format!("a ring of {capacity} instead of {asked}")));
    }
    Ok(capacity)
}

impl Driver for Siw {
    const NAME: &'static str = "siw";
    const DRIVER_ID: u32 = RDMA_DRIVER_SIW;

    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type SendQueue = SendQueue<KernelBell>;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = RecvQueue;
    type CompletionQueue = CompletionQueue;
    type QpShared = QpShared;
    type CqShared = CqShared;
    type SrqShared = SrqShared;
    type Td = ThreadDomain;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        let mut resp = siw_uresp_alloc_ctx::default();
        let info = context::open(&kernel, Uhw::answer(resp.as_mut_bytes()))?;
        Ok((Self { kernel, barrier: ControlBarrier::register(), numbers: ProcessMutex::new(()) }, info))
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }

    /// The kernel names the first byte of a region by its address, regardless of the address in the request (`siw_reg_user_mr()`).
    unsafe fn reg_mr(
        &self,
        core: CoreSupport,
        pd: &PdHandle,
        range: MrRange,
        access: AccessFlags,
    ) -> Result<MrHandle> {
        const VERB: &str = "reg_mr";
        if range.iova != range.addr {
            return Err(Error::unsupported(VERB, "siw has no regions with another address (iova)"));
        }
        let missing = access & (AccessFlags::MW_BIND | AccessFlags::ZERO_BASED | AccessFlags::ON_DEMAND);
        if !missing.is_empty() {
            return Err(Error::unsupported(VERB, format!("siw has no access flags {missing:?}")));
        }
        let request = siw_ureq_reg_mr::default();
        let mut resp = siw_uresp_reg_mr::default();
        // SAFETY: the request has the low bits of a key and names no memory.
        let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
        // SAFETY: the range fulfils the contract of this function, which is that of `mr::reg`.
        unsafe { mr::reg(core, pd, range, access, uhw) }
    }

    unsafe fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        const VERB: &str = "create_cq";
        let missing = attr.wc_flags.difference(WcExFlags::STANDARD);
        if !missing.is_empty() {
            return Err(Error::unsupported(VERB, format!("siw has no completion fields {missing:?}")));
        }
        let missing = attr.flags.difference(CqFlags::SINGLE_THREADED);
        if !missing.is_empty() {
            return Err(Error::unsupported(VERB, format!("siw has no CQ flags {missing:?}")));
        }
        let mut resp = siw_uresp_create_cq::default();
        let handle = cq::create(&self.kernel, attr, channel, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let made = self.ring(VERB, resp.num_cqe, resp.cq_key).and_then(|ring| {
            let (queue, shared) =
                CompletionQueue::create(CqState::new(ring), self.barrier).map_err(|e| no_memory(VERB, &e))?;
            let cqe = at_least(VERB, queue.cqe(), attr.cqe)?;
            Ok((queue, shared, cqe))
        });
        match made {
            Ok((queue, shared, cqe)) => Ok(CqParts { handle, shared, queue, cqe }),
            Err(error) => {
                let _ = handle.destroy();
                Err(error)
            }
        }
    }

    unsafe fn resize_cq(
        &self,
        _handle: &CqHandle,
        _queue: &mut Self::CompletionQueue,
        _cqe: u32,
    ) -> Result<u32> {
        Err(Error::unsupported("resize_cq", "siw does not resize CQs"))
    }

    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        const VERB: &str = "create_srq";
        if create.attr.srq_type != SrqType::Basic || create.xrc.is_some() {
            let what = format!("siw has no SRQs of type {:?}", create.attr.srq_type);
            return Err(Error::unsupported(VERB, what));
        }
        let mut resp = siw_uresp_create_srq::default();
        let parents = SrqParents { pd: create.pd, xrcd: None, cq: None };
        let (handle, mut attr) =
            srq::create(parents, create.attr, create.user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let made = self.ring(VERB, resp.num_rqe, resp.srq_key).and_then(|ring| {
            // An SRQ has no state: it is treated as a QP that always takes receives.
            let shared = QpShared::create(QpState::RTR, self.barrier, Vec::new(), 0)
                .map_err(|e| no_memory(VERB, &e))?;
            let queue = RecvQueue::new(ring, attr.max_sge, Arc::new(shared));
            let max_wr = at_least(VERB, queue.capacity(), create.attr.attr.max_wr)?;
            Ok((queue, max_wr))
        });
        match made {
            Ok((queue, max_wr)) => {
                attr.max_wr = max_wr;
                Ok(SrqParts { handle, shared: Arc::new(SrqShared(())), queue, attr })
            }
            Err(error) => {
                // SAFETY: the object has no other user yet.
                let _ = unsafe { handle.destroy() };
                Err(error)
            }
        }
    }

    unsafe fn modify_srq(
        &self,
        handle: &SrqHandle,
        _queue: &mut Self::SharedRecvQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Result<()> {
        if mask.contains(SrqAttrMask::MAX_WR) {
            return Err(Error::unsupported("modify_srq", "siw does not resize SRQs"));
        }
        handle.modify(attr, mask, Uhw::none())
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        Self::check_qp(create)?;
        let mut attr = create.attr.clone();
        // The kernel refuses a QP without a send queue, and has no ring for a receive queue without elements.
        attr.cap.max_send_wr = attr.cap.max_send_wr.max(1);
        if create.srq.is_none() {
            attr.cap.max_recv_wr = attr.cap.max_recv_wr.max(1);
        }
        let parents = QpParents {
            pd: create.pd,
            send_cq: create.send_cq.map(|(cq, _)| cq),
            recv_cq: create.recv_cq.map(|(cq, _)| cq),
            srq: create.srq.map(|(srq, _)| srq),
            xrcd: create.xrcd,
        };
        let mut resp = siw_uresp_create_qp::default();
        let mut cqs: Vec<_> =
            create.send_cq.iter().chain(&create.recv_cq).map(|(_, shared)| Arc::clone(shared)).collect();
        cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let forked = |_| Error::os(CREATE_QP, "context of the parent process", Errno::ESTALE);
        let _one = self.numbers.lock().map_err(forked)?;
        let (handle, cap) = qp::create(parents, &attr, create.user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        match self.queues(&handle, &attr, cqs, create.srq.is_some(), cap, &resp) {
            Ok((shared, send, recv, cap)) => {
                shared.attach();
                Ok(QpParts { handle, shared, send: Some(send), recv, cap })
            }
            Err(error) => {
                // SAFETY: the object has no other user yet.
                let _ = unsafe { handle.destroy() };
                Err(error)
            }
        }
    }

    unsafe fn modify_qp(
        &self,
        handle: &QpHandle,
        shared: &QpShared,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        let _one = shared.access.modify()?;
        let before = shared.state();
        Self::check_modify(before, attr, mask)?;
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        // In SQD the kernel closes the connection, and then flushes (`siw_qp_nextstate_from_rts()`).
        let end = target.filter(|state| matches!(*state, QpState::SQD | QpState::ERR));
        if let Some(end) = end {
            // The posters see the state before the kernel flushes, and posts that are in progress end: the kernel flushes
            // only once. If waiting for them fails, the queue stays closed.
            shared.set_state(end);
            shared
                .access
                .wait_for_posters()
                .map_err(|errno| Error::os(MODIFY_QP, "waiting for posts", errno))?;
        }
        // SAFETY: the handle is of this context and belongs to `shared` ([`Driver`], "Safety of the verbs"); the state in
        // `shared` is updated below.
        let result = unsafe { handle.modify(None, attr, mask, Uhw::none()) };
        match (result, target) {
            (Ok(()), Some(state)) if end.is_none() => {
                // The kernel ignores a step back to INIT or RTR.
                if !matches!((before, state), (QpState::RTR | QpState::RTS, QpState::INIT)) {
                    shared.store_state(state);
                }
                Ok(())
            }
            (Ok(()), Some(QpState::ERR)) => {
                shared.note_flushed();
                Ok(())
            }
            (Ok(()), _) => Ok(()),
            (Err(error), Some(QpState::RTS)) if error.errno() == Errno::EINVAL => {
                let why = "iWARP: the kernel's connection manager moves a QP to RTS when it is connected";
                Err(Error::invalid(MODIFY_QP, "qp_state", why))
            }
            (Err(error), _) => {
                if end.is_some() {
                    shared.store_state(before);
                }
                Err(error)
            }
        }
    }

    unsafe fn destroy_qp(&self, handle: QpHandle, shared: &Arc<QpShared>) -> Result<u32, (QpHandle, Error)> {
        // In a child of fork(2) no other thread creates a QP.
        let _one = self.numbers.lock();
        // SAFETY: the handle is of this context, belongs to `shared`, and its queues are not used any more ([`Driver`],
        // "Safety of the verbs").
        unsafe { handle.destroy() }.inspect(|_| {
            shared.set_state(QpState::RESET);
            shared.detach();
        })
    }

    fn query_qp(
        &self,
        handle: &QpHandle,
        shared: &QpShared,
        mask: QpAttrMask,
    ) -> Result<(QpAttr, QpInitAttr)> {
        let (mut attr, init) = handle.query(mask)?;
        if !shared.is_forked() {
            attr.qp_state = self.state(handle, shared, attr.qp_state);
            attr.cur_qp_state = attr.qp_state;
        }
        Ok((attr, init))
    }

    fn is_flushed(&self, shared: &QpShared) -> bool {
        shared.is_flushed()
    }

    fn keep_removed(&self, shared: &QpShared) {
        shared.removed.keep();
    }

    fn take_removed(&self, shared: &QpShared) -> Vec<u64> {
        shared.removed.take()
    }

    fn create_ah(&self, _pd: &PdHandle, _attr: &AhAttr) -> Result<(AhHandle, Ah)> {
        Err(Error::unsupported("create_ah", "siw has no datagrams"))
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        Ok(ThreadDomain(()))
    }
}
