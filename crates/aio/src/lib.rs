// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous RDMA verbs: operations of [`uverbs`] as futures that own their buffers.
//!
//! The crate needs no runtime: its futures work with any executor. It has no `unsafe` code, and a program needs none.
//!
//! ```
#![doc = include_str!("../examples/hello_async.rs")]
//! ```
//!
//! # Running a dispatcher
//! A [`Dispatcher`] is a completion queue and the tasks that wait for its completions. One of these runs it:
//!
//! | | |
//! |---|---|
//! | [`Dispatcher::block_on`] | a thread waits for a future, and runs the dispatcher meanwhile: the lowest latency |
//! | [`Dispatcher::spawn`] | a thread of its own; tasks run where they like |
//! | `Dispatcher::drive_with` (feature `tokio`) | a task of tokio waits for a future, and runs the dispatcher meanwhile: the cheapest way there |
//! | `Dispatcher::drive` (feature `tokio`) | a task of tokio for the dispatcher alone; other tasks run where they like |
//! | [`Dispatcher::poll_once`], [`prepare_sleep`](Dispatcher::prepare_sleep), [`after_sleep`](Dispatcher::after_sleep) | an event loop of the program, with the dispatcher's descriptor |
//!
//! It polls for some microseconds ([`spin`](DispatcherBuilder::spin)), and then sleeps on the completion channel. It arms the CQ
//! before it sleeps, and polls once more, because a completion that arrived before raises no event.
//!
//! # What the futures guarantee
//! - **They can be dropped at any time.** A buffer that was posted stays with the queue until the completion, the flush or
//!   the end of the queue, and then goes back to its pool. What was posted takes place nevertheless.
//! - **They can be forgotten.** The buffer is then leaked, not freed; one that waits for an entry of a full queue, or for a message, also
//!   keeps its place, because those are given out in the order in which they were asked for. The same is true of one that is not
//!   polled for long, as a reference in a `select!` whose other branch waits.
//! - **None of them runs the dispatcher alone.** A future of `drive` or `drive_with` that is not polled, or forgotten, stops no other.
//! - **A waker may do anything.** It is cloned, woken and dropped while the crate holds no lock, and one that panics is logged.
//! - **No message is lost** by a [`Qp::recv`] that is dropped: receives belong to the queue, not to the future.
//! - **A full queue is no error**: operations wait for an entry in the order in which they came. A CQ can't overrun, because
//!   its entries are reserved for the queues.
//! - **Errors give the buffer back** ([`Failed::returned`]), except where the device may still use it.
//! - **fork(2)**: in a child the futures of the parent's dispatcher end with [`PollError::Forked`](uverbs::PollError::Forked). No
//!   call waits for a thread that the child does not have, and none changes what is the parent's.
//! - **Ends**: [`Qp::shutdown`] waits for what is in flight, and flushes the receives; [`Qp::abort`] flushes everything. If the
//!   device is removed, all operations end with [`Error::DeviceRemoved`].
//!
//! Time limits ([`Dispatcher::timeout`]) are those of the dispatcher, whose clock a test can
//! [replace](DispatcherBuilder::clock).
//!
//! # Streams of bytes
//! An [`RdmaStream`] is used as a TCP stream is: `AsyncRead` and `AsyncWrite`, a close of each direction. Its windows guarantee that a
//! program that reads slowly stops its peer without "receiver not ready". A peer that does not follow the protocol is an error.
//!
//! # Features
//! `tokio`: `Dispatcher::drive`, and the traits of tokio for streams. `counters`: `Dispatcher::counters`. `tracing`: events for `tracing`.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod addressed;
#[cfg(all(feature = "tokio", not(loom)))]
mod alarm;
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod connect;
#[cfg(all(test, not(loom)))]
mod count;
#[cfg(all(feature = "counters", not(loom)))]
mod counters;
#[cfg(not(loom))]
mod create;
#[cfg(not(loom))]
mod datagram;
#[cfg(not(loom))]
mod dc;
#[cfg(not(loom))]
mod deferred;
#[cfg(not(loom))]
mod destination;
#[cfg(not(loom))]
mod detached;
#[cfg(not(loom))]
mod dispatcher;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod events;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod fair_queue;
#[cfg(not(loom))]
mod fd_waits;
#[cfg(not(loom))]
mod inbox;
#[cfg(not(loom))]
mod item;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod leader;
#[cfg(not(loom))]
mod life;
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
mod next;
#[cfg(not(loom))]
mod op;
#[cfg(not(loom))]
mod pair;
#[cfg(not(loom))]
mod parts;
#[cfg(not(loom))]
mod payload;
#[cfg(not(loom))]
mod poller;
#[cfg(not(loom))]
mod qp;
#[cfg(not(loom))]
mod qp_end;
#[cfg(not(loom))]
mod readable;
#[cfg(not(loom))]
mod reads;
#[cfg(not(loom))]
mod receives;
#[cfg(not(loom))]
mod recv;
#[cfg(not(loom))]
mod rounds;
#[cfg(not(loom))]
mod route;
#[cfg(not(loom))]
mod routes;
#[cfg(not(loom))]
mod sends;
#[cfg(not(loom))]
mod sleep;
#[cfg(not(loom))]
mod sleeper;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod slots;
#[cfg(any(all(feature = "tokio", not(loom)), all(test, loom)))]
mod solo;
#[cfg(not(loom))]
mod srq;
#[cfg(all(feature = "tokio", not(loom)))]
mod station;
#[cfg(not(loom))]
mod stream;
mod sync;
#[cfg(any(all(feature = "tokio", not(loom)), all(test, loom)))]
mod task_waker;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod tasks;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod timers;
#[cfg(all(feature = "tokio", not(loom)))]
mod tokio;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod wakeup;

#[cfg(not(loom))]
mod xrc;

#[cfg(not(loom))]
mod api {
    pub use crate::batch::{Batch, BatchData};
    pub use crate::connect::{Link, Listener, Request};
    #[cfg(feature = "counters")]
    pub use crate::counters::DispatcherCounters;
    pub use crate::create::{HasFutures, QpBuilder};
    pub use crate::datagram::{Datagram, RecvFrom};
    pub use crate::dc::DcTarget;
    pub use crate::destination::{Addressed, DcDestination, Destination, SrqDestination};
    pub use crate::detached::Detached;
    pub use crate::dispatcher::{Dispatcher, DispatcherBuilder, SleepLimit};
    pub use crate::error::{Error, Failed, Result};
    pub use crate::events::Events;
    pub use crate::mailbox::RecvShared;
    pub use crate::op::Op;
    pub use crate::pair::Qp;
    pub use crate::payload::Payload;
    pub use crate::readable::Readable;
    pub use crate::reads::{ReadBatch, ReadData};
    pub use crate::receives::Message;
    pub use crate::recv::Recv;
    pub use crate::sleep::{Sleep, Timeout};
    pub use crate::srq::Srq;
    pub use crate::stream::{RdmaStream, StreamBuilder};
    pub use crate::thread::DispatcherThread;
    pub use crate::timers::Clock;
    pub use crate::xrc::XrcSrq;
}
#[cfg(not(loom))]
pub use api::*;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
