// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function of `ibv_rc_pingpong`, whose options and exchange it has: either side may be the C program. With a software
//! NIC (`-d hca0`), both sides are in this process. `docs/src/guides/from-c.md` and `from-sideway.md` compare it.
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use core::iter::zip;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use uverbs::attr::{Mtu, QpCap};
use uverbs::{CompletionChannel, ConnectAttr, Context, Endpoint, Rc};
use uverbs::{Cq, Pool, Qp};
use uverbs_examples::nic::{Joint, Nic, find};

const RECV: u64 = 1;
const SEND: u64 = 2;

/// Exchange messages over a reliable connection
#[derive(Debug, Clone, Parser)]
#[command(version)]
struct Args {
    /// RDMA device
    #[arg(short = 'd', long = "ib-dev", default_value = "hca0")]
    device: String,
    /// Port of the device
    #[arg(short = 'i', long, default_value_t = 1)]
    ib_port: u8,
    /// TCP port of the exchange
    #[arg(short = 'p', long, default_value_t = 18515)]
    port: u16,
    /// Bytes of a message
    #[arg(short = 's', long, default_value_t = 4096)]
    size: u32,
    /// Path MTU: 1 to 5, for 256 to 4096 bytes
    #[arg(short = 'm', long, default_value_t = 3)]
    mtu: u8,
    /// Receives that are posted
    #[arg(short = 'r', long, default_value_t = 500)]
    rx_depth: u32,
    /// Messages each way
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u32,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0)]
    sl: u8,
    /// Sleep until there is a completion
    #[arg(short = 'e', long)]
    events: bool,
    /// Index of the local GID
    #[arg(short = 'g', long)]
    gid_idx: Option<u8>,
    /// Check the bytes of each message
    #[arg(short = 'c', long = "chk")]
    check: bool,
    /// The server; without it this side is the server
    host: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let nic = find(core::slice::from_ref(&args.device), Joint::None)?.remove(0);
    let Nic::Software(_) = nic else {
        let stream = match &args.host {
            Some(host) => TcpStream::connect((host.as_str(), args.port))?,
            None => TcpListener::bind(("::", args.port))?.accept()?.0,
        };
        return Side::new(&nic, &args)?.run(&args, &stream, args.host.is_some());
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (client, server) = (Side::new(&nic, &args)?, Side::new(&nic.neighbour(1), &args)?);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| server.run(&args, &listener.accept()?.0, false));
        client.run(&args, &TcpStream::connect(listener.local_addr()?)?, true)?;
        served.join().map_err(|_| anyhow!("the server panicked"))?
    })
}

/// The objects of one side. Its buffers go to the device and come back.
struct Side {
    qp: Qp<Rc>,
    cq: Cq,
    channel: CompletionChannel,
    pool: Pool,
    attr: ConnectAttr,
}

impl Side {
    fn new(nic: &Nic, args: &Args) -> Result<Self> {
        let context: Context = nic.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.cq_with(args.rx_depth + 1, args.events.then_some(&channel))?;
        let cap = QpCap::new(1, args.rx_depth);
        let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create()?;
        let attr = ConnectAttr::new()
            .port_num(args.ib_port)
            .sgid_index(args.gid_idx)
            .path_mtu(Mtu(args.mtu))
            .sl(args.sl);
        let pool = pd.pool(args.rx_depth + 1, args.size)?;
        Ok(Self { qp, cq, channel, pool, attr })
    }

    fn post_recv(&mut self) -> Result<()> {
        let buf = self.pool.get().context("a buffer for each receive")?;
        Ok(self.qp.rq().context("no SRQ")?.post(RECV, buf)?)
    }

    fn post_send(&mut self, iteration: u32) -> Result<()> {
        let mut buf = self.pool.get().context("a buffer for the send")?;
        buf[..].fill(iteration as u8);
        Ok(self.qp.sq().post(SEND).signaled().send(buf)?)
    }

    /// Exchanges endpoints as the C programs do, and connects.
    fn connect(&self, mut stream: &TcpStream, is_client: bool) -> Result<[Endpoint; 2]> {
        let here = self.qp.control().endpoint(std::process::id(), &self.attr)?;
        if is_client {
            let there = here.exchange(stream)?;
            self.qp.connect(&here, &there, &self.attr)?;
            stream.write_all(b"done\0")?;
            return Ok([here, there]);
        }
        let there = here.answer(stream, |there| Ok(self.qp.connect(&here, there, &self.attr)?))?;
        // A client that has failed closes the stream.
        stream.read_exact(&mut [0; 5])?;
        Ok([here, there])
    }

    fn run(mut self, args: &Args, stream: &TcpStream, is_client: bool) -> Result<()> {
        self.qp.init(&self.attr)?;
        for _ in 0..args.rx_depth {
            self.post_recv()?;
        }
        let ends = self.connect(stream, is_client)?;
        // If both sides are in this process, only the client prints.
        let prints = is_client || args.device != "hca0";
        for (name, Endpoint { lid, qp_num, psn, gid }) in zip(["local", "remote"], ends) {
            if prints {
                println!("  {name} address:  LID {lid:#06x}, QPN {qp_num:#08x}, PSN {psn:#08x}, GID {gid}");
            }
        }
        let begin = Instant::now();
        let (mut sent, mut received, mut is_sending, mut is_armed) = (0, 0, false, false);
        while received < args.iters || sent < args.iters || is_sending {
            // A side sends when the message of the other one has arrived and its own is complete.
            let may_send = if is_client { sent <= received } else { sent < received };
            if may_send && !is_sending && sent < args.iters {
                self.post_send(sent)?;
                (sent, is_sending) = (sent + 1, true);
            }
            let Some(completed) = self.cq.poll_one()? else {
                // After it was armed the CQ is polled once more, because earlier completions raise no event.
                match (args.events, is_armed) {
                    (false, _) => {}
                    (true, false) => self.cq.req_notify(false)?,
                    (true, true) => _ = self.channel.get_event()?,
                }
                is_armed = args.events && !is_armed;
                continue;
            };
            completed.wc.status.ok()?;
            if completed.wc.wr_id == SEND {
                is_sending = false;
                continue;
            }
            let buf = completed.buf().context("the buffer of the receive")?;
            ensure!(buf.len() == args.size as usize, "a message of {} bytes", buf.len());
            // The C programs fill their messages with other bytes.
            ensure!(
                !args.check || buf.iter().all(|byte| *byte == buf[0]),
                "message {received} has other bytes"
            );
            drop(buf);
            received += 1;
            self.post_recv()?;
        }
        if prints {
            let (seconds, bytes) =
                (begin.elapsed().as_secs_f64(), u64::from(args.size) * u64::from(args.iters) * 2);
            let mbits = bytes as f64 * 8.0 / 1e6 / seconds;
            println!("{bytes} bytes in {seconds:.2} seconds = {mbits:.2} Mbit/sec");
            let micros = seconds * 1e6 / f64::from(args.iters);
            println!("{} iters in {seconds:.2} seconds = {micros:.2} usec/iter", args.iters);
        }
        Ok(())
    }
}
