// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server and the client as futures, for tokio: the same protocol, so either side may be the synchronous one.
//!
//! Each client is a task, which receives a request, executes it and sends the answer. Its receives are those of the shared
//! queue, which [`uverbs_aio`] refills. Clients connect by the RDMA connection manager, or by an exchange of endpoints over TCP.

use super::bench::{Figures, KEYS, Kind, Numbers, Row, check_sizes, histogram, key, value};
use super::client::{Ask, Outcome, QUIET, Value};
use super::proto::{Answer, HEADER, MAX_KEY, MAX_SMALL, MESSAGE, Op, Request, Status, VERSION, Welcome};
use super::server::{Config, Listen, Report, send_depth, slots, welcome};
use super::session::{Broken, Session, Shop};
use super::store::Store;
use crate::link::{self, LIMIT, Path, Target};
use crate::nic::Nic;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use core::net::SocketAddr;
use core::pin::pin;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use uverbs::attr::{AccessFlags, QpCap, SendOpsFlags};
use uverbs::connect::ENDPOINT_LEN;
use uverbs::owned::Pool;
use uverbs::{Context, Driver, Endpoint, ImmData, ProtectionDomain, Rc, RemoteRegion, WithDeadline};
use uverbs_aio::{Dispatcher, Listener, Message, Qp, Request as ConnectRequest, Srq};

/// The time within which the event of a client that disconnects comes after the flush of its QP.
const GONE_LIMIT: Duration = Duration::from_secs(2);
/// How long a client waits for an outcome after the server has gone.
const LAST: Duration = Duration::from_millis(100);

/// What the tasks of a server share.
struct Shelf<D: Driver> {
    dispatcher: Dispatcher<D>,
    srq: Srq<D>,
    pd: ProtectionDomain<D>,
    answers: Pool<D>,
    shop: Mutex<Shop<D>>,
    config: Config,
}

