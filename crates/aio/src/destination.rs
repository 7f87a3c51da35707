// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a work request goes whose QP has no peer, or several queues there: a datagram, XRC, dynamic connections.

use core::fmt;
use std::sync::Arc;
use uverbs::{AddressHandle, AnyDriver, Dci, Driver, Srd, Ud, XrcSend};

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

/// A shared queue of the peer of an XRC QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqDestination {
    srq_num: u32,
}

impl SrqDestination {
    /// The queue with this [number](crate::XrcSrq::srq_num).
    #[must_use]
    pub fn new(srq_num: u32) -> Self {
        Self { srq_num }
    }

    /// Its number.
    #[must_use]
    pub fn srq_num(&self) -> u32 {
        self.srq_num
    }
}

/// A target of dynamic connections: an address, the number of the target, and its key. Clones share the address handle, which lives
/// until the last work request that uses it is complete.
pub struct DcDestination<D: Driver = AnyDriver> {
    ah: Arc<AddressHandle<D>>,
    dctn: u32,
    dc_key: u64,
}

impl<D: Driver> DcDestination<D> {
    /// The target `dctn` at the address of the handle, which was created with this key.
    #[must_use]
    pub fn new(ah: impl Into<Arc<AddressHandle<D>>>, dctn: u32, dc_key: u64) -> Self {
        Self { ah: ah.into(), dctn, dc_key }
    }

    /// The number of the target.
    #[must_use]
    pub fn dctn(&self) -> u32 {
        self.dctn
    }
}

impl<D: Driver> Clone for DcDestination<D> {
    fn clone(&self) -> Self {
        Self { ah: self.ah.clone(), ..*self }
    }
}

impl<D: Driver> fmt::Debug for DcDestination<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DcDestination").field("dctn", &self.dctn).finish_non_exhaustive()
    }
}

/// Where a work request goes.
pub(crate) enum To<D: Driver> {
    /// To the QP's peer.
    Peer,
    /// A datagram.
    Datagram(Destination<D>),
    /// To a shared queue of the peer.
    Srq(u32),
    /// To a target of dynamic connections.
    Dc(DcDestination<D>),
}

impl<D: Driver> To<D> {
    /// Whether it has something that lives until the work request is complete.
    #[inline]
    pub(crate) fn has_address(&self) -> bool {
        matches!(self, Self::Datagram(_) | Self::Dc(_))
    }

    /// What lives until the work request is complete.
    pub(crate) fn address(&self) -> Option<&Arc<AddressHandle<D>>> {
        match self {
            Self::Peer | Self::Srq(_) => None,
            Self::Datagram(to) => Some(&to.ah),
            Self::Dc(to) => Some(&to.ah),
        }
    }

    /// Takes what lives until the work request is complete.
    pub(crate) fn take_address(&mut self) -> Option<Arc<AddressHandle<D>>> {
        match core::mem::replace(self, Self::Peer) {
            Self::Peer | Self::Srq(_) => None,
            Self::Datagram(to) => Some(to.ah),
            Self::Dc(to) => Some(to.ah),
        }
    }

    /// A target, as a queue of such work requests takes it.
    pub(crate) fn dc(to: &DcDestination<D>) -> (&AddressHandle<D>, u32, u64) {
        (&to.ah, to.dctn, to.dc_key)
    }
}

pub(crate) mod sealed {
    use super::{Driver, To};

    pub trait Addressed {
        /// The destination of a work request.
        type To<D: Driver>;

        #[expect(private_interfaces, reason = "only this crate implements it")]
        fn to<D: Driver>(to: &Self::To<D>) -> To<D>;
    }
}

/// The transports each of whose work requests names its destination: [`Ud`] and [`Srd`] a [`Destination`], [`XrcSend`] an [`SrqDestination`], [`Dci`] a
/// [`DcDestination`].
pub trait Addressed: sealed::Addressed {}

macro_rules! addressed {
    ($($transport:ident: $destination:ty, |$to:ident| $value:expr;)*) => {$(
        impl Addressed for $transport {}
        impl sealed::Addressed for $transport {
            type To<D: Driver> = $destination;

            #[expect(private_interfaces, reason = "only this crate implements it")]
            fn to<D: Driver>($to: &Self::To<D>) -> To<D> {
                $value
            }
        }
    )*};
}

addressed! {
    Ud: Destination<D>, |to| To::Datagram(to.clone());
    Srd: Destination<D>, |to| To::Datagram(to.clone());
    XrcSend: SrqDestination, |to| To::Srq(to.srq_num);
    Dci: DcDestination<D>, |to| To::Dc(to.clone());
}
