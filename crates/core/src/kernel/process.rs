// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this is still the process that opened a device, asked without a system call.
//!
//! Queues that a child of fork(2) shares with its parent ask on every batch and poll, and getpid(2) would add a seventh
//! to the cost of rxe's doorbell. A handler of pthread_atfork(3)
//! counts the forks that led to this process instead; a child that was made by a bare clone(2) is not told from its
//! parent.
// UNSAFETY: registers a handler with libc.
#![expect(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

/// How many forks lie between the first process that asked and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static REGISTER: Once = Once::new();

/// Which process this is, among those that fork made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This one. From the first call on, forks are counted.
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

    /// This one.
    #[inline(always)]
    #[must_use]
    pub fn current() -> Self {
        // Relaxed: the child starts with the one thread that forked, and the handler ran in it.
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether it is this one, and not one that forked this one.
    #[inline(always)]
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// No process, not even one that forks made.
    const NONE: u32 = u32::MAX;

    /// Another one, for tests.
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
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        // Relaxed: who gives it up promises that nobody asks meanwhile.
        self.0.load(Ordering::Relaxed) == Process::current().0
    }

    /// Gives it up; whether somebody had it.
    pub(super) fn give_up(&self) -> bool {
        self.0.swap(Process::NONE, Ordering::Relaxed) != Process::NONE
    }
}

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::Process;

    #[test]
    fn a_child_is_another_process() {
        let here = Process::register();
        // SAFETY: the child calls nothing but an atomic load and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let differs = Process::current() != here;
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(i32::from(!differs)) }
            }
            -1 => panic!("fork failed"),
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child and writes its status to a local.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child took itself for its parent");
            }
        }
        assert_eq!(Process::current(), here);
    }
}
