// SPDX-License-Identifier: MIT OR Apache-2.0
//! Published Rust crates that bind libibverbs: their own tests and examples. `cargo xtask clients --crates` builds them.

use crate::row::Family::{Connect, Harness, Pingpong, Plain};
use crate::row::{ADDRESSES, EVERYWHERE, EXCHANGE, Row, row};

/// The rows. A program's name is that of its crate and its target.
pub(super) const ROWS: &[Row] = &[
    row(Harness, "ibverbs-tests", "", EVERYWHERE),
    row(Plain, "ibverbs-loopback", "", EXCHANGE),
    row(Harness, "sideway-tests", "", EXCHANGE),
    row(Harness, "sideway-test_atomic", "", EXCHANGE),
    row(Harness, "sideway-test_cq", "", EVERYWHERE),
    row(Harness, "sideway-test_mr_and_cq", "", EVERYWHERE),
    row(Harness, "sideway-test_post_send", "", EXCHANGE),
    row(Harness, "sideway-test_qp", "", EXCHANGE),
    row(Plain, "sideway-ibv_devinfo", "", EVERYWHERE),
    row(Plain, "sideway-show_gids", "", EVERYWHERE),
    row(Pingpong, "sideway-rc_pingpong", "-n 100", EXCHANGE),
    row(Pingpong, "sideway-rc_pingpong_split", "-n 100", EXCHANGE),
    row(Connect, "sideway-cmtime", "-c 5", ADDRESSES),
    // Its package has no tests and no examples: the program shows that it builds and links.
    row(Harness, "rdma-io-tests", "", EVERYWHERE),
];
