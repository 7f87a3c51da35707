// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts against control calls that come between their steps.
#![cfg_attr(not(loom), expect(unsafe_code))]
// UNSAFETY: posts, of memory that no device writes.

use super::*;
use crate::memory::dbrec::{DbRec, DbRecPages};
use crate::memory::{QueueBuf, StrideRing};
use crate::qp::QpAccess;
use uverbs_core::attr::QpState;
use uverbs_core::sync::ControlBarrier;

/// What `modify_qp` makes of the state while the kernel resets the QP.
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

/// As `modify_qp` goes to RESET.
#[cfg(not(loom))]
fn reset(qp: &QpShared, record: &DbRec) {
    qp.set_state(BETWEEN);
    record.set_recv(0);
    qp.set_state(QpState::RESET);
}

#[cfg(not(loom))]
mod real {
    use super::*;
    use crate::wqe::WireEntry;
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use core::time::Duration;

    /// An entry that runs a function when it is converted, which is while it is posted.
    #[derive(Clone, Copy)]
    struct During<'a>(&'a dyn Fn());

    impl WireEntry for During<'_> {
        fn wire(self) -> Result<Sge, PostError> {
            (self.0)();
            Ok(Sge::from_host(0x1000, 64, 7))
        }
    }

    fn post(queue: &mut RecvQueue) -> Result<(), PostError> {
        // SAFETY: no memory is named.
        unsafe { queue.post(7, &[]) }
    }

    /// The thread of a post loses its CPU; another one resets the QP and brings it up again.
    #[test]
    fn a_post_across_a_reset_publishes_nothing_of_the_life_before() {
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
        assert_eq!(posted(&record), 0, "receives of the queue's last life");
        post(&mut queue).unwrap();
        assert_eq!(posted(&record), 1);
    }

    #[test]
    fn a_batch_that_is_open_across_a_reset_is_refused() {
        for barrier in [ControlBarrier::register(), ControlBarrier::Fence] {
            let (qp, record) = qp(barrier);
            let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
            post(&mut queue).unwrap();
            let mut batch = queue.batch();
            // SAFETY: no memory is named.
            unsafe { batch.push(1, &[]) };
            reset(&qp, &record);
            assert_eq!(batch.complete(), Err(PostError::BadState));
            let mut batch = queue.batch();
            qp.set_state(QpState::INIT);
            // SAFETY: no memory is named.
            unsafe { batch.push(1, &[]) };
            assert_eq!(batch.complete(), Ok(()), "one that wrote nothing before");
            let mut batch = queue.batch();
            // SAFETY: no memory is named.
            unsafe { batch.push(2, &[]) };
            reset(&qp, &record);
            qp.set_state(QpState::INIT);
            // SAFETY: no memory is named.
            unsafe { batch.push(3, &[]) };
            assert_eq!((batch.complete(), posted(&record)), (Err(PostError::BadState), 0));
            // One that ends without a word: a batch has no destructor, so dropping and forgetting it are the same.
            // SAFETY: no memory is named.
            unsafe { queue.batch().push(4, &[]) };
            reset(&qp, &record);
            qp.set_state(QpState::INIT);
            assert_eq!((0..5).filter(|_| post(&mut queue).is_ok()).count(), 4, "an empty queue");
            assert_eq!(posted(&record), 4);
        }
    }

    /// Where both sides use fences, no limit lets a post in without one.
    #[test]
    fn without_membarrier_there_is_no_short_way() {
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
    fn a_state_change_closes_the_short_way_once() {
        let (qp, record) = qp(ControlBarrier::register());
        let mut queue = RecvQueue::new(&config(QpType::Rc), Arc::clone(&qp), record.recv_word()).unwrap();
        let limit = || qp.access().recv.limit().load(Relaxed);
        post(&mut queue).unwrap();
        assert_eq!(limit(), 4);
        let mut batch = queue.batch();
        // SAFETY: no memory is named.
        unsafe { batch.push(1, &[]) };
        qp.set_state(QpState::RTR);
        assert_eq!(limit(), 0);
        assert_eq!((batch.complete(), posted(&record)), (Ok(()), 2), "no reset");
        post(&mut queue).unwrap();
        assert_eq!((limit(), posted(&record)), (4, 3));
    }

    #[test]
    fn raw_packet_receives_are_held_until_rtr() {
        let (qp, record) = qp(ControlBarrier::register());
        let mut queue =
            RecvQueue::new(&config(QpType::RawPacket), Arc::clone(&qp), record.recv_word()).unwrap();
        let rq = qp.rq.as_ref().unwrap();
        post(&mut queue).unwrap();
        post(&mut queue).unwrap();
        assert_eq!((posted(&record), *rq.held()), (0, Some(2)));
        qp.set_state(QpState::RTR);
        // Between the state and what `modify_qp` tells the device: this post tells of all.
        post(&mut queue).unwrap();
        assert_eq!((posted(&record), *rq.held()), (3, None));
        rq.publish_held(&record);
        assert_eq!(posted(&record), 3, "nothing goes back");
        reset(&qp, &record);
        qp.set_state(QpState::INIT);
        post(&mut queue).unwrap();
        qp.set_state(QpState::RTR);
        rq.publish_held(&record);
        assert_eq!((posted(&record), *rq.held()), (1, None));
    }
}

#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// A poster, and a reset. After the control path has stopped the posters nothing is published, and what is published
    /// later is of the new life. (loom does not model membarrier(2); `ControlBarrier` models a fence on both sides.)
    fn post_and_reset(barrier: ControlBarrier) {
        // Every interleaving with three preemptions takes seconds, without a bound it takes hours.
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
            assert!(now <= 1, "entries of the last life");
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

    /// Receives of a raw packet QP that are posted while it goes to RTR: the device is told of all, by one side.
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
