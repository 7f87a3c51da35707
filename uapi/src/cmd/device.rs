// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on the device and on objects without queues: context, port, PD, XRC domain, completion channel.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::be::Be64;
use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Room of a device name with its NUL, bytes.
    pub const IB_DEVICE_NAME_MAX: usize = 64;
    /// QPs can be resized.
    pub const IB_UVERBS_DEVICE_RESIZE_MAX_WR: u64 = 1 << 0;
    /// Ports count bad P_Keys.
    pub const IB_UVERBS_DEVICE_BAD_PKEY_CNTR: u64 = 1 << 1;
    /// Ports count Q_Key violations.
    pub const IB_UVERBS_DEVICE_BAD_QKEY_CNTR: u64 = 1 << 2;
    /// Raw packet multicast.
    pub const IB_UVERBS_DEVICE_RAW_MULTI: u64 = 1 << 3;
    /// Automatic path migration.
    pub const IB_UVERBS_DEVICE_AUTO_PATH_MIG: u64 = 1 << 4;
    /// A QP's primary port can be changed.
    pub const IB_UVERBS_DEVICE_CHANGE_PHY_PORT: u64 = 1 << 5;
    /// The port of an address handle is checked against the QP's.
    pub const IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE: u64 = 1 << 6;
    /// Modify takes the current-state assumption.
    pub const IB_UVERBS_DEVICE_CURR_QP_STATE_MOD: u64 = 1 << 7;
    /// A port can be shut down.
    pub const IB_UVERBS_DEVICE_SHUTDOWN_PORT: u64 = 1 << 8;
    /// A port reports becoming active.
    pub const IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT: u64 = 1 << 10;
    /// The device has a system image GUID.
    pub const IB_UVERBS_DEVICE_SYS_IMAGE_GUID: u64 = 1 << 11;
    /// RC responders send RNR NAKs.
    pub const IB_UVERBS_DEVICE_RC_RNR_NAK_GEN: u64 = 1 << 12;
    /// SRQs can be resized.
    pub const IB_UVERBS_DEVICE_SRQ_RESIZE: u64 = 1 << 13;
    /// A CQ can notify after n completions.
    pub const IB_UVERBS_DEVICE_N_NOTIFY_CQ: u64 = 1 << 14;
    /// Memory windows.
    pub const IB_UVERBS_DEVICE_MEM_WINDOW: u64 = 1 << 17;
    /// Checksum offload on UD QPs (IPoIB).
    pub const IB_UVERBS_DEVICE_UD_IP_CSUM: u64 = 1 << 18;
    /// XRC transport.
    pub const IB_UVERBS_DEVICE_XRC: u64 = 1 << 20;
    /// Fast registration, local invalidation and send with invalidation.
    pub const IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS: u64 = 1 << 21;
    /// Type 2A windows.
    pub const IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A: u64 = 1 << 23;
    /// Type 2B windows.
    pub const IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B: u64 = 1 << 24;
    /// Checksum offload on RC QPs.
    pub const IB_UVERBS_DEVICE_RC_IP_CSUM: u64 = 1 << 25;
    /// Checksum offload on raw packet QPs; superseded by the raw packet capability.
    pub const IB_UVERBS_DEVICE_RAW_IP_CSUM: u64 = 1 << 26;
    /// Steering rules.
    pub const IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING: u64 = 1 << 29;
    /// FCS delivery on raw packet QPs; superseded by the raw packet capability.
    pub const IB_UVERBS_DEVICE_RAW_SCATTER_FCS: u64 = 1 << 34;
    /// Writes can be padded to full cache lines.
    pub const IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING: u64 = 1 << 36;
    /// RDMA flush to global visibility.
    pub const IB_UVERBS_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
    /// RDMA flush to persistence.
    pub const IB_UVERBS_DEVICE_FLUSH_PERSISTENT: u64 = 1 << 39;
    /// Atomic write of 8 bytes.
    pub const IB_UVERBS_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
    /// Confidential guest: DMA goes through bounce buffers, so user memory cannot be registered.
    pub const IB_UVERBS_DEVICE_CC_DMA_BOUNCE: u64 = 1 << 41;
    /// The VLAN tag can be stripped from received packets.
    pub const IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING: u32 = 1 << 0;
    /// The FCS can be delivered.
    pub const IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS: u32 = 1 << 1;
    /// Checksum offload.
    pub const IB_UVERBS_RAW_PACKET_CAP_IP_CSUM: u32 = 1 << 2;
    /// Packets can be held back while there is no receive.
    pub const IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP: u32 = 1 << 3;
    /// In `general_caps`: on-demand paging.
    pub const IB_UVERBS_ODP_SUPPORT: u64 = 1 << 0;
    /// In `general_caps`: a region over the whole address space.
    pub const IB_UVERBS_ODP_SUPPORT_IMPLICIT: u64 = 1 << 1;
    /// In a transport's capabilities: sends.
    pub const IB_UVERBS_ODP_SUPPORT_SEND: u32 = 1 << 0;
    /// In a transport's capabilities: receives.
    pub const IB_UVERBS_ODP_SUPPORT_RECV: u32 = 1 << 1;
    /// In a transport's capabilities: RDMA writes.
    pub const IB_UVERBS_ODP_SUPPORT_WRITE: u32 = 1 << 2;
    /// In a transport's capabilities: RDMA reads.
    pub const IB_UVERBS_ODP_SUPPORT_READ: u32 = 1 << 3;
    /// In a transport's capabilities: atomics.
    pub const IB_UVERBS_ODP_SUPPORT_ATOMIC: u32 = 1 << 4;
    /// In a transport's capabilities: receives from an SRQ.
    pub const IB_UVERBS_ODP_SUPPORT_SRQ_RECV: u32 = 1 << 5;
    /// In a transport's capabilities: RDMA flush.
    pub const IB_UVERBS_ODP_SUPPORT_FLUSH: u32 = 1 << 6;
    /// In a transport's capabilities: atomic write.
    pub const IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE: u32 = 1 << 7;
}

