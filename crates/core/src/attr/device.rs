// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ibv_device_attr` and `struct ibv_device_attr_ex`: the attributes of a device (ibv_query_device_ex(3)).
//!
//! Of the extended part, on-demand paging, RSS (partly), raw packets, tag matching, CQ moderation, timestamps and
//! device memory come from the kernel's uverbs; TSO, packet pacing, PCI atomics and the hash part of RSS come from
//! the driver's private answer, so a driver fills them in.

open_values! {
    /// `enum ibv_atomic_cap`: the accesses with respect to which the device's atomics are atomic.
    AtomicCap(u32), "IBV_ATOMIC_" {
        NONE = 0 "none",
        HCA = 1 "among the QPs of the device",
        GLOB = 2 "with the CPUs, too",
    }
}

bitflags::bitflags! {
    /// `enum ibv_device_cap_flags`, with the bits above 31, which only the extended query reports.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct DeviceCapFlags: u64 {
        /// A QP's `max_send_wr` and `max_recv_wr` can be changed.
        const RESIZE_MAX_WR = 1 << 0;
        /// Counts bad P_Keys.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Counts bad Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packet multicast.
        const RAW_MULTI = 1 << 3;
        /// Automatic path migration.
        const AUTO_PATH_MIG = 1 << 4;
        /// The port of a QP can be changed.
        const CHANGE_PHY_PORT = 1 << 5;
        /// An address handle is checked against the port of the QP.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// `modify_qp` takes a current state.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// Ports can be shut down.
        const SHUTDOWN_PORT = 1 << 8;
        /// `init_type` of a port can be set.
        const INIT_TYPE = 1 << 9;
        /// Raises an event when a port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// Has a system image GUID.
        const SYS_IMAGE_GUID = 1 << 11;
        /// RC QPs answer "receiver not ready".
        const RC_RNR_NAK_GEN = 1 << 12;
        /// SRQs can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// A CQ can notify after N completions.
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Checksum offload on UD QPs.
        const UD_IP_CSUM = 1 << 18;
        /// XRC.
        const XRC = 1 << 20;
        /// Send with invalidate, local invalidate.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows of type 2B.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Checksum offload on RC QPs.
        const RC_IP_CSUM = 1 << 25;
        /// Checksum offload on raw packet QPs.
        const RAW_IP_CSUM = 1 << 26;
        /// Flow steering.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// Raw packet receives keep the FCS.
        const RAW_SCATTER_FCS = 1 << 34;
        /// PCI writes can be padded to a cache line.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// Flush to global visibility (rxe since 6.2).
        const FLUSH_GLOBAL = 1 << 38;
        /// Flush to persistence (rxe since 6.2).
        const FLUSH_PERSISTENT = 1 << 39;
        /// Atomic write (rxe since 6.2).
        const ATOMIC_WRITE = 1 << 40;
    }
}

bitflags::bitflags! {
    /// `enum ibv_odp_general_caps`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct OdpGeneralCaps: u64 {
        /// On-demand paging.
        const SUPPORT = 1 << 0;
        /// A region over the whole address space.
        const SUPPORT_IMPLICIT = 1 << 1;
    }
}

bitflags::bitflags! {
    /// `enum ibv_odp_transport_cap_bits`: operations that may touch on-demand regions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct OdpTransportCaps: u32 {
        /// Sends.
        const SEND = 1 << 0;
        /// Receives.
        const RECV = 1 << 1;
        /// RDMA writes.
        const WRITE = 1 << 2;
        /// RDMA reads.
        const READ = 1 << 3;
        /// Atomics.
        const ATOMIC = 1 << 4;
        /// Receives of an SRQ.
        const SRQ_RECV = 1 << 5;
        /// Flushes.
        const FLUSH = 1 << 6;
        /// Atomic writes.
        const ATOMIC_WRITE = 1 << 7;
    }
}

/// `struct ibv_odp_caps` and `xrc_odp_caps`: on-demand paging per transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OdpCaps {
    /// General capabilities.
    pub general_caps: OdpGeneralCaps,
    /// On RC.
    pub rc_odp_caps: OdpTransportCaps,
    /// On UC.
    pub uc_odp_caps: OdpTransportCaps,
    /// On UD.
    pub ud_odp_caps: OdpTransportCaps,
    /// On XRC.
    pub xrc_odp_caps: OdpTransportCaps,
}

/// `struct ibv_tso_caps`: TCP segmentation. From the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TsoCaps {
    /// Longest payload of one WR in bytes; 0 if the device has no segmentation.
    pub max_tso: u32,
    /// Bit `1 << qp_type` for each QP type that has it.
    pub supported_qpts: u32,
}

/// `struct ibv_rss_caps`: spreading of received packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RssCaps {
    /// Bit `1 << qp_type` for each QP type that has it.
    pub supported_qpts: u32,
    /// Indirection tables.
    pub max_rwq_indirection_tables: u32,
    /// Entries of one table.
    pub max_rwq_indirection_table_size: u32,
    /// `enum ibv_rx_hash_fields`. From the driver.
    pub rx_hash_fields_mask: u64,
    /// `enum ibv_rx_hash_function_flags`. From the driver.
    pub rx_hash_function: u8,
}

/// `struct ibv_packet_pacing_caps`: rate limits of QPs. From the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketPacingCaps {
    /// Lowest rate, in kb/s.
    pub qp_rate_limit_min: u32,
    /// Highest rate, in kb/s.
    pub qp_rate_limit_max: u32,
    /// Bit `1 << qp_type` for each QP type that has it.
    pub supported_qpts: u32,
}

