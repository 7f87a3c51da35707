// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data of long messages are copied without the lock: two threads copy at the same time, other calls go on, and what ends an access waits.
//! A copy stops in the middle, in memory of the test.

use super::limits::packet;
use super::rig::{ALL, BASE, End, PD, Ram, TestSrq, pair, remote};
use super::windows;
use crate::decode::Umr;
use crate::engine::mkey::{Kind, Translate};
use crate::engine::packet::{Body, Nak, Packet, Transport};
use crate::engine::qp::{QpKind, State};
use crate::memory::{Fault, Memory};
use crate::{Fabric, Hca};
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;
use uverbs_fabric::process::Mapped;
use uverbs_mlx5_hw::Be64;
use uverbs_mlx5_hw::wqe::{
    DataSeg, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND,
    MLX5_OPCODE_UMR, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE, MLX5_WQE_MKEY_CONTEXT_FREE,
    MkeyContextSeg, UmrCtrlSeg,
};
use zerocopy::{FromZeros, IntoBytes};

/// A message, and the first part of it that is copied.
const LONG: usize = 2 << 20;
const PART: usize = 1 << 20;
/// The bytes of one call of the copy.
const SLICE: usize = 128 << 10;
const LIMIT: Duration = Duration::from_secs(20);
const FLUSH: u8 = 5;
const REMOTE_ACCESS: u8 = 0x13;

/// What the copies of a test have done.
#[derive(Debug, Default)]
struct Seen {
    /// The accesses before the one that stops.
    first: usize,
    is_open: bool,
    /// Threads that are in a copy, and the most at a time.
    inside: usize,
    most: usize,
    bytes: usize,
    /// The next copy fails, or panics.
    fails: bool,
    panics: bool,
    /// Bytes that were copied, and what else happened.
    log: Vec<&'static str>,
}

/// Stops copies.
#[derive(Debug, Default)]
struct Stop(Mutex<Seen>, Condvar);

impl Stop {
    fn change<R>(&self, f: impl FnOnce(&mut Seen) -> R) -> R {
        let result = f(&mut self.0.lock().unwrap());
        self.1.notify_all();
        result
    }

    fn wait(&self, what: &str, until: impl Fn(&Seen) -> bool) {
        let guard = self.0.lock().unwrap();
        let (_guard, late) = self.1.wait_timeout_while(guard, LIMIT, |seen| !until(seen)).unwrap();
        assert!(!late.timed_out(), "{what}");
    }

    fn wait_inside(&self, threads: usize) {
        self.wait("no copy has begun", |seen| seen.inside >= threads);
    }

    fn open(&self) {
        self.change(|seen| seen.is_open = true);
    }

    fn note(&self, what: &'static str) {
        self.change(|seen| seen.log.push(what));
    }

    fn bytes(&self) -> usize {
        self.change(|seen| seen.bytes)
    }

    /// A copy of so many bytes.
    fn pass(&self, bytes: usize, copy: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
        let (fails, panics) =
            self.change(|seen| (core::mem::take(&mut seen.fails), core::mem::take(&mut seen.panics)));
        assert!(!panics, "a copy panics, as the test wants");
        if fails {
            return Err(Fault);
        }
        let stops = self.change(|seen| {
            let stops = seen.first == 0 && !seen.is_open;
            seen.first = seen.first.saturating_sub(1);
            seen.inside += 1;
            seen.most = seen.most.max(seen.inside);
            stops
        });
        if stops {
            self.wait("nobody has opened the way", |seen| seen.is_open);
        }
        let result = copy();
        self.change(|seen| {
            seen.inside -= 1;
            seen.bytes += bytes;
            seen.log.push("copied");
        });
        result
    }
}

/// Memory in which copies stop.
#[derive(Debug)]
struct Gate {
    ram: Arc<Ram>,
    stop: Arc<Stop>,
}

impl Memory for Gate {
    fn len(&self) -> u64 {
        self.ram.len()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.ram.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.stop.pass(from.len(), || self.ram.write(offset, from))
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<Mapped<'_>> {
        self.ram.mapped(offset, len)
    }

