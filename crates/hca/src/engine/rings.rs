// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a QP's queues, for a person who reads their entries.

use super::Device;
use super::qp::{Qp, QpKind};
use uverbs_fabric::ring::{Queue, RingDump};

/// The name of a QP's type in `uverbs decode`.
const fn kind_name(kind: QpKind) -> &'static str {
    match kind {
        QpKind::Rc => "rc",
        QpKind::Uc => "uc",
        QpKind::Ud => "ud",
        QpKind::XrcSend | QpKind::XrcRecv => "xrc",
        QpKind::Dci | QpKind::Dct => "dci",
        QpKind::Raw => "raw",
        QpKind::Keys => "keys",
    }
}

impl Device {
    /// The memory of a queue of the QP with this number; `None` if there is none.
    pub(super) fn dump(&self, qpn: u32, queue: Queue) -> Option<RingDump> {
        let qp: &Qp = self.qps.get(&qpn)?;
        let kind = kind_name(qp.kind);
        let cq = |cqn: u32| {
            let cq = self.cqs.get(&cqn)?;
            let (area, stride) = cq.memory();
            let count = u32::try_from(area.size()).ok()?.checked_div(stride)?;
            RingDump::read(area, ("mlx5", "cqe", kind), stride, cq.producer().checked_rem(count)?)
        };
        match queue {
            Queue::Send => {
                let sq = qp.sq.as_ref()?;
                RingDump::read(
                    &sq.ring,
                    ("mlx5", "wqe", kind),
                    64,
                    u32::from(sq.next) & sq.count.wrapping_sub(1),
                )
            }
            Queue::Recv => match (&qp.rq, qp.srqn) {
                (Some(rq), _) => {
                    let stride = u32::try_from(rq.stride).ok()?;
                    RingDump::read(
                        &rq.ring,
                        ("mlx5", "recv", kind),
                        stride,
                        u32::from(rq.taken) & rq.count.wrapping_sub(1),
                    )
                }
                (None, Some(srqn)) => {
                    let srq = self.srqs.get(&srqn)?;
                    let stride = u32::try_from(srq.stride).ok()?;
                    RingDump::read(
                        &srq.ring,
                        ("mlx5", "srq", kind),
                        stride,
                        u32::from(srq.head) & srq.count.wrapping_sub(1),
                    )
                }
                (None, None) => None,
            },
            Queue::SendCq => cq(qp.send_cqn),
            Queue::RecvCq => cq(qp.recv_cqn),
        }
    }
}
