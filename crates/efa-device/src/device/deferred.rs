// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses to memory that take place later, in the modes of [order](uverbs_fabric::order): the device collects them in a call, and places
//! them in the lane of their message. Without a mode it accesses memory at once.
//!
//! SRD has no order between messages, nor between the packets of one (`SRD.txt` of Amazon's kernel driver; `ibv_query_qp_data_in_order` says
//! that data are not in order). So each message has a lane of its own, and each packet a way of its own. A completion becomes visible after
//! all data of its message.

use super::{Device, Port};
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use uverbs_fabric::memory::{Fault, Memory};
use uverbs_fabric::order::{Fill, Label, Lane, Mode, ModelStep, Side, Store, Waits};

/// A completion that was placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) cq: u16,
    pub(super) sub: u16,
    pub(super) bytes: [u8; 32],
}

/// Accesses that were collected in a call.
#[derive(Debug)]
pub(super) struct Deferred {
    mode: Cell<Mode>,
    label: Cell<Label>,
    stores: RefCell<Vec<Store>>,
    fills: RefCell<Vec<Fill>>,
    /// Completions that were placed, by their tokens.
    completions: BTreeMap<u64, Completion>,
    next: u64,
}

impl Default for Deferred {
    fn default() -> Self {
        Self {
            mode: Cell::new(Mode::Ordered),
            label: Cell::default(),
            stores: RefCell::default(),
            fills: RefCell::default(),
            completions: BTreeMap::new(),
            next: 0,
        }
    }
}

impl Deferred {
    fn is_on(&self) -> bool {
        self.mode.get() != Mode::Ordered
    }

    /// Its successor after a reset of the device: nothing that was placed before is completed.
    pub(super) fn after_reset(&self) -> Self {
        Self { next: self.next, ..Self::default() }
    }
}

/// The lane of a message to or from a device: the lane of a message between two queue pairs is not that of another one. Beyond 2^48 messages
/// two would share one.
pub(super) fn lane(qpn: u16, side: Side, (device, number): (usize, u64)) -> Lane {
    let message = (device as u64) << 48 | number & ((1 << 48) - 1);
    Lane { device: 0, queue: qpn.into(), side, message }
}

/// The lane of what belongs to no message that was begun: flushed requests and receives, datagrams.
pub(super) fn lane_of_queue(qpn: u16, side: Side) -> Lane {
    lane(qpn, side, (usize::from(u16::MAX), 0))
}

impl Device {
    /// A call into the device begins, for a packet with this label.
    pub(super) fn begin(&self, port: &Port<'_>, label: Label) {
        self.deferred.mode.set(port.net.mode());
        self.deferred.label.set(label);
    }

    /// The data of another packet are gathered. What was collected for one that was not sent is forgotten.
    pub(super) fn begin_fetch(&self, port: &Port<'_>) {
        self.deferred.mode.set(port.net.mode());
        if self.deferred.is_on() {
            self.deferred.fills.borrow_mut().clear();
        }
    }

    /// Reads bytes for a packet: now, or in a mode of order into the packet before it is delivered. `at` is their place in its data.
    pub(super) fn fetch(
        &self,
        memory: &Arc<dyn Memory>,
        offset: u64,
        at: usize,
        data: &mut [u8],
    ) -> Result<(), Fault> {
        if !self.deferred.is_on() || memory.is_at_once() || data.is_empty() {
            return memory.read(offset, data);
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > memory.len()) {
            return Err(Fault);
        }
        let fill = Fill { memory: Arc::clone(memory), offset, at, len: data.len(), after: None };
        self.deferred.fills.borrow_mut().push(fill);
        Ok(())
    }

    /// What the packet waits for whose data were gathered.
    pub(super) fn waits(&self) -> Waits {
        Waits { fills: self.deferred.fills.take(), after: None }
    }

    /// Writes bytes that have arrived: now, or later in a mode of order.
    pub(super) fn store(&self, memory: &Arc<dyn Memory>, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        if !self.deferred.is_on() || memory.is_at_once() {
            return memory.write(offset, bytes);
        }
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > memory.len()) {
            return Err(Fault);
        }
        let (memory, label) = (Arc::clone(memory), self.deferred.label.get());
        // The lines of a packet have no order, whatever flags the region has.
        let store = Store { memory, offset, bytes: bytes.to_vec(), relaxed: true, atomic: false, label };
        self.deferred.stores.borrow_mut().push(store);
        Ok(())
    }

    /// Whether data are written at once. In a mode of order the fabric tells a trace of them.
    pub(super) fn stores_at_once(&self) -> bool {
        !self.deferred.is_on()
    }

    /// Places what was collected in the lane of its message.
    pub(super) fn place_collected(&self, port: &mut Port<'_>, lane: Lane) {
        if self.deferred.is_on() {
            for store in self.deferred.stores.borrow_mut().drain(..) {
                port.place(lane, store);
            }
        }
    }

    /// Places a completion behind the data of its message. `false` without a mode: it is to be written now. `after_reads`: no answer of a peer
    /// tells that the data of its message were read.
    pub(super) fn defer(
        &mut self,
        port: &mut Port<'_>,
        lane: Lane,
        completion: Completion,
        after_reads: bool,
    ) -> bool {
        self.place_collected(port, lane);
        let op = if lane.side == Side::Requester { "request" } else { "receive" };
        let label = Label { op, psn: lane.message as u32 };
        let token = self.deferred.next;
        let step = ModelStep { token, object: completion.cq.into(), after_reads, label };
        if !port.place_step(lane, step) {
            return false;
        }
        self.deferred.next += 1;
        self.deferred.completions.insert(token, completion);
        true
    }

    /// A completion that was placed.
    pub(super) fn deferred_completion(&mut self, token: u64) -> Option<Completion> {
        self.deferred.completions.remove(&token)
    }
}
