// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue as its poller and the control path share it.
//!
//! The state of the queue ([`CqState`]: consumer position, ring, lookup table) has one user at a time. The poller enters
//! for the memory accesses of one call ([`CqShared::enter`]). The control path stops the poller first
//! ([`CqShared::stopped`]), and so changes the lookup table and the ring as if no poller existed: a QP that is reset or
//! destroyed leaves nothing behind in the ring, and no completion of it is reported after the control call returned.
//! `uverbs_core::kernel::QueueAccess` describes the handshake.
#![expect(unsafe_code)]
// UNSAFETY: hands out the state from a shared reference; this module proves that there is one user at a time.

use super::ring::CqRing;
use super::state::CqState;
use crate::memory::dbrec::DbRec;
use crate::qp::QpShared;
use crate::rq::SrqShared;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_core::kernel::{AccessAtHand, QueueAccess};
use uverbs_core::provider::PollError;

/// The word of a CQ's [`QueueAccess`].
///
/// The low byte says what the poller may do; the rest counts control calls, so that a poller that finds the word unchanged
/// knows that the state is unchanged, too. Never 0, which is what a child of fork finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqWord(u32);

impl CqWord {
    /// The poller may enter, by a light barrier.
    const OPEN: u32 = 1;
    /// The poller may enter by a full fence.
    const OPEN_FENCED: u32 = 2;
    /// The control path uses the state.
    const CLOSED: u32 = 3;
    /// The ring that the device writes is not known, or the poller could not be stopped: no more completions.
    const LOST: u32 = 4;
    /// Equal to the word of no CQ, and to that of no child of fork.
    pub(super) const NONE: Self = Self(u32::MAX);

    const fn new(count: u32, what: u32) -> Self {
        Self(count << 8 | what)
    }

    /// As the atomic holds it.
    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    const fn what(self) -> u32 {
        self.0 & 0xff
    }

    const fn count(self) -> u32 {
        self.0 >> 8
    }

    const fn is_forked(self) -> bool {
        self.0 == QueueAccess::FORKED
    }
}

/// A completion queue, as its poller and the control path share it.
pub struct CqShared {
    cqn: u32,
    access: QueueAccess,
    /// One control call at a time; a poller that finds the queue closed waits for it here.
    control: Mutex<()>,
    state: UnsafeCell<CqState>,
    dbrec: Arc<DbRec>,
    /// Counts the events that were read. The device compares it to tell a new arming from a repeated one.
    arm_sn: AtomicU32,
}

// SAFETY: `state` is reached through `Entered` by the one poller while the word is open, and by `stopped` with `control`
// held, the word closed and the poller known to be outside. The rest is `Sync` by itself.
unsafe impl Sync for CqShared {}

impl CqShared {
    pub(super) fn new(cqn: u32, state: CqState, dbrec: Arc<DbRec>, access: QueueAccess) -> Self {
        let this = Self {
            cqn,
            access,
            control: Mutex::default(),
            state: UnsafeCell::new(state),
            dbrec,
            arm_sn: AtomicU32::new(0),
        };
        this.access.word().store(this.open_word(0).0, Ordering::Release);
        this
    }

    fn open_word(&self, count: u32) -> CqWord {
        CqWord::new(count, if self.access.needs_fence() { CqWord::OPEN_FENCED } else { CqWord::OPEN })
    }

    /// The queue's number, 24 bits.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Its doorbell record.
    #[inline(always)]
    #[must_use]
    pub fn dbrec(&self) -> &Arc<DbRec> {
        &self.dbrec
    }

    /// Notes that an event of this queue was read (`ibv_get_cq_event`): the next arming is a new one.
    pub fn event(&self) {
        self.arm_sn.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn arm_sn(&self) -> u32 {
        self.arm_sn.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn word(&self) -> CqWord {
        CqWord(self.access.word().load(Ordering::Acquire))
    }

    /// Enters if the word is `seen`, with which an earlier [`enter_cold`](Self::enter_cold) came back. For the one poller.
    ///
    /// # Safety
    /// The caller has the only [`CompletionQueue`](super::CompletionQueue) of this queue, and no other [`Entered`].
    #[inline(always)]
    pub(super) unsafe fn enter(&self, seen: CqWord) -> Option<Entered<'_>> {
        let is_open = self.access.at_hand().enter_if(seen.0);
        let entered = Entered(self);
        if is_open { Some(entered) } else { None }
    }

    /// Enters in any other case, after a control call that is under way. Gives the word for [`enter`](Self::enter).
    ///
    /// # Safety
    /// As [`enter`](Self::enter).
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
                // No word for the short way: each poll needs the fence.
                CqWord::OPEN_FENCED => return Ok((entered, CqWord::NONE)),
                CqWord::LOST => return Err(PollError::Corrupt),
                _ => drop(entered),
            }
            drop(self.control.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Enters again where that fails, after code of the user ran outside. `before` is the word that was
    /// [`generation`](Self::generation) inside. `false` if the state may have changed since.
    ///
    /// # Safety
    /// As [`enter`](Self::enter).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn enter_again(&self, before: CqWord) -> Result<(Entered<'_>, bool), PollError> {
        self.access.leave();
        // SAFETY: the caller's promise.
        let (entered, _) = unsafe { self.enter_cold() }?;
        Ok((entered, self.generation() == before))
    }

