// SPDX-License-Identifier: MIT OR Apache-2.0
//! mlx5's completion queue with the entries of a correct device, plain or compressed, or with arbitrary bytes, while queues are
//! created, reset and destroyed.
//!
//! Checked: every call ends, returns at most the requested number of completions and at most the number of entries, and
//! returns to the device at most the entries that it wrote. For any contents of an entry, only memory of an outstanding
//! WQE is written: not that of a completed receive, nor that of a queue that was reset or destroyed. That memory is
//! freed, so the sanitizer detects accesses.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`. The WRs name memory that stays until their completion.

use arbitrary::Arbitrary;
use core::sync::atomic::Ordering::Relaxed;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use uverbs_core::attr::{QpState, QpType, WcExFlags};
use uverbs_core::kernel::{DoorbellPage, DoorbellPort};
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Op, PollError, RecvBatch as _, RecvQueue as _, SendQueue as _,
    WireRemote as _, WireSge as _, Wr,
};
use uverbs_core::wc::WorkCompletion;
use uverbs_mlx5::testing::UserIndices;
use uverbs_mlx5::testing::{self, BLUE_FLAME, Bell, send_config};
use uverbs_mlx5::testing::{ArmRegister, Doorbell};
use uverbs_mlx5::testing::{CompletionQueue, CqConfig, CqRing, CqShared, CqeCompression, CqeVersion};
use uverbs_mlx5::testing::{DbRec, DbRecPages};
use uverbs_mlx5::testing::{QpShared, RqShared, SqShared, SrqShared};
use uverbs_mlx5::testing::{QueueBuf, SqRing, StrideRing};
use uverbs_mlx5::{RecvConfig, RecvQueue, Remote, SendQueue, Sge, SharedRecvQueue};

#[derive(Arbitrary, Debug)]
struct Program {
    version_1: bool,
    wide: bool,
    log_entries: u8,
    /// The format of compressed entries; other values are a queue without them.
    compression: u8,
    fields: u16,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// The next entry, in the order of a correct device.
    Next {
        entry: Entry,
    },
    /// A title with an arbitrary count, and arrays at the positions that follow from it.
    Block {
        title: Entry,
        count: u8,
        minis: [u64; 4],
    },
    /// Arbitrary bytes at an arbitrary position.
    Any {
        at: u16,
        word: u64,
    },
    PollCq(u8),
    PollEach(u8),
    Session(u8),
    Arm(bool),
    Event,
    Reset(u8),
    Fill(u8),
    Beyond(u8),
    Replace(u8),
    Resize {
        log_entries: u8,
        wide: bool,
        mark: bool,
    },
}

#[derive(Arbitrary, Debug)]
struct Entry {
    /// Opcode and format; the owner bit is set correctly.
    op_own: u8,
    /// The queue in the entry: an existing one, or an arbitrary number.
    queue: u8,
    number: u32,
    send_opcode: u8,
    counter: u16,
    byte_cnt: u8,
    words: [u64; 3],
}

/// Entries of every work queue.
const DEPTH: u32 = 8;
/// Bytes that a posted receive names.
const ROOM: usize = 24;
const MAX_STEPS: usize = 64;

/// Memory that a WR names, with a margin on both sides.
type Memory = Box<[u8; ROOM * 3]>;

struct Queue {
    qp: Arc<QpShared>,
    record: Arc<DbRec>,
    send: SendQueue,
    recv: Receives,
    /// The memory of outstanding receives, by their `wr_id`.
    posted: Vec<(u64, Memory)>,
    /// The memory of reads, as long as the queue exists.
    reads: Vec<Memory>,
}

enum Receives {
    Own(RecvQueue),
    Shared(SharedRecvQueue),
}

fn entries(memory: &mut Memory) -> [Sge; 2] {
    let addr = memory[ROOM..].as_mut_ptr().expose_provenance() as u64;
    [(0, 10), (10, ROOM as u32 - 10)].map(|(at, len)| Sge::new(addr + at, len, 7).expect("short"))
}

