// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queues, and the indirection tables that distribute packets over them (ibv_create_wq(3),
//! ibv_create_rwq_ind_table(3)).

use super::context::ibv_context;
use super::object::{ibv_cq, ibv_pd};
use core::ffi::{c_int, c_void};
use libc::{pthread_cond_t, pthread_mutex_t};
use uverbs_core::wr::RecvWr;

c_struct! {
    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: u32,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: u32,
        curr_wq_state: u32,
        flags: u32,
        flags_mask: u32,
    }

    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: u32,
        wq_type: u32,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_wq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }

    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }
}
