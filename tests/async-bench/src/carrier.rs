// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a library offers to the measured programs.

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
    /// Sends a message. It may be on its way when this returns.
    async fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Receives the next message, and lends it to a function.
    async fn recv<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R>;
}

/// A connection with a stream of bytes in each direction.
pub(crate) trait Bytes {
    /// Writes all bytes. They may be on their way when this returns.
    async fn put(&mut self, data: &[u8]) -> Result<()>;

    /// Reads at least a byte; returns how many.
    async fn take(&mut self, room: &mut [u8]) -> Result<usize>;
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
