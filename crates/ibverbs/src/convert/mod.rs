// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversions of attributes between C's structs and those of the core.

pub(crate) mod device;
pub(crate) mod flow;
pub(crate) mod path;
pub(crate) mod qp;
