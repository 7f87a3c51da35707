// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules with counters: the description of the counters goes to the kernel with the first rule that has them.

use crate::control::calls;
use uverbs_core::attr::{CounterAttachAttr, FlowAttr};
use uverbs_core::control::{CountersHandle, FlowHandle, QpHandle, flow};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_uapi::mlx5::mlx5_ib_flow_counters_desc;

pub(super) fn create(
    qp: &QpHandle,
    attr: &FlowAttr,
    counters: Option<&CountersHandle>,
) -> Result<FlowHandle> {
    let Some(counters) = counters else { return flow::create(qp, attr, None, Uhw::none()) };
    counters.bind(|points| {
        let desc = |point: &CounterAttachAttr| mlx5_ib_flow_counters_desc {
            description: point.counter_desc.0,
            index: point.index,
        };
        let descs: Vec<_> = points.iter().map(desc).collect();
        let ncounters = u32::try_from(descs.len())
            .map_err(|_| Error::invalid("create_flow", "counters", "too many counters"))?;
        if ncounters == 0 {
            // The kernel has the description from an earlier rule.
            return flow::create(qp, attr, Some(counters), Uhw::none());
        }
        calls::create_counted_flow(qp, attr, counters, &descs, ncounters)
    })
}
