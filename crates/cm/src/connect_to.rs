// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QP that is created and connected by one call.

use crate::channel::EventChannel;
use crate::connection::Connection;
use crate::error::Result;
use crate::listener::Request;
use crate::param::ConnParam;
use crate::resolved::Resolved;
use core::net::SocketAddr;
use uverbs::qp::transport::{HasPeer, Sends};
use uverbs::{Driver, Qp, QpBuilder};
use uverbs_core::sync::Locking;

/// Connects the QP of a builder by IP address. The name of the trait need not be used: `use uverbs_cm::ConnectTo as _`.
pub trait ConnectTo: Sized {
    /// The QP.
    type Qp;

    /// Creates the QP and connects it to a server: [`Listener`](crate::Listener), or a program that uses librdmacm. The parameters are
    /// [`ConnParam::default`]; the device is that of the builder's domain.
    ///
    /// Receives can be posted when it returns. A message that the server sends before that waits for
    /// [`min_rnr_timer`](ConnParam::min_rnr_timer); a program that wants none of that uses [`Resolved::prepare`].
    ///
    /// # Errors
    /// [`Error::NoRoute`](crate::Error::NoRoute) also if the address is not reached by this device; as [`Resolved::connect`].
    fn connect_to(self, server: SocketAddr) -> Result<Connection<Self::Qp>> {
        self.connect_to_with(server, &ConnParam::default())
    }

    /// As [`connect_to`](Self::connect_to), with other parameters: private data, the access of the server, timers.
    ///
    /// # Errors
    /// As `connect_to`.
    fn connect_to_with(self, server: SocketAddr, param: &ConnParam) -> Result<Connection<Self::Qp>>;

    /// Creates the QP and accepts the request of a client with it.
    ///
    /// # Errors
    /// As [`Request::accept`].
    fn accept(self, request: Request, param: &ConnParam) -> Result<Connection<Self::Qp>>;
}

impl<T: Sends + HasPeer, L: Locking, D: Driver> ConnectTo for QpBuilder<'_, T, L, D> {
    type Qp = Qp<T, L, D>;

    fn connect_to_with(self, server: SocketAddr, param: &ConnParam) -> Result<Connection<Self::Qp>> {
        let resolved = Resolved::new(&EventChannel::of(&self.context())?, server)?;
        resolved.connect(self.create()?, param, None)
    }

    fn accept(self, request: Request, param: &ConnParam) -> Result<Connection<Self::Qp>> {
        request.accept(self.create()?, param, None)
    }
}
