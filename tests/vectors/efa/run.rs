// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one case.
#![expect(unsafe_code)]
// UNSAFETY: posts name memory that no device accesses; inline data are at addresses that `memory` has mapped.

use super::kernel::{CQ_BELL, FixedKernel, LLQ_START, RQ_BELL, SQ_BELL};
use super::model::{Case, Entry, Receive, Step, Wc, Wr};
use crate::memory;
use crate::model::Bytes;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use uverbs_core::attr::{
    CqInitAttr, QpAttr, QpAttrMask, QpInitAttr, QpState, QpType, SendOpsFlags, WcExFlags,
};
use uverbs_core::control::comp_channel;
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, CqObject as _, Data, Dest, Driver, Head, Inline, Object as _, Op,
    PollError, QpCreate, QpObject as _, QpParts, RecvQueue as _, RemoteAddr, SendQueue as _, To, Wr as Value,
    WrBuilder as _,
};
use uverbs_core::wc::{WcFlags, WcOpcode, WorkCompletion};
use uverbs_core::wr::{ImmData, RawAh, SendFlags, Sge, WrOpcode};
use uverbs_efa::control::{Cq, CqOptions, Qp, QpOptions};
use uverbs_efa::{Ah, Completion, CompletionQueue, Efa, RecvQueue, SendQueue};
use uverbs_testkit::kernel::Scripted;
use uverbs_testkit::{Face, List, Refused, as_recv_list, begin, handle, post, refused};

const FILL: u8 = 0xa5;
const UNSOLICITED: u16 = 1;
const INLINE_WRITE: u16 = 2;

struct Rig {
    kernel: Arc<Scripted<FixedKernel>>,
    qp: Qp,
    send: SendQueue,
    recv: RecvQueue,
    cq: CompletionQueue,
    cq_object: Cq,
    entries: u32,
    entry_size: usize,
    descriptors: u32,
    /// Positions, and the numbers of the requests so far.
    sent: u32,
    received: u32,
    sends: Vec<u16>,
    receives: Vec<u16>,
    /// Those that have not completed.
    waiting_sends: HashSet<u16>,
    waiting_receives: HashSet<u16>,
    written: HashMap<u32, u32>,
    /// The CQ was created for the GIDs of unknown peers.
    has_gids: bool,
    /// Completions that were polled.
    consumed: u32,
    /// The rules that applied.
    rules: BTreeSet<&'static str>,
}

/// Typed entries have at most 2^31 bytes.
fn is_short(wrs: &[Wr]) -> bool {
    wrs.iter().flat_map(|wr| &wr.sges).all(|(_, length, _)| *length <= 1 << 31)
}

/// Whether typed batches can express a post of the case.
pub(super) fn is_typed(case: &Case) -> bool {
    case.steps.iter().any(|step| match step {
        Step::List { ret, wrs, .. } => *ret == 0 && is_short(wrs),
        Step::Builders { wrs, .. } => is_short(wrs),
        _ => false,
    })
}

