// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: one thread executes the requests of all clients, which share a receive queue and a CQ.
//!
//! - The *worker* has the store and the clients. It polls the CQ, and sleeps if there is nothing to do.
//! - The *acceptor* waits for connection requests, and starts a thread for each.
//! - Such a thread creates the QP, does the handshake, which may take as long as the client delays it, and gives the QP to the worker.
//!   Then it waits until the client has gone, and notifies the worker.
//!
//! A client that disconnects, is killed or breaks the protocol ends in the same way: its QP is moved to ERR; the worker polls until the QP
//! takes no more receives of the SRQ (`LAST_WQE_REACHED`); then it destroys the QP. So each receive comes back.

use super::peer::{Peer, RECV};
use super::proto::{HEADER, MAX_KEY, MAX_SLOTS, MAX_VALUE, MESSAGE, Welcome};
use super::session::{Broken, Executor};
use super::store::Store;
use crate::link::{self, Link, Path};
use crate::nic::Nic;
use crate::wait::Waiter;
use anyhow::{Context as _, Result, anyhow, ensure};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::HashMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use uverbs::{Buf, Completed, Cq, Exposed, Pool, Qp, Srq};
use uverbs::{
    Context, Driver, Errno, EventSource, ImmData, ProtectionDomain, Rc, RemoteRegion, Shared, WcOpcode,
};
use uverbs::{
    Exclusive, Private,
    attr::{AccessFlags, EventType, QpCap, SendOpsFlags, SrqAttr, SrqInitAttr},
};
use uverbs_cm::{Listener, Request};

/// How long the worker sleeps at most.
const NAP: Duration = Duration::from_millis(500);
/// How long it sleeps at most while clients are being disconnected.
const SHORT: Duration = Duration::from_millis(20);
/// How often the acceptor checks whether the server ends.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// The time limit for `LAST_WQE_REACHED`, which old kernels do not raise for rxe.
const LAST_WQE_LIMIT: Duration = Duration::from_secs(1);
/// Completions of one poll.
const BATCH: usize = 64;

/// The sizes of a server.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Clients at the same time.
    pub clients: u32,
    /// Requests that a client may have outstanding.
    pub credits: u32,
    /// Slots of a client: large values that it may write at the same time.
    pub slots: u32,
    /// Bytes of the largest value.
    pub max_value: u32,
    /// Large values that the server can store.
    pub values: u32,
    /// Keys that it can store.
    pub keys: u32,
    /// Whether it accepts immediate data, if the device has them.
    pub immediate: bool,
    /// The path of connections over TCP.
    pub path: Path,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clients: 16,
            credits: 32,
            slots: 4,
            max_value: 64 << 10,
            values: 256,
            keys: 1 << 16,
            immediate: true,
            path: Path::default(),
        }
    }
}

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
pub enum Listen {
    /// TCP, for the exchange of endpoints. Port 0 selects a port.
    Tcp(SocketAddr),
    /// The RDMA connection manager. Port 0 selects a port.
    Cm(SocketAddr),
}

/// What a server did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Clients.
    pub clients: u64,
    /// Requests.
    pub requests: u64,
    /// Invalid requests.
    pub malformed: u64,
    /// Clients that were disconnected because they broke the protocol or their connection failed.
    pub broken: u64,
    /// Buffers that had not come back to their pools at the end. Always 0.
    pub lost: usize,
}

/// What the threads of a server share.
#[derive(Debug)]
struct Resources<D: Driver> {
    cq: Cq<Shared, D>,
    srq: Srq<Shared, D>,
    pd: ProtectionDomain<D>,
    context: Context<D>,
    config: Config,
    stop: Arc<AtomicBool>,
    wake: Arc<EventFd>,
}

/// A notice of a client's thread to the worker.
enum Note<D: Driver> {
    Arrived { qp_num: u32, peer: Box<Peer<D>> },
    Gone { qp_num: u32, serial: u64 },
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    worker: JoinHandle<Result<Report>>,
}

/// The listener for connection requests.
enum Acceptor {
    Tcp(TcpListener),
    Cm(Listener),
}

