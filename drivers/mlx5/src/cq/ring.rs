// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a completion queue: entries that the device writes. Their number is a power of two.
//!
//! Positions count without bound and are masked here, so any `u32` is valid. Fields are loaded from the ring when they are
//! needed; the device may write at any time, so their values are not trusted.

use super::compressed::CqeCompression;
use super::entry::{CqeRef, NEVER_WRITTEN, Phase, Tail, WORDS};
use crate::cq::cqe::OpOwn;
use crate::memory::{BlockRing, QueueBuf, StrideRing};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// The largest ring. The consumer index has 24 bits, one of which distinguishes two laps.
const MAX_ENTRIES: u32 = 1 << 23;

/// The ring of a completion queue; clones share the memory.
#[derive(Clone, Debug)]
pub struct CqRing {
    blocks: Arc<BlockRing>,
    /// `None` if the device writes no compressed entries.
    compression: Option<CqeCompression>,
}

impl CqRing {
    /// A ring of `entries` entries of `cqe_size` bytes at the start of `buf`; `None` if the sizes are invalid.
    #[must_use]
    pub fn new(buf: Arc<QueueBuf>, entries: u32, cqe_size: u32) -> Option<Self> {
        if entries > MAX_ENTRIES || !matches!(cqe_size, 64 | 128) {
            return None;
        }
        let blocks = BlockRing::new(StrideRing::new(buf, 0, entries, cqe_size)?)?;
        Some(Self { blocks: Arc::new(blocks), compression: None })
    }

    /// The same ring, to which the device may write compressed entries.
    #[must_use]
    pub fn with_compression(self, compression: Option<CqeCompression>) -> Self {
        Self { compression, ..self }
    }

    /// The format of its compressed entries; `None` if there are none.
    #[must_use]
    pub fn compression(&self) -> Option<CqeCompression> {
        self.compression
    }

    /// Marks every entry as never written. To be called before the device can write to the ring.
    pub fn clear(&self) {
        for position in 0..self.entries() {
            self.entry(position).0[WORDS - 1].store(NEVER_WRITTEN.to_be(), Ordering::Relaxed);
        }
    }

    /// The number of entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn entries(&self) -> u32 {
        self.blocks.ring().mask() + 1
    }

    /// Bytes of an entry.
    #[inline]
    pub fn cqe_size(&self) -> usize {
        self.blocks.ring().stride()
    }

    /// The owner bit of an entry that the device writes at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn phase(&self, position: u32) -> Phase {
        Phase::of(position & self.entries() != 0)
    }

    /// The entry at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn entry(&self, position: u32) -> CqeRef<'_> {
        CqeRef(self.blocks.block(position))
    }

    /// The tail of the entry at a position, in its lap.
    #[inline]
    pub(crate) fn tail(&self, position: u32) -> Tail {
        self.entry(position).tail(self.phase(position))
    }

    /// The blocks of the entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn blocks(&self) -> &Arc<BlockRing> {
        &self.blocks
    }

    /// The opcode byte of the entry at a position, if the device has written it in that lap.
    #[inline]
    pub(crate) fn valid(&self, position: u32) -> Option<OpOwn> {
        let tail = self.tail(position);
        tail.is_valid().then_some(tail.op_own())
    }

    /// The data in the 64 bytes before an entry; `None` if the entries have 64 bytes.
    pub(crate) fn data_before(&self, position: u32) -> Option<[u64; WORDS]> {
        let words = self.blocks.ring().element(position).split_last_chunk::<WORDS>()?.0;
        let words = words.last_chunk::<WORDS>()?;
        Some(core::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }

    /// Copies the entry of `source` at `from` to `to` and sets the owner bit for that position. If the entries' sizes
    /// differ, the last 64 bytes are copied.
    pub(crate) fn copy_from(&self, to: u32, source: &Self, from: u32) {
        let (to_words, from_words) = (self.blocks.ring().element(to), source.blocks.ring().element(from));
        for (to, from) in to_words.iter().rev().zip(from_words.iter().rev()).skip(1) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let tail = source.tail(from).word_in(self.phase(to));
        self.entry(to).0[WORDS - 1].store(tail, Ordering::Relaxed);
    }

    /// The ring's memory.
    pub(crate) fn buf(&self) -> &Arc<QueueBuf> {
        self.blocks.ring().buf()
    }

    /// The ring's address for the kernel.
    pub fn addr(&self) -> u64 {
        self.blocks.ring().buf().addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uverbs_mlx5_hw::cqe::{Cqe64, ErrCqe};
    use zerocopy::{FromBytes, IntoBytes};

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
    fn invalid_sizes_are_rejected() {
        let of = |bytes, entries, size| CqRing::new(QueueBuf::new(bytes).unwrap(), entries, size).is_some();
        assert!(of(4096, 64, 64) && of(4096, 32, 128) && of(4096, 1, 64));
        assert!(!of(4096, 128, 64) && !of(4096, 3, 64) && !of(4096, 32, 32) && !of(4096, 16, 256));
        assert!(!of(4096, 0, 64) && !of(4096, 1 << 24, 64));
    }

    #[test]
    fn a_cleared_ring_is_empty_in_every_lap() {
        for size in [64, 128] {
            let ring = ring(8, size);
            ring.clear();
            assert!((0..32).all(|position| ring.valid(position).is_none()));
            assert_eq!((ring.entries(), ring.cqe_size()), (8, size as usize));
            assert_eq!(
                [0, 7, 8, 15, 16].map(|p| ring.phase(p)),
                [0, 0, 1, 1, 0].map(|odd| Phase::of(odd == 1))
            );
        }
    }

    #[test]
    fn only_entries_of_128_bytes_have_data_before_them() {
        let ring = ring(2, 128);
        let bytes: Vec<u8> = (0..128).collect();
        put(&ring, 1, &bytes);
        assert_eq!(ring.data_before(1).unwrap().as_bytes(), &bytes[..64]);
        assert_eq!(ring.entry(1).first_words().as_bytes(), &bytes[64..96]);
        let small = self::ring(2, 64);
        assert_eq!(small.data_before(1), None);
        small.copy_from(0, &ring, 1);
        let mut want = bytes[64..].to_vec();
        want[63] &= 0xfe;
        assert_eq!(get(&small, 0), want);
    }

    proptest! {
        #[test]
        fn fields_match_the_format(bytes in any::<[u8; 32]>(), more in any::<[u8; 32]>()) {
            let bytes = [bytes, more].concat();
            let ring = ring(4, 128);
            put(&ring, 6, &bytes);
            let (cqe, want) = (ring.entry(2), Cqe64::read_from_bytes(&bytes).unwrap());
            let err = ErrCqe::read_from_bytes(&bytes).unwrap();
            let tail = ring.tail(2);
            prop_assert_eq!(tail.op_own().0, want.op_own);
            prop_assert_eq!(tail.wqe_counter(), want.wqe_counter.get());
            prop_assert_eq!((tail.qpn(), tail.send_opcode()), (want.qpn(), want.send_opcode()));
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
            want[127] = want[127] & 0xfe | u8::from(target.phase(to) == Phase::of(true));
            prop_assert_eq!(get(&target, to), want);
        }
    }
}
