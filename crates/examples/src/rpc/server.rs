// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: a task for each client, and one for each call.

use super::wire::{Answer, HEAD, Kind, MAX_BODY, MESSAGE, Request, Status, Terms};
use super::{CONNECT, param};
use crate::link::{self, is_lost};
use crate::nic::Nic;
use anyhow::{Context as _, Result, ensure};
use core::net::SocketAddr;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use uverbs::{AnyDriver, Pool, ProtectionDomain, Rc};
use uverbs_aio::{Dispatcher, Listener, Qp, Request as ConnectRequest, Srq};

/// The settings of a server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The most clients. More are refused.
    pub clients: u32,
    /// The most calls that a client may have outstanding.
    pub credits: u16,
    /// A client that sends nothing for this time is disconnected.
    pub idle: Duration,
    /// How long the calls that are executed at the end of the server may take.
    pub drain: Duration,
}

impl Config {
    /// For this number of clients.
    #[must_use]
    pub fn new(clients: u32) -> Self {
        Self { clients, credits: 4, idle: Duration::from_secs(6), drain: Duration::from_secs(2) }
    }
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Clients that were connected.
    pub clients: u64,
    /// Clients that did not follow the protocol, or whose call has panicked.
    pub broken: u64,
    /// Calls that were executed.
    pub calls: u64,
    /// Calls whose time limit has passed before they were executed.
    pub expired: u64,
    /// Buffers that did not come back.
    pub lost: usize,
}

/// What the tasks of a server share.
#[derive(Debug)]
struct Resources {
    srq: Srq,
    answers: Pool,
    dispatcher: Dispatcher,
    pd: ProtectionDomain,
    config: Config,
    calls: AtomicU64,
    expired: AtomicU64,
}

/// How a client has gone.
enum End {
    /// It was never connected.
    Refused,
    Gone,
    Broken,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    resources: Arc<Resources>,
    receives: Pool,
    /// All buffers.
    total: usize,
    listener: Listener,
    address: SocketAddr,
}

impl Server {
    /// Creates the queues and listens. To be called in a runtime of tokio.
    ///
    /// # Errors
    /// The device can't be used, or there is too little memory; the address is in use.
    pub fn open(nic: &Nic, at: SocketAddr, config: Config) -> Result<Self> {
        let context = nic.open::<AnyDriver>()?;
        let pd = context.alloc_pd()?;
        let messages = config.clients.checked_mul(u32::from(config.credits) + 1);
        let messages = messages.filter(|n| *n <= u32::MAX / 4).context("too many clients or credits")?;
        // The shared queue is refilled when a quarter of it is missing, so the double size has a receive for each message.
        let depth = 2 * messages;
        let dispatcher = Dispatcher::builder(&context).cqe(depth + 2 * messages).build()?;
        let (receives, answers) =
            (pd.pool(depth + messages, MESSAGE as u32)?, pd.pool(messages, MESSAGE as u32)?);
        let total = receives.available() + answers.available();
        let srq = dispatcher.srq(&pd, &receives, depth)?;
        let listener = Listener::bind(&dispatcher, &nic.connection_manager()?, at)?;
        let address = listener.local_addr()?;
        let (calls, expired) = Default::default();
        let resources = Resources { srq, answers, dispatcher, pd, config, calls, expired };
        Ok(Self { resources: Arc::new(resources), receives, total, listener, address })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready: `execute` gets the bytes of a request and returns those of the answer. Then it accepts no more
    /// calls, waits for those that are executed, and disconnects the clients.
    ///
    /// # Errors
    /// The device was removed.
    pub async fn serve<F>(
        self,
        execute: impl Fn(Vec<u8>) -> F + Clone + Send + Sync + 'static,
        stop: impl Future<Output = ()>,
    ) -> Result<Report>
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        let Self { resources, receives, total, listener, .. } = self;
        let driving = tokio::spawn(resources.dispatcher.clone().drive());
        let (stopped, stopping) = watch::channel(());
        let (mut clients, mut report, mut stop) = (JoinSet::new(), Report::default(), pin!(stop));
        let served = loop {
            tokio::select! {
                () = &mut stop => break Ok(()),
                Some(end) = clients.join_next() => report.count(end),
                request = listener.accept() => match request {
                    // A request that is dropped refuses the client.
                    Ok(_) if clients.len() >= resources.config.clients as usize => {}
                    Ok(request) => {
                        let (resources, stopping) = (resources.clone(), stopping.clone());
                        let execute = execute.clone();
                        clients.spawn(async move {
                            Connection::serve(&resources, request, &execute, stopping).await
                        });
                    }
                    // It has gone again, or the process has too many files for a moment.
                    Err(uverbs_aio::Error::Cm(error)) if !is_lost(&error) => tokio::time::sleep(link::PAUSE).await,
                    Err(error) => break Err(error.into()),
                },
            }
        };
        drop((stopped, stopping, listener));
        while let Some(end) = clients.join_next().await {
            report.count(end);
        }
        driving.abort();
        _ = driving.await;
        let resources = Arc::into_inner(resources).context("a task of the server still runs")?;
        let Resources { srq, answers, dispatcher, calls, expired, .. } = resources;
        drop((srq, dispatcher));
        report.lost = total - receives.available() - answers.available();
        (report.calls, report.expired) = (calls.into_inner(), expired.into_inner());
        served.map(|()| report)
    }
}

