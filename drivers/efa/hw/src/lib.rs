// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware format of EFA (Amazon's Elastic Fabric Adapter) as bytes: queues of the data path, admin commands, registers.
//!
//! A driver writes these and a device reads them, or vice versa. Of the code for this format, the driver and the software device of
//! this project share only this crate. Structs are plain little-endian words, convert with zerocopy, and have accessors for their bit
//! fields. The crate makes no decisions and no checks, and does no I/O. Fields that a device may write are integers, so no byte
//! pattern is invalid.
//!
//! Of several generations of the device, these are the formats of the newest; fields that older ones lack are reserved there, and 0.
//! `tests/headers.rs` compares every struct and constant with the headers of the kernel's driver and of rdma-core's provider.
//!
//! | module      | what                                                        |
//! |-------------|-------------------------------------------------------------|
//! | [`io`]      | entries of send, receive and completion queues              |
//! | [`regs`]    | the PCI function, registers and doorbells                   |
//! | [`admin`]   | entries of the admin queues and of event queues             |
//! | [`cmd`]     | commands that create, change and destroy objects            |
//! | [`feature`] | commands about the device: features, counters, the machine  |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("EFA devices are in little-endian machines, and their words are declared as plain integers.");

pub mod admin;
pub mod cmd;
pub mod feature;
pub mod io;
pub mod regs;

use uverbs_uapi::layout;

/// Every module that declares a part of the format, for the header test.
#[doc(hidden)]
pub const MODULES: &[layout::Module] = &[
    layout::Module { path: "admin.rs", structs: admin::STRUCTS, consts: admin::CONSTS },
    layout::Module { path: "cmd.rs", structs: cmd::STRUCTS, consts: cmd::CONSTS },
    layout::Module { path: "feature.rs", structs: feature::STRUCTS, consts: feature::CONSTS },
    layout::Module { path: "io.rs", structs: io::STRUCTS, consts: io::CONSTS },
    layout::Module { path: "regs.rs", structs: regs::STRUCTS, consts: regs::CONSTS },
];
