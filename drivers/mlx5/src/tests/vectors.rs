// SPDX-License-Identifier: MIT OR Apache-2.0
//! The posting categories of the reference vectors, by C's lists and by builders, right on the queues.
//!
//! `tests/vectors` runs the whole file through the public calls of an open device. This is the part of it that needs
//! nothing but a queue, for who works on the encoder.
#![cfg(target_endian = "little")]
#![expect(unsafe_code)]
// UNSAFETY: C's posting calls; the memory that the vectors name is mapped where they say.

use crate::doorbell::BlueFlame;
use crate::testing::{BLUE_FLAME, Receives, Ring, Sends, SharedReceives, element, send_config};
use crate::{Ah, RecvConfig, SendQueue};
use core::ffi::c_void;
use core::ptr::null_mut;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use uverbs_core::attr::{AccessFlags, QpState, QpType, SendOpsFlags};
use uverbs_core::provider::raw::QpEx;
use uverbs_core::provider::{PostError, RecvQueue as _, SendQueue as _};
use uverbs_core::sync::{Exclusive, Locked};
use uverbs_core::wr::*;

fn cases() -> Vec<Value> {
    let path = std::env::var_os("UVERBS_VECTORS").unwrap_or_else(|| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/mlx5-vectors.jsonl.gz").into()
    });
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn num(v: &Value) -> u64 {
    match v {
        Value::String(s) => match s.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
            None => s.parse().unwrap(),
        },
        Value::Null => 0,
        _ => v.as_u64().unwrap(),
    }
}
fn num32(v: &Value) -> u32 {
    num(v) as u32
}
fn text(v: &Value) -> &str {
    v.as_str().unwrap_or("")
}
fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], |a| a)
}
fn bytes(v: &Value) -> Vec<u8> {
    let hex = text(v).as_bytes();
    hex.chunks(2).map(|p| u8::from_str_radix(core::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
}

/// Whether bytes are those of a pattern, `xx` standing for any.
fn same(pattern: &Value, got: &[u8]) -> bool {
    let hex = text(pattern).as_bytes();
    hex.len() == got.len() * 2
        && hex.chunks(2).zip(got).all(|(p, b)| p == b"xx" || p == format!("{b:02x}").as_bytes())
}

/// Maps the memory that inline data and L2 headers come from.
fn map_data() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        const BASE: usize = 0x2000_0000_0000;
        const LEN: usize = 0x10000;
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        let at = core::ptr::without_provenance_mut(BASE);
        // SAFETY: a fresh mapping that replaces nothing.
        let got = unsafe { libc::mmap(at, LEN, prot, flags, -1, 0) };
        assert_eq!(got.addr(), BASE);
        for i in 0..LEN {
            // SAFETY: inside the mapping.
            let byte = unsafe { got.cast::<u8>().add(i) };
            // SAFETY: the mapping is writable.
            unsafe { byte.write((i * 7 + 3) as u8) };
        }
        let _ = got.expose_provenance();
    });
}

fn sge(v: &Value) -> Sge {
    Sge { addr: num(&v["addr"]), length: num32(&v["length"]), lkey: num32(&v["lkey"]) }
}

fn flags(v: &Value) -> SendFlags {
    list(v).iter().map(|f| SendFlags::from_name(text(f)).unwrap()).collect()
}

fn opcode(v: &Value) -> WrOpcode {
    match text(v) {
        "SEND" => WrOpcode::SEND,
        "SEND_WITH_IMM" => WrOpcode::SEND_WITH_IMM,
        "SEND_WITH_INV" => WrOpcode::SEND_WITH_INV,
        "RDMA_WRITE" => WrOpcode::RDMA_WRITE,
        "RDMA_WRITE_WITH_IMM" => WrOpcode::RDMA_WRITE_WITH_IMM,
        "RDMA_READ" => WrOpcode::RDMA_READ,
        "ATOMIC_CMP_AND_SWP" => WrOpcode::ATOMIC_CMP_AND_SWP,
        "ATOMIC_FETCH_AND_ADD" => WrOpcode::ATOMIC_FETCH_AND_ADD,
        "LOCAL_INV" => WrOpcode::LOCAL_INV,
        "BIND_MW" => WrOpcode::BIND_MW,
        "TSO" => WrOpcode::TSO,
        "DRIVER1" => WrOpcode::DRIVER1,
        _ => WrOpcode(num32(v)),
    }
}

