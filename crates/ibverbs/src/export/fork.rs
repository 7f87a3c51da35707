// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and fork(2) (ibv_fork_init(3)).
//!
//! Every supported kernel copies pages that a device uses for a child (`RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK`, since kernel
//! 5.12), so no page has to be excluded from a fork.

use core::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED`
const UNNEEDED: u32 = 2;

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> u32 {
    UNNEEDED
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}