    fn write_mapped(&self, offset: u64, from: Mapped<'_>) -> Result<(), Fault> {
        self.stop.pass(from.len(), || self.ram.write_mapped(offset, from))
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Write,
    Send,
    Read,
}

const VERBS: [Verb; 3] = [Verb::Write, Verb::Send, Verb::Read];

/// A pair with long regions, in which copies stop.
struct Rig {
    fabric: Fabric,
    a: End,
    b: End,
    rams: [Arc<Ram>; 2],
    /// The keys of the regions of both ends.
    keys: [u32; 2],
    stop: Arc<Stop>,
}

/// Bytes, of which those of no two pages are the same.
fn pattern(len: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let of = |i: usize| (i * 31 + (i >> 8) * 7 + (i >> 16)) as u8;
    &BYTES.get_or_init(|| (0..LONG).map(of).collect())[..len]
}

fn add_region(end: &End, memory: Arc<dyn Memory>) -> u32 {
    end.hca.beside(|device, _| device.mkeys.add(0, PD, ALL, Kind::Region { memory, iova: BASE }).unwrap())
}

impl Rig {
    fn new() -> Self {
        let fabric = Fabric::new(0);
        // Nothing goes on by a timer. All packets of a first MiB have numbers up to a multiple of 32, at which a part ends.
        let (a, b) = pair(&fabric, QpKind::Rc, 1);
        [&a, &b].into_iter().for_each(|end| end.attr(|attr| (attr.mtu, attr.timeout) = (4096, 0)));
        let stop = Arc::<Stop>::default();
        let rams = [(); 2].map(|()| Ram::new(LONG));
        let keys = [(&a, &rams[0]), (&b, &rams[1])].map(|(end, ram)| {
            add_region(end, Arc::new(Gate { ram: Arc::clone(ram), stop: Arc::clone(&stop) }))
        });
        Self { fabric, a, b, rams, keys, stop }
    }

    /// Posts a message of the first end to or from the second one; the completion of both ends is to be polled.
    fn post(&mut self, verb: Verb) -> JoinHandle<()> {
        self.rams[usize::from(verb == Verb::Read)].set(0, pattern(LONG));
        if verb == Verb::Send {
            self.b.recv_to(DataSeg::new(LONG as u32, self.keys[1], BASE));
        }
        start(&mut self.a, verb, (self.keys[0], self.keys[1]), LONG)
    }

    /// As [`post`](Self::post), until its copy has begun.
    fn stopped(&mut self, verb: Verb) -> JoinHandle<()> {
        let thread = self.post(verb);
        self.stop.wait_inside(1);
        thread
    }

    /// Calls `f` in a thread, and notes its end.
    fn meanwhile(&self, f: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        let stop = Arc::clone(&self.stop);
        std::thread::spawn(move || {
            f();
            stop.note("changed");
        })
    }

    /// Waits until a call or a request waits for the copies.
    fn wait_for_waiting(&self, what: &str) {
        let begin = Instant::now();
        while self.fabric.read(|world| world.net.may_leave_copy()) {
            assert!(begin.elapsed() < LIMIT, "{what} does not wait for the copy");
            std::thread::yield_now();
        }
    }

    fn is_quiet(&mut self) -> bool {
        let queues = [&mut self.a.send_cq, &mut self.b.send_cq, &mut self.b.recv_cq];
        queues.into_iter().all(|cq| cq.poll().is_none())
    }

    fn state(&self, end: usize) -> State {
        let end = [&self.a, &self.b][end];
        end.hca.beside(|device, _| device.qps.get(&end.qpn).unwrap().state)
    }

    /// What was noted after a change.
    fn late(&self) -> usize {
        self.stop.change(|seen| seen.log.iter().rev().take_while(|what| **what == "copied").count())
    }

