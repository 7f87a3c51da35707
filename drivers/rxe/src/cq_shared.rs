// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue's ring as its poller and the control path share it.
//!
//! The ring has one user at a time. The poller enters for the memory accesses of one step ([`CqShared::enter`]); the control
//! path stops it first ([`CqShared::stopped`]), by the handshake that `uverbs_core::kernel::QueueAccess` describes. So a QP
//! that is reset or destroyed leaves no completion behind: none is reported after the control call returned, and none holds a
//! place in the ring. (librxe leaves them to the next poll.)
#![expect(unsafe_code)]
// UNSAFETY: hands out the ring from a shared reference; this module proves that there is one user at a time.

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
    /// One control call at a time; a poller that finds the queue closed waits for it here.
    control: Mutex<()>,
    state: UnsafeCell<CqState>,
}

// SAFETY: `state` is reached through `Entered` by the one poller while the word is open, and by `stopped` with `control`
// held, the word closed and the poller known to be outside. `CqState` is `Send`. The rest is `Sync` by itself.
unsafe impl Sync for CqShared {}

impl CqShared {
    /// For a ring of completions.
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

    /// Waits for the control call that has the queue.
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

    /// Whether this is a child of fork, and the queue its parent's.
    pub(crate) fn is_forked(&self) -> bool {
        self.access.word().load(Ordering::Acquire) == QueueAccess::FORKED
    }

    /// Stops the poller and gives the ring to `f`. `None` in a child of fork, or if the queue is lost.
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

    /// The kernel has reset or destroyed the QP of this number: takes its completions out, and gives their places back.
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

/// The right of the poller, which is inside the queue, to use its ring. It leaves when dropped.
#[must_use]
pub(crate) struct Entered<'q> {
    shared: &'q CqShared,
    _inside: Inside<'q>,
}

impl Entered<'_> {
    /// The ring.
    #[inline(always)]
    pub(crate) fn state(&mut self) -> &mut CqState {
        // SAFETY: the poller, of which there is one (`enter`), is inside and found the word open, so the control path waits
        // for it to leave. The reference lives as long as `self` is borrowed, so it is the only one.
        unsafe { &mut *self.shared.state.get() }
    }
}

/// A ring of completions, and how far it is polled.
#[derive(Debug)]
pub(crate) struct CqState {
    ring: Ring<ib_uverbs_wc>,
    /// The first completion that is not polled.
    at: u32,
    /// The consumer index that was stored for the kernel: the slots before it are returned.
    given: u32,
    /// The kernel's index as last seen, always inside the ring.
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

    /// Exchanges the ring, after the kernel moved what was not polled to a new one.
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

    /// Gives the places of all that was taken back to the kernel.
    #[inline(always)]
    pub(crate) fn give_back(&mut self) {
        if self.at != self.given {
            self.given = self.at;
            self.ring.publish_consumer(self.at);
        }
    }

    /// Takes the completions of a QP out. Those before them move up, in their order, so that the room is at the consumer's
    /// end. The kernel writes behind its own index, and reads none of them but in a resize, which is a control call.
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
