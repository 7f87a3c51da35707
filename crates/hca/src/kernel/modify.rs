// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modifying and querying queue pairs.

use super::call::Call;
use super::limits::MAX_RD_ATOMIC;
use super::object::Object;
use super::object::QpObject;
use super::qp::ECE_OPTIONS;
use crate::engine::qp::{Attr, QpKind, Route, State};
use uverbs_core::Errno;
use uverbs_core::attr::{QpAttrMask as M, QpState, QpType, transition};
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{core_in, core_out, uhw, uhw_out};
use uverbs_uapi::cmd::{
    ib_uverbs_ex_modify_qp, ib_uverbs_ex_modify_qp_resp, ib_uverbs_modify_qp, ib_uverbs_qp_dest,
    ib_uverbs_query_qp, ib_uverbs_query_qp_resp,
};
use uverbs_uapi::ids::{UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_OUT};
use uverbs_uapi::mlx5::{MLX5_IB_MODIFY_QP_OOO_DP, mlx5_ib_modify_qp, mlx5_ib_modify_qp_resp};
use zerocopy::IntoBytes;

fn state(number: u8) -> Result<State, Errno> {
    Ok(match number {
        0 => State::Reset,
        1 => State::Init,
        2 => State::Rtr,
        3 => State::Rts,
        4 => State::Sqd,
        5 => State::Sqe,
        6 => State::Err,
        _ => return Err(Errno::EINVAL),
    })
}

fn state_number(state: State) -> u8 {
    match state {
        State::Reset => 0,
        State::Init => 1,
        State::Rtr => 2,
        State::Rts => 3,
        State::Sqd => 4,
        State::Sqe => 5,
        State::Err => 6,
    }
}

/// `IB_RATE_2_5_GBPS`, `IB_RATE_800_GBPS`
const MIN_RATE: u8 = 2;
const MAX_RATE: u8 = 23;

/// Truncates values to the widths of the fields in the device's context, as `MLX5_SET()` does in `__mlx5_ib_modify_qp()` and
/// `mlx5_set_path()`.
fn truncate(base: &mut ib_uverbs_modify_qp) {
    for psn in [&mut base.rq_psn, &mut base.sq_psn, &mut base.dest_qp_num] {
        *psn &= 0xff_ffff;
    }
    for time in [&mut base.min_rnr_timer, &mut base.timeout, &mut base.alt_timeout] {
        *time &= 0x1f;
    }
    for count in [&mut base.retry_cnt, &mut base.rnr_retry] {
        *count &= 7;
    }
    for path in [&mut base.dest, &mut base.alt_dest] {
        path.sl &= 0xf;
        path.src_path_bits &= 0x7f;
        path.flow_label &= 0xf_ffff;
    }
}

/// DC has separate rules (`modify_dci_qp_is_ok()`, `mlx5_ib_modify_dct()`).
fn check_dc(kind: QpKind, from: State, to: State, mask: M) -> Result<(), Errno> {
    let required = match (kind, from, to) {
        (_, _, State::Reset) if kind == QpKind::Dci => M::empty(),
        (_, from, State::Err) if from != State::Reset && kind == QpKind::Dci => M::empty(),
        (_, State::Reset, State::Init) if kind == QpKind::Dct => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        (_, State::Reset, State::Init) => M::PKEY_INDEX | M::PORT,
        (_, State::Init, State::Init) if kind == QpKind::Dci => M::empty(),
        (_, State::Init, State::Rtr) if kind == QpKind::Dct => M::AV | M::PATH_MTU | M::MIN_RNR_TIMER,
        (_, State::Init, State::Rtr) => M::PATH_MTU,
        (QpKind::Dci, State::Rtr, State::Rts) => {
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC
        }
        (QpKind::Dci, State::Rts, State::Rts) => M::empty(),
        _ => return Err(Errno::EINVAL),
    };
    if mask.contains(required) { Ok(()) } else { Err(Errno::EINVAL) }
}

impl Call<'_, '_> {
    fn qp_object(&mut self, handle: u32) -> Result<&mut QpObject, Errno> {
        match self.state.tables.context(self.context)?.objects.get_mut(&handle).map(|e| &mut e.object) {
            Some(Object::Qp(qp)) => Ok(qp),
            _ => Err(Errno::ENOENT),
        }
    }

