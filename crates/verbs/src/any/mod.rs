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
//! Entries and remote addresses have mlx5's format (in a build without mlx5 the kernel's), so on mlx5 a work request is encoded by the same code as with
//! `Context<Mlx5>`, behind the branch. On rxe and siw each work request is converted, which is little compared with the system
//! call of its doorbell. A service that can't accept this cost names its driver or is generic over it
//! ([`open_with`](crate::open_with)); `AnyDriver` does not change the code for these.
//!
//! # Limits
//! Dynamic connections, which only mlx5 has: their types need `Context<Mlx5>`. The errno of the raw faces
//! ([`SendQueue::errno`](crate::provider::SendQueue::errno)) is that of mlx5 where the C providers differ.

#[cfg(not(all(feature = "mlx5", feature = "rxe", feature = "siw")))]
mod absent;
mod completion;
mod driver;
mod object;
mod recv;
mod send;

#[cfg(not(feature = "mlx5"))]
use absent::Absent as Mlx5;
#[cfg(not(feature = "rxe"))]
use absent::Absent as Rxe;
#[cfg(not(feature = "siw"))]
use absent::Absent as Siw;
use uverbs_core::error::Error;
use uverbs_core::provider::Driver;
#[cfg(feature = "mlx5")]
use uverbs_mlx5::Mlx5;
#[cfg(feature = "rxe")]
use uverbs_rxe::Rxe;
#[cfg(feature = "siw")]
use uverbs_siw::Siw;

#[cfg(not(all(feature = "mlx5", feature = "rxe", feature = "siw")))]
pub use absent::Absent;
pub use send::{AnySendBatch, AnySendQueue};

/// A part of the driver that the device has.
#[derive(Clone, Copy, Debug)]
pub enum Any<M, R, S> {
    /// The part of `uverbs-mlx5`.
    Mlx5(M),
    /// The part of `uverbs-rxe`.
    Rxe(R),
    /// The part of `uverbs-siw`.
    Siw(S),
}

/// The format of entries: that of mlx5, or, in a build without it, the kernel's.
type WqeSge = <Mlx5 as Driver>::Sge;
/// The format of remote addresses.
type WqeRemote = <Mlx5 as Driver>::Remote;

/// The driver of a device that is known only at run time.
pub type AnyDriver = Any<Mlx5, Rxe, Siw>;

impl<M, R, S> Any<M, R, S> {
    fn mlx5(&self) -> Result<&M, Error> {
        match self {
            Self::Mlx5(part) => Ok(part),
            _ => Err(foreign()),
        }
    }

    fn rxe(&self) -> Result<&R, Error> {
        match self {
            Self::Rxe(part) => Ok(part),
            _ => Err(foreign()),
        }
    }

    fn siw(&self) -> Result<&S, Error> {
        match self {
            Self::Siw(part) => Ok(part),
            _ => Err(foreign()),
        }
    }
}

/// The error for parts of two drivers in one call. The contract of the verbs excludes this: all parts are of one
/// context.
fn foreign() -> Error {
    Error::invalid("verbs", "driver", "an object of another driver")
}
