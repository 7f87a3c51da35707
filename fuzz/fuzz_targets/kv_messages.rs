// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of the key-value store of `crates/examples`, from a client and from a server that may send any bytes.
//!
//! Checked: the server answers each request as a map of the same keys and values does, or refuses it, and describes only
//! memory with the value; all buffers are in their pools at the end. The client has no more requests, slots and reads
//! outstanding than it asked for, whatever the server answers, and each request has one result.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// The modules of the example that have no queues. Its package has the dependencies of its programs, which the fuzz targets
/// do not need.
mod kv {
    #[path = "../../../crates/examples/src/kv/ledger.rs"]
    mod ledger;
    #[path = "../../../crates/examples/src/kv/proto.rs"]
    pub mod proto;
    #[path = "../../../crates/examples/src/kv/session.rs"]
    mod session;
    #[path = "../../../crates/examples/src/kv/store.rs"]
    pub mod store;

    pub mod client;
    pub mod server;
}

#[derive(arbitrary::Arbitrary, Debug)]
enum Input<'a> {
    Server(Vec<kv::server::Message<'a>>),
    Client(kv::client::Run<'a>),
}

fuzz_target!(|input: Input<'_>| {
    match input {
        Input::Server(messages) => kv::server::run(&messages),
        Input::Client(run) => kv::client::run(&run),
    }
});
