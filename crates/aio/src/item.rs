// SPDX-License-Identifier: MIT OR Apache-2.0
//! A work request of a batch, before it is posted.

use crate::destination::To;
use uverbs::{Access, Buf, BufPart, Driver, Operation, SharedBuf};

/// The memory of a work request.
pub(crate) enum Data<A: Access, D: Driver> {
    Buf(Buf<A, D>),
    Part(BufPart<A, D>),
    Shared(SharedBuf<A, D>),
}

/// A work request that is not posted yet.
pub(crate) struct Item<A: Access, D: Driver> {
    pub(crate) to: To<D>,
    pub(crate) op: Operation,
    pub(crate) data: Data<A, D>,
}
