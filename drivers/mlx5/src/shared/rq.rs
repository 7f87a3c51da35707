// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a receive queue that its poster and the pollers of its completions share.

use crate::memory::dbrec::DbRec;
use crate::memory::{StrideRing, Table};
use uverbs_core::sync::LockError;
use uverbs_core::sync::barrier::to_device;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
use {std::sync::MutexGuard, uverbs_core::sync::ProcessMutex as Mutex};

/// The shared part of a receive queue.
#[derive(Debug)]
pub struct RqShared {
    /// The WQEs.
    pub ring: StrideRing,
    pub(crate) wr_id: Table<AtomicU64>,
    /// Not 0 for a receive that completed before an earlier one.
    early: Table<AtomicU8>,
    /// A [`Progress`].
    progress: AtomicU64,
    /// [`Progress::next_bits`]
    next_bits: u64,
    /// The number of receives that were posted and are held back until RTR (raw packet QPs).
    held: Mutex<Option<u64>>,
    published: PosterLine,
}

/// The completed receives, in one word, so that one compare finds whether a completion is the next one in order.
#[derive(Clone, Copy, Debug)]
struct Progress(u64);

impl Progress {
    fn new(tail: u32, early: u32) -> Self {
        Self(u64::from(early) << 32 | u64::from(tail))
    }

    /// The number of receives that completed without a gap, modulo 2^32.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn tail(self) -> u32 {
        self.0 as u32
    }

    /// The number of receives that completed after the gap.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn early(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The mask with which [`is_next`](Self::is_next) compares, for a queue whose indices have the mask `mask`.
    fn next_bits(mask: u32) -> u64 {
        u64::from(u32::MAX) << 32 | u64::from(mask)
    }

    /// Whether the receive at `index` is the next one and there is no gap.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_next(self, index: u32, next_bits: u64) -> bool {
        (self.0 ^ u64::from(index)) & next_bits == 0
    }
}

/// The number of published receives, modulo 2^32: the poster's own copy of the doorbell record, which the device could
/// change. In a cache line that no poller writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PosterLine(AtomicU32);

impl RqShared {
    /// An empty queue.
    #[must_use]
    pub fn new(ring: StrideRing) -> Self {
        let count = ring.mask() + 1;
        Self {
            ring,
            wr_id: Table::new(count),
            early: Table::new(count),
            progress: AtomicU64::new(0),
            next_bits: Progress::next_bits(count - 1),
            held: Mutex::new(None),
            published: PosterLine::default(),
        }
    }

