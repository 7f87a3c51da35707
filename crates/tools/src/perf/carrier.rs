// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports of a test: how a work request goes to a peer, and how a QP is connected. Those of DC are in [`dc`](super::dc).
#![expect(unsafe_code)]
// UNSAFETY: posts entries of the region of an `End`, which is exposed; the end keeps it until its queues are dropped.

use super::wire::Keys;
use anyhow::{Result, bail};
use uverbs::qp::transport::{Datagram, HasPeer, Reliable, Sends, SendsImm};
use uverbs::raw::{ToBatch, Wr};
use uverbs::{
    AddressHandle, ConnectAttr, DcTarget, Driver, Endpoint, ImmData, PostError, ProtectionDomain, Rc,
    SendFlags, Srd, Uc, Ud, XrcSend,
    raw::{Cq, Srq},
};
use uverbs::{Exclusive, attr::AhAttr};
use uverbs::{qp::QpControl, raw::Batch};

/// The value that atomics add, or swap with 0.
const OPERAND: u64 = 1;

/// The other side of a QP.
#[derive(Debug)]
pub(super) struct Peer<D: Driver> {
    pub(super) keys: Keys,
    /// The address of datagrams or of a DC target, and the queue key.
    pub(super) ah: Option<AddressHandle<D>>,
    pub(super) qkey: u32,
}

/// An operation, without its memory of this end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op<R> {
    Send,
    Write(R),
    Read(R),
    FetchAdd(R),
    CmpSwap(R),
    /// A datagram with the number of its QP, by which the receiver learns the sender's address.
    Hello(ImmData),
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'a, D: Driver> {
    pub(super) id: u64,
    pub(super) flags: SendFlags,
    pub(super) op: Op<D::Remote>,
    pub(super) sge: D::Sge,
    /// The bytes, if they are sent inline.
    pub(super) inline: Option<&'a [u8]>,
}

/// A transport of the tests.
pub(super) trait Carrier<D: Driver>: Sends {
    /// Whether a QP has a receive queue. If not, other objects receive.
    const RECEIVES: bool = true;
    /// Whether work requests have the address of the peer.
    const HAS_ADDRESSES: bool = false;

    /// Adds a work request to a batch.
    ///
    /// # Errors
    /// The transport does not have the operation.
    ///
    /// # Safety
    /// The memory of the entry stays registered until the work request is complete, and is accessed by copies only.
    unsafe fn push(
        batch: &mut Batch<'_, Self, D>,
        work: &Work<'_, D>,
        peer: &Peer<D>,
    ) -> Result<(), PostError>
    where
        Self: Sized;

    /// Moves a QP to INIT.
    ///
    /// # Errors
    /// The kernel's error.
    fn init(control: &QpControl<D>, attr: &ConnectAttr) -> uverbs::Result<()> {
        control.init(attr)
    }

    /// Connects a QP.
    ///
    /// # Errors
    /// The kernel's error.
    fn connect(
        control: &QpControl<D>,
        local: &Endpoint,
        remote: &Endpoint,
        attr: &ConnectAttr,
    ) -> uverbs::Result<()> {
        control.connect(local, remote, attr)
    }

    /// Creates a DC target.
    ///
    /// # Errors
    /// The transport is not DC; the kernel's error.
    fn create_target(
        _: &ProtectionDomain<D>,
        _: &Cq<Exclusive, D>,
        _: &Srq<Exclusive, D>,
    ) -> Result<DcTarget<D>> {
        bail!("only DC has targets")
    }

    /// Connects a DC target, and returns its number.
    ///
    /// # Errors
    /// As [`create_target`](Self::create_target).
    fn connect_target(_: &DcTarget<D>, _: &ConnectAttr, _: &AhAttr) -> Result<u32> {
        bail!("only DC has targets")
    }
}

/// Sends and writes.
///
/// # Safety
/// As [`Carrier::push`].
unsafe fn put<D: Driver, T: HasPeer + Sends>(
    wr: Wr<'_, ToBatch<'_, '_, D>, T, D>,
    work: &Work<'_, D>,
) -> Result<(), PostError> {
    match (work.op, work.inline) {
        (Op::Send, Some(bytes)) => wr.send_inline(bytes),
        // SAFETY: the contract of this function.
        (Op::Send, None) => unsafe { wr.send(&[work.sge]) },
        (Op::Write(to), Some(bytes)) => wr.write_inline(bytes, to),
        // SAFETY: the contract of this function.
        (Op::Write(to), None) => unsafe { wr.write(&[work.sge], to) },
        _ => return Err(PostError::IllegalOpcode),
    }
    Ok(())
}

