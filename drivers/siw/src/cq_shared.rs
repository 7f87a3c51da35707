// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue's ring, which its poller and the control path share.
//!
//! The ring has one user at a time. The poller enters for the memory accesses of one step ([`CqShared::enter`]); the
//! control path stops it first ([`CqShared::stopped`]), by the handshake that `uverbs_core::kernel::QueueAccess`
//! describes. So after a control call has destroyed a QP, no poll reports a completion of it, and none takes a slot in the
//! ring. (With libsiw, the next poll reports them.)
#![expect(unsafe_code)]
// UNSAFETY: returns a mutable reference to the ring from a shared reference; this module ensures that there is one user
// at a time.

use crate::queue::Ring;
use crate::shared::{Inside, enter};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PollError;
use uverbs_core::sync::ControlBarrier;
use uverbs_uapi::siw::{SIW_NOTIFY_NEXT_COMPLETION, SIW_NOTIFY_SOLICITED, SIW_WQE_VALID, siw_cqe};

/// The poller may enter.
const OPEN: u32 = 1;
/// The control path uses the ring.
const CLOSED: u32 = 2;
/// The poller could not be stopped: no more completions.
const LOST: u32 = 3;

/// The ring of a completion queue.
pub struct CqShared {
    access: QueueAccess,
    /// One control call at a time; a poller that finds the queue closed waits for this lock.
    control: Mutex<()>,
    state: UnsafeCell<CqState>,
}

// SAFETY: `state` is accessed through `Entered` by the only poller while the word is open, and by `stopped` while
// `control` is held, the word is closed and the poller is outside. `CqState` is `Send`. The other fields are `Sync`.
unsafe impl Sync for CqShared {}

impl CqShared {
    /// Creates the shared part of a queue with this ring.
    ///
    /// # Errors
    /// As [`QueueAccess::new`].
    pub(crate) fn new(state: CqState, barrier: ControlBarrier) -> io::Result<Arc<Self>> {
        let access = QueueAccess::new(OPEN, barrier)?;
        Ok(Arc::new(Self { access, control: Mutex::new(()), state: UnsafeCell::new(state) }))
    }

    /// Enters the queue as its poller.
    ///
    /// # Safety
    /// The caller is the queue's only poller, and has no other [`Entered`].
    #[inline(always)]
    pub(crate) unsafe fn enter(&self) -> Result<Entered<'_>, PollError> {
        loop {
            let inside = enter(&self.access);
            // Acquire: pairs with the store by which `stopped` opens the queue again.
            let word = self.access.word().load(Ordering::Acquire);
            if word == OPEN {
                return Ok(Entered { shared: self, _inside: inside });
            }
            drop(inside);
            self.wait(word)?;
        }
    }

    /// Waits for the control call that uses the queue.
    #[cold]
    fn wait(&self, word: u32) -> Result<(), PollError> {
        match word {
            QueueAccess::FORKED => Err(PollError::Forked),
            LOST => Err(PollError::Corrupt),
            _ => {
                drop(self.control.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(())
            }
        }
    }

    /// Whether this is a child of fork(2), where the queue belongs to the parent.
    pub(crate) fn is_forked(&self) -> bool {
        self.access.word().load(Ordering::Acquire) == QueueAccess::FORKED
    }

    /// Stops the poller and calls `f` with the state. `None` in a child of fork, or if the queue is lost.
    pub(crate) fn stopped<R>(&self, f: impl FnOnce(&mut CqState) -> R) -> Option<R> {
        let word = self.access.word();
        let replace = |from, to| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        if self.is_forked() {
            return None;
        }
        let _one = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        replace(OPEN, CLOSED).ok()?;
        if let Err(errno) = self.access.wait_idle() {
            log::error!("cq: membarrier(2): {errno}; the queue reports no more completions");
            let _ = replace(CLOSED, LOST);
            return None;
        }
        /// Opens the queue again, also when `f` panics.
        struct Reopen<F: Fn()>(F);
        impl<F: Fn()> Drop for Reopen<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let _reopen = Reopen(|| {
            let _ = replace(CLOSED, OPEN);
        });
        // SAFETY: `control` is held, and the word is closed: no poller has been inside since `wait_idle`, and one that
        // enters finds the closed word. So this is the only reference to the state.
        let state = unsafe { &mut *self.state.get() };
        Some(f(state))
    }

    /// Removes the completions of a QP that the kernel has destroyed, and returns their slots. The caller ensures that its
    /// number is not yet that of another QP: the kernel assigns the lowest free number.
    pub(crate) fn remove_completions(&self, qp_num: u32) {
        self.stopped(|state| state.remove(qp_num));
    }
}

impl fmt::Debug for CqShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqShared").field("access", &self.access).finish_non_exhaustive()
    }
}

/// The right to use the ring, for a poller inside the queue. Dropping it leaves the queue.
#[must_use]
pub(crate) struct Entered<'q> {
    shared: &'q CqShared,
    _inside: Inside<'q>,
}

impl Entered<'_> {
    /// The ring.
    #[inline(always)]
    pub(crate) fn state(&mut self) -> &mut CqState {
        // SAFETY: the only poller (`enter`) is inside and found the word open, so the control path waits until it
        // leaves. The result borrows `self`, so it is the only reference.
        unsafe { &mut *self.shared.state.get() }
    }
}

/// A ring of completions, and the position of the poller.
#[derive(Debug)]
pub(crate) struct CqState {
    ring: Ring<siw_cqe>,
    /// The first completion that is not polled, counted without end.
    at: u32,
}

impl CqState {
    pub(crate) fn new(ring: Ring<siw_cqe>) -> Self {
        Self { ring, at: 0 }
    }

    /// The number of completions that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.slots()
    }

    /// Whether the kernel has written the completion at this position.
    #[inline(always)]
    fn is_written(&self, index: u32) -> bool {
        const { assert!(SIW_WQE_VALID <= 0xff) };
        self.ring.flags_of(index) & SIW_WQE_VALID as u8 != 0
    }

    /// Takes the next completion and returns its slot, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<siw_cqe> {
        if !self.is_written(self.at) {
            return None;
        }
        let cqe = self.ring.read(self.at);
        self.ring.give_back(self.at);
        self.at = self.at.wrapping_add(1);
        Some(cqe)
    }

    /// Requests an event for the next (solicited) completion.
    ///
    /// The order of all stores and loads is that of the program, here and in the kernel (`smp_store_mb()` in
    /// `siw_sqe_complete()`): either a poll after this call finds a completion, or the kernel finds the request.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let next = if solicited_only { 0 } else { SIW_NOTIFY_NEXT_COMPLETION };
        self.ring.notify().store(SIW_NOTIFY_SOLICITED | next, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Removes the completions of a QP. The completions before them move up, in order, so the room is at the poller's end.
    /// The kernel writes only from its own position on, to slots that were returned.
    fn remove(&mut self, qp_num: u32) {
        let all = (0..self.ring.slots()).take_while(|i| self.is_written(self.at.wrapping_add(*i))).count();
        let end = self.at.wrapping_add(all as u32);
        let (mut from, mut to) = (end, end);
        for _ in 0..all {
            from = from.wrapping_sub(1);
            let cqe = self.ring.read(from);
            if cqe.qp_id == u64::from(qp_num) {
                continue;
            }
            to = to.wrapping_sub(1);
            if from != to {
                self.ring.replace(to, &cqe);
            }
        }
        while self.at != to {
            self.ring.give_back(self.at);
            self.at = self.at.wrapping_add(1);
        }
    }
}
