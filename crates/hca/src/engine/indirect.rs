// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows and indirect keys: their translation is a list of parts of other keys, and their memory is resolved at each
//! access.
//!
//! An entry of the list is a KLM (length, key, address) or the head of a block of strided parts, which is repeated
//! (`struct mlx5_wqe_umr_klm_seg`, `struct mlx5_wqe_umr_repeat_block_seg` of `<infiniband/mlx5dv.h>`). The rights of the
//! key are checked, and of the keys below it only whether they are of the same domain and permit local access, as for
//! windows.

use super::mkey::{Denied, Kind, Mkeys, OwnTarget, User, access, inside};
use super::signature::{Signature, Signed};
use crate::bytes::{be16, be32, be64};
use crate::memory::{Fault, Memory};
use std::sync::Arc;

/// Indirect keys above a region, at most (`max_indirection` of the capabilities). It ends loops, too.
pub const MAX_INDIRECTION: u32 = 4;
/// The largest list of a key, as a power of two (`log_max_klm_list_size`).
pub const LOG_MAX_LIST: u32 = 16;
/// The parts that one access may consist of.
const MAX_PARTS: usize = 1 << 18;
/// The key field of an entry that is the head of a repeated block (`op` of `struct mlx5_wqe_umr_repeat_block_seg`). It is the
/// number of a reserved key.
const REPEATED: u32 = 0x400;

/// The state of a window or an indirect key.
#[derive(Clone, Debug)]
pub struct Indirect {
    /// Whether a peer may invalidate it (`en_rinval`): an indirect key by choice, a window if its type is 2.
    pub(super) by_peer: bool,
    /// The most entries of its list.
    pub(super) room: usize,
    /// Whether it is free: it gives no access.
    pub(super) free: bool,
    /// The QP that it belongs to.
    pub(super) qpn: Option<u32>,
    /// Its first address.
    pub(super) start: u64,
    pub(super) len: u64,
    list: Vec<[u8; 16]>,
    layout: Arc<Layout>,
    /// The number of the region under a window.
    pub(super) region: Option<u32>,
    /// Its signature, if it may have one.
    pub(super) signature: Option<Box<Signature>>,
}

impl Indirect {
    /// A free key, whose list may have so many entries.
    pub(super) fn new(by_peer: bool, room: usize) -> Self {
        Self {
            by_peer,
            room: room.min(1 << LOG_MAX_LIST),
            free: true,
            qpn: None,
            start: 0,
            len: 0,
            list: Vec::new(),
            layout: Arc::default(),
            region: None,
            signature: None,
        }
    }

    /// The entries of its list.
    pub(super) fn listed(&self) -> usize {
        self.list.len()
    }

    /// Stores entries of the list from an index on; without one, they are the whole list. The device has room for a list of
    /// `left` entries.
    pub(super) fn store(&mut self, at: Option<u16>, entries: &[[u8; 16]], left: u64) -> Result<(), Denied> {
        let first = usize::from(at.unwrap_or(0));
        let end = first + entries.len();
        if end > self.room || end as u64 > left {
            return Err(Denied);
        }
        let mut list = if at.is_some() { self.list.clone() } else { Vec::new() };
        list.resize(list.len().max(end), [0; 16]);
        list[first..end].copy_from_slice(entries);
        // Lists are padded. Padding gives no access: it has no key.
        let used = list.iter().rposition(|entry| *entry != [0; 16]).map_or(0, |last| last + 1);
        list.truncate(used);
        self.layout = Arc::new(Layout::parse(&list)?);
        self.list = list;
        Ok(())
    }

    /// A list of parts of this length each: entries whose length field is not used (`MLX5_MKC_ACCESS_MODE_KSM`).
    pub(super) fn store_equal(&mut self, entries: &[[u8; 16]], len: u32, left: u64) -> Result<(), Denied> {
        let entries: Vec<[u8; 16]> = entries
            .iter()
            .map(|entry| {
                let mut entry = *entry;
                entry[..4].copy_from_slice(&len.to_be_bytes());
                entry
            })
            .collect();
        self.store(None, &entries, left)
    }
}

