// SPDX-License-Identifier: MIT OR Apache-2.0
//! The smallest program with a message: a QP that is connected to itself, a receive, a send, and their completions. It runs on
//! the first device of the machine, or without one on a software NIC. `docs/src/guides/from-ibverbs.md` compares it.
#![forbid(unsafe_code)]

use anyhow::{Result, bail, ensure};
use uverbs::{ConnectAttr, Done, Rc};

fn main() -> Result<()> {
    let context = match uverbs::devices()?.first() {
        Some(device) => uverbs::open(device)?,
        None => uverbs::open("hca0")?,
    };
    let (pd, attr) = (context.alloc_pd()?, ConnectAttr::default());
    let mut cq = context.cq(16)?;
    let mut qp = pd.qp::<Rc>().cq(&cq).depth(1, 1).create()?;

    // The default GID of the port is the one that routes. The QP exchanges endpoints with itself.
    qp.init(&attr)?;
    let endpoint = qp.control().endpoint(0, &attr)?;
    qp.connect(&endpoint, &endpoint, &attr)?;

    let pool = pd.pool(2, 8)?;
    let mut message = pool.get()?;
    message[1] = 0x42;
    qp.recv(pool.get()?)?;
    qp.send(message)?;

    for _ in 0..2 {
        match cq.wait()?.ok()? {
            Done::Sent(_) => println!("sent"),
            Done::Received(buf) => {
                ensure!(buf.len() == 8 && buf[1] == 0x42, "another message: {:?}", &*buf);
                println!("received");
            }
            other => bail!("not expected: {other:?}"),
        }
    }
    Ok(())
}
