// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C ABI of libibverbs over the drivers of this project: what becomes `libibverbs.so.1`.
//!
//! `cargo xtask dist` makes the library out of this crate. Rust programs have nothing to gain here: they use `uverbs`.
//!
//! # How a call goes
//! A C program's pointer is that of the public part with which each of our objects begins (`object`). A control verb finds
//! the context that the object was made on (`context`), asks it for the driver (`verbs`), and reports failure in the way
//! that its man page says (`errno`). The data path is called through the context's table of functions, which exist once per
//! driver (`data`), so it looks nothing up.
//!
//! # What is promised to Rust, and by whom
//! Every function here is called by C, and no check can tell a pointer to a live object from one to a dead one. So all of
//! them are `unsafe` by the contract of their man pages: pointers are NULL or valid, objects are destroyed once and after what
//! was made from them, memory that is named by a work request stays until its completion. NULL, and an object whose context
//! is none of ours, are told with `EINVAL`.

mod abi;
mod context;
mod convert;
mod data;
mod devices;
mod errno;
mod events;
mod export;
#[cfg(feature = "hca")]
mod hca;
mod object;
mod verbs;
