// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kv`: a key-value store over RDMA; see [`uverbs_examples::kv`].
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Parser;
use core::net::SocketAddr;
use nix::sys::signal::{SigSet, Signal};
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use uverbs::AnyDriver;
use uverbs_examples::kv::aio;
use uverbs_examples::kv::bench::{Figures, KEYS, check, measure};
use uverbs_examples::kv::client::Way;
use uverbs_examples::kv::{Client, Config, Listen, Report, Server};
use uverbs_examples::link::{Path, Target};
use uverbs_examples::nic::{Joint, Nic, find};

/// A key-value store over RDMA
///
/// Without --serve and --connect, the server and its clients are in this process. Without --bench, the clients check the
/// server: each makes random requests and compares the results with those of a map.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  kv\n  kv --bench --json\n  kv -d rxe0 --serve 0.0.0.0:7471\n  \
    kv -d rxe1 --connect 10.0.0.1:7471 --bench"
)]
struct Args {
    /// RDMA device; hca0 is a software NIC of this process
    #[arg(short = 'd', long, default_value = "hca0", value_name = "DEV")]
    device: String,
    /// Index of the local GID; by default the best one
    #[arg(short = 'g', long, value_name = "N")]
    gid_index: Option<u8>,
    /// Serve on this address, until SIGINT or SIGTERM
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    serve: Option<String>,
    /// Connect to the server at this address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// Connect by the RDMA connection manager: the addresses are those of RDMA devices. iWARP needs it
    #[arg(long)]
    cm: bool,
    /// Socket of a network of software NICs of several processes: the server creates it, the clients join
    #[arg(long, value_name = "SOCKET")]
    fabric: Option<PathBuf>,
    /// Number of clients
    #[arg(short = 'c', long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Requests of each client, for each row of a measurement
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N")]
    requests: u32,
    /// Measure rates and latencies
    #[arg(long)]
    bench: bool,
    /// Requests that a client has outstanding in a measurement
    #[arg(long, default_value_t = 4, value_name = "N")]
    depth: usize,
    /// Sizes of values in a measurement
    #[arg(long, value_delimiter = ',', default_value = "16,512,4096,65536", value_name = "BYTES")]
    sizes: Vec<usize>,
    /// Print the measurement as JSON
    #[arg(long, requires = "bench")]
    json: bool,
    /// Write large values without immediate data also if the device has them
    #[arg(long)]
    no_imm: bool,
    /// Use the server and clients that are futures, on tokio; a client has one request outstanding
    #[arg(long = "async", conflicts_with_all = ["no_imm", "get", "put", "delete"])]
    is_async: bool,
    /// Print the value of a key
    #[arg(long, value_name = "KEY", requires = "connect")]
    get: Option<String>,
    /// Store a value
    #[arg(long, num_args = 2, value_names = ["KEY", "VALUE"], requires = "connect")]
    put: Option<Vec<String>>,
    /// Remove a key
    #[arg(long, value_name = "KEY", requires = "connect")]
    delete: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let joint = match (&args.fabric, &args.serve) {
        (None, _) => Joint::None,
        (Some(socket), Some(_)) => Joint::Listen(socket),
        (Some(socket), None) => Joint::Join(socket),
    };
    if args.is_async {
        let nic = find(core::slice::from_ref(&args.device), joint)?.pop().context("one name, one device")?;
        return tokio::runtime::Runtime::new()?.block_on(run_async(&args, &nic));
    }
    // The threads of the server inherit the mask, so that the signals wait for this thread.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    if args.serve.is_some() {
        signals.thread_block()?;
    }
    let nic = find(core::slice::from_ref(&args.device), joint)?.pop().context("one name, one device")?;
    match (&args.serve, &args.connect) {
        (Some(at), _) => {
            let server = serve(&args, &nic, resolve(at)?)?;
            println!("listening on {}", server.address());
            signals.wait()?;
            report(server.shutdown()?)
        }
        (None, Some(to)) => clients(&args, &nic, resolve(to)?),
        (None, None) => {
            let server = serve(&args, &nic, own_address(&args, &nic)?)?;
            let ran = clients(&args, &nic.neighbour(1), server.address());
            let ended = server.shutdown();
            // The server's error is the reason of the clients'.
            ran.and(ended.and_then(report))
        }
    }
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let mut found = address.to_socket_addrs().with_context(|| format!("{address}: expected HOST:PORT"))?;
    found.next().with_context(|| format!("{address} has no address"))
}

/// Where a server listens whose clients are in this process.
fn own_address(args: &Args, nic: &Nic) -> Result<SocketAddr> {
    match nic {
        Nic::Software(hca) if args.cm => Ok((*hca.addresses().first().context("no address")?, 0).into()),
        Nic::Machine(_) if args.cm => {
            bail!("--cm needs --serve and --connect with addresses of the devices")
        }
        _ => resolve("127.0.0.1:0"),
    }
}

