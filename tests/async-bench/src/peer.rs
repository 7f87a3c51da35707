// SPDX-License-Identifier: MIT OR Apache-2.0
//! rdma-io: its transport of sends and receives for messages, its stream on that transport for bytes.

use crate::carrier::{self, Bytes, Copying, MESSAGE, Messages, RECEIVES, SENDS};
use crate::stats::Measured;
use crate::{End, Test, work};
use anyhow::{Context, Result};
use core::future::poll_fn;
use core::task::{Poll, ready};
use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::send_recv_transport::{SendRecvConfig, SendRecvTransport};
use rdma_io::transport::{RecvCompletion, Transport};

/// The transport, and the memory of a message that the program makes.
struct Copied {
    transport: SendRecvTransport,
    outgoing: Box<[u8; MESSAGE]>,
}

impl Messages for Copied {
    async fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let message = &mut self.outgoing[..len];
        fill(message);
        // It takes no message while all its buffers are on their way.
        while self.transport.send_copy(message)? == 0 {
            poll_fn(|cx| self.transport.poll_send_completion(cx)).await?;
        }
        Ok(())
    }

    async fn recv<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let received = poll_fn(|cx| {
            loop {
                let mut one = [RecvCompletion::default()];
                if ready!(self.transport.poll_recv(cx, &mut one))? == 1 {
                    return Poll::Ready(rdma_io::Result::Ok(one[0]));
                }
            }
        })
        .await?;
        let result = read(&self.transport.recv_buf(received.buf_idx)[..received.byte_len]);
        self.transport.repost_recv(received.buf_idx)?;
        Ok(result)
    }
}

impl Bytes for Copying<AsyncRdmaStream<SendRecvTransport>> {
    async fn put(&mut self, len: usize, fill: impl FnMut(&mut [u8])) -> Result<()> {
        let (stream, data) = self.outgoing(len, fill);
        Ok(stream.write_all(data).await?)
    }

    async fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let n = self.stream.read(&mut self.incoming).await?;
        Ok(read(&self.incoming[..n]))
    }
}

/// Its configuration for datagrams with as many and as large buffers as the other libraries have, and that for streams as it is.
fn config(test: Test) -> SendRecvConfig {
    match test {
        Test::Echo | Test::Rpc => SendRecvConfig {
            buf_size: MESSAGE,
            num_recv_bufs: RECEIVES,
            num_send_bufs: SENDS,
            ..SendRecvConfig::datagram()
        },
        Test::Write | Test::Read => SendRecvConfig::stream(),
    }
}

/// Runs one end.
pub(crate) fn run(end: &End, is_server: bool) -> Result<Measured> {
    carrier::runtime()?.block_on(async {
        let config = config(end.test);
        let transport = if is_server {
            let listener = AsyncCmListener::bind(&end.address).context("cannot listen")?;
            carrier::ready()?;
            let transport = SendRecvTransport::accept(&listener, config).await.context("cannot accept")?;
            // The connection has an event channel of its own.
            drop(listener);
            transport
        } else {
            SendRecvTransport::connect(&end.address, config).await.context("cannot connect")?
        };
        match end.test {
            Test::Echo | Test::Rpc => {
                let outgoing = Box::new([0; MESSAGE]);
                work::messages(Copied { transport, outgoing }, end, is_server).await
            }
            Test::Write | Test::Read => {
                work::bytes(Copying::new(AsyncRdmaStream::new(transport)), end, is_server).await
            }
        }
    })
}
