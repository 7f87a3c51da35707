// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sizes of a stream, and the ways to connect it.

use super::RdmaStream;
use crate::connect::Listener;
use crate::dispatcher::Dispatcher;
use crate::error::Result;
use crate::pair::Qp;
use core::net::SocketAddr;
use std::net::TcpStream;
use uverbs::{ConnectAttr, Driver, Pool, Private, ProtectionDomain, Rc};
use uverbs_cm::{ConnParam, EventChannel};

/// Messages besides those of the window.
const OTHERS: u32 = 4;

/// The sizes of a stream, and what it is made from.
#[derive(Debug)]
#[must_use]
pub struct StreamBuilder<'a, D: Driver> {
    dispatcher: &'a Dispatcher<D>,
    pd: &'a ProtectionDomain<D>,
    pub(super) window: u16,
    pub(super) message: u32,
}

impl<'a, D: Driver> StreamBuilder<'a, D> {
    pub(super) fn new(dispatcher: &'a Dispatcher<D>, pd: &'a ProtectionDomain<D>) -> Self {
        Self { dispatcher, pd, window: 16, message: 16 << 10 }
    }

    /// The messages of each direction that may be on their way or unread: 16 by default.
    pub fn window(self, messages: u16) -> Self {
        Self { window: messages.max(1), ..self }
    }

    /// Bytes of a message, with a header of 8: 16 KiB by default. The memory of a stream is about four windows of messages.
    pub fn message_size(self, bytes: u32) -> Self {
        Self { message: bytes.max(64), ..self }
    }

    fn build(&self) -> Result<(Qp<Rc, D>, Pool<Private, D>)> {
        let window = u32::from(self.window);
        // A queue is refilled when a quarter of its receives is missing; what is left must suffice.
        let receives = (window + OTHERS) * 4 / 3 + 2;
        let incoming = self.pd.pool(receives + window + OTHERS, self.message)?;
        // The queue has a buffer for each of its entries, and messages wait for an entry with one: data, and credits.
        let sends = window + OTHERS;
        let outgoing = self.pd.pool(sends + 2, self.message)?;
        let qp = self.dispatcher.qp(self.pd).depth(sends, receives).pool(&incoming).create()?;
        Ok((qp, outgoing))
    }

    /// Connects to a server of the connection manager.
    ///
    /// # Errors
    /// As [`Qp::connect_to`].
    pub async fn connect(self, manager: &EventChannel, server: SocketAddr) -> Result<RdmaStream<D>> {
        self.connect_from(manager, None, server).await
    }

    /// As [`connect`](Self::connect), from this local address, which selects the device. Without it, the route to the server
    /// does.
    ///
    /// # Errors
    /// As [`Qp::connect_from`].
    pub async fn connect_from(
        self,
        manager: &EventChannel,
        local: Option<SocketAddr>,
        server: SocketAddr,
    ) -> Result<RdmaStream<D>> {
        let (qp, pool) = self.build()?;
        let link = qp.connect_from(manager, local, server, &ConnParam::default()).await?;
        Ok(RdmaStream::new(qp, pool, &self, Some(link)))
    }

    /// Accepts the next connection of a listener.
    ///
    /// # Errors
    /// As [`Listener::accept`] and [`Request::accept`](crate::Request::accept).
    pub async fn accept(self, listener: &Listener<D>) -> Result<RdmaStream<D>> {
        let request = listener.accept().await?;
        self.accept_request(request).await
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    /// As [`Request::accept`](crate::Request::accept).
    pub async fn accept_request(self, request: crate::Request) -> Result<RdmaStream<D>> {
        let (qp, pool) = self.build()?;
        let link = request.accept(&qp, &ConnParam::default()).await?;
        Ok(RdmaStream::new(qp, pool, &self, Some(link)))
    }

    /// Connects to the peer at the other end of a TCP connection, which calls this, too.
    ///
    /// # Errors
    /// As [`Qp::exchange`].
    pub async fn exchange(self, stream: &TcpStream, attr: &ConnectAttr) -> Result<RdmaStream<D>> {
        let (qp, pool) = self.build()?;
        qp.exchange(stream, attr).await?;
        Ok(RdmaStream::new(qp, pool, &self, None))
    }
}
