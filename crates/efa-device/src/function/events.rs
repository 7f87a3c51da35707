// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events, and the queues of completion events.

use super::Function;
use super::bus::Bus;
use crate::device::{Device, Notice};
use uverbs_efa_hw::admin::{AenqCommonDesc, AenqEntry, Eqe};
use uverbs_efa_hw::feature::{EFA_ADMIN_FATAL_ERROR, EFA_ADMIN_KEEP_ALIVE};
use uverbs_efa_hw::regs::EFA_REGS_INTR_MASK_EN_MASK;
use zerocopy::IntoBytes;

/// A ring of entries with phases, which the device writes.
#[derive(Debug, Default)]
pub(super) struct EventRing {
    pub(super) base: u64,
    /// Entries; 0 for no ring.
    pub(super) depth: u32,
    /// Entries that were written, and that the driver has consumed.
    pub(super) produced: u32,
    pub(super) consumed: u32,
}

impl EventRing {
    /// The phase of the next entry: 1 in the first round.
    pub(super) fn phase(&self) -> bool {
        self.depth != 0 && (self.produced / self.depth).is_multiple_of(2)
    }

    /// Writes the next entry, whose phase is in the first 8 bytes, which are written last. `false` if there is no ring, or no memory.
    pub(super) fn push(&mut self, bus: &dyn Bus, bytes: &[u8]) -> bool {
        let Some((first, rest)) = bytes.split_first_chunk::<8>().filter(|_| self.depth != 0) else {
            return false;
        };
        let index = u64::from(self.produced % self.depth);
        let Some(at) = self.base.checked_add(index * bytes.len() as u64) else { return false };
        let Some(behind) = at.checked_add(8) else { return false };
        let written = bus.write(behind, rest).and_then(|()| bus.publish(at, *first)).is_ok();
        // A depth is at most 65535, so two rounds fit.
        self.produced = (self.produced + 1) % (2 * self.depth);
        written
    }
}

/// An event queue.
#[derive(Debug)]
pub(super) struct EventQueue {
    pub(super) ring: EventRing,
    pub(super) vector: u8,
    pub(super) armed: bool,
    /// Whether events were written since the last interrupt.
    pub(super) pending: bool,
}

impl Function {
    /// Writes the device's notices to event queues.
    pub(super) fn post_notices(&mut self, device: &mut Device) {
        for notice in core::mem::take(&mut device.notices) {
            match notice {
                Notice::Completion { cq } => {
                    let eq = self.eq_of_cqs.get(&cq).and_then(|eqn| self.eqs.get_mut(eqn));
                    let Some(eq) = eq else { continue };
                    let event = Eqe::completion(eq.ring.phase(), cq);
                    eq.ring.push(&*self.bus, event.as_bytes());
                    eq.pending = true;
                    self.signal(cq);
                }
                // The driver has no such event: its port is always up.
                Notice::Link { .. } => {}
            }
        }
    }

    /// Raises the interrupt of a CQ's event queue, if it is armed.
    fn signal(&mut self, cq: u16) {
        if let Some(eqn) = self.eq_of_cqs.get(&cq).copied() {
            self.signal_eq(eqn);
        }
    }

    fn signal_eq(&mut self, eqn: u16) {
        if let Some(eq) = self.eqs.get_mut(&eqn).filter(|eq| eq.armed && eq.pending) {
            (eq.armed, eq.pending) = (false, false);
            self.bus.interrupt(eq.vector);
        }
    }

    /// The doorbell of event queues.
    pub(super) fn arm_eq(&mut self, eqn: u16) {
        if let Some(eq) = self.eqs.get_mut(&eqn) {
            eq.armed = true;
            self.signal_eq(eqn);
        }
    }

    /// Writes an asynchronous event, if the driver takes its group and has room for it. Returns whether it was written.
    pub fn post_event(&mut self, now: u64, group: u16, syndrome: u16) -> bool {
        let wanted = 1_u32.checked_shl(group.into()).is_some_and(|bit| self.groups & bit != 0);
        // The consumer index that the driver writes counts without an end.
        let used = self.aenq.produced.wrapping_sub(self.aenq.consumed) % (2 * self.aenq.depth).max(1);
        if !wanted || used >= self.aenq.depth {
            return false;
        }
        let entry = AenqEntry {
            aenq_common_desc: AenqCommonDesc {
                group,
                syndrome,
                flags: self.aenq.phase().into(),
                timestamp_low: now as u32,
                timestamp_high: (now >> 32) as u32,
                ..AenqCommonDesc::default()
            },
            ..AenqEntry::default()
        };
        let written = self.aenq.push(&*self.bus, entry.as_bytes());
        if written && self.interrupts() {
            self.bus.interrupt((self.registers.aenq_caps >> 24) as u8);
        }
        written
    }

    /// The sign of life. A device that has stopped gives none.
    pub fn keep_alive(&mut self, now: u64) -> bool {
        !self.is_stopped && self.post_event(now, EFA_ADMIN_KEEP_ALIVE, 0)
    }

    /// The device fails: its status says so, and the driver gets an event.
    pub fn fail(&mut self, now: u64) {
        self.has_failed = true;
        self.post_event(now, EFA_ADMIN_FATAL_ERROR, 0);
    }

    /// Whether the driver takes interrupts of the admin queues. `EN` masks them (`efa_com_set_admin_polling_mode()`).
    pub(super) fn interrupts(&self) -> bool {
        self.registers.intr_mask & EFA_REGS_INTR_MASK_EN_MASK == 0
    }
}
