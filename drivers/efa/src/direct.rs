// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the queues are, for programs that write and read them without this driver (`efadv_query_qp_wqs`, `efadv_query_cq`).
//!
//! Addresses are numbers whose provenance is exposed. What is there belongs to the kernel's object, and is mapped as long as the queue that
//! this driver made for it.

use crate::memory::{CqRing, Cqe, Doorbell};
use crate::{RecvQueue, SendQueue};
use uverbs_efa_hw::io::RxDesc;

/// The place of a queue in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePlace {
    /// The address of the first entry.
    pub buffer: usize,
    /// Bytes of an entry.
    pub entry_size: u32,
    /// Entries; of a CQ, those of each sub-CQ.
    pub num_entries: u32,
    /// The doorbell.
    pub doorbell: DoorbellPlace,
    /// The most entries that may be written before a doorbell; of a CQ, 0.
    pub max_batch: u32,
}

/// The place of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellPlace {
    /// The address of the register, which has 4 bytes.
    Address(usize),
    /// The queue has none.
    None,
    /// It is rung by a function call: the device is a software device of this process.
    Call,
}

impl QueuePlace {
    /// The place of a ring of entries of `entry_size` bytes.
    pub(crate) fn new(
        buffer: usize,
        entry_size: u32,
        num_entries: u32,
        doorbell: Option<&Doorbell>,
        max_batch: u32,
    ) -> Self {
        let doorbell = match doorbell.map(Doorbell::address) {
            Some(Some(address)) => DoorbellPlace::Address(address.as_ptr().expose_provenance()),
            Some(None) => DoorbellPlace::Call,
            None => DoorbellPlace::None,
        };
        Self { buffer, entry_size, num_entries, doorbell, max_batch }
    }

    /// The place of a CQ's rings.
    pub(crate) fn of_cq(ring: &CqRing, doorbell: Option<&Doorbell>) -> Self {
        Self::new(ring.address(), size_of::<Cqe>() as u32, ring.entries(), doorbell, 0)
    }
}

/// The places of a QP's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpPlaces {
    /// The send queue.
    pub send: QueuePlace,
    /// The receive queue.
    pub recv: QueuePlace,
}

impl QpPlaces {
    pub(crate) fn of(sends: &SendQueue, receives: &RecvQueue) -> Self {
        let (ring, entries) = (&sends.ring, sends.ring.entries());
        let max_batch = sends.config.max_batch.min(entries);
        let send =
            QueuePlace::new(ring.address(), ring.entry_size(), entries, Some(&sends.doorbell), max_batch);
        let (ring, entries) = (&receives.ring, receives.ring.entries());
        let size = size_of::<RxDesc>() as u32;
        let recv = QueuePlace::new(ring.address(), size, entries, Some(&receives.doorbell), entries);
        Self { send, recv }
    }
}
