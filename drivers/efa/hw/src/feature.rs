// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of the admin queue about the device as a whole: features, counters, the machine; and groups of asynchronous events.
//!
//! Facts from `efa_admin_cmds_defs.h`, as in [`cmd`](crate::cmd).

use crate::admin::{AcqCommonDesc, AqCommonDesc, CtrlBuffInfo};
use uverbs_uapi::layout::{Bytes, abi_consts, abi_structs};

abi_consts! {
    /// Feature: [`DeviceAttr`].
    pub const EFA_ADMIN_DEVICE_ATTR: u8 = 1;
    /// Feature: [`AenqConfig`].
    pub const EFA_ADMIN_AENQ_CONFIG: u8 = 2;
    /// Feature: [`NetworkAttr`].
    pub const EFA_ADMIN_NETWORK_ATTR: u8 = 3;
    /// Feature: [`QueueAttr1`]. Linux has it as `EFA_ADMIN_QUEUE_ATTR`.
    pub const EFA_ADMIN_QUEUE_ATTR_1: u8 = 4;
    /// Feature: [`HwHints`].
    pub const EFA_ADMIN_HW_HINTS: u8 = 5;
    /// Feature: [`HostInfo`].
    pub const EFA_ADMIN_HOST_INFO: u8 = 6;
    /// Feature: [`EventQueueAttr`]. Newer devices.
    pub const EFA_ADMIN_EVENT_QUEUE_ATTR: u8 = 7;
    /// Feature: [`QueueAttr2`]. Newer devices.
    pub const EFA_ADMIN_QUEUE_ATTR_2: u8 = 9;

    /// Counters: [`BasicStats`].
    pub const EFA_ADMIN_GET_STATS_TYPE_BASIC: u8 = 0;
    /// Counters: [`MessagesStats`].
    pub const EFA_ADMIN_GET_STATS_TYPE_MESSAGES: u8 = 1;
    /// Counters: [`RdmaReadStats`].
    pub const EFA_ADMIN_GET_STATS_TYPE_RDMA_READ: u8 = 2;
    /// Counters: [`RdmaWriteStats`]. Newer devices.
    pub const EFA_ADMIN_GET_STATS_TYPE_RDMA_WRITE: u8 = 3;
    /// Counters: [`NetworkStats`]. Newer devices.
    pub const EFA_ADMIN_GET_STATS_TYPE_NETWORK: u8 = 4;
    /// Counters of the device.
    pub const EFA_ADMIN_GET_STATS_SCOPE_ALL: u8 = 0;
    /// Counters of a queue.
    pub const EFA_ADMIN_GET_STATS_SCOPE_QUEUE: u8 = 1;

    /// [`DeviceAttr::device_caps`]: RDMA read.
    pub const EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_RDMA_READ_MASK: u32 = 1;
    /// [`DeviceAttr::device_caps`]: the retries of a message that found no receive can be set.
    pub const EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_RNR_RETRY_MASK: u32 = 1 << 1;
    /// [`DeviceAttr::device_caps`]: 128 bytes at an aligned address are written at once.
    pub const EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_DATA_POLLING_128_MASK: u32 = 1 << 2;
    /// [`DeviceAttr::device_caps`]: RDMA write.
    pub const EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_RDMA_WRITE_MASK: u32 = 1 << 3;
    /// [`DeviceAttr::device_caps`]: a write with immediate data can do without a receive.
    pub const EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_UNSOLICITED_WRITE_RECV_MASK: u32 = 1 << 4;

    /// Events: the device has failed.
    pub const EFA_ADMIN_FATAL_ERROR: u16 = 1;
    /// Events: warnings.
    pub const EFA_ADMIN_WARNING: u16 = 2;
    /// Events: notifications.
    pub const EFA_ADMIN_NOTIFICATION: u16 = 3;
    /// Events: the device is alive.
    pub const EFA_ADMIN_KEEP_ALIVE: u16 = 4;
    /// The number of groups.
    pub const EFA_ADMIN_AENQ_GROUPS_NUM: u16 = 5;

    /// [`HostInfo::os_type`]: Linux.
    pub const EFA_ADMIN_OS_LINUX: u32 = 0;
    /// [`HostInfo::flags`]: the driver is that of the kernel's source.
    pub const EFA_ADMIN_HOST_INFO_INTREE_MASK: u32 = 1;
    /// [`HostInfo::flags`]: the driver can register memory of GPUs.
    pub const EFA_ADMIN_HOST_INFO_GDR_MASK: u32 = 1 << 1;
}

