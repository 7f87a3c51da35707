// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that are known at run time: the value [`Op`] of a work request, whose data are owned.
//!
//! The methods of a [`Wr`] that are named as the operations are checked by the compiler: a datagram QP has no read. These ones are checked
//! when they are posted, and refuse an operation that the transport or the data do not have with
//! [`PostError::IllegalOpcode`]. For queues of operations, as those of futures.

use crate::list::{Memory, Source};
use crate::post_to::PostTo;
use crate::qp::transport::Sends;
use crate::remote::RemoteRegion;
use crate::send::{Wr, remote};
use crate::window::Window;
use uverbs_core::attr::{AccessFlags, DriverQp, QpType};
use uverbs_core::provider::{Driver, Op, PostError};

/// The operation of a work request, with the memory of the peer that it names.
pub type Operation = Op<'static, RemoteRegion>;

/// What an operation does with the memory of this side.
#[derive(PartialEq, Eq)]
enum Local {
    /// It reads it.
    Read,
    /// It writes to it.
    Written,
}

/// Whether a transport has a peer, as [`HasPeer`](crate::qp::transport::HasPeer) says.
const fn has_peer<T: Sends>() -> bool {
    match T::QP_TYPE {
        QpType::Rc | QpType::Uc | QpType::XrcSend => true,
        QpType::Driver => matches!(T::DRIVER_QP, Some(DriverQp::Dc)),
        QpType::Ud | QpType::RawPacket | QpType::XrcRecv => false,
    }
}

/// Whether a transport has an operation, and what that does with the data.
#[cfg_attr(not(debug_assertions), inline(always))]
fn local<T: Sends>(op: &Operation) -> Result<Local, PostError> {
    let has_peer = has_peer::<T>();
    let is_srd = matches!(T::DRIVER_QP, Some(DriverQp::Srd));
    let (has, local) = match op {
        Op::Send => (true, Local::Read),
        Op::SendImm(_) => (T::QP_TYPE != QpType::RawPacket, Local::Read),
        Op::SendInv(_) => (has_peer, Local::Read),
        Op::Write(_) | Op::WriteImm(..) => (has_peer || is_srd, Local::Read),
        Op::Read(_) => (has_peer && T::QP_TYPE != QpType::Uc || is_srd, Local::Written),
        Op::CmpSwp(..) | Op::FetchAdd(..) => (has_peer && T::QP_TYPE != QpType::Uc, Local::Written),
        // Windows are no data; the others are not posted with owned data.
        Op::LocalInv(_) | Op::BindMw(_) | Op::Flush(..) | Op::AtomicWrite(..) | Op::Tso(_) => {
            (false, Local::Read)
        }
    };
    if has { Ok(local) } else { Err(PostError::IllegalOpcode) }
}

/// Whether the memory of the peer is long enough for so many bytes, which the old value of an atomic operation has, too.
#[cfg_attr(not(debug_assertions), inline(always))]
fn fits(op: &Operation, bytes: u64) -> Result<(), PostError> {
    let fits = match op {
        Op::Write(at) | Op::WriteImm(at, _) | Op::Read(at) => bytes <= at.len(),
        Op::CmpSwp(at, ..) | Op::FetchAdd(at, _) => bytes == 8 && at.len() >= 8,
        _ => true,
    };
    if fits { Ok(()) } else { Err(PostError::InvalidLength) }
}

impl<S: PostTo<D>, D: Driver, T: Sends> Wr<'_, S, T, D> {
    /// Posts an operation that only reads the data: a send or a write, with or without an immediate.
    ///
    /// [`PostError::IllegalOpcode`] for another operation, or one that the transport does not have; [`PostError::InvalidLength`] if the
    /// memory of the peer is too short.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn op<B: Source<D>>(self, op: &Operation, data: B) -> S::Out<B> {
        let checked = match local::<T>(op) {
            Ok(Local::Read) => fits(op, data.bytes()),
            Ok(Local::Written) => Err(PostError::IllegalOpcode),
            Err(error) => Err(error),
        };
        match checked {
            Ok(()) => self.put(|| op.map(|at| remote(&at)), data),
            Err(error) => self.sink.refuse(error, data),
        }
    }

    /// Posts an operation that reads the data or writes to them: as [`op`](Self::op), and reads and atomics. The data of an atomic
    /// operation are 8 bytes.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn op_with<B: Memory<D>>(self, op: &Operation, data: B) -> S::Out<B> {
        match local::<T>(op).and_then(|_| fits(op, data.bytes())) {
            Ok(()) => self.put(|| op.map(|at| remote(&at)), data),
            Err(error) => self.sink.refuse(error, data),
        }
    }

    /// As [`op`](Self::op), of bytes that are copied during the call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn op_inline(self, op: &Operation, data: &[u8]) -> S::Plain {
        let checked = match local::<T>(op) {
            Ok(_) if matches!(op, Op::SendInv(_)) => Err(PostError::IllegalOpcode),
            Ok(Local::Read) => fits(op, data.len() as u64),
            Ok(Local::Written) => Err(PostError::IllegalOpcode),
            Err(error) => Err(error),
        };
        match checked {
            Ok(()) => self.put_inline(|| op.map(|at| remote(&at)), data),
            Err(error) => self.sink.refuse_plain(error),
        }
    }

    /// Posts an operation of a window: of [`Op::BindMw`] only the rights are used, of [`Op::LocalInv`] nothing, because the window has
    /// the rest. As [`bind`](Wr::bind) and [`local_inv`](Wr::local_inv).
    pub fn op_window(self, op: &Operation, window: Window<D>) -> S::Out<Window<D>> {
        let has_peer = has_peer::<T>();
        match op {
            Op::BindMw(bind) if has_peer => self.put_bind(window, AccessFlags::from_bits_retain(bind.access)),
            Op::LocalInv(_) if has_peer => self.put_local_inv(window),
            _ => self.sink.refuse(PostError::IllegalOpcode, window),
        }
    }
}
