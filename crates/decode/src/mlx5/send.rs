// SPDX-License-Identifier: MIT OR Apache-2.0
//! Send WQEs: a control segment, segments of the transport and the opcode, data segments.

use super::{OPCODES, QueueKind, SEG, data};
use crate::entry::Entry;
use crate::names::{Names, flags, gid, name, qp};
use crate::reader::{Order, Reader, Show};
use uverbs_mlx5_hw::wqe as hw;

/// Bytes of an address vector, and of the parts of an update of a key.
const AV: usize = 48;
const UMR_CTRL: usize = 48;
const MKEY: usize = 64;

const FENCES: Names = &[
    (0, "none"),
    (1, "waits for earlier local operations"),
    (2, "waits, of old devices"),
    (3, "waits, of old devices"),
    (4, "waits for earlier reads and atomics"),
];
/// The control segment's `ce`; DPDK uses 1.
const COMPLETIONS: Names =
    &[(0, "only if it fails"), (1, "only if it is the first that fails"), (2, "always: it is signaled")];

const UMR_FLAGS: Names = &[
    (hw::MLX5_WQE_UMR_CTRL_FLAG_INLINE as u64, "INLINE"),
    (hw::MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE as u64, "CHECK_FREE"),
    (hw::MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET as u64, "TRNSLATION_OFFSET"),
    (hw::MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN as u64, "CHECK_QPN"),
];
const UMR_MASK: Names = &[
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN, "LEN"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR, "START_ADDR"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR, "SIG_ERR"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE, "BSF_ENABLE"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY, "MKEY"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN, "QPN"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE, "ACCESS_LOCAL_WRITE"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ, "ACCESS_REMOTE_READ"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE, "ACCESS_REMOTE_WRITE"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC, "ACCESS_ATOMIC"),
    (hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE, "FREE"),
];
const ACCESS: Names = &[
    (hw::MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC as u64, "remote atomics"),
    (hw::MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE as u64, "remote write"),
    (hw::MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ as u64, "remote read"),
    (hw::MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE as u64, "local write"),
    (hw::MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_READ as u64, "local read"),
];

/// A send WQE of such a queue. `bytes` may have more than its size field says: [`Entry::len`] is what it takes.
#[must_use]
pub fn send(kind: QueueKind, bytes: &[u8]) -> Entry {
    let mut r = Reader::new("mlx5 send WQE", Order::Big, bytes);
    r.num(0, 1, "opmod", Show::Hex);
    let index = r.num(1, 2, "wqe_index", Show::Dec);
    let opcode = r.num(3, 1, "opcode", Show::Hex);
    let operation = name(OPCODES, opcode);
    r.mean(operation);
    let qpn = r.num(4, 3, "qpn", Show::Hex);
    let ds = r.bits((7, 1), (5, 0), "ds", Show::Dec);
    let len = ds as usize * SEG;
    r.mean(format!("{len} bytes"));
    if ds == 0 {
        r.limit(SEG);
        r.problem("its size is 0");
    } else {
        r.limit(len);
    }
    r.num(8, 1, "signature", Show::Hex);
    r.num(9, 2, "dci_stream", Show::Dec);
    let fence = r.bits((11, 1), (7, 5), "fence", Show::Dec);
    r.mean(name(FENCES, fence));
    let completion = r.bits((11, 1), (3, 2), "ce", Show::Dec);
    r.mean(name(COMPLETIONS, completion));
    let solicited = r.flag(11, 1, "se", "the peer's completion is a solicited event");
    let imm = r.num(12, 4, "imm", Show::Hex);
    let mut at = SEG;
    let opcode = opcode as u8;
    let is_local = matches!(opcode, hw::MLX5_OPCODE_NOP | hw::MLX5_OPCODE_UMR);
    let mut more = Vec::new();
    match opcode {
        hw::MLX5_OPCODE_SEND_IMM | hw::MLX5_OPCODE_RDMA_WRITE_IMM => {
            r.mean("immediate data");
            more.push(format!("imm {imm:#x}"));
        }
        hw::MLX5_OPCODE_SEND_INVAL => {
            r.mean("the peer's key that is invalidated");
            more.push(format!("invalidates {imm:#x}"));
        }
        hw::MLX5_OPCODE_UMR => {
            r.mean("the memory key that is changed");
            more.push(format!("mkey {imm:#x}"));
        }
        _ => r.mean("not used"),
    }
    if ds > 1 && !is_local {
        match kind {
            QueueKind::Ud | QueueKind::Dci => {
                more.push(av(&mut r, at, kind));
                at += AV;
            }
            QueueKind::Xrc => {
                let srqn = r.bits((at, 4), (23, 0), "xrc_srqn", Show::Hex);
                r.bits((at, 4), (31, 24), "xrc_high", Show::Hex);
                r.unused(at + 4, 12, "xrc_unused");
                more.push(format!("to SRQ {srqn:#08x}"));
                at += SEG;
            }
            QueueKind::Rc | QueueKind::Uc | QueueKind::Raw | QueueKind::Keys => {}
        }
    }
    let has_data = operands(&mut r, kind, opcode, &mut at, len, &mut more);
    let mut carried = r.local_bytes();
    if has_data {
        carried += list(&mut r, at, len);
    }
    let moves = match opcode {
        hw::MLX5_OPCODE_ATOMIC_CS | hw::MLX5_OPCODE_ATOMIC_FA => operation.to_owned(),
        _ if has_data => format!("{operation} of {carried} bytes"),
        _ => operation.to_owned(),
    };
    r.say(moves);
    r.say(format!("WQE {index} of {}", qp(qpn)));
    more.into_iter().for_each(|words| r.say(words));
    r.say(if completion == 2 { "signaled" } else { "not signaled" });
    if fence != 0 {
        r.say(format!("fence: {}", name(FENCES, fence)));
    }
    if solicited {
        r.say("solicited");
    }
    if operation == "unknown" {
        r.problem(format!("opcode {opcode:#04x} is unknown"));
    }
    r.finish()
}

