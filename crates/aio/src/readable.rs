// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for other descriptors, such as that of a connection manager: the dispatcher watches them, too.

use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::fd_waits::FdWait;
use crate::life::FORKED;
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
    wait: Option<FdWait>,
}

/// Nothing in it is pinned.
impl<F: AsFd> Unpin for Readable<F> {}

impl<D: Driver> Dispatcher<D> {
    /// Waits until the descriptor is readable, or has an error. Several tasks may wait for a descriptor: all are woken, and those that
    /// find nothing to read, because another one was faster, wait again. So a future may be ready although there is nothing to read.
    pub fn readable<F: AsFd>(&self, fd: F) -> Readable<F> {
        Readable { sleeper: self.inner.poller.sleeper().clone(), fd, wait: None }
    }
}

impl<F: AsFd> Future for Readable<F> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.sleeper.is_forked() {
            return Poll::Ready(Err(FORKED));
        }
        match this.wait {
            // epoll(7) reports it to a sleep that has begun already.
            None => this.wait = Some(this.sleeper.begin_fd_wait(this.fd.as_fd(), cx.waker())?),
            Some(wait) => {
                if !this.sleeper.update_fd_wait(wait, cx.waker()) {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Pending
    }
}

impl<F: AsFd> Drop for Readable<F> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait {
            self.sleeper.end_fd_wait(self.fd.as_fd(), wait);
        }
    }
}