fn state(v: &Value) -> QpState {
    match text(v) {
        "RESET" => QpState::RESET,
        "INIT" => QpState::INIT,
        "RTR" => QpState::RTR,
        "RTS" => QpState::RTS,
        "SQD" => QpState::SQD,
        "ERR" => QpState::ERR,
        other => panic!("state {other}"),
    }
}

/// Stays where it is while its list grows.
type Pin<T> = Box<T>;

/// What nodes of a list point to.
#[derive(Default)]
struct Arena {
    sges: Vec<Vec<Sge>>,
    ahs: Vec<Pin<RawAh<Ah>>>,
    mws: Vec<Pin<IbvMw>>,
    mrs: Vec<Pin<IbvMr>>,
    headers: Vec<Vec<u8>>,
}

impl Arena {
    fn sges(&mut self, v: &Value) -> (*const Sge, i32) {
        let sges: Vec<_> = list(v).iter().map(sge).collect();
        self.sges.push(sges);
        let sges = self.sges.last().unwrap();
        (sges.as_ptr(), sges.len() as i32)
    }
    fn ah(&mut self, v: &Value) -> *const IbvAh {
        let av: [u8; 48] = bytes(&v["av"]).try_into().unwrap();
        let driver = Ah::new(&zerocopy::transmute!(av));
        let base = IbvAh { context: null_mut(), pd: null_mut(), handle: 0 };
        self.ahs.push(Box::new(RawAh { base, driver }));
        core::ptr::from_ref(&**self.ahs.last().unwrap()).cast()
    }
    fn bind(&mut self, mw: &Value, info: &Value) -> (*const IbvMw, IbvMwBindInfo) {
        let (context, pd): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        self.mws.push(Box::new(IbvMw {
            context,
            pd,
            rkey: num32(&mw["rkey"]),
            handle: 0,
            mw_type: num32(&mw["type"]),
        }));
        self.mrs.push(Box::new(IbvMr {
            context,
            pd,
            addr: null_mut(),
            length: 0,
            handle: 0,
            lkey: num32(&info["mr_lkey"]),
            rkey: 0,
        }));
        let info = IbvMwBindInfo {
            mr: &raw const **self.mrs.last().unwrap(),
            addr: num(&info["addr"]),
            length: num(&info["length"]),
            mw_access_flags: AccessFlags::from_bits_retain(num32(&info["access"])).bits(),
        };
        (&raw const **self.mws.last().unwrap(), info)
    }
    fn header(&mut self, v: &Value) -> *const u8 {
        self.headers.push(bytes(&v["hdr"]));
        self.headers.last().unwrap().as_ptr()
    }
    fn wr(&mut self, v: &Value) -> SendWr {
        let mut wr = SendWr::new(num(&v["wr_id"]), opcode(&v["opcode"]));
        (wr.sg_list, wr.num_sge) = self.sges(&v["sg_list"]);
        wr.send_flags = flags(&v["send_flags"]).bits();
        if !v["imm_data"].is_null() {
            wr.imm_data_or_invalidate_rkey = num32(&v["imm_data"]).to_be();
        } else if !v["invalidate_rkey"].is_null() {
            wr.imm_data_or_invalidate_rkey = num32(&v["invalidate_rkey"]);
        }
        let (remote_addr, rkey) = (num(&v["remote_addr"]), num32(&v["rkey"]));
        if !v["compare_add"].is_null() {
            let (compare_add, swap) = (num(&v["compare_add"]), num(&v["swap"]));
            wr.wr.atomic = WrAtomic { remote_addr, compare_add, swap, rkey };
        } else if !v["remote_addr"].is_null() {
            wr.wr.rdma = WrRdma { remote_addr, rkey };
        }
        if !v["ud"].is_null() {
            let ud = &v["ud"];
            wr.wr.ud = WrUd {
                ah: self.ah(&ud["ah"]),
                remote_qpn: num32(&ud["remote_qpn"]),
                remote_qkey: num32(&ud["remote_qkey"]),
            };
        }
        wr.xrc_remote_srqn = num32(&v["xrc_remote_srqn"]);
        if !v["tso"].is_null() {
            let hdr = self.header(&v["tso"]);
            let (hdr_sz, mss) = (num32(&v["tso"]["hdr_sz"]) as u16, num32(&v["tso"]["mss"]) as u16);
            wr.tail.tso = WrTso { hdr, hdr_sz, mss };
        }
        if !v["mw"].is_null() {
            let (mw, bind_info) = self.bind(&v["mw"], &v["bind_info"]);
            wr.tail.bind_mw = WrBindMw { mw, rkey: num32(&v["bind_rkey"]), bind_info };
        }
        wr
    }
}

