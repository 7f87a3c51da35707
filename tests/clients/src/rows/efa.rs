// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on EFA devices: rdma-core's, perftest with SRD, and libfabric's provider efa.
//!
//! The arguments of each row differ from those of the rows for other devices, because a row is known by its name. Some of them are those
//! without which libefa refuses the program's requests, too: `ib_write_lat` writes inline by default, on a QP without EFA's flag for that
//! (`-I 0`); with UD, `ib_send_bw` has unsignaled requests (`-Q 1`). There is no row of `ib_read_lat -e`: it requests the next event before
//! it polls, so that a completion may raise two events, and posts after each; its queue has room for one request.

use crate::row::Family::{EfaFabric, Perftest, Pingpong, Plain, Single};
use crate::row::{EFA, EFA_FABRIC, Row, row};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(Single, "ibv_devinfo", "-v -i 1", EFA),
    row(Pingpong, "ibv_ud_pingpong", "-n 100 -s 2048", EFA),
    row(Pingpong, "ibv_ud_pingpong", "-n 100 -s 2048 -e -c", EFA),
    row(Perftest, "ib_send_lat", "-c SRD -n 20", EFA),
    row(Perftest, "ib_send_lat", "-c SRD -n 20 -a", EFA),
    row(Perftest, "ib_send_lat", "-c UD -n 30", EFA),
    row(Perftest, "ib_send_bw", "-c SRD -n 50", EFA),
    row(Perftest, "ib_send_bw", "-c SRD -n 50 -q 4 -b", EFA),
    row(Perftest, "ib_send_bw", "-c UD -n 60 -s 1024 -Q 1", EFA),
    row(Perftest, "ib_read_lat", "-c SRD -n 20", EFA),
    row(Perftest, "ib_read_bw", "-c SRD -n 50", EFA),
    row(Perftest, "ib_read_bw", "-c SRD -n 20 -a", EFA),
    row(EfaFabric, "fi_pingpong", "-e rdm -I 20 -S 1024", EFA_FABRIC),
    row(EfaFabric, "fi_pingpong", "-e rdm -I 5 -S 1048576", EFA_FABRIC),
    row(EfaFabric, "fi_pingpong", "-e dgram -I 30 -S 1024", EFA_FABRIC),
    row(Plain, "fi_info", "-p efa", EFA_FABRIC),
];

/// Rows that perftest of Debian 12 does not have: with SRD it refuses writes and events.
pub(super) const NEWER: &[Row] = &[
    row(Perftest, "ib_send_bw", "-c SRD -n 50 -e", EFA),
    row(Perftest, "ib_read_bw", "-c SRD -n 50 -e", EFA),
    row(Perftest, "ib_write_lat", "-c SRD -n 20 -I 0", EFA),
    row(Perftest, "ib_write_bw", "-c SRD -n 50", EFA),
    row(Perftest, "ib_write_bw", "-c SRD -n 20 -a", EFA),
];