    /// The copies that had ended when the change was noted.
    fn before(&self) -> usize {
        self.stop.change(|seen| seen.log.iter().position(|what| *what != "copied").unwrap())
    }
}

/// Rings the doorbell of a long message in a thread.
fn start(a: &mut End, verb: Verb, (lkey, rkey): (u32, u32), len: usize) -> JoinHandle<()> {
    let entry = DataSeg::new(len as u32, lkey, BASE);
    let to = remote(BASE, rkey);
    let index = match verb {
        Verb::Write => a.write_wqe(MLX5_OPCODE_RDMA_WRITE, true, 0, &[to.as_bytes(), entry.as_bytes()]),
        Verb::Read => a.write_wqe(MLX5_OPCODE_RDMA_READ, true, 0, &[to.as_bytes(), entry.as_bytes()]),
        Verb::Send => a.write_wqe(MLX5_OPCODE_SEND, true, 0, &[entry.as_bytes()]),
    };
    ring(a, index)
}

/// Rings a doorbell in a thread.
fn ring(end: &End, index: u16) -> JoinHandle<()> {
    let (hca, mut value) = (end.hca.clone(), [0; 8]);
    value.copy_from_slice(&end.sq.get(usize::from(index) % 64 * 64, 8));
    std::thread::spawn(move || {
        hca.beside(|device, cx| device.doorbell(cx, super::rig::PAGE, 0x800, value, None));
    })
}

/// Polls until there is a completion.
#[track_caller]
fn poll(cq: &mut super::rig::TestCq, what: &str) -> super::rig::Wc {
    let begin = Instant::now();
    loop {
        if let Some(wc) = cq.poll() {
            return wc;
        }
        assert!(begin.elapsed() < LIMIT, "{what}: no completion");
        std::thread::yield_now();
    }
}

/// Another connected queue of each of the two devices.
fn another(a: &End, b: &End) -> (End, End) {
    let (c, d) = (End::new(&a.hca, QpKind::Rc), End::new(&b.hca, QpKind::Rc));
    c.connect(d.qpn, 2, 1);
    d.connect(c.qpn, 1, 1);
    [&c, &d].into_iter().for_each(|end| end.attr(|attr| (attr.mtu, attr.timeout) = (4096, 0)));
    (c, d)
}

#[test]
fn two_threads_copy_at_the_same_time() {
    for verb in VERBS {
        let mut rig = Rig::new();
        let (mut c, mut d) = another(&rig.a, &rig.b);
        let one = rig.post(verb);
        if verb == Verb::Send {
            d.recv_to(DataSeg::new(LONG as u32, rig.keys[1], BASE));
        }
        let two = start(&mut c, verb, (rig.keys[0], rig.keys[1]), LONG);
        rig.stop.wait("two threads are not in their copies at once", |seen| seen.inside == 2);
        assert!(rig.is_quiet() && c.send_cq.poll().is_none(), "{verb:?}: complete before its data");
        rig.stop.open();
        one.join().unwrap();
        two.join().unwrap();
        for cq in [&mut rig.a.send_cq, &mut c.send_cq] {
            let wc = poll(cq, "");
            assert_eq!((wc.syndrome, cq.poll()), (0, None), "{verb:?}");
        }
        if verb == Verb::Send {
            for cq in [&mut rig.b.recv_cq, &mut d.recv_cq] {
                assert_eq!((poll(cq, "").bytes, cq.poll()), (LONG as u32, None));
            }
        }
        assert_eq!(rig.stop.bytes(), 2 * LONG, "{verb:?}: each byte is copied once");
        assert!(rig.rams[usize::from(verb != Verb::Read)].get(0, LONG) == pattern(LONG), "{verb:?}");
    }
}

type Change = (&'static str, bool, fn(&[Hca; 2], [u32; 2], [u32; 2]));

/// Changes, whether they end the access, and what they do to the devices, the QPs and the keys of both ends.
const CHANGES: [Change; 14] = [
    ("a deregistration at the sender", true, |hcas, _, keys| {
        hcas[0].with_device(|device, _| drop(device.mkeys.remove(keys[0])));
    }),
    ("a deregistration at the receiver", true, |hcas, _, keys| {
        hcas[1].with_device(|device, _| drop(device.mkeys.remove(keys[1])));
    }),
    ("a registration of other rights", true, |hcas, _, keys| {
        hcas[1].with_device(|device, _| device.mkeys.set_rights(keys[1], PD + 1, 0));
    }),
    ("the sender is destroyed", true, |hcas, qpns, _| {
        hcas[0].with_device(|device, _| device.remove_qp(qpns[0]))
    }),
    ("the receiver is destroyed", true, |hcas, qpns, _| {
        hcas[1].with_device(|device, _| device.remove_qp(qpns[1]))
    }),
    ("the sender to RESET", true, |hcas, qpns, _| move_to(&hcas[0], qpns[0], State::Reset)),
    ("the receiver to RESET", true, |hcas, qpns, _| move_to(&hcas[1], qpns[1], State::Reset)),
    ("the sender to ERR", true, |hcas, qpns, _| move_to(&hcas[0], qpns[0], State::Err)),
    ("the receiver to ERR", true, |hcas, qpns, _| move_to(&hcas[1], qpns[1], State::Err)),
    ("the link goes down", true, |hcas, _, _| hcas[1].set_link_up(false)),
    ("a context is closed", false, |hcas, _, _| drop(hcas[0].open())),
    ("the device is removed", true, |hcas, _, _| hcas[1].unplug()),
    ("the processes of the device die", false, |hcas, _, _| hcas[0].kill()),
    ("the faults of the network change", false, |hcas, _, _| {
        hcas[0].fabric().loss(0.0);
    }),
];

fn move_to(hca: &Hca, qpn: u32, state: State) {
    assert!(hca.with_device(|device, cx| device.move_qp(cx, qpn, state)));
}

#[test]
fn calls_that_end_an_access_return_after_the_copy() {
    for verb in VERBS {
        for (name, ends, change) in CHANGES {
            let what = format!("{verb:?}: {name}");
            let mut rig = Rig::new();
            let thread = rig.stopped(verb);
            let (hcas, qpns) = ([rig.a.hca.clone(), rig.b.hca.clone()], [rig.a.qpn, rig.b.qpn]);
            let keys = rig.keys;
            let other = rig.meanwhile(move || change(&hcas, qpns, keys));
            rig.wait_for_waiting(&what);
            assert!(rig.stop.change(|seen| seen.log.is_empty()), "{what}");
            assert!(rig.is_quiet(), "{what}: a completion before the data");
            rig.stop.open();
            other.join().unwrap();
            thread.join().unwrap();
            assert!(rig.before() >= PART / SLICE, "{what}: it returned before the copy");
            if ends {
                assert_eq!(rig.late(), 0, "{what}: written after the change");
            } else {
                assert_eq!(poll(&mut rig.a.send_cq, &what).syndrome, 0, "{what}");
            }
            if name == "the sender to ERR" {
                assert_eq!(poll(&mut rig.a.send_cq, &what).syndrome, FLUSH, "{what}");
            }
            if name == "the receiver to ERR" && verb == Verb::Send {
                assert_eq!(poll(&mut rig.b.recv_cq, &what).syndrome, FLUSH, "{what}");
            }
        }
    }
}

/// What happens to a queue without a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A doorbell that says more than there is, of the sender or the receiver.
    Doorbell(usize),
    /// An answer that refuses the request.
    Refusal,
    /// A CQ that is broken, of the sender or the receiver.
    Overrun(usize),
}

#[test]
fn a_queue_fails_after_the_copy_of_its_data() {
    let events =
        [Event::Doorbell(0), Event::Doorbell(1), Event::Refusal, Event::Overrun(0), Event::Overrun(1)];
    for verb in VERBS {
        for event in events {
            let what = format!("{verb:?}: {event:?}");
            let mut rig = Rig::new();
            let thread = rig.stopped(verb);
            match event {
                Event::Doorbell(end) => {
                    let end = if end == 0 { &mut rig.a } else { &mut rig.b };
                    let index = end.write_wqe(MLX5_OPCODE_SEND, true, 0, &[]);
                    end.record.set(4, &[0, 0, 0x70, 0]);
                    end.ring(index);
                }
                Event::Refusal => {
                    let packet = Packet {
                        src_qpn: rig.b.qpn,
                        dest_qpn: rig.a.qpn,
                        psn: 1,
                        ..packet(1, Body::Nak(Nak::Access), Transport::Rc)
                    };
                    rig.b.hca.beside(|_, cx| cx.net.send(cx.now, 0, packet));
                }
                Event::Overrun(end) => {
                    let (end, cqn) = [(&rig.a, rig.a.send_cq.cqn), (&rig.b, rig.b.recv_cq.cqn)][end];
                    end.hca.beside(|device, _| device.overrun.push(cqn));
                }
            }
            assert_eq!([rig.state(0), rig.state(1)], [State::Rts; 2], "{what}");
            assert!(rig.is_quiet(), "{what}: a completion before the data");
            rig.stop.open();
            thread.join().unwrap();
            let failed = usize::from(matches!(event, Event::Doorbell(1) | Event::Overrun(1)));
            if event == Event::Refusal && verb == Verb::Read {
                // The answer came first, so that it is late.
                assert_eq!(poll(&mut rig.a.send_cq, &what).syndrome, 0, "{what}");
                continue;
            }
            assert_eq!(rig.state(failed), State::Err, "{what}");
            assert_eq!(rig.stop.bytes(), PART, "{what}");
            if failed == 0 {
                let syndrome = if event == Event::Refusal { REMOTE_ACCESS } else { FLUSH };
                assert_eq!(poll(&mut rig.a.send_cq, &what).syndrome, syndrome, "{what}");
            } else if verb == Verb::Send {
                assert_eq!(poll(&mut rig.b.recv_cq, &what).syndrome, FLUSH, "{what}");
            }
        }
    }
}

#[test]
fn a_timer_that_expires_during_a_copy_has_no_effect() {
    let mut rig = Rig::new();
    let srq = {
        let mut srq = TestSrq::new(&rig.b.hca, 0, None);
        srq.recv(DataSeg::new(LONG as u32, rig.keys[1], BASE), 0xffff);
        srq
    };
    rig.b.qp(|_, _, qp| qp.srqn = Some(srq.srqn));
    // The first packets take the receive of the SRQ with the lock, and are not acknowledged when the copy begins.
    rig.stop.change(|seen| seen.first = 1);
    rig.a.attr(|attr| (attr.timeout, attr.retry_cnt) = (1, 0));
    rig.a.qp(|_, _, qp| qp.req.retries = 0);
    rig.rams[0].set(0, pattern(LONG));
    let thread = start(&mut rig.a, Verb::Send, (rig.keys[0], rig.keys[1]), LONG);
    rig.stop.wait("no copy has begun", |seen| seen.bytes > 0 && seen.inside == 1);
    std::thread::sleep(Duration::from_millis(20));
    rig.fabric.run();
    assert_eq!(rig.state(0), State::Rts);
    rig.stop.open();
    thread.join().unwrap();
    assert_eq!(poll(&mut rig.a.send_cq, "").syndrome, 0);
    assert_eq!(poll(&mut rig.b.recv_cq, "").bytes, LONG as u32);
    assert_eq!(rig.stop.bytes(), LONG);
    assert!(rig.rams[1].get(0, LONG) == pattern(LONG));
}

/// This page list is never used.
#[derive(Debug)]
struct NoPages;

impl Translate for NoPages {
    fn pages(&self, _: Vec<u64>, _: u32, _: u64, _: u64) -> Option<Arc<dyn Memory>> {
        None
    }
}

#[test]
fn an_update_that_frees_a_key_waits_for_the_copy_of_its_memory() {
    for verb in VERBS {
        for at in 0..2 {
            let what = format!("{verb:?}: the key of end {at}");
            let mut rig = Rig::new();
            let mut keys = End::new(&[&rig.a, &rig.b][at].hca, QpKind::Keys);
            [State::Init, State::Rtr, State::Rts].into_iter().for_each(|to| keys.set_state(to));
            keys.hca.with_device(|device, _| device.translate = Some(Arc::new(NoPages)));
            let mut free = |key: u32| {
                let ctrl = UmrCtrlSeg { mkey_mask: Be64::new(Umr::MASK_FREE), ..FromZeros::new_zeroed() };
                let fields = MkeyContextSeg { free: MLX5_WQE_MKEY_CONTEXT_FREE, ..FromZeros::new_zeroed() };
                keys.post(MLX5_OPCODE_UMR, key, &[ctrl.as_bytes(), fields.as_bytes()]);
                keys.send_cq.poll().map(|wc| wc.syndrome)
            };
            let other = add_region([&rig.a, &rig.b][at], Ram::new(8));
            let thread = rig.stopped(verb);
            assert_eq!(free(other), Some(0), "{what}: the update of another key waits");
            assert_eq!(free(rig.keys[at]), None, "{what}: complete before the copy");
            assert!(!rig.fabric.read(|world| world.net.may_leave_copy()), "{what}: it does not wait");
            assert_eq!(rig.stop.bytes(), 0);
            rig.stop.open();
            thread.join().unwrap();
            assert_eq!(poll(&mut keys.send_cq, &what).syndrome, 0, "{what}");
            // The answer of the rest is an error of the sender or of the receiver.
            assert_ne!(poll(&mut rig.a.send_cq, &what).syndrome, 0, "{what}");
            assert_eq!(rig.stop.bytes(), PART, "{what}");
        }
    }
}

#[test]
fn a_window_is_invalidated_after_the_access_to_its_memory() {
    let Rig { fabric, mut a, mut b, rams, keys, stop } = Rig::new();
    let own = core::mem::replace(&mut b.key, keys[1]);
    let mw = windows::window(&b, true);
    let (rkey, syndrome) =
        windows::bind(&mut b, mw, true, 1, 0, LONG as u32, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE);
    assert_eq!(syndrome, 0);
    rams[0].set(0, pattern(LONG));
    let thread = start(&mut a, Verb::Write, (keys[0], rkey), LONG);
    stop.wait_inside(1);
    let other = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            assert_eq!(windows::local_invalidate(&mut b, rkey), 0);
            stop.note("changed");
            b
        })
    };
    // It waits for the lock: a window is accessed with it.
    std::thread::sleep(Duration::from_millis(20));
    assert!(stop.change(|seen| seen.log.is_empty()));
    stop.open();
    let b = other.join().unwrap();
    thread.join().unwrap();
    // It may get the lock before the end of the message.
    let syndrome = poll(&mut a.send_cq, "the message").syndrome;
    assert_eq!(syndrome, if stop.bytes() < LONG { REMOTE_ACCESS } else { 0 });
    let late = stop.change(|seen| seen.log.iter().rev().take_while(|what| **what == "copied").count());
    assert_eq!(late, 0, "written after the invalidation was complete");
    drop((fabric, own, b));
}

