// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of an Ethernet port besides RoCE: receive and send queues, their targets and tables.

use super::{Call, Layout, Status};
use crate::caps::LOG_MAX_WQ_SIZE;
use crate::layout::{
    create_rq_in, create_rq_out, create_rqt_in, create_rqt_out, create_sq_in, create_sq_out, create_tir_in,
    create_tir_out, create_tis_out, destroy_rq_in, destroy_rqt_in, destroy_sq_in, destroy_tir_in,
    destroy_tis_in, modify_rq_in, modify_rqt_in, modify_sq_in, modify_tir_bitmask, modify_tir_in,
    query_rq_out, query_sq_out, rq_num, rqc, rqtc, sqc, tirc, wq,
};
use crate::limits::{LOG_MAX_RQ, LOG_MAX_RQT, LOG_MAX_RQT_SIZE, LOG_MAX_SQ, LOG_MAX_TIR, room};
use crate::tables::{Tir, Where};
use uverbs_hca::front::RecvRing;
use uverbs_hca::front::Wq;
use uverbs_hca::front::{Qp, QpKind, SendRing, State};
use uverbs_hca::memory::Area;
use uverbs_hca::prm::place;
use uverbs_mlx5_hw::wqe::MLX5_SEND_WQE_BB;

/// `MLX5_RQC_STATE_*`, `MLX5_SQC_STATE_*`
const RESET: u64 = 0;
const READY: u64 = 1;
const ERROR: u64 = 3;
/// `MLX5_WQ_TYPE_CYCLIC`
const CYCLIC: u64 = 1;
/// `MLX5_TIRC_DISP_TYPE_INDIRECT`, `MLX5_RX_HASH_FN_TOEPLITZ`
const INDIRECT: u64 = 1;
const TOEPLITZ: u64 = 2;

/// The ring of a work queue's context, its record, and the bytes of an entry and the number of entries as powers of two.
struct Ring {
    ring: Area,
    record: Area,
    log_stride: u32,
    log_size: u32,
}

fn ring(call: &Call<'_, '_>, context: &[u8], list: &[u8]) -> Result<Ring, Status> {
    let (log_size, log_stride) = (wq::LOG_WQ_SZ.get32(context), wq::LOG_WQ_STRIDE.get32(context));
    if wq::WQ_TYPE.get(context) != CYCLIC || log_size > LOG_MAX_WQ_SIZE || !(4..=12).contains(&log_stride) {
        return Err(Status::BAD_PARAM);
    }
    let layout = Layout {
        log_page_size: wq::LOG_WQ_PG_SZ.get32(context),
        page_offset: wq::PAGE_OFFSET.get(context),
        len: 1 << (log_size + log_stride),
    };
    let ring = match call.in_umem(context, &place::WQ, layout.len)? {
        Some(area) => area,
        None => call.queue(&layout, list)?.area(0, layout.len).ok_or(Status::BAD_PARAM)?,
    };
    Ok(Ring { ring, record: call.record_of(context, &place::WQ_RECORD)?, log_stride, log_size })
}

pub(super) fn create_rq(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_rq_in::CTX.bytes(input);
    // The queue has its own receives; a pool of receives is not supported.
    if rqc::MEM_RQ_TYPE.get(context) != 0 {
        return Err(Status::BAD_PARAM);
    }
    room(call.function.ethernet_objects.rqs.len(), LOG_MAX_RQ)?;
    let queue = rqc::WQ.bytes(context);
    let (pd, cqn) = (wq::PD.get32(queue), rqc::CQN.get32(context));
    // A queue that drops all frames has no protection domain.
    if pd != 0 && !call.function.pds.has(pd) || !call.function.cqs.contains_key(&cqn) {
        return Err(Status::BAD_RESOURCE);
    }
    let list = wq::PAS.rest(rqc::WQ.rest(create_rq_in::CTX.rest(input)));
    let Ring { ring, record, log_stride, log_size } = ring(call, queue, list)?;
    let rq = RecvRing {
        ring,
        stride: 1 << log_stride,
        count: 1 << log_size,
        record,
        taken: 0,
        broken: false,
        padded: true,
    };
    let uidx = rqc::USER_INDEX.get32(context);
    let rqn = call.device.number().ok_or(Status::LIMIT)?;
    call.device.add_wq(rqn, Wq { rq, pd, cqn, uidx, ready: rqc::STATE.get(context) == READY });
    call.function.ethernet_objects.rqs.insert(rqn, context.to_vec());
    create_rq_out::RQN.set(output, rqn);
    Ok(())
}

