// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server as futures: a task for each client.

use super::{Conn, has_immediate};
use crate::kv::INLINE;
use crate::kv::proto::{MESSAGE, Welcome};
use crate::kv::server::{Config, Listen, Report, send_depth, slots, welcome};
use crate::kv::session::{Broken, Executor, Session};
use crate::kv::store::Store;
use crate::link::{self, LIMIT};
use crate::nic::Nic;
use anyhow::{Context as _, Result, anyhow};
use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uverbs::Pool;
use uverbs::connect::ENDPOINT_LEN;
use uverbs::{Driver, Endpoint, ProtectionDomain, Rc};
use uverbs::{Private, attr::AccessFlags};
use uverbs_aio::{Dispatcher, Listener, Qp, Request as ConnectRequest, Srq};

/// The time within which the event of a client that disconnects comes after the flush of its QP.
const GONE_LIMIT: Duration = Duration::from_secs(2);

/// What the tasks of a server share.
struct Resources<D: Driver> {
    dispatcher: Dispatcher<D>,
    srq: Srq<D>,
    pd: ProtectionDomain<D>,
    answers: Pool<Private, D>,
    executor: Mutex<Executor<D>>,
    config: Config,
}

/// A connection request of a client.
enum Arrival {
    Tcp(TcpStream),
    Cm(ConnectRequest),
}

/// The listener for connection requests.
enum Acceptor<D: Driver> {
    Tcp(TcpListener),
    Cm(Listener<D>),
}

