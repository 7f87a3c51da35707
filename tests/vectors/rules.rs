// SPDX-License-Identifier: MIT OR Apache-2.0
//! The intentional differences of this driver from the reference.
//!
//! A rule applies to a case because of its input, not of its name or number. It changes the expected results, so cases
//! with a rule are checked, too. Any other difference is a failure. The tables of docs/src/reference/semantics.md have
//! the subject of each rule, the behaviour of the reference and the reason for the difference; [`compare`] compares
//! names and errors of the rules and the tables.

use crate::memory;
use crate::model::{Bell, Case, Num, Op, Pattern, Posted, Qp, SendWr, Sent, Sge, Step, Wqe};
use crate::request::{self, Request};
use crate::run::Face;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use uverbs_core::provider::{self, PostError};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::cqe::{Cqe64, MLX5_CQE_REQ};
use uverbs_mlx5_hw::wqe::{MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_RDMA_READ};
use uverbs_tests::semantics::Table;
use zerocopy::FromBytes as _;

/// All rules, and how a post is refused by them.
const RULES: [(&str, Option<PostError>); 20] = [
    ("illegal-opcode", Some(PostError::IllegalOpcode)),
    ("ip-csum", Some(PostError::IllegalFlag)),
    ("dci-list", Some(PostError::InvalidArgument)),
    ("inline-read", Some(PostError::IllegalFlag)),
    ("atomic-length", Some(PostError::InvalidLength)),
    ("atomic-entry", None),
    ("long-sge", Some(PostError::InvalidLength)),
    ("local-sges", Some(PostError::InvalidArgument)),
    ("state", Some(PostError::BadState)),
    ("tso-wrap", None),
    ("l2-header-only", None),
    ("srq-zero-length", None),
    ("srq-null-mr", None),
    ("inline-underflow", None),
    ("raw-without-sends", None),
    ("srq-of-none", None),
    ("ah-field-range", None),
    ("bind-verb", None),
    ("scattered-send", None),
    ("start-poll-error", None),
];

/// Compares the rules with the tables of docs/src/reference/semantics.md. `met` are the rules that cases needed, if all cases of the
/// repository's file were run; then none may be missing.
pub(crate) fn compare(met: Option<&BTreeSet<&str>>) -> Result<()> {
    let table = Table::read()?;
    let documented: BTreeMap<_, _> =
        table.rules.iter().map(|(rule, error)| (rule.as_str(), *error)).collect();
    ensure!(documented.len() == table.rules.len(), "docs/src/reference/semantics.md has a rule twice");
    let ours = BTreeMap::from(RULES);
    ensure!(
        documented == ours,
        "docs/src/reference/semantics.md has the rules {documented:?}, the vectors {ours:?}"
    );
    for (rule, error) in RULES {
        let mut rows = table.rows.iter().filter(|row| row.rule.as_deref() == Some(rule)).peekable();
        ensure!(
            error.is_none() || rows.peek().is_some(),
            "docs/src/reference/semantics.md: no row has the rule {rule}"
        );
        for row in rows {
            let (line, answer) = (row.line, row.result.err());
            ensure!(
                answer == error,
                "docs/src/reference/semantics.md:{line}: {answer:?}, the rule {rule} has {error:?}"
            );
            // The errno that `apply` expects for every refused post.
            let errno = row.errno("mlx5");
            ensure!(
                error.is_none() || errno == "EINVAL",
                "docs/src/reference/semantics.md:{line}: {errno}, not EINVAL"
            );
        }
        ensure!(met.is_none_or(|met| met.contains(rule)), "the rule {rule} applies to no vector");
    }
    Ok(())
}

const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
/// Units and bytes.
const UNIT: usize = 16;
const BLOCK: usize = 64;

