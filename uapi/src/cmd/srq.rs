// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on shared receive queues.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::layout::abi_structs;

abi_structs! {
    /// Creates a shared receive queue.
    pub struct ib_uverbs_create_srq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Protection domain.
        pub pd_handle: u32,
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Scatter/gather entries of one work request.
        pub max_sge: u32,
        /// Fill level below which the limit event is raised; 0 disables it.
        pub srq_limit: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Creates a shared receive queue of any type.
    pub struct ib_uverbs_create_xsrq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// `IB_UVERBS_SRQT_*`.
        pub srq_type: u32,
        /// Protection domain.
        pub pd_handle: u32,
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Scatter/gather entries of one work request.
        pub max_sge: u32,
        /// Fill level below which the limit event is raised; 0 disables it.
        pub srq_limit: u32,
        /// Tags, of a tag-matching SRQ.
        pub max_num_tags: u32,
        /// XRC domain, of an XRC SRQ.
        pub xrcd_handle: u32,
        /// Completion queue, of an XRC or tag-matching SRQ.
        pub cq_handle: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_create_srq`] and [`ib_uverbs_create_xsrq`].
    pub struct ib_uverbs_create_srq_resp {
        /// Shared receive queue.
        pub srq_handle: u32,
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Scatter/gather entries of one work request.
        pub max_sge: u32,
        /// SRQ number, of an XRC SRQ.
        pub srqn: u32,
        /// Driver-private tail.
        pub driver_data: [u32; 0],
    }

    /// Changes a shared receive queue.
    pub struct ib_uverbs_modify_srq {
        /// Shared receive queue.
        pub srq_handle: u32,
        /// `IB_SRQ_MAX_WR` or `IB_SRQ_LIMIT`.
        pub attr_mask: u32,
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Fill level below which the limit event is raised; 0 disables it.
        pub srq_limit: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Queries the attributes of a shared receive queue.
    pub struct ib_uverbs_query_srq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Shared receive queue.
        pub srq_handle: u32,
        /// Must be 0.
        pub reserved: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_query_srq`].
    pub struct ib_uverbs_query_srq_resp {
        /// Work requests that the queue holds.
        pub max_wr: u32,
        /// Scatter/gather entries of one work request.
        pub max_sge: u32,
        /// Fill level below which the limit event is raised; 0 disables it.
        pub srq_limit: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Destroys a shared receive queue.
    pub struct ib_uverbs_destroy_srq {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Shared receive queue.
        pub srq_handle: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Response to [`ib_uverbs_destroy_srq`].
    pub struct ib_uverbs_destroy_srq_resp {
        /// Asynchronous events of the object that were read from the event file.
        pub events_reported: u32,
    }
}