/// Whether the device has immediate data: a QP that needs them can be created.
fn has_immediate<D: Driver>(context: &Context<D>, pd: &ProtectionDomain<D>) -> uverbs::Result<bool> {
    let cq = context.create_cq(2, None)?;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let ops = SendOpsFlags::RDMA_WRITE_WITH_IMM;
    match pd.qp::<Rc>().cq(&cq).cap(cap).send_ops(ops).create() {
        Ok(_) => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A client that wants to connect.
enum Arrival {
    Tcp(TcpStream),
    Cm(ConnectRequest),
}

/// Where clients arrive.
enum Door<D: Driver> {
    Tcp(TcpListener),
    Cm(Listener<D>),
}

impl<D: Driver> Door<D> {
    async fn open(nic: &Nic, dispatcher: &Dispatcher<D>, listen: Listen) -> Result<(Self, SocketAddr)> {
        match listen {
            Listen::Tcp(at) => {
                let listener =
                    TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}"))?;
                let address = listener.local_addr()?;
                Ok((Self::Tcp(listener), address))
            }
            Listen::Cm(at) => {
                let listener = Listener::bind(dispatcher, &nic.connection_manager()?, at)?;
                let address = listener.local_addr()?;
                Ok((Self::Cm(listener), address))
            }
        }
    }

    /// The next client; `None` after one that could not be accepted.
    async fn accept(&self) -> Result<Option<Arrival>> {
        let error: anyhow::Error = match self {
            Self::Tcp(listener) => match listener.accept().await {
                Ok((stream, _)) => return Ok(Some(Arrival::Tcp(stream))),
                Err(error) => error.into(),
            },
            Self::Cm(listener) => match listener.accept().await {
                Ok(request) => return Ok(Some(Arrival::Cm(request))),
                Err(uverbs_aio::Error::Cm(error)) if !link::is_lost(&error) => error.into(),
                Err(error) => return Err(error.into()),
            },
        };
        // It has gone again, or the process has too many files for a moment.
        tokio::time::sleep(link::PAUSE).await;
        eprintln!("kv: a client was not accepted: {error}");
        Ok(None)
    }
}

/// What lives as long as a connection.
#[derive(Debug)]
enum Tie {
    Tcp(TcpStream),
    Cm(uverbs_aio::Link),
}

impl Tie {
    /// Waits until the peer has gone.
    async fn gone<D: Driver>(&mut self, dispatcher: &Dispatcher<D>) {
        match self {
            // The peer sends nothing; a byte that it does send ends the connection, too.
            Self::Tcp(stream) => _ = stream.read(&mut [0]).await,
            Self::Cm(link) => _ = link.disconnected(dispatcher).await,
        }
    }
}

/// A server that listens.
pub struct Server<D: Driver> {
    shelf: Arc<Shelf<D>>,
    door: Door<D>,
    address: SocketAddr,
    receives: Pool<D>,
    /// Buffers of receives and answers.
    totals: usize,
}

impl<D: Driver> core::fmt::Debug for Server<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<D: Driver> Server<D> {
    /// Creates the queues and listens.
    ///
    /// # Errors
    /// The device can't be used, or there is too little memory; the address is in use.
    pub async fn open(nic: &Nic, listen: Listen, config: Config) -> Result<Self> {
        let context = nic.open::<D>()?;
        let pd = context.alloc_pd()?;
        let receive_count = (config.clients * 2 * config.credits).min(context.query_device()?.max_srq_wr);
        let sends = config.clients * send_depth(&config);
        let dispatcher = Dispatcher::builder(&context).cqe(receive_count + sends).build()?;
        let (door, address) = Door::open(nic, &dispatcher, listen).await?;
        // As many messages may wait for their tasks as there are receives.
        let receives = pd.pool(2 * receive_count, MESSAGE as u32).build()?;
        let answers = pd.pool(sends, MESSAGE as u32).build()?;
        let totals = receives.available() + answers.available();
        let srq = dispatcher.srq(&pd, &receives, receive_count)?;
        let immediate = config.immediate && has_immediate(&context, &pd)?;
        let welcome = Welcome { immediate, ..welcome(&config)? };
        let store = Store::new(&pd, config.keys as usize, config.values, config.max_value)?;
        let shop = Mutex::new(Shop { store, scratch: Vec::new(), welcome, requests: 0, malformed: 0 });
        let shelf = Arc::new(Shelf { dispatcher, srq, pd, answers, shop, config });
        Ok(Self { shelf, door, address, receives, totals })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready, and then disconnects all clients.
    ///
    /// # Errors
    /// The device or the listener fails.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<Report> {
        let Self { shelf, door, receives, totals, .. } = self;
        let driving = tokio::spawn(shelf.dispatcher.clone().drive());
        let (stopped, stopping) = watch::channel(());
        let mut report = Report::default();
        let mut tasks = JoinSet::new();
        let mut stop = core::pin::pin!(stop);
        let ended = loop {
            tokio::select! {
                () = &mut stop => break Ok(()),
                accepted = door.accept() => match accepted {
                    // Dropping it refuses the client.
                    Ok(Some(arrival)) if tasks.len() < shelf.config.clients as usize => {
                        tasks.spawn(attend(shelf.clone(), arrival, stopping.clone()));
                    }
                    Ok(_) => {}
                    Err(error) => break Err(error),
                },
                Some(task) = tasks.join_next() => count(&mut report, task?),
            }
        };
        drop((stopped, stopping, door));
        while let Some(task) = tasks.join_next().await {
            count(&mut report, task?);
        }
        driving.abort();
        let _ = driving.await;
        let Shelf { dispatcher, srq, shop, answers, .. } =
            Arc::into_inner(shelf).context("a task of the server still runs")?;
        drop((srq, dispatcher));
        let mut shop = shop.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.lost = totals - receives.available() - answers.available() + shop.store.clear();
        (report.requests, report.malformed) = (shop.requests, shop.malformed);
        ended.map(|()| report)
    }
}

/// Counts a client that has gone.
fn count(report: &mut Report, (accepted, served): (bool, Result<()>)) {
    report.clients += u64::from(accepted);
    report.broken += u64::from(accepted && served.is_err());
    if let (false, Err(error)) = (accepted, served) {
        eprintln!("kv: a client was not accepted: {error:#}");
    }
}

/// The task of a client. Returns whether it was accepted.
async fn attend<D: Driver>(
    shelf: Arc<Shelf<D>>,
    arrival: Arrival,
    mut stopping: watch::Receiver<()>,
) -> (bool, Result<()>) {
    let greeting = async {
        match arrival {
            Arrival::Tcp(stream) => greet(&shelf, stream).await,
            Arrival::Cm(request) => greet_cm(&shelf, request).await,
        }
    };
    let greeted = tokio::select! {
        greeted = greeting => greeted,
        _ = stopping.changed() => Err(anyhow!("the server ends")),
    };
    let (qp, session, mut tie) = match greeted {
        Ok(client) => client,
        Err(error) => return (false, Err(error)),
    };
    let mut served = tokio::select! {
        served = answer(&shelf, &qp, session) => served,
        () = tie.gone(&shelf.dispatcher) => Ok(()),
        _ = stopping.changed() => Ok(()),
    };
    // The end of a connection of iWARP flushes the queues, which may be seen before the event of a client that disconnects.
    if served.as_ref().is_err_and(|error| error.is::<uverbs_aio::Error>())
        && matches!(tie, Tie::Cm(_))
        && tokio::time::timeout(GONE_LIMIT, tie.gone(&shelf.dispatcher)).await.is_ok()
    {
        served = Ok(());
    }
    let aborted = qp.abort().await;
    (true, served.and(aborted.map_err(Into::into)))
}

/// The QP of a client, in RESET, and its session.
fn welcomed<D: Driver>(shelf: &Shelf<D>) -> Result<(Qp<D>, Session<D>)> {
    let depth = send_depth(&shelf.config);
    let qp = shelf.dispatcher.qp(&shelf.pd).depth(depth, 0).inline(super::INLINE).srq(&shelf.srq).create()?;
    Ok((qp, Session::new(slots(&shelf.pd, &shelf.config)?)))
}

/// The rights of clients.
const ACCESS: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);

