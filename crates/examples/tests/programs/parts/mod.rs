// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of the programs alone: formats of messages, and what keeps account of them. They are here, and not beside the parts, so that the
//! library is compiled once.

mod bulk_proto;
mod burst;
mod kv_ledger;
mod kv_proto;
mod log_entry;
mod ordered_window;
mod rpc_calls;
mod rpc_wire;
