// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue's ring, which its poller and the control path share.
//!
//! The ring has one user at a time. The poller enters for the memory accesses of one step ([`CqShared::enter`]); the
//! control path stops it first ([`CqShared::stopped`]), by the handshake that `uverbs_core::kernel::QueueAccess`
//! describes. So after a control call has reset or destroyed a QP, no poll reports a completion of it, and none takes a
//! slot in the ring. (With librxe, the next poll reports them.)
#![expect(unsafe_code)]
// UNSAFETY: returns a mutable reference to the ring from a shared reference; this module ensures that there is one user
// at a time.

use crate::queue::Ring;
use crate::shared::{Inside, enter};
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PollError;
use uverbs_core::sync::ControlBarrier;
use uverbs_uapi::cmd::ib_uverbs_wc;

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

    /// Removes the completions of a QP that the kernel has reset or destroyed, and returns their slots.
    ///
    /// The kernel assigns numbers in a cycle (`__rxe_add_to_pool()`), so this number is not yet that of another QP.
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
    ring: Ring<ib_uverbs_wc>,
    /// The first completion that is not polled.
    at: u32,
    /// The consumer index that was stored for the kernel: the slots before it are returned.
    given: u32,
    /// The kernel's index at the last load, always inside the ring.
    producer: u32,
    /// The ring that the kernel writes could not be mapped after a resize.
    lost: bool,
}

impl CqState {
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's indices make no sense.
    pub(crate) fn new(ring: Ring<ib_uverbs_wc>) -> Result<Self, PollError> {
        let mut state = Self { ring, at: 0, given: 0, producer: 0, lost: false };
        state.resync()?;
        Ok(state)
    }

    /// The number of completions that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Replaces the ring by the one to which the kernel moved the completions that were not polled.
    pub(crate) fn replace_ring(&mut self, ring: Ring<ib_uverbs_wc>) -> Result<(), PollError> {
        self.ring = ring;
        let result = self.resync();
        self.lost = result.is_err();
        result
    }

    /// The kernel uses a ring that could not be mapped, so its completions can't be read.
    pub(crate) fn lose_ring(&mut self) {
        self.lost = true;
        self.producer = self.at;
    }

    fn resync(&mut self) -> Result<(), PollError> {
        let (consumer, mask) = (self.ring.consumer(), self.ring.mask());
        if consumer > mask {
            return Err(PollError::Corrupt);
        }
        (self.at, self.given, self.producer) = (consumer, consumer, consumer);
        Ok(())
    }

    /// Reads the kernel's index.
    #[inline(always)]
    fn refresh(&mut self) -> Result<(), PollError> {
        let producer = self.ring.producer();
        if producer > self.ring.mask() || self.lost {
            return Err(PollError::Corrupt);
        }
        self.producer = producer;
        Ok(())
    }

    /// The number of completions, as far as is known.
    #[inline(always)]
    fn known(&self) -> u32 {
        self.producer.wrapping_sub(self.at) & self.ring.mask()
    }

    /// The number of completions, up to `max`, that a poll finds. Reads the kernel's index only if fewer are known.
    #[inline(always)]
    pub(crate) fn available(&mut self, max: usize) -> Result<usize, PollError> {
        if (self.known() as usize) < max
            && let Err(error) = self.refresh()
            && self.known() == 0
        {
            return Err(error);
        }
        Ok(max.min(self.known() as usize))
    }

    /// Takes the next completion, if one is known.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<ib_uverbs_wc> {
        if self.at == self.producer {
            return None;
        }
        let next = (self.at + 1) & self.ring.mask();
        // The slots that were taken are not returned yet, so a producer index beyond them is invalid.
        if next == self.given {
            return None;
        }
        let wc = self.ring.entry(self.at).field::<0, ib_uverbs_wc>();
        self.at = next;
        Some(wc)
    }

    /// Returns the slots of all completions that were taken.
    #[inline(always)]
    pub(crate) fn give_back(&mut self) {
        if self.at != self.given {
            self.given = self.at;
            self.ring.publish_consumer(self.at);
        }
    }

    /// Removes the completions of a QP. The completions before them move up, in order, so the room is at the consumer's
    /// end. The kernel writes only from its own index on; it reads completions only in a resize, which is a control
    /// call.
    fn remove(&mut self, qp_num: u32) {
        if self.refresh().is_err() {
            return;
        }
        let mask = self.ring.mask();
        let (mut from, mut to) = (self.producer, self.producer);
        for _ in 0..self.known() {
            from = from.wrapping_sub(1) & mask;
            let entry = self.ring.entry(from);
            if entry.field::<{ offset_of!(ib_uverbs_wc, qp_num) }, u32>() == qp_num {
                continue;
            }
            to = to.wrapping_sub(1) & mask;
            if from != to {
                let wc = entry.field::<0, ib_uverbs_wc>();
                self.ring.slot(to).put_head(wc);
            }
        }
        if to != self.at {
            // The completion that an open poll has taken is copied, so its slot can be returned, too.
            self.at = to;
            self.give_back();
        }
    }
}