impl<D: Driver> Acceptor<D> {
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

/// A server that listens.
pub struct Server<D: Driver> {
    resources: Arc<Resources<D>>,
    acceptor: Acceptor<D>,
    address: SocketAddr,
    receives: Pool<Private, D>,
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
        let (acceptor, address) = Acceptor::open(nic, &dispatcher, listen).await?;
        // As many messages may wait for their tasks as there are receives.
        let receives = pd.pool(2 * receive_count, MESSAGE as u32)?;
        let answers = pd.pool(sends, MESSAGE as u32)?;
        let totals = receives.available() + answers.available();
        let srq = dispatcher.srq(&pd, &receives, receive_count)?;
        let immediate = config.immediate && has_immediate(&context, &pd)?;
        let welcome = Welcome { immediate, ..welcome(&config)? };
        let store = Store::new(&pd, config.keys as usize, config.values, config.max_value)?;
        let executor =
            Mutex::new(Executor { store, scratch: Vec::new(), welcome, requests: 0, malformed: 0 });
        let resources = Arc::new(Resources { dispatcher, srq, pd, answers, executor, config });
        Ok(Self { resources, acceptor, address, receives, totals })
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
        let Self { resources, acceptor, receives, totals, .. } = self;
        let driving = tokio::spawn(resources.dispatcher.clone().drive());
        let (stopped, stopping) = watch::channel(());
        let mut report = Report::default();
        let mut tasks = JoinSet::new();
        let mut stop = core::pin::pin!(stop);
        let ended = loop {
            tokio::select! {
                () = &mut stop => break Ok(()),
                accepted = acceptor.accept() => match accepted {
                    // Dropping it refuses the client.
                    Ok(Some(arrival)) if tasks.len() < resources.config.clients as usize => {
                        tasks.spawn(serve_client(resources.clone(), arrival, stopping.clone()));
                    }
                    Ok(_) => {}
                    Err(error) => break Err(error),
                },
                Some(task) = tasks.join_next() => count(&mut report, task?),
            }
        };
        drop((stopped, stopping, acceptor));
        while let Some(task) = tasks.join_next().await {
            count(&mut report, task?);
        }
        driving.abort();
        let _ = driving.await;
        let Resources { dispatcher, srq, executor, answers, .. } =
            Arc::into_inner(resources).context("a task of the server still runs")?;
        drop((srq, dispatcher));
        let mut executor = executor.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.lost = totals - receives.available() - answers.available() + executor.store.clear();
        (report.requests, report.malformed) = (executor.requests, executor.malformed);
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
async fn serve_client<D: Driver>(
    resources: Arc<Resources<D>>,
    arrival: Arrival,
    mut stopping: watch::Receiver<()>,
) -> (bool, Result<()>) {
    let connecting = async {
        match arrival {
            Arrival::Tcp(stream) => handshake(&resources, stream).await,
            Arrival::Cm(request) => handshake_cm(&resources, request).await,
        }
    };
    let connected = tokio::select! {
        connected = connecting => connected,
        _ = stopping.changed() => Err(anyhow!("the server ends")),
    };
    let (qp, session, mut conn) = match connected {
        Ok(client) => client,
        Err(error) => return (false, Err(error)),
    };
    let mut served = tokio::select! {
        served = answer(&resources, &qp, session) => served,
        () = conn.gone(&resources.dispatcher) => Ok(()),
        _ = stopping.changed() => Ok(()),
    };
    // The end of a connection of iWARP flushes the queues, which may be seen before the event of a client that disconnects.
    if served.as_ref().is_err_and(|error| error.is::<uverbs_aio::Error>())
        && matches!(conn, Conn::Cm(_))
        && tokio::time::timeout(GONE_LIMIT, conn.gone(&resources.dispatcher)).await.is_ok()
    {
        served = Ok(());
    }
    let aborted = qp.abort().await;
    (true, served.and(aborted.map_err(Into::into)))
}

/// The QP of a client, in RESET, and its session.
fn welcomed<D: Driver>(resources: &Resources<D>) -> Result<(Qp<Rc, D>, Session<D>)> {
    let depth = send_depth(&resources.config);
    let qp =
        resources.dispatcher.qp(&resources.pd).depth(depth, 0).inline(INLINE).srq(&resources.srq).create()?;
    Ok((qp, Session::new(slots(&resources.pd, &resources.config)?)))
}

/// The rights of clients.
const ACCESS: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);

/// Connects to a client over TCP.
async fn handshake<D: Driver>(
    resources: &Resources<D>,
    mut stream: TcpStream,
) -> Result<(Qp<Rc, D>, Session<D>, Conn)> {
    let attr = link::attr(resources.config.path, ACCESS);
    let (qp, session) = welcomed(resources)?;
    qp.init(&attr)?;
    let here = qp.endpoint(qp.qp_num(), &attr)?;
    let (mut theirs, mut ours) = ([0; ENDPOINT_LEN], Vec::new());
    let received = tokio::time::timeout(LIMIT, stream.read_exact(&mut theirs)).await;
    received.context("it did not answer in time")??;
    qp.connect(&here, &Endpoint::receive(&theirs[..])?, &attr)?;
    here.send(&mut ours)?;
    stream.write_all(&ours).await?;
    Ok((qp, session, Conn::Tcp(stream)))
}

/// Connects to a client by the connection manager.
async fn handshake_cm<D: Driver>(
    resources: &Resources<D>,
    request: ConnectRequest,
) -> Result<(Qp<Rc, D>, Session<D>, Conn)> {
    let (qp, session) = welcomed(resources)?;
    let link = resources.dispatcher.timeout(LIMIT, request.accept(&qp, &link::param(ACCESS, true))).await?;
    Ok((qp, session, Conn::Cm(link)))
}

/// Answers requests until the connection fails.
async fn answer<D: Driver>(resources: &Resources<D>, qp: &Qp<Rc, D>, mut session: Session<D>) -> Result<()> {
    loop {
        let message = qp.recv().await?;
        let reply = {
            let mut executor = resources.executor.lock().unwrap_or_else(PoisonError::into_inner);
            match message.imm() {
                Some(slot) => session.written(&mut executor, slot.get()),
                None => session.message(&mut executor, &message),
            }
        };
        drop(message);
        let reply = reply.map_err(|Broken| anyhow!("the client broke the protocol"))?;
        match reply.bytes() {
            [] => {}
            bytes if bytes.len() <= INLINE as usize => qp.send_inline(bytes).await?,
            bytes => {
                let mut buf = resources.answers.get().context("the pool has enough buffers")?;
                buf.fill(bytes)?;
                drop(qp.send(buf).await?);
            }
        }
    }
}
