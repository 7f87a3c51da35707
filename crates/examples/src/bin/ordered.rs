// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ordered`: messages in order over SRD; see [`uverbs_examples::ordered`].
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use uverbs_examples::nic::{Joint, Nic, find, with_srd};
use uverbs_examples::ordered::{self, Channel, Figures};

/// Messages in order over SRD, the reliable and unordered transport of EFA
///
/// Without --serve and --connect, both ends are in this process. Each end checks that the messages arrive in order.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// EFA device; efa0, the default, is a software EFA of this process
    #[arg(short = 'd', long, value_name = "DEV")]
    device: Option<String>,
    /// Wait for the other end, which connects to this TCP address
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    serve: Option<String>,
    /// Connect to the end at this TCP address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// Messages that each end sends
    #[arg(short = 'n', long, default_value_t = 10_000, value_name = "N")]
    messages: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let nic = match &args.device {
        Some(name) => find(core::slice::from_ref(name), Joint::None)?.remove(0),
        None => with_srd()?,
    };
    let context = nic.open()?;
    let figures = match (&args.serve, &args.connect) {
        (Some(at), _) => {
            let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
            println!("listening on {}", listener.local_addr()?);
            ordered::run(&mut Channel::connect(&context, listener.accept()?.0)?, args.messages)?
        }
        (None, Some(to)) => {
            let stream = TcpStream::connect(to).with_context(|| format!("no other end at {to}"))?;
            ordered::run(&mut Channel::connect(&context, stream)?, args.messages)?
        }
        (None, None) => here(&args, &nic, &context)?,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    let Figures { messages, seconds, stats } = figures;
    println!(
        "{messages} messages each way in order, {:.0} a second; {} came early, at most {} before their turn; {} without content",
        messages as f64 / seconds,
        stats.early,
        stats.furthest,
        stats.tells
    );
    Ok(())
}

/// Both ends in this process, the second one on another software device if the first one is.
fn here(args: &Args, nic: &Nic, context: &uverbs::Context) -> Result<Figures> {
    let other = match nic {
        Nic::Machine(_) => context.clone(),
        Nic::Software(_) => nic.neighbour(1).open()?,
    };
    let (one, two) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| ordered::run(&mut Channel::connect(&other, two)?, args.messages));
        let figures =
            Channel::connect(context, one).and_then(|mut channel| ordered::run(&mut channel, args.messages));
        let theirs = peer.join().map_err(|_| anyhow!("the other end panicked"))?;
        theirs.and(figures)
    })
}
