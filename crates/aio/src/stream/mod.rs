// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream of bytes over a QP, as TCP has it.
//!
//! Each write is a message, or several. A side may send as many data messages as the other one has given credits for, which it
//! returns when its program has read them. So there is a receive for each message, and a program that does not read stops the
//! writes of its peer, and not the QP by "receiver not ready".
//!
//! The window `W` is the number of data messages that may be unread. Besides them at most four other messages are on their way:
//! the hello, the end, and two with credits, because each of these returns at least half of the window.
//!
//! The peer is not trusted: each of its messages must have a credit, return one, or be the only one of its kind. So it can't
//! keep this side busy with messages that it may not send. After another message the connection ends with an error.

mod builder;
mod frame;
mod io;
mod place;
#[cfg(feature = "tokio")]
mod tokio;
mod watch;

pub use builder::StreamBuilder;

use crate::connect::Link;
use crate::detached::Detached;
use crate::dispatcher::Dispatcher;
use crate::error::{Error, Result};
use crate::inbox::Inbox;
use crate::life::FORKED;
use crate::op::Op;
use crate::pair::Qp;
use crate::receives::Message;
use crate::tasks::{Side, Tasks};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use frame::{HEADER, Header, Kind};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use uverbs::attr::QpState;
use uverbs::{AnyDriver, Buf, Driver, Pool, Private, ProtectionDomain, Rc, WcStatus};
use watch::Watch;

/// A message for which the stream waits.
enum Sending<D: Driver> {
    /// The last one: until it is complete.
    Last(Op<Buf<Private, D>, D>),
    /// Until the queue has an entry for it.
    Waiting(Detached<Buf<Private, D>, D>),
}

impl<D: Driver> Sending<D> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Last(send) => Pin::new(send).poll(cx).map_ok(drop).map_err(|failed| failed.error),
            Self::Waiting(send) => Pin::new(send).poll(cx).map_err(|failed| failed.error),
        }
    }
}

/// A stream of bytes over a QP.
///
/// ```
/// use core::future::poll_fn;
/// use core::pin::Pin;
/// use futures_io::{AsyncRead, AsyncWrite};
/// use uverbs::mlx5::Mlx5;
/// use uverbs::{ConnectAttr, Context};
/// use uverbs_aio::{Dispatcher, RdmaStream, Result};
/// use uverbs_hca::{Fabric, Hca};
///
/// fn stream(hca: &Hca, tcp: &std::net::TcpStream) -> Result<(RdmaStream<Mlx5>, Dispatcher<Mlx5>)> {
///     let context = Context::<Mlx5>::from_kernel(hca.open())?;
///     let (dispatcher, pd) = (Dispatcher::new(&context)?, context.alloc_pd()?);
///     let attr = ConnectAttr::default();
///     let stream = dispatcher.block_on(RdmaStream::builder(&dispatcher, &pd).exchange(tcp, &attr))?;
///     Ok((stream, dispatcher))
/// }
///
/// fn main() -> Result<()> {
///     let fabric = Fabric::new(1);
///     let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
///     let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     let serving = std::thread::spawn(move || {
///         let (mut stream, dispatcher) = stream(&server, &listener.accept()?.0)?;
///         let mut buf = [0; 16];
///         let n = dispatcher.block_on(poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut buf)))?;
///         assert_eq!(&buf[..n], b"hello");
///         dispatcher.block_on(stream.shutdown())
///     });
///     let (mut stream, dispatcher) = stream(&client, &std::net::TcpStream::connect(address)?)?;
///     dispatcher.block_on(poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, b"hello")))?;
///     dispatcher.block_on(stream.shutdown())?;
///     serving.join().expect("the server does not panic")
/// }
/// ```
///
/// It implements `AsyncRead`, `AsyncBufRead` and `AsyncWrite` of `futures-io`, and with the feature `tokio` those of tokio. `AsyncBufRead` and
/// [`write_with`](Self::write_with) copy nothing: the program reads and writes the messages themselves.
///
/// A close ends this side's data, and waits until the peer's device has all of it; the other direction continues. A program that
/// drops a stream without closing it loses what is on its way: the peer reads an error then, if the connection manager
/// connected the two, and nothing otherwise.
pub struct RdmaStream<D: Driver = AnyDriver> {
    qp: Qp<Rc, D>,
    pool: Pool<Private, D>,
    tasks: Arc<Tasks>,
    waker: Waker,
    inbox: Inbox<D>,
    /// Empty between two calls; kept for its memory.
    arrived: VecDeque<Message<D>>,
    sends: VecDeque<Sending<D>>,
    /// Data that was received and not read; of the first message `read` bytes were.
    unread: VecDeque<Message<D>>,
    read: usize,
    window: u16,
    /// Credits that the peer gets back with the next message.
    owed: u16,
    /// Data messages that the peer may send.
    granted: u16,
    /// Data messages that may be sent.
    credits: u32,
    /// The window of the peer: the most credits that it can give.
    peer_window: u32,
    /// Bytes of a message, at most: the minimum of both sides. `None` before the hello of the peer.
    message: Option<usize>,
    own_message: u32,
    said_hello: bool,
    /// The peer sends no more data.
    peer_ended: bool,
    ended: bool,
    /// Why no more can be sent.
    error: Option<Error>,
    /// Why no more will be received.
    broken: Option<Error>,
    watch: Option<Watch>,
}

