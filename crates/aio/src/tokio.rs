// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a dispatcher as a task of tokio.

use crate::dispatcher::{Dispatcher, wake};
use crate::driver::{BUSY_POLLS, Spin};
use crate::error::Result;
use crate::sleeper::Sleeper;
use core::task::Poll;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use uverbs::Driver;

#[derive(Debug)]
struct Descriptor(Arc<Sleeper>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl<D: Driver> Dispatcher<D> {
    /// Runs the dispatcher: a task for `tokio::spawn`, whose runtime has I/O and time enabled. It runs until it is aborted.
    /// While there are completions, or they are expected soon ([`spin`](crate::DispatcherBuilder::spin)), it yields to other
    /// tasks between two polls; otherwise it waits for its descriptor.
    ///
    /// # Errors
    /// The CQ failed; all operations end with the same error. Or tokio refuses the descriptor.
    pub async fn drive(self) -> Result<()> {
        let inner = &self.inner;
        let sleeper = inner.sleeper();
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `Descriptor` returns the same open descriptor as long as it lives"
        )]
        let fd = AsyncFd::with_interest(Descriptor(sleeper.clone()), Interest::READABLE)?;
        let _lead = core::future::poll_fn(|cx| {
            sleeper.leadership().try_lead(cx.waker()).map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        let mut wakes = Vec::new();
        let mut spin = Spin::new(sleeper.spin());
        let mut polls = 0_u32;
        loop {
            let polled = inner.poll(&mut wakes);
            let progress = !matches!(polled, Ok(0)) || !wakes.is_empty();
            wake(&mut wakes);
            polled?;
            polls = polls.wrapping_add(1);
            if progress {
                spin.hit();
                if polls.is_multiple_of(BUSY_POLLS) {
                    inner.read_descriptors(Some(Duration::ZERO), &mut wakes)?;
                    wake(&mut wakes);
                }
                tokio::task::yield_now().await;
                continue;
            }
            if spin.again(|| sleeper.now()) {
                tokio::task::yield_now().await;
                continue;
            }
            sleeper.announce();
            let idle = inner.arm(&mut wakes);
            if matches!(idle, Ok(true)) && wakes.is_empty() {
                let readable = fd.readable();
                let guard = match sleeper.time_to_sleep() {
                    None => Some(readable.await?),
                    Some(limit) => tokio::time::timeout(limit, readable).await.ok().transpose()?,
                };
                if let Some(mut guard) = guard {
                    // Before the descriptors are read, so that what becomes readable after that is reported again.
                    guard.clear_ready();
                }
                inner.read_descriptors(Some(Duration::ZERO), &mut wakes)?;
            }
            sleeper.cancel();
            wake(&mut wakes);
            idle?;
        }
    }
}