impl Server {
    /// Starts a server on a device.
    ///
    /// # Errors
    /// The address or the device can't be used, or there is too little memory.
    pub fn start<D: Driver>(nic: &Nic, listen: Listen, config: Config) -> Result<Self> {
        let (acceptor, address) = match listen {
            Listen::Tcp(at) => {
                let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                (Acceptor::Tcp(listener), address)
            }
            Listen::Cm(at) => {
                let listener = Listener::bind(&nic.connection_manager()?, at)?;
                let address = listener.local_addr()?;
                (Acceptor::Cm(listener), address)
            }
        };
        let (stop, wake) =
            (Arc::<AtomicBool>::default(), Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK)?));
        let worker = Worker::<D>::new(nic, config, stop.clone(), wake.clone())?;
        let worker = thread::Builder::new().name("kv-worker".into()).spawn(move || worker.serve(acceptor))?;
        Ok(Self { address, stop, wake, worker })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Disconnects all clients and ends.
    ///
    /// # Errors
    /// The reason for which it ended before.
    pub fn shutdown(self) -> Result<Report> {
        self.stop.store(true, Ordering::Relaxed);
        self.wake.write(1)?;
        self.worker.join().map_err(|_| anyhow!("the worker panicked"))?
    }

    /// Whether it still runs; it ends on its own only if its device fails.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.worker.is_finished()
    }
}

/// The sends that a QP of the server may have outstanding: an answer to each request, of which the last ones may be
/// complete but not polled.
pub(super) fn send_depth(config: &Config) -> u32 {
    2 * config.credits + 32
}

/// Bytes from one slot to the next.
fn slot_stride(config: &Config) -> u32 {
    (config.max_value + (HEADER + MAX_KEY) as u32).next_multiple_of(64)
}

/// What the server sends to its clients, without the address of their slots and without immediate data.
pub(super) fn welcome(config: &Config) -> Result<Welcome> {
    ensure!(config.max_value <= MAX_VALUE, "values of {} bytes: the limit is {MAX_VALUE}", config.max_value);
    ensure!(config.slots <= MAX_SLOTS, "{} slots: the limit is {MAX_SLOTS}", config.slots);
    let slot_stride = slot_stride(config);
    Ok(Welcome {
        credits: config.credits,
        max_value: config.max_value,
        slot_size: config.max_value + (HEADER + MAX_KEY) as u32,
        slot_stride,
        slots: config.slots,
        immediate: false,
        region: RemoteRegion::new(0, u64::from(config.slots) * u64::from(slot_stride), 0)?,
    })
}

/// The memory of a client's slots, with a key of its own.
pub(super) fn slots<D: Driver>(pd: &ProtectionDomain<D>, config: &Config) -> Result<Buf<Exposed, D>> {
    let len = config.slots.checked_mul(slot_stride(config)).context("the slots have more than 4 GiB")?;
    let pool = pd.pool_with(1, len).exposed(AccessFlags::REMOTE_WRITE).build()?;
    pool.get().context("a new pool has its buffer")
}

/// The thread that executes the requests.
struct Worker<D: Driver> {
    resources: Arc<Resources<D>>,
    waiter: Waiter<D>,
    peers: HashMap<u32, Peer<D>>,
    /// Completions of QPs whose handshake is not complete.
    early: HashMap<u32, Vec<Completed<D>>>,
    receives: Pool<Private, D>,
    answers: Pool<Private, D>,
    executor: Executor<D>,
    /// Receives that are to be posted again.
    spare: Vec<Buf<Private, D>>,
    report: Report,
    /// Buffers of receives and answers.
    totals: usize,
}

