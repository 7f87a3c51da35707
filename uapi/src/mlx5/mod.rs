// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver-private requests and responses of the mlx5 driver.
//!
//! Facts from `<rdma/mlx5-abi.h>` and `<rdma/mlx5_user_ioctl_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`. Only the parts that a verbs provider uses; the rest of those
//! headers (packet pacing objects, clock page) is omitted. DEVX is in [`devx`].
//!
//! A request follows the command's own struct as UHW bytes, and so does a response. The kernel accepts a request that
//! is longer than its own struct if the rest is zeros, and truncates a response to the available room.

use crate::layout::{abi_consts, abi_structs};

pub mod cmds;
pub mod devx;

abi_consts! {
    /// Version of the structs, as in `abi_version` of sysfs.
    pub const MLX5_IB_UVERBS_ABI_VERSION: u32 = 1;

    /// QP: WQEs carry a signature.
    pub const MLX5_QP_FLAG_SIGNATURE: u32 = 1;
    /// QP: short data may be scattered to the CQE.
    pub const MLX5_QP_FLAG_SCATTER_CQE: u32 = 1 << 1;
    /// QP: receive offloads inside tunnels.
    pub const MLX5_QP_FLAG_TUNNEL_OFFLOADS: u32 = 1 << 2;
    /// QP: the caller has chosen `bfreg_index`.
    pub const MLX5_QP_FLAG_BFREG_INDEX: u32 = 1 << 3;
    /// QP of the driver type: DC target.
    pub const MLX5_QP_FLAG_TYPE_DCT: u32 = 1 << 4;
    /// QP of the driver type: DC initiator.
    pub const MLX5_QP_FLAG_TYPE_DCI: u32 = 1 << 5;
    /// QP: receives its own unicasts.
    pub const MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC: u32 = 1 << 6;
    /// QP: receives its own multicasts.
    pub const MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC: u32 = 1 << 7;
    /// QP: scatter to the CQE even if not all send completions are signaled.
    pub const MLX5_QP_FLAG_ALLOW_SCATTER_CQE: u32 = 1 << 8;
    /// QP: credits count packets.
    pub const MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE: u32 = 1 << 9;
    /// QP: `bfreg_index` is the page number of a UAR object.
    pub const MLX5_QP_FLAG_UAR_PAGE_INDEX: u32 = 1 << 10;
    /// QP: a DC initiator with streams.
    pub const MLX5_QP_FLAG_DCI_STREAM: u32 = 1 << 11;
    /// SRQ: WQEs carry a signature.
    pub const MLX5_SRQ_FLAG_SIGNATURE: u32 = 1;
    /// WQ: WQEs carry a signature.
    pub const MLX5_WQ_FLAG_SIGNATURE: u32 = 1;

    /// The caller can handle UARs of 4 KiB on machines with larger pages.
    pub const MLX5_LIB_CAP_4K_UAR: u64 = 1;
    /// The caller allocates UARs as objects.
    pub const MLX5_LIB_CAP_DYN_UAR: u64 = 1 << 1;
    /// The context may run firmware commands.
    pub const MLX5_IB_ALLOC_UCTX_DEVX: u32 = 1;
    /// `hca_core_clock_offset` is valid.
    pub const MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET: u32 = 1;
    /// `dump_fill_mkey` is valid.
    pub const MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY: u32 = 1 << 1;
    /// The kernel supports ECE (enhanced connection establishment).
    pub const MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE: u32 = 1 << 2;
    /// The transition from SQD to RTS may have attributes.
    pub const MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS: u32 = 1 << 3;
    /// CQEs can have wall-clock timestamps.
    pub const MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS: u32 = 1 << 4;
    /// UMRs may change a key's variable byte.
    pub const MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG: u32 = 1 << 5;
    /// The answer to a query of the device is [`mlx5_ib_query_device_resp`].
    pub const MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE: u8 = 1;
    /// The answer to the creation of an AH is [`mlx5_ib_create_ah_resp`].
    pub const MLX5_USER_CMDS_SUPP_UHW_CREATE_AH: u8 = 1 << 1;

    /// Raw packets: the kernel does not report how much of the headers is inlined.
    pub const MLX5_USER_INLINE_MODE_NA: u8 = 0;
    /// Raw packets: no header must be inline.
    pub const MLX5_USER_INLINE_MODE_NONE: u8 = 1;
    /// Raw packets: the Ethernet header is inlined.
    pub const MLX5_USER_INLINE_MODE_L2: u8 = 2;
    /// Raw packets: up to the IP header is inlined.
    pub const MLX5_USER_INLINE_MODE_IP: u8 = 3;
    /// Raw packets: up to the TCP or UDP header is inlined.
    pub const MLX5_USER_INLINE_MODE_TCP_UDP: u8 = 4;

    /// Packet pacing supports bursts.
    pub const MLX5_IB_PP_SUPPORT_BURST: u8 = 1;
    /// Several packets in one WQE are allowed.
    pub const MLX5_IB_ALLOW_MPW: u32 = 1 << 1;
    /// Enhanced multi-packet WQEs are allowed.
    pub const MLX5_IB_SUPPORT_EMPW: u32 = 1 << 2;
    /// 128-byte CQEs can be compressed.
    pub const MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP: u32 = 1;
    /// 128-byte CQEs can be padded.
    pub const MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD: u32 = 1 << 1;
    /// Credits can count packets.
    pub const MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE: u32 = 1 << 2;
    /// DC targets can scatter to the CQE.
    pub const MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT: u32 = 1 << 3;
    /// Receives can be consumed out of order.
    pub const MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP: u32 = 1 << 4;

    /// QP: receives may be consumed out of order.
    pub const MLX5_IB_MODIFY_QP_OOO_DP: u32 = 1;

    /// CQ: pad 128-byte CQEs.
    pub const MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD: u16 = 1;
    /// CQ: `uar_page_index` is valid.
    pub const MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX: u16 = 1 << 1;
    /// CQ: timestamps are wall-clock time.
    pub const MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS: u16 = 1 << 2;

    /// RSS: Toeplitz hash.
    pub const MLX5_RX_HASH_FUNC_TOEPLITZ: u8 = 1;
    /// RSS: hash the IPv4 source.
    pub const MLX5_RX_HASH_SRC_IPV4: u64 = 1;
    /// RSS: hash the IPv4 destination.
    pub const MLX5_RX_HASH_DST_IPV4: u64 = 1 << 1;
    /// RSS: hash the IPv6 source.
    pub const MLX5_RX_HASH_SRC_IPV6: u64 = 1 << 2;
    /// RSS: hash the IPv6 destination.
    pub const MLX5_RX_HASH_DST_IPV6: u64 = 1 << 3;
    /// RSS: hash the TCP source port.
    pub const MLX5_RX_HASH_SRC_PORT_TCP: u64 = 1 << 4;
    /// RSS: hash the TCP destination port.
    pub const MLX5_RX_HASH_DST_PORT_TCP: u64 = 1 << 5;
    /// RSS: hash the UDP source port.
    pub const MLX5_RX_HASH_SRC_PORT_UDP: u64 = 1 << 6;
    /// RSS: hash the UDP destination port.
    pub const MLX5_RX_HASH_DST_PORT_UDP: u64 = 1 << 7;
    /// RSS: hash the IPsec SPI.
    pub const MLX5_RX_HASH_IPSEC_SPI: u64 = 1 << 8;
    /// RSS: hash the inner headers of a tunnel.
    pub const MLX5_RX_HASH_INNER: u64 = 1 << 31;

    /// `tirn` is valid.
    pub const MLX5_IB_CREATE_QP_RESP_MASK_TIRN: u32 = 1;
    /// `tisn` is valid.
    pub const MLX5_IB_CREATE_QP_RESP_MASK_TISN: u32 = 1 << 1;
    /// `rqn` is valid.
    pub const MLX5_IB_CREATE_QP_RESP_MASK_RQN: u32 = 1 << 2;
    /// `sqn` is valid.
    pub const MLX5_IB_CREATE_QP_RESP_MASK_SQN: u32 = 1 << 3;
    /// `tir_icm_addr` is valid.
    pub const MLX5_IB_CREATE_QP_RESP_MASK_TIR_ICM_ADDR: u32 = 1 << 4;

    /// WQ: striding receive queue.
    pub const MLX5_IB_CREATE_WQ_STRIDING_RQ: u32 = 1;

    /// mmap command: doorbell registers, write-combining if the CPU can.
    pub const MLX5_IB_MMAP_REGULAR_PAGE: u64 = 0;
    /// mmap command: doorbell registers, write-combining or an error.
    pub const MLX5_IB_MMAP_WC_PAGE: u64 = 2;
    /// mmap command: doorbell registers, uncached.
    pub const MLX5_IB_MMAP_NC_PAGE: u64 = 3;
    /// mmap command: the device's clock.
    pub const MLX5_IB_MMAP_CORE_CLOCK: u64 = 5;
    /// mmap command: allocates doorbell registers of a kernel without UAR objects.
    pub const MLX5_IB_MMAP_ALLOC_WC: u64 = 6;
    /// mmap command: parameters of the clock.
    pub const MLX5_IB_MMAP_CLOCK_INFO: u64 = 7;
    /// mmap command: device memory.
    pub const MLX5_IB_MMAP_DEVICE_MEM: u64 = 8;

    /// Steering of received packets.
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX: u32 = 0;
    /// Steering of sent packets.
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_TX: u32 = 1;
    /// Device memory: plain.
    pub const MLX5_IB_UAPI_DM_TYPE_MEMIC: u64 = 0;
    /// UAR object: BlueFlame, write-combining.
    pub const MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF: u64 = 0;
    /// UAR object: uncached, 8-byte doorbells only.
    pub const MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC: u64 = 1;
}