/// Connects to a client over TCP.
async fn greet<D: Driver>(shelf: &Shelf<D>, mut stream: TcpStream) -> Result<(Qp<D>, Session<D>, Tie)> {
    let attr = link::attr(shelf.config.path, ACCESS);
    let (qp, session) = welcomed(shelf)?;
    qp.init(&attr)?;
    let here = qp.endpoint(qp.qp_num(), &attr)?;
    let (mut theirs, mut ours) = ([0; ENDPOINT_LEN], Vec::new());
    let received = tokio::time::timeout(LIMIT, stream.read_exact(&mut theirs)).await;
    received.context("it did not answer in time")??;
    qp.connect(&here, &Endpoint::receive(&theirs[..])?, &attr)?;
    here.send(&mut ours)?;
    stream.write_all(&ours).await?;
    Ok((qp, session, Tie::Tcp(stream)))
}

/// Connects to a client by the connection manager.
async fn greet_cm<D: Driver>(shelf: &Shelf<D>, request: ConnectRequest) -> Result<(Qp<D>, Session<D>, Tie)> {
    let (qp, session) = welcomed(shelf)?;
    let link = shelf.dispatcher.timeout(LIMIT, request.accept(&qp, &link::param(ACCESS, true))).await?;
    Ok((qp, session, Tie::Cm(link)))
}

/// Answers requests until the connection fails.
async fn answer<D: Driver>(shelf: &Shelf<D>, qp: &Qp<D>, mut session: Session<D>) -> Result<()> {
    loop {
        let message = qp.recv().await?;
        let reply = {
            let mut shop = shelf.shop.lock().unwrap_or_else(PoisonError::into_inner);
            match message.imm() {
                Some(slot) => session.written(&mut shop, slot.get()),
                None => session.message(&mut shop, &message),
            }
        };
        drop(message);
        let reply = reply.map_err(|Broken| anyhow!("the client broke the protocol"))?;
        match reply.bytes() {
            [] => {}
            bytes if bytes.len() <= super::INLINE as usize => qp.send_inline(bytes).await?,
            bytes => {
                let mut buf = shelf.answers.get().context("the pool has enough buffers")?;
                buf.fill(bytes)?;
                drop(qp.send(buf).await?);
            }
        }
    }
}

