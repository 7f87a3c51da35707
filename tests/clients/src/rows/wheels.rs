// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of wheels that use libibverbs. `py/with_NAME.py` are the programs. UCX in NIXL's wheel lists only devices that have a
//! file in /dev/infiniband, so its rows are for a guest. rxe is not among its devices: the wheel has no driver for it.

use crate::row::Family::Wheel;
use crate::row::Place::Roce;
use crate::row::{MLX5_VM, NIXL, Places, Row, WHEELS, row, short};

/// The row of the short selection, which takes half a minute.
const ONE_LINK: Places = Places {
    list: &[Roce],
    why: "for the short selection one link is enough; the other rows of NIXL run on InfiniBand, too, and rxe and siw lack its transports",
};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Wheel, "mooncake", "", WHEELS),
    row(Wheel, "peercache", "", WHEELS),
    row(Wheel, "dlslime", "", WHEELS),
    short(Wheel, NIXL, "--transports rc_x,self", ONE_LINK),
    row(Wheel, NIXL, "--transports rc_v,self", MLX5_VM),
    row(Wheel, NIXL, "--transports ib,self", MLX5_VM),
];
