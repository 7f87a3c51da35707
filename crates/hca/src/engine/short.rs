// SPDX-License-Identifier: MIT OR Apache-2.0
//! The usual forms of requests and receives: their bytes are read and decoded without memory of their own. Whatever is unusual or wrong is
//! left to the code for all of them.

use super::qp::SendRing;
use super::recv::{NEXT, RecvRing, Srq};
use crate::bytes::{be32, be64, zero};
use crate::decode::{Ctrl, RECEIVE_TERMINATOR, srq_next};
use crate::memory::Area;
use uverbs_mlx5_hw::wqe::{
    MLX5_INLINE_SEG, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM,
    MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM,
};

/// Bytes of a basic block and of a segment.
const BB: usize = 64;
const SEG: usize = 16;
/// The bytes of the longest request: with the inline data that programs for small latencies have.
const MOST: usize = 4 * BB;

/// The bytes of a request: its first basic block, and all of them if there are more.
#[derive(Debug)]
pub(super) struct Wqe<'a> {
    first: [u8; BB],
    all: &'a mut Vec<u8>,
    len: usize,
}

impl<'a> Wqe<'a> {
    /// No bytes. `all` is memory for the bytes of a long request.
    #[inline]
    pub(super) fn new(all: &'a mut Vec<u8>) -> Self {
        Self { first: [0; BB], all, len: 0 }
    }

    /// The bytes.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        self.first.get(..self.len).unwrap_or(self.all)
    }

    /// Reads a long request.
    #[inline(never)]
    fn read_all(&mut self, sq: &SendRing, at: u64) -> Option<()> {
        if self.len > MOST {
            return None;
        }
        self.all.resize(self.len, 0);
        sq.ring.read_wrapped(at, self.all).ok()
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Send,
    Write,
    Read,
}

/// Its data, or the place for them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Local {
    Memory {
        lkey: u32,
        addr: u64,
    },
    /// At this place of the WQE.
    Inline(usize),
}

/// What a WQE asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    pub(super) act: Act,
    pub(super) opcode: u8,
    pub(super) index: u16,
    pub(super) blocks: u16,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) imm: Option<u32>,
    /// Address and key at the peer; 0 of a SEND.
    pub(super) remote: (u64, u32),
    pub(super) len: u32,
    pub(super) local: Local,
}

impl Short {
    /// Reads the next request of a queue. `None`: there is none, or it is not of a usual form.
    #[inline]
    pub(super) fn next(sq: &SendRing, qpn: u32, wqe: &mut Wqe<'_>) -> Option<Self> {
        let left = sq.posted.wrapping_sub(sq.next);
        if left == 0 {
            return None;
        }
        let at = u64::from(u32::from(sq.next) & (sq.count - 1)) * BB as u64;
        sq.ring.read(at, &mut wqe.first).ok()?;
        let ctrl = Ctrl::of(&wqe.first);
        let blocks = u16::from(ctrl.ds).div_ceil(4);
        if ctrl.index != sq.next || ctrl.qpn != qpn || blocks > left {
            return None;
        }
        wqe.len = usize::from(ctrl.ds) * SEG;
        if wqe.len > BB {
            wqe.read_all(sq, at)?;
        }
        Self::of(wqe.bytes(), ctrl.index, blocks)
    }

    /// Decodes the bytes of a WQE.
    #[inline]
    fn of(wqe: &[u8], index: u16, blocks: u16) -> Option<Self> {
        let head: &[u8; SEG] = wqe.first_chunk()?;
        let (opcode, mode) = (head[3], head[11]);
        // No fence, and a completion always or only after an error.
        if head[0] != 0 || head[9] != 0 || head[10] != 0 || mode & !0b1010 != 0 {
            return None;
        }
        let (act, has_imm) = match opcode {
            MLX5_OPCODE_SEND => (Act::Send, false),
            MLX5_OPCODE_SEND_IMM => (Act::Send, true),
            MLX5_OPCODE_RDMA_WRITE => (Act::Write, false),
            MLX5_OPCODE_RDMA_WRITE_IMM => (Act::Write, true),
            MLX5_OPCODE_RDMA_READ => (Act::Read, false),
            _ => return None,
        };
        let (at, remote) = match act {
            Act::Send => (SEG, (0, 0)),
            Act::Write | Act::Read if zero(wqe, SEG + 12..2 * SEG) => {
                (2 * SEG, (be64(wqe, SEG), be32(wqe, SEG + 8)))
            }
            Act::Write | Act::Read => return None,
        };
        let (len, local) = data(wqe, at)?;
        if act == Act::Read && !matches!(local, Local::Memory { .. }) {
            return None;
        }
        Some(Self {
            act,
            opcode,
            index,
            blocks,
            signaled: mode & 0b1000 != 0,
            solicited: mode & 0b10 != 0,
            imm: has_imm.then(|| be32(head, 12)),
            remote,
            len,
            local,
        })
    }
}

