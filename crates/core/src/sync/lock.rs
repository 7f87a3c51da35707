// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locking is a type: a queue is `Exclusive` (posted through `&mut`, no lock exists) or `Shared` (a spinlock). Where
//! the type is not known at compile time, as in C, it is `Dynamic`: either of the two, selected when the queue is
//! created.
//!
//! [`Locked`] pairs a queue with its lock. Safe code reaches an exclusive queue only by `&mut`, a shared one also by
//! [`Locked::lock`]. The C-style face, which has no borrows, uses the `enter`/`leave` pair and relies on the contract
//! of a thread domain: no two threads use the queue at the same time.
#![expect(unsafe_code)]
// UNSAFETY: the lock returns a `&mut` from a `&`; the proof is local to this module and checked by loom.

use super::home::Home;
use core::fmt;
use core::ops::{Deref, DerefMut};

#[cfg(not(loom))]
use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};
#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Why a queue can't be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The calling thread already holds this queue (it is inside `wr_start .. wr_complete`, or holds a guard).
    Reentered,
    /// This process is a child of fork(2), and a thread of its parent held the queue at the time of the fork.
    Forked,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reentered => "the calling thread already holds this queue",
            Self::Forked => "the queue belongs to the process that forked this one",
        })
    }
}

impl core::error::Error for LockError {}

mod sealed {
    /// The lock behind a [`Locking`](super::Locking).
    pub trait RawLock: Default + Send + Sync {
        /// Waits for the lock and takes it, unless this thread has it already.
        fn acquire(&self) -> Result<(), super::LockError>;
        /// Takes the lock if it is free.
        fn try_acquire(&self) -> bool;
        /// Gives the lock back.
        fn release(&self);
        /// Whether a thread has the lock. Without a lock the result is always true.
        fn is_held(&self) -> bool;
    }
    /// Keeps the set of lockings closed.
    pub trait Sealed {}
}
use sealed::RawLock;

/// How threads share a queue; a type parameter, so that an exclusive queue contains no lock at all.
pub trait Locking: sealed::Sealed + Send + Sync + fmt::Debug + Default + 'static {
    /// Whether several threads may use the queue at once.
    const SHARED: bool;
    #[doc(hidden)]
    type Raw: RawLock;
}

/// One thread at a time: `&mut` guarantees it, or, for the C-style face, the caller, as in a thread domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exclusive;

/// Any thread, behind a spinlock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared;

/// With a spinlock or without a lock, as selected when the queue is created ([`Locked::dynamic`]). Without a lock the
/// caller guarantees that one thread at a time uses the queue.
///
/// For C, whose queues have one set of functions for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dynamic;

impl sealed::Sealed for Exclusive {}
impl sealed::Sealed for Shared {}
impl sealed::Sealed for Dynamic {}
impl Locking for Exclusive {
    const SHARED: bool = false;
    type Raw = NoLock;
}
impl Locking for Shared {
    const SHARED: bool = true;
    type Raw = SpinLock;
}

impl Locking for Dynamic {
    const SHARED: bool = true;
    type Raw = DynamicLock;
}

/// No lock.
#[derive(Debug, Default)]
pub struct NoLock;

impl RawLock for NoLock {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn acquire(&self) -> Result<(), LockError> {
        Ok(())
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_acquire(&self) -> bool {
        true
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn release(&self) {}
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_held(&self) -> bool {
        true
    }
}

/// A spinlock that records its owner, so that a thread that locks it twice gets an error instead of a deadlock.
#[derive(Debug)]
pub struct SpinLock {
    /// 0, or the owner's [`thread_token`].
    owner: AtomicUsize,
    /// Where it was created.
    home: Home,
}

impl Default for SpinLock {
    fn default() -> Self {
        Self { owner: AtomicUsize::new(0), home: Home::here() }
    }
}

/// A number that no other live thread has and that is never 0: the thread pointer of the ABI. (The address of a thread-local
/// would be a call of `__tls_get_addr` in a shared object.)
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn thread_token() -> usize {
    let token;
    // SAFETY: the word at `fs:0` is the thread pointer itself (System V ABI for x86-64, thread-local storage); it is
    // mapped for as long as the thread lives, and does not change.
    unsafe {
        core::arch::asm!(
            "mov {}, qword ptr fs:[0]",
            out(reg) token,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    token
}

/// The token on aarch64: a register that contains the thread pointer.
#[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn thread_token() -> usize {
    let token;
    // SAFETY: user space may read the register, which has the thread pointer (ELF for the Arm 64-bit Architecture).
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) token, options(pure, nomem, nostack, preserves_flags));
    }
    token
}

