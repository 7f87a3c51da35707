// SPDX-License-Identifier: MIT OR Apache-2.0
//! gloo's transport on libibverbs. `c/gloo_ring.cc` is the program: Debian has the library, and no benchmark of it.

use crate::row::Family::Pingpong;
use crate::row::{EXCHANGE, Row, row};

/// The rows.
pub(super) const ROWS: &[Row] = &[row(Pingpong, "gloo_ring", "-n 3", EXCHANGE)];
