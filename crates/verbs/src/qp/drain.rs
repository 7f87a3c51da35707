// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a QP: every completion is reported before the QP is destroyed.
//!
//! A receive of a shared queue belongs to no QP until a message arrives. Only its completion names the receive that a
//! QP has taken. If the QP is destroyed before its completions were polled, they are removed from the CQ, and the
//! program does not learn which buffers are free again. So the QP must first stop (state ERR), the device must report
//! that it takes no more receives (`LAST_WQE_REACHED`), and the CQ must be polled until it is empty.

use crate::qp::control::QpControl;
use crate::raw::cq::Cq;
use core::time::Duration;
use std::time::Instant;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PollError};
use uverbs_core::sync::{Exclusive, Shared};
use uverbs_core::wc::WorkCompletion;

/// The maximum number of completions of one poll.
const BATCH: usize = 32;

mod sealed {
    pub trait Sealed {}
}

/// The CQs of a QP: a reference to one CQ, which is exclusive if the CQ has no lock, or a pair of references.
pub trait DrainCq: sealed::Sealed {
    /// Polls once and calls `f` with each completion. Returns their number.
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

cq_references!(&Cq<Shared, D>, &mut Cq<Exclusive, D>);

impl<A: DrainCq, B: DrainCq> sealed::Sealed for (A, B) {}
impl<A: DrainCq, B: DrainCq> DrainCq for (A, B) {
    fn poll_once(&mut self, f: &mut dyn FnMut(&WorkCompletion)) -> Result<usize, PollError> {
        Ok(self.0.poll_once(f)? + self.1.poll_once(f)?)
    }
}

impl<D: Driver> QpControl<D> {
    /// Moves the QP to ERR, waits until it takes no more receives of its shared queue, and polls until its CQs are
    /// empty. After that it can be destroyed without losing a receive. [`Qp::drain`](super::Qp::drain) does both.
    ///
    /// `completed` is called with each completion, also with those of other queues of these CQs. If the receives of the
    /// QP and its sends complete to different CQs, `cqs` is the pair; the CQ of an XRC receive QP is that of its SRQ.
    ///
    /// For a QP without a shared queue there is no event to wait for. Its work requests that have not completed end
    /// with the QP; the program has posted them, so it can free their memory.
    ///
    /// While it waits it reads the context's asynchronous events. The next calls of
    /// [`get_async_event`](crate::Context::get_async_event) return the events of other objects; until then they make the
    /// context's descriptor readable.
    ///
    /// # Errors
    /// `ETIMEDOUT` if the event is not read within `timeout` (old kernels do not raise it for rxe); `EIO` if a CQ is
    /// corrupt; `EBUSY` if this thread polls one of them; otherwise the kernel's error.
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
        // In these states the QP has taken no receive, so the device raises no event.
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
