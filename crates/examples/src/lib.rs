// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole programs on [`uverbs`].
//!
//! | program | what |
//! |---|---|
//! | `kv` | a key-value store: [`kv`] |
//! | `bulk` | transfers of many blocks over several QPs and NICs, with failover: [`bulk`] |
//! | `burst` | a program with a mistake that a trace finds: [`burst`] |
//! | `log` | a replicated log, with election by compare-and-swap and fencing by windows: [`log`] |
//! | `ordered` | messages in order over SRD, which has no order: [`ordered`] |
//! | `rpc` | calls with deadlines, of hundreds of clients to one server: [`rpc`] |
//! | `flag` | an ordering bug, and its repair: for `uverbs-hca order` |
//! | `rc_pingpong`, `loopback`, `echo` | ports of programs for other libraries, without a library of their own |
//!
//! The libraries are generic over the driver; the programs use `AnyDriver`, so they run on any device, also on software
//! NICs (`-d hca0`).

#[forbid(unsafe_code)]
pub mod bulk;
#[forbid(unsafe_code)]
pub mod burst;
#[forbid(unsafe_code)]
pub mod kv;
#[forbid(unsafe_code)]
pub mod link;
#[forbid(unsafe_code)]
pub mod log;
#[forbid(unsafe_code)]
pub mod nic;
#[forbid(unsafe_code)]
pub mod ordered;
#[forbid(unsafe_code)]
pub mod rpc;
pub mod udmabuf;
#[forbid(unsafe_code)]
pub mod wait;
