// SPDX-License-Identifier: MIT OR Apache-2.0
//! Published Rust crates that bind libibverbs: their own tests and examples. `cargo xtask clients --crates` builds them.

use crate::row::Family::{Connect, Harness, Pingpong, Plain};
use crate::row::Place::{Native, Roce, Rxe, Siw};
use crate::row::{ADDRESSES, EVERYWHERE, EXCHANGE, Places, Row, row};

/// What needs a GID with a certain property.
const GIDS: Places = Places {
    list: &[Native, Rxe, Roce],
    why: "it uses the GID at index 1, or the first that is not link-local, which the InfiniBand port lacks; iWARP connects QPs by librdmacm only",
};
/// What sends to a fixed LID.
const LID: Places = Places {
    list: &[Native, Rxe, Roce],
    why: "it sends to LID 1 from both ends, and iWARP connects QPs by librdmacm only",
};
/// What prints names of network devices.
const NETDEVS: Places =
    Places { list: &[Native, Rxe, Siw, Roce], why: "it requires that each GID has a network device" };

/// The rows. A program's name is that of its crate and its target.
pub(super) const ROWS: &[Row] = &[
    row(Harness, "ibverbs-tests", "", EVERYWHERE),
    row(Plain, "ibverbs-loopback", "", GIDS),
    row(Harness, "sideway-tests", "", EXCHANGE),
    row(Harness, "sideway-test_atomic", "", GIDS),
    row(Harness, "sideway-test_cq", "", EVERYWHERE),
    row(Harness, "sideway-test_mr_and_cq", "", EVERYWHERE),
    row(Harness, "sideway-test_post_send", "", EXCHANGE),
    row(Harness, "sideway-test_qp", "", EXCHANGE),
    row(Plain, "sideway-ibv_devinfo", "", EVERYWHERE),
    row(Plain, "sideway-show_gids", "", NETDEVS),
    // They poll for as long as completions arrive, and return no entries meanwhile: their queues have room for 126 completions.
    row(Pingpong, "sideway-rc_pingpong", "-n 63", LID),
    row(Pingpong, "sideway-rc_pingpong_split", "-n 63", LID),
    row(Connect, "sideway-cmtime", "-c 5", ADDRESSES),
    // Its package has no tests and no examples: the program shows that it builds and links.
    row(Harness, "rdma-io-tests", "", EVERYWHERE),
];
