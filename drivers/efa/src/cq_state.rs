// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the poller of a CQ and control calls share: the rings, the QPs, and completions that were taken out of the rings.
//!
//! The device writes to a ring without asking whether there is room. So when a QP is reset or destroyed, its completions leave the rings
//! at once: those of other QPs before them are moved to private memory, where the next poll finds them ([`CqState::remove`]).
#![expect(unsafe_code)]
// UNSAFETY: the address of the table that was found last.

use crate::completion::{self, Completion};
use crate::direct::QueuePlace;
use crate::memory::{CqRing, Cqe, Doorbell};
use crate::table::Table;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use uverbs_core::kernel::Polled;
use uverbs_core::provider::PollError;
use uverbs_core::sync::ControlBarrier;

/// The state of a CQ that its poller and control calls share.
#[derive(Debug)]
pub struct CqShared {
    /// The rings, which they use in turn.
    pub(crate) rings: Arc<Polled<CqState>>,
    /// Events that the program has read. The doorbell that requests the next one has the number.
    pub(crate) events: AtomicU32,
    place: QueuePlace,
}

impl CqShared {
    /// # Errors
    /// There is no memory for the words that the poller and control calls share.
    pub(crate) fn new(
        state: CqState,
        barrier: ControlBarrier,
        doorbell: Option<&Doorbell>,
    ) -> io::Result<Self> {
        let (ring, size) = (&state.ring, size_of::<Cqe>() as u32);
        let place = QueuePlace::new(ring.address(), size, ring.entries(), doorbell, 0);
        Ok(Self { rings: Polled::new(state, barrier)?, events: AtomicU32::new(0), place })
    }

    /// Where the rings are: one after the other.
    #[must_use]
    pub fn place(&self) -> &QueuePlace {
        &self.place
    }

    /// Counts an event that was read.
    pub fn count_event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }
}

/// The tables by QP number and kind of queue. The low bits of the number, as many as the number of QPs needs, are those of one QP at a time
/// (comment of `qp_num` in `efa_admin_cmds_defs.h`).
///
/// # Invariant
/// Unless `last_whose` is [`NOBODY`], `last` is the address of a table in `tables`.
#[derive(Debug)]
struct Qps {
    /// Receive and send of each QP; a power of two of QPs.
    tables: Box<[Option<Arc<Table>>]>,
    mask: usize,
    /// The table that was found last, and the bits of the entry ([`completion::WHOSE`]).
    last_whose: u64,
    last: NonNull<Table>,
}

/// Bits that no entry has.
const NOBODY: u64 = !completion::WHOSE;

// SAFETY: `last` is the address of a table, which is `Sync`, and which `tables` keeps.
unsafe impl Send for Qps {}

impl Qps {
    /// For a device with this many QPs.
    fn new(max_qp: u32) -> Self {
        let len = max_qp.clamp(1, 1 << 16).next_power_of_two() as usize * 2;
        let tables = (0..len).map(|_| None).collect();
        Self { tables, mask: len - 1, last_whose: NOBODY, last: NonNull::dangling() }
    }

    /// The table of the queue that an entry names.
    fn get(&self, first: u64) -> Option<&Arc<Table>> {
        let (qp_num, is_send) = (completion::qp_num(first), completion::is_send(first));
        let table = self.tables.get(self.index(qp_num, is_send))?.as_ref()?;
        (table.qp_num() == qp_num).then_some(table)
    }

    /// The `wr_id` of the request that an entry completes, if the device has it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take(&mut self, first: u64) -> Option<u64> {
        if first & completion::WHOSE != self.last_whose && !self.find(first) {
            return None;
        }
        // SAFETY: a table that `tables` keeps (invariant): the last one, or the one that was found just now.
        unsafe { self.last.as_ref() }.take(completion::req_id(first))
    }

    /// Looks for the table of an entry that may be that of a request.
    #[inline(never)]
    fn find(&mut self, first: u64) -> bool {
        let Some(table) = self.get(first).filter(|_| !completion::may_be_unsolicited(first)) else {
            return false;
        };
        self.last = NonNull::from(&**table);
        self.last_whose = first & completion::WHOSE;
        true
    }

    fn index(&self, qp_num: u16, is_send: bool) -> usize {
        (usize::from(qp_num) << 1 | usize::from(is_send)) & self.mask
    }

    fn set(&mut self, table: Arc<Table>, is_send: bool) {
        self.last_whose = NOBODY;
        let index = self.index(table.qp_num(), is_send);
        self.tables[index] = Some(table);
    }

    fn remove(&mut self, qp_num: u16) {
        self.last_whose = NOBODY;
        for is_send in [false, true] {
            let table = &mut self.tables[self.index(qp_num, is_send)];
            if table.as_ref().is_some_and(|table| table.qp_num() == qp_num) {
                *table = None;
            }
        }
    }
}

/// The state.
#[derive(Debug)]
pub struct CqState {
    pub(crate) ring: CqRing,
    /// Completions that were taken out of the rings, for the doorbell.
    pub(crate) consumed: u16,
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
        Self { ring, consumed: 0, told: 0, ended: false, kept: VecDeque::new(), qps: Qps::new(max_qp) }
    }

    /// The number of entries of all rings.
    pub(crate) fn room(&self) -> usize {
        self.ring.entries() as usize * self.ring.subs()
    }

    /// The consumer index, if the device has another one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn news(&mut self) -> Option<u16> {
        let is_new = self.told != self.consumed && !self.ended;
        self.told = self.consumed;
        is_new.then_some(self.consumed)
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

    /// Takes the next completion. Those of earlier QPs of a number are left out; as the device may write them without end, only as many as
    /// the rings have.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn take(&mut self) -> Result<Option<Completion>, PollError> {
        let mut left_out = 0;
        loop {
            let Some(entry) = self.take_entry() else { return Ok(None) };
            let wr_id = match self.qps.take(entry[0]) {
                Some(wr_id) => wr_id,
                None => match self.unknown(entry[0])? {
                    Some(wr_id) => wr_id,
                    None => {
                        left_out += 1;
                        if left_out > self.room() {
                            return Ok(None);
                        }
                        continue;
                    }
                },
            };
            return Ok(Some(Completion::new(wr_id, entry)));
        }
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
        match table.take(number) {
            Some(wr_id) => Ok(Some(wr_id)),
            None if table.is_current(number) => Err(PollError::Corrupt),
            None => Ok(None),
        }
    }

    /// Adds a queue of a QP.
    pub(crate) fn attach(&mut self, table: &Arc<Table>, is_send: bool) {
        self.qps.set(Arc::clone(table), is_send);
    }

    /// Removes the queues of a QP.
    pub(crate) fn detach(&mut self, qp_num: u16) {
        self.qps.remove(qp_num);
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
                if self.kept.len() == self.room() {
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

    /// Whether a poll would find nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.ring.is_empty()
    }
}
