// SPDX-License-Identifier: MIT OR Apache-2.0
//! Send requests: posting them on any face, whether the verbs permit them, and the expected WQE.
//!
//! The rules are implemented here again, from ibv_post_send(3), ibv_wr_post(3) and the project's own rules, and share
//! no code with the encoder.

use crate::steps::{Entry, counting, expected_sges, sges};
use arbitrary::{Arbitrary, Unstructured};
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::provider::op::{FlushArgs, MwBind, TsoArgs};
use uverbs_core::provider::{self, RemoteAddr};
use uverbs_core::wr::{RawAh, SendFlags, Sge};
use uverbs_rxe::testing::{DecodedSend, Part, ah};
use uverbs_rxe::{Ah, Extensions, SendConfig};
use uverbs_testkit::{OwnedData, OwnedDest, OwnedRequest, handle};

/// `IBV_SEND_INLINE`
pub const INLINE: u32 = 8;

/// An operation, and the pointers of a bind that are NULL in a list.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// The operation.
    pub op: provider::Op<'static>,
    /// No window.
    pub null_mw: bool,
    /// No region.
    pub null_mr: bool,
}

impl<'a> Arbitrary<'a> for Op {
    /// The operations, in the order of the corpus.
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        use provider::Op as O;
        const KINDS: u64 = 13;
        let (mut null_mw, mut null_mr) = (false, false);
        // In the corpus, immediate data are the bytes of the WQE.
        let op = match (u64::from(u32::arbitrary(u)?) * KINDS) >> 32 {
            0 => O::Send,
            1 => O::SendImm(u32::from_be(u.arbitrary()?)),
            2 => O::SendInv(u.arbitrary()?),
            3 => O::Write(remote(u)?),
            4 => O::WriteImm(remote(u)?, u32::from_be(u.arbitrary()?)),
            5 => O::Read(remote(u)?),
            6 => O::CmpSwp(remote(u)?, u.arbitrary()?, u.arbitrary()?),
            7 => O::FetchAdd(remote(u)?, u.arbitrary()?),
            8 => O::LocalInv(u.arbitrary()?),
            9 => {
                let bind = MwBind {
                    mw_rkey: u.arbitrary()?,
                    mw_type: 1 + u32::from(bool::arbitrary(u)?),
                    rkey: u.arbitrary()?,
                    mr_lkey: u.arbitrary()?,
                    addr: u.arbitrary()?,
                    length: u.arbitrary()?,
                    access: u.arbitrary()?,
                };
                (null_mw, null_mr) = (u.arbitrary()?, u.arbitrary()?);
                O::BindMw(bind)
            }
            10 => {
                let at = remote(u)?;
                let args =
                    FlushArgs { length: u.arbitrary()?, placement: u.arbitrary()?, level: u.arbitrary()? };
                O::Flush(at, args)
            }
            11 => O::AtomicWrite(remote(u)?, u.arbitrary()?),
            _ => O::Tso(TsoArgs { header: counting(0, u.arbitrary()?), mss: u.arbitrary()? }),
        };
        Ok(Self { op, null_mw, null_mr })
    }
}

/// A remote address, mostly aligned.
fn remote(u: &mut Unstructured<'_>) -> arbitrary::Result<RemoteAddr> {
    let (addr, skew, rkey): (u64, u8, u32) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let skew = if skew < 16 { skew & 7 } else { 0 };
    Ok(RemoteAddr { addr: addr & !7 | u64::from(skew), rkey })
}

/// Bytes to send inline: this many, counting up from the first.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Buf {
    len: u8,
    first: u8,
}

impl Buf {
    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len).map(|i| self.first.wrapping_add(i)).collect()
    }
}

/// Data of a request.
#[derive(Arbitrary, Clone, Debug)]
pub enum Data {
    /// None.
    None,
    /// By reference.
    Sges(Vec<Entry>),
    /// By value.
    Inline(Vec<Buf>),
}

/// The destination.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Dest {
    /// The peer of the connection.
    Connected,
    /// A datagram's destination: number of the address handle, the byte that its address is made of, QP number, key.
    To(u32, u8, u32, u32),
    /// An XRC SRQ.
    RemoteSrq(u32),
}

/// A request.
#[derive(Arbitrary, Clone, Debug)]
pub struct Request {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Mostly legal, because `Arbitrary` rarely sets only the bits of illegal flags.
    pub flags: u8,
    /// The operation.
    pub op: Op,
    /// The data.
    pub data: Data,
    /// The destination.
    pub to: Dest,
}

/// The parameters of a queue.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Rules {
    qp_type: u8,
    max_sge: u8,
    max_inline: u8,
    flush: bool,
    atomic_write: bool,
    without_ops: u16,
}

impl Op {
    /// `IBV_WR_*`
    #[must_use]
    pub fn opcode(&self) -> u32 {
        self.op.opcode().0
    }

