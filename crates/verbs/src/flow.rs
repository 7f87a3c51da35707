// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules: which received packets a raw packet QP gets (ibv_create_flow(3)).

use crate::qp::QpControl;
use crate::wq::RssQp;
use std::sync::Arc;
use uverbs_core::attr::FlowAttr;
use uverbs_core::control::{self, FlowHandle, QpHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::Driver;

/// Keeps a rule's QP alive.
trait Target: Send + Sync + core::fmt::Debug {}
impl<T: Send + Sync + core::fmt::Debug> Target for T {}

/// A steering rule. It ends when it is dropped; its QP lives at least as long.
#[derive(Debug)]
pub struct Flow {
    handle: Option<FlowHandle>,
    _target: Arc<dyn Target>,
}

impl Flow {
    fn create(qp: &QpHandle, attr: &FlowAttr, target: Arc<dyn Target>) -> Result<Self> {
        let handle = control::flow::create(qp, attr, Uhw::none())?;
        Ok(Self { handle: Some(handle), _target: target })
    }

    /// `ibv_destroy_flow`: removes the rule and reports a failure, which `Drop` would only log.
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
    /// `ibv_create_flow`: gives this QP the packets that `attr` matches. Raw packet QPs, and needs `CAP_NET_RAW`.
    pub fn create_flow(&self, attr: &FlowAttr) -> Result<Flow> {
        Flow::create(self.handle()?, attr, Arc::new(self.clone()))
    }
}

impl<D: Driver> RssQp<D> {
    /// `ibv_create_flow`: spreads the packets that `attr` matches. Needs `CAP_NET_RAW`.
    pub fn create_flow(&self, attr: &FlowAttr) -> Result<Flow> {
        Flow::create(self.handle()?, attr, self.keep())
    }
}
