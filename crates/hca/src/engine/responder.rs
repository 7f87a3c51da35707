// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a responder: the sequence number that it expects, and the message that it receives.

use super::packet::{PSN, psn_add};
use super::recv::Taken;
use std::collections::VecDeque;

/// A message that is being received into a receive WQE.
#[derive(Debug)]
pub(super) struct Receiving {
    /// The SRQ that the receive is from.
    pub(super) srqn: Option<u32>,
    pub(super) taken: Taken,
    pub(super) done: u64,
}

/// A message that is being written to memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) left: u64,
    pub(super) done: u64,
}

/// The responder's state.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The expected PSN.
    pub(super) expected: u32,
    /// The requests that are complete, 24 bits: the message sequence number.
    pub(super) msn: u32,
    /// A NAK for the expected packet was sent; it is not sent twice.
    pub(super) nak_sent: bool,
    pub(super) receiving: Option<Receiving>,
    /// The receive of a message on an unreliable connection that was incomplete or too long. Its WQE was not completed, so
    /// it is used for the next message.
    pub(super) kept: Option<(Option<u32>, Taken)>,
    pub(super) writing: Option<Writing>,
    /// Answers of the last atomics, for repeated requests.
    pub(super) atomics: VecDeque<(u32, u64)>,
    /// Requests were executed that are not acknowledged yet: the device and QP of the requester.
    pub(super) due: Option<(usize, u32)>,
    /// Their requester has completed all of them.
    pub(super) is_known: bool,
    /// The last packet that such an acknowledgement is for.
    pub(super) due_psn: u32,
    /// The DC session that it serves.
    pub(super) session: u32,
    /// The session failed without an answer: its packets are dropped.
    pub(super) ended: bool,
}

impl Responder {
    pub(crate) fn new(psn: u32) -> Self {
        Self { expected: psn & PSN, ..Self::default() }
    }

    pub(crate) fn expected_psn(&self) -> u32 {
        self.expected
    }

    /// Whether it expects this packet, and no message has begun.
    pub(super) fn expects(&self, psn: u32) -> bool {
        let has_begun = self.receiving.is_some() || self.writing.is_some() || self.kept.is_some();
        self.expected == psn && !has_begun && !self.nak_sent
    }

    /// A request of one packet was executed.
    pub(super) fn pass(&mut self) {
        self.expected = psn_add(self.expected, 1);
        self.msn = psn_add(self.msn, 1);
    }

    /// As [`pass`](Self::pass), of one that its requester has completed, and whose acknowledgement is due. Returns whether nothing else
    /// was to be acknowledged.
    pub(super) fn pass_acknowledged(&mut self, from: (usize, u32)) -> bool {
        self.pass();
        let is_first = self.due.replace(from).is_none();
        self.is_known |= is_first;
        is_first
    }

    /// Ends the current message. Returns the receive that it had taken.
    pub(crate) fn abort(&mut self) -> Option<(Option<u32>, Taken)> {
        self.break_off();
        self.kept.take()
    }

    /// Ends the current message, and keeps the receive that it had taken.
    pub(super) fn break_off(&mut self) {
        self.writing = None;
        if let Some(receiving) = self.receiving.take() {
            self.kept = Some((receiving.srqn, receiving.taken));
        }
    }
}
