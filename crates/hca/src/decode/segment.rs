// SPDX-License-Identifier: MIT OR Apache-2.0
//! The segments that WQEs are made of.

use super::Malformed;
use crate::bytes::{array, be16, be32, be64};
use uverbs_mlx5_hw::wqe as hw;

/// Bytes of a scatter/gather, remote address or atomic segment.
pub(super) const SEG: usize = 16;
/// Bytes of an address vector (`struct mlx5_wqe_av`).
pub(super) const AV: usize = 48;
/// Bit of a byte count that marks inline data (`MLX5_INLINE_SEG`).
const INLINE: u32 = hw::MLX5_INLINE_SEG;

/// Data of a WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Registered memory (`struct mlx5_wqe_data_seg`).
    Memory {
        /// Bytes; the format's 0 is 2^31.
        length: u32,
        /// Key of the region.
        lkey: u32,
        /// Address.
        addr: u64,
    },
    /// Bytes in the WQE itself (`struct mlx5_wqe_inl_data_seg`).
    Inline(Vec<u8>),
}

impl Segment {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory { length, .. } => u64::from(*length),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A scatter/gather entry; the caller has checked the bit for inline data.
pub(super) fn memory(bytes: &[u8], at: usize) -> Segment {
    let length = match be32(bytes, at) {
        0 => 1 << 31,
        length => length,
    };
    Segment::Memory { length, lkey: be32(bytes, at + 4), addr: be64(bytes, at + 8) }
}

/// Appends the data segments from `at` to the end of the WQE.
pub(super) fn data(wqe: &[u8], mut at: usize, segments: &mut Vec<Segment>) -> Result<(), Malformed> {
    while at < wqe.len() {
        let count = be32(wqe, at);
        if count & INLINE == 0 {
            if at + SEG > wqe.len() {
                return Err(Malformed::Short);
            }
            segments.push(memory(wqe, at));
            at += SEG;
        } else {
            let len = (count & !INLINE) as usize;
            let bytes = wqe.get(at + 4..).and_then(|b| b.get(..len)).ok_or(Malformed::Inline)?;
            segments.push(Segment::Inline(bytes.to_vec()));
            // Padding in the last 16 bytes is ignored.
            at += (4 + len).next_multiple_of(SEG);
        }
    }
    Ok(())
}

/// The destination of a datagram (`struct mlx5_wqe_av`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Av {
    /// Q_Key and zeros, or the key of a DC target.
    pub key: u64,
    /// QP or DC target number.
    pub dest: u32,
    /// Service level: on InfiniBand the low 4 bits; on Ethernet 3 bits above one.
    pub sl: u8,
    /// Static rate, 4 bits.
    pub rate: u8,
    /// Path bits of the source LID, 7 bits.
    pub path_bits: u8,
    /// Remote LID; on Ethernet the UDP source port.
    pub rlid: u16,
    /// Remote MAC, on Ethernet.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// The packets carry a GRH (InfiniBand; on Ethernet they always do).
    pub grh: bool,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Destination GID.
    pub rgid: [u8; 16],
}

/// Bit of `dqp_dct` for a vector of 48 bytes (`MLX5_EXTENDED_UD_AV`).
const EXTENDED: u32 = hw::MLX5_EXTENDED_UD_AV;

/// The address vector at `at`.
pub(super) fn av(wqe: &[u8], at: usize) -> Result<Av, Malformed> {
    if at + AV > wqe.len() {
        return Err(Malformed::Short);
    }
    let dest = be32(wqe, at + 8);
    // Only older hardware has the short form of 16 bytes.
    if dest & EXTENDED == 0 {
        return Err(Malformed::NotZero(at as u16 + 8));
    }
    let (rate_sl, route) = (wqe[at + 12], be32(wqe, at + 28));
    Ok(Av {
        key: be64(wqe, at),
        // libmlx5 does not mask the number, so the upper bits are ignored.
        dest: dest & 0xff_ffff,
        sl: rate_sl & 0xf,
        rate: rate_sl >> 4,
        path_bits: wqe[at + 13] & 0x7f,
        rlid: be16(wqe, at + 14),
        rmac: array(wqe, at + 20).unwrap_or_default(),
        tclass: wqe[at + 26],
        hop_limit: wqe[at + 27],
        grh: route >> 30 & 1 != 0,
        sgid_index: (route >> 20) as u8,
        flow_label: route & 0xf_ffff,
        rgid: array(wqe, at + 32).unwrap_or_default(),
    })
}