/// Applies the rules to the case. Returns their names.
pub(crate) fn apply(case: &mut Case, face: Face, null_mr: u32) -> Vec<&'static str> {
    let mut rules = Vec::new();
    create(case, &mut rules);
    if let Some(qp) = case.qp.clone() {
        let (mut qp, mut shift) = (qp, 0);
        for step in &mut case.steps {
            send(step, &qp, face, &mut shift, &mut rules);
            if let Step::Modify { state, .. } = step {
                qp.state.clone_from(state);
            }
        }
        if !rules.is_empty() {
            bells(&mut case.steps);
        }
    }
    receive(case, null_mr, &mut rules);
    scattered_sends(&mut case.steps, &mut rules);
    failed_starts(&mut case.steps, &mut rules);
    rules.sort_unstable();
    rules.dedup();
    rules
}

// Sends.

/// The table of ibv_post_send(3), and of mlx5dv_wr_post(3) for DC.
fn is_legal(qp_type: &str, opcode: WrOpcode) -> bool {
    use WrOpcode as O;
    let message = matches!(opcode, O::SEND | O::SEND_WITH_IMM);
    let peer = message
        || matches!(
            opcode,
            O::SEND_WITH_INV | O::RDMA_WRITE | O::RDMA_WRITE_WITH_IMM | O::LOCAL_INV | O::BIND_MW
        );
    match qp_type {
        "UD" => message,
        "UC" => peer,
        "RAW_PACKET" => matches!(opcode, O::SEND | O::TSO),
        _ => peer || matches!(opcode, O::RDMA_READ | O::ATOMIC_CMP_AND_SWP | O::ATOMIC_FETCH_AND_ADD),
    }
}

fn is_atomic(opcode: WrOpcode) -> bool {
    matches!(opcode, WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD)
}

/// The reason why a WR is refused that the reference posts.
fn refusal(qp: &Qp, opcode: WrOpcode, flags: SendFlags, sges: &[Sge], inline: bool) -> Option<&'static str> {
    let is_read = opcode == WrOpcode::RDMA_READ || is_atomic(opcode);
    if !is_legal(&qp.qp_type, opcode) {
        return Some("illegal-opcode");
    }
    if flags.contains(SendFlags::IP_CSUM) && qp.qp_type != "RAW_PACKET" {
        return Some("ip-csum");
    }
    if is_read && inline {
        return Some("inline-read");
    }
    let first = sges.iter().map(|s| s.length).find(|length| *length != 0);
    if is_atomic(opcode) && !inline && first.is_none_or(|length| length < 8) {
        return Some("atomic-length");
    }
    let is_local = matches!(opcode, WrOpcode::LOCAL_INV | WrOpcode::BIND_MW);
    if !inline && !is_local && sges.iter().any(|s| s.length >= 1 << 31) {
        return Some("long-sge");
    }
    None
}

fn wr_refusal(qp: &Qp, wr: &SendWr, face: Face) -> Option<&'static str> {
    let (opcode, flags) = (request::opcode(&wr.opcode), request::flags(&wr.send_flags));
    // In a list, INLINE has a meaning only if there are entries; it is invalid on a read nevertheless.
    let inline = flags.contains(SendFlags::INLINE) && (face == Face::List || !wr.sg_list.is_empty());
    let refused = refusal(qp, opcode, flags, &wr.sg_list, inline);
    if qp.qp_type == "DCI" {
        return Some("dci-list");
    }
    let bind = opcode == WrOpcode::BIND_MW && !wr.sg_list.is_empty() && face != Face::Typed;
    refused.or(bind.then_some("local-sges"))
}

/// The reason why a session fails that the reference completes: the first invalid builder or setter.
fn session_refusal(qp: &Qp, ops: &[Op]) -> Option<&'static str> {
    let (mut flags, mut opcode) = (SendFlags::empty(), WrOpcode::SEND);
    for op in ops {
        let refused = match op {
            Op::Set { wr_flags, .. } => {
                flags = request::flags(wr_flags);
                None
            }
            Op::SetSge { sge } => refusal(qp, opcode, SendFlags::empty(), core::slice::from_ref(sge), false),
            Op::SetSgeList { sg_list } => refusal(qp, opcode, SendFlags::empty(), sg_list, false),
            Op::SetInlineData { .. } | Op::SetInlineDataList { .. } => {
                refusal(qp, opcode, SendFlags::empty(), &[], true)
            }
            op => request::builder(op).and_then(|what| {
                opcode = what.opcode();
                let enough = Sge { addr: Default::default(), length: 8, lkey: Default::default() };
                refusal(qp, opcode, flags, &[enough], false)
            }),
        };
        if refused.is_some() {
            return refused;
        }
    }
    None
}

