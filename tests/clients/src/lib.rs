// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of other projects on `libibverbs.so.1`: pingpongs, perftest, librdmacm's programs, rdma-core's test suite.
//!
//! A [row] is a program with its arguments, one process or a server and a client. Each row runs with rdma-core's library and
//! with this project's, and where both ends can have different libraries, with one end of each. The result is one
//! [table](report), which fails if a row passes with rdma-core's library, or by the committed table, and not with ours.
//!
//! `cargo xtask clients` runs the rows in two places: [`native`], with devices of the software HCA in each process, joined by
//! a fabric; and in the VM lab, where the program of this crate runs the rows of [`guest`] on the kernel's devices. In two VMs
//! on one fabric, the clients run in the second one, see [`remote`].

pub mod guest;
pub mod harness;
pub mod mpi;
pub mod native;
pub mod process;
pub mod pyverbs;
pub mod remote;
pub mod report;
pub mod row;
pub mod rows;
pub mod watch;
