// SPDX-License-Identifier: MIT OR Apache-2.0
//! The encoder: a work request as the words of its entry.
//!
//! It writes private memory only and checks what depends on the request and the limits of the queue, not on its state. Words are made in
//! registers; the assertions below compare their fields with the structs of the format.

use crate::memory::{BLOCK, Wqe};
use core::mem::{offset_of, size_of};
use uverbs_core::provider::opcodes::{opcode_bit, opcodes};
use uverbs_core::provider::{Data, Dest, Inline, Op, PostError, RemoteAddr, To, Wr};
use uverbs_core::wr::{SendFlags, Sge, WrOpcode};
use uverbs_efa_hw::io::{self, RdmaReq, RdmaReq128, RxDesc, TxBufDesc, TxMetaDesc, TxWqe, TxWqe128};
use zerocopy::IntoBytes;

const _: () = {
    assert!(offset_of!(TxMetaDesc, req_id) == 0 && offset_of!(TxMetaDesc, ctrl1) == 2);
    assert!(offset_of!(TxMetaDesc, ctrl2) == 3 && offset_of!(TxMetaDesc, dest_qp_num) == 4);
    assert!(offset_of!(TxMetaDesc, length) == 6 && offset_of!(TxMetaDesc, immediate_data) == 8);
    assert!(offset_of!(TxMetaDesc, ah) == 12 && offset_of!(TxMetaDesc, ctrl3) == 14);
    assert!(offset_of!(TxMetaDesc, qkey) == 16 && size_of::<TxMetaDesc>() == 8 * DATA);
    assert!(offset_of!(TxBufDesc, lkey) == 4 && offset_of!(TxBufDesc, buf_addr_lo) == 8);
    assert!(offset_of!(TxWqe, data) == 8 * DATA && offset_of!(TxWqe128, data) == 8 * DATA);
    assert!(offset_of!(RdmaReq, local_mem) == 8 * (RDMA_DATA - DATA));
    assert!(offset_of!(RdmaReq128, inline_data) == 8 * (RDMA_DATA - DATA));
    assert!(offset_of!(RxDesc, req_id) == 8 && offset_of!(RxDesc, lkey_ctrl) == 12);
};

/// The word at which the data of a send begin.
const DATA: usize = 4;
/// The word at which the local memory of a read or write begins.
const RDMA_DATA: usize = 6;

/// The most entries of a read or write.
const RDMA_SGES: usize = io::EFA_IO_TX_DESC_NUM_RDMA_BUFS;
/// Reads and writes.
const RDMA: u32 = opcodes(&[WrOpcode::RDMA_READ, WrOpcode::RDMA_WRITE, WrOpcode::RDMA_WRITE_WITH_IMM]);

/// The address handle: the device's number of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ah(pub u16);

/// The parameters of a send queue: what the verbs, the device and the kernel's answer allow. Opcodes are sets
/// ([`opcodes`](uverbs_core::provider::opcodes)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendConfig {
    /// Opcodes of batches.
    pub ops: u32,
    /// Opcodes of the `wr_*` builders.
    pub builder: u32,
    /// Entries of a send, at most 2.
    pub max_sge: u32,
    /// Entries of a read or write: one, or 0 if the queue has neither.
    pub max_rdma_sge: u32,
    /// Inline bytes of a request.
    pub max_inline: u32,
    /// Whether an RDMA write may have inline data. Only in entries of 128 bytes.
    pub inline_write: bool,
    /// Flags that every request has: `SIGNALED`, or none.
    pub always: SendFlags,
    /// Requests that may be written before the doorbell.
    pub max_batch: u32,
}

impl SendConfig {
    /// Limits for which the entries have no room are lowered.
    #[must_use]
    pub(crate) fn fit(mut self, wide: bool, entries: u32) -> Self {
        let room =
            if wide { io::EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 } else { io::EFA_IO_TX_DESC_INLINE_MAX_SIZE };
        self.max_sge = self.max_sge.min(io::EFA_IO_TX_DESC_NUM_BUFS as u32);
        if self.max_rdma_sge == 0 {
            self.ops &= !RDMA;
        }
        self.max_inline = self.max_inline.min(room as u32);
        self.builder &= self.ops;
        self.inline_write &= wide;
        self.max_batch = self.max_batch.clamp(1, entries);
        self
    }

