// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structs of `<infiniband/mlx5dv.h>` that this library reads or writes, with the fields of rdma-core 65.
use super::object::{ibv_cq, ibv_dm, ibv_pd, ibv_srq};
use super::qp::ibv_qp;
use super::wq::ibv_wq;
use core::ffi::{c_int, c_void};
use uverbs_core::wr::{IbvAh, Sge};

/// A function that this library does not have: NULL in its struct.
type Missing = Option<unsafe extern "C" fn()>;

c_struct! {
    struct mlx5dv_cqe_comp_caps {
        max_num: u32,
        supported_format: u32,
    }

    struct mlx5dv_sw_parsing_caps {
        sw_parsing_offloads: u32,
        supported_qpts: u32,
    }

    struct mlx5dv_striding_rq_caps {
        min_single_stride_log_num_of_bytes: u32,
        max_single_stride_log_num_of_bytes: u32,
        min_single_wqe_log_num_of_strides: u32,
        max_single_wqe_log_num_of_strides: u32,
        supported_qpts: u32,
    }

    struct mlx5dv_dci_streams_caps {
        max_log_num_concurent: u8,
        max_log_num_errored: u8,
    }

    struct mlx5dv_sig_caps {
        block_size: u64,
        block_prot: u32,
        t10dif_bg: u16,
        crc_type: u16,
    }

    struct mlx5dv_crypto_caps {
        failed_selftests: u16,
        crypto_engines: u8,
        wrapped_import_method: u8,
        log_max_num_deks: u8,
        flags: u32,
    }

    struct mlx5dv_ooo_recv_wrs_caps {
        max_rc: u32,
        max_xrc: u32,
        max_dct: u32,
        max_ud: u32,
        max_uc: u32,
    }

    struct mlx5dv_reg {
        value: u32,
        mask: u32,
    }

    struct mlx5dv_context {
        version: u8,
        flags: u64,
        comp_mask: u64,
        cqe_comp_caps: mlx5dv_cqe_comp_caps,
        sw_parsing_caps: mlx5dv_sw_parsing_caps,
        striding_rq_caps: mlx5dv_striding_rq_caps,
        tunnel_offloads_caps: u32,
        max_dynamic_bfregs: u32,
        max_clock_info_update_nsec: u64,
        flow_action_flags: u32,
        dc_odp_caps: u32,
        hca_core_clock: *mut c_void,
        num_lag_ports: u8,
        sig_caps: mlx5dv_sig_caps,
        dci_streams_caps: mlx5dv_dci_streams_caps,
        max_wr_memcpy_length: usize,
        crypto_caps: mlx5dv_crypto_caps,
        /// This field and those after it are newer than rdma-core 44.
        max_dc_rd_atom: u64,
        max_dc_init_rd_atom: u64,
        reg_c0: mlx5dv_reg,
        ooo_recv_wrs_caps: mlx5dv_ooo_recv_wrs_caps,
    }

    struct mlx5dv_context_attr {
        flags: u32,
        comp_mask: u64,
        /// Newer than rdma-core 44.
        fds: *mut c_void,
    }

    struct mlx5dv_clock_info {
        nsec: u64,
        last_cycles: u64,
        frac: u64,
        mult: u32,
        shift: u32,
        mask: u64,
    }

    struct mlx5dv_cq_init_attr {
        comp_mask: u64,
        cqe_comp_res_format: u8,
        flags: u32,
        cqe_size: u16,
    }

    struct mlx5dv_dc_init_attr {
        dc_type: u32,
        /// A union with `struct mlx5dv_dci_streams`.
        dct_access_key: u64,
    }

    struct mlx5dv_qp_init_attr {
        comp_mask: u64,
        create_flags: u32,
        dc_init_attr: mlx5dv_dc_init_attr,
        send_ops_flags: u64,
    }

    struct mlx5dv_qp_ex {
        comp_mask: u64,
        wr_set_dc_addr: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut IbvAh, u32, u64)>,
        wr_mr_interleaved: Option<
            unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut mlx5dv_mkey, u32, u32, u16, *mut mlx5dv_mr_interleaved),
        >,
        wr_mr_list: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut mlx5dv_mkey, u32, u16, *mut Sge)>,
        wr_mkey_configure: Option<
            unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut mlx5dv_mkey, u8, *mut mlx5dv_mkey_conf_attr),
        >,
        wr_set_mkey_access_flags: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u32)>,
        wr_set_mkey_layout_list: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u16, *const Sge)>,
        wr_set_mkey_layout_interleaved:
            Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u32, u16, *const mlx5dv_mr_interleaved)>,
        wr_set_mkey_sig_block: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *const mlx5dv_sig_block_attr)>,
        wr_raw_wqe: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *const c_void)>,
        wr_set_dc_addr_stream: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut IbvAh, u32, u64, u16)>,
        wr_memcpy: Missing,
        wr_set_mkey_crypto: Missing,
    }

    struct mlx5dv_mkey_init_attr {
        pd: *mut ibv_pd,
        create_flags: u32,
        max_entries: u16,
    }

    struct mlx5dv_mkey {
        lkey: u32,
        rkey: u32,
    }

    struct mlx5dv_mkey_conf_attr {
        conf_flags: u32,
        comp_mask: u64,
    }

    struct mlx5dv_mr_interleaved {
        addr: u64,
        bytes_count: u32,
        bytes_skip: u32,
        lkey: u32,
    }

    struct mlx5dv_sig_t10dif {
        bg_type: u32,
        bg: u16,
        app_tag: u16,
        ref_tag: u32,
        flags: u16,
    }

    struct mlx5dv_sig_crc {
        r#type: u32,
        seed: u64,
    }

    struct mlx5dv_sig_block_domain {
        sig_type: u32,
        /// A union of pointers to `mlx5dv_sig_t10dif` and `mlx5dv_sig_crc`.
        sig: *const c_void,
        block_size: u32,
        comp_mask: u64,
    }

    struct mlx5dv_sig_block_attr {
        mem: *const mlx5dv_sig_block_domain,
        wire: *const mlx5dv_sig_block_domain,
        flags: u32,
        check_mask: u8,
        copy_mask: u8,
        comp_mask: u64,
    }

    struct mlx5dv_sig_err {
        actual_value: u64,
        expected_value: u64,
        offset: u64,
    }

    struct mlx5dv_mkey_err {
        err_type: u32,
        /// A union with one member.
        err: mlx5dv_sig_err,
    }

    struct mlx5dv_qp {
        dbrec: *mut u32,
        sq: Queue,
        rq: Queue,
        bf: Register,
        comp_mask: u64,
        uar_mmap_offset: i64,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        tir_icm_addr: u64,
    }

    struct mlx5dv_cq {
        buf: *mut c_void,
        dbrec: *mut u32,
        cqe_cnt: u32,
        cqe_size: u32,
        cq_uar: *mut c_void,
        cqn: u32,
        comp_mask: u64,
    }

    struct mlx5dv_srq {
        buf: *mut c_void,
        dbrec: *mut u32,
        stride: u32,
        head: u32,
        tail: u32,
        comp_mask: u64,
        srqn: u32,
    }

    struct mlx5dv_rwq {
        buf: *mut c_void,
        dbrec: *mut u32,
        wqe_cnt: u32,
        stride: u32,
        comp_mask: u64,
    }

    struct mlx5dv_alloc_dm_attr {
        r#type: u32,
        comp_mask: u64,
    }

    struct mlx5dv_dm {
        buf: *mut c_void,
        length: u64,
        comp_mask: u64,
        remote_va: u64,
    }

    struct mlx5dv_ah {
        av: *mut c_void,
        comp_mask: u64,
    }

    struct mlx5dv_pd {
        pdn: u32,
        comp_mask: u64,
    }

    struct mlx5dv_obj {
        qp: Pair<ibv_qp, mlx5dv_qp>,
        cq: Pair<ibv_cq, mlx5dv_cq>,
        srq: Pair<ibv_srq, mlx5dv_srq>,
        rwq: Pair<ibv_wq, mlx5dv_rwq>,
        dm: Pair<ibv_dm, mlx5dv_dm>,
        ah: Pair<IbvAh, mlx5dv_ah>,
        pd: Pair<ibv_pd, mlx5dv_pd>,
        /// Newer than rdma-core 44.
        devx: Pair<c_void, c_void>,
    }

    struct mlx5dv_flow_match_parameters {
        match_sz: usize,
        /// As many bytes follow.
        match_buf: [u64; 0],
    }

    struct mlx5dv_flow_matcher_attr {
        r#type: u32,
        flags: u32,
        priority: u16,
        match_criteria_enable: u8,
        match_mask: *mut mlx5dv_flow_match_parameters,
        comp_mask: u64,
        ft_type: u32,
        /// Newer than rdma-core 44.
        ib_port: u32,
    }

    struct mlx5dv_devx_uar {
        reg_addr: *mut c_void,
        base_addr: *mut c_void,
        page_id: u32,
        mmap_off: i64,
        comp_mask: u64,
    }

    struct mlx5dv_var {
        page_id: u32,
        length: u32,
        mmap_off: i64,
        comp_mask: u64,
    }

    struct mlx5dv_pp {
        index: u16,
    }

    struct mlx5dv_devx_umem {
        umem_id: u32,
    }

    struct mlx5dv_devx_umem_in {
        addr: *mut c_void,
        size: usize,
        access: u32,
        pgsz_bitmap: u64,
        comp_mask: u64,
        dmabuf_fd: c_int,
    }

    struct mlx5dv_devx_cmd_comp {
        fd: c_int,
    }

    struct mlx5dv_devx_event_channel {
        fd: c_int,
    }

    struct mlx5dv_devx_async_cmd_hdr {
        wr_id: u64,
    }

    struct mlx5dv_devx_async_event_hdr {
        cookie: u64,
    }

    struct mlx5dv_export_sizes {
        var_attrs_size: u32,
        devx_umem_attrs_size: u32,
        devx_obj_attrs_size: u32,
    }
}

