// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks without a system call whether this is still the process that opened a device.
//!
//! Queues that a child of fork(2) shares with its parent make this check in every batch and poll, and getpid(2) would
//! add a seventh to the cost of rxe's doorbell. Instead, a handler of pthread_atfork(3) counts the forks between the
//! first process and this one. A child that was created by a direct clone(2) is not detected.
// UNSAFETY: registers a handler with libc.
#![expect(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Once;

/// The number of forks between the first process that called this and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static REGISTER: Once = Once::new();
/// Whether forks are no longer counted.
static CHILDREN_COUNT_AS_PARENT: AtomicBool = AtomicBool::new(false);

/// Identifies this process among those related by fork(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process. Forks are counted from the first call on.
    #[must_use]
    pub fn register() -> Self {
        REGISTER.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed in a child of a threaded process.
            let result = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            if result != 0 {
                log::warn!("pthread_atfork: errno {result}; a forked child will not be recognised");
            }
        });
        Self::current()
    }

    /// After this call a child of fork(2) counts as its parent: it may call verbs on devices that the parent opened, as
    /// C programs do that open a device and then call daemon(3). Queues that were created before the fork still belong
    /// to the parent.
    pub fn adopt_children() {
        CHILDREN_COUNT_AS_PARENT.store(true, Ordering::Relaxed);
    }

    /// This process.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn current() -> Self {
        // Relaxed: the child starts with the one thread that forked, and the handler ran in it.
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether it is the current process, and not one that forked the current one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// The value of no process, not even of one that forks create.
    const NONE: u32 = u32::MAX;

    /// A value that is not the current process's, for tests.
    #[cfg(test)]
    pub(super) fn other() -> Self {
        Self(Self::NONE - 1)
    }
}

/// The process that something belongs to, until it is given up.
#[derive(Debug)]
pub(super) struct Owner(AtomicU32);

impl Owner {
    pub(super) fn new(process: Process) -> Self {
        Self(AtomicU32::new(process.0))
    }

    /// Whether this process is the owner.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn is_current(&self) -> bool {
        // Relaxed: the caller of `give_up` guarantees that no other thread checks at the same time.
        self.0.load(Ordering::Relaxed) == Process::current().0
    }

    /// Gives the ownership up. Returns whether there was an owner.
    pub(super) fn give_up(&self) -> bool {
        self.0.swap(Process::NONE, Ordering::Relaxed) != Process::NONE
    }
}

extern "C" fn forked() {
    if !CHILDREN_COUNT_AS_PARENT.load(Ordering::Relaxed) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Process;

    /// Whether `is_right` holds in a child. It must call only functions that a child of a threaded process may call.
    fn in_child(is_right: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `is_right` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let status = i32::from(!is_right());
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(status) }
            }
            -1 => false,
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child and writes its status to a local.
                (unsafe { libc::waitpid(child, &raw mut status, 0) }) == child && status == 0
            }
        }
    }

    #[test]
    fn a_child_is_another_process() {
        let here = Process::register();
        assert!(in_child(|| Process::current() != here), "the child is its parent");
        assert_eq!(Process::current(), here);
    }

    #[test]
    fn an_adopted_child_counts_as_its_parent() {
        let _ = Process::register();
        // In a child, because the call affects the whole process.
        assert!(in_child(|| {
            let child = Process::current();
            Process::adopt_children();
            in_child(|| Process::current() == child)
        }));
    }
}
