// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversions for librdmacm between the structs of the kernel's connection manager and those of C.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to structs.

use crate::abi::attr::{ibv_ah_attr, ibv_global_route};
use crate::abi::device::Gid64;
use crate::abi::kern::{ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_sa_path_rec};
use crate::abi::qp::{ibv_qp_attr, ibv_qp_cap};

fn ah_attr(kern: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: Gid64(kern.grh.dgid),
            flow_label: kern.grh.flow_label,
            sgid_index: kern.grh.sgid_index,
            hop_limit: kern.grh.hop_limit,
            traffic_class: kern.grh.traffic_class,
        },
        dlid: kern.dlid,
        sl: kern.sl,
        src_path_bits: kern.src_path_bits,
        static_rate: kern.static_rate,
        is_global: kern.is_global,
        port_num: kern.port_num,
    }
}

/// All fields except `rate_limit`, which the kernel's struct lacks.
fn qp_attr(kern: &ib_uverbs_qp_attr, rate_limit: u32) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: kern.qp_state,
        cur_qp_state: kern.cur_qp_state,
        path_mtu: kern.path_mtu,
        path_mig_state: kern.path_mig_state,
        qkey: kern.qkey,
        rq_psn: kern.rq_psn,
        sq_psn: kern.sq_psn,
        dest_qp_num: kern.dest_qp_num,
        qp_access_flags: kern.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: kern.max_send_wr,
            max_recv_wr: kern.max_recv_wr,
            max_send_sge: kern.max_send_sge,
            max_recv_sge: kern.max_recv_sge,
            max_inline_data: kern.max_inline_data,
        },
        ah_attr: ah_attr(&kern.ah_attr),
        alt_ah_attr: ah_attr(&kern.alt_ah_attr),
        pkey_index: kern.pkey_index,
        alt_pkey_index: kern.alt_pkey_index,
        en_sqd_async_notify: kern.en_sqd_async_notify,
        sq_draining: kern.sq_draining,
        max_rd_atomic: kern.max_rd_atomic,
        max_dest_rd_atomic: kern.max_dest_rd_atomic,
        min_rnr_timer: kern.min_rnr_timer,
        port_num: kern.port_num,
        timeout: kern.timeout,
        retry_cnt: kern.retry_cnt,
        rnr_retry: kern.rnr_retry,
        alt_port_num: kern.alt_port_num,
        alt_timeout: kern.alt_timeout,
        rate_limit,
    }
}

fn path_from_kern(kern: &ib_user_path_rec) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: Gid64(kern.dgid),
        sgid: Gid64(kern.sgid),
        dlid: kern.dlid,
        slid: kern.slid,
        raw_traffic: kern.raw_traffic.cast_signed(),
        flow_label: kern.flow_label,
        hop_limit: kern.hop_limit,
        traffic_class: kern.traffic_class,
        reversible: kern.reversible.cast_signed(),
        numb_path: kern.numb_path,
        pkey: kern.pkey,
        sl: kern.sl,
        mtu_selector: kern.mtu_selector,
        // A code of 8 bits in a field of 32.
        mtu: kern.mtu as u8,
        rate_selector: kern.rate_selector,
        rate: kern.rate,
        packet_life_time_selector: kern.packet_life_time_selector,
        packet_life_time: kern.packet_life_time,
        preference: kern.preference,
    }
}

fn path_to_kern(path: &ibv_sa_path_rec) -> ib_user_path_rec {
    ib_user_path_rec {
        dgid: path.dgid.0,
        sgid: path.sgid.0,
        dlid: path.dlid,
        slid: path.slid,
        raw_traffic: path.raw_traffic.cast_unsigned(),
        flow_label: path.flow_label,
        reversible: path.reversible.cast_unsigned(),
        mtu: path.mtu.into(),
        pkey: path.pkey,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: path.numb_path,
        sl: path.sl,
        mtu_selector: path.mtu_selector,
        rate_selector: path.rate_selector,
        rate: path.rate,
        packet_life_time_selector: path.packet_life_time_selector,
        packet_life_time: path.packet_life_time,
        preference: path.preference,
    }
}

/// # Safety
/// `src` is NULL or valid for reads, `dst` NULL or valid for reads and writes, and they do not overlap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: Option<&ib_uverbs_ah_attr>,
) {
    let Some(src) = src else { return };
    if !dst.is_null() {
        // SAFETY: `dst` is valid for writes and does not overlap `src` (the contract of this function).
        unsafe { dst.write(ah_attr(src)) };
    }
}

/// # Safety
/// `src` is NULL or valid for reads, `dst` NULL or valid for reads and writes, and they do not overlap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: Option<&ib_uverbs_qp_attr>,
) {
    let Some(src) = src else { return };
    if dst.is_null() {
        return;
    }
    // SAFETY: `dst` is valid for reads (the contract of this function). The field keeps its value.
    let rate_limit = unsafe { (*dst).rate_limit };
    // SAFETY: `dst` is valid for writes and does not overlap `src` (the contract of this function).
    unsafe { dst.write(qp_attr(src, rate_limit)) };
}

/// # Safety
/// `src` is NULL or valid for reads, `dst` NULL or valid for reads and writes, and they do not overlap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: Option<&ib_user_path_rec>,
) {
    let Some(src) = src else { return };
    if !dst.is_null() {
        // SAFETY: `dst` is valid for writes and does not overlap `src` (the contract of this function).
        unsafe { dst.write(path_from_kern(src)) };
    }
}

/// # Safety
/// `src` is NULL or valid for reads, `dst` NULL or valid for reads and writes, and they do not overlap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    dst: *mut ib_user_path_rec,
    src: Option<&ibv_sa_path_rec>,
) {
    let Some(src) = src else { return };
    if !dst.is_null() {
        // SAFETY: `dst` is valid for writes and does not overlap `src` (the contract of this function).
        unsafe { dst.write(path_to_kern(src)) };
    }
}
