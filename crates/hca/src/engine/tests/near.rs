// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that are executed at the receiver at once have the effects of packets: random programs run with and without a tap, with which
//! each packet travels, or with one at times, and all that a program or an operator can see is compared.

use super::rig::{ALL, BASE, End, PD, SRQ_WQES, TestSrq, Wc, on, pair, remote};
use crate::engine::Notice;
use crate::engine::mkey::Kind;
use crate::engine::net::Address;
use crate::engine::packet::Packet;
use crate::engine::qp::{QpKind, State};
use crate::memory::Memory;
use crate::{Fabric, Hca, Link};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use uverbs_fabric::Packet as _;
use uverbs_fabric::random::Random;
use uverbs_fabric::tap::{Fate, Tap};
use uverbs_mlx5_hw::cqe::{MLX5_CQE_REQ, MLX5_CQE_REQ_ERR};
use uverbs_mlx5_hw::wqe::{
    DataSeg, MLX5_INLINE_SEG, MLX5_OPCODE_NOP, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE,
    MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM, MLX5_WQE_CTRL_CQ_UPDATE,
    MLX5_WQE_CTRL_SOLICITED,
};
use zerocopy::IntoBytes;

/// The number of the first request of each QP that a tap has seen.
type Firsts = Arc<Mutex<BTreeMap<u32, u32>>>;

/// Sees packets, and notes the first requests.
struct Noting(Firsts);

impl Tap<Packet> for Noting {
    fn packet(&mut self, _: u64, _: &Address, _: &Address, packet: &Packet, _: Fate) {
        if !packet.body.is_response() {
            self.0.lock().unwrap().entry(packet.qpns().0).or_insert(packet.psn);
        }
    }
}

/// Sees packets, so that they travel.
pub(super) struct Travelling;

impl Tap<Packet> for Travelling {
    fn packet(&mut self, _: u64, _: &Address, _: &Address, _: &Packet, _: Fate) {}
}

/// When packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Travels {
    Always,
    Never,
    InSomeSteps,
}

/// All that is seen of an end.
#[derive(Debug)]
struct Seen {
    completions: Vec<Wc>,
    state: State,
    /// Of the next packet, the oldest one that is not answered, the expected one, and the number of messages.
    numbers: [u32; 4],
    retries: [u8; 2],
    notices: Vec<String>,
    packets: (u64, u64),
    memory: Vec<u8>,
    mistakes: Vec<String>,
    repairs: u64,
}

impl Seen {
    /// All but the memory. How many packets have been sent behind one that fails depends on the time at which its answer arrives.
    fn rest(&self, has_failed: bool) -> impl core::fmt::Debug + PartialEq {
        let Self { completions, state, numbers, retries, notices, packets, mistakes, repairs, .. } = self;
        let (mut numbers, mut packets, mut repairs) = (*numbers, *packets, *repairs);
        if has_failed {
            (numbers[0], packets, repairs) = (0, (0, 0), 0);
        }
        let [notices, mistakes] = [notices, mistakes].map(Vec::clone);
        (completions.clone(), *state, numbers, *retries, notices, packets, mistakes, repairs)
    }
}

/// Polls the CQs of an end, unless the program leaves them full. Events of several CQs have no order.
fn seen(end: &mut End, polls: bool) -> Seen {
    let mut completions = Vec::new();
    for cq in [&mut end.send_cq, &mut end.recv_cq].into_iter().filter(|_| polls) {
        completions.extend(core::iter::from_fn(|| cq.poll()));
    }
    // Those of several queues in one CQ have no order.
    completions.sort_by_key(|wc| (wc.qpn, matches!(wc.kind, MLX5_CQE_REQ | MLX5_CQE_REQ_ERR)));
    let (state, numbers, retries) = end.qp(|_, _, qp| {
        let numbers = [qp.req.next_psn(), qp.req.una, qp.resp.expected_psn(), qp.resp.msn];
        (qp.state, numbers, [qp.req.retries_left(), qp.req.rnr_retries_left()])
    });
    let mut notices: Vec<_> = end.hca.recorded_notices().iter().map(|n: &Notice| format!("{n:?}")).collect();
    notices.sort();
    end.hca.record_notices();
    Seen {
        completions,
        state,
        numbers,
        retries,
        notices,
        packets: (end.hca.stat().sent, end.hca.stat().received),
        memory: end.memory.get(0, super::rig::MEMORY),
        mistakes: end.hca.violations().iter().map(|v| format!("{:?}", v.mistake)).collect(),
        repairs: end.hca.repairs(),
    }
}

