// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structs of `<infiniband/efadv.h>` that this library reads or writes, with the fields of rdma-core 65.
//!
//! They grow with the versions of rdma-core; a program passes the size of its own one.
use core::ffi::c_int;
use core::mem::MaybeUninit;

c_struct! {
    struct efadv_device_attr {
        comp_mask: u64,
        max_sq_wr: u32,
        max_rq_wr: u32,
        max_sq_sge: u16,
        max_rq_sge: u16,
        inline_buf_size: u16,
        inline_buf_size_ex: u16,
        device_caps: u32,
        max_rdma_size: u32,
    }

    struct efadv_ah_attr {
        comp_mask: u64,
        ahn: u16,
        reserved: [u8; 6],
    }

    struct efadv_sq_depth_attr {
        comp_mask: u64,
        flags: u32,
        max_send_sge: u32,
        max_rdma_sge: u32,
        max_inline_data: u32,
    }

    struct efadv_rq_depth_attr {
        comp_mask: u64,
        max_recv_sge: u32,
    }

    struct efadv_qp_init_attr {
        comp_mask: u64,
        driver_qp_type: u32,
        flags: u16,
        sl: u8,
        reserved: u8,
        wr_flags: u64,
    }

    struct efadv_wq_attr {
        comp_mask: u64,
        buffer: *mut u8,
        entry_size: u32,
        num_entries: u32,
        doorbell: *mut u32,
        max_batch: u32,
        caps: u16,
        reserved: [u8; 2],
    }

    struct efadv_qp {
        comp_mask: u64,
        wr_set_processing_hints: Option<unsafe extern "C" fn(*mut efadv_qp, u32)>,
    }

    struct efadv_cq_init_attr {
        comp_mask: u64,
        wc_flags: u64,
        flags: u64,
        ext_mem_dmabuf: ExtMemory,
    }

    struct efadv_cq_attr {
        comp_mask: u64,
        buffer: *mut u8,
        entry_size: u32,
        num_entries: u32,
        doorbell: *mut u32,
    }

    struct efadv_cq {
        comp_mask: u64,
        wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, Option<&mut MaybeUninit<[u8; 16]>>) -> c_int>,
        wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
    }

    struct efadv_mr_attr {
        comp_mask: u64,
        ic_id_validity: u16,
        recv_ic_id: u16,
        rdma_read_ic_id: u16,
        rdma_recv_ic_id: u16,
    }
}

/// The anonymous struct in [`efadv_cq_init_attr`]: memory for the queue, which this library does not take.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExtMemory {
    buffer: *mut u8,
    length: u64,
    offset: u64,
    fd: i32,
    reserved: [u8; 4],
}
