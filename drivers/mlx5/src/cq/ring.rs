// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a completion queue: a power of two of entries that the device writes.
//!
//! Positions count on for ever and are masked here, so any `u32` is a good one. An entry's fields are read where they
//! stand, when they are asked for; the device writes whenever it likes, so what is read is not trusted.

use crate::buf::{Block, BlockRing, Place, QueueBuf, StrideRing};
use crate::cqe::{OpOwn, Scatter};
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_mlx5_hw::cqe::{
    MLX5_CQE_INVALID, MLX5_CQE_OWNER_MASK, MLX5_CQE_RESP_SEND_INV, MLX5_CQE_RESP_WR_IMM,
    MLX5_INLINE_SCATTER_32, MLX5_INLINE_SCATTER_64,
};

/// Words of 8 bytes in an entry without the data before it.
const WORDS: usize = 8;

/// The last word of an entry that the device has never written: opcode invalid.
const NEVER_WRITTEN: u64 = 0xf0;

/// The most entries. The consumer index has 24 bits, of which one must tell two laps apart.
const MAX_ENTRIES: u32 = 1 << 23;

/// The ring of a completion queue; its clones are the same one.
#[derive(Clone, Debug)]
pub struct CqRing {
    blocks: Arc<BlockRing>,
}

impl CqRing {
    /// A ring of `entries` of `cqe_size` bytes at the start of `buf`; `None` if that can't be.
    #[must_use]
    pub fn new(buf: Arc<QueueBuf>, entries: u32, cqe_size: u32) -> Option<Self> {
        if entries > MAX_ENTRIES || !matches!(cqe_size, 64 | 128) {
            return None;
        }
        let blocks = BlockRing::new(StrideRing::new(buf, 0, entries, cqe_size)?)?;
        Some(Self { blocks: Arc::new(blocks) })
    }

    /// Marks every entry as never written; before the device gets the ring.
    pub fn clear(&self) {
        for position in 0..self.entries() {
            self.entry(position).0[WORDS - 1].store(NEVER_WRITTEN.to_be(), Ordering::Relaxed);
        }
    }

    /// How many entries there are.
    #[inline(always)]
    pub fn entries(&self) -> u32 {
        self.blocks.ring().mask() + 1
    }

    /// Bytes of an entry.
    #[inline]
    pub fn cqe_size(&self) -> usize {
        self.blocks.ring().stride()
    }

    /// The owner bit of what the device writes at a position, in its lap.
    #[inline(always)]
    pub(crate) fn phase(&self, position: u32) -> Phase {
        Phase(u64::from(position & self.entries() != 0).to_be())
    }

    /// The entry at a position.
    #[inline(always)]
    pub(crate) fn entry(&self, position: u32) -> CqeRef<'_> {
        CqeRef(self.blocks.block(position))
    }

    /// The blocks that the entries stand in.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> &Arc<BlockRing> {
        &self.blocks
    }

    /// What is at a position, if the device has written it in that lap.
    #[inline]
    pub(crate) fn valid(&self, position: u32) -> Option<OpOwn> {
        let tail = self.entry(position).tail();
        tail.is_valid(self.phase(position)).then_some(tail.op_own())
    }

    /// The data that an entry carries. Bytes before an entry of 64 bytes are not the entry's: `None`.
    pub(crate) fn scattered(&self, position: u32, which: Scatter) -> Option<[u8; 64]> {
        let words = match which {
            Scatter::Own32 => self.entry(position).0.first_chunk::<4>()?.as_slice(),
            Scatter::Before64 => self.blocks.ring().element(position).split_last_chunk::<WORDS>()?.0,
        };
        let mut data = [0; 64];
        if words.len() * 8 < which.room() {
            return None;
        }
        for (bytes, word) in data.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(data)
    }

    /// Copies the entry of `source` at `from` to `to`, with the owner bit that fits there. Where the sizes differ, the
    /// entry proper is what is copied, and the data before it as far as both have them.
    pub(crate) fn copy_from(&self, to: u32, source: &Self, from: u32) {
        let (to_words, from_words) = (self.blocks.ring().element(to), source.blocks.ring().element(from));
        for (to, from) in to_words.iter().rev().zip(from_words.iter().rev()).skip(1) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let tail = source.entry(from).tail().with_phase(self.phase(to));
        self.entry(to).0[WORDS - 1].store(tail.0, Ordering::Relaxed);
    }

    /// Address that the kernel is told.
    pub fn addr(&self) -> u64 {
        self.blocks.ring().buf().addr()
    }
}