abi_structs! {
    /// Asks for counters.
    #[c = "struct efa_admin_aq_get_stats_cmd"]
    pub struct GetStatsCmd: 20 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// A [`CtrlBuffInfo`] of a buffer, or 0.
        pub u: [u32; 3] = 4,
        /// `EFA_ADMIN_GET_STATS_TYPE_*`.
        #[c = "type"]
        pub stats_type: u8 = 16,
        /// `EFA_ADMIN_GET_STATS_SCOPE_*`.
        pub scope: u8 = 17,
        /// The queue.
        pub scope_modifier: u16 = 18,
    }

    /// Counters of packets.
    #[c = "struct efa_admin_basic_stats"]
    pub struct BasicStats: 48 {
        /// Bytes sent.
        pub tx_bytes: u64 = 0,
        /// Packets sent.
        pub tx_pkts: u64 = 8,
        /// Bytes received.
        pub rx_bytes: u64 = 16,
        /// Packets received.
        pub rx_pkts: u64 = 24,
        /// Packets dropped.
        pub rx_drops: u64 = 32,
        /// Packets with another Q_Key. Newer devices.
        pub qkey_viol: u64 = 40,
    }

    /// Counters of sends and receives.
    #[c = "struct efa_admin_messages_stats"]
    pub struct MessagesStats: 32 {
        /// Bytes sent.
        pub send_bytes: u64 = 0,
        /// Sends.
        pub send_wrs: u64 = 8,
        /// Bytes received.
        pub recv_bytes: u64 = 16,
        /// Receives.
        pub recv_wrs: u64 = 24,
    }

    /// Counters of reads.
    #[c = "struct efa_admin_rdma_read_stats"]
    pub struct RdmaReadStats: 32 {
        /// Reads.
        pub read_wrs: u64 = 0,
        /// Bytes read.
        pub read_bytes: u64 = 8,
        /// Reads that failed.
        pub read_wr_err: u64 = 16,
        /// Bytes that peers read.
        pub read_resp_bytes: u64 = 24,
    }

    /// Counters of writes.
    #[c = "struct efa_admin_rdma_write_stats"]
    pub struct RdmaWriteStats: 32 {
        /// Writes.
        pub write_wrs: u64 = 0,
        /// Bytes written.
        pub write_bytes: u64 = 8,
        /// Writes that failed.
        pub write_wr_err: u64 = 16,
        /// Bytes that peers wrote.
        pub write_recv_bytes: u64 = 24,
    }

    /// Counters of retransmission.
    #[c = "struct efa_admin_network_stats"]
    pub struct NetworkStats: 40 {
        /// Bytes sent again.
        pub retrans_bytes: u64 = 0,
        /// Packets sent again.
        pub retrans_pkts: u64 = 8,
        /// Timeouts.
        pub retrans_timeout_events: u64 = 16,
        /// Peers that answered no more.
        pub unresponsive_remote_events: u64 = 24,
        /// Peers with a bad path.
        pub impaired_remote_conn_events: u64 = 32,
    }

    /// Answer to [`GetStatsCmd`].
    #[c = "struct efa_admin_acq_get_stats_resp"]
    pub struct GetStatsResp: 56 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// The counters of the type.
        pub u: [u64; 6] = 8,
    }

    /// Which feature a command is about.
    #[c = "struct efa_admin_get_set_feature_common_desc"]
    pub struct FeatureCommonDesc: 4 {
        /// Must be 0.
        pub reserved0: u8 = 0,
        /// `EFA_ADMIN_DEVICE_ATTR` and others.
        pub feature_id: u8 = 1,
        /// Must be 0.
        pub reserved16: u16 = 2,
    }

    /// [`EFA_ADMIN_DEVICE_ATTR`]: the device. Before kernel 6.6 it ends after `max_rdma_size`.
    #[c = "struct efa_admin_feature_device_attr_desc"]
    pub struct DeviceAttr: 56 {
        /// Bit `n` is feature `n`.
        pub supported_features: u64 = 0,
        /// Bit `n` is pages of 2^n bytes.
        pub page_size_cap: u64 = 8,
        /// Version of the firmware.
        pub fw_version: u32 = 16,
        /// Version of the commands.
        pub admin_api_version: u32 = 20,
        /// Version of the device.
        pub device_version: u32 = 24,
        /// BAR of the doorbells of send and receive queues.
        pub db_bar: u16 = 28,
        /// Bits of a physical address.
        pub phys_addr_width: u8 = 30,
        /// Bits of a virtual address.
        pub virt_addr_width: u8 = 31,
        /// `EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_*`.
        pub device_caps: u32 = 32,
        /// Bytes of the longest read or write.
        pub max_rdma_size: u32 = 36,
        /// Unique number of the device.
        pub guid: u64 = 40,
        /// Gbit/s of the link.
        pub max_link_speed_gbps: u16 = 48,
        /// Must be 0.
        pub reserved0: u16 = 50,
        /// Must be 0.
        pub reserved1: u32 = 52,
    }

    /// [`EFA_ADMIN_QUEUE_ATTR_1`]: the limits of objects.
    #[c = "struct efa_admin_feature_queue_attr_desc_1"]
    pub struct QueueAttr1: 56 {
        /// QPs.
        pub max_qp: u32 = 0,
        /// Requests of a send queue.
        pub max_sq_depth: u32 = 4,
        /// Bytes of inline data.
        pub inline_buf_size: u32 = 8,
        /// Entries of a receive queue.
        pub max_rq_depth: u32 = 12,
        /// CQs.
        pub max_cq: u32 = 16,
        /// Entries of a CQ.
        pub max_cq_depth: u32 = 20,
        /// Sub-CQs of each CQ.
        pub sub_cqs_per_cq: u16 = 24,
        /// Requests of the shortest send queue.
        pub min_sq_depth: u16 = 26,
        /// Buffers of a send.
        pub max_wr_send_sges: u16 = 28,
        /// Buffers of a receive.
        pub max_wr_recv_sges: u16 = 30,
        /// Memory regions.
        pub max_mr: u32 = 32,
        /// Pages of a region.
        pub max_mr_pages: u32 = 36,
        /// Protection domains.
        pub max_pd: u32 = 40,
        /// Address handles.
        pub max_ah: u32 = 44,
        /// Bytes of the longest send ring.
        pub max_llq_size: u32 = 48,
        /// Buffers of a read or write.
        pub max_wr_rdma_sges: u16 = 52,
        /// Units of 64 bytes that may be written to a send queue before its doorbell; 0 is no limit.
        pub max_tx_batch: u16 = 54,
    }

    /// [`EFA_ADMIN_QUEUE_ATTR_2`]: more limits.
    #[c = "struct efa_admin_feature_queue_attr_desc_2"]
    pub struct QueueAttr2: 2 {
        /// Bytes of inline data in an entry of 128 bytes.
        pub inline_buf_size_ex: u16 = 0,
    }

    /// [`EFA_ADMIN_EVENT_QUEUE_ATTR`]: the limits of EQs.
    #[c = "struct efa_admin_event_queue_attr_desc"]
    pub struct EventQueueAttr: 12 {
        /// EQs.
        pub max_eq: u32 = 0,
        /// Entries of an EQ.
        pub max_eq_depth: u32 = 4,
        /// Events: of completions (0).
        pub event_bitmask: u32 = 8,
    }

    /// [`EFA_ADMIN_AENQ_CONFIG`]: which asynchronous events are reported.
    #[c = "struct efa_admin_feature_aenq_desc"]
    pub struct AenqConfig: 8 {
        /// Bit `n` is group `n`: what the device has.
        pub supported_groups: u32 = 0,
        /// Bit `n` is group `n`: what it reports.
        pub enabled_groups: u32 = 4,
    }

    /// [`EFA_ADMIN_NETWORK_ATTR`]: the port.
    #[c = "struct efa_admin_feature_network_attr_desc"]
    pub struct NetworkAttr: 20 {
        /// GID.
        pub addr: [u8; 16] = 0,
        /// Bytes of payload in a packet.
        pub mtu: u32 = 16,
    }

    /// [`EFA_ADMIN_HW_HINTS`]: times for the driver; 0 is its own choice.
    #[c = "struct efa_admin_hw_hints"]
    pub struct HwHints: 8 {
        /// Milliseconds for a read of a register.
        pub mmio_read_timeout: u16 = 0,
        /// Milliseconds between keep-alive events.
        pub driver_watchdog_timeout: u16 = 2,
        /// Milliseconds for a command.
        pub admin_completion_timeout: u16 = 4,
        /// Milliseconds between polls.
        pub poll_interval: u16 = 6,
    }

    /// Reads a feature.
    #[c = "struct efa_admin_get_feature_cmd"]
    pub struct GetFeatureCmd: 64 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// Buffer for data that do not fit into the entry.
        pub control_buffer: CtrlBuffInfo = 4,
        /// The feature.
        pub feature_common: FeatureCommonDesc = 16,
        /// Not used.
        pub raw: [u32; 11] = 20,
    }

    /// Answer to [`GetFeatureCmd`].
    #[c = "struct efa_admin_get_feature_resp"]
    pub struct GetFeatureResp: 64 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// The struct of the feature.
        pub u: [u64; 7] = 8,
    }

    /// Sets a feature.
    #[c = "struct efa_admin_set_feature_cmd"]
    pub struct SetFeatureCmd: 64 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// Buffer for data that do not fit into the entry.
        pub control_buffer: CtrlBuffInfo = 4,
        /// The feature.
        pub feature_common: FeatureCommonDesc = 16,
        /// The struct of the feature.
        pub u: [u32; 11] = 20,
    }

    /// Answer to [`SetFeatureCmd`].
    #[c = "struct efa_admin_set_feature_resp"]
    pub struct SetFeatureResp: 64 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// Not used.
        pub u: [u32; 14] = 8,
    }

    /// [`EFA_ADMIN_HOST_INFO`]: what the driver tells about the machine, in the buffer of the command.
    #[c = "struct efa_admin_host_info"]
    pub struct HostInfo: 180 {
        /// The distribution.
        pub os_dist_str: Bytes<128> = 0,
        /// `EFA_ADMIN_OS_*`.
        pub os_type: u32 = 128,
        /// The kernel's version as text.
        pub kernel_ver_str: [u8; 32] = 132,
        /// The kernel's version.
        pub kernel_ver: u32 = 164,
        /// Version of the driver: major (31:24), minor (23:16), subminor (15:8), kind of module (7:0).
        pub driver_ver: u32 = 168,
        /// PCI bus (15:8), device (7:3), function (2:0).
        pub bdf: u16 = 172,
        /// Version of the specification: major (15:8), minor (7:0).
        pub spec_ver: u16 = 174,
        /// Driver of the kernel's source (0), GPU memory (1).
        pub flags: u32 = 176,
    }
}
