// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client writes messages to a stream, and the server writes back what it reads. Connections are made by IP address. Without
//! arguments both sides are in this process, on software NICs. `docs/src/guides/from-rdma-io.md` compares it.
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use core::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use uverbs::hca::Fabric;
use uverbs::{Context, ProtectionDomain};
use uverbs_aio::{Dispatcher, Listener, RdmaStream};
use uverbs_cm::EventChannel;

/// The objects of one side.
struct Side {
    dispatcher: Dispatcher,
    pd: ProtectionDomain,
    manager: EventChannel,
}

impl Side {
    fn new(context: &Context) -> Result<Self> {
        let dispatcher = Dispatcher::new(context)?;
        tokio::spawn(dispatcher.clone().drive());
        Ok(Self { dispatcher, pd: context.alloc_pd()?, manager: EventChannel::of(context)? })
    }

    fn listen(&self, address: SocketAddr) -> Result<Listener> {
        Ok(Listener::bind(&self.dispatcher, &self.manager, address)?)
    }

    /// Serves one client, and returns the number of its bytes.
    async fn serve(&self, listener: Listener) -> Result<u64> {
        let stream = RdmaStream::builder(&self.dispatcher, &self.pd).accept(&listener).await?;
        let (mut read, mut write) = split(stream);
        let count = copy(&mut read, &mut write).await?;
        read.unsplit(write).shutdown().await?;
        Ok(count)
    }

    /// Sends the messages one by one, and compares each with what comes back.
    async fn send(&self, address: SocketAddr, messages: &[String]) -> Result<()> {
        let builder = RdmaStream::builder(&self.dispatcher, &self.pd);
        let mut stream = builder.connect(&self.manager, address).await?;
        for message in messages {
            stream.write_all(message.as_bytes()).await?;
            let mut echo = vec![0; message.len()];
            stream.read_exact(&mut echo).await?;
            ensure!(echo == message.as_bytes(), "another message came back");
        }
        Ok(stream.shutdown().await?)
    }
}

/// Without arguments, both sides are in this process. `echo DEVICE ADDR serve` and `echo DEVICE ADDR MESSAGE...` are the sides on
/// devices of the machine.
#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, messages @ ..] = &args[..] else { return here().await };
    let side = Side::new(&uverbs::open(device)?)?;
    if messages == ["serve"] {
        println!("{} bytes", side.serve(side.listen(address.parse()?)?).await?);
        return Ok(());
    }
    side.send(address.parse()?, messages).await
}

async fn here() -> Result<()> {
    let fabric = Fabric::new(0);
    let (near, far) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let (client, server) = (Side::new(&uverbs::open(near.open())?)?, Side::new(&uverbs::open(far.open())?)?);
    let listener = server.listen((far.addresses()[0], 7471).into())?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move { server.serve(listener).await });
    let messages: Vec<_> = (0..5).map(|n| format!("message {n}")).collect();
    client.send(address, &messages).await?;
    println!("{} bytes", serving.await??);
    Ok(())
}
