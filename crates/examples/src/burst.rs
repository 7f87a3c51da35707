// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program with a mistake that no status tells: it is correct, and slow. `docs/src/guides/finding-a-bug.md` finds it with a trace.
//!
//! A client sends a burst of messages. The server posts each receive again when it has processed the message.

use crate::nic::Nic;
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use uverbs::hca::Fabric;
use uverbs::{ConnectAttr, Context, Cq, Done, Pool, Qp, Rc};

/// The messages of a burst, and their bytes.
pub const BURST: u32 = 5;
const BYTES: u32 = 64;
/// The receives that the program posts.
pub const RECEIVES: u32 = 4;

/// The objects of one end.
struct End {
    qp: Qp<Rc>,
    cq: Cq,
    pool: Pool,
}

impl End {
    fn new(fabric: &Fabric, name: &str, depth: u32) -> Result<Self> {
        let context: Context = Nic::software(&fabric.device(name).build()).open()?;
        let (pd, cq) = (context.alloc_pd()?, context.cq(2 * depth)?);
        let qp = pd.qp::<Rc>().cq(&cq).depth(depth, depth).create()?;
        let pool = pd.pool(depth, BYTES)?;
        Ok(Self { qp, cq, pool })
    }

    fn receive(&mut self) -> Result<()> {
        let buf = self.pool.get().context("a buffer for each receive")?;
        Ok(self.qp.recv(buf)?)
    }
}

/// Sends a burst to a server that has so many receives. Returns how long it took by the fabric's clock.
///
/// # Errors
/// A verb failed, or a message has another content.
pub fn run(fabric: &Fabric, receives: u32) -> Result<Duration> {
    let depth = receives.max(BURST);
    let mut client = End::new(fabric, "hca0", depth)?;
    let mut server = End::new(fabric, "hca1", depth)?;
    // The time that a sender waits if there is no receive: 0, the shortest.
    let attr = ConnectAttr::new().min_rnr_timer(0);
    client.qp.init(&attr)?;
    server.qp.init(&attr)?;
    let (here, there) =
        (client.qp.control().endpoint(100, &attr)?, server.qp.control().endpoint(200, &attr)?);
    client.qp.connect(&here, &there, &attr)?;
    server.qp.connect(&there, &here, &attr)?;
    for _ in 0..receives {
        server.receive()?;
    }
    let begin = fabric.now();
    for number in 0..BURST {
        let mut message = client.pool.get().context("a buffer for each message")?;
        message[0] = number as u8;
        client.qp.send(message)?;
    }
    let (mut sent, mut received) = (0, 0);
    while sent < BURST || received < BURST {
        while let Some(completed) = server.cq.poll_one()? {
            if let Done::Received(message) = completed.ok()? {
                ensure!(message[0] == received as u8, "message {} came as number {received}", message[0]);
                received += 1;
                drop(message);
                server.receive()?;
            }
        }
        while let Some(completed) = client.cq.poll_one()? {
            drop(completed.ok()?);
            sent += 1;
        }
        // A virtual clock advances only here.
        fabric.run();
    }
    Ok(fabric.now() - begin)
}