/// The owner bit of a lap, where the last 8 bytes of an entry have it in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(u64);

impl Phase {
    /// The same, or that of the next lap.
    #[inline(always)]
    pub(crate) fn after(self, wraps: bool) -> Self {
        if wraps { Self(self.0 ^ u64::from(MLX5_CQE_OWNER_MASK).to_be()) } else { self }
    }
}

/// What a [`Tail`] has as long as the device has not written it: bits, and their value. One compare, which may miss such an
/// entry and leave it to [`Tail::is_valid`], but is never wrong about a valid one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    bits: u64,
    value: u64,
}

impl Idle {
    /// In a ring that is new.
    pub(crate) const NEVER_WRITTEN: Self = Self { bits: NEVER_WRITTEN.to_be(), value: NEVER_WRITTEN.to_be() };

    /// Where the device has written in the lap before that of `phase`.
    #[inline(always)]
    pub(crate) const fn before(phase: Phase) -> Self {
        let bits = (MLX5_CQE_OWNER_MASK as u64).to_be();
        Self { bits, value: bits ^ phase.0 }
    }

    /// Whether it is so.
    #[inline(always)]
    pub(crate) const fn is(self, tail: Tail) -> bool {
        tail.0 & self.bits == self.value
    }
}

/// The last 8 bytes of an entry in one load, as they stand in memory: what every completion needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail(u64);

impl Tail {
    /// The big-endian number that it is.
    #[inline(always)]
    const fn value(self) -> u64 {
        u64::from_be(self.0)
    }

    /// What differs from a requester's success in this lap.
    #[inline(always)]
    const fn differs(self, phase: Phase, bits: u8) -> bool {
        (self.0 ^ phase.0) & (bits as u64).to_be() != 0
    }

    /// Whether the entry may be of this lap: if not, it is not valid.
    #[inline(always)]
    pub(crate) const fn is_owned(self, phase: Phase) -> bool {
        !self.differs(phase, MLX5_CQE_OWNER_MASK)
    }

    /// Whether the device has written the entry in this lap.
    #[inline(always)]
    pub(crate) const fn is_valid(self, phase: Phase) -> bool {
        self.is_owned(phase) && self.op_own().opcode() != MLX5_CQE_INVALID
    }

    /// Whether it is valid, a requester's success, and carries no data: everything but the solicited bit is 0.
    #[inline(always)]
    pub(crate) const fn is_plain_requester(self, phase: Phase) -> bool {
        !self.differs(phase, 0xfd)
    }

    /// Whether it is valid, a receive's success, and carries no data.
    #[inline(always)]
    pub(crate) const fn is_plain_responder(self, phase: Phase) -> bool {
        const FORMAT: u8 = MLX5_INLINE_SCATTER_32 | MLX5_INLINE_SCATTER_64;
        !self.differs(phase, FORMAT | MLX5_CQE_OWNER_MASK)
            && matches!(self.op_own().opcode(), MLX5_CQE_RESP_WR_IMM..=MLX5_CQE_RESP_SEND_INV)
    }

    /// Opcode, format and owner.
    #[inline(always)]
    pub(crate) const fn op_own(self) -> OpOwn {
        OpOwn(self.value() as u8)
    }

    /// Requester: the WQE's first basic block. Receive: its index.
    #[inline(always)]
    pub(crate) const fn wqe_counter(self) -> u16 {
        (self.value() >> 16) as u16
    }

    /// The same as a place in a send queue.
    #[inline(always)]
    pub(crate) const fn block(self) -> Place {
        Place::of_upper(self.value() as u32)
    }

    /// QP number.
    #[inline(always)]
    pub(crate) const fn qpn(self) -> u32 {
        (self.value() >> 32) as u32 & 0xff_ffff
    }

    /// Requester: opcode of the WQE.
    #[inline(always)]
    pub(crate) const fn send_opcode(self) -> u8 {
        (self.value() >> 56) as u8
    }