/// The token without assembly: the address of a thread-local byte.
#[cfg(all(miri, not(loom)))]
fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|t| core::ptr::from_ref(t).addr())
}
#[cfg(loom)]
fn thread_token() -> usize {
    loom::thread_local!(static TOKEN: Box<u8> = Box::new(0));
    TOKEN.with(|t| core::ptr::from_ref::<u8>(t).addr())
}

impl RawLock for SpinLock {
    #[inline]
    fn acquire(&self) -> Result<(), LockError> {
        let me = thread_token();
        // Acquire pairs with the Release in `release`: this owner sees all stores of the previous owner.
        match self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(owner) => self.contended(me, owner),
        }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        // Acquire: as in `acquire`.
        self.owner.compare_exchange(0, thread_token(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn release(&self) {
        self.owner.store(0, Ordering::Release);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_held(&self) -> bool {
        // Relaxed: the thread that entered, or one that it handed the session to, sees its own store.
        self.owner.load(Ordering::Relaxed) != 0
    }
}

impl SpinLock {
    #[cold]
    #[inline(never)]
    fn contended(&self, me: usize, owner: usize) -> Result<(), LockError> {
        // Only this thread ever stores its own token, so the value cannot be stale.
        if owner == me {
            return Err(LockError::Reentered);
        }
        // A thread of the parent does not exist here, so it never releases the lock.
        if !self.home.is_here() {
            return Err(LockError::Forked);
        }
        let backoff = crossbeam_utils::Backoff::new();
        loop {
            if self.owner.load(Ordering::Relaxed) == 0
                && self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Ok(());
            }
            // The owner may be off its CPU: after some spins this gives up the time slice.
            #[cfg(not(loom))]
            backoff.snooze();
            #[cfg(loom)]
            {
                let _ = &backoff;
                loom::thread::yield_now();
            }
        }
    }
}

/// A spinlock, or none.
#[derive(Debug)]
pub struct DynamicLock {
    lock: SpinLock,
    shared: bool,
}

impl Default for DynamicLock {
    fn default() -> Self {
        Self { lock: SpinLock::default(), shared: true }
    }
}

impl RawLock for DynamicLock {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn acquire(&self) -> Result<(), LockError> {
        if self.shared { self.lock.acquire() } else { Ok(()) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_acquire(&self) -> bool {
        !self.shared || self.lock.try_acquire()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn release(&self) {
        // Without a lock this has no effect, and it is cheaper than a test.
        self.lock.release();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_held(&self) -> bool {
        !self.shared || self.lock.is_held()
    }
}

/// A value and its lock (or none).
#[derive(Default)]
#[repr(C)]
pub struct Locked<T, L: Locking> {
    // First, so that its address is that of the whole.
    value: UnsafeCell<T>,
    raw: L::Raw,
}

// SAFETY: `&Locked` gives access to the value only by `lock` (mutual exclusion, so `T: Send` is enough, as with Mutex),
// or by the unsafe functions `enter`, `try_enter` and `entered`, whose contract is exclusion where `L` has no lock.
unsafe impl<T: Send, L: Locking> Sync for Locked<T, L> {}

impl<T, L: Locking> Locked<T, L> {
    /// Puts `value` behind a lock of kind `L`.
    pub fn new(value: T) -> Self {
        Self { raw: L::Raw::default(), value: UnsafeCell::new(value) }
    }

    /// The value, without a lock: because of `&mut` there is no other user.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[cfg(not(loom))]
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Takes the lock, if there is one, and returns the value. Pair it with [`leave`](Self::leave).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock already; [`LockError::Forked`] in a child of fork(2),
    /// if a thread of the parent holds it.
    ///
    /// # Safety
    /// - No reference from an earlier `enter` that was not left may be used any more.
    /// - If `L` is [`Exclusive`], or [`Dynamic`] and not shared, no other thread may be between `enter` and `leave`
    ///   (the contract of a thread domain), and this thread may not be either.
    #[expect(clippy::mut_from_ref, reason = "a lock: exclusion is the contract above")]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn enter(&self) -> Result<&mut T, LockError> {
        self.raw.acquire()?;
        // SAFETY: if there is a lock, it is held, so no other reference exists; otherwise no other reference is used
        // (the contract of this function).
        Ok(unsafe { self.value_mut() })
    }

    /// As [`enter`](Self::enter), but does not wait for the lock: `None` if a thread, maybe this one, has it.
    ///
    /// # Safety
    /// As [`enter`](Self::enter).
    #[expect(clippy::mut_from_ref, reason = "a lock: exclusion is the contract above")]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn try_enter(&self) -> Option<&mut T> {
        if !self.raw.try_acquire() {
            return None;
        }
        // SAFETY: if there is a lock, it is held, so no other reference exists; otherwise no other reference is used
        // (the contract of this function).
        Some(unsafe { self.value_mut() })
    }

    /// Whether a thread is between [`enter`](Self::enter) and [`leave`](Self::leave). Without a lock this is unknown, and
    /// the result is `true`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn is_entered(&self) -> bool {
        self.raw.is_held()
    }

    /// The value of a session that was entered: by this thread, or by one that handed the session to it.
    ///
    /// # Safety
    /// The session is between [`enter`](Self::enter) and [`leave`](Self::leave), which happened before this call; no other
    /// thread uses the value until `leave`, and this thread uses no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "a lock: exclusion is the contract above")]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn entered(&self) -> &mut T {
        // SAFETY: the session was entered, and no other thread and no other reference uses the value (the contract of
        // this function).
        unsafe { self.value_mut() }
    }

    /// Gives the lock back.
    ///
    /// # Safety
    /// As [`entered`](Self::entered); and no reference from `enter` is used any more.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn leave(&self) {
        self.raw.release();
    }

    #[expect(clippy::mut_from_ref, reason = "private; callers prove exclusion")]
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn value_mut(&self) -> &mut T {
        #[cfg(not(loom))]
        // SAFETY: the caller has exclusive access, so the pointer to the value may be turned into `&mut`.
        return unsafe { &mut *self.value.get() };
        #[cfg(loom)]
        // SAFETY: the caller has exclusive access. loom checks that accesses do not overlap at the time of this call.
        return self.value.with_mut(|p| unsafe { &mut *p });
    }
}

impl<T> Locked<T, Dynamic> {
    /// Adds a spinlock to `value` if it is `shared`; otherwise the contract of [`enter`](Self::enter) replaces the
    /// lock.
    pub fn dynamic(value: T, shared: bool) -> Self {
        let raw = DynamicLock { lock: SpinLock::default(), shared };
        Self { raw, value: UnsafeCell::new(value) }
    }
}

impl<T> Locked<T, Shared> {
    /// Waits for the lock; an error if this thread holds it already (waiting would never end).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock already; [`LockError::Forked`] in a child of fork(2),
    /// if a thread of the parent holds it.
    #[inline]
    pub fn lock(&self) -> Result<Guard<'_, T>, LockError> {
        self.raw.acquire()?;
        Ok(Guard { locked: self, _not_send: core::marker::PhantomData })
    }

