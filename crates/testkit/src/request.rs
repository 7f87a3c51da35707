// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address handles of work requests; the interface that posts them; and why one was refused.

use core::ptr;
use uverbs_core::provider::{PostError, QueueError};
use uverbs_core::wr::{IbvAh, RawAh};

/// An address handle: of the `uverbs` crate, or a driver's with C's prefix.
pub trait Handle {
    /// The pointer that C's structs have.
    fn raw(&self) -> *const IbvAh;
}

impl<A> Handle for RawAh<A> {
    fn raw(&self) -> *const IbvAh {
        ptr::from_ref(self).cast()
    }
}

/// A driver's address handle that no kernel has created.
#[must_use]
pub fn handle<A>(driver: A) -> RawAh<A> {
    RawAh { base: IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: 0 }, driver }
}

/// An interface for posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// `ibv_post_send`.
    List,
    /// `ibv_wr_start` .. `ibv_wr_complete`.
    Builder,
    /// A typed batch.
    Batch,
    /// Typed, each posted immediately.
    Single,
}

impl Face {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::List, Self::Builder, Self::Batch, Self::Single];
}

/// Why a post was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Refused {
    /// The reason.
    pub error: Option<PostError>,
    /// The index of the request in `bad_wr`, or of the single post that failed. `None` for a NULL `bad_wr` and for
    /// batches.
    pub bad: Option<usize>,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.error {
            Some(error) => write!(f, "{error} (request {:?})", self.bad),
            None => f.write_str("no error"),
        }
    }
}

impl core::error::Error for Refused {}

impl Refused {
    /// An error, and the index of the request.
    #[must_use]
    pub fn new(error: PostError, bad: Option<usize>) -> Self {
        Self { error: Some(error), bad }
    }
}

impl From<QueueError> for Refused {
    fn from(error: QueueError) -> Self {
        error.reason.into()
    }
}

impl From<PostError> for Refused {
    fn from(error: PostError) -> Self {
        Self::new(error, None)
    }
}