    /// Whether a WR with this operation has data.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.op.has_data()
    }

    /// Whether the data may be inline.
    #[must_use]
    pub fn takes_inline(&self) -> bool {
        use provider::Op as O;
        matches!(self.op, O::Send | O::SendImm(_) | O::SendInv(_) | O::Write(_) | O::WriteImm(..))
    }

    /// The remote address, if it has one.
    #[must_use]
    pub fn remote(&self) -> Option<RemoteAddr> {
        self.op.remote()
    }

    /// Whether the operation's own arguments are valid.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let aligned = matches!(self.op, provider::Op::AtomicWrite(..)) || self.needs_8_bytes();
        !aligned || self.remote().is_none_or(|r| r.addr % 8 == 0)
    }

    fn needs_8_bytes(&self) -> bool {
        matches!(self.op, provider::Op::CmpSwp(..) | provider::Op::FetchAdd(..))
    }
}

impl Data {
    /// The entries, if the data are by reference.
    #[must_use]
    pub fn sges(&self) -> Vec<Sge> {
        match self {
            Self::Sges(entries) => sges(entries),
            _ => Vec::new(),
        }
    }

    /// The buffers, if the data are inline.
    #[must_use]
    pub fn bufs(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Inline(bufs) => bufs.iter().map(|b| b.bytes()).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the data are inline.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        matches!(self, Self::Inline(_))
    }

    /// Whether this operation may have the data on such a queue. `max_bufs` is the number of buffers that the face
    /// supports.
    #[must_use]
    pub fn is_right(&self, op: &Op, rules: &Rules, max_bufs: usize) -> bool {
        match self {
            Self::Inline(bufs) => {
                let len: usize = bufs.iter().map(|b| usize::from(b.len)).sum();
                op.takes_inline() && bufs.len() <= max_bufs && len <= rules.max_inline as usize
            }
            _ => {
                let sges = self.sges();
                let (sum, _) = expected_sges(&sges);
                // The first entry that is not empty must have room for the whole answer.
                let answer = sges.iter().map(|s| s.length).find(|length| *length != 0).unwrap_or(0);
                let enough = !op.needs_8_bytes() || answer >= 8;
                sges.len() <= rules.max_sge() as usize && sum < 1 << 31 && enough
            }
        }
    }

    /// Stores the data in the expected WQE.
    pub fn describe(&self, wqe: &mut DecodedSend) {
        let (sum, sges) = expected_sges(&self.sges());
        let inline = self.bufs().concat();
        let len = if self.is_inline() { inline.len() as u32 } else { sum as u32 };
        (wqe.length, wqe.resid, wqe.sges, wqe.inline) = (len, len, sges, inline);
        wqe.send_flags &= !INLINE;
        if self.is_inline() {
            wqe.send_flags |= INLINE;
        }
    }
}

impl Rules {
    /// The transport; raw packet QPs represent the types that rxe does not have.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        [
            QpType::Rc,
            QpType::Uc,
            QpType::Ud,
            QpType::Rc,
            QpType::Rc,
            QpType::Uc,
            QpType::Ud,
            QpType::RawPacket,
        ][usize::from(self.qp_type % 8)]
    }

    /// Whether it sends datagrams.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.qp_type() == QpType::Ud
    }

    /// Entries of a WR.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        u32::from(self.max_sge % 9)
    }

    /// The capacities of the queue.
    #[must_use]
    pub fn config(&self) -> SendConfig {
        SendConfig {
            qp_type: self.qp_type(),
            send_ops_flags: SendOpsFlags::from_bits_retain(self.send_ops()),
            extensions: Extensions { flush: self.flush, atomic_write: self.atomic_write },
            max_sge: self.max_sge(),
            max_inline: self.max_inline.into(),
        }
    }

    fn send_ops(&self) -> u64 {
        0x1fff & !u64::from(self.without_ops)
    }

    /// Whether lists and batches may have this operation.
    #[must_use]
    pub fn has(&self, op: &Op) -> bool {
        match (self.qp_type(), op.opcode()) {
            (QpType::Rc, 0..=9) | (QpType::Uc, 0..=3 | 7..=9) | (QpType::Ud, 2 | 3) => true,
            (QpType::Rc, 14) => self.flush,
            (QpType::Rc, 15) => self.atomic_write,
            _ => false,
        }
    }

    /// Whether builders may have it.
    #[must_use]
    pub fn has_builder(&self, op: &Op) -> bool {
        let bit = match op.opcode() {
            14 => 11,
            15 => 12,
            n => n,
        };
        self.has(op) && self.send_ops() >> bit & 1 != 0
    }
}

/// Whether the flags are valid for a WR.
#[must_use]
pub fn flags_are_right(flags: u8) -> bool {
    flags < 16
}

