// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polls a completion queue with the bytes and indices of a correct kernel, or with arbitrary ones.
//!
//! Checked: while the kernel is correct, each completion comes once, in order, with the bytes that were written;
//! otherwise there is no panic, and no call visits more entries than requested or than the ring has.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use uverbs_core::Errno;
use uverbs_core::provider::{Completion as _, CompletionQueue as _, PollError};
use uverbs_core::wc::WorkCompletion;
use uverbs_fuzz::steps::{Index, MAX_STEPS};
use uverbs_rxe::testing::{FakeBell, KernelSide, completion_queue};
use uverbs_rxe::{Completion, CompletionQueue};

/// `sizeof(struct ib_uverbs_wc)`
const WC: usize = 48;

#[derive(Arbitrary, Debug)]
struct Program {
    log2_slots: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Produce(Cqe),
    /// From here on the kernel's data are not correct.
    Scribble(Scribble),
    PollCq(u8),
    PollEach(u8, Option<Scribble>),
    Start,
    Next,
    End,
    Current,
    Arm(bool, bool),
    Show,
}

/// The bytes of a completion; some come in front of one pattern.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Cqe {
    head: [u8; 16],
    rest: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Scribble {
    Producer(Index),
    Consumer(Index),
    Geometry(u32, u32),
    Element(Index, Cqe),
}

impl Cqe {
    fn bytes(&self) -> [u8; WC] {
        let mut bytes = [self.rest; WC];
        bytes[..16].copy_from_slice(&self.head);
        bytes
    }
}

struct World {
    queue: CompletionQueue<FakeBell>,
    kernel: KernelSide,
    bell: FakeBell,
    /// The completions that were written and not polled, while the kernel is correct.
    expected: Option<VecDeque<[u8; WC]>>,
    /// The number of completions that the open poll has visited.
    open: Option<u32>,
}

fuzz_target!(|program: Program| {
    let (queue, kernel, bell) = completion_queue(1 << (program.log2_slots % 6)).expect("a well-formed ring");
    let mut world = World { queue, kernel, bell, expected: Some(VecDeque::new()), open: None };
    for step in program.steps.iter().take(2 * MAX_STEPS) {
        world.run(step);
    }
});

/// Reads a completion at the offsets of `<rdma/ib_user_verbs.h>`, without the driver's structs.
fn check(wc: &WorkCompletion, b: &[u8; WC]) {
    let u16_at = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
    let u32_at = |at: usize| u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    assert_eq!(wc.wr_id.to_ne_bytes(), b[..8]);
    assert_eq!((wc.status.0, wc.opcode.0), (u32_at(8), u32_at(12)));
    assert_eq!((wc.vendor_err, wc.byte_len), (u32_at(16), u32_at(20)));
    assert_eq!((wc.imm_data_or_invalidated_rkey, wc.qp_num), (u32_at(24), u32_at(28)));
    // The kernel's flags differ from those of the verbs: an invalidation is `1 << 2` (and `1 << 3` on some kernels).
    let flags = u32_at(36);
    let flags = flags & 3 | u32::from(flags & 0xc != 0) << 3;
    assert_eq!((wc.src_qp, wc.wc_flags.bits()), (u32_at(32), flags));
    assert_eq!((wc.pkey_index, wc.slid), (u16_at(40), u16_at(42)));
    assert_eq!((wc.sl, wc.dlid_path_bits), (b[44], b[45]));
}

fn scribble(kernel: &KernelSide, what: Scribble) {
    match what {
        Scribble::Producer(index) => kernel.set_producer(index.value()),
        Scribble::Consumer(index) => kernel.set_consumer(index.value()),
        Scribble::Geometry(log2, mask) => kernel.set_geometry(log2, mask),
        Scribble::Element(index, cqe) => kernel.put_element(index.value(), &cqe.bytes()),
    }
}

