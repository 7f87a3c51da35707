// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that are executed at the receiver at once have the effects of packets: random programs run with and without a tap, with which
//! each packet travels, and all that a program or an operator can see is compared.

use super::rig::{ALL, BASE, End, PD, Ram, SRQ_WQES, TestSrq, Wc, on, pair};
use crate::engine::net::Address;
use crate::engine::packet::Packet;
use crate::engine::qp::{QpKind, State};
use crate::engine::{Notice, mkey};
use crate::memory::{Fault, Memory};
use crate::{Fabric, Link};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use uverbs_fabric::process::Mapped;
use uverbs_fabric::random::Random;
use uverbs_fabric::tap::{Fate, Tap};
use uverbs_mlx5_hw::wqe::{
    MLX5_OPCODE_NOP, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM,
    MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM,
};
use zerocopy::IntoBytes;

/// Sees packets, and does nothing.
struct Blind;

impl Tap<Packet> for Blind {
    fn packet(&mut self, _: u64, _: &Address, _: &Address, _: &Packet, _: Fate) {}
}

/// All that is seen of an end.
#[derive(Debug)]
struct Seen {
    completions: Vec<Wc>,
    state: State,
    /// Of the next packet, the oldest one that is not answered, the expected one, and the number of messages.
    numbers: [u32; 4],
    retries: [u8; 2],
    notices: Vec<Notice>,
    packets: (u64, u64),
    memory: Vec<u8>,
    mistakes: usize,
    repairs: u64,
}

impl Seen {
    /// All but the memory. How many packets have been sent behind one that fails depends on the time at which its answer arrives.
    fn rest(&self, has_failed: bool) -> impl core::fmt::Debug + PartialEq {
        let Self { completions, state, numbers, retries, notices, packets, mistakes, repairs, .. } = self;
        let (mut numbers, mut packets) = (*numbers, *packets);
        if has_failed {
            (numbers[0], packets) = (0, (0, 0));
        }
        (completions.clone(), *state, numbers, *retries, notices.clone(), packets, *mistakes, *repairs)
    }
}

