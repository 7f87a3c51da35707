// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue: polling and arming. The ring is in `cq_shared`, because control calls use it, too.
//!
//! The kernel stores `struct ib_uverbs_wc` (`rxe_cq_post()`). A poll copies a completion and leaves the queue before it
//! passes the copy to the user, whose code may make control calls. What a [`Claimant`] keeps for the work request is taken before.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut CompletionQueue` guarantees.

use crate::cq_shared::{CqShared, CqState};
use crate::doorbell::ArmBell;
#[cfg(any(test, feature = "test-utils"))]
use crate::queue::Ring;
use core::fmt;
use std::sync::Arc;
use uverbs_core::kernel::Entered;
use uverbs_core::provider::completion::Claimant;
use uverbs_core::provider::{
    Completion as CompletionTrait, CompletionQueue as CompletionQueueTrait, PollError,
};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_uapi::cmd::ib_uverbs_wc;

/// A completion queue, which `B` arms.
pub struct CompletionQueue<B> {
    shared: Arc<CqShared>,
    /// Whether an extended poll is open.
    is_open: bool,
    /// The current completion of the open poll, or of the last one.
    last: Option<Completion>,
    capacity: u32,
    bell: B,
}

impl<B: ArmBell> CompletionQueue<B> {
    /// A queue on a ring of completions.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's indices make no sense.
    ///
    /// # Panics
    /// If memory can't be allocated.
    #[cfg(any(test, feature = "test-utils"))]
    pub fn new(ring: Ring<ib_uverbs_wc>, bell: B) -> Result<Self, PollError> {
        let state = CqState::new(ring)?;
        let capacity = state.capacity();
        let shared = CqShared::new(state, ControlBarrier::register());
        Ok(Self { shared: shared.expect("a page of memory"), is_open: false, last: None, capacity, bell })
    }

    /// A queue with a ring that the control path shares.
    pub(crate) fn create(
        state: CqState,
        barrier: ControlBarrier,
        bell: B,
    ) -> std::io::Result<(Self, Arc<CqShared>)> {
        let capacity = state.capacity();
        let shared = CqShared::new(state, barrier)?;
        Ok((Self { shared: Arc::clone(&shared), is_open: false, last: None, capacity, bell }, shared))
    }

    /// The object that arms the queue.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// The state that the queue shares with control calls.
    pub(crate) fn shared(&self) -> &CqShared {
        &self.shared
    }

    #[cfg(test)]
    pub(crate) fn shared_arc(&self) -> Arc<CqShared> {
        Arc::clone(&self.shared)
    }

    /// Whether an extended poll is open.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Calls `f`, which may replace the ring, with the state; control calls wait. `None` in a child of fork, or if the
    /// queue is lost.
    pub(crate) fn resize<R>(&mut self, f: impl FnOnce(&mut CqState) -> R) -> Option<R> {
        let (result, capacity) = self.shared.stopped(|state| (f(state), state.capacity()))?;
        self.capacity = capacity;
        Some(result)
    }

    /// Enters the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enter(&mut self) -> Result<Entered<'_, CqState>, PollError> {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists: each borrows the poller.
        unsafe { self.shared.enter() }
    }

    /// Whether a poll may begin.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn may_poll(&self) -> Result<(), PollError> {
        if self.is_open { Err(PollError::SessionOpen) } else { Ok(()) }
    }
}

/// Returns the polled slots to the kernel when dropped, also if a callback panics.
struct GiveBack<'q, B: ArmBell>(&'q mut CompletionQueue<B>);

impl<B: ArmBell> Drop for GiveBack<'_, B> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        // In a child of fork no slots can be returned.
        if let Ok(mut entered) = self.0.enter() {
            entered.state().give_back();
        }
    }
}

/// Takes the completions of a poll, and claims nothing.
struct Call<F>(F);

impl<B: ArmBell, F: FnMut(&Completion)> Claimant<CompletionQueue<B>> for Call<F> {
    type Claim = ();
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn claim(&mut self, _: &Completion) {}
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pass(&mut self, completion: &Completion, (): ()) {
        (self.0)(completion);
    }
}

impl<B: ArmBell> CompletionQueueTrait for CompletionQueue<B> {
    type Completion<'c>
        = Completion
    where
        Self: 'c;

