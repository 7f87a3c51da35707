// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QP with a peer: numbers, credits, buffers.
//!
//! Each message begins with its number and the number of messages that its sender has delivered. A message of these alone, with the number
//! `NONE`, is sent if there is no other for half a window. The last one has the number `END`: it is sent when all others have arrived, so
//! that an end which has got it can destroy its QP, and no message to it fails.

use super::window::Window;
use anyhow::{Context as _, Result, bail, ensure};
use core::ops::Deref;
use core::time::Duration;
use serde::Serialize;
use std::io::{Read, Write};
use std::time::Instant;
use uverbs::{
    AddressHandle, AnyDriver, Buf, ConnectAttr, Context, Cq, Done, Driver, Endpoint, Exclusive, Pool,
    Private, Qp, Srd,
};

/// Messages that a sender may be ahead of what the receiver has delivered.
pub const WINDOW: u32 = 64;
/// Messages without content that can be on their way beside these: one for half a window, of which two are not delivered.
const TELLS: u32 = 4;
/// The number of a message without content.
const NONE: u64 = u64::MAX;
/// The number of an end's last message, which has no content either.
const END: u64 = u64::MAX - 1;
/// Bytes before the content.
const HEADER: usize = 16;
/// Bytes of a content at most: a message of SRD is one packet.
pub const MAX_CONTENT: usize = 4096 - HEADER;
/// The time without any progress after which the peer counts as lost, if the program names no other.
const LIMIT: Duration = Duration::from_secs(30);

/// What the window did.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Stats {
    /// Messages that came before an earlier one.
    pub early: u64,
    /// The most messages that one was ahead of the first that was missing.
    pub furthest: u64,
    /// Messages without content that were sent.
    pub tells: u64,
}

/// Messages in order, to and from a peer.
#[derive(Debug)]
pub struct Channel<D: Driver = AnyDriver> {
    qp: Qp<Srd, Exclusive, D>,
    cq: Cq<Exclusive, D>,
    pool: Pool<Private, D>,
    peer: AddressHandle<D>,
    there: Endpoint,
    qkey: u32,
    /// What came early.
    window: Window<Buf<Private, D>>,
    /// The number of the next message, and how many of them the peer has delivered.
    next: u64,
    delivered: u64,
    /// The count of delivered messages that the peer was told last.
    told: u64,
    /// Sends that are not complete.
    sending: u32,
    /// Whether the peer has sent its last message.
    ended: bool,
    last_progress: Instant,
    limit: Duration,
    stats: Stats,
}

/// A message, in its buffer.
#[derive(Debug)]
pub struct Message<D: Driver = AnyDriver>(Buf<Private, D>);

impl<D: Driver> Deref for Message<D> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[HEADER..]
    }
}