/// Any operation.
///
/// # Safety
/// As [`Carrier::push`].
pub(super) unsafe fn put_reliable<D: Driver, T: Reliable + Sends>(
    wr: Wr<'_, ToBatch<'_, '_, D>, T, D>,
    work: &Work<'_, D>,
) -> Result<(), PostError> {
    match work.op {
        // SAFETY: the contract of this function.
        Op::Read(from) => unsafe { wr.read(&[work.sge], from) },
        // SAFETY: the contract of this function.
        Op::FetchAdd(at) => unsafe { wr.fetch_add(&[work.sge], at, OPERAND) },
        // SAFETY: the contract of this function.
        Op::CmpSwap(at) => unsafe { wr.compare_swap(&[work.sge], at, 0, OPERAND) },
        // SAFETY: the contract of this function.
        Op::Send | Op::Write(_) | Op::Hello(_) => return unsafe { put(wr, work) },
    }
    Ok(())
}

impl<D: Driver> Carrier<D> for Rc {
    unsafe fn push(batch: &mut Batch<'_, Self, D>, work: &Work<'_, D>, _: &Peer<D>) -> Result<(), PostError> {
        // SAFETY: the contract of this function.
        unsafe { put_reliable(batch.wr(work.id).flags(work.flags), work) }
    }
}

impl<D: Driver> Carrier<D> for Uc {
    unsafe fn push(batch: &mut Batch<'_, Self, D>, work: &Work<'_, D>, _: &Peer<D>) -> Result<(), PostError> {
        // SAFETY: the contract of this function.
        unsafe { put(batch.wr(work.id).flags(work.flags), work) }
    }
}

impl<D: Driver> Carrier<D> for XrcSend {
    const RECEIVES: bool = false;

    unsafe fn push(
        batch: &mut Batch<'_, Self, D>,
        work: &Work<'_, D>,
        peer: &Peer<D>,
    ) -> Result<(), PostError> {
        // SAFETY: the contract of this function.
        unsafe { put_reliable(batch.wr_srq(work.id, peer.keys.srq_num).flags(work.flags), work) }
    }
}

impl<D: Driver> Carrier<D> for Ud {
    const HAS_ADDRESSES: bool = true;

    unsafe fn push(
        batch: &mut Batch<'_, Self, D>,
        work: &Work<'_, D>,
        peer: &Peer<D>,
    ) -> Result<(), PostError> {
        let ah = peer.ah.as_ref().ok_or(PostError::BadState)?;
        // SAFETY: the contract of this function.
        unsafe { put_datagram(batch.wr_to(work.id, ah, peer.keys.qp_num, peer.qkey).flags(work.flags), work) }
    }
}

/// Sends.
///
/// # Safety
/// As [`Carrier::push`].
unsafe fn put_datagram<D: Driver, T: Datagram + SendsImm>(
    wr: Wr<'_, ToBatch<'_, '_, D>, T, D>,
    work: &Work<'_, D>,
) -> Result<(), PostError> {
    match (work.op, work.inline) {
        (Op::Send, Some(bytes)) => wr.send_inline(bytes),
        // SAFETY: the contract of this function.
        (Op::Send, None) => unsafe { wr.send(&[work.sge]) },
        // SAFETY: the contract of this function.
        (Op::Hello(imm), _) => unsafe { wr.send_imm(&[work.sge], imm) },
        _ => return Err(PostError::IllegalOpcode),
    }
    Ok(())
}

impl<D: Driver> Carrier<D> for Srd {
    const HAS_ADDRESSES: bool = true;

    unsafe fn push(
        batch: &mut Batch<'_, Self, D>,
        work: &Work<'_, D>,
        peer: &Peer<D>,
    ) -> Result<(), PostError> {
        let ah = peer.ah.as_ref().ok_or(PostError::BadState)?;
        let wr = batch.wr_to(work.id, ah, peer.keys.qp_num, peer.qkey).flags(work.flags);
        match work.op {
            // SAFETY: the contract of this function.
            Op::Read(from) => unsafe { wr.read(&[work.sge], from) },
            // SAFETY: the contract of this function.
            Op::Write(to) => unsafe { wr.write(&[work.sge], to) },
            // SAFETY: the contract of this function.
            _ => return unsafe { put_datagram(wr, work) },
        }
        Ok(())
    }
}