    /// Checks the flags of a request, and whether its opcode is one of `ops`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn check(&self, ops: u32, flags: SendFlags, op: &Op<'_>) -> Result<(), PostError> {
        let is_known = (SendFlags::INLINE | SendFlags::SIGNALED).contains(flags);
        // Without a load of `always`, if the caller's flags are constant.
        if !is_known || !flags.contains(SendFlags::SIGNALED) && !self.always.contains(SendFlags::SIGNALED) {
            return Err(refused_flags(flags | self.always));
        }
        if ops & opcode_bit(op.opcode()) == 0 { Err(PostError::IllegalOpcode) } else { Ok(()) }
    }
}

#[cold]
fn refused_flags(flags: SendFlags) -> PostError {
    if flags.contains(SendFlags::SIGNALED) { PostError::IllegalFlag } else { PostError::Unsignaled }
}

/// A destination as bits of the first words, if it was [checked](check_destination).
#[cfg_attr(not(debug_assertions), inline(always))]
fn destination(to: &To<'_, Ah>) -> [u64; 3] {
    [u64::from(to.remote_qpn & 0xffff) << 32, u64::from(to.ah.0) << 32, to.remote_qkey.into()]
}

/// The device's QP numbers have 16 bits.
#[cfg_attr(not(debug_assertions), inline(always))]
fn check_destination(to: &To<'_, Ah>) -> Result<(), PostError> {
    if to.remote_qpn > u16::MAX.into() { Err(PostError::InvalidArgument) } else { Ok(()) }
}

/// A request without its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// The first words.
    meta: [u64; 3],
    /// The peer's memory, of a read or write.
    remote: Option<RemoteAddr>,
    /// Whether it is a write, which may have inline data.
    is_write: bool,
}

impl Begun {
    /// Checks a request but for its data.
    // Apart from the value, which would share its place with the error.
    // codegen: words
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn check(config: &SendConfig, wr: &Wr<'_, Ah>) -> Result<(), PostError> {
        config.check(config.ops, wr.flags, &wr.op)?;
        match &wr.to {
            Dest::Ud(to) => check_destination(to),
            _ => Err(PostError::InvalidArgument),
        }
    }

