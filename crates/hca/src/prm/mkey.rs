// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rights and modes of memory keys as their contexts encode them.

use super::layout::mkc;
use crate::engine::mkey::access;

/// `MLX5_MKC_ACCESS_MODE_PA`: all memory.
pub const PHYSICAL: u64 = 0;
/// `MLX5_MKC_ACCESS_MODE_MTT`: pages.
pub const PAGES: u64 = 1;
/// `MLX5_MKC_ACCESS_MODE_KLMS`: other keys.
pub const KLMS: u64 = 2;

/// The access mode of a context.
#[must_use]
pub fn mode(context: &[u8]) -> u64 {
    mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context)
}

/// The rights of a context, as the engine's flags.
#[must_use]
pub fn rights(context: &[u8]) -> u32 {
    let bit = |set, right| if set { right } else { 0 };
    bit(mkc::LW.is_set(context), access::LOCAL_WRITE)
        | bit(mkc::RW.is_set(context), access::REMOTE_WRITE)
        | bit(mkc::RR.is_set(context), access::REMOTE_READ)
        | bit(mkc::A.is_set(context), access::REMOTE_ATOMIC)
        | bit(mkc::RELAXED_ORDERING_WRITE.is_set(context), access::RELAXED_ORDERING)
}