impl<D: Driver> Worker<D> {
    fn new(nic: &Nic, config: Config, stop: Arc<AtomicBool>, wake: Arc<EventFd>) -> Result<Self> {
        let context = nic.open::<D>()?;
        context.set_async_nonblocking(true)?;
        let pd = context.alloc_pd()?;
        // Each client may have its requests and as many releases outstanding.
        let receive_count = config.clients * 2 * config.credits;
        let device = context.query_device()?;
        let receive_count = receive_count.min(device.max_srq_wr);
        let sends = config.clients * send_depth(&config);
        let waiter = Waiter::new(context.create_comp_channel()?)?;
        let cq = context.cq_with(receive_count + sends, Some(waiter.channel()))?;
        let attr = SrqAttr::new(receive_count);
        let srq = pd.srq(&SrqInitAttr::new(attr))?;
        let receives = pd.pool(receive_count, MESSAGE as u32)?;
        let answers = pd.pool(sends, MESSAGE as u32)?;
        let mut welcome = welcome(&config)?;
        let store = Store::new(&pd, config.keys as usize, config.values, config.max_value)?;
        let resources = Resources { cq, srq, pd, context, config, stop, wake };
        welcome.immediate = config.immediate && resources.qp(SendOpsFlags::RDMA_WRITE_WITH_IMM).is_ok();
        let executor = Executor { store, scratch: Vec::new(), welcome, requests: 0, malformed: 0 };
        let totals = receives.available() + answers.available();
        let mut spare = Vec::new();
        while let Some(buf) = receives.try_get() {
            spare.push(buf);
        }
        let mut this = Self {
            resources: Arc::new(resources),
            waiter,
            peers: HashMap::new(),
            early: HashMap::new(),
            receives,
            answers,
            executor,
            spare,
            report: Report::default(),
            totals,
        };
        this.repost()?;
        Ok(this)
    }

    /// Runs until the server is stopped, and all clients and threads have ended.
    fn serve(mut self, acceptor: Acceptor) -> Result<Report> {
        let (notes, inbox) = channel();
        let resources = self.resources.clone();
        let acceptor = thread::Builder::new()
            .name("kv-accept".into())
            .spawn(move || resources.accept_clients(&acceptor, &notes))?;
        let served = self.run(&inbox);
        // If the device has failed, the other threads end, too.
        self.resources.stop.store(true, Ordering::Relaxed);
        drop((self.peers.drain(), inbox));
        let acceptor = acceptor.join().map_err(|_| anyhow!("the acceptor panicked"))?;
        served.and(acceptor)?;
        self.finish()
    }

    /// Destroys the queues, and counts the buffers that came back.
    fn finish(self) -> Result<Report> {
        let Self {
            resources,
            waiter,
            peers,
            early,
            receives,
            answers,
            mut executor,
            spare,
            mut report,
            totals,
        } = self;
        drop((peers, early, spare));
        // The SRQ gives its receives back when it is destroyed.
        drop(Arc::into_inner(resources).context("a thread of the server still runs")?);
        drop(waiter);
        let there = receives.available() + answers.available();
        report.lost = totals - there + executor.store.clear();
        (report.requests, report.malformed) = (executor.requests, executor.malformed);
        Ok(report)
    }