/// The program's next number below `end`.
fn below(random: &mut Random, end: u64) -> u64 {
    random.draw() % end
}

/// A length: mostly of a few packets, sometimes of none or of many.
fn length(random: &mut Random) -> u32 {
    let most = [1, 64, 300, 2000, 12_000][below(random, 5) as usize];
    below(random, most + 1) as u32
}

/// Where an end has the data that it sends, and where its peer writes.
const FROM: u64 = 0;
const TO: u64 = 24_000;
/// Where answers are written.
const ANSWERS: u64 = 48_000;
/// The most inline data, which is more than the usual.
const INLINE: u64 = 300;

/// The keys of the memory of an end, with their first addresses: the usual one, and others without the right to write, with addresses from 0
/// on, without rights of peers, of another domain, without memory.
struct Keys([(u32, u64); 6]);

impl Keys {
    fn new(end: &End) -> Self {
        on(&end.hca, |device, _| {
            let region = |iova| Kind::Region { memory: Arc::clone(&end.memory) as Arc<dyn Memory>, iova };
            let mut add = |pd, access, kind| device.mkeys.add(0, pd, access, kind).unwrap();
            Self([
                (end.key, BASE),
                (add(PD, ALL & !0x2, region(BASE)), BASE),
                (add(PD, ALL, region(0)), 0),
                (add(PD, 0x1, region(BASE)), BASE),
                (add(PD + 1, ALL, region(BASE)), BASE),
                (add(PD, ALL, Kind::Null), BASE),
            ])
        })
    }

    /// One for a request, mostly the usual one.
    fn draw(&self, random: &mut Random) -> (u32, u64) {
        let at = if below(random, 16) == 0 { below(random, 6) } else { 0 };
        self.0[at as usize]
    }

    /// An entry for an answer. It has the rights: which of the requests behind one that fails at its answer are executed depends on the time.
    fn answer(&self, random: &mut Random, at: u64, len: u32) -> DataSeg {
        let (key, base) = self.0[[0, 0, 0, 2, 5][below(random, 5) as usize]];
        DataSeg::new(len, key, base + at)
    }

    /// An entry for this part of the memory.
    fn entry(&self, random: &mut Random, at: u64, len: u32) -> DataSeg {
        let (key, base) = self.draw(random);
        DataSeg::new(len, key, base + at)
    }
}

/// The data of a request: inline, or one or two entries.
fn data(random: &mut Random, keys: &Keys, local: u64, len: u32) -> Vec<u8> {
    let len = if below(random, 3) == 0 { len.min(INLINE as u32) } else { len };
    if u64::from(len) <= INLINE && below(random, 2) == 0 {
        let bytes: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
        let mut inline = [&(len | MLX5_INLINE_SEG).to_be_bytes()[..], &bytes].concat();
        inline.resize(inline.len().next_multiple_of(16), 0xee);
        return inline;
    }
    let entry = |random: &mut Random, local, len| match len {
        0 => Vec::new(),
        len => keys.entry(random, local, len).as_bytes().to_vec(),
    };
    if below(random, 4) == 0 && len > 1 {
        // The first one is short.
        let first = 1 + below(random, u64::from(len - 1).min(400)) as u32;
        return [entry(random, local, first), entry(random, local + u64::from(first), len - first)].concat();
    }
    entry(random, local, len)
}

