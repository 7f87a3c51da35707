// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC's health service between two software NICs, with the code that tonic-health has generated: unary calls, many at once, and a
//! stream of answers.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use uverbs::hca::{Fabric, Hca};
use uverbs::mlx5::Mlx5;
use uverbs::{Context, ProtectionDomain};
use uverbs_aio::{Dispatcher, Listener};
use uverbs_cm::EventChannel;

type Any<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// On a machine with a NIC: `uverbs::open(&device)?` and `EventChannel::open()?`.
fn end(hca: &Hca) -> Any<(Dispatcher<Mlx5>, ProtectionDomain<Mlx5>, EventChannel)> {
    let context = Context::<Mlx5>::from_kernel(hca.open())?;
    let dispatcher = Dispatcher::new(&context)?;
    tokio::spawn(dispatcher.clone().drive());
    Ok((dispatcher, context.alloc_pd()?, EventChannel::from_port(hca.connection_manager()?)))
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
    let client = HealthClient::new(uverbs_grpc::connect(dispatcher, pd, manager, address).await?);
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
    Ok(())
}