/// Connects a QP to a server over TCP.
async fn exchange<D: Driver>(qp: &Qp<D>, server: SocketAddr, path: Path) -> Result<TcpStream> {
    let attr = link::attr(path, AccessFlags::empty());
    qp.init(&attr)?;
    let here = qp.endpoint(qp.qp_num(), &attr)?;
    let stream = TcpStream::connect(server).await.with_context(|| format!("no server at {server}"))?;
    let stream = stream.into_std()?;
    let (stream, there) = spawn_blocking(move || {
        let mut stream = WithDeadline::new(stream, LIMIT);
        here.exchange(&mut stream).map(|there| (stream.into_inner(), there))
    })
    .await?
    .context("the server did not accept")?;
    qp.connect(&here, &there, &attr)?;
    Ok(TcpStream::from_std(stream)?)
}

/// Runs a request, which does not wait for retries to a server that has ended the connection.
async fn ask_server<D: Driver, R>(
    qp: &Qp<D>,
    tie: &mut Tie,
    request: impl Future<Output = Result<R>>,
) -> Result<R> {
    let (dispatcher, mut request) = (qp.dispatcher(), pin!(request));
    tokio::select! {
        biased;
        result = &mut request => return result,
        () = tie.gone(&dispatcher) => {}
    }
    // What it has sent before may be on its way.
    match tokio::time::timeout(LAST, request).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(error.context("the server has ended the connection")),
        Err(_) => bail!("the server has ended the connection"),
    }
}

/// The next message of the server.
async fn receive<D: Driver>(qp: &Qp<D>) -> Result<Message<D>> {
    Ok(qp.dispatcher().timeout(LIMIT, qp.recv()).await?)
}

/// The queues and the memory of a connection, and what the server said of its own.
#[derive(Debug)]
struct Line<D: Driver> {
    qp: Qp<D>,
    messages: Pool<D>,
    values: Pool<D>,
    welcome: Welcome,
    immediate: bool,
}

impl<D: Driver> Line<D> {
    /// Makes a request and waits for the outcome.
    async fn request(&self, request: &Request<'_>) -> Result<Outcome<D>> {
        if request.value.len() <= MAX_SMALL {
            self.send(request).await?;
        } else {
            self.write(request).await?;
        }
        let message = tokio::select! {
            biased;
            message = receive(&self.qp) => message?,
            error = self.probe() => return Err(error),
        };
        let answer = Answer::decode(&message).context("the server sent an invalid answer")?;
        ensure!(answer.id == request.id, "the server answered a request that was not made");
        Ok(match answer.status {
            Status::Ok if answer.value.is_empty() => Outcome::Done,
            Status::Ok => Outcome::Value(Value::Small(answer.value.to_vec())),
            Status::NotFound => Outcome::NotFound,
            Status::Large => {
                let (region, lease) = (RemoteRegion::decode(answer.value)?, answer.arg);
                let mut buf = self.values.get().context("the value of the last request is still in use")?;
                buf.set_len(usize::try_from(region.len())?)?;
                let buf = self.qp.read(buf, &region).await?;
                self.send(&Request { op: Op::Release, id: request.id, arg: lease, key: &[], value: &[] })
                    .await?;
                Outcome::Value(Value::Large(buf))
            }
            status => Outcome::Refused(status),
        })
    }

    /// Asks the server's device for an acknowledgement now and then, until it gives none: see [`QUIET`].
    async fn probe(&self) -> anyhow::Error {
        let nothing = match self.welcome.region.slice(0..0) {
            Ok(nothing) => nothing,
            Err(error) => return error.into(),
        };
        loop {
            self.qp.dispatcher().sleep(QUIET).await;
            if let Err(failed) = self.qp.write_inline(&[], &nothing).await {
                return failed.into();
            }
        }
    }

    async fn send(&self, request: &Request<'_>) -> Result<()> {
        let mut buf = self.messages.get().context("the pool has enough buffers")?;
        buf.set_len(request.len())?;
        request.encode(&mut buf);
        if buf.len() <= super::INLINE as usize {
            self.qp.send_inline(&buf).await?;
        } else {
            drop(self.qp.send(buf).await?);
        }
        Ok(())
    }

