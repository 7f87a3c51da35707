// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types and states of queue pairs as their contexts encode them.

use super::Status;
use super::layout::{create_qp_in, qpc};
use crate::engine::qp::{Qp, QpKind, SendRing, State};
use crate::engine::recv::RecvRing;
use crate::memory::Area;
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
pub const OWN_RQ: u64 = 0;
/// See [`OWN_RQ`].
pub const SHARED_RQ: u64 = 1;

/// The longest data in a completion: `MLX5_RES_SCAT_DATA*_CQE`, `MLX5_REQ_SCAT_DATA*_CQE`
#[must_use]
pub fn scatter(value: u64) -> usize {
    match value {
        0x01 | 0x11 => 32,
        0x02 | 0x22 => 64,
        _ => 0,
    }
}

/// `enum mlx5_qp_state`
#[must_use]
pub fn state_number(state: State) -> u32 {
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
#[must_use]
pub fn kind(context: &[u8]) -> Option<(QpKind, Option<u32>)> {
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

/// The queue pair that a `CREATE_QP` command describes, with this number. The receive queue is first in its memory, the send
/// queue behind it: `memory` returns the bytes from the first argument on, of the second one's length, of all of the
/// third one's. `record` returns the doorbell record. The caller checks that the objects which the queue pair names exist.
///
/// # Errors
/// The status with which the firmware refuses the command.
pub fn build(
    qpn: u32,
    input: &[u8],
    max_log_size: u32,
    mut memory: impl FnMut(u64, u64, u64) -> Result<Area, Status>,
    record: impl FnOnce() -> Result<Area, Status>,
) -> Result<Qp, Status> {
    let context = create_qp_in::QPC.bytes(input);
    let (kind, wire) = kind(context).ok_or(Status::BAD_PARAM)?;
    let mut qp = Qp::new(qpn, kind);
    qp.pd = qpc::PD.get32(context);
    (qp.send_cqn, qp.recv_cqn) = (qpc::CQN_SND.get32(context), qpc::CQN_RCV.get32(context));
    qp.uidx = qpc::USER_INDEX.get32(context);
    qp.xrcd = qpc::XRCD.get32(context);
    qp.wire = wire.unwrap_or(qpn);
    qp.scatter_req = scatter(qpc::CS_REQ.get(context));
    qp.scatter_resp = scatter(qpc::CS_RES.get(context));
    let can_receive = matches!(kind, QpKind::Rc | QpKind::Uc | QpKind::Ud);
    if can_receive && qpc::RQ_TYPE.get(context) == SHARED_RQ {
        qp.srqn = Some(qpc::SRQN_RMPN_XRQN.get32(context));
    }
    let has_sq = !qpc::NO_SQ.is_set(context) && kind != QpKind::XrcRecv;
    let has_rq = can_receive && qpc::RQ_TYPE.get(context) == OWN_RQ;
    let (log_rq, log_sq) = (qpc::LOG_RQ_SIZE.get32(context), qpc::LOG_SQ_SIZE.get32(context));
    if log_rq > max_log_size || log_sq > max_log_size {
        return Err(Status::BAD_PARAM);
    }
    let stride = 16 << qpc::LOG_RQ_STRIDE.get32(context);
    let rq_len = if has_rq { stride << log_rq } else { 0 };
    let sq_len = if has_sq { (MLX5_SEND_WQE_BB as u64) << log_sq } else { 0 };
    if rq_len + sq_len == 0 {
        return Ok(qp);
    }
    let record = record()?;
    qp.page = Some(qpc::UAR_PAGE.get32(context));
    if has_sq {
        let ring = memory(rq_len, sq_len, rq_len + sq_len)?;
        qp.sq = Some(SendRing { ring, count: 1 << log_sq, record: record.clone(), next: 0, posted: 0 });
    }
    if has_rq {
        let ring = memory(0, rq_len, rq_len + sq_len)?;
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
    Ok(qp)
}
