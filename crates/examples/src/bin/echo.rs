// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client sends messages to a server, which sends them back. Connections are made by IP address. Without an address both
//! sides are in this process, on software NICs. `docs/src/guides/from-rdma-io.md` compares it.
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, anyhow, ensure};
use core::net::SocketAddr;
use core::time::Duration;
use uverbs::attr::QpCap;
use uverbs::hca::{Fabric, Hca};
use uverbs::owned::{Buf, OwnedCq, OwnedQp, Pool};
use uverbs::{AnyDriver, Context, Rc};
use uverbs_cm::{ConnParam, EventChannel, Listener, Request, Resolved};

/// Messages that a side can receive before it polls.
const DEPTH: u32 = 16;
const SIZE: u32 = 4096;
const RECV: u64 = 1;
const SEND: u64 = 2;

/// The objects of one side.
struct Side {
    qp: OwnedQp<AnyDriver, Rc>,
    cq: OwnedCq<AnyDriver>,
    pool: Pool<AnyDriver>,
}

impl Side {
    fn new(context: &Context<AnyDriver>) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (pd, cq) = (context.alloc_pd()?, context.owned_cq(2 * DEPTH, None)?);
        let qp = pd.owned_qp().cq(&cq).cap(cap).create()?;
        Ok(Self { qp, cq, pool: pd.pool(2 * DEPTH, SIZE).build()? })
    }
}

fn receives(qp: &mut OwnedQp<AnyDriver, Rc>, pool: &Pool<AnyDriver>) -> Result<()> {
    let queue = qp.rq().context("no SRQ")?;
    (0..DEPTH).try_for_each(|_| Ok(queue.post(RECV, pool.get().context("a buffer")?)?))
}

/// The next message, if there is one.
fn received(cq: &mut OwnedCq<AnyDriver>) -> Result<Option<Buf<AnyDriver>>> {
    while let Some(completed) = cq.poll_one()? {
        completed.wc.status.ok()?;
        if completed.wc.wr_id == RECV {
            return Ok(completed.buf());
        }
    }
    std::thread::yield_now();
    Ok(None)
}

/// Serves one client, and returns the number of its messages. `open` gets the name of the device.
fn serve(listener: &Listener, open: impl FnOnce(&Request) -> Result<Context<AnyDriver>>) -> Result<u32> {
    let request = listener.accept()?;
    let Side { mut qp, mut cq, pool } = Side::new(&open(&request)?)?;
    request.prepare(&qp, &ConnParam::default())?;
    receives(&mut qp, &pool)?;
    let mut connection = request.accept(qp, &ConnParam::default(), None)?;
    let mut count = 0;
    while !connection.wait_disconnected(Some(Duration::ZERO))? {
        while let Some(message) = received(&mut cq)? {
            connection.qp.sq().post(SEND).signaled().send(message)?;
            connection.qp.rq().context("no SRQ")?.post(RECV, pool.get().context("a buffer")?)?;
            count += 1;
        }
    }
    connection.close()?;
    Ok(count)
}

/// Sends the messages one by one, and compares each with what comes back.
fn send(resolved: Resolved, context: &Context<AnyDriver>, messages: &[String]) -> Result<()> {
    let Side { mut qp, mut cq, pool } = Side::new(context)?;
    let prepared = resolved.prepare(&qp, &ConnParam::default())?;
    receives(&mut qp, &pool)?;
    let mut connection = prepared.connect(qp, &ConnParam::default(), None)?;
    for message in messages {
        let mut buf = pool.get().context("a buffer")?;
        buf.fill(message.as_bytes())?;
        connection.qp.sq().post(SEND).signaled().send(buf)?;
        let echo = loop {
            if let Some(echo) = received(&mut cq)? {
                break echo;
            }
        };
        ensure!(*echo == *message.as_bytes(), "another message came back");
        connection.qp.rq().context("no SRQ")?.post(RECV, echo)?;
    }
    connection.disconnect()?;
    Ok(())
}

/// Without arguments, both sides are in this process. `echo ADDR serve` and `echo ADDR MESSAGE...` are the sides on devices of
/// the machine.
fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((address, messages)) = args.split_first() else { return here() };
    let (address, manager) = (address.parse::<SocketAddr>()?, EventChannel::open()?);
    if messages == ["serve"] {
        let count =
            serve(&Listener::bind(&manager, address)?, |request| Ok(uverbs::open(&request.device()?)?))?;
        println!("{count} messages");
        return Ok(());
    }
    let resolved = Resolved::new(&manager, address)?;
    let context = uverbs::open(&resolved.device()?)?;
    send(resolved, &context, messages)
}

fn here() -> Result<()> {
    let fabric = Fabric::new(0);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let manager = |hca: &Hca| Ok::<_, anyhow::Error>(EventChannel::from_port(hca.connection_manager()?));
    let address = (server.addresses()[0], 7471).into();
    let listener = Listener::bind(&manager(&server)?, address)?;
    let serving = std::thread::spawn(move || serve(&listener, |_| Ok(Context::from_kernel(server.open())?)));
    let messages: Vec<_> = (0..5).map(|n| format!("message {n}")).collect();
    let resolved = Resolved::new(&manager(&client)?, address)?;
    send(resolved, &Context::from_kernel(client.open())?, &messages)?;
    let count = serving.join().map_err(|_| anyhow!("the server panicked"))??;
    println!("{count} messages");
    Ok(())
}
