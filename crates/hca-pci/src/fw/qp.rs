// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: creation, queries, groups.

use super::{Call, Layout, Status, umem};
use crate::caps::LOG_MAX_QP_SIZE;
use crate::layout::{
    attach_to_mcg_in, create_qp_in, create_qp_out, destroy_qp_in, qpc, query_qp_in, query_qp_out,
};
use uverbs_hca::front::RecvRing;
use uverbs_hca::front::{Qp, QpKind, SendRing, State};
use uverbs_mlx5_hw::wqe::MLX5_SEND_WQE_BB;

/// `MLX5_QP_ST_*`
mod service {
    pub(super) const RC: u32 = 0x0;
    pub(super) const UC: u32 = 0x1;
    pub(super) const UD: u32 = 0x2;
    pub(super) const XRC: u32 = 0x3;
    pub(super) const DCI: u32 = 0x5;
    pub(super) const QP0: u32 = 0x7;
    pub(super) const QP1: u32 = 0x8;
    pub(super) const REG_UMR: u32 = 0xc;
}

/// `MLX5_NON_ZERO_RQ`, `MLX5_SRQ_RQ`
const OWN_RQ: u64 = 0;
const SHARED_RQ: u64 = 1;

/// `MLX5_RES_SCAT_DATA*_CQE`, `MLX5_REQ_SCAT_DATA*_CQE`
fn scatter(value: u64) -> usize {
    match value {
        0x01 | 0x11 => 32,
        0x02 | 0x22 => 64,
        _ => 0,
    }
}

/// `enum mlx5_qp_state`
pub(super) fn state_number(state: State) -> u32 {
    match state {
        State::Reset => 0,
        State::Init => 1,
        State::Rtr => 2,
        State::Rts => 3,
        State::Sqe => 4,
        State::Sqd => 5,
        State::Err => 6,
    }
}

/// The QP type of a service type, and the number in packets if that is fixed.
fn kind(context: &[u8]) -> Option<(QpKind, Option<u32>)> {
    Some(match qpc::ST.get32(context) {
        service::RC => (QpKind::Rc, None),
        service::REG_UMR => (QpKind::Keys, None),
        service::UC => (QpKind::Uc, None),
        service::UD => (QpKind::Ud, None),
        service::XRC if qpc::NO_SQ.is_set(context) => (QpKind::XrcRecv, None),
        service::XRC => (QpKind::XrcSend, None),
        service::DCI => (QpKind::Dci, None),
        service::QP0 => (QpKind::Ud, Some(0)),
        service::QP1 => (QpKind::Ud, Some(1)),
        _ => return None,
    })
}

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_qp_in::QPC.bytes(input);
    let (kind, wire) = kind(context).ok_or(Status::BAD_PARAM)?;
    let pd = qpc::PD.get32(context);
    let is_target = kind == QpKind::XrcRecv;
    // The driver's queue for updates of memory keys is in no domain.
    if kind != QpKind::Keys && !call.function.pds.has(pd) {
        return Err(Status::BAD_RESOURCE);
    }
    let (send_cqn, recv_cqn) = (qpc::CQN_SND.get32(context), qpc::CQN_RCV.get32(context));
    let qpn = call.device.number();
    let mut qp = Qp::new(qpn, kind);
    (qp.pd, qp.send_cqn, qp.recv_cqn) = (pd, send_cqn, recv_cqn);
    qp.uidx = qpc::USER_INDEX.get32(context);
    qp.xrcd = qpc::XRCD.get32(context);
    qp.wire = wire.unwrap_or(qpn);
    qp.scatter_req = scatter(qpc::CS_REQ.get(context));
    qp.scatter_resp = scatter(qpc::CS_RES.get(context));
    let has_rq = matches!(kind, QpKind::Rc | QpKind::Uc | QpKind::Ud);
    if has_rq && qpc::RQ_TYPE.get(context) == SHARED_RQ {
        let srqn = qpc::SRQN_RMPN_XRQN.get32(context);
        if !call.device.srqs.contains_key(&srqn) {
            return Err(Status::BAD_RESOURCE);
        }
        qp.srqn = Some(srqn);
    }
    let has_sq = !qpc::NO_SQ.is_set(context) && !is_target;
    let own_rq = has_rq && qpc::RQ_TYPE.get(context) == OWN_RQ;
    if has_sq && !call.function.cqs.contains_key(&send_cqn)
        || own_rq && !call.function.cqs.contains_key(&recv_cqn)
    {
        return Err(Status::BAD_RESOURCE);
    }
    rings(call, &mut qp, input, has_sq, own_rq)?;
    if let Some(special) = wire.and_then(|n| call.device.special.get_mut(n as usize)) {
        *special = Some(qpn);
    }
    call.device.qps.insert(qpn, Box::new(qp));
    call.function.qps.insert(qpn, context.to_vec());
    create_qp_out::QPN.set(output, qpn);
    Ok(())
}

/// The rings: the receive queue first, the send queue behind it.
fn rings(call: &Call<'_, '_>, qp: &mut Qp, input: &[u8], has_sq: bool, has_rq: bool) -> Result<(), Status> {
    let context = create_qp_in::QPC.bytes(input);
    let (log_rq, log_sq) = (qpc::LOG_RQ_SIZE.get32(context), qpc::LOG_SQ_SIZE.get32(context));
    if log_rq > LOG_MAX_QP_SIZE || log_sq > LOG_MAX_QP_SIZE {
        return Err(Status::BAD_PARAM);
    }
    let stride = 16 << qpc::LOG_RQ_STRIDE.get32(context);
    let rq_len = if has_rq { stride << log_rq } else { 0 };
    let sq_len = if has_sq { (MLX5_SEND_WQE_BB as u64) << log_sq } else { 0 };
    if rq_len + sq_len == 0 {
        return Ok(());
    }
    let layout = Layout {
        log_page_size: qpc::LOG_PAGE_SIZE.get32(context),
        page_offset: qpc::PAGE_OFFSET.get(context),
        len: rq_len + sq_len,
    };
    let memory = |at, len| match call.in_umem_at(input, &umem::QP, at, len)? {
        Some(area) => Ok(area),
        None => call.queue(&layout, create_qp_in::PAS.rest(input))?.area(at, len).ok_or(Status::BAD_PARAM),
    };
    let record = call.record_of(context, &umem::QP_RECORD)?;
    let page = qpc::UAR_PAGE.get32(context);
    if !call.function.uars.has(page) {
        return Err(Status::BAD_RESOURCE);
    }
    qp.page = Some(page);
    if has_sq {
        let ring = memory(rq_len, sq_len)?;
        qp.sq = Some(SendRing { ring, count: 1 << log_sq, record: record.clone(), next: 0, posted: 0 });
    }
    if has_rq {
        let ring = memory(0, rq_len)?;
        qp.rq = Some(RecvRing {
            ring,
            stride,
            count: 1 << log_rq,
            record,
            taken: 0,
            broken: false,
            padded: false,
        });
    }
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = destroy_qp_in::QPN.get32(input);
    if call.port.is_member(qpn) {
        return Err(Status::BUSY);
    }
    call.function.qps.remove(&qpn).ok_or(Status::BAD_RESOURCE)?;
    call.device.qps.remove(&qpn);
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
    if !is_group || !call.port.join(gid, qpn) {
        return Err(Status::BAD_PARAM);
    }
    Ok(())
}

pub(super) fn detach(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let qpn = attach_to_mcg_in::QPN.get32(input);
    if call.port.leave(group(input), qpn) { Ok(()) } else { Err(Status::BAD_PARAM) }
}
