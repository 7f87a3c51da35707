// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs, a file for each part.
//!
//! [`transport`]: the types of QPs. [`create`]: their creation. [`control`]: states and queries. [`drain`]: the end of
//! a QP. [`send`] and [`wr`]: posting sends.
//! [`recv`]: posting receives. `pair`: the QP itself. `inner`: the owner of the kernel object and of the rings.

pub mod control;
pub mod create;
pub mod drain;
pub(crate) mod inner;
mod pair;
pub mod recv;
pub mod send;
pub mod transport;
pub mod wr;

pub use control::{QpControl, QpLife};
pub use create::QpBuilder;
pub use drain::DrainCq;
pub use pair::Qp;
pub use recv::RecvQueue;
pub use send::{Batch, SendGuard, SendQueue};
pub use transport::{Dci, RawPacket, Rc, Transport, Uc, Ud, XrcRecv, XrcSend};
