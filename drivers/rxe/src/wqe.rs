// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of rxe's WQEs.
//!
//! The head of a WQE is always written whole, because the kernel updates the WQE in place: `state`, `status`, `mask`, `has_rd_atomic`,
//! PSNs and the DMA position are its own variables, and it reads several of them before it writes them (`get_wqe()`,
//! `check_init_depth()`, `copy_data()`). Without that it would use the values of an earlier lap.

use crate::driver::RxeDevice;
use crate::ring::{Ring, WqeOf};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use uverbs_core::attr::QpState;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::wire::WireRemote;
use uverbs_core::provider::{Head, Op, PostError};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};
use uverbs_soft::Format;
use uverbs_soft::format::{Data, WqeSlot as _};
use uverbs_uapi::be::Be32;
use uverbs_uapi::cmd::ib_uverbs_wc;
use uverbs_uapi::rxe::{
    rxe_av, rxe_dma_info, rxe_recv_wqe, rxe_send_wqe, rxe_send_wr, rxe_send_wr_atomic, rxe_send_wr_flush,
    rxe_send_wr_mw, rxe_send_wr_rdma, rxe_send_wr_ud, rxe_send_wr_wr, rxe_sge,
};

type SendSlot<'r> = WqeOf<'r, rxe_send_wqe>;
type RecvSlot<'r> = WqeOf<'r, rxe_recv_wqe>;
type Destination<'a> = uverbs_soft::format::Destination<'a, Ah>;

/// The data of an address handle that the encoder needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ah {
    /// The kernel's index of the address handle; 0 for kernels without an index (before 5.16), which read `av` from the
    /// WQE.
    pub num: u32,
    /// The address itself.
    pub av: rxe_av,
}

/// The queue key of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug, Default)]
pub struct QueueKey(AtomicU32);

impl QueueKey {
    /// Stores a new queue key.
    pub fn set(&self, qkey: u32) {
        self.0.store(qkey, Ordering::Relaxed);
    }

    /// The queue key.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An entry in the form of the WQE.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn rxe_entry(sge: Sge) -> rxe_sge {
    rxe_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
}

/// The part of a WQE with the destination of a datagram.
#[cfg_attr(not(debug_assertions), inline(always))]
fn datagram(to: &Destination<'_>) -> rxe_send_wr_ud {
    rxe_send_wr_ud {
        remote_qpn: to.qpn,
        remote_qkey: to.qkey,
        ah_num: to.ah.num,
        av: to.ah.av,
        ..Default::default()
    }
}

/// The flags in a WQE: the kernel's `IB_SEND_*` have the same values.
#[cfg_attr(not(debug_assertions), inline(always))]
fn send_flags(flags: SendFlags, data: Data) -> u32 {
    let inline = if data.is_inline { SendFlags::INLINE } else { SendFlags::empty() };
    flags.union(inline).bits()
}

/// The DMA state, which the kernel updates while it processes the WQE.
#[cfg_attr(not(debug_assertions), inline(always))]
fn dma(data: Data) -> rxe_dma_info {
    rxe_dma_info { length: data.length, resid: data.length, num_sge: data.num_sge, ..Default::default() }
}

const SEND_FLAGS: usize = offset_of!(rxe_send_wqe, wr) + offset_of!(rxe_send_wr, send_flags);
const DESTINATION: usize = offset_of!(rxe_send_wqe, wr) + offset_of!(rxe_send_wr, wr);
const SEND_DMA: usize = offset_of!(rxe_send_wqe, dma);
const STATE: usize = offset_of!(rxe_send_wqe, state);

impl Format for RxeDevice {
    type Ah = Ah;
    type SendRing = Ring<rxe_send_wqe>;
    type RecvRing = Ring<rxe_recv_wqe>;
    type CqRing = Ring<ib_uverbs_wc>;
    type Qp = QueueKey;

