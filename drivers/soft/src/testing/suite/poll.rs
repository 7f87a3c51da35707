// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polls.
#![expect(missing_docs, reason = "each test has its name")]

use super::Bench;
use crate::format::{CqRing as _, Format};
use crate::testing::completion_queue;
use crate::{CompletionQueue, CqState};
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::thread;
use uverbs_core::provider::{Completion as _, CompletionQueue as _, PollError};
use uverbs_core::wc::WorkCompletion;

/// A completion queue.
struct Polls<B: Bench> {
    queue: CompletionQueue<B::Format, ()>,
    kernel: B::Kernel,
}

impl<B: Bench> Polls<B> {
    fn new(slots: u32) -> Self {
        let (ring, kernel) = B::cq_ring(slots);
        Self { queue: completion_queue(ring, ()).unwrap(), kernel }
    }

    /// Writes completions with these IDs, of the QPs with their numbers divided by 10.
    fn complete(&self, ids: &[u64]) {
        for id in ids {
            assert!(B::complete(&self.kernel, *id, *id as u32 / 10));
        }
    }

    fn is_full(&self) -> bool {
        !B::complete(&self.kernel, 999, 99)
    }

    fn ids(&mut self, max: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        let n = self.queue.poll_each(max, |c| ids.push(c.wr_id())).unwrap();
        assert_eq!(n, ids.len());
        ids
    }
}

pub fn a_poll_takes_at_most_the_requested_and_available_completions<B: Bench>() {
    let mut t = Polls::<B>::new(8);
    let mut wc = [WorkCompletion::default(); 5];
    let (mut made, mut seen) = (0_u64, 0_u64);
    for lap in 0..5000_u64 {
        for _ in 0..lap % 6 {
            made += u64::from(B::complete(&t.kernel, made, 1));
        }
        assert_eq!(t.queue.is_surely_empty(), made == seen);
        let max = (lap % 5) as usize;
        let n = t.queue.poll_cq(&mut wc[..max]).unwrap();
        assert_eq!(n as u64, (made - seen).min(max as u64));
        for c in &wc[..n] {
            assert_eq!(c.wr_id, seen);
            seen += 1;
        }
    }
    assert!(seen > 5_000);
}

pub fn a_full_queue_has_room_again_when_it_was_polled<B: Bench>() {
    let mut t = Polls::<B>::new(8);
    let capacity = u64::from(t.queue.cqe());
    for lap in 0..20 {
        let ids: Vec<u64> = (lap..lap + capacity).collect();
        t.complete(&ids);
        assert!(t.is_full());
        assert_eq!(t.ids(99), ids);
        assert_eq!(t.ids(99), []);
    }
}

pub fn a_panic_in_the_callback_counts_its_completion_as_polled<B: Bench>() {
    let mut t = Polls::<B>::new(8);
    t.complete(&[0, 1, 2, 3, 4]);
    let result =
        catch_unwind(AssertUnwindSafe(|| t.queue.poll_each(5, |c| assert_ne!(c.wr_id(), 2, "on purpose"))));
    assert!(result.is_err());
    assert_eq!(t.ids(5), [3, 4]);
    // No control call waits.
    t.queue.shared().stopped(|state| state.remove(9, drop));
}

pub fn an_extended_poll_goes_on_with_completions_that_arrive<B: Bench>() {
    let mut t = Polls::<B>::new(4);
    assert_eq!(t.queue.start_poll(), Err(PollError::Empty));
    assert_eq!(t.queue.next_poll(), Err(PollError::NoSession));
    assert!(t.queue.current().is_none());
    t.queue.end_poll();
    t.complete(&[0]);
    t.queue.start_poll().unwrap();
    assert_eq!(t.queue.start_poll(), Err(PollError::SessionOpen));
    assert_eq!(t.queue.poll_each(1, |_| ()), Err(PollError::SessionOpen));
    assert!(!t.queue.is_surely_empty(), "a poll would fail");
    assert_eq!(t.queue.next_poll(), Err(PollError::Empty));
    assert_eq!(t.queue.current().unwrap().wr_id(), 0, "the poll has not moved");
    // A program that posts in an open poll has room for as many completions as the queue has.
    let ids: Vec<u64> = (1..=u64::from(t.queue.cqe())).collect();
    t.complete(&ids);
    for id in ids {
        t.queue.next_poll().unwrap();
        assert_eq!(t.queue.current().unwrap().wr_id(), id);
    }
    t.queue.end_poll();
    assert!(t.queue.current().is_none());
    assert_eq!(t.queue.last().unwrap().wr_id(), u64::from(t.queue.cqe()));
    assert_eq!(t.ids(9), []);
}

