// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a requester of reliable transports: the requests that are not complete, and the sequence numbers.

use super::attr::Attr;
use super::packet::{Dc, PSN, psn_add, psn_diff};
use crate::cqe::Syndrome;
use crate::decode::{Av, Op, Request};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_fabric::order::Mark;

/// The RNR retry count that means no limit.
pub(super) const FOR_EVER: u8 = 7;

/// An outstanding request.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) request: Request,
    /// Bytes of its data.
    pub(super) len: u64,
    /// Its number on the queue, from 1.
    pub(super) number: u32,
    /// Sequence number of its first packet.
    pub(super) first: u32,
    /// Sequence numbers that it takes; 0 for a local operation.
    pub(super) count: u32,
    /// Packets of the answer that were received, of a read or an atomic.
    pub(super) answered: u32,
    /// Data of the answer that are written to the completion.
    pub(super) inline: Option<Vec<u8>>,
    /// An error of the request, which is reported when it is the oldest one.
    pub(super) failed: Option<Syndrome>,
    /// The data of its answer have no place. It is complete with the error when all of the answer has arrived: requests of other streams are
    /// behind it.
    pub(super) discards: bool,
}

/// The number of requests of a device that were taken from the rings of reliable transports and are not complete.
#[derive(Clone, Debug, Default)]
pub(super) struct InProgress(Arc<AtomicUsize>);

impl InProgress {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the number. Only the device and its QPs have it, and one lock protects all of them.
    fn change(&self, by: isize) {
        self.0.store(self.count().wrapping_add_signed(by), Ordering::Relaxed);
    }
}

/// The requests of a queue that are counted, until they are removed or this is dropped.
#[derive(Debug, Default)]
pub(super) struct Counted {
    all: Option<InProgress>,
    own: usize,
}

impl Counted {
    pub(super) fn add(&mut self, all: &InProgress) {
        self.own += 1;
        self.all.get_or_insert_with(|| all.clone()).change(1);
    }

    fn remove(&mut self, count: usize) {
        self.own -= count;
        self.all.iter().for_each(|all| all.change(-count.cast_signed()));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.remove(self.own);
    }
}

/// Whether an operation has an answer with data.
pub(super) fn wants_answer(op: &Op) -> bool {
    matches!(op, Op::Read { .. } | Op::CmpSwap { .. } | Op::FetchAdd { .. })
}

impl Sent {
    pub(super) fn wants_answer(&self) -> bool {
        wants_answer(&self.request.op)
    }

    pub(super) fn is_answered(&self) -> bool {
        !self.wants_answer() || self.answered == self.count
    }

    /// Sequence number behind it.
    pub(super) fn end(&self) -> u32 {
        psn_add(self.first, self.count)
    }
}

/// The requester's state.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(super) sent: VecDeque<Sent>,
    pub(super) counted: Counted,
    /// How many of them have an answer with data, which may have arrived.
    pub(super) answers: usize,
    /// A request that was fetched and must wait for others.
    pub(super) waiting: Option<Request>,
    /// Requests of a DC initiator that begin again after the error of another stream, with their numbers.
    pub(super) again: VecDeque<(Request, u32)>,
    /// The next packet of `waiting`, on a queue without acknowledgements.
    pub(super) rest: u64,
    /// PSN of the next new packet.
    pub(super) next: u32,
    /// PSN of the next packet to send, at most `next`.
    pub(super) send: u32,
    /// The oldest PSN that is not answered.
    pub(super) una: u32,
    pub(super) retries: u8,
    /// The timeout is multiplied by 2 to this power. A peer outside of the fabric may be a program or a kernel that is not scheduled in
    /// time: it grows with each timeout, and shrinks with each answer in time, so that a slow peer is not sent everything twice.
    pub(super) patience: u8,
    pub(super) rnr_retries: u8,
    /// The receiver was not ready: nothing is sent until the timer expires.
    pub(super) rnr: bool,
    /// The receiver was not ready: after the timer only one packet is sent, until it is acknowledged. The packets behind it
    /// would be dropped if the receiver is still not ready.
    pub(super) probes: bool,
    /// Packets were repeated after a gap. They are not repeated again before the next answer.
    pub(super) resent: Option<u32>,
    /// The DC session: target, key, number, first PSN.
    pub(super) session: Option<(Av, Dc)>,
    /// The writes that the last fenced request waits for, and all later requests.
    pub(super) fenced: Option<Mark>,
    /// The number of the last DC session. It is kept in RESET: the targets know the sessions before it.
    pub(super) sessions: u32,
}

impl Requester {
    pub(crate) fn new(psn: u32, attr: &Attr) -> Self {
        let psn = psn & PSN;
        Self {
            next: psn,
            send: psn,
            una: psn,
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            ..Self::default()
        }
    }

