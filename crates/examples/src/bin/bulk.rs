// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bulk`: transfers of many blocks over several QPs and NICs; see [`uverbs_examples::bulk`].
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use core::net::IpAddr;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use uverbs_examples::bulk::area::Kind;
use uverbs_examples::bulk::lanes::Way;
use uverbs_examples::bulk::{Plan, receiver, sender};
use uverbs_examples::link::Path;
use uverbs_examples::nic::{Joint, Nic, find};

/// Transfers of many blocks over several QPs and NICs
///
/// Without --serve and --connect, both sides are in this process. The receiver checks all data.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// RDMA devices; hca0, hca1, ... are software NICs of this process, efa0, efa1, ... software EFAs
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "hca0,hca1", value_name = "DEV")]
    devices: Vec<String>,
    /// Index of the local GID; by default the best one
    #[arg(short = 'g', long, value_name = "N")]
    gid_index: Option<u8>,
    /// Receive from one sender, which connects to this TCP address
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    serve: Option<String>,
    /// Send to the receiver at this TCP address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// Connect by the RDMA connection manager. iWARP needs it, and the addresses of the receiver's devices; by default those of
    /// their GIDs
    #[arg(long, num_args = 0..=1, value_delimiter = ',', conflicts_with = "gid_index", value_name = "IP")]
    cm: Option<Vec<IpAddr>>,
    /// Socket of a network of software NICs of several processes: the receiver creates it, the sender joins
    #[arg(long, value_name = "SOCKET")]
    fabric: Option<PathBuf>,
    /// Blocks of a batch
    #[arg(short = 'b', long, default_value_t = Plan::default().blocks, value_name = "N")]
    blocks: u32,
    /// Bytes of a block
    #[arg(short = 's', long, default_value_t = Plan::default().block_size, value_name = "BYTES")]
    block_size: u32,
    /// QPs of each device
    #[arg(short = 'q', long, default_value_t = Plan::default().qps, value_name = "N")]
    qps: u32,
    /// Batches
    #[arg(short = 'n', long, default_value_t = Plan::default().batches, value_name = "N")]
    batches: u32,
    /// Batches that may be on their way on each QP
    #[arg(long, default_value_t = Plan::default().window, value_name = "N")]
    window: u32,
    /// WRITEs that a QP may have outstanding
    #[arg(long, default_value_t = Plan::default().depth, value_name = "N")]
    depth: u32,
    /// The receiver's memory is a dma-buf
    #[arg(long, conflicts_with = "keys")]
    dmabuf: bool,
    /// Open the areas of the receiver by the key of their pool, as on devices without memory windows
    #[arg(long)]
    keys: bool,
    /// Measure: compare all bytes in the last batch only, and a stamp of each block in the others
    #[arg(long)]
    bench: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let plan = Plan {
        blocks: args.blocks,
        block_size: args.block_size,
        qps: args.qps,
        batches: args.batches,
        window: args.window,
        depth: args.depth,
        stamps_only: args.bench,
    };
    plan.bytes()?;
    let joint = match (&args.fabric, &args.serve) {
        (None, _) => Joint::None,
        (Some(socket), Some(_)) => Joint::Listen(socket),
        (Some(socket), None) => Joint::Join(socket),
    };
    let nics = find(&args.devices, joint)?;
    let way = match &args.cm {
        Some(addresses) => Way::Cm(addresses.clone()),
        None => Way::Exchange(Path { gid_index: args.gid_index }),
    };
    let kind = match (args.dmabuf, args.keys) {
        (true, _) => Kind::DmaBuf,
        (false, true) => Kind::Keys,
        (false, false) => Kind::Windows,
    };
    let take = |nics: &[Nic], listener: &TcpListener| {
        let (stream, _) = listener.accept()?;
        receiver::receive(nics, &plan, kind, stream, &way)
    };
    if let Some(at) = &args.serve {
        let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
        println!("listening on {}", listener.local_addr()?);
        for lane in take(&nics, &listener)? {
            println!("lost {lane}");
        }
        println!("received {} batches; all data were right", plan.batches);
        return Ok(());
    }
    let figures = if let Some(to) = &args.connect {
        let stream = TcpStream::connect(to).with_context(|| format!("no receiver at {to}"))?;
        sender::send(&nics, &plan, stream, &way)?
    } else {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let theirs: Vec<_> = (nics.len()..).zip(&nics).map(|(n, nic)| nic.neighbour(n)).collect();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| take(&theirs, &listener));
            // The receiver sees the end of the stream if this fails.
            let sent = sender::send(&nics, &plan, stream, &way);
            let received = receiver.join().map_err(|_| anyhow!("the receiver panicked"))?;
            sent.and_then(|figures| received.map(|_| figures))
        })?
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        print!("{}", figures.table());
    }
    Ok(())
}
