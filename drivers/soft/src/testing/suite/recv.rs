// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of receives.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs, which is `unsafe`; the memory that they name is never accessed.
#![expect(missing_docs, reason = "each test has its name")]

use super::Bench;
use crate::{QpShared, RecvQueue};
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{PostError, RecvBatch as _, RecvQueue as _};
use uverbs_core::wr::Sge;

pub fn receives_fill_and_empty_the_ring_in_every_lap<B: Bench>() {
    let (ring, kernel) = B::recv_ring(4);
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let mut q: RecvQueue<B::Format, ()> = RecvQueue::new(ring, 2, shared, ()).unwrap();
    let capacity = u64::from(q.capacity());
    for lap in 0..3000_u64 {
        let n = lap % (capacity + 1);
        for i in 0..n {
            // SAFETY: the simulated kernel does not access the memory.
            unsafe { q.post(lap * 8 + i, &[Sge { addr: lap, length: 1, lkey: 2 }]) }.unwrap();
        }
        if n == capacity {
            // SAFETY: the receive has no entries, so it names no memory.
            assert_eq!(unsafe { q.post(0, &[]) }, Err(PostError::QueueFull));
        }
        for i in 0..n {
            assert_eq!(B::take_recv(&kernel), Some(lap * 8 + i));
        }
        assert_eq!(B::take_recv(&kernel), None);
    }
}

pub fn receives_that_the_kernel_has_not_taken_are_counted<B: Bench>() {
    let (ring, kernel) = B::recv_ring(8);
    let mut q: RecvQueue<B::Format, ()> = RecvQueue::new_shared(ring, 1, ()).unwrap();
    for lap in 0..50_u32 {
        let (none, before) = q.untaken().unwrap();
        assert_eq!(none, 0, "lap {lap}");
        let n = lap % (q.capacity() + 1);
        for id in 0..n {
            // SAFETY: a receive without entries names no memory.
            unsafe { q.post(id.into(), &[]) }.unwrap();
        }
        q.batch().abort();
        assert_eq!(q.untaken(), Some((n, before)), "posts do not change the position");
        let mut last = before;
        for taken in 1..=n {
            B::take_recv(&kernel).unwrap();
            let (left, position) = q.untaken().unwrap();
            assert!(left == n - taken && position != last, "{left}, {last} to {position}");
            last = position;
        }
    }
}

/// The shared part of a shared queue is that of a QP in RTR.
pub fn a_shared_queue_of_a_removed_device_takes_no_receives<B: Bench>() {
    for posted in 0..4 {
        let (ring, kernel) = B::recv_ring(4);
        let shared = Arc::new(QpShared::new(QpState::RTR));
        let mut q: RecvQueue<B::Format, ()> = RecvQueue::new(ring, 1, Arc::clone(&shared), ()).unwrap();
        for id in 0..posted.min(q.capacity()) {
            // SAFETY: a receive without entries names no memory.
            unsafe { q.post(id.into(), &[]) }.unwrap();
        }
        let capacity = q.capacity();
        let mut batch = q.batch();
        // SAFETY: as above.
        unsafe { batch.push(9, &[]) };
        let had_room = posted < capacity;
        shared.set_state(StateWord::REMOVED);
        assert_eq!(batch.complete(), Err(if had_room { PostError::Removed } else { PostError::QueueFull }));
        for _ in 0..8 {
            // SAFETY: as above.
            assert_eq!(unsafe { q.post(9, &[]) }, Err(PostError::Removed));
            B::take_recv(&kernel);
        }
    }
}
