// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts that each driver has, as parameters of [`Any`](super::Any).

use core::fmt::Debug;
use core::marker::PhantomData;
use uverbs_core::provider::{
    CompletionQueue as CompletionQueueOf, Driver, RecvQueue as RecvQueueOf, SendQueue as SendQueueOf,
};

/// A part that each driver has, such as its send queue.
pub trait Part: sealed::Sealed {
    /// The part of a driver.
    type Of<D: Driver>;

    /// What is shown of it.
    #[doc(hidden)]
    fn debug<D: Driver>(part: &Self::Of<D>) -> &dyn Debug;
}

pub(super) mod sealed {
    pub trait Sealed {}
}

macro_rules! parts {
    ($(#[doc = $doc:literal] $name:ident = $of:ty;)*) => {$(
        #[doc = $doc]
        #[derive(Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl Part for $name {
            type Of<D: Driver> = $of;
            fn debug<D: Driver>(part: &Self::Of<D>) -> &dyn Debug {
                part
            }
        }
    )*};
}

parts! {
    /// The driver itself.
    Itself = D;
    /// The data of an address handle.
    Ah = D::Ah;
    /// The send queue.
    SendQueue = D::SendQueue;
    /// The receive queue of a QP.
    RecvQueue = D::RecvQueue;
    /// A shared receive queue.
    SharedRecvQueue = D::SharedRecvQueue;
    /// The completion queue.
    CompletionQueue = D::CompletionQueue;
    /// A QP.
    Qp = D::Qp;
    /// A CQ.
    Cq = D::Cq;
    /// An SRQ.
    Srq = D::Srq;
    /// A work queue.
    Wq = D::Wq;
    /// A thread domain.
    Td = D::Td;
}

macro_rules! borrowed {
    ($(#[doc = $doc:literal] $name:ident<$life:lifetime> = $of:ty, $shown:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $name<$life>(PhantomData<&$life ()>);
        impl sealed::Sealed for $name<'_> {}
        impl<$life> Part for $name<$life> {
            type Of<D: Driver> = $of;
            fn debug<D: Driver>(_: &Self::Of<D>) -> &dyn Debug {
                &$shown
            }
        }
    )*};
}

borrowed! {
    /// An open batch of a send queue.
    SendBatch<'q> = <D::SendQueue as SendQueueOf>::Batch<'q>, "a batch of sends";
    /// An open batch of the receive queue of a QP.
    RecvBatch<'q> = <D::RecvQueue as RecvQueueOf>::Batch<'q>, "a batch of receives";
    /// An open batch of a shared receive queue.
    SharedRecvBatch<'q> = <D::SharedRecvQueue as RecvQueueOf>::Batch<'q>, "a batch of receives";
    /// A completion.
    Completion<'c> = <D::CompletionQueue as CompletionQueueOf>::Completion<'c>, "a completion";
}
