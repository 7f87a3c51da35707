// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients: their calls, and the task that keeps a client connected.

use super::calls::Calls;
use super::wire::{Answer, HEAD, Kind, MAX_BODY, MESSAGE, Request, Terms};
use super::{CONNECT, CallError, PING, param};
use crate::link::{check_device, source};
use crate::nic::Nic;
use anyhow::{Context as _, Result, ensure};
use core::net::SocketAddr;
use core::pin::pin;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use uverbs::{AnyDriver, Pool, ProtectionDomain, Rc};
use uverbs_aio::{Dispatcher, Link, Qp};
use uverbs_cm::EventChannel;

/// The pause between two attempts to connect, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The settings of clients.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Clients of the process.
    pub clients: u32,
    /// The most calls that a client has outstanding. The server may grant fewer.
    pub credits: u16,
    /// The client sends a ping when it has received nothing for this time.
    pub quiet: Duration,
    /// The connection has ended when the client has received nothing for this time.
    pub dead: Duration,
}

impl Config {
    /// For this number of clients.
    #[must_use]
    pub fn new(clients: u32) -> Self {
        Self { clients, credits: 4, quiet: Duration::from_secs(1), dead: Duration::from_secs(4) }
    }
}

/// What all clients of a process share: the device, the dispatcher of its completions, and the buffers.
#[derive(Debug)]
pub struct Host {
    dispatcher: Dispatcher,
    pd: ProtectionDomain,
    manager: EventChannel,
    local: Option<SocketAddr>,
    name: String,
    receives: Pool,
    requests: Pool,
    config: Config,
    clients: AtomicU32,
    driving: AbortHandle,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

impl Host {
    /// Opens the device. To be called in a runtime of tokio.
    ///
    /// # Errors
    /// The device can't be used, or there is too little memory.
    pub fn open(nic: &Nic, config: Config) -> Result<Arc<Self>> {
        let context = nic.open::<AnyDriver>()?;
        let pd = context.alloc_pd()?;
        let (sends, receives) = depth(config.credits);
        let all = |each: u32| config.clients.checked_mul(each).context("too many clients or credits");
        // Twice: the queue pair of a connection may end while the next one begins.
        let dispatcher = Dispatcher::builder(&context).cqe(all(2 * (sends + receives))?).build()?;
        let driving = tokio::spawn(dispatcher.clone().drive()).abort_handle();
        Ok(Arc::new(Self {
            receives: pd.pool(all(receives + 1)?, MESSAGE as u32)?,
            requests: pd.pool(all(config.credits.into())?, MESSAGE as u32)?,
            manager: nic.connection_manager()?,
            local: source(&context, true),
            name: nic.name().to_owned(),
            clients: AtomicU32::new(0),
            dispatcher,
            pd,
            config,
            driving,
        }))
    }

    /// The buffers that no request and no receive uses.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.receives.available() + self.requests.available()
    }

    /// A client, which connects to the first of these servers that accepts it, now and whenever its connection has ended.
    #[must_use]
    pub fn client(self: &Arc<Self>, servers: Vec<SocketAddr>) -> Client {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let (states, state) = watch::channel(State::Connecting);
        let (stop, stopped) = oneshot::channel();
        let ends = Arc::<Mutex<Ends>>::default();
        let task = stay_connected(self.clone(), servers, number, states, ends.clone(), stopped);
        Client { host: self.clone(), state, stop, ends, task: tokio::spawn(task) }
    }

    /// Connects to a server.
    async fn connect(&self, server: SocketAddr) -> Result<(Arc<Connection>, Link)> {
        let (sends, receives) = depth(self.config.credits);
        let qp = self.dispatcher.qp(&self.pd).depth(sends, receives).inline(HEAD as u32);
        let qp = qp.pool(&self.receives).create()?;
        let local = self.local.filter(|local| local.is_ipv4() == server.is_ipv4());
        let param = param(self.config.credits);
        let connecting = qp.connect_from(&self.manager, local, server, &param);
        let link = self.dispatcher.timeout(CONNECT, connecting).await?;
        check_device(link.id().bound()?.device(), &self.name)?;
        let terms = Terms::decode(&link.peer().private_data).context("the server has other terms")?;
        let credits = Semaphore::new(terms.credits.min(self.config.credits).into());
        let connection = Connection { qp, credits: Arc::new(credits), calls: Arc::default() };
        Ok((Arc::new(connection), link))
    }
}

