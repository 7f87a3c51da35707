// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues in their three forms: the first interface's, XRC's, and memory pools (`RMP`).

use super::{Call, Layout, Status};
use crate::caps::LOG_MAX_SRQ_SIZE;
use crate::layout::{
    arm_rq_in, create_rmp_in, create_rmp_out, create_srq_in, create_srq_out, create_xrc_srq_in,
    create_xrc_srq_out, destroy_srq_in, modify_rmp_in, query_rmp_out, query_srq_out, rmp_bitmask, rmpc, srqc,
    wq, xrc_srqc,
};
use crate::limits::{LOG_MAX_SRQ, room};
use crate::state::SrqRecord;
use uverbs_hca::front::Srq;
use uverbs_hca::front::{Notice, event};
use uverbs_hca::memory::Area;
use uverbs_hca::prm::place;

/// `MLX5_RMPC_STATE_RDY`
const READY: u64 = 1;

/// The common fields of the formats.
struct Parts<'a> {
    layout: Layout,
    /// Bytes of a WQE, as a power of two.
    log_stride: u32,
    log_size: u32,
    record: u64,
    pd: u32,
    limit: u32,
    xrc: Option<(u32, u32)>,
    uidx: u32,
    list: &'a [u8],
    /// The ring and the record, if they are in memory of a user.
    given: (Option<Area>, Option<Area>),
}

fn add(call: &mut Call<'_, '_>, parts: &Parts<'_>, context: &[u8], is_pool: bool) -> Result<u32, Status> {
    if parts.log_size > LOG_MAX_SRQ_SIZE || !(5..=9).contains(&parts.log_stride) {
        return Err(Status::BAD_PARAM);
    }
    room(call.function.srqs.len(), LOG_MAX_SRQ)?;
    if !call.function.pds.has(parts.pd) {
        return Err(Status::BAD_RESOURCE);
    }
    let (ring, record) = parts.given.clone();
    let ring = match ring {
        Some(ring) => ring,
        None => {
            let pages = call.queue(&parts.layout, parts.list)?;
            pages.area(0, parts.layout.len).ok_or(Status::BAD_PARAM)?
        }
    };
    let record = record.map_or_else(|| call.record(parts.record), Ok)?;
    let srq = Srq {
        ring,
        stride: 1 << parts.log_stride,
        count: 1 << parts.log_size,
        record,
        head: 0,
        taken: 0,
        limit: parts.limit,
        pd: parts.pd,
        xrc: parts.xrc,
        uidx: parts.uidx,
        broken: false,
    };
    let srqn = call.device.number().ok_or(Status::LIMIT)?;
    call.device.add_srq(srqn, srq);
    call.function.srqs.insert(srqn, SrqRecord { context: context.to_vec(), is_pool });
    Ok(srqn)
}

/// The parts of a context of the first two forms.
fn parts<'a>(context: &[u8], list: &'a [u8]) -> Parts<'a> {
    let log_size = srqc::LOG_SRQ_SIZE.get32(context);
    let log_stride = srqc::LOG_RQ_STRIDE.get32(context) + 4;
    Parts {
        layout: Layout {
            log_page_size: srqc::LOG_PAGE_SIZE.get32(context),
            page_offset: srqc::PAGE_OFFSET.get(context),
            len: 1 << (log_size + log_stride),
        },
        log_stride,
        log_size,
        record: srqc::DBR_ADDR.get(context),
        pd: srqc::PD.get32(context),
        limit: srqc::LWM.get32(context),
        xrc: None,
        uidx: 0,
        list,
        given: (None, None),
    }
}

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.bytes(input);
    let srqn = add(call, &parts(context, create_srq_in::PAS.rest(input)), context, false)?;
    create_srq_out::SRQN.set(output, srqn);
    Ok(())
}

