// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC over RDMA with tonic: a connector for clients, and the incoming connections for servers. Generated code is used as it is.
#![forbid(unsafe_code)]

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::io::{IoSlice, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use uverbs::{Driver, ProtectionDomain};
use uverbs_aio::{Dispatcher, Listener, RdmaStream};
use uverbs_cm::EventChannel;

/// A stream as tonic's server takes it.
#[derive(Debug)]
pub struct Io<D: Driver>(pub RdmaStream<D>);

impl<D: Driver> Connected for Io<D> {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl<D: Driver> AsyncRead for Io<D> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<D: Driver> AsyncWrite for Io<D> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.0), cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        AsyncWrite::poll_write_vectored(Pin::new(&mut self.0), cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.0), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.0), cx)
    }
}

/// How long a client that has asked for a connection may take to establish it.
const ESTABLISH: Duration = Duration::from_secs(10);

/// The connections of a listener, for `Server::serve_with_incoming`. A connection that fails before it is established is skipped. A
/// client that does not answer delays no other.
pub fn incoming<D: Driver>(
    listener: Listener<D>,
    pd: ProtectionDomain<D>,
) -> impl Stream<Item = uverbs_aio::Result<Io<D>>> {
    async_stream::stream! {
        let mut accepted = JoinSet::new();
        loop {
            let next = tokio::select! {
                request = listener.accept() => Next::Request(request),
                Some(stream) = accepted.join_next() => Next::Stream(stream),
            };
            match next {
                Next::Request(Ok(request)) => {
                    let (dispatcher, pd) = (listener.dispatcher().clone(), pd.clone());
                    accepted.spawn(async move {
                        let stream = RdmaStream::builder(&dispatcher, &pd).accept_request(request);
                        dispatcher.timeout(ESTABLISH, stream).await
                    });
                }
                Next::Request(Err(error)) => {
                    yield Err(error);
                    return;
                }
                Next::Stream(Ok(Ok(stream))) => yield Ok(Io(stream)),
                Next::Stream(Ok(Err(error))) => eprintln!("a connection failed: {error}"),
                Next::Stream(Err(error)) => eprintln!("a connection failed: {error}"),
            }
        }
    }
}

/// What a server waits for.
enum Next<R, S> {
    Request(R),
    Stream(S),
}

/// How often a client asks a server that does not send, and how long it waits for the answer. A device has nothing like it: the
/// client of a host that has lost its power would wait for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Connects a client to a server. The address is that of the server's RDMA device; the URI of requests is only a name. The local address
/// selects the client's device; without it, the route to the server does. Calls in progress fail if the server does not answer any more.
///
/// # Errors
/// No route, refused, not answered.
pub async fn connect<D: Driver>(
    dispatcher: Dispatcher<D>,
    pd: ProtectionDomain<D>,
    manager: EventChannel,
    local: Option<SocketAddr>,
    server: SocketAddr,
) -> core::result::Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_uri| {
        let (dispatcher, pd, manager) = (dispatcher.clone(), pd.clone(), manager.clone());
        async move {
            let stream = RdmaStream::builder(&dispatcher, &pd).connect_from(&manager, local, server).await?;
            Ok::<_, uverbs_aio::Error>(hyper_util::rt::TokioIo::new(Io(stream)))
        }
    });
    Endpoint::from_static("http://rdma")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .connect_with_connector(connector)
        .await
}
