// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TCP stream of the two sides, after the connection: which lanes have failed, and that the transfer is complete. Its end is that of
//! the other side, also if that was killed.

use anyhow::{Context as _, Result, bail};
use core::time::Duration;
use std::net::TcpStream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

/// The time limit for the next batch, and for the last answer of the other side.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What one side tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The lane with this number has failed.
    Failed(u32),
    /// The sender has all batches acknowledged, or the receiver has heard that.
    Complete,
}

const FAILED: u8 = 1;
const COMPLETE: u8 = 2;
/// Bytes of a notice: its kind and the lane.
const LEN: usize = 5;

/// This side of the stream.
#[derive(Debug)]
pub struct Control {
    write: OwnedWriteHalf,
    notices: mpsc::Receiver<Result<Notice>>,
}

async fn read(mut stream: OwnedReadHalf, notices: mpsc::Sender<Result<Notice>>) {
    loop {
        let mut bytes = [0; LEN];
        let notice = match stream.read_exact(&mut bytes).await {
            Ok(_) => match bytes {
                [FAILED, lane @ ..] => Ok(Notice::Failed(u32::from_be_bytes(lane))),
                [COMPLETE, ..] => Ok(Notice::Complete),
                _ => Err(anyhow::anyhow!("the other side sent an invalid notice")),
            },
            Err(_) => Err(anyhow::anyhow!("the other side has gone")),
        };
        let is_last = notice.is_err();
        if notices.send(notice).await.is_err() || is_last {
            return;
        }
    }
}

impl Control {
    /// Uses a stream. Called in a runtime of tokio.
    ///
    /// # Errors
    /// The error of the stream.
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (reader, write) = tokio::net::TcpStream::from_std(stream)?.into_split();
        let (sender, notices) = mpsc::channel(16);
        tokio::spawn(read(reader, sender));
        Ok(Self { write, notices })
    }

    /// The next notice. A dropped future loses none.
    ///
    /// # Errors
    /// The other side has gone.
    pub async fn next(&mut self) -> Result<Notice> {
        self.notices.recv().await.context("the other side has gone")?
    }

    /// Tells the other side that a lane has failed. That it has gone is found by [`next`](Self::next).
    pub async fn failed(&mut self, lane: u32) {
        let mut bytes = [FAILED; LEN];
        bytes[1..].copy_from_slice(&lane.to_be_bytes());
        _ = self.write.write_all(&bytes).await;
    }

    /// Tells the other side that the transfer is complete, and waits until it knows. The queues must not end before: the device does not
    /// repeat a lost acknowledgement of a QP that is destroyed.
    ///
    /// # Errors
    /// The other side has failed, or does not answer in time.
    pub async fn complete(&mut self, answered: bool) -> Result<()> {
        self.write.write_all(&[COMPLETE; LEN]).await.context("the other side has gone")?;
        if answered {
            return Ok(());
        }
        let answer = async {
            while self.next().await? != Notice::Complete {}
            Ok(())
        };
        match tokio::time::timeout(LIMIT, answer).await {
            Ok(answer) => answer,
            Err(_) => bail!("the other side does not end within {LIMIT:?}"),
        }
    }
}
