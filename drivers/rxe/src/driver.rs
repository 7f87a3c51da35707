// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path: creates kernel objects, maps their rings, and tracks the state of QPs.
#![expect(unsafe_code)]
// UNSAFETY: the verbs of `Driver` have contracts, which the operations on kernel handles rely on.

use crate::cq_shared::{CqShared, CqState};
use crate::doorbell::{KernelBell, SendBell};
use crate::queue::Ring;
use crate::send::{Extensions, SendConfig};
use crate::shared::QpShared;
use crate::wqe::Ah;
use crate::{CompletionQueue, RecvQueue, SendQueue, av, calls};
use std::sync::Arc;
use uverbs_core::attr::{
    AhAttr, AtomicCap, CqFlags, CqInitAttr, DeviceCapFlags, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState,
    QpType, SendOpsFlags, SrqAttr, SrqAttrMask, SrqType, WcExFlags,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CqHandle, PdHandle, QpHandle, QpParents, SrqHandle, SrqParents,
    ah, context, cq, qp, query, srq,
};
use uverbs_core::kernel::{Kernel, Protection, Uhw};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{CompletionQueue as _, CqParts, Driver, QpCreate, QpParts, SrqCreate, SrqParts};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wr::Sge;
use uverbs_core::{Errno, Error, Result};
use uverbs_uapi::rxe::{
    mminfo, rxe_create_ah_resp, rxe_create_cq_resp, rxe_create_qp_resp, rxe_create_srq_resp,
    rxe_resize_cq_resp,
};
use uverbs_uapi::verbs::RDMA_DRIVER_RXE;
use zerocopy::IntoBytes;

/// A context on an rxe device.
#[derive(Debug)]
pub struct Rxe {
    kernel: Arc<dyn Kernel>,
    extensions: Extensions,
    /// The device has atomics.
    atomics: bool,
    /// How control calls stop posters and pollers.
    barrier: ControlBarrier,
    /// Reads and atomics that a QP can serve at once.
    max_dest_rd_atomic: u32,
}

/// The state that an SRQ's poster and its consumers share: none, because the kernel consumes in order.
#[derive(Debug)]
pub struct SrqShared(());

/// A thread domain. It has no resources, because rxe's doorbell is a system call.
#[derive(Debug)]
pub struct ThreadDomain(());

impl Rxe {
    /// Maps the ring at the offset that the kernel returned.
    fn ring<H>(&self, verb: &'static str, info: &mminfo, tail: usize) -> Result<Ring<H>> {
        let mapping =
            self.kernel.mmap(info.offset, info.size as usize, Protection::ReadWrite).map_err(|errno| {
                Error::os(verb, format!("ring of {} at {:#x}", self.kernel.name(), info.offset), errno)
            })?;
        Ring::new(mapping, tail).map_err(|e| corrupt(verb, e))
    }

    fn bell(&self, handle: u32) -> KernelBell {
        KernelBell::new(Arc::clone(&self.kernel), handle)
    }

    /// A QP's queues on the rings that the kernel made.
    fn queues(
        &self,
        handle: &QpHandle,
        attr: &QpInitAttr,
        cqs: Vec<Arc<CqShared>>,
        has_srq: bool,
        mut cap: QpCap,
        resp: &rxe_create_qp_resp,
    ) -> Result<QpParts0> {
        let shared = QpShared::create(QpState::RESET, self.barrier, cqs, handle.qp_num())
            .map_err(|e| no_memory(CREATE_QP, &e))?;
        let shared = Arc::new(shared);
        let config = SendConfig {
            qp_type: attr.qp_type,
            send_ops_flags: attr.send_ops_flags,
            extensions: self.extensions,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
        };
        let tail = sge_bytes(cap.max_send_sge).max(cap.max_inline_data as usize);
        let ring = self.ring(CREATE_QP, &resp.sq_mi, tail)?;
        let send = SendQueue::new(ring, &config, Arc::clone(&shared), self.bell(handle.handle()))
            .map_err(|e| corrupt(CREATE_QP, e))?;
        cap.max_send_wr = at_least(CREATE_QP, send.capacity(), attr.cap.max_send_wr)?;
        let mut recv = None;
        if !has_srq {
            let ring = self.ring(CREATE_QP, &resp.rq_mi, sge_bytes(cap.max_recv_sge))?;
            let queue =
                RecvQueue::new(ring, cap.max_recv_sge, Arc::clone(&shared), self.bell(handle.handle()))
                    .map_err(|e| corrupt(CREATE_QP, e))?;
            cap.max_recv_wr = at_least(CREATE_QP, queue.capacity(), attr.cap.max_recv_wr)?;
            recv = Some(queue);
        }
        Ok((shared, send, recv, cap))
    }