/// The segments that the opcode has. Returns whether data segments follow.
fn operands(
    r: &mut Reader<'_>,
    kind: QueueKind,
    opcode: u8,
    at: &mut usize,
    len: usize,
    more: &mut Vec<String>,
) -> bool {
    match opcode {
        hw::MLX5_OPCODE_SEND | hw::MLX5_OPCODE_TSO if kind == QueueKind::Raw => eth(r, at, more),
        hw::MLX5_OPCODE_SEND | hw::MLX5_OPCODE_SEND_IMM | hw::MLX5_OPCODE_SEND_INVAL => {}
        hw::MLX5_OPCODE_RDMA_WRITE | hw::MLX5_OPCODE_RDMA_WRITE_IMM | hw::MLX5_OPCODE_RDMA_READ => {
            remote(r, at)
        }
        hw::MLX5_OPCODE_ATOMIC_CS => {
            remote(r, at);
            let swap = r.num(*at, 8, "swap", Show::Hex);
            let compare = r.num(*at + 8, 8, "compare", Show::Hex);
            more.push(format!("{compare:#x} becomes {swap:#x}"));
            *at += SEG;
        }
        hw::MLX5_OPCODE_ATOMIC_FA => {
            remote(r, at);
            let add = r.num(*at, 8, "add", Show::Hex);
            r.num(*at + 8, 8, "compare", Show::Hex);
            r.mean("not used");
            more.push(format!("adds {add:#x}"));
            *at += SEG;
        }
        hw::MLX5_OPCODE_UMR => {
            umr(r, *at, len, more);
            return false;
        }
        _ => {
            if len > *at {
                r.raw(*at, len - *at, "segments");
            }
            return false;
        }
    }
    true
}

/// `struct mlx5_wqe_raddr_seg`
fn remote(r: &mut Reader<'_>, at: &mut usize) {
    let addr = r.num(*at, 8, "raddr", Show::Hex);
    let key = r.num(*at + 8, 4, "rkey", Show::Hex);
    r.place(true, 0, addr, key);
    *at += SEG;
}

/// `struct mlx5_wqe_av`. Returns the destination in words.
fn av(r: &mut Reader<'_>, at: usize, kind: QueueKind) -> String {
    if kind == QueueKind::Dci {
        r.num(at, 8, "dc_key", Show::Hex);
    } else {
        r.num(at, 4, "qkey", Show::Hex);
        r.num(at + 4, 4, "qkey_low", Show::Hex);
    }
    r.flag(at + 8, 7, "extended", "the vector has 48 bytes");
    r.bits((at + 8, 1), (6, 0), "dqp_high", Show::Hex);
    let dest = r.num(at + 9, 3, "dqp_dct", Show::Hex);
    r.bits((at + 12, 1), (7, 4), "stat_rate", Show::Dec);
    r.bits((at + 12, 1), (3, 0), "sl", Show::Dec);
    r.flag(at + 13, 7, "fl", "loopback");
    r.bits((at + 13, 1), (6, 0), "mlid", Show::Hex);
    let rlid = r.num(at + 14, 2, "rlid", Show::Hex);
    r.mean("the peer's LID; on RoCE v2 the UDP source port");
    let mac = r.raw(at + 20, 6, "rmac");
    r.num(at + 26, 1, "tclass", Show::Hex);
    r.num(at + 27, 1, "hop_limit", Show::Dec);
    r.flag(at + 28, 6, "grh", "the packets carry a GRH");
    r.flag(at + 28, 7, "grh_high", "not used");
    r.bits((at + 28, 4), (29, 28), "grh_rsvd", Show::Hex);
    r.bits((at + 28, 4), (27, 20), "sgid_index", Show::Dec);
    r.bits((at + 28, 4), (19, 0), "flow_label", Show::Hex);
    let rgid = gid(&r.raw(at + 32, 16, "rgid"));
    r.mean(rgid.clone());
    let whom = if kind == QueueKind::Dci { format!("DCT {dest:#08x}") } else { qp(dest) };
    match mac.iter().any(|byte| *byte != 0) {
        true => format!("to {whom} at {rgid}"),
        false => format!("to {whom} at LID {rlid:#x}"),
    }
}

