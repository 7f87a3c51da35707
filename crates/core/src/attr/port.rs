// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ibv_port_attr`: one port of a device (ibv_query_port(3)).

open_values! {
    /// `enum ibv_port_state`: the logical state of a port.
    PortState(u8), "IBV_PORT_" {
        NOP = 0 "no state change",
        DOWN = 1 "down",
        INIT = 2 "initializing",
        ARMED = 3 "armed",
        ACTIVE = 4 "active",
        ACTIVE_DEFER = 5 "active, deferred",
    }
}

open_values! {
    /// `enum ibv_mtu`: the largest payload of one packet, as a code.
    Mtu(u8), "IBV_" {
        MTU_256 = 1 "256 bytes",
        MTU_512 = 2 "512 bytes",
        MTU_1024 = 3 "1024 bytes",
        MTU_2048 = 4 "2048 bytes",
        MTU_4096 = 5 "4096 bytes",
    }
}

impl Mtu {
    /// The MTU in bytes, or `None` for an unknown code.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }

    /// The code of this exact number of bytes: 256, 512, 1024, 2048 or 4096.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 | 512 | 1024 | 2048 | 4096 => Some(Self((bytes.trailing_zeros() - 7) as u8)),
            _ => None,
        }
    }
}

open_values! {
    /// `link_layer` of a port.
    LinkLayer(u8), "IBV_LINK_LAYER_" {
        UNSPECIFIED = 0 "unspecified",
        INFINIBAND = 1 "InfiniBand",
        ETHERNET = 2 "Ethernet",
    }
}

open_values! {
    /// The physical state of a port (InfiniBand PortInfo:PortPhysicalState; `enum ib_port_phys_state` in the kernel).
    PhysState(u8), "IB_PORT_PHYS_STATE_" {
        SLEEP = 1 "sleep",
        POLLING = 2 "polling",
        DISABLED = 3 "disabled",
        PORT_CONFIGURATION_TRAINING = 4 "port configuration training",
        LINK_UP = 5 "link up",
        LINK_ERROR_RECOVERY = 6 "link error recovery",
        PHY_TEST = 7 "phy test",
    }
}

bitflags::bitflags! {
    /// `enum ibv_port_cap_flags` (InfiniBand PortInfo:CapabilityMask).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct PortCapFlags: u32 {
        /// The port runs a subnet manager.
        const SM = 1 << 1;
        /// Notices.
        const NOTICE_SUP = 1 << 2;
        /// Traps.
        const TRAP_SUP = 1 << 3;
        /// Optional inter-packet delays.
        const OPT_IPD_SUP = 1 << 4;
        /// Automatic path migration.
        const AUTO_MIGR_SUP = 1 << 5;
        /// Service level to virtual lane mapping.
        const SL_MAP_SUP = 1 << 6;
        /// The M_Key is kept in NVRAM.
        const MKEY_NVRAM = 1 << 7;
        /// The P_Keys are kept in NVRAM.
        const PKEY_NVRAM = 1 << 8;
        /// LED information.
        const LED_INFO_SUP = 1 << 9;
        /// The subnet manager is disabled.
        const SM_DISABLED = 1 << 10;
        /// System image GUID.
        const SYS_IMAGE_GUID_SUP = 1 << 11;
        /// P_Key switch external port trap.
        const PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12;
        /// Extended speeds.
        const EXTENDED_SPEEDS_SUP = 1 << 14;
        /// A second capability mask exists, see [`PortAttr::port_cap_flags2`].
        const CAP_MASK2_SUP = 1 << 15;
        /// Communication management.
        const CM_SUP = 1 << 16;
        /// SNMP tunnelling.
        const SNMP_TUNNEL_SUP = 1 << 17;
        /// Reinitialization.
        const REINIT_SUP = 1 << 18;
        /// Device management.
        const DEVICE_MGMT_SUP = 1 << 19;
        /// Vendor class.
        const VENDOR_CLASS_SUP = 1 << 20;
        /// Directed-route notices.
        const DR_NOTICE_SUP = 1 << 21;
        /// Notices of capability mask changes.
        const CAP_MASK_NOTICE_SUP = 1 << 22;
        /// Boot management.
        const BOOT_MGMT_SUP = 1 << 23;
        /// Link round-trip latency.
        const LINK_LATENCY_SUP = 1 << 24;
        /// Client reregistration.
        const CLIENT_REG_SUP = 1 << 25;
        /// GIDs are derived from IP addresses (RoCE). A flag of Linux that is not in the InfiniBand specification.
        const IP_BASED_GIDS = 1 << 26;
    }
}