#[test]
fn other_calls_go_on_during_a_copy() {
    for verb in VERBS {
        let mut rig = Rig::new();
        let (mut c, d) = another(&rig.a, &rig.b);
        let mut stranger = End::new(&rig.a.hca, QpKind::Rc);
        let thread = rig.stopped(verb);
        // A message of other queues, in both ways, and a new region.
        let data = c.fill(0, 64, 9);
        c.write(0, 64, BASE + 100, d.key);
        assert_eq!(c.send_cq.poll().unwrap().syndrome, 0);
        assert_eq!(d.memory.get(100, 64), data);
        let key = add_region(&d, Ram::new(4096));
        c.write(0, 64, BASE, key);
        assert_eq!(c.send_cq.poll().unwrap().syndrome, 0);
        // Requests behind the long one, and of the queue at the other end, wait for it.
        let second = rig.a.write(0, 64, BASE + 200, rig.b.key);
        rig.b.write(0, 64, BASE + 300, rig.a.key);
        // So do those of a queue that is not connected to it, and says it is.
        stranger.hca.beside(|device, cx| {
            device.with_qp(cx, stranger.qpn, |device, cx, qp| {
                qp.attr = crate::engine::qp::Attr {
                    dest_qpn: rig.b.qpn,
                    dlid: 2,
                    sq_psn: 1,
                    rq_psn: 1,
                    ..c_attr()
                };
                [State::Init, State::Rtr, State::Rts].into_iter().for_each(|to| device.set_state(cx, qp, to));
            });
        });
        stranger.fill(0, 8, 77);
        stranger.write(0, 8, BASE + 400, rig.b.key);
        assert_eq!(rig.b.memory.get(400, 8), [0; 8]);
        assert!(rig.is_quiet(), "{verb:?}");
        assert_eq!(rig.stop.bytes(), 0);
        rig.stop.open();
        thread.join().unwrap();
        assert_eq!(poll(&mut rig.a.send_cq, "").syndrome, 0);
        let wc = poll(&mut rig.a.send_cq, "");
        assert_eq!((wc.counter, wc.syndrome), (second, 0), "{verb:?}");
        assert_eq!(poll(&mut rig.b.send_cq, "").syndrome, 0, "{verb:?}");
        assert_eq!(rig.b.memory.get(400, 8), [0; 8], "{verb:?}: the stranger's number was used");
        assert_eq!(rig.stop.bytes(), LONG, "{verb:?}: each byte is copied once");
        assert!(rig.rams[usize::from(verb != Verb::Read)].get(0, LONG) == pattern(LONG), "{verb:?}");
    }
}

