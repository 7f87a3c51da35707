// SPDX-License-Identifier: MIT OR Apache-2.0
//! The QP of a lane: connected, or one of scalable reliable datagrams (SRD).
//!
//! On a connection, the message that a batch is finished follows its WRITEs in the same doorbell, because it can't overtake them. On SRD it
//! can: it is sent when all WRITEs are complete. A WRITE of SRD that is complete is in the memory of the receiver.

use super::Plan;
use super::lanes::{Port, Way, attr};
use crate::link::LIMIT;
use anyhow::{Context as _, Result, bail};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use tokio::task::JoinSet;
use uverbs::qp::QpControl;
use uverbs::{Buf, Pool, RemoteRegion, SharedBuf, Srd, WithDeadline};
use uverbs_aio::{Destination, Message, Qp};

/// A QP and its peer.
#[derive(Debug)]
pub enum LaneQp {
    /// Connected.
    Rc(Qp),
    /// Of reliable datagrams, with the address of the other side's.
    Srd(Qp<Srd>, Destination),
}

impl LaneQp {
    /// The QP, if it is connected.
    #[must_use]
    pub fn connected(&self) -> Option<&Qp> {
        match self {
            Self::Rc(qp) => Some(qp),
            Self::Srd(..) => None,
        }
    }

    /// Its states.
    #[must_use]
    pub fn control(&self) -> &QpControl {
        match self {
            Self::Rc(qp) => qp.control(),
            Self::Srd(qp, _) => qp.control(),
        }
    }

    /// The next message of the other side.
    ///
    /// # Errors
    /// The QP has failed.
    pub async fn recv(&self) -> Result<Message, uverbs_aio::Error> {
        match self {
            Self::Rc(qp) => qp.recv().await,
            Self::Srd(qp, _) => qp.recv_from().await,
        }
    }

    /// Sends a short message. A QP of SRD does not end with a message that fails, so its completion is awaited.
    ///
    /// # Errors
    /// The QP has failed, or the other side.
    pub async fn tell(&self, message: &[u8]) -> Result<(), uverbs_aio::Error> {
        match self {
            Self::Rc(qp) => qp.send_inline(message).detach().await.map_err(|failed| failed.error),
            Self::Srd(qp, to) => match qp.send_inline_to(message, to).await {
                Ok(_) => Ok(()),
                Err(failed) => Err(failed.error),
            },
        }
    }

    /// Writes parts to the other side's memory, and then sends a message.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub async fn write_and_tell(&self, parts: Vec<(SharedBuf, RemoteRegion)>, message: Buf) -> Result<()> {
        match self {
            Self::Rc(qp) => {
                let mut list = qp.batch();
                for (part, region) in parts {
                    list.write(part, &region);
                }
                list.send(message);
                Ok(list.await?)
            }
            Self::Srd(qp, to) => {
                // All are posted at once, and complete in any order.
                let mut writes = JoinSet::new();
                for (part, region) in parts {
                    let write = qp.write_to(part, &region, to);
                    writes.spawn(async move { write.await.map(drop).map_err(|failed| failed.error) });
                }
                while let Some(written) = writes.join_next().await {
                    written??;
                }
                qp.send_to(message, to).await.map_err(|failed| failed.error)?;
                Ok(())
            }
        }
    }
}

/// A QP of SRD, after an exchange of addresses with the other side.
///
/// # Errors
/// The device has no reads and writes, or the other side does not answer.
pub(super) fn unordered(
    port: &Port,
    plan: &Plan,
    receives: u32,
    incoming: &Pool,
    stream: &TcpStream,
    way: &Way,
) -> Result<LaneQp> {
    let Way::Exchange(path) = way else { bail!("{} has no connection manager", port.nic.name()) };
    let qp = port.dispatcher.srd_qp(&port.pd).depth(plan.depth, receives).pool(incoming).create()?;
    let attr = attr(*path).on(&port.context)?;
    let here = qp.start(&attr)?;
    let mut stream = WithDeadline::new(stream, LIMIT);
    let there = here.exchange(&mut stream).context("exchange with the other side")?;
    let to = Destination::new(port.pd.create_ah(&attr.ah_attr(&there))?, there.qp_num, attr.qkey);
    // The other side has an address handle for this one before anything arrives there.
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0]).context("the other side is not ready")?;
    Ok(LaneQp::Srd(qp, to))
}
