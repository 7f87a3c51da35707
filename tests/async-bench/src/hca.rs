// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both ends of a connection in one process, on the software HCA: for a profile of uverbs-aio without a VM.
//!
//! The client is the main thread. callgrind's options leave out what the device does in it:
//!
//! ```console
//! valgrind --tool=callgrind --separate-threads=yes '--toggle-collect=*DoorbellPort>::ring' \
//!     '--toggle-collect=*DoorbellPort>::blueflame' --collect-atstart=yes uverbs-async-bench hca uverbs echo
//! ```

use crate::carrier::{self, MESSAGE, RECEIVES, SENDS};
use crate::ours::Queue;
use crate::stats::Measured;
use crate::{End, Library, Test, work};
use anyhow::Result;
use core::net::SocketAddr;
use core::time::Duration;
use std::net::{TcpListener, TcpStream};
use std::thread;
use uverbs::mlx5::Mlx5;
use uverbs::{ConnectAttr, Context};
use uverbs_aio::{Dispatcher, RdmaStream};
use uverbs_hca::{Fabric, Hca};

/// The arguments of `hca`.
#[derive(clap::Args)]
pub(crate) struct Args {
    library: Library,
    test: Test,
    /// Messages, calls, or writes of a stream
    #[arg(long, short, default_value_t = 1000)]
    number: usize,
    /// Microseconds that the other end waits before a message, so that the client sleeps
    #[arg(long, default_value_t = 0)]
    pause: u64,
}

impl Args {
    /// An end. The writer of a stream is the one that waits.
    fn end(&self, is_server: bool) -> End {
        let waits = is_server != (self.test == Test::Write);
        End {
            library: self.library,
            test: self.test,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            device: None,
            number: self.number,
            pause: if waits { self.pause } else { 0 },
            untimed: true,
            spin: Some(0),
        }
    }
}

async fn run(dispatcher: &Dispatcher<Mlx5>, tcp: TcpStream, end: &End, is_server: bool) -> Result<Measured> {
    let pd = dispatcher.context().alloc_pd()?;
    let attr = ConnectAttr::default();
    if matches!(end.test, Test::Write | Test::Read) {
        let stream = RdmaStream::builder(dispatcher, &pd).exchange(&tcp, &attr).await?;
        return work::bytes(stream, end, is_server).await;
    }
    let incoming = pd.pool(2 * RECEIVES as u32, MESSAGE as u32)?;
    let pool = pd.pool(SENDS as u32 + 1, MESSAGE as u32)?;
    let qp = dispatcher.qp(&pd).depth(SENDS as u32, RECEIVES as u32).pool(&incoming).create()?;
    qp.exchange(&tcp, &attr).await?;
    work::messages(Queue::new(qp, pool, None), end, is_server).await
}

fn end(hca: &Hca, tcp: TcpStream, end: &End, is_server: bool) -> Result<Measured> {
    let context = Context::<Mlx5>::from_kernel(hca.open())?;
    let dispatcher = Dispatcher::builder(&context).spin(Duration::ZERO).build()?;
    if end.library == Library::Uverbs {
        return dispatcher.block_on(run(&dispatcher, tcp, end, is_server));
    }
    carrier::runtime()?.block_on(dispatcher.drive_with(run(&dispatcher, tcp, end, is_server)))?
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<Measured> {
    let fabric = Fabric::new(1);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let other = args.end(true);
    let serving = thread::spawn(move || end(&server, listener.accept()?.0, &other, true));
    let measured = end(&client, TcpStream::connect(address)?, &args.end(false), false)?;
    // A server of messages ends with the connection, by an error.
    drop((serving, client));
    Ok(measured)
}
