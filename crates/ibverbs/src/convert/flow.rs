// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules from C's form: a header, followed by specifications of different sizes.
#![expect(unsafe_code)]
// UNSAFETY: C's structs are read by the type in the header of each.

use crate::abi::flow::{
    ibv_counters, ibv_flow_attr, ibv_flow_eth_filter, ibv_flow_gre_filter, ibv_flow_ipv4_ext_filter,
    ibv_flow_ipv4_filter, ibv_flow_ipv6_filter, ibv_flow_mpls_filter, ibv_flow_spec_action_drop,
    ibv_flow_spec_action_tag, ibv_flow_spec_counter_action, ibv_flow_spec_eth, ibv_flow_spec_gre,
    ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_mpls,
    ibv_flow_spec_tcp_udp, ibv_flow_spec_tunnel, ibv_flow_tcp_udp_filter, ibv_flow_tunnel_filter,
};
use crate::errno::{Errno, Outcome, ensure};
use uverbs_core::attr::{
    FlowAttr, FlowAttrType, FlowEth, FlowFlags, FlowGre, FlowHeader, FlowIpv4, FlowIpv6, FlowMatch,
    FlowPorts, FlowSpec,
};

/// `IBV_FLOW_SPEC_*`
mod kind {
    pub(super) const ETH: u32 = 0x20;
    pub(super) const IPV4: u32 = 0x30;
    pub(super) const IPV6: u32 = 0x31;
    pub(super) const IPV4_EXT: u32 = 0x32;
    pub(super) const ESP: u32 = 0x34;
    pub(super) const TCP: u32 = 0x40;
    pub(super) const UDP: u32 = 0x41;
    pub(super) const VXLAN_TUNNEL: u32 = 0x50;
    pub(super) const GRE: u32 = 0x51;
    pub(super) const MPLS: u32 = 0x60;
    pub(super) const INNER: u32 = 0x100;
    pub(super) const ACTION_TAG: u32 = 0x1000;
    pub(super) const ACTION_DROP: u32 = 0x1001;
    pub(super) const ACTION_HANDLE: u32 = 0x1002;
    pub(super) const ACTION_COUNT: u32 = 0x1003;
}

/// A specification in C's memory, with its size.
struct Place {
    at: *const u8,
    size: usize,
}

impl Place {
    /// The struct of the specification.
    ///
    /// # Safety
    /// `at` is valid for reads of `size` bytes, and `T` consists of integers and pointers.
    unsafe fn read<T: Copy>(&self) -> Outcome<T> {
        ensure(self.size >= size_of::<T>())?;
        // SAFETY: `size` bytes are readable (contract of this function), which is enough (checked above); all bit
        // patterns are values of `T`.
        Ok(unsafe { self.at.cast::<T>().read_unaligned() })
    }
}

/// Value and mask of a condition.
fn both<C, T>(val: C, mask: C, convert: impl Fn(C) -> T) -> FlowMatch<T> {
    FlowMatch { val: convert(val), mask: convert(mask) }
}

fn eth(f: ibv_flow_eth_filter) -> FlowEth {
    FlowEth {
        dst_mac: f.dst_mac,
        src_mac: f.src_mac,
        ether_type: u16::from_be(f.ether_type),
        vlan_tag: u16::from_be(f.vlan_tag),
    }
}

fn ipv4(f: ibv_flow_ipv4_filter) -> FlowIpv4 {
    FlowIpv4 { src_ip: f.src_ip.to_ne_bytes(), dst_ip: f.dst_ip.to_ne_bytes(), ..FlowIpv4::default() }
}

fn ipv4_ext(f: ibv_flow_ipv4_ext_filter) -> FlowIpv4 {
    FlowIpv4 {
        src_ip: f.src_ip.to_ne_bytes(),
        dst_ip: f.dst_ip.to_ne_bytes(),
        proto: f.proto,
        tos: f.tos,
        ttl: f.ttl,
        flags: f.flags,
    }
}

fn ipv6(f: ibv_flow_ipv6_filter) -> FlowIpv6 {
    FlowIpv6 {
        src_ip: f.src_ip,
        dst_ip: f.dst_ip,
        flow_label: u32::from_be(f.flow_label),
        next_hdr: f.next_hdr,
        traffic_class: f.traffic_class,
        hop_limit: f.hop_limit,
    }
}

