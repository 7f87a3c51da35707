// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of EFA (`efa_io_defs.h` of the kernel's `drivers/infiniband/hw/efa`).

use crate::entry::Entry;
use crate::names::{Names, gid, name, qp};
use crate::reader::{Order, Reader, Show};
use uverbs_efa_hw::io;

const OPERATIONS: Names = &[
    (io::EFA_IO_SEND as u64, "SEND"),
    (io::EFA_IO_RDMA_READ as u64, "RDMA_READ"),
    (io::EFA_IO_RDMA_WRITE as u64, "RDMA_WRITE"),
];
/// `enum efa_io_comp_status`.
const STATUSES: Names = &[
    (io::EFA_IO_COMP_STATUS_OK as u64, "OK"),
    (io::EFA_IO_COMP_STATUS_FLUSHED as u64, "FLUSHED"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR as u64, "LOCAL_ERROR_QP_INTERNAL_ERROR"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP as u64, "LOCAL_ERROR_UNSUPPORTED_OP"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH as u64, "LOCAL_ERROR_INVALID_AH"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY as u64, "LOCAL_ERROR_INVALID_LKEY"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH as u64, "LOCAL_ERROR_BAD_LENGTH"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS as u64, "REMOTE_ERROR_BAD_ADDRESS"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT as u64, "REMOTE_ERROR_ABORT"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN as u64, "REMOTE_ERROR_BAD_DEST_QPN"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR as u64, "REMOTE_ERROR_RNR"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH as u64, "REMOTE_ERROR_BAD_LENGTH"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS as u64, "REMOTE_ERROR_BAD_STATUS"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE as u64, "LOCAL_ERROR_UNRESP_REMOTE"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER as u64, "REMOTE_ERROR_UNKNOWN_PEER"),
    (io::EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE as u64, "LOCAL_ERROR_UNREACH_REMOTE"),
    (io::EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH as u64, "REMOTE_ERROR_FEATURE_MISMATCH"),
];

/// Bytes of the meta descriptor, of a buffer, and of a short and a long entry.
const META: usize = 32;
const BUF: usize = 16;
const SHORT: usize = 64;
const LONG: usize = 128;

/// The name of a status, for programs that show what a device answered.
#[must_use]
pub fn status(number: u8) -> &'static str {
    name(STATUSES, number.into())
}

/// A buffer, or the peer's memory.
fn buffer(r: &mut Reader<'_>, at: usize, remote: bool) -> u64 {
    let len = r.num(at, 4, "length", Show::Dec);
    let key = match remote {
        true => r.num(at + 4, 4, "rkey", Show::Hex),
        false => r.bits((at + 4, 4), (23, 0), "lkey", Show::Hex),
    };
    let low = r.num(at + 8, 4, "buf_addr_lo", Show::Hex);
    let high = r.num(at + 12, 4, "buf_addr_hi", Show::Hex);
    r.place(remote, len, high << 32 | low, key);
    len
}

/// A send entry: of 128 bytes if there are so many, otherwise of 64.
#[must_use]
pub fn send(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("efa send WQE", Order::Little, bytes);
    let size = if bytes.len() >= LONG { LONG } else { SHORT };
    r.limit(size);
    let id = r.num(0, 2, "req_id", Show::Dec);
    let operation = r.bits((2, 1), (3, 0), "op_type", Show::Dec);
    let operation_name = name(OPERATIONS, operation);
    r.mean(operation_name);
    let has_imm = r.flag(2, 4, "has_imm", "immediate data are valid");
    let is_inline = r.flag(2, 5, "inline_msg", "data follow, not buffers");
    if r.flag(2, 6, "meta_extension", "must be 0") {
        r.problem("the extension bit is set");
    }
    if !r.flag(2, 7, "meta_desc", "a meta descriptor") {
        r.problem("it is not marked as a meta descriptor");
    }
    let phase = r.bits((3, 1), (0, 0), "phase", Show::Dec);
    let first = r.flag(3, 2, "first", "the first descriptor");
    let last = r.flag(3, 3, "last", "the last descriptor");
    let completes = r.flag(3, 4, "comp_req", "a completion is written");
    let to = r.num(4, 2, "dest_qp_num", Show::Hex);
    let length = r.num(6, 2, "length", Show::Dec);
    r.mean(if is_inline { "bytes of data" } else { "buffers" });
    let imm = r.num(8, 4, "immediate_data", Show::Hex);
    let ah = r.num(12, 2, "ah", Show::Dec);
    r.bits((14, 1), (1, 0), "hints", Show::Dec);
    r.num(16, 4, "qkey", Show::Hex);
    r.raw(26, 6, "req_id_ex");
    let mut at = META;
    if operation != 0 {
        buffer(&mut r, at, true);
        at += BUF;
    }
    let room = size - at;
    let mut carried = 0;
    if is_inline {
        if length as usize > room {
            r.problem(format!("{length} bytes of inline data where {room} have room"));
        }
        let here = (length as usize).min(room);
        r.raw(at, here, "data");
        r.unused(at + here, room - here, "data_unused");
        carried = length;
    } else {
        let most =
            if operation == 0 { io::EFA_IO_TX_DESC_NUM_BUFS } else { io::EFA_IO_TX_DESC_NUM_RDMA_BUFS };
        if length as usize > most {
            r.problem(format!("{length} buffers, and the operation has {most} at most"));
        }
        for _ in 0..(length as usize).min(most) {
            carried += buffer(&mut r, at, false);
            at += BUF;
        }
        if at < size {
            r.unused(at, size - at, "buffers_unused");
        }
    }
    r.say(format!("{operation_name} of {carried} bytes"));
    r.say(format!("request {id}"));
    r.say(format!("to {} by address handle {ah}", qp(to)));
    if has_imm {
        r.say(format!("imm {imm:#x}"));
    }
    r.say(if completes { "signaled" } else { "not signaled" });
    r.say(format!("phase {phase}"));
    if !(first && last) {
        r.problem("it is not marked as the first and the last descriptor");
    }
    if operation_name == "unknown" {
        r.problem(format!("operation {operation} is unknown"));
    }
    r.finish()
}