/// Rewrites a step on the send queue. `shift` is the number of blocks by which the queue is behind that of the
/// reference.
fn send(step: &mut Step, qp: &Qp, face: Face, shift: &mut u32, rules: &mut Vec<&'static str>) {
    match step {
        Step::Modify { state, .. } if state == "RESET" => *shift = 0,
        Step::PostSend { wrs, out } => {
            moved(out, *shift);
            // The state is checked before the WRs.
            let state_refused = out.ret == ENOMEM && refuses(&qp.state);
            if state_refused && out.bad_wr == 0 {
                out.ret = EINVAL;
                rules.push("state");
                return;
            }
            let good = usize::try_from(out.bad_wr).unwrap_or(wrs.len());
            let refused =
                wrs.iter().take(good).enumerate().find_map(|(i, wr)| Some((i, wr_refusal(qp, wr, face)?)));
            if let Some((i, rule)) = refused {
                rules.push(rule);
                cut(out, i, shift);
                (out.ret, out.bad_wr) = (EINVAL, i as i32);
            }
            for (wr, wqe) in wrs.iter().zip(&mut out.sq.wqes) {
                let opcode = request::opcode(&wr.opcode);
                if matches!(opcode, WrOpcode::LOCAL_INV | WrOpcode::BIND_MW) && !wr.sg_list.is_empty() {
                    rules.push("local-sges");
                    drop_entries(wqe, wr.sg_list.iter().filter(|s| s.length != 0).count());
                }
                if let (Some(tso), "RAW_PACKET") = (&wr.tso, qp.qp_type.as_str()) {
                    tso_wrap(wqe, qp, tso.hdr.0.len(), rules);
                }
            }
            resized(out, shift, rules);
        }
        Step::WrApi { ops, out } => {
            moved(out, *shift);
            // If both refuse it, the errnos may differ.
            if matches!(out.ret, 0 | ENOMEM)
                && matches!(ops.last(), Some(Op::Complete))
                && let Some(rule) = session_refusal(qp, ops)
            {
                rules.push(rule);
                cut(out, 0, shift);
                (out.ret, out.bad_wr) = (EINVAL, if face == Face::List { -1 } else { out.bad_wr });
            }
            let requests = Request::of_session(ops).unwrap_or_default();
            for (request, wqe) in requests.iter().zip(&mut out.sq.wqes) {
                if is_atomic(request.wr.op.opcode()) && face != Face::Wr && face != Face::Mixed {
                    atomic_entries(wqe, qp, rules);
                }
                if let provider::Op::Tso(tso) = request.wr.op {
                    tso_wrap(wqe, qp, tso.header.len(), rules);
                }
                if qp.qp_type == "RAW_PACKET" && qp.ctx == "eth_l2" {
                    l2_header_only(wqe, request, rules);
                }
            }
            resized(out, shift, rules);
        }
        Step::BindMw { out, bind_info, rkey_after, mw, .. } => {
            const ZERO_BASED: u32 = 1 << 5;
            /// Blocks of a bind.
            const BLOCKS: u32 = 3;
            moved(out, *shift);
            if out.ret == EINVAL && bind_info.access & ZERO_BASED != 0 {
                rules.push("bind-verb");
                let (old, len) = (mw.rkey.u32(), BLOCKS as usize * BLOCK);
                *rkey_after = Num((old & !0xff | (old + 1) & 0xff).into());
                (out.ret, out.bad_wr) = (0, -1);
                out.sq.end = (out.sq.start + BLOCKS) & 0xffff;
                out.sq_dbrec = Some(out.sq.end);
                out.bf = Some(Bell { offset: 0, len, hex: Pattern(vec![None; len]) });
            }
        }
        _ => {}
    }
}

