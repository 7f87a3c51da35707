// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changing and querying the state of a queue pair (ibv_modify_qp(3), ibv_query_qp(3)).
#![expect(unsafe_code)]
// UNSAFETY: declares a verb that changes the state of a QP, on which the posting of its driver relies.

use super::{QpHandle, Result, explain, invoke, query};
use crate::attr::{
    AccessFlags, AhAttr, DeviceAttr, Gid, GlobalRoute, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpInitAttr,
    QpState, transition,
};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::Uhw;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_QUERY_QP, IB_USER_VERBS_EX_CMD_MODIFY_QP,
    ib_uverbs_ex_modify_qp, ib_uverbs_ex_modify_qp_resp, ib_uverbs_modify_qp, ib_uverbs_qp_dest,
    ib_uverbs_query_qp, ib_uverbs_query_qp_resp,
};

impl QpHandle {
    /// Changes the attributes in `mask`. `current` is the state of the QP as far as the caller knows; it is used only
    /// to explain an error.
    ///
    /// The extended command is always used: it has every attribute, and every supported kernel has it.
    ///
    /// # Safety
    /// As [`destroy`](Self::destroy).
    ///
    /// # Errors
    /// An impossible value of a field; a transition that the specification does not have, with the missing attributes;
    /// or the kernel's error.
    pub unsafe fn modify(
        &self,
        current: Option<QpState>,
        attr: &QpAttr,
        mask: QpAttrMask,
        uhw: Uhw<'_>,
    ) -> Result<()> {
        const VERB: &str = "modify_qp";
        attr.check(mask)?;
        let request = ib_uverbs_ex_modify_qp {
            base: to_kernel(self.handle(), attr, mask),
            rate_limit: attr.rate_limit,
            ..Default::default()
        };
        let command = IB_USER_VERBS_EX_CMD_MODIFY_QP | IB_USER_VERBS_CMD_FLAG_EXTENDED;
        match invoke::<_, ib_uverbs_ex_modify_qp_resp>(&**self.kernel(), command, &request, uhw) {
            Ok(_) => Ok(()),
            Err(Errno::EINVAL) => Err(self.explain(current, attr, mask)),
            Err(errno @ Errno::ENODATA) => {
                Err(self.explain_values(VERB, attr, mask, errno).unwrap_or_else(|| self.error(VERB, errno)))
            }
            Err(errno) => Err(self.error(VERB, errno)),
        }
    }

    /// Checks the values in `mask` with the errors of [`modify`](Self::modify), and changes nothing. Each value must be
    /// valid and within the device's limits. A limit of 0 is not compared, because a device that does not report a
    /// limit may accept the value.
    ///
    /// # Errors
    /// The first value that is invalid.
    pub fn check_values(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        attr.check(mask)?;
        let known = |device: &DeviceAttr| {
            limits(attr, mask, device)
                .map(|(field, asked, limit)| (field, asked, if limit == 0 { u32::MAX } else { limit }))
        };
        explain::over_limit("modify_qp", self.kernel(), Errno::EINVAL, known).map_or(Ok(()), Err)
    }

    /// Finds the cause of an `EINVAL` from `modify_qp`, as far as possible.
    fn explain(&self, current: Option<QpState>, attr: &QpAttr, mask: QpAttrMask) -> Error {
        const VERB: &str = "modify_qp";
        let asked =
            current.is_none().then(|| self.query(QpAttrMask::STATE).ok()).flatten().map(|(attr, _)| attr);
        let from = current.or(asked.as_ref().map(|now| now.qp_state));
        let reason = from.and_then(|from| {
            let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { from };
            transition::explain(self.qp_type(), from, to, mask)
        });
        if let Some(reason) = reason {
            return Error::invalid(VERB, "attr_mask", reason);
        }
        if asked.is_some_and(|now| now.sq_draining) {
            return Error::invalid(VERB, "qp_state", "the send queue is still draining");
        }
        self.explain_values(VERB, attr, mask, Errno::EINVAL)
            .unwrap_or_else(|| self.error(VERB, Errno::EINVAL))
    }

    /// Finds the value that the device or its port does not support.
    fn explain_values(
        &self,
        verb: &'static str,
        attr: &QpAttr,
        mask: QpAttrMask,
        errno: Errno,
    ) -> Option<Error> {
        let (kernel, has) = (self.kernel(), |bit| mask.contains(bit));
        if has(QpAttrMask::PORT) && explain::no_such_port(kernel, attr.port_num)? {
            return Some(Error::invalid(
                verb,
                "port_num",
                format!("the device has no port {}", attr.port_num),
            ));
        }
        for (bit, field, path) in [
            (QpAttrMask::AV, "ah_attr", &attr.ah_attr),
            (QpAttrMask::ALT_PATH, "alt_ah_attr", &attr.alt_ah_attr),
        ] {
            if has(bit)
                && let Some(error) = explain::path(verb, field, kernel, path, errno)
            {
                return Some(error);
            }
        }
        if has(QpAttrMask::PATH_MTU | QpAttrMask::AV)
            && let Ok(port) = query::port(kernel, attr.ah_attr.port_num)
            && attr.path_mtu.0 > port.max_mtu.0
        {
            let reason = format!("{:?} is above the port's {:?}", attr.path_mtu, port.max_mtu);
            return Some(Error::invalid(verb, "path_mtu", reason));
        }
        explain::over_limit(verb, kernel, errno, |device| limits(attr, mask, device))
    }

