// SPDX-License-Identifier: MIT OR Apache-2.0
//! librpma. `c/rpma_rw.c` is the program; Debian has none.

use crate::row::Family::Rpma;
use crate::row::{ADDRESSES_IB, Row, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[short(Rpma, "rpma_rw", "", ADDRESSES_IB)];
