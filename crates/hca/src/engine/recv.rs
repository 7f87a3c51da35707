// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of receives: a QP's own queue, an SRQ, a work queue.

use super::table::Uses;
use crate::decode::{RecvWqe, recv_wqe, srq_next};
use crate::memory::{Area, Fault};
use crate::violation::Mistake;

/// A cyclic receive queue (of a QP, or a WQ of RSS).
#[derive(Debug)]
pub struct RecvRing {
    /// Its memory.
    pub ring: Area,
    /// Bytes of a WQE.
    pub stride: u64,
    /// WQEs, a power of two.
    pub count: u32,
    /// The doorbell record; its first word counts the WQEs posted, 16 bits.
    pub record: Area,
    /// WQEs taken, 16 bits.
    pub taken: u16,
    /// Set after a violation; then no more WQEs are taken.
    pub broken: bool,
    /// The top bit of an entry's length requests padding (`MLX5_HW_START_PADDING`), which a kernel's queue for frames
    /// may use.
    pub padded: bool,
}

/// A receive WQE and its index in the completion.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) index: u16,
    pub(crate) wqe: RecvWqe,
}

/// The number of WQEs that were posted by the doorbell record, and not taken.
#[inline]
fn posted(record: &Area, taken: u16, count: u32) -> Result<u32, Mistake> {
    let record = record.load_be32(0).map_err(|Fault| Mistake::MemoryGone)?;
    let posted = u32::from((record as u16).wrapping_sub(taken));
    if posted > count { Err(Mistake::RingOverrun { posted, size: count }) } else { Ok(posted) }
}

/// The bytes of the WQE in a slot.
fn wqe_bytes(ring: &Area, stride: u64, slot: u32) -> Result<Vec<u8>, Mistake> {
    let mut bytes = vec![0; stride as usize];
    ring.read(u64::from(slot) * stride, &mut bytes).map_err(|Fault| Mistake::MemoryGone)?;
    Ok(bytes)
}

impl RecvRing {
    /// The number of posted WQEs that were not taken.
    #[inline]
    pub(crate) fn posted(&self) -> Result<u32, Mistake> {
        posted(&self.record, self.taken, self.count)
    }

    /// The next WQE, which stays in the queue; `None` if there is none, or it is invalid.
    pub(super) fn peek(&self) -> Option<RecvWqe> {
        self.next().ok()?.map(|taken| taken.wqe)
    }

    /// Takes the next WQE, if there is one and it has room for `len` bytes.
    pub(crate) fn take(&mut self, len: u64) -> Result<Option<Taken>, Mistake> {
        let next = self.next()?.filter(|next| next.wqe.room() >= len);
        if let Some(next) = &next {
            self.taken = next.index.wrapping_add(1);
        }
        Ok(next)
    }

    fn next(&self) -> Result<Option<Taken>, Mistake> {
        if self.broken || self.posted()? == 0 {
            return Ok(None);
        }
        let index = self.taken;
        let mut bytes = wqe_bytes(&self.ring, self.stride, u32::from(index) & (self.count - 1))?;
        if self.padded {
            for entry in bytes.chunks_exact_mut(16) {
                entry[0] &= 0x7f;
            }
        }
        let wqe = recv_wqe(&bytes).map_err(|_| Mistake::ReceiveMalformed)?;
        Ok(Some(Taken { index, wqe }))
    }
}

/// A receive work queue of RSS.
#[derive(Debug)]
pub struct Wq {
    /// Its ring.
    pub rq: RecvRing,
    /// Number of its protection domain.
    pub pd: u32,
    /// Number of its CQ.
    pub cqn: u32,
    /// The user index in its completions.
    pub uidx: u32,
    /// Whether it receives frames (`IB_WQS_RDY`).
    pub ready: bool,
}

impl Wq {
    pub(super) fn uses(&self) -> Uses {
        Uses { cqs: [Some(self.cqn), None], ..Uses::default() }
    }
}

/// A shared receive queue. Its WQEs are a linked list.
#[derive(Debug)]
pub struct Srq {
    /// Its memory.
    pub ring: Area,
    /// Bytes of a WQE.
    pub stride: u64,
    /// WQEs, a power of two.
    pub count: u32,
    /// The doorbell record; its first word counts the WQEs posted. Only its low 16 bits count, as for any receive queue
    /// (libmlx5's counter has no more).
    pub record: Area,
    /// Head of the list.
    pub head: u16,
    /// WQEs taken, 16 bits.
    pub taken: u16,
    /// The limit: if fewer receives than this are posted, an event is raised, once. 0 means never.
    pub limit: u32,
    /// Number of its protection domain.
    pub pd: u32,
    /// The XRC domain and the completion queue of an XRC SRQ.
    pub xrc: Option<(u32, u32)>,
    /// The user index in its completions.
    pub uidx: u32,
    /// Set after a violation; then no more WQEs are taken.
    pub broken: bool,
}

/// Bytes of the header of an SRQ's WQE.
pub(super) const NEXT: usize = 16;

impl Srq {
    pub(super) fn uses(&self) -> Uses {
        Uses { pd: Some(self.pd), cqs: [self.xrc.map(|(_, cqn)| cqn), None], srq: None }
    }

    /// The number of posted WQEs that were not taken.
    #[inline]
    pub(crate) fn posted(&self) -> Result<u32, Mistake> {
        posted(&self.record, self.taken, self.count)
    }

    /// The next WQE, which stays in the queue; `None` if there is none, or it is invalid.
    pub(super) fn peek(&self) -> Option<RecvWqe> {
        self.next().ok()?.map(|(taken, _)| taken.wqe)
    }

    /// Takes the next WQE, if there is one and it has room for `len` bytes.
    pub(crate) fn take(&mut self, len: u64) -> Result<Option<Taken>, Mistake> {
        let next = self.next()?.filter(|(next, _)| next.wqe.room() >= len);
        Ok(next.map(|(taken, head)| {
            self.head = head;
            self.taken = self.taken.wrapping_add(1);
            taken
        }))
    }

    /// The next WQE, and the index of the one behind it.
    fn next(&self) -> Result<Option<(Taken, u16)>, Mistake> {
        if self.broken || self.posted()? == 0 {
            return Ok(None);
        }
        let index = self.head;
        let bytes = wqe_bytes(&self.ring, self.stride, u32::from(index) & (self.count - 1))?;
        let wqe = recv_wqe(bytes.get(NEXT..).unwrap_or_default()).map_err(|_| Mistake::ReceiveMalformed)?;
        Ok(Some((Taken { index, wqe }, srq_next(&bytes))))
    }

    /// The WQE at the head was taken, and this one is behind it. Whether the limit event is due.
    #[inline]
    pub(super) fn pass(&mut self, head: u16) -> bool {
        self.head = head;
        self.taken = self.taken.wrapping_add(1);
        self.below_limit()
    }

    /// Whether the limit event is due. Disarms the limit.
    pub fn below_limit(&mut self) -> bool {
        let below = self.limit != 0 && self.posted().is_ok_and(|n| n < self.limit);
        if below {
            self.limit = 0;
        }
        below
    }
}
