// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory keys: all memory, lists of pages, windows and indirect keys.

use super::{Call, Status};
use crate::layout::{
    create_mkey_in, create_mkey_out, destroy_mkey_in, mkc, query_mkey_in, query_mkey_out,
    query_special_contexts_out,
};
use crate::limits::{LOG_MAX_MKEY, room};
use crate::pages::Pages;
use std::sync::Arc;
use uverbs_hca::front::MkeyKind;
use uverbs_hca::front::NULL_MKEY;
use uverbs_hca::memory::Memory;
use uverbs_hca::prm::mkey::{EQUAL_KLMS, KLMS, PAGES, PHYSICAL, indirect, mode, rights};

/// Bytes of a page of a key, as a power of two at most.
const MAX_LOG_PAGE: u32 = 40;

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes(input);
    let pd = mkc::PD.get32(context);
    room(call.function.mkeys.len(), LOG_MAX_MKEY)?;
    if !call.function.pds.has(pd) {
        return Err(Status::BAD_RESOURCE);
    }
    let is_free = mkc::FREE.is_set(context);
    let start = mkc::START_ADDR.get(context);
    let kind = match mode(context) {
        PHYSICAL if !is_free => {
            if !mkc::LENGTH64.is_set(context) {
                return Err(Status::BAD_PARAM);
            }
            MkeyKind::Region { memory: Arc::clone(call.guest()) as Arc<dyn Memory>, iova: 0 }
        }
        PAGES if is_free => MkeyKind::Free,
        PAGES => {
            let shift = mkc::LOG_PAGE_SIZE.get32(context);
            let len = mkc::LEN.get(context);
            if !(12..=MAX_LOG_PAGE).contains(&shift) {
                return Err(Status::BAD_PARAM);
            }
            if let Some(memory) = call.region_in_umem(input, len)? {
                return add(call, context, MkeyKind::Region { memory, iova: start }, output);
            }
            let skip = start & ((1 << shift) - 1);
            let count = skip.checked_add(len).ok_or(Status::BAD_PARAM)?.div_ceil(1 << shift);
            // Two entries in each unit of 16 bytes.
            let listed = create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get(input) * 2;
            if count > listed {
                return Err(Status::BAD_PARAM);
            }
            let list = create_mkey_in::KLM_PAS_MTT.rest(input);
            let list = Pages::list(list, count).ok_or(Status::BAD_INPUT_LEN)?;
            let pages = Pages::new(call.guest(), list, shift, skip, len)?;
            MkeyKind::Region { memory: Arc::new(pages), iova: start }
        }
        // The kernel's windows, and the keys of programs.
        KLMS | EQUAL_KLMS => indirect(&call.device.mkeys, input)?,
        _ => return Err(Status::BAD_PARAM),
    };
    add(call, context, kind, output)
}

fn add(call: &mut Call<'_, '_>, context: &[u8], kind: MkeyKind, output: &mut [u8]) -> Result<(), Status> {
    let variant = mkc::MKEY_7_0.get(context) as u8;
    let key = call.device.mkeys.add(variant, mkc::PD.get32(context), rights(context), kind);
    let key = key.ok_or(Status::LIMIT)?;
    call.function.mkeys.insert(key >> 8, context.into());
    create_mkey_out::MKEY_INDEX.set(output, key >> 8);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let index = destroy_mkey_in::MKEY_INDEX.get32(input);
    if !call.function.mkeys.contains_key(&index) {
        return Err(Status::BAD_RESOURCE);
    }
    if call.device.mkeys.is_bound(index << 8) {
        return Err(Status::BUSY);
    }
    call.function.mkeys.remove(&index);
    call.device.mkeys.remove(index << 8);
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let index = query_mkey_in::MKEY_INDEX.get32(input);
    let record = call.function.mkeys.get(&index).ok_or(Status::BAD_RESOURCE)?;
    let context = query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes_mut(output);
    let len = context.len().min(record.len());
    context[..len].copy_from_slice(&record[..len]);
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn special_contexts(_: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    // One key is for indirect keys of the kernel, the other for users; both read as zeros and discard writes.
    query_special_contexts_out::NULL_MKEY.set(output, NULL_MKEY);
    query_special_contexts_out::DUMP_FILL_MKEY.set(output, NULL_MKEY);
    Ok(())
}