fn refuses(state: &str) -> bool {
    matches!(state, "RESET" | "INIT" | "RTR")
}

fn bytes(wqe: &mut Wqe) -> Option<&mut Vec<Option<u8>>> {
    wqe.hex.as_mut().map(|hex| &mut hex.0)
}

fn blocks(wqes: &[Wqe]) -> u32 {
    wqes.iter().map(|w| w.hex.as_ref().map_or(1, |hex| hex.len().div_ceil(BLOCK) as u32)).sum()
}

/// Changes the indices of a step's WQEs, `shift` blocks earlier.
fn moved(out: &mut Sent, shift: u32) {
    if shift == 0 {
        return;
    }
    let start = out.sq.start.wrapping_sub(shift) & 0xffff;
    number(&mut out.sq, start);
    if out.sq_dbrec.is_some() {
        out.sq_dbrec = Some(out.sq.end);
    }
    rung(out);
}

fn number(sq: &mut Posted, start: u32) {
    (sq.start, sq.end) = (start, start);
    for wqe in &mut sq.wqes {
        wqe.idx = sq.end;
        let count = blocks(core::slice::from_ref(wqe));
        if let Some(bytes) = wqe.hex.as_mut().map(|hex| &mut hex.0) {
            bytes[1..3].copy_from_slice(&[Some((sq.end >> 8) as u8), Some(sq.end as u8)]);
        }
        sq.end = (sq.end + count) & 0xffff;
    }
}

/// Sets the doorbell to the last WQE, with the same kind of doorbell as before.
fn rung(out: &mut Sent) {
    let Some(last) = out.sq.wqes.last().and_then(|w| w.hex.clone()) else { return };
    if let Some(bf) = &mut out.bf {
        let len = if bf.len == 8 { 8 } else { last.len() };
        *bf = Bell { offset: bf.offset, len, hex: Pattern(last.0[..len].to_vec()) };
    }
}

/// Only the first `good` WQEs are posted.
fn cut(out: &mut Sent, good: usize, shift: &mut u32) {
    *shift += blocks(&out.sq.wqes[good.min(out.sq.wqes.len())..]);
    out.sq.wqes.truncate(good);
    let start = out.sq.start;
    number(&mut out.sq, start);
    if good == 0 {
        (out.sq_dbrec, out.bf) = (None, None);
        return;
    }
    out.sq_dbrec = Some(out.sq.end);
    // A single WQE might be written to the register completely; the vectors have no such case.
    if let Some(bf) = &mut out.bf {
        bf.len = 8;
    }
    rung(out);
}

