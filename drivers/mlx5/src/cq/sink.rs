// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a poll puts its completions: into C's structs, or to a closure of the user.

use super::completion::Completion;
use uverbs_core::wc::WorkCompletion;

/// Takes the completions of a poll.
pub(super) trait Sink {
    /// Whether [`take`](Self::take) runs code of the user, which must not be inside the queue.
    const IS_USER_CODE: bool;
    /// Takes one of a requester's success without data.
    fn take(&mut self, completion: &Completion<'_>);
    /// Takes one of a responder's success without data.
    fn take_responder(&mut self, completion: &Completion<'_>);
    /// Takes any other.
    fn take_other(&mut self, completion: &Completion<'_>);
}

/// Fills C's structs.
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

/// Apart, so that the code around the short ways stays small.
#[inline(never)]
fn fill_other(completion: &Completion<'_>, wc: &mut WorkCompletion) {
    completion.fill(wc);
}

/// Calls a closure of the user.
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

/// Apart, as above.
#[inline(never)]
fn call_other<F: FnMut(&Completion<'_>)>(f: &mut F, completion: &Completion<'_>) {
    f(completion);
}