fn listen(args: &Args, at: SocketAddr) -> Listen {
    if args.cm { Listen::Cm(at) } else { Listen::Tcp(at) }
}

fn target(args: &Args, to: SocketAddr) -> Target {
    if args.cm { Target::Cm(to) } else { Target::Tcp(to) }
}

fn serve(args: &Args, nic: &Nic, at: SocketAddr) -> Result<Server> {
    Server::start::<AnyDriver>(nic, listen(args, at), config(args))
}

fn config(args: &Args) -> Config {
    let default = Config::default();
    Config {
        clients: default.clients.max(args.clients),
        // Each client may store a large value of each of its keys, and one more while it replaces one.
        values: default.values.max(args.clients * (KEYS + 1)),
        immediate: !args.no_imm,
        path: Path { gid_index: args.gid_index },
        ..default
    }
}

/// The same with futures.
async fn run_async(args: &Args, nic: &Nic) -> Result<()> {
    match (&args.serve, &args.connect) {
        (Some(at), _) => {
            let at = listen(args, resolve(at)?);
            let server = aio::Server::<AnyDriver>::open(nic, at, config(args)).await?;
            println!("listening on {}", server.address());
            let mut terminate = signal(SignalKind::terminate())?;
            let stop = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = tokio::signal::ctrl_c() => {}
                }
            };
            report(server.serve(stop).await?)
        }
        (None, Some(to)) => clients_async(args, nic, resolve(to)?).await,
        (None, None) => {
            let at = listen(args, own_address(args, nic)?);
            let server = aio::Server::<AnyDriver>::open(nic, at, config(args)).await?;
            let at = server.address();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            // The sender is dropped when the clients are done.
            let server = tokio::spawn(server.serve(async { _ = stopped.await }));
            let ran = clients_async(args, &nic.neighbour(1), at).await;
            drop(stop);
            ran.and(report(server.await??))
        }
    }
}

async fn clients_async(args: &Args, nic: &Nic, to: SocketAddr) -> Result<()> {
    let (path, to) = (Path { gid_index: args.gid_index }, target(args, to));
    let mut all = Vec::new();
    for _ in 0..args.clients {
        all.push(aio::Client::<AnyDriver>::connect(nic, &to, path).await?);
    }
    if args.bench {
        let figures = aio::measure(nic.name(), all, &args.sizes, args.requests).await?;
        return print(args, &figures);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for (number, mut client) in (0..).zip(all) {
        let count = args.requests;
        tasks.spawn(async move {
            aio::check(&mut client, number, count).await?;
            client.shutdown().await
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    println!("{} clients made {} requests each; every result was right", args.clients, args.requests);
    Ok(())
}

fn print(args: &Args, figures: &Figures) -> Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(figures)?);
    } else {
        print!("{}", figures.table());
    }
    Ok(())
}

fn report(Report { clients, requests, malformed, broken, lost }: Report) -> Result<()> {
    eprintln!(
        "served {clients} clients, {requests} requests ({malformed} malformed, {broken} connections broken)"
    );
    ensure!(lost == 0, "{lost} buffers did not come back");
    Ok(())
}

fn clients(args: &Args, nic: &Nic, to: SocketAddr) -> Result<()> {
    let target = target(args, to);
    let way = if args.no_imm { Way::WriteThenSend } else { Way::Best };
    let path = Path { gid_index: args.gid_index };
    let connect = || Client::<AnyDriver>::connect(nic, &target, path, way);
    if args.get.is_some() || args.put.is_some() || args.delete.is_some() {
        return single(args, &mut connect()?);
    }
    let mut all = (0..args.clients).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    if args.bench {
        let figures = measure(nic.name(), &mut all, &args.sizes, args.depth, args.requests)?;
        return print(args, &figures);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&mut all)
            .map(|(number, client)| scope.spawn(move || check(client, number, args.requests)))
            .collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    println!("{} clients made {} requests each; every result was right", args.clients, args.requests);
    Ok(())
}

/// One request.
fn single(args: &Args, client: &mut Client<AnyDriver>) -> Result<()> {
    if let Some([key, value]) = args.put.as_deref() {
        client.put(key.as_bytes(), value.as_bytes())?;
    }
    if let Some(key) = &args.get {
        let value = client.get(key.as_bytes())?.with_context(|| format!("there is no {key}"))?;
        println!("{}", String::from_utf8_lossy(&value));
    }
    if let Some(key) = &args.delete {
        ensure!(client.delete(key.as_bytes())?, "there is no {key}");
    }
    Ok(())
}
