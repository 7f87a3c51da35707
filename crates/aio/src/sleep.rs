// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that wait for a time: alone, or as the limit of another one.

use crate::error::Error;
use crate::sleeper::Sleeper;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;

/// Waits until a time; see [`Dispatcher::sleep`](crate::Dispatcher::sleep).
#[derive(Debug)]
pub struct Sleep {
    sleeper: Arc<Sleeper>,
    at: Duration,
    number: Option<u64>,
}

impl Sleep {
    pub(crate) fn new(sleeper: Arc<Sleeper>, time: Duration) -> Self {
        // In a child of fork(2) the clock may wait for a thread that the child does not have.
        let now = if sleeper.is_forked() { Duration::ZERO } else { sleeper.now() };
        let at = now.saturating_add(time);
        Self { sleeper, at, number: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // In a child of fork(2) nothing would end the sleep.
        if self.sleeper.is_forked() || self.sleeper.now() >= self.at {
            return Poll::Ready(());
        }
        let this = &mut *self;
        if this.sleeper.timers().set(this.at, &mut this.number, cx.waker()) {
            // A dispatcher that sleeps would sleep until the deadline that was the first before.
            this.sleeper.wake_up();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number
            && !self.sleeper.is_forked()
        {
            self.sleeper.timers().cancel(self.at, number);
        }
    }
}

pin_project_lite::pin_project! {
    /// A future with a time limit; see [`Dispatcher::timeout`](crate::Dispatcher::timeout).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, sleep: Sleep) -> Self {
        Self { future, sleep }
    }
}

impl<F: Future<Output = Result<T, E>>, T, E: From<Error>> Future for Timeout<F> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(output);
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Error::TimedOut.into()))
    }
}
