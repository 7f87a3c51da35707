// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs whose work requests own their buffers.
//!
//! [`transport`]: the types of QPs. [`control`]: states and queries. [`drain`](mod@drain): the end of a QP. `inner`: the owner of the kernel
//! object and of the rings. These are also the parts of a [`raw::Qp`].

pub mod control;
pub mod drain;
pub(crate) mod halves;
pub(crate) mod inner;
pub mod transport;

pub use control::{QpControl, QpLife};
pub use drain::DrainCq;
pub use transport::{Dci, RawPacket, Rc, Srd, Transport, Uc, Ud, XrcRecv, XrcSend};

use crate::brief::brief;
use crate::connect::{self, ConnectAttr, Endpoint};
use crate::context::Context;
use crate::cq::Cq;
use crate::dc::DcTarget;
use crate::flight::{Flight, QueueKind};
use crate::open::AnyDriver;
use crate::pd::ProtectionDomain;
use crate::pool::domain_of;
use crate::raw;
use crate::recv::{RecvQueue, Srq};
use crate::send::SendQueue;
use halves::halves;
use std::io::{Read, Write};
use transport::Sends;
use uverbs_core::attr::{QpCap, QpCreateFlags, QpType, SendOpsFlags};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{DcDriver, Driver, QueueError};
use uverbs_core::sync::{Exclusive, Locking, Shared};

/// The parameters of an owned QP that is to be created.
#[derive(Debug)]
#[must_use]
pub struct QpBuilder<'a, T, L, D: Driver> {
    builder: raw::QpBuilder<'a, T, L, D>,
    pd: &'a ProtectionDomain<D>,
    send_cq: Option<u64>,
    recv_cq: Option<u64>,
}

impl<D: Driver> ProtectionDomain<D> {
    /// Begins the creation of a QP whose work requests own their buffers.
    pub fn qp<T: Transport>(&self) -> QpBuilder<'_, T, Exclusive, D> {
        QpBuilder { builder: self.raw_qp(), pd: self, send_cq: None, recv_cq: None }
    }
}

impl<D: DcDriver> ProtectionDomain<D> {
    /// Begins the creation of an initiator of [dynamic connections](crate::dc) whose work requests own their buffers. As
    /// [`dci`](Self::dci).
    pub fn dci(&self) -> QpBuilder<'_, Dci, Exclusive, D> {
        QpBuilder { builder: self.raw_dci(), pd: self, send_cq: None, recv_cq: None }
    }

    /// Creates a target of [dynamic connections](crate::dc) that receives into an owned SRQ. As
    /// [`create_dct`](Self::create_dct).
    ///
    /// # Errors
    /// As `create_dct`.
    pub fn dct<LC: Locking, LS: Locking>(
        &self,
        cq: &Cq<LC, D>,
        srq: &Srq<LS, D>,
        dc_key: u64,
    ) -> Result<DcTarget<D>> {
        self.create_dct(cq.queue(), srq.queue(), dc_key)
    }
}

