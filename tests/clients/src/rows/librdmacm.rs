// SPDX-License-Identifier: MIT OR Apache-2.0
//! librdmacm's programs.

use crate::row::Family::{Cm, Endless, Multicast, Rping, Udaddy};
use crate::row::{ADDRESSES, ADDRESSES_IB, Row, row, short};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    short(Rping, "rping", "-C 5 -v", ADDRESSES),
    short(Cm, "ucmatose", "-C 5", ADDRESSES),
    row(Udaddy, "udaddy", "-C 5", ADDRESSES_IB),
    row(Cm, "rstream", "-S 1024 -C 5", ADDRESSES),
    row(Endless, "cmtime", "-c 5", ADDRESSES),
    row(Multicast, "mckey", "-C 5", ADDRESSES_IB),
];