    /// The operations that builders of such a QP can have. The kernel completes with an error those that
    /// ibv_post_send(3) allows on UC but `next_opcode_uc()` does not implement.
    fn builder_ops(&self, qp_type: QpType) -> SendOpsFlags {
        use SendOpsFlags as F;
        const UD: SendOpsFlags = F::SEND.union(F::SEND_WITH_IMM);
        const UC: SendOpsFlags = UD.union(F::RDMA_WRITE).union(F::RDMA_WRITE_WITH_IMM).union(F::BIND_MW);
        const RC: SendOpsFlags = UC
            .union(F::SEND_WITH_INV)
            .union(F::LOCAL_INV)
            .union(F::RDMA_READ)
            .union(F::ATOMIC_CMP_AND_SWP)
            .union(F::ATOMIC_FETCH_AND_ADD);
        match qp_type {
            QpType::Rc => {
                let mut ops = RC;
                ops.set(F::ATOMIC_CMP_AND_SWP | F::ATOMIC_FETCH_AND_ADD, self.atomics);
                ops.set(F::FLUSH, self.extensions.flush);
                ops.set(F::ATOMIC_WRITE, self.extensions.atomic_write);
                ops
            }
            QpType::Uc => UC,
            QpType::Ud => UD,
            _ => F::empty(),
        }
    }

    /// Refuses features that rxe never has, before the kernel is called.
    fn check_qp(&self, create: &QpCreate<'_, Self>) -> Result<()> {
        let attr = create.attr;
        if !matches!(attr.qp_type, QpType::Rc | QpType::Uc | QpType::Ud) {
            return Err(Error::unsupported(CREATE_QP, format!("rxe has no {} QPs", attr.qp_type)));
        }
        if !attr.create_flags.is_empty() {
            return Err(Error::unsupported(
                CREATE_QP,
                format!("rxe has no create_flags {:?}", attr.create_flags),
            ));
        }
        let missing = attr.send_ops_flags.difference(self.builder_ops(attr.qp_type));
        if !missing.is_empty() {
            let what =
                format!("send_ops_flags {missing:?} on {} QPs of {}", attr.qp_type, self.kernel.name());
            return Err(Error::unsupported(CREATE_QP, what));
        }
        if attr.max_tso_header != 0 {
            return Err(Error::unsupported(CREATE_QP, "rxe has no segmentation offload (max_tso_header)"));
        }
        Ok(())
    }
}

type QpParts0 = (Arc<QpShared>, SendQueue<KernelBell>, Option<RecvQueue<KernelBell>>, QpCap);

const CREATE_QP: &str = "create_qp";

fn corrupt(verb: &'static str, what: impl core::fmt::Display) -> Error {
    Error::protocol(verb, format!("the kernel's ring: {what}"))
}

/// The error if there is no memory for the words that posters, pollers and control calls share.
fn no_memory(verb: &'static str, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw);
    Error::os(verb, "memory for the queue's state", errno)
}

fn sge_bytes(num: u32) -> usize {
    (num as usize).saturating_mul(16)
}

/// A ring's real capacity: kernels before 6.4 return the requested number instead.
fn at_least(verb: &'static str, capacity: u32, asked: u32) -> Result<u32> {
    if capacity < asked {
        return Err(Error::protocol(verb, format!("a ring of {capacity} instead of {asked}")));
    }
    Ok(capacity)
}

