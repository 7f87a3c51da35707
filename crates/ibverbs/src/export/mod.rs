// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exported functions that are no verbs of one kind of object: devices, queries, queue pairs, helpers.

pub(crate) mod device;
mod fork;
mod marshal;
mod missing;
pub(crate) mod qp;
mod rate;
pub(crate) mod sysfs;
mod text;