    const fn with_phase(self, phase: Phase) -> Self {
        Self(self.0 & !(MLX5_CQE_OWNER_MASK as u64).to_be() | phase.0)
    }
}

/// An entry in the ring. The offsets are those of [`Cqe64`](uverbs_mlx5_hw::cqe::Cqe64) and
/// [`ErrCqe`](uverbs_mlx5_hw::cqe::ErrCqe), which the tests compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqeRef<'r>(pub(crate) &'r Block);

impl CqeRef<'_> {
    /// Eight bytes, as the big-endian number that they are.
    #[inline(always)]
    fn word(self, index: usize) -> u64 {
        u64::from_be(self.0[index].load(Ordering::Relaxed))
    }

    /// The last 8 bytes. A load of 8 aligned bytes is one access on every machine with such devices, so they are as new
    /// as the owner bit in them; what is loaded after `barrier::from_device()` is, too.
    #[inline(always)]
    pub(crate) fn tail(self) -> Tail {
        Tail(self.raw_word(7))
    }

    /// One of the words, as it stands in memory.
    #[inline(always)]
    pub(crate) fn raw_word(self, index: usize) -> u64 {
        self.0[index & (WORDS - 1)].load(Ordering::Relaxed)
    }

    /// User index or SRQ number; the upper 8 bits are something else.
    #[inline(always)]
    pub(crate) fn srqn_uidx(self) -> u32 {
        (self.word(4) >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn imm_inval_pkey(self) -> u32 {
        self.word(4) as u32
    }

    #[inline(always)]
    pub(crate) fn byte_cnt(self) -> u32 {
        self.word(5) as u32
    }

    #[inline(always)]
    pub(crate) fn timestamp(self) -> u64 {
        self.word(6)
    }

    #[inline(always)]
    pub(crate) fn ml_path(self) -> u8 {
        (self.word(2) >> 48) as u8
    }

    #[inline(always)]
    pub(crate) fn slid(self) -> u16 {
        self.word(2) as u16
    }

    #[inline(always)]
    pub(crate) fn flags_rqpn(self) -> u32 {
        (self.word(3) >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn hds_ip_ext(self) -> u8 {
        (self.word(3) >> 24) as u8
    }

    #[inline(always)]
    pub(crate) fn l4_hdr_type_etc(self) -> u8 {
        (self.word(3) >> 16) as u8
    }

    #[inline(always)]
    pub(crate) fn vlan_info(self) -> u16 {
        self.word(3) as u16
    }

    /// Of a failed completion: the low byte is the syndrome, the one above it the vendor's.
    #[inline(always)]
    pub(crate) fn syndromes(self) -> (u8, u8) {
        let word = self.word(6);
        (word as u8, (word >> 8) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uverbs_mlx5_hw::cqe::{Cqe64, ErrCqe};
    use zerocopy::FromBytes;

    fn ring(entries: u32, cqe_size: u32) -> CqRing {
        CqRing::new(QueueBuf::new((entries * cqe_size) as usize).unwrap(), entries, cqe_size).unwrap()
    }

    fn put(ring: &CqRing, position: u32, bytes: &[u8]) {
        let words = ring.blocks.ring().element(position).iter().rev().take(bytes.len() / 8).rev();
        for (word, bytes) in words.zip(bytes.chunks(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
        }
    }

    fn get(ring: &CqRing, position: u32) -> Vec<u8> {
        ring.blocks
            .ring()
            .element(position)
            .iter()
            .flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }

    #[test]
    fn geometry() {
        let of = |bytes, entries, size| CqRing::new(QueueBuf::new(bytes).unwrap(), entries, size).is_some();
        assert!(of(4096, 64, 64) && of(4096, 32, 128) && of(4096, 1, 64));
        assert!(!of(4096, 128, 64) && !of(4096, 3, 64) && !of(4096, 32, 32) && !of(4096, 16, 256));
        assert!(!of(4096, 0, 64) && !of(4096, 1 << 24, 64));
    }

    #[test]
    fn only_the_owner_and_the_opcode_say_whether_an_entry_is_there() {
        for op_own in 0..=u8::MAX {
            let tail = Tail(u64::from(op_own).to_be());
            for lap in 0..2_u8 {
                let phase = Phase(0).after(lap == 1);
                let (opcode, owned) = (op_own >> 4, op_own & 1 == lap);
                let valid = opcode != 15 && owned;
                assert_eq!((tail.is_owned(phase), tail.is_valid(phase)), (owned, valid), "{op_own:#x}");
                let (sent, received) = (op_own & 0xfc == 0, op_own & 0xc == 0 && (1..=4).contains(&opcode));
                assert_eq!(tail.is_plain_requester(phase), valid && sent, "{op_own:#x}");
                assert_eq!(tail.is_plain_responder(phase), valid && received, "{op_own:#x}");
                assert!(!valid || !Idle::NEVER_WRITTEN.is(tail) && !Idle::before(phase).is(tail));
                assert_eq!(Idle::before(phase).is(tail), !owned);
                assert_eq!(tail.with_phase(phase).op_own().0, op_own & 0xfe | lap);
            }
        }
    }

    #[test]
    fn a_cleared_ring_is_empty_in_every_lap() {
        for size in [64, 128] {
            let ring = ring(8, size);
            ring.clear();
            assert!((0..32).all(|position| ring.valid(position).is_none()));
            assert_eq!((ring.entries(), ring.cqe_size()), (8, size as usize));
            assert_eq!([0, 7, 8, 15, 16].map(|p| ring.phase(p).0), [0, 0, 1, 1, 0].map(u64::to_be));
        }
    }

    #[test]
    fn data_before_an_entry_are_those_of_an_entry_of_128_bytes() {
        let ring = ring(2, 128);
        let bytes: Vec<u8> = (0..128).collect();
        put(&ring, 1, &bytes);
        assert_eq!(ring.scattered(1, Scatter::Before64).unwrap()[..], bytes[..64]);
        assert_eq!(ring.scattered(1, Scatter::Own32).unwrap()[..32], bytes[64..96]);
        let small = self::ring(2, 64);
        assert_eq!(small.scattered(1, Scatter::Before64), None);
        small.copy_from(0, &ring, 1);
        let mut want = bytes[64..].to_vec();
        want[63] &= 0xfe;
        assert_eq!(get(&small, 0), want);
    }

    proptest! {
        #[test]
        fn fields_are_those_of_the_format(bytes in any::<[u8; 32]>(), more in any::<[u8; 32]>()) {
            let bytes = [bytes, more].concat();
            let ring = ring(4, 128);
            put(&ring, 6, &bytes);
            let (cqe, want) = (ring.entry(2), Cqe64::read_from_bytes(&bytes).unwrap());
            let err = ErrCqe::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(cqe.tail().op_own().0, want.op_own);
            prop_assert_eq!(cqe.tail().wqe_counter(), want.wqe_counter.get());
            prop_assert_eq!((cqe.tail().qpn(), cqe.tail().send_opcode()), (want.qpn(), want.send_opcode()));
            prop_assert_eq!(cqe.srqn_uidx(), want.srqn_uidx.get());
            prop_assert_eq!(cqe.imm_inval_pkey(), want.imm_inval_pkey.get());
            prop_assert_eq!((cqe.byte_cnt(), cqe.timestamp()), (want.byte_cnt.get(), want.timestamp.get()));
            prop_assert_eq!((cqe.ml_path(), cqe.slid()), (want.ml_path, want.slid.get()));
            prop_assert_eq!((cqe.flags_rqpn(), cqe.vlan_info()), (want.flags_rqpn.get(), want.vlan_info.get()));
            prop_assert_eq!((cqe.hds_ip_ext(), cqe.l4_hdr_type_etc()), (want.hds_ip_ext, want.l4_hdr_type_etc));
            prop_assert_eq!(cqe.syndromes(), (err.syndrome, err.vendor_err_synd));
        }

        #[test]
        fn a_copy_differs_in_the_owner_bit_only(bytes in any::<[u8; 32]>(), from in 0_u32..16, to in 0_u32..16) {
            let source = ring(8, 128);
            let target = ring(4, 128);
            let bytes = [bytes; 4].concat();
            put(&source, from, &bytes);
            target.copy_from(to, &source, from);
            let mut want = bytes;
            want[127] = want[127] & 0xfe | u8::from(target.phase(to).0 != 0);
            prop_assert_eq!(get(&target, to), want);
        }
    }
}
