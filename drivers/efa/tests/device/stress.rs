// SPDX-License-Identifier: MIT OR Apache-2.0
//! The random stress on the software EFA: threads post, poll, reset, destroy and create SRD queues in use, with loss, while a model computes
//! which completions may exist. The device gives the number of a destroyed QP again, and the driver the numbers of its requests.
//!
//! `UVERBS_STRESS_SECONDS` is its duration, `UVERBS_STRESS_SEED` the seed of its choices (0: a new one), as of the stress of the other
//! drivers (`tests/src/stress`).
#![expect(unsafe_code)]
// UNSAFETY: memory is leaked, consists of atomics, and stays registered as long as the test runs.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, GlobalRoute, QpAttr, QpAttrMask as M, QpInitAttr, QpState, QpType,
    SendOpsFlags,
};
use uverbs_core::control::{ContextInfo, MrHandle, MrRange, PdHandle, query};
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, CqParts, Dest, Driver, Object as _, Op, PostError, QpCreate,
    QpObject as _, QpParts, RecvQueue as _, RemoteAddr, To, Wr,
};
use uverbs_core::wc::{WcOpcode, WcStatus};
use uverbs_core::wr::{RawAh, Sge};
use uverbs_efa::{Ah, Completion, Efa};
use uverbs_efa_device::{EfaDevice, Fabric};
use uverbs_testkit::stress::{length, seed};
use uverbs_testkit::{Face, handle, post};

const QKEY: u32 = 0x1234;
/// Pairs of a sender and a receiver, each with a thread.
const PAIRS: usize = 3;
/// Words of a pair: those that receives are written to, and those of reads and writes.
const WORDS: usize = 128;
/// Entries of each queue.
const DEPTH: u32 = 16;
/// An identifier has the number of its pair in the bits from here on.
const PAIR: u32 = 48;

/// Choices that a seed repeats (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What may complete on a CQ.
#[derive(Default)]
struct Model {
    /// The moments at which posts returned; `None` during the post.
    posted: Mutex<HashMap<u64, Option<u64>>>,
    /// For each pair, when resets and destructions began and ended.
    ends: [Mutex<Vec<[u64; 2]>>; PAIRS],
    clock: AtomicU64,
    completed: AtomicU64,
}

impl Model {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A post: `f` returns whether it was accepted.
    fn post(&self, id: u64, f: impl FnOnce() -> bool) -> bool {
        lock(&self.posted).insert(id, None);
        let accepted = f();
        let now = self.now();
        let mut posted = lock(&self.posted);
        if !accepted {
            assert!(posted.remove(&id).is_some(), "{id:#x} is complete, and was refused");
        } else if let Some(at) = posted.get_mut(&id) {
            *at = Some(now);
        }
        accepted
    }

    /// A control call after which what was posted before it has no completions.
    fn end(&self, pair: usize, f: impl FnOnce()) {
        let begin = self.now();
        f();
        lock(&self.ends[pair]).push([begin, self.now()]);
    }

    /// A completion of a poll that began at `polled`.
    fn complete(&self, id: u64, polled: u64) {
        let Some(posted) = lock(&self.posted).remove(&id) else {
            panic!("{id:#x} was not posted, or is complete")
        };
        let ends = lock(&self.ends[(id >> PAIR) as usize]);
        // The last ends are those that matter: an earlier one is before the post.
        for [begin, end] in ends.iter().rev().take(64) {
            let is_late = posted.is_some_and(|posted| posted < *begin) && *end < polled;
            assert!(
                !is_late,
                "{id:#x}, posted at {posted:?}: polled at {polled}, after the end from {begin} to {end}"
            );
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
    }
}

/// One of the two devices.
struct Side {
    efa: Efa,
    info: ContextInfo,
    pd: PdHandle,
    mr: MrHandle,
    words: &'static [AtomicU64],
    model: Model,
    /// How often each number was that of a QP.
    numbers: Mutex<HashMap<u32, u32>>,
}

type CqEngine = <Efa as Driver>::CompletionQueue;
type Cq = <Efa as Driver>::Cq;
type Qp = <Efa as Driver>::Qp;

impl Side {
    fn new(device: &EfaDevice) -> (Self, Cq, CqEngine) {
        let (efa, info) = Efa::open(device.open()).unwrap();
        let pd = efa.alloc_pd().unwrap();
        let words: &[AtomicU64] = Box::leak((0..PAIRS * WORDS).map(|_| AtomicU64::new(0)).collect());
        let addr = words.as_ptr().expose_provenance() as u64;
        let range = MrRange { addr, length: size_of_val(words) as u64, iova: addr };
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        // SAFETY: the memory is never freed and consists of atomics.
        let mr = unsafe { efa.reg_mr(info.core_support, &pd, range, access) }.unwrap();
        let CqParts { cq, queue, .. } = efa.create_cq(&CqInitAttr::new(512), None, 7).unwrap();
        let (model, numbers) = (Model::default(), Mutex::default());
        (Self { efa, info, pd, mr, words, model, numbers }, cq, queue)
    }

