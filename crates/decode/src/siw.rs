// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of siw, Linux' Soft-iWARP (`<rdma/siw-abi.h>`).

use crate::entry::Entry;
use crate::names::{Names, flags, name, qp};
use crate::reader::{Order, Reader, Show};
use crate::rxe::entry;
use core::mem::{offset_of, size_of};
use uverbs_uapi::siw::{SIW_MAX_INLINE, SIW_MAX_SGE, siw_cqe, siw_rqe, siw_sqe};

/// Bytes of a send and of a receive.
pub(crate) const SEND: usize = size_of::<siw_sqe>();
pub(crate) const RECV: usize = size_of::<siw_rqe>();
const SGE: usize = 16;

const OPCODES: Names = &[
    (0, "WRITE"),
    (1, "READ"),
    (2, "READ_LOCAL_INV"),
    (3, "SEND"),
    (4, "SEND_WITH_IMM"),
    (5, "SEND_REMOTE_INV"),
    (6, "FETCH_AND_ADD"),
    (7, "COMP_AND_SWAP"),
    (8, "RECEIVE"),
    (9, "READ_RESPONSE"),
    (10, "INVAL_STAG"),
    (11, "REG_MR"),
];
const FLAGS: Names = &[
    (1, "VALID"),
    (1 << 1, "INLINE"),
    (1 << 2, "SIGNALLED"),
    (1 << 3, "SOLICITED"),
    (1 << 4, "READ_FENCE"),
    (1 << 5, "REM_INVAL"),
    (1 << 6, "COMPLETED"),
];
/// `enum siw_wc_status`, by the names of ibv_poll_cq(3).
const STATUSES: Names = &[
    (0, "IBV_WC_SUCCESS"),
    (1, "IBV_WC_LOC_LEN_ERR"),
    (2, "IBV_WC_LOC_PROT_ERR"),
    (3, "IBV_WC_LOC_QP_OP_ERR"),
    (4, "IBV_WC_WR_FLUSH_ERR"),
    (5, "IBV_WC_BAD_RESP_ERR"),
    (6, "IBV_WC_LOC_ACCESS_ERR"),
    (7, "IBV_WC_REM_ACCESS_ERR"),
    (8, "IBV_WC_REM_INV_REQ_ERR"),
    (9, "IBV_WC_GENERAL_ERR"),
];

/// The entries in use; the others are from earlier laps.
fn entries(r: &mut Reader<'_>, first: usize, count: u64) {
    if count > u64::from(SIW_MAX_SGE) {
        r.problem(format!("{count} entries, and an element has {SIW_MAX_SGE}"));
    }
    for i in 0..SIW_MAX_SGE as usize {
        let at = first + i * SGE;
        if (i as u64) < count {
            entry(r, at);
        } else {
            r.unused(at, SGE, "sge_unused");
        }
    }
}

/// An element of a send queue.
#[must_use]
pub fn send(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("siw send WQE", Order::Little, bytes);
    r.limit(SEND);
    let id = r.num(offset_of!(siw_sqe, id), 8, "id", Show::Hex);
    let bits = r.num(offset_of!(siw_sqe, flags), 2, "flags", Show::Hex);
    r.mean(flags(FLAGS, bits));
    let count = r.num(offset_of!(siw_sqe, num_sge), 1, "num_sge", Show::Dec);
    let opcode = r.num(offset_of!(siw_sqe, opcode), 1, "opcode", Show::Dec);
    let operation = name(OPCODES, opcode);
    r.mean(operation);
    let rkey = r.num(offset_of!(siw_sqe, rkey), 4, "rkey", Show::Hex);
    let raddr = r.num(offset_of!(siw_sqe, raddr), 8, "raddr", Show::Hex);
    let sge = offset_of!(siw_sqe, sge);
    let mut len = 0;
    if bits & 2 != 0 {
        // The first entry has the length; the data are in the place of the others.
        r.num(sge, 8, "laddr", Show::Hex);
        len = r.num(sge + 8, 4, "length", Show::Dec);
        r.num(sge + 12, 4, "lkey", Show::Hex);
        if len > u64::from(SIW_MAX_INLINE) {
            r.problem(format!("{len} bytes of inline data where {SIW_MAX_INLINE} have room"));
        }
        let here = len.min(SIW_MAX_INLINE.into()) as usize;
        r.raw(sge + SGE, here, "data");
        r.unused(sge + SGE + here, SIW_MAX_INLINE as usize - here, "data_unused");
    } else {
        entries(&mut r, sge, count);
    }
    if matches!(opcode, 0..=2) {
        r.place(true, 0, raddr, rkey);
    }
    len = r.local_bytes().saturating_add(len);
    r.say(format!("{operation} of {len} bytes"));
    r.say(format!("id {id:#x}"));
    if opcode == 5 {
        r.say(format!("invalidates {rkey:#x}"));
    }
    r.say(if bits & 4 != 0 { "signaled" } else { "not signaled" });
    for (bit, words) in [(1 << 3, "solicited"), (1 << 4, "fence: waits for earlier reads")] {
        if bits & bit != 0 {
            r.say(words);
        }
    }
    r.say(if bits & 1 != 0 { "published" } else { "not published, or taken" });
    if operation == "unknown" {
        r.problem(format!("opcode {opcode} is unknown"));
    }
    r.finish()
}

/// An element of a receive queue.
#[must_use]
pub fn recv(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("siw receive WQE", Order::Little, bytes);
    r.limit(RECV);
    let id = r.num(offset_of!(siw_rqe, id), 8, "id", Show::Hex);
    let bits = r.num(offset_of!(siw_rqe, flags), 2, "flags", Show::Hex);
    r.mean(flags(FLAGS, bits));
    let count = r.num(offset_of!(siw_rqe, num_sge), 1, "num_sge", Show::Dec);
    let opcode = r.num(offset_of!(siw_rqe, opcode), 1, "opcode", Show::Dec);
    r.mean(name(OPCODES, opcode));
    entries(&mut r, offset_of!(siw_rqe, sge), count);
    let room = r.local_bytes();
    r.say(format!("receive with room for {room} bytes"));
    r.say(format!("id {id:#x}"));
    r.say(if bits & 1 != 0 { "published" } else { "not published, or taken" });
    r.finish()
}

/// A completion.
#[must_use]
pub fn cqe(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("siw CQE", Order::Little, bytes);
    r.limit(size_of::<siw_cqe>());
    let id = r.num(offset_of!(siw_cqe, id), 8, "id", Show::Hex);
    let bits = r.num(offset_of!(siw_cqe, flags), 1, "flags", Show::Hex);
    r.mean(flags(FLAGS, bits));
    let opcode = r.num(offset_of!(siw_cqe, opcode), 1, "opcode", Show::Dec);
    let operation = name(OPCODES, opcode);
    r.mean(operation);
    let status = r.num(offset_of!(siw_cqe, status), 2, "status", Show::Dec);
    let status_name = name(STATUSES, status);
    r.mean(status_name);
    let len = r.num(offset_of!(siw_cqe, bytes), 4, "bytes", Show::Dec);
    r.num(offset_of!(siw_cqe, imm_data), 8, "imm_data", Show::Hex);
    let qpn = r.num(offset_of!(siw_cqe, qp_id), 8, "qp_id", Show::Hex);
    r.say(match status {
        0 => format!("{operation} complete"),
        _ => format!("{operation} failed: {status_name}"),
    });
    r.say(format!("id {id:#x} of {}", qp(qpn)));
    if status == 0 {
        r.say(format!("{len} bytes"));
    }
    r.say(if bits & 1 != 0 { "written" } else { "not written, or taken" });
    r.finish()
}
