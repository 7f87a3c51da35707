// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed completion queue entries: completions that follow each other and differ only in what a mini entry has become one
//! block of a CQ ([`uverbs_mlx5_hw::mini`]).
//!
//! A block is open until the next completion does not continue it, or it is full, or the call into the device ends
//! ([`Model::tidy`](uverbs_fabric::Model::tidy)): only then is it written, as real devices write it when more completions do not
//! come in time. The number of entries and the events are those without compression. In the modes of order each completion is an
//! entry of its own, so that the program sees each at the time that the mode chooses.

use super::cq::Cq;
use super::{Device, Notice, Port};
use crate::cqe::Cqe;
use crate::memory::{Area, Fault};
use crate::violation::{Mistake, Object};
use uverbs_mlx5_hw::cqe as hw;
use uverbs_mlx5_hw::mini::{
    ARRAY, COMPRESSED, MLX5DV_CQE_RES_FORMAT_CSUM, MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX,
    MLX5DV_CQE_RES_FORMAT_HASH, MiniCqe, MiniCsum, MiniSend, array_of,
};
use uverbs_mlx5_hw::{Be16, Be32};
use zerocopy::IntoBytes;

/// Completions in a block, as ConnectX-5 reports (`cqe_compression_max_num`).
pub(crate) const MAX_NUM: u32 = 64;
/// The formats, `MLX5DV_CQE_RES_FORMAT_*`.
pub(crate) const FORMATS: u32 =
    (MLX5DV_CQE_RES_FORMAT_HASH | MLX5DV_CQE_RES_FORMAT_CSUM | MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX) as u32;

/// What the mini entries of receives have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MiniFormat {
    /// The hash, which is 0: the device reports none.
    Hash,
    Checksum,
    /// The stride of a queue without strides is undocumented; here it is `wqe_counter`, of which it takes the place.
    ChecksumAndStride,
}

impl MiniFormat {
    /// The format with this bit; `None` if it is not exactly one.
    pub(crate) const fn of_bit(bit: u8) -> Option<Self> {
        match bit {
            MLX5DV_CQE_RES_FORMAT_HASH => Some(Self::Hash),
            MLX5DV_CQE_RES_FORMAT_CSUM => Some(Self::Checksum),
            MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX => Some(Self::ChecksumAndStride),
            _ => None,
        }
    }

    fn mini(self, cqe: &Cqe) -> [u8; 8] {
        let (counter, byte_cnt) = (Be16::new(cqe.wqe_counter), Be32::new(cqe.byte_cnt));
        if cqe.is_of_request() {
            let send = MiniSend { wqe_counter: counter, opcode: cqe.opcode, reserved: 0, byte_cnt };
            return zerocopy::transmute!(send);
        }
        let checksum = Be16::new(cqe.check_sum);
        match self {
            Self::Hash => zerocopy::transmute!(MiniCqe { info: Be32::new(0), byte_cnt }),
            Self::Checksum => {
                zerocopy::transmute!(MiniCsum { checksum, stride_index: Be16::new(0), byte_cnt })
            }
            Self::ChecksumAndStride => {
                zerocopy::transmute!(MiniCsum { checksum, stride_index: counter, byte_cnt })
            }
        }
    }
}

/// The open block of a CQ with compression.
#[derive(Debug)]
pub(super) struct Block {
    format: MiniFormat,
    /// Its completions, which are not written yet.
    cqes: Vec<Cqe>,
}

impl Block {
    pub(super) fn new(format: MiniFormat) -> Self {
        Self { format, cqes: Vec::new() }
    }

    /// Whether it may be in a block at all: it is a success without data.
    fn can_have(cqe: &Cqe) -> bool {
        let is_success = matches!(
            cqe.kind,
            hw::MLX5_CQE_REQ
                | hw::MLX5_CQE_RESP_WR_IMM
                | hw::MLX5_CQE_RESP_SEND
                | hw::MLX5_CQE_RESP_SEND_IMM
                | hw::MLX5_CQE_RESP_SEND_INV
        );
        is_success && cqe.syndrome.is_none() && cqe.inline.is_none() && cqe.signature.is_none()
    }

    /// Whether the completion continues it. Timestamps may differ: a block has that of its first completion.
    fn is_continued_by(&self, cqe: &Cqe) -> bool {
        let Some(last) = self.cqes.last() else { return true };
        let is_next = if cqe.is_of_request() {
            true
        } else {
            cqe.wqe_counter == last.wqe_counter.wrapping_add(1) && cqe.opcode == last.opcode
        };
        let common = |c: &Cqe| {
            let path = (c.slid, c.ml_path, c.flags_rqpn);
            (c.kind, c.srqn_uidx, c.imm, c.qpn, c.solicited, path, c.checks)
        };
        is_next && common(cqe) == common(last)
    }