fn seen(end: &mut End) -> Seen {
    let mut completions = Vec::new();
    for cq in [&mut end.send_cq, &mut end.recv_cq] {
        completions.extend(core::iter::from_fn(|| cq.poll()));
    }
    let (state, numbers, retries) = end.qp(|_, _, qp| {
        let numbers = [qp.req.next_psn(), qp.req.una, qp.resp.expected_psn(), qp.resp.msn];
        (qp.state, numbers, [qp.req.retries_left(), qp.req.rnr_retries_left()])
    });
    Seen {
        completions,
        state,
        numbers,
        retries,
        notices: end.hca.recorded_notices(),
        packets: (end.hca.stat().sent, end.hca.stat().received),
        memory: end.memory.get(0, super::rig::MEMORY),
        mistakes: end.hca.violations().len(),
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

/// Writes a request of the program into the ring. Some are wrong.
fn request(random: &mut Random, from: &mut End, to: &End) -> u16 {
    let (len, is_wrong) = (length(random), below(random, 40) == 0);
    let (mut rkey, mut at) = (to.key, BASE + TO + below(random, 8000));
    let mut local = FROM + below(random, 8000);
    if is_wrong {
        match below(random, 3) {
            0 => rkey ^= 0x100,
            1 => at += 1 << 20,
            _ => local += 1 << 20,
        }
    }
    let signaled = below(random, 4) > 0;
    let remote = super::rig::remote(at, rkey);
    let entry = |local, len| if len == 0 { Vec::new() } else { from.sge(local, len).as_bytes().to_vec() };
    let mut data = entry(local, len);
    if below(random, 4) == 0 && len > 1 {
        // Two entries; the first one is short.
        let first = 1 + below(random, u64::from(len - 1).min(400)) as u32;
        data = [entry(local, first), entry(local + u64::from(first), len - first)].concat();
    }
    let imm = random.draw() as u32;
    match below(random, 9) {
        0..3 => from.write_wqe(MLX5_OPCODE_RDMA_WRITE, signaled, 0, &[remote.as_bytes(), &data]),
        3 => from.write_wqe(MLX5_OPCODE_RDMA_WRITE_IMM, signaled, imm, &[remote.as_bytes(), &data]),
        4 => from.write_wqe(MLX5_OPCODE_SEND, signaled, 0, &[&data]),
        5 => from.write_wqe(MLX5_OPCODE_SEND_IMM, signaled, imm, &[&data]),
        6 => {
            let answer = entry(ANSWERS + below(random, 100), len);
            from.write_wqe(MLX5_OPCODE_RDMA_READ, signaled, 0, &[remote.as_bytes(), &answer])
        }
        7 => from.write_wqe(MLX5_OPCODE_NOP, signaled, 0, &[]),
        _ => {
            let atomic = [1_u64.to_be_bytes(), 2_u64.to_be_bytes()].concat();
            let remote = super::rig::remote(at & !7, rkey);
            let (opcode, answer) = (0x12, from.sge(ANSWERS + 8 * below(random, 8), 8));
            from.write_wqe(opcode, signaled, 0, &[remote.as_bytes(), &atomic, answer.as_bytes()])
        }
    }
}

/// Runs the program of a seed. With a tap, packets travel.
fn run(seed: u64, taps: bool) -> (Vec<[Seen; 2]>, u64) {
    let fabric = Fabric::new(seed);
    if taps {
        fabric.tap(Some(Box::new(Blind)));
    }
    let mut random = Random::new(seed);
    let (mut a, mut b) = if below(&mut random, 4) == 0 {
        // Two queues of one device.
        let hca = fabric.device("hca0").link(Link::InfiniBand).build();
        let (a, b) = (End::new(&hca, QpKind::Rc), End::new(&hca, QpKind::Rc));
        a.connect(b.qpn, 1, 0xff_ffe0);
        b.connect(a.qpn, 1, 0xff_ffe0);
        (a, b)
    } else {
        pair(&fabric, QpKind::Rc, below(&mut random, 1 << 24) as u32)
    };
    let mtu = [256, 1024, 4096][below(&mut random, 3) as usize];
    for end in [&a, &b] {
        // Without retries, what is compared does not depend on the time.
        end.attr(|attr| (attr.mtu, attr.rnr_retry) = (mtu, 0));
        end.qp(|_, _, qp| qp.req.rnr_retries = 0);
        end.fill(0, super::rig::MEMORY, seed as u8);
        end.hca.record_notices();
    }
    let mut srq = (below(&mut random, 3) == 0).then(|| {
        let srq = TestSrq::new(&b.hca, 2, None);
        b.qp(|_, _, qp| qp.srqn = Some(srq.srqn));
        srq
    });
    let (mut all, mut in_srq) = (Vec::new(), 0);
    for _ in 0..8 {
        for _ in 0..below(&mut random, 4) {
            let (at, len) = (TO + below(&mut random, 8000), 1 + length(&mut random));
            match &mut srq {
                Some(srq) if in_srq < SRQ_WQES - 1 => {
                    srq.recv(b.sge(at, len), 0xffff);
                    in_srq += 1;
                }
                Some(_) => {}
                None => b.recv(at, len),
            }
            a.recv(TO + below(&mut random, 8000), 1 + length(&mut random));
        }
        let (from, to) = if below(&mut random, 3) == 0 { (&mut b, &a) } else { (&mut a, &b) };
        let mut last = request(&mut random, from, to);
        for _ in 0..below(&mut random, 12) {
            last = request(&mut random, from, to);
        }
        from.ring(last);
        fabric.run();
        all.push([seen(&mut a), seen(&mut b)]);
    }
    let passed = fabric.enter(|world| world.net.passed());
    (all, passed)
}

#[test]
fn what_is_executed_at_once_has_the_effects_of_packets() {
    let (mut passed, mut fails) = (0, 0);
    for seed in 0..200 {
        let ((packets, none), (at_once, some)) = (run(seed, true), run(seed, false));
        assert_eq!(none, 0, "seed {seed}: with a tap, packets travel");
        for (i, (packets, at_once)) in packets.iter().zip(&at_once).enumerate() {
            let has_failed =
                [packets, at_once].iter().any(|ends| ends.iter().any(|end| end.state == State::Err));
            for (one, other) in packets.iter().zip(at_once) {
                let place = one.memory.iter().zip(&other.memory).position(|(a, b)| a != b);
                assert_eq!(place, None, "seed {seed}, step {i}: a byte of memory differs");
                assert_eq!(one.rest(has_failed), other.rest(has_failed), "seed {seed}, step {i}");
            }
        }
        passed += some;
        fails += u32::from(at_once.iter().flatten().any(|seen| seen.state == State::Err));
    }
    assert!(passed > 2000 && fails > 10, "{passed} packets, {fails} failures");
}

/// Memory in whose writes a test does something.
struct Acting {
    ram: Arc<Ram>,
    act: Box<dyn Fn(usize) + Send + Sync>,
    writes: AtomicUsize,
}

impl core::fmt::Debug for Acting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Acting").field(&self.writes).finish()
    }
}

impl Memory for Acting {
    fn len(&self) -> u64 {
        self.ram.len()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.ram.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.ram.write(offset, from)
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<Mapped<'_>> {
        self.ram.mapped(offset, len)
    }

