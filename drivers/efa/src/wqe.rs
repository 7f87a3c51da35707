// SPDX-License-Identifier: MIT OR Apache-2.0
//! The encoder: a work request as the words of its entry.
//!
//! It writes private memory only and checks what depends on the request and the limits of the queue, not on its state. Words are made in
//! registers; the assertions below compare their fields with the structs of the format.

use crate::memory::Wqe;
use core::mem::{offset_of, size_of};
use uverbs_core::provider::opcodes::opcode_bit;
use uverbs_core::provider::{Data, Dest, Inline, Op, PostError, To, Wr};
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_efa_hw::io::{self, RdmaReq, RdmaReq128, RxDesc, TxBufDesc, TxMetaDesc, TxWqe, TxWqe128};

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
    /// Entries of a read or write, at most 1.
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
        self.max_rdma_sge = self.max_rdma_sge.min(io::EFA_IO_TX_DESC_NUM_RDMA_BUFS as u32);
        self.max_inline = self.max_inline.min(room as u32);
        self.inline_write &= wide;
        self.max_batch = self.max_batch.clamp(1, entries);
        self
    }

    /// Checks the flags of a request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn check_flags(&self, flags: SendFlags) -> Result<(), PostError> {
        let flags = (flags | self.always).bits() & !SendFlags::INLINE.bits();
        if flags == SendFlags::SIGNALED.bits() { Ok(()) } else { Err(refused_flags(flags)) }
    }
}

#[cold]
fn refused_flags(flags: u32) -> PostError {
    if flags & SendFlags::SIGNALED.bits() == 0 { PostError::Unsignaled } else { PostError::IllegalFlag }
}

/// A destination as what it adds to the first three words.
#[cfg_attr(not(debug_assertions), inline(always))]
fn destination(to: &To<'_, Ah>) -> Result<[u64; 3], PostError> {
    // The device's QP numbers have 16 bits.
    let qpn = u16::try_from(to.remote_qpn).map_err(|_| PostError::InvalidArgument)?;
    Ok([u64::from(qpn) << 32, u64::from(to.ah.0) << 32, u64::from(to.remote_qkey)])
}

