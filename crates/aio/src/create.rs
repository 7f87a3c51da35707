// SPDX-License-Identifier: MIT OR Apache-2.0
//! The creation of QPs and SRQs of a dispatcher: their sizes, and where their receives come from.

use crate::dc::DcTarget;
use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::mailbox::Mailbox;
use crate::pair::Qp;
use crate::qp::QpInner;
use crate::receives::{OwnQueue, Receives};
use crate::sends::Queue;
use crate::srq::{Srq, SrqInner};
use crate::xrc::XrcSrq;
use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs::attr::{QpCap, QpType, SendOpsFlags, SrqAttr, SrqInitAttr, SrqType};
use uverbs::provider::DcDriver;
use uverbs::{
    AnyDriver, Dci, Driver, Exclusive, Pool, Private, ProtectionDomain, Rc, SendQueue, Srd, Ud, XrcDomain,
    XrcSend,
};

mod sealed {
    use super::{Dci, Driver, Exclusive, Queue, Rc, SendQueue, Srd, Ud, XrcSend};
    use uverbs::qp::transport::Sends;

    pub trait HasFutures: Sends {
        const IS_DATAGRAM: bool = false;
        /// Whether it has receives, or those of an SRQ.
        const RECEIVES: bool = true;
        /// The bytes that a send can have inline, if the program does not say.
        const INLINE: u32 = 64;
        /// Whether a send that fails moves the QP to ERR.
        const FAILS: bool = true;

        #[expect(private_interfaces, reason = "only this crate implements it")]
        fn queue<D: Driver>(queue: SendQueue<Self, Exclusive, D>) -> Queue<D>
        where
            Self: Sized;
    }

    macro_rules! has_futures {
        ($($transport:ident: $variant:ident $(, $name:ident: $ty:ty = $value:expr)*;)*) => {$(
            impl HasFutures for $transport {
                $(const $name: $ty = $value;)*

                #[expect(private_interfaces, reason = "only this crate implements it")]
                fn queue<D: Driver>(queue: SendQueue<Self, Exclusive, D>) -> Queue<D> {
                    Queue::$variant(queue)
                }
            }
            impl super::HasFutures for $transport {}
        )*};
    }

    has_futures! {
        Rc: Rc;
        Ud: Ud, IS_DATAGRAM: bool = true;
        // An entry of the send queue has room for 32 bytes; the first generations have no longer ones.
        Srd: Srd, IS_DATAGRAM: bool = true, INLINE: u32 = 32, FAILS: bool = false;
        XrcSend: Xrc, RECEIVES: bool = false;
        Dci: Dc, RECEIVES: bool = false;
    }
}

/// The transports whose operations are futures: [`Rc`], [`Ud`], [`Srd`], [`XrcSend`] and [`Dci`].
pub trait HasFutures: sealed::HasFutures {}

/// The parameters of a QP that is to be created.
#[must_use]
pub struct QpBuilder<'a, T = Rc, D: Driver = AnyDriver> {
    dispatcher: &'a Dispatcher<D>,
    pd: &'a ProtectionDomain<D>,
    cap: QpCap,
    send_ops: Option<SendOpsFlags>,
    pool: Option<&'a Pool<Private, D>>,
    srq: Option<&'a Srq<D>>,
    _transport: PhantomData<fn() -> T>,
}

impl<D: Driver, T> fmt::Debug for QpBuilder<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpBuilder").field("cap", &self.cap).finish_non_exhaustive()
    }
}

impl<'a, D: Driver, T: HasFutures> QpBuilder<'a, T, D> {
    fn new(dispatcher: &'a Dispatcher<D>, pd: &'a ProtectionDomain<D>) -> Self {
        let cap =
            if T::RECEIVES { QpCap::new(64, 64) } else { QpCap::new(64, 0).sge(1, 0) }.inline(T::INLINE);
        Self { dispatcher, pd, cap, send_ops: None, pool: None, srq: None, _transport: PhantomData }
    }

    /// How many work requests may be in flight: 64 sends and 64 receives by default. More operations wait. XRC and dynamic connections
    /// have no receives, so their number is 0.
    pub fn depth(mut self, sends: u32, receives: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (sends, receives);
        self
    }

    /// Buffers that a send, a write or a read can have, as a [`BufList`](uverbs::BufList); 1 by default.
    pub fn sge(mut self, bufs: u32) -> Self {
        self.cap.max_send_sge = bufs;
        self
    }

    /// Bytes that a send can have inline; 64 by default, 32 for [`Srd`].
    pub fn inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// The operations that the device must have: the creation fails if it does not, for example immediate data on iWARP.
    pub fn send_ops(self, ops: SendOpsFlags) -> Self {
        Self { send_ops: Some(ops), ..self }
    }

