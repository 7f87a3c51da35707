// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of values (ibv_event_type_str(3)). Programs print them and scripts search for them, so they are those of
//! rdma-core's library. A test compares them if that library is installed.

use core::ffi::{CStr, c_char};

const UNKNOWN: &CStr = c"unknown";

/// The name of a value, by its number.
fn name(names: &'static [&'static CStr], value: u32) -> *const c_char {
    names.get(value as usize).copied().unwrap_or(UNKNOWN).as_ptr()
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(NAMES, status)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(node_type: u32) -> *const c_char {
    const NAMES: &[&CStr] = &[
        UNKNOWN,
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(NAMES, node_type)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(port_state: u32) -> *const c_char {
    const NAMES: &[&CStr] =
        &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(NAMES, port_state)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    name(NAMES, event)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: u32) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        UNKNOWN,
        UNKNOWN,
        c"flush",
        c"atomic-write",
    ];
    name(NAMES, opcode)
}