    pub(super) fn modify_qp(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        request: &ib_uverbs_ex_modify_qp,
    ) -> Result<(), Errno> {
        let private: mlx5_ib_modify_qp = uhw(c, 0)?;
        let mut base = request.base;
        // A depth is passed to the device as a logarithm, which stays 0 for a depth of 0 (`__mlx5_ib_modify_qp()`).
        base.max_rd_atomic = base.max_rd_atomic.max(1);
        base.max_dest_rd_atomic = base.max_dest_rd_atomic.max(1);
        truncate(&mut base);
        let base = &base;
        let mask = M::from_bits_retain(base.attr_mask);
        let object = self.qp_object(base.qp_handle)?;
        let (qpn, qp_type, kind, is_rss) = (object.qpn, object.qp_type, object.kind, object.is_rss);
        if !M::all().contains(mask) {
            return Err(Errno::EOPNOTSUPP);
        }
        // The device keeps the order of receives, which is one of the permitted orders.
        let may_reorder = !matches!(kind, QpKind::Raw | QpKind::Keys);
        let unknown = if may_reorder { !MLX5_IB_MODIFY_QP_OOO_DP } else { u32::MAX };
        if private.comp_mask & unknown != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if is_rss {
            // An RSS QP has no states (`mlx5_ib_modify_qp()`).
            return Err(Errno::EOPNOTSUPP);
        }
        let from = self.device.qps.get(&qpn).ok_or(Errno::EINVAL)?.state;
        if mask.contains(M::CUR_STATE) && state(base.cur_qp_state)? != from {
            return Err(Errno::EINVAL);
        }
        let to = if mask.contains(M::STATE) { state(base.qp_state)? } else { from };
        match qp_type {
            QpType::Driver => check_dc(kind, from, to, mask)?,
            _ => {
                let number = |s| QpState(u32::from(state_number(s)));
                transition::check(qp_type, number(from), number(to), mask).map_err(|_| Errno::EINVAL)?;
            }
        }
        self.check_values(base, mask)?;
        let port_mtu = self.port.address().and_then(|port| port.outside).map_or(4096, |outside| outside.mtu);
        let ethernet = self.device.ethernet;
        self.device
            .with_qp(self.port, qpn, |device, cx, qp| {
                set(&mut qp.attr, base, mask, ethernet);
                if matches!(kind, QpKind::Ud | QpKind::Raw) {
                    qp.attr.mtu = port_mtu;
                }
                if mask.contains(M::STATE) {
                    device.set_state(cx, qp, to);
                }
            })
            .ok_or(Errno::EINVAL)?;
        let object = self.qp_object(base.qp_handle)?;
        remember(&mut object.attrs, base, mask);
        if to == State::Reset && mask.contains(M::STATE) {
            object.attrs = ib_uverbs_modify_qp::default();
        }
        if c.has(UVERBS_ATTR_CORE_OUT) {
            let resp = ib_uverbs_ex_modify_qp_resp {
                response_length: size_of::<ib_uverbs_ex_modify_qp_resp>() as u32,
                ..Default::default()
            };
            core_out(c, resp.as_bytes())?;
        }
        if c.has(UVERBS_ATTR_UHW_OUT) {
            let resp = mlx5_ib_modify_qp_resp {
                response_length: size_of::<mlx5_ib_modify_qp_resp>() as u32,
                dctn: if kind == QpKind::Dct && to == State::Rtr { qpn } else { 0 },
                ece_options: private.ece_options & ECE_OPTIONS,
                ..Default::default()
            };
            uhw_out(c, resp.as_bytes());
        }
        Ok(())
    }

    /// Refuses values that the device or its port does not support.
    fn check_values(&self, base: &ib_uverbs_modify_qp, mask: M) -> Result<(), Errno> {
        let bad = mask.contains(M::PORT) && base.port_num != 1
            || mask.contains(M::PATH_MTU) && !(1..=5).contains(&base.path_mtu)
            || mask.contains(M::MAX_QP_RD_ATOMIC) && base.max_rd_atomic > MAX_RD_ATOMIC
            || mask.contains(M::MAX_DEST_RD_ATOMIC) && base.max_dest_rd_atomic > MAX_RD_ATOMIC
            || mask.contains(M::PKEY_INDEX) && base.pkey_index >= if self.device.ethernet { 1 } else { 128 };
        if bad {
            return Err(Errno::EINVAL);
        }
        if mask.contains(M::ALT_PATH) {
            self.check_path(&base.alt_dest)?;
        }
        if mask.contains(M::AV) { self.check_path(&base.dest) } else { Ok(()) }
    }

    fn check_path(&self, dest: &ib_uverbs_qp_dest) -> Result<(), Errno> {
        let port = self.port.net.ports.get(self.port.me).ok_or(Errno::EIO)?;
        let global = dest.is_global != 0;
        // `ib_rate_to_mlx5()` accepts 0, the port's rate, and the rates from 2.5 Gb/s on.
        let rate = matches!(dest.static_rate, 0 | MIN_RATE..=MAX_RATE);
        if dest.port_num != 1 || port.ethernet && !global || !rate {
            return Err(Errno::EINVAL);
        }
        if global {
            if usize::from(dest.sgid_index) >= port.gids.len() {
                return Err(Errno::EINVAL);
            }
            // RoCE: the address must be resolvable to a MAC address.
            if port.ethernet {
                super::ah::resolve(self.port, dest.sgid_index, &dest.dgid)?;
            }
        }
        Ok(())
    }

