// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dynamic connections: an initiator reaches any target by the destination of each work request.

use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::mailbox::{Mailbox, RecvShared};
use crate::next::Receiver as _;
use crate::pair::Qp;
use crate::receives::Message;
use core::fmt;
use std::sync::Arc;
use uverbs::provider::DcDriver;
use uverbs::{AnyDriver, ConnectAttr, Dci, Driver, Endpoint};

/// A target of dynamic connections, whose messages are received as futures. Its receives are those of a shared queue
/// ([`Srq`](crate::Srq)). Clones share it.
///
/// ```
/// use uverbs::mlx5::Mlx5;
/// use uverbs::{ConnectAttr, Context};
/// use uverbs_aio::{DcDestination, Dispatcher, Result};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<()> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, dispatcher) = (context.alloc_pd()?, Dispatcher::new(&context)?);
/// let srq = dispatcher.srq(&pd, &pd.pool(16, 1024)?, 8)?;
/// let (target, attr) = (dispatcher.dc_target(&pd, &srq, 42)?, ConnectAttr::default());
/// let there = target.start(&attr)?;
///
/// let initiator = dispatcher.dc_initiator(&pd).depth(8, 0).create()?;
/// initiator.start(&attr)?;
/// let ah = pd.create_ah(&attr.on(&context)?.ah_attr(&there))?;
/// let to = DcDestination::new(ah, there.qp_num, 42);
/// dispatcher.block_on(async {
///     initiator.send_inline_to(b"hello", &to).await?;
///     assert_eq!(&*target.recv().await?, b"hello");
///     initiator.shutdown().await
/// })
/// # }
/// ```
pub struct DcTarget<D: Driver = AnyDriver> {
    mailbox: Arc<Mailbox<D>>,
    dispatcher: Dispatcher<D>,
}

impl<D: Driver> Clone for DcTarget<D> {
    fn clone(&self) -> Self {
        Self { mailbox: self.mailbox.clone(), dispatcher: self.dispatcher.clone() }
    }
}

impl<D: Driver> fmt::Debug for DcTarget<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DcTarget").field("dctn", &self.dctn()).finish_non_exhaustive()
    }
}

impl<D: Driver> DcTarget<D> {
    pub(crate) fn new(mailbox: Arc<Mailbox<D>>, dispatcher: &Dispatcher<D>) -> Self {
        Self { mailbox, dispatcher: dispatcher.clone() }
    }

    /// Its number, from [`start`](Self::start) on.
    #[must_use]
    pub fn dctn(&self) -> Option<u32> {
        self.mailbox.number()
    }

    /// The next message of any initiator. Messages are in the order of their arrival, and so are the tasks that wait for them.
    ///
    /// # Errors
    /// After all messages that have arrived: an event that ends the target, [`Error::Closed`](crate::Error::Closed), or that of the
    /// dispatcher.
    pub fn recv(&self) -> RecvShared<D> {
        RecvShared::new(self.mailbox.clone())
    }

    /// A message that has arrived already.
    #[must_use]
    pub fn try_recv(&self) -> Option<Message<D>> {
        self.mailbox.try_take()
    }

    /// Destroys it. Messages that the dispatcher has polled can still be [received](Self::recv); others are lost, and their receives
    /// are posted again. The shared queue keeps the receive of a message that is only arriving until its own end.
    ///
    /// # Errors
    /// This is a child of fork(2), or the dispatcher has failed; after the latter it is destroyed nevertheless.
    pub fn close(&self) -> Result<()> {
        self.mailbox.close(|f| self.dispatcher.inner.poller.between_polls(f))
    }
}

impl<D: DcDriver> DcTarget<D> {
    /// Moves it from RESET to RTR. Returns what initiators need besides the key: `qp_num` is its number.
    ///
    /// # Errors
    /// The kernel's refusal, or the device was removed.
    pub fn start(&self, attr: &ConnectAttr) -> Result<Endpoint> {
        let context = self.dispatcher.context();
        let attr = attr.on(context)?;
        let gid = match attr.sgid_index {
            Some(index) => context.query_gid(attr.port_num, index.into())?,
            None => uverbs::attr::Gid::default(),
        };
        let lid = context.query_port(attr.port_num)?.lid;
        let here = Endpoint { gid, lid, ..Endpoint::default() };
        // Of the path only the attributes of this side are used: its peers are those of the messages.
        let path = attr.ah_attr(&here);
        let poller = &self.dispatcher.inner.poller;
        let qp_num = poller.start_target(&self.mailbox, |target| target.connect(&attr, &path))?;
        Ok(Endpoint { qp_num, ..here })
    }
}

impl<D: DcDriver> Qp<Dci, D> {
    /// Moves it from RESET to RTS. It needs no peer.
    ///
    /// # Errors
    /// As [`QpControl::connect_dci`](uverbs::QpControl::connect_dci).
    pub fn start(&self, attr: &ConnectAttr) -> Result<()> {
        Ok(self.control().connect_dci(attr)?)
    }
}