impl Queue {
    /// Posts as many WRs as there is room for.
    fn fill(&mut self, next: &mut u64) {
        loop {
            let mut memory = Box::new([0; ROOM * 3]);
            let sges = entries(&mut memory);
            let result = match &mut self.recv {
                // SAFETY: the memory stays until the receive completes, or the queue is reset or destroyed.
                Receives::Own(queue) => unsafe { queue.post(*next, &sges) },
                // SAFETY: as above.
                Receives::Shared(queue) => unsafe { queue.post(*next, &sges) },
            };
            if result.is_err() {
                break;
            }
            self.posted.push((*next, memory));
            *next += 1;
        }
        for _ in 0..DEPTH {
            let mut memory = Box::new([0; ROOM * 3]);
            let (sges, from) = (entries(&mut memory), Remote::new(0, 0));
            // SAFETY: the memory stays until the queue is destroyed.
            if unsafe { self.send.post(&Wr::new(0, Op::Read(from)).sges(&sges)) }.is_err() {
                break;
            }
            self.reads.push(memory);
        }
    }

    fn check(&self, step: &Step) {
        for memory in self.posted.iter().map(|(_, m)| m).chain(&self.reads) {
            let (before, after) = (&memory[..ROOM], &memory[ROOM * 2..]);
            assert!(
                before.iter().chain(after).all(|b| *b == 0),
                "memory next to that of a WR changed after {step:?}"
            );
        }
    }
}

struct World {
    queue: CompletionQueue,
    shared: Arc<CqShared>,
    buf: Arc<QueueBuf>,
    entries: u32,
    size: usize,
    version_1: bool,
    compression: Option<CqeCompression>,
    /// The entry that a correct device writes next.
    producer: u32,
    indices: Arc<UserIndices>,
    queues: Vec<Queue>,
    names: u32,
    /// The next receive's `wr_id`.
    next: u64,
}

fuzz_target!(|program: Program| {
    let (entries, size) = (1 << (program.log_entries % 6), if program.wide { 128 } else { 64 });
    let buf = QueueBuf::new((entries * size) as usize).expect("memory");
    let compression = CqeCompression::of_bit(program.compression % 8);
    let ring =
        CqRing::new(Arc::clone(&buf), entries, size).expect("powers of two").with_compression(compression);
    ring.clear();
    let port: Arc<dyn DoorbellPort> = Arc::new(Bell::default());
    let (queue, shared) = CompletionQueue::new(CqConfig {
        cqn: 0x401,
        ring,
        dbrec: DbRecPages::default().alloc().expect("memory"),
        access: testing::cq_access(),
        arm: Arc::new(ArmRegister::new(&DoorbellPage::Port(port), 0).expect("a register")),
        version: if program.version_1 { CqeVersion::V1 } else { CqeVersion::V0 },
        dump_fill_mkey: 0x300,
        fields: WcExFlags::from_bits_retain(program.fields.into()),
        clock: None,
        mkeys: Default::default(),
    });
    let mut world = World {
        queue,
        shared,
        buf,
        entries,
        size: size as usize,
        version_1: program.version_1,
        compression,
        producer: 0,
        indices: Arc::default(),
        queues: Vec::new(),
        names: 1,
        next: 1,
    };
    for with_srq in [false, false, true] {
        let queue = world.make(with_srq);
        world.queues.push(queue);
    }
    for step in program.steps.iter().take(MAX_STEPS) {
        world.run(step);
        for queue in &world.queues {
            queue.check(step);
        }
    }
});

fn store(buf: &QueueBuf, at: usize, bytes: &[u8]) {
    for (word, bytes) in buf.words()[at / 8..].iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().expect("8 bytes")), Relaxed);
    }
}

