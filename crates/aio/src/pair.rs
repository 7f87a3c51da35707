// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs whose operations are futures: their states and their end. The operations are those of [`op`](crate::op) and
//! [`recv`](crate::recv).

use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::qp::QpInner;
use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs::qp::QpControl;
use uverbs::{AnyDriver, ConnectAttr, Driver, Endpoint, Rc};
use uverbs_core::wake::Wakes;

/// A queue pair whose operations are futures: reliable connected ([`Rc`], the default), one of datagrams ([`Ud`](uverbs::Ud)), of
/// reliable datagrams ([`Srd`](uverbs::Srd)), the sending end of XRC ([`XrcSend`](uverbs::XrcSend)), or an initiator of dynamic connections ([`Dci`](uverbs::Dci)). Clones share it; it is
/// destroyed when all clones and futures are dropped.
///
/// The operations are in the order in which their futures are polled first. If more are polled than the queue has entries,
/// they wait for one in that order.
pub struct Qp<T = Rc, D: Driver = AnyDriver> {
    pub(crate) inner: Arc<QpInner<D>>,
    dispatcher: Dispatcher<D>,
    _transport: PhantomData<fn() -> T>,
}

impl<D: Driver, T> Clone for Qp<T, D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), dispatcher: self.dispatcher.clone(), _transport: PhantomData }
    }
}

impl<D: Driver, T> fmt::Debug for Qp<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<D: Driver, T> Qp<T, D> {
    pub(crate) fn new(inner: Arc<QpInner<D>>, dispatcher: &Dispatcher<D>) -> Self {
        Self { inner, dispatcher: dispatcher.clone(), _transport: PhantomData }
    }

    /// The QP's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    /// States and queries. After a move to INIT by it, [`post_receives`](Self::post_receives).
    ///
    /// A move to RESET by it discards what is in flight, without completions: operations wait for ever, and the receives are not
    /// posted again, until [`reset`](Self::reset).
    #[must_use]
    pub fn control(&self) -> &QpControl<D> {
        self.inner.control()
    }

    /// Its dispatcher.
    #[must_use]
    pub fn dispatcher(&self) -> Dispatcher<D> {
        self.dispatcher.clone()
    }

    /// Moves it from RESET to INIT, and posts the receives.
    ///
    /// # Errors
    /// As [`QpControl::init`].
    pub fn init(&self, attr: &ConnectAttr) -> Result<()> {
        self.inner.control().init(attr)?;
        self.post_receives();
        Ok(())
    }

    /// Posts the receives, after the QP was moved to INIT in another way.
    pub fn post_receives(&self) {
        if !self.inner.is_forked() && self.inner.refill() {
            self.inner.starved();
        }
    }

    /// Moves it to RESET from any state, also from RESET, so that it can be connected again. Operations in flight end with
    /// [`WcStatus::WR_FLUSH_ERR`](uverbs::WcStatus::WR_FLUSH_ERR) or [`Error::Closed`](crate::Error::Closed), and their buffers go back to
    /// their pools, whether or not the peer has received them; those that wait for an entry, and for messages, end with
    /// [`Error::Closed`](crate::Error::Closed). Messages that have arrived can still be [received](Qp::recv).
    ///
    /// Operations that are posted before the next [`init`](Self::init) and [`connect`](Self::connect) fail; a receive waits for the next
    /// connection. A [`shutdown`](Self::shutdown) or [`abort`](Self::abort) must not be in progress: it would end the next connection.
    ///
    /// # Errors
    /// The QP has an SRQ, of which it may have taken receives: `shutdown` or `abort` end that first. Or the kernel's refusal, or the device
    /// was removed.
    pub fn reset(&self) -> Result<()> {
        let mut wakes = Wakes::new();
        let reset = self.dispatcher.inner.poller.between_polls(|| self.inner.reset(&mut wakes));
        wakes.wake();
        reset
    }

    /// This side's endpoint for the exchange; see [`QpControl::endpoint`].
    ///
    /// # Errors
    /// As [`QpControl::endpoint`].
    pub fn endpoint(&self, psn: u32, attr: &ConnectAttr) -> Result<Endpoint> {
        Ok(self.inner.control().endpoint(psn, attr)?)
    }

    /// Ends the connection: no more operations begin; waits until those in flight are complete; then moves the QP to ERR, and
    /// waits until the receives are flushed. Messages that have arrived can still be [received](Qp::recv). The peer is not
    /// notified: a program does that itself, for example by a last message.
    ///
    /// If the future is dropped, for example by a time limit because the peer does not answer,
    /// [`abort`](Self::abort) ends the operations in flight.
    ///
    /// # Errors
    /// The kernel refuses the move to ERR, or the device was removed.
    pub async fn shutdown(&self) -> Result<()> {
        let inner = &self.inner;
        inner.close();
        inner.drain().await;
        inner.flush().await
    }

    /// As [`shutdown`](Self::shutdown), without waiting for operations in flight: they are flushed, and end with
    /// [`WcStatus::WR_FLUSH_ERR`](uverbs::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub async fn abort(&self) -> Result<()> {
        self.inner.close();
        self.inner.flush().await?;
        self.inner.drain().await;
        Ok(())
    }
}

impl<D: Driver> Qp<Rc, D> {
    /// Moves it from INIT to RTS, connected to `remote`. `local` is this side's endpoint.
    ///
    /// # Errors
    /// As [`QpControl::connect`].
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        Ok(self.inner.control().connect(local, remote, attr)?)
    }
}