    /// Writes a request with a large value to the first slot.
    async fn write(&self, request: &Request<'_>) -> Result<()> {
        let mut buf = self.values.get().context("the value of the last request is still in use")?;
        buf.set_len(request.len())?;
        request.encode(&mut buf);
        let to = self.welcome.region.slice(0..u64::from(self.welcome.slot_size))?;
        if self.immediate {
            drop(self.qp.write_imm(buf, &to, ImmData::new(0)).await?);
            return Ok(());
        }
        drop(self.qp.write(buf, &to).await?);
        self.send(&Request { op: Op::PutSlot, arg: 0, key: &[], value: &[], ..*request }).await
    }
}

/// A connection to a server. It has one request outstanding; a program may open any number of connections.
#[derive(Debug)]
pub struct Client<D: Driver> {
    line: Line<D>,
    next_id: u32,
    driving: JoinHandle<uverbs_aio::Result<()>>,
    tie: Tie,
}

impl<D: Driver> Client<D> {
    /// Connects to a server.
    ///
    /// # Errors
    /// The device can't be used, or the server does not answer or refuses.
    pub async fn connect(nic: &Nic, server: &Target, path: Path) -> Result<Self> {
        let context = nic.open::<D>()?;
        let pd = context.alloc_pd()?;
        let dispatcher = Dispatcher::new(&context)?;
        let messages = pd.pool(64, MESSAGE as u32).build()?;
        let qp = dispatcher.qp(&pd).depth(8, 16).inline(super::INLINE).pool(&messages).create()?;
        let driving = tokio::spawn(dispatcher.clone().drive());
        let mut tie = match server {
            Target::Tcp(address) => Tie::Tcp(exchange(&qp, *address, path).await?),
            Target::Cm(address) => {
                let (manager, param) = (nic.connection_manager()?, link::param(AccessFlags::empty(), false));
                let local = link::source(&context, address.is_ipv4());
                let connecting = qp.connect_from(&manager, local, *address, &param);
                let link = dispatcher.timeout(LIMIT, connecting).await?;
                link::check_device(link.id().bound()?.device(), nic.name())?;
                Tie::Cm(link)
            }
        };
        let mut hello = [0; HEADER];
        Request { op: Op::Hello, id: 0, arg: u32::from(VERSION), key: &[], value: &[] }.encode(&mut hello);
        let message = ask_server(&qp, &mut tie, async {
            qp.send_inline(&hello).await?;
            receive(&qp).await
        })
        .await?;
        let welcome = Answer::decode(&message).and_then(|answer| Welcome::decode(answer.value));
        let welcome = welcome.context("the server sent an invalid welcome")?;
        drop(message);
        let values = pd.pool(1, welcome.slot_size).build()?;
        let immediate = welcome.immediate && has_immediate(&context, &pd)?;
        Ok(Self { line: Line { qp, messages, values, welcome, immediate }, next_id: 1, driving, tie })
    }

    /// Bytes of the largest value that the server stores.
    #[must_use]
    pub fn max_value(&self) -> usize {
        self.line.welcome.max_value as usize
    }

