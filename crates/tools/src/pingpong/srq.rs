// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ping-pong of several RC QPs that take their receives from one shared queue.

use super::by_option;
use super::cm::ByCm;
use super::completions::Completions;
use super::drive::Queues;
use super::message::Message;
use super::options::{Options, SRQ_ENDPOINTS};
use anyhow::{Context as _, Result, anyhow};
use uverbs::attr::{QpCap, SrqAttr, SrqInitAttr};
use uverbs::qp::QpControl;
use uverbs::{
    ConnectAttr, Driver, Endpoint, Exclusive, ProtectionDomain, Rc,
    raw::{Qp, Srq},
};

/// The QPs, their receive queue, and the message. (They are dropped in this order, because the buffer must be freed
/// last.)
#[derive(Debug)]
pub(crate) struct SharedReceives<D: Driver> {
    qps: Vec<Qp<Rc, Exclusive, D>>,
    srq: Srq<Exclusive, D>,
    message: Message<D>,
    attr: ConnectAttr,
}

impl<D: Driver> SharedReceives<D> {
    /// Creates the queues; the QPs are in INIT.
    pub(crate) fn new(
        pd: &ProtectionDomain<D>,
        completions: &Completions<D>,
        message: Message<D>,
        options: &Options,
        attr: ConnectAttr,
    ) -> Result<Self> {
        let queues = Self::in_reset(pd, completions, message, options, attr)?;
        for (i, qp) in queues.qps.iter().enumerate() {
            qp.init(&queues.attr).with_context(|| format!("QP {i}"))?;
        }
        Ok(queues)
    }

    /// Creates the queues; the QPs are in RESET.
    pub(crate) fn in_reset(
        pd: &ProtectionDomain<D>,
        completions: &Completions<D>,
        mut message: Message<D>,
        options: &Options,
        attr: ConnectAttr,
    ) -> Result<Self> {
        let sizes = SrqAttr::new(options.common.rx_depth);
        let srq = pd.create_srq(&SrqInitAttr::new(sizes)).map_err(by_option)?;
        let cap = QpCap::new(1, 0).sge(1, 0);
        let mut qps = Vec::with_capacity(options.num_qp.into());
        for i in 0..options.num_qp {
            let builder =
                pd.raw_qp::<Rc>().cq(completions.cq()).srq(&srq).cap(cap).send_ops(message.send_ops());
            let qp = builder.create().with_context(|| format!("QP {i}"))?;
            message.fit_inline(qp.cap());
            qps.push(qp);
        }
        Ok(Self { qps, srq, message, attr })
    }
}

impl<D: Driver> ByCm<D> for SharedReceives<D> {
    fn control(&self, index: usize) -> Result<&QpControl<D>> {
        self.qps.get(index).map(|qp| &qp.control).with_context(|| format!("there is no QP {index}"))
    }
}

impl<D: Driver> Queues for SharedReceives<D> {
    fn qp_nums(&self) -> Vec<u32> {
        self.qps.iter().map(Qp::qp_num).collect()
    }

    fn num_endpoints(&self) -> usize {
        SRQ_ENDPOINTS
    }

    fn connect(&mut self, local: &[Endpoint], remote: &[Endpoint]) -> Result<()> {
        for (i, (qp, (local, remote))) in self.qps.iter().zip(local.iter().zip(remote)).enumerate() {
            qp.connect(local, remote, &self.attr).with_context(|| format!("QP {i}"))?;
        }
        Ok(())
    }

    fn post_recv(&mut self, count: u32) -> Result<()> {
        self.message.post_recv(self.srq.batch(), count).context("post_srq_recv")
    }

    fn post_send(&mut self, index: usize) -> Result<()> {
        let qp = self.qps.get_mut(index).ok_or_else(|| anyhow!("there is no QP {index}"))?;
        self.message.send(qp.sq())
    }

    fn close(self) -> Result<()> {
        for (i, qp) in self.qps.into_iter().enumerate() {
            qp.close().with_context(|| format!("cannot destroy QP {i}"))?;
        }
        Ok(())
    }
}
