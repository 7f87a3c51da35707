// SPDX-License-Identifier: MIT OR Apache-2.0
//! An entry in the ring: the word with the owner bit, and the other fields.
//!
//! A field is loaded when it is needed, as part of an 8-byte word. The device may write at any time, so every value is
//! accepted.

use crate::cq::cqe::OpOwn;
use crate::memory::{Block, BlockIndex};
use core::sync::atomic::Ordering;
use uverbs_mlx5_hw::cqe::{
    MLX5_CQE_INVALID, MLX5_CQE_OWNER_MASK, MLX5_CQE_RESP_SEND_INV, MLX5_CQE_RESP_WR_IMM,
    MLX5_INLINE_SCATTER_32, MLX5_INLINE_SCATTER_64,
};

/// Words of 8 bytes in an entry, not counting the 64 bytes before it.
pub(super) const WORDS: usize = 8;

/// The last word of an entry that the device has never written: opcode invalid.
pub(super) const NEVER_WRITTEN: u64 = 0xf0;

/// The solicited bit in an entry's last byte. Polls ignore it.
const SOLICITED: u8 = 1 << 1;

/// The owner bit of the current lap, at its position in a [`Tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(u64);

impl Phase {
    /// The phase of a lap with an odd or even number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn of(odd: bool) -> Self {
        Self(u64::from(odd))
    }

    /// The phase after a step: that of the next lap if the step `wraps`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn after(self, wraps: bool) -> Self {
        if wraps { Self(self.0 ^ u64::from(MLX5_CQE_OWNER_MASK)) } else { self }
    }
}

/// The last 8 bytes of an entry, read by one load: the values that every completion needs. Converted from big-endian, with
/// the owner bit XORed with that of the lap, so that it is 0 in an entry of this lap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail(u64);

impl Tail {
    /// The word as the device would have written it to memory in that lap.
    pub(super) const fn word_in(self, phase: Phase) -> u64 {
        (self.0 & !(MLX5_CQE_OWNER_MASK as u64) | phase.0).to_be()
    }

    /// Whether the device has written the entry in this lap. One compare tests both: the rotation makes the owner bit the
    /// highest, above the opcode, and the invalid opcode is the largest.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn is_valid(self) -> bool {
        (self.0 as u8).rotate_right(1) < MLX5_CQE_INVALID << 3
    }

    /// Whether the entry is valid, a requester's success, and has no data: all bits are 0 except the solicited bit.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn is_plain_requester(self) -> bool {
        self.0 as u8 & !SOLICITED == 0
    }

    /// Whether the entry is valid, a responder's success, and has no data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn is_plain_responder(self) -> bool {
        self.is_responder(0)
    }

    /// Whether the entry is valid, a responder's success, and has data in its first 32 bytes.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn is_responder_with_data(self) -> bool {
        self.is_responder(MLX5_INLINE_SCATTER_32)
    }

    /// Whether the entry is valid, a responder's success, and of that format. One compare tests all: the rotation makes the
    /// opcode's offset the low four bits, which are below 4 for the four opcodes; any other difference sets a higher bit.
    #[cfg_attr(not(debug_assertions), inline(always))]
    const fn is_responder(self, format: u8) -> bool {
        const FIRST: u8 = MLX5_CQE_RESP_WR_IMM << 4;
        const COUNT: u8 = MLX5_CQE_RESP_SEND_INV - MLX5_CQE_RESP_WR_IMM + 1;
        let differs = (self.0 as u8 & !SOLICITED).wrapping_sub(FIRST | format);
        differs.rotate_right(4) < COUNT
    }

    /// Opcode, format, and the solicited bit.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn op_own(self) -> OpOwn {
        OpOwn(self.0 as u8)
    }

    /// Requester: index of the WQE's first basic block. Responder: index of the receive WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn wqe_counter(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// [`wqe_counter`](Self::wqe_counter) as the index of a block of a send queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn block(self) -> BlockIndex {
        BlockIndex::of_upper(self.0 as u32)
    }

    /// QP number.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn qpn(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff_ffff
    }

    /// Requester: the same entry with an opcode that no WQE has, so that the completion's opcode is the recorded one.
    pub(crate) const fn of_unknown_opcode(self) -> Self {
        Self(self.0 | 0xff << 56)
    }

    /// The tail of a completion of the block with this title: another counter, and the plain format.
    pub(super) const fn of_block(self, wqe_counter: u16) -> Self {
        const DATA: u64 = (MLX5_INLINE_SCATTER_32 | MLX5_INLINE_SCATTER_64) as u64;
        Self(self.0 & !(0xffff << 16 | DATA) | (wqe_counter as u64) << 16)
    }

    /// Requester: the same entry with another opcode of the WQE.
    pub(super) const fn with_send_opcode(self, opcode: u8) -> Self {
        Self(self.0 & !(0xff << 56) | (opcode as u64) << 56)
    }

    /// Requester: opcode of the WQE.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn send_opcode(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

