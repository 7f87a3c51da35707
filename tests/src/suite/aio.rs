// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations as futures (`uverbs-aio`): dispatchers that sleep, operations, batches, pools, shared receive queues, streams, ends.
//!
//! Each end has a dispatcher, which a thread of its own runs, so the tests need real time. `crates/aio/tests` has the same tests in
//! virtual time, and those that need a device with faults.

use crate::env::End;
use crate::lab::Lab;
use crate::runner::Outcome;
use crate::wait::LIMIT;
use anyhow::{Context as _, Result, ensure};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;
use core::time::Duration;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use uverbs::wr::ImmData;
use uverbs::{Buf, Exposed, Pool};
use uverbs::{Driver, ProtectionDomain, Rc, WcStatus};
use uverbs::{Private, attr::AccessFlags};
use uverbs_aio::{Dispatcher, DispatcherThread, Error, Qp, RdmaStream, Srq};
use uverbs_cm::Id;

/// Bytes of a buffer.
const SIZE: u32 = 4096;
/// Buffers of a pool.
const BUFS: u32 = 64;
/// Work requests of a queue.
const DEPTH: u32 = 8;

/// A device with a dispatcher.
struct Side<D: Driver> {
    /// Stops before the dispatcher is dropped.
    _driver: DispatcherThread,
    dispatcher: Dispatcher<D>,
    pd: ProtectionDomain<D>,
    /// For sends.
    pool: Pool<Private, D>,
    /// For receives.
    incoming: Pool<Private, D>,
}

impl<D: Driver> Side<D> {
    fn new(lab: &Lab<D>, end: End) -> Result<Self> {
        let context = lab.end(end);
        // Under emulation, a thread that polls takes the time of the device.
        let dispatcher = Dispatcher::builder(context).cqe(256).spin(Duration::ZERO).build()?;
        let pd = context.alloc_pd()?;
        Ok(Self {
            _driver: dispatcher.spawn()?,
            pool: pd.pool(BUFS, SIZE)?,
            incoming: pd.pool(BUFS, SIZE)?,
            dispatcher,
            pd,
        })
    }

    fn filled(&self, data: &[u8]) -> Result<Buf<Private, D>> {
        let mut buf = self.pool.get().context("a free buffer")?;
        buf.fill(data)?;
        Ok(buf)
    }

    fn qp(&self) -> Result<Qp<Rc, D>> {
        Ok(self.dispatcher.qp(&self.pd).depth(DEPTH, DEPTH).pool(&self.incoming).create()?)
    }

    /// Memory for the peer.
    fn exposed(&self, access: AccessFlags) -> Result<Buf<Exposed, D>> {
        self.pd.pool_with(1, SIZE).exposed(access).build()?.get().context("the only buffer")
    }

    /// Waits for a future, for a limited time.
    fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        let mut future = core::pin::pin!(future);
        let mut sleep = core::pin::pin!(self.dispatcher.sleep(LIMIT));
        self.dispatcher.block_on(poll_fn(|cx| {
            if let Poll::Ready(result) = future.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            sleep.as_mut().poll(cx).map(|()| Err(anyhow::anyhow!("not ready within {LIMIT:?}")))
        }))
    }

    /// All buffers are back.
    fn no_leak(&self, what: &str) -> Outcome {
        let lost = [&self.pool, &self.incoming].map(|pool| BUFS as usize - pool.available());
        ensure!(
            lost == [0, 0],
            "{what}: {} buffers of sends and {} of receives are missing",
            lost[0],
            lost[1]
        );
        Ok(())
    }
}

/// Both ends.
struct Sides<D: Driver> {
    a: Side<D>,
    b: Side<D>,
}

/// What keeps a connection, on iWARP.
type Link = Option<[Id; 2]>;

impl<D: Driver> Sides<D> {
    fn new(lab: &Lab<D>) -> Result<Self> {
        Ok(Self { a: Side::new(lab, End::A)?, b: Side::new(lab, End::B)? })
    }
}

/// Whether the devices are iWARP: without immediate data and atomics, and with connections of the connection manager only.
fn is_iwarp<D: Driver>(lab: &Lab<D>) -> bool {
    lab.bed.env().is_some_and(|env| env.siw)
}

