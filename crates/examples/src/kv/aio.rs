// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server and the client as futures, for tokio: the same protocol, so either side may be the synchronous one.
//!
//! Each client is a task, which receives a request, executes it and sends the answer. Its receives are those of the shared
//! queue, which [`uverbs_aio`] refills. Clients connect by the RDMA connection manager, or by an exchange of endpoints over TCP.
//!
//! | module | contents |
//! |---|---|
//! | this one | the connection, as both sides have it |
//! | `server` | the server: its tasks, the acceptance of clients |
//! | `client` | the client, with one request outstanding |
//! | `bench` | the check against a model; rates and latencies |

mod bench;
mod client;
mod server;

pub use bench::{check, measure};
pub use client::Client;
pub use server::Server;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use uverbs::attr::{QpCap, SendOpsFlags};
use uverbs::{Context, Driver, ProtectionDomain, Rc};
use uverbs_aio::Dispatcher;

/// Whether the device has immediate data: a QP that needs them can be created.
fn has_immediate<D: Driver>(context: &Context<D>, pd: &ProtectionDomain<D>) -> uverbs::Result<bool> {
    let cq = context.create_cq(2, None)?;
    let cap = QpCap::new(1, 1);
    let ops = SendOpsFlags::RDMA_WRITE_WITH_IMM;
    match pd.raw_qp::<Rc>().cq(&cq).cap(cap).send_ops(ops).create() {
        Ok(_) => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A connection: it ends when the peer has gone.
#[derive(Debug)]
enum Conn {
    Tcp(TcpStream),
    Cm(uverbs_aio::Link),
}

impl Conn {
    /// Waits until the peer has gone.
    async fn gone<D: Driver>(&mut self, dispatcher: &Dispatcher<D>) {
        match self {
            // The peer sends nothing; a byte that it does send ends the connection, too.
            Self::Tcp(stream) => _ = stream.read(&mut [0]).await,
            Self::Cm(link) => _ = link.disconnected(dispatcher).await,
        }
    }
}
