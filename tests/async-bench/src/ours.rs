// SPDX-License-Identifier: MIT OR Apache-2.0
//! uverbs-aio: a QP for messages, an `RdmaStream` for bytes.

use crate::carrier::{self, Bytes, MESSAGE, Messages, RECEIVES, SENDS};
use crate::stats::Measured;
use crate::{End, Library, Test, work};
use anyhow::{Context as _, Result};
use core::time::Duration;
use tokio::io::AsyncBufReadExt;
use uverbs::Pool;
use uverbs::{Context, Driver, ProtectionDomain, Rc};
use uverbs::{Private, open::DriverVisitor};
use uverbs_aio::{Dispatcher, Link, Listener, Qp, RdmaStream};
use uverbs_cm::{ConnParam, EventChannel};

/// Bytes that are copied to the queue instead of a buffer: the default of a QP.
const INLINE: usize = 64;

/// A connected QP.
pub(crate) struct Queue<D: Driver> {
    qp: Qp<Rc, D>,
    pool: Pool<Private, D>,
    _link: Option<Link>,
}

impl<D: Driver> Queue<D> {
    pub(crate) fn new(qp: Qp<Rc, D>, pool: Pool<Private, D>, link: Option<Link>) -> Self {
        Self { qp, pool, _link: link }
    }
}

impl<D: Driver> Messages for Queue<D> {
    async fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        if len <= INLINE {
            let mut message = [0; INLINE];
            let message = &mut message[..len];
            fill(message);
            return Ok(self.qp.send_inline(message).detach().await?);
        }
        // The queue waits for an entry, and keeps a part of its depth: there are more buffers than entries.
        let mut buf = self.pool.get().context("no buffer")?;
        buf.set_len(len)?;
        fill(&mut buf);
        self.qp.send(buf).detach().await.map_err(|failed| failed.error.into())
    }

    async fn recv<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(read(&self.qp.recv().await?))
    }
}

impl<D: Driver> Bytes for RdmaStream<D> {
    async fn put(&mut self, len: usize, mut fill: impl FnMut(&mut [u8])) -> Result<()> {
        let mut written = 0;
        while written < len {
            written += self
                .write_with(len - written, |room| {
                    fill(room);
                    room.len()
                })
                .await?;
        }
        Ok(())
    }

    async fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let data = self.fill_buf().await?;
        let (result, len) = (read(data), data.len());
        self.consume(len);
        Ok(result)
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
        let incoming = pd.pool(2 * RECEIVES as u32, MESSAGE as u32)?;
        let pool = pd.pool(SENDS as u32 + 1, MESSAGE as u32)?;
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
