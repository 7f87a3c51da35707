// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver-private requests and responses of the efa driver (Amazon's Elastic Fabric Adapter), and the method that it adds.
//!
//! Facts from `<rdma/efa-abi.h>`, SPDX `(GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause`. Objects of completion
//! counters, which no released kernel has, are omitted.
//!
//! Newer kernels have appended fields to these structs. A kernel that is older than a field truncates a response, so the field is 0, and
//! refuses a request with a value other than 0 in it.

use crate::ids::UVERBS_ID_DRIVER_NS;
use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// The ABI version of the uverbs device.
    pub const EFA_UVERBS_ABI_VERSION: u32 = 1;

    /// [`efa_ibv_alloc_ucontext_cmd::supported_caps`]: the caller obeys the limit of a batch of sends. A device that has the limit
    /// refuses a context without this bit.
    pub const EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH: u32 = 1;
    /// [`efa_ibv_alloc_ucontext_cmd::supported_caps`]: the caller obeys the minimum length of a send queue. A device that has the
    /// minimum refuses a context without this bit.
    pub const EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR: u32 = 1 << 1;
    /// Older headers' name of [`EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH`].
    pub const EFA_ALLOC_UCONTEXT_CMD_COMP_TX_BATCH: u32 = 1;
    /// Older headers' name of [`EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR`].
    pub const EFA_ALLOC_UCONTEXT_CMD_COMP_MIN_SQ_WR: u32 = 1 << 1;

    /// The answer to a query of the device is [`efa_ibv_ex_query_device_resp`].
    pub const EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE: u32 = 1;
    /// The answer to the creation of an AH is [`efa_ibv_create_ah_resp`].
    pub const EFA_USER_CMDS_SUPP_UDATA_CREATE_AH: u32 = 1 << 1;

    /// CQ: it raises events.
    pub const EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL: u8 = 1;
    /// CQ: the completion of a message from an unknown peer has the peer's GID; the entries are 32 bytes.
    pub const EFA_CREATE_CQ_WITH_SGID: u8 = 1 << 1;
    /// [`efa_ibv_create_cq_resp::comp_mask`]: `db_off` and `db_mmap_key` are valid.
    pub const EFA_CREATE_CQ_RESP_DB_OFF: u32 = 1;

    /// Driver QP type: scalable reliable datagram.
    pub const EFA_QP_DRIVER_TYPE_SRD: u32 = 0;
    /// QP: a write with immediate data consumes no receive.
    pub const EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV: u16 = 1;

    /// Device: RDMA read.
    pub const EFA_QUERY_DEVICE_CAPS_RDMA_READ: u32 = 1;
    /// Device: the number of retries of a message that found no receive can be set.
    pub const EFA_QUERY_DEVICE_CAPS_RNR_RETRY: u32 = 1 << 1;
    /// Device: CQs can raise events.
    pub const EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS: u32 = 1 << 2;
    /// Device: CQs can have the GID of unknown peers.
    pub const EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID: u32 = 1 << 3;
    /// Device: 128 bytes at an aligned address are written at once.
    pub const EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128: u32 = 1 << 4;
    /// Device: RDMA write.
    pub const EFA_QUERY_DEVICE_CAPS_RDMA_WRITE: u32 = 1 << 5;
    /// Device: a write with immediate data can do without a receive.
    pub const EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV: u32 = 1 << 6;
    /// Device: the ring of a CQ can be memory of the caller.
    pub const EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM: u32 = 1 << 7;

    /// Answer to [`EFA_IB_METHOD_MR_QUERY`]: the interconnect of receives is valid.
    pub const EFA_QUERY_MR_VALIDITY_RECV_IC_ID: u16 = 1;
    /// Answer to [`EFA_IB_METHOD_MR_QUERY`]: the interconnect of reads is valid.
    pub const EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID: u16 = 1 << 1;
    /// Answer to [`EFA_IB_METHOD_MR_QUERY`]: the interconnect of writes that arrive is valid.
    pub const EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID: u16 = 1 << 2;

    /// Method of an MR: asks for the interconnects by which the device reaches it.
    pub const EFA_IB_METHOD_MR_QUERY: u16 = UVERBS_ID_DRIVER_NS;
    /// The MR.
    pub const EFA_IB_ATTR_QUERY_MR_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// Out, u16: `EFA_QUERY_MR_VALIDITY_*`.
    pub const EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out, u16: the interconnect of receives.
    pub const EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Out, u16: the interconnect of reads.
    pub const EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// Out, u16: the interconnect of writes that arrive.
    pub const EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID: u16 = UVERBS_ID_DRIVER_NS + 4;
}

