// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control calls of rxe.
#![expect(unsafe_code)]
// UNSAFETY: changing a QP has a contract, which the operations on kernel handles rely on.

use crate::config::{Extensions, SendConfig};
use crate::ring::Ring;
use crate::wqe::Ah;
use crate::{av, calls};
use std::sync::Arc;
use uverbs_core::attr::{
    AhAttr, AtomicCap, CqInitAttr, DeviceCapFlags, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
    SendOpsFlags, SrqAttr, SrqAttrMask, SrqInitAttr,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CqHandle, PdHandle, QpHandle, QpParents, SrqHandle, SrqParents,
    ah, context, cq, qp, query, srq,
};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::Object as _;
use uverbs_core::{Errno, Error, Result};
use uverbs_soft::device::{Created, KernelRef, QpRings, corrupt, map_ring};
use uverbs_soft::{Device, FlushBell, KernelBell, Qp, SendBell as _, close};
use uverbs_uapi::rxe::{
    mminfo, rxe_create_ah_resp, rxe_create_cq_resp, rxe_create_qp_resp, rxe_create_srq_resp, rxe_recv_wqe,
    rxe_resize_cq_resp,
};
use uverbs_uapi::verbs::RDMA_DRIVER_RXE;
use zerocopy::IntoBytes;

/// A context on an rxe device.
pub type Rxe = uverbs_soft::Soft<RxeDevice>;

/// The features of an rxe device.
#[derive(Debug)]
pub struct RxeDevice {
    extensions: Extensions,
    /// The device has atomics.
    atomics: bool,
    /// Reads and atomics that a QP can serve at once.
    max_dest_rd_atomic: u32,
}

/// Flushes a receive queue by a step of its QP from ERR to ERR.
#[derive(Debug)]
pub struct FlushByModify {
    kernel: KernelRef,
    handle: u32,
}

impl FlushBell for FlushByModify {
    /// `POST_RECV` would be the command for it, but rxe does not offer it to user space (`uverbs_cmd_mask`, up to 7.2).
    fn flush(&self) -> Result<(), Errno> {
        calls::modify_to_err(&*self.kernel, self.handle)
    }
}

const CREATE_QP: &str = "create_qp";

/// Maps the ring at the offset that the kernel returned.
fn ring<H>(kernel: &KernelRef, verb: &'static str, info: &mminfo, tail: usize) -> Result<Ring<H>> {
    let mapping = map_ring(kernel, verb, info.offset, info.size as usize)?;
    Ring::new(mapping, tail).map_err(|e| corrupt(verb, e))
}

fn sge_bytes(num: u32) -> usize {
    (num as usize).saturating_mul(16)
}

impl RxeDevice {
    /// A QP's rings, which the kernel made.
    fn rings(
        &self,
        kernel: &KernelRef,
        attr: &QpInitAttr,
        has_srq: bool,
        cap: &QpCap,
        resp: &rxe_create_qp_resp,
    ) -> Result<QpRings<Self>> {
        let config = SendConfig {
            qp_type: attr.qp_type,
            send_ops_flags: attr.send_ops_flags,
            extensions: self.extensions,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
        };
        let tail = sge_bytes(cap.max_send_sge).max(cap.max_inline_data as usize);
        let recv = || ring::<rxe_recv_wqe>(kernel, CREATE_QP, &resp.rq_mi, sge_bytes(cap.max_recv_sge));
        Ok(QpRings {
            send: ring(kernel, CREATE_QP, &resp.sq_mi, tail)?,
            config: (&config).into(),
            recv: (!has_srq).then(recv).transpose()?,
        })
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
}

impl Device for RxeDevice {
    const NAME: &'static str = "rxe";
    const DRIVER_ID: u32 = RDMA_DRIVER_RXE;
    /// The kernel assigns numbers in a cycle (`__rxe_add_to_pool()`).
    const REUSES_QP_NUMBERS: bool = false;

    type FlushBell = FlushByModify;
    type ArmBell = KernelBell;

    fn flush_bell(kernel: &KernelRef, handle: u32) -> FlushByModify {
        FlushByModify { kernel: Arc::clone(kernel), handle }
    }

    fn arm_bell(kernel: &KernelRef, handle: u32) -> KernelBell {
        KernelBell::new(Arc::clone(kernel), handle)
    }

    fn open(kernel: &KernelRef) -> Result<(Self, ContextInfo)> {
        let info = context::open(kernel, Uhw::none())?;
        let device = query::device(kernel, Uhw::none())?;
        let caps = device.device_cap_flags;
        let extensions = Extensions {
            flush: caps.intersects(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT),
            atomic_write: caps.contains(DeviceCapFlags::ATOMIC_WRITE),
        };
        let atomics = device.atomic_cap != AtomicCap::NONE;
        Ok((Self { extensions, atomics, max_dest_rd_atomic: device.max_qp_rd_atom }, info))
    }