abi_structs! {
    /// Creates the context of this open file.
    pub struct ib_uverbs_get_context {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_get_context`].
    pub struct ib_uverbs_get_context_resp {
        /// File descriptor of the asynchronous events.
        pub async_fd: u32,
        /// Completion vectors of the device.
        pub num_comp_vectors: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Queries the device's attributes.
    pub struct ib_uverbs_query_device {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Device attributes of all kernels.
    pub struct ib_uverbs_query_device_resp {
        /// Firmware version, encoded by the driver.
        pub fw_ver: u64,
        /// GUID of the node.
        pub node_guid: Be64,
        /// GUID of the system that the node is part of.
        pub sys_image_guid: Be64,
        /// Longest memory region, bytes.
        pub max_mr_size: u64,
        /// Page sizes as a bit mask: bit n is 2^n bytes.
        pub page_size_cap: u64,
        /// Vendor id (OUI).
        pub vendor_id: u32,
        /// Part id, given by the vendor.
        pub vendor_part_id: u32,
        /// Hardware version, given by the vendor.
        pub hw_ver: u32,
        /// Queue pairs.
        pub max_qp: u32,
        /// Work requests in one queue.
        pub max_qp_wr: u32,
        /// `IB_UVERBS_DEVICE_*`, the low 32 bits.
        pub device_cap_flags: u32,
        /// Scatter/gather entries of one work request other than a read.
        pub max_sge: u32,
        /// Scatter entries of an RDMA read.
        pub max_sge_rd: u32,
        /// Completion queues.
        pub max_cq: u32,
        /// Entries of one completion queue.
        pub max_cqe: u32,
        /// Memory regions.
        pub max_mr: u32,
        /// Protection domains.
        pub max_pd: u32,
        /// Reads and atomics that one QP accepts at a time.
        pub max_qp_rd_atom: u32,
        /// The same limit for an end-to-end context (RD transport).
        pub max_ee_rd_atom: u32,
        /// Reads and atomics that the device accepts at a time.
        pub max_res_rd_atom: u32,
        /// Reads and atomics that one QP initiates at a time.
        pub max_qp_init_rd_atom: u32,
        /// The same limit for an end-to-end context (RD transport).
        pub max_ee_init_rd_atom: u32,
        /// The scope in which atomics are atomic, `IB_ATOMIC_*`.
        pub atomic_cap: u32,
        /// End-to-end contexts (RD transport).
        pub max_ee: u32,
        /// Reliable datagram domains (RD transport).
        pub max_rdd: u32,
        /// Memory windows.
        pub max_mw: u32,
        /// Raw IPv6 QPs.
        pub max_raw_ipv6_qp: u32,
        /// Raw Ethertype QPs.
        pub max_raw_ethy_qp: u32,
        /// Multicast groups.
        pub max_mcast_grp: u32,
        /// QPs in one multicast group.
        pub max_mcast_qp_attach: u32,
        /// QPs in all multicast groups.
        pub max_total_mcast_qp_attach: u32,
        /// Address handles.
        pub max_ah: u32,
        /// Fast memory regions; current kernels have none.
        pub max_fmr: u32,
        /// Mappings of one fast memory region.
        pub max_map_per_fmr: u32,
        /// Shared receive queues.
        pub max_srq: u32,
        /// Work requests in one SRQ.
        pub max_srq_wr: u32,
        /// Scatter entries of one SRQ receive.
        pub max_srq_sge: u32,
        /// Partition keys.
        pub max_pkeys: u16,
        /// Delay of its ACKs, 4.096 us * 2^n.
        pub local_ca_ack_delay: u8,
        /// Ports.
        pub phys_port_cnt: u8,
        /// Written as 0.
        pub reserved: [u8; 4],
    }

    /// Queries the device's attributes, with those added later.
    pub struct ib_uverbs_ex_query_device {
        /// Must be 0.
        pub comp_mask: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// On-demand paging by transport, `IB_UVERBS_ODP_SUPPORT_*`.
    #[c = "__typeof__(((struct ib_uverbs_odp_caps *)0)->per_transport_caps)"]
    pub struct ib_uverbs_odp_caps_per_transport_caps {
        /// Reliable connection.
        pub rc_odp_caps: u32,
        /// Unreliable connection.
        pub uc_odp_caps: u32,
        /// Unreliable datagram.
        pub ud_odp_caps: u32,
    }

    /// On-demand paging.
    pub struct ib_uverbs_odp_caps {
        /// `IB_UVERBS_ODP_SUPPORT` and `_IMPLICIT`.
        pub general_caps: u64,
        /// The operations of each transport on such memory.
        pub per_transport_caps: ib_uverbs_odp_caps_per_transport_caps,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Receive side scaling.
    pub struct ib_uverbs_rss_caps {
        /// QP types as a bit mask: bit n is type n.
        pub supported_qpts: u32,
        /// Receive indirection tables.
        pub max_rwq_indirection_tables: u32,
        /// Work queues in one table.
        pub max_rwq_indirection_table_size: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Tag matching.
    pub struct ib_uverbs_tm_caps {
        /// Longest rendezvous header, bytes.
        pub max_rndv_hdr_size: u32,
        /// Tags in one list.
        pub max_num_tags: u32,
        /// Bit 0: on RC.
        pub flags: u32,
        /// List operations outstanding.
        pub max_ops: u32,
        /// Scatter entries of one tag.
        pub max_sge: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Moderation of completion events.
    pub struct ib_uverbs_cq_moderation_caps {
        /// Maximum number of completions to wait for.
        pub max_cq_moderation_count: u16,
        /// Longest time to wait, microseconds.
        pub max_cq_moderation_period: u16,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Device attributes; an older kernel fills in a shorter prefix.
    pub struct ib_uverbs_ex_query_device_resp {
        /// The part shared with the older command.
        pub base: ib_uverbs_query_device_resp,
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes that this kernel filled in.
        pub response_length: u32,
        /// On-demand paging.
        pub odp_caps: ib_uverbs_odp_caps,
        /// Valid bits of a completion timestamp.
        pub timestamp_mask: u64,
        /// Frequency of the timestamp clock, kHz.
        pub hca_core_clock: u64,
        /// `IB_UVERBS_DEVICE_*`, all 64 bits.
        pub device_cap_flags_ex: u64,
        /// Receive side scaling.
        pub rss_caps: ib_uverbs_rss_caps,
        /// Work queues that are receive queues.
        pub max_wq_type_rq: u32,
        /// `IB_UVERBS_RAW_PACKET_CAP_*`.
        pub raw_packet_caps: u32,
        /// Tag matching.
        pub tm_caps: ib_uverbs_tm_caps,
        /// Moderation of completion events.
        pub cq_moderation_caps: ib_uverbs_cq_moderation_caps,
        /// Maximum device memory of one allocation, bytes.
        pub max_dm_size: u64,
        /// On-demand paging of XRC, `IB_UVERBS_ODP_SUPPORT_*`.
        pub xrc_odp_caps: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Queries a port's attributes.
    pub struct ib_uverbs_query_port {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Port, from 1.
        pub port_num: u8,
        /// Must be 0.
        pub reserved: [u8; 7],
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Port attributes of all kernels.
    pub struct ib_uverbs_query_port_resp {
        /// `IB_UVERBS_PCF_*`.
        pub port_cap_flags: u32,
        /// Longest message, bytes.
        pub max_msg_sz: u32,
        /// Packets with a bad P_Key.
        pub bad_pkey_cntr: u32,
        /// Packets with a bad Q_Key.
        pub qkey_viol_cntr: u32,
        /// Entries of the GID table.
        pub gid_tbl_len: u32,
        /// Entries of the P_Key table.
        pub pkey_tbl_len: u16,
        /// Base LID, host order.
        pub lid: u16,
        /// LID of the subnet manager, host order.
        pub sm_lid: u16,
        /// `IB_PORT_*`.
        pub state: u8,
        /// `IB_MTU_*`, the largest.
        pub max_mtu: u8,
        /// `IB_MTU_*`, the one in use.
        pub active_mtu: u8,
        /// Low LID bits that are path bits.
        pub lmc: u8,
        /// Virtual lanes, IBA encoding.
        pub max_vl_num: u8,
        /// Service level of the subnet manager.
        pub sm_sl: u8,
        /// Propagation delay in the subnet, 4.096 us * 2^n.
        pub subnet_timeout: u8,
        /// Initialisation that the subnet manager did.
        pub init_type_reply: u8,
        /// Link width: 1, 2, 4, 8, 16 for 1X, 4X, 8X, 12X, 2X.
        pub active_width: u8,
        /// Lane speed, a bit of the IBA encoding; what does not fit is in `active_speed_ex`.
        pub active_speed: u8,
        /// Physical state, IBA encoding.
        pub phys_state: u8,
        /// `IB_LINK_LAYER_*`.
        pub link_layer: u8,
        /// `IB_UVERBS_QPF_*`.
        pub flags: u8,
        /// Written as 0.
        pub reserved: u8,
    }

    /// Allocates a protection domain.
    pub struct ib_uverbs_alloc_pd {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_alloc_pd`].
    pub struct ib_uverbs_alloc_pd_resp {
        /// Protection domain.
        pub pd_handle: u32,
        /// Driver-private tail.
        pub driver_data: [u32; 0],
    }

    /// Frees a protection domain.
    pub struct ib_uverbs_dealloc_pd {
        /// Protection domain.
        pub pd_handle: u32,
    }

    /// Opens an XRC domain.
    pub struct ib_uverbs_open_xrcd {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// File whose inode names the domain; all ones for a private one.
        pub fd: u32,
        /// `O_CREAT` and `O_EXCL`.
        pub oflags: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_open_xrcd`].
    pub struct ib_uverbs_open_xrcd_resp {
        /// XRC domain.
        pub xrcd_handle: u32,
        /// Driver-private tail.
        pub driver_data: [u32; 0],
    }

    /// Closes an XRC domain.
    pub struct ib_uverbs_close_xrcd {
        /// XRC domain.
        pub xrcd_handle: u32,
    }

    /// Creates a completion channel.
    pub struct ib_uverbs_create_comp_channel {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
    }

    /// Response to [`ib_uverbs_create_comp_channel`].
    pub struct ib_uverbs_create_comp_channel_resp {
        /// File descriptor of the channel.
        pub fd: u32,
    }
}
