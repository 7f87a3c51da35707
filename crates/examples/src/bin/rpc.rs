// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rpc`: remote procedure calls with deadlines; see [`uverbs_examples::rpc`].
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use core::net::SocketAddr;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use uverbs_examples::nic::{Joint, Nic, find};
use uverbs_examples::rpc::{Client, ClientConfig, Host, Report, Server, ServerConfig, load};

/// Remote procedure calls with deadlines
///
/// Without --serve and --connect, the server and its clients are in this process. The clients compare each answer with the right one.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// RDMA device; hca0 is a software NIC of this process
    #[arg(short = 'd', long, default_value = "hca0", value_name = "DEV")]
    device: String,
    /// Serve on this address of the device, until SIGINT or SIGTERM; without ADDR on that of a software NIC
    #[arg(long, value_name = "ADDR", conflicts_with = "connect", num_args = 0..=1)]
    serve: Option<Option<SocketAddr>>,
    /// Connect to the first of these servers that accepts
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    connect: Vec<SocketAddr>,
    /// Socket of a network of software NICs of several processes, which another process listens on
    #[arg(long, value_name = "SOCKET")]
    fabric: Option<PathBuf>,
    /// Number of clients
    #[arg(short = 'c', long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Calls of each client
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    calls: u32,
    /// Calls that a client has outstanding
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    outstanding: u32,
    /// Time limit of a call
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    limit: u64,
    /// Part of the packets that a network of software NICs loses
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
}

/// Bytes of memory that the process uses.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * 4096)
}

fn report(report: Report) -> Result<()> {
    let Report { clients, broken, calls, expired, lost, .. } = report;
    eprintln!(
        "served {calls} calls of {clients} clients ({broken} broken), {expired} expired, {lost} buffers lost"
    );
    ensure!(lost == 0, "{lost} buffers did not come back");
    Ok(())
}

async fn clients(args: &Args, nic: &Nic, servers: Vec<SocketAddr>) -> Result<()> {
    let before = resident()?;
    let host = Host::open(nic, ClientConfig::new(args.clients))?;
    let (begin, limit) = (Instant::now(), Duration::from_millis(args.limit));
    let clients: Vec<_> = (0..args.clients).map(|_| Arc::new(host.client(servers.clone()))).collect();
    for client in &clients {
        ensure!(client.connected(Duration::from_secs(60)).await, "a client is not connected");
    }
    println!("{} clients are connected after {:?}", args.clients, begin.elapsed());
    let begin = Instant::now();
    let figures = load::run(&clients, args.calls, args.outstanding, limit, |_| Duration::ZERO).await?;
    let (took, micros) = (begin.elapsed(), &figures.micros);
    println!(
        "{} calls in {took:.2?}: {} right, {} wrong, {} late, {} lost; {:.0} calls/s, p50 {} us, p99 {} us",
        figures.calls(),
        figures.right,
        figures.wrong,
        figures.late,
        figures.lost + figures.ended,
        figures.right as f64 / took.as_secs_f64(),
        micros.value_at_quantile(0.5),
        micros.value_at_quantile(0.99),
    );
    let grown = resident()?.saturating_sub(before) >> 10;
    println!("memory: {} KiB for each client", grown / u64::from(args.clients));
    for client in clients.into_iter().filter_map(Arc::into_inner) {
        Client::close(client).await;
    }
    ensure!(figures.wrong == 0, "{} wrong answers", figures.wrong);
    Ok(())
}

fn own_address(nic: &Nic) -> Result<SocketAddr> {
    match nic {
        Nic::Software(hca) => Ok((*hca.addresses().first().context("no address")?, 0).into()),
        Nic::Machine(_) => bail!("--serve and --connect need addresses of the devices"),
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!((0.0..0.5).contains(&args.loss), "--loss: between 0 and 0.5");
    let joint = args.fabric.as_deref().map_or(Joint::None, Joint::Join);
    let nic = find(core::slice::from_ref(&args.device), joint)?.pop().context("one name, one device")?;
    if let Nic::Software(hca) = &nic {
        hca.fabric().loss(args.loss);
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        if let Some(at) = &args.serve {
            let at = at.map_or_else(|| own_address(&nic), Ok)?;
            let server = Server::open(&nic, at, ServerConfig::new(args.clients))?;
            println!("listening on {}", server.address());
            let mut terminate = signal(SignalKind::terminate())?;
            let stop = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = tokio::signal::ctrl_c() => {}
                }
            };
            return report(server.serve(load::execute, stop).await?);
        }
        if !args.connect.is_empty() {
            return clients(&args, &nic, args.connect.clone()).await;
        }
        let server = Server::open(&nic, own_address(&nic)?, ServerConfig::new(args.clients))?;
        let address = server.address();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server.serve(load::execute, async { _ = stopped.await }));
        let ran = clients(&args, &nic.neighbour(1), vec![address]).await;
        drop(stop);
        ran.and(report(serving.await??))
    })
}