/// `struct mlx5dv_flow_action_attr`, whose union is anonymous.
#[repr(C)]
pub(crate) struct mlx5dv_flow_action_attr {
    pub(crate) r#type: u32,
    /// The object, or the tag in its first four bytes.
    pub(crate) value: *mut c_void,
    /// Of a bulk of counters. Newer than rdma-core 44, in which the struct ends here.
    pub(crate) offset: u32,
}

const _: () = assert!(
    size_of::<mlx5dv_flow_action_attr>() == 24
        && core::mem::offset_of!(mlx5dv_flow_action_attr, value) == 8
        && core::mem::offset_of!(mlx5dv_flow_action_attr, offset) == 16
);

/// The anonymous struct of a ring in [`mlx5dv_qp`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) buf: *mut c_void,
    pub(crate) wqe_cnt: u32,
    pub(crate) stride: u32,
}

/// The anonymous struct of the register in [`mlx5dv_qp`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Register {
    pub(crate) reg: *mut c_void,
    pub(crate) size: u32,
}

/// The anonymous structs in [`mlx5dv_obj`].
#[repr(C)]
pub(crate) struct Pair<I, O> {
    pub(crate) r#in: *mut I,
    pub(crate) out: *mut O,
}

impl<I, O> Clone for Pair<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Pair<I, O> {}
