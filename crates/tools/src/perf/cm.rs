// SPDX-License-Identifier: MIT OR Apache-2.0
//! rdma_cm(7) in the tests, as perftest uses it: the exchange over a connection (`-z`), and the connections of the QPs
//! that are measured (`-R`, with the exchange over another connection to the same port).
//!
//! A message of the exchange is one send. perftest keeps a single receive posted and answers each message before it
//! gets the next one, so this end does not send ahead.

use super::channel::{Channel, Ending, Watch};
use crate::cm::{Queues, Side};
use crate::patience::Patience;
use crate::tcp::closed;
use anyhow::{Context as _, Result};
use core::time::Duration;
use nix::poll::PollFlags;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs::qp::QpControl;
use uverbs::{Buf, Cq, Pool, Qp};
use uverbs::{CompletionChannel, Context, Driver, Rc};
use uverbs::{Exclusive, Private, attr::QpCap};
use uverbs_cm::{ConnParam, Id, RejectReason};

/// Bytes of the longest message, with room.
const MESSAGE: u32 = 256;
/// Receives of the exchange.
const RECEIVES: u32 = 4;
/// Connections that are tried while the server does not listen yet: perftest's server listens again for the QPs.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);
/// How long completions may come after the event that the other end has ended the connection.
const LAST: Duration = Duration::from_millis(500);

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
    qp: Qp<Rc, Exclusive, D>,
    pool: Pool<Private, D>,
}

impl<D: Driver> Queue<D> {
    fn buf(&self) -> Result<Buf<Private, D>> {
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
    /// Ends the connection when it is dropped.
    _id: Id,
    ending: Arc<Ending>,
    cq: Cq<Exclusive, D>,
    channel: CompletionChannel<D>,
    patience: Patience,
    /// Messages that were not read yet.
    arrived: VecDeque<Vec<u8>>,
    sending: usize,
}

impl<D: Driver> Exchange<D> {
    /// Establishes the connection.
    pub(super) fn new(context: &Context<D>, side: Side, patience: Patience) -> Result<Self> {
        let cap = QpCap::new(1, RECEIVES);
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.cq_with(1 + RECEIVES, Some(&channel))?;
        let pool = pd.pool(2 + RECEIVES, MESSAGE)?;
        let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create()?;
        let limit = patience.left("the connection of the exchange")?;
        let mut queue = Queue { qp, pool };
        let (id, _) = side.establish(&mut queue, 0, &ConnParam::default(), limit)?;
        let (ending, arrived) = (Ending::of(id.channel().clone()), VecDeque::new());
        Ok(Self { queue, _id: id, ending, cq, channel, patience, arrived, sending: 0 })
    }

    /// Waits for completions.
    ///
    /// # Errors
    /// `UnexpectedEof`: there is none, and the other end has ended the connection.
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
            if !is_armed {
                self.cq.req_notify(false)?;
                is_armed = true;
                continue;
            }
            let completed = match self.ending.look()? {
                None => {
                    let fds = [self.channel.as_fd(), self.ending.channel().as_fd()];
                    let fds = fds.map(|fd| (fd, PollFlags::POLLIN));
                    self.patience.wait_any(fds, "a message of the exchange")?[0]
                }
                Some(when) => {
                    let left = LAST.saturating_sub(when.elapsed());
                    let last =
                        Patience::new(Some(left)).wait_readable(self.channel.as_fd(), "the last message");
                    last.map_err(|_| closed())?;
                    true
                }
            };
            if completed {
                self.channel.get_event()?;
                is_armed = false;
            }
        }
    }
}

impl<D: Driver> Channel for Exchange<D> {
    fn set_limit(&mut self, limit: Option<Duration>) -> Result<()> {
        self.patience.set_limit(limit);
        Ok(())
    }

    fn watch(&self) -> Result<Watch> {
        Ok(Watch::Connection(Arc::clone(&self.ending)))
    }
}

/// The work request ids.
const RECV: u64 = 0;
const SEND: u64 = 1;

/// The error as that of a stream; the kind of one that was it before is kept.
fn to_io(error: anyhow::Error) -> io::Error {
    error.downcast().unwrap_or_else(io::Error::other)
}

impl<D: Driver> Read for Exchange<D> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // The limit is that of this wait: a test may have run since the last message.
        self.patience.renew();
        while self.arrived.is_empty() {
            self.progress().map_err(to_io)?;
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
        send().map_err(to_io)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::Line;
    use std::sync::mpsc;
    use uverbs::mlx5::Mlx5;
    use uverbs_cm::{EventChannel, PortSpace};
    use uverbs_hca::{Fabric, Hca};

    /// Ends a test that would wait for ever.
    const SOON: Duration = Duration::from_secs(30);

    /// The ends of an exchange without a time limit.
    fn ends() -> [Exchange<Mlx5>; 2] {
        let fabric = Fabric::new(0);
        let [here, there] = [(); 2].map(|()| fabric.device("hca0").build());
        let manager = |hca: &Hca| EventChannel::from_port(hca.connection_manager().unwrap());
        let serving = Line::serve(&manager(&there), &[PortSpace::Tcp], None, 7000).unwrap();
        let address = (there.addresses()[0], 7000).into();
        let calling = Line::Call { manager: manager(&here), address };
        let end = |hca: &Hca, line: &Line| {
            let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
            let side = line.side(PortSpace::Tcp, None, Some(SOON)).unwrap();
            Exchange::new(&context, side, Patience::new(None)).unwrap()
        };
        std::thread::scope(|scope| {
            let server = scope.spawn(|| end(&there, &serving));
            [end(&here, &calling), server.join().unwrap()]
        })
    }

    #[test]
    fn an_end_that_waits_without_a_limit_sees_that_the_other_has_ended() {
        for waits in ["read", "write"] {
            let [mut one, other] = ends();
            let (done, result) = mpsc::channel();
            let waiting = std::thread::spawn(move || {
                let result = match waits {
                    "read" => one.read_exact(&mut [0; 4]),
                    // The other end has no receive left for the last of these, so it waits.
                    _ => (0..=RECEIVES).try_for_each(|_| one.write_all(b"word")),
                };
                done.send(result.unwrap_err()).unwrap();
            });
            std::thread::sleep(Duration::from_millis(50));
            drop(other);
            let error = result.recv_timeout(SOON).unwrap();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{waits}: {error}");
            waiting.join().unwrap();
        }
    }

    #[test]
    fn a_message_before_the_end_is_read() {
        let [mut one, mut other] = ends();
        other.write_all(b"last").unwrap();
        drop(other);
        let mut message = [0; 4];
        one.read_exact(&mut message).unwrap();
        assert_eq!(&message, b"last");
        assert_eq!(one.read_exact(&mut message).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