abi_structs! {
    /// Driver-private request to open a context.
    pub struct efa_ibv_alloc_ucontext_cmd {
        /// `EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_*`; older headers call it `comp_mask`.
        pub supported_caps: u32,
        /// Must be 0.
        pub reserved_20: [u8; 4],
    }

    /// Driver-private response to opening a context.
    pub struct efa_ibv_alloc_ucontext_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// `EFA_USER_CMDS_SUPP_UDATA_*`.
        pub cmds_supp_udata_mask: u32,
        /// The number of sub-CQs that every CQ has.
        pub sub_cqs_per_cq: u16,
        /// Bytes of inline data of a send.
        pub inline_buf_size: u16,
        /// Bytes of the longest send queue.
        pub max_llq_size: u32,
        /// Units of 64 bytes that may be written to a send queue before its doorbell; 0 is no limit.
        pub max_tx_batch: u16,
        /// Requests of the shortest send queue; 0 if the device has no minimum.
        pub min_sq_wr: u16,
        /// Bytes of inline data of a send in an entry of 128 bytes; 0 if all entries are 64 bytes.
        pub inline_buf_size_ex: u16,
        /// Written as 0.
        pub reserved_b0: [u8; 2],
    }

    /// Driver-private response to allocating a protection domain.
    pub struct efa_ibv_alloc_pd_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// The device's number of the domain.
        pub pdn: u16,
        /// Written as 0.
        pub reserved_30: [u8; 2],
    }

    /// Driver-private request to create a completion queue.
    pub struct efa_ibv_create_cq {
        /// Must be 0.
        pub comp_mask: u32,
        /// Bytes of an entry: 16 or 32.
        pub cq_entry_size: u32,
        /// The number of sub-CQs: that of the device.
        pub num_sub_cqs: u16,
        /// `EFA_CREATE_CQ_WITH_*`.
        pub flags: u8,
        /// Must be 0.
        pub reserved_58: [u8; 5],
    }

    /// Driver-private response to creating a completion queue.
    pub struct efa_ibv_create_cq_resp {
        /// [`EFA_CREATE_CQ_RESP_DB_OFF`].
        pub comp_mask: u32,
        /// Written as 0.
        pub reserved_20: [u8; 4],
        /// Offset of the ring for mmap(2).
        pub q_mmap_key: u64,
        /// Bytes of the ring, of all sub-CQs.
        pub q_mmap_size: u64,
        /// The device's number of the queue.
        pub cq_idx: u16,
        /// Written as 0.
        pub reserved_d0: [u8; 2],
        /// Offset of the doorbell in its page.
        pub db_off: u32,
        /// Offset of the doorbell's page for mmap(2).
        pub db_mmap_key: u64,
    }

    /// Driver-private request to create a queue pair.
    pub struct efa_ibv_create_qp {
        /// Must be 0.
        pub comp_mask: u32,
        /// Bytes of the receive ring.
        pub rq_ring_size: u32,
        /// Bytes of the send ring.
        pub sq_ring_size: u32,
        /// [`EFA_QP_DRIVER_TYPE_SRD`], of a QP of the driver type.
        pub driver_qp_type: u32,
        /// `EFA_CREATE_QP_WITH_*`.
        pub flags: u16,
        /// Service level.
        pub sl: u8,
        /// Must be 0.
        pub reserved_98: [u8; 5],
    }

    /// Driver-private response to creating a queue pair.
    pub struct efa_ibv_create_qp_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Offset of the receive queue's doorbell in its page.
        pub rq_db_offset: u32,
        /// Offset of the send queue's doorbell in its page.
        pub sq_db_offset: u32,
        /// Offset of the send ring in its page.
        pub llq_desc_offset: u32,
        /// Offset of the receive ring for mmap(2).
        pub rq_mmap_key: u64,
        /// Bytes of the receive ring.
        pub rq_mmap_size: u64,
        /// Offset of the page with the receive queue's doorbell for mmap(2).
        pub rq_db_mmap_key: u64,
        /// Offset of the page with the send queue's doorbell for mmap(2).
        pub sq_db_mmap_key: u64,
        /// Offset of the send ring's first page for mmap(2); it is memory of the device.
        pub llq_desc_mmap_key: u64,
        /// The sub-CQ of the send queue.
        pub send_sub_cq_idx: u16,
        /// The sub-CQ of the receive queue.
        pub recv_sub_cq_idx: u16,
        /// Written as 0.
        pub reserved_1e0: [u8; 4],
    }

    /// Driver-private response to creating an address handle.
    pub struct efa_ibv_create_ah_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// The device's number of the address, for work requests.
        pub efa_address_handle: u16,
        /// Written as 0.
        pub reserved_30: [u8; 2],
    }

    /// Driver-private response to a query of the device.
    pub struct efa_ibv_ex_query_device_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Requests of the longest send queue.
        pub max_sq_wr: u32,
        /// Entries of the longest receive queue; a receive takes one for each of its buffers.
        pub max_rq_wr: u32,
        /// Buffers of a send.
        pub max_sq_sge: u16,
        /// Buffers of a receive.
        pub max_rq_sge: u16,
        /// Bytes of the longest read or write.
        pub max_rdma_size: u32,
        /// `EFA_QUERY_DEVICE_CAPS_*`.
        pub device_caps: u32,
    }
}
