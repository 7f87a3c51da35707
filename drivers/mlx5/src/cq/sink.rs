// SPDX-License-Identifier: MIT OR Apache-2.0
//! The destination of a poll's completions: C structs, or code of the user.
#![expect(unsafe_code)]
// UNSAFETY: takes an initialised array for an uninitialised one, so that both are filled by the same code.

use super::completion::Completion;
use super::poll::CompletionQueue;
use core::mem::MaybeUninit;
use uverbs_core::provider::completion::Claimant;
use uverbs_core::wc::WorkCompletion;

/// Receives the completions of a poll.
///
/// Its functions are called inside the queue. `leave` leaves it; they call it before the user's code, if there is any.
pub(super) trait Sink {
    /// Whether the user's code runs, and `leave` is called, therefore.
    const IS_USER_CODE: bool;
    /// Takes a requester's success without data.
    fn take(&mut self, completion: &Completion<'_>, leave: impl FnOnce());
    /// Takes a responder's success without data, or with data that are copied already.
    fn take_responder(&mut self, completion: &Completion<'_>, leave: impl FnOnce());
    /// Takes any other completion.
    fn take_other(&mut self, completion: &Completion<'_>, leave: impl FnOnce());
}

/// Writes completions to C structs, whole ones only.
pub(super) struct Fill<'w>(&'w mut [MaybeUninit<WorkCompletion>]);

impl<'w> Fill<'w> {
    /// Fills an array that is initialised.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn new(wc: &'w mut [WorkCompletion]) -> Self {
        // SAFETY: the types have the same layout, the lifetime is the same, and this type writes nothing but initialised
        // elements.
        Self(unsafe { &mut *(core::ptr::from_mut(wc) as *mut [MaybeUninit<WorkCompletion>]) })
    }

    /// Fills an array that may be uninitialised.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn uninit(wc: &'w mut [MaybeUninit<WorkCompletion>]) -> Self {
        Self(wc)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(&mut self) -> Option<&'w mut MaybeUninit<WorkCompletion>> {
        let (first, rest) = core::mem::take(&mut self.0).split_first_mut()?;
        self.0 = rest;
        Some(first)
    }
}

impl Sink for Fill<'_> {
    const IS_USER_CODE: bool = false;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self, completion: &Completion<'_>, _: impl FnOnce()) {
        if let Some(wc) = self.next() {
            completion.fill_requester(wc);
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_responder(&mut self, completion: &Completion<'_>, _: impl FnOnce()) {
        if let Some(wc) = self.next() {
            completion.fill_responder(wc);
        }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_other(&mut self, completion: &Completion<'_>, _: impl FnOnce()) {
        if let Some(wc) = self.next() {
            fill_other(completion, wc);
        }
    }
}

// codegen: call
#[inline(never)]
fn fill_other(completion: &Completion<'_>, wc: &mut MaybeUninit<WorkCompletion>) {
    completion.fill(wc);
}

/// Calls the user's closure.
pub(super) struct Call<F>(pub(super) F);

impl<F: FnMut(&Completion<'_>)> Sink for Call<F> {
    const IS_USER_CODE: bool = true;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self, completion: &Completion<'_>, leave: impl FnOnce()) {
        leave();
        (self.0)(completion);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_responder(&mut self, completion: &Completion<'_>, leave: impl FnOnce()) {
        leave();
        (self.0)(completion);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_other(&mut self, completion: &Completion<'_>, leave: impl FnOnce()) {
        leave();
        call_other(&mut self.0, completion);
    }
}

/// Lets a claimant claim inside the queue, and passes completions to it outside.
pub(super) struct Claiming<C>(pub(super) C);

impl<C: Claimant<CompletionQueue>> Sink for Claiming<C> {
    const IS_USER_CODE: bool = true;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self, completion: &Completion<'_>, leave: impl FnOnce()) {
        let claim = self.0.claim(completion);
        leave();
        self.0.pass(completion, claim);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_responder(&mut self, completion: &Completion<'_>, leave: impl FnOnce()) {
        let claim = self.0.claim(completion);
        leave();
        self.0.pass(completion, claim);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_other(&mut self, completion: &Completion<'_>, leave: impl FnOnce()) {
        pass_other(&mut self.0, completion, leave);
    }
}

// codegen: call
#[inline(never)]
fn call_other<F: FnMut(&Completion<'_>)>(f: &mut F, completion: &Completion<'_>) {
    f(completion);
}

// codegen: call
#[inline(never)]
fn pass_other<C: Claimant<CompletionQueue>>(
    claimant: &mut C,
    completion: &Completion<'_>,
    leave: impl FnOnce(),
) {
    let claim = claimant.claim(completion);
    leave();
    claimant.pass(completion, claim);
}
