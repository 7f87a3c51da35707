// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that created a lock.
//!
//! A child of fork(2) has copies of its parent's locks, but only one thread. A lock that another thread of the parent held at
//! the time of the fork is never released in the child. So a thread that would wait for a lock first compares the process with
//! the one that created the lock. The number of a process is in a page that the kernel wipes in a child (`MADV_WIPEONFORK`,
//! madvise(2)); this also detects a child of a direct clone(2).
#![cfg_attr(not(any(loom, miri)), expect(unsafe_code))]
// UNSAFETY: calls madvise(2) for a page that it mapped, and uses a word of it.

use super::lock::LockError;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The process in which this was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home(u32);

impl Home {
    pub(super) fn here() -> Self {
        Self(number())
    }

    /// Whether this is still that process.
    pub(super) fn is_here(self) -> bool {
        self == Self::here()
    }
}

/// A number that this process has and none of those that it was forked from. 0 where the kernel has no such pages (before
/// 4.14), where queues can't be created either.
#[cfg(not(any(loom, miri)))]
fn number() -> u32 {
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::sync::OnceLock;

    const LEN: usize = 4096;
    static PAGE: OnceLock<Option<memmap2::MmapRaw>> = OnceLock::new();
    /// The number that was given last: in this process, or in the one that forked it.
    static LAST: AtomicU32 = AtomicU32::new(0);

    let page = PAGE.get_or_init(|| {
        let map = memmap2::MmapRaw::from(memmap2::MmapMut::map_anon(LEN).ok()?);
        // SAFETY: the page was just mapped, private and anonymous, and no other code has its address.
        let result = unsafe { libc::madvise(map.as_mut_ptr().cast(), LEN, libc::MADV_WIPEONFORK) };
        (result == 0).then_some(map)
    });
    let Some(page) = page else { return 0 };
    // SAFETY: the first word of a page that is mapped for ever; any bytes are a valid atomic, and all accesses are atomic.
    let word = unsafe { &*page.as_mut_ptr().cast::<AtomicU32>() };
    // Relaxed: the number is all that the threads exchange.
    let number = word.load(Ordering::Relaxed);
    if number != 0 {
        return number;
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| new)
}

/// Their processes do not fork.
#[cfg(any(loom, miri))]
fn number() -> u32 {
    0
}

/// A mutex for which a child of fork(2) does not wait if a thread of its parent had it.
#[derive(Debug)]
pub struct ProcessMutex<T> {
    mutex: Mutex<T>,
    home: Home,
}

impl<T> ProcessMutex<T> {
    /// Puts `value` behind a mutex.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), home: Home::here() }
    }

    /// Waits for the mutex. A panic of another thread that held it has no effect.
    ///
    /// # Errors
    /// [`LockError::Forked`] in a child of fork(2), if a thread of the parent held the mutex at the time of the fork.
    pub fn lock(&self) -> Result<MutexGuard<'_, T>, LockError> {
        match self.mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(guard)) => return Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        if !self.home.is_here() {
            return Err(LockError::Forked);
        }
        Ok(self.mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Default> Default for ProcessMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::sync::{Locked, Shared};

    /// Runs `f` in a child and returns its result; the child ends by a signal if `f` takes longer than a minute.
    fn in_a_child(f: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls only `f`, which does not allocate, and functions that a child of a threaded process may call.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: sets a timer of the child.
                unsafe { libc::alarm(60) };
                let right = f();
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!right)) }
            }
            -1 => panic!("fork failed"),
            child => {
                let mut status = 0;
                // SAFETY: `child` is a child of this process, and `status` is a valid local.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                status == 0
            }
        }
    }

    /// Calls `f` while another thread holds what `hold` locks.
    fn while_held<'a, T: Sync, G>(
        lock: &'a T,
        hold: impl FnOnce(&'a T) -> G + Send,
        f: impl FnOnce(&T) -> bool,
    ) -> bool {
        use std::sync::mpsc::channel;
        let ((held, is_held), (done, is_done)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let guard = hold(lock);
                held.send(()).unwrap();
                // Until the sender is dropped.
                is_done.recv().unwrap_err();
                drop(guard);
            });
            is_held.recv().unwrap();
            let result = f(lock);
            drop(done);
            result
        })
    }

    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let queue = Locked::<u8, Shared>::new(0);
        let refused =
            |queue: &Locked<u8, Shared>| in_a_child(|| queue.lock().err() == Some(LockError::Forked));
        assert!(while_held(&queue, |queue| queue.lock().unwrap(), refused));
        assert!(in_a_child(|| queue.lock().is_ok()), "nobody has it");

        let mutex = ProcessMutex::new(0_u8);
        let refused = |mutex: &ProcessMutex<u8>| in_a_child(|| mutex.lock().err() == Some(LockError::Forked));
        assert!(while_held(&mutex, |mutex| mutex.lock().unwrap(), refused));
        assert!(in_a_child(|| mutex.lock().is_ok()), "nobody has it");
    }

    #[test]
    fn each_process_has_its_own_number() {
        let (here, lock) = (Home::here(), Locked::<u8, Shared>::new(0));
        assert!(here.is_here());
        assert!(in_a_child(|| !here.is_here() && {
            let child = Home::here();
            child.is_here() && in_a_child(|| !child.is_here() && !here.is_here())
        }));
        // The thread that holds the lock is the one that forks: the child has it, too.
        let _guard = lock.lock().unwrap();
        assert!(in_a_child(|| lock.lock().err() == Some(LockError::Reentered)));
    }
}
