// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings with arbitrary geometry, size and indices, which also change while they are in use.
//!
//! Checked: a ring is refused, or all of its slots are inside the mapping; then no index that is written at any time
//! makes a queue panic, access memory outside of the mapping (which the address sanitizer detects), or take or return
//! more than it has room for.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: creates mappings of heap memory, and posts to a kernel that accesses no memory.

use arbitrary::Arbitrary;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use uverbs_core::attr::{QpState, QpType, SendOpsFlags};
use uverbs_core::kernel::Mapping;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Head, Inline, Op, RecvBatch as _, RecvQueue as _, SendBatch as _,
    SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::Sge;
use uverbs_fuzz::steps::{Index, MAX_STEPS};
use uverbs_rxe::testing::{FakeBell, completion_queue_on};
use uverbs_rxe::{CompletionQueue, Extensions, QpShared, RecvQueue, Ring, SendBatch, SendConfig, SendQueue};

#[derive(Arbitrary, Debug)]
struct Program {
    kind: Kind,
    memory: Memory,
    tail: Index,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Send { max_sge: u8, max_inline: u8 },
    Recv { max_sge: u8 },
    Completion,
}

/// A mapping that a kernel could return.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Memory {
    room: Room,
    offset: u8,
    producer: Index,
    consumer: Index,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Room {
    /// Exactly the size of the ring.
    Right { log2: u8, log2_slots: u8 },
    /// Some bytes less than the ring.
    Short { log2: u8, log2_slots: u8, missing: u8 },
    /// The header is independent of the mapping.
    Any { log2: Index, mask: Index, len: u16 },
}

