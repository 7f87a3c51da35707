// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ping-pongs of datagrams: UD, and SRD, which is reliable. A receive of UD must have room for the 40 bytes in front of each datagram.
#![expect(unsafe_code)]
// UNSAFETY: sets a datagram's destination in a `wr_*` session.

use super::cm::ByCm;
use super::completions::Completions;
use super::drive::Queues;
use super::ledger::SEND_WRID;
use super::message::Message;
use super::options::Options;
use anyhow::{Context as _, Result};
use uverbs::qp::QpControl;
use uverbs::qp::transport::{Datagram, Receives, Sends, Transport};
use uverbs::{AddressHandle, ConnectAttr, Driver, Endpoint, PostError, ProtectionDomain, Ud, raw::Qp};
use uverbs::{Exclusive, attr::AhAttr};

/// Hops of a datagram, as the C program sets them.
pub(crate) const HOP_LIMIT: u8 = 64;

/// A datagram QP, its destination, and its message. (The QP is dropped first, because it must be destroyed before the
/// message's buffer is freed.)
#[derive(Debug)]
pub(crate) struct Datagrams<D: Driver, T: Transport = Ud> {
    qp: Qp<T, Exclusive, D>,
    /// Handle and QP of the peer, once it is known.
    peer: Option<(AddressHandle<D>, u32)>,
    message: Message<D>,
    pd: ProtectionDomain<D>,
    attr: ConnectAttr,
}

impl<D: Driver, T: Datagram + Sends + Receives> Datagrams<D, T> {
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
        Ok(Self { qp, peer: None, message, pd: pd.clone(), attr })
    }
}

impl<D: Driver, T: Datagram + Sends + Receives> ByCm<D> for Datagrams<D, T> {
    fn control(&self, _: usize) -> Result<&QpControl<D>> {
        Ok(&self.qp.control)
    }

    fn set_peer(&mut self, attr: &AhAttr, qp_num: u32, qkey: u32) -> Result<()> {
        self.peer = Some((self.pd.create_ah(attr)?, qp_num));
        self.attr.qkey = qkey;
        Ok(())
    }
}

impl<D: Driver, T: Datagram + Sends + Receives> Queues for Datagrams<D, T> {
    fn qp_nums(&self) -> Vec<u32> {
        vec![self.qp.qp_num()]
    }

    fn num_endpoints(&self) -> usize {
        1
    }

    fn connect(&mut self, local: &[Endpoint], remote: &[Endpoint]) -> Result<()> {
        for (local, remote) in local.iter().zip(remote) {
            self.qp.connect(local, remote, &self.attr)?;
            self.peer = Some((self.pd.create_ah(&self.attr.ah_attr(remote))?, remote.qp_num));
        }
        Ok(())
    }

    fn post_recv(&mut self, count: u32) -> Result<()> {
        self.message.post_recv(self.qp.rq()?.batch(), count).context("post_recv")
    }

    fn post_send(&mut self, _: usize) -> Result<()> {
        let (ah, qpn) = self.peer.as_ref().ok_or(PostError::BadState).context("post_send")?;
        let (sq, qkey) = (self.qp.sq(), self.attr.qkey);
        if self.message.uses_builder() {
            self.message.build(sq.qp_ex(), |qp| {
                // SAFETY: inside the session; the handle is this driver's and lives as long as `peer`.
                unsafe { qp.wr_set_ud_addr(ah.as_raw(), *qpn, qkey) };
            })
        } else {
            self.message.post(sq.post_to(SEND_WRID, ah, *qpn, qkey))
        }
    }

    fn close(self) -> Result<()> {
        self.qp.close().context("cannot destroy the QP")?;
        match self.peer {
            Some((ah, _)) => ah.close().context("cannot destroy the AH"),
            None => Ok(()),
        }
    }
}
