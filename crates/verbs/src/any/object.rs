// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of each driver.

use super::completion::AnyCompletionQueue;
use super::{Any, AnyDriver, Mlx5, Rxe, Siw, foreign};
use std::sync::Arc;
use uverbs_core::attr::{
    CqModeration, Ece, FlowAttr, QpAttr, QpAttrMask, QpInitAttr, QpRateLimitAttr, SrqAttr, SrqAttrMask,
    WqAttr,
};
use uverbs_core::control::{CountersHandle, FlowHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{CqObject, Driver, Notify, Object, QpObject, SrqObject, WqObject};

/// A completion queue.
pub(super) type AnyCq = Any<<Mlx5 as Driver>::Cq, <Rxe as Driver>::Cq, <Siw as Driver>::Cq>;

/// A shared receive queue.
pub(super) type AnySrq = Any<<Mlx5 as Driver>::Srq, <Rxe as Driver>::Srq, <Siw as Driver>::Srq>;
/// A work queue.
pub(super) type AnyWq = Any<<Mlx5 as Driver>::Wq, <Rxe as Driver>::Wq, <Siw as Driver>::Wq>;
/// A QP.
pub(super) type AnyQp = Any<<Mlx5 as Driver>::Qp, <Rxe as Driver>::Qp, <Siw as Driver>::Qp>;

/// The same verb of the object that the device has.
macro_rules! forward {
    ($self:ident.$verb:ident($($arg:expr),*)) => {
        match $self {
            Self::Mlx5(object) => object.$verb($($arg),*),
            Self::Rxe(object) => object.$verb($($arg),*),
            Self::Siw(object) => object.$verb($($arg),*),
        }
    };
}

/// As `forward`, for a verb with an engine.
macro_rules! forward_with {
    ($self:ident.$verb:ident($engine:ident, $($arg:expr),*)) => {
        match ($self, $engine) {
            (Self::Mlx5(object), Any::Mlx5(engine)) => object.$verb(engine, $($arg),*),
            (Self::Rxe(object), Any::Rxe(engine)) => object.$verb(engine, $($arg),*),
            (Self::Siw(object), Any::Siw(engine)) => object.$verb(engine, $($arg),*),
            _ => Err(foreign()),
        }
    };
}

impl<M, R, S> Object for Any<M, R, S>
where
    M: Object,
    R: Object<Handle = M::Handle, Reported = M::Reported>,
    S: Object<Handle = M::Handle, Reported = M::Reported>,
{
    type Handle = M::Handle;
    type Reported = M::Reported;

    fn handle(&self) -> &M::Handle {
        forward!(self.handle())
    }

    fn destroy(self) -> Result<M::Reported, (Self, Error)> {
        match self {
            Self::Mlx5(object) => object.destroy().map_err(|(object, error)| (Self::Mlx5(object), error)),
            Self::Rxe(object) => object.destroy().map_err(|(object, error)| (Self::Rxe(object), error)),
            Self::Siw(object) => object.destroy().map_err(|(object, error)| (Self::Siw(object), error)),
        }
    }
}

impl CqObject for AnyCq {
    type Engine = AnyCompletionQueue;

    fn resize(&self, engine: &mut AnyCompletionQueue, cqe: u32) -> Result<u32> {
        forward_with!(self.resize(engine, cqe))
    }

    fn moderate(&self, moderation: CqModeration) -> Result<()> {
        forward!(self.moderate(moderation))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        forward!(self.notify())
    }
}

impl SrqObject for AnySrq {
    type Engine = <AnyDriver as Driver>::SharedRecvQueue;

    fn number(&self) -> Option<u32> {
        forward!(self.number())
    }

    fn modify(&self, engine: &mut Self::Engine, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        forward_with!(self.modify(engine, attr, mask))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        forward!(self.notify())
    }
}

impl WqObject for AnyWq {
    fn modify(&self, attr: &WqAttr) -> Result<()> {
        forward!(self.modify(attr))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        forward!(self.notify())
    }
}

impl QpObject for AnyQp {
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        forward!(self.modify(attr, mask))
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        forward!(self.query(mask))
    }

    fn dct_number(&self) -> Option<u32> {
        forward!(self.dct_number())
    }

    fn is_flushed(&self) -> bool {
        forward!(self.is_flushed())
    }

    fn keep_removed(&self) {
        forward!(self.keep_removed())
    }

    fn take_removed(&self) -> Vec<u64> {
        forward!(self.take_removed())
    }

    fn query_ece(&self) -> Result<Ece> {
        forward!(self.query_ece())
    }

    fn set_ece(&self, ece: Ece) -> Result<()> {
        forward!(self.set_ece(ece))
    }

    fn modify_rate_limit(&self, attr: &QpRateLimitAttr) -> Result<()> {
        forward!(self.modify_rate_limit(attr))
    }

    fn create_flow(&self, attr: &FlowAttr, counters: Option<&CountersHandle>) -> Result<FlowHandle> {
        forward!(self.create_flow(attr, counters))
    }

    fn notify(&self) -> Arc<dyn Notify> {
        forward!(self.notify())
    }
}
