// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a datagram goes.

use core::fmt;
use std::sync::Arc;
use uverbs::{AddressHandle, AnyDriver, Driver};

/// The destination of datagrams: an address, a QP there, and its queue key. Clones share the address handle, which lives until the last
/// datagram that uses it is complete.
pub struct Destination<D: Driver = AnyDriver> {
    pub(crate) ah: Arc<AddressHandle<D>>,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

impl<D: Driver> Destination<D> {
    /// The QP `qp_num` (0xffffff for multicast) at the address of the handle, with the queue key of that QP.
    #[must_use]
    pub fn new(ah: impl Into<Arc<AddressHandle<D>>>, qp_num: u32, qkey: u32) -> Self {
        Self { ah: ah.into(), qp_num, qkey }
    }

    /// The number of the QP.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }
}

/// Where a work request goes.
pub(crate) enum To<D: Driver> {
    /// To the QP's peer.
    Peer,
    /// A datagram.
    Datagram(Destination<D>),
}

impl<D: Driver> To<D> {
    /// Whether it has something that lives until the work request is complete.
    #[inline]
    pub(crate) fn has_address(&self) -> bool {
        matches!(self, Self::Datagram(_))
    }

    /// Takes what lives until the work request is complete.
    pub(crate) fn take_address(&mut self) -> Option<Arc<AddressHandle<D>>> {
        match core::mem::replace(self, Self::Peer) {
            Self::Peer => None,
            Self::Datagram(to) => Some(to.ah),
        }
    }
}

impl<D: Driver> Clone for Destination<D> {
    fn clone(&self) -> Self {
        Self { ah: self.ah.clone(), ..*self }
    }
}

impl<D: Driver> fmt::Debug for Destination<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination").field("qp_num", &self.qp_num).finish_non_exhaustive()
    }
}