/// A QP of a case, for sending.
struct Side {
    sends: Sends,
    first_half: Option<u32>,
}

fn qp_type(v: &Value) -> QpType {
    match text(&v["type"]) {
        "RC" => QpType::Rc,
        "UC" => QpType::Uc,
        "UD" => QpType::Ud,
        "XRC_SEND" => QpType::XrcSend,
        "RAW_PACKET" => QpType::RawPacket,
        "DCI" => QpType::Driver,
        other => panic!("QP type {other}"),
    }
}

impl Side {
    fn new(qp: &Value) -> Self {
        let mut config = send_config(qp_type(qp));
        let (cap, ctx) = (&qp["cap"], text(&qp["ctx"]));
        config.qp_num = num32(&qp["qpn"]);
        config.sq_sig_all = num(&qp["sq_sig_all"]) != 0;
        config.send_ops_flags = SendOpsFlags::from_bits_retain(num(&qp["send_ops_flags"]));
        config.max_send_wr = num32(&cap["max_send_wr"]);
        config.max_send_sge = num32(&cap["max_send_sge"]);
        config.max_inline_data = num32(&cap["max_inline_data"]);
        config.atomics = ctx != "eth_no_atomics";
        config.max_tso_header = num32(&qp["max_tso_header"]);
        config.l2_inline = ctx == "eth_l2";
        let bf = BlueFlame {
            half: if ctx == "eth_shut_up_bf" { 0 } else { 256 },
            prefer: ctx != "eth_prefer_bf0",
            ..BLUE_FLAME
        };
        let mut sends = Sends::new(&config, num32(&qp["sq_wqe_cnt"]), bf);
        sends.queue.start_at(num32(&qp["sq_start_index"]));
        sends.qp.set_state(state(&qp["state"]));
        Self { sends, first_half: None }
    }

    /// What differs from the step's outputs, after `ret` and `bad` came out.
    fn check(&mut self, step: &Value, start: u32, ret: i32, bad: i64) -> Result<(), String> {
        if i64::from(ret) != step["ret"].as_i64().unwrap() {
            return Err(format!("ret {ret}, not {}", step["ret"]));
        }
        if bad != step["bad_wr"].as_i64().unwrap() {
            return Err(format!("bad_wr {bad}, not {}", step["bad_wr"]));
        }
        for wqe in list(&step["sq"]["wqes"]) {
            let count = text(&wqe["hex"]).len() as u32 / 128;
            let got = self.sends.blocks(num32(&wqe["idx"]), count);
            if !same(&wqe["hex"], &got) {
                let hex: String = got.iter().map(|b| format!("{b:02x}")).collect();
                return Err(format!("WQE {}\n    want {}\n    got  {hex}", wqe["idx"], text(&wqe["hex"])));
            }
        }
        let _ = start;
        let rings = self.sends.bell.take();
        match (&step["bf"], &rings[..]) {
            (Value::Null, []) => {}
            (bf, [Ring { offset, bytes }]) if !bf.is_null() => {
                let first = *self.first_half.get_or_insert(*offset);
                let offset = offset ^ first;
                if offset != num32(&bf["offset"]) || !same(&bf["hex"], bytes) {
                    return Err(format!("doorbell {offset} {bytes:02x?}, not {bf}"));
                }
            }
            (bf, rings) => return Err(format!("doorbells {rings:?}, not {bf}")),
        }
        if !step["sq_dbrec"].is_null() && self.sends.posted() != num32(&step["sq_dbrec"]) {
            return Err(format!("record {}, not {}", self.sends.posted(), step["sq_dbrec"]));
        }
        Ok(())
    }