/// Whether a message without a receive ends the connection, as on iWARP: the programs of some tests send faster than the peer
/// receives.
fn has_no_retry<D: Driver>(lab: &Lab<D>) -> bool {
    let no_retry = is_iwarp(lab);
    if no_retry {
        lab.note("iWARP does not repeat a message that finds no receive");
    }
    no_retry
}

/// Connects two QPs.
fn connect<D: Driver>(lab: &Lab<D>, a: &Qp<Rc, D>, b: &Qp<Rc, D>) -> Result<Link> {
    if let Some(env) = lab.bed.env().filter(|env| env.siw) {
        let link = crate::iwarp::connect(env, a.control(), b.control())?;
        a.post_receives();
        b.post_receives();
        return Ok(Some(link));
    }
    let attr = lab.connect_attr();
    a.init(&attr)?;
    b.init(&attr)?;
    let (here, there) = (a.endpoint(0x11, &attr)?, b.endpoint(0x22, &attr)?);
    a.connect(&here, &there, &attr)?;
    b.connect(&there, &here, &attr)?;
    Ok(None)
}

/// Two QPs, and what keeps them connected.
type Pair<D> = (Qp<Rc, D>, Qp<Rc, D>, Link);

/// Two connected QPs.
fn pair<D: Driver>(lab: &Lab<D>, sides: &Sides<D>) -> Result<Pair<D>> {
    let (a, b) = (sides.a.qp()?, sides.b.qp()?);
    let link = connect(lab, &a, &b)?;
    Ok((a, b, link))
}

