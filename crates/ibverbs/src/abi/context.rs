// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices and contexts, with the functions that the header's inline functions call through them.
//!
//! A slot of [`verbs_context`] that is `None` means that the verb is missing: the inline functions return `EOPNOTSUPP`.
#![expect(non_snake_case, reason = "C's names")]

use super::attr::{
    ibv_alloc_dm_attr, ibv_cq_init_attr_ex, ibv_dmah, ibv_modify_cq_attr, ibv_mr_init_attr,
    ibv_parent_domain_init_attr, ibv_srq_init_attr_ex, ibv_td_init_attr, ibv_xrcd_init_attr,
};
use super::device::{ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex};
use super::flow::{ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow, ibv_flow_attr};
use super::object::{ibv_cq, ibv_cq_ex, ibv_dm, ibv_pd, ibv_srq, ibv_td, ibv_xrcd};
use super::qp::{ibv_mw_bind, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr};
use super::wq::{ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr};
use crate::arg::Arg;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use libc::pthread_mutex_t;
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::{IbvMr, IbvMw, RecvWr, SendWr, Sge};

/// A function that is never called, or that this library does not have. The field is declared for the offsets of the
/// other fields.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

c_struct! {
    struct _ibv_device_ops {
        _dummy1: Unused,
        _dummy2: Unused,
    }

    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    struct ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Option<unsafe extern "C" fn(Arg<'_, ibv_pd>, u32) -> *mut IbvMw>,
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut IbvMw, Option<&ibv_mw_bind>) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(Arg<'_, IbvMw>) -> c_int>,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut WorkCompletion) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    /// New fields are added at its start: programs find a field by its distance from the end, and determine from `sz`
    /// whether it exists.
    struct verbs_context {
        free_buf: Unused,
        alloc_buf: Unused,
        dm_export_dmabuf_fd: Unused,
        reg_mr_ex: Option<unsafe extern "C" fn(Arg<'_, ibv_pd>, Option<&ibv_mr_init_attr>) -> *mut IbvMr>,
        dealloc_dmah: Option<unsafe extern "C" fn(*mut ibv_dmah) -> c_int>,
        alloc_dmah: Unused,
        query_port: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(Arg<'_, ibv_pd>, u32, u32, *mut Sge, u32) -> c_int>,
        alloc_null_mr: Option<unsafe extern "C" fn(Arg<'_, ibv_pd>) -> *mut IbvMr>,
        read_counters: Option<unsafe extern "C" fn(Arg<'_, ibv_counters>, *mut u64, u32, u32) -> c_int>,
        attach_counters_point_flow: Option<
            unsafe extern "C" fn(Arg<'_, ibv_counters>, Option<&ibv_counter_attach_attr>, Arg<'_, ibv_flow>) -> c_int,
        >,
        create_counters: Option<
            unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_counters_init_attr>) -> *mut ibv_counters,
        >,
        destroy_counters: Option<unsafe extern "C" fn(Arg<'_, ibv_counters>) -> c_int>,
        reg_dm_mr: Option<unsafe extern "C" fn(Arg<'_, ibv_pd>, Arg<'_, ibv_dm>, u64, usize, c_uint) -> *mut IbvMr>,
        alloc_dm: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_alloc_dm_attr>) -> *mut ibv_dm>,
        free_dm: Option<unsafe extern "C" fn(Arg<'_, ibv_dm>) -> c_int>,
        modify_flow_action_esp: Unused,
        destroy_flow_action: Unused,
        create_flow_action_esp: Unused,
        modify_qp_rate_limit: Option<unsafe extern "C" fn(Arg<'_, ibv_qp>, Option<&ibv_qp_rate_limit_attr>) -> c_int>,
        alloc_parent_domain: Option<
            unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_parent_domain_init_attr>) -> *mut ibv_pd,
        >,
        dealloc_td: Option<unsafe extern "C" fn(Arg<'_, ibv_td>) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_td_init_attr>) -> *mut ibv_td>,
        modify_cq: Option<unsafe extern "C" fn(Arg<'_, ibv_cq>, Option<&ibv_modify_cq_attr>) -> c_int>,
        post_srq_ops: Unused,
        destroy_rwq_ind_table: Option<unsafe extern "C" fn(Arg<'_, ibv_rwq_ind_table>) -> c_int>,
        create_rwq_ind_table: Option<
            unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_rwq_ind_table_init_attr>) -> *mut ibv_rwq_ind_table,
        >,
        destroy_wq: Option<unsafe extern "C" fn(Arg<'_, ibv_wq>) -> c_int>,
        modify_wq: Option<unsafe extern "C" fn(Arg<'_, ibv_wq>, Option<&ibv_wq_attr>) -> c_int>,
        create_wq: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&mut ibv_wq_init_attr>) -> *mut ibv_wq>,
        query_rt_values: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&mut ibv_values_ex>) -> c_int>,
        create_cq_ex: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_cq_init_attr_ex>) -> *mut ibv_cq_ex>,
        r#priv: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                Arg<'_, ibv_context>,
                Option<&ibv_query_device_ex_input>,
                *mut ibv_device_attr_ex,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Option<unsafe extern "C" fn(Arg<'_, ibv_flow>) -> c_int>,
        ABI_placeholder2: Unused,
        ibv_create_flow: Option<unsafe extern "C" fn(Arg<'_, ibv_qp>, *mut ibv_flow_attr) -> *mut ibv_flow>,
        ABI_placeholder1: Unused,
        open_qp: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_qp_open_attr>) -> *mut ibv_qp>,
        create_qp_ex: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&mut ibv_qp_init_attr_ex>) -> *mut ibv_qp>,
        get_srq_num: Option<unsafe extern "C" fn(Arg<'_, ibv_srq>, Option<&mut MaybeUninit<u32>>) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&mut ibv_srq_init_attr_ex>) -> *mut ibv_srq>,
        open_xrcd: Option<unsafe extern "C" fn(Arg<'_, ibv_context>, Option<&ibv_xrcd_init_attr>) -> *mut ibv_xrcd>,
        close_xrcd: Option<unsafe extern "C" fn(Arg<'_, ibv_xrcd>) -> c_int>,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}
