// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes a work request as the bytes of its WQE.
//!
//! | module | what |
//! |---|---|
//! | `plain` | encodes sends, RDMA and atomics, for all interfaces |
//! | `data` | scatter/gather entries and inline data |
//! | `eth` | raw packets and TSO |
//! | `umr` | memory windows and invalidations |
//! | `mkey` | indirect keys and their signatures |
//! | `recv` | the entries of receives |
//! | `writer` | writes units of a WQE to the ring |
//!
//! These functions ring no doorbell, take no lock and make no system call. A WQE is a control segment, then the segments
//! that PRM 8.9 defines for its opcode and transport, then the data. Its size is counted in units of 16 bytes. The control
//! segment contains that count, so it is written last.
//!
//! Words are composed in host order with the first byte in the top bits, and stored with `to_be`: constant parts are folded
//! at compile time, so one or two byte swaps remain.

mod data;
pub(crate) mod eth;
pub(crate) mod mkey;
pub(crate) mod plain;
pub(crate) mod recv;
pub(crate) mod umr;
mod writer;

pub(crate) use data::{
    Answer, DataLimits, SHORT_INLINE, SendEntry, one_entry, ordinary_words, put_entries, put_frame_entries,
    put_inline, put_inline_behind, put_ordinary, put_ordinary_inline, put_short_inline,
};
pub(crate) use recv::RecvFormat;
pub use recv::WireEntry;
pub(crate) use writer::{InlineWriter, WqeWriter};

use self::plain::Units;
use crate::memory::BlockIndex;
use core::fmt;
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{PostError, WireRemote, WireSge};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe as hw;
use uverbs_mlx5_hw::wqe::Av;

/// Units of a control segment.
pub(crate) const CTRL_UNITS: u32 = 1;
/// Units of an address vector.
pub(crate) const AV_UNITS: u32 = 3;

/// A scatter/gather entry in the format of the WQE: the bytes of a `DataSeg`.
///
/// In this format a count of 0 means 2^31 bytes, and there is no entry of 0 bytes. Here an empty entry has the count 2^31,
/// which is never written to a WQE. Both special counts have only 0 in their lower bits, so one test finds them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    pub(crate) words: [u64; 2],
}

impl Sge {
    /// The bits of the first word that are all 0 in a special entry only.
    const COUNT: u64 = (((MAX_SGE_LENGTH - 1) as u64) << 32).to_be();

    /// From values in host order; `length` is at most 2^31.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn from_host(addr: u64, length: u32, lkey: u32) -> Self {
        Self { words: [((Self::count(length) as u64) << 32 | lkey as u64).to_be(), addr.to_be()] }
    }

    /// The count of a length: the counts of 0 and 2^31 bytes are exchanged.
    #[cfg_attr(not(debug_assertions), inline(always))]
    const fn count(length: u32) -> u32 {
        if length & (MAX_SGE_LENGTH - 1) == 0 { length ^ MAX_SGE_LENGTH } else { length }
    }

    /// Whether the entry is empty or has 2^31 bytes.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn is_special(&self) -> bool {
        self.words[0] & Self::COUNT == 0
    }
}

impl WireSge for Sge {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(addr: u64, length: u32, lkey: u32) -> Result<Self, PostError> {
        if length > MAX_SGE_LENGTH {
            return Err(PostError::InvalidLength);
        }
        Ok(Self::from_host(addr, length, lkey))
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn with_length(self, length: u32) -> Self {
        let key = self.words[0] & u64::from(u32::MAX).to_be();
        Self { words: [key | (u64::from(Self::count(length)) << 32).to_be(), self.words[1]] }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn addr(&self) -> u64 {
        u64::from_be(self.words[1])
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn length(&self) -> u32 {
        let count = (u64::from_be(self.words[0]) >> 32) as u32;
        if self.is_special() { count ^ MAX_SGE_LENGTH } else { count }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn lkey(&self) -> u32 {
        u64::from_be(self.words[0]) as u32
    }
}

impl fmt::Debug for Sge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sge")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("length", &self.length())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .finish()
    }
}

/// A remote address in the format of the WQE: the bytes of a `RaddrSeg`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    // codegen: words
    addr: u64,
    key: u64,
}

impl Remote {
    /// The 16 bytes of the segment.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn words(self) -> [u64; 2] {
        [self.addr, self.key]
    }
}