bitflags::bitflags! {
    /// `enum ibv_port_cap_flags2` (InfiniBand PortInfo:CapabilityMask2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct PortCapFlags2: u16 {
        /// The node description can be set.
        const SET_NODE_DESC_SUP = 1 << 0;
        /// Extended port information.
        const INFO_EXT_SUP = 1 << 1;
        /// Virtualization.
        const VIRT_SUP = 1 << 2;
        /// Switch port state table.
        const SWITCH_PORT_STATE_TABLE_SUP = 1 << 3;
        /// Link width 2x.
        const LINK_WIDTH_2X_SUP = 1 << 4;
        /// Link speed HDR.
        const LINK_SPEED_HDR_SUP = 1 << 5;
        /// Link speed NDR.
        const LINK_SPEED_NDR_SUP = 1 << 10;
        /// Extended speeds 2.
        const EXTENDED_SPEEDS2_SUP = 1 << 11;
        /// Link speed XDR.
        const LINK_SPEED_XDR_SUP = 1 << 12;
    }
}

bitflags::bitflags! {
    /// `flags` of a port (`enum ib_uverbs_query_port_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct PortFlags: u8 {
        /// Every address vector must have a global route (`IBV_QPF_GRH_REQUIRED`); set on RoCE.
        const GRH_REQUIRED = 1 << 0;
    }
}

/// `struct ibv_port_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Logical state.
    pub state: PortState,
    /// Largest MTU that the port supports.
    pub max_mtu: Mtu,
    /// MTU in effect; on Ethernet the largest code that fits the interface's MTU.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Capabilities.
    pub port_cap_flags: PortCapFlags,
    /// Longest message, in bytes.
    pub max_msg_sz: u32,
    /// Packets with a bad P_Key.
    pub bad_pkey_cntr: u32,
    /// Packets with a bad Q_Key.
    pub qkey_viol_cntr: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Base LID; 0 on Ethernet.
    pub lid: u16,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// LID mask control: the number of low bits of the LID that are path bits.
    pub lmc: u8,
    /// Number of virtual lanes, as a code (1: VL0, 2: VL0-1, 3: VL0-3, 4: VL0-7, 5: VL0-14).
    pub max_vl_num: u8,
    /// Service level of the subnet manager.
    pub sm_sl: u8,
    /// Subnet propagation delay: 4.096 us * 2^value.
    pub subnet_timeout: u8,
    /// The initialization that the subnet manager has done.
    pub init_type_reply: u8,
    /// Link width in use, one bit set (1: 1X, 2: 4X, 4: 8X, 8: 12X, 16: 2X).
    pub active_width: u8,
    /// Link speed per lane, one bit set (1: 2.5 Gb/s ... 128: NDR); higher speeds are reported as NDR here.
    pub active_speed: u8,
    /// Active speed, with codes for speeds above NDR; 0 if the kernel does not report it.
    pub active_speed_ex: u32,
    /// Physical state.
    pub phys_state: PhysState,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Flags.
    pub flags: PortFlags,
    /// More capabilities.
    pub port_cap_flags2: PortCapFlags2,
}

impl PortAttr {
    /// Link speed in units of 100 Mb/s: lanes times speed per lane (InfiniBand PortInfo codes), or `None` if either
    /// code is unknown.
    #[must_use]
    pub fn rate_100mbps(&self) -> Option<u32> {
        let lanes = match self.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => return None,
        };
        let speed = if self.active_speed_ex != 0 { self.active_speed_ex } else { self.active_speed.into() };
        let per_lane = match speed {
            1 => 25,
            2 => 50,
            // FDR10 is 10 Gb/s of data.
            4 | 8 => 100,
            16 => 140,
            32 => 250,
            64 => 500,
            128 => 1000,
            256 => 2000,
            _ => return None,
        };
        Some(lanes * per_lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_bytes_agree() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(Mtu(code).bytes(), Some(bytes));
            assert_eq!(Mtu::from_bytes(bytes), Some(Mtu(code)));
        }
        assert_eq!(Mtu(0).bytes(), None);
        assert_eq!(Mtu(6).bytes(), None);
        assert_eq!(Mtu(255).bytes(), None);
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::from_bytes(0), None);
    }

    #[test]
    fn an_unknown_code_prints_as_its_number() {
        assert_eq!(format!("{:?} {}", PortState(9), PortState(9)), "PortState(9) unknown (9)");
        assert_eq!(format!("{:?} {}", PortState::ACTIVE, PortState::ACTIVE), "ACTIVE active");
    }

    #[test]
    fn rate_is_lanes_times_speed() {
        let port = PortAttr { active_width: 2, active_speed: 32, ..PortAttr::default() };
        assert_eq!(port.rate_100mbps(), Some(1000));
        assert_eq!(PortAttr::default().rate_100mbps(), None);
    }
}