    fn create_cq(
        &self,
        kernel: &KernelRef,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<Created<CqHandle, Self::CqRing>> {
        let mut resp = rxe_create_cq_resp::default();
        let handle = cq::create(kernel, attr, channel, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        Ok(Created { handle, rings: ring(kernel, "create_cq", &resp.mi, 0) })
    }

    fn resize_cq(&self, kernel: &KernelRef, handle: &CqHandle, cqe: u32) -> Result<Result<Self::CqRing>> {
        let mut resp = rxe_resize_cq_resp::default();
        handle.resize(cqe, Uhw::answer(resp.as_mut_bytes()))?;
        Ok(ring(kernel, "resize_cq", &resp.mi, 0))
    }

    fn create_srq(
        &self,
        kernel: &KernelRef,
        parents: SrqParents<'_>,
        attr: &SrqInitAttr,
        user_handle: u64,
    ) -> Result<(Created<SrqHandle, Self::RecvRing>, SrqAttr)> {
        let mut resp = rxe_create_srq_resp::default();
        let (handle, attr) = srq::create(parents, attr, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let rings = ring(kernel, "create_srq", &resp.mi, sge_bytes(attr.max_sge));
        Ok((Created { handle, rings }, attr))
    }

    fn modify_srq(
        &self,
        kernel: &KernelRef,
        handle: &SrqHandle,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        max_sge: u32,
    ) -> Result<Option<Result<Self::RecvRing>>> {
        let info = calls::modify_srq(handle, attr, mask)?;
        let resized = mask.contains(SrqAttrMask::MAX_WR);
        Ok(resized.then(|| ring(kernel, "modify_srq", &info, sge_bytes(max_sge))))
    }

    fn check_qp(&self, kernel: &KernelRef, attr: &QpInitAttr) -> Result<()> {
        if !matches!(attr.qp_type, QpType::Rc | QpType::Uc | QpType::Ud) {
            return Err(Error::unsupported(CREATE_QP, format!("rxe has no {} QPs", attr.qp_type)));
        }
        attr.only_standard(Self::NAME)?;
        let missing = attr.send_ops_flags.difference(self.builder_ops(attr.qp_type));
        if !missing.is_empty() {
            let what = format!("send_ops_flags {missing:?} on {} QPs of {}", attr.qp_type, kernel.name());
            return Err(Error::unsupported(CREATE_QP, what));
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
        let mut attr = attr.clone();
        if attr.cap.max_inline_data != 0 {
            // Newer kernels check `cur_sge < max_sge` on any WQE with data, inline or not (`rxe_requester()`).
            attr.cap.max_send_sge = attr.cap.max_send_sge.max(1);
        }
        let mut resp = rxe_create_qp_resp::default();
        let has_srq = parents.srq.is_some();
        let (handle, cap) = qp::create(parents, &attr, user_handle, Uhw::answer(resp.as_mut_bytes()))?;
        let rings = self.rings(kernel, &attr, has_srq, &cap, &resp);
        Ok((Created { handle, rings }, cap))
    }

    fn modify_qp(&self, qp: &Qp<Self>, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let (handle, shared) = (qp.handle(), qp.shared());
        // The kernel compares only `max_rd_atomic` with its limit (`rxe_qp_chk_attr()`).
        let served = u32::from(attr.max_dest_rd_atomic);
        if mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC) && served > self.max_dest_rd_atomic {
            let reason = format!("{served} is above the device's {}", self.max_dest_rd_atomic);
            return Err(Error::invalid("modify_qp", "max_dest_rd_atomic", reason));
        }
        let before = shared.state();
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        // If the new state ends posting, or receives must be flushed, the posters see it before the kernel acts.
        let early = matches!(target, Some(QpState::RESET | QpState::ERR));
        if let (true, Some(state)) = (early, target) {
            // Posts that are in progress end before the kernel acts: before a RESET, or early enough for ERR to flush their
            // receives.
            close(shared, state)?;
        }
        // SAFETY: the QP's own handle; the state in `shared` is updated below.
        let mut result = unsafe { handle.modify(None, attr, mask, Uhw::none()) };
        if result.is_ok() && target == Some(QpState::RESET) && before != QpState::RESET {
            // If sends were queued, kernels since 6.4 reset them only in part: the requester copies the ring's consumer
            // index before the completer moves it past them (`rxe_qp_reset()`, `rxe_sender()`), and would execute their
            // slots when the QP is in RTS again. A second reset makes it copy the index again.
            // SAFETY: the QP's own handle; the state in `shared` is updated below.
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
            shared.own().set(attr.qkey);
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
            if let Err(errno) = KernelBell::new(Arc::clone(handle.kernel()), handle.handle()).ring() {
                log::warn!(
                    "{}: qp {}: no doorbell after SQD: {errno}",
                    handle.kernel().name(),
                    handle.handle()
                );
            }
        }
        Ok(())
    }

    fn create_ah(&self, kernel: &KernelRef, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Ah)> {
        let mut resp = rxe_create_ah_resp::default();
        let handle = ah::create(pd, attr, Uhw::answer(resp.as_mut_bytes()))?;
        let mut ah = Ah { num: resp.ah_num, ..Ah::default() };
        if ah.num == 0 {
            let sgid_index = attr.grh.map_or(0, |grh| grh.sgid_index);
            match query::gid_entry(kernel, attr.port_num, sgid_index.into()) {
                Ok(entry) => ah.av = av::address_vector(attr, entry.gid),
                Err(error) => {
                    let _ = handle.destroy();
                    return Err(error);
                }
            }
        }
        Ok((handle, ah))
    }
}
