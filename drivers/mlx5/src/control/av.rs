// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address vectors: an address handle in the form of the hardware.
//!
//! On InfiniBand the vector is built here, without the kernel. On RoCE the kernel resolves the peer's MAC address.
//! Facts from PRM 8.9.4.3 and `rdma/ib_verbs.h` (flow label to UDP port).

use uverbs_core::attr::{AhAttr, GidType};
use uverbs_mlx5_hw::wqe::Av;
use uverbs_mlx5_hw::{Be16, Be32};

/// UDP source ports of RoCE v2 are from here (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`) to 0xffff.
const UDP_PORT_MIN: u16 = 0xc000;
/// GRH present.
const GRH: u32 = 1 << 30;

/// The device's code of an `enum ibv_rate`; 0 means no limit, also for rates that the device does not have.
const RATES: [u8; 23] = [0, 0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 11, 13, 15, 0, 9, 15, 0, 0, 9, 13, 0, 0];

fn rate(static_rate: u8) -> u8 {
    RATES.get(usize::from(static_rate)).copied().unwrap_or(0)
}

/// The UDP source port for a flow label: its 20 bits, folded to 14.
fn udp_port(flow_label: u32) -> u16 {
    let label = flow_label & 0xf_ffff;
    UDP_PORT_MIN | ((label & 0x3fff) ^ (label >> 14)) as u16
}

fn with_route(mut av: Av, attr: &AhAttr, flags: u32) -> Av {
    if let Some(grh) = &attr.grh {
        av.tclass = grh.traffic_class;
        av.hop_limit = grh.hop_limit;
        av.grh_gid_fl = Be32::new(flags | u32::from(grh.sgid_index) << 20 | grh.flow_label & 0xf_ffff);
        av.rgid = grh.dgid.0;
    }
    av
}

/// The vector of an InfiniBand destination.
pub(crate) fn infiniband(attr: &AhAttr) -> Av {
    let av = Av {
        stat_rate_sl: rate(attr.static_rate) << 4 | attr.sl & 0xf,
        fl_mlid: attr.src_path_bits & 0x7f,
        rlid: Be16::new(attr.dlid),
        ..Av::default()
    };
    with_route(av, attr, GRH)
}

/// The vector of a RoCE destination, whose MAC address is `dmac`. `random` determines the UDP port if there is no flow
/// label.
pub(crate) fn roce(attr: &AhAttr, gid_type: GidType, dmac: [u8; 6], random: impl FnOnce() -> u16) -> Av {
    let label = attr.grh.map_or(0, |grh| grh.flow_label);
    let rlid = match gid_type {
        GidType::ROCE_V2 if label & 0xf_ffff == 0 => UDP_PORT_MIN | random(),
        GidType::ROCE_V2 => udp_port(label),
        _ => 0,
    };
    let av = Av {
        stat_rate_sl: rate(attr.static_rate) << 4 | (attr.sl & 0x7) << 1,
        rlid: Be16::new(rlid),
        rmac: dmac,
        ..Av::default()
    };
    // Every RoCE packet has a route, and the bit for it is reserved.
    with_route(av, attr, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::attr::{Gid, GlobalRoute};
    use zerocopy::IntoBytes;

    fn hex(av: &Av) -> String {
        av.as_bytes().iter().map(|b| format!("{b:02x}")).collect()
    }

    fn roce_attr() -> AhAttr {
        let dgid: Gid = "192.168.1.20".parse().unwrap();
        let grh = GlobalRoute::new(dgid).flow_label(74565).sgid_index(3).hop_limit(64).traffic_class(28);
        AhAttr::new(1).grh(Some(grh)).sl(3)
    }

    #[test]
    fn roce_v2_has_a_port_from_its_label() {
        let av = roce(&roce_attr(), GidType::ROCE_V2, [2, 0x11, 0xc0, 0xa8, 1, 0x14], || {
            panic!("there is a label")
        });
        assert_eq!(
            hex(&av),
            "0000000000000000000000000600e341000000000211c0a801141c400031234500000000000000000000ffffc0a80114"
        );
    }

    #[test]
    fn without_a_label_the_port_is_random_and_version_1_has_none() {
        let mut attr = roce_attr();
        attr.grh.as_mut().unwrap().flow_label = 0;
        assert_eq!(roce(&attr, GidType::ROCE_V2, [0; 6], || 0x1234).rlid.get(), 0xd234);
        assert_eq!(roce(&attr, GidType::ROCE_V2, [0; 6], || 0xffff).rlid.get(), 0xffff);
        assert_eq!(roce(&attr, GidType::ROCE_V1, [0; 6], || panic!("no port")).rlid.get(), 0);
    }

    #[test]
    fn infiniband_with_and_without_route() {
        let attr = AhAttr::new(1).dlid(4660).sl(9).src_path_bits(133).static_rate(7);
        assert_eq!(hex(&infiniband(&attr)), format!("{:0>32}{:0<64}", "c9051234", ""));
        let dgid: Gid = "ff12:601b:ffff::1".parse().unwrap();
        let attr = AhAttr::global(1, 0, dgid).dlid(49153);
        let av = infiniband(&attr);
        assert_eq!((av.rlid.get(), av.grh_gid_fl.get() & GRH), (49153, GRH));
    }
}
