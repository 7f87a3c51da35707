// SPDX-License-Identifier: MIT OR Apache-2.0
//! The barrier between a control call that closes a queue and the data path that may be inside it.
//!
//! Each side stores one word and then loads the other's: the data path stores "busy" and loads the queue's state, the
//! control path closes the state and loads "busy". At least one of the two must see the other's store, which takes a full
//! barrier on both sides. [`ControlBarrier::Membarrier`] moves the whole cost to the control side: membarrier(2) with
//! `PRIVATE_EXPEDITED` makes every running thread of the process execute a full barrier, so the data path needs no more
//! than the program order of its two accesses. Where the kernel refuses to register (before 4.14, seccomp),
//! [`ControlBarrier::Fence`] is chosen and the data path executes a fence of its own.
#![expect(unsafe_code)]
// UNSAFETY: calls membarrier(2), which takes no pointer.

use crate::errno::Errno;

/// The side that executes the barrier. It is chosen once for a context, before its first queue is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlBarrier {
    /// The control side: membarrier(2).
    Membarrier,
    /// Both sides: a sequentially consistent fence.
    Fence,
}

impl ControlBarrier {
    /// Registers this process with membarrier(2), or chooses [`Fence`](Self::Fence) if the kernel refuses.
    #[must_use]
    pub fn register() -> Self {
        match membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
            Ok(()) => Self::Membarrier,
            Err(errno) => {
                log::debug!("membarrier(2): {errno}; queues use full fences");
                Self::Fence
            }
        }
    }

    /// The control side's barrier, between its store and its load.
    ///
    /// # Errors
    /// The error of membarrier(2), for example `ENOSYS` under a seccomp filter that was installed after
    /// [`register`](Self::register). Then nothing is known about the data path, and the queue must stay closed.
    #[cfg_attr(
        loom,
        expect(clippy::missing_errors_doc, clippy::unnecessary_wraps, reason = "loom has fences only")
    )]
    pub(crate) fn control_side(self) -> Result<(), Errno> {
        // loom does not model membarrier(2). It models a fence on both sides, which orders the same accesses.
        fence();
        #[cfg(not(loom))]
        if self == Self::Membarrier {
            return membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        }
        Ok(())
    }

    /// The data path's barrier for [`Membarrier`](Self::Membarrier): the compiler keeps the order of the two accesses, and
    /// the control side's system call makes the CPU keep it where it matters.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn light() {
        #[cfg(not(loom))]
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        #[cfg(loom)]
        fence();
    }
}

/// A full barrier.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn fence() {
    #[cfg(not(loom))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

fn membarrier(command: libc::c_int) -> Result<(), Errno> {
    // SAFETY: membarrier(2) takes a command, flags and a CPU number, and accesses no memory of the caller.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}
