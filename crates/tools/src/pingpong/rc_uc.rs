// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ping-pong of one connected QP: RC and UC.

use super::cm::ByCm;
use super::completions::Completions;
use super::drive::Queues;
use super::message::Message;
use super::options::Options;
use anyhow::{Context as _, Result};
use uverbs::qp::transport::{Connected, Receives, Sends};
use uverbs::{ConnectAttr, Driver, Endpoint, ProtectionDomain, raw::Qp};
use uverbs::{Exclusive, qp::QpControl};

/// A connected QP and its message. (The QP is dropped first, because it must be destroyed before the message's buffer
/// is freed.)
#[derive(Debug)]
pub(crate) struct OneConnected<D: Driver, T: Connected + Sends + Receives> {
    qp: Qp<T, Exclusive, D>,
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
        let qp = message.create_qp(pd, completions, options)?;
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
        self.message.send(self.qp.sq())
    }

    fn close(self) -> Result<()> {
        self.qp.close().context("cannot destroy the QP")
    }
}
