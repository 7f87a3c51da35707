// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of memory keys: the segments of a UMR, and the value that a signature begins with.

use super::Malformed;
use super::segment::{SEG, Segment, memory};
use crate::bytes::{array, be16, be32, be64, zero};
use uverbs_mlx5_hw::wqe as hw;

/// An update of a window's or an indirect key (`struct mlx5_wqe_umr_ctrl_seg`, `struct mlx5_wqe_mkey_context_seg`, `struct
/// mlx5_wqe_umr_klm_seg`).
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Whether its signature is in use.
    pub signs: bool,
    /// The index of the first new entry; without one, the new entries are the whole list.
    pub at: Option<u16>,
    /// New entries of its translation.
    pub entries: Entries,
    /// New signature (`struct mlx5_bsf` of libmlx5).
    pub bsf: Option<[u8; 64]>,
}

/// Entries of a translation, 16 bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries {
    /// The WQE has none.
    Kept,
    /// In the WQE.
    Inline(Vec<[u8; 16]>),
    /// So many in registered memory.
    Memory(u16, Segment),
}

impl Umr {
    /// The fields of the first entry, if it is in the WQE: length, key, address.
    #[must_use]
    pub fn first(&self) -> Option<(u32, u32, u64)> {
        match &self.entries {
            Entries::Inline(list) => {
                list.first().map(|entry| (be32(entry, 0), be32(entry, 4), be64(entry, 8)))
            }
            _ => None,
        }
    }
}

/// The value that the signature of the next block begins with, and the number that names it
/// (`struct mlx5_wqe_set_psv_seg` of libmlx5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPsv {
    /// Its number.
    pub index: u32,
    /// The value.
    pub signature: u64,
}

/// Decodes the segment at `at`.
pub(super) fn set_psv(wqe: &[u8], at: usize) -> Result<SetPsv, Malformed> {
    if wqe.len() < at + SEG {
        return Err(Malformed::Short);
    }
    // The syndrome of an error before, which it clears, and reserved bytes.
    if !zero(wqe, at + 4..at + 8) {
        return Err(Malformed::NotZero(at as u16 + 4));
    }
    Ok(SetPsv { index: be32(wqe, at) & 0xff_ffff, signature: be64(wqe, at + 8) })
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
const BSF: usize = 64;
/// Units of 16 bytes of a signature.
const BSF_UNITS: u16 = 4;
/// `MLX5_WQE_MKEY_CONTEXT_FLAGS_BSF_ENABLE` of libmlx5.
const BSF_ENABLE: u32 = 1 << 30;
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
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR`
    pub const MASK_SIG_ERR: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR;
    /// `MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE`
    pub const MASK_BSF: u64 = hw::MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE;
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
    const MASKS: u64 = Self::MASK_LEN
        | Self::MASK_START
        | Self::MASK_SIG_ERR
        | Self::MASK_BSF
        | Self::MASK_KEY
        | Self::MASK_QPN
        | Self::MASK_ACCESS
        | Self::MASK_FREE;
}

/// Decodes the update whose control segment's immediate is `mkey`.
pub(super) fn umr(wqe: &[u8], at: usize, mkey: u32) -> Result<Umr, Malformed> {
    let (key_at, list_at) = (at + UMR_CTRL, at + UMR_CTRL + MKEY);
    if wqe.len() < list_at {
        return Err(Malformed::Short);
    }
    let flags = wqe[at];
    let known = FLAG_INLINE | FLAG_CHECK_FREE | FLAG_TRANSLATION_OFFSET | FLAG_CHECK_QPN;
    if flags & !known != 0 {
        return Err(Malformed::Umr);
    }
    for (from, to) in [(1, 4), (16, 48)] {
        if !zero(wqe, at + from..at + to) {
            return Err(Malformed::NotZero((at + from) as u16));
        }
    }
    let mask = be64(wqe, at + 8);
    if mask & !Umr::MASKS != 0 {
        return Err(Malformed::Umr);
    }
    // The field is an offset in the list or the size of the signature.
    let (units, union) = (be16(wqe, at + 4), be16(wqe, at + 6));
    let offset = (flags & FLAG_TRANSLATION_OFFSET != 0).then_some(union);
    let bsf_units = if offset.is_some() { 0 } else { union };
    // Entries come in 64 bytes. Signature and list in the WQE are behind each other.
    if !units.is_multiple_of(4) || !matches!(bsf_units, 0 | BSF_UNITS) {
        return Err(Malformed::Umr);
    }
    let mut end = list_at;
    let entries = match units {
        0 => Entries::Kept,
        _ if flags & FLAG_INLINE == 0 => {
            // The length of the list is in the control segment.
            end += SEG;
            let segment = wqe.get(list_at..end).map(|_| memory(wqe, list_at)).ok_or(Malformed::Short)?;
            Entries::Memory(units, segment)
        }
        _ => {
            end += usize::from(units) * SEG;
            let list = wqe.get(list_at..end).ok_or(Malformed::Short)?;
            Entries::Inline(list.chunks_exact(SEG).filter_map(|entry| array(entry, 0)).collect())
        }
    };
    let bsf = match bsf_units {
        0 => None,
        _ if flags & FLAG_INLINE == 0 => return Err(Malformed::Umr),
        _ => Some(array::<BSF>(wqe, end).ok_or(Malformed::Short)?),
    };
    let (key, flags_pd) = (be32(wqe, key_at + 4), be32(wqe, key_at + 12));
    let has = |bit: u64| mask & bit != 0;
    Ok(Umr {
        mkey,
        check_free: flags & FLAG_CHECK_FREE != 0,
        check_qpn: flags & FLAG_CHECK_QPN != 0,
        mask,
        free: wqe[key_at] & MKEY_FREE != 0,
        // Fields that are not in the mask are ignored.
        access: if has(Umr::MASK_ACCESS) { wqe[key_at + 2] } else { 0 },
        variant: key as u8,
        qpn: if has(Umr::MASK_QPN) { key >> 8 } else { ANY_QPN },
        start: if has(Umr::MASK_START) { be64(wqe, key_at + 16) } else { 0 },
        len: if has(Umr::MASK_LEN) { be64(wqe, key_at + 24) } else { 0 },
        signs: has(Umr::MASK_BSF) && flags_pd & BSF_ENABLE != 0,
        at: offset.filter(|_| entries != Entries::Kept),
        entries,
        bsf,
    })
}
