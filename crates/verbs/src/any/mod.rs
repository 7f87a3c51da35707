// SPDX-License-Identifier: MIT OR Apache-2.0
//! The selection of the driver at run time: with [`AnyDriver`] the types of a program need no parameter for the driver.
//!
//! [`open`](crate::open::open) returns a `Context` for any supported device. Every object created from it
//! (`Cq`, `Qp<Rc>` and so on) holds the queue of the device's driver in an enum, and
//! each post and poll has a branch on it, which the processor predicts.
//!
//! ```
//! use uverbs::{Context, Cq, ProtectionDomain, Qp, Rc};
//!
//! /// A service without a type parameter for the driver.
//! struct Service {
//!     qp: Qp<Rc>,
//!     cq: Cq,
//!     pd: ProtectionDomain,
//! }
//!
//! fn start() -> uverbs::Result<Option<Context>> {
//!     uverbs::devices()?.first().map(uverbs::open).transpose()
//! }
//! # let _ = (start, |s: Service| (s.qp, s.cq, s.pd));
//! ```
//!
//! # Cost
//! Entries and remote addresses have the format of the build's first driver, in the order in which a device is probed: mlx5's, in a build
//! that has it. So on mlx5 a work request is encoded by the same code as with `Context<Mlx5>`, behind the branch. For the other drivers
//! each work request is converted, which is little compared with the system call of the doorbells of rxe and siw. A service that can't
//! accept this cost names its driver or is generic over it ([`open_with`](crate::open_with)); `AnyDriver` does not change the code for
//! these.
//!
//! # Limits
//! Dynamic connections, which only mlx5 has: their types need `Context<Mlx5>`. The errno of the raw faces
//! ([`SendQueue::errno`](crate::provider::SendQueue::errno)) is that of mlx5 where the C providers differ.

#[macro_use]
mod each;
mod completion;
mod driver;
mod format;
mod mkey;
mod object;
pub mod parts;
mod recv;
mod send;

use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use parts::Part;
use uverbs_core::drivers;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, Op, WireRemote as _};

pub use recv::AnyRecvBatch;
pub use send::{AnySendBatch, AnySendQueue};

/// The driver of a device that is known only at run time: one of those that the build has.
pub type AnyDriver = Any<parts::Itself>;

macro_rules! define_any {
    (() $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        /// A part of the driver that the device has; `P` determines which part. A build without drivers has no value of it.
        // With a tag of its own, a post compares one byte; a tag in an unused value of a part is calculated first.
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Any<P: Part> {
            $(
                #[doc = concat!("The part of `", stringify!($krate), "`.")]
                #[cfg(feature = $feature)]
                $name(P::Of<$krate::$name>),
            )*
            #[doc(hidden)]
            Never(Never<P>),
        }

        /// The id of each driver of the build, in the order in which they are probed.
        pub(crate) const DRIVER_IDS: &[u32] = &[
            $(#[cfg(feature = $feature)] <$krate::$name as Driver>::DRIVER_ID,)*
        ];
    };
}
drivers!(define_any());

/// Has no value. An enum needs it, because in a build without drivers it has no other variant, and this one names its parameter.
#[doc(hidden)]
#[derive(Debug)]
pub struct Never<P>(Infallible, PhantomData<fn() -> P>);

impl<P> Never<P> {
    /// Any value.
    #[doc(hidden)]
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn any<T>(&self) -> T {
        match self.0 {}
    }
}

/// A driver of the list: it puts its parts into [`Any`], and takes them out.
trait Member: Driver {
    /// Whether entries and addresses are not in this driver's format.
    const CONVERTS: bool = true;

    /// The enum with a part of this driver.
    fn any<P: Part>(part: P::Of<Self>) -> Any<P>;

    /// The part, if it is one of this driver.
    fn part<P: Part>(any: &Any<P>) -> Option<&P::Of<Self>>;

    /// As [`part`](Self::part).
    fn part_mut<P: Part>(any: &mut Any<P>) -> Option<&mut P::Of<Self>>;

    /// The part.
    ///
    /// # Errors
    /// It is not one of this driver.
    fn own<P: Part>(any: &Any<P>) -> Result<&P::Of<Self>> {
        Self::part(any).ok_or_else(foreign)
    }

    /// As [`own`](Self::own).
    fn own_mut<P: Part>(any: &mut Any<P>) -> Result<&mut P::Of<Self>> {
        Self::part_mut(any).ok_or_else(foreign)
    }

    /// Entries, if they are in this driver's format.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn as_own(sges: &[WqeSge]) -> Option<&[Self::Sge]> {
        let _ = sges;
        None
    }

    /// An operation with the address in this driver's format.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn op(op: Op<'_, WqeRemote>) -> Op<'_, Self::Remote> {
        op.map(|remote| Self::Remote::new(remote.addr(), remote.rkey()))
    }
}

/// The error for parts of two drivers in one call.
fn foreign() -> Error {
    Error::invalid("verbs", "driver", "an object of another driver")
}

/// Implements [`Member`], one driver after the other. The first one of a build has the features before it off; its format is that of
/// [`Any`].
macro_rules! members {
    (
        ($($before:literal)*)
        [$name:ident $feature:literal $module:ident $krate:ident]
        $($rest:tt)*
    ) => {
        #[cfg(feature = $feature)]
        impl Member for $krate::$name {
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn any<P: Part>(part: P::Of<Self>) -> Any<P> {
                Any::$name(part)
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn part<P: Part>(any: &Any<P>) -> Option<&P::Of<Self>> {
                match any {
                    Any::$name(part) => Some(part),
                    _ => None,
                }
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn part_mut<P: Part>(any: &mut Any<P>) -> Option<&mut P::Of<Self>> {
                match any {
                    Any::$name(part) => Some(part),
                    _ => None,
                }
            }

            #[cfg(not(any($(feature = $before),*)))]
            const CONVERTS: bool = false;

            #[cfg(not(any($(feature = $before),*)))]
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn as_own(sges: &[WqeSge]) -> Option<&[Self::Sge]> {
                Some(sges)
            }

            #[cfg(not(any($(feature = $before),*)))]
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn op(op: Op<'_, WqeRemote>) -> Op<'_, Self::Remote> {
                op
            }
        }

        #[cfg(all(feature = $feature, not(any($(feature = $before),*))))]
        type First = $krate::$name;

        members! { ($($before)* $feature) $($rest)* }
    };
    (($($before:literal)*)) => {
        /// The format of entries: that of the first driver.
        #[cfg(any($(feature = $before),*))]
        type WqeSge = <First as Driver>::Sge;
        /// The format of remote addresses.
        #[cfg(any($(feature = $before),*))]
        type WqeRemote = <First as Driver>::Remote;
        /// The format of entries: that of the kernel.
        #[cfg(not(any($(feature = $before),*)))]
        type WqeSge = uverbs_core::wr::Sge;
        /// The format of remote addresses.
        #[cfg(not(any($(feature = $before),*)))]
        type WqeRemote = uverbs_core::provider::RemoteAddr;
    };
}
drivers!(members());

impl<P: Part> fmt::Debug for Any<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(self, D(part) => P::debug::<D>(part).fmt(f))
    }
}
