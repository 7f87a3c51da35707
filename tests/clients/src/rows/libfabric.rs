// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric. Its connected endpoints use librdmacm.

use crate::row::Family::Fabric;
use crate::row::{ADDRESSES, Row, VM, row};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Fabric, "fi_pingpong", "-e msg -I 20 -S 1024", ADDRESSES),
    row(Fabric, "fi_pingpong", "-e dgram -I 20 -S 1024", VM),
];