    /// A request that was [checked](Self::check) and whose number and phase are known; `None` if the device has no such operation.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn of(number: u32, phase: bool, wr: &Wr<'_, Ah>) -> Option<Self> {
        let Dest::Ud(to) = &wr.to else { return None };
        let mut this = Self::op(number, phase, &wr.op)?;
        let ([w0, w1, w2], meta) = (destination(to), this.meta);
        this.meta = [meta[0] | w0, meta[1] | w1, w2];
        Some(this)
    }

    /// A request without a destination; `None` if the device has no such operation.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn op(number: u32, phase: bool, op: &Op<'_>) -> Option<Self> {
        const CTRL1: u8 = io::EFA_IO_TX_META_DESC_META_DESC_MASK;
        const CTRL2: u8 = io::EFA_IO_TX_META_DESC_FIRST_MASK
            | io::EFA_IO_TX_META_DESC_LAST_MASK
            | io::EFA_IO_TX_META_DESC_COMP_REQ_MASK;
        let (op_type, imm, remote) = match *op {
            Op::Send => (io::EFA_IO_SEND, None, None),
            Op::SendImm(imm) => (io::EFA_IO_SEND, Some(imm), None),
            Op::Read(from) => (io::EFA_IO_RDMA_READ, None, Some(from)),
            Op::Write(to) => (io::EFA_IO_RDMA_WRITE, None, Some(to)),
            Op::WriteImm(to, imm) => (io::EFA_IO_RDMA_WRITE, Some(imm), Some(to)),
            _ => return None,
        };
        let has_imm = if imm.is_some() { io::EFA_IO_TX_META_DESC_HAS_IMM_MASK } else { 0 };
        let ctrl = u64::from(CTRL1 | op_type | has_imm) << 16 | u64::from(CTRL2) << 24;
        let meta = [u64::from(number) | ctrl | u64::from(phase) << 24, imm.unwrap_or(0).into(), 0];
        Some(Self { meta, remote, is_write: op_type == io::EFA_IO_RDMA_WRITE })
    }

    /// The first block of the entry with this number of buffers or inline bytes: `local` is what follows the peer's memory, or the
    /// metadata of a send, and `length` the bytes of the data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn block(&self, count: usize, length: u64, local: [u64; 4]) -> [u64; BLOCK] {
        let [w0, w1, w2] = self.meta;
        let w0 = w0 | (count as u64 & 0xffff) << 48;
        let [a, b, c, d] = local;
        match self.remote {
            None => [w0, w1, w2, 0, a, b, c, d],
            Some(RemoteAddr { addr, rkey }) => {
                [w0, w1, w2, 0, length & 0xffff_ffff | u64::from(rkey) << 32, addr, a, b]
            }
        }
    }

    /// Checks the number of buffers.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn check_sges(&self, config: &SendConfig, sges: &[Sge]) -> Result<(), PostError> {
        let max = if self.remote.is_none() { config.max_sge as usize } else { RDMA_SGES };
        if sges.len() > max { Err(PostError::TooManySge) } else { Ok(()) }
    }

    /// The entry with these buffers, whose number was [checked](Self::check_sges). It has one block.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn with(&self, sges: &[Sge]) -> [u64; BLOCK] {
        match sges {
            [] => self.block(0, 0, [0; 4]),
            [one] => {
                let [a, b] = buffer(one);
                self.block(1, one.length.into(), [a, b, 0, 0])
            }
            // At most two: the limits are those of the entry ([`SendConfig::fit`]).
            [one, two, ..] => {
                let ([a, b], [c, d]) = (buffer(one), buffer(two));
                self.block(2, u64::from(one.length) + u64::from(two.length), [a, b, c, d])
            }
        }
    }
}

/// A buffer as words.
#[cfg_attr(not(debug_assertions), inline(always))]
fn buffer(sge: &Sge) -> [u64; 2] {
    let lkey = sge.lkey & io::EFA_IO_TX_BUF_DESC_LKEY_MASK;
    [u64::from(sge.length) | u64::from(lkey) << 32, sge.addr]
}

