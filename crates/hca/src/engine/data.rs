// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving data between the network and the memory that a WQE names.

use super::Device;
use super::aside::{Place, is_there};
use super::mkey::{Denied, User, access};
use super::packet::Data;
use crate::cqe::Syndrome;
use crate::decode::Segment;
use crate::memory::Fault;

impl Device {
    /// Reads `len` bytes at `offset` of the data of the segments, into the memory of `out`, which is empty.
    pub(crate) fn gather(
        &self,
        user: User,
        segments: &[Segment],
        offset: u64,
        len: usize,
        mut out: Vec<u8>,
    ) -> Result<Vec<u8>, Syndrome> {
        out.reserve_exact(len);
        let gathered = walk(segments, offset, len, |segment, at, n| match segment {
            Segment::Inline(bytes) => {
                let from = bytes.get(at as usize..).and_then(|b| b.get(..n));
                out.extend_from_slice(from.ok_or(Syndrome::LOCAL_LENGTH)?);
                Ok(())
            }
            Segment::Memory { lkey, addr, .. } => {
                let addr = addr.wrapping_add(at);
                let found = self.mkeys.resolve(user, *lkey, addr, n as u64, access::LOCAL_READ);
                match found.map_err(|Denied| Syndrome::LOCAL_PROT)? {
                    Some((memory, offset)) if self.deferred.fills(&memory, offset, out.len(), n) => {
                        out.resize(out.len() + n, 0);
                        Ok(())
                    }
                    Some((memory, offset)) => memory.append(offset, n, &mut out),
                    None => {
                        out.resize(out.len() + n, 0);
                        Ok(())
                    }
                }
                .map_err(|Fault| Syndrome::LOCAL_PROT)
            }
        });
        let is_whole = out.len() == len;
        let gathered = gathered.and(if is_whole { Ok(out) } else { Err(Syndrome::LOCAL_LENGTH) });
        if gathered.is_err() {
            self.deferred.forget_fills();
        }
        gathered
    }

    /// Checks all of a WQE's memory before anything is sent from it.
    pub(crate) fn check_gather(&self, user: User, segments: &[Segment]) -> Result<(), Syndrome> {
        for segment in segments {
            if let Segment::Memory { length, lkey, addr } = segment {
                let found = self.mkeys.resolve(user, *lkey, *addr, u64::from(*length), access::LOCAL_READ);
                found.map_err(|Denied| Syndrome::LOCAL_PROT)?;
            }
        }
        Ok(())
    }

    /// Checks the memory for `len` bytes at `offset` of the segments, which are not written by the device.
    pub(crate) fn check_scatter(
        &self,
        user: User,
        segments: &[Segment],
        offset: u64,
        len: usize,
    ) -> Result<(), Syndrome> {
        walk(segments, offset, len, |segment, at, n| {
            let Segment::Memory { lkey, addr, .. } = segment else { return Err(Syndrome::LOCAL_QP_OP) };
            let addr = addr.wrapping_add(at);
            let found = self.mkeys.resolve(user, *lkey, addr, n as u64, access::LOCAL_WRITE);
            found.map(drop).map_err(|Denied| Syndrome::LOCAL_PROT)
        })
    }

    /// Writes `data` at `offset` of the memory of the segments.
    pub(crate) fn scatter(
        &self,
        user: User,
        segments: &[Segment],
        offset: u64,
        data: Data<'_>,
    ) -> Result<(), Syndrome> {
        self.scatter_copied(user, segments, offset, data, None)
    }

    /// As [`scatter`](Self::scatter), of data that were copied to a place: they are written if that is another one.
    pub(super) fn scatter_copied(
        &self,
        user: User,
        segments: &[Segment],
        offset: u64,
        data: Data<'_>,
        copied: Option<&Place>,
    ) -> Result<(), Syndrome> {
        let mut done = 0;
        walk(segments, offset, data.len(), |segment, at, n| {
            let from = data.part(done, n).ok_or(Syndrome::LOCAL_LENGTH)?;
            done += n;
            // Data of answers can be written to memory only, not to inline data.
            let Segment::Memory { lkey, addr, .. } = segment else { return Err(Syndrome::LOCAL_QP_OP) };
            let addr = addr.wrapping_add(at);
            self.mkeys
                .resolve(user, *lkey, addr, n as u64, access::LOCAL_WRITE)
                .map_err(|Denied| Syndrome::LOCAL_PROT)?
                .filter(|(memory, offset)| n < data.len() || !is_there(copied, memory, *offset))
                .map_or(Ok(()), |(memory, offset)| self.write(*lkey, &memory, offset, from))
                .map_err(|_| Syndrome::LOCAL_PROT)
        })?;
        if done == data.len() { Ok(()) } else { Err(Syndrome::LOCAL_LENGTH) }
    }
}

/// Calls `f` for each part of a segment that `len` bytes at `offset` of the list cover.
pub(super) fn walk(
    segments: &[Segment],
    mut offset: u64,
    mut len: usize,
    mut f: impl FnMut(&Segment, u64, usize) -> Result<(), Syndrome>,
) -> Result<(), Syndrome> {
    for segment in segments {
        if len == 0 {
            break;
        }
        let size = segment.len();
        if offset >= size {
            offset -= size;
            continue;
        }
        let n = usize::try_from(size - offset).unwrap_or(usize::MAX).min(len);
        f(segment, offset, n)?;
        len -= n;
        offset = 0;
    }
    Ok(())
}
