// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings that the siw driver (Soft-iWARP) shares with user space, and its driver-private requests and responses.
//!
//! Facts from `<rdma/siw-abi.h>`, SPDX `(GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause`.

use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// The ABI version of the uverbs device.
    pub const SIW_ABI_VERSION: u32 = 1;
    /// Scatter/gather entries of an element.
    pub const SIW_MAX_SGE: u32 = 6;
    /// Bytes of inline data.
    pub const SIW_MAX_INLINE: u32 = 80;
    /// The largest mmap offset of a queue.
    pub const SIW_UOBJ_MAX_KEY: u64 = 0x8_ffff;
    /// The mmap offset of a queue that the kernel could not offer.
    pub const SIW_INVAL_UOBJ_KEY: u64 = 0x9_0000;

    /// RDMA write.
    pub const SIW_OP_WRITE: u8 = 0;
    /// RDMA read.
    pub const SIW_OP_READ: u8 = 1;
    /// RDMA read that invalidates the local key of its entry.
    pub const SIW_OP_READ_LOCAL_INV: u8 = 2;
    /// Send.
    pub const SIW_OP_SEND: u8 = 3;
    /// Send with immediate data; not implemented.
    pub const SIW_OP_SEND_WITH_IMM: u8 = 4;
    /// Send that invalidates a key of the peer.
    pub const SIW_OP_SEND_REMOTE_INV: u8 = 5;
    /// Fetch-and-add; not implemented.
    pub const SIW_OP_FETCH_AND_ADD: u8 = 6;
    /// Compare-and-swap; not implemented.
    pub const SIW_OP_COMP_AND_SWAP: u8 = 7;
    /// Receive.
    pub const SIW_OP_RECEIVE: u8 = 8;
    /// Used by the kernel: the answer to a read of the peer.
    pub const SIW_OP_READ_RESPONSE: u8 = 9;
    /// Local invalidation; only for clients in the kernel.
    pub const SIW_OP_INVAL_STAG: u8 = 10;
    /// Fast registration; only for clients in the kernel.
    pub const SIW_OP_REG_MR: u8 = 11;
    /// The number of opcodes.
    pub const SIW_NUM_OPCODES: u8 = 12;

    /// The element is published, or the completion is written.
    pub const SIW_WQE_VALID: u16 = 1;
    /// The data are in the element, after its first entry.
    pub const SIW_WQE_INLINE: u16 = 1 << 1;
    /// A success is also reported by a completion.
    pub const SIW_WQE_SIGNALLED: u16 = 1 << 2;
    /// The peer's completion is a solicited event.
    pub const SIW_WQE_SOLICITED: u16 = 1 << 3;
    /// The request waits for earlier reads.
    pub const SIW_WQE_READ_FENCE: u16 = 1 << 4;
    /// The peer invalidated a key; only for clients in the kernel.
    pub const SIW_WQE_REM_INVAL: u16 = 1 << 5;
    /// Used by the kernel.
    pub const SIW_WQE_COMPLETED: u16 = 1 << 6;

    /// No event.
    pub const SIW_NOTIFY_NOT: u32 = 0;
    /// An event at the next solicited completion.
    pub const SIW_NOTIFY_SOLICITED: u32 = 1;
    /// An event at the next completion.
    pub const SIW_NOTIFY_NEXT_COMPLETION: u32 = 1 << 1;
    /// Used by clients in the kernel.
    pub const SIW_NOTIFY_MISSED_EVENTS: u32 = 1 << 2;
    /// All three.
    pub const SIW_NOTIFY_ALL: u32 = 7;

    /// Success.
    pub const SIW_WC_SUCCESS: u16 = 0;
    /// A message longer than the receive.
    pub const SIW_WC_LOC_LEN_ERR: u16 = 1;
    /// A local key of another domain.
    pub const SIW_WC_LOC_PROT_ERR: u16 = 2;
    /// An invalid work request.
    pub const SIW_WC_LOC_QP_OP_ERR: u16 = 3;
    /// The queue pair was in, or went to, the error state.
    pub const SIW_WC_WR_FLUSH_ERR: u16 = 4;
    /// An unexpected response.
    pub const SIW_WC_BAD_RESP_ERR: u16 = 5;
    /// A local key without the right.
    pub const SIW_WC_LOC_ACCESS_ERR: u16 = 6;
    /// A remote key without the right.
    pub const SIW_WC_REM_ACCESS_ERR: u16 = 7;
    /// The peer refused the request.
    pub const SIW_WC_REM_INV_REQ_ERR: u16 = 8;
    /// Any other error.
    pub const SIW_WC_GENERAL_ERR: u16 = 9;
    /// The number of statuses.
    pub const SIW_NUM_WC_STATUS: u16 = 10;
}

