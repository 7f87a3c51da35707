// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of numbers.

use core::fmt::Write as _;

/// Numbers with their names.
pub(crate) type Names = &'static [(u64, &'static str)];

/// The name of a number.
pub(crate) fn name(names: Names, value: u64) -> &'static str {
    names.iter().find(|(known, _)| *known == value).map_or("unknown", |(_, name)| name)
}

/// The names of the bits that are set.
pub(crate) fn flags(names: Names, value: u64) -> String {
    let mut out = String::new();
    let mut left = value;
    for (bit, name) in names.iter().filter(|(bit, _)| value & bit != 0) {
        left &= !bit;
        if !out.is_empty() {
            out.push_str(" | ");
        }
        out.push_str(name);
    }
    if left != 0 {
        let separator = if out.is_empty() { "" } else { " | " };
        // Writing to a String does not fail.
        let _ = write!(out, "{separator}reserved {left:#x}");
    }
    out
}

/// The least significant 24 bits of a QP number, as rdma-core's tools print it.
pub(crate) fn qp(number: u64) -> String {
    format!("QP {number:#08x}")
}

/// A GID, or its IPv4 address.
pub(crate) fn gid(bytes: &[u8]) -> String {
    match <[u8; 16]>::try_from(bytes) {
        Ok(bytes) => core::net::Ipv6Addr::from(bytes).to_string(),
        Err(_) => String::new(),
    }
}
