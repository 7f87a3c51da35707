// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware format of mlx5 (ConnectX) queues as bytes: WQE segments, completion entries, doorbells.
//!
//! A driver writes these and a device reads them, or vice versa. Of the code for this format, the driver and
//! the software device of this project share only this crate. Structs are plain bytes with big-endian words, convert with
//! zerocopy, and have accessors for their bit fields. The crate makes no decisions and no checks, and does no I/O. Fields
//! that a device may write are integers, so no byte pattern is invalid.
//!
//! `tests/headers.rs` compares every struct and constant with `<infiniband/mlx5dv.h>`. The documentation of an item
//! that is not in that header names its source: the ConnectX Programmer's Reference Manual (*PRM*), or a Linux header.
//!
//! | module       | what                                                    |
//! |--------------|---------------------------------------------------------|
//! | [`wqe`]      | segments of send and receive work queue elements        |
//! | [`cqe`]      | completion queue entries                                |
//! | [`mini`]     | compressed completion queue entries                     |
//! | [`doorbell`] | doorbell records, the registers of a UAR page           |
#![no_std]
#![forbid(unsafe_code)]

pub mod cqe;
pub mod doorbell;
pub mod mini;
pub mod wqe;

pub use uverbs_uapi::be::{Be16, Be32, Be64};
use uverbs_uapi::layout;

/// Every module that declares a part of the format, for the header test.
#[doc(hidden)]
pub const MODULES: &[layout::Module] = &[
    layout::Module { path: "cqe.rs", structs: cqe::STRUCTS, consts: cqe::CONSTS },
    layout::Module { path: "doorbell.rs", structs: doorbell::STRUCTS, consts: doorbell::CONSTS },
    layout::Module { path: "mini.rs", structs: mini::STRUCTS, consts: mini::CONSTS },
    layout::Module { path: "wqe.rs", structs: wqe::STRUCTS, consts: wqe::CONSTS },
];
