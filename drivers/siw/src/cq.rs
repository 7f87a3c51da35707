// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue: polling and arming. The ring is in `cq_shared`, because control calls use it, too.
//!
//! A poll copies a completion, returns its slot and leaves the queue before it passes the copy to the user, whose code may
//! make control calls. What a [`Claimant`] keeps for the work request is taken before.
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut CompletionQueue` guarantees.

use crate::cq_shared::{CqShared, CqState};
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
use uverbs_uapi::siw::*;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    shared: Arc<CqShared>,
    /// Whether an extended poll is open.
    is_open: bool,
    /// The current completion of the open poll, or of the last one.
    last: Option<Completion>,
    capacity: u32,
}

impl CompletionQueue {
    /// A queue on a new ring of completions.
    ///
    /// # Panics
    /// If memory can't be allocated.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn new(ring: Ring<siw_cqe>) -> Self {
        Self::create(CqState::new(ring), ControlBarrier::register()).expect("a page of memory").0
    }

    /// A queue with a ring that the control path shares.
    pub(crate) fn create(state: CqState, barrier: ControlBarrier) -> std::io::Result<(Self, Arc<CqShared>)> {
        let capacity = state.capacity();
        let shared = CqShared::new(state, barrier)?;
        Ok((Self { shared: Arc::clone(&shared), is_open: false, last: None, capacity }, shared))
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<CqShared> {
        Arc::clone(&self.shared)
    }

    /// Enters the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enter(&mut self) -> Result<Entered<'_, CqState>, PollError> {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists: each borrows the poller.
        unsafe { self.shared.enter() }
    }

    /// Takes the next completion, and calls `claim` with it, inside the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take<R>(
        &mut self,
        claim: impl FnOnce(&Completion) -> R,
    ) -> Result<Option<(Completion, R)>, PollError> {
        let mut entered = self.enter()?;
        let taken = entered.state().take().map(|cqe| Completion { cqe });
        Ok(taken.map(|completion| (completion, claim(&completion))))
    }

    /// Takes the next completion for an extended poll.
    fn take_one(&mut self) -> Result<Completion, PollError> {
        Ok(self.take(|_| ())?.ok_or(PollError::Empty)?.0)
    }
}

/// Takes the completions of a poll, and claims nothing.
struct Call<F>(F);

impl<F: FnMut(&Completion)> Claimant<CompletionQueue> for Call<F> {
    type Claim = ();
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn claim(&mut self, _: &Completion) {}
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pass(&mut self, completion: &Completion, (): ()) {
        (self.0)(completion);
    }
}

impl CompletionQueueTrait for CompletionQueue {
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
        if self.is_open {
            return Err(PollError::SessionOpen);
        }
        // At most one ring, so the call ends even if the kernel writes continually.
        let max = max.min(self.capacity as usize);
        let mut done = 0;
        while done < max {
            match self.take(|completion| claimant.claim(completion)) {
                Ok(Some((completion, claim))) => claimant.pass(&completion, claim),
                Ok(None) => break,
                Err(error) if done == 0 => return Err(error),
                // The next call reports it.
                Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        if self.is_open {
            return Err(PollError::SessionOpen);
        }
        self.last = Some(self.take_one()?);
        self.is_open = true;
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if !self.is_open {
            return Err(PollError::NoSession);
        }
        self.last = Some(self.take_one()?);
        Ok(())
    }

    #[inline]
    fn end_poll(&mut self) {
        self.is_open = false;
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
        !self.is_open && self.enter().is_ok_and(|mut entered| !entered.state().has_entry())
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        self.enter()?.state().arm(solicited_only);
        Ok(())
    }

    fn cqe(&self) -> u32 {
        self.capacity
    }
}

/// One completion.
#[derive(Clone, Copy)]
pub struct Completion {
    cqe: siw_cqe,
}

impl CompletionTrait for Completion {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_id(&self) -> u64 {
        self.cqe.id
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn status(&self) -> WcStatus {
        match self.cqe.status {
            SIW_WC_SUCCESS => WcStatus::SUCCESS,
            SIW_WC_LOC_LEN_ERR => WcStatus::LOC_LEN_ERR,
            SIW_WC_LOC_PROT_ERR => WcStatus::LOC_PROT_ERR,
            SIW_WC_LOC_QP_OP_ERR => WcStatus::LOC_QP_OP_ERR,
            SIW_WC_WR_FLUSH_ERR => WcStatus::WR_FLUSH_ERR,
            SIW_WC_BAD_RESP_ERR => WcStatus::BAD_RESP_ERR,
            SIW_WC_LOC_ACCESS_ERR => WcStatus::LOC_ACCESS_ERR,
            SIW_WC_REM_ACCESS_ERR => WcStatus::REM_ACCESS_ERR,
            SIW_WC_REM_INV_REQ_ERR => WcStatus::REM_INV_REQ_ERR,
            _ => WcStatus::GENERAL_ERR,
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn opcode(&self) -> WcOpcode {
        match self.cqe.opcode {
            SIW_OP_WRITE => WcOpcode::RDMA_WRITE,
            SIW_OP_READ | SIW_OP_READ_LOCAL_INV => WcOpcode::RDMA_READ,
            SIW_OP_RECEIVE => WcOpcode::RECV,
            SIW_OP_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            SIW_OP_COMP_AND_SWAP => WcOpcode::COMP_SWAP,
            _ => WcOpcode::SEND,
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn vendor_err(&self) -> u32 {
        0
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte_len(&self) -> u32 {
        self.cqe.bytes
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn qp_num(&self) -> u32 {
        self.cqe.qp_id as u32
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn src_qp(&self) -> u32 {
        0
    }
    /// The kernel does not pass invalidated keys to user space (`siw_rqe_complete()`).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wc_flags(&self) -> WcFlags {
        WcFlags::empty()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        0
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pkey_index(&self) -> u16 {
        0
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slid(&self) -> u32 {
        0
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sl(&self) -> u8 {
        0
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dlid_path_bits(&self) -> u8 {
        0
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_wc().fmt(f)
    }
}
