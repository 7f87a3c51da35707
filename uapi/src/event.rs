// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of event files, and the numbers of asynchronous events.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`; the numbers from
//! `<infiniband/verbs.h>` (rdma-core, `GPL-2.0 OR Linux-OpenIB`).

use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// CQ: it overran or failed.
    #[c = "IBV_EVENT_CQ_ERR"]
    pub const IB_EVENT_CQ_ERR: u32 = 0;
    /// QP: error that left no completion.
    #[c = "IBV_EVENT_QP_FATAL"]
    pub const IB_EVENT_QP_FATAL: u32 = 1;
    /// QP: the responder received an invalid request.
    #[c = "IBV_EVENT_QP_REQ_ERR"]
    pub const IB_EVENT_QP_REQ_ERR: u32 = 2;
    /// QP: the responder received a request without the required access right.
    #[c = "IBV_EVENT_QP_ACCESS_ERR"]
    pub const IB_EVENT_QP_ACCESS_ERR: u32 = 3;
    /// QP: first packet arrived in the RTR state.
    #[c = "IBV_EVENT_COMM_EST"]
    pub const IB_EVENT_COMM_EST: u32 = 4;
    /// QP: the send queue has drained.
    #[c = "IBV_EVENT_SQ_DRAINED"]
    pub const IB_EVENT_SQ_DRAINED: u32 = 5;
    /// QP: moved to the alternate path.
    #[c = "IBV_EVENT_PATH_MIG"]
    pub const IB_EVENT_PATH_MIG: u32 = 6;
    /// QP: could not move to the alternate path.
    #[c = "IBV_EVENT_PATH_MIG_ERR"]
    pub const IB_EVENT_PATH_MIG_ERR: u32 = 7;
    /// Device: it failed or is removed.
    #[c = "IBV_EVENT_DEVICE_FATAL"]
    pub const IB_EVENT_DEVICE_FATAL: u32 = 8;
    /// Port: became active.
    #[c = "IBV_EVENT_PORT_ACTIVE"]
    pub const IB_EVENT_PORT_ACTIVE: u32 = 9;
    /// Port: no longer active.
    #[c = "IBV_EVENT_PORT_ERR"]
    pub const IB_EVENT_PORT_ERR: u32 = 10;
    /// Port: new LID.
    #[c = "IBV_EVENT_LID_CHANGE"]
    pub const IB_EVENT_LID_CHANGE: u32 = 11;
    /// Port: new P_Key table.
    #[c = "IBV_EVENT_PKEY_CHANGE"]
    pub const IB_EVENT_PKEY_CHANGE: u32 = 12;
    /// Port: new subnet manager.
    #[c = "IBV_EVENT_SM_CHANGE"]
    pub const IB_EVENT_SM_CHANGE: u32 = 13;
    /// SRQ: it failed.
    #[c = "IBV_EVENT_SRQ_ERR"]
    pub const IB_EVENT_SRQ_ERR: u32 = 14;
    /// SRQ: fell below its limit.
    #[c = "IBV_EVENT_SRQ_LIMIT_REACHED"]
    pub const IB_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
    /// QP in error: took its last receive from the SRQ.
    #[c = "IBV_EVENT_QP_LAST_WQE_REACHED"]
    pub const IB_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
    /// Port: the subnet manager requests that clients subscribe again.
    #[c = "IBV_EVENT_CLIENT_REREGISTER"]
    pub const IB_EVENT_CLIENT_REREGISTER: u32 = 17;
    /// Port: new GID table.
    #[c = "IBV_EVENT_GID_CHANGE"]
    pub const IB_EVENT_GID_CHANGE: u32 = 18;
    /// WQ: it failed.
    #[c = "IBV_EVENT_WQ_FATAL"]
    pub const IB_EVENT_WQ_FATAL: u32 = 19;
    /// Device: its speed changed. Kernels of 2026.
    #[c = "IBV_EVENT_DEVICE_SPEED_CHANGE"]
    pub const IB_EVENT_DEVICE_SPEED_CHANGE: u32 = 20;
}

abi_structs! {
    /// One record of an asynchronous event file.
    pub struct ib_uverbs_async_event_desc {
        /// User handle of the object, or the port number.
        pub element: u64,
        /// `IB_EVENT_*`.
        pub event_type: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// One record of a completion channel.
    pub struct ib_uverbs_comp_event_desc {
        /// User handle of the completion queue.
        pub cq_handle: u64,
    }
}
