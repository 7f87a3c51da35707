// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address vector in a datagram's WQE, for kernels without an index of address handles.
//!
//! Kernels since 5.16 return an index from `create_ah`, and read the address from their own object. With older kernels
//! user space fills in `struct rxe_av`. The destination's MAC stays 0: the kernel routes by IP address and uses the MAC
//! only to detect a packet to itself (`rxe_prepare()`); such a packet then goes through the IP stack.

use uverbs_core::attr::{AhAttr, Gid};
use uverbs_uapi::be::Be32;
use uverbs_uapi::rxe::{
    RXE_NETWORK_TYPE_IPV4, RXE_NETWORK_TYPE_IPV6, rxe_av, rxe_av_addr, rxe_global_route, sockaddr_in,
    sockaddr_in6,
};

/// `AF_INET` and `AF_INET6` of Linux.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The address vector of `attr`, sent from the port's address `sgid`.
pub(crate) fn address_vector(attr: &AhAttr, sgid: Gid) -> rxe_av {
    let grh = attr.grh.unwrap_or_default();
    let network_type = match grh.dgid.ipv4() {
        Some(_) => RXE_NETWORK_TYPE_IPV4,
        None => RXE_NETWORK_TYPE_IPV6,
    };
    rxe_av {
        port_num: attr.port_num,
        network_type,
        dmac: [0; 6],
        grh: rxe_global_route {
            dgid: grh.dgid.0.into(),
            flow_label: grh.flow_label,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            _pad: 0,
        },
        sgid_addr: socket_address(sgid),
        dgid_addr: socket_address(grh.dgid),
    }
}

fn socket_address(gid: Gid) -> rxe_av_addr {
    match gid.ipv4() {
        Some(ip) => {
            let sin_addr = Be32::new(u32::from(ip));
            sockaddr_in { sin_family: AF_INET, sin_addr, ..Default::default() }.into()
        }
        None => sockaddr_in6 { sin6_family: AF_INET6, sin6_addr: gid.0, ..Default::default() }.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn ipv4_by_offsets() {
        let mut attr = AhAttr::global(1, 7, "10.0.0.2".parse().unwrap());
        if let Some(grh) = &mut attr.grh {
            (grh.flow_label, grh.traffic_class) = (0x12345, 9);
        }
        let av = address_vector(&attr, "10.0.0.1".parse().unwrap());
        let b = av.as_bytes();
        assert_eq!(b.len(), 88);
        assert_eq!(b[..8], [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(b[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(b[24..28], 0x12345_u32.to_ne_bytes());
        assert_eq!(b[28..32], [7, 64, 9, 0]);
        // sin_family, sin_port, sin_addr
        assert_eq!(b[32..34], 2_u16.to_ne_bytes());
        assert_eq!(b[36..40], [10, 0, 0, 1]);
        assert_eq!(b[60..62], 2_u16.to_ne_bytes());
        assert_eq!(b[64..68], [10, 0, 0, 2]);
    }

    #[test]
    fn ipv6_by_offsets() {
        let dgid: Gid = "fe80::1:2".parse().unwrap();
        let av = address_vector(&AhAttr::global(1, 0, dgid), "fe80::3:4".parse().unwrap());
        let b = av.as_bytes();
        assert_eq!(b[1], 2);
        assert_eq!(b[8..24], dgid.0);
        // sin6_family, sin6_addr after port and flow information
        assert_eq!(b[60..62], 10_u16.to_ne_bytes());
        assert_eq!(b[68..84], dgid.0);
        assert_eq!(b[40..56], "fe80::3:4".parse::<Gid>().unwrap().0);
    }
}
