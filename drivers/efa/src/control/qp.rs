// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating, changing and destroying QPs.
#![expect(unsafe_code)]
// UNSAFETY: the private input of commands may contain addresses, those here contain none; and the verbs of handles have contracts.

use super::object::{Qp, State};
use super::{Efa, STATE, of_number};
use crate::memory::{Doorbell, RecvRing, SendRing};
use crate::shared::QpShared;
use crate::wqe::SendConfig;
use crate::{CqShared, QpPlaces, RecvQueue, SendQueue};
use std::sync::Arc;
use uverbs_core::attr::{QpCap, QpInitAttr, QpState, QpType, SendOpsFlags};
use uverbs_core::control::{QpHandle, qp};
use uverbs_core::kernel::{Protection, Uhw, map_queue, page_size};
use uverbs_core::provider::opcodes::{builder_opcodes, opcode_bit, opcodes};
use uverbs_core::provider::requests::Requests;
use uverbs_core::provider::{Driver as _, Kept, QpCreate, QpParts, or_destroy};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_core::{Errno, Error, Result};
use uverbs_efa_hw::io::{EFA_IO_TX_DESC_INLINE_MAX_SIZE, RxDesc, TxWqe, TxWqe128};
use uverbs_uapi::efa::{
    EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV, EFA_QP_DRIVER_TYPE_SRD,
    EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV, efa_ibv_create_qp, efa_ibv_create_qp_resp,
};
use zerocopy::IntoBytes;

/// What only QPs of EFA have (`efadv_create_qp_ex`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpOptions {
    /// A write with immediate data consumes no receive. The peer's QP needs it, too.
    pub unsolicited_write_recv: bool,
    /// Writes may have inline data.
    pub inline_write: bool,
    /// Service level.
    pub sl: u8,
}

const CREATE: &str = "create_qp";

/// The sizes of a QP's queues.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Requests of the send queue, a power of two.
    sends: u32,
    /// Whether an entry has 128 bytes.
    wide: bool,
    /// Descriptors of the receive queue, a power of two.
    descriptors: u32,
    /// The limits of the QP, with the requests that fit.
    cap: QpCap,
}

impl Sizes {
    fn send_bytes(&self) -> u32 {
        self.sends * entry_size(self.wide)
    }
}

/// Whether such requests need entries of 128 bytes.
fn is_wide(max_inline_data: u32, inline_write: bool) -> bool {
    max_inline_data > EFA_IO_TX_DESC_INLINE_MAX_SIZE as u32 || inline_write
}

/// Bytes of an entry.
fn entry_size(wide: bool) -> u32 {
    (if wide { size_of::<TxWqe128>() } else { size_of::<TxWqe>() }) as u32
}

const READS: u32 = opcode_bit(WrOpcode::RDMA_READ);
const WRITES: u32 = opcode_bit(WrOpcode::RDMA_WRITE) | opcode_bit(WrOpcode::RDMA_WRITE_WITH_IMM);

/// The operations of a QP of this type on a device that has all.
#[must_use]
pub fn opcodes_of(qp_type: QpType) -> u32 {
    let sends = opcodes(&[WrOpcode::SEND, WrOpcode::SEND_WITH_IMM]);
    if qp_type == QpType::Driver { sends | READS | WRITES } else { sends }
}

impl Efa {
    /// The operations of a QP of this type.
    fn operations(&self, qp_type: QpType) -> u32 {
        let mut ops = opcodes_of(qp_type);
        if !self.limits.has_read() {
            ops &= !READS;
        }
        if !self.limits.has_write() {
            ops &= !WRITES;
        }
        ops
    }

    /// Refuses what the device does not have.
    fn check_qp(&self, attr: &QpInitAttr, options: QpOptions, has_srq: bool) -> Result<()> {
        let missing = |what: String| Err(Error::unsupported(CREATE, what));
        match attr.qp_type {
            QpType::Ud | QpType::Driver => {}
            QpType::Rc | QpType::Uc => {
                return missing(format!(
                    "efa has no {} QPs: its reliable transport is SRD (QpType::Driver), which has no connection and no order",
                    attr.qp_type
                ));
            }
            other => return missing(format!("efa has no {other} QPs")),
        }
        if has_srq {
            return missing("efa has no shared receive queues".into());
        }
        attr.only_standard(Self::NAME)?;
        let (ops, device) = (self.operations(attr.qp_type), self.kernel.name());
        let lacks = |op: &SendOpsFlags| builder_opcodes(*op) & !ops != 0;
        let absent =
            attr.send_ops_flags.iter().filter(lacks).fold(SendOpsFlags::empty(), SendOpsFlags::union);
        if !absent.is_empty() {
            return missing(format!("{device} has no {absent:?} on {} QPs (send_ops_flags)", attr.qp_type));
        }
        if options.unsolicited_write_recv && !self.limits.has(EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV) {
            return missing(format!("{device} has no writes with immediate data that consume no receive"));
        }
        if options.inline_write && !self.limits.has_write() {
            return missing(format!("{device} has no RDMA write"));
        }
        Ok(())
    }

