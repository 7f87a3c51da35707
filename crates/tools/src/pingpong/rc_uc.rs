// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ping-pong of one connected QP: RC and UC.

use super::by_option;
use super::cm::ByCm;
use super::completions::Completions;
use super::drive::Queues;
use super::ledger::SEND_WRID;
use super::message::Message;
use super::options::Options;
use anyhow::{Context as _, Result};
use uverbs::attr::QpCap;
use uverbs::qp::QpControl;
use uverbs::qp::transport::{Connected, Receives, Sends};
use uverbs::{ConnectAttr, Driver, Endpoint, ProtectionDomain, Qp};

/// A connected QP and its message. (The QP is dropped first, because it must be destroyed before the message's buffer
/// is freed.)
#[derive(Debug)]
pub(crate) struct OneConnected<D: Driver, T: Connected + Sends + Receives> {
    qp: Qp<D, T>,
    message: Message<D>,
    attr: ConnectAttr,
}

impl<D: Driver, T: Connected + Sends + Receives> OneConnected<D, T> {
    /// Creates the QP, in INIT.
    pub(crate) fn new(
        pd: &ProtectionDomain<D>,
        completions: &Completions<D>,
        message: Message<D>,
        options: &Options,
        attr: ConnectAttr,
    ) -> Result<Self> {
        let queues = Self::in_reset(pd, completions, message, options, attr)?;
        queues.qp.init(&queues.attr)?;
        Ok(queues)
    }

    /// Creates the QP, in RESET.
    pub(crate) fn in_reset(
        pd: &ProtectionDomain<D>,
        completions: &Completions<D>,
        mut message: Message<D>,
        options: &Options,
        attr: ConnectAttr,
    ) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: options.common.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let builder = pd.qp::<T>().cq(completions.cq()).cap(cap).send_ops(message.send_ops());
        let qp = builder.create().map_err(by_option)?;
        message.fit_inline(qp.cap());
        Ok(Self { qp, message, attr })
    }
}

impl<D: Driver, T: Connected + Sends + Receives> ByCm<D> for OneConnected<D, T> {
    fn control(&self, _: usize) -> Result<&QpControl<D>> {
        Ok(&self.qp.control)
    }
}

impl<D: Driver, T: Connected + Sends + Receives> Queues for OneConnected<D, T> {
    fn qp_nums(&self) -> Vec<u32> {
        vec![self.qp.qp_num()]
    }

    fn num_endpoints(&self) -> usize {
        1
    }

    fn connect(&mut self, local: &[Endpoint], remote: &[Endpoint]) -> Result<()> {
        for (local, remote) in local.iter().zip(remote) {
            self.qp.connect(local, remote, &self.attr)?;
        }
        Ok(())
    }

    fn post_recv(&mut self, count: u32) -> Result<()> {
        self.message.post_recv(self.qp.rq()?.batch(), count).context("post_recv")
    }

    fn post_send(&mut self, _: usize) -> Result<()> {
        let sq = self.qp.sq()?;
        if self.message.uses_builder() {
            self.message.build(sq.qp_ex(), |_| ())
        } else {
            self.message.post(sq.post(SEND_WRID))
        }
    }

    fn close(self) -> Result<()> {
        self.qp.close().context("cannot destroy the QP")
    }
}
