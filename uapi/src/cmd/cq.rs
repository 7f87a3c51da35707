// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on completion queues, and the work completion as it crosses the ABI.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::be::Be32;
use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Completions carry a device timestamp.
    pub const IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION: u32 = 1 << 0;
    /// The device need not check for overrun.
    pub const IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN: u32 = 1 << 1;
    /// Completed: a send.
    pub const IB_UVERBS_WC_SEND: u32 = 0;
    /// Completed: an RDMA write.
    pub const IB_UVERBS_WC_RDMA_WRITE: u32 = 1;
    /// Completed: an RDMA read.
    pub const IB_UVERBS_WC_RDMA_READ: u32 = 2;
    /// Completed: a compare-and-swap.
    pub const IB_UVERBS_WC_COMP_SWAP: u32 = 3;
    /// Completed: a fetch-and-add.
    pub const IB_UVERBS_WC_FETCH_ADD: u32 = 4;
    /// Completed: a memory window binding.
    pub const IB_UVERBS_WC_BIND_MW: u32 = 5;
    /// Completed: a local invalidation.
    pub const IB_UVERBS_WC_LOCAL_INV: u32 = 6;
    /// Completed: a segmented send.
    pub const IB_UVERBS_WC_TSO: u32 = 7;
    /// Completed: an RDMA flush.
    pub const IB_UVERBS_WC_FLUSH: u32 = 8;
    /// Completed: an atomic write.
    pub const IB_UVERBS_WC_ATOMIC_WRITE: u32 = 9;
}

abi_structs! {
    /// Creates a completion queue.
    pub struct ib_uverbs_create_cq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Number of entries: at least (request), exactly (response).
        pub cqe: u32,
        /// Completion vector.
        pub comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        pub comp_channel: i32,
        /// Must be 0.
        pub reserved: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Creates a completion queue, with flags.
    pub struct ib_uverbs_ex_create_cq {
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Number of entries: at least (request), exactly (response).
        pub cqe: u32,
        /// Completion vector.
        pub comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        pub comp_channel: i32,
        /// Must be 0.
        pub comp_mask: u32,
        /// `IB_UVERBS_CQ_FLAGS_*`.
        pub flags: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Response to [`ib_uverbs_create_cq`].
    pub struct ib_uverbs_create_cq_resp {
        /// Completion queue.
        pub cq_handle: u32,
        /// Number of entries: at least (request), exactly (response).
        pub cqe: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_ex_create_cq`].
    pub struct ib_uverbs_ex_create_cq_resp {
        /// The part shared with the older command.
        pub base: ib_uverbs_create_cq_resp,
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes of the response that the kernel filled in.
        pub response_length: u32,
    }

    /// Resizes a completion queue.
    pub struct ib_uverbs_resize_cq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Completion queue.
        pub cq_handle: u32,
        /// Number of entries: at least (request), exactly (response).
        pub cqe: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_resize_cq`].
    pub struct ib_uverbs_resize_cq_resp {
        /// Number of entries: at least (request), exactly (response).
        pub cqe: u32,
        /// Written as 0.
        pub reserved: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Takes completions through the kernel.
    pub struct ib_uverbs_poll_cq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Completion queue.
        pub cq_handle: u32,
        /// Maximum number of completions to take.
        pub ne: u32,
    }

    /// One work completion; also the element of rxe's completion queues.
    pub struct ib_uverbs_wc {
        /// Value that the completion carries; the caller chooses it.
        pub wr_id: u64,
        /// `IB_WC_SUCCESS` or an error of that list; on an error only `wr_id`, `status`, `qp_num` and
        /// `vendor_err` are valid.
        pub status: u32,
        /// `IB_UVERBS_WC_*`, or `IB_WC_RECV*` on a receive.
        pub opcode: u32,
        /// Error code of the driver's own.
        pub vendor_err: u32,
        /// Bytes received, or read.
        pub byte_len: u32,
        /// Immediate data; with invalidation see [`invalidate_rkey`](Self::invalidate_rkey).
        #[c = "ex.imm_data"]
        pub imm_data: Be32,
        /// The local QP's number.
        pub qp_num: u32,
        /// The peer's QP number, on datagrams.
        pub src_qp: u32,
        /// The kernel's `IB_WC_GRH`, `IB_WC_WITH_IMM`, ...: not the values of libibverbs.
        pub wc_flags: u32,
        /// Index of the P_Key, on GSI QPs.
        pub pkey_index: u16,
        /// LID of the peer, host order.
        pub slid: u16,
        /// Service level.
        pub sl: u8,
        /// Path bits of the LID that was addressed.
        pub dlid_path_bits: u8,
        /// Port that it came in on.
        pub port_num: u8,
        /// Written as 0.
        pub reserved: u8,
    }

    /// Response to [`ib_uverbs_poll_cq`].
    pub struct ib_uverbs_poll_cq_resp {
        /// Completions that follow.
        pub count: u32,
        /// Written as 0.
        pub reserved: u32,
        /// The completions.
        pub wc: [ib_uverbs_wc; 0],
    }

    /// Arms a completion queue through the kernel.
    pub struct ib_uverbs_req_notify_cq {
        /// Completion queue.
        pub cq_handle: u32,
        /// Non-zero: only solicited completions and errors notify.
        pub solicited_only: u32,
    }

    /// Destroys a completion queue.
    pub struct ib_uverbs_destroy_cq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Completion queue.
        pub cq_handle: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Response to [`ib_uverbs_destroy_cq`]: the number of events that the caller must have acknowledged.
    pub struct ib_uverbs_destroy_cq_resp {
        /// Completion events that were read from the channel.
        pub comp_events_reported: u32,
        /// Asynchronous events that were read from the event file.
        pub async_events_reported: u32,
    }

    /// When a completion event is raised: at the first limit that is reached.
    pub struct ib_uverbs_cq_moderation {
        /// Completions.
        pub cq_count: u16,
        /// Microseconds.
        pub cq_period: u16,
    }

    /// Sets the moderation of a completion queue.
    pub struct ib_uverbs_ex_modify_cq {
        /// Completion queue.
        pub cq_handle: u32,
        /// `IB_CQ_MODERATE`.
        pub attr_mask: u32,
        /// The moderation.
        pub attr: ib_uverbs_cq_moderation,
        /// Must be 0.
        pub reserved: u32,
    }
}

impl ib_uverbs_wc {
    /// The other member of `ex`: the key that the peer's send invalidated, host order.
    #[inline]
    pub const fn invalidate_rkey(&self) -> u32 {
        self.imm_data.to_bits()
    }
}
