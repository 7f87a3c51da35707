// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control calls during posts: a control call waits for a post that is between its check of the state and the end of its
//! system call, and later posts publish nothing.

use crate::testing::ring;
use crate::{QpShared, RecvQueue};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{PostError, RecvBatch as _, RecvQueue as _};
use uverbs_soft::FlushBell;

/// A system call that signals its start and ends on request.
#[derive(Clone, Debug)]
struct SlowBell {
    made: Sender<()>,
    may_end: Arc<Mutex<Receiver<()>>>,
}

impl SlowBell {
    fn call(&self) -> Result<(), Errno> {
        self.made.send(()).unwrap();
        let _ = self.may_end.lock().unwrap().recv_timeout(Duration::from_secs(10));
        Ok(())
    }
}

impl FlushBell for SlowBell {
    fn flush(&self) -> Result<(), Errno> {
        self.call()
    }
}

fn slow_bell() -> (SlowBell, Receiver<()>, Sender<()>) {
    let ((made, is_made), (end, may_end)) = (channel(), channel());
    (SlowBell { made, may_end: Arc::new(Mutex::new(may_end)) }, is_made, end)
}

/// Runs `post` up to its system call, closes the queue in another thread, and checks that the wait ends after the call.
fn waited_for(
    shared: &Arc<QpShared>,
    is_made: &Receiver<()>,
    end: &Sender<()>,
    post: impl FnOnce() -> Result<(), PostError> + Send,
) {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let poster = scope.spawn(post);
        is_made.recv_timeout(Duration::from_secs(10)).unwrap();
        let (done, is_done) = channel::<()>();
        let (ended, shared) = (&ended, Arc::clone(shared));
        let control = scope.spawn(move || {
            let _done = done;
            shared.set_state(QpState::RESET);
            shared.access().wait_for_posters().unwrap();
            ended.load(Ordering::SeqCst)
        });
        assert_eq!(is_done.recv_timeout(Duration::from_millis(30)), Err(RecvTimeoutError::Timeout));
        ended.store(true, Ordering::SeqCst);
        end.send(()).unwrap();
        assert!(control.join().unwrap(), "the control call did not wait");
        assert_eq!(poster.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_reset_waits_for_a_receive_in_progress() {
    let (bell, is_made, end) = slow_bell();
    let shared = Arc::new(QpShared::new(QpState::ERR));
    let (ring, kernel) = ring(6, 8, 16);
    let mut q = RecvQueue::new(ring, 1, Arc::clone(&shared), bell).unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    waited_for(&shared, &is_made, &end, || unsafe { q.post(1, &[]) });
    assert_eq!(kernel.producer(), 1);
}

#[test]
fn receives_from_before_a_reset_are_not_published_after_it() {
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let (ring, kernel) = ring(6, 8, 16);
    let bell = crate::testing::FakeBell::default();
    let mut q = RecvQueue::new(ring, 1, Arc::clone(&shared), bell).unwrap();
    let mut batch = q.batch();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { batch.push(1, &[]) };
    for state in [QpState::RESET, QpState::INIT, QpState::RTR] {
        shared.set_state(state);
    }
    assert_eq!((batch.complete(), kernel.producer()), (Err(PostError::BadState), 0));
    // The reset does not close the queue permanently.
    let mut batch = q.batch();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { batch.push(2, &[]) };
    assert_eq!((batch.complete(), kernel.producer()), (Ok(()), 1));
}