/// A number of a message's header.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl<D: Driver> Channel<D> {
    /// Connects to the end at the other side of a byte stream, which makes the same call.
    ///
    /// # Errors
    /// The device has no SRD, the stream fails, or the kernel refuses.
    pub fn connect(context: &Context<D>, mut stream: impl Read + Write) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.cq(2 * (WINDOW + TELLS))?;
        // Of sends, of posted receives, and of messages that wait in the window or are in the hands of the program.
        let pool = pd.pool(3 * (WINDOW + TELLS), (HEADER + MAX_CONTENT) as u32)?;
        let mut qp = pd.qp::<Srd>().cq(&cq).depth(WINDOW + TELLS, WINDOW + TELLS).create()?;
        let attr = ConnectAttr::new();
        qp.init(&attr)?;
        let here = qp.control().endpoint(0, &attr)?;
        for _ in 0..WINDOW + TELLS {
            qp.recv(pool.get()?)?;
        }
        let there = here.exchange(&mut stream).context("the other side does not answer")?;
        qp.connect(&here, &there, &attr)?;
        let peer = pd.create_ah(&attr.on(context)?.ah_attr(&there))?;
        // No message before both ends can receive.
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0]).context("the other side is not ready")?;
        Ok(Self {
            qp,
            cq,
            pool,
            peer,
            there,
            qkey: attr.qkey,
            window: Window::new(WINDOW as usize),
            next: 0,
            delivered: 0,
            told: 0,
            sending: 0,
            ended: false,
            last_progress: Instant::now(),
            limit: LIMIT,
            stats: Stats::default(),
        })
    }

    /// The time without any progress after which the peer counts as lost: 30 seconds at first. A program whose peers may have
    /// nothing to say for longer names a longer time.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// How many messages [`send`](Self::send) takes now: it has credits and room in the queue for these. If it is 0,
    /// [`progress`](Self::progress) leads to more.
    #[must_use]
    pub fn room(&self) -> usize {
        let credits = u64::from(WINDOW) - (self.next - self.delivered);
        credits.min(u64::from(WINDOW.saturating_sub(self.sending))) as usize
    }

    /// Sends messages with one doorbell. The peer gets them in this order, after all those before them.
    ///
    /// # Errors
    /// There is no [room](Self::room) for them, one is too long, or the device is gone.
    pub fn send<C: AsRef<[u8]>>(&mut self, contents: impl IntoIterator<Item = C>) -> Result<()> {
        let mut bufs = Vec::new();
        for content in contents {
            ensure!(bufs.len() < self.room(), "the peer has not delivered the messages before");
            bufs.push(self.filled(self.next + bufs.len() as u64, content.as_ref())?);
        }
        let count = bufs.len() as u32;
        let mut batch = self.qp.sq().batch();
        for buf in bufs {
            batch.wr_to(0, &self.peer, self.there.qp_num, self.qkey).send(buf);
        }
        batch.complete()?;
        self.next += u64::from(count);
        self.told = self.window.next();
        self.sending += count;
        Ok(())
    }

    /// A buffer with a message.
    fn filled(&self, number: u64, content: &[u8]) -> Result<Buf<Private, D>> {
        ensure!(content.len() <= MAX_CONTENT, "{} bytes are more than a message has", content.len());
        let mut buf = self.pool.get()?;
        buf.set_len(HEADER + content.len())?;
        buf[..8].copy_from_slice(&number.to_be_bytes());
        buf[8..HEADER].copy_from_slice(&self.window.next().to_be_bytes());
        buf[HEADER..].copy_from_slice(content);
        Ok(buf)
    }

    /// Tells the peer what was delivered, without a message.
    fn tell(&mut self, number: u64) -> Result<()> {
        let buf = self.filled(number, &[])?;
        self.qp
            .sq()
            .post_to(0, &self.peer, self.there.qp_num, self.qkey)
            .send(buf)
            .map_err(|refused| refused.error)?;
        self.told = self.window.next();
        self.sending += 1;
        self.stats.tells += 1;
        Ok(())
    }

    /// The next message, if it has come. Its buffer is used again when it is dropped; a program that keeps many stops the channel.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn try_recv(&mut self) -> Result<Option<Message<D>>> {
        let Some(buf) = self.window.pop() else { return Ok(None) };
        // A receive for the one that the peer may send now.
        self.qp.recv(self.pool.get()?)?;
        if self.window.next() - self.told >= u64::from(WINDOW / 2) {
            self.tell(NONE)?;
        }
        Ok(Some(Message(buf)))
    }

    /// Takes what the device has completed. Call it in a loop.
    ///
    /// # Errors
    /// A message could not be delivered, the peer does not follow the protocol, or nothing has happened for a long time.
    pub fn progress(&mut self) -> Result<()> {
        let mut has_progress = false;
        while let Some(completed) = self.cq.poll_one()? {
            has_progress = true;
            match completed.ok()? {
                Done::Received(message) => self.take(message)?,
                _ => self.sending -= 1,
            }
        }
        if has_progress {
            self.last_progress = Instant::now();
        } else {
            let limit = self.limit;
            ensure!(self.last_progress.elapsed() < limit, "nothing has come from the peer for {limit:?}");
            std::thread::yield_now();
        }
        Ok(())
    }

    fn take(&mut self, message: Buf<Private, D>) -> Result<()> {
        let (Some(number), Some(delivered)) = (word(&message, 0), word(&message, 8)) else {
            bail!("a message of {} bytes has no header", message.len());
        };
        ensure!(delivered <= self.next, "the peer has delivered messages that were not sent");
        // What it says may be older than what is known.
        self.delivered = self.delivered.max(delivered);
        ensure!(!self.ended, "a message after the last one");
        if number == NONE || number == END {
            self.ended = number == END;
            drop(message);
            self.qp.recv(self.pool.get()?)?;
            return Ok(());
        }
        let missing = self.window.insert(number, message)?;
        if missing > 0 {
            self.stats.early += 1;
            self.stats.furthest = self.stats.furthest.max(number - self.window.next());
        }
        Ok(())
    }

    /// Waits until all sends are complete and delivered by the peer, and tells it what was delivered here. The peer makes the same call.
    /// After it no message is on its way to this end.
    ///
    /// # Errors
    /// As [`progress`](Self::progress), or the peer has not delivered all messages when it makes this call.
    pub fn finish(&mut self) -> Result<()> {
        while self.sending > 0 {
            self.progress()?;
        }
        self.tell(END)?;
        while self.sending > 0 || !self.ended {
            self.progress()?;
        }
        ensure!(
            self.delivered == self.next,
            "the peer has delivered {} of {} messages",
            self.delivered,
            self.next
        );
        Ok(())
    }

    /// What the window did.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }
}
