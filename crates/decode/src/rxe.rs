// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of rxe, Linux' Soft-RoCE (`<rdma/rdma_user_rxe.h>`; completions are `struct ib_uverbs_wc`).

use crate::entry::Entry;
use crate::mlx5::QueueKind;
use crate::names::{Names, flags, gid, name, qp};
use crate::reader::{Order, Reader, Show};
use core::mem::{offset_of, size_of};
use uverbs_uapi::cmd::ib_uverbs_wc;
use uverbs_uapi::rxe::{
    RXE_NETWORK_TYPE_IPV4, RXE_NETWORK_TYPE_IPV6, rxe_dma_info, rxe_recv_wqe, rxe_send_wqe, rxe_send_wr,
};

/// Bytes of a send and of a receive without scatter/gather entries.
pub(crate) const SEND: usize = size_of::<rxe_send_wqe>();
pub(crate) const RECV: usize = size_of::<rxe_recv_wqe>();
/// Bytes of a scatter/gather entry, and the most that a queue of the kernel has (`RXE_MAX_SGE` of `rxe_param.h`).
const SGE: usize = 16;
const MAX_SGE: u64 = 32;

/// `enum ib_uverbs_wr_opcode` of `<rdma/ib_user_verbs.h>`.
const OPCODES: Names = &[
    (0, "RDMA_WRITE"),
    (1, "RDMA_WRITE_WITH_IMM"),
    (2, "SEND"),
    (3, "SEND_WITH_IMM"),
    (4, "RDMA_READ"),
    (5, "ATOMIC_CMP_AND_SWP"),
    (6, "ATOMIC_FETCH_AND_ADD"),
    (7, "LOCAL_INV"),
    (8, "BIND_MW"),
    (9, "SEND_WITH_INV"),
    (10, "TSO"),
    (11, "RDMA_READ_WITH_INV"),
    (12, "MASKED_ATOMIC_CMP_AND_SWP"),
    (13, "MASKED_ATOMIC_FETCH_AND_ADD"),
    (14, "FLUSH"),
    (15, "ATOMIC_WRITE"),
];
/// `enum ib_uverbs_wc_opcode`, and the receives of `enum ib_wc_opcode`.
const COMPLETED: Names = &[
    (0, "SEND"),
    (1, "RDMA_WRITE"),
    (2, "RDMA_READ"),
    (3, "COMP_SWAP"),
    (4, "FETCH_ADD"),
    (5, "BIND_MW"),
    (6, "LOCAL_INV"),
    (7, "TSO"),
    (8, "FLUSH"),
    (9, "ATOMIC_WRITE"),
    (0x80, "RECV"),
    (0x81, "RECV_RDMA_WITH_IMM"),
];
/// `enum ib_send_flags` of the kernel.
const SEND_FLAGS: Names = &[(1, "FENCE"), (2, "SIGNALED"), (4, "SOLICITED"), (8, "INLINE"), (16, "IP_CSUM")];
/// `enum ib_wc_flags` of the kernel.
const WC_FLAGS: Names = &[
    (1, "GRH"),
    (2, "WITH_IMM"),
    (4, "WITH_INVALIDATE"),
    (8, "IP_CSUM_OK"),
    (16, "WITH_SMAC"),
    (32, "WITH_VLAN"),
    (64, "WITH_NETWORK_HDR_TYPE"),
];
/// `enum ib_wc_status`, by the names of ibv_poll_cq(3).
pub(crate) const STATUSES: Names = &[
    (0, "IBV_WC_SUCCESS"),
    (1, "IBV_WC_LOC_LEN_ERR"),
    (2, "IBV_WC_LOC_QP_OP_ERR"),
    (3, "IBV_WC_LOC_EEC_OP_ERR"),
    (4, "IBV_WC_LOC_PROT_ERR"),
    (5, "IBV_WC_WR_FLUSH_ERR"),
    (6, "IBV_WC_MW_BIND_ERR"),
    (7, "IBV_WC_BAD_RESP_ERR"),
    (8, "IBV_WC_LOC_ACCESS_ERR"),
    (9, "IBV_WC_REM_INV_REQ_ERR"),
    (10, "IBV_WC_REM_ACCESS_ERR"),
    (11, "IBV_WC_REM_OP_ERR"),
    (12, "IBV_WC_RETRY_EXC_ERR"),
    (13, "IBV_WC_RNR_RETRY_EXC_ERR"),
    (14, "IBV_WC_LOC_RDD_VIOL_ERR"),
    (15, "IBV_WC_REM_INV_RD_REQ_ERR"),
    (16, "IBV_WC_REM_ABORT_ERR"),
    (17, "IBV_WC_INV_EECN_ERR"),
    (18, "IBV_WC_INV_EEC_STATE_ERR"),
    (19, "IBV_WC_FATAL_ERR"),
    (20, "IBV_WC_RESP_TIMEOUT_ERR"),
    (21, "IBV_WC_GENERAL_ERR"),
];
/// The kernel's `enum wqe_state` of `rxe_verbs.h`.
const STATES: Names = &[(0, "posted"), (1, "processing"), (2, "pending"), (3, "done"), (4, "error")];

