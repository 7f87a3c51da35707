// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules, which select the received packets that a raw packet QP gets, and counters of these packets
//! (ibv_create_flow(3), ibv_create_counters(3)).

use crate::brief::brief;
use crate::context::{Context, ContextInner, same_context};
use crate::open::AnyDriver;
use crate::qp::QpControl;
use crate::raw::wq::RssQp;
use std::sync::Arc;
use uverbs_core::attr::{CounterAttachAttr, FlowAttr};
use uverbs_core::control::{self, CountersHandle, FlowHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, QpObject};

/// The kernel object of a set of counters; rules hold it, so it outlives them.
struct CountersInner<D: Driver> {
    handle: Option<CountersHandle>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] CountersInner<D>, |this| "Counters {:?} of {}", this.handle.as_ref().map(CountersHandle::handle), this.context.name());

impl<D: Driver> CountersInner<D> {
    fn handle(&self) -> Result<&CountersHandle> {
        self.handle.as_ref().ok_or_else(|| Error::invalid("counters", "handle", "the counters are destroyed"))
    }
}

impl<D: Driver> Drop for CountersInner<D> {
    fn drop(&mut self) {
        if let Some(Err((_, error))) = self.handle.take().map(CountersHandle::destroy) {
            log::error!("{error}");
        }
    }
}

/// A set of counters of the packets that steering rules match. A rule that uses the set holds a reference to it.
///
/// First [`attach`](Self::attach) adds the counters to the set. Then rules are created with the set
/// ([`QpControl::create_flow_counted`]). The values can be read as long as such a rule exists.
pub struct Counters<D: Driver = AnyDriver> {
    inner: Arc<CountersInner<D>>,
}

brief!([D: Driver] Counters<D>, |this| "{:?}", this.inner);

impl<D: Driver> Context<D> {
    /// `ibv_create_counters`: an empty set of counters.
    ///
    /// # Errors
    /// `Unsupported` if the device or the kernel does not count packets of rules; otherwise the kernel's error.
    pub fn create_counters(&self) -> Result<Counters<D>> {
        let handle = Some(control::counters::create(self.kernel())?);
        Ok(Counters { inner: Arc::new(CountersInner { handle, context: self.inner().clone() }) })
    }
}

impl<D: Driver> Counters<D> {
    /// `ibv_attach_counters_point_flow` without a flow: adds a counter. No rule may use the set yet (otherwise
    /// `EBUSY`).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attach(&self, attr: CounterAttachAttr) -> Result<()> {
        self.inner.handle()?.attach(attr)
    }

    /// `ibv_read_counters`: the values, each at the index of its counter. `prefer_cached` allows values that the kernel
    /// has cached.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, values: &mut [u64], prefer_cached: bool) -> Result<()> {
        self.inner.handle()?.read(values, prefer_cached)
    }
}

/// An object that must outlive a rule: its QP or its counters.
trait Target: Send + Sync + core::fmt::Debug {}
impl<T: Send + Sync + core::fmt::Debug> Target for T {}

/// A steering rule. It is removed when this value is dropped; it holds references to its QP and its counters.
pub struct Flow {
    handle: Option<FlowHandle>,
    _keep: Arc<dyn Target>,
}

brief!([] Flow, |this| "Flow {:?}", this.handle.as_ref().map(FlowHandle::handle));

impl Flow {
    fn create<D: Driver>(
        context: &Arc<ContextInner<D>>,
        qp: &impl QpObject,
        attr: &FlowAttr,
        counters: Option<&Counters<D>>,
        target: impl Target + 'static,
    ) -> Result<Self> {
        let counters = counters.map(|counters| &counters.inner);
        if let Some(counters) = counters {
            same_context(context, &counters.context, "create_flow", "counters")?;
        }
        let handle = qp.create_flow(attr, counters.map(|c| c.handle()).transpose()?)?;
        Ok(Self { handle: Some(handle), _keep: Arc::new((target, counters.cloned())) })
    }

    /// `ibv_destroy_flow`: removes the rule and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), Error> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        handle.destroy().map_err(|(_, error)| error)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("{error}");
        }
    }
}

impl<D: Driver> QpControl<D> {
    /// `ibv_create_flow`: delivers the packets that `attr` matches to this QP, which must be a raw packet QP. Needs
    /// `CAP_NET_RAW`.
    ///
    /// # Errors
    /// An invalid port, more specifications than the kernel accepts, or the kernel's error: `EPERM` without
    /// `CAP_NET_RAW`.
    pub fn create_flow(&self, attr: &FlowAttr) -> Result<Flow> {
        Flow::create(self.context(), self.object()?, attr, None, self.clone())
    }

    /// `ibv_create_flow` with `IBV_FLOW_SPEC_ACTION_COUNT`: as [`create_flow`](Self::create_flow), and counts the
    /// packets in `counters`.
    ///
    /// # Errors
    /// As `create_flow`.
    pub fn create_flow_counted(&self, attr: &FlowAttr, counters: &Counters<D>) -> Result<Flow> {
        Flow::create(self.context(), self.object()?, attr, Some(counters), self.clone())
    }
}

impl<D: Driver> RssQp<D> {
    /// `ibv_create_flow`: spreads the packets that `attr` matches. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// An invalid port, more specifications than the kernel accepts, or the kernel's error: `EPERM` without
    /// `CAP_NET_RAW`.
    pub fn create_flow(&self, attr: &FlowAttr) -> Result<Flow> {
        Flow::create(self.context(), self.object()?, attr, None, self.keep())
    }

    /// `ibv_create_flow` with `IBV_FLOW_SPEC_ACTION_COUNT`: as [`create_flow`](Self::create_flow), and counts the
    /// packets in `counters`.
    ///
    /// # Errors
    /// As `create_flow`.
    pub fn create_flow_counted(&self, attr: &FlowAttr, counters: &Counters<D>) -> Result<Flow> {
        Flow::create(self.context(), self.object()?, attr, Some(counters), self.keep())
    }
}