    fn qp(&self, cq: &Cq) -> QpParts<Efa> {
        let mut attr = QpInitAttr::new(QpType::Driver);
        (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_inline_data) = (DEPTH, DEPTH, 32);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
        attr.send_ops_flags = SendOpsFlags::SEND | SendOpsFlags::RDMA_READ | SendOpsFlags::RDMA_WRITE;
        let create = QpCreate {
            pd: Some(&self.pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            exclusive: true,
            ..QpCreate::new(&attr)
        };
        // SAFETY: all objects are of one context.
        let parts = unsafe { self.efa.create_qp(&create) }.unwrap();
        *lock(&self.numbers).entry(parts.qp.handle().qp_num()).or_default() += 1;
        to_rts(&parts.qp);
        parts
    }

    fn sge(&self, pair: usize, word: usize) -> Sge {
        let at = &raw const self.words[pair * WORDS + word];
        Sge { addr: at.addr() as u64, length: 8, lkey: self.mr.lkey() }
    }

    fn remote(&self, pair: usize, word: usize) -> RemoteAddr {
        RemoteAddr { addr: self.sge(pair, word).addr, rkey: self.mr.rkey() }
    }
}

fn to_rts(qp: &Qp) {
    let attr = QpAttr::new().port_num(1).qkey(QKEY);
    qp.modify(&attr.qp_state(QpState::INIT), M::STATE | M::PORT | M::PKEY_INDEX | M::QKEY).unwrap();
    qp.modify(&attr.qp_state(QpState::RTR), M::STATE).unwrap();
    qp.modify(&attr.qp_state(QpState::RTS), M::STATE | M::SQ_PSN).unwrap();
}

/// The QPs of a pair that the controller resets: those of the sender and of the receiver.
type Objects = [Mutex<Option<Qp>>; 2];

/// Creates the QPs of a pair, posts to them, and destroys them, again and again.
fn work(
    pair: usize,
    sides: [&Side; 2],
    cqs: [&Cq; 2],
    ah: &RawAh<Ah>,
    objects: &Objects,
    stop: &AtomicBool,
    mut rng: Rng,
) {
    let mut serial = (pair as u64) << PAIR;
    let mut next = || {
        serial += 1;
        serial
    };
    while !stop.load(Ordering::Relaxed) {
        let [mut sender, mut receiver] = [0, 1].map(|i| sides[i].qp(cqs[i]));
        let remote_qpn = receiver.qp.handle().qp_num();
        let (mut send, mut recv) = (sender.send.take().unwrap(), receiver.recv.take().unwrap());
        *lock(&objects[0]) = Some(sender.qp);
        *lock(&objects[1]) = Some(receiver.qp);
        for _ in 0..4 + rng.below(40) {
            for _ in 0..rng.below(6) {
                let (id, word) = (next(), rng.below(WORDS as u64 / 2) as usize);
                let sges = [sides[1].sge(pair, word)];
                // SAFETY: the memory is never freed, and consists of atomics.
                let posted = sides[1].model.post(id, || match unsafe { recv.post(id, &sges) } {
                    Ok(()) => true,
                    Err(PostError::QueueFull | PostError::BadState) => false,
                    Err(error) => panic!("receive: {error}"),
                });
                if !posted {
                    break;
                }
            }
            let (id, word) = (next(), WORDS / 2 + rng.below(WORDS as u64 / 2) as usize);
            let (data, sges) = (id.to_ne_bytes(), [sides[0].sge(pair, word)]);
            let wr = match rng.below(4) {
                0 => Wr::new(id, Op::Read(sides[1].remote(pair, word))).sges(&sges),
                1 => Wr::new(id, Op::Write(sides[1].remote(pair, word))).sges(&sges),
                _ => Wr::new(id, Op::Send).inline(&data),
            };
            let wr = wr.to(Dest::Ud(To { ah, remote_qpn, remote_qkey: QKEY })).signaled();
            // A list has no reads and writes.
            let faces = if wr.op.opcode() == uverbs_core::wr::WrOpcode::SEND {
                &Face::ALL[..]
            } else {
                &[Face::Single, Face::Builder]
            };
            let face = faces[rng.below(faces.len() as u64) as usize];
            sides[0].model.post(id, || {
                // SAFETY: the memory is never freed, and consists of atomics.
                match unsafe { post(&mut send, face, &[wr]) }.map_err(|refused| refused.error) {
                    Ok(()) => true,
                    Err(Some(PostError::QueueFull | PostError::BadState)) => false,
                    Err(error) => panic!("{face:?}: {error:?}"),
                }
            });
            if rng.below(4) == 0 {
                thread::yield_now();
            }
        }
        // The engines live longer than the objects, or shorter.
        let engines = (rng.below(2) == 0).then_some((send, recv));
        for (i, side) in sides.iter().enumerate() {
            if let Some(qp) = lock(&objects[i]).take() {
                side.model.end(pair, || drop(qp.destroy().unwrap()));
            }
        }
        drop(engines);
    }
}

/// Polls a CQ until it is stopped.
fn polls(side: &Side, mut queue: CqEngine, stop: &AtomicBool, mut rng: Rng) {
    while !stop.load(Ordering::Relaxed) {
        let began = side.model.now();
        let mut polled: Vec<Completion> = Vec::new();
        queue.poll_each(1 + rng.below(8) as usize, |completion| polled.push(*completion)).unwrap();
        for done in &polled {
            let wrong = [
                WcStatus::LOC_PROT_ERR,
                WcStatus::LOC_LEN_ERR,
                WcStatus::REM_ACCESS_ERR,
                WcStatus::LOC_QP_OP_ERR,
            ];
            assert!(!wrong.contains(&done.status()), "{done:?}");
            assert!(
                done.opcode() != WcOpcode::RECV || done.status() != WcStatus::SUCCESS || done.byte_len() == 8,
                "{done:?}"
            );
            side.model.complete(done.wr_id(), began);
        }
        if polled.is_empty() {
            thread::yield_now();
        }
    }
}

/// Resets the QPs of all pairs, until it is stopped.
fn resets(sides: [&Side; 2], objects: &[Objects], stop: &AtomicBool, mut rng: Rng) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let (pair, i) = (rng.below(PAIRS as u64) as usize, rng.below(2) as usize);
        if let Some(qp) = &*lock(&objects[pair][i]) {
            let to = |state| qp.modify(&QpAttr::new().qp_state(state), M::STATE).unwrap();
            if rng.below(4) == 0 {
                to(QpState::ERR);
            }
            sides[i].model.end(pair, || to(QpState::RESET));
            to_rts(qp);
            count += 1;
        }
        thread::sleep(Duration::from_micros(rng.below(500)));
    }
    count
}

