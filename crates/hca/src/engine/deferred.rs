// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses to memory that take place later, in the modes of order: the device collects them in a call, and places them in the lanes of its
//! queue pairs. Without a mode it accesses memory at once.

use super::mkey::{User, access};
use super::packet::{Data, Packet};
use super::qp::{Qp, QpKind};
use super::{Device, Port};
use crate::cqe::Cqe;
use crate::memory::{Fault, Memory};
use core::cell::RefCell;
use std::sync::Arc;
use uverbs_fabric::Packet as _;
use uverbs_fabric::map::Map;
use uverbs_fabric::order::{Fill, Label, Lane, Mark, Mode, ModelStep, Side, Store, Waits};

/// Accesses that were collected in a call.
#[derive(Debug)]
pub(super) struct Deferred {
    mode: Mode,
    /// The queue pair, and whose requests are executed.
    queue: u32,
    side: Side,
    label: Label,
    /// Whether requests complete when the peer has acknowledged them.
    acknowledged: bool,
    stores: RefCell<Vec<Store>>,
    fills: RefCell<Vec<Fill>>,
    /// Completions that were placed, by their tokens.
    completions: Map<u64, (u32, Cqe)>,
    next: u64,
}

impl Default for Deferred {
    fn default() -> Self {
        Self {
            mode: Mode::Ordered,
            queue: 0,
            side: Side::Requester,
            label: Label::default(),
            acknowledged: false,
            stores: RefCell::default(),
            fills: RefCell::default(),
            completions: Map::new(),
            next: 0,
        }
    }
}

impl Deferred {
    const fn is_on(&self) -> bool {
        !matches!(self.mode, Mode::Ordered)
    }

    /// The packet whose data were to be gathered is not sent.
    pub(super) fn forget_fills(&self) {
        self.fills.borrow_mut().clear();
    }

    /// Names bytes that are read into a packet later. `false` without a mode: they are to be read now.
    pub(super) fn fills(&self, memory: &Arc<dyn Memory>, offset: u64, at: usize, len: usize) -> bool {
        if self.is_on() && memory.is_at_once() {
            return false;
        }
        if self.is_on() && len > 0 {
            let memory = Arc::clone(memory);
            self.fills.borrow_mut().push(Fill { memory, offset, at, len, after: None });
        }
        self.is_on()
    }
}

impl Device {
    /// A call for a queue pair begins, of its own requests.
    pub(super) fn begin(&mut self, cx: &Port<'_>, qp: &Qp) {
        // Frames have no order: each is a message of its own, and no program polls their memory.
        let mode = if qp.kind == QpKind::Raw { Mode::Ordered } else { cx.net.mode() };
        self.deferred.mode = mode;
        if self.deferred.is_on() {
            (self.deferred.queue, self.deferred.side) = (qp.qpn, Side::Requester);
            self.deferred.acknowledged = qp.is_reliable();
            self.deferred.label = Label { op: "request", psn: qp.req.next_psn() };
        }
    }

    /// Whether data are written at once. In a mode they are written later, which the fabric tells a trace.
    pub(super) fn places_at_once(&self) -> bool {
        !self.deferred.is_on()
    }

    /// The call is for a packet.
    pub(super) fn begin_packet(&mut self, packet: &Packet) {
        if self.deferred.is_on() {
            let is_response = packet.body.is_response();
            self.deferred.side = if is_response { Side::Requester } else { Side::Responder };
            self.deferred.label = packet.label();
        }
    }

    /// A call begins that accesses memory at once.
    pub(super) fn begin_at_once(&mut self) {
        self.deferred.mode = Mode::Ordered;
    }

    /// Places what the call has collected.
    pub(super) fn place_collected(&self, cx: &mut Port<'_>) {
        if !self.deferred.is_on() {
            return;
        }
        let (queue, side) = (self.deferred.queue, self.deferred.side);
        for store in self.deferred.stores.borrow_mut().drain(..) {
            cx.place(Lane::of_queue(queue, side), store);
        }
    }

