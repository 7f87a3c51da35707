// SPDX-License-Identifier: MIT OR Apache-2.0
//! Send requests of a program, whether the verbs allow them, and their expected WQE.
//!
//! Written from ibv_post_send(3), ibv_wr_post(3), docs/src/reference/semantics.md and the hardware's format. It shares
//! no code with the encoder.

use arbitrary::{Arbitrary, Unstructured};
use std::sync::OnceLock;
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::provider::op::{MwBind, TsoArgs};
use uverbs_core::provider::{Op, RemoteAddr};
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_fuzz::steps::{Length, counting};
use uverbs_hca::decode::{self, Entries, Eth, QueueKind, Segment, Umr};
use uverbs_mlx5::SendConfig;
use uverbs_mlx5::testing::send_config;

/// Entries of a WR.
pub(crate) const MAX_SGE: usize = 4;
/// Inline bytes of a WR.
pub(crate) const MAX_INLINE: usize = 64;
/// Bytes of an Ethernet header with a VLAN tag, which some devices need in the WQE.
pub(crate) const L2: usize = 18;
/// Longest header, and longest payload, of a segmented send.
const MAX_TSO_HEADER: usize = 128;
const MAX_TSO: u64 = 1 << 18;
/// Longest range of a window.
const MAX_WINDOW: u64 = 1 << 31;
/// The queue's number.
pub(crate) const QPN: u32 = 0xa1_b2c3;

/// The parameters of the queue.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Shape {
    kind: u8,
    /// The operations, as bits.
    options: u8,
    without_ops: u16,
}

impl Shape {
    const SIG_ALL: u8 = 1;
    const NO_ATOMICS: u8 = 2;
    const L2_INLINE: u8 = 4;
    const LONGEST: u8 = 8;
    const WITHOUT_OPS: u8 = 16;
    const NO_CSUM: u8 = 32;

    fn has(self, option: u8) -> bool {
        self.options & option != 0
    }

    fn both(self) -> (QpType, QueueKind) {
        [
            (QpType::Rc, QueueKind::Rc),
            (QpType::Uc, QueueKind::Uc),
            (QpType::Ud, QueueKind::Ud),
            (QpType::XrcSend, QueueKind::Xrc),
            (QpType::Driver, QueueKind::Dci),
            (QpType::RawPacket, QueueKind::Raw),
        ][usize::from(self.kind % 6)]
    }

    pub(crate) fn qp_type(self) -> QpType {
        self.both().0
    }

    /// The decoder's name of the type.
    pub(crate) fn kind(self) -> QueueKind {
        self.both().1
    }

    pub(crate) fn csum(self) -> bool {
        !self.has(Self::NO_CSUM)
    }

    /// Whether the headers of raw packets are in the WQE, so that the entries are read during the post.
    fn reads_entries(self) -> bool {
        self.has(Self::L2_INLINE) && self.qp_type() == QpType::RawPacket
    }

    fn send_ops(self) -> SendOpsFlags {
        let without = if self.has(Self::WITHOUT_OPS) { self.without_ops.into() } else { 0 };
        SendOpsFlags::from_bits_truncate(!without)
    }

    fn max_msg(self) -> u64 {
        if self.has(Self::LONGEST) { 1 << 31 } else { 1 << 30 }
    }

    pub(crate) fn config(self, max_send_wr: u32) -> SendConfig {
        SendConfig {
            qp_num: QPN,
            sq_sig_all: self.has(Self::SIG_ALL),
            send_ops_flags: self.send_ops(),
            max_send_wr,
            max_send_sge: MAX_SGE as u32,
            max_inline_data: MAX_INLINE as u32,
            atomics: !self.has(Self::NO_ATOMICS),
            max_msg_sz: self.max_msg(),
            max_tso: MAX_TSO as u32,
            max_tso_header: MAX_TSO_HEADER as u32,
            l2_inline: self.has(Self::L2_INLINE),
            ..send_config(self.qp_type())
        }
    }
}

