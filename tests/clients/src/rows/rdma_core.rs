// SPDX-License-Identifier: MIT OR Apache-2.0
//! libibverbs's own programs.

use crate::row::Family::{Pingpong, Single, Watch};
use crate::row::{EVERYWHERE, EXCHANGE, MLX5, Row, VM, row, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    short(Single, "ibv_devinfo", "-v", EVERYWHERE),
    short(Pingpong, "ibv_rc_pingpong", "-n 50", EXCHANGE),
    short(Pingpong, "ibv_rc_pingpong", "-n 200 -e -c", EXCHANGE),
    row(Pingpong, "ibv_rc_pingpong", "-n 100 -e -N", EXCHANGE),
    row(Pingpong, "ibv_rc_pingpong", "-n 50 -t", MLX5),
    row(Pingpong, "ibv_uc_pingpong", "-n 50", EXCHANGE),
    row(Pingpong, "ibv_uc_pingpong", "-n 200 -e -c", EXCHANGE),
    row(Pingpong, "ibv_ud_pingpong", "-n 50 -s 1024", EXCHANGE),
    short(Pingpong, "ibv_ud_pingpong", "-n 200 -s 1024 -e -c", EXCHANGE),
    row(Pingpong, "ibv_srq_pingpong", "-n 50", EXCHANGE),
    short(Pingpong, "ibv_srq_pingpong", "-n 200 -e -c", EXCHANGE),
    row(Pingpong, "ibv_xsrq_pingpong", "-n 50", MLX5),
    row(Pingpong, "ibv_xsrq_pingpong", "-n 200 -e", MLX5),
    row(Watch, "ibv_asyncwatch", "", VM),
];