fn c_attr() -> crate::engine::qp::Attr {
    crate::engine::qp::Attr { mtu: 4096, access: 0xf, retry_cnt: 7, rnr_retry: 7, ..Default::default() }
}

#[test]
fn nothing_copies_without_the_lock_while_a_call_waits() {
    let mut rig = Rig::new();
    let (mut c, _d) = another(&rig.a, &rig.b);
    let (mut e, f) = another(&rig.a, &rig.b);
    let one = rig.stopped(Verb::Write);
    let two = start(&mut c, Verb::Read, (rig.keys[0], rig.keys[1]), LONG);
    rig.stop.wait_inside(2);
    let hca = rig.a.hca.clone();
    let other = rig.meanwhile(move || hca.with_device(|_, _| ()));
    rig.wait_for_waiting("a call");
    // A third message is copied by its own thread, with the lock.
    let keys = [&e, &f].map(|end| add_region(end, Ram::new(LONG)));
    start(&mut e, Verb::Write, (keys[0], keys[1]), LONG).join().unwrap();
    assert_eq!(poll(&mut e.send_cq, "").syndrome, 0);
    assert_eq!(rig.stop.bytes(), 0);
    rig.stop.open();
    [one, two, other].into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!([poll(&mut rig.a.send_cq, "").syndrome, poll(&mut c.send_cq, "").syndrome], [0; 2]);
    assert_eq!(rig.stop.bytes(), 2 * LONG);
}

