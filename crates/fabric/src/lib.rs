// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part that software RDMA devices have in common, whichever hardware they model.
//!
//! A [`Fabric`] connects devices of one [`Model`]: it delivers their packets in the order of its clock, with faults that a seed
//! selects, runs their timers, and carries packets between processes that share the fabric. A device sees it as a [`Port`]. It
//! accesses memory by the trait [`Memory`](memory::Memory), which [`process`] implements for the memory of this process. Its driver
//! sees a [`Front`]; [`Plugged`] is the handle of both, with what an operator can do to any device.
//!
//! `uverbs-hca` is such a model: a ConnectX. Programs use the models; this crate is for those who write one.
//!
//! # Time
//! By default the fabric runs in real time: packets are delivered within the call that sends them (unless there is a delay), and
//! timers are run by a thread that sleeps while there are none. A [deterministic](Fabric::deterministic) fabric has a virtual clock
//! and no thread: the same calls with the same seed give the same run. Its clock advances only if there is nothing else to do.
//!
//! | module | contents |
//! |---|---|
//! | [`model`] | what a model gives the fabric |
//! | [`net`] | addresses, the delivery of packets, faults, multicast groups |
//! | [`wire`] | the messages between two processes of a fabric |
//! | [`memory`] | the devices' interface to memory |
//! | [`process`], [`on_demand`], [`backing`] | memory of this process, and what files have as memory |
//! | [`order`] | the orders in which accesses to memory become visible |
//! | [`random`] | the numbers that a seed selects |
//! | [`map`] | maps and sets in order, whose code is compiled once |
//! | [`numbers`] | numbers that are given out, the lowest free one first |
//! | [`ring`] | the memory of a queue, to read its entries |
//! | [`socket`] | paths of Unix sockets |
//! | [`script`] | faults by rules |
//! | [`udp`] | ports that exchange packets with devices outside of the fabric |
//! | [`tap`] | what sees the packets: capture files |
//! | [`trace`] | what happens, in words |

mod alive;
mod aside;
pub mod backing;
mod capture;
mod direct;
mod fabric;
mod flight;
mod front;
pub mod map;
pub mod memory;
pub mod model;
pub mod net;
pub mod numbers;
pub mod on_demand;
pub mod order;
mod peers;
mod plugged;
mod port;
pub mod process;
pub mod random;
pub mod ring;
pub mod script;
pub mod socket;
mod stat;
mod state;
pub mod tap;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod timer;
pub mod trace;
mod trunk;
pub mod udp;
mod users;
mod violation;
pub mod wire;
mod world;
mod world_lock;

pub use aside::Aside;
pub use capture::Captured;
pub use direct::Near;
pub use fabric::Fabric;
pub use front::Front;
pub use model::{Hosts, Model, Packet, PortEvent};
pub use peers::MAX_PEERS;
pub use plugged::Plugged;
pub use port::Port;
pub use stat::{QpKind, QpStat, Stat};
pub use state::State;
pub use timer::Timer;
pub use users::Users;
pub use violation::{Violation, Violations, variant};
pub use world::World;
