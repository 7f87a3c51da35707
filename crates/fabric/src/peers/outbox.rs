// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages that wait for a peer: the world appends them, a thread writes them to the socket.
//!
//! What waits has a limit, because a peer may not read. Beyond [`BACKLOG`] packets are lost, as on an overloaded link. The
//! lists of ports and of members replace an older list that waits. Beyond [`MAX`] the connection is closed.

use crate::model::Packet;
use crate::wire::Message;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes that wait for a peer beyond which packets to it are lost.
const BACKLOG: usize = 16 << 20;
/// Bytes that wait for a peer beyond which it is disconnected.
const MAX: usize = 2 * BACKLOG;
/// Bytes that a message takes besides its own.
const RECORD: usize = 64;

/// The messages that wait for a peer.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    lost: u64,
    closed: bool,
    /// A message is being written.
    writing: bool,
    /// The number of messages that were taken, so the number of the first one that waits.
    taken: u64,
    /// The numbers of the last lists of ports and of members.
    lists: [Option<u64>; 2],
}

impl Queue {
    fn close(&mut self) {
        self.closed = true;
        self.messages.clear();
        self.bytes = 0;
    }
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

    pub(crate) fn push<P: Packet>(&self, message: &Message<P>) {
        let mut queue = self.queue();
        let queue = &mut *queue;
        let is_lost = match message {
            Message::Packet { .. } | Message::Host { .. } => queue.bytes > BACKLOG,
            _ => false,
        };
        if queue.closed || is_lost {
            queue.lost += 1;
            return;
        }
        let bytes = message.bytes();
        let list = match message {
            Message::Ports(_) => Some(0),
            Message::Members(_) => Some(1),
            _ => None,
        };
        if let Some(list) = list {
            let old = queue.lists[list].and_then(|number| number.checked_sub(queue.taken));
            let old = old.and_then(|i| queue.messages.get_mut(usize::try_from(i).ok()?));
            if let Some(old) = old {
                queue.bytes = queue.bytes - old.len() + bytes.len();
                *old = bytes;
                return;
            }
            queue.lists[list] = Some(queue.taken + queue.messages.len() as u64);
        }
        queue.bytes += bytes.len() + RECORD;
        queue.messages.push_back(bytes);
        if queue.bytes > MAX {
            log::warn!("another process of the fabric does not read: it is disconnected");
            queue.close();
            self.empty.notify_all();
        }
        self.more.notify_one();
    }

    pub(crate) fn close(&self) {
        self.queue().close();
        self.more.notify_one();
        self.empty.notify_all();
    }

    /// The bytes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue().bytes
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
                queue.bytes -= message.len() + RECORD;
                queue.taken += 1;
                queue.writing = true;
                return Some(message);
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Frame;

    type Message = crate::wire::Message<Frame>;

    fn packet() -> Message {
        Message::Packet { to: 1, packet: Frame { source: 0, queue: 0, data: vec![0; 1 << 20] } }
    }

    fn members(count: usize) -> Message {
        Message::Members((0..count).map(|i| ([1; 16], 1, i as u32)).collect())
    }

    #[test]
    fn a_list_replaces_the_one_that_waits() {
        let (outbox, list) = (Outbox::default(), members(1 << 14));
        for _ in 0..100 {
            outbox.push(&Message::Ports(Vec::new()));
            outbox.push(&list);
        }
        outbox.push(&Message::Sync(5));
        outbox.push(&members(1));
        assert!(outbox.queue().bytes < 2 << 20, "{}", outbox.queue().bytes);
        let kinds: Vec<u8> = (0..3).map(|_| outbox.pop().unwrap()[4]).collect();
        assert_eq!(kinds, [4, 5, 7]);
        assert_eq!(outbox.queue().bytes, 0);
        // A list that was taken is not replaced.
        outbox.push(&members(2));
        assert_eq!(outbox.pop().unwrap(), members(2).bytes());
    }

    #[test]
    fn packets_are_lost_and_then_the_peer_is_disconnected() {
        let outbox = Outbox::default();
        for _ in 0..100 {
            outbox.push(&packet());
        }
        assert!(outbox.queue().bytes <= BACKLOG + (2 << 20) && outbox.lost() > 80);
        outbox.push(&Message::Sync(1));
        assert!(!outbox.queue().closed);
        for _ in 0..MAX / RECORD {
            outbox.push(&Message::Synced(1));
        }
        assert!(outbox.queue().closed && outbox.queue().messages.is_empty());
        assert_eq!(outbox.pop(), None);
    }
}
