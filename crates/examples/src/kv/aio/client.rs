// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client as futures: a connection with one request outstanding.

use super::{Conn, has_immediate};
use crate::kv::INLINE;
use crate::kv::client::{Ask, Outcome, QUIET, Value};
use crate::kv::proto::{Answer, HEADER, MAX_KEY, MAX_SMALL, MESSAGE, Op, Request, Status, VERSION, Welcome};
use crate::link::{self, LIMIT, Path, Target};
use crate::nic::Nic;
use anyhow::{Context as _, Result, bail, ensure};
use core::net::SocketAddr;
use core::pin::pin;
use core::time::Duration;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_blocking};
use uverbs::Pool;
use uverbs::{Driver, ImmData, Rc, RemoteRegion, WithDeadline};
use uverbs::{Private, attr::AccessFlags};
use uverbs_aio::{Dispatcher, Message, Qp};

/// How long a client waits for an outcome after the server has gone.
const LAST: Duration = Duration::from_millis(100);

/// Connects a QP to a server over TCP.
async fn exchange<D: Driver>(qp: &Qp<Rc, D>, server: SocketAddr, path: Path) -> Result<TcpStream> {
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
    qp: &Qp<Rc, D>,
    conn: &mut Conn,
    request: impl Future<Output = Result<R>>,
) -> Result<R> {
    let (dispatcher, mut request) = (qp.dispatcher(), pin!(request));
    tokio::select! {
        biased;
        result = &mut request => return result,
        () = conn.gone(&dispatcher) => {}
    }
    // What it has sent before may be on its way.
    match tokio::time::timeout(LAST, request).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(error.context("the server has ended the connection")),
        Err(_) => bail!("the server has ended the connection"),
    }
}

/// The next message of the server.
async fn receive<D: Driver>(qp: &Qp<Rc, D>) -> Result<Message<D>> {
    Ok(qp.dispatcher().timeout(LIMIT, qp.recv()).await?)
}

/// The queues and the memory of a connection, and what the server said of its own.
#[derive(Debug)]
struct Line<D: Driver> {
    qp: Qp<Rc, D>,
    messages: Pool<Private, D>,
    values: Pool<Private, D>,
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
        if buf.len() <= INLINE as usize {
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
    conn: Conn,
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
        let messages = pd.pool(64, MESSAGE as u32)?;
        let qp = dispatcher.qp(&pd).depth(8, 16).inline(INLINE).pool(&messages).create()?;
        let driving = tokio::spawn(dispatcher.clone().drive());
        let mut conn = match server {
            Target::Tcp(address) => Conn::Tcp(exchange(&qp, *address, path).await?),
            Target::Cm(address) => {
                let (manager, param) = (nic.connection_manager()?, link::param(AccessFlags::empty(), false));
                let local = link::source(&context, address.is_ipv4());
                let connecting = qp.connect_from(&manager, local, *address, &param);
                let link = dispatcher.timeout(LIMIT, connecting).await?;
                link::check_device(link.id().bound()?.device(), nic.name())?;
                Conn::Cm(link)
            }
        };
        let mut hello = [0; HEADER];
        Request { op: Op::Hello, id: 0, arg: u32::from(VERSION), key: &[], value: &[] }.encode(&mut hello);
        let message = ask_server(&qp, &mut conn, async {
            qp.send_inline(&hello).await?;
            receive(&qp).await
        })
        .await?;
        let welcome = Answer::decode(&message).and_then(|answer| Welcome::decode(answer.value));
        let welcome = welcome.context("the server sent an invalid welcome")?;
        drop(message);
        let values = pd.pool(1, welcome.slot_size)?;
        let immediate = welcome.immediate && has_immediate(&context, &pd)?;
        Ok(Self { line: Line { qp, messages, values, welcome, immediate }, next_id: 1, driving, conn })
    }

    /// Whether large values are written with immediate data.
    pub(super) fn immediate(&self) -> bool {
        self.line.immediate
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
        let Self { line, conn, .. } = self;
        ask_server(&line.qp, conn, line.request(&request)).await
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
