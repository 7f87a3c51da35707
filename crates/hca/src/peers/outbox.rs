// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages that wait for a peer: the world appends them, a thread writes them to the socket.

use super::wire::Message;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum of bytes that wait for a peer; if they are exceeded, packets to it are lost.
const BACKLOG: usize = 64 << 20;

/// The messages that wait for a peer.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    lost: u64,
    closed: bool,
    /// A message is being written.
    writing: bool,
}

/// The sender of messages to a peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    more: Condvar,
    /// Whether all messages were written, or the connection is closed.
    empty: Condvar,
}

impl Outbox {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, message: &Message) {
        let bytes = message.bytes();
        let mut queue = self.queue();
        let is_packet = matches!(message, Message::Packet { .. });
        if queue.closed || is_packet && queue.bytes > BACKLOG {
            queue.lost += 1;
            return;
        }
        queue.bytes += bytes.len();
        queue.messages.push_back(bytes);
        self.more.notify_one();
    }

    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.more.notify_one();
        self.empty.notify_all();
    }

    /// The number of messages that were lost because the peer did not read.
    pub(crate) fn lost(&self) -> u64 {
        self.queue().lost
    }

    /// Waits until all is written.
    pub(crate) fn flush(&self, until: Instant) {
        let mut queue = self.queue();
        while !queue.closed && (queue.writing || !queue.messages.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.empty.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for messages to send; `None` when the connection is closed.
    pub(crate) fn pop(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue();
        queue.writing = false;
        if queue.messages.is_empty() {
            self.empty.notify_all();
        }
        loop {
            if queue.closed {
                return None;
            }
            if let Some(message) = queue.messages.pop_front() {
                queue.bytes -= message.len();
                queue.writing = true;
                return Some(message);
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