    fn post_send(&mut self, step: &Value) -> Result<(), String> {
        let mut arena = Arena::default();
        let mut wrs: Vec<_> = list(&step["wrs"]).iter().map(|wr| arena.wr(wr)).collect();
        for i in (1..wrs.len()).rev() {
            wrs[i - 1].next = &raw const wrs[i];
        }
        let start = self.sends.posted();
        // SAFETY: a well-formed list; inline data and headers point to mapped memory.
        let result = unsafe { self.sends.queue.post_send(wrs.as_ptr()) };
        let (ret, bad) = match result {
            Ok(()) => (0, -1),
            Err(e) => {
                let at = wrs.iter().position(|wr| core::ptr::eq(wr, e.wr)).unwrap();
                (SendQueue::errno(e.error).raw(), at as i64)
            }
        };
        self.check(step, start, ret, bad)
    }

    fn wr_api(&mut self, step: &Value) -> Result<(), String> {
        let start = self.sends.posted();
        let spare = Sends::new(&send_config(QpType::Rc), 4, BLUE_FLAME).queue;
        let mut locked: Locked<SendQueue, Exclusive> =
            Locked::new(core::mem::replace(&mut self.sends.queue, spare));
        let ret = session(&mut locked, list(&step["ops"]));
        self.sends.queue = locked.into_inner();
        let ret = ret.err().map_or(0, |e| SendQueue::errno(e).raw());
        self.check(step, start, ret, -1)
    }
}

/// A call of a builder session.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: one thread, inside a session, with mapped memory where bytes are read.
        unsafe { $call }
    };
}

/// One `wr_start` to `wr_complete` or `wr_abort`.
fn session(locked: &mut Locked<SendQueue, Exclusive>, ops: &[Value]) -> Result<(), PostError> {
    let mut arena = Arena::default();
    let (mut wr_id, mut wr_flags) = (0, 0);
    let mut result = Ok(());
    for op in ops {
        let name = text(&op["op"]);
        if name.starts_with("set_dc_addr") {
            let ah = arena.ah(&op["ah"]).cast::<RawAh<Ah>>();
            // SAFETY: the arena keeps it.
            let ah = unsafe { &(*ah).driver };
            let (dctn, key) = (num32(&op["remote_dctn"]), num(&op["dc_key"]));
            if op["stream_id"].is_null() {
                locked.get_mut().wr_set_dc_addr(ah, dctn, key);
            } else {
                locked.get_mut().wr_set_dc_addr_stream(ah, dctn, key, num32(&op["stream_id"]) as u16);
            }
            continue;
        }
        let mut qp = QpEx::new(&*locked);
        (qp.wr_id, qp.wr_flags) = (wr_id, wr_flags);
        let (rkey, to) = (num32(&op["rkey"]), num(&op["remote_addr"]));
        let imm = ImmData::new(num32(&op["imm_data"]));
        match name {
            "start" => call!(qp.wr_start()),
            "set" => {
                wr_id = num(&op["wr_id"]);
                wr_flags = flags(&op["wr_flags"]).bits();
            }
            "send" => call!(qp.wr_send()),
            "send_imm" => call!(qp.wr_send_imm(imm)),
            "send_inv" => call!(qp.wr_send_inv(num32(&op["invalidate_rkey"]))),
            "rdma_write" => call!(qp.wr_rdma_write(rkey, to)),
            "rdma_write_imm" => call!(qp.wr_rdma_write_imm(rkey, to, imm)),
            "rdma_read" => call!(qp.wr_rdma_read(rkey, to)),
            "atomic_cmp_swp" => call!(qp.wr_atomic_cmp_swp(rkey, to, num(&op["compare"]), num(&op["swap"]))),
            "atomic_fetch_add" => call!(qp.wr_atomic_fetch_add(rkey, to, num(&op["add"]))),
            "local_inv" => call!(qp.wr_local_inv(num32(&op["invalidate_rkey"]))),
            "bind_mw" => {
                let (mw, info) = arena.bind(&op["mw"], &op["bind_info"]);
                call!(qp.wr_bind_mw(mw, num32(&op["bind_rkey"]), &raw const info))
            }
            "send_tso" => {
                let hdr = arena.header(op);
                let (hdr_sz, mss) = (num32(&op["hdr_sz"]) as u16, num32(&op["mss"]) as u16);
                call!(qp.wr_send_tso(hdr, hdr_sz, mss))
            }
            "set_sge" => {
                let sge = sge(&op["sge"]);
                call!(qp.wr_set_sge(sge.lkey, sge.addr, sge.length))
            }
            "set_sge_list" => {
                let (sges, n) = arena.sges(&op["sg_list"]);
                call!(qp.wr_set_sge_list(n as usize, sges))
            }
            "set_inline_data" => {
                let data = bytes(&op["data"]);
                call!(qp.wr_set_inline_data(data.as_ptr(), data.len()))
            }
            "set_inline_data_list" => {
                let bufs: Vec<_> = list(&op["bufs"]).iter().map(bytes).collect();
                let bufs: Vec<_> =
                    bufs.iter().map(|b| IbvDataBuf { addr: b.as_ptr(), length: b.len() }).collect();
                call!(qp.wr_set_inline_data_list(bufs.len(), bufs.as_ptr()))
            }
            "set_ud_addr" => {
                let ah = arena.ah(&op["ah"]);
                call!(qp.wr_set_ud_addr(ah, num32(&op["remote_qpn"]), num32(&op["remote_qkey"])))
            }
            "set_xrc_srqn" => call!(qp.wr_set_xrc_srqn(num32(&op["remote_srqn"]))),
            "complete" => result = call!(qp.wr_complete()),
            "abort" => call!(qp.wr_abort()),
            other => panic!("op {other}"),
        }
    }
    result
}

