// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for completion queues, queue pairs and memory keys. Their rings, records and regions are in memory that the
//! program has registered for commands.

use super::FIRST_EQN;
use super::firmware::{Firmware, Item, copy, lengths, op, opcode};
use crate::engine::cq::{Cq, CqParts};
use crate::engine::mkey::Kind as MkeyKind;
use crate::engine::qp::{Qp, State};
use crate::kernel::call::Call;
use crate::kernel::limits::VECTORS;
use crate::kernel::object::{self, Numbered, Object};
use crate::prm::layout::{
    ads, cqc, create_cq_in, create_cq_out, create_mkey_in, create_mkey_out, create_psv_in, create_psv_out,
    create_qp_in, create_qp_out, mkc, modify_cq_in, qpc, query_cq_out, query_mkey_out, query_qp_out,
};
use crate::prm::{Status, general, mkey, modify, place, qp as prm_qp};
use uverbs_softkernel::Call as _;

/// The largest queues, as powers of two.
pub(super) const LOG_MAX_QP_SIZE: u32 = 15;
pub(super) const LOG_MAX_CQ_SIZE: u32 = 22;
/// The status of a CQ after an overrun (`MLX5_CQ_ST_OVERFLOW`).
const CQ_OVERFLOW: u32 = 9;
/// `MLX5_MODIFY_CQ_MASK_*`: period and count of moderation.
const PERIOD: u32 = 1 << 0;
const COUNT: u32 = 1 << 1;

impl Call<'_, '_> {
    /// Whether the context has a protection domain with this number.
    fn has_pd(&mut self, pdn: u32) -> bool {
        self.state
            .tables
            .context(self.context)
            .is_ok_and(|context| context.find((Numbered::Pd, pdn)).is_some())
    }

    /// Whether the context has a doorbell page with this number.
    fn has_page(&mut self, page: u32) -> bool {
        self.state.tables.context(self.context).is_ok_and(|context| object::page(context, page).is_ok())
    }

