// SPDX-License-Identifier: MIT OR Apache-2.0
//! The smallest program with a message: a QP that is connected to itself, a receive, a send, and their completions. It runs on
//! the first device of the machine, or without one on a software NIC. `docs/src/guides/from-ibverbs.md` compares it.
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, ensure};
use uverbs::{ConnectAttr, Context, Rc, attr::QpCap, hca::Hca};

fn main() -> Result<()> {
    let context: Context = match uverbs::devices()?.first() {
        Some(device) => uverbs::open(device)?,
        None => Context::from_kernel(Hca::new().open())?,
    };
    let (pd, attr) = (context.alloc_pd()?, ConnectAttr::default());
    let cq = context.cq_with(16, None)?;
    let cap = QpCap::new(1, 1);
    let mut qp = pd.qp::<Rc>().cq(&cq).cap(cap).create()?;

    // The default GID of the port is the one that routes. The QP exchanges endpoints with itself.
    qp.init(&attr)?;
    let endpoint = qp.control().endpoint(0, &attr)?;
    qp.connect(&endpoint, &endpoint, &attr)?;

    let pool = pd.pool(2, 8)?;
    let mut message = pool.get().context("two buffers")?;
    message[1] = 0x42;
    qp.rq().context("no SRQ")?.post(2, pool.get().context("two buffers")?)?;
    qp.sq().post(1).signaled().send(message)?;

    let (mut sent, mut received) = (false, false);
    while !sent || !received {
        let Some(completed) = cq.poll_one()? else { continue };
        completed.wc.status.ok()?;
        if completed.wc.wr_id == 1 {
            sent = true;
            println!("sent");
        } else {
            received = true;
            let buf = completed.buf().context("the buffer of the receive")?;
            ensure!(buf.len() == 8 && buf[1] == 0x42, "another message: {:?}", &*buf);
            println!("received");
        }
    }
    Ok(())
}
