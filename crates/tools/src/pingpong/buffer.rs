// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffer from which all messages are sent, and into which they are received, as in the C programs.

use super::options::Options;
use super::pattern::Pattern;
use anyhow::{Context as _, Result, anyhow, bail};
use std::sync::Arc;
use uverbs::{Driver, MemoryRegion, PageBuf, ProtectionDomain};
use uverbs::{Exposed, attr::AccessFlags};

/// Bytes that a datagram receive puts before the message: a GRH, or an IPv4 header in its last 20.
pub(crate) const GRH_LEN: usize = 40;

/// The registered buffer.
#[derive(Debug)]
pub(crate) struct Buffer<D: Driver> {
    region: MemoryRegion<PageBuf, Exposed, D>,
    /// Where the message begins.
    offset: usize,
    size: usize,
    pattern: Pattern,
}

impl<D: Driver> Buffer<D> {
    /// Allocates and registers the buffer, and fills it with the first message of a client with these options.
    pub(crate) fn new(pd: &ProtectionDomain<D>, options: &Options, offset: usize) -> Result<Self> {
        let mut access = AccessFlags::LOCAL_WRITE;
        access.set(AccessFlags::ON_DEMAND, options.memory.odp);
        let size = options.size as usize;
        let buf = PageBuf::new(offset + size).context("--size: cannot allocate the message")?;
        let region = pd.reg_mr(buf, access).map_err(|e| e.error)?;
        let pattern = Pattern::of(options.program, page_size());
        region.write_at(offset, &pattern.message(size, options.common.chk && options.is_client()))?;
        Ok(Self { region, offset, size, pattern })
    }

    /// The message, to send.
    pub(crate) fn send_sge(&self) -> Result<D::Sge> {
        Ok(self.region.sge(self.offset..self.offset + self.size)?)
    }

    /// The whole buffer, to receive into.
    pub(crate) fn recv_sge(&self) -> Result<D::Sge> {
        Ok(self.region.sge(0..self.offset + self.size)?)
    }

    /// Copies the message, to send it inline.
    pub(crate) fn copy_to(&self, message: &mut [u8]) -> Result<()> {
        Ok(self.region.read_at(self.offset, message)?)
    }

    /// Checks the last message. No WR may be outstanding.
    pub(crate) fn check(&self) -> Result<()> {
        let mut message = vec![0; self.size];
        self.copy_to(&mut message)?;
        let wrong = self.pattern.check(&message);
        for w in &wrong {
            crate::complain(format_args!(
                "invalid data in page {} (byte {}: {:#04x} instead of {:#04x})",
                w.page, w.offset, w.found, w.expected
            ));
        }
        if !wrong.is_empty() {
            bail!("the received data is wrong in {} pages (do both ends have the option -c?)", wrong.len());
        }
        Ok(())
    }

    /// Deregisters the buffer. No other reference to it may exist.
    pub(crate) fn close(this: Arc<Self>) -> Result<()> {
        let this = Arc::into_inner(this).ok_or_else(|| anyhow!("the buffer is still in use"))?;
        this.region.close().map(drop).map_err(|(_, error)| error).context("cannot deregister the buffer")
    }
}

/// The page size, queried as in the C programs, because the positions of their marks depend on it.
fn page_size() -> usize {
    use nix::unistd::{SysconfVar, sysconf};
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|s| usize::try_from(s).ok()).unwrap_or(4096)
}
