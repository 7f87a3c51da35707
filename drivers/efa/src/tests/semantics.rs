// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of EFA in docs/src/reference/semantics.md: each row on its interfaces and QPs, in every state. A case without a row fails, and so
//! does a row without a case.
#![expect(unsafe_code)]
// UNSAFETY: posts requests whose memory no device accesses.

use super::{Request, post, sge, to};
use crate::testing::{Rig, Shape, send_config};
use crate::{Ah, SendConfig};
use std::fs;
use std::path::Path;
use uverbs_core::attr::QpState;
use uverbs_core::provider::opcodes::{UD_OPCODES, opcode_bit};
use uverbs_core::provider::{
    Dest, Op, PostError, RecvBatch as _, RecvQueue as _, RemoteAddr, SendQueue as _, To, Wr,
};
use uverbs_core::wr::{RawAh, SendFlags, Sge, WrOpcode};
use uverbs_testkit::{Face, handle, recv_nodes};

const PAGE: &str = "docs/src/reference/semantics.md";
const STATES: [(QpState, &str); 7] = [
    (QpState::RESET, "RESET"),
    (QpState::INIT, "INIT"),
    (QpState::RTR, "RTR"),
    (QpState::RTS, "RTS"),
    (QpState::SQD, "SQD"),
    (QpState::SQE, "SQE"),
    (QpState::ERR, "ERR"),
];
const SLOTS: usize = 8;
const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 1 };
const SGES: [Sge; 3] = [sge(1, 1, 1); 3];
const INLINE: [u8; 33] = [7; 33];

/// Cases of sends. `NULL list` is one of C's lists only.
const SENDS: [&str; 22] = [
    "SEND",
    "SEND_WITH_IMM",
    "READ",
    "WRITE",
    "WRITE_WITH_IMM",
    "WRITE on a device without it",
    "FETCH_AND_ADD",
    "SEND_WITH_INV",
    "unsignaled",
    "unsignaled, sq_sig_all",
    "FENCE",
    "SOLICITED",
    "IP_CSUM",
    "no data",
    "too many sges",
    "2 sges of a WRITE",
    "inline at the limit",
    "inline too long",
    "inline WRITE",
    "QP number of 17 bits",
    "queue full",
    "NULL list",
];
/// Cases of receives.
const RECEIVES: [&str; 5] = ["receive", "receive without sges", "too many sges", "queue full", "NULL list"];

/// A row of the table.
struct Row {
    case: String,
    face: String,
    qp: String,
    states: String,
    error: String,
    errno: String,
}

fn rows() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (_, text) = text.split_once("<!-- rows of efa -->").expect("the rows of efa");
    let (text, _) = text.split_once("<!-- end of rows of efa -->").expect("the end of the rows of efa");
    let lines = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case |"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
            let [_, case, face, qp, states, error, errno, _] =
                cells.try_into().unwrap_or_else(|cells| panic!("{PAGE}: {cells:?}"));
            Row { case, face, qp, states, error, errno }
        })
        .collect()
}

/// The answer of the table: that of its only row for this, or `BadState` in a state that the row does not have.
fn answer(rows: &[Row], case: &str, face: &str, qp: &str, state: &str) -> (String, String) {
    let of = |row: &&Row| {
        row.case == case
            && row.face.split(' ').any(|name| name.trim_matches('`') == face)
            && row.qp.split(' ').any(|name| name == qp)
    };
    let found: Vec<_> = rows.iter().filter(of).collect();
    let [row] = found.as_slice() else { panic!("{PAGE}: {case}, {face}, {qp}: {} rows", found.len()) };
    if row.states.split(' ').any(|name| name == state) {
        (row.error.clone(), row.errno.clone())
    } else {
        ("BadState".into(), "EINVAL".into())
    }
}

/// The words of the table for a result.
fn words(result: Result<(), PostError>) -> (String, String) {
    match result {
        Ok(()) => ("ok".into(), "0".into()),
        Err(error) => (format!("{error:?}"), error.errno().name().unwrap_or("?").into()),
    }
}

