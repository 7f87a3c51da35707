// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric. Its connected endpoints use librdmacm. `c/fi_rma.c` takes the place of `fi_rma_bw`, of which Debian has no package.

use crate::row::Family::{Fabric, Rma};
use crate::row::{ADDRESSES, ADDRESSES_IB, Row, VM_EXCHANGE, row, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Fabric, "fi_pingpong", "-e msg -I 20 -S 1024", ADDRESSES),
    row(Fabric, "fi_pingpong", "-e dgram -I 20 -S 1024", VM_EXCHANGE),
    short(Rma, "fi_rma", "-e msg -o write -n 100 -S 65536", ADDRESSES),
    row(Rma, "fi_rma", "-e msg -o write -n 200 -S 64", ADDRESSES),
    row(Rma, "fi_rma", "-e msg -o read -n 100 -S 65536", ADDRESSES),
    row(Rma, "fi_rma", "-e msg -o writedata -n 100 -S 4096", ADDRESSES_IB),
    row(Rma, "fi_rma", "-e rdm -o write -n 100 -S 65536", ADDRESSES),
    row(Rma, "fi_rma", "-e rdm -o read -n 100 -S 65536", ADDRESSES),
    row(Rma, "fi_rma", "-e rdm -o writedata -n 100 -S 4096", ADDRESSES_IB),
];