impl Wqe {
    /// Writes a request whose number and position are known. After an error the contents are undefined.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put(
        &mut self,
        config: &SendConfig,
        number: u16,
        phase: bool,
        wr: &Wr<'_, Ah>,
    ) -> Result<(), PostError> {
        config.check_flags(wr.flags)?;
        if config.ops & opcode_bit(wr.op.opcode()) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        let Dest::Ud(to) = &wr.to else { return Err(PostError::InvalidArgument) };
        self.put_op(number, phase, &wr.op)?;
        self.put_destination(to)?;
        match &wr.data {
            Data::Sges(sges) => self.put_sges(config, sges),
            Data::Inline(data) => self.put_inline(config, data),
        }
    }

    /// Begins a request of a builder. [`put_destination`](Self::put_destination) and one of the data follow.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(
        &mut self,
        config: &SendConfig,
        number: u16,
        phase: bool,
        flags: SendFlags,
        op: &Op<'_>,
    ) -> Result<(), PostError> {
        config.check_flags(flags)?;
        if config.builder & config.ops & opcode_bit(op.opcode()) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        self.put_op(number, phase, op)
    }

    /// Writes the operation; clears the rest.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_op(&mut self, number: u16, phase: bool, op: &Op<'_>) -> Result<(), PostError> {
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
            _ => return Err(PostError::IllegalOpcode),
        };
        let has_imm = if imm.is_some() { io::EFA_IO_TX_META_DESC_HAS_IMM_MASK } else { 0 };
        let ctrl = u64::from(CTRL1 | op_type | has_imm) << 16 | u64::from(CTRL2 | u8::from(phase)) << 24;
        *self = Self::ZERO;
        self.0[0] = u64::from(number) | ctrl;
        self.0[1] = u64::from(imm.unwrap_or(0));
        if let Some(remote) = remote {
            self.0[DATA] = u64::from(remote.rkey) << 32;
            self.0[DATA + 1] = remote.addr;
        }
        Ok(())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn op_type(&self) -> u8 {
        (self.0[0] >> 16) as u8 & io::EFA_IO_TX_META_DESC_OP_TYPE_MASK
    }

    /// Adds the destination.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_destination(&mut self, to: &To<'_, Ah>) -> Result<(), PostError> {
        for (word, add) in self.0.iter_mut().zip(destination(to)?) {
            *word |= add;
        }
        Ok(())
    }

    /// Stores the hints, `EFA_IO_PROCESSING_HINT_*`.
    pub(crate) fn put_hints(&mut self, hints: u8) {
        const MASK: u8 = io::EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK;
        self.0[1] = self.0[1] & !(u64::from(MASK) << 48) | u64::from(hints & MASK) << 48;
    }

    /// Adds the length of the data; `remote` is that of the peer's memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_length(&mut self, length: usize, remote: u64) {
        self.0[0] |= (length as u64 & 0xffff) << 48;
        if self.op_type() != io::EFA_IO_SEND {
            self.0[DATA] |= remote & 0xffff_ffff;
        }
    }

    /// Adds entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_sges(&mut self, config: &SendConfig, sges: &[Sge]) -> Result<(), PostError> {
        let is_send = self.op_type() == io::EFA_IO_SEND;
        let (max, first) = if is_send { (config.max_sge, DATA) } else { (config.max_rdma_sge, RDMA_DATA) };
        if sges.len() > max as usize {
            return Err(PostError::TooManySge);
        }
        let total = match sges {
            [] => 0,
            [one] => {
                self.put_buffer(first, one);
                u64::from(one.length)
            }
            // At most two: the limits are those of the entry ([`SendConfig::fit`]).
            [one, two, ..] => {
                self.put_buffer(first, one);
                self.put_buffer(first + 2, two);
                u64::from(one.length) + u64::from(two.length)
            }
        };
        self.put_length(sges.len(), total);
        Ok(())
    }

    /// Writes a buffer to two words.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_buffer(&mut self, at: usize, sge: &Sge) {
        let lkey = sge.lkey & io::EFA_IO_TX_BUF_DESC_LKEY_MASK;
        self.0[at] = u64::from(sge.length) | u64::from(lkey) << 32;
        self.0[at + 1] = sge.addr;
    }

    /// Copies inline data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put_inline(&mut self, config: &SendConfig, data: &Inline<'_>) -> Result<(), PostError> {
        let first = match self.op_type() {
            io::EFA_IO_SEND => DATA,
            io::EFA_IO_RDMA_WRITE if config.inline_write => RDMA_DATA,
            _ => return Err(PostError::IllegalFlag),
        };
        let length = data.len();
        if length > config.max_inline as usize {
            return Err(PostError::InlineTooLong);
        }
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut self.0[first..]);
        let mut at = 0;
        let mut put = |buf: &[u8]| {
            // `max_inline` is at most the room of the entry, and `length` the sum of all.
            if let Some(to) = bytes.get_mut(at..at + buf.len()) {
                to.copy_from_slice(buf);
                at += buf.len();
            }
        };
        match data.one_buf() {
            Some(buf) => put(buf),
            None => data.for_each_buf(put),
        }
        self.put_length(length, length as u64);
        self.0[0] |= u64::from(io::EFA_IO_TX_META_DESC_INLINE_MSG_MASK) << 16;
        Ok(())
    }
}

/// The descriptor of a receive's buffer as words. The device has no longer buffer than 65535 bytes: of a longer one it uses the first of
/// them, as with libefa; no message is longer.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn recv_desc(number: u16, sge: &Sge, is_first: bool, is_last: bool) -> [u64; 2] {
    let length = sge.length.min(u16::MAX.into());
    let first = if is_first { io::EFA_IO_RX_DESC_FIRST_MASK } else { 0 };
    let last = if is_last { io::EFA_IO_RX_DESC_LAST_MASK } else { 0 };
    let lkey_ctrl = sge.lkey & io::EFA_IO_RX_DESC_LKEY_MASK | first | last;
    [sge.addr, u64::from(number) | u64::from(length) << 16 | u64::from(lkey_ctrl) << 32]
}
