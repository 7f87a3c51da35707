// SPDX-License-Identifier: MIT OR Apache-2.0
//! The in-process kernel: a front that answers the uverbs ioctl ABI as bytes, as `ib_uverbs` and `mlx5_ib` do.
//!
//! `uverbs-softkernel` has the port that drivers call; `dispatch` selects the function for a command; and one file per kind of object has these
//! functions, as in the kernel. `state` has the kernel's data of a device. Errors are those of the kernel:
//! `EPROTONOSUPPORT` for unknown commands and attributes, `ENOENT` for a handle that does not exist, `EBUSY` for an
//! object in use, `EINVAL` for other errors. Facts from drivers/infiniband/core/uverbs_*.c and
//! drivers/infiniband/hw/mlx5.

mod advise;
mod ah;
mod call;
mod clock;
mod context;
mod counters;
mod cq;
mod device_memory;
mod devx;
mod dispatch;
mod dm;
mod flow;
mod limits;
mod matcher;
mod memory;
mod modify;
mod object;
mod qp;
mod query;
mod rss;
mod srq;
mod state;
#[cfg(test)]
mod tests;
mod uar;
mod watch;
mod write;
mod xrc;

pub(crate) use state::State;