/// A buffer of a receive.
#[must_use]
pub fn recv(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("efa receive descriptor", Order::Little, bytes);
    r.limit(BUF);
    let low = r.num(0, 4, "buf_addr_lo", Show::Hex);
    let high = r.num(4, 4, "buf_addr_hi", Show::Hex);
    let id = r.num(8, 2, "req_id", Show::Dec);
    let len = r.num(10, 2, "length", Show::Dec);
    let key = r.bits((12, 4), (23, 0), "lkey", Show::Hex);
    let first = r.bits((12, 4), (30, 30), "first", Show::Dec) != 0;
    let last = r.bits((12, 4), (31, 31), "last", Show::Dec) != 0;
    r.place(false, len, high << 32 | low, key);
    r.say(format!("receive buffer of {len} bytes"));
    r.say(format!("request {id}"));
    r.say(match (first, last) {
        (true, true) => "the only one",
        (true, false) => "the first one",
        (false, true) => "the last one",
        (false, false) => "one between",
    });
    r.finish()
}

/// A completion: of 32 bytes if there are so many, otherwise of 16.
#[must_use]
pub fn cqe(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("efa CQE", Order::Little, bytes);
    let is_long = bytes.len() >= 2 * BUF;
    r.limit(if is_long { 2 * BUF } else { BUF });
    let id = r.num(0, 2, "req_id", Show::Dec);
    let status = r.num(2, 1, "status", Show::Dec);
    let status_name = name(STATUSES, status);
    r.mean(status_name);
    let phase = r.bits((3, 1), (0, 0), "phase", Show::Dec);
    let queue = r.bits((3, 1), (2, 1), "q_type", Show::Dec);
    r.mean(match queue as u8 {
        io::EFA_IO_SEND_QUEUE => "send queue",
        io::EFA_IO_RECV_QUEUE => "receive queue",
        _ => "unknown",
    });
    let has_imm = r.flag(3, 3, "has_imm", "immediate data are valid");
    let operation = r.bits((3, 1), (6, 4), "op_type", Show::Dec);
    let operation_name = name(OPERATIONS, operation);
    r.mean(operation_name);
    let unsolicited = r.flag(3, 7, "unsolicited", "it consumed no receive; the request id is not valid");
    let qpn = r.num(4, 2, "qp_num", Show::Hex);
    let done = match (status, queue as u8) {
        (0, io::EFA_IO_RECV_QUEUE) => format!("{operation_name} received"),
        (0, _) => format!("{operation_name} complete"),
        (_, io::EFA_IO_RECV_QUEUE) => format!("receive failed: {status_name}"),
        _ => format!("{operation_name} failed: {status_name}"),
    };
    r.say(done);
    r.say(match unsolicited {
        true => format!("of {}", qp(qpn)),
        false => format!("request {id} of {}", qp(qpn)),
    });
    if queue as u8 == io::EFA_IO_RECV_QUEUE {
        received(&mut r, is_long, has_imm, operation as u8 == io::EFA_IO_RDMA_WRITE);
    } else {
        r.raw(6, 6, "req_id_ex");
    }
    r.say(format!("phase {phase}"));
    if queue == 0 || queue == 3 {
        r.problem(format!("queue type {queue} is unknown"));
    }
    r.finish()
}

/// The fields of a receive's completion.
fn received(r: &mut Reader<'_>, is_long: bool, has_imm: bool, is_write: bool) {
    let mut len = r.num(6, 2, "length", Show::Dec);
    let ah = r.num(8, 2, "ah", Show::Dec);
    let is_known = ah != u64::from(io::UNKNOWN_AH);
    r.mean(if is_known { "the sender's address handle" } else { "there is no address handle of the sender" });
    let from = r.num(10, 2, "src_qp_num", Show::Hex);
    let imm = r.num(12, 4, "imm", Show::Hex);
    let mut sender = format!("from {}", qp(from));
    if is_long && is_write {
        len |= r.num(16, 2, "length_hi", Show::Dec) << 16;
    } else if is_long && !is_known {
        let address = gid(&r.raw(16, 16, "src_addr"));
        sender = format!("{sender} at {address}");
    }
    r.say(format!("{len} bytes"));
    r.say(sender);
    if has_imm {
        r.say(format!("imm {imm:#x}"));
    }
}
