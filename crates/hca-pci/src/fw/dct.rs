// SPDX-License-Identifier: MIT OR Apache-2.0
//! Targets of dynamically connected transport.

use super::{Call, Status};
use crate::layout::{
    create_dct_in, create_dct_out, dctc, destroy_dct_in, drain_dct_in, query_dct_in, query_dct_out,
};
use uverbs_hca::front::access;
use uverbs_hca::front::{Qp, QpKind, State};

/// Reads and atomics of one initiator that a target serves at a time.
const DEPTH: u8 = 16;
/// `MLX5_DCTC_STATE_*`
const ACTIVE: u32 = 0;
const DRAINED: u32 = 2;

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_dct_in::DCT_CONTEXT_ENTRY.bytes(input);
    let (pd, cqn, srqn) = (dctc::PD.get32(context), dctc::CQN.get32(context), dctc::SRQN_XRQN.get32(context));
    if !call.function.pds.has(pd)
        || !call.function.cqs.contains_key(&cqn)
        || !call.device.srqs.contains_key(&srqn)
    {
        return Err(Status::BAD_RESOURCE);
    }
    call.room_for_qp()?;
    let qpn = call.device.number().ok_or(Status::LIMIT)?;
    let mut qp = Qp::new(qpn, QpKind::Dct);
    (qp.pd, qp.recv_cqn, qp.srqn) = (pd, cqn, Some(srqn));
    qp.uidx = dctc::USER_INDEX.get32(context);
    qp.dc_key = dctc::DC_ACCESS_KEY.get(context);
    qp.scatter_resp = match dctc::CS_RES.get(context) {
        1 => 32,
        2 => 64,
        _ => 0,
    };
    let bit = |set, right| if set { right } else { 0 };
    qp.attr.access = bit(dctc::RRE.is_set(context), access::REMOTE_READ)
        | bit(dctc::RWE.is_set(context), access::REMOTE_WRITE)
        | bit(dctc::RAE.is_set(context), access::REMOTE_ATOMIC);
    qp.attr.mtu = match dctc::MTU.get32(context) {
        mtu @ 1..=5 => 128 << mtu,
        _ => return Err(Status::BAD_PARAM),
    };
    qp.attr.min_rnr_timer = dctc::MIN_RNR_NAK.get(context) as u8;
    qp.attr.max_dest_rd_atomic = DEPTH;
    // A target accepts messages as soon as it is created.
    qp.state = State::Rtr;
    call.device.add_qp(qp);
    call.function.dcts.insert(qpn, context.to_vec());
    create_dct_out::DCTN.set(output, qpn);
    Ok(())
}

/// Stops accepting messages. The driver waits for the event that no message is open.
pub(super) fn drain(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let dctn = drain_dct_in::DCTN.get32(input);
    if !call.function.dcts.contains_key(&dctn) {
        return Err(Status::BAD_RESOURCE);
    }
    call.device.move_qp(call.port, dctn, State::Err);
    call.function.post_dct_drained(dctn);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let dctn = destroy_dct_in::DCTN.get32(input);
    call.function.dcts.remove(&dctn).ok_or(Status::BAD_RESOURCE)?;
    call.device.remove_qp(dctn);
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let dctn = query_dct_in::DCTN.get32(input);
    let record = call.function.dcts.get(&dctn).ok_or(Status::BAD_RESOURCE)?;
    let live = call.device.qps.get(&dctn).is_some_and(|qp| qp.state.receives());
    let context = query_dct_out::DCT_CONTEXT_ENTRY.bytes_mut(output);
    let len = context.len().min(record.len());
    context[..len].copy_from_slice(&record[..len]);
    dctc::STATE.set(context, if live { ACTIVE } else { DRAINED });
    Ok(())
}
