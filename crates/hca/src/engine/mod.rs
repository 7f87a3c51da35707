// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: objects, execution of WQEs, packets in and out. It is independent of ioctls, processes and threads. A
//! front (the in-process kernel) creates objects in it and takes its notices.
//!
//! Everything of one fabric is behind one lock, and every reaction to a packet is an event of the network's, so nothing
//! here calls back into the queue that it comes from.

mod attr;
mod checksum;
pub(crate) mod cq;
mod data;
mod datagram;
mod device;
mod ethernet;
mod execute;
pub(crate) mod flow;
mod front;
pub(crate) mod headers;
pub(crate) mod mkey;
pub(crate) mod net;
mod notice;
mod offload;
pub(crate) mod packet;
mod port;
pub(crate) mod qp;
pub(crate) mod recv;
mod reliable;
mod requester;
mod responder;
pub(crate) mod rss;
mod send;
#[cfg(test)]
mod tests;

pub use device::Device;
pub use front::Front;
pub use notice::{Notice, event};
pub use port::Port;