#[derive(Arbitrary, Debug)]
enum Step {
    Write(Write),
    /// Posts or polls this many WRs; the kernel may write in between.
    Use(u8, Option<Write>),
    Session(u8, Option<Write>),
    Reset,
    Show,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Write {
    Producer(Index),
    Consumer(Index),
    Word(u16, u64),
}

/// The kernel's side.
struct Words(Arc<[AtomicU64]>);

impl Words {
    fn write(&self, what: Write) {
        let put = |at: usize, value: u32| {
            if let Some(word) = self.0.get(at / 8) {
                let high = word.load(Ordering::Relaxed) >> 32 << 32;
                word.store(high | u64::from(value), Ordering::Relaxed);
            }
        };
        match what {
            Write::Producer(index) => put(128, index.value()),
            Write::Consumer(index) => put(256, index.value()),
            Write::Word(at, value) => {
                if let Some(word) = self.0.get(usize::from(at)) {
                    word.store(value, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Room {
    /// Element size and mask in the header, and the length.
    fn geometry(&self) -> (u32, u32, usize) {
        let right = |log2: u8, log2_slots: u8| {
            // Elements of 64 bytes to 4 KiB.
            let (log2, slots) = (6 + u32::from(log2 % 7), 1 << (log2_slots % 6));
            (log2, slots - 1, 384 + ((slots as usize) << log2))
        };
        match *self {
            Self::Right { log2, log2_slots } => right(log2, log2_slots),
            Self::Short { log2, log2_slots, missing } => {
                let (log2, mask, len) = right(log2, log2_slots);
                (log2, mask, len - usize::from(missing))
            }
            Self::Any { log2, mask, len } => (log2.value(), mask.value(), len.into()),
        }
    }
}

impl Memory {
    fn make(&self) -> (Mapping, Words, usize) {
        let (log2, mask, len) = self.room.geometry();
        let offset = if self.offset < 8 { usize::from(self.offset) } else { 0 };
        let words: Arc<[AtomicU64]> = (0..(len + offset).div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let kernel = Words(Arc::clone(&words));
        kernel.write(Write::Word(0, u64::from(log2) | u64::from(mask) << 32));
        kernel.write(Write::Producer(self.producer));
        kernel.write(Write::Consumer(self.consumer));
        // SAFETY: the offset is at most the length that was rounded up.
        let ptr = unsafe { NonNull::from(&words[..]).cast::<u8>().add(offset) };
        // SAFETY: the words live as long as the `Arc` that becomes the mapping's owner, and consist of atomics.
        (unsafe { Mapping::new(ptr, len, words) }, kernel, len)
    }
}

fuzz_target!(|program: Program| {
    let (mapping, kernel, len) = program.memory.make();
    // Headers at other offsets are refused, so writes of the kernel do not matter.
    let tail = program.tail.value() as usize;
    let steps = &program.steps[..program.steps.len().min(MAX_STEPS)];
    let shared = Arc::new(QpShared::new(QpState::RTS));
    match program.kind {
        Kind::Send { max_sge, max_inline } => {
            let Ok(ring) = Ring::new(mapping, tail) else { return };
            let config = SendConfig {
                qp_type: QpType::Rc,
                send_ops_flags: SendOpsFlags::all(),
                extensions: Extensions { flush: true, atomic_write: true },
                max_sge: max_sge.into(),
                max_inline: max_inline.into(),
            };
            let Ok(queue) = SendQueue::new(ring, &config, Arc::clone(&shared), FakeBell::default()) else {
                return;
            };
            fits(queue.capacity(), 208 + tail, len);
            send(queue, &kernel, &shared, steps);
        }
        Kind::Recv { max_sge } => {
            let Ok(ring) = Ring::new(mapping, tail) else { return };
            let Ok(queue) = RecvQueue::new(ring, max_sge.into(), Arc::clone(&shared), FakeBell::default())
            else {
                return;
            };
            fits(queue.capacity(), 40 + tail, len);
            recv(queue, &kernel, &shared, steps);
        }
        Kind::Completion => {
            let Ok(ring) = Ring::new(mapping, tail) else { return };
            let Ok(queue) = completion_queue_on(ring, FakeBell::default()) else { return };
            fits(queue.cqe(), 48 + tail, len);
            poll(queue, &kernel, steps);
        }
    }
});

fn fits(capacity: u32, element: usize, len: usize) {
    assert!((capacity as usize + 1) * element <= len - 384);
}

fn reset(shared: &QpShared) {
    shared.set_state(QpState::RESET);
    shared.set_state(QpState::RTS);
}

const SGES: [Sge; 3] = [Sge { addr: 1, length: 2, lkey: 3 }; 3];

/// Without data, by reference, inline.
///
/// # Safety
/// As `SendBatch::push`.
unsafe fn push(batch: &mut SendBatch<'_, FakeBell>, i: u8) {
    let wr = Wr::new(0, Op::Send);
    match i % 3 {
        // SAFETY: the WR has no data, so it names no memory.
        0 => unsafe { batch.push(&wr) },
        // SAFETY: the entries' memory fulfils the contract of `SendBatch::push` (the contract of this function).
        1 => unsafe { batch.push(&wr.sges(&SGES)) },
        // SAFETY: inline data are copied by the call, so no memory is used later.
        _ => unsafe { batch.push(&wr.inline(&[7; 33])) },
    }
}

fn send(mut queue: SendQueue<FakeBell>, kernel: &Words, shared: &QpShared, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Write(what) => kernel.write(*what),
            Step::Use(n, meanwhile) => {
                let capacity = queue.capacity();
                let mut batch = queue.batch();
                for i in 0..*n {
                    // SAFETY: the named memory is not accessed.
                    unsafe { push(&mut batch, i) };
                    if let Some(what) = meanwhile {
                        kernel.write(*what);
                    }
                }
                assert!(batch.complete().is_err() || u32::from(*n) <= capacity);
            }
            Step::Session(n, meanwhile) => {
                queue.wr_start();
                for _ in 0..*n {
                    // SAFETY: not a bind.
                    unsafe { queue.wr_begin(Head::default(), Op::Send) };
                    if let Some(what) = meanwhile {
                        kernel.write(*what);
                    }
                    queue.wr_set_inline(Inline::Bytes(b"x"));
                }
                assert!(queue.wr_complete().is_err() || u32::from(*n) <= queue.capacity());
            }
            Step::Reset => reset(shared),
            Step::Show => assert!(!format!("{queue:?}").is_empty()),
        }
    }
}

fn recv(mut queue: RecvQueue<FakeBell>, kernel: &Words, shared: &QpShared, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Write(what) => kernel.write(*what),
            Step::Use(n, meanwhile) | Step::Session(n, meanwhile) => {
                let capacity = queue.capacity();
                let mut batch = queue.batch();
                for i in 0..*n {
                    // SAFETY: the named memory is not accessed.
                    unsafe { batch.push(i.into(), &SGES[..usize::from(i % 3)]) };
                    if let Some(what) = meanwhile {
                        kernel.write(*what);
                    }
                }
                assert!(batch.complete().is_err() || u32::from(*n) <= capacity);
            }
            Step::Reset => reset(shared),
            Step::Show => assert!(!format!("{queue:?}").is_empty()),
        }
    }
}

fn poll(mut queue: CompletionQueue<FakeBell>, kernel: &Words, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Write(what) => kernel.write(*what),
            Step::Use(max, meanwhile) => {
                let mut count = 0;
                let result = queue.poll_each((*max).into(), |c| {
                    let _ = c.to_wc();
                    count += 1;
                    if let Some(what) = meanwhile {
                        kernel.write(*what);
                    }
                });
                assert_eq!(result.unwrap_or(0), count);
                assert!(count <= usize::from(*max) && count <= queue.cqe() as usize);
            }
            Step::Session(max, meanwhile) => {
                let mut count = 0;
                let mut next = queue.start_poll();
                while next.is_ok() && count <= u32::from(*max) {
                    count += 1;
                    assert!(queue.current().is_some_and(|c| c.wr_id() == 0 || count > 0));
                    if let Some(what) = meanwhile {
                        kernel.write(*what);
                    }
                    next = queue.next_poll();
                }
                // The slots of those that were taken are returned in an open poll, so a kernel that goes on can fill them again.
                // Without that, there are the completions that were known before, and those of the index that the kernel has now.
                assert!(meanwhile.is_some() || count <= 2 * queue.cqe());
                queue.end_poll();
            }
            Step::Reset => {
                let mut wc = [WorkCompletion::default(); 5];
                assert!(queue.poll_cq(&mut wc).is_ok_and(|n| n <= 5) || queue.current().is_none());
            }
            Step::Show => assert!(!format!("{queue:?}").is_empty()),
        }
    }
}
