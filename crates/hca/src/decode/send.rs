// SPDX-License-Identifier: MIT OR Apache-2.0
//! Send WQEs: a control segment, segments of the transport and the opcode, data segments.

use super::segment::{AV, Av, SEG, Segment, av, data};
use super::umr::{KeyUpdate, SetPsv, Umr, key_update, set_psv, umr};
use super::{Malformed, QueueKind};
use crate::bytes::{be16, be32, be64, zero};
use uverbs_mlx5_hw::wqe::{
    ETH_L2_MIN_HEADER_SIZE, MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_NOP,
    MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND,
    MLX5_OPCODE_SEND_IMM, MLX5_OPCODE_SEND_INVAL, MLX5_OPCODE_SET_PSV, MLX5_OPCODE_TSO, MLX5_OPCODE_UMR,
};

/// The operation of a WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// No operation; it only completes.
    Nop,
    /// A message into a receive.
    Send {
        /// Immediate data as in the WQE.
        imm: Option<u32>,
        /// Key that the peer invalidates.
        invalidate: Option<u32>,
    },
    /// A write into the peer's memory.
    Write {
        /// Address at the peer.
        addr: u64,
        /// Key at the peer.
        rkey: u32,
        /// Immediate data, which consume a receive.
        imm: Option<u32>,
    },
    /// A read from the peer's memory.
    Read {
        /// Address at the peer.
        addr: u64,
        /// Key at the peer.
        rkey: u32,
    },
    /// Compare and swap.
    CmpSwap {
        /// Address at the peer.
        addr: u64,
        /// Key at the peer.
        rkey: u32,
        /// The value that the memory is compared with.
        compare: u64,
        /// The value that is stored if both are equal.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// Address at the peer.
        addr: u64,
        /// Key at the peer.
        rkey: u32,
        /// The value that is added.
        add: u64,
    },
    /// A local change of a memory key.
    Umr(Box<Umr>),
    /// The value that a signature begins with.
    SetPsv(SetPsv),
    /// A change of any memory key, by the kernel.
    KeyUpdate(Box<KeyUpdate>),
    /// A frame, or several frames if there is a segment size.
    Frame(Eth),
}

/// The Ethernet segment (`struct mlx5_wqe_eth_seg`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eth {
    /// The device fills in the IPv4 header's checksum.
    pub l3_csum: bool,
    /// The device fills in the TCP or UDP checksum.
    pub l4_csum: bool,
    /// Payload bytes of one segment, with TSO.
    pub mss: Option<u16>,
    /// First bytes of the frame, or of every segment.
    pub header: Vec<u8>,
}

/// A decoded send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Index of its first basic block, 16 bits.
    pub index: u16,
    /// Its size in units of 16 bytes.
    pub ds: u8,
    /// The hardware opcode, which the completion repeats.
    pub opcode: u8,
    /// Whether the WQE requests a completion also in case of success.
    pub signaled: bool,
    /// Whether it has a completion only if it is the queue's first that fails: not one that is flushed after it.
    pub first_error: bool,
    /// Whether the peer's completion is a solicited event.
    pub solicited: bool,
    /// Whether it waits until all earlier reads and atomics are complete.
    pub fence: bool,
    /// Whether it waits until all earlier local operations are complete.
    pub small_fence: bool,
    /// The operation.
    pub op: Op,
    /// The destination, on datagram and DC queues.
    pub av: Option<Box<Av>>,
    /// The stream of a DC initiator; 0 on other queues.
    pub stream: u16,
    /// SRQ at the peer, on XRC queues.
    pub srqn: Option<u32>,
    /// The data to send, or the memory for the response.
    pub data: Vec<Segment>,
}

impl Request {
    /// Basic blocks of 64 bytes that it takes.
    #[must_use]
    pub fn blocks(&self) -> u16 {
        u16::from(self.ds).div_ceil(4)
    }

    /// Bytes of data.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.data.iter().map(Segment::len).sum()
    }

    /// Whether it has no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The control segment's fields (`struct mlx5_wqe_ctrl_seg`) that the fetch needs before it has the whole WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ctrl {
    pub(crate) index: u16,
    pub(crate) qpn: u32,
    pub(crate) ds: u8,
}

impl Ctrl {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let (head, size) = (be32(bytes, 0), be32(bytes, 4));
        Self { index: (head >> 8) as u16, qpn: size >> 8, ds: size as u8 }
    }
}