    /// Writes data to the memory of a key: now, or later in a mode.
    pub(super) fn write(
        &self,
        key: u32,
        memory: &Arc<dyn Memory>,
        offset: u64,
        data: Data<'_>,
    ) -> Result<(), Fault> {
        let bytes = match data {
            Data::Bytes(bytes) => bytes,
            // Only without a mode.
            Data::Mapped(from) => return memory.write_mapped(offset, from),
        };
        if !self.deferred.is_on() || memory.is_at_once() {
            return memory.write(offset, bytes);
        }
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > memory.len()) {
            return Err(Fault);
        }
        let relaxed = self.mkeys.get(key).is_some_and(|key| key.access & access::RELAXED_ORDERING != 0);
        let (memory, label) = (Arc::clone(memory), self.deferred.label);
        let store = Store { memory, offset, bytes: bytes.to_vec(), relaxed, atomic: false, label };
        self.deferred.stores.borrow_mut().push(store);
        Ok(())
    }

    /// Executes an atomic: at once, or in a mode in two halves. Other atomics of the device wait between the halves, and nothing else.
    pub(super) fn execute_atomic(
        &self,
        memory: &Arc<dyn Memory>,
        offset: u64,
        new: &dyn Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        if !self.deferred.is_on() {
            return memory.update(offset, new);
        }
        let old = memory.update(offset, &|old| old)?;
        let value = new(old);
        if value != old {
            let (memory, label) = (Arc::clone(memory), self.deferred.label);
            let bytes = value.to_ne_bytes().to_vec();
            let store = Store { memory, offset, bytes, relaxed: false, atomic: true, label };
            self.deferred.stores.borrow_mut().push(store);
        }
        Ok(old)
    }

    /// The writes of a queue pair so far, for what has to wait until they are visible.
    pub(super) fn visible(&self, cx: &mut Port<'_>, queue: u32, side: Side) -> Option<Mark> {
        self.place_collected(cx);
        cx.net.mark(Lane { device: cx.me, ..Lane::of_queue(queue, side) })
    }

    /// What the packet waits for whose data were gathered: the data that are not read yet. Those of a queue pair's own request are read
    /// at any time, those of its answer to a read after the writes of the requests before it. `fenced` are the writes that a fenced request
    /// waits for.
    pub(super) fn waits(&self, cx: &mut Port<'_>, user: User, side: Side, fenced: Option<Mark>) -> Waits {
        if !self.deferred.is_on() {
            return Waits::default();
        }
        let mut fills = self.deferred.fills.take();
        // The answer to a read comes after all writes before it. A request that is not fenced may read what the answers to earlier reads
        // have not written yet; on PCIe a read does not pass a write.
        let waits = side == Side::Responder || self.deferred.mode == Mode::Pcie;
        let after = if waits { self.visible(cx, user.qpn, side) } else { fenced };
        fills.iter_mut().for_each(|fill| fill.after = after);
        Waits { fills, after: fenced }
    }

    /// In a mode: places a completion behind the writes before it. Returns it if it is to be written now.
    pub(super) fn defer_completion(&mut self, cx: &mut Port<'_>, cqn: u32, cqe: Cqe) -> Option<Cqe> {
        self.place_collected(cx);
        let is_of_request = cqe.is_of_request();
        let side = if is_of_request { Side::Requester } else { Side::Responder };
        let op = if is_of_request { "request" } else { "receive" };
        let label = Label { op, psn: self.deferred.label.psn };
        let token = self.deferred.next;
        // A flushed request has its packets on the way.
        let after_reads = is_of_request && !(self.deferred.acknowledged && cqe.is_success_of_request());
        if !cx.place_step(Lane::of_queue(cqe.qpn, side), ModelStep { token, object: cqn, after_reads, label })
        {
            return Some(cqe);
        }
        self.deferred.next += 1;
        self.deferred.completions.insert(token, (cqn, cqe));
        None
    }

    /// A completion that was placed.
    pub(super) fn placed_completion(&mut self, token: u64) -> Option<(u32, Cqe)> {
        self.deferred.completions.remove(&token)
    }
}
