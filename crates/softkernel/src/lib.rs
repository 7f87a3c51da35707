// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's part of software RDMA devices, as far as no driver differs in it.
//!
//! In Linux, `ib_uverbs` has the contexts and handles, and a driver has the objects. A model's in-process kernel is the driver
//! here: its kinds of objects are an [`Object`], and [`Tables`] has the contexts, the handles, and the files of events. Errors are those of
//! the kernel. Facts from drivers/infiniband/core/uverbs_*.c and rdma_core.c.
//!
//! | module | contents |
//! |---|---|
//! | [`tables`] | the contexts of a device, the owners of objects, the delivery of events |
//! | [`handles`] | one context: its objects by handle |
//! | [`events`], [`channels`] | files of asynchronous events, completion channels |
//! | [`attr`] | checks of attributes, and conversions to numbers and structs |
//! | [`Driver`] | a model's kernel state of a device, and the destruction of its objects |
//! | [`Call`] | a command that is executed: dispatch, objects of its context |
//! | [`Opened`] | a context, as the kernel port that drivers use |
//! | [`device_methods!`] | the methods that each software device has for its user |
//! | [`software`] | what programs need of a device of any model |
//! | [`commands`] | what no driver differs in, of some commands |
//! | [`script`] | the names of verbs, for faults by script |
//! | [`program_memory`] | memory that a command makes available to a device |

pub mod attr;
mod call;
pub mod channels;
pub mod commands;
mod device;
mod driver;
pub mod events;
pub mod handles;
mod object;
mod opened;
pub mod program_memory;
pub mod script;
pub mod software;
pub mod tables;

pub use call::{Call, Key};
pub use driver::{DataOf, Driver, Entered, PluggedOf, PortOf, kill, ring, unplug};
pub use handles::{Context, Entry, Reported};
pub use object::{Kind, Object};
pub use opened::Opened;
pub use software::{Handle, Software};
pub use tables::Tables;
