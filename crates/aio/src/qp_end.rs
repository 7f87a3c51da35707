// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a QP: no more operations begin, those in flight end, and its receives are flushed.

use crate::deferred::{Dry, LAST_WQE_LIMIT};
use crate::error::Result;
use crate::qp::QpInner;
use crate::sleep::Sleep;
use crate::sync::lock;
use core::future::Future;
use core::task::{Poll, Waker};
use std::sync::Arc;
use uverbs::Driver;
use uverbs::attr::QpState;
use uverbs_core::wake::{Caller, Place, Wakes, discard};

impl<D: Driver> QpInner<D> {
    /// Waits until no send is in flight.
    pub(crate) async fn drain(&self) {
        let mut wait = EndWait::new(self, End::Drained);
        core::future::poll_fn(|cx| wait.poll(cx.waker())).await;
    }

    /// Whether there is nothing that the device would flush.
    fn is_idle(&self) -> bool {
        let all_free = lock(&self.sends).free == self.depth();
        all_free && !lock(&self.receives).any_posted()
    }

    /// Moves the QP to ERR, and waits until its receives are flushed.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.life().check()?;
        if self.has_srq() {
            self.leave_srq().await?;
        } else if self.control().state()? == QpState::RESET && self.is_idle() {
            return Ok(());
        } else {
            self.control().modify_state(QpState::ERR)?;
        }
        let mut wait = EndWait::new(self, End::Flushed);
        core::future::poll_fn(|cx| wait.poll(cx.waker())).await;
        self.life().check()
    }

    /// Moves the QP to ERR, and waits until the receives that it took from its SRQ were passed on.
    async fn leave_srq(&self) -> Result<()> {
        let state = self.control().state()?;
        if state != QpState::RESET && state != QpState::INIT {
            self.control().modify_state(QpState::ERR)?;
            let mut limit = core::pin::pin!(Sleep::new(self.life().sleeper().clone(), LAST_WQE_LIMIT));
            let mut wait = EndWait::new(self, End::LastWqe);
            core::future::poll_fn(|cx| {
                // The event wakes this task. It is not raised by rxe in old kernels.
                let quiet = self.failure().is_some() || self.control().has_last_wqe();
                if quiet || limit.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                wait.poll(cx.waker())
            })
            .await;
            let mut dry = DryWait(self, None);
            core::future::poll_fn(|cx| self.life().poll_dry(&mut dry.1, cx.waker())).await;
        }
        self.set_flushed();
        Ok(())
    }
}

/// What a [`shutdown`](crate::Qp::shutdown) waits for.
#[derive(Clone, Copy)]
enum End {
    /// No send is in flight.
    Drained,
    /// No receive of the QP is in flight.
    Flushed,
    /// The device has reported that the QP takes no more receives of its SRQ.
    LastWqe,
}

/// A wait for an end, until it is dropped.
struct EndWait<'a, D: Driver> {
    qp: &'a QpInner<D>,
    end: End,
    place: Place,
}

impl<'a, D: Driver> EndWait<'a, D> {
    fn new(qp: &'a QpInner<D>, end: End) -> Self {
        Self { qp, end, place: Place::default() }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let Self { qp, end, place } = self;
        if qp.is_forked() {
            return Poll::Ready(());
        }
        let mut wakes = Wakes::new();
        let mut caller = Caller::new(waker);
        loop {
            let is_over = match end {
                End::Drained => {
                    let mut sends = lock(&qp.sends);
                    let is_over = sends.free + sends.silent == qp.depth() || qp.is_broken();
                    if !is_over {
                        sends.draining.wait(place, &mut caller);
                    }
                    is_over
                }
                End::Flushed => lock(&qp.receives).poll_flushed(place, &mut caller, &mut wakes),
                End::LastWqe => {
                    lock(&qp.receives).wait_flushed(place, &mut caller);
                    // It may have happened meanwhile, and so may the removal of the device.
                    qp.control().has_last_wqe() || qp.failure().is_some()
                }
            };
            if is_over {
                return Poll::Ready(());
            }
            if !caller.supply() {
                return Poll::Pending;
            }
        }
    }
}

impl<D: Driver> Drop for EndWait<'_, D> {
    fn drop(&mut self) {
        if self.place.is_taken() && !self.qp.is_forked() {
            let left = match self.end {
                End::Drained => lock(&self.qp.sends).draining.leave(&mut self.place),
                End::Flushed | End::LastWqe => lock(&self.qp.receives).leave_flushed(&mut self.place),
            };
            discard(left);
        }
    }
}

/// A wait until the CQ was polled empty, until it is dropped.
struct DryWait<'a, D: Driver>(&'a QpInner<D>, Option<Arc<Dry>>);

impl<D: Driver> Drop for DryWait<'_, D> {
    fn drop(&mut self) {
        if let Some(dry) = &self.1
            && !self.0.is_forked()
        {
            dry.leave();
        }
    }
}