/// The length and the place of the data behind `at`, if it is none, one entry, or inline.
#[cfg_attr(not(debug_assertions), inline(always))]
fn data(wqe: &[u8], at: usize) -> Option<(u32, Local)> {
    let list = wqe.get(at..)?;
    if list.is_empty() {
        return Some((0, Local::Inline(at)));
    }
    let count = be32(list, 0);
    if count & MLX5_INLINE_SEG == 0 {
        // A length of 0 means 2^31 bytes.
        let is_usual = list.len() == SEG && count != 0;
        return is_usual.then(|| (count, Local::Memory { lkey: be32(list, 4), addr: be64(list, 8) }));
    }
    let len = count & !MLX5_INLINE_SEG;
    let end = usize::try_from(len).ok()?.checked_add(4)?;
    let is_whole = end <= list.len() && end.next_multiple_of(SEG) >= list.len();
    is_whole.then_some((len, Local::Inline(at + 4)))
}

/// The memory of a receive with at most one entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its index in completions.
    pub(super) index: u16,
    /// The index of the one behind it, in an SRQ.
    pub(super) next: u16,
    /// Its memory; none with a length of 0.
    pub(super) room: u32,
    pub(super) lkey: u32,
    pub(super) addr: u64,
}

/// The list at `skip` bytes behind the start of a WQE of `stride` bytes.
#[inline]
fn place<const LEN: usize>(
    ring: &Area,
    (slot, stride): (u32, u64),
    skip: usize,
) -> Option<([u8; LEN], Place)> {
    let at = u64::from(slot).checked_mul(stride)?;
    if at.checked_add(stride)? > ring.size() {
        return None;
    }
    let mut bytes = [0; LEN];
    let used = bytes.get_mut(..usize::try_from(stride).ok()?.min(LEN))?;
    ring.read(at, used).ok()?;
    let list = used.get(skip..)?;
    let ends = |at: usize| be32(list, at) == 0 && be32(list, at + 4) == RECEIVE_TERMINATOR;
    let (room, lkey, addr) = (be32(list, 0), be32(list, 4), be64(list, 8));
    let place = match list.len() {
        // Bytes behind the last whole entry are no entry.
        0..SEG => return None,
        _ if ends(0) => Place { index: 0, next: 0, room: 0, lkey: 0, addr: 0 },
        len if len >= 2 * SEG && !ends(SEG) || room == 0 || room & MLX5_INLINE_SEG != 0 => return None,
        _ => Place { index: 0, next: 0, room, lkey, addr },
    };
    Some((bytes, place))
}

impl RecvRing {
    /// The next receive, if it has at most one entry.
    #[inline]
    pub(super) fn next_place(&self) -> Option<Place> {
        if self.broken || self.padded || self.posted().ok()? == 0 {
            return None;
        }
        let slot = u32::from(self.taken) & (self.count - 1);
        let (_, place) = place::<{ 2 * SEG }>(&self.ring, (slot, self.stride), 0)?;
        Some(Place { index: self.taken, ..place })
    }
}

impl Srq {
    /// The next receive, if it has at most one entry.
    #[inline]
    pub(super) fn next_place(&self) -> Option<Place> {
        if self.broken || self.posted().ok()? == 0 {
            return None;
        }
        let slot = u32::from(self.head) & (self.count - 1);
        let (bytes, place) = place::<{ NEXT + 2 * SEG }>(&self.ring, (slot, self.stride), NEXT)?;
        Some(Place { index: self.head, next: srq_next(&bytes), ..place })
    }
}