/// Posts a list of receives and gives what C sees.
fn recv_list(
    step: &Value,
    post: impl FnOnce(*const RecvWr) -> Result<(), uverbs_core::provider::BadWr<RecvWr>>,
) -> Result<(), String> {
    let mut arena = Arena::default();
    let mut wrs: Vec<_> = list(&step["wrs"])
        .iter()
        .map(|v| {
            let mut wr = RecvWr::new(num(&v["wr_id"]));
            (wr.sg_list, wr.num_sge) = arena.sges(&v["sg_list"]);
            wr
        })
        .collect();
    for i in (1..wrs.len()).rev() {
        wrs[i - 1].next = &raw const wrs[i];
    }
    let (ret, bad) = match post(wrs.as_ptr()) {
        Ok(()) => (0, -1),
        Err(e) => {
            let at = wrs.iter().position(|wr| core::ptr::eq(wr, e.wr)).unwrap();
            (i64::from(e.error.errno().raw()), at as i64)
        }
    };
    if (ret, bad) != (step["ret"].as_i64().unwrap(), step["bad_wr"].as_i64().unwrap()) {
        return Err(format!("ret {ret} bad_wr {bad}, not {} {}", step["ret"], step["bad_wr"]));
    }
    Ok(())
}

fn elements(ring: &crate::memory::StrideRing, wqes: &Value) -> Result<(), String> {
    for wqe in list(wqes) {
        let got = element(ring, num32(&wqe["idx"]));
        if !same(&wqe["hex"], &got) {
            return Err(format!("element {}: {got:02x?}, not {}", wqe["idx"], wqe["hex"]));
        }
    }
    Ok(())
}

fn run_recv(case: &Value) -> Result<(), String> {
    let qp = &case["qp"];
    let config = RecvConfig {
        qp_type: qp_type(qp),
        max_recv_wr: num32(&qp["cap"]["max_recv_wr"]),
        max_recv_sge: num32(&qp["cap"]["max_recv_sge"]),
        max_msg_sz: 1 << 30,
    };
    let mut recvs = Receives::new(&config, num32(&qp["rq_wqe_cnt"]), num32(&qp["rq_stride"]));
    recvs.qp.set_state(state(&qp["state"]));
    for step in list(&case["steps"]) {
        match text(&step["api"]) {
            "modify" => {
                recvs.qp.set_state(state(&step["state"]));
                // What `modify_qp` does for raw packets.
                if text(&step["state"]) == "RTR" && config.qp_type == QpType::RawPacket {
                    recvs.rq().publish_held(&recvs.record);
                }
                if !step["rq_dbrec_after"].is_null() && recvs.posted() != num32(&step["rq_dbrec_after"]) {
                    return Err(format!("record {} after modify", recvs.posted()));
                }
            }
            "post_recv" => {
                let before = recvs.posted();
                // SAFETY: a well-formed list of memory that no device writes.
                recv_list(step, |wr| unsafe { recvs.queue.post_recv(wr) })?;
                elements(&recvs.rq().ring, &step["rq"]["wqes"])?;
                let want = if step["rq_dbrec"].is_null() { before } else { num32(&step["rq_dbrec"]) };
                if recvs.posted() != want {
                    return Err(format!("record {}, not {want}", recvs.posted()));
                }
            }
            other => return Err(format!("step {other}")),
        }
    }
    Ok(())
}

