// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives, of a QP or an SRQ, by batches and lists, against a queue model.
//!
//! Checked: as for sends; and in ERR, and only there, every publication requests a flush from the kernel.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the simulated kernel accesses no memory, and lists live as long as the call.

use arbitrary::Arbitrary;
use core::ptr::null;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{PostError, RecvBatch as _, RecvQueue as _};
use uverbs_core::wr::{RecvWr, Sge};
use uverbs_fuzz::steps::{End, Entry, MAX_STEPS, expected_sges, sges};
use uverbs_rxe::testing::{DecodedRecv, FakeBell, KernelSide, decode_recv, recv_queue, ring};
use uverbs_rxe::{QpShared, RecvQueue};

#[derive(Arbitrary, Debug)]
struct Program {
    shared: bool,
    log2_slots: u8,
    max_sge: u8,
    dirt: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Batch { wrs: Vec<(u64, Vec<Entry>)>, eat: bool, state: Option<u8>, end: End },
    Post(u64, Vec<Entry>),
    List(Vec<Node>),
    NullList,
    Consume(u8),
    State(u8),
    Bell(bool),
}

/// A node of a C list.
#[derive(Arbitrary, Debug)]
struct Node {
    wr_id: u64,
    entries: Vec<Entry>,
    /// An invalid number of entries, which must be refused before the entries are read.
    num_sge: Option<i32>,
    null_sges: bool,
}

struct World {
    max_sge: u32,
    queue: RecvQueue<FakeBell>,
    kernel: KernelSide,
    bell: FakeBell,
    /// The state of the QP; an SRQ has none.
    state: Option<Arc<QpShared>>,
    ring: VecDeque<DecodedRecv>,
    published: u32,
    flushes: u32,
    resets: u32,
    bell_fails: bool,
}

fuzz_target!(|program: Program| {
    let (slots, max_sge) = (1 << (program.log2_slots % 5), u32::from(program.max_sge % 9));
    let (queue, kernel, bell, state) = if program.shared {
        let (ring, kernel) =
            ring((40 + 16 * max_sge).next_power_of_two().ilog2(), slots, 16 * max_sge as usize);
        let bell = FakeBell::default();
        let queue = RecvQueue::new_shared(ring, max_sge, bell.clone()).expect("a well-formed ring");
        (queue, kernel, bell, None)
    } else {
        let (queue, kernel, bell, state) = recv_queue(slots, max_sge).expect("a well-formed ring");
        (queue, kernel, bell, Some(state))
    };
    kernel.fill(program.dirt);
    let mut world = World {
        max_sge,
        queue,
        kernel,
        bell,
        state,
        ring: VecDeque::new(),
        published: 0,
        flushes: 0,
        resets: 0,
        bell_fails: false,
    };
    for step in program.steps.iter().take(MAX_STEPS) {
        world.run(step);
        assert_eq!(world.kernel.producer(), world.published, "after {step:?}");
        assert_eq!(world.bell.flushes(), world.flushes, "after {step:?}");
    }
    world.consume(u32::MAX);
});

const DOORBELL: Errno = Errno::ENODEV;

fn expected(wr_id: u64, sges: &[Sge]) -> DecodedRecv {
    let (sum, sges) = expected_sges(sges);
    DecodedRecv { wr_id, length: sum as u32, resid: sum as u32, sges, kernel_state_is_zero: true }
}