    /// Takes the lock if it is free; `None` if a thread, maybe this one, has it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.raw.try_acquire().then(|| Guard { locked: self, _not_send: core::marker::PhantomData })
    }
}

impl<T: fmt::Debug, L: Locking> fmt::Debug for Locked<T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value is not printed: reading it needs the lock, and `Debug` must not wait.
        f.debug_struct("Locked").field("locking", &L::default()).finish_non_exhaustive()
    }
}

/// A held lock. It must be released by the thread that took it, so it is not `Send`.
#[derive(Debug)]
#[must_use]
pub struct Guard<'a, T> {
    locked: &'a Locked<T, Shared>,
    _not_send: core::marker::PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, and its borrow excludes a `&mut` of `deref_mut` at the same time.
        unsafe { self.locked.value_mut() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        unsafe { self.locked.value_mut() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.locked.raw.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_by_a_thread_is_an_error_and_the_first_stays() {
        let l = Locked::<u32, Shared>::new(1);
        let mut g = l.lock().unwrap();
        assert_eq!(l.lock().unwrap_err(), LockError::Reentered);
        assert!(l.try_lock().is_none());
        *g += 1;
        drop(g);
        assert_eq!(*l.lock().unwrap(), 2);
        assert_eq!(l.try_lock().as_deref(), Some(&2));
    }

    #[test]
    fn threads_exclude_each_other() {
        let l = std::sync::Arc::new(Locked::<u64, Shared>::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *l.lock().unwrap() += 1));
            }
        });
        assert_eq!(*l.lock().unwrap(), 40_000);
    }

    #[test]
    fn try_enter_does_not_wait() {
        let shared = Locked::dynamic(1_u32, true);
        // SAFETY: left below; the reference is not used after that.
        *unsafe { shared.try_enter() }.unwrap() += 1;
        // SAFETY: left below, and no reference to the value is used.
        assert_eq!(unsafe { shared.try_enter() }, None);
        std::thread::scope(|s| {
            s.spawn(|| {
                // SAFETY: no reference to the value is used.
                assert_eq!(unsafe { shared.try_enter() }, None);
            });
        });
        // SAFETY: entered above.
        unsafe { shared.leave() };
        // SAFETY: the only user of the queue.
        assert_eq!(unsafe { shared.try_enter() }, Some(&mut 2));
        let exclusive = Locked::dynamic(1_u32, false);
        for _ in 0..2 {
            // SAFETY: one thread, and no reference to the value is used afterwards.
            assert_eq!(unsafe { exclusive.try_enter() }, Some(&mut 1));
        }
    }

    #[test]
    fn a_dynamic_queue_locks_only_if_it_is_shared() {
        let shared = Locked::dynamic(1_u32, true);
        // SAFETY: left below; no reference is used.
        unsafe { shared.enter() }.map(drop).unwrap();
        // SAFETY: left below, and no reference to the value is used.
        assert_eq!(unsafe { shared.enter() }.map(drop), Err(LockError::Reentered));
        // Another thread may end the session.
        std::thread::scope(|s| {
            s.spawn(|| {
                assert!(shared.is_entered());
                // SAFETY: entered above, by the thread that waits for this one.
                unsafe { shared.leave() };
            });
        });
        assert!(!shared.is_entered());
        let alone = Locked::dynamic(1_u32, false);
        // SAFETY: this thread alone has it, and uses no reference.
        unsafe { alone.enter() }.map(drop).unwrap();
        assert!(alone.is_entered());
    }

    #[test]
    fn threads_have_different_tokens() {
        let here = thread_token();
        assert_ne!(here, 0);
        assert_eq!(here, thread_token());
        std::thread::scope(|s| {
            s.spawn(|| assert_ne!(thread_token(), here));
        });
    }

    #[test]
    fn an_exclusive_queue_contains_no_lock() {
        assert_eq!(size_of::<Locked<u64, Exclusive>>(), size_of::<u64>());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn increments_are_not_lost() {
        loom::model(|| {
            let l = Arc::new(Locked::<u32, Shared>::new(0));
            let other = l.clone();
            let t = loom::thread::spawn(move || *other.lock().unwrap() += 1);
            *l.lock().unwrap() += 1;
            t.join().unwrap();
            assert_eq!(*l.lock().unwrap(), 2);
        });
    }
}
