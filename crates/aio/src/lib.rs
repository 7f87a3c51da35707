// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous RDMA verbs: operations of [`uverbs`] as futures that own their buffers.
//!
//! The crate needs no runtime: its futures work with any executor. It has no `unsafe` code, and a program needs none.
//!
//! ```
//! #![forbid(unsafe_code)]
//! use uverbs::mlx5::Mlx5;
//! use uverbs::owned::Pool;
//! use uverbs::{ConnectAttr, Context};
//! use uverbs_aio::{Dispatcher, Error, Qp, Result};
//! use uverbs_hca::{Fabric, Hca};
//!
//! struct End {
//!     dispatcher: Dispatcher<Mlx5>,
//!     pool: Pool<Mlx5>,
//!     qp: Qp<Mlx5>,
//! }
//!
//! fn end(hca: &Hca) -> Result<End> {
//!     let context = Context::<Mlx5>::from_kernel(hca.open())?;
//!     let pd = context.alloc_pd()?;
//!     let dispatcher = Dispatcher::new(&context)?;
//!     // Receives are posted with buffers of their pool, and again when a message is taken.
//!     let incoming = pd.pool(64, 4096).build()?;
//!     let qp = dispatcher.qp(&pd).depth(16, 16).pool(&incoming).create()?;
//!     Ok(End { dispatcher, pool: pd.pool(64, 4096).build()?, qp })
//! }
//!
//! fn main() -> Result<()> {
//!     let fabric = Fabric::new(1);
//!     let (client, server) = (end(&fabric.device("hca0").build())?, end(&fabric.device("hca1").build())?);
//!     let attr = ConnectAttr::default();
//!     client.qp.init(&attr)?;
//!     server.qp.init(&attr)?;
//!     let (a, b) = (client.qp.endpoint(1, &attr)?, server.qp.endpoint(2, &attr)?);
//!     client.qp.connect(&a, &b, &attr)?;
//!     server.qp.connect(&b, &a, &attr)?;
//!
//!     // The server is run by a thread of its own, and its work by this one.
//!     let serving = std::thread::spawn(move || {
//!         server.dispatcher.block_on(async {
//!             let question = server.qp.recv().await?;
//!             server.qp.send(question.into_buf()).await?;
//!             server.qp.shutdown().await
//!         })
//!     });
//!     client.dispatcher.block_on(async {
//!         let mut buf = client.pool.get().expect("64 are free");
//!         buf.fill(b"hello")?;
//!         let buf = client.qp.send(buf).await?;
//!         assert_eq!(&*client.qp.recv().await?, b"hello");
//!         drop(buf);
//!         Ok::<_, Error>(())
//!     })?;
//!     serving.join().expect("the server does not panic")
//! }
//! ```
//!
//! # Running a dispatcher
//! A [`Dispatcher`] is a completion queue and the tasks that wait for its completions. One of these runs it:
//!
//! | | |
//! |---|---|
//! | [`Dispatcher::block_on`] | a thread waits for a future, and runs the dispatcher meanwhile: the lowest latency |
//! | [`Dispatcher::spawn`] | a thread of its own; tasks run where they like |
//! | `Dispatcher::drive` (feature `tokio`) | a task of tokio |
//! | [`Dispatcher::poll_once`], [`prepare_sleep`](Dispatcher::prepare_sleep), [`after_sleep`](Dispatcher::after_sleep) | an event loop of the program, with the dispatcher's descriptor |
//!
//! It polls for some microseconds ([`spin`](DispatcherBuilder::spin)), and then sleeps on the completion channel. It arms the CQ
//! before it sleeps, and polls once more, because a completion that arrived before raises no event.
//!
//! # What the futures guarantee
//! - **They can be dropped at any time.** A buffer that was posted stays with the queue until the completion, the flush or
//!   the end of the queue, and then goes back to its pool. What was posted takes place nevertheless.
//! - **They can be forgotten.** The buffer is then leaked, not freed; one that waits for an entry of a full queue also keeps its
//!   place.
//! - **No message is lost** by a [`Qp::recv`] that is dropped: receives belong to the queue, not to the future.
//! - **A full queue is no error**: operations wait for an entry in the order in which they came. A CQ can't overrun, because
//!   its entries are reserved for the queues.
//! - **Errors give the buffer back** ([`Failed::returned`]), except where the device may still use it.
//! - **Ends**: [`Qp::shutdown`] waits for what is in flight, and flushes the receives; [`Qp::abort`] flushes everything. If the
//!   device is removed, all operations end with [`Error::DeviceRemoved`].
//!
//! Time limits ([`Dispatcher::timeout`]) are those of the dispatcher, whose clock a test can
//! [replace](DispatcherBuilder::clock).
//!
//! # Features
//! `tokio`: `Dispatcher::drive`.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod dispatcher;
#[cfg(not(loom))]
mod driver;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod events;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod kick;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod lead;
#[cfg(not(loom))]
mod op;
#[cfg(not(loom))]
mod qp;
#[cfg(not(loom))]
mod readable;
#[cfg(not(loom))]
mod recv;
#[cfg(not(loom))]
mod sleeper;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod slots;
#[cfg(not(loom))]
mod srq;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod sync;
#[cfg(not(loom))]
mod timers;
#[cfg(all(feature = "tokio", not(loom)))]
mod tokio;
#[cfg_attr(loom, expect(dead_code, reason = "its user is not built"))]
mod turnstile;

#[cfg(not(loom))]
mod api {
    pub use crate::dispatcher::{Dispatcher, DispatcherBuilder, SleepLimit};
    pub use crate::driver::DriverThread;
    pub use crate::error::{Error, Failed, Result};
    pub use crate::events::Events;
    pub use crate::op::{Op, Payload};
    pub use crate::qp::{Qp, QpBuilder};
    pub use crate::readable::Readable;
    pub use crate::recv::{Message, Recv};
    pub use crate::srq::Srq;
    pub use crate::timers::{Clock, Sleep, Timeout};
}
#[cfg(not(loom))]
pub use api::*;