/// Runs the case; `typed` posts by batches. Returns the rules that applied.
pub(super) fn run(case: &Case, typed: bool) -> Result<BTreeSet<&'static str>> {
    let kernel = FixedKernel::new(&case.generation);
    kernel.state().qp_num = case.qp.qpn;
    let efa = Efa::open(Arc::clone(&kernel) as Arc<dyn Kernel>)?.0;
    let pd = efa.alloc_pd()?;
    let channel = case
        .cq
        .channel
        .then(|| comp_channel::create(&(Arc::clone(&kernel) as Arc<dyn Kernel>)))
        .transpose()?;
    let mut attr = CqInitAttr::new(case.cq.cqe);
    if case.cq.kind != 0 {
        attr.wc_flags = WcExFlags::STANDARD;
    }
    let options = CqOptions { source_gid: case.cq.kind == 2 };
    let made = efa.new_cq(&attr, options, channel.as_ref(), 0).context("create_cq")?;
    let cq = &made.queue;
    ensure!(cq.cqe() == case.cq.out, "a CQ of {} entries", cq.cqe());
    ensure!(kernel.state().cq_request == case.cq.request.0, "create_cq: {:x?}", kernel.state().cq_request);

    let qp = &case.qp;
    let mut attr = QpInitAttr::new(if qp.ud { QpType::Ud } else { QpType::Driver });
    let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = qp.cap;
    (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_inline_data) =
        (max_send_wr, max_recv_wr, max_inline_data);
    (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (max_send_sge, max_recv_sge);
    (attr.sq_sig_all, attr.send_ops_flags) = (qp.sig, SendOpsFlags::from_bits_retain(qp.ops));
    let options = QpOptions {
        unsolicited_write_recv: qp.flags & UNSOLICITED != 0,
        inline_write: qp.flags & INLINE_WRITE != 0,
        sl: qp.sl,
    };
    let create = QpCreate {
        pd: Some(&pd),
        send_cq: Some(&made.cq),
        recv_cq: Some(&made.cq),
        exclusive: true,
        ..QpCreate::new(&attr)
    };
    let queues = match efa.new_qp(&create, options) {
        Err(_) if qp.ret != 0 => return Ok(BTreeSet::new()),
        Err(error) => bail!("create_qp: {error}"),
        Ok(_) if qp.ret != 0 => bail!("create_qp succeeds"),
        Ok(parts) => parts,
    };
    let QpParts { qp: object, send: Some(send), recv: Some(recv), cap } = queues else {
        bail!("a queue is missing")
    };
    let cap = [cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data];
    ensure!(Some(cap) == qp.out, "sizes {cap:?}, not {:?}", qp.out);
    let request = kernel.state().qp_request.clone();
    ensure!(Some(&request) == qp.request.as_ref().map(|b| &b.0), "create_qp: {request:x?}");
    let number = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("4 bytes"));
    let mut rig = Rig {
        entries: cap[0],
        entry_size: (number(8) / cap[0]) as usize,
        descriptors: number(4) / 16,
        kernel,
        qp: object,
        send,
        recv,
        cq: made.queue,
        cq_object: made.cq,
        sent: 0,
        received: 0,
        sends: Vec::new(),
        receives: Vec::new(),
        waiting_sends: HashSet::new(),
        waiting_receives: HashSet::new(),
        written: HashMap::new(),
        has_gids: case.cq.kind == 2,
        consumed: 0,
        rules: BTreeSet::new(),
    };
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        rig.modify(state)?;
    }
    rig.advance(case.start)?;
    for (n, step) in case.steps.iter().enumerate() {
        rig.step(step, typed).with_context(|| format!("step {n}"))?;
    }
    Ok(rig.rules)
}

fn sges(list: &[(u64, u32, u32)]) -> Vec<Sge> {
    list.iter().map(|(addr, length, lkey)| Sge { addr: *addr, length: *length, lkey: *lkey }).collect()
}

fn op(wr: &Wr) -> Op<'static> {
    let at = RemoteAddr { addr: wr.remote.0, rkey: wr.remote.1 };
    match wr.op.as_str() {
        "SEND" => Op::Send,
        "SEND_WITH_IMM" => Op::SendImm(wr.imm),
        "RDMA_READ" => Op::Read(at),
        "RDMA_WRITE" => Op::Write(at),
        "RDMA_WRITE_WITH_IMM" => Op::WriteImm(at, wr.imm),
        other => panic!("{other}"),
    }
}

fn opcode(name: &str) -> WrOpcode {
    match name {
        "SEND" => WrOpcode::SEND,
        "SEND_WITH_IMM" => WrOpcode::SEND_WITH_IMM,
        "RDMA_READ" => WrOpcode::RDMA_READ,
        "RDMA_WRITE" => WrOpcode::RDMA_WRITE,
        "RDMA_WRITE_WITH_IMM" => WrOpcode::RDMA_WRITE_WITH_IMM,
        "SEND_WITH_INV" => WrOpcode::SEND_WITH_INV,
        _ => WrOpcode::ATOMIC_FETCH_AND_ADD,
    }
}

fn buffers(wr: &Wr) -> Vec<Vec<u8>> {
    wr.sges.iter().map(|s| memory::read(s.0, s.1 as usize)).collect()
}