pub(super) fn create_xrc(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes(input);
    let (xrcd, cqn) = (srqc::XRCD.get32(context), srqc::CQN.get32(context));
    if !call.function.xrcds.has(xrcd) || !call.function.cqs.contains_key(&cqn) {
        return Err(Status::BAD_RESOURCE);
    }
    let list = create_xrc_srq_in::PAS.rest(input);
    let uidx = xrc_srqc::USER_INDEX.get32(context);
    let parts = Parts { xrc: Some((xrcd, cqn)), uidx, ..parts(context, list) };
    let srqn = add(call, &parts, context, false)?;
    create_xrc_srq_out::XRC_SRQN.set(output, srqn);
    Ok(())
}

pub(super) fn create_pool(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_rmp_in::CTX.bytes(input);
    let queue = rmpc::WQ.bytes(context);
    let (log_size, log_stride) = (wq::LOG_WQ_SZ.get32(queue), wq::LOG_WQ_STRIDE.get32(queue));
    let len = 1 << (log_size + log_stride);
    let given = (call.in_umem(queue, &place::WQ, len)?, call.in_umem(queue, &place::WQ_RECORD, 8)?);
    let parts = Parts {
        layout: Layout {
            log_page_size: wq::LOG_WQ_PG_SZ.get32(queue),
            page_offset: wq::PAGE_OFFSET.get(queue),
            len,
        },
        log_stride,
        log_size,
        record: wq::DBR_ADDR.get(queue),
        pd: wq::PD.get32(queue),
        limit: wq::LWM.get32(queue),
        xrc: None,
        uidx: 0,
        list: wq::PAS.rest(rmpc::WQ.rest(create_rmp_in::CTX.rest(input))),
        given,
    };
    let srqn = add(call, &parts, context, true)?;
    create_rmp_out::RMPN.set(output, srqn);
    Ok(())
}

/// All forms have the number at the same offset.
pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let srqn = destroy_srq_in::SRQN.get32(input);
    if call.device.uses_srq(srqn) {
        return Err(Status::BUSY);
    }
    call.function.srqs.remove(&srqn).ok_or(Status::BAD_RESOURCE)?;
    call.device.remove_srq(srqn);
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let srqn = destroy_srq_in::SRQN.get32(input);
    let record = call.function.srqs.get(&srqn).ok_or(Status::BAD_RESOURCE)?;
    let srq = call.device.srqs.get(&srqn).ok_or(Status::BAD_RESOURCE)?;
    let place = if record.is_pool { query_rmp_out::RMP_CONTEXT } else { query_srq_out::SRQ_CONTEXT_ENTRY };
    let context = place.bytes_mut(output);
    let len = context.len().min(record.context.len());
    context[..len].copy_from_slice(&record.context[..len]);
    if record.is_pool {
        rmpc::STATE.set(context, if srq.broken { 3 } else { READY });
        wq::LWM.set(rmpc::WQ.bytes_mut(context), srq.limit);
    } else {
        // `MLX5_SRQC_STATE_*`: 0 is good, 1 an error.
        srqc::STATE.set(context, u32::from(srq.broken));
        srqc::LWM.set(context, srq.limit);
    }
    Ok(())
}

fn set_limit(call: &mut Call<'_, '_>, srqn: u32, limit: u32) -> Result<(), Status> {
    let srq = call.device.srqs.get_mut(&srqn).ok_or(Status::BAD_RESOURCE)?;
    srq.limit = limit;
    // If the count is already below the limit, the event is due immediately.
    if srq.below_limit() {
        call.device.notices.push(Notice::Srq { srqn, event: event::SRQ_LIMIT_REACHED });
    }
    Ok(())
}

pub(super) fn arm(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    set_limit(call, arm_rq_in::SRQ_NUMBER.get32(input), arm_rq_in::LWM.get32(input))
}

pub(super) fn modify_pool(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let srqn = modify_rmp_in::RMPN.get32(input);
    if modify_rmp_in::RMP_STATE.get(input) != READY {
        return Err(Status::BAD_PARAM);
    }
    if rmp_bitmask::LWM.is_set(modify_rmp_in::BITMASK.rest(input)) {
        let limit = wq::LWM.get32(rmpc::WQ.bytes(modify_rmp_in::CTX.bytes(input)));
        set_limit(call, srqn, limit)?;
    }
    Ok(())
}