/// The requests of a case.
fn requests<'a>(case: &str, ah: &'a RawAh<Ah>) -> Vec<Request<'a>> {
    let one = &SGES[..1];
    let send = || to(ah, Wr::new(1, Op::Send).sges(one));
    let flag = |flag| Wr { flags: SendFlags::SIGNALED | flag, ..send() };
    let unsignaled = || Wr { flags: SendFlags::empty(), ..send() };
    let far = || Wr { to: Dest::Ud(To { ah, remote_qpn: 0x1_0000, remote_qkey: 0 }), ..send() };
    let write = |wr: Request<'a>| to(ah, wr);
    vec![match case {
        "SEND" => send(),
        "SEND_WITH_IMM" => to(ah, Wr::new(1, Op::SendImm(5)).sges(one)),
        "READ" => to(ah, Wr::new(1, Op::Read(REMOTE)).sges(one)),
        "WRITE" | "WRITE on a device without it" => write(Wr::new(1, Op::Write(REMOTE)).sges(one)),
        "WRITE_WITH_IMM" => write(Wr::new(1, Op::WriteImm(REMOTE, 5)).sges(one)),
        "FETCH_AND_ADD" => to(ah, Wr::new(1, Op::FetchAdd(REMOTE, 1)).sges(one)),
        "SEND_WITH_INV" => to(ah, Wr::new(1, Op::SendInv(1)).sges(one)),
        "unsignaled" | "unsignaled, sq_sig_all" => unsignaled(),
        "FENCE" => flag(SendFlags::FENCE),
        "SOLICITED" => flag(SendFlags::SOLICITED),
        "IP_CSUM" => flag(SendFlags::IP_CSUM),
        "no data" => to(ah, Wr::new(1, Op::Send)),
        "too many sges" => to(ah, Wr::new(1, Op::Send).sges(&SGES)),
        "2 sges of a WRITE" => write(Wr::new(1, Op::Write(REMOTE)).sges(&SGES[..2])),
        "inline at the limit" => to(ah, Wr::new(1, Op::Send).inline(&INLINE[..32])),
        "inline too long" => to(ah, Wr::new(1, Op::Send).inline(&INLINE)),
        "inline WRITE" => write(Wr::new(1, Op::Write(REMOTE)).inline(&INLINE[..4])),
        "QP number of 17 bits" => far(),
        "queue full" => return (0..=SLOTS).map(|_| send()).collect(),
        other => panic!("no requests for {other:?}"),
    }]
}

fn config(case: &str, qp: &str) -> SendConfig {
    let all = send_config();
    let ops = if qp == "UD" { UD_OPCODES } else { all.ops };
    match case {
        "WRITE on a device without it" => SendConfig { ops: ops & !opcode_bit(WrOpcode::RDMA_WRITE), ..all },
        "unsignaled, sq_sig_all" => SendConfig { ops, always: SendFlags::SIGNALED, ..all },
        _ => SendConfig { ops, ..all },
    }
}

#[test]
fn sends_match_the_table() {
    let (rows, ah) = (rows(), handle(Ah(1)));
    for case in SENDS {
        for (face, name) in [
            (Face::List, "post_send"),
            (Face::Builder, "wr_*"),
            (Face::Batch, "batch"),
            (Face::Single, "batch"),
        ] {
            if case == "NULL list" && face != Face::List {
                continue;
            }
            for (qp, (state, state_name)) in
                ["SRD", "UD"].into_iter().flat_map(|qp| STATES.map(|state| (qp, state)))
            {
                let mut rig = Rig::in_state(Shape::default(), config(case, qp), state);
                let (result, posted) = if case == "NULL list" {
                    // SAFETY: NULL is refused.
                    (unsafe { rig.send.post_send(core::ptr::null()) }.map_err(|bad| bad.error), 0)
                } else {
                    let wrs = requests(case, &ah);
                    let result = post(&mut rig.send, face, &wrs);
                    let before_the_bad = match (face, result) {
                        (_, Ok(())) => wrs.len(),
                        // These post what is before the bad request.
                        (Face::List | Face::Single, Err(PostError::QueueFull)) => SLOTS,
                        _ => 0,
                    };
                    (result, before_the_bad)
                };
                let want = answer(&rows, case, name, qp, state_name);
                assert_eq!(words(result), want, "{case}, {face:?}, {qp}, {state_name}");
                assert_eq!(rig.device.take().0.len(), posted, "{case}, {face:?}, {qp}, {state_name}");
            }
        }
    }
    each_row_has_a_case(&rows);
}

#[test]
fn receives_match_the_table() {
    let rows = rows();
    for case in RECEIVES {
        let (count, sges) = match case {
            "receive without sges" => (1, &SGES[..0]),
            "too many sges" => (1, &SGES[..]),
            "queue full" => (SLOTS + 1, &SGES[..1]),
            _ => (1, &SGES[..1]),
        };
        for (name, qp) in ["post_recv", "recv_batch"].into_iter().flat_map(|f| [(f, "SRD"), (f, "UD")]) {
            for (state, state_name) in STATES {
                let mut rig = Rig::in_state(Shape::default(), send_config(), state);
                let result = if name == "post_recv" {
                    let wrs: Vec<_> = (0..count as u64).map(|id| (id, sges)).collect();
                    let nodes = recv_nodes(&wrs);
                    let list = if case == "NULL list" { core::ptr::null() } else { nodes.as_ptr() };
                    // SAFETY: a valid list, or NULL, which is refused; there is no device that would access the memory.
                    unsafe { rig.recv.post_recv(list) }.map_err(|bad| bad.error)
                } else if case == "NULL list" {
                    continue;
                } else {
                    let mut batch = rig.recv.batch();
                    // SAFETY: there is no device that would access the memory.
                    (0..count as u64).for_each(|id| unsafe { batch.push(id, sges) });
                    batch.complete()
                };
                let want = answer(&rows, case, name, qp, state_name);
                assert_eq!(words(result), want, "{case}, {name}, {qp}, {state_name}");
            }
        }
    }
}

fn each_row_has_a_case(rows: &[Row]) {
    for Row { case, face, .. } in rows {
        let cases = if face.contains("recv") { &RECEIVES[..] } else { &SENDS[..] };
        assert!(cases.contains(&case.as_str()), "{PAGE}: no test of {case:?} by {face}");
    }
    assert!(rows.len() > 30, "only {} rows", rows.len());
}
