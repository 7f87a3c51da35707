// SPDX-License-Identifier: MIT OR Apache-2.0
//! One completion: the values that must be read at once, and the entry in the ring for the other fields.

use super::clock::ClockInfo;
use super::entry::{CqeRef, Tail};
use crate::cq::cqe::{self, Kind};
use crate::shared::umr_op;
use core::fmt;
use core::mem::MaybeUninit;
use uverbs_core::attr::WcExFlags;
use uverbs_core::provider::completion::Completion as CompletionTrait;
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use uverbs_mlx5_hw::cqe::MLX5_CQE_RESP_WR_IMM;

/// The values of a completion that are needed after its WR is retired. The poster may reuse the WQE and its record from
/// then on.
///
/// Three whole words, because the struct is passed through memory: a load of 8 bytes after narrower stores would stall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parsed {
    pub(super) tail: Tail,
    pub(super) wr_id: u64,
    /// From the low bits up: the status (32 bits), the record's `umr_op` (8 bits), and the flags below.
    facts: u64,
}

/// Flag: a requester's completion.
const REQUESTER: u64 = 1 << 40;
/// Flag: a requester's success without data. No further load from the entry is needed to know that.
const PLAIN: u64 = 1 << 41;
/// Flag: the QP's port computes checksums.
const CSUM: u64 = 1 << 42;

impl Parsed {
    /// A requester's completion; `op` is the `umr_op` that the send queue stored with the WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn requester(tail: Tail, wr_id: u64, status: WcStatus, op: u8, is_plain: bool) -> Self {
        let facts = u64::from(status.0) | u64::from(op) << 32 | REQUESTER | if is_plain { PLAIN } else { 0 };
        Self { tail, wr_id, facts }
    }

    /// A responder's completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn responder(tail: Tail, wr_id: u64, status: WcStatus, csum: bool) -> Self {
        Self { tail, wr_id, facts: u64::from(status.0) | if csum { CSUM } else { 0 } }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn status(self) -> WcStatus {
        WcStatus(self.facts as u32)
    }

    /// The completion's opcode (`enum ibv_wc_opcode`) if the WQE's opcode does not determine it: from the stored `umr_op`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn posted_opcode(self) -> u8 {
        match (self.facts >> 32) as u8 {
            umr_op::BIND_MW => WcOpcode::BIND_MW.0 as u8,
            umr_op::LOCAL_INV => WcOpcode::LOCAL_INV.0 as u8,
            umr_op::RAW => WcOpcode::DRIVER2.0 as u8,
            umr_op::MKEY => WcOpcode::DRIVER1.0 as u8,
            umr_op::CANCELLED_SEND => WcOpcode::SEND.0 as u8,
            umr_op::CANCELLED_WRITE => WcOpcode::RDMA_WRITE.0 as u8,
            umr_op::CANCELLED_READ => WcOpcode::RDMA_READ.0 as u8,
            umr_op::CANCELLED_CMP_SWP => WcOpcode::COMP_SWAP.0 as u8,
            umr_op::CANCELLED_FETCH_ADD => WcOpcode::FETCH_ADD.0 as u8,
            _ => 0,
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_plain(self) -> bool {
        self.facts & PLAIN != 0
    }

    /// Whether the `wr_id` is that of a receive queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_receive(self) -> bool {
        self.facts & REQUESTER == 0
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn has_csum(self) -> bool {
        self.facts & CSUM != 0
    }

    /// The work completion of a requester's success.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn requester_wc(self, entry: CqeRef<'_>) -> WorkCompletion {
        let tail = self.tail;
        let sent = cqe::SENT[usize::from(tail.send_opcode())];
        let (opcode, byte_len) = if sent.needs_more {
            more_of_requester(tail, self.posted_opcode(), entry.byte_cnt())
        } else {
            (sent.opcode(), 0)
        };
        WorkCompletion {
            wr_id: self.wr_id,
            status: self.status(),
            opcode,
            byte_len,
            wc_flags: sent.flags(),
            qp_num: tail.qpn(),
            ..WorkCompletion::default()
        }
    }
}

/// Opcode and length if the WQE's opcode alone does not determine them.
// codegen: address
#[inline(never)]
fn more_of_requester(tail: Tail, posted: u8, byte_cnt: u32) -> (WcOpcode, u32) {
    let send_opcode = tail.send_opcode();
    (cqe::opcode(tail.op_own(), send_opcode, posted), cqe::requester_len(send_opcode, byte_cnt))
}

/// One completion, in the ring.
#[derive(Clone, Copy)]
pub struct Completion<'c> {
    pub(super) cqe: CqeRef<'c>,
    pub(super) parsed: Parsed,
    /// The fields that the CQ was created with.
    pub(super) fields: WcExFlags,
    pub(super) clock: Option<&'c ClockInfo>,
}

impl Completion<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn kind(&self) -> Kind {
        if self.parsed.is_plain() { Kind::Requester } else { self.parsed.tail.op_own().kind() }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm(&self) -> u32 {
        let value = self.cqe.imm_inval_pkey();
        // A key is a number in host byte order; immediate data are in network byte order.
        if cqe::message_flags(self.parsed.tail.op_own()).contains(WcFlags::WITH_INV) {
            value
        } else {
            value.to_be()
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn csum_flag(&self) -> WcFlags {
        if self.parsed.has_csum() {
            cqe::csum_flag(self.cqe.hds_ip_ext(), self.cqe.l4_hdr_type_etc())
        } else {
            WcFlags::empty()
        }
    }

    /// Writes the work completion to `wc`.
    #[inline]
    pub(super) fn fill(&self, wc: &mut MaybeUninit<WorkCompletion>) {
        match self.kind() {
            Kind::Requester => self.fill_requester(wc),
            Kind::Responder => self.fill_responder(wc),
            _ => {
                wc.write(self.error_wc());
            }
        }
    }

    /// The work completion of an error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn error_wc(&self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.parsed.wr_id,
            status: self.parsed.status(),
            opcode: self.opcode(),
            vendor_err: self.vendor_err(),
            qp_num: self.parsed.tail.qpn(),
            ..WorkCompletion::default()
        }
    }

