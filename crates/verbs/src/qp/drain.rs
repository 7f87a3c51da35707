// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a QP: every completion is reported before the QP is destroyed.
//!
//! A receive of a shared queue belongs to no QP until a message arrives for it. The program can't know which receives a QP has
//! taken: the completion is the only place that names them. If the QP is destroyed before its completions were polled, they
//! are removed from the CQ, and the buffers of these receives never come back. So the QP must first stop (state ERR),
//! the device must report that it takes no more receives (`LAST_WQE_REACHED`), and the CQ must be polled until it is empty.

use super::control::QpControl;
use crate::cq::CompletionQueue;
use core::time::Duration;
use std::time::Instant;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PollError};
use uverbs_core::sync::{Exclusive, Shared};
use uverbs_core::wc::WorkCompletion;

/// Completions that one poll takes.
const BATCH: usize = 32;

mod sealed {
    pub trait Sealed {}
}

/// The CQs of a QP: a reference to one, exclusive if it has no lock, or a pair of such.
pub trait DrainCq: sealed::Sealed {
    /// Polls once; the number of completions that `f` was called with.
    #[doc(hidden)]
    fn poll_once(&mut self, f: &mut dyn FnMut(&WorkCompletion)) -> Result<usize, PollError>;
}

macro_rules! cq_references {
    ($($cq:ty),*) => {$(
        impl<D: Driver> sealed::Sealed for $cq {}
        impl<D: Driver> DrainCq for $cq {
            fn poll_once(&mut self, f: &mut dyn FnMut(&WorkCompletion)) -> Result<usize, PollError> {
                let mut wc = [WorkCompletion::default(); BATCH];
                let polled = self.poll(&mut wc)?;
                polled.iter().for_each(f);
                Ok(polled.len())
            }
        }
    )*};
}

cq_references!(&CompletionQueue<D, Shared>, &mut CompletionQueue<D, Exclusive>);

impl<A: DrainCq, B: DrainCq> sealed::Sealed for (A, B) {}
impl<A: DrainCq, B: DrainCq> DrainCq for (A, B) {
    fn poll_once(&mut self, f: &mut dyn FnMut(&WorkCompletion)) -> Result<usize, PollError> {
        Ok(self.0.poll_once(f)? + self.1.poll_once(f)?)
    }
}

impl<D: Driver> QpControl<D> {
    /// Moves the QP to ERR, waits until it takes no more receives of its shared queue, and polls until its CQs are empty.
    /// After that it can be destroyed without losing a receive. [`Qp::drain`](super::Qp::drain) does both.
    ///
    /// `completed` is called with each completion, also with those of other queues of these CQs. If the receives of the QP
    /// and its sends complete to different CQs, `cqs` is the pair; the CQ of an XRC receive QP is that of its SRQ.
    ///
    /// A QP without a shared queue has nothing to wait for: its work requests that do not complete in time end with it, and
    /// the program knows them.
    ///
    /// While it waits it reads the context's asynchronous events. Those that it reads for others come first in the next
    /// [`get_async_event`](crate::Context::get_async_event), but do not make the descriptor readable.
    ///
    /// # Errors
    /// `ETIMEDOUT` if the event does not come within `timeout` (old kernels do not raise it for rxe); `EIO` if a CQ is
    /// corrupt; `EBUSY` if this thread polls one of them; else the kernel's error.
    pub fn drain<C: DrainCq>(
        &self,
        mut cqs: C,
        timeout: Duration,
        mut completed: impl FnMut(&WorkCompletion),
    ) -> Result<()> {
        const VERB: &str = "drain";
        let begin = Instant::now();
        let poll_failed =
            |e: PollError| Error::os(VERB, format!("the CQs of qp {:#x}: {e}", self.qp_num()), e.errno());
        // In these states no message was taken, and the device has nothing to report.
        let is_idle = |state| state == QpState::RESET || state == QpState::INIT;
        let waits = self.has_srq() && !is_idle(self.state()?);
        self.modify_state(QpState::ERR)?;
        while waits && !self.has_last_wqe() {
            cqs.poll_once(&mut completed).map_err(poll_failed)?;
            if begin.elapsed() >= timeout {
                let object = format!("qp {:#x}: no event LAST_WQE_REACHED", self.qp_num());
                return Err(Error::os(VERB, object, Errno::ETIMEDOUT));
            }
            self.event_step()?;
        }
        while cqs.poll_once(&mut completed).map_err(poll_failed)? > 0 {}
        Ok(())
    }
}
