// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of queues, and the `wr_id` of their work requests: the number, and the slot of the operation.

/// The part of a `wr_id` that is the key of a slot.
pub(crate) const KEY_MASK: u64 = (1 << crate::slots::KEY_BITS) - 1;
/// The bits above it: a receive; a work request of a batch that is not its last.
pub(crate) const RECEIVE: u64 = 1 << crate::slots::KEY_BITS;
pub(crate) const PART: u64 = 1 << (crate::slots::KEY_BITS + 1);
pub(crate) const ROUTE_SHIFT: u32 = crate::slots::KEY_BITS + 2;

/// The number of a queue among those of its dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(pub(crate) u32);

impl RouteId {
    /// The `wr_id` of a send in this slot.
    #[inline]
    pub(crate) fn send(self, key: u64) -> u64 {
        u64::from(self.0) << ROUTE_SHIFT | key
    }

    /// The `wr_id` of a send of a batch that is not its last one, which has this slot.
    #[inline]
    pub(crate) fn part(self, key: u64) -> u64 {
        self.send(key) | PART
    }

    /// The `wr_id` of a detached send without a completion, unless it fails. No slot has its key.
    #[inline]
    pub(crate) fn silent(self) -> u64 {
        self.part(KEY_MASK)
    }

    /// The `wr_id` of a receive.
    #[inline]
    pub(crate) fn receive(self) -> u64 {
        u64::from(self.0) << ROUTE_SHIFT | RECEIVE
    }
}