    fn write_mapped(&self, offset: u64, from: Mapped<'_>) -> Result<(), Fault> {
        (self.act)(self.writes.fetch_add(1, Ordering::Relaxed));
        self.ram.write_mapped(offset, from)
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.ram.update(offset, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.ram.load_be32(offset)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.ram.publish(offset, bytes)
    }
}

const LONG: usize = 16 << 20;

/// A pair whose second end has a long region, and the key of the other one's.
fn long(act: impl Fn(usize) + Send + Sync + 'static) -> (Fabric, End, End, [u32; 2], Arc<Acting>) {
    let fabric = Fabric::new(0);
    let (a, b) = pair(&fabric, QpKind::Rc, 0);
    [&a, &b].into_iter().for_each(|end| end.attr(|attr| attr.mtu = 4096));
    let add = |end: &End, memory: Arc<dyn Memory>| {
        on(&end.hca, |device, _| {
            device.mkeys.add(0, PD, ALL, mkey::Kind::Region { memory, iova: BASE }).unwrap()
        })
    };
    let (from, to) = (Ram::new(LONG), Ram::new(LONG));
    from.set(0, &vec![7; LONG]);
    let acting = Arc::new(Acting { ram: to, act: Box::new(act), writes: AtomicUsize::new(0) });
    let keys = [add(&a, from), add(&b, Arc::clone(&acting) as Arc<dyn Memory>)];
    (fabric, a, b, keys, acting)
}

/// Writes all of the long region, as one message.
fn write_long(a: &mut End, [lkey, rkey]: [u32; 2]) -> u8 {
    a.key = lkey;
    a.write(0, LONG as u32, BASE, rkey);
    a.hca.fabric().run();
    let mut wc = None;
    while wc.is_none() {
        wc = a.send_cq.poll();
        std::thread::yield_now();
    }
    wc.unwrap().syndrome
}

#[test]
fn a_long_message_leaves_the_lock_to_others() {
    let (begun, entered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let before = Arc::new(AtomicUsize::new(0));
    let (fabric, mut a, _b, keys, acting) = {
        let (begun, entered, before) = (Arc::clone(&begun), Arc::clone(&entered), Arc::clone(&before));
        long(move |_| {
            begun.store(true, Ordering::SeqCst);
            if !entered.load(Ordering::SeqCst) {
                before.fetch_add(1, Ordering::SeqCst);
                // The other thread comes, and waits for the lock.
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let other = {
        let (fabric, begun, entered) = (fabric.clone(), Arc::clone(&begun), Arc::clone(&entered));
        std::thread::spawn(move || {
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            fabric.enter(|_| entered.store(true, Ordering::SeqCst));
        })
    };
    assert_eq!(write_long(&mut a, keys), 0);
    other.join().unwrap();
    let (all, before) = (acting.writes.load(Ordering::Relaxed), before.load(Ordering::Relaxed));
    assert_eq!(acting.ram.get(0, LONG), vec![7; LONG]);
    assert!(before < all, "{before} of {all} parts were written before the other thread had the lock");
}

#[test]
fn what_goes_in_the_middle_of_a_long_message_is_not_accessed() {
    // The region of the receiver, that of the sender, the receiver's queue, the sender's, and the receiver's link.
    for case in 0..5 {
        let begun = Arc::new(AtomicBool::new(false));
        let gone = Arc::new(AtomicBool::new(false));
        let late = Arc::new(Mutex::new(0));
        let (_fabric, mut a, b, keys, acting) = {
            let (begun, gone, late) = (Arc::clone(&begun), Arc::clone(&gone), Arc::clone(&late));
            long(move |_| {
                begun.store(true, Ordering::SeqCst);
                if !gone.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                *late.lock().unwrap() += usize::from(gone.load(Ordering::SeqCst));
            })
        };
        a.attr(|attr| (attr.timeout, attr.retry_cnt) = (1, 1));
        a.qp(|_, _, qp| qp.req.retries = 1);
        let (hcas, qpns) = ([a.hca.clone(), b.hca.clone()], [a.qpn, b.qpn]);
        let other = {
            let (begun, gone) = (Arc::clone(&begun), Arc::clone(&gone));
            std::thread::spawn(move || {
                while !begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let change = |device: &mut crate::engine::Device, cx: &mut crate::engine::Port<'_>| match case
                {
                    0 | 1 => drop(device.mkeys.remove(keys[1 - case])),
                    2 => device.remove_qp(qpns[1]),
                    3 => {
                        device.move_qp(cx, qpns[0], State::Reset);
                    }
                    _ => cx.address_mut().unwrap().up = false,
                };
                on(&hcas[usize::from(matches!(case, 0 | 2 | 4))], change);
                gone.store(true, Ordering::SeqCst);
            })
        };
        if case == 3 {
            // A queue in RESET completes nothing.
            a.key = keys[0];
            a.write(0, LONG as u32, BASE, keys[1]);
        } else {
            assert_ne!(write_long(&mut a, keys), 0, "case {case}");
        }
        other.join().unwrap();
        let all = acting.writes.load(Ordering::Relaxed);
        assert!(all < LONG / (128 << 10), "case {case}: all parts were written");
        assert_eq!(*late.lock().unwrap(), 0, "case {case}: written after the change");
    }
}
