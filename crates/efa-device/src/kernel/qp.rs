// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs and address handles.

use super::bells::{RQ_BELL, SQ_BELL};
use super::call::{Call, errno};
use super::maps::{Bells, Mapped, Pages};
use super::object::{Object, QpObject};
use crate::caps::Caps;
use crate::device::{Modify, QpKind, QpParams, State};
use uverbs_core::Errno;
use uverbs_core::attr::{QpAttrMask as M, QpState, QpType, transition};
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{core_in, core_out, handle, uhw, uhw_out};
use uverbs_softkernel::commands::CreateQp;
use uverbs_softkernel::{Call as _, Driver as _};
use uverbs_uapi::cmd::{
    ib_uverbs_create_ah, ib_uverbs_create_ah_resp, ib_uverbs_ex_modify_qp, ib_uverbs_ex_modify_qp_resp,
    ib_uverbs_query_qp, ib_uverbs_query_qp_resp,
};
use uverbs_uapi::efa::{
    EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV, EFA_QP_DRIVER_TYPE_SRD, efa_ibv_create_ah_resp,
    efa_ibv_create_qp, efa_ibv_create_qp_resp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE,
    UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE,
    UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, UVERBS_ATTR_UHW_IN,
};
use uverbs_uapi::verbs::IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
use zerocopy::IntoBytes;

/// The attributes that the driver supports (`EFA_MODIFY_QP_SUPP_MASK`).
const MODIFIED: M = M::STATE
    .union(M::CUR_STATE)
    .union(M::EN_SQD_ASYNC_NOTIFY)
    .union(M::PKEY_INDEX)
    .union(M::PORT)
    .union(M::QKEY)
    .union(M::SQ_PSN)
    .union(M::RNR_RETRY);
/// Those that can be queried (`EFA_QUERY_QP_SUPP_MASK`).
const QUERIED: M = M::STATE
    .union(M::PKEY_INDEX)
    .union(M::PORT)
    .union(M::QKEY)
    .union(M::SQ_PSN)
    .union(M::CAP)
    .union(M::RNR_RETRY);

