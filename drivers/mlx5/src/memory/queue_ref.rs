// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shared part of a QP as the poster of its sends stores it: with the addresses of the ring next to their owners, so
//! that a post loads them from its own memory, without following pointers.
// UNSAFETY: stores addresses of a ring next to its owner.

use super::{BlockIndex, Record, SqAddrs, SqView};
use crate::shared::QpShared;
use crate::shared::SqShared;
use std::sync::Arc;

/// The shared parts of a QP and its send queue, and the addresses of the queue's ring.
// codegen: lines
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQueueRef {
    pub(crate) qp: Arc<QpShared>,
    sq: Arc<SqShared>,
    /// The addresses of `sq`. The memory and the records are not moved or freed before `sq` is dropped, because `sq`
    /// reaches both by pointers that are not changed.
    addrs: SqAddrs,
}

// SAFETY: the addresses are those of atomics, in memory that `sq` owns.
unsafe impl Send for SendQueueRef {}
// SAFETY: `&SendQueueRef` only allows atomic accesses to memory that `sq` owns.
unsafe impl Sync for SendQueueRef {}

impl SendQueueRef {
    /// The reference to a QP; `None` if it has no send queue.
    pub(crate) fn new(qp: Arc<QpShared>) -> Option<Self> {
        let sq = Arc::clone(qp.sq.as_ref()?);
        let SqAddrs { base, records, mask } = sq.ring.addrs;
        Some(Self { addrs: SqAddrs { base, records, mask }, qp, sq })
    }

    /// The send queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn sq(&self) -> &SqShared {
        &self.sq
    }

    /// The record of a block of its ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn record(&self, place: BlockIndex) -> &Record {
        self.view().record(place)
    }

    /// Its ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn view(&self) -> SqView<'_> {
        self.addrs.view()
    }
}