    pub(super) fn query_qp(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_query_qp = core_in(c)?;
        let object = self.qp_object(request.qp_handle)?;
        // All attributes are returned, independent of the mask; only a DC target's mask is checked
        // (`mlx5_ib_query_qp()`, `mlx5_ib_dct_query_qp()`).
        if object.kind == QpKind::Dct && !M::all().contains(M::from_bits_retain(request.attr_mask)) {
            return Err(Errno::EINVAL);
        }
        let (a, cap, sig_all, qpn) = (object.attrs, object.cap, object.sig_all, object.qpn);
        let rss = object.is_rss;
        let qp = self.device.qps.get(&qpn);
        let Some(qp) = qp.filter(|_| !rss) else { return Err(Errno::EOPNOTSUPP) };
        let now = state_number(qp.state);
        // The real sizes of the receive queue, not those requested.
        let (max_recv_wr, max_recv_sge) = match &qp.rq {
            Some(rq) => (rq.count, (rq.stride / 16) as u32),
            None => (0, 0),
        };
        let resp = ib_uverbs_query_qp_resp {
            dest: a.dest,
            alt_dest: a.alt_dest,
            max_send_wr: cap.max_send_wr,
            max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge,
            max_inline_data: cap.max_inline_data,
            qkey: a.qkey,
            rq_psn: a.rq_psn,
            sq_psn: a.sq_psn,
            dest_qp_num: a.dest_qp_num,
            qp_access_flags: a.qp_access_flags,
            pkey_index: a.pkey_index,
            alt_pkey_index: a.alt_pkey_index,
            qp_state: now,
            cur_qp_state: now,
            path_mtu: a.path_mtu,
            path_mig_state: a.path_mig_state,
            sq_draining: u8::from(qp.state == State::Sqd && !qp.req.is_idle()),
            max_rd_atomic: a.max_rd_atomic,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            port_num: a.port_num,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            alt_port_num: a.alt_port_num,
            alt_timeout: a.alt_timeout,
            sq_sig_all: sig_all.into(),
            ..Default::default()
        };
        core_out(c, resp.as_bytes())
    }
}

/// Applies the attributes that the mask selects.
fn set(attr: &mut Attr, base: &ib_uverbs_modify_qp, mask: M, ethernet: bool) {
    let has = |bit| mask.contains(bit);
    if has(M::AV) {
        attr.dgid = (ethernet || base.dest.is_global != 0).then_some(base.dest.dgid);
        (attr.dlid, attr.sl) = (base.dest.dlid, base.dest.sl);
        attr.route = Route {
            sgid_index: base.dest.sgid_index,
            tclass: base.dest.traffic_class,
            flow_label: base.dest.flow_label & 0xf_ffff,
            hop_limit: base.dest.hop_limit,
        };
    }
    if has(M::PATH_MTU) {
        attr.mtu = 128 << base.path_mtu;
    }
    if has(M::ACCESS_FLAGS) {
        attr.access = base.qp_access_flags;
    }
    if has(M::EN_SQD_ASYNC_NOTIFY) {
        attr.notify_drained = base.en_sqd_async_notify != 0;
    }
    for (bit, place, value) in [
        (M::DEST_QPN, &mut attr.dest_qpn, base.dest_qp_num & 0xff_ffff),
        (M::QKEY, &mut attr.qkey, base.qkey),
        (M::RQ_PSN, &mut attr.rq_psn, base.rq_psn),
        (M::SQ_PSN, &mut attr.sq_psn, base.sq_psn),
    ] {
        if has(bit) {
            *place = value;
        }
    }
    for (bit, place, value) in [
        (M::TIMEOUT, &mut attr.timeout, base.timeout),
        (M::RETRY_CNT, &mut attr.retry_cnt, base.retry_cnt),
        (M::RNR_RETRY, &mut attr.rnr_retry, base.rnr_retry),
        (M::MIN_RNR_TIMER, &mut attr.min_rnr_timer, base.min_rnr_timer),
        (M::MAX_QP_RD_ATOMIC, &mut attr.max_rd_atomic, base.max_rd_atomic),
        (M::MAX_DEST_RD_ATOMIC, &mut attr.max_dest_rd_atomic, base.max_dest_rd_atomic),
    ] {
        if has(bit) {
            *place = value;
        }
    }
}

/// Stores the attributes that the mask selects, for queries.
fn remember(kept: &mut ib_uverbs_modify_qp, base: &ib_uverbs_modify_qp, mask: M) {
    macro_rules! keep {
        ($($bit:ident: $($field:ident),+;)*) => {$(
            if mask.contains(M::$bit) { $(kept.$field = base.$field;)+ }
        )*};
    }
    keep! {
        AV: dest;
        ALT_PATH: alt_dest, alt_pkey_index, alt_port_num, alt_timeout;
        QKEY: qkey;
        RQ_PSN: rq_psn;
        SQ_PSN: sq_psn;
        DEST_QPN: dest_qp_num;
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PATH_MTU: path_mtu;
        PATH_MIG_STATE: path_mig_state;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        PORT: port_num;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
    }
}