#[test]
fn a_copy_that_fails_is_made_again_and_one_that_panics_ends() {
    for panics in [false, true] {
        for verb in VERBS {
            let mut rig = Rig::new();
            rig.stop.change(|seen| (seen.is_open, seen.fails, seen.panics) = (true, !panics, panics));
            assert_eq!(rig.post(verb).join().is_err(), panics);
            assert_eq!(poll(&mut rig.a.send_cq, "").syndrome, 0, "{verb:?}, panics: {panics}");
            assert_eq!(rig.stop.bytes(), LONG, "{verb:?}, panics: {panics}");
            assert!(rig.rams[usize::from(verb != Verb::Read)].get(0, LONG) == pattern(LONG));
            rig.a.hca.with_device(|_, _| ());
        }
    }
}

#[test]
fn the_receiver_permits_what_is_copied() {
    // Not by the QP, the key, the size of the region, or the depth of reads.
    for verb in [Verb::Write, Verb::Read] {
        for case in 0..4 {
            let mut rig = Rig::new();
            rig.stop.open();
            match case {
                0 => rig.b.attr(|attr| attr.access = 1),
                1 => rig.b.hca.with_device(|device, _| device.mkeys.set_rights(rig.keys[1], PD, 1)),
                2 => rig.b.hca.with_device(|device, _| {
                    let key = device.mkeys.remove(rig.keys[1]).unwrap();
                    let Kind::Region { memory, .. } = key.kind else { panic!() };
                    let kind = Kind::Region { memory, iova: BASE + 8 };
                    rig.keys[1] = device.mkeys.add(0, PD, ALL, kind).unwrap();
                }),
                _ if verb == Verb::Write => continue,
                _ => rig.b.attr(|attr| attr.max_dest_rd_atomic = 0),
            }
            rig.post(verb).join().unwrap();
            assert_ne!(poll(&mut rig.a.send_cq, "").syndrome, 0, "{verb:?}, case {case}");
            assert_eq!(rig.stop.bytes(), 0, "{verb:?}, case {case}: written without a right");
        }
    }
}

