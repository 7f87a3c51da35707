// SPDX-License-Identifier: MIT OR Apache-2.0
//! TCP with tokio. A message begins with its length.

use crate::carrier::{self, Bytes, Copying, MESSAGE, Messages};
use crate::stats::Measured;
use crate::{End, Test, work};
use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of the length.
const PREFIX: usize = 4;

/// Messages on a stream. What one read returns may be several.
struct Framed {
    stream: TcpStream,
    out: Box<[u8; PREFIX + MESSAGE]>,
    incoming: Box<[u8; 2 * MESSAGE]>,
    begin: usize,
    end: usize,
}

impl Messages for Framed {
    async fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let out = &mut self.out[..PREFIX + len];
        let (prefix, message) = out.split_at_mut(PREFIX);
        prefix.copy_from_slice(&(len as u32).to_le_bytes());
        fill(message);
        Ok(self.stream.write_all(out).await?)
    }

    async fn recv<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        loop {
            let there = &self.incoming[self.begin..self.end];
            if let Some((prefix, rest)) = there.split_first_chunk::<PREFIX>() {
                let n = u32::from_le_bytes(*prefix) as usize;
                ensure!(n <= MESSAGE, "a message of {n} bytes");
                if let Some(message) = rest.get(..n) {
                    self.begin += PREFIX + n;
                    return Ok(read(message));
                }
            }
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            let n = self.stream.read(&mut self.incoming[self.end..]).await?;
            ensure!(n > 0, "the connection ended");
            self.end += n;
        }
    }
}

impl Bytes for Copying<TcpStream> {
    async fn put(&mut self, len: usize, fill: impl FnMut(&mut [u8])) -> Result<()> {
        let (stream, data) = self.outgoing(len, fill);
        Ok(stream.write_all(data).await?)
    }

    async fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let n = self.stream.read(&mut self.incoming).await?;
        Ok(read(&self.incoming[..n]))
    }
}

/// Runs one end.
pub(crate) fn run(end: &End, is_server: bool) -> Result<Measured> {
    carrier::runtime()?.block_on(async {
        let stream = if is_server {
            let listener = TcpListener::bind(end.address).await.context("cannot listen")?;
            carrier::ready()?;
            listener.accept().await?.0
        } else {
            TcpStream::connect(end.address).await.context("cannot connect")?
        };
        stream.set_nodelay(true)?;
        match end.test {
            Test::Echo | Test::Rpc => {
                let incoming = Box::new([0; 2 * MESSAGE]);
                let framed =
                    Framed { stream, out: Box::new([0; PREFIX + MESSAGE]), incoming, begin: 0, end: 0 };
                work::messages(framed, end, is_server).await
            }
            Test::Write | Test::Read => work::bytes(Copying::new(stream), end, is_server).await,
        }
    })
}
