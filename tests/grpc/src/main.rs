// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC's health service between two software NICs, with the code that tonic-health has generated: unary calls, many at once, and a
//! stream of answers.
#![forbid(unsafe_code)]

use core::net::SocketAddr;
use core::time::Duration;
use std::error::Error;
use std::time::Instant;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use uverbs::attr::AccessFlags;
use uverbs::hca::{Fabric, Hca};
use uverbs::mlx5::Mlx5;
use uverbs::{Context, ProtectionDomain};
use uverbs_aio::{Dispatcher, Listener, Qp};
use uverbs_cm::{ConnParam, EventChannel, Id, PortSpace};

type Any<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// On a machine with a NIC: `uverbs::open(&device)?` and `EventChannel::open()?`.
fn end(hca: &Hca) -> Any<(Dispatcher<Mlx5>, ProtectionDomain<Mlx5>, EventChannel)> {
    let context = Context::<Mlx5>::from_kernel(hca.open())?;
    let dispatcher = Dispatcher::new(&context)?;
    tokio::spawn(dispatcher.clone().drive());
    Ok((dispatcher, context.alloc_pd()?, EventChannel::from_port(hca.connection_manager()?)))
}

/// Asks for a connection, and returns when the server has accepted.
async fn ask(
    dispatcher: &Dispatcher<Mlx5>,
    pd: &ProtectionDomain<Mlx5>,
    manager: &EventChannel,
    server: SocketAddr,
) -> Any<(Id, Qp<Mlx5>)> {
    const LIMIT: Duration = Duration::from_secs(2);
    let (qp, id) = (dispatcher.qp(pd).create()?, manager.create_id(PortSpace::Tcp)?);
    id.resolve_addr(None, server, LIMIT)?;
    let _ = manager.get_event()?.ok("resolve_addr")?;
    id.resolve_route(LIMIT)?;
    let _ = manager.get_event()?.ok("resolve_route")?;
    id.init_qp(qp.control(), AccessFlags::empty())?;
    id.connect(&ConnParam { qp_num: qp.qp_num(), ..ConnParam::default() })?;
    dispatcher.readable(manager).await?;
    Ok((id, qp))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Any<()> {
    let fabric = Fabric::new(1);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let (dispatcher, pd, manager) = end(&server)?;
    let listener = Listener::bind(&dispatcher, &manager, (server.addresses()[0], 50051).into())?;
    let address = listener.local_addr()?;
    let (reporter, service) = tonic_health::server::health_reporter();
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(uverbs_grpc::incoming(listener, pd)),
    );
    reporter.set_service_status("store", ServingStatus::NotServing).await;

    let (dispatcher, pd, manager) = end(&client)?;
    // A client that asks for a connection and does not establish it. Its identifier lives until the end.
    let _silent = ask(&dispatcher, &pd, &manager, address).await?;
    let connecting = uverbs_grpc::connect(dispatcher, pd, manager, address);
    let client = HealthClient::new(tokio::time::timeout(Duration::from_secs(20), connecting).await??);
    let request = || HealthCheckRequest { service: "store".into() };
    let answer = client.clone().check(request()).await?.into_inner();
    assert_eq!(answer.status(), Answer::NotServing);

    // A stream of answers: one for each change.
    let mut changes = client.clone().watch(request()).await?.into_inner();
    assert_eq!(changes.message().await?.ok_or("no answer")?.status(), Answer::NotServing);
    reporter.set_service_status("store", ServingStatus::Serving).await;
    assert_eq!(changes.message().await?.ok_or("no answer")?.status(), Answer::Serving);

    const CALLS: usize = 2000;
    let before = Instant::now();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move {
                for _ in 0..CALLS / 8 {
                    let answer = client.check(request()).await?.into_inner();
                    assert_eq!(answer.status(), Answer::Serving);
                }
                Ok::<_, tonic::Status>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let elapsed = before.elapsed();
    println!("{CALLS} calls, 8 at once, in {:.0} ms", elapsed.as_secs_f64() * 1e3);

    // The server's host loses its power: it does not end the connection.
    server.kill();
    let end = tokio::time::timeout(Duration::from_secs(20), changes.message()).await?;
    assert!(end.is_err(), "{end:?}");
    Ok(())
}