/// The face of a post; not every face can express every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    List,
    Batch,
    Session,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    flags: u8,
    #[arbitrary(with = operation)]
    pub(crate) what: Op<'static>,
    pub(crate) data: Data,
    /// Number of the QP of a datagram or of a DC target, or of the XRC SRQ.
    pub(crate) number: u32,
    pub(crate) key: u32,
}

/// An operation, in the order that the corpus has.
fn operation(u: &mut Unstructured<'_>) -> arbitrary::Result<Op<'static>> {
    fn remote(u: &mut Unstructured<'_>) -> arbitrary::Result<RemoteAddr> {
        Ok(RemoteAddr { addr: u.arbitrary()?, rkey: u.arbitrary()? })
    }
    /// The remote address of an atomic, mostly aligned.
    fn aligned(u: &mut Unstructured<'_>) -> arbitrary::Result<RemoteAddr> {
        let RemoteAddr { addr, rkey } = remote(u)?;
        Ok(RemoteAddr { addr: if addr & 15 != 15 { addr & !7 } else { addr }, rkey })
    }
    const KINDS: u64 = 11;
    Ok(match (u64::from(u32::arbitrary(u)?) * KINDS) >> 32 {
        0 => Op::Send,
        1 => Op::SendImm(u.arbitrary()?),
        2 => Op::SendInv(u.arbitrary()?),
        3 => Op::Write(remote(u)?),
        4 => Op::WriteImm(remote(u)?, u.arbitrary()?),
        5 => Op::Read(remote(u)?),
        6 => Op::CmpSwp(aligned(u)?, u.arbitrary()?, u.arbitrary()?),
        7 => Op::FetchAdd(aligned(u)?, u.arbitrary()?),
        8 => Op::LocalInv(u.arbitrary()?),
        9 => Op::BindMw(Bind::arbitrary(u)?.bind()),
        _ => Op::Tso(Header::arbitrary(u)?.args()),
    })
}

/// The range and the access rights of a window.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Bind {
    mw_rkey: u32,
    /// The type, mostly 1 or 2.
    mw_type: u8,
    rkey: u32,
    mr_lkey: u32,
    addr: u64,
    length: Length,
    /// Added to the length, for lengths above 32 bits.
    more: bool,
    access: u32,
}

impl Bind {
    fn bind(self) -> MwBind {
        let Self { mw_rkey, rkey, mr_lkey, addr, access, .. } = self;
        let mw_type = if self.mw_type < 0xf0 { 1 + u32::from(self.mw_type & 1) } else { self.mw_type.into() };
        let length = u64::from(self.length.value()) + if self.more { 1 << 32 } else { 0 };
        MwBind { mw_rkey, mw_type, rkey, mr_lkey, addr, length, access }
    }
}

/// The update of a window's key that binds it, as for a window of this type.
fn umr(bind: &MwBind, mw_type: u32) -> Umr {
    let type2 = mw_type == 2;
    let qpn_mask = if type2 { Umr::MASK_QPN } else { 0 };
    let free = freed(bind.mw_rkey, bind.rkey);
    if bind.length == 0 {
        return Umr { check_qpn: type2, mask: free.mask | qpn_mask, ..free };
    }
    // `enum ibv_access_flags`, and the rights of `<infiniband/mlx5dv.h>`.
    let rights = [(4, 1 << 4), (2, 1 << 5), (8, 1 << 6)];
    let access = rights.iter().filter(|(verb, _)| bind.access & verb != 0).map(|(_, hw)| hw).sum();
    let zero_based = bind.access & 1 << 5 != 0;
    Umr {
        check_free: type2,
        mask: free.mask | qpn_mask | Umr::MASK_LEN | Umr::MASK_START | Umr::MASK_ACCESS,
        free: false,
        access,
        qpn: if type2 { QPN } else { free.qpn },
        start: if zero_based { 0 } else { bind.addr },
        len: bind.length,
        // One entry, padded.
        at: Some(0),
        entries: Entries::Inline(vec![klm(bind), [0; 16], [0; 16], [0; 16]]),
        ..free
    }
}

