// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client: it may have several requests outstanding, and gets their results in any order.
//!
//! [`Client::start`] posts a request, if there is room; [`Client::next_result`] waits for the next result. [`Client::get`],
//! [`Client::put`] and [`Client::delete`] do both.

use super::ledger::{Answered, Ledger};
use super::proto::{Answer, HEADER, MAX_KEY, MAX_SMALL, MESSAGE, Op, Request, Status, VERSION, Welcome};
use crate::link::{self, Link, Path, Target};
use crate::nic::Nic;
use crate::wait::Waiter;
use anyhow::{Context as _, Result, bail, ensure};
use core::ops::Deref;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::Instant;
use uverbs::{Buf, Completed, Cq, Pool, Qp};
use uverbs::{Driver, ImmData, PostError, ProtectionDomain, QueueError, Rc, RemoteRegion};
use uverbs::{
    Exclusive, Private,
    attr::{QpCap, SendOpsFlags},
};

/// The time limit for a result.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the server may be silent before the client asks its device for an acknowledgement. A server that was killed, or whose
/// device was removed, may not say so, and a client whose requests were acknowledged has nothing in flight that would fail.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// Requests of the client before the server has sent its limit.
const RECEIVES: u32 = 64;
/// Every how many sends one has a completion.
const SIGNAL_EVERY: u32 = 16;
/// Large values that the client can read or write at the same time.
const VALUES: u32 = 8;

/// `wr_id`s: their kind, and for reads the number of the request.
const SEND: u64 = 0;
const RECV: u64 = 1 << 32;
const READ: u64 = 2 << 32;
const PROBE: u64 = 3 << 32;

/// A request.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    /// The value of a key.
    Get(&'a [u8]),
    /// Stores a value.
    Put(&'a [u8], &'a [u8]),
    /// Removes a key.
    Delete(&'a [u8]),
}

/// A value: of an answer, or as it was read from the server's memory.
#[derive(Debug)]
pub enum Value<D: Driver> {
    /// A copy.
    Small(Vec<u8>),
    /// The buffer into which the device has read it.
    Large(Buf<Private, D>),
}

impl<D: Driver> Deref for Value<D> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(buf) => buf,
        }
    }
}

/// The result of a request.
#[derive(Debug)]
pub enum Outcome<D: Driver> {
    /// The value of the key.
    Value(Value<D>),
    /// It was stored or removed.
    Done,
    /// There is no such key.
    NotFound,
    /// The server's reason why not.
    Refused(Status),
}

/// How large values get to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// WRITE with immediate data, if both ends have them.
    Best,
    /// WRITE, then SEND.
    WriteThenSend,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client<D: Driver> {
    qp: Qp<Rc, Exclusive, D>,
    cq: Cq<Exclusive, D>,
    waiter: Waiter<D>,
    messages: Pool<Private, D>,
    values: Pool<Private, D>,
    welcome: Welcome,
    immediate: bool,
    ledger: Ledger,
    /// Large values that wait for a buffer.
    waiting: VecDeque<(u32, RemoteRegion)>,
    results: VecDeque<(u32, Outcome<D>)>,
    posted: u32,
    max_inline: usize,
    link: Link,
    /// Whether the server has ended the connection.
    gone: bool,
    /// Whether a WRITE without data is in flight, which only asks whether the server's device is there.
    probing: bool,
}

/// Creates the QP with all operations that the client wants, or without immediate data where the device has none.
fn create_qp<D: Driver>(
    pd: &ProtectionDomain<D>,
    cq: &Cq<Exclusive, D>,
    way: Way,
) -> Result<(Qp<Rc, Exclusive, D>, bool)> {
    // A put has up to two sends, a large get also a read and a release; the last ones may be complete but not polled.
    let cap = QpCap::new(4 * RECEIVES, RECEIVES).inline(super::INLINE);
    let create = |ops| pd.qp::<Rc>().cq(cq).cap(cap).send_ops(ops).create();
    let ops = SendOpsFlags::SEND | SendOpsFlags::RDMA_WRITE | SendOpsFlags::RDMA_READ;
    match create(ops | SendOpsFlags::RDMA_WRITE_WITH_IMM) {
        Ok(qp) => Ok((qp, way == Way::Best)),
        Err(error) if error.is_unsupported() => Ok((create(ops)?, false)),
        Err(error) => Err(error.into()),
    }
}

