// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports of QPs as types, so that an operation that the transport lacks does not compile.
//!
//! The traits follow the opcode table of ibv_post_send(3). These programs do not compile:
//!
//! An RDMA read on a datagram QP, because a datagram has no peer to read from.
//! ```compile_fail,E0599
//! use uverbs::{Context, Driver, Exclusive, Ud, raw::SendQueue};
//! fn read<D: Driver>(sq: &mut SendQueue<Ud, Exclusive, D>, ah: &uverbs::AddressHandle<D>, from: D::Remote) {
//!     let mut batch = sq.batch();
//!     // SAFETY: no memory is named.
//!     unsafe { batch.wr_to(1, ah, 2, 3).read(&[], from) };
//! }
//! ```
//! An atomic on a reliable datagram QP (SRD), which has sends, writes and reads; nor has it an operation without a destination.
//! ```compile_fail,E0599
//! use uverbs::{AddressHandle, Driver, Exclusive, Srd, raw::SendQueue};
//! fn add<D: Driver>(sq: &mut SendQueue<Srd, Exclusive, D>, ah: &AddressHandle<D>, at: D::Remote) {
//!     // SAFETY: no memory is named.
//!     let _ = unsafe { sq.post_to(1, ah, 2, 3).fetch_add(&[], at, 1) };
//! }
//! ```
//! ```compile_fail,E0599
//! use uverbs::{Driver, Exclusive, Srd, raw::SendQueue};
//! fn read<D: Driver>(sq: &mut SendQueue<Srd, Exclusive, D>, from: D::Remote) {
//!     // SAFETY: no memory is named.
//!     let _ = unsafe { sq.post(1).read(&[], from) };
//! }
//! ```
//! The same with a read compiles:
//! ```
//! use uverbs::{AddressHandle, Driver, Exclusive, Srd, raw::SendQueue};
//! fn read<D: Driver>(sq: &mut SendQueue<Srd, Exclusive, D>, ah: &AddressHandle<D>, from: D::Remote) {
//!     // SAFETY: no memory is named.
//!     let _ = unsafe { sq.post_to(1, ah, 2, 3).read(&[], from) };
//! }
//! ```
//! A read on an unreliable connection.
//! ```compile_fail,E0599
//! use uverbs::{Driver, Exclusive, Uc, raw::SendQueue};
//! fn read<D: Driver>(sq: &mut SendQueue<Uc, Exclusive, D>, from: D::Remote) {
//!     // SAFETY: no memory is named.
//!     let _ = unsafe { sq.post(1).read(&[], from) };
//! }
//! ```
//! A datagram without a destination.
//! ```compile_fail,E0599
//! use uverbs::{Driver, Exclusive, Ud, raw::SendQueue};
//! fn send<D: Driver>(sq: &mut SendQueue<Ud, Exclusive, D>) {
//!     let _ = sq.post(1).send_inline(b"no address");
//! }
//! ```
//! Two open batches on an exclusive queue, or a batch on a shared one without its lock.
//! ```compile_fail,E0499
//! use uverbs::{Driver, Exclusive, Rc, raw::SendQueue};
//! fn two<D: Driver>(sq: &mut SendQueue<Rc, Exclusive, D>) {
//!     let mut one = sq.batch();
//!     let mut two = sq.batch();
//!     one.wr(1).send_inline(b"1");
//!     two.wr(2).send_inline(b"2");
//! }
//! ```
//! ```compile_fail,E0599
//! use uverbs::{Driver, Rc, Shared, raw::SendQueue};
//! fn unlocked<D: Driver>(sq: &mut SendQueue<Rc, Shared, D>) {
//!     sq.batch();
//! }
//! ```
//! A post of an entry outside of an `unsafe` block.
//! ```compile_fail,E0133
//! use uverbs::{Driver, Exclusive, Rc, raw::SendQueue};
//! fn send<D: Driver>(sq: &mut SendQueue<Rc, Exclusive, D>, sge: D::Sge) {
//!     let _ = sq.post(1).send(&[sge]);
//! }
//! ```

use uverbs_core::attr::{DriverQp, QpType};

mod sealed {
    pub trait Sealed {}
}

/// The transport service of a QP.
pub trait Transport: sealed::Sealed + Send + Sync + core::fmt::Debug + 'static {
    /// The type by which the kernel and C name it.
    const QP_TYPE: QpType;
    /// What it is, if the type is [`QpType::Driver`]. The creation fails on a device whose driver has other QPs of this type.
    const DRIVER_QP: Option<DriverQp> = None;
}
/// Has RDMA writes: RC, UC, XRC, DC, SRD.
pub trait Writes: Transport {}
/// Has RDMA reads: RC, XRC, DC, SRD.
pub trait Reads: Writes {}
/// Has a peer: RC, UC, XRC, DC. Sends with invalidate, windows.
pub trait HasPeer: Writes {}
/// Acknowledged in order: RC, XRC, DC. Atomics.
pub trait Reliable: HasPeer + Reads {}
/// Connected without a remote SRQ number in each WR: RC, UC.
pub trait Connected: HasPeer {}
/// Gives indirect keys memory: RC.
pub trait HasMkeys: Connected + Reliable {}
/// Each WR names its destination, by an address handle: UD, SRD.
pub trait Datagram: Transport {}
/// Has a send queue: all but XRC receive QPs.
pub trait Sends: Transport {}
/// Can carry immediate data: all senders but raw packet QPs.
pub trait SendsImm: Sends {}
/// Has a receive queue or is created with an SRQ: all but the XRC types.
pub trait Receives: Transport {}

macro_rules! transports {
    ($($(#[$meta:meta])* $name:ident = $qp_type:ident $(($driver_qp:ident))? : $($tr:ident)*;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Transport for $name {
            const QP_TYPE: QpType = QpType::$qp_type;
            $(const DRIVER_QP: Option<DriverQp> = Some(DriverQp::$driver_qp);)?
        }
        $(impl $tr for $name {})*
    )*};
}

transports! {
    /// Reliable connection.
    Rc = Rc: Writes Reads HasPeer Reliable Connected HasMkeys Sends SendsImm Receives;
    /// Unreliable connection.
    Uc = Uc: Writes HasPeer Connected Sends SendsImm Receives;
    /// Unreliable datagram.
    Ud = Ud: Datagram Sends SendsImm Receives;
    /// Send side of an extended reliable connection.
    XrcSend = XrcSend: Writes Reads HasPeer Reliable Sends SendsImm;
    /// Receive side of an extended reliable connection; it receives into XRC SRQs.
    XrcRecv = XrcRecv: ;
    /// Initiator of dynamic connections: each work request names its target. Only drivers with [DC](crate::dc) have it.
    Dci = Driver(Dc): Writes Reads HasPeer Reliable Sends SendsImm;
    /// Scalable reliable datagram: each work request names its destination, is delivered or fails, and may overtake those before it. Only
    /// EFA has it.
    Srd = Driver(Srd): Datagram Writes Reads Sends SendsImm Receives;
    /// Raw Ethernet frames.
    RawPacket = RawPacket: Sends Receives;
}