bitflags::bitflags! {
    /// `enum ibv_raw_packet_caps`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct RawPacketCaps: u32 {
        /// The VLAN tag can be stripped and reported in the completion.
        const CVLAN_STRIPPING = 1 << 0;
        /// The FCS can be kept.
        const SCATTER_FCS = 1 << 1;
        /// Checksum offload.
        const IP_CSUM = 1 << 2;
        /// A full receive queue can delay drops.
        const DELAY_DROP = 1 << 3;
    }
}

/// `struct ibv_tm_caps`: tag matching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TmCaps {
    /// Longest rendezvous request header, in bytes.
    pub max_rndv_hdr_size: u32,
    /// Tagged buffers in the list of one SRQ.
    pub max_num_tags: u32,
    /// `enum ibv_tm_cap_flags`: bit 0 means on RC.
    pub flags: u32,
    /// Outstanding list operations.
    pub max_ops: u32,
    /// SGEs of a tagged buffer.
    pub max_sge: u32,
}

/// `struct ibv_cq_moderation_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqModerationCaps {
    /// Maximum number of completions per event; 0 if the device has no moderation.
    pub max_cq_count: u16,
    /// Longest delay of an event, in microseconds.
    pub max_cq_period: u16,
}

/// `struct ibv_pci_atomic_caps`: atomics of the device over PCI; each a mask of sizes (1: 4, 2: 8, 4: 16 bytes).
/// From the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciAtomicCaps {
    /// Fetch and add.
    pub fetch_add: u16,
    /// Swap.
    pub swap: u16,
    /// Compare and swap.
    pub compare_swap: u16,
}

/// `struct ibv_device_attr` and its extension. Counts are those of the kernel; C's `int` fields are unsigned here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version as a number in the driver's format (sysfs `fw_ver` has the text).
    pub fw_ver: u64,
    /// Node GUID, host order.
    pub node_guid: u64,
    /// System image GUID, host order.
    pub sys_image_guid: u64,
    /// Longest region, in bytes.
    pub max_mr_size: u64,
    /// Mask of page sizes that the device can use.
    pub page_size_cap: u64,
    /// Vendor (an OUI).
    pub vendor_id: u32,
    /// Part.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// QPs.
    pub max_qp: u32,
    /// Outstanding WRs of one work queue.
    pub max_qp_wr: u32,
    /// Capabilities; the upper half is 0 if the kernel has only the legacy query.
    pub device_cap_flags: DeviceCapFlags,
    /// SGEs of a WR: the smaller of send and receive.
    pub max_sge: u32,
    /// SGEs of an RDMA read.
    pub max_sge_rd: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// Regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// RDMA reads and atomics that one QP can serve at once (the limit of `max_dest_rd_atomic`).
    pub max_qp_rd_atom: u32,
    /// The same limit for an EE context.
    pub max_ee_rd_atom: u32,
    /// Resources for RDMA reads and atomics of the whole device.
    pub max_res_rd_atom: u32,
    /// RDMA reads and atomics that one QP can have outstanding (the limit of `max_rd_atomic`).
    pub max_qp_init_rd_atom: u32,
    /// The same limit for an EE context.
    pub max_ee_init_rd_atom: u32,
    /// Atomicity.
    pub atomic_cap: AtomicCap,
    /// EE contexts.
    pub max_ee: u32,
    /// Reliable datagram domains.
    pub max_rdd: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Raw IPv6 QPs.
    pub max_raw_ipv6_qp: u32,
    /// Raw Ethertype QPs.
    pub max_raw_ethy_qp: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// QPs of one multicast group.
    pub max_mcast_qp_attach: u32,
    /// QPs attached to multicast groups in all.
    pub max_total_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Fast memory regions (always 0 on current kernels).
    pub max_fmr: u32,
    /// Maps of one fast memory region before an unmap.
    pub max_map_per_fmr: u32,
    /// SRQs.
    pub max_srq: u32,
    /// WRs of one SRQ.
    pub max_srq_wr: u32,
    /// SGEs of a WR of an SRQ.
    pub max_srq_sge: u32,
    /// Partitions.
    pub max_pkeys: u16,
    /// Delay of the device's acknowledgements: 4.096 us * 2^value.
    pub local_ca_ack_delay: u8,
    /// Physical ports; for a device with more than 255 see [`DeviceAttr::phys_port_cnt_ex`].
    pub phys_port_cnt: u8,
    /// Physical ports, all of them.
    pub phys_port_cnt_ex: u32,
    /// Whether the kernel reported the extended attributes below. If not, only the legacy query succeeded.
    pub extended: bool,
    /// On-demand paging.
    pub odp_caps: OdpCaps,
    /// Valid bits of a completion timestamp; 0 if the device has no timestamps.
    pub completion_timestamp_mask: u64,
    /// Frequency of the device's clock, in kHz; 0 if unknown.
    pub hca_core_clock: u64,
    /// Segmentation.
    pub tso_caps: TsoCaps,
    /// Spreading of received packets.
    pub rss_caps: RssCaps,
    /// Work queues of type RQ.
    pub max_wq_type_rq: u32,
    /// Rate limits.
    pub packet_pacing_caps: PacketPacingCaps,
    /// Raw packets.
    pub raw_packet_caps: RawPacketCaps,
    /// Tag matching.
    pub tm_caps: TmCaps,
    /// CQ moderation.
    pub cq_mod_caps: CqModerationCaps,
    /// Device memory, in bytes.
    pub max_dm_size: u64,
    /// PCI atomics.
    pub pci_atomic_caps: PciAtomicCaps,
}
