// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wakers of tasks whose operations are complete.

use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::panic;

/// Wakes tasks, after all locks were released: a waker may do anything. One that panics must not keep the others from being
/// woken, nor end the thread that runs the dispatcher.
#[inline]
pub(crate) fn wake(wakes: &mut Vec<Waker>) {
    if !wakes.is_empty() {
        wake_all(wakes);
    }
}

fn wake_all(wakes: &mut Vec<Waker>) {
    // The first becomes the last, which is popped first.
    if wakes.len() > 1 {
        wakes.reverse();
    }
    while !wakes.is_empty() {
        let woken = panic::catch_unwind(AssertUnwindSafe(|| {
            while let Some(waker) = wakes.pop() {
                waker.wake();
            }
        }));
        if let Err(payload) = woken {
            // Its drop could panic, too.
            core::mem::forget(payload);
            log::error!("dispatcher: a waker has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Mutex, lock};
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;
    use std::task::Wake;

    /// Records the order of the wakes; those with an odd number panic.
    struct Task(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            lock(&self.1).push(self.0);
            assert!(self.0.is_multiple_of(2), "a test of wakers that panic");
        }
    }

    /// A panic whose payload panics when it is dropped.
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "a test of payloads that panic");
        }
    }

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic::panic_any(Self);
        }
    }

    #[test]
    fn the_payload_of_a_panic_does_not_end_the_dispatcher() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut wakes = vec![Waker::from(Arc::new(Panics)), Waker::from(Arc::new(Task(2, order.clone())))];
        wake(&mut wakes);
        assert_eq!((&**lock(&order), wakes.len()), (&[2][..], 0));
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_others_from_being_woken() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let next = AtomicU32::new(0);
        let task = || Waker::from(Arc::new(Task(next.fetch_add(1, Ordering::Relaxed), order.clone())));
        let mut wakes: Vec<_> = core::iter::repeat_with(task).take(5).collect();
        wake(&mut wakes);
        assert_eq!((&**lock(&order), wakes.len()), (&[0, 1, 2, 3, 4][..], 0));
    }
}