    fn run(&mut self, inbox: &Receiver<Note<D>>) -> Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let open = self.take_notes(inbox);
            let stopping = self.resources.stop.load(Ordering::Relaxed);
            if stopping {
                self.peers.values_mut().for_each(Peer::close);
                if !open && self.peers.is_empty() {
                    return Ok(());
                }
            }
            self.resources.cq.poll_each(BATCH, |done| batch.push(done.complete()))?;
            let is_idle = batch.is_empty();
            for completed in batch.drain(..) {
                self.completed(completed);
            }
            self.repost()?;
            self.flush();
            self.reap(is_idle)?;
            if is_idle {
                let limit =
                    if self.peers.values().any(|p| p.closing.is_some()) || stopping { SHORT } else { NAP };
                let Self { waiter, resources, .. } = self;
                waiter.idle(Some(resources.wake.as_fd()), limit, || resources.cq.req_notify(false))?;
                // Nothing to read is no error: the event only ends the sleep.
                let _ = resources.wake.read();
            } else {
                self.waiter.busy();
            }
        }
    }

    /// Takes clients in, and begins the end of those that have gone. Returns whether more notes may follow.
    fn take_notes(&mut self, inbox: &Receiver<Note<D>>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(Note::Arrived { qp_num, peer }) => {
                    self.report.clients += 1;
                    self.peers.insert(qp_num, *peer);
                    for completed in self.early.remove(&qp_num).unwrap_or_default() {
                        self.completed(completed);
                    }
                }
                Ok(Note::Gone { qp_num, serial }) => {
                    if let Some(peer) = self.peers.get_mut(&qp_num).filter(|p| p.serial == serial) {
                        peer.close();
                    }
                    for completed in self.early.remove(&qp_num).unwrap_or_default() {
                        self.spare.extend(completed.buf());
                    }
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn completed(&mut self, completed: Completed<D>) {
        let wc = completed.wc;
        let Some(peer) = self.peers.get_mut(&wc.qp_num) else {
            self.early.entry(wc.qp_num).or_default().push(completed);
            return;
        };
        let outcome = match wc.status.ok() {
            Err(_) => Err(Broken),
            Ok(()) if wc.wr_id != RECV || peer.closing.is_some() => Ok(()),
            Ok(()) if wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM => {
                // Immediate data are a number of the program, in the byte order that its two ends agree on.
                let slot = wc.imm_data().map_or(u32::MAX, ImmData::get);
                peer.execute(&mut self.executor, &self.answers, |session, executor| {
                    session.written(executor, slot)
                })
            }
            Ok(()) => {
                let Some(buf) = completed.buf() else { return };
                let done = peer.execute(&mut self.executor, &self.answers, |session, executor| {
                    session.message(executor, &buf)
                });
                self.spare.push(buf);
                self.report.broken += u64::from(end(peer, done));
                return;
            }
        };
        self.report.broken += u64::from(end(peer, outcome));
        if wc.wr_id == RECV {
            self.spare.extend(completed.buf());
        }
    }

    /// Posts the receives again that were consumed.
    fn repost(&mut self) -> Result<()> {
        if self.spare.is_empty() {
            return Ok(());
        }
        let mut srq = self.resources.srq.lock().map_err(|e| anyhow!("{e:?}"))?;
        let mut batch = srq.batch();
        for buf in self.spare.drain(..) {
            batch.push(RECV, buf);
        }
        Ok(batch.complete()?)
    }

    /// Sends the answers that found no room before.
    fn flush(&mut self) {
        for peer in self.peers.values_mut().filter(|p| p.closing.is_none()) {
            let flushed = peer.flush(&self.answers);
            self.report.broken += u64::from(end(peer, flushed));
        }
    }

    /// Destroys the QPs of clients that are disconnected, when they take no more receives and the CQ is empty.
    fn reap(&mut self, is_idle: bool) -> Result<()> {
        if self.peers.values().all(|p| p.closing.is_none()) {
            return Ok(());
        }
        loop {
            match self.resources.context.get_async_event() {
                Ok(event) => match (event.event_type, event.source) {
                    (EventType::QP_LAST_WQE_REACHED, EventSource::Qp(qp_num)) => {
                        if let Some(peer) = self.peers.get_mut(&qp_num) {
                            peer.last_wqe = true;
                        }
                    }
                    (EventType::DEVICE_FATAL, _) => return Err(anyhow!("the device was removed")),
                    _ => {}
                },
                Err(error) if error.errno() == Errno::EAGAIN => break,
                Err(error) => return Err(error.into()),
            }
        }
        if is_idle {
            self.peers.retain(|_, peer| {
                peer.closing.is_none_or(|since| !peer.last_wqe && since.elapsed() < LAST_WQE_LIMIT)
            });
        }
        Ok(())
    }
}

/// Disconnects the peer after an error. Returns whether it was connected.
fn end<D: Driver>(peer: &mut Peer<D>, outcome: Result<(), Broken>) -> bool {
    let broken = outcome.is_err() && peer.closing.is_none();
    if broken {
        peer.close();
    }
    broken
}

impl<D: Driver> Resources<D> {
    fn qp(&self, ops: SendOpsFlags) -> uverbs::Result<Qp<Rc, Exclusive, D>> {
        let cap = QpCap::new(send_depth(&self.config), 0).sge(1, 0).inline(super::INLINE);
        self.pd.qp().cq(&self.cq).srq(&self.srq).cap(cap).send_ops(ops).create()
    }

    /// Waits for clients until the server ends, and for the ends of their threads.
    fn accept_clients(self: &Arc<Self>, acceptor: &Acceptor, notes: &Sender<Note<D>>) -> Result<()> {
        let mut threads: Vec<(JoinHandle<()>, InUse)> = Vec::new();
        let mut serial = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(incoming) = acceptor.wait()? else { continue };
            threads.retain(|(thread, _)| !thread.is_finished());
            if threads.len() >= self.config.clients as usize {
                // Dropping it refuses the client.
                continue;
            }
            serial += 1;
            let (resources, notes) = (self.clone(), notes.clone());
            let client = thread::Builder::new().name(format!("kv-client-{serial}"));
            let stream = match &incoming {
                Incoming::Tcp(stream) => stream.try_clone().ok(),
                Incoming::Cm(_) => None,
            };
            let stream = Arc::new(Mutex::new(stream));
            let own = stream.clone();
            let serve = move || {
                resources.serve_client(incoming, serial, &notes);
                *own.lock().unwrap_or_else(PoisonError::into_inner) = None;
            };
            threads.push((client.spawn(serve)?, stream));
        }
        for (thread, stream) in threads {
            // It may wait for an endpoint that the client does not send. If the client has gone, this fails.
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            let _ = stream.map(|stream| stream.shutdown(Shutdown::Both));
            thread.join().map_err(|_| anyhow!("the thread of a client panicked"))?;
        }
        Ok(())
    }

    /// The thread of one client.
    fn serve_client(&self, incoming: Incoming, serial: u64, notes: &Sender<Note<D>>) {
        let qp = match self.qp(SendOpsFlags::empty()) {
            Ok(qp) => qp,
            Err(error) => return eprintln!("kv: no queue pair for a client: {error}"),
        };
        let qp_num = qp.qp_num();
        match self.handshake(qp, incoming, serial, notes) {
            Ok(link) => link.wait_gone(&self.stop),
            Err(error) => eprintln!("kv: a client was not accepted: {error:#}"),
        }
        // If the channel is closed, the worker has ended.
        let _ = notes.send(Note::Gone { qp_num, serial });
        let _ = self.wake.write(1);
    }

    fn handshake(
        &self,
        qp: Qp<Rc, Exclusive, D>,
        incoming: Incoming,
        serial: u64,
        notes: &Sender<Note<D>>,
    ) -> Result<Arc<Link>> {
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let slots = slots(&self.pd, &self.config)?;
        let arrived = |qp: Qp<Rc, Exclusive, D>, link: &Arc<Link>| {
            let qp_num = qp.qp_num();
            let peer = Box::new(Peer::new(qp, link.clone(), serial, slots));
            notes.send(Note::Arrived { qp_num, peer }).map_err(|_| anyhow!("the server ends"))?;
            self.wake.write(1)?;
            Ok(())
        };
        match incoming {
            Incoming::Tcp(stream) => link::accept_tcp(qp, stream, self.config.path, access, arrived),
            Incoming::Cm(request) => {
                link::check_device(request.device(), self.context.name())?;
                link::accept_cm(qp, request, access, arrived)
            }
        }
    }
}