/// An entry in the ring. The offsets are those of [`Cqe64`](uverbs_mlx5_hw::cqe::Cqe64) and
/// [`ErrCqe`](uverbs_mlx5_hw::cqe::ErrCqe); the tests compare them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqeRef<'r>(pub(crate) &'r Block);

impl CqeRef<'_> {
    /// Eight bytes, converted from big-endian.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn word(self, index: usize) -> u64 {
        u64::from_be(self.0[index].load(Ordering::Relaxed))
    }

    /// The last 8 bytes, in the lap of `phase`. An aligned 8-byte load is a single access on every machine with such
    /// devices, so the other fields in the word are as new as the owner bit. Fields that are loaded after
    /// `barrier::from_device()` are, too.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn tail(self, phase: Phase) -> Tail {
        Tail(self.word(7) ^ phase.0)
    }

    /// One of the words, as it is in memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn raw_word(self, index: usize) -> u64 {
        self.0[index & (WORDS - 1)].load(Ordering::Relaxed)
    }

    /// The first 32 bytes, as they are in memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn first_words(self) -> [u64; 4] {
        core::array::from_fn(|i| self.raw_word(i))
    }

    /// User index or SRQ number in the low 24 bits; the upper 8 bits have another meaning.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn srqn_uidx(self) -> u32 {
        (self.word(4) >> 32) as u32
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn imm_inval_pkey(self) -> u32 {
        self.word(4) as u32
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn byte_cnt(self) -> u32 {
        self.word(5) as u32
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn timestamp(self) -> u64 {
        self.word(6)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn ml_path(self) -> u8 {
        (self.word(2) >> 48) as u8
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slid(self) -> u16 {
        self.word(2) as u16
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn flags_rqpn(self) -> u32 {
        (self.word(3) >> 32) as u32
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn hds_ip_ext(self) -> u8 {
        (self.word(3) >> 24) as u8
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn l4_hdr_type_etc(self) -> u8 {
        (self.word(3) >> 16) as u8
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn vlan_info(self) -> u16 {
        self.word(3) as u16
    }

    /// The syndrome (low byte) and the vendor's syndrome (the byte above it) of a failed completion.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn syndromes(self) -> (u8, u8) {
        let word = self.word(6);
        (word as u8, (word >> 8) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_depends_on_the_owner_bit_and_the_opcode_only() {
        for op_own in 0..=u8::MAX {
            for lap in 0..2_u8 {
                let phase = Phase::of(lap == 1);
                let tail = Tail(u64::from(op_own) ^ phase.0);
                let (opcode, owned) = (op_own >> 4, op_own & 1 == lap);
                let valid = opcode != 15 && owned;
                assert_eq!(tail.is_valid(), valid, "{op_own:#x}");
                let responder = valid && (1..=4).contains(&opcode);
                assert_eq!(tail.is_plain_requester(), valid && op_own & 0xfc == 0, "{op_own:#x}");
                assert_eq!(tail.is_plain_responder(), responder && op_own & 0xc == 0, "{op_own:#x}");
                assert_eq!(tail.is_responder_with_data(), responder && op_own & 0xc == 4, "{op_own:#x}");
                assert_eq!(u64::from_be(tail.word_in(phase)) as u8, op_own & 0xfe | lap);
            }
        }
        assert!(!Tail(NEVER_WRITTEN).is_valid());
    }
}
