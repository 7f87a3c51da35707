// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transitions of queue pairs. Each sets its required fields, and those that the mask of optional parameters selects
//! (`enum mlx5_qp_optpar`).

use super::Status;
use super::bits::Field;
use super::general;
use super::layout::{ads, qpc, rst2init_qp_in as modify_in};
use crate::bytes::{array, be16};
use crate::engine::mkey::access;
use crate::engine::qp::{Attr, Qp, QpKind, Route, State};
use crate::engine::{Device, Port};

/// `MLX5_QP_OPTPAR_*`
mod optional {
    pub(super) const RRE: u32 = 1 << 1;
    pub(super) const RAE: u32 = 1 << 2;
    pub(super) const RWE: u32 = 1 << 3;
    pub(super) const Q_KEY: u32 = 1 << 5;
    pub(super) const RNR_TIMEOUT: u32 = 1 << 6;
    pub(super) const PRIMARY_PATH: u32 = 1 << 7;
    pub(super) const SRA_MAX: u32 = 1 << 8;
    pub(super) const RRA_MAX: u32 = 1 << 9;
    /// `MLX5_QPC_OPT_MASK_INIT2INIT_DRAIN_SIGERR` of libmlx5, for that transition only.
    pub(super) const DRAIN_SIGERR: u32 = 1 << 11;
    pub(super) const RETRY_COUNT: u32 = 1 << 12;
    pub(super) const RNR_RETRY: u32 = 1 << 13;
    pub(super) const ACK_TIMEOUT: u32 = 1 << 14;
    /// `MLX5_QPC_OPT_MASK_32_DCI_STREAM_CHANNEL_ID`.
    pub(super) const DCI_STREAM_2: u64 = 1 << 0;
    /// `MLX5_QPC_OPT_MASK_32_UDP_SPORT` of the second mask, which only the longest form of a command has.
    pub(super) const UDP_SPORT_2: u64 = 1 << 2;
}

/// `MLX5_CMD_OP_*`
mod op {
    pub(super) const RST2INIT: u16 = 0x502;
    pub(super) const INIT2RTR: u16 = 0x503;
    pub(super) const RTR2RTS: u16 = 0x504;
    pub(super) const RTS2RTS: u16 = 0x505;
    pub(super) const SQERR2RTS: u16 = 0x506;
    pub(super) const TO_ERR: u16 = 0x507;
    pub(super) const TO_RST: u16 = 0x50a;
    pub(super) const INIT2INIT: u16 = 0x50e;
}

/// Fields that a transition sets.
#[derive(Clone, Copy)]
struct Sets {
    access: bool,
    q_key: bool,
    path: bool,
    mtu: bool,
    receive: bool,
    send: bool,
}

const NOTHING: Sets =
    Sets { access: false, q_key: false, path: false, mtu: false, receive: false, send: false };

/// The states from which a command moves a queue pair, the state to which, and the fields that it sets.
fn transition(opcode: u16) -> Option<(&'static [State], State, Sets)> {
    Some(match opcode {
        op::RST2INIT => (&[State::Reset], State::Init, Sets { access: true, q_key: true, ..NOTHING }),
        op::INIT2INIT => (&[State::Init], State::Init, NOTHING),
        op::INIT2RTR => {
            (&[State::Init], State::Rtr, Sets { path: true, mtu: true, receive: true, ..NOTHING })
        }
        op::RTR2RTS => (&[State::Rtr], State::Rts, Sets { send: true, ..NOTHING }),
        op::RTS2RTS => (&[State::Rts], State::Rts, NOTHING),
        op::SQERR2RTS => (&[State::Sqe], State::Rts, NOTHING),
        _ => return None,
    })
}

/// `MLX5_CMD_OP_RTS2RTS_QP`
pub const RTS2RTS: u16 = op::RTS2RTS;
/// `MLX5_CMD_OP_INIT2INIT_QP`
pub const INIT2INIT: u16 = op::INIT2INIT;