/// Updates the indices after WQEs of a step became shorter.
fn resized(out: &mut Sent, shift: &mut u32, rules: &[&'static str]) {
    if rules.is_empty() || out.sq.wqes.is_empty() {
        return;
    }
    let (start, end) = (out.sq.start, out.sq.end);
    number(&mut out.sq, start);
    *shift += end.wrapping_sub(out.sq.end) & 0xffff;
    out.sq_dbrec = out.sq_dbrec.map(|_| out.sq.end);
    rung(out);
}

/// The doorbells of a case alternate between the halves of the register.
fn bells(steps: &mut [Step]) {
    let mut next = 0;
    for step in steps {
        if let Step::PostSend { out, .. } | Step::WrApi { out, .. } | Step::BindMw { out, .. } = step
            && let Some(bf) = &mut out.bf
        {
            bf.offset = next;
            next ^= 256;
        }
    }
}

fn ds(bytes: &[Option<u8>]) -> usize {
    usize::from(bytes[7].unwrap_or(0) & 0x3f)
}

/// Removes the last `count` entries of a WQE.
fn drop_entries(wqe: &mut Wqe, count: usize) {
    let Some(bytes) = bytes(wqe) else { return };
    let units = ds(bytes) - count;
    bytes[7] = Some(units as u8);
    bytes.truncate((units * UNIT).next_multiple_of(BLOCK));
    bytes[units * UNIT..].fill(None);
    wqe.ds = Some(units as u32);
}

/// An atomic's entries have 8 bytes.
fn atomic_entries(wqe: &mut Wqe, qp: &Qp, rules: &mut Vec<&'static str>) {
    let Some(bytes) = bytes(wqe) else { return };
    // Control, destination, remote address, operands.
    let first = match qp.qp_type.as_str() {
        "XRC_SEND" => 4,
        "DCI" => 6,
        _ => 3,
    };
    for unit in first..ds(bytes) {
        let count = &mut bytes[unit * UNIT..][..4];
        let eight = [0, 0, 0, 8].map(Some);
        if count != eight {
            count.copy_from_slice(&eight);
            rules.push("atomic-entry");
        }
    }
}

/// The reference counts a segment twice if a TSO header wraps at the ring's end: its entries are 32 bytes behind their
/// position, which `ds` does not include.
fn tso_wrap(wqe: &mut Wqe, qp: &Qp, header: usize, rules: &mut Vec<&'static str>) {
    /// Offset of the header in a WQE.
    const START: usize = 30;
    const TOO_FAR: usize = 32;
    let to_end = (qp.sq_wqe_cnt - wqe.idx % qp.sq_wqe_cnt) as usize * BLOCK;
    let end = (START + header).next_multiple_of(UNIT);
    if START + header <= to_end {
        return;
    }
    let Some(bytes) = bytes(wqe) else { return };
    let units = ds(bytes);
    let entries: Vec<_> = (end..units * UNIT).map(|i| bytes.get(i + TOO_FAR).copied().flatten()).collect();
    if bytes.len() <= end || bytes[end..].iter().take(TOO_FAR).any(Option::is_some) {
        return;
    }
    rules.push("tso-wrap");
    bytes.resize((units * UNIT).next_multiple_of(BLOCK), None);
    bytes[end..].fill(None);
    bytes[end..end + entries.len()].copy_from_slice(&entries);
}

/// `wr_set_sge` with an entry that is just the inlined header: the reference sends its bytes again.
fn l2_header_only(wqe: &mut Wqe, request: &Request<'_>, rules: &mut Vec<&'static str>) {
    /// Bytes that the device needs inline.
    const HEADER: u32 = 18;
    let request::Data::Sges(sges) = &request.wr.data else { return };
    let alone = matches!(sges[..], [uverbs_core::wr::Sge { length: HEADER, .. }]);
    if alone && bytes(wqe).is_some_and(|bytes| ds(bytes) == 4) {
        rules.push("l2-header-only");
        drop_entries(wqe, 1);
    }
}

// Receives.

fn receive(case: &mut Case, null_mr: u32, rules: &mut Vec<&'static str>) {
    let mut nulls = Vec::new();
    for step in &mut case.steps {
        match step {
            Step::PostSrqRecv { wrs, srq, .. } => {
                for (wr, wqe) in wrs.iter().zip(&mut srq.wqes) {
                    let null = |s: &&Sge| s.lkey.0 == u64::from(null_mr) && s.length != 0;
                    nulls.extend(wr.sg_list.iter().filter(null).map(|s| (s.addr.0, s.length)));
                    let empty: Vec<_> = wr.sg_list.iter().map(|s| s.length == 0).collect();
                    if let Some(bytes) = bytes(wqe).filter(|_| empty.contains(&true)) {
                        rules.push("srq-zero-length");
                        skip_entries(bytes, &empty);
                    }
                }
            }
            Step::CheckMem { addr, hex } => {
                for (start, len) in &nulls {
                    for (i, byte) in hex.0.iter_mut().enumerate() {
                        let at = addr.0 + i as u64;
                        if (*start..*start + u64::from(*len)).contains(&at) && *byte != Some(memory::FILL) {
                            *byte = Some(memory::FILL);
                            rules.push("srq-null-mr");
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Removes the empty entries of an SRQ's element; the following ones move up, and the list ends earlier.
fn skip_entries(bytes: &mut [Option<u8>], empty: &[bool]) {
    /// `lkey` 0x100.
    const END: [u8; UNIT] = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let entries: Vec<Vec<Option<u8>>> = bytes[UNIT..].chunks(UNIT).map(<[_]>::to_vec).collect();
    let kept = entries.iter().enumerate().filter(|(i, _)| *i < empty.len() && !empty[*i]);
    let mut new: Vec<Option<u8>> = kept.flat_map(|(_, entry)| entry.clone()).collect();
    new.extend(END.map(Some));
    new.resize(bytes.len() - UNIT, None);
    bytes[UNIT..].copy_from_slice(&new);
}

/// Extended polling of the reference handles data in the completions of reads and atomics only.
fn scattered_sends(steps: &mut [Step], rules: &mut Vec<&'static str>) {
    const REM_INV_REQ_ERR: u32 = 9;
    let mut written = BTreeMap::new();
    let mut position = 0;
    for step in steps {
        match step {
            Step::HwCqes { cqes } => {
                for cqe in cqes {
                    let last: Vec<u8> =
                        cqe.hex.0.iter().rev().take(BLOCK).rev().map(|b| b.unwrap_or(0)).collect();
                    let entry = Cqe64::read_from_bytes(&last).unwrap_or_default();
                    let brings = matches!(
                        entry.send_opcode(),
                        MLX5_OPCODE_RDMA_READ | MLX5_OPCODE_ATOMIC_CS | MLX5_OPCODE_ATOMIC_FA
                    );
                    let odd = entry.opcode() == MLX5_CQE_REQ && entry.format() != 0 && !brings;
                    written.insert(cqe.pos, odd);
                }
            }
            Step::PollCq { cq_ci_dbrec, .. } => position = *cq_ci_dbrec,
            Step::StartPoll { wcs, cq_ci_dbrec, .. } => {
                let first = cq_ci_dbrec.wrapping_sub(wcs.len() as u32).max(position);
                for (at, wc) in (first..).zip(wcs) {
                    if written.get(&at) == Some(&true) && wc.status == 0 {
                        wc.status = REM_INV_REQ_ERR;
                        rules.push("scattered-send");
                    }
                }
                position = *cq_ci_dbrec;
            }
            _ => {}
        }
    }
}

/// If an extended poll fails at its start, there is no `end_poll`, in which the reference returns the consumed entries.
fn failed_starts(steps: &mut [Step], rules: &mut Vec<&'static str>) {
    for step in steps {
        if let Step::StartPoll { start_ret: ..0, cq_ci_dbrec, .. } = step {
            *cq_ci_dbrec += 1;
            rules.push("start-poll-error");
        }
    }
}

// Creation.

fn refuse(case: &mut Case, rule: &'static str, rules: &mut Vec<&'static str>) {
    case.out = Some(json!({ "ok": false, "errno": EINVAL }));
    rules.push(rule);
}

fn create(case: &mut Case, rules: &mut Vec<&'static str>) {
    let Some(input) = case.input.clone() else { return };
    if case.out.as_ref().and_then(|out| out.get("ok")) != Some(&json!(true)) {
        return;
    }
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
    let (cap, attr) = (&input["cap"], &input["attr"]);
    match case.category.as_str() {
        "create_qp" => {
            let Some(out) = case.out.as_mut() else { return };
            let asked = (number(cap.get("max_send_sge")), number(cap.get("max_inline_data")));
            if asked == (0, 0) && number(out["cap"].get("max_inline_data")) == u64::from(u32::MAX - 3) {
                out["cap"]["max_inline_data"] = json!(0);
                rules.push("inline-underflow");
            }
            if input["type"] == "RAW_PACKET" && number(cap.get("max_send_wr")) == 0 {
                out["cmd"]["has_sq_buf_addr"] = json!(false);
                rules.push("raw-without-sends");
            }
        }
        "create_srq" if number(input.get("max_wr")) == 0 => refuse(case, "srq-of-none", rules),
        "create_ah" => {
            let path_bits = number(attr.get("src_path_bits")) > 0x7f;
            let label = number(attr.get("flow_label")) > 0xf_ffff && number(attr.get("is_global")) != 0;
            if path_bits || label || number(attr.get("sl")) > 15 {
                refuse(case, "ah-field-range", rules);
            }
        }
        _ => {}
    }
}