abi_structs! {
    /// Driver-private response to creating a completion queue.
    pub struct siw_uresp_create_cq {
        /// The kernel's number of the queue.
        pub cq_id: u32,
        /// Slots of the ring, a power of two.
        pub num_cqe: u32,
        /// Offset of the ring for mmap(2); a [`siw_cq_ctrl`] follows the slots.
        pub cq_key: u64,
    }

    /// Driver-private response to creating a queue pair.
    pub struct siw_uresp_create_qp {
        /// The number of the queue pair.
        pub qp_id: u32,
        /// Slots of the send queue, a power of two.
        pub num_sqe: u32,
        /// Slots of the receive queue, a power of two or 0.
        pub num_rqe: u32,
        /// Written as 0.
        pub pad: u32,
        /// Offset of the send queue for mmap(2).
        pub sq_key: u64,
        /// Offset of the receive queue for mmap(2); not set if there is none.
        pub rq_key: u64,
    }

    /// Driver-private request to register memory.
    pub struct siw_ureq_reg_mr {
        /// The low 8 bits of the region's keys.
        pub stag_key: u8,
        /// Must be 0.
        pub reserved: [u8; 3],
        /// Must be 0.
        pub pad: u32,
    }

    /// Driver-private response to registering memory.
    pub struct siw_uresp_reg_mr {
        /// The region's key, local and remote.
        pub stag: u32,
        /// Written as 0.
        pub pad: u32,
    }

    /// Driver-private response to creating a shared receive queue.
    pub struct siw_uresp_create_srq {
        /// Slots of the queue, a power of two.
        pub num_rqe: u32,
        /// Written as 0.
        pub pad: u32,
        /// Offset of the queue for mmap(2).
        pub srq_key: u64,
    }

    /// Driver-private response to opening a context.
    pub struct siw_uresp_alloc_ctx {
        /// The number of the device.
        pub dev_id: u32,
        /// Written as 0.
        pub pad: u32,
    }

    /// One scatter/gather entry.
    pub struct siw_sge {
        /// Address in the memory region.
        pub laddr: u64,
        /// Length in bytes.
        pub length: u32,
        /// Local key.
        pub lkey: u32,
    }

    /// One element of a send queue.
    pub struct siw_sqe {
        /// Value that the completion carries; the caller chooses it.
        pub id: u64,
        /// `SIW_WQE_*`; the kernel stores 0 when it has taken the element.
        pub flags: u16,
        /// Entries in use.
        pub num_sge: u8,
        /// `SIW_OP_*`.
        pub opcode: u8,
        /// Key of the peer's memory.
        pub rkey: u32,
        /// Address at the peer; clients in the kernel store the address of a region.
        pub raddr: u64,
        /// Entries; inline data begin at the second one, and the first one has their length.
        pub sge: [siw_sge; 6],
    }

    /// One element of a receive queue.
    pub struct siw_rqe {
        /// Value that the completion carries; the caller chooses it.
        pub id: u64,
        /// [`SIW_WQE_VALID`]; the kernel stores 0 when it has taken the element.
        pub flags: u16,
        /// Entries in use.
        pub num_sge: u8,
        /// Used by the kernel.
        pub opcode: u8,
        /// Not used.
        pub unused: u32,
        /// Entries.
        pub sge: [siw_sge; 6],
    }

    /// One element of a completion queue.
    pub struct siw_cqe {
        /// Value of the work request.
        pub id: u64,
        /// [`SIW_WQE_VALID`] if it is written; the poller stores 0 when it has taken it.
        pub flags: u8,
        /// `SIW_OP_*`.
        pub opcode: u8,
        /// `SIW_WC_*`.
        pub status: u16,
        /// Bytes of data.
        pub bytes: u32,
        /// Written as 0.
        pub imm_data: u64,
        /// The number of the queue pair.
        pub qp_id: u64,
    }

    /// The words after the slots of a completion queue.
    pub struct siw_cq_ctrl {
        /// `SIW_NOTIFY_*`; the kernel stores 0 when it has raised the event.
        pub flags: u32,
        /// Must be 0.
        pub pad: u32,
    }
}