type Task<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs tasks until all have ended; the first error.
async fn join(mut tasks: Vec<Task<'_>>) -> Result<()> {
    poll_fn(|cx| {
        let mut i = 0;
        while let Some(task) = tasks.get_mut(i) {
            match task.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => drop(tasks.remove(i)),
                Poll::Ready(error) => return Poll::Ready(error),
                Poll::Pending => i += 1,
            }
        }
        if tasks.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

fn operations<D: Driver>(lab: &Lab<D>) -> Outcome {
    let sides = Sides::new(lab)?;
    let Sides { a, b } = &sides;
    let (qp, peer, link) = pair(lab, &sides)?;
    let mut access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    if !is_iwarp(lab) {
        access |= AccessFlags::REMOTE_ATOMIC;
    }
    let table = b.exposed(access)?;
    let at = table.remote_region();
    a.run(async {
        let buf = qp.send(a.filled(b"hello")?).await?;
        ensure!(*buf == *b"hello" && *peer.recv().await? == *b"hello");
        qp.send_inline(b"inline").await?;
        ensure!(*peer.recv().await? == *b"inline");
        let buf = qp.write(a.filled(b"stored")?, &at).await?;
        let buf = qp.read(buf, &at).await?;
        ensure!(*buf == *b"stored");
        qp.write_inline(&5_u64.to_ne_bytes(), &at).await?;
        let mut reads = qp.read_batch();
        for _ in 0..3 * DEPTH {
            reads.read(a.filled(&[0; 8])?, &at);
        }
        let words = reads.await?;
        ensure!(words.len() as u32 == 3 * DEPTH && words.iter().all(|word| **word == 5_u64.to_ne_bytes()));
        drop((words, buf));
        let mut batch = qp.batch();
        for i in 0..3 * DEPTH {
            batch.write(a.filled(&i.to_ne_bytes())?, &at.slice(64 + u64::from(i) * 4..4096)?);
        }
        batch.await?;
        let mut bytes = [0; 12 * DEPTH as usize];
        table.read_at(64, &mut bytes)?;
        ensure!(bytes.chunks(4).map(|n| n.to_vec()).eq((0..3 * DEPTH).map(|i| i.to_ne_bytes().to_vec())));
        if is_iwarp(lab) {
            return Ok(());
        }
        qp.send_imm(a.filled(b"imm")?, ImmData::new(7)).await?;
        ensure!(peer.recv().await?.imm() == Some(ImmData::new(7)));
        qp.write_imm(a.filled(b"with")?, &at, ImmData::new(8)).solicited().await?;
        let message = peer.recv().await?;
        ensure!(message.imm() == Some(ImmData::new(8)) && message.is_empty());
        qp.write_inline(&5_u64.to_ne_bytes(), &at).await?;
        let old = qp.fetch_add(a.filled(&[0; 8])?, &at, 10).await?;
        ensure!(*old == 5_u64.to_ne_bytes());
        let old = qp.compare_swap(old, &at, 15, 99).await?;
        ensure!(*old == 15_u64.to_ne_bytes());
        ensure!(*qp.read(old, &at).fenced().await? == 99_u64.to_ne_bytes());
        Ok(())
    })?;
    a.run(async { Ok(qp.shutdown().await?) })?;
    b.run(async { Ok(peer.shutdown().await?) })?;
    a.no_leak("A")?;
    b.no_leak("B")?;
    drop(link);
    Ok(())
}

/// Requests and answers of several tasks, with more operations than the queue has entries.
fn requests_and_answers<D: Driver>(lab: &Lab<D>) -> Outcome {
    const N: u32 = 200;
    if has_no_retry(lab) {
        return Ok(());
    }
    let sides = Sides::new(lab)?;
    let Sides { a, b } = &sides;
    let (qp, peer, _link) = pair(lab, &sides)?;
    let echo = async {
        for _ in 0..N {
            let message = peer.recv().await?;
            drop(peer.send(message.into_buf()).await?);
        }
        Ok(())
    };
    let ask = async |first: u32| -> Result<()> {
        for i in (first..N).step_by(12) {
            drop(qp.send(a.filled(&i.to_ne_bytes())?).await?);
        }
        Ok(())
    };
    let check = async {
        let mut seen = vec![false; N as usize];
        for _ in 0..N {
            let message = qp.recv().await?;
            let i = u32::from_ne_bytes(message[..].try_into()?);
            ensure!(!core::mem::replace(&mut seen[i as usize], true), "{i} twice");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| b.run(echo));
        let mut tasks: Vec<Task<'_>> = vec![Box::pin(check)];
        tasks.extend((0..12).map(|first| Box::pin(ask(first)) as Task<'_>));
        a.run(join(tasks))?;
        echo.join().map_err(|_| anyhow::anyhow!("the other end panicked"))?
    })?;
    a.run(async { Ok(qp.abort().await?) })?;
    b.run(async { Ok(peer.abort().await?) })?;
    a.no_leak("A")?;
    b.no_leak("B")
}

/// Dispatchers that sleep are woken by completions, by deadlines and by each other's messages.
fn sleeps_and_deadlines<D: Driver>(lab: &Lab<D>) -> Outcome {
    let sides = Sides::new(lab)?;
    let Sides { a, b } = &sides;
    let (qp, peer, _link) = pair(lab, &sides)?;
    let limit = Duration::from_millis(30);
    for i in 0..5_u8 {
        let begin = Instant::now();
        let waited = a.dispatcher.block_on(a.dispatcher.timeout(limit, qp.recv()));
        ensure!(matches!(waited, Err(Error::TimedOut)) && begin.elapsed() >= limit, "{waited:?}");
        std::thread::scope(|scope| {
            // The receiver sleeps when the message arrives.
            let receiver = scope.spawn(|| a.run(async { Ok(qp.recv().await?.to_vec()) }));
            b.run(async {
                b.dispatcher.sleep(limit).await;
                drop(peer.send(b.filled(&[i])?).await?);
                Ok(())
            })?;
            let message = receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
            ensure!(message == [i], "{message:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A pool with as many buffers as the queue has receives, which the program keeps for a time.
fn receives_from_a_small_pool<D: Driver>(lab: &Lab<D>) -> Outcome {
    if has_no_retry(lab) {
        return Ok(());
    }
    let sides = Sides::new(lab)?;
    let Sides { a, b } = &sides;
    let pool = b.pd.pool(4, SIZE)?;
    let qp = a.qp()?;
    let peer = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&pool).create()?;
    let _link = connect(lab, &qp, &peer)?;
    a.run(async {
        for round in 0..5_u8 {
            let mut kept = Vec::new();
            for i in 0..4 {
                drop(qp.send(a.filled(&[round, i])?).await?);
                kept.push(peer.recv().await?);
            }
            ensure!(kept.iter().enumerate().all(|(i, message)| **message == [round, i as u8]));
            ensure!(pool.available() == 0, "the program has all");
        }
        Ok(())
    })
}

/// Several clients of a shared queue, which ends with receives posted; and QPs that are dropped without an end.
fn a_shared_receive_queue<D: Driver>(lab: &Lab<D>) -> Outcome {
    let sides = Sides::new(lab)?;
    let Sides { a, b } = &sides;
    let table = b.exposed(AccessFlags::REMOTE_READ)?;
    let srq: Srq<D> = b.dispatcher.srq(&b.pd, &b.incoming, 16)?;
    let client = || -> Result<_> {
        let here = b.dispatcher.qp(&b.pd).depth(4, 0).srq(&srq).create()?;
        let there = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create()?;
        let link = connect(lab, &there, &here)?;
        Ok((here, there, link))
    };
    let clients = (0..3).map(|_| client()).collect::<Result<Vec<_>>>()?;
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (i, (here, there, _)) in clients.iter().enumerate() {
        tasks.push(Box::pin(async move {
            for _ in 0..20 {
                let message = here.recv().await?;
                ensure!(message[0] == i as u8, "the message of another client");
                drop(here.send(message.into_buf()).await?);
            }
            Ok(())
        }));
        tasks.push(Box::pin(async move {
            for j in 0..20 {
                drop(there.send(a.filled(&[i as u8, j])?).await?);
                ensure!(*there.recv().await? == [i as u8, j]);
            }
            Ok(())
        }));
    }
    a.run(join(tasks))?;
    let begin = Instant::now();
    // Of one the messages were not taken; one is dropped without an end.
    let mut clients = clients.into_iter();
    let (first, second, third) = (clients.next(), clients.next(), clients.next());
    let (first, second) = (first.context("a client")?, second.context("a client")?);
    a.run(async {
        for i in 0..3 {
            drop(first.1.send(a.filled(&[i])?).await?);
        }
        // A send of iWARP is complete before its message has arrived; the response to a read comes after that.
        drop(first.1.read(a.filled(&[0])?, &table.remote_region()).await?);
        Ok(())
    })?;
    b.run(join(vec![
        Box::pin(async { Ok(first.0.abort().await?) }),
        Box::pin(async { Ok(second.0.shutdown().await?) }),
    ]))?;
    ensure!(begin.elapsed() < Duration::from_secs(20), "the end took {:?}", begin.elapsed());
    b.run(async {
        for i in 0..3 {
            ensure!(*first.0.recv().await? == [i], "a message that had arrived");
        }
        ensure!(matches!(first.0.recv().await, Err(Error::Closed)));
        Ok(())
    })?;
    drop(third);
    // Others still work.
    let (here, there, link) = client()?;
    a.run(async {
        drop(there.send(a.filled(b"later")?).await?);
        ensure!(*here.recv().await? == *b"later");
        Ok(())
    })?;
    drop((here, there, link, first, second, srq));
    // The QPs are destroyed when the device takes no more receives, and the queue with the last of them.
    crate::wait::until(
        "all buffers come back",
        LIMIT,
        || Ok(b.no_leak("B").is_ok() && a.no_leak("A").is_ok()),
    )
}

/// Writes and reads at once, until both have ended.
async fn duplex<D: Driver>(stream: RdmaStream<D>, data: &[u8]) -> Result<Vec<u8>> {
    use futures_io::{AsyncRead, AsyncWrite};
    let stream = core::cell::RefCell::new(stream);
    let mut all = Vec::new();
    let write = async {
        let mut rest = data;
        while !rest.is_empty() {
            let n = poll_fn(|cx| Pin::new(&mut *stream.borrow_mut()).poll_write(cx, rest)).await?;
            rest = &rest[n..];
        }
        Ok(poll_fn(|cx| Pin::new(&mut *stream.borrow_mut()).poll_close(cx)).await?)
    };
    let read = async {
        let mut buf = [0; 3000];
        loop {
            match poll_fn(|cx| Pin::new(&mut *stream.borrow_mut()).poll_read(cx, &mut buf)).await? {
                0 => return Ok(()),
                n => all.extend_from_slice(&buf[..n]),
            }
        }
    };
    join(vec![Box::pin(write), Box::pin(read)]).await?;
    stream.into_inner().shutdown().await?;
    Ok(all)
}

/// Bytes that show when some are lost or out of order.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Data pass both ways over the streams, whose ends are at these sides.
fn transfer<D: Driver>(a: &Side<D>, b: &Side<D>, streams: [RdmaStream<D>; 2]) -> Outcome {
    let (there, back) = (pattern(200_000), pattern(100_000));
    let [near, far] = streams;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| b.run(duplex(far, &back)));
        let received = a.run(duplex(near, &there));
        let arrived = other.join().map_err(|_| anyhow::anyhow!("the other end panicked"))?;
        ensure!(received? == back && arrived? == there, "other data");
        Ok(())
    })
}

fn streams_by_exchange<D: Driver>(lab: &Lab<D>) -> Outcome {
    if is_iwarp(lab) {
        // Only the connection manager connects them.
        return Ok(());
    }
    let sides = Sides::new(lab)?;
    let Sides { a, b } = &sides;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let attr = lab.connect_attr();
    for (window, message) in [(16, 16 << 10), (2, 1000)] {
        let [one, two] = [a, b]
            .map(|side| RdmaStream::builder(&side.dispatcher, &side.pd).window(window).message_size(message));
        let (mut first, mut second) = (None, None);
        a.run(join(vec![
            Box::pin(async {
                first = Some(one.exchange(&near, &attr).await?);
                Ok(())
            }),
            Box::pin(async {
                second = Some(two.exchange(&far, &attr).await?);
                Ok(())
            }),
        ]))?;
        transfer(a, b, [first.context("a stream")?, second.context("a stream")?])?;
    }
    Ok(())
}

/// Both ends are on one device: the route to an address of this host goes by the device that has it.
fn streams_by_the_connection_manager<D: Driver>(lab: &Lab<D>) -> Outcome {
    use uverbs_aio::Listener;
    use uverbs_cm::EventChannel;
    let Some(env) = lab.bed.env().filter(|env| !env.infiniband && env.ns[0].is_empty()) else {
        lab.note("no IP network that both ends share");
        return Ok(());
    };
    let (a, b) = (Side::new(lab, End::A)?, Side::new(lab, End::A)?);
    let manager = EventChannel::open()?;
    let listener =
        Listener::bind(&a.dispatcher, &manager, (env.ip[0].parse::<core::net::IpAddr>()?, 0).into())?;
    let server = listener.local_addr()?;
    let (mut first, mut second) = (None, None);
    a.run(join(vec![
        Box::pin(async {
            first = Some(RdmaStream::builder(&a.dispatcher, &a.pd).accept(&listener).await?);
            Ok(())
        }),
        Box::pin(async {
            second = Some(RdmaStream::builder(&b.dispatcher, &b.pd).connect(&manager, server).await?);
            Ok(())
        }),
    ]))?;
    transfer(&a, &b, [first.context("a stream")?, second.context("a stream")?])
}

/// The peer's process is killed while operations are in flight.
fn a_killed_peer<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some(env) = lab.bed.env().filter(|env| !env.siw) else {
        lab.note("the peer's process connects without the connection manager, which iWARP needs, and opens a kernel device");
        return Ok(());
    };
    let a = Side::new(lab, End::A)?;
    let qp = a.qp()?;
    let mut peer = crate::roles::PeerProcess::start(env, End::B)?;
    let mut attr = lab.connect_attr();
    // rxe repeats a request without end if `retry_cnt` is 7, as `rxe_completer()` does.
    (attr.timeout, attr.retry_cnt) = (14, 2);
    qp.init(&attr)?;
    let here = qp.endpoint(0x31, &attr)?;
    qp.connect(&here, &peer.endpoint, &attr)?;
    peer.connect(&here)?;
    a.run(async {
        for i in 0..5 {
            drop(qp.send(a.filled(&[i])?).await?);
        }
        Ok(())
    })?;
    let recv = qp.recv();
    peer.kill()?;
    a.run(async {
        let mut statuses = Vec::new();
        for i in 0..3 {
            let failed = qp.send(a.filled(&[i])?).await.err().context("a killed peer has answered")?;
            ensure!(failed.returned.is_some(), "the buffer of {failed}");
            statuses.push(match failed.error {
                Error::Completion { status, .. } => status,
                // After the first error the QP is in ERR.
                Error::Post(_) => WcStatus::WR_FLUSH_ERR,
                error => return Err(error.into()),
            });
        }
        ensure!(statuses[0] == WcStatus::RETRY_EXC_ERR, "{statuses:?}");
        let error = recv.await.err().context("a killed peer has sent")?;
        ensure!(matches!(error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{error}");
        Ok(qp.shutdown().await?)
    })?;
    a.no_leak("A")
}

crate::tests!(
    operations,
    requests_and_answers,
    sleeps_and_deadlines,
    receives_from_a_small_pool,
    a_shared_receive_queue,
    streams_by_exchange,
    streams_by_the_connection_manager,
    a_killed_peer,
);
