// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory keys as their contexts encode them.

use super::Status;
use super::layout::{create_mkey_in, mkc};
use crate::bytes::array;
use crate::engine::indirect::LOG_MAX_LIST;
use crate::engine::mkey::{Kind, Mkeys, access};

/// `MLX5_MKC_ACCESS_MODE_PA`: all memory.
pub const PHYSICAL: u64 = 0;
/// `MLX5_MKC_ACCESS_MODE_MTT`: pages.
pub const PAGES: u64 = 1;
/// `MLX5_MKC_ACCESS_MODE_KLMS`: other keys.
pub const KLMS: u64 = 2;

/// `MLX5_MKC_ACCESS_MODE_KSM`: other keys, parts of one length.
pub const EQUAL_KLMS: u64 = 3;
/// Units of 16 bytes of a signature's format.
const BSF_UNITS: u64 = 4;

/// A window or an indirect key: free, or with the list in the command that creates it.
///
/// # Errors
/// The context or the list is invalid.
pub fn indirect(mkeys: &Mkeys, input: &[u8]) -> Result<Kind, Status> {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes(input);
    let room = mkc::TRANSLATIONS_OCTWORD_SIZE.get(context);
    if room > 1 << LOG_MAX_LIST {
        return Err(Status::BAD_PARAM);
    }
    let is_equal = mode(context) == EQUAL_KLMS;
    if mkc::FREE.is_set(context) {
        let signs = mkc::BSF_EN.is_set(context) || mkc::BSF_OCTWORD_SIZE.get(context) != 0;
        // Other formats are those of encrypted data.
        if is_equal || signs && mkc::BSF_OCTWORD_SIZE.get(context) != BSF_UNITS {
            return Err(Status::BAD_PARAM);
        }
        return Ok(mkeys.indirect(mkc::EN_RINVAL.is_set(context), room as usize, signs));
    }
    let count = create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get(input);
    if count > room || mkc::BSF_EN.is_set(context) {
        return Err(Status::BAD_PARAM);
    }
    let each = is_equal.then(|| mkc::LOG_PAGE_SIZE.get32(context));
    if each.is_some_and(|log| log > 31) {
        return Err(Status::BAD_PARAM);
    }
    let list = create_mkey_in::KLM_PAS_MTT.rest(input);
    let list = list.get(..count as usize * 16).ok_or(Status::BAD_INPUT_LEN)?;
    let list: Vec<[u8; 16]> = list.chunks_exact(16).filter_map(|entry| array(entry, 0)).collect();
    let (start, len) = (mkc::START_ADDR.get(context), mkc::LEN.get(context));
    mkeys.listed_key(start, len, &list, each.map(|log| 1 << log)).map_err(|_| Status::BAD_PARAM)
}

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
