// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: writing entries, arming, overrun, resizing.

use super::compress::{Block, note_block};
use super::qp::{Qp, State};
use super::{Device, Notice, Port, event, trace};
use crate::cqe::Cqe;
use crate::memory::{Area, Fault};
use crate::violation::{Mistake, Object};
use uverbs_fabric::order::Mode;
use uverbs_mlx5_hw::cqe::MLX5_CQE_RESIZE_CQ;

/// Consumer indices have 24 bits (`MLX5_CQ_DB` layout in the PRM).
const CI_MASK: u32 = 0xff_ffff;

/// The kind of event that an arming requests.
#[derive(Clone, Copy, Debug)]
struct Arm {
    sn: u8,
    solicited_only: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    ring: Area,
    entry: usize,
    /// Entries, a power of two.
    entries: u32,
    record: Area,
    producer: u32,
    /// The page on which it is armed.
    pub(crate) page: u32,
    ignore_overrun: bool,
    armed: Option<Arm>,
    /// Number of the arming that raised the last event.
    fired: Option<u8>,
    /// Index behind the last entry for which an event was raised.
    reported: Option<u32>,
    /// Index behind the last entry that is a solicited event.
    solicited: Option<u32>,
    broken: bool,
    /// The completions that may become a compressed block; `None` without compression.
    pub(super) block: Option<Block>,
    /// Moderation: completions and microseconds until an event. Stored for queries only; every event is raised
    /// immediately.
    pub moderation: (u16, u16),
}

/// The parameters of a new CQ.
#[derive(Debug)]
pub struct CqParts {
    /// Its memory.
    pub ring: Area,
    /// Bytes of an entry, 64 or 128.
    pub entry: usize,
    /// The doorbell record: consumer index, arming.
    pub record: Area,
    /// The page on which it is armed.
    pub page: u32,
    /// A full queue is overwritten.
    pub ignore_overrun: bool,
}

impl Cq {
    /// A new CQ; `None` if its sizes are invalid.
    #[must_use]
    pub fn new(parts: CqParts) -> Option<Self> {
        let entries = entries(&parts.ring, parts.entry)?;
        Some(Self {
            ring: parts.ring,
            entry: parts.entry,
            entries,
            record: parts.record,
            producer: 0,
            page: parts.page,
            ignore_overrun: parts.ignore_overrun,
            armed: None,
            fired: None,
            reported: None,
            solicited: None,
            broken: false,
            block: None,
            moderation: (0, 0),
        })
    }

    /// Its ring, and the bytes of an entry.
    pub(super) fn memory(&self) -> (&Area, u32) {
        (&self.ring, self.entry as u32)
    }

