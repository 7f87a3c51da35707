// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exported functions for devices, queries and queue pairs, and helper functions.

pub(crate) mod device;
mod fork;
mod marshal;
mod missing;
pub(crate) mod qp;
mod rate;
pub(crate) mod sysfs;
mod text;
