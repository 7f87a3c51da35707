// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue: what its [`Poller`] and control calls share are the rings, the QPs, and completions that were taken out of the rings.
//!
//! The device writes to a ring without asking whether there is room. So when a QP is reset or destroyed, its completions leave the rings
//! at once: those of other QPs before them are moved to private memory, where the next poll finds them ([`CqState::remove`]).
#![expect(unsafe_code)]
// UNSAFETY: the address of the table that was found last.

use crate::completion::{self, Completion};
use crate::memory::{CqRing, Cqe, Doorbell};
use crate::shared::Table;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::Polled;
use uverbs_core::provider::requests::Requests;
use uverbs_core::provider::{Notify, PollError, Poller, Source};
use uverbs_efa_hw::regs::CqDoorbell;

/// A completion queue. It has no bell if it raises no events.
pub type CompletionQueue = Poller<CqState, Option<CqBell>>;
/// What it shares with control calls.
pub type CqShared = Polled<CqState>;

/// The doorbell of a CQ, which tells the device how many completions were consumed, and requests events.
#[derive(Debug)]
pub struct CqBell {
    pub(crate) doorbell: Doorbell,
    events: Arc<Events>,
}

/// Events that the program has read. The doorbell that requests the next one has the number.
#[derive(Debug, Default)]
pub struct Events(AtomicU32);

impl Notify for Events {
    fn cq_event(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CqBell {
    /// For a CQ of which no event was read.
    #[must_use]
    pub fn new(doorbell: Doorbell) -> Self {
        Self { doorbell, events: Arc::default() }
    }

    /// To be told of events.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring(&self, consumer_index: u16, arm: bool) {
        let cmd_sn = self.events.0.load(Ordering::Relaxed) as u8;
        self.doorbell.ring_after_loads(CqDoorbell { consumer_index, cmd_sn, arm }.pack());
    }
}

/// The tables by QP number and kind of queue. The low bits of the number, as many as the number of QPs needs, are those of one QP at a time
/// (comment of `qp_num` in `efa_admin_cmds_defs.h`).
///
/// # Invariant
/// Unless `last_whose` is [`NOBODY`], `last` is the address of the requests of a table in `tables`.
#[derive(Debug)]
struct Qps {
    /// Receive and send of each QP; a power of two of QPs.
    tables: Box<[Option<Table>]>,
    mask: usize,
    /// The requests that were found last.
    last: NonNull<Requests>,
    /// The bits of an entry's first word that tell the queue, and the generation of these requests.
    whose: u64,
    /// These bits of the entries of these requests.
    last_whose: u64,
}

/// Bits that are never those of an entry.
const NOBODY: u64 = !completion::WHOSE;

// SAFETY: `last` is the address of requests, which are `Sync`, and which `tables` keeps.
unsafe impl Send for Qps {}

impl Qps {
    /// For a device with this many QPs.
    fn new(max_qp: u32) -> Self {
        let len = max_qp.clamp(1, 1 << 16).next_power_of_two() as usize * 2;
        let tables = (0..len).map(|_| None).collect();
        let (last, whose) = (NonNull::dangling(), completion::WHOSE);
        Self { tables, mask: len - 1, last, whose, last_whose: NOBODY }
    }

    /// The table of the queue that an entry names.
    fn get(&self, first: u64) -> Option<&Table> {
        let (qp_num, is_send) = (completion::qp_num(first), completion::is_send(first));
        let table = self.tables.get(self.index(qp_num, is_send))?.as_ref()?;
        (table.qp_num == qp_num).then_some(table)
    }

    /// The `wr_id` of the request that an entry completes, if the device has it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self, first: u64) -> Option<u64> {
        if first & self.whose != self.last_whose && !self.find(first) {
            return None;
        }
        // SAFETY: requests that `tables` keeps (invariant): the last ones, or those that were found just now.
        unsafe { self.last.as_ref() }.take_current(completion::req_id(first))
    }

    /// Looks for the table of an entry that may be that of a request of its generation.
    #[inline(never)]
    fn find(&mut self, first: u64) -> bool {
        let may_be = |table: &&Table| {
            first & completion::UNSOLICITED == 0 && table.requests.is_current(completion::req_id(first))
        };
        let Some(table) = self.get(first).filter(may_be) else { return false };
        let whose = completion::WHOSE | u64::from(table.requests.generation_bits());
        self.last = NonNull::from(&*table.requests);
        (self.whose, self.last_whose) = (whose, first & whose);
        true
    }

    /// Forgets the requests that were found last. For a change of the tables, or of a generation.
    fn forget(&mut self) {
        (self.whose, self.last_whose) = (completion::WHOSE, NOBODY);
    }

    fn index(&self, qp_num: u16, is_send: bool) -> usize {
        (usize::from(qp_num) << 1 | usize::from(is_send)) & self.mask
    }

    fn set(&mut self, table: Table, is_send: bool) {
        self.forget();
        let index = self.index(table.qp_num, is_send);
        self.tables[index] = Some(table);
    }

    fn remove(&mut self, qp_num: u16) {
        self.forget();
        for is_send in [false, true] {
            let table = &mut self.tables[self.index(qp_num, is_send)];
            if table.as_ref().is_some_and(|table| table.qp_num == qp_num) {
                *table = None;
            }
        }
    }
}

