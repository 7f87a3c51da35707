// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ibv_qp_attr` and the sizes of a queue pair.

use super::path;
use crate::abi::qp::{ibv_qp_attr, ibv_qp_cap};
use uverbs_core::attr::{AccessFlags, MigState, Mtu, QpAttr, QpCap, QpState};

/// Sizes from C's form.
pub(crate) fn cap_from_c(cap: &ibv_qp_cap) -> QpCap {
    QpCap::new(cap.max_send_wr, cap.max_recv_wr)
        .sge(cap.max_send_sge, cap.max_recv_sge)
        .inline(cap.max_inline_data)
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

/// Attributes from C's form. Values that are wider than the device's field are truncated, as by the kernel's mlx5
/// (`__mlx5_ib_modify_qp()` writes them with `MLX5_SET()`, which masks them): programs pass such values.
pub(crate) fn from_c(attr: &ibv_qp_attr) -> QpAttr {
    // The command has 8 bits for it and libmlx5 truncates it. A value that does not fit is no MTU, so it is refused here.
    let mtu = Mtu(u8::try_from(attr.path_mtu).unwrap_or(u8::MAX));
    QpAttr::new()
        .qp_state(QpState(attr.qp_state))
        .cur_qp_state(QpState(attr.cur_qp_state))
        .path_mtu(mtu)
        .path_mig_state(MigState(attr.path_mig_state))
        .qkey(attr.qkey)
        .rq_psn(attr.rq_psn & 0xff_ffff)
        .sq_psn(attr.sq_psn & 0xff_ffff)
        .dest_qp_num(attr.dest_qp_num & 0xff_ffff)
        .qp_access_flags(AccessFlags::from_bits_retain(attr.qp_access_flags))
        .cap(cap_from_c(&attr.cap))
        .ah_attr(path::from_c(&attr.ah_attr))
        .alt_ah_attr(path::from_c(&attr.alt_ah_attr))
        .pkey_index(attr.pkey_index)
        .alt_pkey_index(attr.alt_pkey_index)
        .en_sqd_async_notify(attr.en_sqd_async_notify != 0)
        .sq_draining(attr.sq_draining != 0)
        .max_rd_atomic(attr.max_rd_atomic)
        .max_dest_rd_atomic(attr.max_dest_rd_atomic)
        .min_rnr_timer(attr.min_rnr_timer & 0x1f)
        .port_num(attr.port_num)
        .timeout(attr.timeout & 0x1f)
        .retry_cnt(attr.retry_cnt & 7)
        .rnr_retry(attr.rnr_retry & 7)
        .alt_port_num(attr.alt_port_num)
        .alt_timeout(attr.alt_timeout & 0x1f)
        .rate_limit(attr.rate_limit)
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
        let attr = QpAttr::new()
            .qp_state(QpState::RTR)
            .path_mtu(Mtu::MTU_1024)
            .qkey(5)
            .rq_psn(6)
            .sq_psn(7)
            .dest_qp_num(8)
            .qp_access_flags(AccessFlags::REMOTE_WRITE)
            .cap(QpCap::new(1, 2).sge(3, 4).inline(5))
            .ah_attr(AhAttr::global(1, 3, Gid([9; 16])))
            .sq_draining(true)
            .timeout(14)
            .alt_timeout(15)
            .rate_limit(1000);
        assert_eq!(from_c(&to_c(&attr)), attr);
    }

    #[test]
    fn values_are_truncated_to_the_widths_of_the_device() {
        let mut c = to_c(&QpAttr::default());
        (c.rq_psn, c.sq_psn, c.dest_qp_num) = (0xab00_0001, 0xff00_0002, 0x8000_0003);
        (c.min_rnr_timer, c.timeout, c.alt_timeout) = (0x20, 0xff, 0x2e);
        (c.retry_cnt, c.rnr_retry) = (0x0d, 0x08);
        let got = from_c(&c);
        assert_eq!((got.rq_psn, got.sq_psn, got.dest_qp_num), (1, 2, 3));
        assert_eq!((got.min_rnr_timer, got.timeout, got.alt_timeout), (0, 0x1f, 0xe));
        assert_eq!((got.retry_cnt, got.rnr_retry), (5, 0));
    }

    #[test]
    fn an_mtu_that_does_not_fit_has_no_bytes() {
        let mut c = to_c(&QpAttr::default());
        c.path_mtu = 0x103;
        assert_eq!(from_c(&c).path_mtu.bytes(), None);
    }
}
