// SPDX-License-Identifier: MIT OR Apache-2.0
//! SRD, the reliable datagrams of EFA, on the software EFA: raw and owned queues, by the driver and by [`AnyDriver`](uverbs::AnyDriver).
#![cfg(feature = "efa")]
#![expect(unsafe_code)]
// UNSAFETY: raw queues post entries of regions that the tests keep until the completions.

mod bed;
mod errors;
mod order;
mod owned;
mod races;
mod raw;
mod removal;
mod scopes;
mod threads;
