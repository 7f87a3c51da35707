// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event queues (`struct mlx5_eqe` of `<linux/mlx5/device.h>`).

use uverbs_hca::bytes::put;
use uverbs_hca::memory::Area;

/// Bytes of an entry (`struct mlx5_eqe`).
const ENTRY: usize = 64;

/// An event queue.
#[derive(Debug)]
pub(crate) struct Eq {
    ring: Area,
    /// Entries, a power of two.
    entries: u32,
    producer: u32,
    /// The consumer index that the driver stored last.
    consumer: u32,
    pub(crate) vector: u16,
    /// The kinds of events that this queue receives besides completions, by bit.
    events: [u64; 4],
    armed: bool,
    /// It was full once, and events were lost.
    overrun: bool,
    /// The CQs whose completions it reports.
    pub(crate) cqs: usize,
    /// Its context, for queries.
    pub(crate) context: Vec<u8>,
}

/// Consumer indices have 24 bits.
const INDEX: u32 = 0xff_ffff;

impl Eq {
    pub(crate) fn new(ring: Area, entries: u32, vector: u16, events: [u64; 4], context: Vec<u8>) -> Self {
        Self {
            ring,
            entries,
            producer: 0,
            consumer: 0,
            vector,
            events,
            armed: false,
            overrun: false,
            cqs: 0,
            context,
        }
    }

    /// Bytes of a ring of so many entries.
    pub(crate) fn bytes(entries: u32) -> u64 {
        u64::from(entries) * ENTRY as u64
    }

    /// Whether this queue receives events of a kind. Each of the four words of the mask has 64 kinds.
    pub(crate) fn takes(&self, kind: u8) -> bool {
        self.events[usize::from(kind >> 6)] >> (kind & 63) & 1 != 0
    }

    /// The driver has consumed entries, and may arm the queue for the next one. Returns whether an interrupt is due
    /// immediately.
    pub(crate) fn update(&mut self, consumer: u32, arm: bool) -> bool {
        self.consumer = consumer & INDEX;
        if arm {
            self.armed = true;
        }
        self.armed && self.consumer != self.producer & INDEX && self.fire()
    }

    fn fire(&mut self) -> bool {
        core::mem::take(&mut self.armed)
    }

    /// Appends an entry; whether an interrupt is due.
    pub(crate) fn push(&mut self, kind: u8, subtype: u8, data: &[u8; 28]) -> bool {
        if self.producer.wrapping_sub(self.consumer) & INDEX >= self.entries {
            if !self.overrun {
                log::warn!("an event queue is full: events are lost");
            }
            self.overrun = true;
            return false;
        }
        let mut entry = [0; ENTRY];
        put(&mut entry, 1, &[kind]);
        put(&mut entry, 3, &[subtype]);
        put(&mut entry, 32, data);
        entry[63] = ((self.producer / self.entries) & 1) as u8;
        let at = u64::from(self.producer & (self.entries - 1)) * ENTRY as u64;
        let mut last = [0; 8];
        last.copy_from_slice(&entry[ENTRY - 8..]);
        // The owner bit is in the last word: a reader that sees it sees the whole entry.
        let stored = self.ring.write(at, &entry[..ENTRY - 8]);
        if stored.and_then(|()| self.ring.publish(at + ENTRY as u64 - 8, last)).is_err() {
            log::warn!("an event queue is outside of the guest's memory");
            return false;
        }
        self.producer = self.producer.wrapping_add(1);
        self.fire()
    }
}
