// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends of mlx5 by all three faces, read back by the software HCA's decoder, which shares nothing with the encoder.
//!
//! Held: a right request is posted where there is room, a wrong one is not; each WQE decodes to what was asked for, at the
//! index where the doorbell record says that it is, over any stale bytes; what is refused leaves no trace: no record, no
//! doorbell. The last doorbell of a call is that of its last WQE, whole or by its first 8 bytes.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; no device looks at the memory that is named, and lists live as long as the call.

use arbitrary::Arbitrary;
use core::ptr::null;
use libfuzzer_sys::fuzz_target;
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::provider::op::{self, Address, DcTarget};
use uverbs_core::provider::{
    Connected, InlineList, NoData, Operation, Payload, PostError, RemoteSrq, SendBatch as _, SendQueue as _,
    To, WireRemote as _, WireSge as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{
    IbvAh, ImmData, RawAh, SendFlags, SendWr, Sge, WrAtomic, WrOpcode, WrRdma, WrUd, WrUnion,
};
use uverbs_hca::decode::{self, QueueKind, Segment, send_wqe};
use uverbs_mlx5::testing::{BLUE_FLAME, Sends, send_config};
use uverbs_mlx5::{Ah, Remote, SendQueue, Sge as WireSge};
use uverbs_mlx5_hw::wqe::Av;

#[derive(Arbitrary, Debug)]
struct Program {
    kind: u8,
    log_blocks: u8,
    max_wr: u8,
    dirt: u8,
    start: u16,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    List(Vec<Request>),
    Batch(Vec<Request>),
    Session(Vec<Request>),
    /// A batch that is dropped, or a session that is aborted.
    Lost(Vec<Request>, bool),
    /// So many of the outstanding WRs are done.
    Retire(u8),
    Reset,
}

#[derive(Arbitrary, Clone, Debug)]
struct Request {
    wr_id: u64,
    flags: u8,
    what: What,
    data: Data,
    number: u32,
    key: u32,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum What {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write(u64, u32),
    WriteImm(u64, u32, u32),
    Read(u64, u32),
    CmpSwp(u64, u32, u64, u64),
    FetchAdd(u64, u32, u64),
    LocalInv(u32),
}

#[derive(Arbitrary, Clone, Debug)]
enum Data {
    Sges(Vec<(u64, u16, u32)>),
    Inline(Vec<Vec<u8>>),
}

const MAX_STEPS: usize = 40;
const MAX_WRS: usize = 12;
const MAX_SGE: usize = 4;
const MAX_INLINE: usize = 64;

fn kind(n: u8) -> (QpType, QueueKind) {
    [
        (QpType::Rc, QueueKind::Rc),
        (QpType::Uc, QueueKind::Uc),
        (QpType::Ud, QueueKind::Ud),
        (QpType::XrcSend, QueueKind::Xrc),
        (QpType::Driver, QueueKind::Dci),
    ][usize::from(n % 5)]
}

impl What {
    fn opcode(self) -> WrOpcode {
        match self {
            Self::Send => WrOpcode::SEND,
            Self::SendImm(_) => WrOpcode::SEND_WITH_IMM,
            Self::SendInv(_) => WrOpcode::SEND_WITH_INV,
            Self::Write(..) => WrOpcode::RDMA_WRITE,
            Self::WriteImm(..) => WrOpcode::RDMA_WRITE_WITH_IMM,
            Self::Read(..) => WrOpcode::RDMA_READ,
            Self::CmpSwp(..) => WrOpcode::ATOMIC_CMP_AND_SWP,
            Self::FetchAdd(..) => WrOpcode::ATOMIC_FETCH_AND_ADD,
            Self::LocalInv(_) => WrOpcode::LOCAL_INV,
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwp(..) | Self::FetchAdd(..))
    }

    /// An address of an atomic is aligned here: what becomes of others, the unit tests know.
    fn at(self, addr: u64) -> u64 {
        if self.is_atomic() { addr & !7 } else { addr }
    }
}

impl Request {
    fn sges(&self) -> Vec<Sge> {
        match &self.data {
            Data::Sges(list) => list
                .iter()
                .map(|(addr, len, lkey)| Sge { addr: *addr, length: u32::from(*len), lkey: *lkey })
                .collect(),
            Data::Inline(_) => Vec::new(),
        }
    }

    fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate(u32::from(self.flags) & 7)
    }

    /// Whether it may be posted, by the tables of docs/semantics.md.
    fn is_right(&self, qp_type: QpType) -> bool {
        let legal = match (qp_type, self.what) {
            (_, What::Send | What::SendImm(_)) => true,
            (QpType::Ud, _) => false,
            (QpType::Uc, What::Read(..) | What::CmpSwp(..) | What::FetchAdd(..)) => false,
            _ => true,
        };
        let is_read = self.what.is_atomic() || matches!(self.what, What::Read(..));
        let data = match &self.data {
            _ if matches!(self.what, What::LocalInv(_)) => true,
            Data::Inline(bufs) => !is_read && bufs.iter().map(Vec::len).sum::<usize>() <= MAX_INLINE,
            Data::Sges(list) => {
                let sum: u64 = list.iter().map(|(_, len, _)| u64::from(*len)).sum();
                list.len() <= MAX_SGE && (!self.what.is_atomic() || sum >= 8)
            }
        };
        legal && data
    }

    /// The same is too much for a list, whose inline data are entries.
    fn is_right_in_a_list(&self, qp_type: QpType) -> bool {
        let bufs = match &self.data {
            Data::Inline(bufs) => bufs.len() <= MAX_SGE,
            Data::Sges(_) => true,
        };
        // A list has no DC address.
        let local = matches!(self.what, What::LocalInv(_));
        self.is_right(qp_type) && (bufs && qp_type != QpType::Driver || local)
    }

    /// What the WQE must say.
    fn expected(&self, index: u16, waits: bool, is_session: bool) -> decode::Request {
        let flags = self.flags();
        let op = match self.what {
            What::Send => decode::Op::Send { imm: None, invalidate: None },
            What::SendImm(imm) => decode::Op::Send { imm: Some(imm), invalidate: None },
            What::SendInv(key) => decode::Op::Send { imm: None, invalidate: Some(key) },
            What::Write(addr, rkey) => decode::Op::Write { addr, rkey, imm: None },
            What::WriteImm(addr, rkey, imm) => decode::Op::Write { addr, rkey, imm: Some(imm) },
            What::Read(addr, rkey) => decode::Op::Read { addr, rkey },
            What::CmpSwp(addr, rkey, compare, swap) => {
                decode::Op::CmpSwap { addr: self.what.at(addr), rkey, compare, swap }
            }
            What::FetchAdd(addr, rkey, add) => decode::Op::FetchAdd { addr: self.what.at(addr), rkey, add },
            What::LocalInv(_) => decode::Op::Nop,
        };
        let memory = |s: &Sge| Segment::Memory {
            // The setters of a session write an atomic's entry as it is, as the reference's do.
            length: if self.what.is_atomic() && !is_session { 8 } else { s.length },
            lkey: s.lkey,
            addr: s.addr,
        };
        let data = match &self.data {
            _ if matches!(self.what, What::LocalInv(_)) => Vec::new(),
            Data::Sges(_) => self.sges().iter().filter(|s| s.length != 0).map(memory).collect(),
            Data::Inline(bufs) => {
                let bytes = bufs.concat();
                if bytes.is_empty() { Vec::new() } else { vec![Segment::Inline(bytes)] }
            }
        };
        decode::Request {
            index,
            ds: 0,
            opcode: 0,
            signaled: flags.contains(SendFlags::SIGNALED),
            solicited: flags.contains(SendFlags::SOLICITED),
            fence: flags.contains(SendFlags::FENCE),
            small_fence: waits && !flags.contains(SendFlags::FENCE),
            op,
            av: None,
            srqn: None,
            data,
        }
    }
}

fn vector() -> Av {
    Av { stat_rate_sl: 3, rmac: [2, 0, 0, 0, 0, 1], hop_limit: 64, rgid: [7; 16], ..Av::default() }
}

struct World {
    sends: Sends,
    qp_type: QpType,
    kind: QueueKind,
    blocks: u32,
    max_wr: u32,
    /// Blocks posted, and the first blocks of WRs that are not done.
    at: u32,
    outstanding: Vec<u32>,
    /// A local operation was the last one.
    waits: bool,
}

fuzz_target!(|program: Program| {
    let (qp_type, kind) = kind(program.kind);
    let blocks = 1 << (program.log_blocks % 7);
    let max_wr = u32::from(program.max_wr % 32 + 1).min(blocks);
    let mut config = send_config(qp_type);
    (config.max_send_wr, config.max_send_sge, config.max_inline_data) =
        (max_wr, MAX_SGE as u32, MAX_INLINE as u32);
    let mut sends = Sends::new(&config, blocks, BLUE_FLAME);
    sends.fill(program.dirt);
    let at = u32::from(program.start);
    sends.queue.start_at(at);
    let mut world = World { sends, qp_type, kind, blocks, max_wr, at, outstanding: Vec::new(), waits: false };
    for step in program.steps.iter().take(MAX_STEPS) {
        world.run(step);
    }
});

impl World {
    fn run(&mut self, step: &Step) {
        let cut = |all: &Vec<Request>| all[..all.len().min(MAX_WRS)].to_vec();
        match step {
            Step::List(all) => self.list(&cut(all)),
            Step::Batch(all) => {
                let all = cut(all);
                let result = self.batch(&all, false);
                self.whole(&all, result, false);
            }
            Step::Session(all) => {
                let all = cut(all);
                let result = self.session(&all, false);
                self.whole(&all, result, true);
            }
            Step::Lost(all, session) => {
                let all = cut(all);
                let lost = if *session { self.session(&all, true) } else { self.batch(&all, true) };
                assert!(lost.is_ok(), "what is dropped reports nothing");
                self.posted(&[], false);
            }
            Step::Retire(n) => {
                let n = usize::from(*n).min(self.outstanding.len());
                if let Some(last) = self.outstanding.drain(..n).last() {
                    self.sends.retire(last as u16);
                }
            }
            Step::Reset => {
                self.sends.qp.set_state(QpState::RESET);
                assert_eq!(self.batch(&[], false), Err(PostError::BadState));
                self.sends.qp.set_state(QpState::RTS);
                (self.at, self.waits) = (0, false);
                self.outstanding.clear();
                self.sends.record.set_send(0);
            }
        }
    }

    /// All or nothing.
    fn whole(&mut self, all: &[Request], result: Result<(), PostError>, is_session: bool) {
        let right = all.iter().all(|r| r.is_right(self.qp_type));
        match result {
            Ok(()) => {
                assert!(right, "posted {all:?}");
                self.posted(all, is_session);
            }
            Err(PostError::QueueFull) => self.must_be_full(all),
            Err(error) => {
                assert!(!right, "{error:?} for {all:?}");
                self.posted(&[], false);
            }
        }
    }

    /// A queue may be full when the WRs, or the blocks of the longest that they can be, don't fit.
    fn must_be_full(&mut self, all: &[Request]) {
        /// Blocks of the longest WQE: address, atomic, entries.
        const LONGEST: u32 = 4;
        let wrs = self.outstanding.len() + all.len();
        let first = self.outstanding.first().map_or(0, |first| self.at.wrapping_sub(*first));
        let blocks = first + all.len() as u32 * LONGEST;
        // A WQE of more blocks than a WR has on average counts as more than one.
        let counted = wrs as u32 * LONGEST;
        assert!(wrs as u32 > self.max_wr || blocks > self.blocks || counted > self.max_wr, "{wrs} WRs");
        self.posted(&[], false);
    }

    fn list(&mut self, all: &[Request]) {
        let mut keep = Keep::default();
        let nodes = keep.nodes(all, self.qp_type);
        let first = if nodes.is_empty() { null() } else { nodes.as_ptr() };
        // SAFETY: a list of live nodes; see above.
        let result = unsafe { self.sends.queue.post_send(first) };
        let wrong = all.iter().position(|r| !r.is_right_in_a_list(self.qp_type));
        match result {
            Ok(()) => {
                assert!(wrong.is_none() && !all.is_empty());
                self.posted(all, false);
            }
            Err(bad) => {
                let at = nodes.iter().position(|n| core::ptr::from_ref(n) == bad.wr);
                match bad.error {
                    PostError::NullList => assert!(all.is_empty()),
                    PostError::QueueFull => assert!(at <= wrong.or(Some(all.len()))),
                    error => assert_eq!(at, wrong, "{error:?}"),
                }
                self.posted(&all[..at.unwrap_or(0)], false);
            }
        }
    }

    fn batch(&mut self, all: &[Request], lost: bool) -> Result<(), PostError> {
        let (qp_type, mut batch) = (self.qp_type, self.sends.queue.batch());
        for r in all {
            let wr = Wr { wr_id: r.wr_id, flags: r.flags() };
            match &r.data {
                Data::Sges(_) => {
                    let sges: Vec<_> =
                        r.sges().iter().map(|s| WireSge::new(s.addr, s.length, s.lkey)).collect();
                    let sges: Vec<_> = sges.into_iter().map(|s| s.expect("short entries")).collect();
                    to(&mut batch, wr, r, qp_type, &sges[..]);
                }
                Data::Inline(bufs) => {
                    let bufs: Vec<&[u8]> = bufs.iter().map(|b| &b[..]).collect();
                    to(&mut batch, wr, r, qp_type, InlineList(&bufs));
                }
            }
        }
        if lost {
            drop(batch);
            return Ok(());
        }
        batch.complete()
    }

    fn session(&mut self, all: &[Request], lost: bool) -> Result<(), PostError> {
        let queue = &mut self.sends.queue;
        queue.wr_start();
        for r in all {
            let wr = Wr { wr_id: r.wr_id, flags: r.flags() };
            match r.what {
                What::Send => queue.wr_begin(wr, op::Send::new()),
                What::SendImm(imm) => queue.wr_begin(wr, op::SendImm::new(ImmData::new(imm))),
                What::SendInv(key) => queue.wr_begin(wr, op::SendInv::new(key)),
                What::Write(addr, rkey) => queue.wr_begin(wr, op::Write::new(Remote::new(addr, rkey))),
                What::WriteImm(addr, rkey, imm) => {
                    queue.wr_begin(wr, op::WriteImm::new(Remote::new(addr, rkey), ImmData::new(imm)));
                }
                What::Read(addr, rkey) => queue.wr_begin(wr, op::Read::new(Remote::new(addr, rkey))),
                What::CmpSwp(addr, rkey, compare, swap) => {
                    let at = Remote::new(r.what.at(addr), rkey);
                    queue.wr_begin(wr, op::CmpSwp::new(at, compare, swap));
                }
                What::FetchAdd(addr, rkey, add) => {
                    queue.wr_begin(wr, op::FetchAdd::new(Remote::new(r.what.at(addr), rkey), add));
                }
                What::LocalInv(key) => {
                    queue.wr_begin(wr, op::LocalInv::new(key));
                    continue;
                }
            }
            let ah = Ah::new(&vector());
            let set_address = |queue: &mut SendQueue| match self.qp_type {
                QpType::Ud => queue.wr_set_ud_addr(&ah, r.number, r.key),
                QpType::XrcSend => queue.wr_set_xrc_srqn(r.number),
                QpType::Driver => queue.wr_set_dc_addr(&ah, r.number, u64::from(r.key) << 7),
                _ => {}
            };
            // In either order.
            let late = r.wr_id & 1 == 0;
            if !late {
                set_address(queue);
            }
            match &r.data {
                // SAFETY: no device looks at the memory.
                Data::Sges(_) => unsafe { queue.wr_set_sges(&r.sges()) },
                Data::Inline(bufs) => {
                    let bufs: Vec<&[u8]> = bufs.iter().map(|b| &b[..]).collect();
                    queue.wr_set_inline(InlineList(&bufs));
                }
            }
            if late {
                set_address(queue);
            }
        }
        if lost {
            queue.wr_abort();
            return Ok(());
        }
        queue.wr_complete()
    }

    /// What a call has posted is what is in the ring, and was rung for.
    fn posted(&mut self, all: &[Request], is_session: bool) {
        let rings = self.sends.bell.take();
        if all.is_empty() {
            assert!(rings.is_empty(), "a doorbell for nothing");
            return;
        }
        let mut last = (0, 0);
        for r in all {
            let bytes = self.sends.blocks(self.at, self.blocks.min(16));
            let got = send_wqe(self.kind, &bytes).unwrap_or_else(|e| panic!("{e:?} of {r:?}: {bytes:02x?}"));
            self.compare(r, &got, is_session);
            last = (self.at, got.blocks());
            self.outstanding.push(self.at);
            self.at = self.at.wrapping_add(got.blocks().into());
            self.waits = matches!(r.what, What::LocalInv(_));
        }
        assert!(self.outstanding.len() <= self.max_wr as usize);
        let first = self.outstanding[0];
        assert!(self.at.wrapping_sub(first) <= self.blocks, "the ring is overrun");
        assert_eq!(self.sends.posted(), self.at & 0xffff, "doorbell record");
        let [rung] = &rings[..] else { panic!("{} doorbells", rings.len()) };
        let wqe = self.sends.blocks(last.0, last.1.into());
        assert_eq!(rung.bytes[..8], wqe[..8]);
        assert!(rung.bytes.len() == 8 || rung.bytes == wqe, "a burst of something else");
    }

    fn compare(&self, r: &Request, got: &decode::Request, is_session: bool) {
        let mut want = r.expected(self.at as u16, self.waits, is_session);
        (want.ds, want.opcode) = (got.ds, got.opcode);
        if let What::LocalInv(key) = r.what {
            let decode::Op::Umr(umr) = &got.op else { panic!("{got:?}") };
            assert_eq!((umr.mkey, umr.free), (key, true));
            want.op.clone_from(&got.op);
        } else {
            let av = got.av.as_ref().map(|av| (av.dest, av.key, av.sl, av.rmac, av.hop_limit, av.rgid));
            let (rmac, rgid) = (vector().rmac, vector().rgid);
            let key = match self.qp_type {
                QpType::Ud => u64::from(r.key) << 32,
                _ => u64::from(r.key) << 7,
            };
            let expected = matches!(self.qp_type, QpType::Ud | QpType::Driver).then_some((
                r.number & 0xff_ffff,
                key,
                3,
                rmac,
                64,
                rgid,
            ));
            assert_eq!(av.map(|(dest, k, s, m, h, g)| (dest & 0xff_ffff, k, s, m, h, g)), expected);
            let srqn = (self.qp_type == QpType::XrcSend).then_some(r.number & 0xff_ffff);
            assert_eq!(got.srqn.map(|n| n & 0xff_ffff), srqn);
        }
        (want.av, want.srqn) = (got.av.clone(), got.srqn);
        assert_eq!(got, &want);
    }
}

type Batch<'q> = <SendQueue as uverbs_core::provider::SendQueue>::Batch<'q>;

fn to<P: Payload<WireSge>>(batch: &mut Batch<'_>, wr: Wr, r: &Request, qp_type: QpType, data: P) {
    let ah = Ah::new(&vector());
    match qp_type {
        QpType::Ud => what(batch, wr, To { ah: &ah, remote_qpn: r.number, remote_qkey: r.key }, r, data),
        QpType::XrcSend => what(batch, wr, RemoteSrq(r.number), r, data),
        QpType::Driver => {
            let target = DcTarget { ah: &ah, remote_dctn: r.number, remote_dc_key: u64::from(r.key) << 7 };
            what(batch, wr, target, r, data);
        }
        _ => what(batch, wr, Connected, r, data),
    }
}

fn what<A: Address<Ah>, P: Payload<WireSge>>(batch: &mut Batch<'_>, wr: Wr, to: A, r: &Request, data: P) {
    let remote = |addr, rkey| Remote::new(r.what.at(addr), rkey);
    match r.what {
        What::Send => push(batch, wr, to, op::Send::new(), data),
        What::SendImm(imm) => push(batch, wr, to, op::SendImm::new(ImmData::new(imm)), data),
        What::SendInv(key) => push(batch, wr, to, op::SendInv::new(key), data),
        What::Write(addr, rkey) => push(batch, wr, to, op::Write::new(remote(addr, rkey)), data),
        What::WriteImm(addr, rkey, imm) => {
            push(batch, wr, to, op::WriteImm::new(remote(addr, rkey), ImmData::new(imm)), data);
        }
        What::Read(addr, rkey) => push(batch, wr, to, op::Read::new(remote(addr, rkey)), data),
        What::CmpSwp(addr, rkey, compare, swap) => {
            push(batch, wr, to, op::CmpSwp::new(remote(addr, rkey), compare, swap), data);
        }
        What::FetchAdd(addr, rkey, add) => {
            push(batch, wr, to, op::FetchAdd::new(remote(addr, rkey), add), data);
        }
        What::LocalInv(key) => push(batch, wr, to, op::LocalInv::new(key), NoData),
    }
}

fn push<A, O, P>(batch: &mut Batch<'_>, wr: Wr, to: A, op: O, data: P)
where
    A: Address<Ah>,
    O: Operation<Remote = Remote>,
    P: Payload<WireSge>,
{
    // SAFETY: no device looks at the memory.
    unsafe { batch.push(wr, to, op, data) };
}

/// What the nodes of a list point to.
#[derive(Default)]
struct Keep {
    sges: Vec<Vec<Sge>>,
    bytes: Vec<Vec<u8>>,
    ah: Option<Box<RawAh<Ah>>>,
}

impl Keep {
    fn nodes(&mut self, all: &[Request], qp_type: QpType) -> Vec<SendWr> {
        let base = IbvAh { context: core::ptr::null_mut(), pd: core::ptr::null_mut(), handle: 0 };
        let ah = self.ah.insert(Box::new(RawAh { base, driver: Ah::new(&vector()) }));
        let ah: *const IbvAh = core::ptr::from_ref(&**ah).cast();
        let mut nodes: Vec<_> = all.iter().map(|r| self.node(r, qp_type, ah)).collect();
        for i in 1..nodes.len() {
            nodes[i - 1].next = &raw const nodes[i];
        }
        nodes
    }

    fn node(&mut self, r: &Request, qp_type: QpType, ah: *const IbvAh) -> SendWr {
        let mut node = SendWr::new(r.wr_id, r.what.opcode());
        node.send_flags = r.flags().bits();
        if !matches!(r.what, What::LocalInv(_)) {
            let sges = match &r.data {
                Data::Sges(_) => r.sges(),
                Data::Inline(bufs) => {
                    node.send_flags |= SendFlags::INLINE.bits();
                    let start = self.bytes.len();
                    self.bytes.extend(bufs.iter().cloned());
                    let sge = |b: &Vec<u8>| Sge {
                        addr: b.as_ptr().expose_provenance() as u64,
                        length: b.len() as u32,
                        lkey: 0,
                    };
                    self.bytes[start..].iter().map(sge).collect()
                }
            };
            (node.sg_list, node.num_sge) = (sges.as_ptr(), sges.len() as i32);
            self.sges.push(sges);
        }
        let rdma = |addr, rkey| WrUnion { rdma: WrRdma { remote_addr: addr, rkey } };
        match r.what {
            What::Send => {}
            What::SendImm(imm) => node.imm_data_or_invalidate_rkey = ImmData::new(imm).to_be(),
            What::SendInv(key) | What::LocalInv(key) => node.imm_data_or_invalidate_rkey = key,
            What::Write(addr, rkey) | What::Read(addr, rkey) => node.wr = rdma(addr, rkey),
            What::WriteImm(addr, rkey, imm) => {
                node.wr = rdma(addr, rkey);
                node.imm_data_or_invalidate_rkey = ImmData::new(imm).to_be();
            }
            What::CmpSwp(addr, rkey, compare_add, swap) => {
                let remote_addr = r.what.at(addr);
                node.wr = WrUnion { atomic: WrAtomic { remote_addr, compare_add, swap, rkey } };
            }
            What::FetchAdd(addr, rkey, compare_add) => {
                let remote_addr = r.what.at(addr);
                node.wr = WrUnion { atomic: WrAtomic { remote_addr, compare_add, swap: 0, rkey } };
            }
        }
        match qp_type {
            QpType::Ud => {
                node.wr = WrUnion { ud: WrUd { ah, remote_qpn: r.number, remote_qkey: r.key } };
            }
            QpType::XrcSend => node.xrc_remote_srqn = r.number,
            _ => {}
        }
        node
    }
}
