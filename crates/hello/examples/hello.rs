// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of README: two software NICs in this process, a connection between them, and a message each way.
//! `cargo run -p uverbs-hello --example hello`
#![forbid(unsafe_code)]
#![expect(clippy::std_instead_of_core, reason = "as a program that does not name core")]

use std::os::unix::net::UnixStream;
use uverbs::{Done, Rc};

/// One end: sends a message and receives one. `stream` reaches the other end, here or on another host.
fn talk(device: &str, mut stream: UnixStream, hello: &[u8]) -> uverbs::Result<Vec<u8>> {
    let ctx = uverbs::open(device)?; // "mlx5_0"; with the feature `hca` also "hca0", a software NIC
    let pd = ctx.alloc_pd()?;
    let mut cq = ctx.cq(64)?;
    let mut qp = pd.qp::<Rc>().cq(&cq).depth(16, 16).connect(&mut stream)?;
    let pool = pd.pool(64, 4096)?;
    qp.recv(pool.get()?)?;
    qp.send(pool.get()?.filled(hello))?;
    let (mut sent, mut received) = (false, None);
    while !sent || received.is_none() {
        match cq.wait()?.ok()? {
            Done::Sent(_) => sent = true,
            Done::Received(message) => received = Some(message.to_vec()),
            _ => {}
        }
    }
    Ok(received.unwrap_or_default())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (a, b) = UnixStream::pair()?;
    let server = std::thread::spawn(|| talk("hca1", b, b"hello from the server"));
    assert_eq!(talk("hca0", a, b"hello from the client")?, b"hello from the server");
    assert_eq!(server.join().unwrap()?, b"hello from the client");
    println!("hello from hca0 to hca1 and back, by RDMA");
    Ok(())
}
