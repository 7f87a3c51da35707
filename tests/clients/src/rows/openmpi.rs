// SPDX-License-Identifier: MIT OR Apache-2.0
//! OpenMPI over UCX, between the guests of a pair. `c/mpi_bench.c` is the benchmark; Debian has none.

use crate::row::Family::Mpi;
use crate::row::{MLX5_VM, Row, row, short};

/// The rows: UCX's transports, and the benchmark's arguments. The collectives have two ranks in each guest.
pub(super) const ROWS: &[Row] = &[
    short(Mpi, "mpi_bench", "rc_x,self pingpong 20", MLX5_VM),
    row(Mpi, "mpi_bench", "rc_v,ud_v,self pingpong 20", MLX5_VM),
    row(Mpi, "mpi_bench", "ud_x,self pingpong 20", MLX5_VM),
    row(Mpi, "mpi_bench", "dc_x,self pingpong 20", MLX5_VM),
    short(Mpi, "mpi_bench", "rc_x,self collectives 5", MLX5_VM),
    row(Mpi, "mpi_bench", "rc_v,ud_v,self collectives 5", MLX5_VM),
    row(Mpi, "mpi_bench", "dc_x,self collectives 5", MLX5_VM),
];