impl Report {
    /// A task of a client has ended.
    fn count(&mut self, end: Result<End, tokio::task::JoinError>) {
        let end = end.unwrap_or(End::Broken);
        self.clients += u64::from(!matches!(end, End::Refused));
        self.broken += u64::from(matches!(end, End::Broken));
    }
}

/// A client.
struct Connection<'a> {
    resources: &'a Arc<Resources>,
    qp: Qp<Rc>,
    credits: usize,
    /// The calls that are executed or answered.
    calls: JoinSet<uverbs_aio::Result<()>>,
    /// The last message.
    heard: Instant,
}

impl<'a> Connection<'a> {
    /// Accepts a client, and answers its requests until it has gone or the server ends.
    async fn serve<F>(
        resources: &'a Arc<Resources>,
        request: ConnectRequest,
        execute: &(impl Fn(Vec<u8>) -> F + Sync),
        mut stopping: watch::Receiver<()>,
    ) -> End
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        let Resources { dispatcher, config, .. } = &**resources;
        let Ok((mut connection, link)) = Self::accept(resources, request).await else { return End::Refused };
        let mut gone = pin!(link.disconnected(dispatcher));
        let mut ticks = interval(config.idle / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            let message = tokio::select! {
                _ = stopping.changed() => break End::Gone,
                _ = &mut gone => break End::Gone,
                Some(answered) = connection.calls.join_next() => match answered {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => break End::Gone,
                    Err(_panic) => break End::Broken,
                },
                _ = ticks.tick() => {
                    if connection.heard.elapsed() > config.idle {
                        break End::Gone;
                    }
                    continue;
                }
                message = connection.qp.recv() => match message {
                    Ok(message) => message,
                    Err(_) => break End::Gone,
                },
            };
            if connection.begin(&message, execute).is_err() {
                break End::Broken;
            }
        };
        if stopping.has_changed().is_err() {
            // The calls that are executed are answered.
            let calls = &mut connection.calls;
            _ = timeout(config.drain, async { while calls.join_next().await.is_some() {} }).await;
        }
        connection.calls.shutdown().await;
        _ = link.disconnect();
        _ = dispatcher.timeout(CONNECT, connection.qp.abort()).await;
        end
    }

    async fn accept(
        resources: &'a Arc<Resources>,
        request: ConnectRequest,
    ) -> Result<(Self, uverbs_aio::Link)> {
        let Resources { dispatcher, config, pd, srq, .. } = &**resources;
        let asked = Terms::decode(&request.peer().private_data).context("the client has other terms")?;
        let credits = asked.credits.min(config.credits);
        let sends = 2 * (u32::from(credits) + 1);
        let qp = dispatcher.qp(pd).depth(sends, 0).inline(HEAD as u32).srq(srq).create()?;
        let param = param(credits).srq(true);
        let link = dispatcher.timeout(CONNECT, request.accept(&qp, &param)).await?;
        let (calls, heard) = (JoinSet::new(), Instant::now());
        Ok((Self { resources, qp, credits: credits.into(), calls, heard }, link))
    }

    /// Begins what a message asks for. The message is copied, so that its buffer receives the next one meanwhile.
    fn begin<F>(&mut self, message: &[u8], execute: &impl Fn(Vec<u8>) -> F) -> Result<()>
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        self.heard = Instant::now();
        let request = Request::decode(message).context("an invalid request")?;
        // Those that are answered but not acknowledged have given their credits back.
        ensure!(self.calls.len() <= 4 * (self.credits + 1), "more requests than credits");
        let (resources, qp, call) = (self.resources.clone(), self.qp.clone(), request.call);
        match request.kind {
            Kind::Ping => {
                self.calls.spawn(async move {
                    answer(&resources, &qp, &Answer { call, status: Status::Done, body: &[] }).await
                });
            }
            Kind::Call => {
                let (end, executed) = (self.heard + request.limit, execute(request.body.to_vec()));
                self.calls.spawn(async move {
                    let executed = timeout_at(end, executed).await;
                    let (status, body) = match executed {
                        Ok(body) if body.len() <= MAX_BODY => (Status::Done, body),
                        Ok(_) => (Status::TooLong, Vec::new()),
                        Err(_) => (Status::Expired, Vec::new()),
                    };
                    let counter =
                        if status == Status::Expired { &resources.expired } else { &resources.calls };
                    counter.fetch_add(1, Ordering::Relaxed);
                    answer(&resources, &qp, &Answer { call, status, body: &body }).await
                });
            }
        }
        Ok(())
    }
}

/// Sends an answer, and waits until it is acknowledged.
async fn answer(resources: &Resources, qp: &Qp<Rc>, answer: &Answer<'_>) -> uverbs_aio::Result<()> {
    let mut buf = resources.answers.acquire_async().await?;
    buf.set_len(HEAD + answer.body.len())?;
    _ = answer.encode(&mut buf);
    qp.send(buf).await?;
    Ok(())
}
