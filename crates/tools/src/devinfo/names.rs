// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_devinfo's names of values. Scripts search for them, so they are the same, including the spelling.

use uverbs::attr::{AtomicCap, GidEntry, GidType, LinkLayer, Mtu, PhysState, PortState};
use uverbs::device::TransportType;

pub(super) const fn transport(t: TransportType) -> &'static str {
    match t {
        TransportType::IB => "InfiniBand",
        TransportType::IWARP => "iWARP",
        TransportType::USNIC => "usNIC",
        TransportType::USNIC_UDP => "usNIC UDP",
        TransportType::UNSPECIFIED => "unspecified",
        _ => "invalid transport",
    }
}

/// C's number of a transport: an unknown one is -1.
pub(super) const fn transport_number(t: TransportType) -> i32 {
    match t {
        TransportType(n @ 0..=4) => n as i32,
        _ => -1,
    }
}

pub(super) const fn port_state(state: PortState) -> &'static str {
    match state {
        PortState::DOWN => "PORT_DOWN",
        PortState::INIT => "PORT_INIT",
        PortState::ARMED => "PORT_ARMED",
        PortState::ACTIVE => "PORT_ACTIVE",
        _ => "invalid state",
    }
}

pub(super) const fn phys_state(state: PhysState) -> &'static str {
    match state {
        PhysState::SLEEP => "SLEEP",
        PhysState::POLLING => "POLLING",
        PhysState::DISABLED => "DISABLED",
        PhysState::PORT_CONFIGURATION_TRAINING => "PORT_CONFIGURATION TRAINNING",
        PhysState::LINK_UP => "LINK_UP",
        PhysState::LINK_ERROR_RECOVERY => "LINK_ERROR_RECOVERY",
        PhysState::PHY_TEST => "PHY TEST",
        _ => "invalid physical state",
    }
}

pub(super) const fn atomic_cap(cap: AtomicCap) -> &'static str {
    match cap {
        AtomicCap::NONE => "ATOMIC_NONE",
        AtomicCap::HCA => "ATOMIC_HCA",
        AtomicCap::GLOB => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    }
}

pub(super) const fn mtu(mtu: Mtu) -> &'static str {
    match mtu {
        Mtu::MTU_256 => "256",
        Mtu::MTU_512 => "512",
        Mtu::MTU_1024 => "1024",
        Mtu::MTU_2048 => "2048",
        Mtu::MTU_4096 => "4096",
        _ => "invalid MTU",
    }
}

pub(super) const fn link_layer(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::UNSPECIFIED => "Unspecified",
        LinkLayer::INFINIBAND => "InfiniBand",
        LinkLayer::ETHERNET => "Ethernet",
        _ => "Unknown",
    }
}

pub(super) const fn max_vl(code: u8) -> &'static str {
    match code {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
}

pub(super) const fn width(code: u8) -> &'static str {
    match code {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "invalid width",
    }
}

pub(super) const fn speed(code: u32) -> &'static str {
    match code {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        256 => "200.0 Gbps",
        _ => "invalid speed",
    }
}

/// The name of a GID's type. As in ibv_devinfo, InfiniBand's GIDs and those of RoCE version 1 have the same name.
pub(super) const fn gid_type(gid: &GidEntry) -> Option<&'static str> {
    match gid.gid_type {
        GidType::IB | GidType::ROCE_V1 => Some("RoCE v1"),
        GidType::ROCE_V2 => Some("RoCE v2"),
        _ => None,
    }
}
