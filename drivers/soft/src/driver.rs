// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of a [`Device`]: creates its objects, keeps the order between the kernel and the queues, and removes what has ended.
#![expect(unsafe_code)]
// UNSAFETY: the verbs of `Driver` have contracts, which the operations on kernel handles rely on.

use crate::cq::CompletionQueue;
use crate::cq_state::{CqShared, CqState};
use crate::device::{Created, Device, KernelRef, QpRings, corrupt, send_bell};
use crate::doorbell::KernelBell;
use crate::format::Format;
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::shared::QpShared;
use std::io;
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqFlags, CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, SrqAttr,
    SrqAttrMask, SrqType, WcExFlags,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle, QpHandle,
    QpParents, SrqHandle, SrqParents,
};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    CompletionQueue as _, CqParts, Driver, QpCreate, QpParts, SrqCreate, SrqParts as NewSrq,
};
use uverbs_core::sync::{ControlBarrier, ProcessMutex};
use uverbs_core::wr::Sge;
use uverbs_core::{Errno, Error, Result};

/// A context on a device.
#[derive(Debug)]
pub struct Soft<D> {
    kernel: KernelRef,
    device: D,
    /// How control calls stop posters and pollers.
    barrier: ControlBarrier,
    /// Held while a QP is created, and while one is destroyed and its completions are removed, if the kernel reuses numbers.
    numbers: ProcessMutex<()>,
}

/// The state that an SRQ's poster and the control path share: that of a QP which always takes receives. Its consumers have none,
/// because the kernel consumes in order.
#[derive(Debug)]
pub struct SrqShared<F: Format>(Arc<QpShared<F>>);

/// A thread domain. It has no resources, because the doorbell is a system call.
#[derive(Debug)]
pub struct ThreadDomain(());

const CREATE_QP: &str = "create_qp";
const MODIFY_QP: &str = "modify_qp";

type Queues<D> =
    (Arc<QpShared<D>>, SendQueue<D, KernelBell>, Option<RecvQueue<D, <D as Device>::FlushBell>>, QpCap);

/// The error if there is no memory for the words that posters, pollers and control calls share.
fn no_memory(verb: &'static str, error: &io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw);
    Error::os(verb, "memory for the queue's state", errno)
}

