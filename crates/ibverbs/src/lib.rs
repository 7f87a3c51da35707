// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C ABI of libibverbs over the drivers of this project: the source of `libibverbs.so.1`.
//!
//! `cargo xtask dist` builds the library from this crate. Rust programs use the crate `uverbs` instead.
//!
//! # The path of a call
//! A C program's pointer to an object points to the public part, with which each object begins (`object`). A control
//! verb gets the pointer as an argument (`arg`), finds the object (`live`) and the context in which it was created (`context`), calls the
//! driver through it (`verbs`), and reports failure as its man page specifies (`errno`). The data path is called through the context's
//! table of functions, which exists once per driver (`data`), so it needs no lookup.
//!
//! # The contract of the functions
//! Every function here is called by C. The functions of the control path find an object in a table (`live`, `recent`), so a pointer to an
//! object that was destroyed is reported as `EINVAL`, as are NULL and an object of another library's context; a number in the
//! object's public part that is not the kernel's is answered as by the kernel. The data path does no lookup, and no check can
//! distinguish a pointer into valid memory from another one. So all of them are `unsafe` by the contract of their man pages:
//! pointers are NULL or valid, a context is not closed during a call, an object is destroyed after the objects that were created
//! from it, and memory that a work request names stays valid until its completion.

mod abi;
mod address;
mod arg;
mod context;
mod convert;
mod data;
mod devices;
mod driver_library;
mod dv;
mod efadv;
mod errno;
mod events;
mod export;
mod live;
mod logger;
mod neighbour;
mod object;
mod recent;
#[cfg(feature = "hca")]
mod software;
#[cfg(feature = "hca")]
mod software_cm;
mod verbs;

/// The drivers that have more than the verbs of the kernel.
const DRIVER_LIBRARIES: [driver_library::DriverLibrary; 2] = [dv::LIBRARY, efadv::LIBRARY];