    #[inline]
    fn poll_each(&mut self, max: usize, f: impl FnMut(&Completion)) -> Result<usize, PollError> {
        self.poll_claiming(max, Call(f))
    }

    #[inline]
    fn poll_claiming(&mut self, max: usize, mut claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        self.may_poll()?;
        // Only the completions that are in the ring when the call begins, so the call ends even if the kernel writes
        // continually.
        let n = self.enter()?.state().available(max)?;
        if n == 0 {
            return Ok(0);
        }
        let queue = GiveBack(self);
        for done in 0..n {
            let mut entered = queue.0.enter()?;
            // A control call may have removed the rest.
            let Some(wc) = entered.state().take() else { return Ok(done) };
            let completion = Completion { wc };
            let claim = claimant.claim(&completion);
            drop(entered);
            claimant.pass(&completion, claim);
        }
        Ok(n)
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        self.may_poll()?;
        let mut entered = self.enter()?;
        let state = entered.state();
        state.available(1)?;
        let wc = state.take().ok_or(PollError::Empty)?;
        drop(entered);
        self.last = Some(Completion { wc });
        self.is_open = true;
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if !self.is_open {
            return Err(PollError::NoSession);
        }
        let mut entered = self.enter()?;
        let state = entered.state();
        state.more()?;
        let wc = state.take().ok_or(PollError::Empty)?;
        drop(entered);
        self.last = Some(Completion { wc });
        Ok(())
    }

    #[inline]
    fn end_poll(&mut self) {
        if core::mem::take(&mut self.is_open) {
            drop(GiveBack(self));
        }
    }

    #[inline]
    fn current(&self) -> Option<Completion> {
        if self.is_open { self.last } else { None }
    }

    #[inline]
    fn last(&self) -> Option<Completion> {
        self.last
    }

    #[inline]
    fn is_surely_empty(&mut self) -> bool {
        !self.is_open && self.enter().is_ok_and(|mut entered| entered.state().available(1) == Ok(0))
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        self.bell.arm(solicited_only).map_err(PollError::Arm)
    }

    fn cqe(&self) -> u32 {
        self.capacity
    }
}

impl<B: fmt::Debug> fmt::Debug for CompletionQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("shared", &self.shared)
            .field("is_open", &self.is_open)
            .field("last", &self.last)
            .field("capacity", &self.capacity)
            .field("bell", &self.bell)
            .finish()
    }
}

/// One completion.
#[derive(Clone, Copy)]
pub struct Completion {
    wc: ib_uverbs_wc,
}

/// The kernel stores its own flags, not those of the verbs (`do_complete()` in rxe_resp.c): `IB_WC_GRH` and
/// `IB_WC_WITH_IMM` are the same, but `IB_WC_WITH_INVALIDATE` is bit 2, which in `enum ibv_wc_flags` means that
/// checksums are correct, and for bit 3 it is the reverse. rxe checks no checksums, so either bit means an
/// invalidation. (librxe passes the kernel's bits on.)
#[cfg_attr(not(debug_assertions), inline(always))]
const fn wc_flags(kernel: u32) -> WcFlags {
    const INVALIDATED: u32 = 1 << 2 | 1 << 3;
    let same = WcFlags::GRH.union(WcFlags::WITH_IMM).bits() & kernel;
    let inv = if kernel & INVALIDATED != 0 { WcFlags::WITH_INV.bits() } else { 0 };
    WcFlags::from_bits_retain(same | inv)
}

impl CompletionTrait for Completion {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn status(&self) -> WcStatus {
        WcStatus(self.wc.status)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn opcode(&self) -> WcOpcode {
        WcOpcode(self.wc.opcode)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte_len(&self) -> u32 {
        self.wc.byte_len
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_num(&self) -> u32 {
        self.wc.qp_num
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn src_qp(&self) -> u32 {
        self.wc.src_qp
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wc_flags(&self) -> WcFlags {
        wc_flags(self.wc.wc_flags)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        zerocopy::transmute!(self.wc.imm_data)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pkey_index(&self) -> u16 {
        self.wc.pkey_index
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slid(&self) -> u32 {
        self.wc.slid.into()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sl(&self) -> u8 {
        self.wc.sl
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dlid_path_bits(&self) -> u8 {
        self.wc.dlid_path_bits
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_wc().fmt(f)
    }
}
