// SPDX-License-Identifier: MIT OR Apache-2.0
//! The destination of a poll's completions: C structs, or a closure of the user.

use super::completion::Completion;
use uverbs_core::wc::WorkCompletion;

/// Receives the completions of a poll.
pub(super) trait Sink {
    /// Whether [`take`](Self::take) runs the user's code, which must run outside the queue.
    const IS_USER_CODE: bool;
    /// Takes a requester's success without data.
    fn take(&mut self, completion: &Completion<'_>);
    /// Takes a responder's success without data, or with data that are copied already.
    fn take_responder(&mut self, completion: &Completion<'_>);
    /// Takes any other completion.
    fn take_other(&mut self, completion: &Completion<'_>);
}

/// Writes completions to C structs.
pub(super) struct Fill<'w>(pub(super) &'w mut [WorkCompletion]);

impl<'w> Fill<'w> {
    #[inline(always)]
    fn next(&mut self) -> Option<&'w mut WorkCompletion> {
        let (first, rest) = core::mem::take(&mut self.0).split_first_mut()?;
        self.0 = rest;
        Some(first)
    }
}

impl Sink for Fill<'_> {
    const IS_USER_CODE: bool = false;
    #[inline(always)]
    fn take(&mut self, completion: &Completion<'_>) {
        if let Some(wc) = self.next() {
            completion.fill_requester(wc);
        }
    }
    #[inline(always)]
    fn take_responder(&mut self, completion: &Completion<'_>) {
        if let Some(wc) = self.next() {
            completion.fill_responder(wc);
        }
    }
    #[inline(always)]
    fn take_other(&mut self, completion: &Completion<'_>) {
        if let Some(wc) = self.next() {
            fill_other(completion, wc);
        }
    }
}

/// Not inlined, so that the code around the fast paths stays small.
#[inline(never)]
fn fill_other(completion: &Completion<'_>, wc: &mut WorkCompletion) {
    completion.fill(wc);
}

/// Calls the user's closure.
pub(super) struct Call<F>(pub(super) F);

impl<F: FnMut(&Completion<'_>)> Sink for Call<F> {
    const IS_USER_CODE: bool = true;
    #[inline(always)]
    fn take(&mut self, completion: &Completion<'_>) {
        (self.0)(completion);
    }
    #[inline(always)]
    fn take_responder(&mut self, completion: &Completion<'_>) {
        (self.0)(completion);
    }
    #[inline(always)]
    fn take_other(&mut self, completion: &Completion<'_>) {
        call_other(&mut self.0, completion);
    }
}

/// Not inlined, so that the code around the fast paths stays small.
#[inline(never)]
fn call_other<F: FnMut(&Completion<'_>)>(f: &mut F, completion: &Completion<'_>) {
    f(completion);
}
