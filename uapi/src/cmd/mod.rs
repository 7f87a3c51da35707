// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command structs behind the write interface.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.
//!
//! Under the ioctl the request and response structs are the `CORE_IN` and `CORE_OUT` attributes of
//! [`UVERBS_METHOD_INVOKE_WRITE`](crate::ids::UVERBS_METHOD_INVOKE_WRITE); the two headers here precede them
//! only on the older `write` path. An `ib_uverbs_ex_*` struct belongs to a command with
//! [`IB_USER_VERBS_CMD_FLAG_EXTENDED`].

pub(crate) mod ah;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod flow;
pub(crate) mod mr;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod wq;

pub use ah::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use mr::*;
pub use post::*;
pub use qp::*;
pub use srq::*;
pub use wq::*;

use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Version of the write ABI, as in sysfs.
    pub const IB_USER_VERBS_ABI_VERSION: u32 = 6;
    /// First command number that exists only as extended command.
    pub const IB_USER_VERBS_CMD_THRESHOLD: u32 = 50;
    /// Bits of the command word that are the number.
    pub const IB_USER_VERBS_CMD_COMMAND_MASK: u32 = 0xff;
    /// Bit of the command word: an extended command.
    pub const IB_USER_VERBS_CMD_FLAG_EXTENDED: u32 = 0x80000000;

    /// [`ib_uverbs_get_context`].
    pub const IB_USER_VERBS_CMD_GET_CONTEXT: u32 = 0;
    /// [`ib_uverbs_query_device`].
    pub const IB_USER_VERBS_CMD_QUERY_DEVICE: u32 = 1;
    /// [`ib_uverbs_query_port`].
    pub const IB_USER_VERBS_CMD_QUERY_PORT: u32 = 2;
    /// [`ib_uverbs_alloc_pd`].
    pub const IB_USER_VERBS_CMD_ALLOC_PD: u32 = 3;
    /// [`ib_uverbs_dealloc_pd`].
    pub const IB_USER_VERBS_CMD_DEALLOC_PD: u32 = 4;
    /// [`ib_uverbs_create_ah`].
    pub const IB_USER_VERBS_CMD_CREATE_AH: u32 = 5;
    /// Number without a command.
    pub const IB_USER_VERBS_CMD_MODIFY_AH: u32 = 6;
    /// Number without a command.
    pub const IB_USER_VERBS_CMD_QUERY_AH: u32 = 7;
    /// [`ib_uverbs_destroy_ah`].
    pub const IB_USER_VERBS_CMD_DESTROY_AH: u32 = 8;
    /// [`ib_uverbs_reg_mr`].
    pub const IB_USER_VERBS_CMD_REG_MR: u32 = 9;
    /// Number without a command.
    pub const IB_USER_VERBS_CMD_REG_SMR: u32 = 10;
    /// [`ib_uverbs_rereg_mr`].
    pub const IB_USER_VERBS_CMD_REREG_MR: u32 = 11;
    /// Number without a command.
    pub const IB_USER_VERBS_CMD_QUERY_MR: u32 = 12;
    /// [`ib_uverbs_dereg_mr`].
    pub const IB_USER_VERBS_CMD_DEREG_MR: u32 = 13;
    /// [`ib_uverbs_alloc_mw`].
    pub const IB_USER_VERBS_CMD_ALLOC_MW: u32 = 14;
    /// Number without a command.
    pub const IB_USER_VERBS_CMD_BIND_MW: u32 = 15;
    /// [`ib_uverbs_dealloc_mw`].
    pub const IB_USER_VERBS_CMD_DEALLOC_MW: u32 = 16;
    /// [`ib_uverbs_create_comp_channel`].
    pub const IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: u32 = 17;
    /// [`ib_uverbs_create_cq`].
    pub const IB_USER_VERBS_CMD_CREATE_CQ: u32 = 18;
    /// [`ib_uverbs_resize_cq`].
    pub const IB_USER_VERBS_CMD_RESIZE_CQ: u32 = 19;
    /// [`ib_uverbs_destroy_cq`].
    pub const IB_USER_VERBS_CMD_DESTROY_CQ: u32 = 20;
    /// [`ib_uverbs_poll_cq`].
    pub const IB_USER_VERBS_CMD_POLL_CQ: u32 = 21;
    /// Number without a command.
    pub const IB_USER_VERBS_CMD_PEEK_CQ: u32 = 22;
    /// [`ib_uverbs_req_notify_cq`].
    pub const IB_USER_VERBS_CMD_REQ_NOTIFY_CQ: u32 = 23;
    /// [`ib_uverbs_create_qp`].
    pub const IB_USER_VERBS_CMD_CREATE_QP: u32 = 24;
    /// [`ib_uverbs_query_qp`].
    pub const IB_USER_VERBS_CMD_QUERY_QP: u32 = 25;
    /// [`ib_uverbs_modify_qp`].
    pub const IB_USER_VERBS_CMD_MODIFY_QP: u32 = 26;
    /// [`ib_uverbs_destroy_qp`].
    pub const IB_USER_VERBS_CMD_DESTROY_QP: u32 = 27;
    /// [`ib_uverbs_post_send`].
    pub const IB_USER_VERBS_CMD_POST_SEND: u32 = 28;
    /// [`ib_uverbs_post_recv`].
    pub const IB_USER_VERBS_CMD_POST_RECV: u32 = 29;
    /// [`ib_uverbs_attach_mcast`].
    pub const IB_USER_VERBS_CMD_ATTACH_MCAST: u32 = 30;
    /// [`ib_uverbs_detach_mcast`].
    pub const IB_USER_VERBS_CMD_DETACH_MCAST: u32 = 31;
    /// [`ib_uverbs_create_srq`].
    pub const IB_USER_VERBS_CMD_CREATE_SRQ: u32 = 32;
    /// [`ib_uverbs_modify_srq`].
    pub const IB_USER_VERBS_CMD_MODIFY_SRQ: u32 = 33;
    /// [`ib_uverbs_query_srq`].
    pub const IB_USER_VERBS_CMD_QUERY_SRQ: u32 = 34;
    /// [`ib_uverbs_destroy_srq`].
    pub const IB_USER_VERBS_CMD_DESTROY_SRQ: u32 = 35;
    /// [`ib_uverbs_post_srq_recv`].
    pub const IB_USER_VERBS_CMD_POST_SRQ_RECV: u32 = 36;
    /// [`ib_uverbs_open_xrcd`].
    pub const IB_USER_VERBS_CMD_OPEN_XRCD: u32 = 37;
    /// [`ib_uverbs_close_xrcd`].
    pub const IB_USER_VERBS_CMD_CLOSE_XRCD: u32 = 38;
    /// [`ib_uverbs_create_xsrq`].
    pub const IB_USER_VERBS_CMD_CREATE_XSRQ: u32 = 39;
    /// [`ib_uverbs_open_qp`].
    pub const IB_USER_VERBS_CMD_OPEN_QP: u32 = 40;

    /// Extended: [`ib_uverbs_ex_query_device`].
    pub const IB_USER_VERBS_EX_CMD_QUERY_DEVICE: u32 = 1;
    /// Extended: [`ib_uverbs_ex_create_cq`].
    pub const IB_USER_VERBS_EX_CMD_CREATE_CQ: u32 = 18;
    /// Extended: [`ib_uverbs_ex_create_qp`].
    pub const IB_USER_VERBS_EX_CMD_CREATE_QP: u32 = 24;
    /// Extended: [`ib_uverbs_ex_modify_qp`].
    pub const IB_USER_VERBS_EX_CMD_MODIFY_QP: u32 = 26;
    /// Extended: [`ib_uverbs_create_flow`].
    pub const IB_USER_VERBS_EX_CMD_CREATE_FLOW: u32 = 50;
    /// Extended: [`ib_uverbs_destroy_flow`].
    pub const IB_USER_VERBS_EX_CMD_DESTROY_FLOW: u32 = 51;
    /// Extended: [`ib_uverbs_ex_create_wq`].
    pub const IB_USER_VERBS_EX_CMD_CREATE_WQ: u32 = 52;
    /// Extended: [`ib_uverbs_ex_modify_wq`].
    pub const IB_USER_VERBS_EX_CMD_MODIFY_WQ: u32 = 53;
    /// Extended: [`ib_uverbs_ex_destroy_wq`].
    pub const IB_USER_VERBS_EX_CMD_DESTROY_WQ: u32 = 54;
    /// Extended: [`ib_uverbs_ex_create_rwq_ind_table`].
    pub const IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL: u32 = 55;
    /// Extended: [`ib_uverbs_ex_destroy_rwq_ind_table`].
    pub const IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL: u32 = 56;
    /// Extended: [`ib_uverbs_ex_modify_cq`].
    pub const IB_USER_VERBS_EX_CMD_MODIFY_CQ: u32 = 57;
}

abi_structs! {
    /// Precedes every command of the `write` path.
    pub struct ib_uverbs_cmd_hdr {
        /// Command number and [`IB_USER_VERBS_CMD_FLAG_EXTENDED`].
        pub command: u32,
        /// Length of the request: 4-byte words with this header, or 8-byte words without it if extended.
        pub in_words: u16,
        /// Length of the response in 4-byte words, 8-byte words if extended.
        pub out_words: u16,
    }

    /// Follows [`ib_uverbs_cmd_hdr`] on an extended command.
    pub struct ib_uverbs_ex_cmd_hdr {
        /// Address of the response buffer.
        pub response: u64,
        /// Length of the driver-private request in 8-byte words.
        pub provider_in_words: u16,
        /// Length of the driver-private response in 8-byte words.
        pub provider_out_words: u16,
        /// Must be 0.
        pub cmd_hdr_reserved: u32,
    }
}