/// A parsed list.
#[derive(Debug, Default)]
struct Layout {
    items: Vec<Item>,
    /// Bytes until the end of each item.
    ends: Vec<u64>,
}

#[derive(Debug)]
enum Item {
    Part(Part),
    /// Parts with their first bytes in the block, and the length of the block. The block is repeated.
    Block {
        parts: Vec<(u64, Part)>,
        len: u64,
    },
}

/// A part of another key.
#[derive(Clone, Copy, Debug)]
struct Part {
    len: u64,
    key: u32,
    addr: u64,
    /// Bytes between its beginnings in two blocks.
    stride: u64,
}

impl Layout {
    fn parse(list: &[[u8; 16]]) -> Result<Self, Denied> {
        let mut layout = Self::default();
        let mut end = 0_u64;
        let mut rest = list;
        while let Some((head, behind)) = rest.split_first() {
            rest = behind;
            let (item, len) = if be32(head, 4) == REPEATED {
                let (count, parts) = (u64::from(be32(head, 8)), usize::from(be16(head, 14)));
                let entries = rest.get(..parts).ok_or(Denied)?;
                rest = rest.get(parts..).unwrap_or_default();
                let mut len = 0;
                let parts = entries.iter().map(|entry| {
                    let part = Part {
                        len: be16(entry, 2).into(),
                        key: be32(entry, 4),
                        addr: be64(entry, 8),
                        stride: be16(entry, 0).into(),
                    };
                    let from = len;
                    len += part.len;
                    (from, part)
                });
                let parts = parts.collect();
                // The head repeats the sum of the parts.
                if u64::from(be32(head, 0)) != len {
                    return Err(Denied);
                }
                (Item::Block { parts, len }, len.checked_mul(count).ok_or(Denied)?)
            } else {
                let len = match be32(head, 0) {
                    0 => 1 << 31,
                    len => u64::from(len),
                };
                (Item::Part(Part { len, key: be32(head, 4), addr: be64(head, 8), stride: 0 }), len)
            };
            end = end.checked_add(len).ok_or(Denied)?;
            layout.items.push(item);
            layout.ends.push(end);
        }
        Ok(layout)
    }
}

/// One resolution of an access.
pub(super) struct Walk<'a> {
    keys: &'a Mkeys,
    user: User,
    parts: usize,
}

impl<'a> Walk<'a> {
    pub(super) const fn new(keys: &'a Mkeys, user: User) -> Self {
        Self { keys, user, parts: 0 }
    }

    /// The memory of `len` bytes at `addr` of a key, below `depth` indirect ones, for an access that needs these rights.
    pub(super) fn resolve(
        &mut self,
        key: u32,
        (addr, len): (u64, u64),
        need: u32,
        depth: u32,
    ) -> Result<OwnTarget, Denied> {
        let mkey = self.keys.get(key).ok_or(Denied)?;
        let indirect = match &mkey.kind {
            Kind::Indirect(indirect) => indirect,
            Kind::Region { memory, iova } if mkey.pd == self.user.pd && mkey.access & need == need => {
                return Ok(Some((Arc::clone(memory), inside(addr, len, *iova, memory.len())?)));
            }
            Kind::Null => return Ok(None),
            Kind::Region { .. } | Kind::Free => return Err(Denied),
        };
        if depth == MAX_INDIRECTION
            || indirect.free
            || mkey.pd != self.user.pd
            || indirect.qpn.is_some_and(|qpn| qpn != self.user.qpn)
            || mkey.access & need != need
        {
            return Err(Denied);
        }
        let writes = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let below = if need & writes == 0 { access::LOCAL_READ } else { access::LOCAL_WRITE };
        let signature = indirect.signature.as_deref().and_then(Signature::in_use);
        let Some((format, report)) = signature else {
            let offset = inside(addr, len, indirect.start, indirect.len)?;
            return self.gather(&indirect.layout, (offset, len), below, depth);
        };
        // Addresses are positions in the data on the wire. All memory is resolved: signatures cover whole blocks.
        let offset = inside(addr, len, indirect.start, format.on_wire(indirect.len))?;
        let memory = self.gather(&indirect.layout, (0, indirect.len), below, depth)?;
        let signed = Signed::new(format, report, mkey.key, memory, indirect.len);
        Ok(Some((Arc::new(signed), offset)))
    }

