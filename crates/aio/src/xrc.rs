// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended reliable connections: one connection to each peer, whose work requests name one of the shared queues there.

use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::mailbox::{Mailbox, RecvShared};
use crate::next::Receiver as _;
use crate::pair::Qp;
use crate::receives::Message;
use core::fmt;
use std::sync::Arc;
use uverbs::{AnyDriver, ConnectAttr, Driver, Endpoint, XrcSend};

/// A shared receive queue of an [`XrcDomain`](uverbs::XrcDomain), whose receives are posted from a pool. Clones share it.
///
/// It gets the messages that name its [number](Self::srq_num), of all XRC receive QPs of the domain. The program creates those with
/// [`XrcDomain::recv_qp`](uverbs::XrcDomain::recv_qp). As of a QP with receives of its own, at most as many messages as its depth wait
/// for a task, and then the peers wait (receiver not ready).
///
/// ```
/// use uverbs::mlx5::Mlx5;
/// use uverbs::{ConnectAttr, Context};
/// use uverbs_aio::{Dispatcher, Result, SrqDestination};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<()> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, dispatcher) = (context.alloc_pd()?, Dispatcher::new(&context)?);
/// let incoming = pd.pool(16, 1024)?;
/// let domain = context.open_xrcd(None, true, false)?;
/// let queue = dispatcher.xrc_srq(&pd, &domain, &incoming, 8)?;
/// // The two ends of the connection.
/// let (sender, receiver) = (dispatcher.xrc_qp(&pd).depth(8, 0).create()?, domain.recv_qp().create_recv()?);
/// let attr = ConnectAttr::default();
/// sender.init(&attr)?;
/// receiver.init(&attr)?;
/// let (here, there) = (sender.endpoint(1, &attr)?, receiver.endpoint(2, &attr)?);
/// sender.connect(&here, &there, &attr)?;
/// receiver.connect(&there, &here, &attr)?;
///
/// let to = SrqDestination::new(queue.srq_num()?);
/// dispatcher.block_on(async {
///     sender.send_inline_to(b"hello", &to).await?;
///     assert_eq!(&*queue.recv().await?, b"hello");
///     sender.shutdown().await
/// })
/// # }
/// ```
pub struct XrcSrq<D: Driver = AnyDriver> {
    mailbox: Arc<Mailbox<D>>,
    dispatcher: Dispatcher<D>,
}

impl<D: Driver> Clone for XrcSrq<D> {
    fn clone(&self) -> Self {
        Self { mailbox: self.mailbox.clone(), dispatcher: self.dispatcher.clone() }
    }
}

impl<D: Driver> fmt::Debug for XrcSrq<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcSrq").finish_non_exhaustive()
    }
}

impl<D: Driver> XrcSrq<D> {
    pub(crate) fn new(mailbox: Arc<Mailbox<D>>, dispatcher: &Dispatcher<D>) -> Self {
        Self { mailbox, dispatcher: dispatcher.clone() }
    }

    /// The number by which peers address it; see [`SrqDestination`](crate::SrqDestination).
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn srq_num(&self) -> Result<u32> {
        self.mailbox.srq_num()
    }

    /// The next message. Messages are in the order of their arrival, and so are the tasks that wait for them. The completion of a message
    /// has the number of the receive QP.
    ///
    /// # Errors
    /// After all messages that have arrived: [`Error::Closed`](crate::Error::Closed), or that of the dispatcher.
    pub fn recv(&self) -> RecvShared<D> {
        RecvShared::new(self.mailbox.clone())
    }

    /// A message that has arrived already.
    #[must_use]
    pub fn try_recv(&self) -> Option<Message<D>> {
        self.mailbox.try_take()
    }

    /// Destroys the queue: its receives go back to their pool, and peers that name it get an error. Messages that the dispatcher has
    /// polled can still be [received](Self::recv).
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn close(&self) -> Result<()> {
        self.mailbox.close(|f| self.dispatcher.inner.poller.between_polls(f))
    }
}

impl<D: Driver> Qp<XrcSend, D> {
    /// Moves it from INIT to RTS, connected to the XRC receive QP `remote`. `local` is this side's endpoint.
    ///
    /// # Errors
    /// As [`QpControl::connect`](uverbs::QpControl::connect).
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        Ok(self.control().connect(local, remote, attr)?)
    }
}