/// Whether an SRD QP may change so (`srd_qp_state_table`): required attributes, and further ones.
fn srd_rules(from: State, to: State) -> Option<(M, M)> {
    let none = M::empty();
    Some(match (from, to) {
        (State::Reset, State::Reset) | (_, State::Reset) => (none, none),
        (State::Reset, State::Init) => (M::PKEY_INDEX | M::PORT | M::QKEY, none),
        (State::Reset, _) => return None,
        (_, State::Err) => (none, none),
        (State::Init, State::Init) => (none, M::PKEY_INDEX | M::PORT | M::QKEY),
        (State::Init, State::Rtr) => (none, M::PKEY_INDEX | M::QKEY),
        (State::Rtr, State::Rts) => (M::SQ_PSN, M::CUR_STATE | M::QKEY | M::RNR_RETRY),
        (State::Rts | State::Sqd | State::Sqe, State::Rts) => (none, M::CUR_STATE | M::QKEY),
        (State::Rts, State::Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (State::Sqd, State::Sqd) => (none, M::PKEY_INDEX | M::QKEY),
        _ => return None,
    })
}

impl Call<'_, '_> {
    pub(super) fn create_qp(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let CreateQp { user_handle, cap, flags, qp_type } = CreateQp::of(c, &[])?;
        let handles = [
            handle(c, UVERBS_ATTR_CREATE_QP_PD_HANDLE)?,
            handle(c, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE)?,
            handle(c, UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE)?,
        ];
        let (pd, send_cq, recv_cq) = (self.pd(handles[0])?, self.cq(handles[1])?, self.cq(handles[2])?);
        let caps = self.device.caps;
        // `efa_qp_validate_cap()`
        let is_large = cap.max_send_wr > Caps::MAX_SQ
            || cap.max_recv_wr > Caps::MAX_RQ
            || cap.max_send_sge > Caps::SEND_BUFFERS.into()
            || cap.max_recv_sge > Caps::RECV_BUFFERS.into()
            || cap.max_inline_data > caps.inline.max(caps.inline_wide).into();
        if is_large {
            return Err(Errno::EINVAL);
        }
        // `efa_qp_validate_attr()`
        let is_driver = qp_type == QpType::Driver as u32;
        if !is_driver && qp_type != QpType::Ud as u32
            || c.has(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE)
            || flags & !IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0
        {
            return Err(Errno::EOPNOTSUPP);
        }
        // Up to `driver_qp_type` the request must be there.
        let private: efa_ibv_create_qp = uhw(c, 16).map_err(|_| Errno::EINVAL)?;
        if private.comp_mask != 0 || private.reserved_98 != [0; 5] {
            return Err(Errno::EINVAL);
        }
        let known_flags = if caps.unsolicited() { EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV } else { 0 };
        if private.flags & !known_flags != 0 || is_driver && private.driver_qp_type != EFA_QP_DRIVER_TYPE_SRD
        {
            return Err(Errno::EOPNOTSUPP);
        }
        if private.sq_ring_size > caps.max_llq
            || u64::from(private.rq_ring_size) > u64::from(Caps::MAX_RQ) * 16
        {
            return Err(Errno::EINVAL);
        }
        let pages = |bytes: u32| (bytes > 0).then(|| Pages::new(bytes as usize));
        let (sq, rq) = (pages(private.sq_ring_size), pages(private.rq_ring_size));
        let params = QpParams {
            kind: if is_driver { QpKind::Srd } else { QpKind::Ud },
            pd,
            send_cq,
            recv_cq,
            sq_ring: sq.as_ref().and_then(|pages| pages.area(private.sq_ring_size.into())),
            sq_depth: cap.max_send_wr,
            rq_ring: rq.as_ref().and_then(|pages| pages.area(private.rq_ring_size.into())),
            rq_depth: cap.max_recv_wr,
            uar: self.uar()?,
            unsolicited: private.flags & EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV != 0,
        };
        let kind = params.kind;
        let qpn = self.device.create_qp(params).map_err(errno)?;
        let (send_sub_cq_idx, recv_sub_cq_idx) =
            self.device.qp(qpn).map(|qp| (qp.send_sub, qp.recv_sub)).unwrap_or_default();
        let sig_all = flags & IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0;
        let mut object = QpObject { qpn, kind, cap, sig_all, maps: Vec::new() };
        let mut resp = efa_ibv_create_qp_resp {
            rq_db_offset: if rq.is_some() { RQ_BELL } else { 0 },
            sq_db_offset: SQ_BELL,
            rq_mmap_size: rq.as_ref().map_or(0, Pages::len) as u64,
            send_sub_cq_idx,
            recv_sub_cq_idx,
            ..Default::default()
        };
        let bells = Mapped::Bells(Bells::Qp(qpn));
        let entries = [
            (&mut resp.sq_db_mmap_key, Some(bells.clone())),
            // The driver maps at least one page (`qp_mmap_entries_setup()`).
            (&mut resp.llq_desc_mmap_key, Some(Mapped::Ring(sq.unwrap_or_else(|| Pages::new(1))))),
            (&mut resp.rq_db_mmap_key, rq.is_some().then_some(bells)),
            (&mut resp.rq_mmap_key, rq.map(Mapped::Ring)),
        ];
        let maps = &mut self.state.tables.context(self.context)?.data.maps;
        let mut result = Ok(());
        for (key, mapped) in entries {
            let Some(mapped) = mapped else { continue };
            match maps.add(mapped) {
                Ok(offset) => {
                    *key = offset;
                    object.maps.push(offset);
                }
                Err(error) => result = Err(error),
            }
        }
        if result.is_err() {
            self.state.undo(self.device, self.port, self.context, Object::Qp(object));
            return result;
        }
        CreateQp::answer(c, &cap, qpn.into());
        uhw_out(c, resp.as_bytes());
        self.give(c, UVERBS_ATTR_CREATE_QP_HANDLE, Object::Qp(object), &handles, user_handle)
    }

    fn qp_object(&mut self, handle: u32) -> Result<QpObject, Errno> {
        match self.object(handle)? {
            Object::Qp(qp) => Ok(qp.clone()),
            _ => Err(Errno::ENOENT),
        }
    }

    pub(super) fn modify_qp(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        request: &ib_uverbs_ex_modify_qp,
    ) -> Result<(), Errno> {
        let base = &request.base;
        let mask = M::from_bits_retain(base.attr_mask);
        let object = self.qp_object(base.qp_handle)?;
        if c.input(UVERBS_ATTR_UHW_IN).unwrap_or_default().iter().any(|byte| *byte != 0) {
            return Err(Errno::EINVAL);
        }
        if !MODIFIED.contains(mask) {
            return Err(Errno::EOPNOTSUPP);
        }
        let state = |number: u8| State::of(number.into()).ok_or(Errno::EINVAL);
        let is_now = self.device.qp(object.qpn).ok_or(Errno::EINVAL)?.state;
        let from = if mask.contains(M::CUR_STATE) { state(base.cur_qp_state)? } else { is_now };
        let to = if mask.contains(M::STATE) { state(base.qp_state)? } else { from };
        match object.kind {
            QpKind::Srd => {
                let is_late = matches!(from, State::Rtr | State::Rts | State::Sqd | State::Sqe);
                let (required, optional) = srd_rules(from, to).ok_or(Errno::EINVAL)?;
                if mask.contains(M::CUR_STATE) && !is_late
                    || !mask.contains(required)
                    || !(required | optional | M::STATE).contains(mask)
                {
                    return Err(Errno::EINVAL);
                }
            }
            QpKind::Ud => {
                let number = |s: State| QpState(s.number());
                transition::check(QpType::Ud, number(from), number(to), mask).map_err(|_| Errno::EINVAL)?;
            }
        }
        if mask.contains(M::PORT) && base.port_num != 1
            || mask.contains(M::PKEY_INDEX) && base.pkey_index != 0
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let change = Modify {
            from: mask.contains(M::STATE).then_some(from),
            to: mask.contains(M::STATE).then_some(to),
            qkey: mask.contains(M::QKEY).then_some(base.qkey),
            sq_psn: mask.contains(M::SQ_PSN).then_some(base.sq_psn),
            rnr_retry: mask.contains(M::RNR_RETRY).then_some(base.rnr_retry),
        };
        self.device.modify_qp(self.port, object.qpn, change).map_err(errno)?;
        if c.has(UVERBS_ATTR_CORE_OUT) {
            let resp = ib_uverbs_ex_modify_qp_resp {
                response_length: size_of::<ib_uverbs_ex_modify_qp_resp>() as u32,
                ..Default::default()
            };
            core_out(c, resp.as_bytes())?;
        }
        Ok(())
    }

    pub(super) fn query_qp(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_query_qp = core_in(c)?;
        let object = self.qp_object(request.qp_handle)?;
        if !QUERIED.contains(M::from_bits_retain(request.attr_mask)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let qp = self.device.qp(object.qpn).ok_or(Errno::EINVAL)?;
        let state = qp.state.number() as u8;
        let resp = ib_uverbs_query_qp_resp {
            max_send_wr: object.cap.max_send_wr,
            max_recv_wr: object.cap.max_recv_wr,
            max_send_sge: object.cap.max_send_sge,
            max_recv_sge: object.cap.max_recv_sge,
            max_inline_data: object.cap.max_inline_data,
            qkey: qp.qkey,
            sq_psn: qp.sq_psn,
            qp_state: state,
            // The driver does not set it.
            cur_qp_state: 0,
            sq_draining: u8::from(qp.state == State::Sqd && qp.is_draining()),
            port_num: 1,
            rnr_retry: qp.rnr_retry,
            sq_sig_all: object.sig_all.into(),
            ..Default::default()
        };
        core_out(c, resp.as_bytes())
    }

    pub(super) fn create_ah(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_create_ah = core_in(c)?;
        let pd = self.pd(request.pd_handle)?;
        let (attr, grh) = (&request.attr, &request.attr.grh);
        if attr.port_num != 1 || attr.is_global != 0 && grh.sgid_index != 0 {
            return Err(Errno::EINVAL);
        }
        if c.input(UVERBS_ATTR_UHW_IN).unwrap_or_default().iter().any(|byte| *byte != 0) {
            return Err(Errno::EINVAL);
        }
        let gid = if attr.is_global != 0 { grh.dgid } else { [0; 16] };
        let ah = self.device.create_ah(pd, gid).map_err(errno)?;
        let ah_handle = self.add(Object::Ah { pd, ah }, &[request.pd_handle], request.user_handle)?;
        uhw_out(c, efa_ibv_create_ah_resp { efa_address_handle: ah, ..Default::default() }.as_bytes());
        core_out(c, ib_uverbs_create_ah_resp { ah_handle, ..Default::default() }.as_bytes())
    }
}