    /// Counts a part.
    fn part(&mut self, part: &Part, range: (u64, u64), need: u32, depth: u32) -> Result<OwnTarget, Denied> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(Denied);
        }
        let addr = part.addr.checked_add(range.0).ok_or(Denied)?;
        self.resolve(part.key, (addr, range.1), need, depth + 1)
    }

    /// The memory of `len` bytes at `offset` of a list.
    fn gather(
        &mut self,
        layout: &Layout,
        (offset, len): (u64, u64),
        need: u32,
        depth: u32,
    ) -> Result<OwnTarget, Denied> {
        let end = offset + len;
        let first = layout.ends.partition_point(|item| *item <= offset);
        let mut pieces = Vec::new();
        let mut at = offset;
        for (i, item) in layout.items.iter().enumerate().skip(first) {
            if at == end {
                break;
            }
            let begin = i.checked_sub(1).map_or(0, |before| layout.ends[before]);
            let until = layout.ends[i].min(end);
            let (from, n) = (at - begin, until - at);
            let source = match item {
                Item::Part(part) => {
                    let target = self.part(part, (from, n), need, depth)?;
                    // Usually an access is inside of one part.
                    if n == len {
                        return Ok(target);
                    }
                    Source::Part(target)
                }
                Item::Block { parts, len } => {
                    let strided = self.strided(parts, *len, (from, from + n), need, depth)?;
                    Source::Block { at: from, len: *len, parts: strided }
                }
            };
            at = until;
            pieces.push(Piece { end: at - offset, source });
        }
        if at != end {
            return Err(Denied);
        }
        Ok(Some((Arc::new(Pieces { pieces, len }), 0)))
    }

    /// The memory of the parts of a block, for the bytes `from..to` of its repetitions.
    fn strided(
        &mut self,
        parts: &[(u64, Part)],
        block: u64,
        (from, to): (u64, u64),
        need: u32,
        depth: u32,
    ) -> Result<Vec<Strided>, Denied> {
        let mut strided = Vec::with_capacity(parts.len());
        for (begin, part) in parts {
            let Some((first, last)) = touched((*begin, part.len), block, (from, to)) else {
                strided.push(Strided { begin: *begin, len: part.len, stride: part.stride, target: None });
                continue;
            };
            let place = |nth: u64, at: u64| nth * part.stride + at;
            let (mut low, mut high) = (place(first.0, first.1), place(last.0, last.1));
            if first.0 < last.0 {
                // Parts of two blocks overlap if the stride is short.
                low = low.min(place(first.0 + 1, 0));
                high = high.max(place(last.0 - 1, part.len - 1));
            }
            let target = self.part(part, (low, high - low + 1), need, depth)?;
            // The position that the part of the first block would have; it may be before the memory.
            let target = target.map(|(memory, at)| (memory, at.wrapping_sub(low)));
            strided.push(Strided { begin: *begin, len: part.len, stride: part.stride, target });
        }
        Ok(strided)
    }
}

/// The first and the last byte of a part in `from..to` of the repetitions of a block, each as the number of the block and
/// the byte of the part.
fn touched((begin, len): (u64, u64), block: u64, (from, to): (u64, u64)) -> Option<((u64, u64), (u64, u64))> {
    let (last, end) = (to.checked_sub(1)?, begin + len);
    if len == 0 || block == 0 {
        return None;
    }
    let (nth, at) = (from / block, from % block);
    let first = match () {
        () if at < begin => (nth, 0),
        () if at < end => (nth, at - begin),
        () => (nth + 1, 0),
    };
    let (nth, at) = (last / block, last % block);
    let last = match () {
        () if at >= end => (nth, len - 1),
        () if at >= begin => (nth, at - begin),
        () => (nth.checked_sub(1)?, len - 1),
    };
    (first <= last).then_some((first, last))
}

/// The memory of an access that has several parts.
#[derive(Debug)]
struct Pieces {
    pieces: Vec<Piece>,
    len: u64,
}