    /// The most requests of a send queue whose requests have this many bytes of inline data (`efadv_get_max_sq_depth`).
    #[must_use]
    pub fn max_sq_depth(&self, max_inline_data: u32, inline_write: bool) -> u32 {
        let fit = self.limits.max_llq_size / entry_size(is_wide(max_inline_data, inline_write));
        // The largest power of two that is not above.
        fit.checked_ilog2().map_or(0, |log| 1 << log).min(Requests::MAX)
    }

    /// The most receives of a queue whose receives have this many entries (`efadv_get_max_rq_depth`).
    #[must_use]
    pub fn max_rq_depth(&self, max_recv_sge: u32) -> u32 {
        // The kernel refuses receives without entries.
        self.limits.max_rq_wr.min(Requests::MAX) / max_recv_sge.max(1)
    }

    /// The sizes of the queues, as libefa calculates them (`efa_setup_qp` and `efa_check_qp_limits` in `verbs.c`).
    fn sizes(&self, cap: &QpCap, options: QpOptions) -> Result<Sizes> {
        let limits = &self.limits;
        let wide = is_wide(cap.max_inline_data, options.inline_write);
        let mut cap = *cap;
        // The kernel refuses queues without requests, and requests without entries.
        cap.max_send_wr = cap.max_send_wr.max(1);
        cap.max_send_sge = cap.max_send_sge.max(1);
        cap.max_recv_wr = cap.max_recv_wr.max(1);
        cap.max_recv_sge = cap.max_recv_sge.max(1);
        let max_send_wr = self.max_sq_depth(cap.max_inline_data, options.inline_write);
        let max_recv_wr = self.max_rq_depth(cap.max_recv_sge);
        for (field, asked, max) in [
            ("max_send_sge", cap.max_send_sge, limits.max_sq_sge.into()),
            ("max_recv_sge", cap.max_recv_sge, limits.max_rq_sge.into()),
            ("max_inline_data", cap.max_inline_data, limits.inline_buf_size_ex.into()),
            ("max_send_wr", cap.max_send_wr, max_send_wr),
            ("max_recv_wr", cap.max_recv_wr, max_recv_wr),
        ] {
            if asked > max {
                return Err(Error::invalid(
                    CREATE,
                    field,
                    format!("{asked}, {} has {max}", self.kernel.name()),
                ));
            }
        }
        let sends = cap.max_send_wr.max(limits.min_sq_wr.into()).next_power_of_two();
        let descriptors = (cap.max_recv_wr * cap.max_recv_sge).next_power_of_two();
        (cap.max_send_wr, cap.max_recv_wr) = (sends, descriptors / cap.max_recv_sge);
        Ok(Sizes { sends, wide, descriptors, cap })
    }

    /// Creates a QP with these options.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks the type, an operation or an option; [`Error::Invalid`] for an object of another
    /// context; otherwise a size is out of range, or the kernel refuses.
    pub fn new_qp(&self, create: &QpCreate<'_, Self>, options: QpOptions) -> Result<QpParts<Self>> {
        create.check(&self.kernel)?;
        create.without_mkeys()?;
        let attr = create.attr;
        let (Some(send_cq), Some(recv_cq)) = (create.send_cq, create.recv_cq) else {
            return Err(Error::unsupported(CREATE, format!("efa has no {} QPs", attr.qp_type)));
        };
        let cqs = (send_cq.shared(), recv_cq.shared());
        self.check_qp(attr, options, create.srq.is_some())?;
        let sizes = self.sizes(&attr.cap, options)?;
        let request = efa_ibv_create_qp {
            rq_ring_size: sizes.descriptors * size_of::<RxDesc>() as u32,
            sq_ring_size: sizes.send_bytes(),
            driver_qp_type: EFA_QP_DRIVER_TYPE_SRD,
            flags: if options.unsolicited_write_recv { EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV } else { 0 },
            sl: options.sl,
            ..Default::default()
        };
        let mut resp = efa_ibv_create_qp_resp::default();
        let asked = QpInitAttr { cap: sizes.cap, ..attr.clone() };
        let forked = |_| Error::os(CREATE, "context of the parent process", Errno::ESTALE);
        let mut numbers = self.numbers.lock().map_err(forked)?;
        // SAFETY: the request has numbers and names no memory.
        let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
        let (handle, _) = qp::create(create.parents(), &asked, create.user_handle, uhw)?;
        let queues = self.queues((&handle, &mut numbers), cqs, attr, options, sizes, &resp);
        // SAFETY: the object has no other user yet.
        let (handle, (shared, send, recv)) = or_destroy(handle, queues, |qp| unsafe { qp.destroy() })?;
        let places = QpPlaces::of(&send, &recv);
        let qp = Qp(Kept::new(handle, State { shared, numbers: Arc::clone(&self.numbers), places }));
        Ok(QpParts { qp, send: Some(send), recv: Some(recv), cap: sizes.cap })
    }

