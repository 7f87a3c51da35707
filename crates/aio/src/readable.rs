// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for other descriptors, such as that of a connection manager: the dispatcher watches them, too.

use crate::dispatcher::{Dispatcher, FORKED};
use crate::error::Result;
use crate::sleeper::Sleeper;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs::Driver;

/// Waits until a descriptor is readable; see [`Dispatcher::readable`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Readable<F: AsFd> {
    sleeper: Arc<Sleeper>,
    fd: F,
    number: Option<u64>,
}

/// Nothing in it is pinned.
impl<F: AsFd> Unpin for Readable<F> {}

impl<D: Driver> Dispatcher<D> {
    /// Waits until the descriptor is readable, or has an error. One future at a time waits for a descriptor: an
    /// earlier one ends.
    pub fn readable<F: AsFd>(&self, fd: F) -> Readable<F> {
        Readable { sleeper: self.inner.sleeper().clone(), fd, number: None }
    }
}

impl<F: AsFd> Future for Readable<F> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.sleeper.is_forked() {
            return Poll::Ready(Err(FORKED));
        }
        match this.number {
            // epoll(7) reports it to a sleep that has begun already.
            None => this.number = Some(this.sleeper.watch_for_task(this.fd.as_fd(), cx.waker())?),
            Some(number) => {
                if !this.sleeper.update_task(number, cx.waker()) {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Pending
    }
}

impl<F: AsFd> Drop for Readable<F> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.sleeper.unwatch_for_task(self.fd.as_fd(), number);
        }
    }
}