    /// The PSN after the last packet that was sent.
    pub(crate) fn next_psn(&self) -> u32 {
        self.send
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_none() && self.again.is_empty()
    }

    /// Whether a request was fetched that is not sent, or not all of it.
    pub(super) fn has_more(&self) -> bool {
        self.send != self.next || self.waiting.is_some() || !self.again.is_empty()
    }

    /// Whether nothing is in progress, and nothing has been repeated.
    pub(super) fn is_clear(&self) -> bool {
        let is_sent = self.send == self.next && self.una == self.next;
        is_sent && self.is_idle() && !self.rnr && !self.probes && self.session.is_none()
    }

    /// A request of one packet was executed and acknowledged, with nothing else in progress.
    pub(super) fn pass(&mut self, attr: &Attr) {
        let next = psn_add(self.next, 1);
        (self.next, self.send, self.una, self.resent) = (next, next, next, None);
        (self.retries, self.rnr_retries) = (attr.retry_cnt, attr.rnr_retry);
    }

    /// The retries that are left: after a missing answer, and after an RNR NAK.
    pub(crate) fn retries_left(&self) -> u8 {
        self.retries
    }

    pub(crate) fn rnr_retries_left(&self) -> u8 {
        self.rnr_retries
    }

    /// Whether it waits after an RNR NAK.
    pub(crate) fn waits_for_receiver(&self) -> bool {
        self.rnr
    }

    /// Whether it waits after an RNR NAK, without a limit of retries.
    pub(crate) fn waits_for_ever(&self, attr: &Attr) -> bool {
        self.rnr && attr.rnr_retry == FOR_EVER
    }

    /// Stores a message of which not all packets were sent, and its next packet.
    pub(super) fn break_off(&mut self, request: Request, next: u64) {
        (self.waiting, self.rest) = (Some(request), next);
    }

    /// Whether such a message is stored.
    pub(super) fn is_broken_off(&self) -> bool {
        self.waiting.is_some()
    }

    /// Takes the stored message, to continue it.
    pub(super) fn broken_off(&mut self) -> Option<(Request, u64)> {
        Some((self.waiting.take()?, self.rest))
    }

    /// Removes and returns all requests that are not complete, in order.
    pub(crate) fn drain(&mut self) -> Vec<Request> {
        self.answers = 0;
        self.counted.remove(self.sent.len());
        let sent = core::mem::take(&mut self.sent).into_iter().map(|s| s.request);
        let again = core::mem::take(&mut self.again).into_iter().map(|(request, _)| request);
        sent.chain(again).chain(self.waiting.take()).collect()
    }

    /// Adds a request, which `all` counts, too.
    pub(super) fn push(&mut self, sent: Sent, all: &InProgress) {
        self.counted.add(all);
        self.answers += usize::from(sent.wants_answer());
        self.sent.push_back(sent);
    }

    /// Removes the oldest request.
    pub(super) fn pop_front(&mut self) -> Option<Sent> {
        let sent = self.sent.pop_front()?;
        self.answers -= usize::from(sent.wants_answer());
        self.counted.remove(1);
        Some(sent)
    }

    /// The request that has this sequence number.
    pub(super) fn sent_at(&mut self, psn: u32) -> Option<&mut Sent> {
        // Usually it is the newest one.
        let is_newest = self.sent.back().is_some_and(|s| psn_diff(psn, s.first) >= 0);
        let at = match is_newest {
            true => self.sent.len() - 1,
            false => self.sent.partition_point(|s| psn_diff(psn, s.end()) >= 0),
        };
        let sent = self.sent.get_mut(at)?;
        let offset = psn_diff(psn, sent.first);
        (offset >= 0 && offset.cast_unsigned() < sent.count).then_some(sent)
    }

    pub(super) fn pending_answers(&self) -> usize {
        if self.answers == 0 {
            return 0;
        }
        self.sent.iter().filter(|s| !s.is_answered()).count()
    }

    /// Acknowledges all requests before `psn` that are answered without data.
    pub(super) fn acknowledge(&mut self, psn: u32, attr: &Attr) {
        // A read or an atomic is answered with data only. If requests behind it are acknowledged, its answer was lost.
        let limit = match self.answers {
            0 => None,
            _ => self.sent.iter().find(|s| !s.is_answered()).map(|s| psn_add(s.first, s.answered)),
        };
        let to = match limit {
            Some(limit) if psn_diff(psn, limit) > 0 => limit,
            _ => psn,
        };
        if psn_diff(to, self.una) > 0 {
            self.una = to;
            self.resent = None;
            self.probes = false;
            if self.retries == attr.retry_cnt {
                self.patience = self.patience.saturating_sub(1);
            }
            (self.retries, self.rnr_retries) = (attr.retry_cnt, attr.rnr_retry);
            if psn_diff(self.send, self.una) < 0 {
                self.send = self.una;
            }
        }
    }
}