    /// Maps the queues of a QP, and tells its CQs of it.
    fn queues(
        &self,
        (handle, numbers): (&QpHandle, &mut [[u16; 2]]),
        cqs: (&Arc<CqShared>, &Arc<CqShared>),
        attr: &QpInitAttr,
        options: QpOptions,
        sizes: Sizes,
        resp: &efa_ibv_create_qp_resp,
    ) -> Result<(Arc<QpShared>, SendQueue, RecvQueue)> {
        let wrong = |what: String| Error::protocol(CREATE, what);
        let qp_num =
            u16::try_from(handle.qp_num()).map_err(|_| wrong(format!("QP number {:#x}", handle.qp_num())))?;
        let cap = sizes.cap;

        let page = page_size() as usize;
        let offset = resp.llq_desc_offset as usize;
        let bytes = (offset % page + sizes.send_bytes() as usize).next_multiple_of(page);
        let map =
            |what, key, bytes| map_queue(&*self.kernel, CREATE, what, (key, bytes), Protection::ReadWrite);
        let mapping = map("send queue", resp.llq_desc_mmap_key, bytes)?;
        let send_ring = SendRing::new(mapping, offset, sizes.sends, sizes.wide)
            .map_err(|e| wrong(format!("send queue at offset {offset:#x}: {e}")))?;
        let bytes = usize::try_from(resp.rq_mmap_size).unwrap_or(usize::MAX);
        let mapping = map("receive queue", resp.rq_mmap_key, bytes)?;
        let recv_ring =
            RecvRing::new(mapping, sizes.descriptors).map_err(|e| wrong(format!("receive queue: {e}")))?;
        let send_bell = Doorbell::map(&*self.kernel, CREATE, resp.sq_db_mmap_key, resp.sq_db_offset)?;
        let recv_bell = Doorbell::map(&*self.kernel, CREATE, resp.rq_db_mmap_key, resp.rq_db_offset)?;

        let from = of_number(numbers, qp_num).copied().unwrap_or_default();
        let requests = (cap.max_send_wr, cap.max_recv_wr);
        let unsolicited = options.unsolicited_write_recv;
        let shared =
            QpShared::create(QpState::RESET, self.barrier, (qp_num, from), requests, cqs, unsolicited);
        let shared = Arc::new(shared.map_err(|e| Error::no_memory(CREATE, STATE, &e))?);
        let config = self.send_config(attr, options, sizes);
        let send = SendQueue::new(send_ring, send_bell, config, Arc::clone(&shared));
        let recv = RecvQueue::new(recv_ring, recv_bell, cap.max_recv_sge, Arc::clone(&shared));
        if !shared.attach() {
            return Err(Error::invalid(CREATE, "cq", "it reports no more completions"));
        }
        Ok((shared, send, recv))
    }

    fn send_config(&self, attr: &QpInitAttr, options: QpOptions, sizes: Sizes) -> SendConfig {
        let limits = &self.limits;
        let mut max_batch = match u32::from(limits.max_tx_batch) {
            0 => u32::MAX,
            units => units / if sizes.wide { 2 } else { 1 },
        };
        if limits.min_sq_wr != 0 {
            // Such devices do not take a doorbell for the whole queue at once (`efa_sq_initialize` in `verbs.c`).
            max_batch = max_batch.min(sizes.sends - 1);
        }
        SendConfig {
            ops: self.operations(attr.qp_type),
            builder: builder_opcodes(attr.send_ops_flags),
            max_sge: attr.cap.max_send_sge,
            max_rdma_sge: limits.max_rdma_sge.into(),
            max_inline: attr.cap.max_inline_data,
            inline_write: options.inline_write,
            always: if attr.sq_sig_all { SendFlags::SIGNALED } else { SendFlags::empty() },
            max_batch,
        }
    }
}
