// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of the admin queue that create, change and destroy objects, and their answers.
//!
//! A command without a struct is an [`AqCommonDesc`], and an answer without one is an [`AcqCommonDesc`]. Facts from
//! `efa_admin_cmds_defs.h` of Amazon's kernel driver, version 3.1. Fields that Linux 6.1 does not have are marked; a device that lacks them
//! writes 0 there, or ignores them.

#[cfg(doc)]
use crate::admin::CtrlBuffInfo;
use crate::admin::{AcqCommonDesc, AqCommonDesc, MemAddr};
use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Major version of the commands.
    pub const EFA_ADMIN_API_VERSION_MAJOR: u32 = 0;
    /// Minor version of the commands.
    pub const EFA_ADMIN_API_VERSION_MINOR: u32 = 1;

    /// [`CreateQpCmd`].
    pub const EFA_ADMIN_CREATE_QP: u8 = 1;
    /// [`ModifyQpCmd`].
    pub const EFA_ADMIN_MODIFY_QP: u8 = 2;
    /// [`QueryQpCmd`].
    pub const EFA_ADMIN_QUERY_QP: u8 = 3;
    /// [`DestroyQpCmd`].
    pub const EFA_ADMIN_DESTROY_QP: u8 = 4;
    /// [`CreateAhCmd`].
    pub const EFA_ADMIN_CREATE_AH: u8 = 5;
    /// [`DestroyAhCmd`].
    pub const EFA_ADMIN_DESTROY_AH: u8 = 6;
    /// [`RegMrCmd`].
    pub const EFA_ADMIN_REG_MR: u8 = 7;
    /// [`DeregMrCmd`].
    pub const EFA_ADMIN_DEREG_MR: u8 = 8;
    /// [`CreateCqCmd`].
    pub const EFA_ADMIN_CREATE_CQ: u8 = 9;
    /// [`DestroyCqCmd`].
    pub const EFA_ADMIN_DESTROY_CQ: u8 = 10;
    /// [`GetFeatureCmd`](crate::feature::GetFeatureCmd).
    pub const EFA_ADMIN_GET_FEATURE: u8 = 11;
    /// [`SetFeatureCmd`](crate::feature::SetFeatureCmd).
    pub const EFA_ADMIN_SET_FEATURE: u8 = 12;
    /// [`GetStatsCmd`](crate::feature::GetStatsCmd).
    pub const EFA_ADMIN_GET_STATS: u8 = 13;
    /// Allocates a protection domain.
    pub const EFA_ADMIN_ALLOC_PD: u8 = 14;
    /// [`DeallocPdCmd`].
    pub const EFA_ADMIN_DEALLOC_PD: u8 = 15;
    /// Allocates a page of doorbells.
    pub const EFA_ADMIN_ALLOC_UAR: u8 = 16;
    /// [`DeallocUarCmd`].
    pub const EFA_ADMIN_DEALLOC_UAR: u8 = 17;
    /// [`CreateEqCmd`]. Newer devices.
    pub const EFA_ADMIN_CREATE_EQ: u8 = 18;
    /// [`DestroyEqCmd`]. Newer devices.
    pub const EFA_ADMIN_DESTROY_EQ: u8 = 19;
    /// [`AllocMrCmd`]. Newer devices.
    pub const EFA_ADMIN_ALLOC_MR: u8 = 20;

    /// QP: unreliable datagram.
    pub const EFA_ADMIN_QP_TYPE_UD: u8 = 1;
    /// QP: scalable reliable datagram.
    pub const EFA_ADMIN_QP_TYPE_SRD: u8 = 2;

    /// State of a QP: reset.
    pub const EFA_ADMIN_QP_STATE_RESET: u32 = 0;
    /// State of a QP: initialized.
    pub const EFA_ADMIN_QP_STATE_INIT: u32 = 1;
    /// State of a QP: ready to receive.
    pub const EFA_ADMIN_QP_STATE_RTR: u32 = 2;
    /// State of a QP: ready to send.
    pub const EFA_ADMIN_QP_STATE_RTS: u32 = 3;
    /// State of a QP: send queue drained.
    pub const EFA_ADMIN_QP_STATE_SQD: u32 = 4;
    /// State of a QP: error of the send queue.
    pub const EFA_ADMIN_QP_STATE_SQE: u32 = 5;
    /// State of a QP: error.
    pub const EFA_ADMIN_QP_STATE_ERR: u32 = 6;

    /// [`CreateQpCmd::flags`]: the send ring's address is virtual.
    pub const EFA_ADMIN_CREATE_QP_CMD_SQ_VIRT_MASK: u8 = 1;
    /// [`CreateQpCmd::flags`]: the receive ring's address is virtual.
    pub const EFA_ADMIN_CREATE_QP_CMD_RQ_VIRT_MASK: u8 = 1 << 1;
    /// [`CreateQpCmd::flags`]: a write with immediate data consumes no receive. Newer devices.
    pub const EFA_ADMIN_CREATE_QP_CMD_UNSOLICITED_WRITE_RECV_MASK: u8 = 1 << 2;

    /// [`ModifyQpCmd::modify_mask`]: the state.
    pub const EFA_ADMIN_MODIFY_QP_CMD_QP_STATE_MASK: u32 = 1;
    /// [`ModifyQpCmd::modify_mask`]: the state before.
    pub const EFA_ADMIN_MODIFY_QP_CMD_CUR_QP_STATE_MASK: u32 = 1 << 1;
    /// [`ModifyQpCmd::modify_mask`]: the Q_Key.
    pub const EFA_ADMIN_MODIFY_QP_CMD_QKEY_MASK: u32 = 1 << 2;
    /// [`ModifyQpCmd::modify_mask`]: the first packet sequence number.
    pub const EFA_ADMIN_MODIFY_QP_CMD_SQ_PSN_MASK: u32 = 1 << 3;
    /// [`ModifyQpCmd::modify_mask`]: the event of a drained send queue.
    pub const EFA_ADMIN_MODIFY_QP_CMD_SQ_DRAINED_ASYNC_NOTIFY_MASK: u32 = 1 << 4;
    /// [`ModifyQpCmd::modify_mask`]: the retries.
    pub const EFA_ADMIN_MODIFY_QP_CMD_RNR_RETRY_MASK: u32 = 1 << 5;

    /// [`RegMrCmd::flags`]: log2 of the page size.
    pub const EFA_ADMIN_REG_MR_CMD_PHYS_PAGE_SIZE_SHIFT_MASK: u8 = 0x1f;
    /// [`RegMrCmd::flags`]: addresses are physical.
    pub const EFA_ADMIN_REG_MR_CMD_MEM_ADDR_PHY_MODE_EN_MASK: u8 = 1 << 7;
    /// [`RegMrCmd::permissions`]: the device writes it for receives and reads of this side.
    pub const EFA_ADMIN_REG_MR_CMD_LOCAL_WRITE_ENABLE_MASK: u8 = 1;
    /// [`RegMrCmd::permissions`]: peers write it. Newer devices.
    pub const EFA_ADMIN_REG_MR_CMD_REMOTE_WRITE_ENABLE_MASK: u8 = 1 << 1;
    /// [`RegMrCmd::permissions`]: peers read it.
    pub const EFA_ADMIN_REG_MR_CMD_REMOTE_READ_ENABLE_MASK: u8 = 1 << 2;
    /// [`RegMrResp::validity`]: the interconnect of receives.
    pub const EFA_ADMIN_REG_MR_RESP_RECV_IC_ID_MASK: u8 = 1;
    /// [`RegMrResp::validity`]: the interconnect of reads.
    pub const EFA_ADMIN_REG_MR_RESP_RDMA_READ_IC_ID_MASK: u8 = 1 << 1;
    /// [`RegMrResp::validity`]: the interconnect of writes that arrive.
    pub const EFA_ADMIN_REG_MR_RESP_RDMA_RECV_IC_ID_MASK: u8 = 1 << 2;

    /// [`CreateCqCmd::cq_caps_1`]: it raises events.
    pub const EFA_ADMIN_CREATE_CQ_CMD_INTERRUPT_MODE_ENABLED_MASK: u8 = 1 << 5;
    /// [`CreateCqCmd::cq_caps_1`]: the ring's address is virtual.
    pub const EFA_ADMIN_CREATE_CQ_CMD_VIRT_MASK: u8 = 1 << 6;
    /// [`CreateCqCmd::cq_caps_2`]: words of an entry, 4 or 8.
    pub const EFA_ADMIN_CREATE_CQ_CMD_CQ_ENTRY_SIZE_WORDS_MASK: u8 = 0x1f;
    /// [`CreateCqCmd::cq_caps_2`]: the GID of unknown senders is written; entries have 8 words. Newer devices.
    pub const EFA_ADMIN_CREATE_CQ_CMD_SET_SRC_ADDR_MASK: u8 = 1 << 5;
    /// [`CreateCqResp::flags`]: the doorbell is valid; it is if the CQ raises events.
    pub const EFA_ADMIN_CREATE_CQ_RESP_DB_VALID_MASK: u32 = 1;

    /// [`CreateEqCmd::caps`]: words of an entry.
    pub const EFA_ADMIN_CREATE_EQ_CMD_ENTRY_SIZE_WORDS_MASK: u8 = 0x1f;
    /// [`CreateEqCmd::event_bitmask`]: events of completions.
    pub const EFA_ADMIN_CREATE_EQ_CMD_COMPLETION_EVENTS_MASK: u32 = 1;
}

