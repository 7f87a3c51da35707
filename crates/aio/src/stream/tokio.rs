// SPDX-License-Identifier: MIT OR Apache-2.0
//! The traits of tokio.

use super::RdmaStream;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{IoSlice, Result};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use uverbs::Driver;

impl<D: Driver> AsyncRead for RdmaStream<D> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let n = core::task::ready!(self.get_mut().poll_fill(cx, buf.initialize_unfilled()))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

/// The data of one message at a time, where they were received.
impl<D: Driver> AsyncBufRead for RdmaStream<D> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<&[u8]>> {
        self.get_mut().poll_data(cx).map_err(Into::into)
    }

    fn consume(self: Pin<&mut Self>, amt: usize) {
        self.get_mut().consume_data(amt);
    }
}

impl<D: Driver> AsyncWrite for RdmaStream<D> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.get_mut().poll_send(cx, &[IoSlice::new(buf)]).map_err(Into::into)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.get_mut().poll_send(cx, bufs).map_err(Into::into)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written is on its way already.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.get_mut().poll_end(cx).map_err(Into::into)
    }
}