/// Writes a request of the program into the ring. Some are wrong.
fn request(random: &mut Random, from: &mut End, [own, peers]: [&Keys; 2]) -> u16 {
    let (len, is_wrong) = (length(random), below(random, 40) == 0);
    let (mut rkey, base) = peers.draw(random);
    let mut at = base + TO + below(random, 8000);
    let mut local = FROM + below(random, 8000);
    if is_wrong {
        match below(random, 3) {
            0 => rkey ^= 0x100,
            1 => at += 1 << 20,
            _ => local += 1 << 20,
        }
    }
    let mut flags = if below(random, 4) > 0 { MLX5_WQE_CTRL_CQ_UPDATE } else { 0 };
    if below(random, 4) == 0 {
        flags |= MLX5_WQE_CTRL_SOLICITED;
    }
    let (imm, to) = (random.draw() as u32, remote(at, rkey));
    let to = to.as_bytes();
    let data = data(random, own, local, len);
    match below(random, 12) {
        0..3 => from.write_ctrl(MLX5_OPCODE_RDMA_WRITE, flags, 0, &[to, &data]),
        3 | 4 => from.write_ctrl(MLX5_OPCODE_RDMA_WRITE_IMM, flags, imm, &[to, &data]),
        5 | 6 => from.write_ctrl(MLX5_OPCODE_SEND, flags, 0, &[&data]),
        7 | 8 => from.write_ctrl(MLX5_OPCODE_SEND_IMM, flags, imm, &[&data]),
        9 => {
            let place = ANSWERS + below(random, 100);
            let answer = own.answer(random, place, len.max(1));
            from.write_ctrl(MLX5_OPCODE_RDMA_READ, flags, 0, &[to, answer.as_bytes()])
        }
        10 => from.write_ctrl(MLX5_OPCODE_NOP, flags, 0, &[]),
        _ => {
            let atomic = [1_u64.to_be_bytes(), 2_u64.to_be_bytes()].concat();
            let place = ANSWERS + 8 * below(random, 8);
            let (to, answer) = (remote(at & !7, rkey), own.answer(random, place, 8));
            from.write_ctrl(0x12, flags, 0, &[to.as_bytes(), &atomic, answer.as_bytes()])
        }
    }
}

/// Changes a byte of a WQE, except low bits of lengths and addresses of memory that the program uses otherwise: the order of accesses of several
/// requests to the same memory is not defined.
fn damage(random: &mut Random, from: &End, index: u16) {
    let block = usize::from(index) % 64 * 64;
    let at =
        [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 16, 17, 20, 21, 24, 25, 28, 29][below(random, 20) as usize];
    let old = from.sq.get(block + at, 1)[0];
    // No other operation that exists.
    let new = if at == 3 { 0x3f } else { old ^ 1 << below(random, 8) };
    from.sq.set(block + at, &[new]);
}

/// Posts receives to an end's queue, or to its SRQ. Some are wrong.
fn receive(random: &mut Random, end: &mut End, keys: &Keys, srq: Option<&mut TestSrq>) {
    let (at, len) = (TO + below(random, 8000), 1 + length(random));
    if let Some(srq) = srq {
        let posted = on(&end.hca, |device, _| device.srqs[&srq.srqn].posted());
        if posted.is_ok_and(|posted| posted < SRQ_WQES - 1) {
            srq.recv(keys.entry(random, at, len), 0xffff);
        }
        return;
    }
    match below(random, 40) {
        0 => end.recv_list(&[]),
        1 => end.recv_bytes(DataSeg::new(1 << 31 | 5, end.key, BASE + at).as_bytes()),
        2 => end.recv_to(DataSeg::new(len, end.key ^ 0x100, BASE + at)),
        3..10 => {
            let two = [keys.entry(random, at, len), keys.entry(random, at + u64::from(len), 50)];
            end.recv_list(&two);
        }
        _ => end.recv_to(keys.entry(random, at, len)),
    }
}

/// The attributes of both ends of a program.
struct Attrs {
    mtus: [u32; 2],
    access: u32,
    reads: u8,
    /// Data of at most so many bytes are in completions.
    in_completions: usize,
}

impl Attrs {
    const fn usual(mtu: u32) -> Self {
        Self { mtus: [mtu; 2], access: 0xf, reads: 4, in_completions: 0 }
    }

    /// Mostly the usual ones.
    fn draw(random: &mut Random) -> Self {
        let mut mtu = || [256, 1024, 4096][below(random, 3) as usize];
        let (mtu, other) = (mtu(), mtu());
        let mut seldom = || below(random, 6) == 0;
        Self {
            mtus: [mtu, if seldom() { other } else { mtu }],
            access: if seldom() { 0x7 } else { 0xf },
            reads: if seldom() { 1 } else { 4 },
            in_completions: if seldom() { 32 } else { 0 },
        }
    }
}

/// The two queues of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    TwoDevices,
    OneDevice,
    /// One queue is connected to itself, the other one to none.
    OneQueue,
}

impl Shape {
    fn ends(self, fabric: &Fabric) -> (End, End) {
        if self == Self::TwoDevices {
            return pair(fabric, QpKind::Rc, 0);
        }
        let hca: Hca = fabric.device("hca0").link(Link::InfiniBand).build();
        (End::new(&hca, QpKind::Rc), End::new(&hca, QpKind::Rc))
    }

