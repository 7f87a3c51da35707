// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both sides in this process, each on a software NIC. A client that does not establish its connection delays no other, and a client
//! notices that the server's host has lost its power.

use crate::{Side, calls};
use anyhow::{Context as _, Result, ensure};
use core::net::SocketAddr;
use core::time::Duration;
use uverbs::Context;
use uverbs::hca::{Fabric, Hca};
use uverbs_aio::Qp;
use uverbs_cm::{ConnParam, EventChannel, Id, PortSpace};

/// The time limit of the client after the server's end.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) async fn run(count: usize) -> Result<()> {
    let fabric = Fabric::new(1);
    let (near, far) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let (client, server) = (side(&near)?, side(&far)?);
    let listener = server.listen((far.addresses()[0], 50051).into())?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move { server.serve(listener).await });

    // Its identifier lives until the end.
    let _silent = ask(&client, address).await?;
    // So does the client: without one, its connection does not ask the server whether it is there.
    let client = client.client(address).await?;
    let mut changes = calls(&client, count).await?;

    // The server's host loses its power: it does not end the connection.
    far.kill();
    let end = async {
        while changes.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    };
    let end = tokio::time::timeout(LIMIT, end).await.context("the client did not notice the end")?;
    ensure!(end.is_err(), "the stream of answers ended without an error");
    serving.abort();
    Ok(())
}

/// On a machine with a NIC: [`Side::on`].
fn side(hca: &Hca) -> Result<Side> {
    let context = Context::from_kernel(hca.open())?;
    Side::new(context, EventChannel::from_port(hca.connection_manager()?))
}

/// Asks for a connection, and returns when the server has accepted.
async fn ask(side: &Side, server: SocketAddr) -> Result<(Id, Qp)> {
    const LIMIT: Duration = Duration::from_secs(2);
    let manager = &side.manager;
    let (qp, id) = (side.dispatcher.qp(&side.pd).create()?, manager.create_id(PortSpace::Tcp)?);
    id.resolve_addr(None, server, LIMIT)?;
    let _ = manager.get_event()?.ok("resolve_addr")?;
    id.resolve_route(LIMIT)?;
    let _ = manager.get_event()?.ok("resolve_route")?;
    id.init_qp(qp.control(), &ConnParam::new())?;
    id.connect(&ConnParam::new().qp_num(qp.qp_num()))?;
    side.dispatcher.readable(manager).await?;
    Ok((id, qp))
}