#[test]
fn lists_immediate_data_and_other_mtus_have_their_bytes() {
    for mtu in [256, 1024, 4096] {
        for psn in [1, 0xff_ffe0] {
            for len in [LONG, LONG - 300_001, 200_000] {
                let what = format!("MTU {mtu}, packets from {psn}, {len} bytes");
                let rig = Rig::new();
                rig.stop.open();
                let (mut c, mut d) = (End::new(&rig.a.hca, QpKind::Rc), End::new(&rig.b.hca, QpKind::Rc));
                c.connect(d.qpn, 2, psn);
                d.connect(c.qpn, 1, psn);
                [&c, &d].into_iter().for_each(|end| end.attr(|attr| (attr.mtu, attr.timeout) = (mtu, 0)));
                let data = pattern(len);
                rig.rams[0].set(0, data);
                // Two entries at each end, of different sizes.
                let list = |key, first: usize| {
                    let (first, at) = (first as u32, BASE + first as u64);
                    [DataSeg::new(first, key, BASE), DataSeg::new(len as u32 - first, key, at)]
                };
                let own = list(rig.keys[0], len / 3);
                d.recv_list(&list(rig.keys[1], len / 2));
                c.post(MLX5_OPCODE_SEND, 0, &[own.as_bytes()]);
                assert_eq!(
                    (poll(&mut c.send_cq, &what).syndrome, poll(&mut d.recv_cq, &what).bytes),
                    (0, len as u32),
                    "{what}"
                );
                assert!(rig.rams[1].get(0, len) == data, "{what}");
                rig.rams[1].set(0, &vec![0; len]);
                d.recv(0, 0);
                let to = remote(BASE, rig.keys[1]);
                c.post(MLX5_OPCODE_RDMA_WRITE_IMM, 7, &[to.as_bytes(), own.as_bytes()]);
                let received = poll(&mut d.recv_cq, &what);
                assert_eq!(
                    (poll(&mut c.send_cq, &what).syndrome, received.bytes, received.imm),
                    (0, len as u32, 7)
                );
                assert!(rig.rams[1].get(0, len) == data, "{what}");
                rig.rams[0].set(0, &vec![0; len]);
                c.post(MLX5_OPCODE_RDMA_READ, 0, &[to.as_bytes(), own.as_bytes()]);
                assert_eq!(poll(&mut c.send_cq, &what).syndrome, 0, "{what}");
                assert!(rig.rams[0].get(0, len) == data, "{what}");
                assert_eq!(rig.stop.bytes(), 3 * len, "{what}: each byte is copied once");
            }
        }
    }
}

