// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that created a lock.
//!
//! A child of fork(2) has copies of its parent's locks, but only one thread. A lock that another thread of the parent held at
//! the time of the fork is never released in the child. So a thread that would wait for a lock first compares the process with
//! the one that created the lock. The number of a process is in a page that the kernel wipes in a child (`MADV_WIPEONFORK`,
//! madvise(2)); this also detects a child of a direct clone(2).
#![expect(unsafe_code)]
// UNSAFETY: calls madvise(2) for a page that it mapped, and uses a word of it; leaks boxes for static variables.

use super::lock::LockError;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The process in which this was made. The comparison is a load, without a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        Self(number())
    }

    /// Whether this is still that process, and not a child of it. Always true if [`is_known`](Self::is_known) is false.
    #[must_use]
    #[inline]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }

    /// Whether the kernel tells a child from its parent.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.0 != 0
    }
}

/// A number that this process has and none of those that it was forked from. 0 where the kernel has no such pages (before
/// 4.14), where queues can't be created either.
#[cfg(not(any(loom, miri)))]
#[inline]
fn number() -> u32 {
    // Relaxed: the number is all that the threads exchange.
    match mapped_page().map_or(0, |word| word.load(Ordering::Relaxed)) {
        0 => new_number(),
        number => number,
    }
}

/// [`number`] for the first time in this process.
#[cfg(not(any(loom, miri)))]
#[cold]
fn new_number() -> u32 {
    /// The number that was given last: in this process, or in the one that forked it.
    static LAST: AtomicU32 = AtomicU32::new(0);

    let Some(word) = page() else { return 0 };
    let number = word.load(Ordering::Relaxed);
    if number != 0 {
        return number;
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| new)
}

/// The page; NULL until it is mapped.
///
/// This is not a `OnceLock`: a child that is forked while another thread initialises a `OnceLock` waits for that thread for ever.
#[cfg(not(any(loom, miri)))]
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// The first word of the page, if it is mapped.
#[cfg(not(any(loom, miri)))]
#[inline]
fn mapped_page() -> Option<&'static AtomicU32> {
    // Acquire: pairs with the store in `page`, after madvise(2).
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: NULL, or the first word of a page that is mapped for ever (`page`); any bytes are a valid atomic, and all accesses are atomic.
    unsafe { page.as_ref() }
}

/// The first word of the page. The first call maps the page.
#[cfg(not(any(loom, miri)))]
fn page() -> Option<&'static AtomicU32> {
    const LEN: usize = 4096;

    // Acquire: pairs with the store below, after madvise(2).
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let map = memmap2::MmapRaw::from(memmap2::MmapMut::map_anon(LEN).ok()?);
        // SAFETY: the page was just mapped, private and anonymous, and no other code has its address.
        let result = unsafe { libc::madvise(map.as_mut_ptr().cast(), LEN, libc::MADV_WIPEONFORK) };
        if result != 0 {
            return None;
        }
        let new = map.as_mut_ptr().cast();
        page = match PAGE.compare_exchange(page, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // It stays mapped.
                core::mem::forget(map);
                new
            }
            Err(other) => other,
        };
    }
    // SAFETY: the first word of a page that is mapped for ever; any bytes are a valid atomic, and all accesses are atomic.
    Some(unsafe { &*page })
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
    /// The number of the process that locked it last, or that created it.
    user: AtomicU32,
}

