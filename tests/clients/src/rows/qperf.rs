// SPDX-License-Identifier: MIT OR Apache-2.0
//! qperf.

use crate::row::Family::Qperf;
use crate::row::Place::Ib;
use crate::row::{ADDRESSES, Places, Row, row};

/// Without librdmacm.
const NO_GRH: Places = Places { list: &[Ib], why: "without librdmacm it sends no GRH, which RoCE needs" };

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Qperf, "qperf", "-cm 1 -t 1 rc_lat", ADDRESSES),
    row(Qperf, "qperf", "-cm 1 -t 1 rc_bw rc_rdma_write_bw rc_rdma_read_bw", ADDRESSES),
    row(Qperf, "qperf", "-t 1 rc_lat", NO_GRH),
    row(Qperf, "qperf", "-t 1 rc_lat rc_bw rc_rdma_write_bw rc_rdma_read_bw", NO_GRH),
    row(Qperf, "qperf", "-t 1 uc_lat uc_bw", NO_GRH),
    row(Qperf, "qperf", "-t 1 ud_lat ud_bw", NO_GRH),
    row(
        Qperf,
        "qperf",
        "-t 1 rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add",
        NO_GRH,
    ),
];