/// Fence modes, 3 bits above bit 5: none, small (initiator), 2 and 3 (older forms), strong and fence.
const FENCE_SMALL: u8 = 1;
const FENCE: u8 = 4;

/// Decodes the WQE at the start of `bytes`, which must be at least as long as its size field.
///
/// # Errors
/// The bytes are not a WQE.
pub fn send_wqe(kind: QueueKind, bytes: &[u8]) -> Result<Request, Malformed> {
    decode(kind, bytes, Reserved::Zero, Vec::new())
}

/// The rule for reserved bytes that hardware ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// They must be zero: the rule of this project's driver.
    Zero,
    /// Any value is allowed: other programs, such as UCX, leave bytes of the ring's previous lap there.
    Ignored,
}

/// As [`send_wqe`], with this rule for reserved bytes.
///
/// The list of segments takes the memory of `list`, which is empty.
pub(crate) fn decode(
    kind: QueueKind,
    bytes: &[u8],
    reserved: Reserved,
    mut list: Vec<Segment>,
) -> Result<Request, Malformed> {
    if bytes.len() < SEG {
        return Err(Malformed::Short);
    }
    let ctrl = Ctrl::of(bytes);
    // Six bits of size; the two above are not defined.
    if ctrl.ds & 0xc0 != 0 {
        return Err(Malformed::NotZero(7));
    }
    let wqe = bytes.get(..usize::from(ctrl.ds) * SEG).ok_or(Malformed::Short)?;
    let opcode = wqe.get(3).copied().ok_or(Malformed::Short)?;
    // opmod; byte 8 is the signature, which is ignored here.
    if wqe[0] != 0 {
        return Err(Malformed::NotZero(0));
    }
    // The DCI stream of the request; other queues have no streams.
    if kind != QueueKind::Dci && reserved == Reserved::Zero && !zero(wqe, 9..11) {
        return Err(Malformed::NotZero(9));
    }
    let mode = wqe[11];
    // The control segment's `ce`: no completion unless it fails, the same for the first that fails (DPDK's queues), always.
    let (complete, fence) = (mode >> 2 & 3, mode >> 5);
    if mode & 0x11 != 0 || !matches!(complete, 0..=2) || !matches!(fence, 0 | FENCE_SMALL | FENCE) {
        return Err(Malformed::Mode(mode));
    }
    let imm = be32(wqe, 12);
    let mut at = SEG;
    let (mut address, mut srqn) = (None, None);
    let local = matches!(opcode, MLX5_OPCODE_NOP | MLX5_OPCODE_UMR | MLX5_OPCODE_SET_PSV);
    if !local {
        match kind {
            QueueKind::Ud | QueueKind::Dci => {
                address = Some(Box::new(av(wqe, at)?));
                at += AV;
            }
            QueueKind::Xrc => {
                // The other 12 bytes are ignored.
                srqn = Some(be32(wqe, at) & 0xff_ffff);
                at += SEG;
            }
            QueueKind::Rc | QueueKind::Uc | QueueKind::Raw | QueueKind::Keys => {}
        }
    }
    let op = op(kind, opcode, imm, wqe, &mut at, reserved)?;
    if at > wqe.len() {
        return Err(Malformed::Short);
    }
    match op {
        // The bytes after a local operation are ignored.
        Op::Nop | Op::Umr(_) | Op::SetPsv(_) | Op::KeyUpdate(_) => {}
        _ => data(wqe, at, &mut list)?,
    }
    Ok(Request {
        index: ctrl.index,
        ds: ctrl.ds,
        opcode,
        signaled: complete == 2,
        first_error: complete == 1,
        solicited: mode & 2 != 0,
        fence: fence == FENCE,
        small_fence: fence == FENCE_SMALL,
        op,
        av: address,
        stream: if kind == QueueKind::Dci { u16::from_be_bytes([wqe[9], wqe[10]]) } else { 0 },
        srqn,
        data: list,
    })
}