impl Wqe {
    /// Stores an entry of one block. The second one, if the entry has it, is cleared.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_block(&mut self, block: [u64; BLOCK], is_wide: bool) {
        let (first, second) = self.0.split_at_mut(BLOCK);
        first.copy_from_slice(&block);
        if is_wide {
            second.fill(0);
        }
    }

    /// Writes a request of a batch. After an error the contents are undefined.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put(
        &mut self,
        config: &SendConfig,
        begun: &Begun,
        data: &Data<'_>,
        is_wide: bool,
    ) -> Result<(), PostError> {
        match data {
            Data::Sges(sges) => {
                begun.check_sges(config, sges)?;
                self.put_block(begun.with(sges), is_wide);
            }
            Data::Inline(data) => {
                let first = inline_start(config, begun.remote.is_some(), begun.is_write)?;
                let length = check_inline(config, data)?;
                let mut block = begun.block(length, length as u64, [0; 4]);
                block[0] |= INLINE;
                self.put_block(block, is_wide);
                data.copy_to(self.0[first..].as_mut_bytes());
            }
        }
        Ok(())
    }

    /// Begins a request of a builder. [`put_destination`](Self::put_destination) and one of the data follow.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(
        &mut self,
        config: &SendConfig,
        number: u32,
        phase: bool,
        flags: SendFlags,
        op: &Op<'_>,
        is_wide: bool,
    ) -> Result<(), PostError> {
        config.check(config.builder, flags, op)?;
        let Some(begun) = Begun::op(number, phase, op) else { return Err(PostError::IllegalOpcode) };
        self.put_block(begun.block(0, 0, [0; 4]), is_wide);
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn op_type(&self) -> u8 {
        (self.0[0] >> 16) as u8 & io::EFA_IO_TX_META_DESC_OP_TYPE_MASK
    }

    /// Adds the destination.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_destination(&mut self, to: &To<'_, Ah>) -> Result<(), PostError> {
        check_destination(to)?;
        let [w0, w1, w2] = destination(to);
        self.0[0] |= w0;
        self.0[1] |= w1;
        self.0[2] = w2;
        Ok(())
    }

    /// Stores the hints, `EFA_IO_PROCESSING_HINT_*`.
    pub(crate) fn put_hints(&mut self, hints: u8) {
        const MASK: u8 = io::EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK;
        self.0[1] = self.0[1] & !(u64::from(MASK) << 48) | u64::from(hints & MASK) << 48;
    }

    /// Adds entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_sges(&mut self, config: &SendConfig, sges: &[Sge]) -> Result<(), PostError> {
        let is_send = self.op_type() == io::EFA_IO_SEND;
        let max = if is_send { config.max_sge as usize } else { RDMA_SGES };
        if sges.len() > max {
            return Err(PostError::TooManySge);
        }
        self.0[0] |= (sges.len() as u64 & 0xffff) << 48;
        let Some((one, more)) = sges.split_first() else { return Ok(()) };
        if is_send {
            [self.0[DATA], self.0[DATA + 1]] = buffer(one);
            // At most two: the limits are those of the entry ([`SendConfig::fit`]).
            if let [two, ..] = more {
                [self.0[DATA + 2], self.0[DATA + 3]] = buffer(two);
            }
        } else {
            self.0[DATA] |= u64::from(one.length);
            [self.0[RDMA_DATA], self.0[RDMA_DATA + 1]] = buffer(one);
        }
        Ok(())
    }

    /// Copies inline data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_inline(&mut self, config: &SendConfig, data: &Inline<'_>) -> Result<(), PostError> {
        let op_type = self.op_type();
        let is_send = op_type == io::EFA_IO_SEND;
        let first = inline_start(config, !is_send, op_type == io::EFA_IO_RDMA_WRITE)?;
        let length = check_inline(config, data)?;
        self.0[0] |= INLINE | (length as u64 & 0xffff) << 48;
        if !is_send {
            self.0[DATA] |= length as u64 & 0xffff_ffff;
        }
        data.copy_to(self.0[first..].as_mut_bytes());
        Ok(())
    }
}

/// In the first word: the data are inline.
const INLINE: u64 = (io::EFA_IO_TX_META_DESC_INLINE_MSG_MASK as u64) << 16;

/// The word at which inline data begin, if the request may have them.
#[cfg_attr(not(debug_assertions), inline(always))]
fn inline_start(config: &SendConfig, is_rdma: bool, is_write: bool) -> Result<usize, PostError> {
    match is_rdma {
        false => Ok(DATA),
        true if is_write && config.inline_write => Ok(RDMA_DATA),
        true => Err(PostError::IllegalFlag),
    }
}

/// The length of inline data, if the entry has room for them.
#[cfg_attr(not(debug_assertions), inline(always))]
fn check_inline(config: &SendConfig, data: &Inline<'_>) -> Result<usize, PostError> {
    let length = data.len();
    if length > config.max_inline as usize { Err(PostError::InlineTooLong) } else { Ok(length) }
}

/// The descriptor of a receive's buffer as words. The device has no longer buffer than 65535 bytes: of a longer one it uses the first of
/// them, as with libefa; no message is longer.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn recv_desc(number: u32, sge: &Sge, is_first: bool, is_last: bool) -> [u64; 2] {
    let length = sge.length.min(u16::MAX.into());
    let first = if is_first { io::EFA_IO_RX_DESC_FIRST_MASK } else { 0 };
    let last = if is_last { io::EFA_IO_RX_DESC_LAST_MASK } else { 0 };
    let lkey_ctrl = sge.lkey & io::EFA_IO_RX_DESC_LKEY_MASK | first | last;
    [sge.addr, u64::from(number) | u64::from(length) << 16 | u64::from(lkey_ctrl) << 32]
}
