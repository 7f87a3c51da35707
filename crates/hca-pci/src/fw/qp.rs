// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: creation, queries, groups.

use super::{Call, Layout, Status};
use crate::caps::LOG_MAX_QP_SIZE;
use crate::layout::{
    attach_to_mcg_in, create_qp_in, create_qp_out, destroy_qp_in, qpc, query_qp_in, query_qp_out,
    rst2init_qp_in,
};
use crate::limits::{LOG_MAX_QP, room};
use uverbs_hca::front::QpKind;
use uverbs_hca::prm::qp::state_number;
use uverbs_hca::prm::{self, place};

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_qp_in::QPC.bytes(input);
    call.room_for_qp()?;
    let qpn = call.device.number().ok_or(Status::LIMIT)?;
    let memory = |at, len, whole| match call.in_umem_at(input, &place::QP, at, len)? {
        Some(area) => Ok(area),
        None => {
            let layout = Layout {
                log_page_size: qpc::LOG_PAGE_SIZE.get32(context),
                page_offset: qpc::PAGE_OFFSET.get(context),
                len: whole,
            };
            call.queue(&layout, create_qp_in::PAS.rest(input))?.area(at, len).ok_or(Status::BAD_PARAM)
        }
    };
    let record = || call.record_of(context, &place::QP_RECORD);
    let qp = prm::qp::build(qpn, input, LOG_MAX_QP_SIZE, memory, record)?;
    let function = &call.function;
    // The driver's queue for updates of memory keys is in no domain.
    if qp.kind != QpKind::Keys && !function.pds.has(qp.pd)
        || qp.srqn.is_some_and(|srqn| !call.device.srqs.contains_key(&srqn))
        || qp.sq.is_some() && !function.cqs.contains_key(&qp.send_cqn)
        || qp.rq.is_some() && !function.cqs.contains_key(&qp.recv_cqn)
        || qp.page.is_some_and(|page| !function.uars.has(page))
    {
        return Err(Status::BAD_RESOURCE);
    }
    // Packets for the management queues have fixed numbers.
    if qp.wire != qpn
        && let Some(special) = call.device.special.get_mut(qp.wire as usize)
    {
        *special = Some(qpn);
    }
    call.device.add_qp(qp);
    call.function.qps.insert(qpn, context.to_vec());
    create_qp_out::QPN.set(output, qpn);
    Ok(())
}

impl Call<'_, '_> {
    /// Checks that there is room for a queue pair: DC targets and send queues have the same kind of number.
    pub(super) fn room_for_qp(&self) -> Result<(), Status> {
        room(self.device.qps.len(), LOG_MAX_QP)
    }
}

pub(super) fn modify(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let record = call.function.qps.get_mut(&rst2init_qp_in::QPN.get32(input)).ok_or(Status::BAD_RESOURCE)?;
    prm::modify::execute(call.device, call.port, record, input)
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = destroy_qp_in::QPN.get32(input);
    if call.port.is_member(qpn) {
        return Err(Status::BUSY);
    }
    call.function.qps.remove(&qpn).ok_or(Status::BAD_RESOURCE)?;
    call.device.remove_qp(qpn);
    for special in &mut call.device.special {
        if *special == Some(qpn) {
            *special = None;
        }
    }
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let qpn = query_qp_in::QPN.get32(input);
    let record = call.function.qps.get(&qpn).ok_or(Status::BAD_RESOURCE)?;
    let qp = call.device.qps.get(&qpn).ok_or(Status::BAD_RESOURCE)?;
    let context = query_qp_out::QPC.bytes_mut(output);
    let len = context.len().min(record.len());
    context[..len].copy_from_slice(&record[..len]);
    qpc::STATE.set(context, state_number(qp.state));
    qpc::HW_SQ_WQEBB_COUNTER.set(context, qp.sq.as_ref().map_or(0, |sq| sq.next));
    Ok(())
}

fn group(input: &[u8]) -> [u8; 16] {
    uverbs_hca::bytes::array(attach_to_mcg_in::MULTICAST_GID.bytes(input), 0).unwrap_or_default()
}

pub(super) fn attach(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = attach_to_mcg_in::QPN.get32(input);
    if !call.device.qps.get(&qpn).is_some_and(|qp| qp.kind == QpKind::Ud) {
        return Err(Status::BAD_RESOURCE);
    }
    let gid = group(input);
    // A group of InfiniBand or IPv6; of IPv4, as RoCE maps its addresses.
    let is_group =
        gid[0] == 0xff || (gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] && gid[12] >> 4 == 0xe);
    if !is_group {
        return Err(Status::BAD_PARAM);
    }
    if !call.port.has_room(&gid) {
        return Err(Status::LIMIT);
    }
    if call.port.join(gid, qpn) { Ok(()) } else { Err(Status::BAD_PARAM) }
}

pub(super) fn detach(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = attach_to_mcg_in::QPN.get32(input);
    if call.port.leave(group(input), qpn) { Ok(()) } else { Err(Status::BAD_PARAM) }
}