/// The opcode-specific fields of a request.
const WR: usize = offset_of!(rxe_send_wr, wr);

/// An element of a send queue of this type.
#[must_use]
pub fn send(kind: QueueKind, bytes: &[u8]) -> Entry {
    let mut r = Reader::new("rxe send WQE", Order::Little, bytes);
    let wr_id = r.num(offset_of!(rxe_send_wr, wr_id), 8, "wr_id", Show::Hex);
    let opcode = r.num(offset_of!(rxe_send_wr, opcode), 4, "opcode", Show::Dec);
    let operation = name(OPCODES, opcode);
    r.mean(operation);
    let bits = r.num(offset_of!(rxe_send_wr, send_flags), 4, "send_flags", Show::Hex);
    r.mean(flags(SEND_FLAGS, bits));
    let imm = r.num(offset_of!(rxe_send_wr, imm_data), 4, "imm_data", Show::Hex);
    let mut more = Vec::new();
    match opcode {
        1 | 3 => {
            r.mean("immediate data, big-endian");
            more.push(format!("imm {:#x}", (imm as u32).swap_bytes()));
        }
        7 | 9 | 11 => {
            r.mean("the key that is invalidated");
            more.push(format!("invalidates {imm:#x}"));
        }
        _ => r.mean("not used"),
    }
    let remote = offset_of!(rxe_send_wqe, iova);
    request(&mut r, kind, opcode, &mut more);
    let status = r.num(offset_of!(rxe_send_wqe, status), 4, "status", Show::Dec);
    r.mean(name(STATUSES, status));
    let state = r.num(offset_of!(rxe_send_wqe, state), 4, "state", Show::Dec);
    r.mean(name(STATES, state));
    r.num(remote, 8, "iova", Show::Hex);
    r.num(offset_of!(rxe_send_wqe, mask), 4, "mask", Show::Hex);
    r.num(offset_of!(rxe_send_wqe, first_psn), 4, "first_psn", Show::Hex);
    r.num(offset_of!(rxe_send_wqe, last_psn), 4, "last_psn", Show::Hex);
    r.num(offset_of!(rxe_send_wqe, ack_length), 4, "ack_length", Show::Dec);
    let ssn = r.num(offset_of!(rxe_send_wqe, ssn), 4, "ssn", Show::Dec);
    r.num(offset_of!(rxe_send_wqe, has_rd_atomic), 4, "has_rd_atomic", Show::Dec);
    // The 8 bytes of an atomic write are in the element as inline data are.
    let length = dma(&mut r, offset_of!(rxe_send_wqe, dma), bits & 8 != 0 || opcode == 15);
    r.say(match opcode {
        5..=8 => operation.to_owned(),
        _ => format!("{operation} of {length} bytes"),
    });
    r.say(format!("wr_id {wr_id:#x}"));
    r.say(format!("request {ssn}"));
    more.into_iter().for_each(|words| r.say(words));
    r.say(if bits & 2 != 0 { "signaled" } else { "not signaled" });
    for (bit, words) in [(1, "fence"), (4, "solicited")] {
        if bits & bit != 0 {
            r.say(words);
        }
    }
    if state != 0 {
        r.say(format!("the kernel says {}", name(STATES, state)));
    }
    if operation == "unknown" {
        r.problem(format!("opcode {opcode} is unknown"));
    }
    r.finish()
}

