// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields of commands, in bits from the start: `struct mlx5_ifc_NAME_bits` of the kernel's
//! `<linux/mlx5/mlx5_ifc.h>`, with the same names. A test compares them with that header.

use super::bits::layouts;

layouts! {
    query_hca_cap_in {
        OP_MOD: 0x30, 16;
    }
    set_hca_cap_in {
        OP_MOD: 0x30, 16;
        CAPABILITY: 0x80, 32768;
    }
    query_pages_out {
        NUM_PAGES: 0x60, 32;
    }
    manage_pages_in {
        OP_MOD: 0x30, 16;
        INPUT_NUM_ENTRIES: 0x60, 32;
    }
    query_issi_out {
        CURRENT_ISSI: 0x50, 16;
        SUPPORTED_ISSI_DW0: 0x360, 32;
    }
    set_issi_in {
        CURRENT_ISSI: 0x50, 16;
    }
    query_adapter_out {
        QUERY_ADAPTER_STRUCT: 0x80, 2048;
    }
    query_adapter_param_block {
        IEEE_VENDOR_ID: 0xc8, 24;
        VSD_CONTD_PSID: 0x780, 128;
    }
    alloc_uar_out {
        UAR: 0x48, 24;
    }
    dealloc_uar_in {
        UAR: 0x48, 24;
    }
    alloc_pd_out {
        PD: 0x48, 24;
    }
    dealloc_pd_in {
        PD: 0x48, 24;
    }
    alloc_xrcd_out {
        XRCD: 0x48, 24;
    }
    dealloc_xrcd_in {
        XRCD: 0x48, 24;
    }
    alloc_transport_domain_out {
        TRANSPORT_DOMAIN: 0x48, 24;
    }
    dealloc_transport_domain_in {
        TRANSPORT_DOMAIN: 0x48, 24;
    }
    query_special_contexts_out {
        DUMP_FILL_MKEY: 0x40, 32;
        NULL_MKEY: 0x80, 32;
    }
    create_eq_in {
        EQ_CONTEXT_ENTRY: 0x80, 512;
        EVENT_BITMASK: 0x2c0, 256;
        PAS: 0x880, 0;
    }
    create_eq_out {
        EQ_NUMBER: 0x58, 8;
    }
    destroy_eq_in {
        EQ_NUMBER: 0x58, 8;
    }
    query_eq_out {
        EQ_CONTEXT_ENTRY: 0x80, 512;
    }
    eqc {
        PAGE_OFFSET: 0x54, 6;
        LOG_EQ_SIZE: 0x63, 5;
        UAR_PAGE: 0x68, 24;
        INTR: 0xb4, 12;
        LOG_PAGE_SIZE: 0xc3, 5;
    }
    create_cq_in {
        CQ_CONTEXT: 0x80, 512;
        CQ_UMEM_VALID: 0x2e0, 1;
        PAS: 0x880, 0;
    }
    create_cq_out {
        CQN: 0x48, 24;
    }
    destroy_cq_in {
        CQN: 0x48, 24;
    }
    query_cq_in {
        CQN: 0x48, 24;
    }
    query_cq_out {
        CQ_CONTEXT: 0x80, 512;
    }
    modify_cq_in {
        OP_MOD: 0x30, 16;
        CQN: 0x48, 24;
        MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT: 0x60, 32;
        CQ_CONTEXT: 0x80, 512;
        PAS: 0x880, 0;
    }
    cqc {
        STATUS: 0x0, 4;
        DBR_UMEM_VALID: 0x6, 1;
        CQE_SZ: 0x8, 3;
        OI: 0xe, 1;
        PAGE_OFFSET: 0x54, 6;
        LOG_CQ_SIZE: 0x63, 5;
        UAR_PAGE: 0x68, 24;
        CQ_PERIOD: 0x84, 12;
        CQ_MAX_COUNT: 0x90, 16;
        C_EQN_OR_APU_ELEMENT: 0xa0, 32;
        LOG_PAGE_SIZE: 0xc3, 5;
        PRODUCER_COUNTER: 0x168, 24;
        DBR_ADDR: 0x1c0, 64;
    }
    create_mkey_in {
        MKEY_UMEM_VALID: 0x61, 1;
        MEMORY_KEY_MKEY_ENTRY: 0x80, 512;
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x300, 32;
        KLM_PAS_MTT: 0x880, 0;
    }
    create_mkey_out {
        MKEY_INDEX: 0x48, 24;
    }
    destroy_mkey_in {
        MKEY_INDEX: 0x48, 24;
    }
    query_mkey_in {
        MKEY_INDEX: 0x48, 24;
    }
    query_mkey_out {
        MEMORY_KEY_MKEY_ENTRY: 0x80, 512;
    }
    create_psv_in {
        NUM_PSV: 0x40, 4;
        PD: 0x48, 24;
    }
    create_psv_out {
        PSV0_INDEX: 0x88, 24;
        PSV1_INDEX: 0xa8, 24;
        PSV2_INDEX: 0xc8, 24;
        PSV3_INDEX: 0xe8, 24;
    }
    destroy_psv_in {
        PSVN: 0x48, 24;
    }
    mkc {
        FREE: 0x1, 1;
        ACCESS_MODE_4_2: 0x3, 3;
        RELAXED_ORDERING_WRITE: 0xd, 1;
        A: 0x11, 1;
        RW: 0x12, 1;
        RR: 0x13, 1;
        LW: 0x14, 1;
        ACCESS_MODE_1_0: 0x16, 2;
        MKEY_7_0: 0x38, 8;
        LENGTH64: 0x60, 1;
        BSF_EN: 0x61, 1;
        EN_RINVAL: 0x67, 1;
        PD: 0x68, 24;
        START_ADDR: 0x80, 64;
        LEN: 0xc0, 64;
        BSF_OCTWORD_SIZE: 0x100, 32;
        TRANSLATIONS_OCTWORD_SIZE: 0x1a0, 32;
        LOG_PAGE_SIZE: 0x1db, 5;
    }
    create_qp_in {
        QPC: 0xc0, 1856;
        WQ_UMEM_VALID: 0x860, 1;
        PAS: 0x880, 0;
    }
    create_qp_out {
        QPN: 0x48, 24;
    }
    destroy_qp_in {
        QPN: 0x48, 24;
    }
    query_qp_in {
        QPN: 0x48, 24;
    }
    query_qp_out {
        QPC: 0xc0, 1856;
    }
    rst2init_qp_in {
        QPN: 0x48, 24;
        OPT_PARAM_MASK: 0x80, 32;
        QPC: 0xc0, 1856;
    }
    qp_2err_in {
        QPN: 0x48, 24;
    }
    qpc {
        STATE: 0x0, 4;
        ST: 0x8, 8;
        PM_STATE: 0x13, 2;
        DRAIN_SIGERR: 0x25, 1;
        PD: 0x28, 24;
        MTU: 0x40, 3;
        LOG_MSG_MAX: 0x43, 5;
        LOG_RQ_SIZE: 0x49, 4;
        LOG_RQ_STRIDE: 0x4d, 3;
        NO_SQ: 0x50, 1;
        LOG_SQ_SIZE: 0x51, 4;
        COUNTER_SET_ID: 0x60, 8;
        UAR_PAGE: 0x68, 24;
        USER_INDEX: 0x88, 24;
        LOG_PAGE_SIZE: 0xa3, 5;
        REMOTE_QPN: 0xa8, 24;
        PRIMARY_ADDRESS_PATH: 0xc0, 352;
        LOG_SRA_MAX: 0x388, 3;
        RETRY_COUNT: 0x38d, 3;
        RNR_RETRY: 0x390, 3;
        NEXT_SEND_PSN: 0x3c8, 24;
        CQN_SND: 0x3e8, 24;
        LOG_RRA_MAX: 0x488, 3;
        ATOMIC_MODE: 0x48c, 4;
        RRE: 0x490, 1;
        RWE: 0x491, 1;
        RAE: 0x492, 1;
        PAGE_OFFSET: 0x494, 6;
        MIN_RNR_NAK: 0x4a3, 5;
        NEXT_RCV_PSN: 0x4a8, 24;
        XRCD: 0x4c8, 24;
        CQN_RCV: 0x4e8, 24;
        DBR_ADDR: 0x500, 64;
        Q_KEY: 0x540, 32;
        RQ_TYPE: 0x565, 3;
        SRQN_RMPN_XRQN: 0x568, 24;
        HW_SQ_WQEBB_COUNTER: 0x5a0, 16;
        CS_REQ: 0x630, 8;
        CS_RES: 0x638, 8;
        DBR_UMEM_VALID: 0x683, 1;
    }
    ads {
        PKEY_INDEX: 0x10, 16;
        GRH: 0x28, 1;
        MLID: 0x29, 7;
        RLID: 0x30, 16;
        ACK_TIMEOUT: 0x40, 5;
        SRC_ADDR_INDEX: 0x48, 8;
        STAT_RATE: 0x54, 4;
        HOP_LIMIT: 0x58, 8;
        TCLASS: 0x64, 8;
        FLOW_LABEL: 0x6c, 20;
        RGID_RIP: 0x80, 128;
        UDP_SPORT: 0x110, 16;
        SL: 0x124, 4;
        VHCA_PORT_NUM: 0x128, 8;
        RMAC_47_32: 0x130, 16;
        RMAC_31_0: 0x140, 32;
    }
    create_srq_in {
        SRQ_CONTEXT_ENTRY: 0x80, 512;
        PAS: 0x880, 0;
    }
    create_srq_out {
        SRQN: 0x48, 24;
    }
    destroy_srq_in {
        SRQN: 0x48, 24;
    }
    query_srq_out {
        SRQ_CONTEXT_ENTRY: 0x80, 512;
    }
    arm_rq_in {
        SRQ_NUMBER: 0x48, 24;
        LWM: 0x70, 16;
    }
    srqc {
        STATE: 0x0, 4;
        LOG_SRQ_SIZE: 0x4, 4;
        LOG_RQ_STRIDE: 0x25, 3;
        XRCD: 0x28, 24;
        PAGE_OFFSET: 0x40, 6;
        CQN: 0x48, 24;
        LOG_PAGE_SIZE: 0x82, 6;
        PD: 0xc8, 24;
        LWM: 0xe0, 16;
        DBR_ADDR: 0x140, 64;
    }
    create_xrc_srq_in {
        XRC_SRQ_CONTEXT_ENTRY: 0x80, 512;
        PAS: 0x880, 0;
    }
    create_xrc_srq_out {
        XRC_SRQN: 0x48, 24;
    }
    xrc_srqc {
        USER_INDEX: 0x88, 24;
    }
    create_rmp_in {
        CTX: 0x100, 1920;
    }
    create_rmp_out {
        RMPN: 0x48, 24;
    }
    query_rmp_out {
        RMP_CONTEXT: 0x100, 1920;
    }
    modify_rmp_in {
        RMP_STATE: 0x40, 4;
        RMPN: 0x48, 24;
        BITMASK: 0x80, 64;
        CTX: 0x100, 1920;
    }
    rmp_bitmask {
        LWM: 0x3f, 1;
    }
    rmpc {
        STATE: 0x8, 4;
        WQ: 0x180, 1536;
    }
    wq {
        WQ_TYPE: 0x0, 4;
        PAGE_OFFSET: 0x2b, 5;
        LWM: 0x30, 16;
        PD: 0x48, 24;
        UAR_PAGE: 0x68, 24;
        DBR_ADDR: 0x80, 64;
        LOG_WQ_STRIDE: 0x10c, 4;
        LOG_WQ_PG_SZ: 0x113, 5;
        LOG_WQ_SZ: 0x11b, 5;
        DBR_UMEM_VALID: 0x120, 1;
        WQ_UMEM_VALID: 0x121, 1;
        PAS: 0x600, 0;
    }
    create_uctx_out {
        UID: 0x50, 16;
    }
    destroy_uctx_in {
        UID: 0x50, 16;
    }
    create_umem_in {
        UMEM: 0x80, 256;
    }
    create_umem_out {
        UMEM_ID: 0x48, 24;
    }
    destroy_umem_in {
        UMEM_ID: 0x48, 24;
    }
    umem {
        LOG_PAGE_SIZE: 0x9b, 5;
        PAGE_OFFSET: 0xa0, 32;
        NUM_OF_MTT: 0xc0, 64;
    }
    create_dct_in {
        DCT_CONTEXT_ENTRY: 0x80, 512;
    }
    create_dct_out {
        DCTN: 0x48, 24;
    }
    destroy_dct_in {
        DCTN: 0x48, 24;
    }
    drain_dct_in {
        DCTN: 0x48, 24;
    }
    query_dct_in {
        DCTN: 0x48, 24;
    }
    query_dct_out {
        DCT_CONTEXT_ENTRY: 0x80, 512;
    }
    dctc {
        STATE: 0x4, 4;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        RRE: 0x6c, 1;
        RWE: 0x6d, 1;
        RAE: 0x6e, 1;
        CS_RES: 0x88, 8;
        MIN_RNR_NAK: 0x93, 5;
        SRQN_XRQN: 0xa8, 24;
        PD: 0xc8, 24;
        DC_ACCESS_KEY: 0x100, 64;
        MTU: 0x145, 3;
    }
    query_hca_vport_context_out {
        HCA_VPORT_CONTEXT: 0x80, 4096;
    }
    hca_vport_context {
        HAS_SMI: 0x101, 1;
        PORT_PHYSICAL_STATE: 0x110, 4;
        PORT_STATE: 0x118, 4;
        VPORT_STATE: 0x11c, 4;
        SYSTEM_IMAGE_GUID: 0x140, 64;
        PORT_GUID: 0x180, 64;
        NODE_GUID: 0x1c0, 64;
        CAP_MASK1: 0x200, 32;
        LID: 0x300, 16;
        SUBNET_TIMEOUT: 0x31b, 5;
        SM_LID: 0x320, 16;
    }
    query_hca_vport_gid_in {
        GID_INDEX: 0x70, 16;
    }
    query_hca_vport_gid_out {
        GIDS_NUM: 0x60, 16;
        GID: 0x80, 0;
    }
    query_hca_vport_pkey_in {
        PKEY_INDEX: 0x70, 16;
    }
    query_hca_vport_pkey_out {
        PKEY: 0x80, 0;
    }
    pkey {
        PKEY: 0x10, 16;
    }
    mad_ifc_in {
        MAD: 0x80, 2048;
    }
    mad_ifc_out {
        RESPONSE_MAD_PACKET: 0x80, 2048;
    }
    access_register_in {
        OP_MOD: 0x30, 16;
        REGISTER_ID: 0x50, 16;
        REGISTER_DATA: 0x80, 0;
    }
    access_register_out {
        REGISTER_DATA: 0x80, 0;
    }
    ptys_reg {
        ETH_PROTO_CAPABILITY: 0x60, 32;
        IB_LINK_WIDTH_CAPABILITY: 0x80, 16;
        IB_PROTO_CAPABILITY: 0x90, 16;
        ETH_PROTO_ADMIN: 0xc0, 32;
        IB_LINK_WIDTH_ADMIN: 0xe0, 16;
        IB_PROTO_ADMIN: 0xf0, 16;
        ETH_PROTO_OPER: 0x120, 32;
        IB_LINK_WIDTH_OPER: 0x140, 16;
        IB_PROTO_OPER: 0x150, 16;
    }
    pmtu_reg {
        MAX_MTU: 0x20, 16;
        ADMIN_MTU: 0x40, 16;
        OPER_MTU: 0x60, 16;
    }
    pvlc_reg {
        VL_HW_CAP: 0x3c, 4;
        VL_ADMIN: 0x5c, 4;
        VL_OPERATIONAL: 0x7c, 4;
    }
    paos_reg {
        ADMIN_STATUS: 0x14, 4;
        OPER_STATUS: 0x1c, 4;
    }
    query_vport_state_out {
        ADMIN_STATE: 0x78, 4;
        STATE: 0x7c, 4;
    }
    query_nic_vport_context_in {
        ALLOWED_LIST_TYPE: 0x65, 3;
    }
    query_nic_vport_context_out {
        NIC_VPORT_CONTEXT: 0x80, 2048;
    }
    modify_nic_vport_context_in {
        FIELD_SELECT: 0x60, 32;
        NIC_VPORT_CONTEXT: 0x800, 2048;
    }
    modify_nic_vport_field_select {
        MTU: 0x19, 1;
        PERMANENT_ADDRESS: 0x1c, 1;
        ROCE_EN: 0x1e, 1;
    }
    nic_vport_context {
        ROCE_EN: 0x1f, 1;
        MTU: 0x130, 16;
        SYSTEM_IMAGE_GUID: 0x140, 64;
        PORT_GUID: 0x180, 64;
        NODE_GUID: 0x1c0, 64;
        ALLOWED_LIST_TYPE: 0x785, 3;
        PERMANENT_ADDRESS: 0x7a0, 64;
    }
    set_roce_address_in {
        ROCE_ADDRESS_INDEX: 0x40, 16;
        ROCE_ADDRESS: 0x80, 256;
    }
    roce_addr_layout {
        SOURCE_L3_ADDRESS: 0x0, 128;
        ROCE_VERSION: 0xd8, 8;
    }
    alloc_q_counter_out {
        COUNTER_SET_ID: 0x58, 8;
    }
    dealloc_q_counter_in {
        COUNTER_SET_ID: 0x58, 8;
    }
    query_q_counter_in {
        COUNTER_SET_ID: 0xf8, 8;
    }
    query_q_counter_out {
        PACKET_SEQ_ERR: 0x280, 32;
    }
    attach_to_mcg_in {
        QPN: 0x48, 24;
        MULTICAST_GID: 0x80, 128;
    }
    atomic_caps {
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x40, 2;
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x46, 1;
        ATOMIC_OPERATIONS: 0x90, 16;
        ATOMIC_SIZE_QP: 0xb0, 16;
        ATOMIC_SIZE_DC: 0xd0, 16;
    }
    roce_cap {
        L3_TYPE: 0x8c, 4;
        ROCE_VERSION: 0x98, 8;
        R_ROCE_DEST_UDP_PORT: 0xb0, 16;
        R_ROCE_MAX_SRC_UDP_PORT: 0xc0, 16;
        R_ROCE_MIN_SRC_UDP_PORT: 0xd0, 16;
        ROCE_ADDRESS_TABLE_SIZE: 0xf0, 16;
    }
    create_tir_in {
        CTX: 0x100, 1920;
    }
    create_tir_out {
        TIRN: 0x48, 24;
    }
    destroy_tir_in {
        TIRN: 0x48, 24;
    }
    tirc {
        SELF_LB_BLOCK: 0x126, 2;
        DISP_TYPE: 0x20, 4;
        INLINE_RQN: 0xe8, 24;
        INDIRECT_TABLE: 0x108, 24;
        RX_HASH_FN: 0x120, 4;
        RX_HASH_TOEPLITZ_KEY: 0x140, 320;
        RX_HASH_FIELD_SELECTOR_OUTER: 0x280, 32;
    }
    create_tis_out {
        TISN: 0x48, 24;
    }
    destroy_tis_in {
        TISN: 0x48, 24;
    }
    create_rq_in {
        CTX: 0x100, 1920;
    }
    create_rq_out {
        RQN: 0x48, 24;
    }
    destroy_rq_in {
        RQN: 0x48, 24;
    }
    modify_rq_in {
        RQ_STATE: 0x40, 4;
        RQN: 0x48, 24;
        CTX: 0x100, 1920;
    }
    query_rq_out {
        RQ_CONTEXT: 0x100, 1920;
    }
    rqc {
        STATE: 0x8, 4;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        MEM_RQ_TYPE: 0x4, 4;
        WQ: 0x180, 1536;
    }
    create_sq_in {
        CTX: 0x100, 1920;
    }
    create_sq_out {
        SQN: 0x48, 24;
    }
    destroy_sq_in {
        SQN: 0x48, 24;
    }
    modify_sq_in {
        SQ_STATE: 0x40, 4;
        SQN: 0x48, 24;
        CTX: 0x100, 1920;
    }
    query_sq_out {
        SQ_CONTEXT: 0x100, 1920;
    }
    sqc {
        STATE: 0x8, 4;
        USER_INDEX: 0x28, 24;
        CQN: 0x48, 24;
        WQ: 0x180, 1536;
    }
    create_rqt_in {
        RQT_CONTEXT: 0x100, 1920;
    }
    create_rqt_out {
        RQTN: 0x48, 24;
    }
    destroy_rqt_in {
        RQTN: 0x48, 24;
    }
    modify_rqt_in {
        RQTN: 0x48, 24;
        CTX: 0x100, 1920;
    }
    rq_num {
        RQ_NUM: 0x8, 24;
    }
    modify_tir_in {
        TIRN: 0x48, 24;
        BITMASK: 0x80, 64;
        CTX: 0x100, 1920;
    }
    modify_tir_bitmask {
        SELF_LB_EN: 0x3b, 1;
        HASH: 0x3d, 1;
    }
    traffic_counter {
        PACKETS: 0x0, 64;
        OCTETS: 0x40, 64;
    }
    query_flow_counter_out {
        FLOW_STATISTICS: 0x80, 0;
    }
    rqtc {
        RQT_ACTUAL_SIZE: 0xd0, 16;
        RQ_NUM: 0x780, 0;
    }
    create_flow_table_in {
        TABLE_TYPE: 0x80, 8;
        FLOW_TABLE_CONTEXT: 0xc0, 320;
    }
    create_flow_table_out {
        TABLE_ID: 0x48, 24;
    }
    destroy_flow_table_in {
        TABLE_ID: 0xa8, 24;
    }
    modify_flow_table_in {
        TABLE_ID: 0xa8, 24;
        FLOW_TABLE_CONTEXT: 0xc0, 320;
    }
    flow_table_context {
        TABLE_MISS_ACTION: 0x4, 4;
        TABLE_MISS_ID: 0x28, 24;
    }
    create_flow_group_in {
        TABLE_ID: 0xa8, 24;
        START_FLOW_INDEX: 0xe0, 32;
        END_FLOW_INDEX: 0x120, 32;
        MATCH_CRITERIA_ENABLE: 0x1f8, 8;
        MATCH_CRITERIA: 0x200, 4096;
    }
    create_flow_group_out {
        GROUP_ID: 0x48, 24;
    }
    destroy_flow_group_in {
        GROUP_ID: 0xc0, 32;
    }
    set_fte_in {
        OP_MOD: 0x30, 16;
        TABLE_ID: 0xa8, 24;
        FLOW_INDEX: 0x100, 32;
        FLOW_CONTEXT: 0x200, 6144;
    }
    delete_fte_in {
        TABLE_ID: 0xa8, 24;
        FLOW_INDEX: 0x100, 32;
    }
    set_flow_table_root_in {
        OP_MOD: 0x30, 16;
        TABLE_TYPE: 0x80, 8;
        TABLE_ID: 0xa8, 24;
    }
    flow_context {
        GROUP_ID: 0x20, 32;
        FLOW_TAG: 0x48, 24;
        ACTION: 0x70, 16;
        DESTINATION_LIST_SIZE: 0x88, 24;
        FLOW_COUNTER_LIST_SIZE: 0xa8, 24;
        MATCH_VALUE: 0x200, 4096;
        DESTINATION: 0x1800, 0;
    }
    dest_format_struct {
        DESTINATION_TYPE: 0x0, 8;
        DESTINATION_ID: 0x8, 24;
    }
    fte_match_param {
        OUTER_HEADERS: 0x0, 512;
    }
    fte_match_set_lyr_2_4 {
        ETHERTYPE: 0x30, 16;
        FIRST_VID: 0x74, 12;
        IP_PROTOCOL: 0x80, 8;
        IP_DSCP: 0x88, 6;
        IP_ECN: 0x8e, 2;
        CVLAN_TAG: 0x90, 1;
        IP_VERSION: 0x93, 4;
        TCP_SPORT: 0xa0, 16;
        TCP_DPORT: 0xb0, 16;
        TTL_HOPLIMIT: 0xd8, 8;
        UDP_SPORT: 0xe0, 16;
        UDP_DPORT: 0xf0, 16;
        SRC_IPV4_SRC_IPV6: 0x100, 128;
        DST_IPV4_DST_IPV6: 0x180, 128;
    }
    alloc_flow_counter_out {
        FLOW_COUNTER_ID: 0x40, 32;
    }
    dealloc_flow_counter_in {
        FLOW_COUNTER_ID: 0x40, 32;
    }
    query_flow_counter_in {
        FLOW_COUNTER_ID: 0xe0, 32;
    }
    flow_table_nic_cap {
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE: 0x200, 512;
    }
    flow_table_prop_layout {
        FT_SUPPORT: 0x0, 1;
        FLOW_COUNTER: 0x2, 1;
        FLOW_MODIFY_EN: 0x3, 1;
        MODIFY_ROOT: 0x4, 1;
        IDENTIFIED_MISS_TABLE_MODE: 0x5, 1;
        FLOW_TABLE_MODIFY: 0x6, 1;
        LOG_MAX_FT_SIZE: 0x22, 6;
        MAX_FT_LEVEL: 0x38, 8;
        LOG_MAX_FT_NUM: 0x78, 8;
        LOG_MAX_DESTINATION: 0x98, 8;
        LOG_MAX_FLOW: 0xb8, 8;
        FT_FIELD_SUPPORT: 0x100, 128;
        FT_FIELD_BITMASK_SUPPORT: 0x180, 128;
    }
    per_protocol_networking_offload_caps {
        CSUM_CAP: 0x0, 1;
        VLAN_CAP: 0x1, 1;
        SELF_LB_EN_MODIFIABLE: 0x8, 1;
        MAX_LSO_CAP: 0xb, 5;
        WQE_INLINE_MODE: 0x12, 2;
        RSS_IND_TBL_CAP: 0x14, 4;
    }
    cmd_hca_cap {
        LOG_MAX_SRQ_SZ: 0x80, 8;
        LOG_MAX_QP_SZ: 0x88, 8;
        LOG_MAX_QP: 0x9b, 5;
        LOG_MAX_SRQ: 0xab, 5;
        LOG_MAX_CQ_SZ: 0xc8, 8;
        LOG_MAX_CQ: 0xdb, 5;
        LOG_MAX_EQ_SZ: 0xe0, 8;
        LOG_MAX_MKEY: 0xea, 6;
        DUMP_FILL_MKEY: 0xf8, 1;
        LOG_MAX_EQ: 0xfc, 4;
        MAX_INDIRECTION: 0x100, 8;
        LOG_MAX_MRW_SZ: 0x109, 7;
        UMR_EXTENDED_TRANSLATION_OFFSET: 0x118, 1;
        LOG_MAX_KLM_LIST_SIZE: 0x11a, 6;
        LOG_MAX_RA_REQ_DC: 0x12a, 6;
        LOG_MAX_RA_RES_DC: 0x13a, 6;
        LOG_MAX_RA_REQ_QP: 0x14a, 6;
        LOG_MAX_RA_RES_QP: 0x15a, 6;
        GID_TABLE_SIZE: 0x170, 16;
        PKEY_TABLE_SIZE: 0x190, 16;
        IB_VIRT: 0x1a2, 1;
        NIC_FLOW_TABLE: 0x1a6, 1;
        PORT_TYPE: 0x1b6, 2;
        NUM_PORTS: 0x1b8, 8;
        LOG_MAX_MSG: 0x1c3, 5;
        MAX_TC: 0x1cc, 4;
        CQE_VERSION: 0x1fc, 4;
        UMR_MODIFY_ENTITY_SIZE_DISABLED: 0x207, 1;
        UMR_MODIFY_ATOMIC_DISABLED: 0x208, 1;
        UMR_INDIRECT_MKEY_DISABLED: 0x209, 1;
        DC_REQ_SCAT_DATA_CQE: 0x20c, 1;
        SCTR_DATA_CQE: 0x215, 1;
        SHO: 0x217, 1;
        DCT: 0x21a, 1;
        ETH_NET_OFFLOADS: 0x21c, 1;
        ROCE: 0x21d, 1;
        ATOMIC: 0x21e, 1;
        CQ_OI: 0x220, 1;
        CQ_RESIZE: 0x221, 1;
        CQ_MODERATION: 0x222, 1;
        IMAICL: 0x231, 1;
        PKV: 0x237, 1;
        QKV: 0x236, 1;
        XRC: 0x23c, 1;
        UD: 0x23d, 1;
        UC: 0x23e, 1;
        RC: 0x23f, 1;
        LOG_PG_SZ: 0x258, 8;
        BF: 0x260, 1;
        LOG_BF_REG_SIZE: 0x26b, 5;
        MAX_WQE_SZ_SQ: 0x290, 16;
        MAX_WQE_SZ_RQ: 0x2b0, 16;
        MAX_WQE_SZ_SQ_DC: 0x2d0, 16;
        MAX_QP_MCG: 0x2e7, 25;
        LOG_MAX_MCG: 0x318, 8;
        LOG_MAX_TRANSPORT_DOMAIN: 0x323, 5;
        LOG_MAX_PD: 0x32b, 5;
        LOG_MAX_XRCD: 0x33b, 5;
        MAX_FLOW_COUNTER_15_0: 0x350, 16;
        LOG_MAX_RQ: 0x363, 5;
        LOG_MAX_SQ: 0x36b, 5;
        LOG_MAX_TIR: 0x373, 5;
        LOG_MAX_TIS: 0x37b, 5;
        LOG_MAX_RMP: 0x383, 5;
        LOG_MAX_RQT: 0x38b, 5;
        LOG_MAX_RQT_SIZE: 0x393, 5;
        LOG_MAX_TIS_PER_SQ: 0x39b, 5;
        LOG_MAX_STRIDE_SZ_RQ: 0x3a3, 5;
        LOG_MIN_STRIDE_SZ_RQ: 0x3ab, 5;
        LOG_MAX_STRIDE_SZ_SQ: 0x3b3, 5;
        LOG_MIN_STRIDE_SZ_SQ: 0x3bb, 5;
        LOG_MAX_WQ_SZ: 0x3db, 5;
        LOG_MAX_VLAN_LIST: 0x3eb, 5;
        LOG_MAX_CURRENT_MC_LIST: 0x3f3, 5;
        LOG_MAX_CURRENT_UC_LIST: 0x3fb, 5;
        MAX_NUM_EQS: 0x470, 16;
        LOG_MAX_UCTX: 0x463, 5;
        LOG_MAX_UMEM: 0x46b, 5;
        LOG_MAX_L2_TABLE: 0x483, 5;
        DEVICE_FREQUENCY_KHZ: 0x4e0, 32;
        NUM_OF_UARS_PER_PAGE: 0x520, 32;
    }
}