    /// Moves both to RTS, from any state.
    fn connect(self, ends: [&mut End; 2], psn: u32, attrs: &Attrs) {
        let [a, b] = ends;
        for end in [&mut *a, &mut *b] {
            end.reset();
        }
        match self {
            Self::TwoDevices => {
                a.connect(b.qpn, 2, psn);
                b.connect(a.qpn, 1, psn);
            }
            Self::OneDevice => {
                a.connect(b.qpn, 1, psn);
                b.connect(a.qpn, 1, psn);
            }
            Self::OneQueue => a.connect(a.qpn, 1, psn),
        }
        for (end, mtu) in [a, b].into_iter().zip(attrs.mtus) {
            // Without retries and timers, what is compared does not depend on the time.
            end.attr(|attr| {
                (attr.mtu, attr.rnr_retry, attr.timeout) = (mtu, 0, 0);
                (attr.access, attr.max_rd_atomic, attr.max_dest_rd_atomic) =
                    (attrs.access, attrs.reads, attrs.reads);
            });
            end.qp(|_, _, qp| {
                qp.req.rnr_retries = 0;
                (qp.scatter_req, qp.scatter_resp) = (attrs.in_completions, attrs.in_completions);
            });
        }
    }
}

/// What a program has done: what was seen after each step, and the packets that did not travel.
struct Run {
    shape: Shape,
    steps: Vec<[Seen; 2]>,
    passed: u64,
}

/// Runs the program of a seed.
fn run(seed: u64, travels: Travels) -> Run {
    let fabric = Fabric::new(seed);
    let (firsts, mut whim) = (Firsts::default(), Random::new(!seed));
    let mut random = Random::new(seed);
    let shape = match below(&mut random, 8) {
        0 | 1 => Shape::OneDevice,
        2 => Shape::OneQueue,
        _ => Shape::TwoDevices,
    };
    let (mut a, mut b) = shape.ends(&fabric);
    let attrs = Attrs::draw(&mut random);
    shape.connect([&mut a, &mut b], below(&mut random, 1 << 24) as u32, &attrs);
    for end in [&a, &b] {
        end.fill(0, super::rig::MEMORY, seed as u8);
        end.hca.record_notices();
    }
    let keys = [Keys::new(&a), Keys::new(&b)];
    let mut srq = (below(&mut random, 3) == 0).then(|| {
        let end = if shape == Shape::OneQueue { &a } else { &b };
        let srq = TestSrq::new(&end.hca, below(&mut random, 5) as u32, None);
        end.qp(|_, _, qp| qp.srqn = Some(srq.srqn));
        srq
    });
    let polls_late = below(&mut random, 8) == 0;
    if polls_late {
        // The CQs seem to have entries from before that are not consumed, so that they get full.
        let record = 0x100_0000_u32 - 50;
        for cq in [&a.send_cq, &a.recv_cq, &b.send_cq, &b.recv_cq] {
            cq.record.set(0, &record.to_be_bytes());
        }
    }
    // What a CQ has when it gets full depends on that order.
    if shape != Shape::TwoDevices && !polls_late && below(&mut random, 4) == 0 {
        // Both queues have one CQ for all.
        let shared = a.send_cq.cqn;
        a.qp(|_, _, qp| qp.recv_cqn = shared);
        b.qp(|_, _, qp| (qp.send_cqn, qp.recv_cqn) = (shared, shared));
    }
    let mut steps: Vec<[Seen; 2]> = Vec::new();
    const STEPS: usize = 8;
    for step in 0..STEPS {
        let has_failed = steps.last().is_some_and(|ends| ends.iter().any(|end| end.state == State::Err));
        if below(&mut random, if has_failed { 2 } else { 12 }) == 0 {
            shape.connect([&mut a, &mut b], below(&mut random, 1 << 24) as u32, &attrs);
        }
        for end in [&mut a, &mut b] {
            for cq in [&mut end.send_cq, &mut end.recv_cq] {
                if below(&mut random, 2) == 0 {
                    cq.arm(&end.hca, below(&mut random, 2) == 0);
                }
            }
        }
        if let Some(srq) = &srq
            && below(&mut random, 3) == 0
        {
            let (hca, limit) = (&b.hca, below(&mut random, 5) as u32);
            on(hca, |device, _| device.srqs.get_mut(&srq.srqn).iter_mut().for_each(|srq| srq.limit = limit));
        }
        for _ in 0..below(&mut random, 6) {
            let [of_a, of_b] = &keys;
            let ((end, own), (other, others)) = match shape {
                Shape::OneQueue => ((&mut a, of_a), (&mut b, of_b)),
                _ => ((&mut b, of_b), (&mut a, of_a)),
            };
            receive(&mut random, end, own, srq.as_mut());
            receive(&mut random, other, others, None);
        }
        let turns = shape != Shape::OneQueue && below(&mut random, 3) == 0;
        let [of_a, of_b] = &keys;
        let (from, key) = match (turns, shape) {
            (true, _) => (&mut b, [of_b, of_a]),
            (_, Shape::OneQueue) => (&mut a, [of_a, of_a]),
            _ => (&mut a, [of_a, of_b]),
        };
        let mut last = request(&mut random, from, key);
        for _ in 0..below(&mut random, 12) {
            last = request(&mut random, from, key);
        }
        // A queue in ERR flushes its receives at any time.
        if below(&mut random, 50) == 0 && from.state() != State::Err {
            from.record.set(0, &(random.draw() as u32 & 0xffff).to_be_bytes());
        }
        let taps = travels == Travels::Always || travels == Travels::InSomeSteps && below(&mut whim, 2) == 0;
        firsts.lock().unwrap().clear();
        fabric.tap(taps.then(|| Box::new(Noting(Arc::clone(&firsts))) as Box<dyn Tap<Packet>>));
        let next = from.qp(|_, _, qp| qp.req.next_psn());
        // A queue that drains begins no request.
        let drains = from.state() == State::Rts && below(&mut random, 12) == 0;
        if drains {
            from.attr(|attr| attr.notify_drained = true);
            from.set_state(State::Sqd);
        }
        from.ring(last);
        if drains {
            fabric.run();
            from.set_state(State::Rts);
        }
        fabric.run();
        if let Some(first) = firsts.lock().unwrap().get(&from.qpn) {
            assert_eq!(*first, next, "seed {seed}, step {step}: the numbers go on");
        }
        if below(&mut random, 5) == 0 {
            // Alone: which of the requests before it are flushed depends on the time at which their answers arrive.
            let index = request(&mut random, from, key);
            match below(&mut random, 3) {
                0 => from.record.set(4, &(random.draw() as u32 & 0xffff).to_be_bytes()),
                _ => damage(&mut random, from, index),
            }
            from.ring(index);
            fabric.run();
        }
        let polls = !polls_late || step + 1 == STEPS;
        steps.push([seen(&mut a, polls), seen(&mut b, polls)]);
    }
    Run { shape, steps, passed: fabric.enter(|world| world.net.passed()) }
}