/// The entry of a window's list.
fn klm(bind: &MwBind) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[..4].copy_from_slice(&(bind.length as u32).to_be_bytes());
    entry[4..8].copy_from_slice(&bind.mr_lkey.to_be_bytes());
    entry[8..].copy_from_slice(&bind.addr.to_be_bytes());
    entry
}

/// An update that frees a key; of a type 1 window.
fn freed(mkey: u32, rkey: u32) -> Umr {
    Umr {
        mkey,
        check_free: false,
        check_qpn: false,
        mask: Umr::MASK_FREE | Umr::MASK_KEY,
        free: true,
        access: 0,
        variant: rkey as u8,
        qpn: 0xff_ffff,
        start: 0,
        len: 0,
        signs: false,
        at: None,
        entries: Entries::Kept,
        bsf: None,
    }
}

/// The header before each segment.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Header {
    len: u8,
    first: u8,
    mss: u16,
}

impl Header {
    fn args(self) -> TsoArgs<'static> {
        // A segment has at least one byte.
        TsoArgs { header: counting(self.first, self.len), mss: self.mss.max(1) }
    }
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Data {
    Sges(Vec<(u64, Length, u32)>),
    Inline(Vec<Vec<u8>>),
}

fn is_atomic(op: Op<'_>) -> bool {
    matches!(op, Op::CmpSwp(..) | Op::FetchAdd(..))
}

fn is_aligned(op: Op<'_>) -> bool {
    match op {
        Op::CmpSwp(r, ..) | Op::FetchAdd(r, _) => r.addr % 8 == 0,
        _ => true,
    }
}

/// Memory for entries that are read when they are posted.
fn arena() -> &'static [u8] {
    static ARENA: OnceLock<Vec<u8>> = OnceLock::new();
    ARENA.get_or_init(|| (0..4096_u32).map(|i| ((i * 7) >> 3) as u8).collect())
}

/// The byte at an address of the arena.
fn arena_at(addr: u64) -> u8 {
    arena()[(addr - arena().as_ptr().addr() as u64) as usize]
}

impl Request {
    pub(crate) fn sges(&self, shape: Shape) -> Vec<Sge> {
        let Data::Sges(list) = &self.data else { return Vec::new() };
        let entry = |(addr, length, lkey): &(u64, Length, u32)| {
            let (mut addr, mut length) = (*addr, length.value());
            if shape.reads_entries() {
                // Sometimes so short that several buffers make a header.
                length %= if addr & 1 == 0 { 8 } else { 64 };
                addr = arena().as_ptr().expose_provenance() as u64 + addr % (4096 - 64);
            }
            Sge { addr, length, lkey: *lkey }
        };
        list.iter().map(entry).collect()
    }

    pub(crate) fn flags(&self, shape: Shape) -> SendFlags {
        let raw = shape.qp_type() == QpType::RawPacket;
        let more = match self.flags & 0xf0 {
            0xa0 => 1 << 5,
            0x90 => SendFlags::IP_CSUM.bits(),
            n if raw && n & 0x10 != 0 => SendFlags::IP_CSUM.bits(),
            _ => 0,
        };
        SendFlags::from_bits_retain(u32::from(self.flags & 7) | more)
    }

