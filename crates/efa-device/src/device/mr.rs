// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions, and the checks of accesses by key.

use super::Device;
use super::objects::Keys;
use std::sync::Arc;
use uverbs_fabric::memory::{Fault, Memory};

/// The bit in which the two keys of a region differ, so that a driver that confuses them is detected. Keys have 24 bits.
const REMOTE: u32 = 1 << 23;

/// What may be done with a region, besides reading it for sends and writes of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The device writes it for receives and reads of this side.
    pub local_write: bool,
    /// Peers read it.
    pub remote_read: bool,
    /// Peers write it.
    pub remote_write: bool,
}

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    pub(super) pd: u16,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) iova: u64,
    pub(super) access: Access,
}

impl Mr {
    pub(super) fn keys(number: u32) -> Keys {
        Keys { lkey: number, rkey: number | REMOTE }
    }

    /// The offset of `len` bytes at an address.
    fn at(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        (offset.checked_add(len)? <= self.memory.len()).then_some(offset)
    }
}

/// A local buffer of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

impl Device {
    /// The region of a local key in a domain, and the buffer's offset in it.
    fn local(&self, pd: u16, buffer: Buffer, is_written: bool) -> Result<(&Mr, u64), Fault> {
        let mr = self.mrs.get(&buffer.lkey).filter(|mr| mr.pd == pd).ok_or(Fault)?;
        if is_written && !mr.access.local_write {
            return Err(Fault);
        }
        Ok((mr, mr.at(buffer.addr, buffer.len.into()).ok_or(Fault)?))
    }

    /// The memory of a local key, and the offset of an address in it.
    #[cfg(test)]
    pub(crate) fn local_memory(&self, pd: u16, lkey: u32, addr: u64, len: u32) -> Option<(&dyn Memory, u64)> {
        let (mr, at) = self.local(pd, Buffer { addr, len, lkey }, true).ok()?;
        Some((&*mr.memory, at))
    }

    /// Whether all buffers may be read, or written. A buffer without bytes needs no key.
    pub(super) fn check_local(&self, pd: u16, buffers: &[Buffer], is_written: bool) -> Result<(), Fault> {
        let mut used = buffers.iter().filter(|buffer| buffer.len > 0);
        used.try_for_each(|buffer| self.local(pd, *buffer, is_written).map(|_| ()))
    }

    /// Calls `f` with the parts of buffers that have the bytes from `offset` on: memory, offset in it, bytes of the data.
    fn each_part(
        &self,
        pd: u16,
        buffers: &[Buffer],
        offset: u64,
        len: usize,
        is_written: bool,
        mut f: impl FnMut(&Arc<dyn Memory>, u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (mut skip, mut done) = (offset, 0);
        for buffer in buffers {
            if done == len {
                break;
            }
            let size = u64::from(buffer.len);
            if skip >= size {
                skip -= size;
                continue;
            }
            let (mr, at) = self.local(pd, *buffer, is_written)?;
            let n = usize::try_from(size - skip).unwrap_or(usize::MAX).min(len - done);
            f(&mr.memory, at + skip, done..done + n)?;
            (skip, done) = (0, done + n);
        }
        if done == len { Ok(()) } else { Err(Fault) }
    }

    /// Reads `len` bytes at `offset` of the data in buffers.
    pub(super) fn gather(
        &self,
        pd: u16,
        buffers: &[Buffer],
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Fault> {
        let mut data = vec![0; len];
        self.each_part(pd, buffers, offset, len, false, |memory, at, part| {
            self.fetch(memory, at, part.start, data.get_mut(part).ok_or(Fault)?)
        })?;
        Ok(data)
    }

    /// Writes bytes at `offset` of the data in buffers.
    pub(super) fn scatter(&self, pd: u16, buffers: &[Buffer], offset: u64, data: &[u8]) -> Result<(), Fault> {
        self.each_part(pd, buffers, offset, data.len(), true, |memory, at, part| {
            self.store(memory, at, data.get(part).ok_or(Fault)?)
        })
    }

    /// The memory of a remote key for a peer's access of `total` bytes at an address, and the offset of that.
    pub(super) fn remote(
        &self,
        pd: u16,
        rkey: u32,
        addr: u64,
        total: u64,
        is_written: bool,
    ) -> Result<(&Arc<dyn Memory>, u64), Fault> {
        if rkey & REMOTE == 0 {
            return Err(Fault);
        }
        let mr = self.mrs.get(&(rkey & !REMOTE)).filter(|mr| mr.pd == pd).ok_or(Fault)?;
        let allowed = if is_written { mr.access.remote_write } else { mr.access.remote_read };
        if !allowed {
            return Err(Fault);
        }
        Ok((&mr.memory, mr.at(addr, total).ok_or(Fault)?))
    }
}