impl WireRemote for Remote {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(addr: u64, rkey: u32) -> Self {
        Self { addr: addr.to_be(), key: (u64::from(rkey) << 32).to_be() }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn addr(&self) -> u64 {
        u64::from_be(self.addr)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn rkey(&self) -> u32 {
        (u64::from_be(self.key) >> 32) as u32
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .finish()
    }
}

/// An address vector in the format of the WQE, without the destination's number and key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ah {
    words: [u64; 6],
}

impl Ah {
    /// Converts an address vector; its number and keys are ignored.
    #[must_use]
    pub fn new(av: &Av) -> Self {
        let mut words: [u64; 6] = zerocopy::transmute!(*av);
        words[0] = 0;
        words[1] = (u64::from_be(words[1]) & 0xffff_ffff).to_be();
        Self { words }
    }

    /// The address vector, with number and keys 0.
    #[must_use]
    pub fn av(&self) -> Av {
        zerocopy::transmute!(self.words)
    }

    /// The address of the vector's bytes, for a program that writes WQEs itself.
    #[must_use]
    pub fn as_ptr(&self) -> *const Av {
        self.words.as_ptr().cast()
    }

    /// Writes the 48 bytes for a datagram (`key` has the Q_Key in its upper half) or a DC target (`key` is the access key) from `unit`
    /// on. A unit is loaded when the one before it is written, so that two registers are enough.
    // codegen: live
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn put(&self, units: &mut impl Units, unit: u32, key: u64, number: u32) {
        let number = u64::from(number | hw::MLX5_EXTENDED_UD_AV) << 32;
        units.put_unit(unit, [key.to_be(), self.words[1] | number.to_be()]);
        units.put_unit(unit + 1, [self.words[2], self.words[3]]);
        units.put_unit(unit + 2, [self.words[4], self.words[5]]);
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.av().fmt(f)
    }
}

/// The hardware's opcode. Opcodes that no queue posts are mapped to NOP.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn hw_opcode(opcode: WrOpcode) -> u8 {
    match opcode {
        WrOpcode::RDMA_WRITE => hw::MLX5_OPCODE_RDMA_WRITE,
        WrOpcode::RDMA_WRITE_WITH_IMM => hw::MLX5_OPCODE_RDMA_WRITE_IMM,
        WrOpcode::SEND => hw::MLX5_OPCODE_SEND,
        WrOpcode::SEND_WITH_IMM => hw::MLX5_OPCODE_SEND_IMM,
        WrOpcode::SEND_WITH_INV => hw::MLX5_OPCODE_SEND_INVAL,
        WrOpcode::RDMA_READ => hw::MLX5_OPCODE_RDMA_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP => hw::MLX5_OPCODE_ATOMIC_CS,
        WrOpcode::ATOMIC_FETCH_AND_ADD => hw::MLX5_OPCODE_ATOMIC_FA,
        WrOpcode::LOCAL_INV | WrOpcode::BIND_MW => hw::MLX5_OPCODE_UMR,
        WrOpcode::TSO => hw::MLX5_OPCODE_TSO,
        _ => hw::MLX5_OPCODE_NOP,
    }
}

/// Flags that every WR may have. `INLINE` is ignored here: the type of the data determines it.
const PLAIN_FLAGS: u32 =
    SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED).union(SendFlags::INLINE).bits();

/// Whether all flags are allowed on every QP type. `IP_CSUM` is not: it is allowed on raw packet QPs only.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn are_plain(flags: SendFlags) -> bool {
    flags.bits() & !PLAIN_FLAGS == 0
}

/// Converts the flags to those of the control segment.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn fm_ce_se(flags: SendFlags) -> u8 {
    const { assert!(SendFlags::FENCE.bits() << 7 == hw::MLX5_WQE_CTRL_FENCE as u32) };
    const { assert!(SendFlags::SIGNALED.bits() << 2 == hw::MLX5_WQE_CTRL_CQ_UPDATE as u32) };
    const { assert!(SendFlags::SOLICITED.bits() >> 1 == hw::MLX5_WQE_CTRL_SOLICITED as u32) };
    let bits = flags.bits();
    ((bits & SendFlags::FENCE.bits()) << 7
        | (bits & SendFlags::SIGNALED.bits()) << 2
        | (bits & SendFlags::SOLICITED.bits()) >> 1) as u8
}

/// The control segment's first word; `base` contains the QP number.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn ctrl0(base: u64, place: BlockIndex, opcode: u8, ds: u64) -> u64 {
    // Opcode and units are constant in most calls, so this is one constant.
    let shape = (opcode as u64) << 32 | ds;
    (base | place.index_at(40) | shape).to_be()
}

/// The control segment's second word, as in memory. `imm` is in host order.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn ctrl1(fm_ce_se: u8, imm: u32) -> u64 {
    ((fm_ce_se as u64) << 32 | imm as u64).to_be()
}

