// SPDX-License-Identifier: MIT OR Apache-2.0
//! uverbs-aio: a QP for messages, an `RdmaStream` for bytes.

use crate::carrier::{self, Bytes, MESSAGE, Messages, RECEIVES, SENDS};
use crate::stats::Measured;
use crate::{End, Library, Test, work};
use anyhow::{Context as _, Result};
use core::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uverbs::open::DriverVisitor;
use uverbs::owned::Pool;
use uverbs::{Context, Driver, ProtectionDomain};
use uverbs_aio::{Dispatcher, Link, Listener, Qp, RdmaStream};
use uverbs_cm::{ConnParam, EventChannel};

/// Bytes that are copied to the queue instead of a buffer: the default of a QP.
const INLINE: usize = 64;

/// A connected QP.
pub(crate) struct Queue<D: Driver> {
    qp: Qp<D>,
    pool: Pool<D>,
    _link: Option<Link>,
}

impl<D: Driver> Queue<D> {
    pub(crate) fn new(qp: Qp<D>, pool: Pool<D>, link: Option<Link>) -> Self {
        Self { qp, pool, _link: link }
    }
}

impl<D: Driver> Messages for Queue<D> {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.len() <= INLINE {
            return Ok(self.qp.send_inline(message).detach().await?);
        }
        // The queue waits for an entry, and keeps a part of its depth: there are more buffers than entries.
        let mut buf = self.pool.get().context("no buffer")?;
        buf.fill(message)?;
        self.qp.send(buf).detach().await.map_err(|failed| failed.error.into())
    }

    async fn recv<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(read(&self.qp.recv().await?))
    }
}

impl<D: Driver> Bytes for RdmaStream<D> {
    async fn put(&mut self, data: &[u8]) -> Result<()> {
        Ok(self.write_all(data).await?)
    }

    async fn take(&mut self, room: &mut [u8]) -> Result<usize> {
        Ok(self.read(room).await?)
    }
}

/// The program, once the driver of the device is known.
struct Program<'a> {
    end: &'a End,
    is_server: bool,
}

impl DriverVisitor for Program<'_> {
    type Out = Result<Measured>;

    fn visit<D: Driver>(self, context: Context<D>) -> Self::Out {
        let mut builder = Dispatcher::builder(&context);
        if let Some(spin) = self.end.spin {
            builder = builder.spin(Duration::from_micros(spin));
        }
        let runtime = carrier::runtime()?;
        let dispatcher = builder.build()?;
        let pd = context.alloc_pd()?;
        if self.end.library == Library::Uverbs {
            return dispatcher.block_on(self.run(&dispatcher, &pd));
        }
        runtime.block_on(dispatcher.drive_with(self.run(&dispatcher, &pd)))?
    }
}

impl Program<'_> {
    async fn run<D: Driver>(&self, dispatcher: &Dispatcher<D>, pd: &ProtectionDomain<D>) -> Result<Measured> {
        let Self { end, is_server } = *self;
        let manager = EventChannel::open()?;
        let listener = is_server.then(|| Listener::bind(dispatcher, &manager, end.address)).transpose()?;
        if is_server {
            carrier::ready()?;
        }
        if matches!(end.test, Test::Write | Test::Read) {
            let builder = RdmaStream::builder(dispatcher, pd);
            let stream = match &listener {
                Some(listener) => builder.accept(listener).await?,
                None => builder.connect(&manager, end.address).await?,
            };
            return work::bytes(stream, end, is_server).await;
        }
        let incoming = pd.pool(2 * RECEIVES as u32, MESSAGE as u32).build()?;
        let pool = pd.pool(SENDS as u32 + 1, MESSAGE as u32).build()?;
        let qp = dispatcher.qp(pd).depth(SENDS as u32, RECEIVES as u32).pool(&incoming).create()?;
        let link = match &listener {
            Some(listener) => listener.accept().await?.accept(&qp, &ConnParam::default()).await?,
            None => qp.connect_to(&manager, end.address, &ConnParam::default()).await?,
        };
        work::messages(Queue::new(qp, pool, Some(link)), end, is_server).await
    }
}

/// Runs one end.
pub(crate) fn run(end: &End, is_server: bool) -> Result<Measured> {
    let name = end.device.as_deref().context("uverbs-aio needs --device")?;
    let device = uverbs::devices()?.into_iter().find(|device| device.name == name);
    let device = device.with_context(|| format!("no RDMA device {name}"))?;
    uverbs::open_with(&device, Program { end, is_server })?
}
