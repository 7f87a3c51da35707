// SPDX-License-Identifier: MIT OR Apache-2.0
//! The streams over which the exchange runs: TCP, a connection of rdma_cm, or a socket pair of one process. They differ in
//! how a wait ends.

use crate::tcp;
use anyhow::Result;
use core::time::Duration;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// The stream of the exchange.
pub(super) trait Channel: Read + Write {
    /// Changes the time limit of each wait; `None` is no limit.
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()>;
}

impl Channel for tcp::Stream {
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()> {
        Self::set_limit(self, limit)
    }
}

/// Both ends are in this process: if one fails, it closes the stream.
impl Channel for UnixStream {
    fn set_limit(&mut self, _: Option<Duration>) -> Result<()> {
        Ok(())
    }
}

impl<C: Channel + ?Sized> Channel for &mut C {
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()> {
        (**self).set_limit(limit)
    }
}
