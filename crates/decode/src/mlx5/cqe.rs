// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queue entries.

use super::OPCODES;
use crate::entry::Entry;
use crate::names::{Names, flags, name, qp};
use crate::reader::{Order, Reader, Show};
use uverbs_mlx5_hw::cqe as hw;

const KINDS: Names = &[
    (hw::MLX5_CQE_REQ as u64, "REQ"),
    (hw::MLX5_CQE_RESP_WR_IMM as u64, "RESP_WR_IMM"),
    (hw::MLX5_CQE_RESP_SEND as u64, "RESP_SEND"),
    (hw::MLX5_CQE_RESP_SEND_IMM as u64, "RESP_SEND_IMM"),
    (hw::MLX5_CQE_RESP_SEND_INV as u64, "RESP_SEND_INV"),
    (hw::MLX5_CQE_RESIZE_CQ as u64, "RESIZE_CQ"),
    (hw::MLX5_CQE_NO_PACKET as u64, "NO_PACKET"),
    (hw::MLX5_CQE_SIG_ERR as u64, "SIG_ERR"),
    (hw::MLX5_CQE_REQ_ERR as u64, "REQ_ERR"),
    (hw::MLX5_CQE_RESP_ERR as u64, "RESP_ERR"),
    (hw::MLX5_CQE_INVALID as u64, "INVALID"),
];

/// The status that a program gets (`mlx5_poll_cq` and ibv_wc_status_str(3)).
const STATUSES: Names = &[
    (hw::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR as u64, "IBV_WC_LOC_LEN_ERR"),
    (hw::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR as u64, "IBV_WC_LOC_QP_OP_ERR"),
    (hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR as u64, "IBV_WC_LOC_PROT_ERR"),
    (hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR as u64, "IBV_WC_WR_FLUSH_ERR"),
    (hw::MLX5_CQE_SYNDROME_MW_BIND_ERR as u64, "IBV_WC_MW_BIND_ERR"),
    (hw::MLX5_CQE_SYNDROME_BAD_RESP_ERR as u64, "IBV_WC_BAD_RESP_ERR"),
    (hw::MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR as u64, "IBV_WC_LOC_ACCESS_ERR"),
    (hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR as u64, "IBV_WC_REM_INV_REQ_ERR"),
    (hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR as u64, "IBV_WC_REM_ACCESS_ERR"),
    (hw::MLX5_CQE_SYNDROME_REMOTE_OP_ERR as u64, "IBV_WC_REM_OP_ERR"),
    (hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR as u64, "IBV_WC_RETRY_EXC_ERR"),
    (hw::MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR as u64, "IBV_WC_RNR_RETRY_EXC_ERR"),
    (hw::MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR as u64, "IBV_WC_REM_ABORT_ERR"),
];

const CHECKS: Names = &[
    (hw::MLX5_CQE_L2_OK as u64, "L2 good"),
    (hw::MLX5_CQE_L3_OK as u64, "L3 checksum good"),
    (hw::MLX5_CQE_L4_OK as u64, "L4 checksum good"),
];
const L3: Names = &[
    (hw::MLX5_CQE_L3_HDR_TYPE_NONE as u64, "not IP"),
    (hw::MLX5_CQE_L3_HDR_TYPE_IPV6 as u64, "IPv6"),
    (hw::MLX5_CQE_L3_HDR_TYPE_IPV4 as u64, "IPv4"),
];
const FORMATS: Names =
    &[(0, "plain"), (1, "data in the entry"), (2, "data before the entry"), (3, "compressed entries follow")];

/// Bytes of an entry, or of the second half of a long one.
const ENTRY: usize = 64;

