// SPDX-License-Identifier: MIT OR Apache-2.0
//! fio's engine rdma, with each operation that a client can choose. It connects by librdmacm.

use crate::row::Family::Fio;
use crate::row::{ADDRESSES_TRIED, Row, row, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    short(Fio, "fio", "--verb=write --bs=64k --size=2m --iodepth=4", ADDRESSES_TRIED),
    row(Fio, "fio", "--verb=read --bs=64k --size=2m --iodepth=4", ADDRESSES_TRIED),
    row(Fio, "fio", "--verb=send --bs=64k --size=2m --iodepth=4", ADDRESSES_TRIED),
];
