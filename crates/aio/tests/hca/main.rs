// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous operations on the software HCA. Most tests run in virtual time on one thread, so each run is the same.

mod any_waker;
mod bed;
mod cancel;
mod cancel_ends;
mod datagrams;
mod dc;
mod detached;
mod failures;
mod fork;
mod hostile;
mod in_place;
#[cfg(any(feature = "counters", feature = "tracing"))]
mod observed;
mod pool;
mod queues;
mod reset;
mod shared;
mod srq;
mod starved;
mod stream;
mod threads;
mod timers;
mod transfer;
mod unpolled;
mod wakers;
mod xrc;