impl<T> ProcessMutex<T> {
    /// Puts `value` behind a mutex.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), user: AtomicU32::new(number()) }
    }

    /// Waits for the mutex. A panic of another thread that held it has no effect.
    ///
    /// # Errors
    /// [`LockError::Forked`] in a child of fork(2), if a thread of the parent held the mutex at the time of the fork.
    #[inline]
    pub fn lock(&self) -> Result<MutexGuard<'_, T>, LockError> {
        if let Ok(guard) = self.mutex.try_lock() {
            self.user.store(number(), Ordering::Relaxed);
            return Ok(guard);
        }
        // What `try_lock` has returned is dropped: after a panic that was a guard, too.
        self.wait()
    }

    /// [`lock`](Self::lock) if the mutex is not free, or after a panic.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> Result<MutexGuard<'_, T>, LockError> {
        if let Some(guard) = self.try_lock()? {
            return Ok(guard);
        }
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.user.store(number(), Ordering::Relaxed);
        Ok(guard)
    }

    /// Takes the mutex if it is free; `None` if another thread of this process has it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<MutexGuard<'_, T>>, LockError> {
        /// A thread takes the mutex and then stores the number of its process. In between, another thread of a child finds the
        /// number of the parent. It tries this often before it decides that a thread of the parent has the mutex.
        const ATTEMPTS: u32 = 100;

        let here = number();
        for _ in 0..ATTEMPTS {
            let guard = match self.mutex.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                // Relaxed: this thread stored the number, or another thread of this process, or the parent before the fork.
                Err(TryLockError::WouldBlock) if self.user.load(Ordering::Relaxed) == here => {
                    return Ok(None);
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            self.user.store(here, Ordering::Relaxed);
            return Ok(Some(guard));
        }
        Err(LockError::Forked)
    }

    /// The value, which no other thread has.
    pub fn get_mut(&mut self) -> &mut T {
        self.mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for ProcessMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A [`ProcessMutex`] for a static variable.
///
/// If a thread of the parent held it at the time of the fork, the child gets a new value, because the old one may be incomplete.
#[derive(Debug)]
pub struct StaticMutex<T: 'static> {
    /// NULL until the first use. A mutex is never freed.
    current: AtomicPtr<ProcessMutex<T>>,
}

impl<T: Default + Send + 'static> Default for StaticMutex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + Send + 'static> StaticMutex<T> {
    /// The first use creates the value.
    #[must_use]
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Waits for the mutex. A panic of another thread that held it has no effect.
    pub fn lock(&self) -> MutexGuard<'static, T> {
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is NULL or that of a leaked box (below), which has only shared references.
            if let Some(mutex) = unsafe { current.as_ref() }
                && let Ok(guard) = mutex.lock()
            {
                return guard;
            }
            let new = Box::into_raw(Box::new(ProcessMutex::new(T::default())));
            current = match self.current.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(other) => {
                    // SAFETY: the box that was made above; no other code has the pointer.
                    drop(unsafe { Box::from_raw(new) });
                    other
                }
            };
        }
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
    fn a_panic_of_a_thread_that_had_the_mutex_has_no_effect() {
        let mutex = ProcessMutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let panics = || {
                let _guard = mutex.lock();
                panic!("expected: the mutex is poisoned");
            };
            scope.spawn(panics).join().is_err()
        });
        assert!(panicked && mutex.mutex.is_poisoned());
        assert_eq!(
            (mutex.lock().map(|n| *n), mutex.try_lock().map(|guard| guard.is_some())),
            (Ok(1), Ok(true))
        );
    }

    #[test]
    fn threads_of_a_child_wait_for_each_other() {
        let mutex = ProcessMutex::new(0_u32);
        assert!(in_a_child(|| {
            std::thread::scope(|scope| {
                let count = || (0..1000).all(|_| mutex.lock().map(|mut n| *n += 1).is_ok());
                let threads = [(); 4].map(|()| scope.spawn(count));
                threads.map(|thread| thread.join().unwrap_or(false)) == [true; 4]
            }) && mutex.lock().is_ok_and(|n| *n == 4000)
        }));
    }

    #[test]
    fn a_child_gets_a_new_value_of_a_static_that_a_thread_of_its_parent_has() {
        static VALUE: StaticMutex<Vec<u8>> = StaticMutex::new();
        VALUE.lock().push(1);
        assert!(in_a_child(|| *VALUE.lock() == [1]), "it was free");
        let has_a_new_value = |value: &StaticMutex<Vec<u8>>| {
            in_a_child(|| {
                let was_empty = core::mem::replace(&mut *value.lock(), vec![2]).is_empty();
                was_empty && *value.lock() == [2]
            })
        };
        assert!(while_held(&VALUE, |value| value.lock(), has_a_new_value));
        assert_eq!(*VALUE.lock(), [1]);
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
