// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout, compared with stored text.

use super::super::facts::{Facts, Opened, Port};
use super::*;
use crate::device::tests as device_tests;
use anyhow::anyhow;
use uverbs::attr::{
    AtomicCap, DeviceCapFlags, Mtu, OdpGeneralCaps, OdpTransportCaps, PhysState, PortAttr, PortCapFlags,
    PortState, RawPacketCaps,
};
use uverbs::device::Unusable;

/// A device with one port, much like rxe.
pub(in super::super) fn made_up() -> Facts {
    let mut attr = DeviceAttr::default();
    attr.fw_ver = 0x0001_0002_0003;
    attr.node_guid = 0x0011_22ff_fe33_4455;
    attr.sys_image_guid = 0x0011_22ff_fe33_4455;
    attr.vendor_id = 0xff_ffff;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = 0xffff_f000;
    attr.max_qp = 1_048_560;
    attr.max_qp_wr = 1_048_576;
    attr.device_cap_flags = DeviceCapFlags::from_bits_retain(0x80_0122_3c76 | 1 << 15);
    attr.max_sge = 32;
    attr.max_sge_rd = 32;
    attr.max_cq = 1_048_576;
    attr.max_cqe = 32_767;
    attr.atomic_cap = AtomicCap::HCA;
    attr.max_srq = 983_025;
    attr.max_srq_wr = 1_048_576;
    attr.max_srq_sge = 27;
    attr.max_pkeys = 64;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr.phys_port_cnt_ex = 1;
    attr.extended = true;
    attr.odp_caps.general_caps = OdpGeneralCaps::SUPPORT;
    attr.odp_caps.rc_odp_caps = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
    let mut port = PortAttr::default();
    port.state = PortState::ACTIVE;
    port.max_mtu = Mtu::MTU_4096;
    port.active_mtu = Mtu::MTU_1024;
    port.gid_tbl_len = 1024;
    port.port_cap_flags = PortCapFlags::from_bits_retain(0x0001_0000);
    port.max_msg_sz = 0x80_0000;
    port.pkey_tbl_len = 64;
    port.max_vl_num = 1;
    port.active_width = 1;
    port.active_speed = 4;
    port.phys_state = PhysState::LINK_UP;
    port.link_layer = LinkLayer::ETHERNET;
    let gid = |gid_index, text: &str, gid_type| {
        GidEntry::new(text.parse().unwrap()).gid_index(gid_index).gid_type(gid_type).ndev_ifindex(2)
    };
    let gids = vec![
        gid(0, "fe80::11:22ff:fe33:4455", GidType::ROCE_V1),
        gid(1, "10.0.0.1", GidType::ROCE_V2),
        gid(2, "fe80::", GidType::ROCE_V2),
        gid(3, "fe80::1", GidType(9)),
    ];
    let ports = vec![Port { number: 1, attr: port, gids }];
    let opened = Opened { driver: "rxe", num_comp_vectors: 2, attr, ports, failures: Vec::new() };
    Facts { info: device_tests::made_up("rxe0", Ok(())), opened: Ok(opened) }
}

/// A device that can't be opened.
pub(in super::super) fn unavailable() -> Facts {
    let reason = Unusable::NoUverbs;
    let opened = Err(anyhow!("open_device: unsupported: rxe1: {reason}"));
    Facts { info: device_tests::made_up("rxe1", Err(reason)), opened }
}

#[test]
fn brief_and_verbose_text_are_as_stored() {
    assert_eq!(device(&made_up(), false), include_str!("brief.txt"));
    assert_eq!(device(&made_up(), true), include_str!("verbose.txt"));
}

#[test]
fn everything_that_a_nic_may_have_is_shown() {
    let mut facts = made_up();
    facts.info.board_id = Some("MT_0000000011".into());
    facts.info.fw_ver = Some("16.35.2000".into());
    let opened = facts.opened.as_mut().unwrap();
    let attr = &mut opened.attr;
    attr.max_fmr = 5;
    attr.max_map_per_fmr = 6;
    attr.max_srq = 0;
    attr.completion_timestamp_mask = 0x7fff_ffff_ffff_ffff;
    attr.hca_core_clock = 156_250;
    attr.raw_packet_caps = RawPacketCaps::all();
    attr.tso_caps.max_tso = 262_144;
    attr.tso_caps.supported_qpts = 1 << 8;
    attr.rss_caps.supported_qpts = 1 << 8;
    attr.rss_caps.max_rwq_indirection_tables = 8;
    attr.rss_caps.max_rwq_indirection_table_size = 2048;
    attr.rss_caps.rx_hash_fields_mask = 0x8000_00FF;
    attr.rss_caps.rx_hash_function = 1;
    attr.packet_pacing_caps.qp_rate_limit_min = 1;
    attr.packet_pacing_caps.qp_rate_limit_max = 100_000_000;
    attr.packet_pacing_caps.supported_qpts = 1 << 8 | 1 << 2;
    attr.tm_caps.max_rndv_hdr_size = 1088;
    attr.tm_caps.max_num_tags = 127;
    attr.tm_caps.flags = 1;
    attr.tm_caps.max_ops = 32768;
    attr.tm_caps.max_sge = 1;
    attr.cq_mod_caps.max_cq_count = 65535;
    attr.cq_mod_caps.max_cq_period = 4095;
    attr.max_dm_size = 131_072;
    attr.odp_caps.rc_odp_caps |= OdpTransportCaps::from_bits_retain(1 << 20);
    opened.ports.clear();
    assert_eq!(device(&facts, true), include_str!("nic.txt"));
}

#[test]
fn a_device_that_cannot_be_used_is_shown_with_the_reason() {
    let text = device(&unavailable(), false);
    assert_eq!(
        text,
        "hca_id:\trxe1\n\ttransport:\t\t\tInfiniBand (0)\n\tnode_guid:\t\t\t0011:22ff:fe33:4455\n\
         \tsys_image_guid:\t\t\t0011:22ff:fe33:4455\n\tunavailable:\t\t\topen_device: unsupported: rxe1: \
         no uverbs device (is ib_uverbs loaded?)\n\n"
    );
    let devices = [made_up().info, unavailable().info];
    assert_eq!(
        list(&devices),
        "2 HCAs found:\n\trxe0\n\trxe1\t(no uverbs device (is ib_uverbs loaded?))\n\n"
    );
    assert_eq!(list(&devices[..1]), "1 HCA found:\n\trxe0\n\n");
}