/// Reads every lazy field.
fn read_all(c: &Completion) -> WorkCompletion {
    let extended = (c.completion_ts(), c.completion_wallclock_ns(), c.cvlan(), c.flow_tag());
    assert_eq!(extended, (None, None, None, None));
    assert!(!format!("{c:?}").is_empty());
    c.to_wc()
}

impl World {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Produce(cqe) => {
                if self.kernel.produce(&cqe.bytes())
                    && let Some(expected) = &mut self.expected
                {
                    expected.push_back(cqe.bytes());
                }
            }
            Step::Scribble(what) => {
                self.expected = None;
                scribble(&self.kernel, *what);
            }
            Step::PollCq(max) => {
                let mut wc = vec![WorkCompletion::default(); (*max).into()];
                let result = self.queue.poll_cq(&mut wc);
                let n = self.bounded(result, wc.len());
                self.compare(&wc[..n]);
            }
            Step::PollEach(max, meanwhile) => {
                if meanwhile.is_some() {
                    self.expected = None;
                }
                let mut seen = Vec::new();
                let kernel = &self.kernel;
                let result = self.queue.poll_each((*max).into(), |c| {
                    seen.push(read_all(c));
                    if let Some(what) = meanwhile {
                        scribble(kernel, *what);
                    }
                });
                let n = self.bounded(result, (*max).into());
                assert_eq!(n, seen.len());
                self.compare(&seen);
            }
            Step::Start => {
                let result = self.queue.start_poll();
                if self.open.is_some() {
                    assert_eq!(result, Err(PollError::SessionOpen));
                } else if self.visit(result, 0) {
                    self.open = Some(1);
                }
            }
            Step::Next => {
                let result = self.queue.next_poll();
                match self.open {
                    None => assert_eq!(result, Err(PollError::NoSession)),
                    Some(visited) => {
                        if self.visit(result, visited as usize) {
                            self.open = Some(visited + 1);
                        }
                    }
                }
            }
            Step::End => {
                self.queue.end_poll();
                if let (Some(visited), Some(expected)) = (self.open.take(), &mut self.expected) {
                    expected.drain(..visited as usize);
                }
            }
            Step::Current => assert_eq!(self.queue.current().is_some(), self.open.is_some()),
            Step::Arm(solicited_only, fails) => {
                self.bell.fail(fails.then_some(Errno::ENODEV));
                let result = self.queue.req_notify(*solicited_only);
                assert_eq!(result, if *fails { Err(PollError::Arm(Errno::ENODEV)) } else { Ok(()) });
            }
            Step::Show => {
                assert_eq!(self.queue.cqe(), self.kernel.slots() - 1);
                assert!(!format!("{:?}", self.queue).is_empty());
            }
        }
    }

    /// Checks the number of completions that a call returned.
    fn bounded(&self, result: Result<usize, PollError>, max: usize) -> usize {
        if self.open.is_some() {
            assert_eq!(result, Err(PollError::SessionOpen));
        }
        match result {
            Ok(n) => {
                assert!(n <= max && n < self.kernel.slots() as usize);
                if let Some(expected) = &self.expected {
                    assert_eq!(n, max.min(expected.len()));
                }
                n
            }
            Err(error) => {
                assert!(self.open.is_some() || self.expected.is_none(), "{error}");
                0
            }
        }
    }

    fn compare(&mut self, seen: &[WorkCompletion]) {
        let Some(expected) = &mut self.expected else { return };
        for (wc, bytes) in seen.iter().zip(expected.drain(..seen.len())) {
            check(wc, &bytes);
        }
    }

    /// Handles a step of an open poll. If it has reached a completion, checks it.
    fn visit(&mut self, result: Result<(), PollError>, number: usize) -> bool {
        let current = self.queue.current().map(|c| read_all(&c));
        if let Some(expected) = &self.expected {
            let there = expected.get(number);
            assert_eq!(result, if there.is_some() { Ok(()) } else { Err(PollError::Empty) });
            if let Some(bytes) = there {
                check(&current.expect("a current completion of the poll"), bytes);
            }
        }
        result.is_ok()
    }
}