    /// Makes a request.
    ///
    /// # Errors
    /// A key or value that is too long; the connection has failed; the server broke the protocol, or did not answer in time.
    pub async fn ask(&mut self, ask: &Ask<'_>) -> Result<Outcome<D>> {
        let (op, key, value) = match *ask {
            Ask::Get(key) => (Op::Get, key, &[][..]),
            Ask::Put(key, value) => (Op::Put, key, value),
            Ask::Delete(key) => (Op::Delete, key, &[][..]),
        };
        ensure!(key.len() <= MAX_KEY && value.len() <= self.max_value(), "a key or value that is too long");
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let request = Request { op, id, arg: 0, key, value };
        let Self { line, tie, .. } = self;
        ask_server(&line.qp, tie, line.request(&request)).await
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn shutdown(self) -> Result<()> {
        self.line.qp.abort().await?;
        Ok(())
    }
}

impl<D: Driver> Drop for Client<D> {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

/// As [`check`](super::bench::check), with futures.
///
/// # Errors
/// The connection fails, or a result differs.
pub async fn check<D: Driver>(client: &mut Client<D>, number: u32, count: u32) -> Result<()> {
    let mut model: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut random = Numbers::new(u64::from(number) + 1);
    for n in 0..KEYS {
        client.ask(&Ask::Delete(&key(number, n))).await?;
    }
    for step in 0..count {
        let n = random.below(KEYS);
        let key = key(number, n);
        let is_right = match random.below(4) {
            0 | 1 => {
                let most = if random.below(2) == 0 { 600 } else { client.max_value() as u32 + 1 };
                let value = value(number + step, random.below(most) as usize);
                let outcome = client.ask(&Ask::Put(&key, &value)).await?;
                model.insert(n, value);
                matches!(outcome, Outcome::Done)
            }
            2 => match client.ask(&Ask::Get(&key)).await? {
                Outcome::Value(got) => model.get(&n).is_some_and(|value| **value == *got),
                Outcome::Done => model.get(&n).is_some_and(Vec::is_empty),
                Outcome::NotFound => !model.contains_key(&n),
                Outcome::Refused(status) => bail!("get: {status:?}"),
            },
            _ => match client.ask(&Ask::Delete(&key)).await? {
                Outcome::Done => model.remove(&n).is_some(),
                Outcome::NotFound => !model.contains_key(&n),
                other => bail!("delete: {other:?}"),
            },
        };
        ensure!(is_right, "client {number}, request {step}, key {n}: another result");
    }
    for n in 0..KEYS {
        client.ask(&Ask::Delete(&key(number, n))).await?;
    }
    Ok(())
}

/// As [`measure`](super::bench::measure), with a task for each client, which has one request outstanding.
///
/// # Errors
/// A connection fails, or the server refuses a request.
pub async fn measure<D: Driver>(
    device: &str,
    mut clients: Vec<Client<D>>,
    sizes: &[usize],
    requests: u32,
) -> Result<Figures> {
    ensure!(requests > 0 && !clients.is_empty(), "nothing to measure");
    check_sizes(sizes, clients.iter().map(Client::max_value))?;
    let (count, immediate) = (clients.len(), clients.iter().all(|client| client.line.immediate));
    let mut rows = Vec::new();
    for &bytes in sizes {
        for kind in [Kind::Put, Kind::Get] {
            let begin = Instant::now();
            let mut tasks = JoinSet::new();
            for (number, client) in (0..).zip(clients.drain(..)) {
                tasks.spawn(run(client, number, kind, bytes, requests));
            }
            let mut all = histogram()?;
            while let Some(task) = tasks.join_next().await {
                let (client, latencies) = task??;
                all.add(latencies)?;
                clients.push(client);
            }
            rows.push(Row::new(kind, bytes, requests as usize * count, begin.elapsed(), &all));
        }
    }
    Ok(Figures { device: device.to_owned(), clients: count, depth: 1, requests, immediate, rows })
}

async fn run<D: Driver>(
    mut client: Client<D>,
    number: u32,
    kind: Kind,
    bytes: usize,
    requests: u32,
) -> Result<(Client<D>, hdrhistogram::Histogram<u64>)> {
    let (mut latencies, value) = (histogram()?, value(bytes as u32, bytes));
    for n in 0..requests {
        let key = key(number, n % KEYS);
        let begin = Instant::now();
        let outcome = match kind {
            Kind::Get => client.ask(&Ask::Get(&key)).await?,
            Kind::Put => client.ask(&Ask::Put(&key, &value)).await?,
        };
        latencies.saturating_record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        match (kind, outcome) {
            (Kind::Get, Outcome::Value(got)) => ensure!(*got == *value, "another value"),
            (Kind::Get, Outcome::Done) => ensure!(bytes == 0, "another value"),
            (Kind::Put, Outcome::Done) => {}
            (_, other) => bail!("{kind:?}: {other:?}"),
        }
    }
    Ok((client, latencies))
}
