// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of this package and their parts. One test program, so that what they share is compiled once.

mod bulk;
mod kv;
mod log;
mod order;
mod ordered;
mod parts;
mod ports;
mod process;
mod rpc;
