// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on steering rules, and the specifications that a rule is made of.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::be::{Be16, Be32};
use crate::layout::abi_structs;

abi_structs! {
    /// Head of every specification.
    pub struct ib_uverbs_flow_spec_hdr {
        /// `IB_FLOW_SPEC_*`.
        #[c = "type"]
        pub r#type: u32,
        /// Bytes of the whole specification.
        pub size: u16,
        /// Must be 0.
        pub reserved: u16,
        /// The specification's own part.
        pub flow_spec_data: [u64; 0],
    }

    /// Fields of an Ethernet header.
    pub struct ib_uverbs_flow_eth_filter {
        /// Destination address.
        pub dst_mac: [u8; 6],
        /// Source address.
        pub src_mac: [u8; 6],
        /// Ethertype.
        pub ether_type: Be16,
        /// VLAN tag.
        pub vlan_tag: Be16,
    }

    /// Matches an Ethernet header.
    pub struct ib_uverbs_flow_spec_eth {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_eth_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_eth_filter,
    }

    /// Fields of an IPv4 header.
    pub struct ib_uverbs_flow_ipv4_filter {
        /// Source address.
        pub src_ip: Be32,
        /// Destination address.
        pub dst_ip: Be32,
        /// Protocol.
        pub proto: u8,
        /// Type of service.
        pub tos: u8,
        /// Time to live.
        pub ttl: u8,
        /// Fragmentation flags.
        pub flags: u8,
    }

    /// Matches an IPv4 header.
    pub struct ib_uverbs_flow_spec_ipv4 {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_ipv4_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_ipv4_filter,
    }

    /// Ports of a TCP or UDP header.
    pub struct ib_uverbs_flow_tcp_udp_filter {
        /// Destination port.
        pub dst_port: Be16,
        /// Source port.
        pub src_port: Be16,
    }

    /// Matches a TCP or UDP header, by its type.
    pub struct ib_uverbs_flow_spec_tcp_udp {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_tcp_udp_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_tcp_udp_filter,
    }

    /// Fields of an IPv6 header.
    pub struct ib_uverbs_flow_ipv6_filter {
        /// Source address.
        pub src_ip: [u8; 16],
        /// Destination address.
        pub dst_ip: [u8; 16],
        /// Flow label, 20 bits.
        pub flow_label: Be32,
        /// Next header.
        pub next_hdr: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Must be 0.
        pub reserved: u8,
    }

    /// Matches an IPv6 header.
    pub struct ib_uverbs_flow_spec_ipv6 {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_ipv6_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_ipv6_filter,
    }

    /// Action: completions carry a tag.
    pub struct ib_uverbs_flow_spec_action_tag {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// The tag.
        pub tag_id: u32,
        /// Must be 0.
        pub reserved1: u32,
    }

    /// Action: drop the packet.
    pub struct ib_uverbs_flow_spec_action_drop {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
    }

    /// Action: that of a flow action object.
    pub struct ib_uverbs_flow_spec_action_handle {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// The flow action.
        pub handle: u32,
        /// Must be 0.
        pub reserved1: u32,
    }

    /// Action: count.
    pub struct ib_uverbs_flow_spec_action_count {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// The counter set.
        pub handle: u32,
        /// Must be 0.
        pub reserved1: u32,
    }

    /// Tunnel identifier of a VXLAN header.
    pub struct ib_uverbs_flow_tunnel_filter {
        /// VNI, 24 bits.
        pub tunnel_id: Be32,
    }

    /// Matches a VXLAN header.
    pub struct ib_uverbs_flow_spec_tunnel {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_tunnel_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_tunnel_filter,
    }

    /// Fields of an ESP header.
    pub struct ib_uverbs_flow_spec_esp_filter {
        /// Security parameters index.
        pub spi: u32,
        /// Sequence number.
        pub seq: u32,
    }

    /// Matches an ESP header.
    pub struct ib_uverbs_flow_spec_esp {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_spec_esp_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_spec_esp_filter,
    }

    /// Fields of a GRE header.
    pub struct ib_uverbs_flow_gre_filter {
        /// The header's first 16 bits: checksum, key and sequence flags, version.
        pub c_ks_res0_ver: Be16,
        /// Ethertype of the payload.
        pub protocol: Be16,
        /// Key.
        pub key: Be32,
    }

    /// Matches a GRE header.
    pub struct ib_uverbs_flow_spec_gre {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_gre_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_gre_filter,
    }

    /// An MPLS label stack entry.
    pub struct ib_uverbs_flow_mpls_filter {
        /// Label (20 bits), traffic class, bottom of stack, TTL.
        pub label: Be32,
    }

    /// Matches an MPLS label stack entry.
    pub struct ib_uverbs_flow_spec_mpls {
        /// Type and size of this specification.
        pub hdr: ib_uverbs_flow_spec_hdr,
        /// Value to compare with.
        pub val: ib_uverbs_flow_mpls_filter,
        /// Bits that are compared.
        pub mask: ib_uverbs_flow_mpls_filter,
    }

    /// A steering rule.
    pub struct ib_uverbs_flow_attr {
        /// `IB_FLOW_ATTR_*`.
        #[c = "type"]
        pub r#type: u32,
        /// Bytes of the specifications that follow.
        pub size: u16,
        /// Priority; 0 is the highest.
        pub priority: u16,
        /// Specifications that follow.
        pub num_of_specs: u8,
        /// Must be 0.
        pub reserved: [u8; 2],
        /// Port, from 1.
        pub port: u8,
        /// `IB_FLOW_ATTR_FLAGS_*`.
        pub flags: u32,
        /// The specifications.
        pub flow_specs: [ib_uverbs_flow_spec_hdr; 0],
    }

    /// Adds a steering rule.
    pub struct ib_uverbs_create_flow {
        /// Must be 0.
        pub comp_mask: u32,
        /// QP that gets the packets.
        pub qp_handle: u32,
        /// The rule.
        pub flow_attr: ib_uverbs_flow_attr,
    }

    /// Response to [`ib_uverbs_create_flow`].
    pub struct ib_uverbs_create_flow_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Steering rule.
        pub flow_handle: u32,
    }

    /// Removes a steering rule.
    pub struct ib_uverbs_destroy_flow {
        /// Must be 0.
        pub comp_mask: u32,
        /// Steering rule.
        pub flow_handle: u32,
    }
}