/// Compares the effects of two runs of a program.
fn compare(seed: u64, one: &Run, other: &Run) {
    let shape = one.shape;
    let mut has_failed = false;
    for (i, (one, other)) in one.steps.iter().zip(&other.steps).enumerate() {
        has_failed |= [one, other].iter().any(|ends| ends.iter().any(|end| end.state == State::Err));
        if has_failed && shape == Shape::OneQueue {
            // It fails as the receiver: which of its requests have been acknowledged before depends on the time.
            assert_eq!(one[0].state, other[0].state, "seed {seed}, step {i}");
            return;
        }
        for (one, other) in one.iter().zip(other) {
            // The place is not looked for unless there is one: without optimisation that costs more than the programs.
            if one.memory != other.memory {
                let place = one.memory.iter().zip(&other.memory).position(|(a, b)| a != b);
                panic!("seed {seed}, step {i}: byte {place:?} of the memory differs");
            }
            assert_eq!(one.rest(has_failed), other.rest(has_failed), "seed {seed}, step {i}");
        }
    }
}

#[test]
fn what_is_executed_at_once_has_the_effects_of_packets() {
    let (mut passed, mut fails, mut words) = (0, 0, BTreeMap::new());
    for seed in 0..150 {
        let (packets, at_once) = (run(seed, Travels::Always), run(seed, Travels::Never));
        assert_eq!(packets.passed, 0, "seed {seed}: with a tap, packets travel");
        compare(seed, &packets, &at_once);
        compare(seed, &packets, &run(seed, Travels::InSomeSteps));
        passed += at_once.passed;
        let seen = || at_once.steps.iter().flatten();
        fails += u32::from(seen().any(|seen| seen.state == State::Err));
        // What the programs came across, for the next assertion.
        for word in seen().flat_map(|seen| seen.notices.iter().chain(&seen.mistakes)) {
            let name = word.split(['(', '{', ' ']).next().unwrap_or_default();
            *words.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    assert!(passed > 2000 && fails > 10, "{passed} packets, {fails} failures");
    let all =
        ["Completion", "CqError", "CqOverrun", "Qp", "Srq", "RingOverrun", "ReceiveMalformed", "Malformed"];
    assert!(all.iter().all(|name| words.contains_key(*name)), "{words:?}");
}

/// The usual requests, with a receive that takes each.
fn usual(end: &mut End, key: u32) -> Vec<u16> {
    let to = remote(BASE + TO, key);
    let (to, entry) = (to.as_bytes(), end.sge(FROM, 64));
    let inline = |len: u32| {
        let mut bytes = [&(len | MLX5_INLINE_SEG).to_be_bytes()[..], &vec![9; len as usize]].concat();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes
    };
    let (short, long) = (inline(8), inline(200));
    vec![
        end.write_wqe(MLX5_OPCODE_SEND, true, 0, &[entry.as_bytes()]),
        end.write_wqe(MLX5_OPCODE_SEND, true, 0, &[&short]),
        end.write_wqe(MLX5_OPCODE_SEND_IMM, true, 1, &[&long]),
        end.write_wqe(MLX5_OPCODE_SEND_IMM, true, 2, &[]),
        end.write_wqe(MLX5_OPCODE_RDMA_WRITE_IMM, true, 3, &[to, entry.as_bytes()]),
        end.write_wqe(MLX5_OPCODE_RDMA_WRITE_IMM, true, 4, &[to]),
        end.write_wqe(MLX5_OPCODE_RDMA_WRITE, true, 0, &[to, entry.as_bytes()]),
        end.write_wqe(MLX5_OPCODE_RDMA_WRITE, true, 0, &[to, &long]),
        end.write_wqe(MLX5_OPCODE_RDMA_READ, true, 0, &[to, entry.as_bytes()]),
    ]
}

#[test]
fn usual_requests_are_executed_without_packets() {
    for shape in [Shape::TwoDevices, Shape::OneDevice, Shape::OneQueue] {
        for shares in [false, true] {
            let fabric = Fabric::new(0);
            let (mut a, mut b) = shape.ends(&fabric);
            shape.connect([&mut a, &mut b], 5, &Attrs::usual(1024));
            let is_alone = shape == Shape::OneQueue;
            let srqn = shares.then(|| TestSrq::new(&b.hca, 0, None));
            let mut srq = srqn;
            let key = if is_alone { a.key } else { b.key };
            let end = if is_alone { &mut a } else { &mut b };
            if let Some(srq) = &srq {
                end.qp(|_, _, qp| qp.srqn = Some(srq.srqn));
            }
            for _ in 0..6 {
                match &mut srq {
                    Some(srq) => srq.recv(end.sge(TO, 300), 0xffff),
                    None => end.recv(TO, 300),
                }
            }
            let posts = usual(&mut a, key);
            a.ring(*posts.last().unwrap());
            let end = if is_alone { &mut a } else { &mut b };
            let received: Vec<_> = core::iter::from_fn(|| end.recv_cq.poll()).collect();
            assert_eq!(received.iter().map(|wc| wc.bytes).collect::<Vec<_>>(), [64, 8, 200, 0, 64, 0]);
            assert_eq!(received.iter().map(|wc| wc.imm).collect::<Vec<_>>(), [0, 0, 1, 2, 3, 4]);
            let sent: Vec<_> = core::iter::from_fn(|| a.send_cq.poll()).collect();
            assert_eq!(sent.iter().map(|wc| wc.counter).collect::<Vec<_>>(), posts);
            assert!(sent.iter().all(|wc| wc.syndrome == 0), "{shape:?}: {sent:?}");
            let hcas = if shape == Shape::TwoDevices { vec![&a.hca, &b.hca] } else { vec![&a.hca] };
            let packets: u64 = hcas.iter().map(|hca| hca.stat().sent).sum();
            assert_eq!(fabric.enter(|world| world.net.passed()), packets, "{shape:?}: no packet travels");
        }
    }
}