impl<'a, D: Driver, T: Transport, L: Locking> QpBuilder<'a, T, L, D> {
    /// Gives its queues locks, so that any thread may post.
    pub fn shared(self) -> QpBuilder<'a, T, Shared, D> {
        let Self { builder, pd, send_cq, recv_cq } = self;
        QpBuilder { builder: builder.shared(), pd, send_cq, recv_cq }
    }

    /// The CQ of its sends and receives.
    pub fn cq<LC: Locking>(self, cq: &'a Cq<LC, D>) -> Self {
        self.send_cq(cq).recv_cq(cq)
    }

    /// The CQ of its sends.
    pub fn send_cq<LC: Locking>(self, cq: &'a Cq<LC, D>) -> Self {
        Self { builder: self.builder.send_cq(cq.queue()), send_cq: Some(cq.id().0), ..self }
    }

    /// The CQ of its receives.
    pub fn recv_cq<LC: Locking>(self, cq: &'a Cq<LC, D>) -> Self {
        Self { builder: self.builder.recv_cq(cq.queue()), recv_cq: Some(cq.id().0), ..self }
    }

    /// Takes its receives from a shared queue.
    pub fn srq<LS: Locking>(self, srq: &'a Srq<LS, D>) -> Self {
        Self { builder: self.builder.srq(srq.queue()), ..self }
    }

    /// The work requests that the send queue and the receive queue hold. Each work request has one entry, if [`sge`](Self::sge) asks for
    /// no more.
    pub fn depth(self, max_send_wr: u32, max_recv_wr: u32) -> Self {
        self.cap_by(|cap| {
            cap.max_send_wr(max_send_wr)
                .max_recv_wr(max_recv_wr)
                .max_send_sge(cap.max_send_sge.max(1))
                .max_recv_sge(cap.max_recv_sge.max(1))
        })
    }

    /// The buffers of a work request that sends, and of one that receives; see [`BufList`](crate::BufList).
    pub fn sge(self, max_send_sge: u32, max_recv_sge: u32) -> Self {
        self.cap_by(|cap| cap.max_send_sge(max_send_sge).max_recv_sge(max_recv_sge))
    }

    /// Its work requests give indirect keys memory ([`Wr::mkey_configure`](crate::Wr::mkey_configure)), with lists of up to `max_entries`
    /// entries.
    pub fn mkeys(self, max_entries: u32) -> Self
    where
        T: transport::HasMkeys,
    {
        Self { builder: self.builder.mkeys(max_entries), ..self }
    }

    /// The bytes that an inline send or write can have.
    pub fn inline(self, max_inline_data: u32) -> Self {
        self.cap_by(|cap| cap.inline(max_inline_data))
    }

    fn cap_by(self, f: impl FnOnce(QpCap) -> QpCap) -> Self {
        Self { builder: self.builder.cap_by(f), ..self }
    }

    /// All sizes of its queues.
    pub fn cap(self, cap: QpCap) -> Self {
        Self { builder: self.builder.cap(cap), ..self }
    }

    /// Sets whether every send makes a completion. On a device whose sends complete in any order each one does in any case.
    pub fn sq_sig_all(self, all: bool) -> Self {
        Self { builder: self.builder.sq_sig_all(all), ..self }
    }

    /// The operations that the device must have: the creation fails if it does not, for example immediate data on iWARP.
    pub fn send_ops(self, ops: SendOpsFlags) -> Self {
        Self { builder: self.builder.send_ops(ops), ..self }
    }

    /// Creation flags.
    pub fn create_flags(self, flags: QpCreateFlags) -> Self {
        Self { builder: self.builder.create_flags(flags), ..self }
    }

    /// Creates it and connects it to the QP at the other end of a byte stream, such as a TCP connection. The other end makes the same call,
    /// at the same time; both return when both QPs can receive and send. The parameters are [`ConnectAttr::default`].
    ///
    /// The stream carries the two [`Endpoint`]s and then one byte each way, and nothing after that. A [`WithDeadline`](crate::WithDeadline)
    /// limits the time.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`connect`](Qp::connect); [`Error::Os`] with the errno of the stream, for example if the other end
    /// closes it or answers too late; [`Error::Protocol`] if what it sends is no endpoint.
    pub fn connect(self, stream: impl Read + Write) -> Result<Qp<T, L, D>>
    where
        T: Sends + transport::Connected,
    {
        self.connect_with(stream, &ConnectAttr::default())
    }

    /// As [`connect`](Self::connect), with other parameters: the access of the peer, time limits, the port.
    ///
    /// # Errors
    /// As `connect`.
    pub fn connect_with(self, stream: impl Read + Write, attr: &ConnectAttr) -> Result<Qp<T, L, D>>
    where
        T: Sends + transport::Connected,
    {
        let qp = self.create()?;
        qp.init(attr)?;
        let here = qp.control.endpoint(connect::random_psn(), attr)?;
        connect::meet(stream, &here, |there| qp.connect(&here, there, attr))?;
        Ok(qp)
    }

    /// The open device of the QP.
    #[must_use]
    pub fn context(&self) -> Context<D> {
        Context::of(self.pd.inner().context())
    }

    /// Creates it, in state RESET.
    ///
    /// # Errors
    /// A QP without CQs (an XRC send QP needs the first only), an invalid attribute, or the kernel's refusal.
    pub fn create(self) -> Result<Qp<T, L, D>>
    where
        T: Sends,
    {
        let missing = |field| Error::invalid("create_qp", field, "an owned QP needs one");
        let send_cq = self.send_cq.ok_or_else(|| missing("send_cq"))?;
        let recv_cq = match self.recv_cq {
            None if T::QP_TYPE != QpType::XrcSend => return Err(missing("recv_cq")),
            // The number of no CQ, for no receive queue.
            recv_cq => recv_cq.unwrap_or(u64::MAX),
        };
        let always = !self.pd.inner().context().driver().completes_in_order();
        let builder = if always { self.builder.sq_sig_all(true) } else { self.builder };
        let raw::Qp { send, recv, control } = builder.create()?;
        let (context, domain) = (control.context().clone(), domain_of(self.pd.inner()));
        let (QpCap { max_send_wr, max_recv_wr, .. }, qp_num) = (*control.cap(), control.qp_num());
        let kind = QueueKind::Send { cq: send_cq };
        let flight = Flight::new(&context, kind, domain, qp_num, max_send_wr)?;
        let recv = recv
            .map(|queue| {
                let kind = QueueKind::Recv { cq: recv_cq };
                Ok::<_, Error>((queue, Flight::new(&context, kind, domain, qp_num, max_recv_wr)?))
            })
            .transpose()
            .inspect_err(|_| flight.close(&context))?;
        let flights = [&flight].into_iter().chain(recv.iter().map(|(_, flight)| flight));
        control.holds().set(flights.cloned().collect());
        let pd = self.pd.clone();
        Ok(Qp {
            send: SendQueue::new(send, flight),
            recv: recv.map(|(queue, flight)| RecvQueue::new(queue, flight)),
            control,
            pd,
        })
    }
}

