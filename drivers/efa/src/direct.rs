// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the queues are, for programs that write and read them without this driver (`efadv_query_qp_wqs`, `efadv_query_cq`).
//!
//! Addresses are numbers whose provenance is exposed. What is there belongs to the kernel's object, and is mapped as long as the queue that
//! this driver made for it.

use crate::cq_state::CqState;
use crate::memory::Doorbell;
use crate::{RecvQueue, SendQueue};
use uverbs_efa_hw::io::{RxCdescEx, RxDesc, TxWqe, TxWqe128};

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

impl DoorbellPlace {
    fn of(doorbell: Option<&Doorbell>) -> Self {
        match doorbell.map(Doorbell::address) {
            Some(Some(address)) => Self::Address(address),
            Some(None) => Self::Call,
            None => Self::None,
        }
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
    pub(crate) fn of(send: &SendQueue, recv: &RecvQueue) -> Self {
        Self { send: send.place(), recv: recv.place() }
    }
}

impl SendQueue {
    fn place(&self) -> QueuePlace {
        let (ring, doorbell) = self.memory();
        let entry = if ring.is_wide() { size_of::<TxWqe128>() } else { size_of::<TxWqe>() };
        QueuePlace {
            buffer: ring.address(),
            entry_size: entry as u32,
            num_entries: ring.entries(),
            doorbell: DoorbellPlace::of(Some(doorbell)),
            max_batch: self.config().max_batch.min(ring.entries()),
        }
    }
}

impl RecvQueue {
    fn place(&self) -> QueuePlace {
        let (ring, doorbell) = self.memory();
        QueuePlace {
            buffer: ring.address(),
            entry_size: size_of::<RxDesc>() as u32,
            num_entries: ring.entries(),
            doorbell: DoorbellPlace::of(Some(doorbell)),
            max_batch: ring.entries(),
        }
    }
}

impl CqState {
    pub(crate) fn place(&self, doorbell: Option<&Doorbell>) -> QueuePlace {
        let ring = self.ring();
        QueuePlace {
            buffer: ring.address(),
            entry_size: size_of::<RxCdescEx>() as u32,
            num_entries: ring.entries(),
            doorbell: DoorbellPlace::of(doorbell),
            max_batch: 0,
        }
    }
}
