// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structs, flags and numbers of the ioctl methods.
//!
//! Facts from `<rdma/ib_user_ioctl_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

pub(crate) mod kern;

pub use kern::*;

use crate::cmd::ib_uverbs_query_port_resp;
use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// The kernel ignores optional access flags that it does not know.
    pub const IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1 << 0;
    /// The kernel checks driver-private data strictly.
    pub const IB_UVERBS_CORE_SUPPORT_ROBUST_UDATA: u64 = 1 << 1;

    /// Lowest access flag that a kernel may ignore.
    pub const IB_UVERBS_ACCESS_OPTIONAL_FIRST: u32 = 1 << 20;
    /// Highest access flag that a kernel may ignore.
    pub const IB_UVERBS_ACCESS_OPTIONAL_LAST: u32 = 1 << 29;
    /// The device may write on behalf of local work requests.
    pub const IB_UVERBS_ACCESS_LOCAL_WRITE: u32 = 1 << 0;
    /// Peers may write; needs local write.
    pub const IB_UVERBS_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
    /// Peers may read.
    pub const IB_UVERBS_ACCESS_REMOTE_READ: u32 = 1 << 2;
    /// Peers may execute atomics; needs local write.
    pub const IB_UVERBS_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
    /// Windows may be bound.
    pub const IB_UVERBS_ACCESS_MW_BIND: u32 = 1 << 4;
    /// Addresses count from 0.
    pub const IB_UVERBS_ACCESS_ZERO_BASED: u32 = 1 << 5;
    /// Pages are faulted in, not pinned.
    pub const IB_UVERBS_ACCESS_ON_DEMAND: u32 = 1 << 6;
    /// On demand, with huge pages.
    pub const IB_UVERBS_ACCESS_HUGETLB: u32 = 1 << 7;
    /// Peers may flush to global visibility.
    pub const IB_UVERBS_ACCESS_FLUSH_GLOBAL: u32 = 1 << 8;
    /// Peers may flush to persistence.
    pub const IB_UVERBS_ACCESS_FLUSH_PERSISTENT: u32 = 1 << 9;
    /// PCIe may reorder the accesses; optional.
    pub const IB_UVERBS_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;
    /// All flags that a kernel may ignore.
    pub const IB_UVERBS_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff00000;

    /// Plain SRQ.
    pub const IB_UVERBS_SRQT_BASIC: u32 = 0;
    /// SRQ of the XRC transport.
    pub const IB_UVERBS_SRQT_XRC: u32 = 1;
    /// SRQ with tag matching.
    pub const IB_UVERBS_SRQT_TM: u32 = 2;
    /// A receive queue.
    pub const IB_UVERBS_WQT_RQ: u32 = 0;
    /// Strips the VLAN tag.
    pub const IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING: u32 = 1 << 0;
    /// Delivers the FCS.
    pub const IB_UVERBS_WQ_FLAGS_SCATTER_FCS: u32 = 1 << 1;
    /// Holds packets back while there is no receive.
    pub const IB_UVERBS_WQ_FLAGS_DELAY_DROP: u32 = 1 << 2;
    /// Pads writes to full cache lines.
    pub const IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING: u32 = 1 << 3;

    /// Reliable connection.
    pub const IB_UVERBS_QPT_RC: u8 = 2;
    /// Unreliable connection.
    pub const IB_UVERBS_QPT_UC: u8 = 3;
    /// Unreliable datagram.
    pub const IB_UVERBS_QPT_UD: u8 = 4;
    /// Raw Ethernet packets.
    pub const IB_UVERBS_QPT_RAW_PACKET: u8 = 8;
    /// XRC initiator.
    pub const IB_UVERBS_QPT_XRC_INI: u8 = 9;
    /// XRC target.
    pub const IB_UVERBS_QPT_XRC_TGT: u8 = 10;
    /// A type that the driver-private data specify.
    pub const IB_UVERBS_QPT_DRIVER: u8 = 255;

    /// Own multicast packets are not looped back.
    pub const IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 1;
    /// Delivers the FCS.
    pub const IB_UVERBS_QP_CREATE_SCATTER_FCS: u32 = 1 << 8;
    /// Strips the VLAN tag.
    pub const IB_UVERBS_QP_CREATE_CVLAN_STRIPPING: u32 = 1 << 9;
    /// Pads writes to full cache lines.
    pub const IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING: u32 = 1 << 11;
    /// Every send completes with a CQE.
    pub const IB_UVERBS_QP_CREATE_SQ_SIG_ALL: u32 = 1 << 12;

    /// Port capability: runs the subnet manager.
    pub const IB_UVERBS_PCF_SM: u32 = 1 << 1;
    /// Port capability: notices.
    pub const IB_UVERBS_PCF_NOTICE_SUP: u32 = 1 << 2;
    /// Port capability: traps.
    pub const IB_UVERBS_PCF_TRAP_SUP: u32 = 1 << 3;
    /// Port capability: optional inter-packet delays.
    pub const IB_UVERBS_PCF_OPT_IPD_SUP: u32 = 1 << 4;
    /// Port capability: automatic path migration.
    pub const IB_UVERBS_PCF_AUTO_MIGR_SUP: u32 = 1 << 5;
    /// Port capability: SL to VL mapping.
    pub const IB_UVERBS_PCF_SL_MAP_SUP: u32 = 1 << 6;
    /// Port capability: M_Key in non-volatile memory.
    pub const IB_UVERBS_PCF_MKEY_NVRAM: u32 = 1 << 7;
    /// Port capability: P_Keys in non-volatile memory.
    pub const IB_UVERBS_PCF_PKEY_NVRAM: u32 = 1 << 8;
    /// Port capability: LED information.
    pub const IB_UVERBS_PCF_LED_INFO_SUP: u32 = 1 << 9;
    /// Port capability: the subnet manager is disabled.
    pub const IB_UVERBS_PCF_SM_DISABLED: u32 = 1 << 10;
    /// Port capability: system image GUID.
    pub const IB_UVERBS_PCF_SYS_IMAGE_GUID_SUP: u32 = 1 << 11;
    /// Port capability: P_Key trap of switch external ports.
    pub const IB_UVERBS_PCF_PKEY_SW_EXT_PORT_TRAP_SUP: u32 = 1 << 12;
    /// Port capability: extended speeds.
    pub const IB_UVERBS_PCF_EXTENDED_SPEEDS_SUP: u32 = 1 << 14;
    /// Port capability: communication management.
    pub const IB_UVERBS_PCF_CM_SUP: u32 = 1 << 16;
    /// Port capability: SNMP tunnelling.
    pub const IB_UVERBS_PCF_SNMP_TUNNEL_SUP: u32 = 1 << 17;
    /// Port capability: reinitialisation.
    pub const IB_UVERBS_PCF_REINIT_SUP: u32 = 1 << 18;
    /// Port capability: device management.
    pub const IB_UVERBS_PCF_DEVICE_MGMT_SUP: u32 = 1 << 19;
    /// Port capability: vendor class.
    pub const IB_UVERBS_PCF_VENDOR_CLASS_SUP: u32 = 1 << 20;
    /// Port capability: directed-route notices.
    pub const IB_UVERBS_PCF_DR_NOTICE_SUP: u32 = 1 << 21;
    /// Port capability: capability mask notices.
    pub const IB_UVERBS_PCF_CAP_MASK_NOTICE_SUP: u32 = 1 << 22;
    /// Port capability: boot management.
    pub const IB_UVERBS_PCF_BOOT_MGMT_SUP: u32 = 1 << 23;
    /// Port capability: link latency measurement.
    pub const IB_UVERBS_PCF_LINK_LATENCY_SUP: u32 = 1 << 24;
    /// Port capability: client reregistration.
    pub const IB_UVERBS_PCF_CLIENT_REG_SUP: u32 = 1 << 25;
    /// The port's GIDs are IP addresses; the kernel's own bit, not the IBA's.
    pub const IB_UVERBS_PCF_IP_BASED_GIDS: u32 = 1 << 26;
    /// Port capability: table of link speeds and widths.
    pub const IB_UVERBS_PCF_LINK_SPEED_WIDTH_TABLE_SUP: u32 = 1 << 27;
    /// Port capability: table of vendor-specific MADs.
    pub const IB_UVERBS_PCF_VENDOR_SPECIFIC_MADS_TABLE_SUP: u32 = 1 << 28;
    /// Port capability: suppression of multicast P_Key traps.
    pub const IB_UVERBS_PCF_MCAST_PKEY_TRAP_SUPPRESSION_SUP: u32 = 1 << 29;
    /// Port capability: multicast FDB top.
    pub const IB_UVERBS_PCF_MCAST_FDB_TOP_SUP: u32 = 1 << 30;
    /// Port capability: hierarchy information.
    pub const IB_UVERBS_PCF_HIERARCHY_INFO_SUP: u32 = 1 << 31;
    /// Port flag: every packet needs a GRH.
    pub const IB_UVERBS_QPF_GRH_REQUIRED: u8 = 1 << 0;

    /// Element id: [`ib_uverbs_flow_action_esp_keymat_aes_gcm`].
    pub const IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM: u8 = 0;
    /// Initialisation vectors count up.
    pub const IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ: u32 = 0;
    /// Element id: no replay protection.
    pub const IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE: u8 = 0;
    /// Element id: [`ib_uverbs_flow_action_esp_replay_bmp`].
    pub const IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP: u8 = 1;
    /// Only the cryptography is done by the device (default).
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: u32 = 0;
    /// The device executes all of ESP.
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD: u32 = 1 << 0;
    /// Tunnel mode (default).
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL: u32 = 0;
    /// Transport mode.
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT: u32 = 1 << 1;
    /// Decrypts (default).
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT: u32 = 0;
    /// Encrypts.
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT: u32 = 1 << 2;
    /// The extended sequence number starts a new window.
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW: u32 = 1 << 3;

    /// Values that the driver has cached are acceptable.
    pub const IB_UVERBS_READ_COUNTERS_PREFER_CACHED: u32 = 1 << 0;
    /// Fault pages in for reading.
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: u32 = 0;
    /// Fault pages in for writing.
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: u32 = 1;
    /// Map the pages that are present, without faulting.
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: u32 = 2;
    /// Complete the operation before the call returns.
    pub const IB_UVERBS_ADVISE_MR_FLAG_FLUSH: u32 = 1 << 0;

    /// No driver.
    pub const RDMA_DRIVER_UNKNOWN: u32 = 0;
    /// mlx5_ib.
    pub const RDMA_DRIVER_MLX5: u32 = 1;
    /// mlx4_ib.
    pub const RDMA_DRIVER_MLX4: u32 = 2;
    /// iw_cxgb3 (removed).
    pub const RDMA_DRIVER_CXGB3: u32 = 3;
    /// iw_cxgb4.
    pub const RDMA_DRIVER_CXGB4: u32 = 4;
    /// ib_mthca.
    pub const RDMA_DRIVER_MTHCA: u32 = 5;
    /// bnxt_re.
    pub const RDMA_DRIVER_BNXT_RE: u32 = 6;
    /// ocrdma.
    pub const RDMA_DRIVER_OCRDMA: u32 = 7;
    /// iw_nes (removed).
    pub const RDMA_DRIVER_NES: u32 = 8;
    /// i40iw (removed); irdma uses the number now.
    pub const RDMA_DRIVER_I40IW: u32 = 9;
    /// irdma.
    pub const RDMA_DRIVER_IRDMA: u32 = 9;
    /// vmw_pvrdma.
    pub const RDMA_DRIVER_VMW_PVRDMA: u32 = 10;
    /// qedr.
    pub const RDMA_DRIVER_QEDR: u32 = 11;
    /// hns_roce.
    pub const RDMA_DRIVER_HNS: u32 = 12;
    /// usnic_verbs.
    pub const RDMA_DRIVER_USNIC: u32 = 13;
    /// rdma_rxe.
    pub const RDMA_DRIVER_RXE: u32 = 14;
    /// hfi1.
    pub const RDMA_DRIVER_HFI1: u32 = 15;
    /// ib_qib.
    pub const RDMA_DRIVER_QIB: u32 = 16;
    /// efa.
    pub const RDMA_DRIVER_EFA: u32 = 17;
    /// siw.
    pub const RDMA_DRIVER_SIW: u32 = 18;
    /// erdma.
    pub const RDMA_DRIVER_ERDMA: u32 = 19;
    /// mana_ib.
    pub const RDMA_DRIVER_MANA: u32 = 20;
    /// ionic_rdma.
    pub const RDMA_DRIVER_IONIC: u32 = 21;

    /// InfiniBand.
    pub const IB_UVERBS_GID_TYPE_IB: u32 = 0;
    /// RoCE over Ethernet.
    pub const IB_UVERBS_GID_TYPE_ROCE_V1: u32 = 1;
    /// RoCE over UDP.
    pub const IB_UVERBS_GID_TYPE_ROCE_V2: u32 = 2;
    /// A dma-buf.
    pub const IB_UVERBS_BUFFER_TYPE_DMABUF: u32 = 0;
    /// Memory of the caller.
    pub const IB_UVERBS_BUFFER_TYPE_VA: u32 = 1;
}