fn ports(f: ibv_flow_tcp_udp_filter) -> FlowPorts {
    FlowPorts { dst_port: u16::from_be(f.dst_port), src_port: u16::from_be(f.src_port) }
}

fn gre(f: ibv_flow_gre_filter) -> FlowGre {
    FlowGre {
        c_ks_res0_ver: u16::from_be(f.c_ks_res0_ver),
        protocol: u16::from_be(f.protocol),
        key: u32::from_be(f.key),
    }
}

fn mpls(f: ibv_flow_mpls_filter) -> u32 {
    u32::from_be(f.label)
}

fn tunnel(f: ibv_flow_tunnel_filter) -> u32 {
    u32::from_be(f.tunnel_id)
}

/// The condition of a header.
///
/// # Safety
/// As [`Place::read`].
unsafe fn header(kind: u32, place: &Place) -> Outcome<FlowHeader> {
    macro_rules! read {
        ($spec:ty, $convert:ident) => {{
            // SAFETY: the struct consists of integers; the bytes are readable (contract of this function).
            let spec = unsafe { place.read::<$spec>() }?;
            both(spec.val, spec.mask, $convert)
        }};
    }
    Ok(match kind {
        kind::ETH => FlowHeader::Eth(read!(ibv_flow_spec_eth, eth)),
        kind::IPV4 => FlowHeader::Ipv4(read!(ibv_flow_spec_ipv4, ipv4)),
        kind::IPV4_EXT => FlowHeader::Ipv4(read!(ibv_flow_spec_ipv4_ext, ipv4_ext)),
        kind::IPV6 => FlowHeader::Ipv6(read!(ibv_flow_spec_ipv6, ipv6)),
        kind::TCP => FlowHeader::Tcp(read!(ibv_flow_spec_tcp_udp, ports)),
        kind::UDP => FlowHeader::Udp(read!(ibv_flow_spec_tcp_udp, ports)),
        kind::VXLAN_TUNNEL => FlowHeader::Vxlan(read!(ibv_flow_spec_tunnel, tunnel)),
        kind::GRE => FlowHeader::Gre(read!(ibv_flow_spec_gre, gre)),
        kind::MPLS => FlowHeader::Mpls(read!(ibv_flow_spec_mpls, mpls)),
        kind::ESP => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    })
}

