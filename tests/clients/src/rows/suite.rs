// SPDX-License-Identifier: MIT OR Apache-2.0
//! pyverbs, rdma-core's test suite. Natively it runs without a row.

use crate::row::Family::Single;
use crate::row::{Row, SUITE, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[short(Single, "pyverbs", "", SUITE)];