pub(super) fn modify_rq(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let rqn = modify_rq_in::RQN.get32(input);
    let record = call.function.ethernet_objects.rqs.get_mut(&rqn).ok_or(Status::BAD_RESOURCE)?;
    if rqc::STATE.get(record) != modify_rq_in::RQ_STATE.get(input) {
        return Err(Status::BAD_STATE);
    }
    let to = rqc::STATE.get(modify_rq_in::CTX.bytes(input));
    rqc::STATE.set(record, to);
    let queue = call.device.wqs.get_mut(&rqn).ok_or(Status::BAD_RESOURCE)?;
    queue.ready = to == READY;
    match to {
        RESET => (queue.rq.taken, queue.rq.broken) = (0, false),
        ERROR => call.device.flush_wq(call.port, rqn),
        _ => {}
    }
    Ok(())
}

pub(super) fn destroy_rq(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let rqn = destroy_rq_in::RQN.get32(input);
    let ethernet = &mut call.function.ethernet_objects;
    if ethernet.tables.state().uses_queue(rqn) {
        return Err(Status::BUSY);
    }
    ethernet.rqs.remove(&rqn).ok_or(Status::BAD_RESOURCE)?;
    call.device.remove_wq(rqn);
    Ok(())
}

fn answer(place: &mut [u8], context: &[u8]) {
    let len = place.len().min(context.len());
    place[..len].copy_from_slice(&context[..len]);
}

pub(super) fn query_rq(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let rqn = destroy_rq_in::RQN.get32(input);
    let record = call.function.ethernet_objects.rqs.get(&rqn).ok_or(Status::BAD_RESOURCE)?;
    let place = query_rq_out::RQ_CONTEXT.bytes_mut(output);
    answer(place, record);
    if call.device.wqs.get(&rqn).is_some_and(|wq| wq.rq.broken) {
        rqc::STATE.set(place, ERROR);
    }
    Ok(())
}

pub(super) fn create_sq(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_sq_in::CTX.bytes(input);
    room(call.function.ethernet_objects.sqs.len(), LOG_MAX_SQ)?;
    call.room_for_qp()?;
    let queue = sqc::WQ.bytes(context);
    let (cqn, page) = (sqc::CQN.get32(context), wq::UAR_PAGE.get32(queue));
    if !call.function.cqs.contains_key(&cqn) || !call.function.uars.has(page) {
        return Err(Status::BAD_RESOURCE);
    }
    let list = wq::PAS.rest(sqc::WQ.rest(create_sq_in::CTX.rest(input)));
    let Ring { ring, record, log_stride, log_size } = ring(call, queue, list)?;
    if 1 << log_stride != MLX5_SEND_WQE_BB {
        return Err(Status::BAD_PARAM);
    }
    let sqn = call.device.number().ok_or(Status::LIMIT)?;
    let mut qp = Qp::new(sqn, QpKind::Raw);
    (qp.pd, qp.send_cqn, qp.page) = (wq::PD.get32(queue), cqn, Some(page));
    qp.uidx = sqc::USER_INDEX.get32(context);
    qp.sq = Some(SendRing { ring, count: 1 << log_size, record, next: 0, posted: 0 });
    call.device.add_qp(qp);
    call.function.ethernet_objects.sqs.insert(sqn, context.to_vec());
    if sqc::STATE.get(context) == READY {
        call.device.move_qp(call.port, sqn, State::Rts);
    }
    create_sq_out::SQN.set(output, sqn);
    Ok(())
}

