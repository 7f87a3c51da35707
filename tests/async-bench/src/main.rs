// SPDX-License-Identifier: MIT OR Apache-2.0
//! What asynchronous messages and streams cost: with uverbs-aio, with rdma-io, and with TCP and tokio.
//!
//! `serve` and `ask` are the two ends of a connection. [`guest`] (`compare`) runs them for each library, one after the other, and
//! prints tables. [`work`] has the measured programs, which are the same for all libraries; [`ours`], [`peer`] and [`tcp`] carry
//! their messages and bytes. All of them use one thread.

mod carrier;
mod guest;
mod hca;
mod ours;
mod peer;
mod profile;
mod stats;
mod tcp;
mod work;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::process::ExitCode;

/// Measure messages and streams of uverbs-aio, rdma-io and TCP
#[derive(Parser)]
enum Cli {
    /// Wait for a client and answer it
    Serve(End),
    /// Connect to a server, and print what was measured
    Ask(End),
    /// Run all libraries on the devices of a guest of the VM lab, and print tables
    Compare(guest::Args),
    /// Run both ends on software HCAs in this process
    Hca(hca::Args),
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Library {
    /// uverbs-aio; the thread runs the dispatcher itself (`Dispatcher::block_on`)
    Uverbs,
    /// uverbs-aio; the dispatcher is a task of tokio (`Dispatcher::drive`)
    UverbsTokio,
    /// rdma-io with tokio, on libibverbs and librdmacm
    RdmaIo,
    /// TCP with tokio
    Tcp,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// One message at a time, which the server sends back
    Echo,
    /// Calls of 16 bytes to 4 KiB with a header, several at a time
    Rpc,
    /// A stream of bytes to the server
    Write,
    /// A stream of bytes from the server
    Read,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(self).as_str())
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(self).as_str())
    }
}

/// The name of a value on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// One end of a connection.
#[derive(clap::Args, Clone, Debug)]
struct End {
    library: Library,
    test: Test,
    /// The server's address
    address: SocketAddr,
    /// The RDMA device, for uverbs-aio; the connection manager selects that of rdma-io
    #[arg(long, short)]
    device: Option<String>,
    /// Messages, calls, or writes of a stream
    #[arg(long, short, default_value_t = 1000)]
    number: usize,
    /// Microseconds that the server waits before an answer, so that the client sleeps
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Do not time each message
    #[arg(long)]
    untimed: bool,
    /// Microseconds that uverbs-aio polls before it sleeps; its default without this
    #[arg(long)]
    spin: Option<u64>,
}

impl End {
    fn pause(&self) -> Duration {
        Duration::from_micros(self.pause)
    }
}

fn main() -> Result<ExitCode> {
    let (end, is_server) = match Cli::parse() {
        Cli::Serve(end) => (end, true),
        Cli::Ask(end) => (end, false),
        Cli::Compare(args) => return guest::main(&args),
        Cli::Hca(args) => {
            println!("{}", hca::main(&args)?);
            return Ok(ExitCode::SUCCESS);
        }
    };
    let measured = match end.library {
        Library::Uverbs | Library::UverbsTokio => ours::run(&end, is_server)?,
        Library::RdmaIo => peer::run(&end, is_server)?,
        Library::Tcp => tcp::run(&end, is_server)?,
    };
    println!("{measured}");
    Ok(ExitCode::SUCCESS)
}