fn errno(result: &Result<(), Refused>) -> (i32, i32) {
    match result {
        Ok(()) => (0, -1),
        Err(refused) => {
            (refused.error.map_or(-1, |e| e.errno().raw()), refused.bad.map_or(-1, |bad| bad as i32))
        }
    }
}

impl Rig {
    fn modify(&mut self, state: QpState) -> Result<()> {
        let mut attr = QpAttr::default();
        attr.qp_state = state;
        self.qp.modify(&attr, QpAttrMask::STATE)?;
        if state == QpState::RESET {
            (self.sent, self.received) = (0, 0);
            (self.sends, self.receives) = (Vec::new(), Vec::new());
            (self.waiting_sends, self.waiting_receives) = (HashSet::new(), HashSet::new());
        }
        Ok(())
    }

    fn refill(&self) {
        let state = self.kernel.state();
        state.llq.put(LLQ_START, &vec![FILL; self.entries as usize * self.entry_size]);
        state.rq.put(0, &vec![FILL; self.descriptors as usize * 16]);
        drop(state);
        self.kernel.bells.take();
    }

    /// Posts and completes one request at a time.
    fn advance(&mut self, n: u32) -> Result<()> {
        for _ in 0..n {
            let to = Dest::Ud(To { ah: &Ah(0), remote_qpn: 0, remote_qkey: 0 });
            // SAFETY: no memory is named.
            unsafe { self.send.post(&Value::new(0, Op::Send).signaled().to(to)) }?;
            let at = LLQ_START + (self.sent % self.entries) as usize * self.entry_size;
            let bytes = self.kernel.state().llq.bytes(at, 8);
            let number = u16::from_le_bytes([bytes[0], bytes[1]]);
            self.sends.push(number);
            self.sent += 1;
            self.consumed += 1;
            let mut entry = [0; 32];
            entry[..2].copy_from_slice(&number.to_le_bytes());
            entry[3] = 2 | u8::from(self.phase(0));
            entry[4..6].copy_from_slice(&(self.qp.handle().qp_num() as u16).to_le_bytes());
            self.put(0, &entry);
            ensure!(self.cq.poll_each(1, |_| ())? == 1, "no completion");
        }
        Ok(())
    }

    fn phase(&self, sub: u32) -> bool {
        (self.written.get(&sub).copied().unwrap_or(0) / self.cq.cqe()).is_multiple_of(2)
    }

    fn put(&mut self, sub: u32, bytes: &[u8]) {
        let cqe = self.cq.cqe();
        let written = self.written.entry(sub).or_default();
        self.kernel.state().cq.put(((sub * cqe + *written % cqe) * 32) as usize, bytes);
        *written += 1;
    }

    /// Compares the entries since the last call, and the doorbell. The numbers are returned.
    fn compare(&mut self, is_send: bool, want: &[Bytes], bell: Option<u32>) -> Result<()> {
        let (count, size, from, number_at) = match is_send {
            true => (self.entries, self.entry_size, self.sent, 0),
            false => (self.descriptors, 16, self.received, 8),
        };
        let start = if is_send { LLQ_START } else { 0 };
        let mut got = Vec::new();
        for n in 0..count {
            let at = start + ((from + n) % count) as usize * size;
            let state = self.kernel.state();
            let bytes = if is_send { state.llq.bytes(at, size) } else { state.rq.bytes(at, size) };
            if bytes.iter().all(|byte| *byte == FILL) {
                break;
            }
            got.push(bytes);
        }
        let offset = if is_send { SQ_BELL } else { RQ_BELL };
        let bells = self.kernel.bells.take();
        let rung = bells.iter().rfind(|(at, _)| *at == offset).map(|(_, value)| *value);
        if rung != bell {
            // The value that the device has already.
            let known = bell.is_some_and(|bell| bell == from & 0xffff) && want.is_empty();
            ensure!(rung.is_none() && known, "doorbell {rung:?}, not {bell:?}");
            self.rules.insert("known-doorbell");
        }
        ensure!(got.len() == want.len(), "{} entries, not {}", got.len(), want.len());
        for (n, (got, want)) in got.iter().zip(want).enumerate() {
            let differs = (0..size).find(|at| got.get(*at) != want.0.get(*at) && at - at % 2 != number_at);
            ensure!(
                differs.is_none() && want.0.len() == size,
                "entry {n}, byte {differs:?}\n  want {:02x?}\n  got  {got:02x?}",
                want.0
            );
            if got[number_at..number_at + 2] != want.0[number_at..number_at + 2] {
                self.rules.insert("request-number");
            }
            let number = u16::from_le_bytes([got[number_at], got[number_at + 1]]);
            if is_send || got[15] & 0x40 != 0 {
                let waiting = if is_send { &mut self.waiting_sends } else { &mut self.waiting_receives };
                ensure!(waiting.insert(number), "entry {n}: the device has a request {number:#x}");
                (if is_send { &mut self.sends } else { &mut self.receives }).push(number);
            }
        }
        *(if is_send { &mut self.sent } else { &mut self.received }) += got.len() as u32;
        Ok(())
    }

