// SPDX-License-Identifier: MIT OR Apache-2.0
//! The message of a ping-pong: it is posted, and its receives are. The code differs between transports only in the
//! destination.
#![expect(unsafe_code)]
// UNSAFETY: posts scatter/gather entries and calls the `wr_*` builders.

use super::buffer::Buffer;
use super::by_option;
use super::completions::Completions;
use super::ledger::{RECV_WRID, SEND_WRID};
use super::options::Options;
use anyhow::{Context as _, Result};
use std::sync::Arc;
use uverbs::provider::WireSge;
use uverbs::provider::raw::QpEx;
use uverbs::provider::recv::RecvQueue;
use uverbs::qp::transport::{Connected, Sends};
use uverbs::raw::RecvBatch;
use uverbs::raw::SendQueue;
use uverbs::raw::{AtOnce, Wr};
use uverbs::{Driver, ProtectionDomain, QueueError, SendFlags, raw::Qp};
use uverbs::{
    Exclusive,
    attr::{QpCap, SendOpsFlags},
};

/// The message and how it is sent.
///
/// It keeps the buffer alive. Queues that have a `Message` are dropped before it, so they can post its bytes at any
/// time. (Otherwise the region would still be deregistered before its memory is freed, so an access of the device would
/// fail.) Only the device and [`Buffer`]'s copies (atomic, byte by byte) access the buffer, and any bytes are valid.
#[derive(Debug)]
pub(crate) struct Message<D: Driver> {
    buffer: Arc<Buffer<D>>,
    send: D::Sge,
    recv: D::Sge,
    /// Room for the bytes if they are sent inline.
    inline: Option<Vec<u8>>,
    new_send: bool,
}

impl<D: Driver> Message<D> {
    /// Sent by the `wr_*` builders if `new_send`; never inline before [`Message::fit_inline`].
    pub(crate) fn new(buffer: &Arc<Buffer<D>>, new_send: bool) -> Result<Self> {
        Ok(Self {
            send: buffer.send_sge()?,
            recv: buffer.recv_sge()?,
            buffer: buffer.clone(),
            inline: None,
            new_send,
        })
    }

    /// The operations that QPs need to send it.
    pub(crate) fn send_ops(&self) -> SendOpsFlags {
        if self.new_send { SendOpsFlags::SEND } else { SendOpsFlags::empty() }
    }

    /// Creates a QP in RESET that sends and receives it, with the sizes of the C programs' queues.
    pub(crate) fn create_qp<T: Sends>(
        &mut self,
        pd: &ProtectionDomain<D>,
        completions: &Completions<D>,
        options: &Options,
    ) -> Result<Qp<T, Exclusive, D>> {
        let cap = QpCap::new(1, options.common.rx_depth);
        let builder = pd.raw_qp::<T>().cq(completions.cq()).cap(cap).send_ops(self.send_ops());
        let qp = builder.create().map_err(by_option)?;
        self.fit_inline(qp.cap());
        Ok(qp)
    }

    /// Sends it inline if it fits into a QP with these sizes.
    pub(crate) fn fit_inline(&mut self, cap: &QpCap) {
        let size = self.send.length();
        self.inline = (size <= cap.max_inline_data).then(|| vec![0; size as usize]);
    }

    /// Whether sends are posted by the builders.
    pub(crate) fn uses_builder(&self) -> bool {
        self.new_send
    }

    /// Posts it to the peer of a connected QP.
    pub(crate) fn send<T: Connected + Sends>(&mut self, sq: &mut SendQueue<T, Exclusive, D>) -> Result<()> {
        if self.uses_builder() { self.build(sq.qp_ex(), |_| ()) } else { self.post(sq.post(SEND_WRID)) }
    }

    /// Posts it by the typed face.
    pub(crate) fn post<T: Sends>(&mut self, wr: Wr<'_, AtOnce<'_, D>, T, D>) -> Result<()> {
        let wr = wr.signaled();
        let posted = match &mut self.inline {
            Some(bytes) => {
                self.buffer.copy_to(bytes)?;
                wr.send_inline(bytes)
            }
            // SAFETY: the buffer is registered; it outlives the QP, which is dropped before this `Message`.
            None => unsafe { wr.send(&[self.send]) },
        };
        posted.context("post_send")
    }

    /// Posts it by the builders. `address` sets the destination of a datagram.
    pub(crate) fn build(&mut self, qp: Option<QpEx<'_>>, address: impl FnOnce(&mut QpEx<'_>)) -> Result<()> {
        let mut qp = qp.context("the QP has no wr_* builders")?;
        if let Some(bytes) = &mut self.inline {
            self.buffer.copy_to(bytes)?;
        }
        qp.wr_id = SEND_WRID;
        qp.wr_flags = SendFlags::SIGNALED.bits();
        // SAFETY: this thread alone uses the QP.
        unsafe { qp.wr_start() };
        // SAFETY: inside the session.
        unsafe { qp.wr_send() };
        address(&mut qp);
        match &self.inline {
            // SAFETY: inside the session; the bytes are readable and copied by the call.
            Some(bytes) => unsafe { qp.wr_set_inline_data(bytes.as_ptr(), bytes.len()) },
            None => {
                let (lkey, addr, length) = (self.send.lkey(), self.send.addr(), self.send.length());
                // SAFETY: inside the session; the buffer is registered; it outlives the QP, which is dropped before this
                // `Message`.
                unsafe { qp.wr_set_sge(lkey, addr, length) };
            }
        }
        // SAFETY: this thread opened the session.
        unsafe { qp.wr_complete() }.context("wr_complete")
    }

    /// Posts receives of it.
    pub(crate) fn post_recv<Q: RecvQueue<Sge = D::Sge>>(
        &self,
        mut batch: RecvBatch<'_, Q>,
        count: u32,
    ) -> Result<(), QueueError> {
        for _ in 0..count {
            // SAFETY: the buffer is registered for local writes; it outlives the queue, which is dropped before this
            // `Message`.
            unsafe { batch.push(RECV_WRID, &[self.recv]) };
        }
        batch.complete()
    }
}
