// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues.

use super::{Call, Layout, Status};
use crate::caps::LOG_MAX_CQ_SIZE;
use crate::layout::{
    cqc, create_cq_in, create_cq_out, destroy_cq_in, modify_cq_in, query_cq_in, query_cq_out,
};
use crate::limits::{LOG_MAX_CQ, room};
use crate::state::CqRecord;
use uverbs_hca::front::{Cq, CqParts};
use uverbs_hca::memory::Area;
use uverbs_hca::prm::place;

/// `MLX5_MODIFY_CQ_MASK_*`: the attributes that can be modified besides the ring.
const PERIOD: u32 = 1 << 0;
const COUNT: u32 = 1 << 1;
const OVERRUN: u32 = 1 << 2;
/// `MLX5_CQ_OPMOD_RESIZE`
const RESIZE: u64 = 1;
/// `MLX5_CQ_ST_*`: fired (never armed or not armed again), overrun.
const STATUS_OVERFLOW: u32 = 9;

/// The ring of a context and the bytes of an entry. `umem` is the command, which may name the user memory that contains
/// the ring.
fn ring(
    call: &Call<'_, '_>,
    context: &[u8],
    list: &[u8],
    umem: Option<&[u8]>,
) -> Result<(Area, usize), Status> {
    let entry = match cqc::CQE_SZ.get(context) {
        0 => 64,
        // Entries of 128 bytes, padded or not: the CQE is in the second half.
        1 | 2 => 128,
        _ => return Err(Status::BAD_PARAM),
    };
    let log_size = cqc::LOG_CQ_SIZE.get32(context);
    if log_size > LOG_MAX_CQ_SIZE {
        return Err(Status::BAD_PARAM);
    }
    let layout = Layout {
        log_page_size: cqc::LOG_PAGE_SIZE.get32(context),
        page_offset: cqc::PAGE_OFFSET.get(context),
        len: (entry as u64) << log_size,
    };
    if let Some(area) = umem.map(|input| call.in_umem(input, &place::CQ, layout.len)).transpose()?.flatten() {
        return Ok((area, entry));
    }
    let pages = call.queue(&layout, list)?;
    Ok((pages.area(0, layout.len).ok_or(Status::BAD_PARAM)?, entry))
}

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_cq_in::CQ_CONTEXT.bytes(input);
    let eqn = u8::try_from(cqc::C_EQN_OR_APU_ELEMENT.get(context)).map_err(|_| Status::BAD_RESOURCE)?;
    let page = cqc::UAR_PAGE.get32(context);
    if !call.function.eqs.contains_key(&eqn) || !call.function.uars.has(page) {
        return Err(Status::BAD_RESOURCE);
    }
    let (ring, entry) = ring(call, context, create_cq_in::PAS.rest(input), Some(input))?;
    let record = call.record_of(context, &place::CQ_RECORD)?;
    let ignore_overrun = cqc::OI.is_set(context);
    let cq = Cq::new(CqParts { ring, entry, record, page, ignore_overrun }).ok_or(Status::BAD_PARAM)?;
    room(call.function.cqs.len(), LOG_MAX_CQ)?;
    let cqn = call.device.number().ok_or(Status::LIMIT)?;
    call.device.add_cq(cqn, cq);
    if let Some(eq) = call.function.eqs.get_mut(&eqn) {
        eq.cqs += 1;
    }
    call.function.cqs.insert(cqn, CqRecord { eqn, context: context.to_vec() });
    create_cq_out::CQN.set(output, cqn);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let cqn = destroy_cq_in::CQN.get32(input);
    if !call.function.cqs.contains_key(&cqn) {
        return Err(Status::BAD_RESOURCE);
    }
    if call.device.uses_cq(cqn) {
        return Err(Status::BUSY);
    }
    if let Some(record) = call.function.cqs.remove(&cqn)
        && let Some(eq) = call.function.eqs.get_mut(&record.eqn)
    {
        eq.cqs -= 1;
    }
    call.device.remove_cq(cqn);
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let cqn = query_cq_in::CQN.get32(input);
    let record = call.function.cqs.get(&cqn).ok_or(Status::BAD_RESOURCE)?;
    let cq = call.device.cqs.get(&cqn).ok_or(Status::BAD_RESOURCE)?;
    let context = query_cq_out::CQ_CONTEXT.bytes_mut(output);
    let len = context.len().min(record.context.len());
    context[..len].copy_from_slice(&record.context[..len]);
    cqc::STATUS.set(context, if cq.is_broken() { STATUS_OVERFLOW } else { 0 });
    cqc::PRODUCER_COUNTER.set(context, cq.producer());
    Ok(())
}

pub(super) fn modify(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let cqn = modify_cq_in::CQN.get32(input);
    let wanted = modify_cq_in::CQ_CONTEXT.bytes(input);
    let mask = modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT.get32(input);
    if !call.function.cqs.contains_key(&cqn) {
        return Err(Status::BAD_RESOURCE);
    }
    if modify_cq_in::OP_MOD.get(input) == RESIZE {
        let (ring, entry) = ring(call, wanted, modify_cq_in::PAS.rest(input), None)?;
        let cq = call.device.cqs.get_mut(&cqn).ok_or(Status::BAD_RESOURCE)?;
        if cq.is_broken() {
            return Err(Status::BAD_STATE);
        }
        // `MLX5_CMD_STAT_BAD_SIZE_OUTS_CQES_ERR`: the unconsumed entries would not fit.
        if !cq.resize(ring, entry).map_err(|_| Status::BAD_PARAM)? {
            return Err(Status(0x40));
        }
    } else {
        let cq = call.device.cqs.get_mut(&cqn).ok_or(Status::BAD_RESOURCE)?;
        if mask & (PERIOD | COUNT) != 0 {
            cq.moderation = (cqc::CQ_MAX_COUNT.get(wanted) as u16, cqc::CQ_PERIOD.get(wanted) as u16);
        }
        if mask & OVERRUN != 0 {
            cq.set_ignore_overrun(cqc::OI.is_set(wanted));
        }
    }
    let Some(record) = call.function.cqs.get_mut(&cqn) else { return Ok(()) };
    let fields: &[_] = if modify_cq_in::OP_MOD.get(input) == RESIZE {
        &[cqc::CQE_SZ, cqc::LOG_CQ_SIZE, cqc::PAGE_OFFSET, cqc::LOG_PAGE_SIZE]
    } else if mask & (PERIOD | COUNT) != 0 {
        &[cqc::CQ_PERIOD, cqc::CQ_MAX_COUNT]
    } else {
        &[cqc::OI]
    };
    for field in fields {
        field.copy(wanted, &mut record.context);
    }
    Ok(())
}