impl World {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Batch { wrs, eat, state, end } => self.batch(wrs, *eat, *state, *end),
            Step::Post(wr_id, entries) => {
                let sges = sges(entries);
                // SAFETY: the named memory is not accessed.
                let result = unsafe { self.queue.post(*wr_id, &sges) };
                if self.can_post() && self.is_right(&sges) && self.has_room(0) {
                    assert_eq!(result, self.publish(vec![expected(*wr_id, &sges)]));
                } else {
                    assert_ne!(result.expect_err("an invalid receive"), PostError::Corrupt);
                }
            }
            Step::List(nodes) => self.list(nodes),
            Step::NullList => {
                // SAFETY: NULL is a list that may be given.
                let bad = unsafe { self.queue.post_recv(null()) }.expect_err("NULL");
                assert_eq!((bad.error, bad.wr), (PostError::NullList, null()));
            }
            Step::Consume(n) => self.consume((*n).into()),
            Step::State(state) => self.set_state(*state),
            Step::Bell(fails) => {
                self.bell_fails = *fails;
                self.bell.fail(fails.then_some(DOORBELL));
            }
        }
    }

    fn can_post(&self) -> bool {
        self.state.as_ref().is_none_or(|s| (1..=6).contains(&s.state().0))
    }

    fn is_right(&self, sges: &[Sge]) -> bool {
        sges.len() <= self.max_sge as usize && expected_sges(sges).0 < 1 << 31
    }

    fn has_room(&self, written: usize) -> bool {
        self.ring.len() + written < self.kernel.slots() as usize - 1
    }

    /// Consumes WQEs as the kernel does, and compares them.
    fn consume(&mut self, n: u32) {
        for _ in 0..n {
            let got = self.kernel.consume().map(|bytes| decode_recv(&bytes));
            let expected = self.ring.pop_front();
            assert_eq!(got, expected);
            if expected.is_none() {
                break;
            }
        }
    }

    fn set_state(&mut self, state: u8) {
        let Some(shared) = &self.state else { return };
        let state = QpState(u32::from(state % 9));
        shared.set_state(state);
        if state == QpState::RESET {
            // The kernel drops unused WQEs.
            self.resets += 1;
            self.ring.clear();
            self.kernel.set_consumer(self.kernel.producer());
        }
    }

    /// Adds WQEs to the model. Returns the expected result of the post.
    fn publish(&mut self, wrs: Vec<DecodedRecv>) -> Result<(), PostError> {
        if wrs.is_empty() {
            return Ok(());
        }
        self.published = (self.published + wrs.len() as u32) & (self.kernel.slots() - 1);
        self.ring.extend(wrs);
        if self.state.as_ref().is_some_and(|s| s.state() == QpState::ERR) {
            self.flushes += 1;
            if self.bell_fails {
                return Err(PostError::Doorbell(DOORBELL));
            }
        }
        Ok(())
    }

    fn batch(&mut self, list: &[(u64, Vec<Entry>)], eat: bool, state: Option<u8>, end: End) {
        let resets = self.resets;
        let mut wrong = !self.can_post();
        let mut wrs = Vec::new();
        // The batch borrows only the queue, because the model needs the other fields at the same time.
        let spare = recv_queue(1, 0).expect("a queue of no entries").0;
        let mut queue = core::mem::replace(&mut self.queue, spare);
        let mut batch = queue.batch();
        for (wr_id, entries) in list.iter().take(20) {
            let sges = sges(entries);
            // SAFETY: the named memory is not accessed.
            unsafe { batch.push(*wr_id, &sges) };
            wrong |= !self.is_right(&sges) || !self.has_room(wrs.len());
            if !wrong {
                wrs.push(expected(*wr_id, &sges));
            }
            if eat {
                self.consume(1);
            }
        }
        if let Some(state) = state {
            self.set_state(state);
        }
        match end {
            End::Complete => {
                let result = batch.complete();
                if wrong || !self.can_post() || resets != self.resets {
                    assert_ne!(result.expect_err("a batch with an invalid receive"), PostError::Corrupt);
                } else {
                    assert_eq!(result, self.publish(wrs));
                }
            }
            End::Abort => batch.abort(),
            End::Drop => drop(batch),
            End::Forget => {
                let _ = core::mem::ManuallyDrop::new(batch);
            }
        }
        self.queue = queue;
    }

    fn list(&mut self, nodes: &[Node]) {
        let nodes = &nodes[..nodes.len().min(20)];
        let entries: Vec<Vec<Sge>> = nodes.iter().map(|n| sges(&n.entries)).collect();
        // Any other number would be a list that is longer than its memory.
        let num = |n: &Node| n.num_sge.filter(|num| *num < 0 || num.unsigned_abs() > self.max_sge);
        let mut list: Vec<RecvWr> = (nodes.iter().zip(&entries))
            .map(|(n, sges)| RecvWr {
                sg_list: if n.null_sges { null() } else { sges.as_ptr() },
                num_sge: num(n).unwrap_or(sges.len() as i32),
                ..RecvWr::new(n.wr_id)
            })
            .collect();
        for i in (1..list.len()).rev() {
            let next = &raw const list[i];
            list[i - 1].next = next;
        }
        let Some(first) = list.first() else { return };
        // SAFETY: the list and its entries are alive.
        let result = unsafe { self.queue.post_recv(first) };

        let mut wrs = Vec::new();
        let mut bad = (!self.can_post()).then_some(0);
        for (i, (node, sges)) in nodes.iter().zip(&entries).enumerate() {
            if bad.is_some() {
                break;
            }
            let counted = num(node).is_none() && (sges.is_empty() || !node.null_sges);
            if counted && self.is_right(sges) && self.has_room(wrs.len()) {
                wrs.push(expected(node.wr_id, sges));
            } else {
                bad = Some(i);
            }
        }
        let bad = bad.map(|i| &raw const list[i]);
        match (self.publish(wrs), result) {
            (Ok(()), result) => assert_eq!(result.err().map(|e| e.wr), bad),
            (Err(doorbell), result) => {
                let result = result.expect_err("the flush fails");
                assert_eq!((result.error, result.wr), (doorbell, bad.unwrap_or(null())));
            }
        }
    }
}