impl<D: Driver> fmt::Debug for RdmaStream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("qp", &self.qp)
            .field("credits", &self.credits)
            .field("unread", &self.unread.len())
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> RdmaStream<D> {
    /// Begins the creation of a stream.
    pub fn builder<'a>(dispatcher: &'a Dispatcher<D>, pd: &'a ProtectionDomain<D>) -> StreamBuilder<'a, D> {
        StreamBuilder::new(dispatcher, pd)
    }

    fn new(
        qp: Qp<Rc, D>,
        pool: Pool<Private, D>,
        builder: &StreamBuilder<'_, D>,
        link: Option<Link>,
    ) -> Self {
        let tasks = Arc::new(Tasks::new());
        let watch = link.map(|link| {
            let dispatcher = qp.dispatcher();
            let watch = async move {
                if let Err(error) = link.disconnected(&dispatcher).await {
                    uverbs::report!(debug, {}, "stream: {error}");
                }
            };
            Watch::new(watch, tasks.clone())
        });
        let mut stream = Self {
            inbox: Inbox::new(qp.inner.clone(), tasks.clone()),
            arrived: VecDeque::new(),
            pool,
            waker: Waker::from(tasks.clone()),
            tasks,
            sends: VecDeque::new(),
            unread: VecDeque::new(),
            read: 0,
            window: builder.window,
            owed: 0,
            granted: builder.window,
            credits: 0,
            peer_window: 0,
            message: None,
            own_message: builder.message,
            said_hello: false,
            peer_ended: false,
            ended: false,
            error: None,
            broken: None,
            watch,
            qp,
        };
        // The peer gets its first credits also if the program does not use the stream yet.
        stream.work();
        stream
    }

    /// The QP. Its messages are those of the stream: a program does not receive from it.
    #[must_use]
    pub fn qp(&self) -> &Qp<Rc, D> {
        &self.qp
    }

    /// No more can be sent. What has arrived can still be read.
    fn fail(&mut self, error: Error) {
        // A message that is flushed does not say why: the one that failed may have been another one.
        let flushed = matches!(error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. });
        let cause = if flushed { self.qp.inner.fault() } else { None };
        self.error.get_or_insert(cause.unwrap_or(error));
    }

    /// Nothing will be received either.
    fn give_up(&mut self, error: Error) {
        self.broken.get_or_insert_with(|| error.clone());
        self.fail(error);
    }

    /// Calls `f` with what has arrived; if it has to wait, the task is woken when anything happens. A call that does not wait
    /// registers no waker.
    #[inline]
    fn poll_with<T>(
        &mut self,
        side: Side,
        cx: &Context<'_>,
        mut f: impl FnMut(&mut Self) -> Poll<T>,
    ) -> Poll<T> {
        self.work();
        let polled = f(self);
        if polled.is_ready() || !self.tasks.register(side, cx.waker()) {
            return polled;
        }
        // Something has happened before the waker was there.
        self.work();
        f(self)
    }

    /// Takes what has arrived and what is complete, and sends what does not depend on the program.
    #[inline]
    fn work(&mut self) {
        if self.tasks.any() || self.qp.inner.is_forked() {
            self.work_now();
        }
    }

    fn work_now(&mut self) {
        if self.qp.inner.is_forked() {
            // Nothing wakes a task of the child, and a lock may be held by a thread that the child does not have.
            return self.give_up(FORKED);
        }
        // What happens after this wakes the tasks again.
        self.tasks.begin();
        if !self.said_hello && self.error.is_none() {
            self.said_hello = true;
            let kind = Kind::Hello { message: self.own_message };
            self.send_other(Header { kind, credits: self.window });
        }
        if let Some(watch) = &mut self.watch
            && watch.has_ended()
        {
            self.watch = None;
            // What has arrived can still be read: the receives are flushed after it.
            if let Err(error) = self.qp.control().modify_state(QpState::ERR) {
                self.give_up(error.into());
            }
        }
        if self.broken.is_none() {
            let ended = self.inbox.take(&mut self.arrived);
            while let Some(message) = self.arrived.pop_front() {
                if self.broken.is_none() {
                    self.take(message);
                }
            }
            if let Err(error) = ended {
                self.give_up(error);
            }
        }
        if !self.sends.is_empty() {
            self.poll_sends();
        }
        self.return_credits();
    }

    fn poll_sends(&mut self) {
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        while let Some(send) = self.sends.front_mut()
            && let Poll::Ready(sent) = send.poll(&mut cx)
        {
            self.sends.pop_front();
            if let Err(error) = sent {
                self.fail(error);
            }
        }
    }

    /// Returns credits, if they are half of the window: then at most two such messages are on their way.
    #[inline]
    fn return_credits(&mut self) {
        if self.owed >= self.window.div_ceil(2) && !self.peer_ended && self.error.is_none() {
            let credits = self.grant();
            self.send_other(Header { kind: Kind::Credits, credits });
        }
    }

    /// The peer does not follow the protocol. The connection ends, so that it notices.
    fn protocol(&mut self, what: &'static str) {
        self.give_up(std::io::Error::new(ErrorKind::InvalidData, what).into());
        if let Err(error) = self.qp.control().modify_state(QpState::ERR) {
            uverbs::report!(debug, {}, "stream: {error}");
        }
    }

    /// A message of the peer.
    fn take(&mut self, message: Message<D>) {
        let Some(Header { kind, credits }) = Header::decode(&message) else {
            return self.protocol("a message without the header of a stream");
        };
        if matches!(kind, Kind::Hello { .. }) == self.message.is_some() {
            return self.protocol("a stream begins with one hello");
        }
        if let Kind::Hello { .. } = kind {
            self.peer_window = credits.into();
        }
        self.credits += u32::from(credits);
        if self.credits > self.peer_window {
            return self.protocol("more credits than messages were sent");
        }
        match kind {
            Kind::Hello { message } if (message as usize) <= HEADER => self.protocol("no room for data"),
            Kind::Hello { .. } if credits == 0 => self.protocol("a window of no messages"),
            Kind::Hello { message } => self.message = Some(message.min(self.own_message) as usize),
            Kind::Credits if credits == 0 => self.protocol("a message without effect"),
            Kind::Credits => {}
            Kind::End | Kind::Data if self.peer_ended => self.protocol("a message after the end"),
            Kind::End => self.peer_ended = true,
            Kind::Data if self.granted == 0 => self.protocol("data without credit"),
            Kind::Data => {
                self.granted -= 1;
                if message.len() == HEADER {
                    // Nothing to read: the credit goes back at once.
                    self.owed += 1;
                } else {
                    self.unread.push_back(message);
                }
            }
        }
    }

    /// The credits that the next message returns.
    fn grant(&mut self) -> u16 {
        let credits = core::mem::take(&mut self.owed);
        self.granted += credits;
        credits
    }

    /// Sends a message that needs no credit.
    fn send_other(&mut self, header: Header) {
        // The window has as many buffers as data messages, and the others are few: a buffer may be missing for a short time.
        let Some(mut buf) = self.pool.try_get() else {
            match header.kind {
                Kind::Credits => {
                    self.owed += header.credits;
                    self.granted -= header.credits;
                }
                Kind::Hello { .. } => self.said_hello = false,
                Kind::Data | Kind::End => {}
            }
            return;
        };
        if let Err(error) = buf.fill(&header.encode()) {
            return self.fail(error.into());
        }
        self.post(buf);
    }

    /// Sends a message. What was sent is complete some time later, which no one waits for: a failure ends the receives, too.
    #[inline]
    fn post(&mut self, buf: Buf<Private, D>) {
        match self.qp.inner.send_now(buf) {
            Ok(None) => {}
            Ok(Some(buf)) => self.wait(Sending::Waiting(self.qp.send(buf).detach())),
            Err(error) => self.fail(error),
        }
    }

    /// Waits for a message, after those that wait already.
    #[cold]
    fn wait(&mut self, mut send: Sending<D>) {
        let waker = self.waker.clone();
        match send.poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => self.sends.push_back(send),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => self.fail(error),
        }
    }

    /// Reads into the slice; 0 bytes at the end of the peer's data.
    fn poll_fill(&mut self, cx: &Context<'_>, out: &mut [u8]) -> Poll<Result<usize>> {
        self.poll_with(Side::Read, cx, |stream| stream.fill(out))
    }

    #[inline]
    fn fill(&mut self, out: &mut [u8]) -> Poll<Result<usize>> {
        let mut filled = 0;
        while filled < out.len()
            && let Some(message) = self.unread.front()
        {
            let data = message.get(HEADER + self.read..).unwrap_or_default();
            let n = data.len().min(out.len() - filled);
            if let (Some(to), Some(from)) = (out.get_mut(filled..filled + n), data.get(..n)) {
                to.copy_from_slice(from);
            }
            filled += n;
            let there = data.len();
            self.advance(n, there);
        }
        if filled > 0 || out.is_empty() {
            self.return_credits();
            return Poll::Ready(Ok(filled));
        }
        self.poll_ended().map_ok(|()| 0)
    }

    /// No data are there: whether none will come.
    fn poll_ended(&self) -> Poll<Result<()>> {
        if self.peer_ended {
            return Poll::Ready(Ok(()));
        }
        match &self.broken {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => Poll::Pending,
        }
    }

    /// Sends bytes of the slices; returns how many.
    fn poll_send(&mut self, cx: &Context<'_>, data: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        self.poll_with(Side::Write, cx, |stream| stream.send(data))
    }

    /// Fails if this side has ended, or the connection has.
    #[inline]
    fn check_writable(&self) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.ended {
            return Err(std::io::Error::from(ErrorKind::BrokenPipe).into());
        }
        Ok(())
    }

    /// A buffer for a message of data, and the bytes of data that it has room for; `None` if no message may be sent.
    #[inline]
    fn room(&mut self) -> Option<(Buf<Private, D>, usize)> {
        // The queue is full if a message waits for an entry.
        if self.credits == 0 || !self.sends.is_empty() {
            return None;
        }
        let room = self.message? - HEADER;
        Some((self.pool.try_get()?, room))
    }

    #[inline]
    fn send(&mut self, data: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        self.check_writable()?;
        let total = data.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        let mut sent = 0;
        // The position in the slices.
        let mut rest = data.iter().map(|slice| &**slice);
        let mut slice: &[u8] = &[];
        while sent < total
            && let Some((mut buf, room)) = self.room()
        {
            let len = (total - sent).min(room);
            buf.set_len(HEADER + len)?;
            let mut room = buf.get_mut(HEADER..).unwrap_or_default();
            while !room.is_empty() {
                while slice.is_empty() {
                    slice = rest.next().unwrap_or_default();
                }
                let (to, from) = (room, slice);
                let n = to.len().min(from.len());
                let (to, left) = to.split_at_mut(n);
                let (from, behind) = from.split_at(n);
                to.copy_from_slice(from);
                (room, slice) = (left, behind);
            }
            sent += len;
            self.send_data(buf);
        }
        match &self.error {
            Some(error) => Poll::Ready(Err(error.clone())),
            None if sent > 0 || total == 0 => Poll::Ready(Ok(sent)),
            None => Poll::Pending,
        }
    }

    /// Ends this side's data, and waits until the peer's device has all of it.
    fn poll_end(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        self.poll_with(Side::Write, cx, Self::end)
    }

    fn end(&mut self) -> Poll<Result<()>> {
        if !self.ended && self.error.is_none() {
            let Some(mut buf) = self.pool.try_get() else { return Poll::Pending };
            let credits = self.grant();
            buf.fill(&Header { kind: Kind::End, credits }.encode())?;
            self.ended = true;
            self.wait(Sending::Last(self.qp.send(buf)));
        }
        match &self.error {
            // The peer has ended, too, and may be gone: nothing that it wants is lost.
            Some(_) if self.ended && self.peer_ended => Poll::Ready(Ok(())),
            Some(error) => Poll::Ready(Err(error.clone())),
            None if self.sends.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    /// Ends both directions: closes this side, reads until the peer has closed, and shuts the QP down. Data that the peer still
    /// sends are discarded.
    ///
    /// # Errors
    /// The connection failed before the peer has everything.
    pub async fn shutdown(mut self) -> Result<()> {
        core::future::poll_fn(|cx| self.poll_end(cx)).await?;
        let mut discarded = [0; 1024];
        while core::future::poll_fn(|cx| self.poll_fill(cx, &mut discarded)).await? > 0 {}
        if self.error.is_some() {
            return Ok(());
        }
        self.qp.shutdown().await
    }
}