    /// As [`fill`](Self::fill), for a requester's success only.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn fill_requester(&self, wc: &mut MaybeUninit<WorkCompletion>) {
        wc.write(self.parsed.requester_wc(self.cqe));
    }

    /// As [`fill`](Self::fill), for a responder's success only.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn fill_responder(&self, wc: &mut MaybeUninit<WorkCompletion>) {
        wc.write(self.responder_wc());
    }

    /// The work completion of a responder's success.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn responder_wc(&self) -> WorkCompletion {
        let received = cqe::RECEIVED[usize::from(self.parsed.tail.op_own().opcode())];
        // A key is a number in host byte order; immediate data are in network byte order.
        let has_key = received.flags().contains(WcFlags::WITH_INV);
        let imm = self.cqe.imm_inval_pkey();
        let flags_rqpn = self.cqe.flags_rqpn();
        let mut wc_flags = received.flags() | cqe::grh_flag(flags_rqpn);
        if self.parsed.has_csum() {
            wc_flags |= self.csum_flag();
        }
        WorkCompletion {
            wr_id: self.parsed.wr_id,
            status: self.parsed.status(),
            opcode: received.opcode(),
            byte_len: self.cqe.byte_cnt(),
            imm_data_or_invalidated_rkey: if has_key { imm } else { imm.to_be() },
            qp_num: self.parsed.tail.qpn(),
            src_qp: flags_rqpn & 0xff_ffff,
            wc_flags,
            pkey_index: imm as u16,
            slid: self.cqe.slid(),
            sl: (flags_rqpn >> 24 & 0xf) as u8,
            dlid_path_bits: self.dlid_path_bits(),
            ..WorkCompletion::default()
        }
    }
}

impl CompletionTrait for Completion<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_id(&self) -> u64 {
        self.parsed.wr_id
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn status(&self) -> WcStatus {
        self.parsed.status()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn opcode(&self) -> WcOpcode {
        let tail = self.parsed.tail;
        cqe::opcode(tail.op_own(), tail.send_opcode(), self.parsed.posted_opcode())
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn vendor_err(&self) -> u32 {
        match self.kind() {
            Kind::RequesterError | Kind::ResponderError => self.cqe.syndromes().1.into(),
            _ => 0,
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte_len(&self) -> u32 {
        self.cqe.byte_cnt()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn received_len(&self) -> u32 {
        let writes_nothing = self.parsed.tail.op_own().opcode() == MLX5_CQE_RESP_WR_IMM;
        if writes_nothing { 0 } else { self.cqe.byte_cnt() }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_receive(&self) -> Option<bool> {
        Some(self.parsed.is_receive())
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_num(&self) -> u32 {
        self.parsed.tail.qpn()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn src_qp(&self) -> u32 {
        self.cqe.flags_rqpn() & 0xff_ffff
    }
    /// As in libmlx5's extended polling, the GRH flag is reported for all completions, and the message flags for receives
    /// only.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wc_flags(&self) -> WcFlags {
        cqe::message_flags(self.parsed.tail.op_own())
            | cqe::grh_flag(self.cqe.flags_rqpn())
            | self.csum_flag()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        self.imm()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pkey_index(&self) -> u16 {
        self.cqe.imm_inval_pkey() as u16
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slid(&self) -> u32 {
        self.cqe.slid().into()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sl(&self) -> u8 {
        (self.cqe.flags_rqpn() >> 24 & 0xf) as u8
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dlid_path_bits(&self) -> u8 {
        self.cqe.ml_path() & 0x7f
    }
    #[inline]
    fn completion_ts(&self) -> Option<u64> {
        self.fields.contains(WcExFlags::COMPLETION_TIMESTAMP).then(|| self.cqe.timestamp())
    }
    #[inline]
    fn completion_wallclock_ns(&self) -> Option<u64> {
        if !self.fields.contains(WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK) {
            return None;
        }
        let ticks = self.cqe.timestamp();
        // If there are no conversion factors, the device's clock is wall clock time.
        Some(self.clock.map_or(ticks, |clock| clock.wall_clock(ticks)))
    }
    #[inline]
    fn cvlan(&self) -> Option<u16> {
        self.fields.contains(WcExFlags::CVLAN).then(|| self.cqe.vlan_info())
    }
    #[inline]
    fn flow_tag(&self) -> Option<u32> {
        self.fields.contains(WcExFlags::FLOW_TAG).then(|| self.parsed.tail.qpn())
    }

    /// As libmlx5's `ibv_poll_cq`: a requester's completion has only the fields that apply to it; the length of an atomic
    /// is 8.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn to_wc(&self) -> WorkCompletion {
        match self.kind() {
            Kind::Requester => self.parsed.requester_wc(self.cqe),
            Kind::Responder => self.responder_wc(),
            _ => self.error_wc(),
        }
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_wc().fmt(f)
    }
}
