// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts during control calls: the control calls come between the steps of a post.
#![cfg_attr(not(loom), expect(unsafe_code))]
// UNSAFETY: posts receives without entries, or with addresses that no device writes.

use super::*;
use crate::memory::dbrec::{DbRec, DbRecPages};
use crate::memory::{QueueBuf, StrideRing};
use crate::shared::{QpAccess, RqShared, SrqShared};
use uverbs_core::attr::QpState;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::sync::ControlBarrier;

/// The state that `modify_qp` sets while the kernel resets the QP.
const BETWEEN: QpState = QpState::UNKNOWN;

fn config(qp_type: QpType) -> RecvConfig {
    RecvConfig { qp_type, max_recv_wr: 4, max_recv_sge: 1, max_msg_sz: 1 << 30 }
}

/// A QP in INIT whose receive queue has 4 elements, and its doorbell record.
fn qp(barrier: ControlBarrier) -> (Arc<QpShared>, Arc<DbRec>) {
    let ring = StrideRing::new(QueueBuf::new(4096).unwrap(), 0, 4, 16).unwrap();
    let rq = Arc::new(RqShared::new(ring));
    let qp = QpShared::new(QpAccess::new(barrier).unwrap(), 1, 1, None, Some(rq), None);
    qp.set_state(QpState::INIT);
    (Arc::new(qp), Arc::new(DbRecPages::default().alloc().unwrap()))
}

fn posted(record: &Arc<DbRec>) -> u32 {
    record.recv_word().get()
}

/// Performs the steps of `modify_qp` to RESET.
#[cfg(not(loom))]
fn reset(qp: &QpShared, record: &DbRec) {
    qp.set_state(BETWEEN);
    record.set_recv(0);
    qp.set_state(QpState::RESET);
}

#[cfg(not(loom))]
mod real {
    use super::*;
    use crate::rq::close_srq;
    use crate::rq::face::Produce as _;
    use crate::rq::srq::SharedRecvQueue;
    use crate::wqe::recv::EntryTest;
    use crate::wqe::{Sge, WireEntry};
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use core::time::Duration;
    use uverbs_core::provider::{PostError, RecvBatch as _, RecvQueue as _};

