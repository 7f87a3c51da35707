// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue's ring, which its poller and the control path share.
//!
//! [`Polled`] gives the ring one user at a time. So after a control call has reset or destroyed a QP and removed its completions, no
//! poll reports one of them, and none takes a slot in the ring. (With librxe, the next poll reports them.)

use crate::queue::Ring;
use core::mem::offset_of;
use uverbs_core::kernel::Polled;
use uverbs_core::provider::PollError;
use uverbs_uapi::cmd::ib_uverbs_wc;

/// The ring of a completion queue.
pub type CqShared = Polled<CqState>;

/// A ring of completions, and the position of the poller.
#[derive(Debug)]
pub struct CqState {
    ring: Ring<ib_uverbs_wc>,
    /// The first completion that is not polled.
    at: u32,
    /// The consumer index that was stored for the kernel: the slots before it are returned.
    given: u32,
    /// The kernel's index at the last load, always inside the ring.
    producer: u32,
    /// The ring that the kernel writes could not be mapped after a resize.
    lost: bool,
}

impl CqState {
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's indices make no sense.
    pub(crate) fn new(ring: Ring<ib_uverbs_wc>) -> Result<Self, PollError> {
        let mut state = Self { ring, at: 0, given: 0, producer: 0, lost: false };
        state.resync()?;
        Ok(state)
    }

    /// The number of completions that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Replaces the ring by the one to which the kernel moved the completions that were not polled.
    pub(crate) fn replace_ring(&mut self, ring: Ring<ib_uverbs_wc>) -> Result<(), PollError> {
        self.ring = ring;
        let result = self.resync();
        self.lost = result.is_err();
        result
    }

    /// The kernel uses a ring that could not be mapped, so its completions can't be read.
    pub(crate) fn lose_ring(&mut self) {
        self.lost = true;
        self.producer = self.at;
    }

    fn resync(&mut self) -> Result<(), PollError> {
        let (consumer, mask) = (self.ring.consumer(), self.ring.mask());
        if consumer > mask {
            return Err(PollError::Corrupt);
        }
        (self.at, self.given, self.producer) = (consumer, consumer, consumer);
        Ok(())
    }

    /// Reads the kernel's index.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refresh(&mut self) -> Result<(), PollError> {
        let producer = self.ring.producer();
        if producer > self.ring.mask() || self.lost {
            return Err(PollError::Corrupt);
        }
        self.producer = producer;
        Ok(())
    }

    /// The number of completions, as far as is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn known(&self) -> u32 {
        self.producer.wrapping_sub(self.at) & self.ring.mask()
    }

    /// The number of completions, up to `max`, that a poll finds. Reads the kernel's index only if fewer are known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn available(&mut self, max: usize) -> Result<usize, PollError> {
        if (self.known() as usize) < max
            && let Err(error) = self.refresh()
            && self.known() == 0
        {
            return Err(error);
        }
        Ok(max.min(self.known() as usize))
    }

    /// As [`available`](Self::available) with 1, in a poll that goes on. The slots that were taken are returned before the kernel's index
    /// is read again, because a program may post in an open poll, and its completions need room. Those taken are copies.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn more(&mut self) -> Result<(), PollError> {
        if self.known() == 0 {
            self.give_back();
        }
        self.available(1).map(|_| ())
    }

    /// Takes the next completion, if one is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn take(&mut self) -> Option<ib_uverbs_wc> {
        if self.at == self.producer {
            return None;
        }
        let next = (self.at + 1) & self.ring.mask();
        // The slots that were taken are not returned yet, so a producer index beyond them is invalid.
        if next == self.given {
            return None;
        }
        let wc = self.ring.entry(self.at).field::<0, ib_uverbs_wc>();
        self.at = next;
        Some(wc)
    }

    /// Returns the slots of all completions that were taken.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn give_back(&mut self) {
        if self.at != self.given {
            self.given = self.at;
            self.ring.publish_consumer(self.at);
        }
    }

    /// Removes the completions of a QP. The completions before them move up, in order, so the room is at the consumer's
    /// end. The kernel writes only from its own index on; it reads completions only in a resize, which is a control
    /// call. Calls `removed` with their `wr_id`s.
    pub(crate) fn remove(&mut self, qp_num: u32, mut removed: impl FnMut(u64)) {
        if self.refresh().is_err() {
            return;
        }
        let mask = self.ring.mask();
        let (mut from, mut to) = (self.producer, self.producer);
        for _ in 0..self.known() {
            from = from.wrapping_sub(1) & mask;
            let entry = self.ring.entry(from);
            if entry.field::<{ offset_of!(ib_uverbs_wc, qp_num) }, u32>() == qp_num {
                removed(entry.field::<{ offset_of!(ib_uverbs_wc, wr_id) }, u64>());
                continue;
            }
            to = to.wrapping_sub(1) & mask;
            if from != to {
                let wc = entry.field::<0, ib_uverbs_wc>();
                self.ring.slot(to).put_head(wc);
            }
        }
        if to != self.at {
            // The completion that an open poll has taken is copied, so its slot can be returned, too.
            self.at = to;
            self.give_back();
        }
    }
}