impl<D: Driver> Client<D> {
    /// Connects to a server.
    ///
    /// # Errors
    /// The device can't be used, or the server does not answer or refuses.
    pub fn connect(nic: &Nic, target: &Target, path: Path, way: Way) -> Result<Self> {
        let context = nic.open::<D>()?;
        let pd = context.alloc_pd()?;
        let mut waiter = Waiter::new(context.create_comp_channel()?)?;
        let mut cq = context.cq_with(5 * RECEIVES, Some(waiter.channel()))?;
        let (qp, immediate) = create_qp(&pd, &cq, way)?;
        let messages = pd.pool(5 * RECEIVES, MESSAGE as u32)?;
        let receive = |qp: &mut Qp<Rc, Exclusive, D>| {
            let queue = qp.rq().context("the QP has a receive queue")?;
            for _ in 0..RECEIVES {
                queue.post(RECV, messages.get().context("the pool has enough buffers")?)?;
            }
            Ok(())
        };
        let (mut qp, link) = link::connect(qp, &context, nic, target, path, receive)?;
        let welcome = hello(&mut qp, &mut cq, &mut waiter, (&messages, &link))?;
        let values = pd.pool(VALUES, welcome.slot_size)?;
        let max_inline = qp.cap().max_inline_data as usize;
        Ok(Self {
            qp,
            cq,
            waiter,
            messages,
            values,
            immediate: immediate && welcome.immediate,
            ledger: Ledger::new(&welcome, RECEIVES),
            welcome,
            waiting: VecDeque::new(),
            results: VecDeque::new(),
            posted: 1,
            max_inline,
            link,
            gone: false,
            probing: false,
        })
    }

    /// Bytes of the largest value that the server stores.
    #[must_use]
    pub fn max_value(&self) -> usize {
        self.welcome.max_value as usize
    }

    /// Whether large values are written with immediate data.
    #[must_use]
    pub fn has_immediate(&self) -> bool {
        self.immediate
    }

    /// Posts a request and returns its number; `None` if the credits, the slots or the buffers are in use, so that
    /// [`next_result`](Self::next_result) must be called first.
    ///
    /// # Errors
    /// A key or value that is too long, or a queue that has failed.
    pub fn start(&mut self, ask: &Ask<'_>) -> Result<Option<u32>> {
        let (op, key, value) = match *ask {
            Ask::Get(key) => (Op::Get, key, &[][..]),
            Ask::Put(key, value) => (Op::Put, key, value),
            Ask::Delete(key) => (Op::Delete, key, &[][..]),
        };
        ensure!(key.len() <= MAX_KEY, "a key of {} bytes is longer than {MAX_KEY}", key.len());
        ensure!(
            value.len() <= self.max_value(),
            "a value of {} bytes is longer than {}",
            value.len(),
            self.max_value()
        );
        let Some(id) = self.ledger.next_id() else { return Ok(None) };
        let request = Request { op, id, arg: 0, key, value };
        let is_small = value.len() <= MAX_SMALL;
        let is_posted = if is_small { self.send(&request)? } else { self.write(&request)? };
        if !is_posted {
            return Ok(None);
        }
        self.ledger.asked(!is_small);
        Ok(Some(id))
    }

    /// Sends a message, if there is room.
    fn send(&mut self, request: &Request<'_>) -> Result<bool> {
        let mut message = [0; MESSAGE];
        request.encode(&mut message);
        let message = &message[..request.len()];
        self.posted = self.posted.wrapping_add(1);
        let wr = self.qp.sq().post(SEND);
        let wr = if self.posted.is_multiple_of(SIGNAL_EVERY) { wr.signaled() } else { wr };
        let posted = if message.len() <= self.max_inline {
            wr.send_inline(message)
        } else {
            let Some(mut buf) = self.messages.try_get() else { return Ok(false) };
            buf.fill(message)?;
            wr.send(buf).map_err(QueueError::from)
        };
        room(posted)
    }

