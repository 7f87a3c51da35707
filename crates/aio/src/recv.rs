// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives of connected QPs as futures.

use crate::error::Result;
use crate::next::{Next, Receiver as _};
use crate::pair::Qp;
use crate::qp::QpInner;
use crate::receives::Message;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;
use uverbs::{AnyDriver, Driver, Rc};

/// The next message; see [`Qp::recv`](crate::Qp::recv).
#[must_use = "futures do nothing unless they are polled"]
pub struct Recv<D: Driver = AnyDriver> {
    next: Next<QpInner<D>, D>,
}

impl<D: Driver> fmt::Debug for Recv<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").field("ticket", &self.next.ticket).finish_non_exhaustive()
    }
}

impl<D: Driver> Recv<D> {
    pub(crate) fn new(qp: Arc<QpInner<D>>) -> Self {
        Self { next: Next::new(qp) }
    }
}

impl<D: Driver> Future for Recv<D> {
    type Output = Result<Message<D>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.next.poll(cx)
    }
}

impl<D: Driver> Qp<Rc, D> {
    /// The next message. Messages are in the order of their arrival, and so are the tasks that wait for them.
    ///
    /// # Errors
    /// After all messages that have arrived: the error of the QP, or [`Error::Closed`](crate::Error::Closed).
    pub fn recv(&self) -> Recv<D> {
        Recv::new(self.inner.clone())
    }

    /// A message that has arrived already.
    #[must_use]
    pub fn try_recv(&self) -> Option<Message<D>> {
        self.inner.try_take()
    }
}
