// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ibv_ah_attr`: an address, of a handle or of a queue pair.

use crate::abi::attr::{ibv_ah_attr, ibv_global_route};
use crate::abi::device::Gid64;
use uverbs_core::attr::{AhAttr, GlobalRoute};

/// C's form of an address.
pub(crate) fn to_c(attr: &AhAttr) -> ibv_ah_attr {
    let grh = attr.grh.unwrap_or_default();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: Gid64::from(grh.dgid),
            flow_label: grh.flow_label,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.grh.is_some().into(),
        port_num: attr.port_num,
    }
}

/// An address from C's form. Fields that are wider than those of the packet are truncated, as by libmlx5 (`mlx5_create_ah()`)
/// and by the kernel (`mlx5_set_path()`).
pub(crate) fn from_c(attr: &ibv_ah_attr) -> AhAttr {
    let route = || {
        GlobalRoute::new(attr.grh.dgid.into())
            .flow_label(attr.grh.flow_label & 0xf_ffff)
            .sgid_index(attr.grh.sgid_index)
            .hop_limit(attr.grh.hop_limit)
            .traffic_class(attr.grh.traffic_class)
    };
    AhAttr::new(attr.port_num)
        .grh((attr.is_global != 0).then(route))
        .dlid(attr.dlid)
        .sl(attr.sl & 0xf)
        .src_path_bits(attr.src_path_bits & 0x7f)
        .static_rate(attr.static_rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::attr::Gid;

    #[test]
    fn an_address_is_unchanged_by_both_conversions() {
        let mut attr = AhAttr::global(1, 3, Gid([7; 16]));
        (attr.dlid, attr.sl, attr.src_path_bits, attr.static_rate) = (9, 4, 2, 5);
        assert_eq!(from_c(&to_c(&attr)), attr);
        attr.grh = None;
        assert_eq!(from_c(&to_c(&attr)), attr);
    }

    #[test]
    fn fields_that_do_not_fit_are_truncated() {
        let mut attr = AhAttr::global(1, 3, Gid([7; 16]));
        (attr.sl, attr.src_path_bits) = (0xf5, 0x83);
        attr.grh.as_mut().unwrap().flow_label = 0xabc1_2345;
        let got = from_c(&to_c(&attr));
        assert_eq!((got.sl, got.src_path_bits, got.grh.unwrap().flow_label), (5, 3, 0x1_2345));
    }
}
