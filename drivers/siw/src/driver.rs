// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control calls of siw.
#![expect(unsafe_code)]
// UNSAFETY: changing a QP and registering memory have contracts, which the operations on kernel handles rely on.

use crate::QpShared;
use crate::ring::{CompletionRing, Ring, RingError, Work};
use crate::shared::store_state;
use crate::wqe::{SendConfig, ring_bell};
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SendOpsFlags, SrqAttr,
    SrqInitAttr,
};
use uverbs_core::control::{
    CompChannelHandle, ContextInfo, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle, QpHandle, QpParents,
    SrqHandle, SrqParents, context, cq, mr, qp, srq,
};
use uverbs_core::kernel::{Mapping, Uhw};
use uverbs_core::provider::Object as _;
use uverbs_core::{Errno, Error, Result};
use uverbs_soft::device::{Created, KernelRef, QpRings, corrupt, map_ring};
use uverbs_soft::{Device, KernelBell, Qp, SendBell as _, close};
use uverbs_uapi::siw::{
    SIW_INVAL_UOBJ_KEY, SIW_MAX_INLINE, siw_ureq_reg_mr, siw_uresp_alloc_ctx, siw_uresp_create_cq,
    siw_uresp_create_qp, siw_uresp_create_srq, siw_uresp_reg_mr,
};
use uverbs_uapi::verbs::RDMA_DRIVER_SIW;
use zerocopy::IntoBytes;

/// A context on a siw device.
pub type Siw = uverbs_soft::Soft<SiwDevice>;

/// A siw device. All have the same features.
#[derive(Debug)]
pub struct SiwDevice(());

const CREATE_QP: &str = "create_qp";
const MODIFY_QP: &str = "modify_qp";

/// Maps the memory at a key that the kernel returned.
fn map(kernel: &KernelRef, verb: &'static str, bytes: Result<usize, RingError>, key: u64) -> Result<Mapping> {
    if key == SIW_INVAL_UOBJ_KEY {
        return Err(Error::protocol(verb, "the kernel has no ring for the object"));
    }
    map_ring(kernel, verb, key, bytes.map_err(|e| corrupt(verb, e))?)
}

/// Maps a ring whose number of elements and key the kernel returned.
fn ring<E: Work>(kernel: &KernelRef, verb: &'static str, slots: u32, key: u64) -> Result<Ring<E>> {
    let mapping = map(kernel, verb, Ring::<E>::bytes(slots), key)?;
    Ring::new(mapping, slots).map_err(|e| corrupt(verb, e))
}