    /// Queries the attributes in `mask`. A driver may return more or fewer; fields that it does not return are zero. In
    /// the second part of the result, the kernel fills in sizes, type and `sq_sig_all`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        let request =
            ib_uverbs_query_qp { qp_handle: self.handle(), attr_mask: mask.bits(), ..Default::default() };
        let resp: ib_uverbs_query_qp_resp =
            invoke(&**self.kernel(), IB_USER_VERBS_CMD_QUERY_QP, &request, Uhw::none())
                .map_err(|errno| self.error("query_qp", errno))?;
        let attr = from_kernel(&resp);
        let sq_sig_all = resp.sq_sig_all != 0;
        let init = QpInitAttr { cap: attr.cap, sq_sig_all, ..QpInitAttr::new(self.qp_type()) };
        Ok((attr, init))
    }
}

/// The values in `mask` that the device limits.
fn limits(attr: &QpAttr, mask: QpAttrMask, device: &DeviceAttr) -> [explain::Limit; 2] {
    let given = |bit, value: u8| if mask.contains(bit) { u32::from(value) } else { 0 };
    let sent = given(QpAttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic);
    let served = given(QpAttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic);
    [
        ("max_rd_atomic", sent, device.max_qp_init_rd_atom),
        ("max_dest_rd_atomic", served, device.max_qp_rd_atom),
    ]
}

/// The fields that `mask` selects. The others are 0, so that attributes which the caller did not select are never
/// applied.
fn to_kernel(qp_handle: u32, attr: &QpAttr, mask: QpAttrMask) -> ib_uverbs_modify_qp {
    let mut cmd = ib_uverbs_modify_qp { qp_handle, attr_mask: mask.bits(), ..Default::default() };
    macro_rules! fields {
        ($($bit:ident: $($field:ident = $value:expr),+;)*) => {
            $(if mask.contains(QpAttrMask::$bit) {
                $(cmd.$field = $value;)+
            })*
        };
    }
    // Checked: the states fit.
    fields! {
        STATE: qp_state = attr.qp_state.0 as u8;
        CUR_STATE: cur_qp_state = attr.cur_qp_state.0 as u8;
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify = attr.en_sqd_async_notify.into();
        ACCESS_FLAGS: qp_access_flags = attr.qp_access_flags.bits();
        PKEY_INDEX: pkey_index = attr.pkey_index;
        PORT: port_num = attr.port_num;
        QKEY: qkey = attr.qkey;
        AV: dest = dest_to_kernel(&attr.ah_attr);
        PATH_MTU: path_mtu = attr.path_mtu.0;
        TIMEOUT: timeout = attr.timeout;
        RETRY_CNT: retry_cnt = attr.retry_cnt;
        RNR_RETRY: rnr_retry = attr.rnr_retry;
        RQ_PSN: rq_psn = attr.rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic = attr.max_rd_atomic;
        ALT_PATH:
            alt_dest = dest_to_kernel(&attr.alt_ah_attr),
            alt_pkey_index = attr.alt_pkey_index,
            alt_port_num = attr.alt_port_num,
            alt_timeout = attr.alt_timeout;
        MIN_RNR_TIMER: min_rnr_timer = attr.min_rnr_timer;
        SQ_PSN: sq_psn = attr.sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic = attr.max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state = attr.path_mig_state.0 as u8;
        DEST_QPN: dest_qp_num = attr.dest_qp_num;
    }
    cmd
}

fn dest_to_kernel(attr: &AhAttr) -> ib_uverbs_qp_dest {
    let grh = attr.grh.unwrap_or_default();
    ib_uverbs_qp_dest {
        dgid: grh.dgid.0,
        flow_label: grh.flow_label,
        dlid: attr.dlid,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.grh.is_some().into(),
        port_num: attr.port_num,
        ..Default::default()
    }
}

fn dest_from_kernel(dest: &ib_uverbs_qp_dest) -> AhAttr {
    let grh = (dest.is_global != 0).then_some(GlobalRoute {
        dgid: Gid(dest.dgid),
        flow_label: dest.flow_label,
        sgid_index: dest.sgid_index,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
    });
    AhAttr {
        grh,
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        port_num: dest.port_num,
    }
}

fn from_kernel(resp: &ib_uverbs_query_qp_resp) -> QpAttr {
    QpAttr {
        qp_state: QpState(resp.qp_state.into()),
        cur_qp_state: QpState(resp.cur_qp_state.into()),
        path_mtu: Mtu(resp.path_mtu),
        path_mig_state: MigState(resp.path_mig_state.into()),
        qkey: resp.qkey,
        rq_psn: resp.rq_psn,
        sq_psn: resp.sq_psn,
        dest_qp_num: resp.dest_qp_num,
        qp_access_flags: AccessFlags::from_bits_retain(resp.qp_access_flags),
        cap: QpCap {
            max_send_wr: resp.max_send_wr,
            max_recv_wr: resp.max_recv_wr,
            max_send_sge: resp.max_send_sge,
            max_recv_sge: resp.max_recv_sge,
            max_inline_data: resp.max_inline_data,
        },
        ah_attr: dest_from_kernel(&resp.dest),
        alt_ah_attr: dest_from_kernel(&resp.alt_dest),
        pkey_index: resp.pkey_index,
        alt_pkey_index: resp.alt_pkey_index,
        en_sqd_async_notify: false,
        sq_draining: resp.sq_draining != 0,
        max_rd_atomic: resp.max_rd_atomic,
        max_dest_rd_atomic: resp.max_dest_rd_atomic,
        min_rnr_timer: resp.min_rnr_timer,
        port_num: resp.port_num,
        timeout: resp.timeout,
        retry_cnt: resp.retry_cnt,
        rnr_retry: resp.rnr_retry,
        alt_port_num: resp.alt_port_num,
        alt_timeout: resp.alt_timeout,
        rate_limit: 0,
    }
}
