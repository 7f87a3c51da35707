// SPDX-License-Identifier: MIT OR Apache-2.0
//! The in-process kernel: a front that answers the uverbs ioctl ABI as bytes, as `ib_uverbs` and `efa` do.
//!
//! Errors are those of the kernel. Facts from drivers/infiniband/core/uverbs_*.c and drivers/infiniband/hw/efa (`efa_verbs.c`,
//! `efa_com.c`).

mod bells;
mod call;
mod context;
mod cq;
mod dispatch;
mod maps;
mod memory;
mod object;
mod qp;
mod query;
mod state;

pub(crate) use state::State;
