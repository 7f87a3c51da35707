// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the decoder with WQEs of the reference provider (libmlx5): every WQE decodes to its request, whether bytes
//! that the library does not write are 0x00 or 0xff.

use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use uverbs_hca::decode::{Entries, Op, QueueKind, Request, Segment, Umr, recv_wqe, send_wqe};

const VECTORS: &str = "../../tests/vectors/mlx5-vectors.jsonl.gz";

/// Work requests for indirect keys.
const MKEYS: &str = "../../tests/vectors/mlx5-mkeys.jsonl.gz";

fn cases() -> Vec<Value> {
    read(VECTORS)
}

fn read(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let mut text = String::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Bytes of a hex string in which `xx` stands for `fill`.
fn bytes(hex: &str, fill: &str) -> Vec<u8> {
    let hex = hex.replace("xx", fill);
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn number(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
        None => value.as_u64().unwrap_or(0),
    }
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn kind(qp: &Value) -> QueueKind {
    match qp["type"].as_str().unwrap() {
        "RC" => QueueKind::Rc,
        "UC" => QueueKind::Uc,
        "UD" => QueueKind::Ud,
        "XRC_SEND" => QueueKind::Xrc,
        "DCI" => QueueKind::Dci,
        "RAW_PACKET" => QueueKind::Raw,
        other => panic!("{other}"),
    }
}

/// If the header of a large send crosses the end of the ring, the library writes the data 32 bytes behind the correct
/// offset.
fn is_misplaced(wqe: &Value, raw: &[u8], blocks: u64) -> bool {
    let to_end = (blocks - number(&wqe["idx"]) % blocks) * 64;
    let header = u64::from(u16::from_be_bytes([raw[28], raw[29]]));
    raw[3] == 0x0e && 16 + 14 + header > to_end
}

/// The entries of a list that are not empty.
fn entries(wr: &Value) -> Vec<(u64, u64, u64)> {
    let all = list(wr, "sg_list").iter();
    all.map(|s| (number(&s["addr"]), number(&s["length"]), number(&s["lkey"]))).filter(|s| s.1 != 0).collect()
}

fn memory(segments: &[Segment]) -> Vec<(u64, u64, u64)> {
    let all = segments.iter().map(|s| match s {
        Segment::Memory { length, lkey, addr } => (*addr, u64::from(*length), u64::from(*lkey)),
        Segment::Inline(_) => panic!("inline data: {segments:?}"),
    });
    all.collect()
}

fn has(wr: &Value, flag: &str) -> bool {
    list(wr, "send_flags").iter().any(|f| f == flag)
}

/// Compares a decoded WQE with the work request. The contents of `raw` requests are compared elsewhere.
fn compare(name: &str, wr: &Value, got: &Request, sig_all: bool) {
    assert_eq!(got.signaled, sig_all || has(wr, "SIGNALED"), "{name}: signaled");
    assert_eq!(got.solicited, has(wr, "SOLICITED"), "{name}: solicited");
    assert_eq!(got.fence, has(wr, "FENCE"), "{name}: fence");
    let imm = || Some(number(&wr["imm_data"]) as u32);
    let rkey = number(&wr["rkey"]) as u32;
    let addr = number(&wr["remote_addr"]);
    let (first, second) = (number(&wr["compare_add"]), number(&wr["swap"]));
    let op = match wr["opcode"].as_str().unwrap() {
        "SEND" => Op::Send { imm: None, invalidate: None },
        "SEND_WITH_IMM" => Op::Send { imm: imm(), invalidate: None },
        "SEND_WITH_INV" => Op::Send { imm: None, invalidate: Some(number(&wr["invalidate_rkey"]) as u32) },
        "RDMA_WRITE" => Op::Write { addr, rkey, imm: None },
        "RDMA_WRITE_WITH_IMM" => Op::Write { addr, rkey, imm: imm() },
        "RDMA_READ" => Op::Read { addr, rkey },
        "ATOMIC_CMP_AND_SWP" => Op::CmpSwap { addr, rkey, compare: first, swap: second },
        "ATOMIC_FETCH_AND_ADD" => Op::FetchAdd { addr, rkey, add: first },
        "LOCAL_INV" | "BIND_MW" => {
            let Op::Umr(umr) = &got.op else { panic!("{name}: {got:?}") };
            window(name, wr, umr);
            return;
        }
        other => panic!("{name}: {other}"),
    };
    assert_eq!(got.op, op, "{name}");
    let expected = entries(wr);
    if has(wr, "INLINE") && !expected.is_empty() {
        let data: String = list(wr, "sg_list").iter().filter_map(|s| s["data"].as_str()).collect();
        assert_eq!(got.data, [Segment::Inline(bytes(&data, "00"))], "{name}");
    } else if matches!(op, Op::CmpSwap { .. } | Op::FetchAdd { .. }) {
        // The library writes 8 for any length.
        let eight: Vec<_> = expected.iter().map(|s| (s.0, 8, s.2)).collect();
        assert_eq!(memory(&got.data), eight, "{name}");
    } else {
        assert_eq!(memory(&got.data), expected, "{name}");
    }
}

fn window(name: &str, wr: &Value, umr: &Umr) {
    if wr["opcode"] == "LOCAL_INV" {
        assert_eq!(u64::from(umr.mkey), number(&wr["invalidate_rkey"]), "{name}");
        assert!(umr.free && umr.check_qpn && umr.first().is_none(), "{name}: {umr:?}");
        return;
    }
    let info = &wr["bind_info"];
    let len = number(&info["length"]);
    assert_eq!(u64::from(umr.mkey), number(&wr["mw"]["rkey"]), "{name}");
    assert_eq!(u64::from(umr.variant), number(&wr["bind_rkey"]) & 0xff, "{name}");
    assert_eq!(umr.free, len == 0, "{name}");
    if len != 0 {
        let (klm_len, mr, addr) = umr.first().unwrap();
        let klm = (u64::from(klm_len), u64::from(mr), addr);
        assert_eq!(klm, (len & 0xffff_ffff, number(&info["mr_lkey"]), number(&info["addr"])), "{name}");
        assert_eq!(umr.len, len, "{name}");
    }
}

#[test]
fn every_send_wqe_decodes_to_its_request() {
    let (mut wqes, mut compared, mut misplaced) = (0, 0, 0);
    for case in cases() {
        // For illegal requests, the library writes invalid WQEs (docs/src/reference/mlx5.md).
        if case["qp"].is_null() || case["category"] == "post_send_illegal" {
            continue;
        }
        let (name, qp) = (format!("{} {}", case["id"], case["name"]), &case["qp"]);
        let kind = kind(qp);
        for step in list(&case, "steps") {
            let written = step["sq"]["wqes"].as_array().map_or(&[][..], Vec::as_slice);
            let wrs = list(step, "wrs");
            for (i, wqe) in written.iter().enumerate() {
                let (zeros, ones) = ["00", "ff"].map(|f| bytes(wqe["hex"].as_str().unwrap(), f)).into();
                if kind == QueueKind::Raw && is_misplaced(wqe, &zeros, number(&qp["sq_wqe_cnt"])) {
                    misplaced += 1;
                    continue;
                }
                let got = send_wqe(kind, &zeros).unwrap_or_else(|e| panic!("{name}: {e}"));
                let stale = send_wqe(kind, &ones).unwrap_or_else(|e| panic!("{name}, stale bytes: {e}"));
                assert_eq!((got.index, &got.op, &got.data), (stale.index, &stale.op, &stale.data), "{name}");
                assert_eq!(u64::from(got.index), number(&wqe["idx"]), "{name}");
                assert_eq!(u64::from(got.ds), number(&wqe["ds"]), "{name}");
                wqes += 1;
                // The library writes lengths from 2^31 on unchanged, and so sets the bit for inline data.
                let long = |wr: &Value| entries(wr).iter().any(|s| s.1 >> 31 != 0);
                if step["api"] == "post_send" && kind != QueueKind::Raw && i < wrs.len() && !long(&wrs[i]) {
                    compare(&name, &wrs[i], &got, number(&qp["sq_sig_all"]) != 0);
                    compared += 1;
                }
            }
        }
    }
    assert!(wqes > 4000 && compared > 1500, "{wqes} WQEs, {compared} compared, {misplaced} misplaced");
}

#[test]
fn work_requests_for_indirect_keys_decode() {
    let (mut umrs, mut lists, mut signatures, mut values) = (0, 0, 0, 0);
    for case in read(MKEYS) {
        let name = format!("{} {}", case["id"], case["name"]);
        let keys: Vec<u64> = list(&case, "mkeys").iter().map(|key| number(&key["lkey"])).collect();
        for wqe in list(&case, "steps").iter().flat_map(|step| list(step, "wqes")) {
            let [got, stale] = ["00", "ff"].map(|fill| {
                let bytes = bytes(wqe["hex"].as_str().unwrap(), fill);
                send_wqe(QueueKind::Rc, &bytes).unwrap_or_else(|e| panic!("{name}, {fill}: {e}"))
            });
            assert_eq!((got.index, &got.op), (stale.index, &stale.op), "{name}");
            assert_eq!(u64::from(got.index), number(&wqe["idx"]), "{name}");
            match &got.op {
                Op::Umr(umr) => {
                    assert!(keys.contains(&umr.mkey.into()), "{name}: {umr:?}");
                    // The tag stays that of the key.
                    assert!(umr.mask & Umr::MASK_KEY != 0 && umr.variant == 0 && !umr.free, "{name}");
                    umrs += 1;
                    lists += u32::from(matches!(&umr.entries, Entries::Inline(_)));
                    signatures += u32::from(umr.bsf.is_some());
                }
                Op::SetPsv(psv) => {
                    // Of each key with a signature, two numbers from 0xa11 on.
                    assert!((0xa11..0xa15).contains(&psv.index), "{name}: {psv:?}");
                    values += 1;
                }
                Op::Write { rkey: 0x99, .. } => {}
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    let counts = (umrs, lists, signatures, values);
    assert!(umrs > 1000 && lists > 400 && signatures > 500 && values > 700, "{counts:?}");
}

#[test]
fn every_receive_wqe_decodes_to_its_list() {
    let mut compared = 0;
    for case in cases() {
        for step in list(&case, "steps") {
            let (queue, header) = match step["api"].as_str() {
                Some("post_recv") => ("rq", 0),
                Some("post_srq_recv") => ("srq", 16),
                _ => continue,
            };
            let written = step[queue]["wqes"].as_array().map_or(&[][..], Vec::as_slice);
            for (wqe, wr) in written.iter().zip(list(step, "wrs")) {
                let Some(hex) = wqe["hex"].as_str() else { continue };
                for fill in ["00", "ff"] {
                    let got = recv_wqe(&bytes(hex, fill)[header..]);
                    let got = got.unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
                    // On an SRQ, the device interprets an entry of 0 bytes as one of 2^31.
                    let all = list(wr, "sg_list").iter().filter(|s| header != 0 || number(&s["length"]) != 0);
                    let expected: Vec<_> = all
                        .map(|s| match number(&s["length"]) {
                            0 => (number(&s["addr"]), 1 << 31, number(&s["lkey"])),
                            n => (number(&s["addr"]), n, number(&s["lkey"])),
                        })
                        .collect();
                    assert_eq!(memory(&got.scatter), expected, "{} {}", case["id"], case["name"]);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 200, "{compared}");
}
