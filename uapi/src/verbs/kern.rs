// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that cross the ABI although no kernel header exports them.
//!
//! Facts from `<infiniband/verbs.h>` (rdma-core), which has the licence text
//! (`GPL-2.0 OR Linux-OpenIB`) in place of an SPDX line.
//!
//! The names are those inside the kernel. If libibverbs has the number, the test compares with it; otherwise the
//! documentation says that it has none.

use crate::layout::abi_consts;

abi_consts! {
    /// QP attribute mask: `qp_state`.
    #[c = "IBV_QP_STATE"]
    pub const IB_QP_STATE: u32 = 1 << 0;
    /// QP attribute mask: `cur_qp_state`.
    #[c = "IBV_QP_CUR_STATE"]
    pub const IB_QP_CUR_STATE: u32 = 1 << 1;
    /// QP attribute mask: `en_sqd_async_notify`.
    #[c = "IBV_QP_EN_SQD_ASYNC_NOTIFY"]
    pub const IB_QP_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    /// QP attribute mask: `qp_access_flags`.
    #[c = "IBV_QP_ACCESS_FLAGS"]
    pub const IB_QP_ACCESS_FLAGS: u32 = 1 << 3;
    /// QP attribute mask: `pkey_index`.
    #[c = "IBV_QP_PKEY_INDEX"]
    pub const IB_QP_PKEY_INDEX: u32 = 1 << 4;
    /// QP attribute mask: `port_num`.
    #[c = "IBV_QP_PORT"]
    pub const IB_QP_PORT: u32 = 1 << 5;
    /// QP attribute mask: `qkey`.
    #[c = "IBV_QP_QKEY"]
    pub const IB_QP_QKEY: u32 = 1 << 6;
    /// QP attribute mask: `dest`, the primary path.
    #[c = "IBV_QP_AV"]
    pub const IB_QP_AV: u32 = 1 << 7;
    /// QP attribute mask: `path_mtu`.
    #[c = "IBV_QP_PATH_MTU"]
    pub const IB_QP_PATH_MTU: u32 = 1 << 8;
    /// QP attribute mask: `timeout`.
    #[c = "IBV_QP_TIMEOUT"]
    pub const IB_QP_TIMEOUT: u32 = 1 << 9;
    /// QP attribute mask: `retry_cnt`.
    #[c = "IBV_QP_RETRY_CNT"]
    pub const IB_QP_RETRY_CNT: u32 = 1 << 10;
    /// QP attribute mask: `rnr_retry`.
    #[c = "IBV_QP_RNR_RETRY"]
    pub const IB_QP_RNR_RETRY: u32 = 1 << 11;
    /// QP attribute mask: `rq_psn`.
    #[c = "IBV_QP_RQ_PSN"]
    pub const IB_QP_RQ_PSN: u32 = 1 << 12;
    /// QP attribute mask: `max_rd_atomic`.
    #[c = "IBV_QP_MAX_QP_RD_ATOMIC"]
    pub const IB_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    /// QP attribute mask: `alt_dest` and the other `alt_*`.
    #[c = "IBV_QP_ALT_PATH"]
    pub const IB_QP_ALT_PATH: u32 = 1 << 14;
    /// QP attribute mask: `min_rnr_timer`.
    #[c = "IBV_QP_MIN_RNR_TIMER"]
    pub const IB_QP_MIN_RNR_TIMER: u32 = 1 << 15;
    /// QP attribute mask: `sq_psn`.
    #[c = "IBV_QP_SQ_PSN"]
    pub const IB_QP_SQ_PSN: u32 = 1 << 16;
    /// QP attribute mask: `max_dest_rd_atomic`.
    #[c = "IBV_QP_MAX_DEST_RD_ATOMIC"]
    pub const IB_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// QP attribute mask: `path_mig_state`.
    #[c = "IBV_QP_PATH_MIG_STATE"]
    pub const IB_QP_PATH_MIG_STATE: u32 = 1 << 18;
    /// QP attribute mask: `max_send_wr` and the other capacities.
    #[c = "IBV_QP_CAP"]
    pub const IB_QP_CAP: u32 = 1 << 19;
    /// QP attribute mask: `dest_qp_num`.
    #[c = "IBV_QP_DEST_QPN"]
    pub const IB_QP_DEST_QPN: u32 = 1 << 20;
    /// QP attribute mask: `rate_limit`; the extended command only.
    #[c = "IBV_QP_RATE_LIMIT"]
    pub const IB_QP_RATE_LIMIT: u32 = 1 << 25;

    /// QP state: created; no work requests can be posted.
    #[c = "IBV_QPS_RESET"]
    pub const IB_QPS_RESET: u8 = 0;
    /// QP state: receives can be posted.
    #[c = "IBV_QPS_INIT"]
    pub const IB_QPS_INIT: u8 = 1;
    /// QP state: ready to receive.
    #[c = "IBV_QPS_RTR"]
    pub const IB_QPS_RTR: u8 = 2;
    /// QP state: ready to send.
    #[c = "IBV_QPS_RTS"]
    pub const IB_QPS_RTS: u8 = 3;
    /// QP state: send queue drained or draining.
    #[c = "IBV_QPS_SQD"]
    pub const IB_QPS_SQD: u8 = 4;
    /// QP state: send queue failed.
    #[c = "IBV_QPS_SQE"]
    pub const IB_QPS_SQE: u8 = 5;
    /// QP state: failed; work requests are flushed.
    #[c = "IBV_QPS_ERR"]
    pub const IB_QPS_ERR: u8 = 6;
    /// Path migration: on the new path.
    #[c = "IBV_MIG_MIGRATED"]
    pub const IB_MIG_MIGRATED: u8 = 0;
    /// Path migration: the alternate path is being armed.
    #[c = "IBV_MIG_REARM"]
    pub const IB_MIG_REARM: u8 = 1;
    /// Path migration: the alternate path is ready.
    #[c = "IBV_MIG_ARMED"]
    pub const IB_MIG_ARMED: u8 = 2;
    /// Path MTU of 256 bytes.
    #[c = "IBV_MTU_256"]
    pub const IB_MTU_256: u8 = 1;
    /// Path MTU of 512 bytes.
    #[c = "IBV_MTU_512"]
    pub const IB_MTU_512: u8 = 2;
    /// Path MTU of 1024 bytes.
    #[c = "IBV_MTU_1024"]
    pub const IB_MTU_1024: u8 = 3;
    /// Path MTU of 2048 bytes.
    #[c = "IBV_MTU_2048"]
    pub const IB_MTU_2048: u8 = 4;
    /// Path MTU of 4096 bytes.
    #[c = "IBV_MTU_4096"]
    pub const IB_MTU_4096: u8 = 5;

    /// Port state: no state (a change request without one).
    #[c = "IBV_PORT_NOP"]
    pub const IB_PORT_NOP: u8 = 0;
    /// Port state: down.
    #[c = "IBV_PORT_DOWN"]
    pub const IB_PORT_DOWN: u8 = 1;
    /// Port state: initialising.
    #[c = "IBV_PORT_INIT"]
    pub const IB_PORT_INIT: u8 = 2;
    /// Port state: armed.
    #[c = "IBV_PORT_ARMED"]
    pub const IB_PORT_ARMED: u8 = 3;
    /// Port state: active.
    #[c = "IBV_PORT_ACTIVE"]
    pub const IB_PORT_ACTIVE: u8 = 4;
    /// Port state: active, link retraining.
    #[c = "IBV_PORT_ACTIVE_DEFER"]
    pub const IB_PORT_ACTIVE_DEFER: u8 = 5;
    /// Link layer: none (iWARP and the like).
    #[c = "IBV_LINK_LAYER_UNSPECIFIED"]
    pub const IB_LINK_LAYER_UNSPECIFIED: u8 = 0;
    /// Link layer: InfiniBand.
    #[c = "IBV_LINK_LAYER_INFINIBAND"]
    pub const IB_LINK_LAYER_INFINIBAND: u8 = 1;
    /// Link layer: Ethernet.
    #[c = "IBV_LINK_LAYER_ETHERNET"]
    pub const IB_LINK_LAYER_ETHERNET: u8 = 2;

    /// Static rate: that of the port.
    #[c = "IBV_RATE_MAX"]
    pub const IB_RATE_PORT_CURRENT: u8 = 0;
    /// Static rate of 2.5 Gbit/s.
    #[c = "IBV_RATE_2_5_GBPS"]
    pub const IB_RATE_2_5_GBPS: u8 = 2;
    /// Static rate of 5 Gbit/s.
    #[c = "IBV_RATE_5_GBPS"]
    pub const IB_RATE_5_GBPS: u8 = 5;
    /// Static rate of 10 Gbit/s.
    #[c = "IBV_RATE_10_GBPS"]
    pub const IB_RATE_10_GBPS: u8 = 3;
    /// Static rate of 20 Gbit/s.
    #[c = "IBV_RATE_20_GBPS"]
    pub const IB_RATE_20_GBPS: u8 = 6;
    /// Static rate of 30 Gbit/s.
    #[c = "IBV_RATE_30_GBPS"]
    pub const IB_RATE_30_GBPS: u8 = 4;
    /// Static rate of 40 Gbit/s.
    #[c = "IBV_RATE_40_GBPS"]
    pub const IB_RATE_40_GBPS: u8 = 7;
    /// Static rate of 60 Gbit/s.
    #[c = "IBV_RATE_60_GBPS"]
    pub const IB_RATE_60_GBPS: u8 = 8;
    /// Static rate of 80 Gbit/s.
    #[c = "IBV_RATE_80_GBPS"]
    pub const IB_RATE_80_GBPS: u8 = 9;
    /// Static rate of 120 Gbit/s.
    #[c = "IBV_RATE_120_GBPS"]
    pub const IB_RATE_120_GBPS: u8 = 10;
    /// Static rate of 14 Gbit/s.
    #[c = "IBV_RATE_14_GBPS"]
    pub const IB_RATE_14_GBPS: u8 = 11;
    /// Static rate of 56 Gbit/s.
    #[c = "IBV_RATE_56_GBPS"]
    pub const IB_RATE_56_GBPS: u8 = 12;
    /// Static rate of 112 Gbit/s.
    #[c = "IBV_RATE_112_GBPS"]
    pub const IB_RATE_112_GBPS: u8 = 13;
    /// Static rate of 168 Gbit/s.
    #[c = "IBV_RATE_168_GBPS"]
    pub const IB_RATE_168_GBPS: u8 = 14;
    /// Static rate of 25 Gbit/s.
    #[c = "IBV_RATE_25_GBPS"]
    pub const IB_RATE_25_GBPS: u8 = 15;
    /// Static rate of 100 Gbit/s.
    #[c = "IBV_RATE_100_GBPS"]
    pub const IB_RATE_100_GBPS: u8 = 16;
    /// Static rate of 200 Gbit/s.
    #[c = "IBV_RATE_200_GBPS"]
    pub const IB_RATE_200_GBPS: u8 = 17;
    /// Static rate of 300 Gbit/s.
    #[c = "IBV_RATE_300_GBPS"]
    pub const IB_RATE_300_GBPS: u8 = 18;
    /// Static rate of 28 Gbit/s.
    #[c = "IBV_RATE_28_GBPS"]
    pub const IB_RATE_28_GBPS: u8 = 19;
    /// Static rate of 50 Gbit/s.
    #[c = "IBV_RATE_50_GBPS"]
    pub const IB_RATE_50_GBPS: u8 = 20;
    /// Static rate of 400 Gbit/s.
    #[c = "IBV_RATE_400_GBPS"]
    pub const IB_RATE_400_GBPS: u8 = 21;
    /// Static rate of 600 Gbit/s.
    #[c = "IBV_RATE_600_GBPS"]
    pub const IB_RATE_600_GBPS: u8 = 22;
    /// Static rate of 800 Gbit/s.
    #[c = "IBV_RATE_800_GBPS"]
    pub const IB_RATE_800_GBPS: u8 = 23;
    /// Static rate of 1200 Gbit/s.
    #[c = "IBV_RATE_1200_GBPS"]
    pub const IB_RATE_1200_GBPS: u8 = 24;

    /// Memory window bound by a verb; belongs to a PD.
    #[c = "IBV_MW_TYPE_1"]
    pub const IB_MW_TYPE_1: u8 = 1;
    /// Memory window bound by a work request; belongs to a QP once bound.
    #[c = "IBV_MW_TYPE_2"]
    pub const IB_MW_TYPE_2: u8 = 2;

    /// Atomicity: no atomics.
    #[c = "IBV_ATOMIC_NONE"]
    pub const IB_ATOMIC_NONE: u32 = 0;
    /// Atomicity: among this device's accesses.
    #[c = "IBV_ATOMIC_HCA"]
    pub const IB_ATOMIC_HCA: u32 = 1;
    /// Atomicity: among all accesses to the memory.
    #[c = "IBV_ATOMIC_GLOB"]
    pub const IB_ATOMIC_GLOB: u32 = 2;

    /// Memory region change: the memory.
    #[c = "IBV_REREG_MR_CHANGE_TRANSLATION"]
    pub const IB_MR_REREG_TRANS: u32 = 1 << 0;
    /// Memory region change: the protection domain.
    #[c = "IBV_REREG_MR_CHANGE_PD"]
    pub const IB_MR_REREG_PD: u32 = 1 << 1;
    /// Memory region change: the access flags.
    #[c = "IBV_REREG_MR_CHANGE_ACCESS"]
    pub const IB_MR_REREG_ACCESS: u32 = 1 << 2;
    /// SRQ attribute mask: `max_wr`.
    #[c = "IBV_SRQ_MAX_WR"]
    pub const IB_SRQ_MAX_WR: u32 = 1 << 0;
    /// SRQ attribute mask: `srq_limit`.
    #[c = "IBV_SRQ_LIMIT"]
    pub const IB_SRQ_LIMIT: u32 = 1 << 1;
    /// CQ attribute mask: the moderation.
    #[c = "IBV_CQ_ATTR_MODERATE"]
    pub const IB_CQ_MODERATE: u32 = 1 << 0;
    /// WQ attribute mask: `wq_state`.
    #[c = "IBV_WQ_ATTR_STATE"]
    pub const IB_WQ_STATE: u32 = 1 << 0;
    /// WQ attribute mask: `curr_wq_state`.
    #[c = "IBV_WQ_ATTR_CURR_STATE"]
    pub const IB_WQ_CUR_STATE: u32 = 1 << 1;
    /// WQ attribute mask: `flags`.
    #[c = "IBV_WQ_ATTR_FLAGS"]
    pub const IB_WQ_FLAGS: u32 = 1 << 2;

    /// WQ state: created; no work requests can be posted.
    #[c = "IBV_WQS_RESET"]
    pub const IB_WQS_RESET: u32 = 0;
    /// WQ state: operational.
    #[c = "IBV_WQS_RDY"]
    pub const IB_WQS_RDY: u32 = 1;
    /// WQ state: failed; work requests are flushed.
    #[c = "IBV_WQS_ERR"]
    pub const IB_WQS_ERR: u32 = 2;

    /// Send flag: waits for earlier reads and atomics.
    #[c = "IBV_SEND_FENCE"]
    pub const IB_SEND_FENCE: u32 = 1 << 0;
    /// Send flag: completes with a CQE.
    #[c = "IBV_SEND_SIGNALED"]
    pub const IB_SEND_SIGNALED: u32 = 1 << 1;
    /// Send flag: makes the peer's completion a solicited one.
    #[c = "IBV_SEND_SOLICITED"]
    pub const IB_SEND_SOLICITED: u32 = 1 << 2;
    /// Send flag: the data are in the work request.
    #[c = "IBV_SEND_INLINE"]
    pub const IB_SEND_INLINE: u32 = 1 << 3;
    /// Send flag: the device computes the checksums.
    #[c = "IBV_SEND_IP_CSUM"]
    pub const IB_SEND_IP_CSUM: u32 = 1 << 4;

    /// Completion status: success.
    #[c = "IBV_WC_SUCCESS"]
    pub const IB_WC_SUCCESS: u32 = 0;
    /// Completion status: a local buffer is too short, or the message too long.
    #[c = "IBV_WC_LOC_LEN_ERR"]
    pub const IB_WC_LOC_LEN_ERR: u32 = 1;
    /// Completion status: the work request is malformed.
    #[c = "IBV_WC_LOC_QP_OP_ERR"]
    pub const IB_WC_LOC_QP_OP_ERR: u32 = 2;
    /// Completion status: local end-to-end context error (RD).
    #[c = "IBV_WC_LOC_EEC_OP_ERR"]
    pub const IB_WC_LOC_EEC_OP_ERR: u32 = 3;
    /// Completion status: a local key or range is invalid.
    #[c = "IBV_WC_LOC_PROT_ERR"]
    pub const IB_WC_LOC_PROT_ERR: u32 = 4;
    /// Completion status: the work request was flushed.
    #[c = "IBV_WC_WR_FLUSH_ERR"]
    pub const IB_WC_WR_FLUSH_ERR: u32 = 5;
    /// Completion status: the window could not be bound.
    #[c = "IBV_WC_MW_BIND_ERR"]
    pub const IB_WC_MW_BIND_ERR: u32 = 6;
    /// Completion status: unexpected response.
    #[c = "IBV_WC_BAD_RESP_ERR"]
    pub const IB_WC_BAD_RESP_ERR: u32 = 7;
    /// Completion status: a local region does not permit the access.
    #[c = "IBV_WC_LOC_ACCESS_ERR"]
    pub const IB_WC_LOC_ACCESS_ERR: u32 = 8;
    /// Completion status: the peer reports an invalid request.
    #[c = "IBV_WC_REM_INV_REQ_ERR"]
    pub const IB_WC_REM_INV_REQ_ERR: u32 = 9;
    /// Completion status: the peer refuses access.
    #[c = "IBV_WC_REM_ACCESS_ERR"]
    pub const IB_WC_REM_ACCESS_ERR: u32 = 10;
    /// Completion status: the peer could not execute the request.
    #[c = "IBV_WC_REM_OP_ERR"]
    pub const IB_WC_REM_OP_ERR: u32 = 11;
    /// Completion status: no answer after all retries.
    #[c = "IBV_WC_RETRY_EXC_ERR"]
    pub const IB_WC_RETRY_EXC_ERR: u32 = 12;
    /// Completion status: the peer had no receive after all retries.
    #[c = "IBV_WC_RNR_RETRY_EXC_ERR"]
    pub const IB_WC_RNR_RETRY_EXC_ERR: u32 = 13;
    /// Completion status: reliable datagram domain mismatch (RD).
    #[c = "IBV_WC_LOC_RDD_VIOL_ERR"]
    pub const IB_WC_LOC_RDD_VIOL_ERR: u32 = 14;
    /// Completion status: the peer reports an invalid RD request.
    #[c = "IBV_WC_REM_INV_RD_REQ_ERR"]
    pub const IB_WC_REM_INV_RD_REQ_ERR: u32 = 15;
    /// Completion status: the peer aborted.
    #[c = "IBV_WC_REM_ABORT_ERR"]
    pub const IB_WC_REM_ABORT_ERR: u32 = 16;
    /// Completion status: invalid end-to-end context number (RD).
    #[c = "IBV_WC_INV_EECN_ERR"]
    pub const IB_WC_INV_EECN_ERR: u32 = 17;
    /// Completion status: invalid end-to-end context state (RD).
    #[c = "IBV_WC_INV_EEC_STATE_ERR"]
    pub const IB_WC_INV_EEC_STATE_ERR: u32 = 18;
    /// Completion status: fatal transport error.
    #[c = "IBV_WC_FATAL_ERR"]
    pub const IB_WC_FATAL_ERR: u32 = 19;
    /// Completion status: the response came too late.
    #[c = "IBV_WC_RESP_TIMEOUT_ERR"]
    pub const IB_WC_RESP_TIMEOUT_ERR: u32 = 20;
    /// Completion status: another error.
    #[c = "IBV_WC_GENERAL_ERR"]
    pub const IB_WC_GENERAL_ERR: u32 = 21;

    /// Completion opcode: a receive; also the bit for receives.
    #[c = "IBV_WC_RECV"]
    pub const IB_WC_RECV: u32 = 0x80;
    /// Completion opcode: a receive consumed by an RDMA write with immediate data.
    #[c = "IBV_WC_RECV_RDMA_WITH_IMM"]
    pub const IB_WC_RECV_RDMA_WITH_IMM: u32 = 0x81;

    /// Completion flag: 40 bytes of GRH precede the data.
    #[c = "IBV_WC_GRH"]
    pub const IB_WC_GRH: u32 = 1 << 0;
    /// Completion flag: there are immediate data.
    #[c = "IBV_WC_WITH_IMM"]
    pub const IB_WC_WITH_IMM: u32 = 1 << 1;
    /// Completion flag: a key was invalidated. libibverbs has this as `1 << 3`.
    #[c = ""]
    pub const IB_WC_WITH_INVALIDATE: u32 = 1 << 2;
    /// Completion flag: the checksums are correct. libibverbs has this as `1 << 2`.
    #[c = ""]
    pub const IB_WC_IP_CSUM_OK: u32 = 1 << 3;
    /// QP creation flag: `source_qpn` is valid. Combined with `IB_UVERBS_QP_CREATE_*`.
    #[c = "IBV_QP_CREATE_SOURCE_QPN"]
    pub const IB_QP_CREATE_SOURCE_QPN: u32 = 1 << 10;

    /// Steering rule: packets that match the specifications.
    #[c = "IBV_FLOW_ATTR_NORMAL"]
    pub const IB_FLOW_ATTR_NORMAL: u32 = 0x0;
    /// Steering rule: packets that no other rule matches.
    #[c = "IBV_FLOW_ATTR_ALL_DEFAULT"]
    pub const IB_FLOW_ATTR_ALL_DEFAULT: u32 = 0x1;
    /// Steering rule: multicast that no other rule matches.
    #[c = "IBV_FLOW_ATTR_MC_DEFAULT"]
    pub const IB_FLOW_ATTR_MC_DEFAULT: u32 = 0x2;
    /// Steering rule: all packets of the port.
    #[c = "IBV_FLOW_ATTR_SNIFFER"]
    pub const IB_FLOW_ATTR_SNIFFER: u32 = 0x3;

    /// Steering rule flag: later rules also get the packet.
    #[c = "IBV_FLOW_ATTR_FLAGS_DONT_TRAP"]
    pub const IB_FLOW_ATTR_FLAGS_DONT_TRAP: u32 = 1 << 1;
    /// Steering rule flag: packets sent.
    #[c = "IBV_FLOW_ATTR_FLAGS_EGRESS"]
    pub const IB_FLOW_ATTR_FLAGS_EGRESS: u32 = 1 << 2;

    /// Flow specification: Ethernet.
    #[c = "IBV_FLOW_SPEC_ETH"]
    pub const IB_FLOW_SPEC_ETH: u32 = 0x20;
    /// Flow specification: IPv4.
    #[c = "IBV_FLOW_SPEC_IPV4"]
    pub const IB_FLOW_SPEC_IPV4: u32 = 0x30;
    /// Flow specification: IPv6.
    #[c = "IBV_FLOW_SPEC_IPV6"]
    pub const IB_FLOW_SPEC_IPV6: u32 = 0x31;
    /// Flow specification: ESP.
    #[c = "IBV_FLOW_SPEC_ESP"]
    pub const IB_FLOW_SPEC_ESP: u32 = 0x34;
    /// Flow specification: TCP.
    #[c = "IBV_FLOW_SPEC_TCP"]
    pub const IB_FLOW_SPEC_TCP: u32 = 0x40;
    /// Flow specification: UDP.
    #[c = "IBV_FLOW_SPEC_UDP"]
    pub const IB_FLOW_SPEC_UDP: u32 = 0x41;
    /// Flow specification: VXLAN.
    #[c = "IBV_FLOW_SPEC_VXLAN_TUNNEL"]
    pub const IB_FLOW_SPEC_VXLAN_TUNNEL: u32 = 0x50;
    /// Flow specification: GRE.
    #[c = "IBV_FLOW_SPEC_GRE"]
    pub const IB_FLOW_SPEC_GRE: u32 = 0x51;
    /// Flow specification: MPLS.
    #[c = "IBV_FLOW_SPEC_MPLS"]
    pub const IB_FLOW_SPEC_MPLS: u32 = 0x60;
    /// Flow specification: bit: of the inner packet.
    #[c = "IBV_FLOW_SPEC_INNER"]
    pub const IB_FLOW_SPEC_INNER: u32 = 0x100;
    /// Flow action: tag.
    #[c = "IBV_FLOW_SPEC_ACTION_TAG"]
    pub const IB_FLOW_SPEC_ACTION_TAG: u32 = 0x1000;
    /// Flow action: drop.
    #[c = "IBV_FLOW_SPEC_ACTION_DROP"]
    pub const IB_FLOW_SPEC_ACTION_DROP: u32 = 0x1001;
    /// Flow action: flow action.
    #[c = "IBV_FLOW_SPEC_ACTION_HANDLE"]
    pub const IB_FLOW_SPEC_ACTION_HANDLE: u32 = 0x1002;
    /// Flow action: count.
    #[c = "IBV_FLOW_SPEC_ACTION_COUNT"]
    pub const IB_FLOW_SPEC_ACTION_COUNT: u32 = 0x1003;
}