/// Decodes the part that depends on the opcode, and moves `at` behind it.
fn op(
    kind: QueueKind,
    opcode: u8,
    imm: u32,
    wqe: &[u8],
    at: &mut usize,
    reserved: Reserved,
) -> Result<Op, Malformed> {
    let reliable = matches!(kind, QueueKind::Rc | QueueKind::Xrc | QueueKind::Dci);
    let connected = reliable || kind == QueueKind::Uc;
    let op = match opcode {
        MLX5_OPCODE_NOP => Op::Nop,
        MLX5_OPCODE_UMR if kind == QueueKind::Keys => Op::KeyUpdate(Box::new(key_update(wqe, *at, imm)?)),
        _ if kind == QueueKind::Keys => return Err(Malformed::Opcode(opcode)),
        MLX5_OPCODE_SEND if kind == QueueKind::Raw => Op::Frame(eth(wqe, at, false)?),
        MLX5_OPCODE_TSO if kind == QueueKind::Raw => Op::Frame(eth(wqe, at, true)?),
        MLX5_OPCODE_SEND => Op::Send { imm: None, invalidate: None },
        MLX5_OPCODE_SEND_IMM if kind != QueueKind::Raw => Op::Send { imm: Some(imm), invalidate: None },
        MLX5_OPCODE_SEND_INVAL if connected => Op::Send { imm: None, invalidate: Some(imm) },
        MLX5_OPCODE_RDMA_WRITE if connected => {
            let (addr, rkey) = remote(wqe, at, reserved)?;
            Op::Write { addr, rkey, imm: None }
        }
        MLX5_OPCODE_RDMA_WRITE_IMM if connected => {
            let (addr, rkey) = remote(wqe, at, reserved)?;
            Op::Write { addr, rkey, imm: Some(imm) }
        }
        MLX5_OPCODE_RDMA_READ if reliable => {
            let (addr, rkey) = remote(wqe, at, reserved)?;
            Op::Read { addr, rkey }
        }
        MLX5_OPCODE_ATOMIC_CS if reliable => {
            let (addr, rkey) = remote(wqe, at, reserved)?;
            let (swap, compare) = (be64(wqe, *at), be64(wqe, *at + 8));
            *at += SEG;
            Op::CmpSwap { addr, rkey, compare, swap }
        }
        MLX5_OPCODE_ATOMIC_FA if reliable => {
            let (addr, rkey) = remote(wqe, at, reserved)?;
            // The half with the compare value is ignored.
            let add = be64(wqe, *at);
            *at += SEG;
            Op::FetchAdd { addr, rkey, add }
        }
        MLX5_OPCODE_UMR if connected => Op::Umr(Box::new(umr(wqe, *at, imm)?)),
        MLX5_OPCODE_SET_PSV if connected => Op::SetPsv(set_psv(wqe, *at)?),
        _ => return Err(Malformed::Opcode(opcode)),
    };
    Ok(op)
}

/// `struct mlx5_wqe_raddr_seg`
fn remote(wqe: &[u8], at: &mut usize, reserved: Reserved) -> Result<(u64, u32), Malformed> {
    let from = *at;
    *at += SEG;
    if *at > wqe.len() {
        return Err(Malformed::Short);
    }
    if reserved == Reserved::Zero && !zero(wqe, from + 12..from + 16) {
        return Err(Malformed::NotZero(from as u16 + 12));
    }
    Ok((be64(wqe, from), be32(wqe, from + 8)))
}

fn eth(wqe: &[u8], at: &mut usize, tso: bool) -> Result<Eth, Malformed> {
    let from = *at;
    if from + SEG > wqe.len() {
        return Err(Malformed::Short);
    }
    for (first, end) in [(0, 4), (5, 6), (8, 12)] {
        if !zero(wqe, from + first..from + end) {
            return Err(Malformed::NotZero((from + first) as u16));
        }
    }
    let flags = wqe[from + 4];
    if flags & 0x3f != 0 {
        return Err(Malformed::NotZero(from as u16 + 4));
    }
    let (mss, len) = (be16(wqe, from + 6), usize::from(be16(wqe, from + 12)));
    if (mss != 0) != tso || tso && len < ETH_L2_MIN_HEADER_SIZE {
        return Err(Malformed::Eth);
    }
    // Two bytes of the header are in the segment, the rest follows in units of 16.
    let header = wqe.get(from + 14..).and_then(|b| b.get(..len)).ok_or(Malformed::Short)?.to_vec();
    *at = from + SEG + len.saturating_sub(2).next_multiple_of(SEG);
    Ok(Eth { l3_csum: flags & 1 << 6 != 0, l4_csum: flags & 1 << 7 != 0, mss: tso.then_some(mss), header })
}