    /// Posts receives with buffers of this pool: as many as the depth, and another one for each that a task has taken.
    ///
    /// The pool needs as many buffers as the depths of all queues that take from it, and those that tasks hold. While it has
    /// none, the queue has fewer receives, and a peer that sends more messages waits (receiver not ready). A QP with neither a
    /// pool nor an [`srq`](Self::srq) gets no messages: its peer must not send any, and [`Qp::recv`] waits until the QP ends.
    pub fn pool(self, pool: &'a Pool<Private, D>) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Takes its receives from a shared queue.
    pub fn srq(self, srq: &'a Srq<D>) -> Self {
        Self { srq: Some(srq), ..self }
    }

    /// Creates it, in state RESET.
    ///
    /// # Errors
    /// The CQ of the dispatcher has too few entries left; the pool is that of another domain, or the transport has no receives; or the
    /// kernel's refusal.
    pub fn create(self) -> Result<Qp<T, D>> {
        let Self { dispatcher, pd, cap, send_ops, pool, srq, .. } = self;
        if !T::RECEIVES && (pool.is_some() || srq.is_some() || cap.max_recv_wr > 0) {
            let reason = "the transport has no receives";
            return Err(uverbs::Error::invalid("create_qp", "receives", reason).into());
        }
        if let Some(pool) = pool {
            check_pool("create_qp", pool, pd)?;
        }
        let depths = (cap.max_send_wr, if srq.is_some() { 0 } else { cap.max_recv_wr });
        let poller = &dispatcher.inner.poller;
        let create = |cq: &_| {
            let builder = pd.qp::<T>().send_cq(cq).cap(cap);
            let builder = if T::QP_TYPE == QpType::XrcSend { builder } else { builder.recv_cq(cq) };
            let builder = match send_ops {
                Some(ops) => builder.send_ops(ops),
                None => builder,
            };
            // An SRQ of another dispatcher would complete to its own numbers.
            match srq {
                Some(srq) if !srq.is_of(poller.life()) => {
                    let reason = "it is that of another dispatcher";
                    Err(uverbs::Error::invalid("create_qp", "srq", reason).into())
                }
                Some(srq) => srq.with_queue(|queue| Ok(builder.srq(queue).create()?)),
                None => Ok(builder.create()?),
            }
        };
        let (qp, entries, route) = poller.add_queue(create, |_| depths.0.saturating_add(depths.1))?;
        let (sends, receives, control) = qp.split();
        let receives =
            Receives::new(receives.map(OwnQueue::Qp), pool.cloned(), (depths.1, T::IS_DATAGRAM), route);
        let sizes = (route, entries, depths.0);
        let parts = (T::queue(sends), receives, control);
        let qp = Arc::new(QpInner::new(parts, poller.life(), sizes, (srq.cloned(), T::FAILS)));
        poller.set_qp(route, &qp);
        Ok(Qp::new(qp, dispatcher))
    }
}

impl<D: Driver> Dispatcher<D> {
    /// Begins the creation of a reliable connected QP, whose completions this dispatcher gets.
    pub fn qp<'a>(&'a self, pd: &'a ProtectionDomain<D>) -> QpBuilder<'a, Rc, D> {
        QpBuilder::new(self, pd)
    }

    /// Begins the creation of a QP of datagrams, whose completions this dispatcher gets. Its buffers for receives have 40 bytes more than
    /// the messages, for the global routing header.
    ///
    /// ```
    /// use uverbs::mlx5::Mlx5;
    /// use uverbs::{ConnectAttr, Context};
    /// use uverbs_aio::{Destination, Dispatcher, Result};
    /// use uverbs_hca::Hca;
    ///
    /// # fn main() -> Result<()> {
    /// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
    /// let (pd, dispatcher) = (context.alloc_pd()?, Dispatcher::new(&context)?);
    /// let incoming = pd.pool(32, 40 + 1024)?;
    /// let [client, server] = [(); 2].map(|()| dispatcher.datagram_qp(&pd).depth(8, 8).pool(&incoming).create());
    /// let (client, server, attr) = (client?, server?, ConnectAttr::new().qkey(7).on(&context)?);
    /// client.start(&attr)?;
    /// let there = server.start(&attr)?;
    /// let to = Destination::new(pd.create_ah(&attr.ah_attr(&there))?, there.qp_num, 7);
    ///
    /// dispatcher.block_on(async {
    ///     client.send_inline_to(b"question", &to).await?;
    ///     let question = server.recv_from().await?;
    ///     let back = question.answer_to(&pd, 1, 7)?;
    ///     server.send_inline_to(b"answer", &back).await?;
    ///     assert_eq!(&*client.recv_from().await?, b"answer");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn datagram_qp<'a>(&'a self, pd: &'a ProtectionDomain<D>) -> QpBuilder<'a, Ud, D> {
        QpBuilder::new(self, pd)
    }

