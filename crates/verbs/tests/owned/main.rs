// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owned queues on the software HCA: each line of the table in the documentation of `uverbs::soundness` has its test here.
#![cfg(feature = "mlx5")]

mod bed;
#[cfg(feature = "counters")]
mod counters;
mod drain;
mod ends;
mod errors;
mod front;
mod homes;
mod in_flight;
mod lists;
#[cfg(feature = "metrics")]
mod metrics;
mod mkey_ends;
mod mkeys;
mod observe;
mod parts;
mod removal;
mod scopes;
mod shares;
mod threads;
#[cfg(feature = "tracing")]
mod tracing;
mod transfer;
mod transports;
mod unmatched;
mod unplugged;
mod waits;
mod windows;
