// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on work queues and receive indirection tables (RSS).
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Largest `log_ind_tbl_size` that the kernel accepts.
    pub const IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE: u32 = 0xd;
}

abi_structs! {
    /// Creates a work queue.
    pub struct ib_uverbs_ex_create_wq {
        /// Must be 0.
        pub comp_mask: u32,
        /// `IB_UVERBS_WQT_*`.
        pub wq_type: u32,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Protection domain.
        pub pd_handle: u32,
        /// Completion queue.
        pub cq_handle: u32,
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Scatter/gather entries of one work request.
        pub max_sge: u32,
        /// `IB_UVERBS_WQ_FLAGS_*`.
        pub create_flags: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Response to [`ib_uverbs_ex_create_wq`].
    pub struct ib_uverbs_ex_create_wq_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes of the response that the kernel filled in.
        pub response_length: u32,
        /// Work queue.
        pub wq_handle: u32,
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Scatter/gather entries of one work request.
        pub max_sge: u32,
        /// WQ number.
        pub wqn: u32,
    }

    /// Destroys a work queue.
    pub struct ib_uverbs_ex_destroy_wq {
        /// Must be 0.
        pub comp_mask: u32,
        /// Work queue.
        pub wq_handle: u32,
    }

    /// Response to [`ib_uverbs_ex_destroy_wq`].
    pub struct ib_uverbs_ex_destroy_wq_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes of the response that the kernel filled in.
        pub response_length: u32,
        /// Asynchronous events of the object that were read from the event file.
        pub events_reported: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Changes a work queue.
    pub struct ib_uverbs_ex_modify_wq {
        /// Mask of the attributes that are set, `IB_WQ_*`.
        pub attr_mask: u32,
        /// Work queue.
        pub wq_handle: u32,
        /// New state, `IB_WQS_*`.
        pub wq_state: u32,
        /// The current state that the caller assumes, `IB_WQS_*`.
        pub curr_wq_state: u32,
        /// New flags, `IB_UVERBS_WQ_FLAGS_*`.
        pub flags: u32,
        /// Mask of the flags to change.
        pub flags_mask: u32,
    }

    /// Creates a receive indirection table.
    pub struct ib_uverbs_ex_create_rwq_ind_table {
        /// Must be 0.
        pub comp_mask: u32,
        /// log2 of the number of entries.
        pub log_ind_tbl_size: u32,
        /// The entries.
        pub wq_handles: [u32; 0],
    }

    /// Response to [`ib_uverbs_ex_create_rwq_ind_table`].
    pub struct ib_uverbs_ex_create_rwq_ind_table_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes of the response that the kernel filled in.
        pub response_length: u32,
        /// Receive indirection table.
        pub ind_tbl_handle: u32,
        /// Table number.
        pub ind_tbl_num: u32,
    }

    /// Destroys a receive indirection table.
    pub struct ib_uverbs_ex_destroy_rwq_ind_table {
        /// Must be 0.
        pub comp_mask: u32,
        /// Receive indirection table.
        pub ind_tbl_handle: u32,
    }
}