    /// Writes a request with a large value to the free slot, if there is room, and notifies the server.
    fn write(&mut self, request: &Request<'_>) -> Result<bool> {
        let (Some(slot), Some(mut buf)) = (self.ledger.free_slot(), self.values.try_get()) else {
            return Ok(false);
        };
        buf.set_len(request.len())?;
        request.encode(&mut buf);
        let at = u64::from(slot) * u64::from(self.welcome.slot_stride);
        let to = self.welcome.region.slice(at..at + u64::from(self.welcome.slot_size))?;
        // Signaled, because the buffer is wanted back soon.
        let wr = self.qp.sq().post(SEND).signaled();
        let posted =
            if self.immediate { wr.write_imm(buf, &to, ImmData::new(slot)) } else { wr.write(buf, &to) };
        if !room(posted.map_err(QueueError::from))? {
            return Ok(false);
        }
        if !self.immediate {
            // The device executes the SEND after the WRITE, and the server's device delivers them in this order.
            let tell = Request { op: Op::PutSlot, arg: slot, key: &[], value: &[], ..*request };
            ensure!(self.send(&tell)?, "the queue has room for each request within the credits");
        }
        Ok(true)
    }

    /// The next result. `None` if no request is outstanding.
    ///
    /// # Errors
    /// The connection has failed or the server has ended it, the server broke the protocol, or it did not answer in time.
    pub fn next_result(&mut self) -> Result<Option<(u32, Outcome<D>)>> {
        let begin = Instant::now();
        let mut probed = begin;
        loop {
            if let Some(result) = self.results.pop_front() {
                return Ok(Some(result));
            }
            if self.ledger.outstanding() == 0 {
                return Ok(None);
            }
            self.read_waiting()?;
            match self.cq.poll_one()? {
                Some(completed) => {
                    self.waiter.busy();
                    self.completed(completed)?;
                }
                None => {
                    // What the server has sent before was polled.
                    ensure!(!self.gone, "the server has ended the connection");
                    ensure!(begin.elapsed() < LIMIT, "the server did not answer within {LIMIT:?}");
                    if probed.elapsed() >= QUIET && !self.probing {
                        probed = Instant::now();
                        self.probe()?;
                    }
                    let Self { cq, waiter, link, .. } = self;
                    let readable =
                        waiter.idle(Some(link.as_fd()), Duration::from_secs(1), || cq.req_notify(false))?;
                    self.gone = readable && link.is_gone();
                }
            }
        }
    }

    /// Writes nothing: if the server's device does not acknowledge it, the connection fails.
    fn probe(&mut self) -> Result<()> {
        let nothing = self.welcome.region.slice(0..0)?;
        // A full queue has work requests in flight that fail, too.
        self.probing = room(self.qp.sq().post(PROBE).signaled().write_inline(&[], &nothing))?;
        Ok(())
    }

    fn completed(&mut self, completed: Completed<D>) -> Result<()> {
        let wc = completed.wc;
        wc.status.ok().context("the connection has failed")?;
        match wc.wr_id {
            SEND => {}
            PROBE => self.probing = false,
            RECV => {
                let buf = completed.buf().context("a receive has a buffer")?;
                self.answered(&buf)?;
                self.qp.rq().context("the QP has a receive queue")?.post(RECV, buf)?;
            }
            read => {
                let id = (read - READ) as u32;
                let lease = self.ledger.read(id).context("a stray read")?;
                let buf = completed.buf().context("a read has a buffer")?;
                self.results.push_back((id, Outcome::Value(Value::Large(buf))));
                let release = Request { op: Op::Release, id, arg: lease, key: &[], value: &[] };
                ensure!(self.send(&release)?, "the queue has room for each request within the credits");
            }
        }
        Ok(())
    }

