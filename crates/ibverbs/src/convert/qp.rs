// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ibv_qp_attr` and the sizes of a queue pair.

use super::path;
use crate::abi::qp::{ibv_qp_attr, ibv_qp_cap};
use uverbs_core::attr::{AccessFlags, MigState, Mtu, QpAttr, QpCap, QpState};

/// Sizes from C's form.
pub(crate) fn cap_from_c(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// C's form of sizes.
pub(crate) fn cap_to_c(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Attributes from C's form.
pub(crate) fn from_c(attr: &ibv_qp_attr) -> QpAttr {
    QpAttr {
        qp_state: QpState(attr.qp_state),
        cur_qp_state: QpState(attr.cur_qp_state),
        // A value that does not fit is not a valid MTU; the check of the attributes reports it if the mask has the
        // attribute.
        path_mtu: Mtu(u8::try_from(attr.path_mtu).unwrap_or(u8::MAX)),
        path_mig_state: MigState(attr.path_mig_state),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: AccessFlags::from_bits_retain(attr.qp_access_flags),
        cap: cap_from_c(&attr.cap),
        ah_attr: path::from_c(&attr.ah_attr),
        alt_ah_attr: path::from_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// C's form of attributes.
pub(crate) fn to_c(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state.0,
        cur_qp_state: attr.cur_qp_state.0,
        path_mtu: attr.path_mtu.0.into(),
        path_mig_state: attr.path_mig_state.0,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        cap: cap_to_c(&attr.cap),
        ah_attr: path::to_c(&attr.ah_attr),
        alt_ah_attr: path::to_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::attr::{AhAttr, Gid};

    #[test]
    fn attributes_are_unchanged_by_both_conversions() {
        let attr = QpAttr {
            qp_state: QpState::RTR,
            path_mtu: Mtu::MTU_1024,
            qkey: 5,
            rq_psn: 6,
            sq_psn: 7,
            dest_qp_num: 8,
            qp_access_flags: AccessFlags::REMOTE_WRITE,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 2,
                max_send_sge: 3,
                max_recv_sge: 4,
                max_inline_data: 5,
            },
            ah_attr: AhAttr::global(1, 3, Gid([9; 16])),
            sq_draining: true,
            timeout: 14,
            alt_timeout: 15,
            rate_limit: 1000,
            ..QpAttr::default()
        };
        assert_eq!(from_c(&to_c(&attr)), attr);
    }

    #[test]
    fn an_mtu_that_does_not_fit_has_no_bytes() {
        let mut c = to_c(&QpAttr::default());
        c.path_mtu = 0x103;
        assert_eq!(from_c(&c).path_mtu.bytes(), None);
    }
}
