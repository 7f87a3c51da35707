// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of one end: buffers that the device reads and writes, and words that the peer writes.
//!
//! A buffer is returned by a completion, or because its queue was reset or destroyed. It is then filled with a unique
//! pattern, and rests until other buffers were used. If the pattern has changed after that, the device has written to
//! memory that it no longer owned.

use super::model::LANES;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::VecDeque;
use uverbs::wr::Sge;
use uverbs::{Driver, MemoryRegion, PageBuf, ProtectionDomain, Shared};
use uverbs::{Exposed, attr::AccessFlags};
use uverbs_core::sync::Locked;

use crate::pair::region;
use crate::post::RemoteAddr;
use crate::sges::sge;

/// Bytes of a buffer.
const BUFFER: usize = 64;
/// Bytes of a message.
pub(super) const MESSAGE: usize = 32;
/// Buffers of an end.
const BUFFERS: usize = 4096;
/// The number of resting buffers.
const RESTING: usize = 64;
/// The contents of a buffer while it is lent to the device.
const POISON: u8 = 0xee;
/// The data for RDMA reads.
const READ_SEED: u64 = 0x5eed;

/// The bytes of a message.
pub(super) fn message(id: u64) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    let words = [id, !id, id.wrapping_mul(0x9e37_79b9_7f4a_7c15), id.rotate_left(17)];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The sender of the message in these bytes.
pub(super) fn sender(bytes: &[u8]) -> Option<u64> {
    let id = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (bytes.get(..MESSAGE)? == message(id)).then_some(id)
}

/// The region of an end, and its layout.
#[derive(Debug)]
pub(super) struct Memory<D: Driver> {
    mr: MemoryRegion<PageBuf, Exposed, D>,
    free: Locked<Free, Shared>,
}

/// Buffers that are not lent, with the pattern in each, in the order in which they were returned.
#[derive(Debug)]
struct Free {
    resting: VecDeque<(u32, u64)>,
    patterns: u64,
}

/// Offsets of the parts of the region.
const fn words() -> usize {
    BUFFERS * BUFFER
}
const fn read_from(conns: usize) -> usize {
    words() + conns * LANES * 8
}

impl<D: Driver> Memory<D> {
    /// Creates the memory for this many connections.
    pub(super) fn new(pd: &ProtectionDomain<D>, conns: usize, access: AccessFlags) -> Result<Self> {
        let mr = region(pd, (read_from(conns) + BUFFER).next_multiple_of(4096), access)?;
        mr.write_at(read_from(conns), &message(READ_SEED))?;
        let free = Free { resting: VecDeque::with_capacity(BUFFERS), patterns: 0 };
        let memory = Self { mr, free: Locked::new(free) };
        for buffer in 0..BUFFERS as u32 {
            memory.give_back(buffer)?;
        }
        Ok(memory)
    }

    /// A buffer for the device; `None` if too few are left.
    pub(super) fn take(&self) -> Result<Option<u32>> {
        let taken = {
            let mut free = self.free.lock()?;
            if free.resting.len() > RESTING { free.resting.pop_front() } else { None }
        };
        let Some((buffer, pattern)) = taken else { return Ok(None) };
        self.check_rested(buffer, pattern)?;
        self.mr.write_at(buffer as usize * BUFFER, &[POISON; BUFFER])?;
        Ok(Some(buffer))
    }

    fn check_rested(&self, buffer: u32, pattern: u64) -> Result<()> {
        let mut bytes = [0; BUFFER];
        self.mr.read_at(buffer as usize * BUFFER, &mut bytes)?;
        if bytes.chunks_exact(8).any(|chunk| chunk != pattern.to_le_bytes()) {
            let by = sender(&bytes).map_or_else(String::new, |id| format!(", by the message {id:#x}"));
            bail!("buffer {buffer} was written after it was returned{by}: {bytes:02x?}");
        }
        Ok(())
    }

    /// Checks all resting buffers, at the end of the run. Returns their number.
    pub(super) fn check_all(&self) -> Result<usize> {
        let free = self.free.lock()?;
        for (buffer, pattern) in &free.resting {
            self.check_rested(*buffer, *pattern)?;
        }
        Ok(free.resting.len())
    }

    /// Takes a buffer back from the device.
    pub(super) fn give_back(&self, buffer: u32) -> Result<()> {
        let pattern = {
            let mut free = self.free.lock()?;
            free.patterns += 1;
            0xa5a5_0000_0000_0000 | free.patterns
        };
        let bytes: [u8; BUFFER] = core::array::from_fn(|i| pattern.to_le_bytes()[i % 8]);
        self.mr.write_at(buffer as usize * BUFFER, &bytes)?;
        self.free.lock()?.resting.push_back((buffer, pattern));
        Ok(())
    }

    /// The whole buffer, for a receive.
    pub(super) fn buffer(&self, buffer: u32) -> Sge {
        let at = buffer as usize * BUFFER;
        sge(&self.mr, at..at + BUFFER)
    }

    /// The first bytes of the buffer, for an RDMA read.
    pub(super) fn read_into(&self, buffer: u32) -> Sge {
        let at = buffer as usize * BUFFER;
        sge(&self.mr, at..at + MESSAGE)
    }

    /// The sender of the message in a received buffer. The rest of the buffer must be unchanged.
    pub(super) fn received(&self, buffer: u32) -> Result<u64> {
        let mut bytes = [0; BUFFER];
        self.mr.read_at(buffer as usize * BUFFER, &mut bytes)?;
        ensure!(bytes[MESSAGE..] == [POISON; BUFFER - MESSAGE], "written behind the message: {bytes:02x?}");
        sender(&bytes).with_context(|| format!("no message: {bytes:02x?}"))
    }

    /// Checks the data of a completed RDMA read.
    pub(super) fn check_read(&self, buffer: u32) -> Result<()> {
        let found = self.received(buffer).context("a successful RDMA read")?;
        ensure!(found == READ_SEED, "an RDMA read found {found:#x}");
        Ok(())
    }

    /// The memory that the peer's RDMA reads name.
    pub(super) fn read_from(&self, conns: usize) -> RemoteAddr {
        self.remote(read_from(conns))
    }

    /// Writes a message to a buffer, for a send.
    pub(super) fn source(&self, buffer: u32, id: u64) -> Result<Sge> {
        let at = buffer as usize * BUFFER;
        self.mr.write_at(at, &message(id))?;
        Ok(sge(&self.mr, at..at + MESSAGE))
    }

    /// The word to which the peer's lane writes.
    pub(super) fn word(&self, conn: usize, lane: usize) -> RemoteAddr {
        self.remote(words() + (conn * LANES + lane) * 8)
    }

    /// The value of that word.
    pub(super) fn written(&self, conn: usize, lane: usize) -> Result<u64> {
        let at = words() + (conn * LANES + lane) * 8;
        Ok(self.mr.atomic_u64(at)?.load(core::sync::atomic::Ordering::Relaxed))
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }
}