/// The sends and receives of a connection: the server may send an answer for each credit, and one to a ping. Twice, because those
/// that have arrived are replaced a little later.
fn depth(credits: u16) -> (u32, u32) {
    let messages = u32::from(credits) + 1;
    (2 * messages, 2 * messages)
}

/// A connection to a server.
#[derive(Debug)]
struct Connection {
    qp: Qp<Rc>,
    credits: Arc<Semaphore>,
    calls: Arc<Calls>,
}

impl Connection {
    /// Receives answers until the connection ends.
    async fn receive(&self, host: &Host, link: &Link) -> Result<()> {
        let mut gone = pin!(link.disconnected(&host.dispatcher));
        let mut ticks = interval(host.config.quiet);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut heard, mut asked) = (Instant::now(), false);
        loop {
            let message = tokio::select! {
                message = self.qp.recv() => message?,
                ended = &mut gone => return ended.context("the server has disconnected"),
                _ = ticks.tick() => {
                    ensure!(heard.elapsed() < host.config.dead, "the server does not answer");
                    if !asked && heard.elapsed() >= host.config.quiet {
                        asked = true;
                        self.ping();
                    }
                    continue;
                }
            };
            heard = Instant::now();
            asked &= !self.answered(&message)?;
        }
    }

    /// Passes an answer on. Returns whether it is one to a ping.
    fn answered(&self, message: &[u8]) -> Result<bool> {
        let answer = Answer::decode(message).context("an invalid answer")?;
        if answer.call != PING {
            ensure!(self.calls.answered(&answer).is_ok(), "an answer to no call");
        }
        Ok(answer.call == PING)
    }

    /// Sends a ping, which the server answers at once.
    fn ping(&self) {
        let qp = self.qp.clone();
        tokio::spawn(async move {
            let mut bytes = [0; HEAD];
            let ping = Request { call: PING, limit: Duration::ZERO, kind: Kind::Ping, body: &[] };
            if ping.encode(&mut bytes).is_some() {
                // If it fails, the connection ends.
                _ = qp.send_inline(&bytes).await;
            }
        });
    }
}

/// What the calls of a client know of its connection.
#[derive(Clone, Debug)]
enum State {
    Connecting,
    Up(Arc<Connection>),
    Ended(String),
}

/// The connections of a client that have ended, and attempts that have failed.
#[derive(Clone, Debug, Default)]
struct Ends {
    count: u64,
    last: Option<String>,
}

impl Ends {
    fn add(this: &Mutex<Self>, error: String) {
        let mut ends = this.lock().unwrap_or_else(PoisonError::into_inner);
        (ends.count, ends.last) = (ends.count + 1, Some(error));
    }
}

/// The task of a client.
async fn stay_connected(
    host: Arc<Host>,
    servers: Vec<SocketAddr>,
    number: u32,
    states: watch::Sender<State>,
    ends: Arc<Mutex<Ends>>,
    mut stop: oneshot::Receiver<()>,
) {
    let (mut failures, mut pause) = (0_usize, PAUSES.0);
    let reason = loop {
        let Some(server) = servers.get(failures % servers.len().max(1)) else {
            break "it has no server".to_owned();
        };
        let connected = tokio::select! {
            _ = &mut stop => break "it was closed".to_owned(),
            connected = host.connect(*server) => connected,
        };
        let error = match connected {
            Ok((connection, link)) => {
                (failures, pause) = (failures % servers.len(), PAUSES.0);
                states.send_replace(State::Up(connection.clone()));
                let ended = tokio::select! {
                    _ = &mut stop => None,
                    ended = connection.receive(&host, &link) => Some(ended),
                };
                states.send_replace(State::Connecting);
                connection.credits.close();
                // Neither of them is possible if the device is gone.
                _ = link.disconnect();
                _ = host.dispatcher.timeout(CONNECT, connection.qp.abort()).await;
                // Answers that came before the end.
                while let Some(message) = connection.qp.try_recv() {
                    _ = connection.answered(&message);
                }
                connection.calls.close();
                match ended {
                    None => break "it was closed".to_owned(),
                    Some(ended) => ended.err(),
                }
            }
            Err(error) => Some(error),
        };
        let error =
            error.map_or_else(|| "the server has disconnected".to_owned(), |error| format!("{error:#}"));
        if host.dispatcher.context().is_removed() {
            break error;
        }
        Ends::add(&ends, error);
        failures += 1;
        // Clients that have lost their server at the same time do not come back at the same time.
        let spread = pause.mul_f64(f64::from(number % 16) / 16.0);
        tokio::select! {
            _ = &mut stop => break "it was closed".to_owned(),
            () = sleep(pause + spread) => pause = PAUSES.1.min(2 * pause),
        }
    };
    states.send_replace(State::Ended(reason));
}