    pub(super) fn create_cq_by_command(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Firmware, Status> {
        lengths(input, output, (272, 12))?;
        let context = create_cq_in::CQ_CONTEXT.bytes(input);
        let (eqn, page) = (cqc::C_EQN_OR_APU_ELEMENT.get32(context), cqc::UAR_PAGE.get32(context));
        if !(FIRST_EQN..FIRST_EQN + VECTORS).contains(&eqn) || !self.has_page(page) {
            return Err(Status::BAD_RESOURCE);
        }
        let entry: usize = match cqc::CQE_SZ.get(context) {
            0 => 64,
            1 | 2 => 128,
            _ => return Err(Status::BAD_PARAM),
        };
        let log_size = cqc::LOG_CQ_SIZE.get32(context);
        if log_size > LOG_MAX_CQ_SIZE {
            return Err(Status::BAD_PARAM);
        }
        let ring = self.in_umem(input, &place::CQ, 0, (entry as u64) << log_size)?;
        let record = self.record_in_umem(context, &place::CQ_RECORD)?;
        let ignore_overrun = cqc::OI.is_set(context);
        let cq = Cq::new(CqParts { ring, entry, record, page, ignore_overrun }).ok_or(Status::BAD_PARAM)?;
        let cqn = self.device.number().ok_or(Status::LIMIT)?;
        self.device.add_cq(cqn, cq);
        create_cq_out::CQN.set(output, cqn);
        Ok(Firmware { item: Item::Cq { cqn }, context: context.to_vec() })
    }

    pub(super) fn create_qp_by_command(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Firmware, Status> {
        lengths(input, output, (272, 12))?;
        let context = create_qp_in::QPC.bytes(input);
        let qpn = self.device.number().ok_or(Status::LIMIT)?;
        let record = self.record_in_umem(context, &place::QP_RECORD);
        let memory = |at, len, _| self.in_umem(input, &place::QP, at, len);
        let qp = prm_qp::build(qpn, input, LOG_MAX_QP_SIZE, memory, || record)?;
        let cq_is_missing = |cqn| !self.device.cqs.contains_key(&cqn);
        // Management queues are the kernel's.
        if qp.wire != qpn
            || qp.srqn.is_some_and(|srqn| !self.device.srqs.contains_key(&srqn))
            || qp.sq.is_some() && cq_is_missing(qp.send_cqn)
            || qp.rq.is_some() && cq_is_missing(qp.recv_cqn)
            || !self.has_pd(qp.pd)
            || qp.page.is_some_and(|page| !self.has_page(page))
        {
            return Err(Status::BAD_RESOURCE);
        }
        self.device.add_qp(qp);
        create_qp_out::QPN.set(output, qpn);
        Ok(Firmware { item: Item::Qp { qpn }, context: context.to_vec() })
    }

    pub(super) fn create_mkey_by_command(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Firmware, Status> {
        lengths(input, output, (272, 12))?;
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes(input);
        let pd = mkc::PD.get32(context);
        if !self.has_pd(pd) {
            return Err(Status::BAD_RESOURCE);
        }
        let kind = match (mkey::mode(context), mkc::FREE.is_set(context)) {
            (mkey::PAGES, true) => MkeyKind::Free,
            (mkey::PAGES, false) => {
                let memory = self.region_in_umem(input, &place::MKEY, mkc::LEN.get(context))?;
                MkeyKind::Region { memory, iova: mkc::START_ADDR.get(context) }
            }
            (mkey::KLMS | mkey::EQUAL_KLMS, _) => mkey::indirect(&self.device.mkeys, input)?,
            // All memory is reserved for the kernel.
            _ => return Err(Status::BAD_PARAM),
        };
        let variant = mkc::MKEY_7_0.get(context) as u8;
        let key = self.device.mkeys.add(variant, pd, mkey::rights(context), kind).ok_or(Status::LIMIT)?;
        create_mkey_out::MKEY_INDEX.set(output, key >> 8);
        Ok(Firmware { item: Item::Mkey { key }, context: context.to_vec() })
    }

    /// Creates the value that a signature begins with. The kernel does not pass on commands for several: they are one object
    /// (`devx_is_obj_create_cmd()`).
    pub(super) fn create_psv_by_command(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Firmware, Status> {
        lengths(input, output, (16, 32))?;
        let pd = create_psv_in::PD.get32(input);
        if create_psv_in::NUM_PSV.get(input) != 1 {
            return Err(Status::BAD_PARAM);
        }
        if !self.has_pd(pd) {
            return Err(Status::BAD_RESOURCE);
        }
        let index = self.device.mkeys.psvs.add(pd).ok_or(Status::LIMIT)?;
        create_psv_out::PSV0_INDEX.set(output, index);
        Ok(Firmware { item: Item::Psv { index }, context: Vec::new() })
    }

    /// Answers a query. `input` names the object with this handle.
    pub(super) fn query_queue(&mut self, handle: u32, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
        let record = match self.object(handle) {
            Ok(Object::Devx(object)) => Some(object.context.clone()),
            Ok(_) => None,
            Err(_) => return Err(Status::BAD_RESOURCE),
        };
        let number = general::OBJ_ID.get32(input) & 0xff_ffff;
        match opcode(input) {
            op::QUERY_CQ => {
                lengths(input, output, (16, 80))?;
                let cq = self.device.cqs.get(&number).ok_or(Status::BAD_RESOURCE)?;
                let context = query_cq_out::CQ_CONTEXT.bytes_mut(output);
                copy(context, &record.unwrap_or_default());
                cqc::STATUS.set(context, if cq.is_broken() { CQ_OVERFLOW } else { 0 });
                cqc::PRODUCER_COUNTER.set(context, cq.producer());
            }
            op::QUERY_QP => {
                lengths(input, output, (16, 256))?;
                let udp_sport = self.udp_sport(handle);
                let qp = self.device.qps.get(&number).ok_or(Status::BAD_RESOURCE)?;
                let context = query_qp_out::QPC.bytes_mut(output);
                copy(context, &record.unwrap_or_else(|| describe(qp, udp_sport)));
                qpc::STATE.set(context, prm_qp::state_number(qp.state));
                qpc::HW_SQ_WQEBB_COUNTER.set(context, qp.sq.as_ref().map_or(0, |sq| sq.next));
            }
            op::QUERY_MKEY => {
                lengths(input, output, (16, 80))?;
                copy(query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes_mut(output), &record.unwrap_or_default());
            }
            _ => return Err(Status::BAD_OP),
        }
        Ok(())
    }

    /// The UDP source port that a command set for a queue pair of verbs.
    fn udp_sport(&mut self, handle: u32) -> u16 {
        match self.object(handle) {
            Ok(Object::Qp(qp)) => qp.udp_sport,
            _ => 0,
        }
    }

    /// Modifies the queue with this handle, which `input` names.
    pub(super) fn modify_queue(&mut self, handle: u32, input: &[u8]) -> Result<(), Status> {
        let number = general::OBJ_ID.get32(input) & 0xff_ffff;
        let context = self.state.tables.context(self.context).map_err(|_| Status::BAD_RESOURCE)?;
        let entry = context.objects.get_mut(&handle).ok_or(Status::BAD_RESOURCE)?;
        match (&mut entry.object, opcode(input)) {
            (Object::Devx(object), op::MODIFY_CQ) => {
                let select = modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT.get32(input);
                // A resize needs lists of pages, which programs do not have.
                if modify_cq_in::OP_MOD.get(input) != 0 || select & !(PERIOD | COUNT) != 0 {
                    return Err(Status::BAD_PARAM);
                }
                let wanted = modify_cq_in::CQ_CONTEXT.bytes(input);
                let cq = self.device.cqs.get_mut(&number).ok_or(Status::BAD_RESOURCE)?;
                if select & PERIOD != 0 {
                    cqc::CQ_PERIOD.copy(wanted, &mut object.context);
                    cq.moderation.1 = cqc::CQ_PERIOD.get(wanted) as u16;
                }
                if select & COUNT != 0 {
                    cqc::CQ_MAX_COUNT.copy(wanted, &mut object.context);
                    cq.moderation.0 = cqc::CQ_MAX_COUNT.get(wanted) as u16;
                }
                Ok(())
            }
            (Object::Devx(object), _) => modify::execute(self.device, self.port, &mut object.context, input),
            (Object::Qp(object), opcode) => {
                // The states of queue pairs of verbs are changed by verbs.
                let qp = self.device.qps.get(&number).ok_or(Status::BAD_RESOURCE)?;
                // Neither command changes the state.
                if !matches!(
                    (opcode, qp.state),
                    (modify::RTS2RTS, State::Rts) | (modify::INIT2INIT, State::Init)
                ) {
                    return Err(Status::BAD_QP_STATE);
                }
                let (before, mut record) = (qp.attr.clone(), describe(qp, object.udp_sport));
                modify::execute(self.device, self.port, &mut record, input)?;
                object.udp_sport = ads::UDP_SPORT.get(qpc::PRIMARY_ADDRESS_PATH.bytes(&record)) as u16;
                // A context has their logarithms only, which are not exact.
                if let Some(qp) = self.device.qps.get_mut(&number) {
                    qp.attr.max_rd_atomic = before.max_rd_atomic;
                    qp.attr.max_dest_rd_atomic = before.max_dest_rd_atomic;
                }
                Ok(())
            }
            _ => Err(Status::BAD_RESOURCE),
        }
    }
}

/// The context of a queue pair that a verb created.
fn describe(qp: &Qp, udp_sport: u16) -> Vec<u8> {
    let mut context = vec![0; 232];
    let attr = &qp.attr;
    let has = |right| u32::from(attr.access & right != 0);
    let log = |count: u8| u32::from(count).checked_ilog2().unwrap_or(0);
    use crate::engine::mkey::access;
    for (field, value) in [
        (qpc::PD, qp.pd),
        (qpc::MTU, (attr.mtu / 128).checked_ilog2().unwrap_or(0)),
        (qpc::UAR_PAGE, qp.page.unwrap_or(0)),
        (qpc::USER_INDEX, qp.uidx),
        (qpc::REMOTE_QPN, attr.dest_qpn),
        (qpc::LOG_SRA_MAX, log(attr.max_rd_atomic)),
        (qpc::LOG_RRA_MAX, log(attr.max_dest_rd_atomic)),
        (qpc::RETRY_COUNT, attr.retry_cnt.into()),
        (qpc::RNR_RETRY, attr.rnr_retry.into()),
        (qpc::MIN_RNR_NAK, attr.min_rnr_timer.into()),
        (qpc::NEXT_SEND_PSN, attr.sq_psn),
        (qpc::NEXT_RCV_PSN, attr.rq_psn),
        (qpc::CQN_SND, qp.send_cqn),
        (qpc::CQN_RCV, qp.recv_cqn),
        (qpc::RRE, has(access::REMOTE_READ)),
        (qpc::RWE, has(access::REMOTE_WRITE)),
        (qpc::RAE, has(access::REMOTE_ATOMIC)),
        (qpc::XRCD, qp.xrcd),
        (qpc::Q_KEY, attr.qkey),
        (qpc::SRQN_RMPN_XRQN, qp.srqn.unwrap_or(0)),
    ] {
        field.set(&mut context, value);
    }
    let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context);
    for (field, value) in [
        (ads::GRH, u32::from(attr.dgid.is_some())),
        (ads::RLID, attr.dlid.into()),
        (ads::SL, attr.sl.into()),
        (ads::ACK_TIMEOUT, attr.timeout.into()),
        (ads::UDP_SPORT, udp_sport.into()),
    ] {
        field.set(path, value);
    }
    copy(ads::RGID_RIP.bytes_mut(path), &attr.dgid.unwrap_or_default());
    context
}
