// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a queue pair: each completion is passed on before the QP is destroyed.
//!
//! What is in flight on the QP's own queues comes back with its destruction in any case. Receives of a shared queue may not: only a
//! completion names the receive that a QP has taken. The completions of a destroyed QP are removed, with their messages; a receive that
//! the device has not flushed until then stays with the SRQ until the SRQ itself is destroyed. So the QP first moves to ERR, and the drain
//! polls until the QP has no receive any more. There are two ways to know that:
//!
//! - The device raises `LAST_WQE_REACHED`.
//! - Nothing is taken: the SRQ has as many buffers as there are receives that the device has not taken. This serves devices that
//!   raise no event and whose ring shows what was taken: rxe, which raises it on newer kernels only.

use crate::cq::{Completed, Cq};
use crate::qp::Qp;
use crate::qp::QpControl;
use crate::qp::transport::Sends;
use crate::recv::Srq;
use core::time::Duration;
use std::time::Instant;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PollError};
use uverbs_core::sync::{Exclusive, Locking, Shared};

/// The maximum number of completions of one poll.
const BATCH: usize = 32;

/// How often nothing must be taken. A device that is passing a message to the QP while it moves to ERR may take a receive for this
/// message afterwards, so one time is not enough.
const TIMES: u32 = 3;

mod sealed {
    use super::{Completed, Driver, PollError};

    pub trait DrainOwned<D: Driver> {
        /// Polls once and calls `f` with each completion. Returns their number.
        fn poll_once(&mut self, f: &mut dyn FnMut(Completed<D>)) -> Result<usize, PollError>;
    }
}

/// The CQs of a QP: a reference to one CQ, which is exclusive if the CQ has no lock, or a pair of references.
pub trait DrainOwned<D: Driver>: sealed::DrainOwned<D> {}

macro_rules! cq_references {
    ($($cq:ty),*) => {$(
        impl<D: Driver> DrainOwned<D> for $cq {}
        impl<D: Driver> sealed::DrainOwned<D> for $cq {
            fn poll_once(&mut self, f: &mut dyn FnMut(Completed<D>)) -> Result<usize, PollError> {
                self.poll_each(BATCH, |done| f(done.complete()))
            }
        }
    )*};
}

cq_references!(&Cq<Shared, D>, &mut Cq<Exclusive, D>);

impl<D: Driver, A: DrainOwned<D>, B: DrainOwned<D>> DrainOwned<D> for (A, B) {}
impl<D: Driver, A: DrainOwned<D>, B: DrainOwned<D>> sealed::DrainOwned<D> for (A, B) {
    fn poll_once(&mut self, f: &mut dyn FnMut(Completed<D>)) -> Result<usize, PollError> {
        Ok(self.0.poll_once(f)? + self.1.poll_once(f)?)
    }
}

/// Moves the QP to ERR and passes all its completions to `completed`. `is_none_taken` says whether the device has taken none of the
/// receives of its SRQ.
fn drain<D: Driver>(
    control: &QpControl<D>,
    mut cqs: impl DrainOwned<D>,
    timeout: Duration,
    mut is_none_taken: impl FnMut() -> bool,
    completed: &mut dyn FnMut(Completed<D>),
) -> Result<()> {
    const VERB: &str = "drain";
    let begin = Instant::now();
    let mut poll = || {
        let polled = cqs.poll_once(completed);
        polled.map_err(|e| Error::os(VERB, format!("the CQs of qp {:#x}: {e}", control.qp_num()), e.errno()))
    };
    // In these states the QP has taken no receive, so the device raises no event.
    let state = control.state()?;
    let waits = control.has_srq() && state != QpState::RESET && state != QpState::INIT;
    control.modify_state(QpState::ERR)?;
    let timed_out = |why: &str| {
        let object = format!("qp {:#x}: {why}", control.qp_num());
        Err(Error::os(VERB, object, Errno::ETIMEDOUT))
    };
    let mut times = 0;
    while waits && times < TIMES && !control.has_last_wqe() {
        let polled = poll()?;
        times = if polled == 0 && is_none_taken() { times + 1 } else { 0 };
        if times == 0 && begin.elapsed() >= timeout {
            return timed_out("no event LAST_WQE_REACHED, or receives of other QPs are in flight");
        }
        // Waits up to a millisecond.
        control.event_step()?;
    }
    while poll()? > 0 {
        if begin.elapsed() >= timeout {
            return timed_out("its CQs do not become empty");
        }
    }
    Ok(())
}

/// The result of a drain: on failure the QP, unless only its destruction failed.
pub type Drained<Q> = Result<(), (Option<Q>, Error)>;

impl<D: Driver, T: Sends, L: Locking> Qp<T, L, D> {
    /// Ends all its work requests, passes each completion to `completed`, also those of other queues of these CQs, and destroys the
    /// QP. If sends and receives complete to different CQs, `cqs` is the pair.
    ///
    /// A QP that receives from a shared queue is drained by [`Srq::drain`], which needs no event of the device.
    ///
    /// While it waits it reads the context's asynchronous events and keeps them for the next calls of
    /// [`get_async_event`](crate::Context::get_async_event).
    ///
    /// # Errors
    /// With the QP: `ETIMEDOUT` if it receives from a shared queue and the device raises no event `LAST_WQE_REACHED` within
    /// `timeout`; `EIO` if a CQ is corrupt; `EBUSY` if this thread polls one of them; the kernel's error. Without it: those of
    /// [`close`](Self::close).
    pub fn drain(
        self,
        cqs: impl DrainOwned<D>,
        timeout: Duration,
        completed: impl FnMut(Completed<D>),
    ) -> Drained<Self> {
        self.drain_if(cqs, timeout, || false, completed)
    }

    fn drain_if(
        self,
        cqs: impl DrainOwned<D>,
        timeout: Duration,
        is_none_taken: impl FnMut() -> bool,
        mut completed: impl FnMut(Completed<D>),
    ) -> Drained<Self> {
        match drain(&self.control, cqs, timeout, is_none_taken, &mut completed) {
            Ok(()) => self.close().map_err(|error| (None, error)),
            Err(error) => Err((Some(self), error)),
        }
    }
}

macro_rules! srq_drains {
    ($locking:ident, $($this:tt)*) => {
        impl<D: Driver> Srq<$locking, D> {
            /// Ends all work requests of a QP that receives from this queue, passes each completion to `completed`, also those of
            /// other queues of these CQs, and destroys the QP. Each buffer that the QP has taken comes back with its completion;
            /// those that it has not taken stay in the queue. When all its QPs are destroyed, [`close`](Self::close) gives those
            /// back, too.
            ///
            /// Other threads may post to the queue and poll the CQs at the same time, if these have locks.
            ///
            /// # Errors
            /// As [`Qp::drain`]. A device that does not raise the event, but shows what it has taken (rxe), causes `ETIMEDOUT`
            /// only if receives of other QPs are in flight all the time.
            pub fn drain<T: Sends, L: Locking>(
                $($this)* self,
                qp: Qp<T, L, D>,
                cqs: impl DrainOwned<D>,
                timeout: Duration,
                completed: impl FnMut(Completed<D>),
            ) -> Drained<Qp<T, L, D>> {
                qp.drain_if(cqs, timeout, || self.untaken_is_all(), completed)
            }
        }
    };
}

srq_drains!(Exclusive, &mut);
srq_drains!(Shared, &);
