// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outstanding requests, slots and reads of a client, without its queues.
//!
//! The client trusts no answer of the server: each must belong to a request that has none yet, so a server can neither
//! make the client's lists grow nor give it a slot twice.

use super::proto::{Answer, Status, Welcome};
use core::fmt;
use std::collections::HashMap;
use uverbs::RemoteRegion;

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Asked,
    /// A put by this slot.
    Slot(u32),
    /// A large value is read. The lease is released then.
    Reading(u32),
}

/// The result in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered<'a> {
    /// The value of the key.
    Value(&'a [u8]),
    /// The value is in this memory. The request is outstanding until [`Ledger::read`].
    Large(RemoteRegion),
    /// It was stored or removed, or its value is empty.
    Done,
    /// There is no such key.
    NotFound,
    /// The server's reason for a refusal.
    Refused(Status),
}

/// The server broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(&'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for Broken {}

/// The outstanding requests of a client.
#[derive(Debug)]
pub struct Ledger {
    pending: HashMap<u32, Pending>,
    /// Free slots.
    slots: Vec<u32>,
    credits: usize,
    slot_size: u32,
    next_id: u32,
}

impl Ledger {
    /// A client without requests. It has at most `most` requests outstanding, and no more than the server permits.
    #[must_use]
    pub fn new(welcome: &Welcome, most: u32) -> Self {
        Self {
            pending: HashMap::new(),
            slots: (0..welcome.slots).collect(),
            credits: welcome.credits.min(most) as usize,
            slot_size: welcome.slot_size,
            next_id: 1,
        }
    }

    /// The number of outstanding requests.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// The number of the next request; `None` if all credits are in use.
    #[must_use]
    pub fn next_id(&self) -> Option<u32> {
        (self.pending.len() < self.credits).then_some(self.next_id)
    }

    /// A slot for the next request; `None` if all are in use.
    #[must_use]
    pub fn free_slot(&self) -> Option<u32> {
        self.slots.last().copied()
    }

    /// The next request was posted, with the [free slot](Self::free_slot) if it has a large value.
    pub fn asked(&mut self, has_slot: bool) {
        let slot = if has_slot { self.slots.pop() } else { None };
        self.pending.insert(self.next_id, slot.map_or(Pending::Asked, Pending::Slot));
        // A number that is in use again after 4 billion requests is skipped.
        while self.pending.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
    }

    /// The number of the request that a message answers, and the result.
    ///
    /// # Errors
    /// The message is not an answer, or none to an outstanding request, or its value exceeds the server's limit.
    pub fn answered<'a>(&mut self, message: &'a [u8]) -> Result<(u32, Answered<'a>), Broken> {
        let answer = Answer::decode(message).ok_or(Broken("the server sent an invalid answer"))?;
        let id = answer.id;
        match self.pending.get(&id) {
            None => return Err(Broken("the server answered a request that was not made")),
            Some(Pending::Reading(_)) => return Err(Broken("the server answered a request twice")),
            Some(Pending::Asked) => {}
            Some(&Pending::Slot(slot)) => self.slots.push(slot),
        }
        self.pending.remove(&id);
        let answered = match answer.status {
            Status::Ok if answer.value.is_empty() => Answered::Done,
            Status::Ok => Answered::Value(answer.value),
            Status::NotFound => Answered::NotFound,
            Status::Large => {
                let region = RemoteRegion::decode(answer.value)
                    .map_err(|_| Broken("the server sent an invalid description of memory"))?;
                if region.len() > u64::from(self.slot_size) {
                    return Err(Broken("the server has a value above its limit"));
                }
                self.pending.insert(id, Pending::Reading(answer.arg));
                Answered::Large(region)
            }
            status => Answered::Refused(status),
        };
        Ok((id, answered))
    }

    /// The value of a request was read. Returns the lease, which is to be released; `None` if it was not being read.
    pub fn read(&mut self, id: u32) -> Option<u32> {
        let Some(&Pending::Reading(lease)) = self.pending.get(&id) else { return None };
        self.pending.remove(&id);
        Some(lease)
    }
}