/// The union of the opcode-specific fields.
fn request(r: &mut Reader<'_>, kind: QueueKind, opcode: u64, more: &mut Vec<String>) {
    match opcode {
        0 | 1 | 4 | 11 | 15 => {
            let addr = r.num(WR, 8, "remote_addr", Show::Hex);
            let key = r.num(WR + 8, 4, "rkey", Show::Hex);
            r.place(true, 0, addr, key);
        }
        5 | 6 | 12 | 13 => {
            let addr = r.num(WR, 8, "remote_addr", Show::Hex);
            let compare = r.num(WR + 8, 8, "compare_add", Show::Hex);
            let swap = r.num(WR + 16, 8, "swap", Show::Hex);
            let key = r.num(WR + 24, 4, "rkey", Show::Hex);
            r.place(true, 0, addr, key);
            more.push(match opcode {
                5 | 12 => format!("{compare:#x} becomes {swap:#x}"),
                _ => format!("adds {compare:#x}"),
            });
        }
        8 => {
            let addr = r.num(WR, 8, "addr", Show::Hex);
            let len = r.num(WR + 8, 8, "length", Show::Dec);
            let lkey = r.num(WR + 16, 4, "mr_lkey", Show::Hex);
            let old = r.num(WR + 20, 4, "mw_rkey", Show::Hex);
            let new = r.num(WR + 24, 4, "rkey", Show::Hex);
            r.num(WR + 28, 4, "access", Show::Hex);
            r.place(false, len, addr, lkey);
            more.push(format!("window {old:#x} becomes {new:#x}"));
        }
        14 => {
            let addr = r.num(WR, 8, "remote_addr", Show::Hex);
            r.num(WR + 8, 4, "length", Show::Dec);
            let key = r.num(WR + 12, 4, "rkey", Show::Hex);
            r.num(WR + 16, 1, "type", Show::Hex);
            r.num(WR + 17, 1, "level", Show::Hex);
            r.place(true, 0, addr, key);
        }
        _ if kind == QueueKind::Ud => datagram(r, more),
        _ => {}
    }
}

/// `struct rxe_send_wr`, the member `ud`, with `struct rxe_av`.
fn datagram(r: &mut Reader<'_>, more: &mut Vec<String>) {
    let to = r.num(WR, 4, "remote_qpn", Show::Hex);
    r.num(WR + 4, 4, "remote_qkey", Show::Hex);
    r.num(WR + 8, 2, "pkey_index", Show::Dec);
    let ah = r.num(WR + 12, 4, "ah_num", Show::Dec);
    r.mean("the address handle; 0: the address is here");
    let av = WR + 32;
    r.num(av, 1, "port_num", Show::Dec);
    let network = r.num(av + 1, 1, "network_type", Show::Dec);
    r.mean(match network as u8 {
        RXE_NETWORK_TYPE_IPV4 => "IPv4",
        RXE_NETWORK_TYPE_IPV6 => "IPv6",
        _ => "not set",
    });
    r.raw(av + 2, 6, "dmac");
    let dgid = gid(&r.raw(av + 8, 16, "dgid"));
    r.mean(dgid.clone());
    r.num(av + 24, 4, "flow_label", Show::Hex);
    r.num(av + 28, 1, "sgid_index", Show::Dec);
    r.num(av + 29, 1, "hop_limit", Show::Dec);
    r.num(av + 30, 1, "traffic_class", Show::Hex);
    r.raw(av + 32, 28, "sgid_addr");
    r.raw(av + 60, 28, "dgid_addr");
    more.push(match ah {
        0 => format!("to {} at {dgid}", qp(to)),
        ah => format!("to {} by address handle {ah}", qp(to)),
    });
}