    /// Writes its completions to the entries of the ring from `start` on, by `write`, the title last; it is empty then.
    fn write(
        &mut self,
        start: u32,
        mut write: impl FnMut(u32, &Entry<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let cqes = core::mem::take(&mut self.cqes);
        let count = cqes.len() as u32;
        match cqes.as_slice() {
            [] => return Ok(()),
            [one] => return write(start, &Entry::Plain(one)),
            [title, ..] => {
                for (n, minis) in (0..).step_by(ARRAY as usize).zip(cqes.chunks(ARRAY as usize)) {
                    let mut array = [[0; 8]; ARRAY as usize];
                    array.iter_mut().zip(minis).for_each(|(to, cqe)| *to = self.format.mini(cqe));
                    write(start.wrapping_add(array_of(n)), &Entry::Array(array.as_bytes()))?;
                }
                write(start, &Entry::Title(&Cqe { byte_cnt: count, ..title.clone() }))?;
            }
        }
        // Its memory is for the next one.
        self.cqes = cqes;
        self.cqes.clear();
        Ok(())
    }
}

/// An entry of a block.
enum Entry<'a> {
    /// The only completion.
    Plain(&'a Cqe),
    /// With the count.
    Title(&'a Cqe),
    /// The 64 bytes of mini entries.
    Array(&'a [u8]),
}

impl Entry<'_> {
    fn encode<const SIZE: usize>(&self, owner: u8) -> [u8; SIZE] {
        match self {
            Self::Plain(cqe) => cqe.encode(owner),
            Self::Title(cqe) => {
                let mut bytes: [u8; SIZE] = cqe.encode(owner);
                bytes[SIZE - 1] |= COMPRESSED << 2;
                bytes
            }
            Self::Array(array) => {
                let mut bytes = [0; SIZE];
                bytes[SIZE - 64..].copy_from_slice(array);
                bytes
            }
        }
    }

    /// Writes it at `index` of a ring of `entries` entries of `size` bytes.
    fn store(&self, ring: &Area, (size, entries): (usize, u32), index: u32) -> Result<(), Fault> {
        let owner = u8::from(index & entries != 0);
        let at = u64::from(index & (entries - 1)) * size as u64;
        match size {
            128 => ring.write_entry(at, &self.encode::<128>(owner)),
            _ => ring.write_entry(at, &self.encode::<64>(owner)),
        }
    }
}

impl Cq {
    /// Lets the device compress its entries.
    pub(crate) fn compress(&mut self, format: MiniFormat) {
        self.block = Some(Block::new(format));
    }

    /// Adds the completion behind the last one to the open block, or writes it: in any case at the producer index. `is_open`: it may
    /// stay unwritten until the end of the call.
    pub(super) fn collect(&mut self, cqe: &Cqe, is_open: bool) -> Result<(), Fault> {
        let most = MAX_NUM.min(self.entries());
        let Some(block) = &self.block else { return Ok(()) };
        let continues = Block::can_have(cqe) && block.is_continued_by(cqe);
        if !continues || block.cqes.len() as u32 >= most {
            self.close()?;
        }
        if let Some(block) = &mut self.block
            && Block::can_have(cqe)
            && is_open
        {
            block.cqes.push(cqe.clone());
            return Ok(());
        }
        self.close()?;
        self.store(self.producer(), cqe)
    }

    /// Writes the open block, if there is one.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        let Some(mut block) = self.block.take() else { return Ok(()) };
        let start = self.producer().wrapping_sub(block.cqes.len() as u32);
        let (ring, size) = self.memory();
        let place = (size as usize, self.entries());
        let written = block.write(start, |index, entry| entry.store(ring, place, index));
        self.block = Some(block);
        written
    }
}

impl Device {
    /// Writes the open blocks of all CQs: the call ends.
    pub(super) fn close_blocks(&mut self, cx: &Port<'_>) {
        while let Some(cqn) = self.open_blocks.pop() {
            let Some(cq) = self.cqs.get_mut(&cqn) else { continue };
            let index = cq.producer();
            if cq.close().is_err() && !cq.replace_broken() {
                self.blame(cx.now, Object::Cq(cqn), index, Mistake::MemoryGone);
                self.notices.push(Notice::CqError { cqn });
                self.overrun.push(cqn);
            }
        }
    }
}

/// This CQ may have an open block.
#[cold]
pub(super) fn note_block(open: &mut Vec<u32>, cqn: u32) {
    if !open.contains(&cqn) {
        open.push(cqn);
    }
}