    /// The number of its entries.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) fn entry_size(&self) -> usize {
        self.entry
    }

    /// Entries that were written and not consumed; `None` if the doorbell record is not in memory.
    pub(crate) fn waiting(&self) -> Option<u32> {
        self.unread().ok()
    }

    /// Entries written so far.
    #[must_use]
    pub fn producer(&self) -> u32 {
        self.producer
    }

    /// Continues as if `entries` entries had been written and consumed.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, entries: u32) {
        self.producer = self.producer.wrapping_add(entries);
    }

    /// Sets whether a full queue is overwritten.
    pub fn set_ignore_overrun(&mut self, ignore: bool) {
        self.ignore_overrun = ignore;
    }

    /// Whether it is in an error state, for example after an overrun.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Puts it into the error state. Returns whether it was in it.
    pub(super) fn replace_broken(&mut self) -> bool {
        core::mem::replace(&mut self.broken, true)
    }

    /// Entries that were written and not consumed, according to the consumer index in the record.
    fn unread(&self) -> Result<u32, Fault> {
        Ok(self.producer.wrapping_sub(self.record.load_be32(0)?) & CI_MASK)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn store(&self, index: u32, cqe: &Cqe) -> Result<(), Fault> {
        // The number of entries is a power of two.
        let owner = u8::from(index & self.entries != 0);
        let at = u64::from(index & (self.entries - 1)) * self.entry as u64;
        // The owner bit is in the last word: a reader that sees it sees the whole entry.
        match self.entry {
            128 => self.ring.write_entry(at, &cqe.encode::<128>(owner)),
            _ => match cqe.plain(owner) {
                Some(bytes) => self.ring.write_entry(at, &bytes),
                None => self.ring.write_entry(at, &cqe.encode::<64>(owner)),
            },
        }
    }

    /// Writes an entry. Returns whether it raises an event.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn push(&mut self, cqe: &Cqe) -> Result<bool, Mistake> {
        self.push_by(cqe, |cq| cq.store(cq.producer, cqe))
    }

    /// As [`push`](Self::push), of a CQ with compression: adds the entry to the open block if `may_wait`.
    #[cold]
    #[inline(never)]
    fn push_to_block(&mut self, cqe: &Cqe, may_wait: bool) -> Result<bool, Mistake> {
        self.push_by(cqe, |cq| cq.collect(cqe, may_wait))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn push_by(
        &mut self,
        cqe: &Cqe,
        store: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<bool, Mistake> {
        let unread = self.unread().map_err(|Fault| Mistake::MemoryGone)?;
        if !self.ignore_overrun {
            if unread > CI_MASK / 2 {
                return Err(Mistake::CqBackwards);
            }
            if unread >= self.entries {
                return Err(Mistake::CqOverrun);
            }
        }
        store(self).map_err(|Fault| Mistake::MemoryGone)?;
        self.producer = self.producer.wrapping_add(1);
        // An error always counts as a solicited completion.
        let solicited = cqe.solicited || cqe.syndrome.is_some();
        if solicited {
            self.solicited = Some(self.producer);
        }
        Ok(self.fire(|arm| !arm.solicited_only || solicited))
    }

    fn fire(&mut self, raises: impl Fn(Arm) -> bool) -> bool {
        let Some(arm) = self.armed.filter(|arm| raises(*arm)) else { return false };
        self.armed = None;
        self.fired = Some(arm.sn);
        self.reported = Some(self.producer);
        true
    }

    /// Handles the arming doorbell: sequence number, command and consumer index in one word. Returns whether an event is
    /// due immediately, because there are entries behind that index for which no event was raised. The kernel's driver
    /// needs that: `mlx5_ib_arm_cq` does not report missed events. An entry for which an event was raised raises no second
    /// one, even if it is not consumed yet: perftest arms before it polls, and counts an event as a completion.
    pub(crate) fn arm(&mut self, word: u32) -> bool {
        let (sn, solicited_only, ci) = ((word >> 28 & 3) as u8, word >> 24 & 1 != 0, word & CI_MASK);
        // One event per sequence number: arming again before the event was read raises no second event.
        if self.fired == Some(sn) {
            return false;
        }
        // A request for any completion stays in force until its event: one for solicited completions does not narrow it
        // (IBA 11.4.2.2, Request Completion Notification).
        let solicited_only = solicited_only && self.armed.is_none_or(|arm| arm.solicited_only);
        self.armed = Some(Arm { sn, solicited_only });
        // The consumer may have read entries beyond its consumer index, but not beyond the producer index.
        let unread = self.producer.wrapping_sub(ci) & CI_MASK;
        let unread = if unread <= CI_MASK / 2 { unread } else { 0 };
        let unread = self.reported.map_or(unread, |index| unread.min(self.producer.wrapping_sub(index)));
        // All bits of the two indices are compared: a solicited entry of the previous lap raises no event.
        let solicited = self.solicited.is_some_and(|index| self.producer.wrapping_sub(index) < unread);
        self.fire(|arm| if arm.solicited_only { solicited } else { unread != 0 })
    }

    /// Writes an entry that marks the end of the old ring, and continues in another ring. `false` if the unconsumed
    /// entries do not fit; then nothing is changed.
    ///
    /// # Errors
    /// The old ring or its record is not in memory.
    pub fn resize(&mut self, ring: Area, entry: usize) -> Result<bool, Fault> {
        let Some(count) = entries(&ring, entry) else { return Ok(false) };
        let unread = self.unread()?;
        // Each entry moves by one, to make room for the marker.
        if unread >= count || unread >= self.entries {
            return Ok(false);
        }
        self.close()?;
        self.store(self.producer, &Cqe { kind: MLX5_CQE_RESIZE_CQ, ..Cqe::default() })?;
        self.producer = self.producer.wrapping_add(1);
        (self.ring, self.entry, self.entries) = (ring, entry, count);
        Ok(true)
    }
}

fn entries(ring: &Area, entry: usize) -> Option<u32> {
    let count = ring.size() / entry as u64;
    let count = u32::try_from(count).ok()?;
    (matches!(entry, 64 | 128) && count.is_power_of_two() && count <= 1 << 22).then_some(count)
}

impl Device {
    /// Moves the QPs of broken CQs to the error state.
    pub(crate) fn end_users_of_broken_cqs(&mut self, cx: &mut Port<'_>) {
        let mut later = Vec::new();
        while let Some(cqn) = self.overrun.pop() {
            let uses = |qp: &Qp| {
                let live = !matches!(qp.state, State::Reset | State::Err);
                live && (qp.send_cqn == cqn || qp.recv_cqn == cqn)
            };
            let is_held = |qp: &Qp| qp.copying.runs && uses(qp);
            let users: Vec<u32> =
                self.qps.values().filter(|qp| uses(qp) && !is_held(qp)).map(|qp| qp.qpn).collect();
            // The end of the copy calls again.
            later.extend(self.qps.values().any(is_held).then_some(cqn));
            for qpn in users {
                self.notices.push(Notice::Qp { qpn, event: event::QP_FATAL });
                self.with_qp(cx, qpn, |device, cx, qp| device.set_state(cx, qp, State::Err));
            }
        }
        self.overrun.extend(later);
    }

    /// Writes a completion to a CQ.
    pub(crate) fn complete(&mut self, cx: &mut Port<'_>, cqn: u32, mut cqe: Cqe) {
        self.report_signatures(cx, cqn);
        if cx.net.mode() == Mode::Ordered {
            self.write_completion(cx, cqn, &mut cqe);
        } else if let Some(cqe) = self.defer_completion(cx, cqn, cqe) {
            self.complete_now(cx, cqn, cqe);
        }
    }

    /// Writes the errors of signatures that the operation in execution had. They are before its completion. Whether there
    /// were any.
    pub(crate) fn report_signatures(&mut self, cx: &mut Port<'_>, cqn: u32) -> bool {
        if !self.mkeys.errors.any() {
            return false;
        }
        for error in self.mkeys.errors.take() {
            self.complete_now(cx, cqn, Cqe { signature: Some(error), ..Cqe::default() });
        }
        true
    }

    /// As [`complete`](Self::complete), in any mode.
    pub(crate) fn complete_now(&mut self, cx: &mut Port<'_>, cqn: u32, mut cqe: Cqe) {
        self.write_completion(cx, cqn, &mut cqe);
    }

    /// As [`complete_now`](Self::complete_now), without a copy of the entry.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn write_completion(&mut self, cx: &mut Port<'_>, cqn: u32, cqe: &mut Cqe) {
        cqe.timestamp = cx.now;
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        if cq.broken {
            return;
        }
        let index = cq.producer;
        let pushed = match cq.block {
            None => cq.push(cqe),
            Some(_) => {
                note_block(&mut self.open_blocks, cqn);
                cq.push_to_block(cqe, cx.net.mode() == Mode::Ordered)
            }
        };
        if pushed.is_ok() {
            trace::completion(cx, cqn, cqe);
        }
        match pushed {
            Ok(false) => {}
            Ok(true) => self.notices.push(Notice::Completion { cqn }),
            Err(mistake) => {
                cq.broken = true;
                self.blame(cx.now, Object::Cq(cqn), index, mistake);
                self.notices.push(Notice::CqError { cqn });
                self.overrun.push(cqn);
            }
        }
    }
}
