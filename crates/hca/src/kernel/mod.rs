// SPDX-License-Identifier: MIT OR Apache-2.0
//! The in-process kernel: a front that answers the uverbs ioctl ABI as bytes, as `ib_uverbs` and `mlx5_ib` do.
//!
//! `port` is what a driver calls, `dispatch` selects the function for a command, and one file per kind of object has these
//! functions, as in the kernel. `state` is what the kernel stores for a device. Errors are those that the kernel returns:
//! `EPROTONOSUPPORT` for what uverbs does not know, `ENOENT` for a handle that does not exist, `EBUSY` for what is in use,
//! `EINVAL` for the rest. Facts from drivers/infiniband/core/uverbs_*.c and drivers/infiniband/hw/mlx5.

mod ah;
mod attr;
mod call;
mod clock;
mod context;
mod counters;
mod cq;
mod device_memory;
mod dispatch;
mod dm;
mod events;
mod flow;
mod handles;
mod lend;
mod limits;
mod memory;
mod modify;
mod object;
mod port;
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

pub(crate) use port::HcaKernel;
pub(crate) use state::State;
