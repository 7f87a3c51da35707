// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects for programs that send their own commands: user contexts, and memory that commands name by a number.
//!
//! The kernel checks which commands a program may send and writes the program's context (`uid`) into them. This device
//! accepts any context. Fields that the kernel's header lacks, because the kernel does not interpret them, are declared
//! here; their positions are those of the PRM.

use super::{Call, Status};
use crate::bits::Field;
use crate::layout::{
    cqc, create_cq_in, create_mkey_in, create_qp_in, create_uctx_out, create_umem_in, create_umem_out,
    destroy_uctx_in, destroy_umem_in, qpc, umem, wq,
};
use crate::pages::Pages;
use std::sync::Arc;
use uverbs_hca::memory::Area;

/// Entries of the list of `CREATE_UMEM`.
const MTT: Field = Field::new(0x100, 0);
/// The largest page, as a power of two.
const MAX_SHIFT: u32 = 40;

pub(super) fn create_uctx(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let uid = call.function.uctxs.alloc(1..1 << 8).ok_or(Status::LIMIT)?;
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
    let pages = Pages::new(call.guest(), list, shift, skip, len).ok_or(Status::BAD_PARAM)?;
    let id = call.device.number();
    call.function.umems.insert(id, Arc::new(pages));
    create_umem_out::UMEM_ID.set(output, id);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let id = destroy_umem_in::UMEM_ID.get32(input);
    let pages = call.function.umems.get(&id).ok_or(Status::BAD_RESOURCE)?;
    // Objects hold the memory that they use.
    if Arc::strong_count(pages) != 1 {
        return Err(Status::BUSY);
    }
    call.function.umems.remove(&id);
    Ok(())
}

/// The position in a command or context of the description of a queue, a region or a record in such memory.
pub(super) struct Place {
    valid: Field,
    id: Field,
    offset: Field,
}

/// In `CREATE_CQ`: its ring.
pub(super) const CQ: Place =
    Place { valid: create_cq_in::CQ_UMEM_VALID, id: Field::new(0x2c0, 32), offset: Field::new(0x280, 64) };
/// In a CQ's context: its doorbell record.
pub(super) const CQ_RECORD: Place =
    Place { valid: cqc::DBR_UMEM_VALID, id: Field::new(0x20, 32), offset: cqc::DBR_ADDR };
/// In `CREATE_QP`: its rings.
pub(super) const QP: Place =
    Place { valid: create_qp_in::WQ_UMEM_VALID, id: Field::new(0x840, 32), offset: Field::new(0x800, 64) };
/// In a QP's context: its doorbell record.
pub(super) const QP_RECORD: Place =
    Place { valid: qpc::DBR_UMEM_VALID, id: Field::new(0x720, 32), offset: qpc::DBR_ADDR };
/// In a work queue's context: its ring.
pub(super) const WQ: Place =
    Place { valid: wq::WQ_UMEM_VALID, id: Field::new(0x160, 32), offset: Field::new(0x180, 64) };
/// In a work queue's context: its doorbell record.
pub(super) const WQ_RECORD: Place =
    Place { valid: wq::DBR_UMEM_VALID, id: Field::new(0x140, 32), offset: wq::DBR_ADDR };
/// In `CREATE_MKEY`: the region.
const MKEY: Place = Place {
    valid: create_mkey_in::MKEY_UMEM_VALID,
    id: Field::new(0x320, 32),
    offset: Field::new(0x340, 64),
};

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
        if !MKEY.valid.is_set(input) {
            return Ok(None);
        }
        let pages = self.function.umems.get(&MKEY.id.get32(input)).ok_or(Status::BAD_RESOURCE)?;
        let part = pages.part(MKEY.offset.get(input), len).ok_or(Status::BAD_PARAM)?;
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