    /// Whether it may be posted, by the tables of docs/src/reference/semantics.md.
    pub(crate) fn is_right(&self, shape: Shape, face: Face) -> bool {
        let qp_type = shape.qp_type();
        let legal = match (qp_type, self.what) {
            (QpType::RawPacket, Op::Send | Op::Tso(_)) => true,
            (QpType::RawPacket, _) | (_, Op::Tso(_)) => false,
            (_, Op::Send | Op::SendImm(_)) => true,
            (QpType::Ud, _) => false,
            (QpType::Uc, Op::Read(..) | Op::CmpSwp(..) | Op::FetchAdd(..)) => false,
            _ => true,
        };
        let has_builder = || shape.send_ops().bits() >> self.what.opcode().0 & 1 != 0;
        // A list has no DC address.
        let says_where = qp_type != QpType::Driver || face != Face::List || !self.what.has_data();
        let can_atomics = !(is_atomic(self.what) && shape.has(Shape::NO_ATOMICS));
        legal
            && says_where
            && can_atomics
            && (face != Face::Session || has_builder())
            && self.flags_are_right(shape)
            && (face != Face::Batch || is_aligned(self.what))
            && if !self.what.has_data() {
                self.is_right_local(shape, face)
            } else {
                self.data_is_right(shape, face)
            }
    }

    fn flags_are_right(&self, shape: Shape) -> bool {
        let rest = self.flags(shape).bits() & !7;
        rest == 0 || rest == SendFlags::IP_CSUM.bits() && shape.qp_type() == QpType::RawPacket && shape.csum()
    }

    fn is_right_local(&self, shape: Shape, face: Face) -> bool {
        // Only a list can have entries for an operation without data.
        let num_sge = if face == Face::List { self.sges(shape).len() } else { 0 };
        match self.what {
            Op::BindMw(bind) => {
                let known = face == Face::Session || matches!(bind.mw_type, 1 | 2);
                known && bind.length <= MAX_WINDOW && num_sge == 0
            }
            _ => num_sge <= MAX_SGE,
        }
    }

    fn data_is_right(&self, shape: Shape, face: Face) -> bool {
        let is_frame = shape.qp_type() == QpType::RawPacket && matches!(self.what, Op::Send);
        let is_tso = if let Op::Tso(tso) = self.what {
            if !(14..=MAX_TSO_HEADER).contains(&tso.header.len()) {
                return false;
            }
            true
        } else {
            false
        };
        let l2 = if is_frame && shape.reads_entries() { L2 } else { 0 };
        match &self.data {
            Data::Inline(bufs) => {
                let sum = bufs.iter().map(Vec::len).sum::<usize>();
                let is_read = is_atomic(self.what) || matches!(self.what, Op::Read(..));
                // In a list the buffers are entries; without entries there are no inline data.
                let entries = face != Face::List || bufs.len() <= MAX_SGE && !(is_frame && bufs.is_empty());
                !is_read && entries && (l2..=MAX_INLINE + l2).contains(&sum)
            }
            Data::Sges(_) => {
                let sges = self.sges(shape);
                let sum: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
                let longest = if shape.max_msg() < 1 << 31 { (1 << 31) - 1 } else { 1 << 31 };
                let least = if is_atomic(self.what) { 8 } else { l2 as u64 };
                // The device writes all 8 bytes of an atomic's answer to the first entry that is not empty.
                let answer = sges.iter().find(|s| s.length != 0).is_none_or(|s| s.length >= 8);
                // A frame must not be empty; sessions do not check this.
                let some = !is_frame || !sges.is_empty() || face == Face::Session;
                sges.len() <= MAX_SGE
                    && some
                    && (answer || !is_atomic(self.what))
                    && sges.iter().all(|s| s.length <= 1 << 31)
                    && (least..=longest).contains(&sum)
                    && (!is_tso || sum <= MAX_TSO)
            }
        }
    }