/// A queue pair whose work requests own their buffers.
///
/// A drop destroys it when its halves and the clones of its control are dropped, too. The buffers in flight go back to their
/// pools then. If the kernel refuses to destroy it, they are leaked, because the device may still use them.
pub struct Qp<T: Transport, L: Locking = Exclusive, D: Driver = AnyDriver> {
    pub(super) send: SendQueue<T, L, D>,
    pub(super) recv: Option<RecvQueue<L, D>>,
    pub(super) control: QpControl<D>,
    pub(super) pd: ProtectionDomain<D>,
}

brief!([T: Transport, L: Locking, D: Driver] Qp<T, L, D>, |this| "{:?}", this.control);

/// The halves of a QP, for two owners.
pub type Halves<T, L, D> = (SendQueue<T, L, D>, Option<RecvQueue<L, D>>, QpControl<D>);

impl<D: Driver, T: Sends, L: Locking> Qp<T, L, D> {
    /// The QP's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.control.qp_num()
    }

    /// Its sizes as created, which are at least those requested.
    #[must_use]
    pub fn cap(&self) -> &QpCap {
        self.control.cap()
    }

    /// States and queries.
    ///
    /// A RESET by it discards the work requests without completions. Their buffers stay in the queue until later ones complete
    /// (sends) or until the QP is destroyed (receives); [`reset`](Self::reset) gives them back.
    #[must_use]
    pub fn control(&self) -> &QpControl<D> {
        &self.control
    }

    /// Both halves and the control, which can be moved to different threads. The kernel object is destroyed when the last of
    /// them is dropped.
    #[must_use]
    pub fn split(self) -> Halves<T, L, D> {
        (self.send, self.recv, self.control)
    }

    /// Moves the QP from RESET to INIT; receives can be posted then.
    ///
    /// # Errors
    /// As [`QpControl::init`].
    pub fn init(&self, attr: &ConnectAttr) -> Result<()> {
        self.control.init(attr)
    }

    /// Moves the QP from INIT to RTS, connected to `remote` (which a datagram QP ignores). `local` is this side's endpoint.
    ///
    /// # Errors
    /// As [`QpControl::connect`].
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        self.control.connect(local, remote, attr)
    }

    /// Moves the QP to RESET. All buffers in flight go back to their pools; no completion reports them. Those of receives that it has
    /// taken from a shared queue do if their completions were in the CQ; the others stay with the [`Srq`].
    ///
    /// # Errors
    /// The kernel's refusal; the buffers stay in flight then.
    pub fn reset(&mut self) -> Result<()> {
        self.send.reset(self.recv.as_mut(), &self.control)
    }

    /// Destroys it and reports a failure, which a drop would only log.
    ///
    /// # Errors
    /// `EBUSY` while clones of the control are in use; otherwise the kernel's error.
    pub fn close(self) -> Result<()> {
        let Self { send, recv, control, .. } = self;
        drop((send, recv));
        control.close()
    }
}

halves!();
