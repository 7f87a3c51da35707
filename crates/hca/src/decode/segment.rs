// SPDX-License-Identifier: MIT OR Apache-2.0
//! The segments that WQEs are made of.

use super::Malformed;
use crate::bytes::{array, be16, be32, be64, zero};
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

/// An update of a memory key, for windows (`struct mlx5_wqe_umr_ctrl_seg`, `struct
/// mlx5_wqe_mkey_context_seg`, `struct mlx5_wqe_umr_klm_seg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Umr {
    /// The key that is updated, as it is now; only the upper 24 bits name it.
    pub mkey: u32,
    /// It must be free (a type 2 window is bound).
    pub check_free: bool,
    /// It must belong to this QP (invalidation).
    pub check_qpn: bool,
    /// Mask of the fields that change.
    pub mask: u64,
    /// New state: it is free, that is, not bound.
    pub free: bool,
    /// New access rights, `MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*`.
    pub access: u8,
    /// New low byte of the key.
    pub variant: u8,
    /// New QP, `0xff_ffff` for any.
    pub qpn: u32,
    /// New first address.
    pub start: u64,
    /// New length.
    pub len: u64,
    /// Its translation: length, key, address.
    pub klm: Option<(u32, u32, u64)>,
}

/// An update of a memory key by the kernel's UMR queue: fields of the key, and a part of the list of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUpdate {
    /// The key; only the upper 24 bits name it.
    pub mkey: u32,
    /// It must be free.
    pub must_be_free: bool,
    /// It must not be free.
    pub must_be_used: bool,
    /// Mask of the fields that change.
    pub mask: u64,
    /// The new fields (`struct mlx5_mkey_seg`, 64 bytes).
    pub fields: Vec<u8>,
    /// Index of the new part in the page list, in entries.
    pub at: u64,
    /// Entries of the new part, of 8 bytes each.
    pub entries: u64,
    /// The memory of the new part.
    pub list: Option<Segment>,
}

/// `MLX5_UMR_CHECK_FREE` of the kernel: fails if the key is free.
const FLAG_CHECK_USED: u8 = 1 << 6;

impl KeyUpdate {
    /// `MLX5_MKEY_MASK_PAGE_SIZE`
    pub const MASK_PAGE_SIZE: u64 = 1 << 1;
    /// `MLX5_MKEY_MASK_PD`
    pub const MASK_PD: u64 = 1 << 7;
}

/// Decodes the update of the kernel's queue whose control segment's immediate is `mkey`.
pub(super) fn key_update(wqe: &[u8], at: usize, mkey: u32) -> Result<KeyUpdate, Malformed> {
    let (key_at, data_at) = (at + UMR_CTRL, at + UMR_CTRL + MKEY);
    let fields = wqe.get(key_at..data_at).ok_or(Malformed::Short)?.to_vec();
    let flags = wqe[at];
    // Units of 16 bytes: two entries.
    let octowords = u64::from(be16(wqe, at + 4));
    let offset = u64::from(be16(wqe, at + 6)) | u64::from(be32(wqe, at + 16)) << 16;
    let list = match data_at + SEG <= wqe.len() {
        true if flags & FLAG_INLINE == 0 => Some(memory(wqe, data_at)),
        _ => None,
    };
    let entries = if list.is_some() { octowords * 2 } else { 0 };
    Ok(KeyUpdate {
        mkey,
        must_be_free: flags & FLAG_CHECK_FREE != 0,
        must_be_used: flags & FLAG_CHECK_USED != 0,
        mask: be64(wqe, at + 8),
        fields,
        at: if flags & FLAG_TRANSLATION_OFFSET == 0 { 0 } else { offset * 2 },
        entries,
        list,
    })
}

/// A key that belongs to no QP.
const ANY_QPN: u32 = 0xff_ffff;
const UMR_CTRL: usize = 48;
const MKEY: usize = 64;
const FLAG_INLINE: u8 = hw::MLX5_WQE_UMR_CTRL_FLAG_INLINE;
const FLAG_CHECK_FREE: u8 = hw::MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE;
const FLAG_TRANSLATION_OFFSET: u8 = hw::MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET;
const FLAG_CHECK_QPN: u8 = hw::MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN;
const MKEY_FREE: u8 = hw::MLX5_WQE_MKEY_CONTEXT_FREE;

impl Umr {
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN`
    pub const MASK_LEN: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN;
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR`
    pub const MASK_START: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR;
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY`
    pub const MASK_KEY: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY;
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN`
    pub const MASK_QPN: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN;
    /// The four access rights of the mask.
    pub const MASK_ACCESS: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE
        | hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ
        | hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE
        | hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC;
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE`
    pub const MASK_FREE: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE;
}

/// Decodes the update whose control segment's immediate is `mkey`.
pub(super) fn umr(wqe: &[u8], at: usize, mkey: u32) -> Result<Umr, Malformed> {
    let (key_at, klm_at) = (at + UMR_CTRL, at + UMR_CTRL + MKEY);
    if wqe.len() < klm_at {
        return Err(Malformed::Short);
    }
    let flags = wqe[at];
    let known = FLAG_INLINE | FLAG_CHECK_FREE | FLAG_TRANSLATION_OFFSET | FLAG_CHECK_QPN;
    // The translation must be in the WQE; windows use no other form.
    if flags & !known != 0 || flags & FLAG_INLINE == 0 {
        return Err(Malformed::Umr);
    }
    for (from, to) in [(1, 4), (6, 8), (16, 48)] {
        if !zero(wqe, at + from..at + to) {
            return Err(Malformed::NotZero((at + from) as u16));
        }
    }
    let mask = be64(wqe, at + 8);
    let known =
        Umr::MASK_LEN | Umr::MASK_START | Umr::MASK_KEY | Umr::MASK_QPN | Umr::MASK_ACCESS | Umr::MASK_FREE;
    if mask & !known != 0 {
        return Err(Malformed::Umr);
    }
    let key = be32(wqe, key_at + 4);
    let klm = match be16(wqe, at + 4) {
        0 => None,
        // One entry, rounded to the 64 bytes that entries come in.
        4 if wqe.len() >= klm_at + 64 => {
            Some((be32(wqe, klm_at), be32(wqe, klm_at + 4), be64(wqe, klm_at + 8)))
        }
        4 => return Err(Malformed::Short),
        _ => return Err(Malformed::Umr),
    };
    Ok(Umr {
        mkey,
        check_free: flags & FLAG_CHECK_FREE != 0,
        check_qpn: flags & FLAG_CHECK_QPN != 0,
        mask,
        free: wqe[key_at] & MKEY_FREE != 0,
        // Fields that are not in the mask are ignored.
        access: if mask & Umr::MASK_ACCESS == 0 { 0 } else { wqe[key_at + 2] },
        variant: key as u8,
        qpn: if mask & Umr::MASK_QPN == 0 { ANY_QPN } else { key >> 8 },
        start: if mask & Umr::MASK_START == 0 { 0 } else { be64(wqe, key_at + 16) },
        len: if mask & Umr::MASK_LEN == 0 { 0 } else { be64(wqe, key_at + 24) },
        klm,
    })
}