/// A pool without its device.
fn ended(error: uverbs::Error) -> CallError {
    CallError::Ended(error.to_string())
}

/// A client. It disconnects when it is dropped.
#[derive(Debug)]
pub struct Client {
    host: Arc<Host>,
    state: watch::Receiver<State>,
    stop: oneshot::Sender<()>,
    ends: Arc<Mutex<Ends>>,
    task: JoinHandle<()>,
}

impl Client {
    /// Makes a call: sends these bytes, and waits for the answer, in all at most for `limit`. Waits for a connection and for a credit if
    /// there is none. The future can be dropped at any time.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, request: &[u8], limit: Duration) -> Result<Vec<u8>, CallError> {
        if request.len() > MAX_BODY {
            return Err(CallError::TooLong);
        }
        timeout(limit, self.attempt(request, limit)).await.unwrap_or(Err(CallError::Deadline))
    }

    async fn attempt(&self, body: &[u8], limit: Duration) -> Result<Vec<u8>, CallError> {
        let begin = Instant::now();
        let connection = self.connection().await?;
        let credit = connection.credits.clone().acquire_owned().await.map_err(|_| CallError::Lost)?;
        let mut buf = self.host.requests.acquire_async().await.map_err(ended)?;
        let waiting = connection.calls.begin(credit).ok_or(CallError::Lost)?;
        let limit = limit.saturating_sub(begin.elapsed());
        let request = Request { call: waiting.number, limit, kind: Kind::Call, body };
        buf.set_len(HEAD + body.len()).map_err(ended)?;
        request.encode(&mut buf).ok_or(CallError::TooLong)?;
        // A task of its own: the request is sent also if this call is dropped, because only an answer gives the credit back.
        let qp = connection.qp.clone();
        tokio::spawn(async move { qp.send(buf).await.is_ok() });
        waiting.answer().await.unwrap_or(Err(CallError::Lost))
    }

    /// The connection, when there is one.
    async fn connection(&self) -> Result<Arc<Connection>, CallError> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match up.as_deref() {
            Ok(State::Up(connection)) => Ok(connection.clone()),
            Ok(State::Ended(reason)) => Err(CallError::Ended(reason.clone())),
            Ok(State::Connecting) | Err(_) => Err(CallError::Ended("its task has ended".to_owned())),
        }
    }

    /// Waits until it is connected, at most for `limit`. Returns whether it is.
    pub async fn connected(&self, limit: Duration) -> bool {
        timeout(limit, self.connection()).await.is_ok_and(|connection| connection.is_ok())
    }

    /// The calls that are not answered, and the answers of this connection that nobody waited for.
    #[must_use]
    pub fn counts(&self) -> (usize, u64) {
        match &*self.state.borrow() {
            State::Up(connection) => connection.calls.counts(),
            State::Connecting | State::Ended(_) => (0, 0),
        }
    }

    /// How often a connection has ended, or was not made, and why it was so the last time.
    #[must_use]
    pub fn ends(&self) -> (u64, Option<String>) {
        let Ends { count, last } = self.ends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (count, last)
    }

    /// Disconnects, and waits for the end of the connection.
    pub async fn close(self) {
        _ = self.stop.send(());
        _ = self.task.await;
    }
}