/// A rule, and the counters that it names.
///
/// # Safety
/// `attr` is valid for reads, and followed by `num_of_specs` specifications, each of the size in its header.
pub(crate) unsafe fn from_c(attr: *const ibv_flow_attr) -> Outcome<(FlowAttr, Option<*mut ibv_counters>)> {
    // SAFETY: `attr` is valid for reads (contract of this function).
    let head = unsafe { attr.read() };
    ensure(head.comp_mask == 0)?;
    let types =
        [FlowAttrType::Normal, FlowAttrType::AllDefault, FlowAttrType::McDefault, FlowAttrType::Sniffer];
    let flow_type = types.into_iter().find(|known| *known as u32 == head.r#type).ok_or(Errno::EINVAL)?;
    let mut specs = Vec::new();
    let mut counters = None;
    let mut at = attr.wrapping_add(1).cast::<u8>();
    for _ in 0..head.num_of_specs {
        // Every specification begins with its type and size, as this struct does.
        // SAFETY: there is one more specification (contract of this function).
        let spec_head = unsafe { at.cast::<ibv_flow_spec_action_drop>().read_unaligned() };
        let place = Place { at, size: spec_head.size.into() };
        ensure(place.size >= size_of_val(&spec_head))?;
        match spec_head.r#type {
            kind::ACTION_TAG => {
                // SAFETY: the struct consists of integers; the bytes are readable (contract of this function).
                let tag = unsafe { place.read::<ibv_flow_spec_action_tag>() }?;
                specs.push(FlowSpec::ActionTag(tag.tag_id));
            }
            kind::ACTION_DROP => specs.push(FlowSpec::ActionDrop),
            kind::ACTION_COUNT => {
                // SAFETY: the struct consists of integers and a pointer; the bytes are readable (contract of this
                // function).
                let count = unsafe { place.read::<ibv_flow_spec_counter_action>() }?;
                // The kernel accepts one (`parse_flow_attr()` of mlx5_ib).
                ensure(counters.replace(count.counters).is_none())?;
            }
            kind::ACTION_HANDLE => return Err(Errno::EOPNOTSUPP),
            kind if kind & kind::INNER != 0 => {
                // SAFETY: the bytes are readable (contract of this function).
                specs.push(FlowSpec::Inner(unsafe { header(kind & !kind::INNER, &place) }?));
            }
            // SAFETY: the bytes are readable (contract of this function).
            kind => specs.push(FlowSpec::Header(unsafe { header(kind, &place) }?)),
        }
        at = at.wrapping_add(place.size);
    }
    let flow = FlowAttr::new(head.port)
        .flow_type(flow_type)
        .priority(head.priority)
        .flags(FlowFlags::from_bits_retain(head.flags))
        .specs(specs);
    Ok((flow, counters))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule in C's form.
    fn rule(specs: &[Vec<u8>]) -> Vec<u64> {
        let mut bytes = vec![0; size_of::<ibv_flow_attr>()];
        bytes[12] = specs.len() as u8;
        bytes[13] = 1;
        bytes.extend(specs.concat());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    fn parse(specs: &[Vec<u8>]) -> Outcome<FlowAttr> {
        let words = rule(specs);
        // SAFETY: a rule with its specifications.
        unsafe { from_c(words.as_ptr().cast()) }.map(|(attr, _)| attr)
    }

    /// A specification: its header, then bytes, in a struct of `size` bytes.
    fn spec(kind: u32, size: usize, at: usize, fields: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; size];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
        bytes[at..at + fields.len()].copy_from_slice(fields);
        bytes
    }

    #[test]
    fn specifications_are_read_by_their_sizes() {
        let mac = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x20, 0x01];
        let attr = parse(&[
            spec(kind::ETH, 40, 6, &mac),
            spec(kind::IPV4 | kind::INNER, 24, 8, &[10, 0, 0, 1, 10, 0, 0, 2]),
            spec(kind::UDP, 16, 6, &[0x12, 0xb7, 0, 1]),
            spec(kind::ACTION_TAG, 12, 8, &7_u32.to_ne_bytes()),
            spec(kind::ACTION_DROP, 8, 6, &[]),
        ])
        .unwrap();
        assert_eq!(attr.port, 1);
        let eth = FlowEth {
            dst_mac: [2, 0, 0, 0, 0, 1],
            src_mac: [2, 0, 0, 0, 0, 2],
            ether_type: 0x800,
            vlan_tag: 0x2001,
        };
        let ip = FlowIpv4 { src_ip: [10, 0, 0, 1], dst_ip: [10, 0, 0, 2], ..FlowIpv4::default() };
        let udp = FlowPorts { dst_port: 0x12b7, src_port: 1 };
        assert_eq!(
            attr.specs,
            [
                FlowSpec::Header(FlowHeader::Eth(FlowMatch { val: eth, ..FlowMatch::default() })),
                FlowSpec::Inner(FlowHeader::Ipv4(FlowMatch { val: ip, ..FlowMatch::default() })),
                FlowSpec::Header(FlowHeader::Udp(FlowMatch { val: udp, ..FlowMatch::default() })),
                FlowSpec::ActionTag(7),
                FlowSpec::ActionDrop,
            ]
        );
    }

    #[test]
    fn invalid_specifications_are_refused() {
        let wrong = |spec| parse(&[spec]).unwrap_err();
        assert_eq!(wrong(spec(0x21, 40, 6, &[])), Errno::EINVAL);
        assert_eq!(wrong(spec(kind::ETH, 36, 6, &[])), Errno::EINVAL);
        assert_eq!(wrong(spec(kind::ESP, 24, 6, &[])), Errno::EOPNOTSUPP);
        assert_eq!(wrong(spec(kind::ACTION_HANDLE, 16, 6, &[])), Errno::EOPNOTSUPP);
        let count = spec(kind::ACTION_COUNT, 16, 8, &0_u64.to_ne_bytes());
        assert_eq!(parse(&[count.clone(), count]).unwrap_err(), Errno::EINVAL);
    }
}
