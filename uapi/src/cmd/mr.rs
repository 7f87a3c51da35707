// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on memory regions and windows.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::layout::abi_structs;

abi_structs! {
    /// Registers memory. `start` and `hca_va` must be equal within a page.
    pub struct ib_uverbs_reg_mr {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Address of the memory in the caller.
        pub start: u64,
        /// Length in bytes.
        pub length: u64,
        /// Address that work requests use for `start`.
        pub hca_va: u64,
        /// Protection domain.
        pub pd_handle: u32,
        /// `IB_UVERBS_ACCESS_*`.
        pub access_flags: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_reg_mr`].
    pub struct ib_uverbs_reg_mr_resp {
        /// Memory region.
        pub mr_handle: u32,
        /// Local key.
        pub lkey: u32,
        /// Remote key.
        pub rkey: u32,
        /// Driver-private tail.
        pub driver_data: [u32; 0],
    }

    /// Changes a memory region.
    pub struct ib_uverbs_rereg_mr {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Memory region.
        pub mr_handle: u32,
        /// Mask of the changes, `IB_MR_REREG_*`.
        pub flags: u32,
        /// Address of the memory in the caller.
        pub start: u64,
        /// Length in bytes.
        pub length: u64,
        /// Address that work requests use for `start`.
        pub hca_va: u64,
        /// Protection domain.
        pub pd_handle: u32,
        /// `IB_UVERBS_ACCESS_*`.
        pub access_flags: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_rereg_mr`].
    pub struct ib_uverbs_rereg_mr_resp {
        /// Local key.
        pub lkey: u32,
        /// Remote key.
        pub rkey: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Deregisters a memory region.
    pub struct ib_uverbs_dereg_mr {
        /// Memory region.
        pub mr_handle: u32,
    }

    /// Allocates a memory window.
    pub struct ib_uverbs_alloc_mw {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Protection domain.
        pub pd_handle: u32,
        /// `IB_MW_TYPE_*`.
        pub mw_type: u8,
        /// Must be 0.
        pub reserved: [u8; 3],
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_alloc_mw`].
    pub struct ib_uverbs_alloc_mw_resp {
        /// Memory window.
        pub mw_handle: u32,
        /// Remote key.
        pub rkey: u32,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Frees a memory window.
    pub struct ib_uverbs_dealloc_mw {
        /// Memory window.
        pub mw_handle: u32,
    }
}