pub(super) fn modify_sq(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let sqn = modify_sq_in::SQN.get32(input);
    let record = call.function.ethernet_objects.sqs.get_mut(&sqn).ok_or(Status::BAD_RESOURCE)?;
    let to = sqc::STATE.get(modify_sq_in::CTX.bytes(input));
    let state = match to {
        RESET => State::Reset,
        READY => State::Rts,
        ERROR => State::Err,
        _ => return Err(Status::BAD_PARAM),
    };
    // If the device has moved the queue to the error state, the driver may name that as the current state, although the
    // record has an older one.
    let from = modify_sq_in::SQ_STATE.get(input);
    let now = call.device.qps.get(&sqn).map(|qp| qp.state);
    if sqc::STATE.get(record) != from && !(from == ERROR && now == Some(State::Err)) {
        return Err(Status::BAD_STATE);
    }
    sqc::STATE.set(record, to);
    if call.device.move_qp(call.port, sqn, state) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn destroy_sq(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let sqn = destroy_sq_in::SQN.get32(input);
    call.function.ethernet_objects.sqs.remove(&sqn).ok_or(Status::BAD_RESOURCE)?;
    call.device.remove_qp(sqn);
    Ok(())
}

pub(super) fn query_sq(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let sqn = destroy_sq_in::SQN.get32(input);
    let record = call.function.ethernet_objects.sqs.get(&sqn).ok_or(Status::BAD_RESOURCE)?;
    let place = query_sq_out::SQ_CONTEXT.bytes_mut(output);
    answer(place, record);
    if call.device.qps.get(&sqn).is_some_and(|qp| qp.state == State::Err) {
        sqc::STATE.set(place, ERROR);
    }
    Ok(())
}

/// The selected fields of a hash, as the engine's flags (`IBV_RX_HASH_*`).
fn hash_fields(selector: u32) -> u64 {
    let (ip6, udp) = (selector >> 31 != 0, selector >> 30 & 1 != 0);
    let (l3, l4) = (if ip6 { 2 } else { 0 }, if udp { 6 } else { 4 });
    // Source and destination address, source and destination port.
    u64::from(selector & 3) << l3 | u64::from(selector >> 2 & 3) << l4
}

fn target(context: &[u8]) -> Result<Where, Status> {
    if tirc::DISP_TYPE.get(context) != INDIRECT {
        return Ok(Where::Queue(tirc::INLINE_RQN.get32(context)));
    }
    let fields = hash_fields(tirc::RX_HASH_FIELD_SELECTOR_OUTER.get32(context));
    // Other hash functions are replaced by this one. It spreads flows differently, but each flow stays on one queue.
    if !matches!(tirc::RX_HASH_FN.get(context), 0..=TOEPLITZ) {
        return Err(Status::BAD_PARAM);
    }
    let key = tirc::RX_HASH_TOEPLITZ_KEY.bytes(context).to_vec();
    Ok(Where::Hash { table: tirc::INDIRECT_TABLE.get32(context), fields, key })
}

pub(super) fn create_tir(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_tir_in::CTX.bytes(input);
    let tir = Tir { to: target(context)?, blocks_own: tirc::SELF_LB_BLOCK.get32(context) };
    let ethernet = &mut call.function.ethernet_objects;
    let mut state = ethernet.tables.state();
    let known = match &tir.to {
        Where::Queue(rqn) => ethernet.rqs.contains_key(rqn),
        Where::Hash { table, .. } => state.queue_tables.contains_key(table),
    };
    if !known {
        return Err(Status::BAD_RESOURCE);
    }
    room(state.tirs.len(), LOG_MAX_TIR)?;
    let tirn = state.number();
    state.add_tir(tirn, tir);
    create_tir_out::TIRN.set(output, tirn);
    Ok(())
}

pub(super) fn modify_tir(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let context = modify_tir_in::CTX.bytes(input);
    let mask = modify_tir_in::BITMASK.rest(input);
    let mut state = call.function.ethernet_objects.tables.state();
    let tirn = modify_tir_in::TIRN.get32(input);
    let tir = state.tirs.get_mut(&tirn).ok_or(Status::BAD_RESOURCE)?;
    if modify_tir_bitmask::SELF_LB_EN.is_set(mask) {
        tir.blocks_own = tirc::SELF_LB_BLOCK.get32(context);
    }
    if modify_tir_bitmask::HASH.is_set(mask)
        && let Where::Hash { fields, key, .. } = &mut tir.to
    {
        *fields = hash_fields(tirc::RX_HASH_FIELD_SELECTOR_OUTER.get32(context));
        *key = tirc::RX_HASH_TOEPLITZ_KEY.bytes(context).to_vec();
    }
    Ok(())
}

pub(super) fn destroy_tir(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let tirn = destroy_tir_in::TIRN.get32(input);
    let mut state = call.function.ethernet_objects.tables.state();
    if state.uses_tir(tirn) {
        return Err(Status::BUSY);
    }
    state.remove_tir(tirn).ok_or(Status::BAD_RESOURCE)
}

pub(super) fn create_tis(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let tisn = call.function.ethernet_objects.tises.alloc().ok_or(Status::LIMIT)?;
    create_tis_out::TISN.set(output, tisn);
    Ok(())
}

pub(super) fn modify_tis(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let tisn = destroy_tis_in::TISN.get32(input);
    if call.function.ethernet_objects.tises.has(tisn) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn destroy_tis(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let tisn = destroy_tis_in::TISN.get32(input);
    if call.function.ethernet_objects.tises.free(tisn) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

/// The queues of a table's context.
fn queues(call: &Call<'_, '_>, context: &[u8], list: &[u8]) -> Result<Vec<u32>, Status> {
    let count = rqtc::RQT_ACTUAL_SIZE.get(context) as usize;
    if count > 1 << LOG_MAX_RQT_SIZE {
        return Err(Status::BAD_PARAM);
    }
    let list = list.get(..count * 4).ok_or(Status::BAD_INPUT_LEN)?;
    let queues: Vec<u32> = list.chunks_exact(4).map(|item| rq_num::RQ_NUM.get32(item)).collect();
    let known = |rqn: &u32| call.function.ethernet_objects.rqs.contains_key(rqn);
    // Slots beyond those in use repeat the queues.
    if queues.iter().all(known) { Ok(queues) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn create_rqt(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_rqt_in::RQT_CONTEXT.bytes(input);
    let list = queues(call, context, rqtc::RQ_NUM.rest(create_rqt_in::RQT_CONTEXT.rest(input)))?;
    let mut state = call.function.ethernet_objects.tables.state();
    room(state.queue_tables.len(), LOG_MAX_RQT)?;
    let rqtn = state.number();
    state.set_queue_table(rqtn, list)?;
    create_rqt_out::RQTN.set(output, rqtn);
    Ok(())
}

pub(super) fn modify_rqt(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let context = modify_rqt_in::CTX.bytes(input);
    let list = queues(call, context, rqtc::RQ_NUM.rest(modify_rqt_in::CTX.rest(input)))?;
    let mut state = call.function.ethernet_objects.tables.state();
    let rqtn = modify_rqt_in::RQTN.get32(input);
    state.queue_tables.get(&rqtn).ok_or(Status::BAD_RESOURCE)?;
    state.set_queue_table(rqtn, list)
}

pub(super) fn destroy_rqt(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let rqtn = destroy_rqt_in::RQTN.get32(input);
    let mut state = call.function.ethernet_objects.tables.state();
    state.remove_queue_table(rqtn).ok_or(Status::BAD_RESOURCE)
}