/// The base of [`ctrl0`] for a QP number.
pub(crate) const fn ctrl_base(qpn: u32) -> u64 {
    (qpn as u64 & 0xff_ffff) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uverbs_mlx5_hw::wqe::{CtrlSeg, DataSeg, RaddrSeg};
    use uverbs_mlx5_hw::{Be16, Be32, Be64};

    proptest! {
        #[test]
        fn an_entry_has_the_bytes_of_a_data_segment(addr: u64, length in 1..MAX_SGE_LENGTH, lkey: u32) {
            let sge = Sge::new(addr, length, lkey).unwrap();
            let seg: DataSeg = zerocopy::transmute!(sge.words);
            prop_assert_eq!(seg, DataSeg::new(length, lkey, addr));
            prop_assert_eq!((sge.addr(), sge.length(), sge.lkey()), (addr, length, lkey));
            prop_assert!(!sge.is_special());
            for other in [0, 7, MAX_SGE_LENGTH] {
                let other = Sge::new(addr, other, lkey).unwrap();
                prop_assert_eq!((other.with_length(length), sge.with_length(other.length())), (sge, other));
            }
        }

        #[test]
        fn a_remote_address_has_the_bytes_of_a_raddr_segment(raddr: u64, rkey: u32) {
            let remote = Remote::new(raddr, rkey);
            let seg: RaddrSeg = zerocopy::transmute!(remote.words());
            let expected = RaddrSeg { raddr: Be64::new(raddr), rkey: Be32::new(rkey), reserved: Be32::new(0) };
            prop_assert_eq!(seg, expected);
            prop_assert_eq!((remote.addr(), remote.rkey()), (raddr, rkey));
        }

        #[test]
        fn two_words_have_the_bytes_of_a_control_segment(qpn in 0_u32..1 << 24, index: u32, opcode: u8, ds in 1_u64..64, fm: u8, imm: u32) {
            let words = [ctrl0(ctrl_base(qpn), BlockIndex::of(index), opcode, ds), ctrl1(fm, imm)];
            let seg: CtrlSeg = zerocopy::transmute!(words);
            prop_assert_eq!(seg, CtrlSeg::new(0, index as u16, opcode, qpn, ds as u8, fm, Be32::new(imm)));
        }

        #[test]
        fn number_and_key_are_put_into_the_address_vector(bytes: [u8; 48], key: u64, number: u32) {
            let av: Av = zerocopy::transmute!(bytes);
            let ah = Ah::new(&av);
            let mut expected = av;
            expected.set_dc_key(key);
            expected.dqp_dct = Be32::new(number | hw::MLX5_EXTENDED_UD_AV);
            let mut block = [0; 8];
            ah.put(&mut block, 0, key, number);
            let [words @ .., _, _] = block;
            let got: Av = zerocopy::transmute!(words);
            prop_assert_eq!(got, expected);
            prop_assert_eq!((ah.av().dc_key(), ah.av().dqp_dct.get(), ah.av().rlid), (0, 0, av.rlid));
        }
    }

    #[test]
    fn empty_and_longest_entries_are_distinguished() {
        let (empty, longest) = (Sge::new(7, 0, 3).unwrap(), Sge::new(7, MAX_SGE_LENGTH, 3).unwrap());
        assert!(empty.is_special() && longest.is_special());
        assert_eq!((empty.length(), longest.length()), (0, MAX_SGE_LENGTH));
        let seg: DataSeg = zerocopy::transmute!(longest.words);
        assert_eq!(seg.byte_count.get(), 0, "0 means 2^31");
        assert_eq!(Sge::new(7, MAX_SGE_LENGTH + 1, 3), Err(PostError::InvalidLength));
        assert_eq!(Sge::new(7, u32::MAX, 3), Err(PostError::InvalidLength));
    }

    #[test]
    fn opcodes_are_those_of_the_prm() {
        let opcodes: Vec<_> = (0..12).map(|opcode| hw_opcode(WrOpcode(opcode))).collect();
        assert_eq!(opcodes, [0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x25, 0x25, 0x01, 0x0e, 0x00]);
    }

    #[test]
    fn flags_are_converted_to_those_of_the_control_segment() {
        let fm = |flags: SendFlags| (are_plain(flags), fm_ce_se(flags));
        assert_eq!(fm(SendFlags::empty()), (true, 0));
        assert_eq!(fm(SendFlags::FENCE), (true, 0x80));
        assert_eq!(fm(SendFlags::SIGNALED | SendFlags::INLINE), (true, 8));
        assert_eq!(fm(SendFlags::SOLICITED | SendFlags::FENCE), (true, 0x82));
        assert_eq!(fm(SendFlags::IP_CSUM), (false, 0));
        assert_eq!(fm(SendFlags::from_bits_retain(1 << 5)), (false, 0));
        assert_eq!(Be16::new(1).get(), 1);
    }
}