impl Request {
    /// The request in the form of testkit.
    #[must_use]
    pub fn owned(&self) -> OwnedRequest<'static, RawAh<Ah>> {
        OwnedRequest {
            wr_id: self.wr_id,
            flags: SendFlags::from_bits_retain(self.flags.into()),
            op: self.op.op,
            data: match &self.data {
                Data::None => OwnedData::None,
                Data::Sges(_) => OwnedData::Sges(self.data.sges()),
                Data::Inline(_) => OwnedData::Inline(self.data.bufs()),
            },
            to: match self.to {
                Dest::Connected => OwnedDest::Peer,
                Dest::To(num, byte, remote_qpn, remote_qkey) => {
                    OwnedDest::Ud { ah: handle(ah(num, byte)), remote_qpn, remote_qkey }
                }
                Dest::RemoteSrq(number) => OwnedDest::Xrc(number),
            },
        }
    }

    /// Whether a typed batch accepts the request.
    #[must_use]
    pub fn is_right_in_a_batch(&self, rules: &Rules) -> bool {
        let to = match self.to {
            Dest::Connected => !rules.is_datagram(),
            Dest::To(..) => rules.is_datagram(),
            Dest::RemoteSrq(_) => false,
        };
        let data = match (&self.op, &self.data) {
            (Op { op: provider::Op::BindMw(_), .. }, Data::Sges(entries)) => entries.is_empty(),
            (op, data) => !op.has_data() || data.is_right(op, rules, usize::MAX),
        };
        to && data && rules.has(&self.op) && self.op.is_right() && flags_are_right(self.flags)
    }

    /// The expected WQE, without data.
    #[must_use]
    pub fn head(&self, own_qkey: u32, is_datagram: bool) -> DecodedSend {
        use provider::Op as O;
        let RemoteAddr { addr: remote_addr, rkey } =
            self.op.remote().unwrap_or(RemoteAddr { addr: 0, rkey: 0 });
        let mut part = match self.op.op {
            O::Write(_) | O::WriteImm(..) | O::Read(_) | O::AtomicWrite(..) => {
                Part::Rdma { remote_addr, rkey }
            }
            O::CmpSwp(_, compare_add, swap) => Part::Atomic { remote_addr, compare_add, swap, rkey },
            O::FetchAdd(_, compare_add) => Part::Atomic { remote_addr, compare_add, swap: 0, rkey },
            O::BindMw(MwBind { mw_rkey, rkey, mr_lkey, addr, length, access, .. }) => {
                Part::Mw { addr, length, mr_lkey, mw_rkey, rkey, access }
            }
            O::Flush(_, FlushArgs { length, placement: kind, level }) => {
                Part::Flush { remote_addr, length, rkey, kind, level }
            }
            O::Send | O::SendImm(_) | O::SendInv(_) | O::LocalInv(_) | O::Tso(_) => Part::None,
        };
        if let (true, Dest::To(ah_num, byte, remote_qpn, key)) = (is_datagram, self.to) {
            part = Part::Ud {
                remote_qpn,
                remote_qkey: if key >> 31 == 1 { own_qkey } else { key },
                pkey_index: 0,
                ah_num,
                av: vec![byte; 88],
            };
        }
        let (length, inline) = match self.op.op {
            O::Flush(_, args) => (args.length, Vec::new()),
            O::AtomicWrite(_, bytes) => (8, bytes.to_vec()),
            _ => (0, Vec::new()),
        };
        DecodedSend {
            wr_id: self.wr_id,
            opcode: self.op.opcode(),
            send_flags: u32::from(self.flags) & 7,
            imm_or_key: match self.op.op {
                O::SendImm(imm) | O::WriteImm(_, imm) => imm.to_be(),
                O::SendInv(rkey) | O::LocalInv(rkey) => rkey,
                _ => 0,
            },
            part,
            iova: remote_addr,
            length,
            resid: length,
            sges: Vec::new(),
            inline,
            kernel_state_is_zero: true,
        }
    }

    /// The expected WQE, if the request is valid.
    #[must_use]
    pub fn wqe(&self, own_qkey: u32, is_datagram: bool) -> DecodedSend {
        let mut wqe = self.head(own_qkey, is_datagram);
        if self.op.has_data() {
            self.data.describe(&mut wqe);
        }
        wqe
    }
}

/// Whether the bytes of the union outside of the fields of `part` are 0, so that no bytes of an earlier lap are left.
#[must_use]
pub fn rest_is_zero(wqe: &[u8], part: &Part) -> bool {
    let is_zero = |from: usize, to: usize| wqe[from..to].iter().all(|b| *b == 0);
    match part {
        Part::Ud { .. } => is_zero(34, 36) && is_zero(40, 56),
        Part::None => is_zero(24, 144),
        Part::Rdma { .. } => is_zero(36, 144),
        Part::Flush { .. } => is_zero(42, 144),
        Part::Atomic { .. } => is_zero(52, 144),
        Part::Mw { .. } => is_zero(56, 144),
    }
}
