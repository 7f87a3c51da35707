// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects for programs that send their own commands: user contexts, and memory that commands name by a number.
//!
//! The kernel checks which commands a program may send and writes the program's context (`uid`) into them. This device
//! accepts any context.

use super::{Call, Status};
use crate::bits::Field;
use crate::layout::{
    create_uctx_out, create_umem_in, create_umem_out, destroy_uctx_in, destroy_umem_in, umem,
};
use crate::pages::Pages;
use std::sync::Arc;
use uverbs_hca::memory::Area;
use uverbs_hca::prm::place::{self, Place};

/// Entries of the list of `CREATE_UMEM`.
const MTT: Field = Field::new(0x100, 0);
/// The largest page, as a power of two.
const MAX_SHIFT: u32 = 40;

pub(super) fn create_uctx(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let uid = call.function.uctxs.alloc().ok_or(Status::LIMIT)?;
    create_uctx_out::UID.set(output, uid);
    Ok(())
}

pub(super) fn destroy_uctx(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let uid = destroy_uctx_in::UID.get32(input);
    if call.function.uctxs.free(uid) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_umem_in::UMEM.rest(input);
    let shift = 12 + umem::LOG_PAGE_SIZE.get32(context);
    let (skip, count) = (umem::PAGE_OFFSET.get(context), umem::NUM_OF_MTT.get(context));
    if shift > MAX_SHIFT || skip >= 1 << shift {
        return Err(Status::BAD_PARAM);
    }
    let list = Pages::list(MTT.rest(context), count).ok_or(Status::BAD_INPUT_LEN)?;
    let len = count.checked_mul(1 << shift).and_then(|bytes| bytes.checked_sub(skip));
    let len = len.filter(|len| *len != 0).ok_or(Status::BAD_PARAM)?;
    let pages = Pages::new(call.guest(), list, shift, skip, len)?;
    let id = call.function.umem_ids.alloc().ok_or(Status::LIMIT)?;
    call.function.umems.insert(id, Arc::new(pages));
    create_umem_out::UMEM_ID.set(output, id);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let id = destroy_umem_in::UMEM_ID.get32(input);
    let pages = call.function.umems.get(&id).ok_or(Status::BAD_RESOURCE)?;
    // Objects hold the memory that they use.
    if pages.is_shared() {
        return Err(Status::BUSY);
    }
    call.function.umems.remove(&id);
    call.function.umem_ids.free(id);
    Ok(())
}

impl Call<'_, '_> {
    /// The part of a memory that a command describes; `None` if it describes none.
    pub(super) fn in_umem(&self, bytes: &[u8], place: &Place, len: u64) -> Result<Option<Area>, Status> {
        self.in_umem_at(bytes, place, 0, len)
    }

    /// `len` bytes behind the first `at` of such a part.
    pub(super) fn in_umem_at(
        &self,
        bytes: &[u8],
        place: &Place,
        at: u64,
        len: u64,
    ) -> Result<Option<Area>, Status> {
        if !place.valid.is_set(bytes) {
            return Ok(None);
        }
        let pages = self.function.umems.get(&place.id.get32(bytes)).ok_or(Status::BAD_RESOURCE)?;
        let start = place.offset.get(bytes).checked_add(at).ok_or(Status::BAD_PARAM)?;
        pages.area(start, len).map(Some).ok_or(Status::BAD_PARAM)
    }

    /// The region of a command that creates a key.
    pub(super) fn region_in_umem(&self, input: &[u8], len: u64) -> Result<Option<Arc<Pages>>, Status> {
        if !place::MKEY.valid.is_set(input) {
            return Ok(None);
        }
        let pages = self.function.umems.get(&place::MKEY.id.get32(input)).ok_or(Status::BAD_RESOURCE)?;
        let part = pages.part(place::MKEY.offset.get(input), len).ok_or(Status::BAD_PARAM)?;
        Ok(Some(Arc::new(part)))
    }

    /// The doorbell record of 8 bytes that a context describes.
    pub(super) fn record_of(&self, context: &[u8], place: &Place) -> Result<Area, Status> {
        match self.in_umem(context, place, 8)? {
            Some(area) if place.offset.get(context).is_multiple_of(8) => Ok(area),
            Some(_) => Err(Status::BAD_PARAM),
            None => self.record(place.offset.get(context)),
        }
    }
}
