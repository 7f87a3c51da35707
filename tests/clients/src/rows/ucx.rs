// SPDX-License-Identifier: MIT OR Apache-2.0
//! UCX. It lists only devices that have a file in /dev/infiniband, so it does not run natively.

use crate::row::Family::{Ucp, Uct};
use crate::row::Place::{Ib, Roce};
use crate::row::{MLX5_VM, Places, Row, VM_EXCHANGE, row, short};

/// What needs datagrams or the protocols.
const NOT_RXE: Places = Places {
    list: &[Roce, Ib],
    why: "datagrams and UCX's protocols fail on rxe with rdma-core's library, too",
};

/// The rows: its transports on libibverbs, those that write mlx5's queues themselves, and the protocols on top of either.
pub(super) const ROWS: &[Row] = &[
    row(Uct, "ucx_perftest", "-x rc_verbs -t am_lat -n 100 -w 10", VM_EXCHANGE),
    row(Uct, "ucx_perftest", "-x rc_verbs -t put_bw -n 100 -w 10", VM_EXCHANGE),
    row(Uct, "ucx_perftest", "-x rc_verbs -t add_mr -n 100 -w 10", VM_EXCHANGE),
    row(Uct, "ucx_perftest", "-x ud_verbs -t am_lat -n 100 -w 10", NOT_RXE),
    row(Uct, "ucx_perftest", "-x rc_mlx5 -t am_lat -n 100 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x rc_mlx5 -t am_bw -D zcopy -s 4096 -n 1000 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x rc_mlx5 -t get -D zcopy -s 65536 -n 100 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x rc_mlx5 -t cswap -n 100 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x ud_mlx5 -t am_lat -n 100 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x dc_mlx5 -t am_lat -n 100 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x dc_mlx5 -t am_bw -D zcopy -s 4096 -n 1000 -w 10", MLX5_VM),
    row(Uct, "ucx_perftest", "-x dc_mlx5 -t put_lat -n 100 -w 10", MLX5_VM),
    row(Ucp, "env", "UCX_TLS=rc_v,self ucx_perftest -t tag_bw -n 100 -s 65536", NOT_RXE),
    row(Ucp, "env", "UCX_TLS=ud_v,self ucx_perftest -t tag_bw -n 100 -s 65536", NOT_RXE),
    short(Ucp, "env", "UCX_TLS=rc_x,self ucx_perftest -t tag_bw -n 100 -s 65536", MLX5_VM),
    row(Ucp, "env", "UCX_TLS=ud_x,self ucx_perftest -t tag_bw -n 100 -s 65536", MLX5_VM),
    row(Ucp, "env", "UCX_TLS=dc_x,self ucx_perftest -t tag_bw -n 100 -s 65536", MLX5_VM),
    row(Ucp, "env", "UCX_TLS=rc_x,self ucx_perftest -t ucp_get -n 100 -s 4096", MLX5_VM),
];
