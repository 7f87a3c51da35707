// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of a device and its ports, in C's structs.

use crate::abi::device::{
    OdpTransports, ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_odp_caps,
    ibv_packet_pacing_caps, ibv_pci_atomic_caps, ibv_port_attr, ibv_rss_caps, ibv_tm_caps, ibv_tso_caps,
};
use core::ffi::{c_char, c_int};
use uverbs_core::attr::{DeviceAttr, GidEntry, PortAttr};

/// A count in C's signed form.
fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// A text in a C array, truncated if necessary, and always terminated by a NUL.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (place, byte) in out.iter_mut().take(N - 1).zip(text.bytes()) {
        // `c_char` is signed or not, by the architecture.
        *place = byte as c_char;
    }
    out
}

/// `struct ibv_device_attr`, with the firmware's version from sysfs or, without that, from its number.
pub(crate) fn device_attr(attr: &DeviceAttr, fw_ver: Option<&str>) -> ibv_device_attr {
    let number = || format!("{}.{}.{}", attr.fw_ver >> 32, attr.fw_ver >> 16 & 0xffff, attr.fw_ver & 0xffff);
    ibv_device_attr {
        fw_ver: text(&fw_ver.map_or_else(number, str::to_owned)),
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags.bits() as u32,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: int(attr.max_ee_rd_atom),
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: int(attr.max_ee_init_rd_atom),
        atomic_cap: attr.atomic_cap.0,
        max_ee: int(attr.max_ee),
        max_rdd: int(attr.max_rdd),
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: int(attr.max_raw_ipv6_qp),
        max_raw_ethy_qp: int(attr.max_raw_ethy_qp),
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_fmr: int(attr.max_fmr),
        max_map_per_fmr: int(attr.max_map_per_fmr),
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

/// `struct ibv_device_attr_ex`
pub(crate) fn device_attr_ex(attr: &DeviceAttr, fw_ver: Option<&str>) -> ibv_device_attr_ex {
    let (odp, tso, rss) = (&attr.odp_caps, &attr.tso_caps, &attr.rss_caps);
    let (pacing, tm, pci) = (&attr.packet_pacing_caps, &attr.tm_caps, &attr.pci_atomic_caps);
    ibv_device_attr_ex {
        orig_attr: device_attr(attr, fw_ver),
        comp_mask: 0,
        odp_caps: ibv_odp_caps {
            general_caps: odp.general_caps.bits(),
            per_transport_caps: OdpTransports {
                rc_odp_caps: odp.rc_odp_caps.bits(),
                uc_odp_caps: odp.uc_odp_caps.bits(),
                ud_odp_caps: odp.ud_odp_caps.bits(),
            },
        },
        completion_timestamp_mask: attr.completion_timestamp_mask,
        hca_core_clock: attr.hca_core_clock,
        device_cap_flags_ex: attr.device_cap_flags.bits(),
        tso_caps: ibv_tso_caps { max_tso: tso.max_tso, supported_qpts: tso.supported_qpts },
        rss_caps: ibv_rss_caps {
            supported_qpts: rss.supported_qpts,
            max_rwq_indirection_tables: rss.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: rss.max_rwq_indirection_table_size,
            rx_hash_fields_mask: rss.rx_hash_fields_mask,
            rx_hash_function: rss.rx_hash_function,
        },
        max_wq_type_rq: attr.max_wq_type_rq,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: pacing.qp_rate_limit_min,
            qp_rate_limit_max: pacing.qp_rate_limit_max,
            supported_qpts: pacing.supported_qpts,
        },
        raw_packet_caps: attr.raw_packet_caps.bits(),
        tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: tm.max_rndv_hdr_size,
            max_num_tags: tm.max_num_tags,
            flags: tm.flags,
            max_ops: tm.max_ops,
            max_sge: tm.max_sge,
        },
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: attr.cq_mod_caps.max_cq_count,
            max_cq_period: attr.cq_mod_caps.max_cq_period,
        },
        max_dm_size: attr.max_dm_size,
        pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: pci.fetch_add,
            swap: pci.swap,
            compare_swap: pci.compare_swap,
        },
        xrc_odp_caps: odp.xrc_odp_caps.bits(),
        phys_port_cnt_ex: attr.phys_port_cnt_ex,
    }
}

/// `struct ibv_port_attr`
pub(crate) fn port_attr(attr: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state.0.into(),
        max_mtu: attr.max_mtu.0.into(),
        active_mtu: attr.active_mtu.0.into(),
        gid_tbl_len: int(attr.gid_tbl_len),
        port_cap_flags: attr.port_cap_flags.bits(),
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state.0,
        link_layer: attr.link_layer.0,
        flags: attr.flags.bits(),
        port_cap_flags2: attr.port_cap_flags2.bits(),
        active_speed_ex: attr.active_speed_ex,
    }
}

/// `struct ibv_gid_entry`
pub(crate) fn gid_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: entry.gid.into(),
        gid_index: entry.gid_index,
        port_num: entry.port_num,
        gid_type: entry.gid_type.0,
        ndev_ifindex: entry.ndev_ifindex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &[c_char]) -> String {
        text.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect()
    }

    #[test]
    fn the_firmware_version_is_text_or_three_numbers() {
        let mut attr = DeviceAttr::default();
        attr.fw_ver = 22 << 32 | 36 << 16 | 1010;
        assert_eq!(string(&device_attr(&attr, None).fw_ver), "22.36.1010");
        assert_eq!(string(&device_attr(&attr, Some("1.2.0003")).fw_ver), "1.2.0003");
    }

    #[test]
    fn a_long_text_is_truncated_and_terminated() {
        assert_eq!(string(&text::<4>("abcdef")), "abc");
        assert_eq!(string(&text::<4>("ab")), "ab");
    }

    #[test]
    fn counts_above_c_int_become_its_maximum() {
        let mut attr = DeviceAttr::default();
        (attr.max_qp, attr.max_cq) = (u32::MAX, 7);
        let c = device_attr(&attr, None);
        assert_eq!((c.max_qp, c.max_cq), (c_int::MAX, 7));
    }
}
