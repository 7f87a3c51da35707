// SPDX-License-Identifier: MIT OR Apache-2.0
//! perftest.
//!
//! Each program has a row for each transport that has its operation, and for each of the options `-e`, `-I`, `-l`, `-q`, `-R`
//! and `--use_old_post_send` that it has: writes have no `-e`, latency tests no `-l` and `-q`, and reads and atomics no `-I`. Some
//! rows combine options.

use crate::row::Family::{Ethernet, Perftest};
use crate::row::Place::Roce;
use crate::row::{ADDRESSES, ADDRESSES_IB, EXCHANGE, MLX5, MLX5_VM, Places, Row, row, short};

/// Raw packets.
const ETHERNET: Places = Places {
    list: &[Roce],
    why: "raw packets need an Ethernet port, and a device with raw packet QPs: not rxe",
};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    short(Perftest, "ib_send_lat", "-n 20", EXCHANGE),
    short(Perftest, "ib_send_lat", "-n 50 -e", EXCHANGE),
    row(Perftest, "ib_send_lat", "-n 20 -c UC", EXCHANGE),
    row(Perftest, "ib_send_lat", "-n 20 -c UD", EXCHANGE),
    row(Perftest, "ib_send_lat", "-n 20 -c XRC", MLX5),
    row(Perftest, "ib_send_lat", "-n 20 -I 32 -s 32 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_send_lat", "-n 20 -R", ADDRESSES),
    row(Perftest, "ib_send_bw", "-n 50 -e", EXCHANGE),
    short(Perftest, "ib_send_bw", "-n 50 -c UC", EXCHANGE),
    row(Perftest, "ib_send_bw", "-n 50 -c UD -s 1024 -e", EXCHANGE),
    row(Perftest, "ib_send_bw", "-n 50 -c XRC -e", MLX5),
    row(Perftest, "ib_send_bw", "-n 50 -e -I 32 -s 32", EXCHANGE),
    row(Perftest, "ib_send_bw", "-n 100 -l 4", EXCHANGE),
    row(Perftest, "ib_send_bw", "-n 50 -q 4", EXCHANGE),
    row(Perftest, "ib_send_bw", "-n 50 -e --use-srq", EXCHANGE),
    short(Perftest, "ib_send_bw", "-n 50 -e --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_write_lat", "-n 20", EXCHANGE),
    row(Perftest, "ib_write_lat", "-n 20 -c UC", EXCHANGE),
    row(Perftest, "ib_write_lat", "-n 20 -c XRC", MLX5),
    row(Perftest, "ib_write_lat", "-n 20 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_write_lat", "-n 20 -I 64 -s 64", EXCHANGE),
    row(Perftest, "ib_write_lat", "-n 20 -R", ADDRESSES),
    short(Perftest, "ib_write_bw", "-n 50", EXCHANGE),
    row(Perftest, "ib_write_bw", "-n 50 -c UC", EXCHANGE),
    row(Perftest, "ib_write_bw", "-n 50 -c XRC", MLX5),
    row(Perftest, "ib_write_bw", "-n 50 -I 64 -s 64", EXCHANGE),
    row(Perftest, "ib_write_bw", "-n 100 -l 4 -q 2", EXCHANGE),
    row(Perftest, "ib_write_bw", "-n 50 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_write_bw", "-n 50 -R", ADDRESSES),
    row(Perftest, "ib_read_lat", "-n 20", EXCHANGE),
    row(Perftest, "ib_read_lat", "-n 50 -e", EXCHANGE),
    row(Perftest, "ib_read_lat", "-n 20 -c XRC", MLX5),
    row(Perftest, "ib_read_lat", "-n 20 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_read_lat", "-n 20 -R", ADDRESSES),
    short(Perftest, "ib_read_bw", "-n 50 -e", EXCHANGE),
    row(Perftest, "ib_read_bw", "-n 50 -q 2 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_read_bw", "-n 50 -c XRC", MLX5),
    row(Perftest, "ib_read_bw", "-n 100 -l 4", EXCHANGE),
    row(Perftest, "ib_read_bw", "-n 50 -R", ADDRESSES),
    row(Perftest, "ib_atomic_lat", "-n 20", EXCHANGE),
    row(Perftest, "ib_atomic_lat", "-n 50 -e -A CMP_AND_SWAP", EXCHANGE),
    row(Perftest, "ib_atomic_lat", "-n 20 -c XRC", MLX5),
    row(Perftest, "ib_atomic_lat", "-n 20 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_atomic_lat", "-n 20 -R", ADDRESSES_IB),
    short(Perftest, "ib_atomic_bw", "-n 50 -e", EXCHANGE),
    row(Perftest, "ib_atomic_bw", "-n 50 -c XRC", MLX5),
    row(Perftest, "ib_atomic_bw", "-n 100 -l 4 -q 2", EXCHANGE),
    row(Perftest, "ib_atomic_bw", "-n 50 --use_old_post_send", EXCHANGE),
    row(Perftest, "ib_atomic_bw", "-n 50 -R", ADDRESSES_IB),
    row(Perftest, "ib_send_bw", "-n 50 -R", ADDRESSES),
    row(Ethernet, "raw_ethernet_bw", "-n 50 -s 512", ETHERNET),
    row(Ethernet, "raw_ethernet_lat", "-n 50 -s 512", ETHERNET),
    row(Perftest, "ib_send_lat", "-n 20 -c DC", MLX5),
    row(Perftest, "ib_send_bw", "-n 50 -c DC", MLX5),
    row(Perftest, "ib_send_bw", "-n 50 -c DC -e", MLX5_VM),
    row(Perftest, "ib_write_lat", "-n 20 -c DC", MLX5),
    row(Perftest, "ib_write_bw", "-n 50 -c DC", MLX5),
    row(Perftest, "ib_read_lat", "-n 20 -c DC", MLX5),
    row(Perftest, "ib_read_bw", "-n 50 -c DC", MLX5),
    row(Perftest, "ib_atomic_lat", "-n 20 -c DC", MLX5),
    row(Perftest, "ib_atomic_bw", "-n 50 -c DC", MLX5),
];