    fn list(&mut self, wrs: &[Wr]) -> Result<(), Refused> {
        let all: Vec<_> = wrs.iter().map(|wr| (handle(Ah(wr.to.0)), sges(&wr.sges))).collect();
        let values = wrs.iter().zip(&all).map(|(wr, (ah, sges))| {
            let to = Dest::Ud(To { ah, remote_qpn: wr.to.1, remote_qkey: wr.to.2 });
            Value::new(wr.id, Op::Send).sges(sges).to(to)
        });
        let mut list = List::new(&values.collect::<Vec<_>>());
        for (n, wr) in wrs.iter().enumerate() {
            list.change(n, |node| {
                node.opcode = opcode(&wr.op);
                node.send_flags = wr.flags;
                node.imm_data_or_invalidate_rkey = ImmData::new(wr.imm).to_be();
            });
        }
        // SAFETY: the list borrows what its nodes point to; inline data are in memory of `memory`.
        unsafe { self.send.post_send(list.first()) }.map_err(|bad| refused(list.nodes(), &bad))
    }

    fn builders(&mut self, wrs: &[Wr], abort: bool) -> Result<(), Refused> {
        let queue = &mut self.send;
        queue.wr_start();
        for wr in wrs {
            let head = Head { wr_id: wr.id, flags: SendFlags::from_bits_retain(wr.flags) };
            // SAFETY: no device accesses the memory.
            unsafe { begin(queue, head, op(wr)) };
            let buffers = buffers_of(wr);
            let slices: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
            match wr.by {
                // SAFETY: as above.
                0 | 1 => unsafe { queue.wr_set_sges(&sges(&wr.sges)) },
                2 => queue.wr_set_inline(Inline::Bytes(slices[0])),
                _ => queue.wr_set_inline(Inline::List(&slices)),
            }
            queue.wr_set_ud_addr(&Ah(wr.to.0), wr.to.1, wr.to.2);
        }
        if abort {
            queue.wr_abort();
            return Ok(());
        }
        Ok(queue.wr_complete()?)
    }

