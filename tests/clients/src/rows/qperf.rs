// SPDX-License-Identifier: MIT OR Apache-2.0
//! qperf. Without librdmacm it sends no GRH, which RoCE needs.

use crate::row::Family::Qperf;
use crate::row::Place::Ib;
use crate::row::{ADDRESSES, Row, row};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Qperf, "qperf", "-cm 1 -t 1 rc_lat", ADDRESSES),
    row(Qperf, "qperf", "-cm 1 -t 1 rc_bw rc_rdma_write_bw rc_rdma_read_bw", ADDRESSES),
    row(Qperf, "qperf", "-t 1 rc_lat", &[Ib]),
    row(Qperf, "qperf", "-t 1 rc_lat rc_bw rc_rdma_write_bw rc_rdma_read_bw", &[Ib]),
    row(Qperf, "qperf", "-t 1 uc_lat uc_bw", &[Ib]),
    row(Qperf, "qperf", "-t 1 ud_lat ud_bw", &[Ib]),
    row(
        Qperf,
        "qperf",
        "-t 1 rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add",
        &[Ib],
    ),
];
