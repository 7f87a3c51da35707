// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of wheels that use libibverbs. `py/with_NAME.py` are the programs.

use crate::row::Family::Wheel;
use crate::row::{Row, WHEELS, row};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Wheel, "mooncake", "", WHEELS),
    row(Wheel, "peercache", "", WHEELS),
    row(Wheel, "dlslime", "", WHEELS),
];