/// A completion of 64 bytes, or of 128 if there are so many.
#[must_use]
pub fn cqe(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("mlx5 CQE", Order::Big, bytes);
    let at = if bytes.len() >= 2 * ENTRY { ENTRY } else { 0 };
    r.limit(at + ENTRY);
    let kind = r.bits((at + 63, 1), (7, 4), "opcode", Show::Hex);
    r.mean(name(KINDS, kind));
    let format = r.bits((at + 63, 1), (3, 2), "format", Show::Dec);
    r.mean(name(FORMATS, format));
    let solicited = r.flag(at + 63, 1, "se", "solicited event");
    r.bits((at + 63, 1), (0, 0), "owner", Show::Dec);
    r.mean("changes with each lap of the ring");
    r.num(at + 62, 1, "signature", Show::Hex);
    let counter = r.num(at + 60, 2, "wqe_counter", Show::Dec);
    let wqe = r.num(at + 56, 1, "s_wqe_opcode", Show::Hex);
    if matches!(kind as u8, hw::MLX5_CQE_REQ | hw::MLX5_CQE_REQ_ERR) {
        r.mean(name(OPCODES, wqe));
    }
    let qpn = r.num(at + 57, 3, "qpn", Show::Hex);
    r.num(at + 32, 1, "srqn_uidx_high", Show::Hex);
    r.num(at + 33, 3, "srqn_uidx", Show::Hex);
    r.mean("the QP's user index, or the SRQ");
    let done = match kind as u8 {
        hw::MLX5_CQE_REQ | hw::MLX5_CQE_REQ_ERR => format!("{} complete", name(OPCODES, wqe)),
        hw::MLX5_CQE_RESP_WR_IMM => "RDMA_WRITE_IMM received".into(),
        hw::MLX5_CQE_RESP_SEND => "SEND received".into(),
        hw::MLX5_CQE_RESP_SEND_IMM => "SEND_IMM received".into(),
        hw::MLX5_CQE_RESP_SEND_INV => "SEND_INVAL received".into(),
        hw::MLX5_CQE_RESP_ERR => "receive failed".into(),
        hw::MLX5_CQE_SIG_ERR => "signature error".into(),
        hw::MLX5_CQE_RESIZE_CQ => "the ring continues in another one".into(),
        hw::MLX5_CQE_INVALID => "never written".into(),
        _ => format!("{} of an unknown kind", name(KINDS, kind)),
    };
    let queue = format!("WQE {counter} of {}", qp(qpn));
    match kind as u8 {
        hw::MLX5_CQE_REQ_ERR | hw::MLX5_CQE_RESP_ERR => {
            error(&mut r, at, &done.replace(" complete", " failed"), &queue);
        }
        hw::MLX5_CQE_RESIZE_CQ | hw::MLX5_CQE_INVALID => r.say(done),
        hw::MLX5_CQE_SIG_ERR => signature(&mut r, at, done),
        _ if format == 3 => {
            let count = r.num(at + 44, 4, "mini_cqes", Show::Dec);
            r.say(format!("the title of {count} compressed completions"));
            r.say(queue);
            success(&mut r, at, kind as u8, format);
        }
        _ => {
            let len = r.num(at + 44, 4, "byte_cnt", Show::Dec);
            r.say(done);
            r.say(queue);
            r.say(format!("{len} bytes"));
            success(&mut r, at, kind as u8, format);
            scattered(&mut r, at, format, len);
        }
    }
    if solicited {
        r.say("solicited");
    }
    r.finish()
}

fn error(r: &mut Reader<'_>, at: usize, done: &str, queue: &str) {
    let vendor = r.num(at + 54, 1, "vendor_err_synd", Show::Hex);
    let syndrome = r.num(at + 55, 1, "syndrome", Show::Hex);
    let status = name(STATUSES, syndrome);
    r.mean(status);
    r.say(format!("{done}: {status}"));
    r.say(queue);
    r.say(format!("vendor error {vendor:#04x}"));
    if status == "unknown" {
        r.problem(format!("syndrome {syndrome:#04x} is unknown"));
    }
}

