// SPDX-License-Identifier: MIT OR Apache-2.0
//! iSER: tgt and libiscsi. `sh/iser` runs both.

use crate::row::Family::Connect;
use crate::row::Place::{Roce, Rxe};
use crate::row::{Places, Row, row};

/// Where it was tried.
const TRIED: Places = Places {
    list: &[Rxe, Roce],
    why: "librdmacm needs IPoIB and a subnet manager on InfiniBand, which the software HCA lacks; it was not tried on iWARP",
};

/// The rows.
pub(super) const ROWS: &[Row] = &[row(Connect, "iser", "", TRIED)];