/// `struct rxe_dma_info` and what follows it. Returns its length.
fn dma(r: &mut Reader<'_>, at: usize, is_inline: bool) -> u64 {
    let length = r.num(at, 4, "length", Show::Dec);
    r.num(at + offset_of!(rxe_dma_info, resid), 4, "resid", Show::Dec);
    r.mean("bytes that are left");
    r.num(at + offset_of!(rxe_dma_info, cur_sge), 4, "cur_sge", Show::Dec);
    let count = r.num(at + offset_of!(rxe_dma_info, num_sge), 4, "num_sge", Show::Dec);
    r.num(at + offset_of!(rxe_dma_info, sge_offset), 4, "sge_offset", Show::Dec);
    let first = at + offset_of!(rxe_dma_info, sge);
    if is_inline {
        let len = usize::try_from(length).unwrap_or(usize::MAX).min(r.len());
        r.raw(first, len, "data");
        r.limit(first + len);
        return length;
    }
    if count > MAX_SGE {
        r.problem(format!("{count} entries, and the kernel takes {MAX_SGE} at most"));
    }
    let count = count.min(MAX_SGE) as usize;
    for i in 0..count {
        entry(r, first + i * SGE);
    }
    r.limit(first + count * SGE);
    length
}

/// `struct rxe_sge`, and siw's `struct siw_sge`.
pub(crate) fn entry(r: &mut Reader<'_>, at: usize) {
    let addr = r.num(at, 8, "addr", Show::Hex);
    let len = r.num(at + 8, 4, "length", Show::Dec);
    let key = r.num(at + 12, 4, "lkey", Show::Hex);
    r.place(false, len, addr, key);
}

/// An element of a receive queue.
#[must_use]
pub fn recv(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("rxe receive WQE", Order::Little, bytes);
    let wr_id = r.num(0, 8, "wr_id", Show::Hex);
    let length = dma(&mut r, offset_of!(rxe_recv_wqe, dma), false);
    r.say(format!("receive with room for {length} bytes"));
    r.say(format!("wr_id {wr_id:#x}"));
    let room = r.local_bytes();
    if room != length {
        r.problem(format!("the entries have {room} bytes"));
    }
    r.finish()
}

/// A completion.
#[must_use]
pub fn cqe(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("rxe CQE", Order::Little, bytes);
    r.limit(size_of::<ib_uverbs_wc>());
    let wr_id = r.num(offset_of!(ib_uverbs_wc, wr_id), 8, "wr_id", Show::Hex);
    let status = r.num(offset_of!(ib_uverbs_wc, status), 4, "status", Show::Dec);
    let status_name = name(STATUSES, status);
    r.mean(status_name);
    let opcode = r.num(offset_of!(ib_uverbs_wc, opcode), 4, "opcode", Show::Hex);
    let operation = name(COMPLETED, opcode);
    r.mean(operation);
    let vendor = r.num(offset_of!(ib_uverbs_wc, vendor_err), 4, "vendor_err", Show::Hex);
    let len = r.num(offset_of!(ib_uverbs_wc, byte_len), 4, "byte_len", Show::Dec);
    let imm = r.num(offset_of!(ib_uverbs_wc, imm_data), 4, "imm_data", Show::Hex);
    let qpn = r.num(offset_of!(ib_uverbs_wc, qp_num), 4, "qp_num", Show::Hex);
    let from = r.num(offset_of!(ib_uverbs_wc, src_qp), 4, "src_qp", Show::Hex);
    let bits = r.num(offset_of!(ib_uverbs_wc, wc_flags), 4, "wc_flags", Show::Hex);
    r.mean(flags(WC_FLAGS, bits));
    r.num(offset_of!(ib_uverbs_wc, pkey_index), 2, "pkey_index", Show::Dec);
    r.num(offset_of!(ib_uverbs_wc, slid), 2, "slid", Show::Hex);
    r.num(offset_of!(ib_uverbs_wc, sl), 1, "sl", Show::Dec);
    r.num(offset_of!(ib_uverbs_wc, dlid_path_bits), 1, "dlid_path_bits", Show::Dec);
    r.num(offset_of!(ib_uverbs_wc, port_num), 1, "port_num", Show::Dec);
    if status == 0 {
        r.say(format!("{operation} complete"));
    } else {
        r.say(format!("{operation} failed: {status_name}"));
        r.say(format!("vendor error {vendor:#x}"));
    }
    r.say(format!("wr_id {wr_id:#x} of {}", qp(qpn)));
    if status == 0 {
        r.say(format!("{len} bytes"));
        match bits & 6 {
            2 => r.say(format!("imm {:#x}", (imm as u32).swap_bytes())),
            4 => r.say(format!("invalidated {imm:#x}")),
            _ => {}
        }
        if from != 0 {
            r.say(format!("from {}", qp(from)));
        }
    }
    r.finish()
}