    /// For a poll that leaves and enters for each completion: as [`enter`](Self::enter), with the same contract, where
    /// `enter_if` is given a word's [`bits`](CqWord::bits).
    #[inline(always)]
    pub(super) fn access(&self) -> AccessAtHand<'_> {
        self.access.at_hand()
    }

    /// The word, which changes with each control call.
    #[inline(always)]
    pub(super) fn generation(&self) -> CqWord {
        self.word()
    }

    /// Stops the poller and changes the state. `None` in a child of fork, or if the queue is lost.
    fn stopped<R>(&self, f: impl FnOnce(&mut CqState) -> R) -> Option<R> {
        if self.word().is_forked() {
            return None;
        }
        let _one = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.word();
        if before.what() == CqWord::LOST {
            return None;
        }
        let count = before.count().wrapping_add(1) & 0xff_ffff;
        if !self.replace_word(before, CqWord::new(count, CqWord::CLOSED)) {
            return None;
        }
        if let Err(errno) = self.access.wait_idle() {
            // Unsound to go on: the poller may be inside. It finds the queue lost when it comes back.
            log::error!("cq {:#x}: membarrier(2): {errno}; the queue reports no more completions", self.cqn);
            self.replace_word(CqWord::new(count, CqWord::CLOSED), CqWord::new(count, CqWord::LOST));
            return None;
        }
        // SAFETY: `control` is held, and the word is closed: no poller has been inside since `wait_idle`, and one that
        // enters finds the closed word. So this is the only reference to the state.
        let state = unsafe { &mut *self.state.get() };
        let result = f(state);
        let next = if state.is_lost() { CqWord::new(count, CqWord::LOST) } else { self.open_word(count) };
        self.replace_word(CqWord::new(count, CqWord::CLOSED), next);
        Some(result)
    }

    /// Whether the word was `from`: in a child of fork it stays what it is. Release: a poller that enters by the new word
    /// sees what was changed before.
    fn replace_word(&self, from: CqWord, to: CqWord) -> bool {
        self.access.word().compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// A QP was created that completes here; before it can post.
    pub fn attach_qp(&self, qp: &Arc<QpShared>) {
        self.stopped(|state| state.attach_qp(qp));
    }

    /// An SRQ was created whose completions name it, not a QP (XRC); before it can receive.
    pub fn attach_srq(&self, srq: &Arc<SrqShared>) {
        self.stopped(|state| state.attach_srq(srq));
    }

    /// The kernel has reset the QP; before its queues start anew. When this returns, the queue holds no completion of the
    /// QP, no poll reports one, and no memory of its WQEs is written.
    pub fn reset_qp(&self, qp: &Arc<QpShared>) {
        self.stopped(|state| state.remove_entries_of_qp(qp, self.consumer_word()));
    }

    /// The kernel has destroyed the QP. As [`reset_qp`](Self::reset_qp), and the QP is not known here any more.
    pub fn detach_qp(&self, qp: &Arc<QpShared>) {
        self.stopped(|state| {
            state.remove_entries_of_qp(qp, self.consumer_word());
            state.detach_qp(qp);
        });
    }

    /// The kernel has destroyed the SRQ. When this returns, the queue holds no completion that names it.
    pub fn detach_srq(&self, srq: &Arc<SrqShared>) {
        self.stopped(|state| {
            state.remove_entries_of_srq(srq, self.consumer_word());
            state.detach_srq(srq);
        });
    }

    /// The kernel is about to give the device another ring. Until [`end_resize`](Self::end_resize) completions may be in
    /// both. `false` if there is no queue to resize.
    pub(super) fn begin_resize(&self, ring: CqRing) -> bool {
        self.stopped(|state| state.begin_resize(ring)).is_some()
    }

    /// The kernel has not given the device the ring of [`begin_resize`](Self::begin_resize).
    pub(super) fn cancel_resize(&self) {
        self.stopped(CqState::cancel_resize);
    }

    /// The device writes the new ring: takes over what is in the old one.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the old ring does not end as the device ends it. Then the queue is lost.
    pub(super) fn end_resize(&self) -> Result<(), PollError> {
        self.stopped(|state| state.end_resize(self.consumer_word())).unwrap_or(Err(PollError::Corrupt))
    }

    /// Which ring the device writes is not known: the queue is lost.
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

/// The right of the poller, which is inside the queue, to use its state. It leaves when dropped.
#[must_use]
pub(super) struct Entered<'q>(&'q CqShared);

impl<'q> Entered<'q> {
    /// The state.
    #[inline(always)]
    pub(super) fn state(&mut self) -> &mut CqState {
        // SAFETY: the poller, of which there is one (`enter`), is inside and found the word open, so the control path waits
        // for it to leave. The reference lives as long as `self` is borrowed, so it is the only one.
        unsafe { &mut *self.0.state.get() }
    }
}

impl<'q> Entered<'q> {
    /// Stays inside: [`assume`](Self::assume) goes on.
    #[inline(always)]
    pub(super) fn stay(self) {
        core::mem::forget(self);
    }

    /// The value that [`stay`](Self::stay) gave up.
    ///
    /// # Safety
    /// The caller is the queue's only poller, and its last `Entered` ended by [`stay`](Self::stay).
    #[inline(always)]
    pub(super) unsafe fn assume(shared: &'q CqShared) -> Self {
        Self(shared)
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.access.leave();
    }
}