impl World {
    /// Creates a QP, and posts receives and reads, each with separate memory.
    fn make(&mut self, with_srq: bool) -> Queue {
        let number = self.names;
        self.names += 1;
        let ring = || {
            let buf = QueueBuf::new(4096).expect("memory");
            StrideRing::new(buf, 0, DEPTH, 64).expect("powers of two")
        };
        let record = || Arc::new(DbRecPages::default().alloc().expect("memory"));
        let sq = SqRing::new(QueueBuf::new(4096).expect("memory"), 0, DEPTH).expect("powers of two");
        let sq = Arc::new(SqShared::new(sq));
        let (mut rq, mut srq) = (None, None);
        if with_srq {
            srq = Some(Arc::new(SrqShared::new(number, ring(), DEPTH).expect("powers of two")));
        } else {
            rq = Some(Arc::new(RqShared::new(ring())));
        }
        let qp = QpShared::new(testing::qp_access(), number, number, Some(sq), rq, srq.clone())
            .with_data_in_completions();
        let qp = Arc::new(match self.version_1 {
            true => qp.with_index(self.indices.take().expect("an index")),
            false => qp,
        });
        testing::set_state(&qp, QpState::RTS);
        let record_of_qp = record();
        let config = send_config(QpType::Rc);
        let page = DoorbellPage::Port(Arc::new(Bell::default()));
        let bell = Doorbell::new(&page, 0x800, BLUE_FLAME, None).expect("a register");
        let send = SendQueue::new(&config, Arc::clone(&qp), record_of_qp.send_word(), bell);
        let recv = match srq {
            Some(srq) => {
                let access = testing::cq_access();
                Receives::Shared(SharedRecvQueue::new(srq, access, 3, 1 << 30, record().recv_word()))
            }
            None => {
                let (max_recv_wr, max_recv_sge, max_msg_sz) = (DEPTH, 4, 1 << 30);
                let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr, max_recv_sge, max_msg_sz };
                let queue = RecvQueue::new(&config, Arc::clone(&qp), record_of_qp.recv_word());
                Receives::Own(queue.expect("a receive queue"))
            }
        };
        testing::attach_qp(&self.shared, &qp);
        let send = send.expect("a send queue");
        let (posted, reads) = (Vec::new(), Vec::new());
        let mut queue = Queue { qp, record: record_of_qp, send, recv, posted, reads };
        queue.fill(&mut self.next);
        queue
    }

    /// Frees the memory of the receives in these completions.
    fn free(&mut self, ids: &[u64]) {
        for queue in &mut self.queues {
            queue.posted.retain(|(id, _)| !ids.contains(id));
        }
    }

    fn consumed(&self) -> u32 {
        u32::from_be(self.shared.dbrec().word(0).load(Relaxed))
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Next { entry } => self.write(entry),
            Step::Block { title, count, minis } => self.write_block(title, *count, minis),
            Step::Any { at, word } => {
                let words = self.buf.words();
                let len = (self.entries as usize * self.size / 8).max(1);
                words[usize::from(*at) % len].store(*word, Relaxed);
            }
            Step::PollCq(max) => {
                let mut wc = vec![WorkCompletion::default(); (*max).into()];
                if let Ok(n) = self.queue.poll_cq(&mut wc) {
                    assert!(n <= wc.len() && n <= self.entries as usize);
                    self.free(&wc[..n].iter().map(|wc| wc.wr_id).collect::<Vec<_>>());
                }
            }
            Step::PollEach(max) => {
                let (mut n, mut ids) = (0, Vec::new());
                let result = self.queue.poll_each((*max).into(), |c| {
                    n += 1;
                    ids.push(c.wr_id());
                    let _ = (c.to_wc(), c.opcode(), c.completion_ts(), c.completion_wallclock_ns());
                });
                assert!(n <= usize::from(*max) && n <= self.entries as usize);
                assert!(result.is_err() || result == Ok(n));
                self.free(&ids);
            }
            Step::Session(max) => {
                if self.queue.start_poll().is_err() {
                    assert!(self.queue.current().is_none());
                    return;
                }
                assert_eq!(self.queue.start_poll(), Err(PollError::SessionOpen));
                for _ in 0..*max {
                    let c = self.queue.current().expect("a completion");
                    let _ = (c.to_wc(), c.cvlan(), c.flow_tag(), c.slid());
                    let id = c.wr_id();
                    self.free(&[id]);
                    if self.queue.next_poll().is_err() {
                        break;
                    }
                }
                self.queue.end_poll();
                assert!(self.queue.current().is_none());
            }
            // A queue whose ring was lost in a resize can't be armed.
            Step::Arm(solicited) => {
                assert!(matches!(self.queue.req_notify(*solicited), Ok(()) | Err(PollError::Corrupt)));
            }
            Step::Event => self.shared.event(),
            Step::Reset(which) => {
                // As `modify_qp` does it.
                let queue = &mut self.queues[usize::from(*which) % 3];
                queue.record.set_recv(0);
                queue.record.set_send(0);
                testing::reset_qp(&self.shared, &queue.qp);
                testing::set_state(&queue.qp, QpState::RESET);
                testing::set_state(&queue.qp, QpState::RTS);
                if let Receives::Own(_) = queue.recv {
                    queue.posted.clear();
                }
                queue.reads.clear();
            }
            Step::Fill(which) => self.queues[usize::from(*which) % 3].fill(&mut self.next),
            Step::Beyond(which) => {
                // It is written but not published.
                let mut memory = Box::new([0; ROOM * 3]);
                let sges = entries(&mut memory);
                match &mut self.queues[usize::from(*which) % 3].recv {
                    // SAFETY: it is not posted, so the device may not write to it.
                    Receives::Own(queue) => unsafe { queue.batch().push(0, &sges) },
                    // SAFETY: it is not posted, so the device may not write to it.
                    Receives::Shared(queue) => unsafe { queue.batch().push(0, &sges) },
                }
            }
            Step::Replace(which) => {
                let which = usize::from(*which) % 3;
                testing::detach_qp(&self.shared, &self.queues[which].qp);
                // The memory is freed here, so that the sanitizer detects later accesses.
                let new = self.make(which == 2);
                self.queues[which] = new;
            }
            Step::Resize { log_entries, wide, mark } => self.resize(*log_entries, *wide, *mark),
        }
        assert!(self.consumed() <= 0xff_ffff);
    }

    fn write(&mut self, e: &Entry) {
        let number = match self.queues.get(usize::from(e.queue % 4)) {
            Some(queue) if self.version_1 => queue.qp.uidx,
            Some(queue) => queue.qp.qp_num,
            None => e.number,
        };
        let lap = u8::from(self.producer & self.entries != 0);
        let mut bytes = [0_u8; 64];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(e.words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let uidx = if self.version_1 { number } else { 0 };
        bytes[32..36].copy_from_slice(&uidx.to_be_bytes());
        bytes[44..48].copy_from_slice(&u32::from(e.byte_cnt).to_be_bytes());
        bytes[54..56].copy_from_slice(&[e.send_opcode, e.op_own]);
        bytes[56] = e.send_opcode;
        bytes[57..60].copy_from_slice(&number.to_be_bytes()[1..]);
        bytes[60..62].copy_from_slice(&e.counter.to_be_bytes());
        bytes[63] = e.op_own & 0xfe | lap;
        let slot = (self.producer & (self.entries - 1)) as usize;
        store(&self.buf, (slot + 1) * self.size - 64, &bytes);
        self.producer = self.producer.wrapping_add(1);
    }

    /// Writes the arrays of a block, its title with this count, and skips as many entries as it has.
    fn write_block(&mut self, title: &Entry, count: u8, minis: &[u64; 4]) {
        let start = self.producer;
        for at in (0..u32::from(count)).step_by(8) {
            let position = start.wrapping_add(at.max(1));
            let slot = (position & (self.entries - 1)) as usize;
            let words = minis.iter().chain(minis).flat_map(|word| word.to_ne_bytes());
            store(&self.buf, (slot + 1) * self.size - 64, &words.collect::<Vec<_>>());
        }
        let op_own = title.op_own | 0xc;
        self.write(&Entry { op_own, byte_cnt: count, ..*title });
        self.producer = start.wrapping_add(u32::from(count).clamp(1, self.entries));
    }

    fn resize(&mut self, log_entries: u8, wide: bool, mark: bool) {
        let (entries, size) = (1 << (log_entries % 6), if wide { 128 } else { 64 });
        let buf = QueueBuf::new((entries * size) as usize).expect("memory");
        let ring = CqRing::new(Arc::clone(&buf), entries, size).expect("powers of two");
        let ring = ring.with_compression(self.compression);
        ring.clear();
        if mark {
            let lap = u8::from(self.producer & self.entries != 0);
            let mut bytes = [0_u8; 64];
            bytes[63] = 0x50 | lap;
            let slot = (self.producer & (self.entries - 1)) as usize;
            store(&self.buf, (slot + 1) * self.size - 64, &bytes);
            self.producer = self.producer.wrapping_add(1);
        }
        if self.queue.replace_ring(ring).is_ok() {
            (self.buf, self.entries, self.size) = (buf, entries, size as usize);
        }
    }
}
