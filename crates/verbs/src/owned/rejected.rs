// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a work request owns, and how it comes back.

use super::flight::{Flight, Held};
use super::pool::{Access, Buf};
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
    use super::super::flight::Held;
    use uverbs_core::provider::Driver;
    use uverbs_core::wc::WcStatus;

    #[expect(private_interfaces, reason = "only this crate implements it")]
    pub trait Lend<D: Driver>: Sized {
        fn lend(self) -> Held<D>;
        /// `None` if it holds something else.
        fn give_back(held: Held<D>) -> Option<Self>;
        /// After the completion of the work request.
        #[inline(always)]
        fn completed(&mut self, status: WcStatus) {
            let _ = status;
        }
    }
}

impl<D: Driver, A: Access> Lend<D> for Buf<D, A> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, A: Access> sealed::Lend<D> for Buf<D, A> {
    #[inline(always)]
    fn lend(self) -> Held<D> {
        Held::Buf(self.into_raw())
    }
    #[inline(always)]
    fn give_back(held: Held<D>) -> Option<Self> {
        match held {
            Held::Buf(raw) => Self::from_raw(raw),
            _ => None,
        }
    }
}

/// Takes back what a post that failed would have owned.
#[cold]
#[inline(never)]
pub(super) fn reject<D: Driver, B: sealed::Lend<D>>(
    flight: &Flight<D>,
    token: u32,
    error: PostError,
) -> Rejected<B> {
    if let PostError::Doorbell(_) = error {
        return Rejected { error, returned: None };
    }
    let returned = flight.slab.take(token).and_then(|entry| B::give_back(entry.held));
    Rejected { error, returned }
}