    /// An entry that calls a function when it is converted, which happens during its post.
    #[derive(Clone, Copy)]
    struct During<'a>(&'a dyn Fn());

    impl WireEntry for During<'_> {
        fn wire(self) -> Result<Sge, PostError> {
            (self.0)();
            Ok(Sge::from_host(0x1000, 64, 7))
        }

        fn ordinary(self, _: EntryTest) -> Option<[u64; 2]> {
            self.wire().ok().map(|sge| sge.words)
        }
    }

    fn srq(slots: u32) -> (SharedRecvQueue, Arc<DbRec>) {
        let (queue, _, record) = srq_parts(slots);
        (queue, record)
    }

    fn srq_with_access(slots: u32) -> (SharedRecvQueue, QueueAccess) {
        let (queue, access, _) = srq_parts(slots);
        (queue, access)
    }

    fn srq_parts(slots: u32) -> (SharedRecvQueue, QueueAccess, Arc<DbRec>) {
        let ring = StrideRing::new(QueueBuf::new(slots as usize * 32).unwrap(), 0, slots, 32).unwrap();
        let srq = Arc::new(SrqShared::new(9, ring, slots).unwrap());
        let record = Arc::new(DbRecPages::default().alloc().unwrap());
        let access = QueueAccess::new(1, ControlBarrier::register()).unwrap();
        let queue = SharedRecvQueue::new(srq, access.clone(), 1, 1 << 30, record.recv_word());
        (queue, access, record)
    }

    fn post_shared(queue: &mut SharedRecvQueue) -> Result<(), PostError> {
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { queue.post(7, &[]) }
    }

    /// As in libmlx5, the counter has 16 bits and the upper half of the doorbell record is 0.
    #[test]
    fn the_record_of_an_srq_has_16_bits() {
        let (mut queue, record) = srq(8);
        let start = 0xfffd;
        queue.start_at(start);
        for n in start + 1..start + 8 {
            let element = queue.indices().0 as u16;
            post_shared(&mut queue).unwrap();
            assert_eq!(posted(&record), n as u32 & 0xffff);
            assert!(queue.shared().is_outstanding(element));
            queue.shared().retire(element);
            assert!(!queue.shared().is_outstanding(element));
        }
    }

    /// A device reports elements that are in the list already, or reports one twice; no element is linked a second time.
    #[test]
    fn completions_of_wrong_elements_do_not_corrupt_the_list() {
        let (mut queue, _) = srq(8);
        let shared = Arc::clone(queue.shared());
        (0..8).for_each(|i| _ = shared.retire(i));
        assert_eq!((0..9).filter(|_| post_shared(&mut queue).is_ok()).count(), 7 + 2);
        let mut visits = [0; 8];
        let mut element = queue.indices().0;
        while element != queue.indices().1 {
            visits[element as usize] += 1;
            element = u32::from(shared.ring.element(element)[0].load(Relaxed).to_ne_bytes()[3]);
        }
        assert!(visits.iter().all(|n| *n <= 1), "{visits:?}");
    }

    /// The process forks while a batch is open.
    #[test]
    fn a_child_does_not_publish_the_batch_of_its_parent() {
        let (mut queue, record) = srq(8);
        let mut batch = queue.batch();
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { batch.push(1, &[]) };
        // SAFETY: the child only completes the batch, which does not allocate, and calls `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let refused = batch.complete() == Err(PostError::Forked);
                // SAFETY: `_exit` ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!refused)) }
            }
            -1 => panic!("fork failed"),
            child => {
                let mut status = 0;
                // SAFETY: `child` is a child of this process, and `status` is a valid local.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child posted");
            }
        }
        assert_eq!((batch.complete(), posted(&record)), (Ok(()), 1));
    }

    /// The queue is full, has room, or has a batch when the device is removed; and the removal comes during a post.
    #[test]
    fn an_srq_of_a_removed_device_refuses_every_post() {
        for posted in 0..=7 {
            let (mut queue, access) = srq_with_access(8);
            (0..posted).for_each(|_| post_shared(&mut queue).unwrap());
            let shared = Arc::clone(queue.shared());
            let mut batch = queue.batch();
            // SAFETY: the receive has no entries, so it names no memory.
            unsafe { batch.push(1, &[]) };
            close_srq(&access);
            let refused = batch.complete();
            assert!(refused == Err(PostError::Removed) || posted == 7, "{refused:?}");
            assert_eq!(queue.batch().complete(), Err(PostError::Removed), "an empty batch");
            // Receives that complete later make no room.
            (0..8).for_each(|element| _ = shared.retire(element));
            for _ in 0..20 {
                assert_eq!(post_shared(&mut queue), Err(PostError::Removed), "{posted} posted before");
            }
            close_srq(&access);
            assert_eq!(post_shared(&mut queue), Err(PostError::Removed));
            assert_eq!(access.limit().load(Relaxed), 0);
        }
        let (mut queue, access) = srq_with_access(8);
        let close = || close_srq(&access);
        queue.producer.post(8, &[During(&close)]).unwrap();
        assert_eq!(post_shared(&mut queue), Err(PostError::Removed), "the post after that in progress");
    }

    /// A poster that makes room again and again, and another thread that closes the queue.
    #[test]
    fn a_poster_that_makes_room_does_not_open_a_closed_srq() {
        for round in 0..200 {
            let (mut queue, access) = srq_with_access(4);
            let is_closed = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..round * 10).for_each(|_| core::hint::spin_loop());
                    close_srq(&access);
                    is_closed.store(true, core::sync::atomic::Ordering::SeqCst);
                });
                loop {
                    let before = is_closed.load(core::sync::atomic::Ordering::SeqCst);
                    let element = queue.indices().0 as u16;
                    match post_shared(&mut queue) {
                        Ok(()) => assert!(!before, "posted after the queue was closed"),
                        Err(error) => {
                            assert_eq!(error, PostError::Removed);
                            break;
                        }
                    }
                    queue.shared().retire(element);
                }
            });
            assert_eq!(post_shared(&mut queue), Err(PostError::Removed));
        }
    }

    fn post(queue: &mut RecvQueue) -> Result<(), PostError> {
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { queue.post(7, &[]) }
    }

    /// Another thread resets the QP and brings it to INIT again during a post.
    #[test]
    fn a_reset_during_a_post_waits_for_it_and_clears_the_record() {
        let (qp, record) = qp(ControlBarrier::register());
        let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
        post(&mut queue).unwrap();
        let is_up = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let during = || {
                scope.spawn(|| {
                    reset(&qp, &record);
                    qp.set_state(QpState::INIT);
                    is_up.store(true, Relaxed);
                });
                std::thread::sleep(Duration::from_millis(50));
                assert!(!is_up.load(Relaxed), "the reset did not wait for the post");
            };
            queue.producer.post(8, &[During(&during)]).unwrap();
        });
        assert_eq!(posted(&record), 0, "receives from before the reset");
        post(&mut queue).unwrap();
        assert_eq!(posted(&record), 1);
    }

    #[test]
    fn a_batch_with_receives_from_before_a_reset_is_refused() {
        for barrier in [ControlBarrier::register(), ControlBarrier::Fence] {
            let (qp, record) = qp(barrier);
            let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
            post(&mut queue).unwrap();
            let mut batch = queue.batch();
            // SAFETY: the receive has no entries, so it names no memory.
            unsafe { batch.push(1, &[]) };
            reset(&qp, &record);
            assert_eq!(batch.complete(), Err(PostError::BadState));
            let mut batch = queue.batch();
            qp.set_state(QpState::INIT);
            // SAFETY: the receive has no entries, so it names no memory.
            unsafe { batch.push(1, &[]) };
            assert_eq!(batch.complete(), Ok(()), "a batch that was empty at the reset");
            let mut batch = queue.batch();
            // SAFETY: the receive has no entries, so it names no memory.
            unsafe { batch.push(2, &[]) };
            reset(&qp, &record);
            qp.set_state(QpState::INIT);
            // SAFETY: the receive has no entries, so it names no memory.
            unsafe { batch.push(3, &[]) };
            assert_eq!((batch.complete(), posted(&record)), (Err(PostError::BadState), 0));
            // A batch that is dropped. Forgetting it is the same, because a batch has no destructor.
            // SAFETY: the receive has no entries, so it names no memory.
            unsafe { queue.batch().push(4, &[]) };
            reset(&qp, &record);
            qp.set_state(QpState::INIT);
            assert_eq!((0..5).filter(|_| post(&mut queue).is_ok()).count(), 4, "an empty queue");
            assert_eq!(posted(&record), 4);
        }
    }

    /// If both sides must use fences, the limit stays 0, so no post enters without a fence.
    #[test]
    fn without_membarrier_the_fast_path_stays_closed() {
        let (qp, record) = qp(ControlBarrier::Fence);
        let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
        let limit = || qp.access().recv.limit().load(Relaxed);
        for n in 1..=4 {
            post(&mut queue).unwrap();
            assert_eq!((posted(&record), limit()), (n, 0));
        }
        assert_eq!(post(&mut queue), Err(PostError::QueueFull));
        qp.rq.as_ref().unwrap().retire(0);
        post(&mut queue).unwrap();
        qp.set_state(BETWEEN);
        assert_eq!((post(&mut queue), posted(&record)), (Err(PostError::BadState), 5));
    }

    #[test]
    fn a_state_change_closes_the_fast_path_for_one_post() {
        let (qp, record) = qp(ControlBarrier::register());
        let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
        let limit = || qp.access().recv.limit().load(Relaxed);
        post(&mut queue).unwrap();
        assert_eq!(limit(), 4);
        let mut batch = queue.batch();
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { batch.push(1, &[]) };
        qp.set_state(QpState::RTR);
        assert_eq!(limit(), 0);
        assert_eq!((batch.complete(), posted(&record)), (Ok(()), 2), "no reset");
        post(&mut queue).unwrap();
        assert_eq!((limit(), posted(&record)), (4, 3));
    }

    #[test]
    fn raw_packet_receives_are_not_published_before_rtr() {
        let (qp, record) = qp(ControlBarrier::register());
        let mut queue =
            RecvQueue::new(&config(QpType::RawPacket), Arc::clone(&qp), record.recv_word()).unwrap();
        let rq = qp.rq.as_ref().unwrap();
        post(&mut queue).unwrap();
        post(&mut queue).unwrap();
        assert_eq!((posted(&record), *rq.held().unwrap()), (0, Some(2)));
        qp.set_state(QpState::RTR);
        // The state is RTR, but `modify_qp` has not yet written the record: this post publishes all the WRs.
        post(&mut queue).unwrap();
        assert_eq!((posted(&record), *rq.held().unwrap()), (3, None));
        rq.publish_held(&record);
        assert_eq!(posted(&record), 3, "the record does not go back");
        reset(&qp, &record);
        qp.set_state(QpState::INIT);
        post(&mut queue).unwrap();
        qp.set_state(QpState::RTR);
        rq.publish_held(&record);
        assert_eq!((posted(&record), *rq.held().unwrap()), (1, None));
    }
}