pub fn completions_of_a_destroyed_qp_are_removed_and_their_slots_returned<B: Bench>() {
    for start in 0..8 {
        let mut t = Polls::<B>::new(8);
        for _ in 0..start {
            t.complete(&[90]);
            assert_eq!(t.ids(9), [90]);
        }
        t.complete(&[10, 20, 11, 12, 21, 30, 13]);
        let rest = t.queue.cqe() as usize - 7;
        t.complete(&vec![40; rest]);
        assert!(t.is_full());
        let mut removed = Vec::new();
        t.queue.shared().stopped(|state| state.remove(1, |wr_id| removed.push(wr_id)));
        assert_eq!(removed, [13, 12, 11, 10]);
        t.complete(&[14, 31, 22, 32]);
        assert!(t.is_full(), "the slots of four completions were returned");
        t.queue.shared().stopped(|state| state.remove(2, drop));
        let want = [&[30][..], &vec![40; rest], &[14, 31, 32]].concat();
        assert_eq!(t.ids(9), want);
        // A second removal finds nothing.
        t.queue.shared().stopped(|state| state.remove(3, drop));
        assert_eq!(t.ids(9), []);
    }
}

pub fn a_qp_may_be_destroyed_during_a_poll<B: Bench>() {
    let mut t = Polls::<B>::new(16);
    t.complete(&[10, 20, 11, 21, 12]);
    let (shared, mut ids) = (Arc::clone(t.queue.shared()), Vec::new());
    let n = t.queue.poll_each(16, |c| {
        ids.push(c.wr_id());
        if ids.len() == 1 {
            assert!(B::complete(&t.kernel, 22, 2));
            // On another thread and on this one.
            thread::scope(|s| s.spawn(|| shared.stopped(|state| state.remove(1, drop))).join().unwrap());
            shared.stopped(|state| state.remove(1, drop));
        }
    });
    assert_eq!((n, &ids[..]), (Ok(4), &[10, 20, 21, 22][..]));

    t.complete(&[10, 11, 20, 12]);
    t.queue.start_poll().unwrap();
    shared.stopped(|state| state.remove(1, drop));
    assert_eq!(t.queue.current().unwrap().wr_id(), 10, "the current completion stays readable");
    t.queue.next_poll().unwrap();
    assert_eq!(t.queue.current().unwrap().wr_id(), 20);
    assert_eq!(t.queue.next_poll(), Err(PollError::Empty));
    t.queue.end_poll();
    assert_eq!(t.ids(9), []);
}

pub fn a_lost_ring_is_an_error_and_not_an_empty_queue<B: Bench>() {
    let mut t = Polls::<B>::new(4);
    t.complete(&[1]);
    t.queue.replace(CqState::lose_ring).unwrap();
    assert_eq!(t.queue.poll_each(1, |_| ()), Err(PollError::Corrupt));
    assert_eq!(t.queue.start_poll(), Err(PollError::Corrupt));
    t.queue.shared().stopped(|state| state.remove(0, |_| panic!("a completion of a lost ring")));
    let (found, kernel) = B::cq_ring(8);
    t.queue.replace(|state| state.replace_ring(found)).unwrap().unwrap();
    let capacity = <B::Format as Format>::CqRing::capacity(&B::cq_ring(8).0);
    t.kernel = kernel;
    assert_eq!((t.queue.cqe(), t.ids(9)), (capacity, vec![]));
    t.complete(&[7]);
    assert_eq!(t.ids(9), [7]);
}

/// What a completion names is taken while the reset or the destruction of its QP waits. `check` is `uverbs_testkit::check_claims`.
pub fn completions_are_claimed_while_control_calls_wait<B: Bench>(
    check: impl FnOnce(&mut CompletionQueue<B::Format, ()>, usize, &(dyn Fn() + Sync)),
) {
    let mut t = Polls::<B>::new(16);
    t.complete(&[10, 20, 11]);
    let shared = Arc::clone(t.queue.shared());
    check(&mut t.queue, 3, &|| {
        shared.stopped(|state| state.remove(9, drop));
    });
}