/// The TCP connection of a thread, as long as the thread uses it.
type InUse = Arc<Mutex<Option<TcpStream>>>;

/// A connection request of a client.
enum Incoming {
    Tcp(TcpStream),
    Cm(Request),
}

impl Acceptor {
    /// Waits for a client for a short time.
    fn wait(&self) -> Result<Option<Incoming>> {
        match self {
            Self::Cm(listener) => match listener.wait(Some(ACCEPT_WAIT)) {
                Ok(request) => Ok(request.map(Incoming::Cm)),
                Err(error) if link::is_lost(&error) => Err(error.into()),
                // As of TCP.
                Err(error) => {
                    eprintln!("kv: a client was not accepted: {error}");
                    thread::sleep(link::PAUSE);
                    Ok(None)
                }
            },
            Self::Tcp(listener) => {
                let limit = u16::try_from(ACCEPT_WAIT.as_millis()).unwrap_or(u16::MAX);
                match poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], limit) {
                    Ok(1..) => {}
                    Ok(_) | Err(nix::errno::Errno::EINTR) => return Ok(None),
                    Err(errno) => return Err(errno.into()),
                }
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false)?;
                        Ok(Some(Incoming::Tcp(stream)))
                    }
                    // The client has gone again, or the process has too many files for a moment.
                    Err(_) => {
                        thread::sleep(link::PAUSE);
                        Ok(None)
                    }
                }
            }
        }
    }
}