    /// To be called before the doorbell record is written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn set_published(&self, head: u64) {
        self.published.0.store(head as u32, Ordering::Relaxed);
    }

    /// Whether the receive at `wqe_counter` was published and has not completed. For the poller of its CQ.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        // Relaxed: the poller has read an entry of the device before, and the poster stored this before it published.
        let published = self.published.0.load(Ordering::Relaxed);
        let progress = self.progress();
        let (at, tail) = (u32::from(wqe_counter), progress.tail());
        let there = published.wrapping_sub(tail);
        there <= self.ring.mask() + 1
            && at.wrapping_sub(tail) & self.ring.mask() < there
            && (progress.early() == 0 || self.early.get(at).load(Ordering::Relaxed) == 0)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn progress(&self) -> Progress {
        Progress(self.progress.load(Ordering::Relaxed))
    }

    /// Retires the receive at `wqe_counter` and returns its `wr_id`. For the poller of its CQ, one at a time.
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        self.retire_next(wqe_counter).unwrap_or_else(|| {
            let at = u32::from(wqe_counter);
            let wr_id = self.wr_id.get(at).load(Ordering::Relaxed);
            self.retire_early(at, self.progress());
            wr_id
        })
    }

    /// As [`retire`](Self::retire) if the receive is the next one in order; otherwise `None`, and nothing changes.
    // codegen: live
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn retire_next(&self, wqe_counter: u16) -> Option<u64> {
        let at = u32::from(wqe_counter);
        let progress = self.progress();
        if !progress.is_next(at, self.next_bits) {
            return None;
        }
        let wr_id = self.wr_id.get(at).load(Ordering::Relaxed);
        let next = Progress::new(progress.tail().wrapping_add(1), 0);
        // Release: pairs with `tail`, so the poster reuses the element after this load.
        self.progress.store(next.0, Ordering::Release);
        Some(wr_id)
    }

    /// Whether the receive at `wqe_counter` is the next one in order and was published. For the poller of its CQ.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_next_outstanding(&self, wqe_counter: u16) -> bool {
        // Relaxed: the poller has read an entry of the device before, and the poster stored this before it published.
        let published = self.published.0.load(Ordering::Relaxed);
        let progress = self.progress();
        progress.is_next(wqe_counter.into(), self.next_bits)
            && published.wrapping_sub(progress.tail()).wrapping_sub(1) <= self.ring.mask()
    }

    /// Retires a receive out of order, and moves the tail past all receives that completed without a gap. An element is
    /// reused only when the tail has passed it.
    #[inline(never)]
    fn retire_early(&self, at: u32, progress: Progress) {
        let (mut tail, mut count) = (progress.tail(), progress.early());
        let done = self.early.get(at);
        if done.load(Ordering::Relaxed) == 0 {
            done.store(1, Ordering::Relaxed);
            count += 1;
        }
        while count != 0 && self.early.get(tail).load(Ordering::Relaxed) != 0 {
            self.early.get(tail).store(0, Ordering::Relaxed);
            (tail, count) = (tail.wrapping_add(1), count - 1);
        }
        self.progress.store(Progress::new(tail, count).0, Ordering::Release);
    }

    /// The number of receives that completed without a gap, modulo 2^32. A faulty device can cause any value.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        Progress(self.progress.load(Ordering::Acquire)).tail()
    }

    /// The number of receives of a raw packet QP that are posted and not published before RTR, if any. The poster takes the
    /// lock before it enters the queue.
    ///
    /// # Errors
    /// [`LockError::Forked`] in a child of fork(2), if a thread of the parent had the lock.
    pub(crate) fn held(&self) -> Result<MutexGuard<'_, Option<u64>>, LockError> {
        #[cfg(loom)]
        let held = Ok(self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        #[cfg(not(loom))]
        let held = self.held.lock();
        held
    }

    /// Publishes the receives that were held back, unless the poster has done so. To be called after the new state was set,
    /// so that the poster holds no more back.
    pub fn publish_held(&self, record: &DbRec) {
        // In a child of fork(2) nothing is published: the queue is the parent's.
        if let Ok(mut held) = self.held()
            && let Some(head) = held.take()
        {
            self.set_published(head);
            to_device();
            record.set_recv(head as u32 & 0xffff);
        }
    }

    pub(crate) fn reset(&self) {
        self.early.iter().for_each(|done| done.store(0, Ordering::Relaxed));
        if let Ok(mut held) = self.held() {
            *held = None;
        }
        self.set_published(0);
        self.progress.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::QueueBuf;

    fn rq(count: u32) -> RqShared {
        let buf = QueueBuf::new(count as usize * 64).unwrap();
        RqShared::new(StrideRing::new(buf, 0, count, 64).unwrap())
    }

    #[test]
    fn the_tail_passes_only_receives_completed_without_a_gap() {
        let rq = rq(8);
        (0..8).for_each(|i| rq.wr_id.get(i).store(100 + u64::from(i), Ordering::Relaxed));
        let step = |counter| (rq.retire(counter), rq.tail());
        assert_eq!([step(1), step(2), step(0)], [(101, 0), (102, 0), (100, 3)]);
        assert_eq!([step(3), step(5), step(4), step(6)], [(103, 4), (105, 4), (104, 6), (106, 7)]);
        // A repeated counter does not move the tail twice.
        assert_eq!([step(9), step(9), step(7), step(8)], [(101, 7), (101, 7), (107, 8), (100, 10)]);
        rq.retire(12);
        rq.reset();
        assert_eq!([step(0), step(1)], [(100, 1), (101, 2)]);
    }

    #[test]
    fn the_next_receive_is_outstanding_once_it_is_published() {
        let rq = rq(4);
        let next = |counter| (rq.is_next_outstanding(counter), rq.is_outstanding(counter));
        assert_eq!([next(0), next(1)], [(false, false); 2]);
        rq.set_published(4);
        assert_eq!([next(0), next(1), next(4)], [(true, true), (false, true), (true, true)]);
        rq.retire(1);
        assert_eq!([next(0), next(1)], [(false, true), (false, false)], "a gap");
        assert_eq!(rq.retire_next(0), None);
        [0, 2, 3].into_iter().for_each(|counter| _ = rq.retire(counter));
        assert_eq!(next(0), (false, false));
        rq.set_published(5);
        assert_eq!(next(0), (true, true));
        // A faulty device can make the tail pass the published count.
        [0, 1].into_iter().for_each(|counter| _ = rq.retire(counter));
        assert_eq!(next(2), (false, false));
    }

    #[test]
    fn completions_of_wrong_receives_do_not_loop_without_end() {
        let rq = rq(4);
        for counter in (0..2000_u16).map(|i| i.wrapping_mul(40503)) {
            rq.retire(counter);
        }
        assert!(rq.tail() <= 2000);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::memory::QueueBuf;
    use loom::sync::Arc;
    use loom::thread;

    fn stride(count: u32) -> StrideRing {
        StrideRing::new(QueueBuf::new(4096).unwrap(), 0, count, 64).unwrap()
    }

    /// The poster reuses an element only after the poller has read its `wr_id`.
    #[test]
    fn receive_entries_are_not_reused_before_they_are_read() {
        loom::model(|| {
            let rq = Arc::new(RqShared::new(stride(1)));
            rq.wr_id.get(0).store(1, Ordering::Relaxed);
            let poller = Arc::clone(&rq);
            let t = thread::spawn(move || poller.retire(0));
            if rq.tail() == 1 {
                rq.wr_id.get(1).store(2, Ordering::Relaxed);
            }
            assert_eq!(t.join().unwrap(), 1);
        });
    }
}
