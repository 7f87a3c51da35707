// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that create, change, query and destroy queue pairs, and multicast membership.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::cmd::ib_uverbs_ah_attr;
use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// `comp_mask`: the indirection table handle is valid.
    pub const IB_UVERBS_CREATE_QP_MASK_IND_TABLE: u32 = 1 << 0;
    /// All bits of `comp_mask` that the ABI defines.
    pub const IB_UVERBS_CREATE_QP_SUP_COMP_MASK: u32 = 1 << 0;
}

abi_structs! {
    /// QP attributes as the connection manager (rdma_ucm) returns them.
    pub struct ib_uverbs_qp_attr {
        /// Mask of the attributes that are valid, `IB_QP_*`.
        pub qp_attr_mask: u32,
        /// `IB_QPS_*`.
        pub qp_state: u32,
        /// The current state that the caller assumes, `IB_QPS_*`.
        pub cur_qp_state: u32,
        /// `IB_MTU_*`.
        pub path_mtu: u32,
        /// `IB_MIG_*`.
        pub path_mig_state: u32,
        /// Q_Key of a datagram QP.
        pub qkey: u32,
        /// First packet sequence number expected, 24 bits.
        pub rq_psn: u32,
        /// First packet sequence number sent, 24 bits.
        pub sq_psn: u32,
        /// QP number of the peer, 24 bits.
        pub dest_qp_num: u32,
        /// Access rights of the peer, `IB_UVERBS_ACCESS_*`.
        pub qp_access_flags: u32,
        /// Primary path.
        pub ah_attr: ib_uverbs_ah_attr,
        /// Alternate path.
        pub alt_ah_attr: ib_uverbs_ah_attr,
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
        /// Index in the port's P_Key table.
        pub pkey_index: u16,
        /// P_Key index of the alternate path.
        pub alt_pkey_index: u16,
        /// Non-zero: report when the send queue has drained.
        pub en_sqd_async_notify: u8,
        /// Non-zero: the send queue is draining.
        pub sq_draining: u8,
        /// Reads and atomics outstanding as requester.
        pub max_rd_atomic: u8,
        /// Reads and atomics accepted as responder.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK delay, IBA encoding, 5 bits.
        pub min_rnr_timer: u8,
        /// Port, from 1.
        pub port_num: u8,
        /// ACK timeout, 4.096 us * 2^n; 0 means no timeout.
        pub timeout: u8,
        /// Transport retries, 3 bits.
        pub retry_cnt: u8,
        /// RNR retries, 3 bits; 7 means infinite.
        pub rnr_retry: u8,
        /// Port of the alternate path.
        pub alt_port_num: u8,
        /// ACK timeout of the alternate path.
        pub alt_timeout: u8,
        /// Written as 0.
        pub reserved: [u8; 5],
    }

    /// Creates a queue pair.
    pub struct ib_uverbs_create_qp {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Protection domain, or XRC domain for an XRC target.
        pub pd_handle: u32,
        /// CQ of the send queue.
        pub send_cq_handle: u32,
        /// CQ of the receive queue.
        pub recv_cq_handle: u32,
        /// Shared receive queue.
        pub srq_handle: u32,
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
        /// Non-zero: every send completes with a CQE.
        pub sq_sig_all: u8,
        /// `IB_UVERBS_QPT_*`.
        pub qp_type: u8,
        /// Non-zero: receives come from the SRQ.
        pub is_srq: u8,
        /// Must be 0.
        pub reserved: u8,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Creates a queue pair, with flags.
    pub struct ib_uverbs_ex_create_qp {
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Protection domain, or XRC domain for an XRC target.
        pub pd_handle: u32,
        /// CQ of the send queue.
        pub send_cq_handle: u32,
        /// CQ of the receive queue.
        pub recv_cq_handle: u32,
        /// Shared receive queue.
        pub srq_handle: u32,
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
        /// Non-zero: every send completes with a CQE.
        pub sq_sig_all: u8,
        /// `IB_UVERBS_QPT_*`.
        pub qp_type: u8,
        /// Non-zero: receives come from the SRQ.
        pub is_srq: u8,
        /// Must be 0.
        pub reserved: u8,
        /// [`IB_UVERBS_CREATE_QP_MASK_IND_TABLE`].
        pub comp_mask: u32,
        /// `IB_UVERBS_QP_CREATE_*`, and the kernel's flag that makes `source_qpn` valid (bit 10).
        pub create_flags: u32,
        /// Receive indirection table, if `comp_mask` has the bit for it.
        pub rwq_ind_tbl_handle: u32,
        /// Source QP number of outgoing packets.
        pub source_qpn: u32,
    }

    /// Opens the XRC target that another process created.
    pub struct ib_uverbs_open_qp {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// XRC domain.
        pub pd_handle: u32,
        /// Its QP number.
        pub qpn: u32,
        /// `IB_UVERBS_QPT_*`.
        pub qp_type: u8,
        /// Must be 0.
        pub reserved: [u8; 7],
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_create_qp`] and [`ib_uverbs_open_qp`].
    pub struct ib_uverbs_create_qp_resp {
        /// Queue pair.
        pub qp_handle: u32,
        /// QP number, 24 bits.
        pub qpn: u32,
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
        /// Written as 0.
        pub reserved: u32,
        /// Driver-private tail.
        pub driver_data: [u32; 0],
    }

    /// Response to [`ib_uverbs_ex_create_qp`].
    pub struct ib_uverbs_ex_create_qp_resp {
        /// The part shared with the older command.
        pub base: ib_uverbs_create_qp_resp,
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes of the response that the kernel filled in.
        pub response_length: u32,
    }

    /// A path.
    pub struct ib_uverbs_qp_dest {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Flow label, 20 bits.
        pub flow_label: u32,
        /// Destination LID.
        pub dlid: u16,
        /// Must be 0.
        pub reserved: u16,
        /// Index of the source GID in the port's table.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Service level.
        pub sl: u8,
        /// Path bits of the source LID.
        pub src_path_bits: u8,
        /// `IB_RATE_*`; 0 means no limit.
        pub static_rate: u8,
        /// Non-zero: the packets carry a GRH.
        pub is_global: u8,
        /// Port, from 1.
        pub port_num: u8,
    }

    /// Queries QP attributes.
    pub struct ib_uverbs_query_qp {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Queue pair.
        pub qp_handle: u32,
        /// Attributes to query or to set, `IB_QP_*`.
        pub attr_mask: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_query_qp`].
    pub struct ib_uverbs_query_qp_resp {
        /// Primary path.
        pub dest: ib_uverbs_qp_dest,
        /// Alternate path.
        pub alt_dest: ib_uverbs_qp_dest,
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
        /// Q_Key of a datagram QP.
        pub qkey: u32,
        /// First packet sequence number expected, 24 bits.
        pub rq_psn: u32,
        /// First packet sequence number sent, 24 bits.
        pub sq_psn: u32,
        /// QP number of the peer, 24 bits.
        pub dest_qp_num: u32,
        /// Access rights of the peer, `IB_UVERBS_ACCESS_*`.
        pub qp_access_flags: u32,
        /// Index in the port's P_Key table.
        pub pkey_index: u16,
        /// P_Key index of the alternate path.
        pub alt_pkey_index: u16,
        /// `IB_QPS_*`.
        pub qp_state: u8,
        /// The current state that the caller assumes, `IB_QPS_*`.
        pub cur_qp_state: u8,
        /// `IB_MTU_*`.
        pub path_mtu: u8,
        /// `IB_MIG_*`.
        pub path_mig_state: u8,
        /// Non-zero: the send queue is draining.
        pub sq_draining: u8,
        /// Reads and atomics outstanding as requester.
        pub max_rd_atomic: u8,
        /// Reads and atomics accepted as responder.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK delay, IBA encoding, 5 bits.
        pub min_rnr_timer: u8,
        /// Port, from 1.
        pub port_num: u8,
        /// ACK timeout, 4.096 us * 2^n; 0 means no timeout.
        pub timeout: u8,
        /// Transport retries, 3 bits.
        pub retry_cnt: u8,
        /// RNR retries, 3 bits; 7 means infinite.
        pub rnr_retry: u8,
        /// Port of the alternate path.
        pub alt_port_num: u8,
        /// ACK timeout of the alternate path.
        pub alt_timeout: u8,
        /// Non-zero: every send completes with a CQE.
        pub sq_sig_all: u8,
        /// Written as 0.
        pub reserved: [u8; 5],
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Changes QP attributes.
    pub struct ib_uverbs_modify_qp {
        /// Primary path.
        pub dest: ib_uverbs_qp_dest,
        /// Alternate path.
        pub alt_dest: ib_uverbs_qp_dest,
        /// Queue pair.
        pub qp_handle: u32,
        /// Attributes to query or to set, `IB_QP_*`.
        pub attr_mask: u32,
        /// Q_Key of a datagram QP.
        pub qkey: u32,
        /// First packet sequence number expected, 24 bits.
        pub rq_psn: u32,
        /// First packet sequence number sent, 24 bits.
        pub sq_psn: u32,
        /// QP number of the peer, 24 bits.
        pub dest_qp_num: u32,
        /// Access rights of the peer, `IB_UVERBS_ACCESS_*`.
        pub qp_access_flags: u32,
        /// Index in the port's P_Key table.
        pub pkey_index: u16,
        /// P_Key index of the alternate path.
        pub alt_pkey_index: u16,
        /// `IB_QPS_*`.
        pub qp_state: u8,
        /// The current state that the caller assumes, `IB_QPS_*`.
        pub cur_qp_state: u8,
        /// `IB_MTU_*`.
        pub path_mtu: u8,
        /// `IB_MIG_*`.
        pub path_mig_state: u8,
        /// Non-zero: report when the send queue has drained.
        pub en_sqd_async_notify: u8,
        /// Reads and atomics outstanding as requester.
        pub max_rd_atomic: u8,
        /// Reads and atomics accepted as responder.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK delay, IBA encoding, 5 bits.
        pub min_rnr_timer: u8,
        /// Port, from 1.
        pub port_num: u8,
        /// ACK timeout, 4.096 us * 2^n; 0 means no timeout.
        pub timeout: u8,
        /// Transport retries, 3 bits.
        pub retry_cnt: u8,
        /// RNR retries, 3 bits; 7 means infinite.
        pub rnr_retry: u8,
        /// Port of the alternate path.
        pub alt_port_num: u8,
        /// ACK timeout of the alternate path.
        pub alt_timeout: u8,
        /// Must be 0.
        pub reserved: [u8; 2],
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Changes QP attributes, with the rate limit.
    pub struct ib_uverbs_ex_modify_qp {
        /// The part shared with the older command.
        pub base: ib_uverbs_modify_qp,
        /// Rate limit of a raw packet QP, kbit/s.
        pub rate_limit: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Response to [`ib_uverbs_ex_modify_qp`].
    pub struct ib_uverbs_ex_modify_qp_resp {
        /// Written as 0.
        pub comp_mask: u32,
        /// Bytes of the response that the kernel filled in.
        pub response_length: u32,
    }

    /// Destroys a queue pair.
    pub struct ib_uverbs_destroy_qp {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Queue pair.
        pub qp_handle: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Response to [`ib_uverbs_destroy_qp`].
    pub struct ib_uverbs_destroy_qp_resp {
        /// Asynchronous events of the object that were read from the event file.
        pub events_reported: u32,
    }

    /// Attaches a QP to a multicast group.
    pub struct ib_uverbs_attach_mcast {
        /// Multicast GID.
        pub gid: [u8; 16],
        /// Queue pair.
        pub qp_handle: u32,
        /// Multicast LID.
        pub mlid: u16,
        /// Must be 0.
        pub reserved: u16,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Detaches a QP from a multicast group.
    pub struct ib_uverbs_detach_mcast {
        /// Multicast GID.
        pub gid: [u8; 16],
        /// Queue pair.
        pub qp_handle: u32,
        /// Multicast LID.
        pub mlid: u16,
        /// Must be 0.
        pub reserved: u16,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }
}