/// A ring's real capacity: kernels may return the requested number instead.
fn at_least(verb: &'static str, capacity: u32, asked: u32) -> Result<u32> {
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
            .map_err(|e| no_memory(CREATE_QP, &e))?;
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
    type QpShared = QpShared<D>;
    type CqShared = CqShared<D>;
    type SrqShared = SrqShared<D>;
    type Td = ThreadDomain;

    fn open(kernel: KernelRef) -> Result<(Self, ContextInfo)> {
        let (device, info) = D::open(&kernel)?;
        let barrier = ControlBarrier::register();
        Ok((Self { kernel, device, barrier, numbers: ProcessMutex::new(()) }, info))
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
        unsafe { self.device.reg_mr(core, pd, range, access) }
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
            return Err(Error::unsupported(
                VERB,
                format!("{} has no completion fields {missing:?}", D::NAME),
            ));
        }
        let missing = attr.flags.difference(CqFlags::SINGLE_THREADED);
        if !missing.is_empty() {
            return Err(Error::unsupported(VERB, format!("{} has no CQ flags {missing:?}", D::NAME)));
        }
        let Created { handle, rings } = self.device.create_cq(&self.kernel, attr, channel, user_handle)?;
        let made = rings.and_then(|ring| {
            let state = CqState::new(ring).map_err(|e| corrupt(VERB, e))?;
            let bell = D::arm_bell(&self.kernel, handle.handle());
            let queue =
                CompletionQueue::create(state, self.barrier, bell).map_err(|e| no_memory(VERB, &e))?;
            let cqe = at_least(VERB, queue.cqe(), attr.cqe)?;
            Ok((queue, cqe))
        });
        match made {
            Ok((queue, cqe)) => Ok(CqParts { handle, shared: Arc::clone(queue.shared()), queue, cqe }),
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
        let resize = |state: &mut CqState<D>| {
            let ring = self.device.resize_cq(&self.kernel, handle, cqe).inspect_err(|error| {
                if error.errno() == Errno::EPROTO {
                    // The kernel resized it, but its answer is invalid, so the location of the ring is unknown.
                    state.lose_ring();
                }
            })?;
            // From here on the kernel completes to the new ring.
            let ring = ring.inspect_err(|_| state.lose_ring())?;
            state.replace_ring(ring).map_err(|e| corrupt(VERB, e))
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

    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<NewSrq<Self>> {
        const VERB: &str = "create_srq";
        if create.attr.srq_type != SrqType::Basic || create.xrc.is_some() {
            let what = format!("{} has no SRQs of type {:?}", D::NAME, create.attr.srq_type);
            return Err(Error::unsupported(VERB, what));
        }
        let parents = SrqParents { pd: create.pd, xrcd: None, cq: None };
        let (Created { handle, rings }, mut attr) =
            self.device.create_srq(&self.kernel, parents, create.attr, create.user_handle)?;
        let made = rings.and_then(|ring| {
            // An SRQ has no state: it is treated as a QP that always takes receives and never flushes.
            let shared = QpShared::create(QpState::RTR, self.barrier, Vec::new(), 0)
                .map_err(|e| no_memory(VERB, &e))?;
            let (shared, bell) = (Arc::new(shared), D::flush_bell(&self.kernel, handle.handle()));
            let queue = RecvQueue::new(ring, attr.max_sge, Arc::clone(&shared), bell)
                .map_err(|e| corrupt(VERB, e))?;
            let max_wr = at_least(VERB, queue.capacity(), create.attr.attr.max_wr)?;
            Ok((SrqShared(shared), queue, max_wr))
        });
        match made {
            Ok((shared, queue, max_wr)) => {
                attr.max_wr = max_wr;
                Ok(NewSrq { handle, shared: Arc::new(shared), queue, attr })
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
        let Some(ring) = self.device.modify_srq(&self.kernel, handle, attr, mask, queue.max_sge())? else {
            return Ok(());
        };
        // From here on the kernel receives from the new ring.
        let new = ring.and_then(|ring| queue.replace_ring(ring).map_err(|e| corrupt(VERB, e)));
        new.inspect_err(|_| queue.lose_ring())?;
        at_least(VERB, queue.capacity(), attr.max_wr).map(drop)
    }

    fn close_srq(&self, shared: &SrqShared<D>) {
        shared.0.set_state(StateWord::REMOVED);
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        self.device.check_qp(&self.kernel, create.attr)?;
        let parents = QpParents {
            pd: create.pd,
            send_cq: create.send_cq.map(|(cq, _)| cq),
            recv_cq: create.recv_cq.map(|(cq, _)| cq),
            srq: create.srq.map(|(srq, _)| srq),
            xrcd: create.xrcd,
        };
        let mut cqs: Vec<_> =
            create.send_cq.iter().chain(&create.recv_cq).map(|(_, shared)| Arc::clone(shared)).collect();
        cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let forked = |_| Error::os(CREATE_QP, "context of the parent process", Errno::ESTALE);
        let _one = D::REUSES_QP_NUMBERS.then(|| self.numbers.lock()).transpose().map_err(forked)?;
        let (Created { handle, rings }, cap) =
            self.device.create_qp(&self.kernel, parents, create.attr, create.user_handle)?;
        match rings.and_then(|rings| self.queues(&handle, create.attr, cqs, cap, rings)) {
            Ok((shared, send, recv, cap)) => {
                if D::WATCHES_FLUSHES {
                    shared.attach();
                }
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
        shared: &QpShared<D>,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        let _one = shared.access().modify()?;
        // SAFETY: the handle is of this context and belongs to `shared` ([`Driver`], "Safety of the verbs").
        unsafe { self.device.modify_qp(&self.kernel, handle, shared, attr, mask) }
    }

    fn query_qp(
        &self,
        handle: &QpHandle,
        shared: &QpShared<D>,
        mask: QpAttrMask,
    ) -> Result<(QpAttr, QpInitAttr)> {
        let (mut attr, init) = handle.query(mask)?;
        if !shared.is_forked() {
            self.device.correct(&self.kernel, handle, shared, &mut attr);
        }
        Ok((attr, init))
    }

    fn is_flushed(&self, shared: &QpShared<D>) -> bool {
        D::is_flushed(shared)
    }

    fn close_queues(&self, shared: &QpShared<D>) {
        shared.set_state(StateWord::REMOVED);
    }

    fn keep_removed(&self, shared: &QpShared<D>) {
        shared.removed.keep();
    }

    fn take_removed(&self, shared: &QpShared<D>) -> Vec<u64> {
        shared.removed.take()
    }

    unsafe fn destroy_qp(
        &self,
        handle: QpHandle,
        shared: &Arc<QpShared<D>>,
    ) -> Result<u32, (QpHandle, Error)> {
        // In a child of fork(2) no other thread creates a QP.
        let _one = D::REUSES_QP_NUMBERS.then(|| self.numbers.lock());
        // SAFETY: the handle is of this context, belongs to `shared`, and its queues are not used any more ([`Driver`],
        // "Safety of the verbs").
        unsafe { handle.destroy() }.inspect(|_| {
            shared.set_state(QpState::RESET);
            shared.detach();
        })
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, D::Ah)> {
        self.device.create_ah(&self.kernel, pd, attr)
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        Ok(ThreadDomain(()))
    }
}

/// Stores a state before the kernel acts on it, and waits for the posts in progress. If waiting fails, the queues stay as the state says.
///
/// # Errors
/// The errno of membarrier(2).
pub fn close<D: Device>(shared: &QpShared<D>, state: QpState) -> Result<()> {
    shared.set_state_and_wait(state).map_err(|errno| Error::os(MODIFY_QP, "waiting for posts", errno))
}