abi_structs! {
    /// Request to create a context.
    pub struct mlx5_ib_alloc_ucontext_req_v2 {
        /// Number of old-style doorbell registers that the process requests.
        pub total_num_bfregs: u32,
        /// The number of these registers that are for one QP each.
        pub num_low_latency_bfregs: u32,
        /// `MLX5_IB_ALLOC_UCTX_*`.
        pub flags: u32,
        /// Must be 0.
        pub comp_mask: u32,
        /// Newest CQE version that the caller supports.
        pub max_cqe_version: u8,
        /// Must be 0.
        pub reserved0: u8,
        /// Must be 0.
        pub reserved1: u16,
        /// Must be 0.
        pub reserved2: u32,
        /// `MLX5_LIB_CAP_*`.
        pub lib_caps: u64,
    }

    /// Response to creating a context.
    pub struct mlx5_ib_alloc_ucontext_resp {
        /// Maximum number of QPs.
        pub qp_tab_size: u32,
        /// Bytes of a BlueFlame register, both halves.
        pub bf_reg_size: u32,
        /// Doorbell registers given, of old style.
        pub tot_bfregs: u32,
        /// Doorbell registers of old style that the context has.
        pub cache_line_size: u32,
        /// Maximum number of bytes of a send WQE.
        pub max_sq_desc_sz: u16,
        /// Maximum number of bytes of a receive WQE.
        pub max_rq_desc_sz: u16,
        /// Maximum number of basic blocks of a send queue.
        pub max_send_wqebb: u32,
        /// Maximum number of WQEs of a receive queue.
        pub max_recv_wr: u32,
        /// Maximum number of WQEs of an SRQ.
        pub max_srq_recv_wr: u32,
        /// Ports.
        pub num_ports: u16,
        /// IPsec capabilities.
        pub flow_action_flags: u16,
        /// `MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_*`.
        pub comp_mask: u32,
        /// Bytes that the kernel wrote.
        pub response_length: u32,
        /// CQE version in use.
        pub cqe_version: u8,
        /// `MLX5_USER_CMDS_SUPP_UHW_*`.
        pub cmds_supp_uhw: u8,
        /// `MLX5_USER_INLINE_MODE_*`.
        pub eth_min_inline: u8,
        /// Bit for each version of the clock page.
        pub clock_info_versions: u8,
        /// Offset of the clock in its page.
        pub hca_core_clock_offset: u64,
        /// log2 of the bytes of a UAR.
        pub log_uar_size: u32,
        /// UARs in a page of the machine.
        pub num_uars_per_page: u32,
        /// Doorbell registers of old style that can be allocated later.
        pub num_dyn_bfregs: u32,
        /// Key of memory that discards writes.
        pub dump_fill_mkey: u32,
    }

    /// Response to creating a PD.
    pub struct mlx5_ib_alloc_pd_resp {
        /// The hardware's number.
        pub pdn: u32,
    }

    /// Segmentation offload.
    pub struct mlx5_ib_tso_caps {
        /// Maximum number of payload bytes.
        pub max_tso: u32,
        /// Bit for each QP type.
        pub supported_qpts: u32,
    }

    /// Receive hashing.
    pub struct mlx5_ib_rss_caps {
        /// `MLX5_RX_HASH_*`.
        pub rx_hash_fields_mask: u64,
        /// `MLX5_RX_HASH_FUNC_*`.
        pub rx_hash_function: u8,
        /// Written as 0.
        pub reserved: [u8; 7],
    }

    /// Compression of CQEs.
    pub struct mlx5_ib_cqe_comp_caps {
        /// Maximum number of CQEs compressed into one.
        pub max_num: u32,
        /// Formats.
        pub supported_format: u32,
    }

    /// Packet pacing.
    pub struct mlx5_packet_pacing_caps {
        /// Lowest rate in kbit/s.
        pub qp_rate_limit_min: u32,
        /// Highest rate in kbit/s.
        pub qp_rate_limit_max: u32,
        /// Bit for each QP type.
        pub supported_qpts: u32,
        /// `MLX5_IB_PP_*`.
        pub cap_flags: u8,
        /// Written as 0.
        pub reserved: [u8; 3],
    }

    /// Packets whose headers the software describes.
    pub struct mlx5_ib_sw_parsing_caps {
        /// Kinds.
        pub sw_parsing_offloads: u32,
        /// Bit for each QP type.
        pub supported_qpts: u32,
    }

    /// Striding receive queues.
    pub struct mlx5_ib_striding_rq_caps {
        /// log2 of the smallest stride.
        pub min_single_stride_log_num_of_bytes: u32,
        /// log2 of the largest stride.
        pub max_single_stride_log_num_of_bytes: u32,
        /// log2 of the minimum number of strides.
        pub min_single_wqe_log_num_of_strides: u32,
        /// log2 of the maximum number of strides.
        pub max_single_wqe_log_num_of_strides: u32,
        /// Bit for each QP type.
        pub supported_qpts: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Streams of a DC initiator.
    pub struct mlx5_ib_dci_streams_caps {
        /// log2 of the maximum number of streams.
        pub max_log_num_concurent: u8,
        /// log2 of the maximum number that may fail.
        pub max_log_num_errored: u8,
    }

    /// The register C0 of a vport, value and mask.
    pub struct mlx5_ib_uapi_reg {
        /// Value.
        pub value: u32,
        /// Mask of the bits that are compared.
        pub mask: u32,
    }

    /// Response to querying the device.
    pub struct mlx5_ib_query_device_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes that the kernel wrote.
        pub response_length: u32,
        /// Segmentation offload.
        pub tso_caps: mlx5_ib_tso_caps,
        /// Receive hashing.
        pub rss_caps: mlx5_ib_rss_caps,
        /// Compression of CQEs.
        pub cqe_comp_caps: mlx5_ib_cqe_comp_caps,
        /// Packet pacing.
        pub packet_pacing_caps: mlx5_packet_pacing_caps,
        /// `MLX5_IB_ALLOW_MPW`, `MLX5_IB_SUPPORT_EMPW`.
        pub mlx5_ib_support_multi_pkt_send_wqes: u32,
        /// `MLX5_IB_QUERY_DEV_RESP_*`.
        pub flags: u32,
        /// Packets whose headers the software describes.
        pub sw_parsing_caps: mlx5_ib_sw_parsing_caps,
        /// Striding receive queues.
        pub striding_rq_caps: mlx5_ib_striding_rq_caps,
        /// Tunnels whose inner headers the device parses.
        pub tunnel_offloads_caps: u32,
        /// Streams of DC initiators.
        pub dci_streams_caps: mlx5_ib_dci_streams_caps,
        /// Written as 0.
        pub reserved: u16,
        /// Register C0; kernels of 2024 and later.
        pub reg_c0: mlx5_ib_uapi_reg,
    }

    /// Request to create a CQ.
    pub struct mlx5_ib_create_cq {
        /// Address of the queue.
        pub buf_addr: u64,
        /// Address of the doorbell record.
        pub db_addr: u64,
        /// Bytes of an entry, 64 or 128.
        pub cqe_size: u32,
        /// 1 compresses entries.
        pub cqe_comp_en: u8,
        /// Format of compressed entries.
        pub cqe_comp_res_format: u8,
        /// `MLX5_IB_CREATE_CQ_FLAGS_*`.
        pub flags: u16,
        /// Page of the UAR that arms the CQ.
        pub uar_page_index: u16,
        /// Must be 0.
        pub reserved0: u16,
        /// Must be 0.
        pub reserved1: u32,
    }

    /// Response to creating a CQ.
    pub struct mlx5_ib_create_cq_resp {
        /// The hardware's number.
        pub cqn: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Request to resize a CQ.
    pub struct mlx5_ib_resize_cq {
        /// Address of the new queue.
        pub buf_addr: u64,
        /// Bytes of an entry, 64 or 128.
        pub cqe_size: u16,
        /// Must be 0.
        pub reserved0: u16,
        /// Must be 0.
        pub reserved1: u32,
    }

    /// Request to create an SRQ.
    pub struct mlx5_ib_create_srq {
        /// Address of the queue.
        pub buf_addr: u64,
        /// Address of the doorbell record.
        pub db_addr: u64,
        /// `MLX5_SRQ_FLAG_*`.
        pub flags: u32,
        /// Must be 0.
        pub reserved0: u32,
        /// User index that CQEs carry; XRC and tag matching, with CQE version 1.
        pub uidx: u32,
        /// Must be 0.
        pub reserved1: u32,
    }

    /// Response to creating an SRQ.
    pub struct mlx5_ib_create_srq_resp {
        /// The hardware's number.
        pub srqn: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Streams of a DC initiator.
    pub struct mlx5_ib_create_qp_dci_streams {
        /// log2 of the streams.
        pub log_num_concurent: u8,
        /// log2 of those that may fail.
        pub log_num_errored: u8,
    }

    /// Request to create a QP.
    pub struct mlx5_ib_create_qp {
        /// Address of the queues, or of the receive queue only if the send queue has an address of its own.
        pub buf_addr: u64,
        /// Address of the doorbell record.
        pub db_addr: u64,
        /// Basic blocks of the send queue.
        pub sq_wqe_count: u32,
        /// WQEs of the receive queue.
        pub rq_wqe_count: u32,
        /// log2 of the bytes of a receive WQE.
        pub rq_wqe_shift: u32,
        /// `MLX5_QP_FLAG_*`.
        pub flags: u32,
        /// User index that CQEs carry, with CQE version 1.
        pub uidx: u32,
        /// Doorbell register or UAR page, see the flags.
        pub bfreg_index: u32,
        /// Raw packets: address of the send queue. DC targets: the access key.
        pub sq_buf_addr: u64,
        /// Options of the enhanced connection establishment.
        pub ece_options: u32,
        /// Streams of a DC initiator.
        pub dci_streams: mlx5_ib_create_qp_dci_streams,
        /// Must be 0.
        pub reserved: u16,
    }

    /// Request to create a QP that spreads received packets by a hash.
    pub struct mlx5_ib_create_qp_rss {
        /// `MLX5_RX_HASH_*`.
        pub rx_hash_fields_mask: u64,
        /// `MLX5_RX_HASH_FUNC_*`.
        pub rx_hash_function: u8,
        /// Bytes of the key.
        pub rx_key_len: u8,
        /// Must be 0.
        pub reserved: [u8; 6],
        /// The key, 128 bytes.
        pub rx_hash_key: [[u8; 32]; 4],
        /// Must be 0.
        pub comp_mask: u32,
        /// `MLX5_QP_FLAG_*`: tunnels and loopback.
        pub flags: u32,
    }

    /// Response to creating a QP.
    pub struct mlx5_ib_create_qp_resp {
        /// Doorbell register that the kernel chose, of old style.
        pub bfreg_index: u32,
        /// Options of the enhanced connection establishment.
        pub ece_options: u32,
        /// `MLX5_IB_CREATE_QP_RESP_MASK_*`.
        pub comp_mask: u32,
        /// Transport interface receive.
        pub tirn: u32,
        /// Transport interface send.
        pub tisn: u32,
        /// Receive queue number.
        pub rqn: u32,
        /// Send queue number.
        pub sqn: u32,
        /// Written as 0.
        pub reserved1: u32,
        /// Address of the TIR in the device.
        pub tir_icm_addr: u64,
    }

    /// Request to allocate a memory window.
    pub struct mlx5_ib_alloc_mw {
        /// Must be 0.
        pub comp_mask: u32,
        /// Entries of the window.
        pub num_klms: u8,
        /// Must be 0.
        pub reserved1: u8,
        /// Must be 0.
        pub reserved2: u16,
    }

    /// Request to create a WQ.
    pub struct mlx5_ib_create_wq {
        /// Address of the queue.
        pub buf_addr: u64,
        /// Address of the doorbell record.
        pub db_addr: u64,
        /// WQEs.
        pub rq_wqe_count: u32,
        /// log2 of the bytes of a WQE.
        pub rq_wqe_shift: u32,
        /// User index that CQEs carry.
        pub user_index: u32,
        /// `MLX5_WQ_FLAG_*`.
        pub flags: u32,
        /// `MLX5_IB_CREATE_WQ_*`.
        pub comp_mask: u32,
        /// Striding: log2 of a stride's bytes.
        pub single_stride_log_num_of_bytes: u32,
        /// Striding: log2 of a WQE's strides.
        pub single_wqe_log_num_of_strides: u32,
        /// Striding: two bytes before the packet.
        pub two_byte_shift_en: u32,
    }

    /// Response to creating an AH.
    pub struct mlx5_ib_create_ah_resp {
        /// Bytes that the kernel wrote.
        pub response_length: u32,
        /// The peer's MAC address.
        pub dmac: [u8; 6],
        /// Written as 0.
        pub reserved: [u8; 6],
    }

    /// Packet pacing bursts.
    pub struct mlx5_ib_burst_info {
        /// Maximum number of bytes.
        pub max_burst_sz: u32,
        /// Bytes of a typical packet.
        pub typical_pkt_sz: u16,
        /// Must be 0.
        pub reserved: u16,
    }

    /// Request to modify a QP.
    pub struct mlx5_ib_modify_qp {
        /// `MLX5_IB_MODIFY_QP_*`
        pub comp_mask: u32,
        /// Packet pacing bursts.
        pub burst_info: mlx5_ib_burst_info,
        /// Options of the enhanced connection establishment.
        pub ece_options: u32,
    }

    /// Response to modifying a QP.
    pub struct mlx5_ib_modify_qp_resp {
        /// Bytes that the kernel wrote.
        pub response_length: u32,
        /// Number of the DC target, at RTR.
        pub dctn: u32,
        /// Options of the enhanced connection establishment.
        pub ece_options: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Response to creating a WQ.
    pub struct mlx5_ib_create_wq_resp {
        /// Bytes that the kernel wrote.
        pub response_length: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Response to creating an indirection table.
    pub struct mlx5_ib_create_rwq_ind_tbl_resp {
        /// Bytes that the kernel wrote.
        pub response_length: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Request to modify a WQ.
    pub struct mlx5_ib_modify_wq {
        /// Must be 0.
        pub comp_mask: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// A counter of a set: what it counts, and its place in the set.
    pub struct mlx5_ib_flow_counters_desc {
        /// What it counts: 0 packets, 1 bytes.
        pub description: u32,
        /// Index of the value.
        pub index: u32,
    }

    /// The counters of a set.
    pub struct mlx5_ib_flow_counters_data {
        /// Address of the [`mlx5_ib_flow_counters_desc`]s.
        pub counters_data: u64,
        /// The number of these.
        pub ncounters: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Request to create a steering rule.
    pub struct mlx5_ib_create_flow {
        /// Counter sets that follow.
        pub ncounters_data: u32,
        /// Must be 0.
        pub reserved: u32,
        /// The counter sets.
        pub data: [u64; 0],
    }
}
