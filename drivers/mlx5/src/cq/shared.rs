// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a completion queue that its poller and the control path share.
//!
//! The state of the queue ([`CqState`]: consumer position, ring, lookup table) is accessed by one thread at a time. The
//! poller enters the queue for the memory accesses of one call ([`CqShared::enter`]). The control path stops the poller
//! first ([`CqShared::stopped`]), and then changes the lookup table and the ring as if no poller existed: a QP that is
//! reset or destroyed has no entries left in the ring, and no completion of it is reported after the control call returned.
//! `uverbs_core::kernel::QueueAccess` describes the handshake.
#![expect(unsafe_code)]
// UNSAFETY: returns a mutable reference to the state from a shared reference; this module ensures that only one exists at a
// time.

use super::ring::CqRing;
use super::state::CqState;
use crate::memory::dbrec::DbRec;
use crate::shared::QpShared;
use crate::shared::SrqShared;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use uverbs_core::kernel::{AccessRef, QueueAccess};
use uverbs_core::provider::PollError;
use uverbs_core::sync::ProcessMutex;

/// The word of a CQ, which is in the place of the limit of its [`QueueAccess`].
///
/// The low byte is the state of the queue. The upper bytes count control calls: if the word has not changed, `CqState` has
/// not changed either, for however long the poller was outside: 56 bits do not begin again. The word is never 0, because the kernel
/// wipes it to 0 in a child of fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqWord(u64);

impl CqWord {
    /// The poller may enter, with a compiler barrier only.
    const OPEN: u64 = 1;
    /// The poller may enter, with a full fence.
    const OPEN_FENCED: u64 = 2;
    /// The control path accesses the state.
    const CLOSED: u64 = 3;
    /// It is not known which ring the device writes, or the poller could not be stopped: no more completions are reported.
    const LOST: u64 = 4;
    /// A value that no CQ's word has, not even in a child of fork.
    pub(super) const NONE: Self = Self(u64::MAX);

    const fn new(count: u64, what: u64) -> Self {
        Self(count << 8 | what)
    }

    /// The value of the atomic.
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    const fn what(self) -> u64 {
        self.0 & 0xff
    }

    const fn count(self) -> u64 {
        self.0 >> 8
    }

    const fn is_forked(self) -> bool {
        self.0 == QueueAccess::FORKED as u64
    }
}

/// The part of a completion queue that its poller and the control path share.
pub struct CqShared {
    cqn: u32,
    access: QueueAccess,
    /// Held by a control call. A poller that finds the queue closed waits for this lock.
    control: ProcessMutex<()>,
    state: UnsafeCell<CqState>,
    dbrec: Arc<DbRec>,
    /// The number of events that were read. The device compares it to distinguish a new request for an event from a
    /// repeated one.
    arm_sn: AtomicU32,
}

// SAFETY: `state` is accessed in two ways: by the only poller, through `Entered`, while the word is open; and by `stopped`,
// while it holds `control`, the word is closed and the poller is outside (`wait_idle`). The other fields are `Sync`.
unsafe impl Sync for CqShared {}

impl CqShared {
    pub(super) fn new(cqn: u32, state: CqState, dbrec: Arc<DbRec>, access: QueueAccess) -> Self {
        let this = Self {
            cqn,
            access,
            control: ProcessMutex::default(),
            state: UnsafeCell::new(state),
            dbrec,
            arm_sn: AtomicU32::new(0),
        };
        this.access.limit().store(this.open_word(0).0, Ordering::Release);
        this
    }

    fn open_word(&self, count: u64) -> CqWord {
        CqWord::new(count, if self.access.needs_fence() { CqWord::OPEN_FENCED } else { CqWord::OPEN })
    }