    /// The expected WQE at `index`. `waits` is for a local operation before it.
    pub(crate) fn expected(&self, shape: Shape, face: Face, index: u16, waits: bool) -> decode::Request {
        let flags = self.flags(shape);
        let (header, data) = self.expected_data(shape, face);
        let csum = flags.contains(SendFlags::IP_CSUM);
        let op = match self.what {
            Op::Send if shape.qp_type() == QpType::RawPacket => {
                decode::Op::Frame(Eth { l3_csum: csum, l4_csum: csum, mss: None, header })
            }
            Op::Tso(TsoArgs { header, mss }) => {
                let (header, mss) = (header.to_vec(), Some(mss));
                decode::Op::Frame(Eth { l3_csum: csum, l4_csum: csum, mss, header })
            }
            Op::Send => decode::Op::Send { imm: None, invalidate: None },
            Op::SendImm(imm) => decode::Op::Send { imm: Some(imm), invalidate: None },
            Op::SendInv(key) => decode::Op::Send { imm: None, invalidate: Some(key) },
            Op::Write(RemoteAddr { addr, rkey }) => decode::Op::Write { addr, rkey, imm: None },
            Op::WriteImm(RemoteAddr { addr, rkey }, imm) => decode::Op::Write { addr, rkey, imm: Some(imm) },
            Op::Read(RemoteAddr { addr, rkey }) => decode::Op::Read { addr, rkey },
            Op::CmpSwp(RemoteAddr { addr, rkey }, compare, swap) => {
                decode::Op::CmpSwap { addr, rkey, compare, swap }
            }
            Op::FetchAdd(RemoteAddr { addr, rkey }, add) => decode::Op::FetchAdd { addr, rkey, add },
            Op::LocalInv(key) => {
                let free = freed(key, 0);
                decode::Op::Umr(Box::new(Umr { check_qpn: true, mask: free.mask | Umr::MASK_QPN, ..free }))
            }
            // The builder is for windows of type 2, independent of the window's type.
            Op::BindMw(bind) if face == Face::Session => decode::Op::Umr(Box::new(umr(&bind, 2))),
            Op::BindMw(bind) => decode::Op::Umr(Box::new(umr(&bind, bind.mw_type))),
            Op::Flush(..) | Op::AtomicWrite(..) => unreachable!("`operation` does not generate it"),
        };
        let fence = flags.contains(SendFlags::FENCE);
        decode::Request {
            index,
            ds: 0,
            opcode: 0,
            signaled: flags.contains(SendFlags::SIGNALED) || shape.has(Shape::SIG_ALL),
            first_error: false,
            solicited: flags.contains(SendFlags::SOLICITED),
            fence,
            small_fence: waits && !fence,
            op,
            av: None,
            stream: 0,
            srqn: None,
            data,
        }
    }

    /// The header of a frame in the WQE, and the remaining data.
    fn expected_data(&self, shape: Shape, face: Face) -> (Vec<u8>, Vec<Segment>) {
        if !self.what.has_data() {
            return (Vec::new(), Vec::new());
        }
        let is_frame = matches!(self.what, Op::Send) && shape.reads_entries();
        let mut skip = if is_frame { L2 } else { 0 };
        let mut header = Vec::new();
        match &self.data {
            Data::Inline(bufs) => {
                let bytes = bufs.concat();
                let (header, rest) = bytes.split_at(skip);
                let data = if rest.is_empty() { Vec::new() } else { vec![Segment::Inline(rest.to_vec())] };
                (header.to_vec(), data)
            }
            Data::Sges(_) => {
                let mut data = Vec::new();
                for Sge { addr, length, lkey } in self.sges(shape) {
                    let now = skip.min(length as usize) as u64;
                    header.extend((addr..addr.wrapping_add(now)).map(arena_at));
                    skip -= now as usize;
                    let (addr, mut length) = (addr.wrapping_add(now), length - now as u32);
                    if length == 0 {
                        continue;
                    }
                    // The setters of a session write the entry of an atomic unchanged, as the reference does.
                    if is_atomic(self.what) && face != Face::Session {
                        length = 8;
                    }
                    data.push(Segment::Memory { length, lkey, addr });
                }
                (header, data)
            }
        }
    }
}