abi_structs! {
    /// Port attributes.
    pub struct ib_uverbs_query_port_resp_ex {
        /// The attributes of the write command.
        pub legacy_resp: ib_uverbs_query_port_resp,
        /// The IBA's CapabilityMask2.
        pub port_cap_flags2: u16,
        /// Written as 0.
        pub reserved: [u8; 2],
        /// Lane speed if it does not fit in 8 bits, otherwise 0. Older kernels have reserved bytes here and write 0.
        pub active_speed_ex: u32,
    }

    /// Capacities of a queue pair: requested, or returned.
    pub struct ib_uverbs_qp_cap {
        /// Send work requests that the queue holds.
        pub max_send_wr: u32,
        /// Receive work requests that the queue holds.
        pub max_recv_wr: u32,
        /// Gather entries of one send.
        pub max_send_sge: u32,
        /// Scatter entries of one receive.
        pub max_recv_sge: u32,
        /// Bytes that a send may carry inline.
        pub max_inline_data: u32,
    }

    /// One GID.
    pub struct ib_uverbs_gid_entry {
        /// The 16 bytes in wire order.
        pub gid: [u64; 2],
        /// Index in the port's table.
        pub gid_index: u32,
        /// Port, from 1.
        pub port_num: u32,
        /// `IB_UVERBS_GID_TYPE_*`.
        pub gid_type: u32,
        /// Index of the network interface, 0 if none.
        pub netdev_ifindex: u32,
    }

    /// Memory for a ring, which the caller provides. Kernels of 2026.
    pub struct ib_uverbs_buffer_desc {
        /// `IB_UVERBS_BUFFER_TYPE_*`.
        #[c = "type"]
        pub r#type: u32,
        /// The dma-buf, if it is one.
        pub fd: i32,
        /// Flags that the kernel must support; none is defined.
        pub flags: u32,
        /// Flags that the kernel may ignore; none is defined.
        pub optional_flags: u32,
        /// Address, or offset in the dma-buf.
        pub addr: u64,
        /// Length in bytes.
        pub length: u64,
    }

    /// AES-GCM key material.
    pub struct ib_uverbs_flow_action_esp_keymat_aes_gcm {
        /// Initialisation vector.
        pub iv: u64,
        /// `IB_UVERBS_FLOW_ACTION_IV_ALGO_*`.
        pub iv_algo: u32,
        /// Salt.
        pub salt: u32,
        /// Length of the integrity check value, bytes.
        pub icv_len: u32,
        /// Length of the key, bytes.
        pub key_len: u32,
        /// The key.
        pub aes_key: [u32; 8],
    }

    /// Replay protection with a bitmap.
    pub struct ib_uverbs_flow_action_esp_replay_bmp {
        /// Size of the window.
        pub size: u32,
    }

    /// One header of the tunnel encapsulation; they form a list.
    pub struct ib_uverbs_flow_action_esp_encap {
        /// Address of a `ib_uverbs_flow_*_filter`.
        pub val_ptr: u64,
        /// Address of the next one, 0 at the end.
        pub next_ptr: u64,
        /// Bytes of the filter.
        pub len: u16,
        /// `IB_FLOW_SPEC_*`.
        #[c = "type"]
        pub r#type: u16,
        /// Padding of the C struct.
        pub _pad: [u8; 4],
    }

    /// Attributes of an ESP action.
    pub struct ib_uverbs_flow_action_esp {
        /// Security parameters index.
        pub spi: u32,
        /// Sequence number.
        pub seq: u32,
        /// Padding for traffic flow confidentiality.
        pub tfc_pad: u32,
        /// `IB_UVERBS_FLOW_ACTION_ESP_FLAGS_*`.
        pub flags: u32,
        /// Number of packets after which the action expires.
        pub hard_limit_pkts: u64,
    }
}
