// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion queue's ring, which its [`Poller`] and the control path share.
//!
//! [`Polled`] gives the ring one user at a time. So after a control call has reset or destroyed a QP and removed its completions, no
//! poll reports one of them, and none takes a slot in the ring. (With librxe and libsiw, the next poll reports them.)

use crate::doorbell::ArmBell;
use crate::format::{CqEntry, CqRing, Format};
use crate::shared::QpShared;
use core::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use uverbs_core::Errno;
use uverbs_core::kernel::Polled;
use uverbs_core::provider::{Completion as _, PollError, Poller, Source};
use uverbs_core::wc::WcStatus;

/// The ring of a completion queue.
pub type CqShared<F> = Polled<CqState<F>>;
/// A completion queue, which `B` arms.
pub type CompletionQueue<F, B> = Poller<CqState<F>, B>;
/// A completion of a format.
pub type Completion<F> = <<F as Format>::CqRing as CqRing>::Entry;

/// A ring of completions, and the position of the poller.
#[derive(Debug)]
pub struct CqState<F: Format> {
    ring: F::CqRing,
    /// The first completion that is not polled.
    at: u32,
    /// The slots before it are returned.
    given: u32,
    /// The position behind the last completion that is written, as far as is known.
    end: u32,
    /// The ring that the kernel writes could not be mapped after a resize.
    lost: bool,
    /// The kernel has destroyed the queue.
    ended: bool,
    /// The QPs that complete to the queue, if the format looks for flushes.
    qps: Vec<(u32, Weak<QpShared<F>>)>,
}

impl<F: Format> CqState<F> {
    /// The state of a queue on a ring of completions.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's contents make no sense.
    pub fn new(ring: F::CqRing) -> Result<Self, PollError> {
        let at = ring.start()?;
        Ok(Self { ring, at, given: at, end: at, lost: false, ended: false, qps: Vec::new() })
    }

    /// The kernel has destroyed the queue: its handle may be that of another one.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Replaces the ring by the one to which the kernel moved the completions that were not polled.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's contents make no sense; the queue is lost then.
    pub fn replace_ring(&mut self, ring: F::CqRing) -> Result<(), PollError> {
        let at = match ring.start() {
            Ok(at) => at,
            Err(error) => {
                self.lose_ring();
                return Err(error);
            }
        };
        (self.at, self.given, self.end) = (at, at, at);
        (self.ring, self.lost) = (ring, false);
        Ok(())
    }

    /// The kernel uses a ring that could not be mapped, so its completions can't be read.
    pub fn lose_ring(&mut self) {
        self.lost = true;
        self.end = self.at;
    }

    /// Asks the ring for up to `max` completions.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refresh(&mut self, max: u32) -> Result<(), PollError> {
        if self.lost {
            return Err(PollError::Corrupt);
        }
        self.end = self.ring.written(self.at, max)?;
        Ok(())
    }

    /// The number of completions, as far as is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn known(&self) -> u32 {
        self.end.wrapping_sub(self.at)
    }

    /// Returns the slots of all completions that were taken.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn return_slots(&mut self) {
        if self.at != self.given {
            self.ring.give_back(self.given, self.at);
            self.given = self.at;
        }
    }

    #[cold]
    fn note_flush(&self, qp_id: u64) {
        let qp = self.qps.iter().find(|(number, _)| u64::from(*number) == qp_id);
        if let Some(qp) = qp.and_then(|(_, qp)| qp.upgrade()) {
            F::note_flush(&qp);
        }
    }

    /// Adds a QP.
    pub(crate) fn attach(&mut self, qp_num: u32, qp: &Arc<QpShared<F>>) {
        self.detach(qp_num);
        self.qps.push((qp_num, Arc::downgrade(qp)));
    }

    /// Removes a QP.
    pub(crate) fn detach(&mut self, qp_num: u32) {
        self.qps.retain(|(number, _)| *number != qp_num);
    }

    /// Removes the completions of a QP. The completions before them move up, in order, so the room is at the poller's end. The
    /// kernel writes only from its own position on, to slots that were returned; it reads completions only in a resize, which is a
    /// control call. Calls `removed` with their `wr_id`s.
    pub fn remove(&mut self, qp_num: u32, mut removed: impl FnMut(u64)) {
        if self.refresh(self.ring.capacity()).is_err() {
            return;
        }
        let (mut from, mut to) = (self.end, self.end);
        while from != self.at {
            from = from.wrapping_sub(1);
            let entry = self.ring.read(from);
            if entry.qp_id() == u64::from(qp_num) {
                removed(entry.wr_id());
                continue;
            }
            to = to.wrapping_sub(1);
            if from != to {
                self.ring.replace(to, &entry);
            }
        }
        if to != self.at {
            // The completion that an open poll has taken is copied, so its slot can be returned, too.
            self.at = to;
            self.return_slots();
        }
    }
}

impl<F: Format, B: ArmBell> Source<B> for CqState<F> {
    type Entry = Completion<F>;

    const TRIES_TO_ARM: bool = false;

    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn room(&self) -> u32 {
        self.ring.capacity()
    }

    /// Those that are in the ring when the poll begins. Asks the ring only if fewer are known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn available(&mut self, max: NonZeroUsize) -> Result<usize, PollError> {
        let max = u32::try_from(max.get()).unwrap_or(u32::MAX);
        if self.known() < max
            && let Err(error) = self.refresh(max)
            && self.known() == 0
        {
            return Err(error);
        }
        Ok(max.min(self.known()) as usize)
    }

    /// The slots that were taken are returned before the ring is asked again, because a program may post in an open poll, and its completions
    /// need room. Those taken are copies.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn more(&mut self) -> Result<(), PollError> {
        if self.known() == 0 {
            self.return_slots();
        }
        Source::<B>::available(self, NonZeroUsize::MIN).map(drop)
    }

    /// Takes the next completion, if one is known.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self) -> Result<Option<Completion<F>>, PollError> {
        let at = self.at;
        // With slots that are not returned yet the ring has no more than it can have.
        let is_over = || !F::CqRing::RETURNS_AT_ONCE && at.wrapping_sub(self.given) >= self.ring.capacity();
        if at == self.end || is_over() {
            return Ok(None);
        }
        let entry = self.ring.read(at);
        self.at = at.wrapping_add(1);
        if F::CqRing::RETURNS_AT_ONCE {
            self.ring.give_back(at, self.at);
            self.given = self.at;
        }
        if F::WATCHES_FLUSHES && entry.status() == WcStatus::WR_FLUSH_ERR {
            self.note_flush(entry.qp_id());
        }
        Ok(Some(entry))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn gives_back(_: &B, done: usize) -> bool {
        !F::CqRing::RETURNS_AT_ONCE && done != 0
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn give_back(&mut self, _: &B) {
        self.return_slots();
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_empty(&mut self) -> bool {
        Source::<B>::available(self, NonZeroUsize::MIN) == Ok(0)
    }

    fn try_arm(&mut self, _: &B, _: bool) -> bool {
        false
    }

    fn arm(&mut self, bell: &B, solicited_only: bool) -> Result<(), Errno> {
        if self.ended {
            return Err(Errno::EINVAL);
        }
        self.ring.arm(solicited_only);
        bell.arm(solicited_only)
    }
}