/// Executes a command that modifies a queue pair whose context is `record`.
///
/// # Errors
/// The status with which the firmware refuses it.
pub fn execute(
    device: &mut Device,
    port: &mut Port<'_>,
    record: &mut [u8],
    input: &[u8],
) -> Result<(), Status> {
    let qpn = modify_in::QPN.get32(input);
    let to = match be16(input, 0) {
        op::TO_ERR => State::Err,
        op::TO_RST => State::Reset,
        opcode => {
            let (from, to, sets) = transition(opcode).ok_or(Status::BAD_OP)?;
            let qp = device.qps.get_mut(&qpn).ok_or(Status::BAD_RESOURCE)?;
            if !from.contains(&qp.state) {
                return Err(Status::BAD_QP_STATE);
            }
            if opcode == op::RTS2RTS && general::OPT_PARAM_MASK_95_32.get(input) & optional::DCI_STREAM_2 != 0
            {
                let stream = general::DCI_STREAM_CHANNEL_ID.get(input) as u16;
                // Only a stream with an error is reset.
                if !qp.streams.as_mut().is_some_and(|streams| streams.reset(stream)) {
                    return Err(Status::BAD_PARAM);
                }
            }
            apply(qp, record, input, sets, device.ethernet);
            if opcode == op::INIT2INIT && modify_in::OPT_PARAM_MASK.get32(input) & optional::DRAIN_SIGERR != 0
            {
                let wanted = modify_in::QPC.bytes(input);
                copy(wanted, record, &[qpc::DRAIN_SIGERR]);
                qp.drain_sigerr = qpc::DRAIN_SIGERR.is_set(wanted);
            }
            to
        }
    };
    if device.move_qp(port, qpn, to) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

/// Copies fields to the stored context, which queries return.
fn copy(from: &[u8], to: &mut [u8], fields: &[Field]) {
    for field in fields {
        field.copy(from, to);
    }
}

/// Sets the fields of a command in the stored context, and those that the engine needs in the queue pair.
fn apply(qp: &mut Qp, record: &mut [u8], input: &[u8], sets: Sets, ethernet: bool) {
    let mask = modify_in::OPT_PARAM_MASK.get32(input);
    let wanted = modify_in::QPC.bytes(input);
    let has = |bit| mask & bit != 0;
    let mut keep = vec![qpc::PM_STATE];
    if sets.access {
        keep.extend([qpc::RRE, qpc::RWE, qpc::RAE, qpc::ATOMIC_MODE, qpc::COUNTER_SET_ID]);
    } else {
        for (bit, field) in [(optional::RRE, qpc::RRE), (optional::RWE, qpc::RWE), (optional::RAE, qpc::RAE)]
        {
            if has(bit) {
                keep.push(field);
            }
        }
        if has(optional::RAE) {
            keep.push(qpc::ATOMIC_MODE);
        }
    }
    if sets.q_key || has(optional::Q_KEY) {
        keep.push(qpc::Q_KEY);
    }
    // For datagram queues, every transition sets the MTU.
    if sets.mtu || qp.kind == QpKind::Ud {
        keep.extend([qpc::MTU, qpc::LOG_MSG_MAX]);
    }
    if sets.receive {
        keep.extend([qpc::REMOTE_QPN, qpc::NEXT_RCV_PSN, qpc::LOG_RRA_MAX, qpc::MIN_RNR_NAK]);
    }
    if sets.send {
        keep.extend([qpc::NEXT_SEND_PSN, qpc::LOG_SRA_MAX, qpc::RETRY_COUNT, qpc::RNR_RETRY]);
    }
    for (bit, field) in [
        (optional::RNR_TIMEOUT, qpc::MIN_RNR_NAK),
        (optional::SRA_MAX, qpc::LOG_SRA_MAX),
        (optional::RRA_MAX, qpc::LOG_RRA_MAX),
        (optional::RETRY_COUNT, qpc::RETRY_COUNT),
        (optional::RNR_RETRY, qpc::RNR_RETRY),
    ] {
        if has(bit) {
            keep.push(field);
        }
    }
    copy(wanted, record, &keep);
    path(wanted, record, sets, has(optional::PRIMARY_PATH), has(optional::ACK_TIMEOUT));
    set(&mut qp.attr, record, ethernet);
    qp.attr.sq_psn = qpc::NEXT_SEND_PSN.get32(record);
    qp.attr.rq_psn = qpc::NEXT_RCV_PSN.get32(record);
    if general::OPT_PARAM_MASK_95_32.get(input) & optional::UDP_SPORT_2 != 0 {
        let (new, old) =
            (qpc::PRIMARY_ADDRESS_PATH.bytes(wanted), qpc::PRIMARY_ADDRESS_PATH.bytes_mut(record));
        copy(new, old, &[ads::UDP_SPORT]);
    }
}

/// Copies the fields of the primary path that a transition sets.
fn path(wanted: &[u8], record: &mut [u8], sets: Sets, all: bool, timeout: bool) {
    let new = qpc::PRIMARY_ADDRESS_PATH.bytes(wanted);
    let old = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(record);
    if sets.access {
        copy(new, old, &[ads::PKEY_INDEX, ads::VHCA_PORT_NUM]);
    }
    if sets.send || timeout {
        copy(new, old, &[ads::ACK_TIMEOUT]);
    }
    if sets.path || all {
        copy(
            new,
            old,
            &[
                ads::GRH,
                ads::MLID,
                ads::RLID,
                ads::SRC_ADDR_INDEX,
                ads::STAT_RATE,
                ads::HOP_LIMIT,
                ads::TCLASS,
                ads::FLOW_LABEL,
                ads::RGID_RIP,
                ads::SL,
                ads::UDP_SPORT,
                ads::RMAC_47_32,
                ads::RMAC_31_0,
            ],
        );
        if ads::VHCA_PORT_NUM.is_set(new) {
            copy(new, old, &[ads::VHCA_PORT_NUM]);
        }
    }
}

/// Copies the fields of a context that the engine needs.
fn set(attr: &mut Attr, context: &[u8], ethernet: bool) {
    let bit = |field: Field, right| if field.is_set(context) { right } else { 0 };
    attr.access = bit(qpc::RRE, access::REMOTE_READ)
        | bit(qpc::RWE, access::REMOTE_WRITE)
        | bit(qpc::RAE, access::REMOTE_ATOMIC);
    attr.qkey = qpc::Q_KEY.get32(context);
    attr.mtu = match qpc::MTU.get32(context) {
        mtu @ 1..=5 => 128 << mtu,
        _ => 4096,
    };
    attr.dest_qpn = qpc::REMOTE_QPN.get32(context);
    attr.max_dest_rd_atomic = 1 << qpc::LOG_RRA_MAX.get32(context);
    attr.max_rd_atomic = 1 << qpc::LOG_SRA_MAX.get32(context);
    attr.min_rnr_timer = qpc::MIN_RNR_NAK.get(context) as u8;
    attr.retry_cnt = qpc::RETRY_COUNT.get(context) as u8;
    attr.rnr_retry = qpc::RNR_RETRY.get(context) as u8;
    let path = qpc::PRIMARY_ADDRESS_PATH.bytes(context);
    attr.timeout = ads::ACK_TIMEOUT.get(path) as u8;
    attr.dlid = ads::RLID.get(path) as u16;
    attr.sl = ads::SL.get(path) as u8;
    let gid = array(ads::RGID_RIP.bytes(path), 0);
    attr.route = Route {
        sgid_index: ads::SRC_ADDR_INDEX.get(path) as u8,
        tclass: ads::TCLASS.get(path) as u8,
        flow_label: ads::FLOW_LABEL.get32(path),
        hop_limit: ads::HOP_LIMIT.get(path) as u8,
    };
    attr.dgid = gid.filter(|_| ethernet || ads::GRH.is_set(path));
}