    fn batch(&mut self, wrs: &[Wr]) -> Result<(), Refused> {
        let all: Vec<_> =
            wrs.iter().map(|wr| (handle(Ah(wr.to.0)), sges(&wr.sges), buffers_of(wr))).collect();
        let slices: Vec<Vec<&[u8]>> =
            all.iter().map(|(_, _, b)| b.iter().map(Vec::as_slice).collect()).collect();
        let values: Vec<Value<'_, RawAh<Ah>>> = wrs
            .iter()
            .zip(&all)
            .zip(&slices)
            .map(|((wr, (ah, sges, _)), slices)| {
                let is_inline = wr.by >= 2 || wr.flags & SendFlags::INLINE.bits() != 0;
                let data = if is_inline { Data::Inline(Inline::List(slices)) } else { Data::Sges(sges) };
                let to = Dest::Ud(To { ah, remote_qpn: wr.to.1, remote_qkey: wr.to.2 });
                Value { wr_id: wr.id, flags: SendFlags::from_bits_retain(wr.flags), to, op: op(wr), data }
            })
            .collect();
        // SAFETY: no device accesses the memory.
        unsafe { post(&mut self.send, Face::Batch, &values) }
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Result<(), Refused> {
        let all: Vec<_> = receives.iter().map(|r| sges(&r.sges)).collect();
        let all: Vec<(u64, &[Sge])> = receives.iter().zip(&all).map(|(r, s)| (r.id, &s[..])).collect();
        let queue = &mut self.recv;
        // SAFETY: a list of live nodes and entries.
        as_recv_list(&all, |list| unsafe { queue.post_recv(list) })
    }

    fn complete(&mut self, entries: &[Entry]) -> Result<()> {
        for entry in entries {
            let mut bytes = entry.hex.0.clone();
            bytes.resize(32, 0);
            if let Ok(position) = usize::try_from(entry.position) {
                let (numbers, waiting) = match bytes[3] & 6 {
                    2 => (&self.sends, &mut self.waiting_sends),
                    _ => (&self.receives, &mut self.waiting_receives),
                };
                let number = numbers.get(position).context("a request")?;
                waiting.remove(number);
                bytes[..2].copy_from_slice(&number.to_le_bytes());
            }
            ensure!((bytes[3] & 1 != 0) == self.phase(entry.sub), "phase");
            self.put(entry.sub, &bytes);
        }
        Ok(())
    }

    fn cq_bell(&mut self, want: Option<u32>, is_end: bool) -> Result<()> {
        let bells = self.kernel.bells.take();
        let rung = bells.iter().rfind(|(at, _)| *at == CQ_BELL).map(|(_, value)| *value);
        if is_end && want.is_none() && rung.is_some_and(|value| value & 0xffff == self.consumed & 0xffff) {
            self.rules.insert("end-of-poll");
            return Ok(());
        }
        ensure!(rung == want, "doorbell of the CQ {rung:x?}, not {want:x?}");
        Ok(())
    }

    fn step(&mut self, step: &Step, typed: bool) -> Result<()> {
        self.refill();
        match step {
            Step::List { wrs, ret, bad, sq, bell } => {
                let typed = typed && *ret == 0 && is_short(wrs);
                let got = if typed { self.batch(wrs) } else { self.list(wrs) };
                ensure!(errno(&got) == (*ret, *bad), "{got:?}, not {ret} at {bad}");
                self.compare(true, sq, *bell)
            }
            Step::Builders { wrs, ret, sq, bell } => {
                let typed = typed && is_short(wrs);
                let got = if typed { self.batch(wrs) } else { self.builders(wrs, false) };
                ensure!(errno(&got).0 == *ret, "{got:?}, not {ret}");
                self.compare(true, sq, *bell)
            }
            Step::Abort { wrs, sq, bell } => {
                let got = self.builders(wrs, true);
                ensure!(got.is_ok(), "{got:?}");
                self.compare(true, sq, *bell)
            }
            Step::Receives { receives, ret, bad, rq, bell } => {
                let got = self.post_receives(receives);
                ensure!(errno(&got) == (*ret, *bad), "{got:?}, not {ret} at {bad}");
                self.compare(false, rq, *bell)
            }
            Step::Complete { entries } => self.complete(entries),
            // The next poll must report the same completions as libefa's.
            Step::Poll { ret: -22, .. } | Step::StartPoll { ret: 22, .. } => {
                self.rules.insert("unknown-qp");
                Ok(())
            }
            Step::Poll { max, ret, wcs, bell } => {
                let mut got = vec![WorkCompletion::default(); *max];
                let count = self.cq.poll_cq(&mut got).map_err(PollError::errno);
                ensure!(count == Ok(*ret as usize), "{count:?} completions, not {ret}");
                self.consumed += *ret as u32;
                for (n, (got, want)) in got.iter().zip(wcs).enumerate() {
                    compare_wc(want, got, &mut self.rules).with_context(|| format!("completion {n}"))?;
                }
                self.cq_bell(*bell, false)
            }
            Step::StartPoll { max, ret, next, wcs, bell } => self.extended(*max, *ret, *next, wcs, *bell),
            Step::Notify { solicited, ret, bell } => {
                let got = self.cq.req_notify(*solicited).map_or_else(|e| e.errno().raw(), |()| 0);
                ensure!(got == *ret, "req_notify: {got}, not {ret}");
                self.cq_bell(*bell, false)
            }
            Step::Event {} => {
                self.cq_object.notify().cq_event();
                Ok(())
            }
            Step::Modify { state } => self.modify(QpState(*state)),
        }
    }

    fn extended(&mut self, max: usize, ret: i32, next: i32, wcs: &[Wc], bell: Option<u32>) -> Result<()> {
        let code = |r: Result<(), PollError>| r.map_or_else(|e| e.errno().raw(), |()| 0);
        let started = code(self.cq.start_poll());
        ensure!(started == ret, "start_poll: {started}, not {ret}");
        let mut got = started;
        for (n, want) in wcs.iter().enumerate() {
            ensure!(got == 0, "{n} completions, not {}", wcs.len());
            let c = self.cq.current().context("a completion")?;
            compare_wc(&lazy(want, &c, &mut self.rules), &c.to_wc(), &mut self.rules)
                .with_context(|| format!("completion {n}"))?;
            ensure!(c.slid() == want.slid, "slid {:#x}, not {:#x}", c.slid(), want.slid);
            if self.has_gids {
                compare_efa(want, &c, &mut self.rules)?;
            }
            if n + 1 < max {
                got = code(self.cq.next_poll());
            }
        }
        ensure!(got == next, "next_poll: {got}, not {next}");
        self.cq.end_poll();
        self.consumed += wcs.len() as u32;
        self.cq_bell(bell, !wcs.is_empty())
    }
}

fn buffers_of(wr: &Wr) -> Vec<Vec<u8>> {
    if wr.by >= 2 || wr.flags & SendFlags::INLINE.bits() != 0 { buffers(wr) } else { Vec::new() }
}

fn compare_wc(want: &Wc, got: &WorkCompletion, rules: &mut BTreeSet<&'static str>) -> Result<()> {
    let mut imm = u32::from_be(got.imm_data_or_invalidated_rkey);
    if want.wc_flags & WcFlags::WITH_IMM.bits() == 0 && imm != want.imm_data {
        rules.insert("no-immediate");
        imm = want.imm_data;
    }
    let fields = [
        ("wr_id", got.wr_id, want.wr_id),
        ("status", got.status.0.into(), want.status.into()),
        ("opcode", got.opcode.0.into(), want.opcode.into()),
        ("vendor_err", got.vendor_err.into(), want.vendor_err.into()),
        ("byte_len", got.byte_len.into(), want.byte_len.into()),
        ("imm_data", imm.into(), want.imm_data.into()),
        ("qp_num", got.qp_num.into(), want.qp_num.into()),
        ("src_qp", got.src_qp.into(), want.src_qp.into()),
        ("wc_flags", got.wc_flags.bits().into(), want.wc_flags.into()),
        ("slid", got.slid.into(), want.slid.into()),
    ];
    for (name, got, want) in fields {
        ensure!(got == want, "{name} {got:#x}, not {want:#x}");
    }
    Ok(())
}

/// The completion of an extended poll as `ibv_poll_cq` reports it.
fn lazy(want: &Wc, got: &Completion, rules: &mut BTreeSet<&'static str>) -> Wc {
    let mut want = want.clone();
    if got.is_receive() == Some(false) && want.wc_flags == WcFlags::WITH_IMM.bits() {
        rules.insert("immediate-of-send");
        want.wc_flags = 0;
    }
    want
}

fn compare_efa(want: &Wc, got: &Completion, rules: &mut BTreeSet<&'static str>) -> Result<()> {
    if let Some(unsolicited) = want.unsolicited {
        ensure!(got.is_unsolicited() == (unsolicited != 0), "unsolicited {}", got.is_unsolicited());
    }
    let gid = got.source_gid().map(|gid| gid.0.to_vec());
    match &want.sgid {
        Some(_) if gid.is_none() && got.opcode() == WcOpcode::RECV_RDMA_WITH_IMM => {
            rules.insert("gid-of-write");
        }
        want => ensure!(gid.as_ref() == want.as_ref().map(|b| &b.0), "sgid {gid:x?}"),
    }
    Ok(())
}