impl Driver for Rxe {
    const NAME: &'static str = "rxe";
    const DRIVER_ID: u32 = RDMA_DRIVER_RXE;

    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type SendQueue = SendQueue<KernelBell>;
    type RecvQueue = RecvQueue<KernelBell>;
    type SharedRecvQueue = RecvQueue<KernelBell>;
    type CompletionQueue = CompletionQueue<KernelBell>;
    type QpShared = QpShared;
    type CqShared = CqShared;
    type SrqShared = SrqShared;
    type Td = ThreadDomain;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        let info = context::open(&kernel, Uhw::none())?;
        let device = query::device(&kernel, Uhw::none())?;
        let caps = device.device_cap_flags;
        let extensions = Extensions {
            flush: caps.intersects(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT),
            atomic_write: caps.contains(DeviceCapFlags::ATOMIC_WRITE),
        };
        let atomics = device.atomic_cap != AtomicCap::NONE;
        let barrier = ControlBarrier::register();
        Ok((Self { kernel, extensions, atomics, barrier, max_dest_rd_atomic: device.max_qp_rd_atom }, info))
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
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
            return Err(Error::unsupported(VERB, format!("rxe has no completion fields {missing:?}")));
        }
        let missing = attr.flags.difference(CqFlags::SINGLE_THREADED);
        if !missing.is_empty() {
            return Err(Error::unsupported(VERB, format!("rxe has no CQ flags {missing:?}")));
        }
        let mut resp = rxe_create_cq_resp::default();
        let handle = cq::create(&self.kernel, attr, channel, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let made = self.ring(VERB, &resp.mi, 0).and_then(|ring| {
            let state = CqState::new(ring).map_err(|e| corrupt(VERB, e))?;
            let (queue, shared) = CompletionQueue::create(state, self.barrier, self.bell(handle.handle()))
                .map_err(|e| no_memory(VERB, &e))?;
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
        handle: &CqHandle,
        queue: &mut Self::CompletionQueue,
        cqe: u32,
    ) -> Result<u32> {
        const VERB: &str = "resize_cq";
        if queue.is_open() {
            // The kernel also moves entries that were not returned, which would be polled twice.
            return Err(Error::invalid(VERB, "cq", "an extended poll is open on it"));
        }
        let resize = |state: &mut CqState| {
            let mut resp = rxe_resize_cq_resp::default();
            if let Err(error) = handle.resize(cqe, Uhw::answer(resp.as_mut_bytes())) {
                if error.errno() == Errno::EPROTO {
                    // The kernel resized it, but its answer is invalid, so the location of the ring is unknown.
                    state.lose_ring();
                }
                return Err(error);
            }
            // From here on the kernel completes to the new ring.
            let new = self
                .ring(VERB, &resp.mi, 0)
                .and_then(|ring| state.replace_ring(ring).map_err(|e| corrupt(VERB, e)));
            if let Err(error) = new {
                state.lose_ring();
                return Err(error);
            }
            Ok(())
        };
        // Control calls on QPs wait during the resize: between the kernel's move and this one, they would remove
        // completions from the old ring.
        match queue.resize(resize) {
            Some(result) => result?,
            None if queue.shared().is_forked() => {
                return Err(Error::os(VERB, "cq of the parent process", Errno::ESTALE));
            }
            None => return Err(Error::protocol(VERB, "the queue is lost")),
        }
        at_least(VERB, queue.cqe(), cqe)
    }

    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        const VERB: &str = "create_srq";
        if create.attr.srq_type != SrqType::Basic || create.xrc.is_some() {
            return Err(Error::unsupported(
                VERB,
                format!("rxe has no SRQs of type {:?}", create.attr.srq_type),
            ));
        }
        let mut resp = rxe_create_srq_resp::default();
        let parents = SrqParents { pd: create.pd, xrcd: None, cq: None };
        let (handle, mut attr) =
            srq::create(parents, create.attr, create.user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let made = self.ring(VERB, &resp.mi, sge_bytes(attr.max_sge)).and_then(|ring| {
            // An SRQ has no state: it is treated as a QP that always takes receives and never flushes.
            let shared = QpShared::create(QpState::RTR, self.barrier, Vec::new(), 0)
                .map_err(|e| no_memory(VERB, &e))?;
            let queue = RecvQueue::new(ring, attr.max_sge, Arc::new(shared), self.bell(handle.handle()))
                .map_err(|e| corrupt(VERB, e))?;
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
        queue: &mut Self::SharedRecvQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Result<()> {
        const VERB: &str = "modify_srq";
        let info = calls::modify_srq(handle, attr, mask)?;
        if !mask.contains(SrqAttrMask::MAX_WR) {
            return Ok(());
        }
        // From here on the kernel receives from the new ring.
        let new = self
            .ring(VERB, &info, sge_bytes(queue.max_sge()))
            .and_then(|ring| queue.replace_ring(ring).map_err(|e| corrupt(VERB, e)));
        if let Err(error) = new {
            queue.lose_ring();
            return Err(error);
        }
        at_least(VERB, queue.capacity(), attr.max_wr).map(drop)
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        self.check_qp(create)?;
        let mut attr = create.attr.clone();
        if attr.cap.max_inline_data != 0 {
            // Newer kernels check `cur_sge < max_sge` on any WQE with data, inline or not (`rxe_requester()`).
            attr.cap.max_send_sge = attr.cap.max_send_sge.max(1);
        }
        let parents = QpParents {
            pd: create.pd,
            send_cq: create.send_cq.map(|(cq, _)| cq),
            recv_cq: create.recv_cq.map(|(cq, _)| cq),
            srq: create.srq.map(|(srq, _)| srq),
            xrcd: create.xrcd,
        };
        let mut resp = rxe_create_qp_resp::default();
        let (handle, cap) = qp::create(parents, &attr, create.user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let mut cqs: Vec<_> =
            create.send_cq.iter().chain(&create.recv_cq).map(|(_, shared)| Arc::clone(shared)).collect();
        cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
        match self.queues(&handle, &attr, cqs, create.srq.is_some(), cap, &resp) {
            Ok((shared, send, recv, cap)) => Ok(QpParts { handle, shared, send: Some(send), recv, cap }),
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
        // The kernel compares only `max_rd_atomic` with its limit (`rxe_qp_chk_attr()`).
        let served = u32::from(attr.max_dest_rd_atomic);
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) && served > self.max_dest_rd_atomic {
            let reason = format!("{served} is above the device's {}", self.max_dest_rd_atomic);
            return Err(Error::invalid("modify_qp", "max_dest_rd_atomic", reason));
        }
        let _one = shared.access.modify()?;
        let before = shared.state();
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        // If the new state ends posting, or receives must be flushed, the posters see it before the kernel acts.
        let early = matches!(target, Some(QpState::RESET | QpState::ERR));
        if let (true, Some(state)) = (early, target) {
            shared.set_state(state);
            // Posts that are in progress end before the kernel acts: before a RESET, or early enough for ERR to flush their
            // receives. If waiting for them fails, the queue stays closed.
            shared
                .access
                .wait_for_posters()
                .map_err(|errno| Error::os("modify_qp", "waiting for posts", errno))?;
        }
        // SAFETY: the handle is of this context and belongs to `shared` ([`Driver`], "Safety of the verbs"); the state in
        // `shared` is updated below.
        let mut result = unsafe { handle.modify(None, attr, mask, Uhw::none()) };
        if result.is_ok() && target == Some(QpState::RESET) && before != QpState::RESET {
            // If sends were queued, kernels since 6.4 reset them only in part: the requester copies the ring's consumer
            // index before the completer moves it past them (`rxe_qp_reset()`, `rxe_sender()`), and would execute their
            // slots when the QP is in RTS again. A second reset makes it copy the index again.
            // SAFETY: the handle is of this context and belongs to `shared` ([`Driver`], "Safety of the verbs"); the state in
            // `shared` is updated below.
            result = unsafe { handle.modify(None, attr, mask, Uhw::none()) };
        }
        if let Err(error) = result {
            if early {
                shared.set_state(before);
            }
            // The device may have moved the QP to ERR after an error on the wire, of which the library is not informed.
            if let Ok((now, _)) = handle.query(QpAttrMask::STATE)
                && now.qp_state == QpState::ERR
            {
                shared.set_state(QpState::ERR);
            }
            return Err(error);
        }
        if mask.contains(QpAttrMask::QKEY) {
            shared.set_qkey(attr.qkey);
        }
        if target == Some(QpState::RESET) {
            shared.remove_completions();
        }
        match target {
            Some(state) if !early => shared.set_state(state),
            _ => {}
        }
        if before == QpState::SQD && target == Some(QpState::RTS) {
            // WRs that were posted in SQD need a doorbell, because leaving SQD does not start the requester
            // (`rxe_qp_from_attr()`).
            if let Err(errno) = self.bell(handle.handle()).ring() {
                log::warn!("{}: qp {}: no doorbell after SQD: {errno}", self.kernel.name(), handle.handle());
            }
        }
        Ok(())
    }

    unsafe fn destroy_qp(&self, handle: QpHandle, shared: &Arc<QpShared>) -> Result<u32, (QpHandle, Error)> {
        // SAFETY: the handle is of this context, belongs to `shared`, and its queues are not used any more ([`Driver`],
        // "Safety of the verbs").
        unsafe { handle.destroy() }.inspect(|_| {
            shared.set_state(QpState::RESET);
            shared.remove_completions();
        })
    }

    fn keep_removed(&self, shared: &QpShared) {
        shared.removed.keep();
    }

    fn take_removed(&self, shared: &QpShared) -> Vec<u64> {
        shared.removed.take()
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Ah)> {
        let mut resp = rxe_create_ah_resp::default();
        let handle = ah::create(pd, attr, Uhw::answer(resp.as_mut_bytes()))?;
        let mut ah = Ah { num: resp.ah_num, ..Ah::default() };
        if ah.num == 0 {
            let sgid_index = attr.grh.map_or(0, |grh| grh.sgid_index);
            match query::gid_entry(&self.kernel, attr.port_num, sgid_index.into()) {
                Ok(entry) => ah.av = av::address_vector(attr, entry.gid),
                Err(error) => {
                    let _ = handle.destroy();
                    return Err(error);
                }
            }
        }
        Ok((handle, ah))
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        Ok(ThreadDomain(()))
    }
}
