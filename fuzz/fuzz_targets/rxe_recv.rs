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
use uverbs_core::attr::QpState;
use uverbs_core::provider::{PostError, RecvBatch as _, RecvQueue as _};
use uverbs_core::wr::Sge;
use uverbs_fuzz::end_batch;
use uverbs_fuzz::model::Model;
use uverbs_fuzz::steps::{End, Entry, MAX_STEPS, expected_sges, sges};
use uverbs_rxe::RecvQueue;
use uverbs_rxe::testing::{DecodedRecv, FakeBell, decode_recv, recv_queue, ring};
use uverbs_testkit::recv_nodes;

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
    model: Model<DecodedRecv>,
}

fuzz_target!(|program: Program| {
    let (slots, max_sge) = (1 << (program.log2_slots % 5), u32::from(program.max_sge % 9));
    let (queue, kernel, bell, qp) = if program.shared {
        let (ring, kernel) =
            ring((40 + 16 * max_sge).next_power_of_two().ilog2(), slots, 16 * max_sge as usize);
        let bell = FakeBell::default();
        let queue = RecvQueue::new_shared(ring, max_sge, bell.clone()).expect("a well-formed ring");
        (queue, kernel, bell, None)
    } else {
        let (queue, kernel, bell, qp) = recv_queue(slots, max_sge).expect("a well-formed ring");
        (queue, kernel, bell, Some(qp))
    };
    let mut world = World { max_sge, queue, model: Model::new(kernel, bell, qp, program.dirt) };
    for step in program.steps.iter().take(MAX_STEPS) {
        world.run(step);
        world.model.check(FakeBell::flushes, step);
    }
    world.consume(u32::MAX);
});

fn expected(wr_id: u64, sges: &[Sge]) -> DecodedRecv {
    let (sum, sges) = expected_sges(sges);
    DecodedRecv { wr_id, length: sum as u32, resid: sum as u32, sges, kernel_state_is_zero: true }
}

fn is_right(max_sge: u32, sges: &[Sge]) -> bool {
    sges.len() <= max_sge as usize && expected_sges(sges).0 < 1 << 31
}

impl World {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Batch { wrs, eat, state, end } => self.batch(wrs, *eat, *state, *end),
            Step::Post(wr_id, entries) => {
                let sges = sges(entries);
                // SAFETY: the named memory is not accessed.
                let result = unsafe { self.queue.post(*wr_id, &sges) };
                if self.can_post() && is_right(self.max_sge, &sges) && self.model.has_room(0) {
                    let flushes = self.flushes();
                    assert_eq!(result, self.model.publish(vec![expected(*wr_id, &sges)], flushes));
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
            Step::State(state) => self.model.set_state(*state),
            Step::Bell(fails) => self.model.fail_doorbells(*fails),
        }
    }

    fn can_post(&self) -> bool {
        self.model.state().is_none_or(|state| (1..=6).contains(&state.0))
    }

    /// In ERR, and only there, a post requests a flush.
    fn flushes(&self) -> bool {
        self.model.state() == Some(QpState::ERR)
    }

    fn consume(&mut self, n: u32) {
        self.model.consume(n, |bytes, _| decode_recv(bytes));
    }

    fn batch(&mut self, list: &[(u64, Vec<Entry>)], eat: bool, state: Option<u8>, end: End) {
        let resets = self.model.resets;
        let mut wrong = !self.can_post();
        let mut wrs = Vec::new();
        let max_sge = self.max_sge;
        let mut batch = self.queue.batch();
        for (wr_id, entries) in list.iter().take(20) {
            let sges = sges(entries);
            // SAFETY: the named memory is not accessed.
            unsafe { batch.push(*wr_id, &sges) };
            wrong |= !is_right(max_sge, &sges) || !self.model.has_room(wrs.len());
            if !wrong {
                wrs.push(expected(*wr_id, &sges));
            }
            if eat {
                self.model.consume(1, |bytes, _| decode_recv(bytes));
            }
        }
        if let Some(state) = state {
            self.model.set_state(state);
        }
        let Some(result) = end_batch!(batch, end) else { return };
        if wrong || !self.can_post() || resets != self.model.resets {
            assert_ne!(result.expect_err("a batch with an invalid receive"), PostError::Corrupt);
        } else {
            let flushes = self.flushes();
            assert_eq!(result, self.model.publish(wrs, flushes));
        }
    }

    fn list(&mut self, nodes: &[Node]) {
        let nodes = &nodes[..nodes.len().min(20)];
        let entries: Vec<Vec<Sge>> = nodes.iter().map(|n| sges(&n.entries)).collect();
        // Any other number would be a list that is longer than its memory.
        let max_sge = self.max_sge;
        let num = |n: &Node| n.num_sge.filter(|num| *num < 0 || num.unsigned_abs() > max_sge);
        let recvs: Vec<_> = nodes.iter().zip(&entries).map(|(n, sges)| (n.wr_id, &sges[..])).collect();
        let mut list = recv_nodes(&recvs);
        for (wr, node) in list.iter_mut().zip(nodes) {
            wr.num_sge = num(node).unwrap_or(wr.num_sge);
            if node.null_sges {
                wr.sg_list = null();
            }
        }
        let Some(first) = list.first() else { return };
        // SAFETY: the list and its entries are alive.
        let result = unsafe { self.queue.post_recv(first) };
        let (closed, flushes) = (!self.can_post(), self.flushes());
        self.model.publish_list(&list, result, closed, flushes, |i| {
            let (node, sges) = (&nodes[i], &entries[i]);
            let is_counted = num(node).is_none() && (sges.is_empty() || !node.null_sges);
            (is_counted && is_right(max_sge, sges)).then(|| expected(node.wr_id, sges))
        });
    }
}
