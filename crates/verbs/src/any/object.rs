// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs of the objects of each driver.

use super::{Any, Member as _, parts};
use std::sync::Arc;
use uverbs_core::attr::{
    CqModeration, Ece, FlowAttr, QpAttr, QpAttrMask, QpInitAttr, QpRateLimitAttr, SrqAttr, SrqAttrMask,
    WqAttr,
};
use uverbs_core::control::{CountersHandle, CqEvents, CqHandle, FlowHandle, QpHandle, SrqHandle, WqHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{CqObject, Notify, Object, QpEnd, QpObject, SrqObject, WqObject};

macro_rules! objects {
    ($($part:ident: $handle:ty, $reported:ty;)*) => {$(
        impl Object for Any<parts::$part> {
            type Handle = $handle;
            type Reported = $reported;

            fn handle(&self) -> &$handle {
                each!(self, object => object.handle())
            }

            fn destroy(self) -> Result<$reported, (Self, Error)> {
                each!(self, D(object) => object.destroy().map_err(|(object, error)| (D::any(object), error)))
            }
        }
    )*};
}

objects! {
    Cq: CqHandle, CqEvents;
    Srq: SrqHandle, u32;
    Wq: WqHandle, u32;
    Qp: QpHandle, QpEnd;
}

impl CqObject for Any<parts::Cq> {
    type Engine = Any<parts::CompletionQueue>;

    fn resize(&self, engine: &mut Self::Engine, cqe: u32) -> Result<u32> {
        each!(self, D(cq) => cq.resize(D::own_mut(engine)?, cqe))
    }

    fn moderate(&self, moderation: CqModeration) -> Result<()> {
        each!(self, cq => cq.moderate(moderation))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        each!(self, cq => cq.notify())
    }
}

impl SrqObject for Any<parts::Srq> {
    type Engine = Any<parts::SharedRecvQueue>;

    fn number(&self) -> Option<u32> {
        each!(self, srq => srq.number())
    }

    fn modify(&self, engine: &mut Self::Engine, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        each!(self, D(srq) => srq.modify(D::own_mut(engine)?, attr, mask))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        each!(self, srq => srq.notify())
    }
}

impl WqObject for Any<parts::Wq> {
    fn modify(&self, attr: &WqAttr) -> Result<()> {
        each!(self, wq => wq.modify(attr))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        each!(self, wq => wq.notify())
    }
}

impl QpObject for Any<parts::Qp> {
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        each!(self, qp => qp.modify(attr, mask))
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        each!(self, qp => qp.query(mask))
    }

    fn dct_number(&self) -> Option<u32> {
        each!(self, qp => qp.dct_number())
    }

    fn is_flushed(&self) -> bool {
        each!(self, qp => qp.is_flushed())
    }

    fn keep_removed(&self) {
        each!(self, qp => qp.keep_removed())
    }

    fn take_removed(&self) -> Vec<u64> {
        each!(self, qp => qp.take_removed())
    }

    fn query_ece(&self) -> Result<Ece> {
        each!(self, qp => qp.query_ece())
    }

    fn set_ece(&self, ece: Ece) -> Result<()> {
        each!(self, qp => qp.set_ece(ece))
    }

    fn modify_rate_limit(&self, attr: &QpRateLimitAttr) -> Result<()> {
        each!(self, qp => qp.modify_rate_limit(attr))
    }

    fn create_flow(&self, attr: &FlowAttr, counters: Option<&CountersHandle>) -> Result<FlowHandle> {
        each!(self, qp => qp.create_flow(attr, counters))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        each!(self, qp => qp.notify())
    }
}