/// The state.
#[derive(Debug)]
pub struct CqState {
    ring: CqRing,
    /// The number of entries of all rings.
    room: u32,
    /// Completions that were taken out of the rings, for the doorbell.
    consumed: u16,
    /// The consumer index that the device has.
    told: u16,
    /// The kernel has destroyed the queue: its doorbell may be that of another one.
    pub(crate) ended: bool,
    /// Completions that [`remove`](Self::remove) has taken out of the rings, of other QPs: at most as many as the rings have.
    kept: VecDeque<Cqe>,
    qps: Qps,
}

impl CqState {
    /// The state of a new CQ of a device with this many QPs.
    #[must_use]
    pub fn new(ring: CqRing, max_qp: u32) -> Self {
        let room = ring.entries().saturating_mul(ring.subs() as u32);
        Self { ring, room, consumed: 0, told: 0, ended: false, kept: VecDeque::new(), qps: Qps::new(max_qp) }
    }

    #[cold]
    fn take_kept(&mut self) -> Option<Cqe> {
        self.kept.pop_front()
    }

    /// Takes the next entry of any sub-CQ.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_entry(&mut self) -> Option<Cqe> {
        if !self.kept.is_empty() {
            return self.take_kept();
        }
        let entry = self.ring.take()?;
        self.consumed = self.consumed.wrapping_add(1);
        Some(entry)
    }

    /// The `wr_id` 0 of an entry that consumed no receive, of a QP that has such completions: for another QP it could be that of a request.
    /// Of others without a request, a number of an earlier generation, or of a QP that was destroyed, is left out; any other is an error of
    /// the device.
    #[cold]
    fn unknown(&self, first: u64) -> Result<Option<u64>, PollError> {
        let Some(table) = self.qps.get(first) else { return Ok(None) };
        if completion::is_unsolicited(first) {
            return if table.unsolicited { Ok(Some(0)) } else { Err(PollError::Corrupt) };
        }
        let number = completion::req_id(first);
        match table.requests.take(number) {
            Some(wr_id) => Ok(Some(wr_id)),
            None if table.requests.is_current(number) => Err(PollError::Corrupt),
            None => Ok(None),
        }
    }

    /// Adds a queue of a QP.
    pub(crate) fn attach(&mut self, table: &Table, is_send: bool) {
        self.qps.set(table.clone(), is_send);
    }

    /// Removes the queues of a QP.
    pub(crate) fn detach(&mut self, qp_num: u16) {
        self.qps.remove(qp_num);
    }

    /// Empties the table of a queue, which has another generation then.
    pub(crate) fn reset(&mut self, table: &Table) {
        self.qps.forget();
        table.requests.reset();
    }

    /// Removes the completions of a QP, which the device has reset or destroyed. Those of other QPs stay, in order.
    ///
    /// A program whose CQ has room for its requests has at most as many completions as the rings have entries; if there are more, the
    /// rest stays in the rings.
    pub(crate) fn remove(&mut self, qp_num: u16) {
        let is_other = |entry: &Cqe| completion::qp_num(entry[0]) != qp_num;
        self.kept.retain(is_other);
        for sub in 0..self.ring.subs() {
            for _ in 0..self.ring.entries() {
                if self.kept.len() == self.room as usize {
                    return;
                }
                let Some(entry) = self.ring.take_of(sub) else { break };
                self.consumed = self.consumed.wrapping_add(1);
                if is_other(&entry) {
                    self.kept.push_back(entry);
                }
            }
        }
    }
}

impl Source<Option<CqBell>> for CqState {
    type Entry = Completion;

    const TRIES_TO_ARM: bool = true;

    fn capacity(&self) -> u32 {
        self.ring.entries()
    }

    fn room(&self) -> u32 {
        self.room
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn available(&mut self, max: NonZeroUsize) -> Result<usize, PollError> {
        Ok(max.get())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn more(&mut self) -> Result<(), PollError> {
        Ok(())
    }

    /// Takes the next completion. Those of earlier QPs of a number are left out; as the device may write them without end, only as many as
    /// the rings have.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self) -> Result<Option<Completion>, PollError> {
        let mut left_out = 0;
        loop {
            let Some(entry) = self.take_entry() else { return Ok(None) };
            let wr_id = match self.qps.take(entry[0]) {
                Some(wr_id) => wr_id,
                None => match self.unknown(entry[0])? {
                    Some(wr_id) => wr_id,
                    None => {
                        left_out += 1;
                        if left_out > self.room {
                            return Ok(None);
                        }
                        continue;
                    }
                },
            };
            return Ok(Some(Completion::new(wr_id, entry)));
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn gives_back(bell: &Option<CqBell>, _: usize) -> bool {
        bell.is_some()
    }

    /// Tells the device how many completions were consumed, if it does not know.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn give_back(&mut self, bell: &Option<CqBell>) {
        let is_new = self.told != self.consumed && !self.ended;
        self.told = self.consumed;
        if let Some(bell) = bell.as_ref().filter(|_| is_new) {
            bell.ring(self.consumed, false);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_empty(&mut self) -> bool {
        self.kept.is_empty() && self.ring.is_empty()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_arm(&mut self, bell: &Option<CqBell>, solicited_only: bool) -> bool {
        bell.as_ref().is_some_and(|bell| bell.doorbell.is_mapped()) && self.arm(bell, solicited_only).is_ok()
    }

    /// The device has no solicited events.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn arm(&mut self, bell: &Option<CqBell>, solicited_only: bool) -> Result<(), Errno> {
        let bell = bell.as_ref().filter(|_| !solicited_only).ok_or(Errno::EOPNOTSUPP)?;
        if self.ended {
            return Err(Errno::EINVAL);
        }
        bell.ring(self.consumed, true);
        Ok(())
    }
}
