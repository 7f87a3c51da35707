// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: objects, execution of WQEs, sending and receiving of packets. It is independent of ioctls, processes and
//! threads. A front (for example the in-process kernel) creates objects in it and delivers its notices.
//!
//! One lock protects a whole fabric. Packets are queued in the network and delivered later, so the execution of one
//! queue never calls back into the same queue.

mod aside;
mod attr;
mod checksum;
pub(crate) mod compress;
pub(crate) mod cq;
mod data;
pub(crate) mod datagram;
mod deferred;
mod device;
mod ethernet;
mod execute;
pub(crate) mod flow;
pub(crate) mod headers;
pub(crate) mod indirect;
pub(crate) mod mkey;
mod model;
mod near;
mod notice;
mod offload;
pub(crate) mod packet;
mod packet_bytes;
pub(crate) mod qp;
mod quick;
pub(crate) mod recv;
mod reliable;
mod requester;
mod responder;
mod rings;
pub(crate) mod rss;
mod script;
mod send;
mod short;
pub(crate) mod signature;
pub(crate) mod streams;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod trace;

pub use device::Device;
pub use notice::{Notice, event};
pub(crate) use uverbs_fabric::net;

/// The arguments of a call into a device: the clock and the network.
pub type Port<'a> = uverbs_fabric::Port<'a, packet::Packet>;
/// The network between the devices.
pub(crate) type Net = net::Net<packet::Packet>;