#[test]
fn many_threads_copy_while_queues_and_regions_come_and_go() {
    const THREADS: usize = 4;
    let rig = Rig::new();
    rig.stop.open();
    let end = Instant::now() + Duration::from_millis(700);
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let (mut c, mut d) = another(&rig.a, &rig.b);
            let len = LONG / (1 + i);
            let keys = [&c, &d].map(|end| add_region(end, Ram::new(LONG)));
            std::thread::spawn(move || {
                let mut count = 0;
                while count < 3 || Instant::now() < end {
                    let verb = VERBS[count % 3];
                    if verb == Verb::Send {
                        d.recv_to(DataSeg::new(len as u32, keys[1], BASE));
                    }
                    start(&mut c, verb, (keys[0], keys[1]), len).join().unwrap();
                    assert_eq!(poll(&mut c.send_cq, "").syndrome, 0);
                    if verb == Verb::Send {
                        assert_eq!(poll(&mut d.recv_cq, "").bytes, len as u32);
                    }
                    count += 1;
                }
                count
            })
        })
        .collect();
    let (mut e, f) = another(&rig.a, &rig.b);
    let mut changes = 0;
    while changes == 0 || Instant::now() < end {
        let key = add_region(&f, Ram::new(LONG));
        e.write(0, 64, BASE, key);
        assert_eq!(poll(&mut e.send_cq, "").syndrome, 0);
        f.hca.with_device(|device, _| drop(device.mkeys.remove(key)));
        let new = End::new(&f.hca, QpKind::Rc);
        f.hca.with_device(|device, _| device.remove_qp(new.qpn));
        changes += 1;
    }
    for thread in threads {
        assert!(thread.join().unwrap() > 2);
    }
}