#[cfg(loom)]
mod loom_tests {
    use super::*;
    use crate::rq::close_srq;
    use crate::rq::face::Produce as _;
    use crate::rq::srq_producer::SrqProducer;
    use crate::wqe::Sge;
    use loom::thread;
    use uverbs_core::provider::PostError;

    /// A post and a reset in two threads. After the control path has stopped the poster, nothing is published until the
    /// reset is complete; what is published later was posted after the reset. (loom does not model membarrier(2);
    /// `ControlBarrier` models it as a fence on both sides.)
    fn post_and_reset(barrier: ControlBarrier) {
        // With a bound of three preemptions this takes seconds, without a bound hours.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let (qp, record) = qp(barrier);
            let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
            queue.producer.post::<Sge>(1, &[]).unwrap();
            let poster = thread::spawn(move || {
                let _ = queue.producer.post::<Sge>(2, &[]);
                queue
            });
            qp.set_state(BETWEEN);
            record.set_recv(0);
            thread::yield_now();
            assert_eq!(posted(&record), 0, "published after the posters were stopped");
            qp.set_state(QpState::RESET);
            qp.set_state(QpState::INIT);
            let mut queue = poster.join().unwrap();
            let now = posted(&record);
            assert!(now <= 1, "receives from before the reset");
            queue.producer.post::<Sge>(3, &[]).unwrap();
            assert_eq!(posted(&record), now + 1);
        });
    }

    #[test]
    fn a_post_and_a_reset_exclude_each_other() {
        post_and_reset(ControlBarrier::Membarrier);
    }

    #[test]
    fn a_post_and_a_reset_exclude_each_other_by_fences() {
        post_and_reset(ControlBarrier::Fence);
    }

    /// Two pollers complete elements of an SRQ while its poster links them: each is linked once, after its `wr_id` was
    /// read.
    #[test]
    fn shared_elements_are_linked_after_they_are_read() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = StrideRing::new(QueueBuf::new(4096).unwrap(), 0, 4, 32).unwrap();
            let srq = Arc::new(SrqShared::new(9, ring, 4).unwrap());
            let record = Arc::new(DbRecPages::default().alloc().unwrap());
            let access = QueueAccess::new(1, ControlBarrier::Fence).unwrap();
            let mut queue = SrqProducer::new(Arc::clone(&srq), access, 1, 1 << 30, record.recv_word());
            (10..13).for_each(|wr_id| queue.post::<Sge>(wr_id, &[]).unwrap());
            let pollers = [1, 0].map(|element| {
                let srq = Arc::clone(&srq);
                thread::spawn(move || assert_eq!(srq.retire(element), 10 + u64::from(element)))
            });
            let mut more = (0..2).filter(|_| queue.post::<Sge>(99, &[]).is_ok()).count();
            pollers.into_iter().for_each(|t| t.join().unwrap());
            more += (0..4).filter(|_| queue.post::<Sge>(99, &[]).is_ok()).count();
            assert_eq!((more, posted(&record)), (2, 5));
        });
    }

    /// A post that makes room while the device is removed: when the removal is known, the queue stays closed.
    #[test]
    fn a_removed_srq_stays_closed() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = StrideRing::new(QueueBuf::new(4096).unwrap(), 0, 2, 32).unwrap();
            let srq = Arc::new(SrqShared::new(9, ring, 2).unwrap());
            let record = Arc::new(DbRecPages::default().alloc().unwrap());
            let access = QueueAccess::new(1, ControlBarrier::Fence).unwrap();
            let mut queue =
                SrqProducer::new(Arc::clone(&srq), access.clone(), 1, 1 << 30, record.recv_word());
            queue.post::<Sge>(1, &[]).unwrap();
            srq.retire(0);
            let removal = thread::spawn(move || close_srq(&access));
            // The only element has completed, so this post makes room.
            let posted = queue.post::<Sge>(2, &[]);
            assert!(matches!(posted, Ok(()) | Err(PostError::Removed)), "{posted:?}");
            removal.join().unwrap();
            srq.retire(1);
            assert_eq!(queue.post::<Sge>(3, &[]), Err(PostError::Removed));
        });
    }

    /// Receives of a raw packet QP are posted while it goes to RTR: exactly one side publishes them.
    #[test]
    fn held_receives_are_published_by_one_side() {
        loom::model(|| {
            let (qp, record) = qp(ControlBarrier::Membarrier);
            let mut queue =
                RecvQueue::new(&config(QpType::RawPacket), Arc::clone(&qp), record.recv_word()).unwrap();
            let control = {
                let (qp, record) = (Arc::clone(&qp), Arc::clone(&record));
                thread::spawn(move || {
                    qp.set_state(QpState::RTR);
                    qp.rq.as_ref().unwrap().publish_held(&record);
                })
            };
            queue.producer.post::<Sge>(1, &[]).unwrap();
            control.join().unwrap();
            assert_eq!(posted(&record), 1);
        });
    }
}