impl SiwDevice {
    /// The state of a QP. Kernels before 6.8 report RESET for each QP (`siw_query_qp()`).
    ///
    /// The doorbell of an empty ring then distinguishes a connected QP from one that is not connected. It also succeeds after the
    /// kernel has moved the QP to ERR by itself: that is known only since a flushed work request was polled.
    fn state(handle: &QpHandle, shared: &QpShared, reported: QpState) -> QpState {
        match (shared.state(), reported) {
            (QpState::INIT | QpState::RTR | QpState::RTS, QpState::RESET) => {}
            // The kernel's name of RESET and INIT is the same.
            (QpState::RESET, _) => return QpState::RESET,
            (stored @ (QpState::ERR | QpState::INIT | QpState::RTR), QpState::INIT) => return stored,
            (QpState::ERR, _) | (_, QpState::ERR | QpState::SQE) => return QpState::ERR,
            (QpState::SQD, _) => return QpState::SQD,
            (_, reported) => return reported,
        }
        let bell = KernelBell::new(Arc::clone(handle.kernel()), handle.handle());
        let rung = if shared.own().was_connected() { ring_bell(&bell) } else { bell.ring() };
        match rung {
            Err(Errno::ENOTCONN) if shared.own().was_connected() => QpState::ERR,
            Err(_) => shared.state(),
            Ok(()) => {
                shared.own().note_connected();
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

impl Device for SiwDevice {
    const NAME: &'static str = "siw";
    const DRIVER_ID: u32 = RDMA_DRIVER_SIW;
    /// The kernel assigns the lowest free number.
    const REUSES_QP_NUMBERS: bool = true;

    type FlushBell = ();
    type ArmBell = ();

    fn flush_bell(_kernel: &KernelRef, _handle: u32) {}

    fn arm_bell(_kernel: &KernelRef, _handle: u32) {}

    fn open(kernel: &KernelRef) -> Result<(Self, ContextInfo)> {
        let mut resp = siw_uresp_alloc_ctx::default();
        let info = context::open(kernel, Uhw::answer(resp.as_mut_bytes()))?;
        Ok((Self(()), info))
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

    fn create_cq(
        &self,
        kernel: &KernelRef,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<Created<CqHandle, CompletionRing>> {
        const VERB: &str = "create_cq";
        let mut resp = siw_uresp_create_cq::default();
        let handle = cq::create(kernel, attr, channel, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let mapping = map(kernel, VERB, CompletionRing::bytes(resp.num_cqe), resp.cq_key);
        let ring = |mapping| CompletionRing::new(mapping, resp.num_cqe).map_err(|e| corrupt(VERB, e));
        Ok(Created { handle, rings: mapping.and_then(ring) })
    }

    fn create_srq(
        &self,
        kernel: &KernelRef,
        parents: SrqParents<'_>,
        attr: &SrqInitAttr,
        user_handle: u64,
    ) -> Result<(Created<SrqHandle, Self::RecvRing>, SrqAttr)> {
        let mut resp = siw_uresp_create_srq::default();
        let (handle, attr) = srq::create(parents, attr, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let rings = ring(kernel, "create_srq", resp.num_rqe, resp.srq_key);
        Ok((Created { handle, rings }, attr))
    }

    fn check_qp(&self, _kernel: &KernelRef, attr: &QpInitAttr) -> Result<()> {
        const OPS: SendOpsFlags = SendOpsFlags::SEND
            .union(SendOpsFlags::SEND_WITH_INV)
            .union(SendOpsFlags::RDMA_WRITE)
            .union(SendOpsFlags::RDMA_READ);
        let missing = |what: String| Err(Error::unsupported(CREATE_QP, format!("siw has no {what}")));
        if attr.qp_type != QpType::Rc {
            return missing(format!("{} QPs", attr.qp_type));
        }
        attr.only_standard(Self::NAME)?;
        let ops = attr.send_ops_flags.difference(OPS);
        if !ops.is_empty() {
            return missing(format!("send_ops_flags {ops:?}"));
        }
        Ok(())
    }

    fn create_qp(
        &self,
        kernel: &KernelRef,
        parents: QpParents<'_>,
        attr: &QpInitAttr,
        user_handle: u64,
    ) -> Result<(Created<QpHandle, QpRings<Self>>, QpCap)> {
        let (mut attr, has_srq) = (attr.clone(), parents.srq.is_some());
        // The kernel refuses a QP without a send queue, and has no ring for a receive queue without elements.
        attr.cap.max_send_wr = attr.cap.max_send_wr.max(1);
        if !has_srq {
            attr.cap.max_recv_wr = attr.cap.max_recv_wr.max(1);
        }
        let mut resp = siw_uresp_create_qp::default();
        let (handle, mut cap) = qp::create(parents, &attr, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        cap.max_inline_data = SIW_MAX_INLINE;
        let config = SendConfig {
            send_ops_flags: attr.send_ops_flags,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            sq_sig_all: attr.sq_sig_all,
        };
        let rings = || {
            if resp.qp_id != handle.qp_num() {
                let what = format!("QP {} has the number {}", handle.qp_num(), resp.qp_id);
                return Err(corrupt(CREATE_QP, what));
            }
            let recv = || ring(kernel, CREATE_QP, resp.num_rqe, resp.rq_key);
            Ok(QpRings {
                send: ring(kernel, CREATE_QP, resp.num_sqe, resp.sq_key)?,
                config: (&config).into(),
                recv: (!has_srq).then(recv).transpose()?,
            })
        };
        let rings = rings();
        Ok((Created { handle, rings }, cap))
    }

    fn modify_qp(&self, qp: &Qp<Self>, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let (handle, shared) = (qp.handle(), qp.shared());
        let before = shared.state();
        Self::check_modify(before, attr, mask)?;
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        // In SQD the kernel closes the connection, and then flushes (`siw_qp_nextstate_from_rts()`).
        let end = target.filter(|state| matches!(*state, QpState::SQD | QpState::ERR));
        if let Some(end) = end {
            // The posters see the state before the kernel flushes, and posts that are in progress end: the kernel flushes
            // only once. If waiting for them fails, the queue stays closed.
            close(shared, end)?;
        }
        // SAFETY: the QP's own handle; the state in `shared` is updated below.
        let result = unsafe { handle.modify(None, attr, mask, Uhw::none()) };
        match (result, target) {
            (Ok(()), Some(state)) if end.is_none() => {
                // The kernel ignores a step back to INIT or RTR.
                if !matches!((before, state), (QpState::RTR | QpState::RTS, QpState::INIT)) {
                    store_state(shared, state);
                }
                Ok(())
            }
            (Ok(()), Some(QpState::ERR)) => {
                shared.own().note_flushed();
                Ok(())
            }
            (Ok(()), _) => Ok(()),
            (Err(error), Some(QpState::RTS)) if error.errno() == Errno::EINVAL => {
                let why = "iWARP: the kernel's connection manager moves a QP to RTS when it is connected";
                Err(Error::invalid(MODIFY_QP, "qp_state", why))
            }
            (Err(error), _) => {
                if end.is_some() {
                    store_state(shared, before);
                }
                Err(error)
            }
        }
    }

    fn store_state(shared: &QpShared, state: QpState) {
        store_state(shared, state);
    }

    fn correct(&self, qp: &Qp<Self>, attr: &mut QpAttr) {
        attr.qp_state = Self::state(qp.handle(), qp.shared(), attr.qp_state);
        attr.cur_qp_state = attr.qp_state;
    }

    fn is_flushed(shared: &QpShared) -> bool {
        shared.own().is_flushed()
    }
}
