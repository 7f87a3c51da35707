// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a work request owns, and how it comes back.
#![expect(unsafe_code)]
// UNSAFETY: takes values out of the word that a work request holds.

use crate::access::Access;
use crate::flight::Flight;
use crate::held::Held;
use crate::pool::Buf;
use core::fmt;
use uverbs_core::errno::Errno;
use uverbs_core::provider::{Driver, PostError};

/// A post that failed.
///
/// The buffer comes back, except after [`PostError::Doorbell`]: then the work request is published and may run, so the queue
/// keeps the buffer until the completion or the end of the queue.
#[derive(Debug)]
pub struct Rejected<B> {
    /// The reason.
    pub error: PostError,
    /// What was to be posted.
    pub returned: Option<B>,
}

impl<B> fmt::Display for Rejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> core::error::Error for Rejected<B> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<Rejected<B>> for PostError {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error
    }
}

impl<B> From<Rejected<B>> for std::io::Error {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error.into()
    }
}

impl<B> Rejected<B> {
    /// The errno that C would get.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.error.errno()
    }
}

/// A value that a work request can own: [`Buf`], [`Window`](super::Window).
pub trait Lend<D: Driver>: Sized + sealed::Lend<D> {}

pub(super) mod sealed {
    use super::super::held::Held;
    use uverbs_core::provider::Driver;
    use uverbs_core::wc::WcStatus;

    #[expect(private_interfaces, reason = "only this crate implements it")]
    pub trait Lend<D: Driver>: Sized {
        /// Whether the slab keeps it apart: its completion is not passed to the program.
        const APART: bool = false;
        fn lend(self) -> Held<D>;
        /// The value. If it is of another type, it is dropped.
        ///
        /// # Safety
        /// The word is not used again.
        unsafe fn give_back(held: Held<D>) -> Option<Self>;
        /// The length of a message, after a receive.
        #[inline(always)]
        fn received(&mut self, len: u32) {
            let _ = len;
        }
        /// After the completion of the work request.
        #[inline(always)]
        fn completed(&mut self, status: WcStatus) {
            let _ = status;
        }
    }
}

impl<D: Driver, A: Access> Lend<D> for Buf<A, D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, A: Access> sealed::Lend<D> for Buf<A, D> {
    #[inline(always)]
    fn lend(self) -> Held<D> {
        self.into_held()
    }
    #[inline(always)]
    unsafe fn give_back(held: Held<D>) -> Option<Self> {
        if held.is(A::KIND) {
            // SAFETY: it is a buffer with this kind of access; the contract of this function.
            Some(Self::from_raw(unsafe { held.into_buf(A::KIND) }))
        } else {
            // SAFETY: the contract of this function.
            unsafe { held.release() };
            None
        }
    }
    #[inline(always)]
    fn received(&mut self, len: u32) {
        self.clamp_len(len);
    }
}

/// Takes back what a post that failed would have owned.
#[cold]
#[inline(never)]
pub(super) fn reject<D: Driver, B: sealed::Lend<D>>(
    flight: &Flight<D>,
    number: u64,
    error: PostError,
) -> Rejected<B> {
    if let PostError::Doorbell(_) = error {
        return Rejected { error, returned: None };
    }
    // SAFETY: the entry was taken out, so this is the only copy.
    let returned = flight.slab.take_any(number).and_then(|entry| unsafe { B::give_back(entry.held) });
    Rejected { error, returned }
}