/// `struct mlx5_wqe_eth_seg`, with the headers that are in it.
fn eth(r: &mut Reader<'_>, at: &mut usize, more: &mut Vec<String>) {
    let l4 = r.flag(*at + 4, 7, "l4_csum", "the device computes the TCP or UDP checksum");
    let l3 = r.flag(*at + 4, 6, "l3_csum", "the device computes the IP header's checksum");
    let mss = r.num(*at + 6, 2, "mss", Show::Dec);
    let header = r.num(*at + 12, 2, "inline_hdr_sz", Show::Dec) as usize;
    if header > 0 {
        r.raw(*at + 14, header, "inline_hdr");
        more.push(format!("{header} bytes of headers in the WQE"));
    }
    for (is_set, words) in [(l3, "L3 checksum"), (l4, "L4 checksum")] {
        if is_set {
            more.push(words.into());
        }
    }
    if mss > 0 {
        more.push(format!("in segments of {mss} bytes"));
    }
    // Two bytes of the headers are in the segment, the rest follows in units of 16.
    *at += SEG + header.saturating_sub(2).next_multiple_of(SEG);
}

/// An update of a memory key, and its translation.
fn umr(r: &mut Reader<'_>, at: usize, len: usize, more: &mut Vec<String>) {
    let bits = r.num(at, 1, "flags", Show::Hex);
    r.mean(flags(UMR_FLAGS, bits));
    let octowords = r.num(at + 4, 2, "klm_octowords", Show::Dec);
    r.num(at + 6, 2, "translation_offset", Show::Dec);
    let mask = r.num(at + 8, 8, "mkey_mask", Show::Hex);
    let changes = flags(UMR_MASK, mask);
    r.mean(changes.clone());
    more.push(format!("changes {}", if mask == 0 { "nothing" } else { &changes }));
    let key = at + UMR_CTRL;
    let free = r.flag(key, 6, "free", "the key is free");
    let access = r.num(key + 2, 1, "access_flags", Show::Hex);
    r.mean(flags(ACCESS, access));
    r.num(key + 3, 1, "sf", Show::Hex);
    r.num(key + 4, 3, "key_qpn", Show::Hex);
    r.mean("0xffffff: any QP");
    r.num(key + 7, 1, "mkey_7_0", Show::Hex);
    r.num(key + 12, 1, "key_flags", Show::Hex);
    r.num(key + 13, 3, "pd", Show::Hex);
    let start = r.num(key + 16, 8, "start_addr", Show::Hex);
    let size = r.num(key + 24, 8, "len", Show::Dec);
    r.num(key + 32, 4, "bsf_octword_size", Show::Dec);
    r.num(key + 52, 4, "translations_octword_size", Show::Dec);
    r.num(key + 59, 1, "log_page_size", Show::Dec);
    if free {
        more.push("unbinds".into());
    }
    if mask & hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN != 0 {
        more.push(format!("{size} bytes at {start:#x}"));
    }
    let mut next = key + MKEY;
    let is_inline = bits & u64::from(hw::MLX5_WQE_UMR_CTRL_FLAG_INLINE) != 0;
    let mut left = if is_inline { octowords } else { 1 };
    while next + SEG <= len && left > 0 {
        data(r, next, false);
        next += SEG;
        left -= 1;
    }
    if next < len {
        r.unused(next, len - next, "padding");
    }
}

/// Data segments up to the end. Returns the bytes of those that are inline.
fn list(r: &mut Reader<'_>, mut at: usize, len: usize) -> u64 {
    let before = r.local_bytes();
    let mut sum = 0_u64;
    while at < len {
        if !r.has(at, 7) {
            data(r, at, false);
            at += SEG;
            continue;
        }
        r.flag(at, 7, "inline", "data follow in the WQE");
        let count = r.bits((at, 4), (30, 0), "byte_count", Show::Dec);
        let room = len.saturating_sub(at + 4);
        let here = usize::try_from(count).unwrap_or(usize::MAX);
        if here > room {
            r.problem(format!("{count} bytes of inline data where {room} have room"));
        }
        r.raw(at + 4, here.min(room), "data");
        sum += count;
        let end = (at + 4).saturating_add(here).next_multiple_of(SEG).min(len);
        let padding = at + 4 + here.min(room);
        if end > padding {
            r.unused(padding, end - padding, "padding");
        }
        at = end.max(at + SEG);
    }
    (r.local_bytes() - before).saturating_add(sum)
}
