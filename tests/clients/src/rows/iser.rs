// SPDX-License-Identifier: MIT OR Apache-2.0
//! iSER: tgt and libiscsi. `sh/iser` runs both.

use crate::row::Family::Connect;
use crate::row::{ADDRESSES_TRIED, Row, row};

/// The rows.
pub(super) const ROWS: &[Row] = &[row(Connect, "iser", "", ADDRESSES_TRIED)];