/// `struct mlx5_sig_err_cqe` of `linux/mlx5/device.h`.
fn signature(r: &mut Reader<'_>, at: usize, done: String) {
    r.num(at + 16, 4, "expected_trans_sig", Show::Hex);
    r.num(at + 20, 4, "actual_trans_sig", Show::Hex);
    r.num(at + 24, 4, "expected_reftag", Show::Hex);
    r.num(at + 28, 4, "actual_reftag", Show::Hex);
    let kind = r.num(at + 32, 2, "syndrome", Show::Hex);
    let key = r.num(at + 36, 4, "mkey", Show::Hex);
    let offset = r.num(at + 40, 8, "err_offset", Show::Dec);
    r.say(done);
    r.say(format!("syndrome {kind:#06x}"));
    r.say(format!("mkey {key:#x}"));
    r.say(format!("at byte {offset}"));
}

/// The fields of a completion without error, except those at the start where data may be.
fn success(r: &mut Reader<'_>, at: usize, kind: u8, format: u64) {
    let value = r.num(at + 36, 4, "imm_inval_pkey", Show::Hex);
    match kind {
        hw::MLX5_CQE_RESP_WR_IMM | hw::MLX5_CQE_RESP_SEND_IMM => {
            r.mean("immediate data");
            r.say(format!("imm {value:#x}"));
        }
        hw::MLX5_CQE_RESP_SEND_INV => {
            r.mean("the key that was invalidated");
            r.say(format!("invalidated {value:#x}"));
        }
        _ => {}
    }
    r.num(at + 40, 1, "app", Show::Hex);
    r.num(at + 41, 1, "app_op", Show::Hex);
    r.num(at + 42, 2, "app_info", Show::Hex);
    r.num(at + 48, 8, "timestamp", Show::Dec);
    if format == 1 && at == 0 {
        // The data are in the place of these fields.
        return;
    }
    r.num(at + 2, 2, "wqe_id", Show::Dec);
    r.num(at + 17, 1, "ml_path", Show::Hex);
    // `check_sum` of the kernel's `struct mlx5_cqe64`, and the hash result of frames.
    r.num(at + 12, 4, "rss_hash_result", Show::Hex);
    r.num(at + 20, 2, "check_sum", Show::Hex);
    r.num(at + 22, 2, "slid", Show::Hex);
    let grh = r.bits((at + 24, 4), (29, 28), "grh", Show::Dec);
    r.mean(
        ["no GRH, or RoCE v1", "a GRH, or RoCE v2 on IPv6", "RoCE v2 on IPv4", "unknown"][grh as usize & 3],
    );
    r.bits((at + 24, 4), (27, 24), "sl", Show::Dec);
    let from = r.bits((at + 24, 4), (23, 0), "rqpn", Show::Hex);
    r.mean("the sender of a datagram");
    if from != 0 {
        r.say(format!("from {}", qp(from)));
    }
    let checks = r.bits((at + 28, 1), (2, 0), "checks", Show::Hex);
    r.mean(flags(CHECKS, checks));
    r.bits((at + 28, 1), (7, 3), "hds_ip_ext", Show::Hex);
    r.bits((at + 29, 1), (6, 4), "l4_hdr_type", Show::Dec);
    let l3 = r.bits((at + 29, 1), (3, 2), "l3_hdr_type", Show::Dec);
    r.mean(name(L3, l3));
    r.flag(at + 29, 0, "vlan_stripped", "a VLAN tag was stripped");
    r.num(at + 30, 2, "vlan_info", Show::Hex);
}

/// Data in the entry.
fn scattered(r: &mut Reader<'_>, at: usize, format: u64, len: u64) {
    // Up to 32 bytes at the start of the entry, up to 64 in the half before it.
    let (from, most) = match format {
        1 => (at, 32),
        2 if at > 0 => (0, 64),
        2 => {
            r.problem("data before an entry of 64 bytes");
            return;
        }
        _ => return,
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > most {
        r.problem(format!("{len} bytes of data in an entry that has room for {most}"));
    }
    r.raw(from, len.min(most), "data");
    r.say("data in the entry");
}
