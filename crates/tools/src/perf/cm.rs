// SPDX-License-Identifier: MIT OR Apache-2.0
//! rdma_cm(7) in the tests, as perftest uses it: the exchange over a connection (`-z`), and the connections of the QPs
//! that are measured (`-R`, with the exchange over another connection to the same port).
//!
//! A message of the exchange is one send. perftest keeps a single receive posted and answers each message before it
//! gets the next one, so this end does not send ahead.

use super::channel::Channel;
use crate::cm::{Queues, Side};
use crate::patience::Patience;
use anyhow::{Context as _, Result};
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use uverbs::attr::QpCap;
use uverbs::owned::{Buf, OwnedCq, OwnedQp, Pool};
use uverbs::qp::QpControl;
use uverbs::{CompletionChannel, Context, Driver, Rc};
use uverbs_cm::{ConnParam, Id, RejectReason};

/// Bytes of the longest message, with room.
const MESSAGE: u32 = 256;
/// Receives of the exchange.
const RECEIVES: u32 = 4;
/// Connections that are tried while the server does not listen yet: perftest's server listens again for the QPs.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Runs `connect` until the server listens.
pub(super) fn retry<R>(mut connect: impl FnMut() -> Result<R>) -> Result<R> {
    let mut tries = 1;
    loop {
        match connect() {
            Err(error) if tries < TRIES && is_not_listening(&error) => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

fn is_not_listening(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(uverbs_cm::Error::Rejected {
            reason: RejectReason::INVALID_SERVICE_ID | RejectReason::SIDR_UNSUPPORTED,
            ..
        })
    )
}

/// A QP, and the buffers of its messages.
#[derive(Debug)]
struct Queue<D: Driver> {
    qp: OwnedQp<D, Rc>,
    pool: Pool<D>,
}

impl<D: Driver> Queue<D> {
    fn buf(&self) -> Result<Buf<D>> {
        self.pool.get().context("the exchange has no buffer")
    }

    fn post_recv(&mut self) -> Result<()> {
        let buf = self.buf()?;
        let queue = self.qp.rq().context("the QP of the exchange has no receive queue")?;
        queue.post(RECV, buf).map_err(|rejected| rejected.error.into())
    }
}

impl<D: Driver> Queues<D> for Queue<D> {
    fn control(&self, _: usize) -> Result<&QpControl<D>> {
        Ok(self.qp.control())
    }

    fn post_first(&mut self, _: usize) -> Result<()> {
        (0..RECEIVES).try_for_each(|_| self.post_recv())
    }
}

/// A stream of messages over a connection of rdma_cm, for the exchange.
#[derive(Debug)]
pub(super) struct Exchange<D: Driver> {
    queue: Queue<D>,
    _id: Id,
    cq: OwnedCq<D>,
    channel: CompletionChannel<D>,
    patience: Patience,
    /// Messages that were not read yet.
    arrived: VecDeque<Vec<u8>>,
    sending: usize,
}

impl<D: Driver> Exchange<D> {
    /// Establishes the connection.
    pub(super) fn new(context: &Context<D>, side: Side, patience: Patience) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.owned_cq(1 + RECEIVES, Some(&channel))?;
        let pool = pd.pool(2 + RECEIVES, MESSAGE).build()?;
        let qp = pd.owned_qp::<Rc>().cq(&cq).cap(cap).create()?;
        let limit = patience.left("the connection of the exchange")?;
        let mut queue = Queue { qp, pool };
        let (id, _) = side.establish(&mut queue, 0, &ConnParam::default(), limit)?;
        Ok(Self { queue, _id: id, cq, channel, patience, arrived: VecDeque::new(), sending: 0 })
    }

    /// Waits for completions.
    fn progress(&mut self) -> Result<()> {
        let mut is_armed = false;
        loop {
            let mut has_any = false;
            while let Some(done) = self.cq.poll_one()? {
                has_any = true;
                done.wc.status.ok().context("the exchange")?;
                let (wr_id, len) = (done.wc.wr_id, done.wc.byte_len as usize);
                match done.buf() {
                    Some(buf) if wr_id == RECV => {
                        self.arrived.push_back(buf.get(..len).unwrap_or(&buf).to_vec());
                        drop(buf);
                        self.queue.post_recv()?;
                    }
                    _ => self.sending = self.sending.saturating_sub(1),
                }
            }
            if has_any {
                self.patience.renew();
                return Ok(());
            }
            if is_armed {
                self.patience.wait_readable(self.channel.as_fd(), "a message of the exchange")?;
                self.channel.get_event()?;
            } else {
                self.cq.req_notify(false)?;
            }
            is_armed = !is_armed;
        }
    }
}

impl<D: Driver> Channel for Exchange<D> {
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()> {
        self.patience.set_limit(limit);
        Ok(())
    }
}

/// The work request ids.
const RECV: u64 = 0;
const SEND: u64 = 1;

impl<D: Driver> Read for Exchange<D> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // The limit is that of this wait: a test may have run since the last message.
        self.patience.renew();
        while self.arrived.is_empty() {
            self.progress().map_err(io::Error::other)?;
        }
        let Some(message) = self.arrived.front_mut() else { return Ok(0) };
        let len = message.len().min(out.len());
        out[..len].copy_from_slice(&message[..len]);
        message.drain(..len);
        if message.is_empty() {
            self.arrived.pop_front();
        }
        Ok(len)
    }
}

impl<D: Driver> Write for Exchange<D> {
    /// Sends one message, and waits until it has arrived.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patience.renew();
        let mut send = || -> Result<()> {
            let mut buf = self.queue.buf()?;
            buf.fill(bytes)?;
            let posted = self.queue.qp.sq().post(SEND).signaled().send(buf);
            posted.map_err(|rejected| rejected.error)?;
            self.sending += 1;
            while self.sending > 0 {
                self.progress()?;
            }
            Ok(())
        };
        send().map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