    /// The device's own limit (`max_msg_sz`, 8 MiB) is below, and `struct rxe_dma_info` counts in 32 bits.
    const TOO_LONG: u64 = 1 << 31;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_send(
        slot: &mut SendSlot<'_>,
        head: Head,
        to: Option<Destination<'_>>,
        op: &Op<'_>,
        mut data: Data,
    ) -> Result<(), PostError> {
        let remote = op.remote().unwrap_or_default();
        let (remote_addr, rkey) = (remote.addr(), remote.rkey());
        let send_flags = send_flags(head.flags, data);
        let opcode = op.opcode().0;
        let mut wr = rxe_send_wr { wr_id: head.wr_id, opcode, send_flags, ..Default::default() };

        if let Some(imm) = op.imm_data() {
            wr.imm_data = Be32::from_bits(imm.to_be());
        } else if let Some(key) = op.invalidate_rkey() {
            wr.set_invalidate_rkey(key);
        }

        if let Some(to) = to {
            wr.wr = datagram(&to).into();
        } else if let Some(atomic) = op.atomic() {
            // IBA 9.4.5: an atomic works on 8 aligned bytes.
            if !remote_addr.is_multiple_of(8) {
                return Err(PostError::Misaligned);
            }
            wr.wr = rxe_send_wr_atomic {
                remote_addr,
                compare_add: atomic.compare_add,
                swap: atomic.swap,
                rkey,
                reserved: 0,
            }
            .into();
        } else if let Op::BindMw(bind) = op {
            wr.wr = rxe_send_wr_mw {
                addr: bind.addr,
                length: bind.length,
                mr_lkey: bind.mr_lkey,
                mw_rkey: bind.mw_rkey,
                rkey: bind.rkey,
                access: bind.access,
            }
            .into();
        } else if let Op::Flush(_, flush) = op {
            // The kernel copies the length from the DMA state to the RETH (`init_req_packet()`).
            data.length = flush.length;
            wr.wr = rxe_send_wr_flush {
                remote_addr,
                length: flush.length,
                rkey,
                r#type: flush.placement,
                level: flush.level,
                ..Default::default()
            }
            .into();
        } else if op.remote().is_some() {
            wr.wr = rxe_send_wr_rdma { remote_addr, rkey, reserved: 0 }.into();
        }

        if let Op::AtomicWrite(_, bytes) = op {
            if !remote_addr.is_multiple_of(8) {
                return Err(PostError::Misaligned);
            }
            // At the offset of the entries (`dma.atomic_wr` in the kernel).
            if !slot.put_inline(0, bytes) {
                return Err(PostError::InvalidLength);
            }
            data.length = bytes.len() as u32;
        }

        slot.0.put_head(rxe_send_wqe { wr, iova: remote_addr, dma: dma(data), ..Default::default() });
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set_data(slot: &mut SendSlot<'_>, _opcode: WrOpcode, flags: SendFlags, data: Data) {
        slot.0.put_field::<SEND_FLAGS, u32>(send_flags(flags, data));
        slot.0.put_field::<SEND_DMA, rxe_dma_info>(dma(data));
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn set_destination(slot: &mut SendSlot<'_>, to: Destination<'_>) {
        slot.0.put_field::<DESTINATION, rxe_send_wr_wr>(datagram(&to).into());
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_recv(slot: &mut RecvSlot<'_>, wr_id: u64, data: Data) {
        slot.0.put_head(rxe_recv_wqe { wr_id, dma: dma(data), ..Default::default() });
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn queue_key(qp: &QueueKey, qkey: u32) -> u32 {
        if qkey >> 31 != 0 { qp.get() } else { qkey }
    }

    /// Kernels since 6.4 report an empty send queue as drained (SQD) only if the WQE in the next slot is marked as not begun
    /// (`wqe_state_posted`, `req_check_sq_drain_done()`); after a lap the slot contains an old WQE, which is not.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn mark_end(mut slot: SendSlot<'_>) {
        slot.0.put_field::<STATE, u32>(0);
    }

    /// The kernel reads the ring when a message arrives, and once when the QP enters ERR; receives that are posted after that need
    /// a call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn must_flush(word: StateWord) -> bool {
        word.state() == QpState::ERR
    }
}
