// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primitives that loom replaces in its tests, and the locks.

#[cfg(all(feature = "tokio", not(loom)))]
pub(crate) use core::sync::atomic::AtomicUsize;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// A lock.
pub(crate) trait Lock {
    type Guard<'a>
    where
        Self: 'a;

    fn take(&self) -> Self::Guard<'_>;
}

impl<T> Lock for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(not(loom))]
type Arc<T> = std::sync::Arc<T>;
#[cfg(loom)]
type Arc<T> = loom::sync::Arc<T>;

impl<L: Lock> Lock for Arc<L> {
    type Guard<'a>
        = L::Guard<'a>
    where
        L: 'a;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&self) -> L::Guard<'_> {
        (**self).take()
    }
}

/// Locks. What these locks protect is consistent between any two statements, so a panic of another thread does not matter.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn lock<L: Lock>(lock: &L) -> L::Guard<'_> {
    lock.take()
}

#[cfg(not(loom))]
mod short {
    use super::Lock;
    use core::panic::{RefUnwindSafe, UnwindSafe};
    use uverbs_core::sync::{Guard, Locked, Shared};

    /// A spinlock, for what is locked for each message, and for a short time: the queues of a QP, and what polls the CQ. It takes a
    /// quarter of the instructions of a mutex, which looks for panics. A thread that waits for long, because another one creates a
    /// queue, gives up its time slice.
    pub(crate) struct Short<T>(Locked<T, Shared>);

    impl<T> Short<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Locked::new(value))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }

    /// As a mutex.
    impl<T> UnwindSafe for Short<T> {}
    impl<T> RefUnwindSafe for Short<T> {}

    impl<T> Lock for Short<T> {
        type Guard<'a>
            = Guard<'a, T>
        where
            T: 'a;

        #[cfg_attr(not(debug_assertions), inline(always))]
        fn take(&self) -> Guard<'_, T> {
            // No code of the program runs while a thread has it: so no thread takes it again.
            // The callers do not lock in a child of fork(2).
            self.0.lock().unwrap_or_else(|error| panic!("a lock of a dispatcher: {error}"))
        }
    }
}
#[cfg(not(loom))]
pub(crate) use short::Short;