#[derive(Debug)]
struct Piece {
    /// Bytes of the access until its end.
    end: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Part(OwnTarget),
    /// Repetitions of a block of so many bytes, from byte `at` on.
    Block {
        at: u64,
        len: u64,
        parts: Vec<Strided>,
    },
}

/// A part in each repetition of a block.
#[derive(Debug)]
struct Strided {
    /// Its first byte in the block.
    begin: u64,
    len: u64,
    stride: u64,
    /// Its memory, and its position there in the first block, modulo 2^64.
    target: OwnTarget,
}

impl Pieces {
    /// Calls `f` with each part that is inside of `len` bytes at `offset`: its target, and the bytes of the access before it
    /// and in it.
    fn each(
        &self,
        offset: u64,
        len: u64,
        mut f: impl FnMut(&OwnTarget, u64, u64, u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len).ok_or(Fault)?;
        let mut at = offset;
        let mut i = self.pieces.partition_point(|piece| piece.end <= offset);
        while at < end {
            let piece = self.pieces.get(i).ok_or(Fault)?;
            let begin = i.checked_sub(1).map_or(0, |before| self.pieces[before].end);
            let until = piece.end.min(end);
            match &piece.source {
                Source::Part(target) => {
                    let place = target.as_ref().map_or(0, |(_, base)| base.wrapping_add(at - begin));
                    f(target, place, at - offset, until - at)?;
                    at = until;
                }
                Source::Block { at: skipped, len, parts } => {
                    let mut in_blocks = skipped + (at - begin);
                    while at < until {
                        let (nth, in_block) = (in_blocks / len, in_blocks % len);
                        let found = parts.partition_point(|part| part.begin + part.len <= in_block);
                        let part = parts.get(found).ok_or(Fault)?;
                        let from = in_block - part.begin;
                        let n = (part.len - from).min(until - at);
                        let place = part
                            .target
                            .as_ref()
                            .map_or(0, |(_, base)| base.wrapping_add(nth * part.stride + from));
                        f(&part.target, place, at - offset, n)?;
                        (at, in_blocks) = (at + n, in_blocks + n);
                    }
                }
            }
            i += 1;
        }
        Ok(())
    }

    /// Calls `f` with the memory of `len` bytes that are in one part.
    fn one<R>(&self, offset: u64, len: u64, f: impl Fn(&dyn Memory, u64) -> R, null: R) -> Result<R, Fault> {
        let mut result = Ok(null);
        self.each(offset, len, |target, place, _, n| {
            if n != len {
                return Err(Fault);
            }
            if let Some((memory, _)) = target {
                result = Ok(f(&**memory, place));
            }
            Ok(())
        })?;
        result
    }
}

/// The bytes of a buffer.
fn span(before: u64, len: u64) -> core::ops::Range<usize> {
    before as usize..(before + len) as usize
}

impl Memory for Pieces {
    fn len(&self) -> u64 {
        self.len
    }

    fn address(&self, offset: u64) -> Option<u64> {
        self.one(offset, 1, |memory, at| memory.address(at), None).ok().flatten()
    }

    fn is_at_once(&self) -> bool {
        let is = |target: &OwnTarget| target.as_ref().is_some_and(|(memory, _)| memory.is_at_once());
        self.pieces.iter().any(|piece| match &piece.source {
            Source::Part(target) => is(target),
            Source::Block { parts, .. } => parts.iter().any(|part| is(&part.target)),
        })
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.each(offset, to.len() as u64, |target, place, before, n| {
            let to = to.get_mut(span(before, n)).ok_or(Fault)?;
            match target {
                Some((memory, _)) => memory.read(place, to),
                None => {
                    to.fill(0);
                    Ok(())
                }
            }
        })
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.each(offset, from.len() as u64, |target, place, before, n| {
            let from = from.get(span(before, n)).ok_or(Fault)?;
            target.as_ref().map_or(Ok(()), |(memory, _)| memory.write(place, from))
        })
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.one(offset, 8, |memory, at| memory.update(at, f), Ok(0))?
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.one(offset, 4, |memory, at| memory.load_be32(at), Ok(0))?
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.one(offset, 8, |memory, at| memory.publish(at, bytes), Ok(()))?
    }
}
