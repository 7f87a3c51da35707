// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interfaces and transports of the selftest, and posts on each of them.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests. All entries name regions of the selftest, which live longer than its QPs, also those
// that windows are bound over, and are reached by this process by atomics and copies only. One thread uses each queue.

use uverbs::provider::recv::RecvQueue;
use uverbs::raw::RecvBatch;
use uverbs::wr::Sge;
use uverbs::{
    ConnectAttr, DcTarget, Dci, Driver, Endpoint, PostError, ProtectionDomain, Rc, Shared, Srd, Uc, Ud,
    XrcSend,
    raw::{Cq, Srq},
};
use uverbs::{Exclusive, provider::DcDriver};
use uverbs::{qp::QpControl, raw::Qp};
use uverbs_testkit::Refused;
use uverbs_testkit::verbs::{self, Lock, Req, Typed};

/// The key of the DC targets.
pub(super) const DC_KEY: u64 = 0x1122_3344_5566_7788;

/// The objects of a DC target.
pub(super) struct Parts<'a, D: Driver> {
    pub(super) pd: &'a ProtectionDomain<D>,
    pub(super) cq: &'a Cq<Shared, D>,
    pub(super) srq: &'a Srq<Exclusive, D>,
}

/// A DC target.
#[derive(Debug)]
pub(super) struct Target<D: Driver> {
    _dct: DcTarget<D>,
    pub(super) number: u32,
}

/// An interface for posts; a column of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    /// `ibv_post_send`: a list of one.
    List,
    /// `ibv_wr_start` .. `ibv_wr_complete`.
    Builder,
    /// A typed batch of one.
    Batch,
    /// A typed post.
    Post,
    /// A typed batch of one, behind the lock of a shared queue.
    Locked,
}

impl Face {
    pub(super) const ALL: [Self; 5] = [Self::List, Self::Builder, Self::Batch, Self::Post, Self::Locked];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::List => "post_send",
            Self::Builder => "wr_*",
            Self::Batch => "batch",
            Self::Post => "post",
            Self::Locked => "locked",
        }
    }
}

/// A transport of the selftest, of drivers that have it.
pub(super) trait Kind<D: Driver>: Typed<D> {
    /// The DC target that receives for it, if it is a DC initiator.
    fn target(
        parts: &Parts<'_, D>,
        attr: &ConnectAttr,
        here: &Endpoint,
    ) -> uverbs::Result<Option<Target<D>>> {
        let _ = (parts, attr, here);
        Ok(None)
    }
    /// The sender from RESET to RTS.
    fn connect(
        control: &QpControl<D>,
        here: &Endpoint,
        there: &Endpoint,
        attr: &ConnectAttr,
    ) -> uverbs::Result<()> {
        control.init(attr)?;
        control.connect(here, there, attr)
    }
}

impl<D: Driver> Kind<D> for Rc {}
impl<D: Driver> Kind<D> for Uc {}
impl<D: Driver> Kind<D> for Ud {}
impl<D: Driver> Kind<D> for XrcSend {}
impl<D: Driver> Kind<D> for Srd {}

impl<D: DcDriver> Kind<D> for Dci {
    fn target(
        parts: &Parts<'_, D>,
        attr: &ConnectAttr,
        here: &Endpoint,
    ) -> uverbs::Result<Option<Target<D>>> {
        let target = parts.pd.create_dct(parts.cq, parts.srq, DC_KEY)?;
        let number = target.connect(attr, &attr.ah_attr(here))?;
        Ok(Some(Target { _dct: target, number }))
    }
    fn connect(control: &QpControl<D>, _: &Endpoint, _: &Endpoint, attr: &ConnectAttr) -> uverbs::Result<()> {
        control.connect_dci(attr)
    }
}

/// Posts a request.
pub(super) fn post<D: Driver, T: Kind<D>, L: Lock>(
    qp: &mut Qp<T, L, D>,
    face: Face,
    req: Req<'_, D>,
) -> Result<(), Refused> {
    let face = match face {
        Face::List => verbs::Face::List,
        Face::Builder => verbs::Face::Builder,
        Face::Post => verbs::Face::Single,
        Face::Batch | Face::Locked => verbs::Face::Batch,
    };
    // SAFETY: entries and windows name regions of the selftest, which live longer than its QPs. One thread uses the queue.
    unsafe { verbs::post(qp.sq_mut(), face, &[req]) }
}

/// Posts a receive.
pub(super) fn post_recv<Q: RecvQueue>(
    batch: RecvBatch<'_, Q>,
    wr_id: u64,
    sges: &[Sge],
) -> Result<(), PostError> {
    // SAFETY: the entries name regions of the selftest, which live longer than its queues. One thread uses the queue.
    unsafe { verbs::recv_batch(batch, &[(wr_id, sges)]) }
}
