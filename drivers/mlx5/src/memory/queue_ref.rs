// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QP's shared part as the poster of its sends keeps it: with the addresses of the ring beside the owners, so that a post
//! loads them from the memory that it uses anyway, and goes through no pointer to find them.
// UNSAFETY: as the module above; the addresses are those of a ring that its owner keeps.

use super::{BlockIndex, Record, SqAddrs, SqView};
use crate::qp::QpShared;
use crate::sq::SqShared;
use std::sync::Arc;

/// A QP's shared part, its send queue's, and the addresses of that one's ring.
#[derive(Debug)]
pub(crate) struct SendQueueRef {
    /// The addresses of `sq`: its memory and its records are neither moved nor freed before it, because both are behind
    /// pointers that are not changed.
    addrs: SqAddrs,
    pub(crate) qp: Arc<QpShared>,
    sq: Arc<SqShared>,
}

// SAFETY: addresses of atomics, and the owner of their memory.
unsafe impl Send for SendQueueRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for SendQueueRef {}

impl SendQueueRef {
    /// `None` if the QP has no send queue.
    pub(crate) fn new(qp: Arc<QpShared>) -> Option<Self> {
        let sq = Arc::clone(qp.sq.as_ref()?);
        let SqAddrs { base, records, mask } = sq.ring.addrs;
        Some(Self { addrs: SqAddrs { base, records, mask }, qp, sq })
    }

    /// The send queue.
    #[inline(always)]
    pub(crate) fn sq(&self) -> &SqShared {
        &self.sq
    }

    /// The record at a place of its ring.
    #[inline(always)]
    pub(crate) fn record(&self, place: BlockIndex) -> &Record {
        self.view().record(place)
    }

    /// Its ring.
    #[inline(always)]
    pub(crate) fn view(&self) -> SqView<'_> {
        self.addrs.view()
    }
}