    fn answered(&mut self, message: &[u8]) -> Result<()> {
        let (id, answered) = self.ledger.answered(message)?;
        let outcome = match answered {
            Answered::Done => Outcome::Done,
            Answered::Value(value) => Outcome::Value(Value::Small(value.to_vec())),
            Answered::NotFound => Outcome::NotFound,
            Answered::Large(region) => {
                self.waiting.push_back((id, region));
                return Ok(());
            }
            Answered::Refused(status) => Outcome::Refused(status),
        };
        self.results.push_back((id, outcome));
        Ok(())
    }

    /// Reads large values for which there are buffers.
    fn read_waiting(&mut self) -> Result<()> {
        while let Some(&(id, region)) = self.waiting.front()
            && let Some(mut buf) = self.values.try_get()
        {
            buf.set_len(region.len() as usize)?;
            let posted = self.qp.sq().post(READ | u64::from(id)).signaled().read(buf, &region);
            if !room(posted.map_err(QueueError::from))? {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Makes a request and waits for its result. No other request may be outstanding.
    fn ask(&mut self, ask: &Ask<'_>) -> Result<Outcome<D>> {
        let id = self.start(ask)?.context("results of earlier requests were not taken")?;
        match self.next_result()? {
            Some((number, outcome)) if number == id => Ok(outcome),
            _ => bail!("results of earlier requests were not taken"),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`next_result`](Self::next_result); the server's reason.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value<D>>> {
        match self.ask(&Ask::Get(key))? {
            Outcome::Value(value) => Ok(Some(value)),
            // An empty value.
            Outcome::Done => Ok(Some(Value::Small(Vec::new()))),
            Outcome::NotFound => Ok(None),
            Outcome::Refused(status) => bail!("get: {status:?}"),
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`next_result`](Self::next_result); the server's reason.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.ask(&Ask::Put(key, value))? {
            Outcome::Done => Ok(()),
            other => bail!("put: {other:?}"),
        }
    }

    /// Removes a key, and returns whether it was there.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`next_result`](Self::next_result); the server's reason.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        match self.ask(&Ask::Delete(key))? {
            Outcome::Done => Ok(true),
            Outcome::NotFound => Ok(false),
            other => bail!("delete: {other:?}"),
        }
    }
}

impl<D: Driver> Drop for Client<D> {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Whether it was posted. A full queue is no failure.
fn room(posted: Result<(), QueueError>) -> Result<bool> {
    match posted {
        Ok(()) => Ok(true),
        Err(error) if error == PostError::QueueFull => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The first request.
fn hello<D: Driver>(
    qp: &mut Qp<Rc, Exclusive, D>,
    cq: &mut Cq<Exclusive, D>,
    waiter: &mut Waiter<D>,
    (messages, link): (&Pool<Private, D>, &Link),
) -> Result<Welcome> {
    let mut message = [0; HEADER];
    Request { op: Op::Hello, id: 0, arg: u32::from(VERSION), key: &[], value: &[] }.encode(&mut message);
    qp.sq().post(SEND).signaled().send_inline(&message)?;
    let (begin, mut gone) = (Instant::now(), false);
    loop {
        let Some(completed) = cq.poll_one()? else {
            ensure!(!gone, "the server has ended the connection");
            ensure!(begin.elapsed() < LIMIT, "the server did not answer within {LIMIT:?}");
            let limit = Duration::from_secs(1);
            gone = waiter.idle(Some(link.as_fd()), limit, || cq.req_notify(false))? && link.is_gone();
            continue;
        };
        completed.wc.status.ok().context("the connection has failed")?;
        if completed.wc.wr_id != RECV {
            continue;
        }
        let buf = completed.buf().context("a receive has a buffer")?;
        let welcome = Answer::decode(&buf).and_then(|answer| Welcome::decode(answer.value));
        qp.rq().context("the QP has a receive queue")?.post(RECV, messages.get().unwrap_or(buf))?;
        return welcome.context("the server sent an invalid welcome");
    }
}