#[test]
fn random_posts_polls_resets_and_destructions() {
    let seed = seed();
    let rng = |thread: u64| Rng(seed ^ thread << 32);
    let length = length();
    let fabric = Fabric::new(seed);
    fabric.loss(0.01);
    let devices = ["efa_0", "efa_1"].map(|name| fabric.device(name).build());
    let (a, a_cq, a_queue) = Side::new(&devices[0]);
    let (b, b_cq, b_queue) = Side::new(&devices[1]);
    let (sides, cqs) = ([&a, &b], [&a_cq, &b_cq]);
    // Reads need an address handle on both sides.
    let [(to_b, ah), (to_a, _)] = [(&a, &b), (&b, &a)].map(|(from, to)| {
        let gid = query::gid_entry(to.efa.kernel(), 1_u8, 0).unwrap().gid;
        from.efa.create_ah(&from.pd, &AhAttr::new(1).grh(Some(GlobalRoute::new(gid)))).unwrap()
    });
    let objects: Vec<Objects> = (0..PAIRS).map(|_| Objects::default()).collect();
    let (stop, stop_polls, begin) = (AtomicBool::new(false), AtomicBool::new(false), Instant::now());
    let reused = || {
        sides
            .iter()
            .map(|side| lock(&side.numbers).values().filter(|count| **count > 1).count())
            .sum::<usize>()
    };
    let resets = thread::scope(|scope| {
        let (stop, stop_polls, objects) = (&stop, &stop_polls, &objects);
        scope.spawn(move || polls(sides[0], a_queue, stop_polls, rng(10)));
        scope.spawn(move || polls(sides[1], b_queue, stop_polls, rng(11)));
        let workers: Vec<_> = (0..PAIRS)
            .map(|pair| {
                scope.spawn(move || {
                    work(pair, sides, cqs, &handle(ah), &objects[pair], stop, rng(pair as u64))
                })
            })
            .collect();
        let controller = scope.spawn(move || resets(sides, objects, stop, rng(12)));
        // A panic of another thread would be waited for in vain.
        let is_well = || workers.iter().all(|worker| !worker.is_finished()) && !controller.is_finished();
        while is_well()
            && (begin.elapsed() < length || reused() == 0)
            && begin.elapsed() < length + Duration::from_secs(180)
        {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        let resets = controller.join();
        stop_polls.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "UVERBS_STRESS_SEED={seed}");
        resets.unwrap()
    });
    let lives: u32 =
        sides.iter().flat_map(|side| lock(&side.numbers).values().copied().collect::<Vec<_>>()).sum();
    let completed = sides.map(|side| side.model.completed.load(Ordering::Relaxed));
    println!(
        "seed {seed}: {completed:?} completions, {resets} resets, {lives} QPs, {} numbers again",
        reused()
    );
    assert!(completed.iter().all(|n| *n > 100), "{completed:?} completions");
    assert!(resets > 10 && reused() > 0, "{resets} resets, {lives} QPs, {} numbers again", reused());
    for object in [to_a, to_b] {
        object.destroy().unwrap();
    }
    for (Side { efa, mr, pd, info, .. }, cq) in [(a, a_cq), (b, b_cq)] {
        cq.destroy().unwrap();
        mr.destroy().unwrap();
        drop((pd, efa, info));
    }
    for device in &devices {
        let objects = device.objects();
        assert_eq!(objects.get("qp").copied().unwrap_or_default(), 0, "{objects:?}");
        assert_eq!(device.violations(), [], "UVERBS_STRESS_SEED={seed}");
    }
}
