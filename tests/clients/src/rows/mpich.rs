// SPDX-License-Identifier: MIT OR Apache-2.0
//! MPICH over UCX, two ranks in one guest, which it is told to treat as two nodes. The program is that of OpenMPI.

use crate::row::Family::Mpich;
use crate::row::{MLX5_VM, Row, row};

/// The rows: UCX's transports, and the program's arguments.
pub(super) const ROWS: &[Row] = &[
    row(Mpich, "mpich_bench", "rc_v,ud_v,self pingpong 20", MLX5_VM),
    row(Mpich, "mpich_bench", "rc_x,self pingpong 20", MLX5_VM),
    row(Mpich, "mpich_bench", "rc_v,ud_v,self collectives 5", MLX5_VM),
];
