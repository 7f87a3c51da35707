// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs whose work requests own their buffers.

use super::cq::OwnedCq;
use super::flight::{Flight, QueueKind};
use super::pool::domain_of;
use super::recv::{OwnedRecvQueue, OwnedSrq};
use super::send::OwnedSendQueue;
use crate::connect::{ConnectAttr, Endpoint};
use crate::dc::DcTarget;
use crate::pd::ProtectionDomain;
use crate::qp::create::QpBuilder;
use crate::qp::transport::{Sends, Transport};
use crate::qp::{Dci, Qp, QpControl};
use uverbs_core::attr::{QpCap, QpCreateFlags, QpType, SendOpsFlags};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{DcDriver, Driver};
use uverbs_core::sync::{Exclusive, Locking, Shared};

/// The parameters of an owned QP that is to be created.
#[derive(Debug)]
#[must_use]
pub struct OwnedQpBuilder<'a, D: Driver, T, L> {
    builder: QpBuilder<'a, D, T, L>,
    pd: &'a ProtectionDomain<D>,
    send_cq: Option<u64>,
    recv_cq: Option<u64>,
}

impl<D: Driver> ProtectionDomain<D> {
    /// Begins the creation of a QP whose work requests own their buffers.
    pub fn owned_qp<T: Transport>(&self) -> OwnedQpBuilder<'_, D, T, Exclusive> {
        OwnedQpBuilder { builder: self.qp(), pd: self, send_cq: None, recv_cq: None }
    }
}

impl<D: DcDriver> ProtectionDomain<D> {
    /// Begins the creation of an initiator of [dynamic connections](crate::dc) whose work requests own their buffers. As
    /// [`dci`](Self::dci).
    pub fn owned_dci(&self) -> OwnedQpBuilder<'_, D, Dci, Exclusive> {
        OwnedQpBuilder { builder: self.dci(), pd: self, send_cq: None, recv_cq: None }
    }

    /// Creates a target of [dynamic connections](crate::dc) that receives into an owned SRQ. As
    /// [`create_dct`](Self::create_dct).
    ///
    /// # Errors
    /// As `create_dct`.
    pub fn owned_dct<LC: Locking, LS: Locking>(
        &self,
        cq: &OwnedCq<D, LC>,
        srq: &OwnedSrq<D, LS>,
        dc_key: u64,
    ) -> Result<DcTarget<D>> {
        self.create_dct(cq.queue(), srq.queue(), dc_key)
    }
}

impl<'a, D: Driver, T: Transport, L: Locking> OwnedQpBuilder<'a, D, T, L> {
    /// Gives its queues locks, so that any thread may post.
    pub fn shared(self) -> OwnedQpBuilder<'a, D, T, Shared> {
        let Self { builder, pd, send_cq, recv_cq } = self;
        OwnedQpBuilder { builder: builder.shared(), pd, send_cq, recv_cq }
    }

    /// The CQ of its sends and receives.
    pub fn cq<LC: Locking>(self, cq: &'a OwnedCq<D, LC>) -> Self {
        self.send_cq(cq).recv_cq(cq)
    }

    /// The CQ of its sends.
    pub fn send_cq<LC: Locking>(self, cq: &'a OwnedCq<D, LC>) -> Self {
        Self { builder: self.builder.send_cq(cq.queue()), send_cq: Some(cq.id().0), ..self }
    }

    /// The CQ of its receives.
    pub fn recv_cq<LC: Locking>(self, cq: &'a OwnedCq<D, LC>) -> Self {
        Self { builder: self.builder.recv_cq(cq.queue()), recv_cq: Some(cq.id().0), ..self }
    }

    /// Takes its receives from a shared queue.
    pub fn srq<LS: Locking>(self, srq: &'a OwnedSrq<D, LS>) -> Self {
        Self { builder: self.builder.srq(srq.queue()), ..self }
    }

    /// Sizes of its queues.
    pub fn cap(self, cap: QpCap) -> Self {
        Self { builder: self.builder.cap(cap), ..self }
    }

    /// Sets whether every send makes a completion.
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

    /// Creates it, in state RESET.
    ///
    /// # Errors
    /// A QP without CQs (an XRC send QP needs the first only), an invalid attribute, or the kernel's refusal.
    pub fn create(self) -> Result<OwnedQp<D, T, L>>
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
        let Qp { send, recv, control } = self.builder.create()?;
        let (context, domain) = (control.context().clone(), domain_of(self.pd.inner()));
        let QpCap { max_send_wr, max_recv_wr, .. } = *control.cap();
        let send = send
            .map(|queue| {
                let kind = QueueKind::Send { cq: send_cq };
                Ok::<_, Error>((queue, Flight::new(&context, kind, domain, max_send_wr)?))
            })
            .transpose()?;
        let recv = recv
            .map(|queue| {
                let kind = QueueKind::Recv { cq: recv_cq };
                Ok::<_, Error>((queue, Flight::new(&context, kind, domain, max_recv_wr)?))
            })
            .transpose()
            .inspect_err(|_| send.iter().for_each(|(_, flight)| flight.close(&context)))?;
        let flights = send.iter().map(|(_, f)| f).chain(recv.iter().map(|(_, f)| f));
        control.holds().set(flights.cloned().collect());
        let (Some((queue, flight)), pd) = (send, self.pd.clone()) else {
            return Err(missing("max_send_wr"));
        };
        Ok(OwnedQp {
            send: OwnedSendQueue::new(queue, flight),
            recv: recv.map(|(queue, flight)| OwnedRecvQueue::new(queue, flight)),
            control,
            pd,
        })
    }
}

/// A queue pair whose work requests own their buffers.
///
/// A drop destroys it when its halves and the clones of its control are dropped, too. The buffers in flight go back to their
/// pools then. If the kernel refuses to destroy it, they are leaked, because the device may still use them.
#[derive(Debug)]
pub struct OwnedQp<D: Driver, T: Transport, L: Locking = Exclusive> {
    pub(super) send: OwnedSendQueue<D, T, L>,
    pub(super) recv: Option<OwnedRecvQueue<D, L>>,
    pub(super) control: QpControl<D>,
    pub(super) pd: ProtectionDomain<D>,
}

/// The halves of a QP, for two owners.
pub type Halves<D, T, L> = (OwnedSendQueue<D, T, L>, Option<OwnedRecvQueue<D, L>>, QpControl<D>);

impl<D: Driver, T: Sends, L: Locking> OwnedQp<D, T, L> {
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

    /// The send queue.
    #[inline(always)]
    #[must_use]
    pub fn sq(&mut self) -> &mut OwnedSendQueue<D, T, L> {
        &mut self.send
    }

    /// The receive queue; `None` if an SRQ takes the receives.
    #[inline(always)]
    #[must_use]
    pub fn rq(&mut self) -> Option<&mut OwnedRecvQueue<D, L>> {
        self.recv.as_mut()
    }

    /// Both halves and the control, which can be moved to different threads. The kernel object is destroyed when the last of
    /// them is dropped.
    #[must_use]
    pub fn split(self) -> Halves<D, T, L> {
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
    /// taken from a shared queue do if their completions were in the CQ; the others stay with the [`OwnedSrq`](super::OwnedSrq).
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
