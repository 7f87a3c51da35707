// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules in the format of the PRM (mlx5dv_create_flow_matcher(3), mlx5dv_create_flow(3)).
//!
//! A matcher is the mask of the header fields that its rules compare, and their place among the other rules. Mask and value
//! are `struct mlx5_ifc_fte_match_param_bits`, or a part from its start; the kernel checks both.
#![expect(unsafe_code)]
// UNSAFETY: executing a command is unsafe, because its inputs may contain addresses. Those of this module do not.

use super::Mlx5;
use super::devx::{self, DevxObject};
use std::sync::Arc;
use uverbs_core::control::{FlowHandle, QpHandle, flow};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Command, Kernel};
use uverbs_uapi::ids::UVERBS_OBJECT_FLOW;
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX, MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET,
    MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX, MLX5_IB_ATTR_CREATE_FLOW_DEST_QP, MLX5_IB_ATTR_CREATE_FLOW_FLAGS,
    MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS, MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP,
    MLX5_IB_ATTR_CREATE_FLOW_HANDLE, MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE, MLX5_IB_ATTR_CREATE_FLOW_MATCHER,
    MLX5_IB_ATTR_CREATE_FLOW_TAG, MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE,
    MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE, MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS,
    MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE, MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE,
    MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT, MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA,
    MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK, MLX5_IB_FLOW_TYPE_NORMAL, MLX5_IB_METHOD_CREATE_FLOW,
    MLX5_IB_METHOD_FLOW_MATCHER_CREATE, MLX5_IB_METHOD_FLOW_MATCHER_DESTROY, MLX5_IB_OBJECT_FLOW_MATCHER,
};

/// A matcher. Dropping this value does not destroy it: the kernel refuses that while it has rules.
#[derive(Debug)]
pub struct Matcher {
    kernel: Arc<dyn Kernel>,
    handle: u32,
}

/// The attributes of a matcher.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatcherAttr<'a> {
    /// The bits that rules compare.
    pub mask: &'a [u8],
    /// The parts of the mask that are used (`match_criteria_enable`): a bit for each 64 bytes.
    pub criteria: u8,
    /// Lower numbers come first.
    pub priority: u16,
    /// `enum ib_uverbs_flow_flags`
    pub flags: u32,
    /// The kind of the tables (`MLX5_IB_UAPI_FLOW_TABLE_TYPE_*`); those of received frames without it.
    pub table_type: Option<u32>,
    /// The virtual port; only for tables of the RDMA transport.
    pub ib_port: Option<u32>,
}

/// What a rule does with a matching packet, apart from its tag and counter.
#[derive(Clone, Copy, Debug)]
pub enum RuleTarget<'a> {
    /// A QP receives it.
    Qp(&'a QpHandle),
    /// It goes to a table or receiver that a command for the firmware has created.
    Devx(&'a DevxObject),
    /// It goes where packets without a rule go.
    DefaultMiss,
    /// It is dropped.
    Drop,
}

/// The attributes of a rule.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleAttr<'a> {
    /// The values of the bits in the matcher's mask, of the same length.
    pub value: &'a [u8],
    /// The destination.
    pub target: Option<RuleTarget<'a>>,
    /// The flow tag in completions.
    pub tag: Option<u32>,
    /// A counter that a command for the firmware has created, and the offset in it if it is a bulk of counters.
    pub counter: Option<(&'a DevxObject, Option<u32>)>,
}

fn run<const N: usize>(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    command: &mut Command<'_, N>,
) -> Result<()> {
    // SAFETY: the inputs of this module's commands are numbers, handles and header fields.
    let done = unsafe { command.execute(&**kernel) };
    done.map_err(|errno| Error::os(verb, format!("device {}", kernel.name()), errno))
}

impl Mlx5 {
    /// Creates a matcher.
    ///
    /// # Errors
    /// The kernel's error, for instance `EINVAL` for a mask of the wrong length; it needs `CAP_NET_RAW`.
    pub fn create_matcher(&self, attr: &MatcherAttr<'_>) -> Result<Matcher> {
        const VERB: &str = "create_flow_matcher";
        let (criteria, priority) = ([attr.criteria], attr.priority.to_ne_bytes());
        let mut command = Command::<7>::new(MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_CREATE);
        command
            .handle_new(MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE)
            .input_bytes(MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK, attr.mask)
            .input_bytes(MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA, &criteria)
            .enum_in(MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE, MLX5_IB_FLOW_TYPE_NORMAL, &priority);
        if let Some(table_type) = attr.table_type {
            command.constant(MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE, table_type);
        }
        if let Some(port) = attr.ib_port {
            command.u32(MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT, port);
        }
        if attr.flags != 0 {
            command.flags(MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS, attr.flags);
        }
        run(VERB, &self.kernel, &mut command)?;
        let handle = command
            .handle(MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE)
            .ok_or_else(|| Error::protocol(VERB, "no handle of the new object"))?;
        Ok(Matcher { kernel: Arc::clone(&self.kernel), handle })
    }
}

impl Matcher {
    /// Adds a rule.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create_rule(&self, attr: &RuleAttr<'_>) -> Result<FlowHandle> {
        const VERB: &str = "create_flow";
        let counter = attr.counter.map(|(object, _)| [object.handle()]);
        let offset = attr.counter.and_then(|(_, offset)| offset).map(u32::to_ne_bytes);
        let mut command = Command::<7>::new(UVERBS_OBJECT_FLOW, MLX5_IB_METHOD_CREATE_FLOW);
        command
            .handle_new(MLX5_IB_ATTR_CREATE_FLOW_HANDLE)
            .input_bytes(MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE, attr.value)
            .handle_in(MLX5_IB_ATTR_CREATE_FLOW_MATCHER, self.handle);
        match attr.target {
            None => &mut command,
            Some(RuleTarget::Qp(qp)) => command.handle_in(MLX5_IB_ATTR_CREATE_FLOW_DEST_QP, qp.handle()),
            Some(RuleTarget::Devx(object)) => {
                command.handle_in(MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX, object.handle())
            }
            Some(RuleTarget::DefaultMiss) => {
                command.u32(MLX5_IB_ATTR_CREATE_FLOW_FLAGS, MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS)
            }
            Some(RuleTarget::Drop) => {
                command.u32(MLX5_IB_ATTR_CREATE_FLOW_FLAGS, MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP)
            }
        };
        if let Some(tag) = attr.tag {
            command.u32(MLX5_IB_ATTR_CREATE_FLOW_TAG, tag);
        }
        if let Some(counter) = &counter {
            command.handles_in(MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX, counter);
        }
        if let Some(offset) = &offset {
            command.input_bytes(MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET, offset);
        }
        run(VERB, &self.kernel, &mut command)?;
        let handle = command
            .handle(MLX5_IB_ATTR_CREATE_FLOW_HANDLE)
            .ok_or_else(|| Error::protocol(VERB, "no handle of the new object"))?;
        flow::of_driver(&self.kernel, handle)
    }

    /// Destroys the matcher.
    ///
    /// # Errors
    /// The kernel's error, `EBUSY` while it has rules, with the matcher.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        let mut command = Command::<1>::new(MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_DESTROY);
        command.handle_in(MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE, self.handle);
        devx::destroy("destroy_flow_matcher", &self.kernel, command).map_err(|error| (self, error))
    }
}