fn run_srq(case: &Value) -> Result<(), String> {
    let srq = &case["srq"];
    let mut recvs =
        SharedReceives::new(num32(&srq["wqe_total"]) / 2, num32(&srq["stride"]), num32(&srq["max_sge"]));
    for step in list(&case["steps"]) {
        let before = recvs.posted();
        // SAFETY: a well-formed list of memory that no device writes.
        recv_list(step, |wr| unsafe { recvs.queue.post_recv(wr) })?;
        elements(&recvs.srq.ring, &step["srq"]["wqes"])?;
        let want = if step["srq_dbrec"].is_null() { before } else { num32(&step["srq_dbrec"]) };
        let (head, tail, _) = recvs.queue.indices();
        if (recvs.posted(), head, tail)
            != (want, num32(&step["srq"]["head_after"]), num32(&step["srq"]["tail"]))
        {
            return Err(format!("record {}, head {head}, tail {tail}", recvs.posted()));
        }
    }
    Ok(())
}

fn run_send(case: &Value) -> Result<(), String> {
    let mut side = Side::new(&case["qp"]);
    side.sends.fill(0xa5);
    for step in list(&case["steps"]) {
        match text(&step["api"]) {
            "post_send" => side.post_send(step)?,
            "wr_api" => side.wr_api(step)?,
            "modify" => side.sends.qp.set_state(state(&step["state"])),
            other => return Err(format!("step {other}")),
        }
    }
    Ok(())
}

