// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC's health service over RDMA, with the code that tonic-health has generated: unary calls, many at once, and a stream of
//! answers. Without options both sides are in this process, on software NICs: [`local`].
#![forbid(unsafe_code)]

mod local;

use anyhow::{Context as _, Result, ensure};
use clap::{ArgGroup, Parser};
use core::net::SocketAddr;
use core::time::Duration;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tonic::Streaming;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use uverbs::{Context, ProtectionDomain};
use uverbs_aio::{Dispatcher, Listener};
use uverbs_cm::EventChannel;

/// gRPC over RDMA
///
/// Without options, a server and a client are in this process, on software NICs. On devices of the machine they are two
/// processes, which the RDMA connection manager connects.
#[derive(Debug, Parser)]
#[command(
    version,
    group(ArgGroup::new("side").args(["serve", "connect"]).requires("device")),
    after_help = "Examples:\n  uverbs-grpc\n  uverbs-grpc -d rxe0 --serve 10.0.0.1:50051\n  \
    uverbs-grpc -d rxe1 --connect 10.0.0.1:50051"
)]
struct Args {
    /// RDMA device of this machine
    #[arg(short = 'd', long, value_name = "DEV", requires = "side")]
    device: Option<String>,
    /// Serve on this address of the device, until SIGINT or SIGTERM
    #[arg(long, value_name = "ADDR")]
    serve: Option<SocketAddr>,
    /// Connect to the server at this address
    #[arg(long, value_name = "ADDR")]
    connect: Option<SocketAddr>,
    /// Calls of the client
    #[arg(short = 'n', long, default_value_t = 2000, value_name = "N")]
    calls: usize,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let args = Args::parse();
    let Some(device) = &args.device else { return local::run(args.calls).await };
    let side = Side::on(device)?;
    if let Some(server) = args.connect {
        return calls(&side.client(server).await?, args.calls).await.map(drop);
    }
    let listener = side.listen(args.serve.context("a side")?)?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = side.serve(listener) => ended,
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// The service whose status changes.
const STORE: &str = "store";

/// The time between two changes.
const CHANGE: Duration = Duration::from_millis(100);

/// The time limit of a client for its connection.
const CONNECT: Duration = Duration::from_secs(20);

type Client = HealthClient<tonic::transport::Channel>;

/// The objects of one side.
struct Side {
    context: Context,
    dispatcher: Dispatcher,
    pd: ProtectionDomain,
    manager: EventChannel,
}

impl Side {
    fn new(context: Context, manager: EventChannel) -> Result<Self> {
        let dispatcher = Dispatcher::new(&context)?;
        tokio::spawn(dispatcher.clone().drive());
        let pd = context.alloc_pd()?;
        Ok(Self { context, dispatcher, pd, manager })
    }

    /// On a device of the machine, with the connection manager of its kernel.
    fn on(device: &str) -> Result<Self> {
        let info = uverbs::devices()?.into_iter().find(|info| info.name == device);
        let info = info.with_context(|| format!("no RDMA device {device}"))?;
        Self::new(uverbs::open(&info)?, EventChannel::open()?)
    }

    fn listen(&self, address: SocketAddr) -> Result<Listener> {
        Ok(Listener::bind(&self.dispatcher, &self.manager, address)?)
    }

    /// Serves the health service, and changes a status all the time.
    async fn serve(&self, listener: Listener) -> Result<()> {
        let (reporter, service) = tonic_health::server::health_reporter();
        reporter.set_service_status(STORE, ServingStatus::NotServing).await;
        let changes = async {
            for status in [ServingStatus::Serving, ServingStatus::NotServing].into_iter().cycle() {
                tokio::time::sleep(CHANGE).await;
                reporter.set_service_status(STORE, status).await;
            }
        };
        let incoming = uverbs_grpc::incoming(listener, self.pd.clone());
        tokio::select! {
            ended = Server::builder().add_service(service).serve_with_incoming(incoming) => Ok(ended?),
            () = changes => Ok(()),
        }
    }

    async fn client(self, server: SocketAddr) -> Result<Client> {
        // A RoCE device has its IPv4 address as a GID. Other devices are found by the route to the server.
        let gid = self.context.best_gid(1).ok().filter(|_| server.is_ipv4());
        let local = gid.and_then(|entry| entry.gid.ipv4()).map(|address| (address, 0).into());
        let channel = uverbs_grpc::connect(self.dispatcher, self.pd, self.manager, local, server);
        Ok(HealthClient::new(tokio::time::timeout(CONNECT, channel).await??))
    }
}

/// Makes a call, follows a stream of answers until the status has changed, and makes many calls at once. Returns the stream.
async fn calls(client: &Client, count: usize) -> Result<Streaming<HealthCheckResponse>> {
    let mut client = client.clone();
    serving(&mut client).await?;
    let request = HealthCheckRequest { service: STORE.into() };
    let mut changes = client.watch(request).await?.into_inner();
    let first = next(&mut changes).await?;
    while next(&mut changes).await? == first {}

    let (before, mut tasks) = (Instant::now(), JoinSet::new());
    for number in 0..8 {
        let mut client = client.clone();
        tasks.spawn(async move {
            for _ in (number..count).step_by(8) {
                serving(&mut client).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    println!("{count} calls, 8 at once, in {:.0} ms", before.elapsed().as_secs_f64() * 1e3);
    Ok(changes)
}

/// Asks for the status of the whole server.
async fn serving(client: &mut Client) -> Result<()> {
    let answer = client.check(HealthCheckRequest::default()).await?.into_inner();
    ensure!(answer.status() == Answer::Serving, "another answer: {answer:?}");
    Ok(())
}

async fn next(changes: &mut Streaming<HealthCheckResponse>) -> Result<Answer> {
    let answer = changes.message().await?.context("the stream has ended")?;
    Ok(answer.status())
}