abi_structs! {
    /// Sizes of a QP's queues.
    #[c = "struct efa_admin_qp_alloc_size"]
    pub struct QpAllocSize: 16 {
        /// Bytes of the send ring.
        pub send_queue_ring_size: u32 = 0,
        /// Requests that the send queue must hold.
        pub send_queue_depth: u32 = 4,
        /// Bytes of the receive ring.
        pub recv_queue_ring_size: u32 = 8,
        /// Entries that the receive queue must hold.
        pub recv_queue_depth: u32 = 12,
    }

    /// Creates a QP.
    #[c = "struct efa_admin_create_qp_cmd"]
    pub struct CreateQpCmd: 64 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Protection domain.
        pub pd: u16 = 4,
        /// `EFA_ADMIN_QP_TYPE_*`.
        pub qp_type: u8 = 6,
        /// `EFA_ADMIN_CREATE_QP_CMD_*`.
        pub flags: u8 = 7,
        /// Address of the send ring, if it is not memory of the device.
        pub sq_base_addr: u64 = 8,
        /// Address of the receive ring.
        pub rq_base_addr: u64 = 16,
        /// CQ of the send queue.
        pub send_cq_idx: u32 = 24,
        /// CQ of the receive queue.
        pub recv_cq_idx: u32 = 28,
        /// Local key of the send ring, if its address is virtual.
        pub sq_l_key: u32 = 32,
        /// Local key of the receive ring, if its address is virtual.
        pub rq_l_key: u32 = 36,
        /// Sizes of the queues.
        pub qp_alloc_size: QpAllocSize = 40,
        /// The page of doorbells.
        pub uar: u16 = 56,
        /// Service level. Reserved on older devices.
        pub sl: u8 = 58,
        /// Must be 0.
        pub reserved: u8 = 59,
        /// Must be 0.
        pub reserved2: u32 = 60,
    }

    /// Answer to [`CreateQpCmd`].
    #[c = "struct efa_admin_create_qp_resp"]
    pub struct CreateQpResp: 32 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// Handle of the QP.
        pub qp_handle: u32 = 8,
        /// QP number. Its low bits, as many as the number of QPs needs, are unique.
        pub qp_num: u16 = 12,
        /// Must be 0.
        pub reserved: u16 = 14,
        /// Sub-CQ of the send queue.
        pub send_sub_cq_idx: u16 = 16,
        /// Sub-CQ of the receive queue.
        pub recv_sub_cq_idx: u16 = 18,
        /// Offset of the send queue's doorbell in the doorbells' BAR.
        pub sq_db_offset: u32 = 20,
        /// Offset of the receive queue's doorbell in the doorbells' BAR.
        pub rq_db_offset: u32 = 24,
        /// Offset of the send ring in the memory's BAR.
        pub llq_descriptors_offset: u32 = 28,
    }

    /// Changes a QP.
    #[c = "struct efa_admin_modify_qp_cmd"]
    pub struct ModifyQpCmd: 32 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// `EFA_ADMIN_MODIFY_QP_CMD_*`: what changes.
        pub modify_mask: u32 = 4,
        /// Handle of the QP.
        pub qp_handle: u32 = 8,
        /// `EFA_ADMIN_QP_STATE_*`.
        pub qp_state: u32 = 12,
        /// The state before, `EFA_ADMIN_QP_STATE_*`.
        pub cur_qp_state: u32 = 16,
        /// Q_Key.
        pub qkey: u32 = 20,
        /// The first packet sequence number.
        pub sq_psn: u32 = 24,
        /// Event when the send queue is drained.
        pub sq_drained_async_notify: u8 = 28,
        /// Retries of a message that found no receive; 7 is no limit. SRD only.
        pub rnr_retry: u8 = 29,
        /// Must be 0.
        pub reserved2: u16 = 30,
    }

    /// Asks for the state of a QP.
    #[c = "struct efa_admin_query_qp_cmd"]
    pub struct QueryQpCmd: 8 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Handle of the QP.
        pub qp_handle: u32 = 4,
    }

    /// Answer to [`QueryQpCmd`].
    #[c = "struct efa_admin_query_qp_resp"]
    pub struct QueryQpResp: 24 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// `EFA_ADMIN_QP_STATE_*`.
        pub qp_state: u32 = 8,
        /// Q_Key.
        pub qkey: u32 = 12,
        /// The first packet sequence number.
        pub sq_psn: u32 = 16,
        /// The send queue is being drained.
        pub sq_draining: u8 = 20,
        /// Retries of a message that found no receive; 7 is no limit. SRD only.
        pub rnr_retry: u8 = 21,
        /// Must be 0.
        pub reserved2: u16 = 22,
    }

    /// Destroys a QP.
    #[c = "struct efa_admin_destroy_qp_cmd"]
    pub struct DestroyQpCmd: 8 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Handle of the QP.
        pub qp_handle: u32 = 4,
    }

    /// Creates an address handle. A second command for the same address and domain is not allowed.
    #[c = "struct efa_admin_create_ah_cmd"]
    pub struct CreateAhCmd: 24 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// The peer's GID.
        pub dest_addr: [u8; 16] = 4,
        /// Protection domain.
        pub pd: u16 = 20,
        /// Must be 0.
        pub reserved: u16 = 22,
    }

    /// Answer to [`CreateAhCmd`].
    #[c = "struct efa_admin_create_ah_resp"]
    pub struct CreateAhResp: 12 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// The device's number of the address.
        pub ah: u16 = 8,
        /// Must be 0.
        pub reserved: u16 = 10,
    }

    /// Destroys an address handle.
    #[c = "struct efa_admin_destroy_ah_cmd"]
    pub struct DestroyAhCmd: 8 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// The device's number of the address.
        pub ah: u16 = 4,
        /// Protection domain.
        pub pd: u16 = 6,
    }

    /// Registers memory.
    #[c = "struct efa_admin_reg_mr_cmd"]
    pub struct RegMrCmd: 64 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Protection domain.
        pub pd: u16 = 4,
        /// Must be 0.
        pub reserved16_w1: u16 = 6,
        /// Up to four addresses of pages; or a [`CtrlBuffInfo`] of a list of addresses, or of its first chunk.
        pub pbl: [u64; 4] = 8,
        /// Bytes.
        pub mr_length: u64 = 40,
        /// log2 of the page size (4:0), physical memory (7).
        pub flags: u8 = 48,
        /// `EFA_ADMIN_REG_MR_CMD_*_ENABLE_MASK`.
        pub permissions: u8 = 49,
        /// Must be 0.
        pub reserved16_w5: u16 = 50,
        /// The number of pages.
        pub page_num: u32 = 52,
        /// Address of the memory in requests.
        pub iova: u64 = 56,
    }

    /// Answer to [`RegMrCmd`]. On older devices it ends after the keys.
    #[c = "struct efa_admin_reg_mr_resp"]
    pub struct RegMrResp: 20 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// Local key.
        pub l_key: u32 = 8,
        /// Remote key.
        pub r_key: u32 = 12,
        /// `EFA_ADMIN_REG_MR_RESP_*`: which of the rest is valid.
        pub validity: u8 = 16,
        /// Interconnect of receives.
        pub recv_ic_id: u8 = 17,
        /// Interconnect of reads.
        pub rdma_read_ic_id: u8 = 18,
        /// Interconnect of writes that arrive.
        pub rdma_recv_ic_id: u8 = 19,
    }

    /// Deregisters memory.
    #[c = "struct efa_admin_dereg_mr_cmd"]
    pub struct DeregMrCmd: 8 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Local key.
        pub l_key: u32 = 4,
    }

    /// Allocates a region for fast registration, by clients in the kernel.
    #[c = "struct efa_admin_alloc_mr_cmd"]
    pub struct AllocMrCmd: 12 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Protection domain.
        pub pd: u16 = 4,
        /// Must be 0.
        pub reserved1: u16 = 6,
        /// Pages that it can have.
        pub max_pages: u32 = 8,
    }

    /// Answer to [`AllocMrCmd`].
    #[c = "struct efa_admin_alloc_mr_resp"]
    pub struct AllocMrResp: 16 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// Local key.
        pub l_key: u32 = 8,
        /// Remote key.
        pub r_key: u32 = 12,
    }

    /// Creates a CQ.
    #[c = "struct efa_admin_create_cq_cmd"]
    pub struct CreateCqCmd: 28 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// Events (5), virtual address (6).
        pub cq_caps_1: u8 = 4,
        /// Size of an entry in words of 32 bits (4:0), GID of unknown senders (5).
        pub cq_caps_2: u8 = 5,
        /// Entries of a sub-CQ, a power of two.
        pub sub_cq_depth: u16 = 6,
        /// EQ of its events. On older devices, the first half of the index of an interrupt vector.
        pub eqn: u16 = 8,
        /// Must be 0.
        pub reserved: u16 = 10,
        /// Address of the ring.
        pub cq_ba: MemAddr = 12,
        /// Local key of the ring, if its address is virtual.
        pub l_key: u32 = 20,
        /// The number of sub-CQs, that of the device.
        pub num_sub_cqs: u16 = 24,
        /// The page of doorbells.
        pub uar: u16 = 26,
    }

    /// Answer to [`CreateCqCmd`]. On older devices it ends after the depth.
    #[c = "struct efa_admin_create_cq_resp"]
    pub struct CreateCqResp: 20 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// The device's number of the CQ.
        pub cq_idx: u16 = 8,
        /// Entries of a sub-CQ.
        pub sub_cq_actual_depth: u16 = 10,
        /// Offset of the doorbell in the doorbells' BAR.
        pub db_offset: u32 = 12,
        /// [`EFA_ADMIN_CREATE_CQ_RESP_DB_VALID_MASK`].
        pub flags: u32 = 16,
    }

    /// Destroys a CQ.
    #[c = "struct efa_admin_destroy_cq_cmd"]
    pub struct DestroyCqCmd: 8 {
        /// Opcode and flags.
        pub aq_common_desc: AqCommonDesc = 0,
        /// The device's number of the CQ.
        pub cq_idx: u16 = 4,
        /// Must be 0.
        pub reserved1: u16 = 6,
    }

    /// Answer to [`EFA_ADMIN_ALLOC_PD`].
    #[c = "struct efa_admin_alloc_pd_resp"]
    pub struct AllocPdResp: 12 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// Protection domain.
        pub pd: u16 = 8,
        /// Must be 0.
        pub reserved: u16 = 10,
    }

    /// Frees a protection domain.
    #[c = "struct efa_admin_dealloc_pd_cmd"]
    pub struct DeallocPdCmd: 8 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// Protection domain.
        pub pd: u16 = 4,
        /// Must be 0.
        pub reserved: u16 = 6,
    }

    /// Answer to [`EFA_ADMIN_ALLOC_UAR`].
    #[c = "struct efa_admin_alloc_uar_resp"]
    pub struct AllocUarResp: 12 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// The page of doorbells.
        pub uar: u16 = 8,
        /// Must be 0.
        pub reserved: u16 = 10,
    }

    /// Frees a page of doorbells.
    #[c = "struct efa_admin_dealloc_uar_cmd"]
    pub struct DeallocUarCmd: 8 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// The page of doorbells.
        pub uar: u16 = 4,
        /// Must be 0.
        pub reserved: u16 = 6,
    }

    /// Creates an EQ.
    #[c = "struct efa_admin_create_eq_cmd"]
    pub struct CreateEqCmd: 24 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// Entries, a power of two.
        pub depth: u16 = 4,
        /// Interrupt vector.
        pub msix_vec: u8 = 6,
        /// Size of an entry in words of 32 bits (4:0).
        pub caps: u8 = 7,
        /// Address of the ring.
        pub ba: MemAddr = 8,
        /// Events: of completions (0).
        pub event_bitmask: u32 = 16,
        /// Must be 0.
        pub reserved: u32 = 20,
    }

    /// Answer to [`CreateEqCmd`].
    #[c = "struct efa_admin_create_eq_resp"]
    pub struct CreateEqResp: 12 {
        /// The outcome.
        pub acq_common_desc: AcqCommonDesc = 0,
        /// The device's number of the EQ.
        pub eqn: u16 = 8,
        /// Must be 0.
        pub reserved: u16 = 10,
    }

    /// Destroys an EQ.
    #[c = "struct efa_admin_destroy_eq_cmd"]
    pub struct DestroyEqCmd: 8 {
        /// Opcode and flags.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// The device's number of the EQ.
        pub eqn: u16 = 4,
        /// Must be 0.
        pub reserved: u16 = 6,
    }
}
