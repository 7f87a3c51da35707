// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a QP is doing, for a person who looks for the cause of a QP that makes no progress.

use crate::flight::Flight;
use crate::qp::Qp;
use crate::qp::transport::Sends;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::{AhAttr, Gid, QpAttrMask, QpState, QpType};
use uverbs_core::error::Result;
use uverbs_core::provider::Driver;
use uverbs_core::sync::Locking;
use uverbs_core::sync::in_flight::STEP;
use uverbs_core::wc::WcError;

/// The state of a QP and of its queues; [`Qp::dump`]. `Display` prints it in a few lines.
#[derive(Debug)]
#[non_exhaustive]
pub struct QpDump {
    /// The device.
    pub device: Arc<str>,
    /// The QP's number.
    pub qp_num: u32,
    /// Its type.
    pub qp_type: QpType,
    /// The state, and the peer (its QP number and GID; `None` before RTR and of datagram QPs), as the kernel reports them, or why it
    /// does not.
    pub state: Result<(QpState, Option<(u32, Gid)>)>,
    /// The send queue.
    pub send: QueueDump,
    /// The receive queue; `None` if an SRQ takes the receives.
    pub recv: Option<QueueDump>,
    /// Whether the device was removed, as far as it is known.
    pub is_removed: bool,
}

/// The indices of a queue. Other threads that post and poll change them meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDump {
    /// The work requests for which it was created.
    pub depth: u32,
    /// The number of work requests that were posted (head), modulo 2^30.
    pub posted: u32,
    /// Those that are not known to be complete. A send without a completion of its own is, until a later one completes.
    pub in_flight: u32,
    /// How many work requests were posted after the oldest one in flight. Of sends, the tail is `posted - 1 - oldest`.
    pub oldest: Option<u32>,
    /// The last error that a completion reported to the program.
    pub last_error: Option<WcError>,
}

impl QueueDump {
    fn of<D: Driver>(flight: &Flight<D>) -> Self {
        Self {
            depth: flight.label.name().depth(),
            posted: flight.slab.next_count() / STEP,
            in_flight: flight.slab.len() as u32,
            oldest: flight.slab.age(),
            last_error: flight.last_error(),
        }
    }

    /// The room: how many can be posted.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.depth.saturating_sub(self.in_flight)
    }
}

impl fmt::Display for QueueDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { depth, posted, in_flight, oldest, last_error } = self;
        write!(f, "posted {posted}, in flight {in_flight}, free {} of {depth}", self.free())?;
        if let Some(oldest) = oldest {
            write!(f, ", the oldest is {oldest} before the last")?;
        }
        match last_error {
            Some(error) => write!(f, ", last error: {error}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for QpDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, qp_num, qp_type, state, send, recv, is_removed } = self;
        write!(f, "qp {qp_num:#x} ({qp_type:?}) of {device}: ")?;
        match state {
            Ok((state, None)) => write!(f, "{state:?}")?,
            Ok((state, Some((qp_num, gid)))) => write!(f, "{state:?}, peer qp {qp_num:#x} at {gid}")?,
            Err(error) => write!(f, "{error}")?,
        }
        if *is_removed {
            f.write_str(", the device was removed")?;
        }
        write!(f, "\n  send: {send}")?;
        match recv {
            Some(recv) => write!(f, "\n  recv: {recv}"),
            None => Ok(()),
        }
    }
}

impl<D: Driver, T: Sends, L: Locking> Qp<T, L, D> {
    /// The state of the QP and of its queues. Asks the kernel, and looks at each slot of the queues: not for the data path.
    #[must_use]
    pub fn dump(&self) -> QpDump {
        let context = self.control.context();
        let mask = QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::DEST_QPN;
        let state = self.control.query(mask).map(|(attr, _)| {
            let AhAttr { grh, .. } = attr.ah_attr;
            let gid = grh.map_or(Gid::ZERO, |grh| grh.dgid);
            (attr.qp_state, (attr.dest_qp_num != 0).then_some((attr.dest_qp_num, gid)))
        });
        QpDump {
            device: context.name().clone(),
            qp_num: self.qp_num(),
            qp_type: T::QP_TYPE,
            state,
            send: QueueDump::of(self.send.flight()),
            recv: self.recv.as_ref().map(|recv| QueueDump::of(recv.flight())),
            is_removed: context.removal().is_removed(),
        }
    }
}