/// Where `docs/semantics.md` decides otherwise than the reference: a rule over inputs, and its name.
fn exception(case: &Value) -> Option<&'static str> {
    let qp = &case["qp"];
    let (qp_type, steps) = (text(&qp["type"]), list(&case["steps"]));
    let wrs = || steps.iter().flat_map(|s| list(&s["wrs"]));
    let ops = || steps.iter().flat_map(|s| list(&s["ops"]));
    let named = |v: &Value, name| list(v).iter().any(|f| text(f) == name);
    let opcodes: &[&str] = match qp_type {
        "RC" | "XRC_SEND" => &[
            "SEND",
            "SEND_WITH_IMM",
            "SEND_WITH_INV",
            "RDMA_WRITE",
            "RDMA_WRITE_WITH_IMM",
            "RDMA_READ",
            "ATOMIC_CMP_AND_SWP",
            "ATOMIC_FETCH_AND_ADD",
            "LOCAL_INV",
            "BIND_MW",
        ],
        "UC" => &[
            "SEND",
            "SEND_WITH_IMM",
            "SEND_WITH_INV",
            "RDMA_WRITE",
            "RDMA_WRITE_WITH_IMM",
            "LOCAL_INV",
            "BIND_MW",
        ],
        "UD" => &["SEND", "SEND_WITH_IMM"],
        "RAW_PACKET" => &["SEND", "TSO"],
        _ => &[],
    };
    let is_local = |wr: &Value| ["LOCAL_INV", "BIND_MW"].contains(&text(&wr["opcode"]));
    let is_atomic = |wr: &Value| text(&wr["opcode"]).starts_with("ATOMIC");
    let no_inline = |wr: &Value| is_atomic(wr) || text(&wr["opcode"]) == "RDMA_READ";
    let sends = || wrs().filter(|wr| !wr["opcode"].is_null());
    if sends().any(|wr| !opcodes.contains(&text(&wr["opcode"]))) && case["category"] != "post_send_error" {
        return Some("illegal opcode");
    }
    let csum = sends().any(|wr| named(&wr["send_flags"], "IP_CSUM"))
        || ops().any(|op| named(&op["wr_flags"], "IP_CSUM"));
    if csum && qp_type != "RAW_PACKET" {
        return Some("IP_CSUM on a QP without checksums");
    }
    if sends().any(|wr| is_local(wr) && !list(&wr["sg_list"]).is_empty()) {
        return Some("local operation with entries");
    }
    if sends().any(|wr| no_inline(wr) && named(&wr["send_flags"], "INLINE")) {
        return Some("inline read or atomic");
    }
    let mut before = "";
    for op in ops().filter(|op| op["op"] != "set") {
        let name = text(&op["op"]);
        if name.starts_with("set_inline") && (before.starts_with("atomic") || before == "rdma_read") {
            return Some("inline read or atomic");
        }
        let length: u64 = list(&op["sg_list"]).iter().chain([&op["sge"]]).map(|s| num(&s["length"])).sum();
        if name.starts_with("set_sge") && before.starts_with("atomic") && length < 8 {
            return Some("atomic of less than 8 bytes");
        }
        if !name.starts_with("set_") {
            before = name;
        }
    }
    let length = |wr: &Value| -> u64 { list(&wr["sg_list"]).iter().map(|s| num(&s["length"])).sum() };
    if sends().any(|wr| is_atomic(wr) && length(wr) < 8) {
        return Some("atomic of less than 8 bytes");
    }
    if wrs().any(|wr| length(wr) >= 1 << 31) {
        return Some("2^31 bytes or more");
    }
    if text(&case["category"]) == "post_send_state" && steps.iter().any(|s| s["ret"] == 12) {
        return Some("EINVAL in a state that does not send");
    }
    if !case["srq"].is_null() && wrs().any(|wr| list(&wr["sg_list"]).iter().any(|s| num(&s["length"]) == 0)) {
        return Some("empty entry on an SRQ");
    }
    if qp_type == "RAW_PACKET"
        && steps
            .iter()
            .any(|s| s["ret"] == 22 && list(&s["ops"]).iter().any(|o| o["op"] == "set_inline_data_list"))
    {
        return Some("inline list too long on a raw packet QP");
    }
    // libmlx5's single setters post the header's bytes again if there are no others.
    if text(&qp["ctx"]) == "eth_l2"
        && ops().any(|op| num(&op["sge"]["length"]) == 18 || num(&op["length"]) == 18)
    {
        return Some("single setter with nothing but the inlined header");
    }
    // libmlx5 puts the data 32 bytes too far behind a header that was split at the ring's end.
    let blocks = num(&qp["sq_wqe_cnt"]).max(1);
    let left = (blocks - num(&qp["sq_start_index"]) % blocks) * 64 - 30;
    if wrs().map(|wr| &wr["tso"]).chain(ops()).any(|v| num(&v["hdr_sz"]) > left) {
        return Some("segmented send's header over the ring's end");
    }
    None
}

#[test]
fn reference_vectors() {
    map_data();
    let mut counts: BTreeMap<String, [u32; 3]> = BTreeMap::new();
    let mut failed = Vec::new();
    for case in cases() {
        let category = text(&case["category"]).to_owned();
        let result = match &*category {
            "post_recv" | "post_recv_list" | "post_recv_state" => run_recv(&case),
            "post_srq_recv" => run_srq(&case),
            "doorbell" => run_send(&case),
            c if c.starts_with("post_send") || c.starts_with("wr_api") => run_send(&case),
            _ => continue,
        };
        let count = counts.entry(category).or_default();
        match (result, exception(&case)) {
            (Ok(()), _) => count[0] += 1,
            (Err(_), Some(_)) => count[1] += 1,
            (Err(e), None) => {
                count[2] += 1;
                failed.push(format!(
                    "{} {} {}: {e}",
                    case["id"],
                    text(&case["category"]),
                    text(&case["name"])
                ));
            }
        }
    }
    for (category, [matched, excepted, failed]) in &counts {
        println!("{category}: {matched} matched, {excepted} excepted, {failed} failed");
    }
    assert!(counts.values().map(|c| c[0]).sum::<u32>() > 100, "a file with few cases");
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed[..failed.len().min(40)].join("\n"));
}