    /// Begins the creation of a QP of reliable datagrams (SRD), if the device has them. Each operation names its [`Destination`](crate::Destination),
    /// which needs an address handle of this side, too, for reads and writes. Messages and operations may overtake each other. An operation
    /// that fails does not end the QP.
    pub fn srd_qp<'a>(&'a self, pd: &'a ProtectionDomain<D>) -> QpBuilder<'a, Srd, D> {
        QpBuilder::new(self, pd)
    }

    /// Creates a shared receive queue with `depth` receives, and posts them with buffers of the pool. The messages of each QP
    /// are [received](crate::Qp::recv) from that QP.
    ///
    /// # Errors
    /// The CQ of the dispatcher has too few entries left; the pool is that of another domain; or the kernel's refusal.
    pub fn srq(&self, pd: &ProtectionDomain<D>, pool: &Pool<Private, D>, depth: u32) -> Result<Srq<D>> {
        check_pool("create_srq", pool, pd)?;
        let attr = SrqAttr::new(depth);
        let attr = SrqInitAttr::new(attr);
        let poller = &self.inner.poller;
        let (queue, entries, route) = poller.add_queue(|_| Ok(pd.srq(&attr)?), |_| depth)?;
        let inner = Arc::new(SrqInner::new(queue, pool, poller.life(), (route, entries)));
        poller.set_srq(route, &inner);
        if inner.refill() {
            poller.life().starved(route);
        }
        Ok(Srq::new(inner))
    }
}

impl<D: Driver> Dispatcher<D> {
    /// Begins the creation of the sending end of an extended reliable connection; see [`XrcSrq`].
    pub fn xrc_qp<'a>(&'a self, pd: &'a ProtectionDomain<D>) -> QpBuilder<'a, XrcSend, D> {
        QpBuilder::new(self, pd)
    }

    /// Creates a shared receive queue of an XRC domain with `depth` receives, and posts them with buffers of the pool.
    ///
    /// # Errors
    /// The device has no XRC; the CQ of the dispatcher has too few entries left; the pool is that of another domain; or the kernel's
    /// refusal.
    pub fn xrc_srq(
        &self,
        pd: &ProtectionDomain<D>,
        domain: &XrcDomain<D>,
        pool: &Pool<Private, D>,
        depth: u32,
    ) -> Result<XrcSrq<D>> {
        check_pool("create_srq", pool, pd)?;
        let attr = SrqInitAttr::new(SrqAttr::new(depth)).srq_type(SrqType::Xrc);
        let poller = &self.inner.poller;
        let (queue, entries, route) = poller.add_queue(|cq| Ok(pd.xrc_srq(&attr, domain, cq)?), |_| depth)?;
        let mailbox = Arc::new(Mailbox::of_xrc(queue, pool, poller.life(), (route, entries)));
        poller.set_mailbox(&mailbox);
        if mailbox.refill() {
            poller.life().starved(route);
        }
        Ok(XrcSrq::new(mailbox, self))
    }
}

impl<D: DcDriver> Dispatcher<D> {
    /// Begins the creation of an initiator of dynamic connections; see [`DcTarget`].
    pub fn dc_initiator<'a>(&'a self, pd: &'a ProtectionDomain<D>) -> QpBuilder<'a, Dci, D> {
        QpBuilder::new(self, pd)
    }

    /// Creates a target of dynamic connections, in state RESET. It receives from a shared queue of this dispatcher; initiators that have
    /// `dc_key` can reach it.
    ///
    /// # Errors
    /// The device has no DC; the queue is that of another dispatcher; or the kernel's refusal.
    pub fn dc_target(&self, pd: &ProtectionDomain<D>, srq: &Srq<D>, dc_key: u64) -> Result<DcTarget<D>> {
        let poller = &self.inner.poller;
        if !srq.is_of(poller.life()) {
            let reason = "it is that of another dispatcher";
            return Err(uverbs::Error::invalid("create_qp", "srq", reason).into());
        }
        let create = |cq: &_| srq.with_queue(|queue| Ok(pd.dct(cq, queue, dc_key)?));
        // Its completions are those of the queue, which has reserved the entries.
        let (target, _, route) = poller.add_queue(create, |_| 0)?;
        let mailbox = Arc::new(Mailbox::of_target((target, srq.clone()), poller.life(), route));
        poller.set_mailbox(&mailbox);
        Ok(DcTarget::new(mailbox, self))
    }
}

/// Fails if a queue of the domain would refuse the pool's buffers: it would have no receives, without an error.
fn check_pool<D: Driver>(
    verb: &'static str,
    pool: &Pool<Private, D>,
    pd: &ProtectionDomain<D>,
) -> Result<()> {
    if pool.is_of(pd) {
        return Ok(());
    }
    Err(uverbs::Error::invalid(verb, "pool", "it is that of another protection domain").into())
}
