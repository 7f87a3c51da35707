// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of wheels that use libibverbs. `py/with_NAME.py` are the programs. UCX in NIXL's wheel lists only devices that have a
//! file in /dev/infiniband, so its rows are for a guest. rxe is not among its devices: the wheel has no driver for it.

use crate::row::Family::Wheel;
use crate::row::{MLX5_VM, NIXL, Row, WHEELS, row, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Wheel, "mooncake", "", WHEELS),
    row(Wheel, "peercache", "", WHEELS),
    row(Wheel, "dlslime", "", WHEELS),
    short(Wheel, NIXL, "--transports rc_x,self", MLX5_VM),
    row(Wheel, NIXL, "--transports rc_v,self", MLX5_VM),
    row(Wheel, NIXL, "--transports dc_x,self", MLX5_VM),
];
