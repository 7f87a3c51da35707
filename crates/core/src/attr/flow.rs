// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules: which received packets a raw packet QP gets (ibv_create_flow(3)).

/// `enum ibv_flow_attr_type`. Only sent, never returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FlowAttrType {
    /// `IBV_FLOW_ATTR_NORMAL`: packets that match the specifications.
    #[default]
    Normal = 0,
    /// `IBV_FLOW_ATTR_ALL_DEFAULT`: packets that no other rule matches.
    AllDefault = 1,
    /// `IBV_FLOW_ATTR_MC_DEFAULT`: multicast packets that no other rule matches.
    McDefault = 2,
    /// `IBV_FLOW_ATTR_SNIFFER`: a copy of all packets of the port.
    Sniffer = 3,
}

bitflags::bitflags! {
    /// `enum ibv_flow_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct FlowFlags: u32 {
        /// Later rules also get the packet.
        const DONT_TRAP = 1 << 1;
        /// The rule matches packets that are sent, not those that are received.
        const EGRESS = 1 << 2;
    }
}

/// Fields of an Ethernet header, `struct ibv_flow_eth_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowEth {
    /// Destination address.
    pub dst_mac: [u8; 6],
    /// Source address.
    pub src_mac: [u8; 6],
    /// Ethertype, host order.
    pub ether_type: u16,
    /// VLAN tag, host order.
    pub vlan_tag: u16,
}

/// Fields of an IPv4 header, `struct ibv_flow_ipv4_ext_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowIpv4 {
    /// Source address, in the order of the wire.
    pub src_ip: [u8; 4],
    /// Destination address, in the order of the wire.
    pub dst_ip: [u8; 4],
    /// Protocol.
    pub proto: u8,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Fragmentation flags.
    pub flags: u8,
}

/// Fields of an IPv6 header, `struct ibv_flow_ipv6_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowIpv6 {
    /// Source address.
    pub src_ip: [u8; 16],
    /// Destination address.
    pub dst_ip: [u8; 16],
    /// Flow label, 20 bits, host order.
    pub flow_label: u32,
    /// Next header.
    pub next_hdr: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Ports of a TCP or UDP header, `struct ibv_flow_tcp_udp_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowPorts {
    /// Destination port, host order.
    pub dst_port: u16,
    /// Source port, host order.
    pub src_port: u16,
}

/// Fields of a GRE header, `struct ibv_flow_gre_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowGre {
    /// The first 16 bits: checksum, key and sequence flags, version; host order.
    pub c_ks_res0_ver: u16,
    /// Ethertype of the payload, host order.
    pub protocol: u16,
    /// Key, host order.
    pub key: u32,
}

/// A condition on a packet: values, and a mask of the bits that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowMatch<T> {
    /// Values.
    pub val: T,
    /// Bits that are compared; a field of zeros is not checked.
    pub mask: T,
}

/// One header to match, `struct ibv_flow_spec_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlowHeader {
    /// `IBV_FLOW_SPEC_ETH`
    Eth(FlowMatch<FlowEth>),
    /// `IBV_FLOW_SPEC_IPV4_EXT`
    Ipv4(FlowMatch<FlowIpv4>),
    /// `IBV_FLOW_SPEC_IPV6`
    Ipv6(FlowMatch<FlowIpv6>),
    /// `IBV_FLOW_SPEC_TCP`
    Tcp(FlowMatch<FlowPorts>),
    /// `IBV_FLOW_SPEC_UDP`
    Udp(FlowMatch<FlowPorts>),
    /// `IBV_FLOW_SPEC_VXLAN_TUNNEL`: the tunnel's number, 24 bits.
    Vxlan(FlowMatch<u32>),
    /// `IBV_FLOW_SPEC_GRE`
    Gre(FlowMatch<FlowGre>),
    /// `IBV_FLOW_SPEC_MPLS`: a label stack entry, host order.
    Mpls(FlowMatch<u32>),
}

/// One specification of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlowSpec {
    /// Matches a header of the packet.
    Header(FlowHeader),
    /// Matches a header inside a tunnel (`IBV_FLOW_SPEC_INNER`).
    Inner(FlowHeader),
    /// `IBV_FLOW_SPEC_ACTION_TAG`: completions carry this number, 24 bits on mlx5.
    ActionTag(u32),
    /// `IBV_FLOW_SPEC_ACTION_DROP`
    ActionDrop,
}

open_values! {
    /// `enum ibv_counter_description`: the quantity that a counter counts.
    CounterDescription(u32), "IBV_COUNTER_" {
        PACKETS = 0 "packets",
        BYTES = 1 "bytes",
    }
}

/// `struct ibv_counter_attach_attr`: a counter of the packets that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CounterAttachAttr {
    /// What it counts.
    pub counter_desc: CounterDescription,
    /// Index of its value in the array that is read.
    pub index: u32,
}

impl CounterAttachAttr {
    /// A counter whose value has this index in the array that is read.
    #[must_use]
    pub const fn new(counter_desc: CounterDescription, index: u32) -> Self {
        Self { counter_desc, index }
    }
}

/// `struct ibv_flow_attr` with its specifications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowAttr {
    /// Kind of rule.
    pub flow_type: FlowAttrType,
    /// Priority; 0 is the highest.
    pub priority: u16,
    /// The local port, from 1.
    pub port: u8,
    /// Flags.
    pub flags: FlowFlags,
    /// Headers from the outermost one inwards, then the actions.
    pub specs: Vec<FlowSpec>,
}

impl FlowAttr {
    /// A rule of the local port `port`, from 1, with the highest priority and without specifications: it takes every packet.
    #[must_use]
    pub fn new(port: u8) -> Self {
        Self { port, ..Self::default() }
    }

    /// Sets [`specs`](field@Self::specs).
    #[must_use]
    pub fn specs(mut self, specs: Vec<FlowSpec>) -> Self {
        self.specs = specs;
        self
    }

    crate::setters!(flow_type: FlowAttrType, priority: u16, flags: FlowFlags);
}
