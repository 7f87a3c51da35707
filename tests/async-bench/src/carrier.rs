// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a library offers to the measured programs.

use crate::work::CHUNK;
use anyhow::{Context, Result};
use std::io::Write;
use tokio::runtime::{Builder, Runtime};

/// The largest message.
pub(crate) const MESSAGE: usize = 8192;
/// Messages that can be received before the program takes one.
pub(crate) const RECEIVES: usize = 32;
/// Messages that can be sent before one has arrived.
pub(crate) const SENDS: usize = 16;

/// A connection with messages.
pub(crate) trait Messages {
    /// Sends a message of `len` bytes, at most [`MESSAGE`], which `fill` makes. It may be on its way when this returns.
    async fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()>;

    /// Receives the next message, and lends it to a function.
    async fn recv<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R>;
}

/// A connection with a stream of bytes in each direction.
pub(crate) trait Bytes {
    /// Writes `len` bytes, at most [`CHUNK`](crate::work::CHUNK), which `fill` makes, in one or several parts. They may be on their way when this
    /// returns.
    async fn put(&mut self, len: usize, fill: impl FnMut(&mut [u8])) -> Result<()>;

    /// Reads at least a byte, and lends what has arrived to a function.
    async fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R>;
}

/// A stream that copies the bytes of its program: rdma-io's and TCP's.
pub(crate) struct Copying<S> {
    pub(crate) stream: S,
    outgoing: Box<[u8]>,
    pub(crate) incoming: Box<[u8]>,
}

impl<S> Copying<S> {
    pub(crate) fn new(stream: S) -> Self {
        let [outgoing, incoming] = [CHUNK, 4 * CHUNK].map(|len| vec![0; len].into_boxed_slice());
        Self { stream, outgoing, incoming }
    }

    /// The bytes to write, and the stream.
    pub(crate) fn outgoing(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> (&mut S, &[u8]) {
        let data = &mut self.outgoing[..len];
        fill(data);
        (&mut self.stream, data)
    }
}

/// Says that the server can be connected to.
pub(crate) fn ready() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush().context("cannot print")
}

/// A runtime of one thread, which is the cheapest.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}
