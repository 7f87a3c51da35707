// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of a DC initiator: an error of a request ends its stream only. The other requests of the stream are flushed, in their order;
//! those of other streams go on. The queue fails when as many streams have failed as it was created for (mlx5dv_dci_stream_id_reset(3)).
//!
//! A stream has 16 bits; those that the device executes at the same time are fewer (`log_num_concurent`). This device executes one at a
//! time.

use super::packet::psn_diff;
use super::qp::Qp;
use super::requester::Requester;
use super::{Device, Port};
use crate::cqe::Syndrome;
use crate::decode::Request;
use uverbs_fabric::map::Set;

/// The greatest logarithms of the numbers of streams that a queue has, and of those that may fail.
pub(crate) const MAX_LOG_CONCURRENT: u8 = 8;
/// See [`MAX_LOG_CONCURRENT`].
pub(crate) const MAX_LOG_ERRORED: u8 = 6;

/// The streams of a DC initiator.
#[derive(Debug)]
pub struct Streams {
    /// The number of failed streams with which the queue fails.
    most: usize,
    failed: Set<u16>,
}

impl Streams {
    /// The streams of a new queue, from the logarithms of its creation; `None` if the device has not so many.
    #[must_use]
    pub fn new(log_concurrent: u8, log_errored: u8) -> Option<Self> {
        let fits = log_concurrent <= MAX_LOG_CONCURRENT && log_errored <= MAX_LOG_ERRORED;
        fits.then(|| Self { most: 1 << log_errored, failed: Set::new() })
    }

    /// Whether requests of this stream are flushed.
    fn has_failed(&self, stream: u16) -> bool {
        !self.failed.is_empty() && self.failed.contains(&stream)
    }

    /// A stream has failed. Whether the queue goes on.
    fn fail(&mut self, stream: u16) -> bool {
        self.failed.insert(stream);
        self.failed.len() < self.most
    }

    /// The program has reset a stream after its error. `false` if the stream has not failed.
    pub fn reset(&mut self, stream: u16) -> bool {
        self.failed.remove(&stream)
    }

    /// The queue is reset.
    pub(super) fn forget(&mut self) {
        self.failed.clear();
    }
}

impl Device {
    /// The oldest request of a queue has failed: completes it. The queue fails, too, unless that is an error of a stream. Whether the queue
    /// goes on. Its other requests are executed once: the target has dropped those behind it, or has executed it, or has not begun.
    pub(super) fn fail_oldest(&mut self, cx: &mut Port<'_>, qp: &mut Qp, syndrome: Syndrome) -> bool {
        let Some(front) = qp.req.pop_front() else {
            self.fail(cx, qp);
            return false;
        };
        if !self.fail_request(cx, qp, &front.request, syndrome) {
            return false;
        }
        // The session goes on if the target has executed all of it, or does not know it.
        if psn_diff(qp.req.una, front.end()) < 0 {
            restart(&mut qp.req);
            qp.timer.deadline = None;
        }
        true
    }

    /// The target of a queue does not answer as it should, and may have executed each request that was sent: all of them fail. Whether the
    /// queue goes on.
    pub(super) fn fail_sent(&mut self, cx: &mut Port<'_>, qp: &mut Qp, syndrome: Syndrome) -> bool {
        if qp.req.sent.is_empty() {
            self.fail(cx, qp);
            return false;
        }
        while let Some(sent) = qp.req.pop_front() {
            let failed = sent.failed.or((sent.count > 0).then_some(syndrome));
            match failed.or(self.flushed(qp, &sent.request)) {
                Some(syndrome) if !self.fail_request(cx, qp, &sent.request, syndrome) => return false,
                Some(_) => {}
                None => self.complete_send(cx, qp, &sent.request, Ok(None)),
            }
        }
        restart(&mut qp.req);
        qp.timer.deadline = None;
        true
    }

    /// The status of a request that is complete, if its stream has failed in the meantime.
    pub(super) fn flushed(&self, qp: &Qp, request: &Request) -> Option<Syndrome> {
        let has_failed = qp.streams.as_ref().is_some_and(|streams| streams.has_failed(request.stream));
        has_failed.then_some(Syndrome::FLUSH)
    }

    /// Completes a request, which is not in the queue any more, with an error. The queue fails, too, unless that is an error of a stream.
    /// Whether the queue goes on.
    pub(super) fn fail_request(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        request: &Request,
        syndrome: Syndrome,
    ) -> bool {
        let flushed = self.flushed(qp, request);
        self.complete_send(cx, qp, request, Err(flushed.unwrap_or(syndrome)));
        let goes_on = qp.streams.as_mut().is_some_and(|s| flushed.is_some() || s.fail(request.stream));
        if !goes_on {
            qp.send_failed = true;
            self.fail(cx, qp);
        }
        goes_on
    }
}

/// After an error: the target has dropped what came after the request, so the requests that are left are sent again, in a new session.
fn restart(req: &mut Requester) {
    let mut left = Vec::new();
    while let Some(sent) = req.pop_front() {
        left.push((sent.request, sent.number));
    }
    for again in left.into_iter().rev() {
        req.again.push_front(again);
    }
    (req.send, req.una, req.resent, req.session) = (req.next, req.next, None, None);
    (req.rnr, req.probes) = (false, false);
}