    /// The queue's number, 24 bits.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Its doorbell record.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn dbrec(&self) -> &Arc<DbRec> {
        &self.dbrec
    }

    /// Counts an event of this queue that was read (`ibv_get_cq_event`); the next request for an event is a new one.
    pub fn event(&self) {
        self.arm_sn.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn arm_sn(&self) -> u32 {
        self.arm_sn.load(Ordering::Relaxed)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn word(&self) -> CqWord {
        CqWord(self.access.limit().load(Ordering::Acquire))
    }

    /// Enters if the word is `seen`, which an earlier [`enter_cold`](Self::enter_cold) returned. For the only poller.
    ///
    /// # Safety
    /// The caller has the only [`CompletionQueue`](super::CompletionQueue) of this queue, and no other [`Entered`] of it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn enter(&self, seen: CqWord) -> Option<Entered<'_>> {
        let is_open = self.access.by_ref().enter_if_wide(seen.0);
        let entered = Entered(self);
        if is_open { Some(entered) } else { None }
    }

    /// Enters in all other cases; waits for a control call in progress. Returns the word for [`enter`](Self::enter).
    ///
    /// # Safety
    /// The caller has the only [`CompletionQueue`](super::CompletionQueue) of this queue, and no other [`Entered`] of it.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn enter_cold(&self) -> Result<(Entered<'_>, CqWord), PollError> {
        loop {
            self.access.enter_fenced();
            let (entered, word) = (Entered(self), self.word());
            if word.is_forked() {
                return Err(PollError::Forked);
            }
            match word.what() {
                CqWord::OPEN => return Ok((entered, word)),
                // The fast path stays closed, because each poll needs the fence.
                CqWord::OPEN_FENCED => return Ok((entered, CqWord::NONE)),
                CqWord::LOST => return Err(PollError::Corrupt),
                _ => drop(entered),
            }
            drop(self.control.lock().map_err(|_| PollError::Forked)?);
        }
    }

    /// Enters again after the user's code ran outside the queue and `enter_if_wide` failed. `before` is the value of
    /// [`generation`](Self::generation) when the caller was inside. The flag is `false` if the state may have changed since
    /// then.
    ///
    /// # Safety
    /// The caller has the only [`CompletionQueue`](super::CompletionQueue) of this queue, and no other [`Entered`] of it.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn enter_again(&self, before: CqWord) -> Result<(Entered<'_>, bool), PollError> {
        self.access.leave();
        // SAFETY: the caller is the only poller and has no other `Entered` (the contract of this function).
        let (entered, _) = unsafe { self.enter_cold() }?;
        Ok((entered, self.generation() == before))
    }

    /// For a poll that leaves and enters for each completion: `enter_if_wide` with a word's [`bits`](CqWord::bits) is
    /// [`enter`](Self::enter), and has the same contract.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn access(&self) -> AccessRef<'_> {
        self.access.by_ref()
    }

    /// The word, which changes with each control call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn generation(&self) -> CqWord {
        self.word()
    }

    /// Stops the poller and calls `f` with the state. `None` in a child of fork, or if the queue is lost.
    fn stopped<R>(&self, f: impl FnOnce(&mut CqState) -> R) -> Option<R> {
        self.stopped_with(f, |f, state| f(state)).ok()
    }

    /// As [`stopped`](Self::stopped); returns `argument` if `f` is not called.
    fn stopped_with<A, R>(&self, argument: A, f: impl FnOnce(A, &mut CqState) -> R) -> Result<R, A> {
        if self.word().is_forked() {
            return Err(argument);
        }
        let Ok(_one) = self.control.lock() else { return Err(argument) };
        let before = self.word();
        if before.what() == CqWord::LOST {
            return Err(argument);
        }
        let count = before.count() + 1;
        if !self.replace_word(before, CqWord::new(count, CqWord::CLOSED)) {
            return Err(argument);
        }
        if let Err(errno) = self.access.wait_idle() {
            // The poller may still be inside, so the state must not be changed. The poller finds the queue lost when it
            // enters again.
            log::error!("cq {:#x}: membarrier(2): {errno}; the queue reports no more completions", self.cqn);
            self.replace_word(CqWord::new(count, CqWord::CLOSED), CqWord::new(count, CqWord::LOST));
            return Err(argument);
        }
        // SAFETY: `control` is held, and the word is closed: `wait_idle` found the poller outside, and a poller that enters
        // later finds the word closed. So this is the only reference to the state.
        let state = unsafe { &mut *self.state.get() };
        /// A poller would wait for ever for a queue that stays closed.
        struct LoseOnUnwind<'q>(&'q CqShared, u64);
        impl Drop for LoseOnUnwind<'_> {
            fn drop(&mut self) {
                self.0.replace_word(CqWord::new(self.1, CqWord::CLOSED), CqWord::new(self.1, CqWord::LOST));
            }
        }
        let unwinds = LoseOnUnwind(self, count);
        let result = f(argument, state);
        core::mem::forget(unwinds);
        let next = match state.is_lost() {
            true => CqWord::new(count, CqWord::LOST),
            // Each request for an event takes the slow path, which checks it.
            false if state.has_ended() => CqWord::new(count, CqWord::OPEN_FENCED),
            false => self.open_word(count),
        };
        self.replace_word(CqWord::new(count, CqWord::CLOSED), next);
        Ok(result)
    }

    /// Replaces the word if it is `from`, and returns whether it was. In a child of fork it is not, and stays
    /// unchanged. Release: a poller that enters by the new word sees the changes of the state.
    fn replace_word(&self, from: CqWord, to: CqWord) -> bool {
        self.access.limit().compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Counts control calls, as if they had been made.
    #[cfg(test)]
    pub(super) fn count_on(&self, calls: u64) {
        let word = self.word();
        self.access.limit().store(CqWord::new(word.count() + calls, word.what()).0, Ordering::Release);
    }

    /// Destroys the object by `destroy` while its poller is outside; if that succeeds, the poller requests no events any more.
    ///
    /// # Errors
    /// Those of `destroy`.
    pub(crate) fn destroyed<H, R, E>(
        &self,
        object: H,
        destroy: impl Fn(H) -> Result<R, (H, E)>,
    ) -> Result<R, (H, E)> {
        let result = self.stopped_with(object, |object, state| {
            let result = destroy(object);
            if result.is_ok() {
                state.end();
            }
            result
        });
        // In a child of fork(2), or if the queue is lost, no poll enters.
        result.unwrap_or_else(destroy)
    }

    /// Adds a new QP whose completions go to this CQ. To be called before it can post.
    pub(crate) fn attach_qp(&self, qp: &Arc<QpShared>) {
        self.stopped(|state| state.attach_qp(qp));
    }

    /// Adds a new SRQ that completions name instead of a QP (XRC). To be called before it can receive.
    pub(crate) fn attach_srq(&self, srq: &Arc<SrqShared>) {
        self.stopped(|state| state.attach_srq(srq));
    }

    /// Removes the entries of a QP that the kernel has reset. To be called before its queues restart. When this returns,
    /// the ring has no entry of the QP, no poll reports one, and the memory of its WQEs is not written.
    pub(crate) fn reset_qp(&self, qp: &Arc<QpShared>) {
        self.stopped(|state| state.remove_entries_of_qp(qp, self.consumer_word()));
    }

    /// Removes a QP that the kernel has destroyed, and its entries as [`reset_qp`](Self::reset_qp) does.
    pub(crate) fn detach_qp(&self, qp: &Arc<QpShared>) {
        self.stopped(|state| {
            state.remove_entries_of_qp(qp, self.consumer_word());
            state.detach_qp(qp);
        });
    }

    /// Removes an SRQ that the kernel has destroyed. When this returns, the ring has no entry that names it.
    pub(crate) fn detach_srq(&self, srq: &Arc<SrqShared>) {
        self.stopped(|state| {
            state.remove_entries_of_srq(srq, self.consumer_word());
            state.detach_srq(srq);
        });
    }

    /// Gives the ring to the program, which polls it from now on. Returns the ring's address, and the number and size
    /// of its entries.
    pub(crate) fn give_to_program(&self) -> Option<(*mut u8, u32, u32)> {
        self.stopped(|state| {
            state.is_of_program = true;
            let ring = state.ring.blocks().ring();
            (ring.as_ptr(), ring.mask() + 1, ring.stride() as u32)
        })
    }

    /// To be called before the kernel gives another ring to the device. Until [`end_resize`](Self::end_resize) there may be
    /// completions in both rings. `false` if the queue is lost, or in a child of fork.
    pub(super) fn begin_resize(&self, ring: CqRing) -> bool {
        self.stopped(|state| state.begin_resize(ring)).is_some()
    }

    /// To be called if the kernel has not given the ring of [`begin_resize`](Self::begin_resize) to the device.
    pub(super) fn cancel_resize(&self) {
        self.stopped(CqState::cancel_resize);
    }

    /// Moves the entries of the old ring to the new one, which the device writes now.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the old ring does not end with the mark of a resize. Then the queue is lost.
    pub(super) fn end_resize(&self) -> Result<(), PollError> {
        self.stopped(|state| state.end_resize(self.consumer_word())).unwrap_or(Err(PollError::Corrupt))
    }

    /// To be called if it is not known which ring the device writes: the queue is lost.
    pub(super) fn lose_ring(&self) {
        self.stopped(CqState::lose);
    }

    fn consumer_word(&self) -> &AtomicU32 {
        self.dbrec.word(uverbs_mlx5_hw::doorbell::CQ_SET_CI)
    }
}

impl fmt::Debug for CqShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqShared")
            .field("cqn", &format_args!("{:#x}", self.cqn))
            .field("access", &self.access)
            .field("dbrec", &self.dbrec)
            .finish_non_exhaustive()
    }
}

/// The right to access the queue's state, for a poller inside the queue. Dropping it leaves the queue.
#[must_use]
pub(super) struct Entered<'q>(&'q CqShared);

impl<'q> Entered<'q> {
    /// The state.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn state(&mut self) -> &mut CqState {
        // SAFETY: the only poller (`enter`) is inside and found the word open, so the control path waits until it leaves.
        // The result borrows `self`, so it is the only reference to the state.
        unsafe { &mut *self.0.state.get() }
    }
}

impl<'q> Entered<'q> {
    /// Gives this value up without leaving the queue; [`assume`](Self::assume) creates it again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn stay(self) {
        core::mem::forget(self);
    }

    /// Creates the value that [`stay`](Self::stay) gave up.
    ///
    /// # Safety
    /// The caller is the queue's only poller, and gave up its last `Entered` by [`stay`](Self::stay).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn assume(shared: &'q CqShared) -> Self {
        Self(shared)
    }
}

impl Drop for Entered<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.0.access.leave();
    }
}
