// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of the library that are not implemented. Each fails in the way that its man page describes, and is listed
//! in the book's chapter on existing programs.

use crate::errno::{Errno, minus_one, negative, number, pointer};
use core::ffi::{c_int, c_void};

/// Returns NULL and sets `errno` to `EOPNOTSUPP`.
macro_rules! no_pointer {
    ($($name:ident($($ty:ty),*);)*) => {
        $(
            #[expect(unsafe_code, reason = "a symbol of the library")]
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($(_: $ty),*) -> *mut c_void {
                pointer(|| Err(Errno::EOPNOTSUPP))
            }
        )*
    };
}

/// Returns `EOPNOTSUPP`.
macro_rules! no_number {
    ($($name:ident($($ty:ty),*);)*) => {
        $(
            #[expect(unsafe_code, reason = "a symbol of the library")]
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($(_: $ty),*) -> c_int {
                number(|| Err(Errno::EOPNOTSUPP))
            }
        )*
    };
}

no_pointer! {
    ibv_alloc_dmah(*mut c_void, *mut c_void);
    ibv_create_comp_cntr(*mut c_void, *mut c_void);
}

no_number! {
    ibv_dealloc_dmah(*mut c_void);
    _ibv_query_comp_cntr_caps(*mut c_void, *mut c_void, usize);
    ibv_destroy_comp_cntr(*mut c_void);
    ibv_set_comp_cntr(*mut c_void, u64);
    ibv_set_err_comp_cntr(*mut c_void, u64);
    ibv_inc_comp_cntr(*mut c_void, u64);
    ibv_inc_err_comp_cntr(*mut c_void, u64);
    ibv_read_comp_cntr(*mut c_void, *mut u64);
    ibv_read_err_comp_cntr(*mut c_void, *mut u64);
    ibv_qp_attach_comp_cntr(*mut c_void, *mut c_void, *mut c_void);
}

/// Providers before 2007 registered themselves with it. As in rdma-core, it has no effect.
#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_register_driver(_: *const c_void, _: *const c_void) {}

/// The private symbols that only rdma-core's own providers use, and the functions of libmlx5 that are not implemented.
/// They exist so that libraries and programs that refer to them can be loaded; the functions return an error or 0.
mod private {
    use super::{Errno, c_int, c_void, minus_one, negative, number, pointer};

    #[expect(unsafe_code, reason = "a symbol of the library")]
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn uverbs_missing_number() -> c_int {
        number(|| Err(Errno::EOPNOTSUPP))
    }

    #[expect(unsafe_code, reason = "a symbol of the library")]
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn uverbs_missing_pointer() -> *mut c_void {
        pointer(|| Err(Errno::EOPNOTSUPP))
    }

    #[expect(unsafe_code, reason = "a symbol of the library")]
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn uverbs_missing_descriptor() -> isize {
        // A result of -1 for functions that return `int` and for those that return `ssize_t`.
        minus_one(|| Err(Errno::EOPNOTSUPP)) as isize
    }

    #[expect(unsafe_code, reason = "a symbol of the library")]
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn uverbs_missing_negative() -> c_int {
        negative(|| Err(Errno::EOPNOTSUPP)) as c_int
    }

    /// Returns 0, for functions without a result and for one that returns a count.
    #[expect(unsafe_code, reason = "a symbol of the library")]
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn uverbs_missing_nothing() -> c_int {
        0
    }

    /// A `bool` that providers set.
    #[expect(unsafe_code, reason = "a symbol of the library")]
    #[unsafe(no_mangle)]
    pub(crate) static mut uverbs_missing_flag: u8 = 0;
}
