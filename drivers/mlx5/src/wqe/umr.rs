// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows and invalidations: a UMR WQE that writes a memory key. PRM 8.9.4.7 and 8.9.4.8.
//!
//! A bind writes the range, the access rights and one translation entry; unbinding and invalidating only free the key. A
//! type 1 window belongs to its PD, a type 2 window to the QP that binds it.

use super::{CTRL_UNITS, WqeWriter};
use uverbs_core::attr::AccessFlags;
use uverbs_core::provider::PostError;
use uverbs_core::provider::op::MwBind;
use uverbs_mlx5_hw::wqe::*;
use uverbs_mlx5_hw::{Be16, Be32, Be64};
use zerocopy::transmute;

/// The longest range of a translation entry with a length.
const MAX_KLM_LENGTH: u64 = 1 << 31;
/// The translation entries are padded to 64 bytes; their size is given in units of 16 bytes.
const KLM_OCTOWORDS: u16 = 4;
/// A QP number that no QP has: the key belongs to no QP.
const ANY_QP: u32 = 0xff_ffff;

/// Units of a WQE that frees a key.
pub(crate) const FREE_UNITS: u32 = CTRL_UNITS + 3 + 4;
/// Units of a WQE that binds a window.
pub(crate) const BIND_UNITS: u32 = FREE_UNITS + 4;

/// The rights in a memory key by the lowest four bits of `ibv_access_flags`.
const RIGHTS: [u8; 16] = {
    let mut rights = [0; 16];
    let mut access = 0;
    while access < rights.len() {
        let pairs = [
            (AccessFlags::REMOTE_READ, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ),
            (AccessFlags::REMOTE_WRITE, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE),
            (AccessFlags::REMOTE_ATOMIC, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC),
        ];
        let mut i = 0;
        while i < pairs.len() {
            if pairs[i].0.bits() & access as u32 != 0 {
                rights[access] |= pairs[i].1;
            }
            i += 1;
        }
        access += 1;
    }
    rights
};

/// Writes the segments of an invalidation after the control segment; returns the WQE's units.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_local_inv(slot: WqeWriter<'_>) -> u32 {
    put_free(slot, true, 0)
}

/// Writes the segments of a bind, or of an unbind if the length is 0, after the control segment; returns the WQE's units.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_bind(slot: WqeWriter<'_>, qpn: u32, bind: &MwBind) -> Result<u32, PostError> {
    if bind.length > MAX_KLM_LENGTH {
        return Err(PostError::Unsupported);
    }
    let type2 = match bind.mw_type {
        1 => false,
        2 => true,
        _ => return Err(PostError::InvalidArgument),
    };
    if bind.length == 0 {
        return Ok(put_free(slot, type2, bind.rkey));
    }

    let mut flags = MLX5_WQE_UMR_CTRL_FLAG_INLINE | MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET;
    let mut mask = MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE
        | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC;
    if type2 {
        flags |= MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE;
        mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN;
    }
    put_ctrl(slot, flags, KLM_OCTOWORDS, mask);

    let access = AccessFlags::from_bits_retain(bind.access);
    let zero_based = access.contains(AccessFlags::ZERO_BASED);
    put_mkey(
        slot,
        MkeyContextSeg {
            access_flags: RIGHTS[(bind.access & 15) as usize],
            qpn_mkey: qpn_mkey(if type2 { qpn } else { ANY_QP }, bind.rkey),
            start_addr: Be64::new(if zero_based { 0 } else { bind.addr }),
            len: Be64::new(bind.length),
            ..Default::default()
        },
    );
    let klm = KlmSeg {
        byte_count: Be32::new(bind.length as u32),
        mkey: Be32::new(bind.mr_lkey),
        address: Be64::new(bind.addr),
    };
    put_first(slot, 2, transmute!(klm));
    Ok(BIND_UNITS)
}

/// Writes the segments that free a key; returns the WQE's units.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_free(slot: WqeWriter<'_>, type2: bool, rkey: u32) -> u32 {
    let mut flags = MLX5_WQE_UMR_CTRL_FLAG_INLINE | MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET;
    let mut mask = MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY;
    if type2 {
        flags |= MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN;
        mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN;
    }
    put_ctrl(slot, flags, 0, mask);
    let seg = MkeyContextSeg {
        free: MLX5_WQE_MKEY_CONTEXT_FREE,
        qpn_mkey: qpn_mkey(ANY_QP, rkey),
        ..Default::default()
    };
    // The other fields are 0.
    let [first, ..]: [[u64; 2]; 4] = transmute!(seg);
    put_first(slot, 1, first);
    FREE_UNITS
}

/// The QP number, and the low byte of the key, which the user may change.
#[cfg_attr(not(debug_assertions), inline(always))]
fn qpn_mkey(qpn: u32, rkey: u32) -> Be32 {
    Be32::new(qpn << 8 | rkey & 0xff)
}

/// Writes the UMR control segment: the units 1 to 3.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_ctrl(slot: WqeWriter<'_>, flags: u8, klm_octowords: u16, mask: u64) {
    let seg = UmrCtrlSeg {
        flags,
        klm_octowords: Be16::new(klm_octowords),
        mkey_mask: Be64::new(mask),
        ..Default::default()
    };
    let [first, ..]: [[u64; 2]; 3] = transmute!(seg);
    slot.put(CTRL_UNITS, first);
    // The rest is reserved, and 0 by `UmrCtrlSeg::default`.
    (2..4).for_each(|unit| slot.put_zeros(0, unit));
}

/// Writes a block whose first unit is not 0.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_first(slot: WqeWriter<'_>, nth: u32, unit: [u64; 2]) {
    slot.put_pair(nth, 0, unit);
    (1..4).for_each(|unit| slot.put_zeros(nth, unit));
}

/// Writes the context of the memory key: the second block.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_mkey(slot: WqeWriter<'_>, seg: MkeyContextSeg) {
    let units: [[u64; 2]; 4] = transmute!(seg);
    for (i, unit) in units.into_iter().enumerate() {
        slot.put_pair(1, i, unit);
    }
}
