// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules in the format of the PRM (mlx5dv_create_flow_matcher(3), mlx5dv_create_flow(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::devx;
use crate::abi::context::ibv_context;
use crate::abi::flow::ibv_flow;
use crate::abi::mlx5dv::{mlx5dv_flow_action_attr, mlx5dv_flow_match_parameters, mlx5dv_flow_matcher_attr};
use crate::abi::qp::ibv_qp;
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use crate::live::Used;
use crate::object::{flow, qp};
use core::ffi::c_int;
use core::mem::{ManuallyDrop, offset_of};
use core::slice;
use uverbs_core::provider::Object as _;
use uverbs_mlx5::Mlx5;
use uverbs_mlx5::steering::{Matcher, MatcherAttr, RuleAttr, RuleTarget};

/// `struct mlx5dv_flow_matcher`, which is opaque for programs.
pub(crate) struct FlowMatcher {
    context: *mut ibv_context,
    matcher: ManuallyDrop<Matcher>,
}

/// `enum mlx5dv_flow_matcher_attr_mask`
mod mask {
    pub(super) const FT_TYPE: u64 = 1 << 0;
    pub(super) const IB_PORT: u64 = 1 << 1;
}

/// `enum mlx5dv_flow_action_type`. Flow actions and counters of verbs are missing, as is the latter in libmlx5.
pub(super) mod action {
    pub(in crate::dv) const DEST_IBV_QP: u32 = 0;
    pub(in crate::dv) const DROP: u32 = 1;
    pub(in crate::dv) const TAG: u32 = 4;
    pub(in crate::dv) const DEST_DEVX: u32 = 5;
    pub(in crate::dv) const COUNTERS_DEVX: u32 = 6;
    pub(in crate::dv) const DEFAULT_MISS: u32 = 7;
    pub(in crate::dv) const COUNTERS_DEVX_WITH_OFFSET: u32 = 8;
}

/// `IBV_FLOW_ATTR_NORMAL`
const NORMAL: u32 = 0;
/// `MLX5DV_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX` and `_TX`
const RDMA_TRANSPORT: [u32; 2] = [5, 6];
/// The longest match that is passed on. The kernel checks the length.
const MAX_MATCH: usize = 4096;

/// The bytes of a mask or a value.
///
/// # Safety
/// `parameters` is NULL, or valid for reads with its bytes.
pub(super) unsafe fn bytes<'a>(parameters: *const mlx5dv_flow_match_parameters) -> Outcome<&'a [u8]> {
    ensure(!parameters.is_null())?;
    // SAFETY: not NULL, so valid (the contract of this function).
    let len = unsafe { (*parameters).match_sz };
    ensure(len <= MAX_MATCH)?;
    let start = parameters.wrapping_byte_add(offset_of!(mlx5dv_flow_match_parameters, match_buf));
    // SAFETY: as many bytes follow (the contract of this function), and the program does not change them during the call.
    Ok(unsafe { slice::from_raw_parts(start.cast(), len) })
}

/// # Safety
/// As in mlx5dv_create_flow_matcher(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_flow_matcher(
    context: Arg<'_, ibv_context>,
    attr: *mut mlx5dv_flow_matcher_attr,
) -> *mut FlowMatcher {
    pointer(|| {
        let open = super::of(context)?;
        ensure(!attr.is_null())?;
        // SAFETY: `attr` is valid for reads of the fields that every version has (contract of the man page).
        let comp_mask = unsafe { (*attr).comp_mask };
        let has = |bit| comp_mask & bit != 0;
        // SAFETY: as for the field before.
        let flow_type = unsafe { (*attr).r#type };
        if has(!(mask::FT_TYPE | mask::IB_PORT)) || flow_type != NORMAL {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as for the fields before, and `comp_mask` says whether this one is valid.
        let table_type = if has(mask::FT_TYPE) { Some(unsafe { (*attr).ft_type }) } else { None };
        // SAFETY: as for the field before.
        let ib_port = if has(mask::IB_PORT) { Some(unsafe { (*attr).ib_port }) } else { None };
        let is_transport = table_type.is_some_and(|t| RDMA_TRANSPORT.contains(&t));
        match ib_port {
            None => ensure(!is_transport)?,
            Some(_) if !is_transport => return Err(Errno::EOPNOTSUPP),
            Some(_) => {}
        }
        // SAFETY: as for the first fields.
        let mask = unsafe { (*attr).match_mask };
        // SAFETY: the mask is NULL or valid with its bytes (contract of the man page).
        let mask = unsafe { bytes(mask) }?;
        let request = MatcherAttr {
            mask,
            // SAFETY: as for the first fields.
            criteria: unsafe { (*attr).match_criteria_enable },
            // SAFETY: as for the first fields.
            priority: unsafe { (*attr).priority },
            // SAFETY: as for the first fields.
            flags: unsafe { (*attr).flags },
            table_type,
            ib_port,
        };
        let matcher = ManuallyDrop::new(open.driver.create_matcher(&request)?);
        Ok(Box::into_raw(Box::new(FlowMatcher { context: context.pointer(), matcher })))
    })
}

/// # Safety
/// As in mlx5dv_create_flow_matcher(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_destroy_flow_matcher(matcher: *mut FlowMatcher) -> c_int {
    number(|| {
        // SAFETY: NULL or a `Box` that exists; if this succeeds, the program does not use it any more (contract of the man page).
        unsafe { super::destroy(matcher, |matcher| &matcher.matcher, Matcher::destroy) }
    })
}

/// Adds an action to a rule, and the object that it uses to `used`.
///
/// # Safety
/// `action` is valid for reads of the fields of its type, of an action of `len` bytes; its object is live.
pub(super) unsafe fn add_action<'a>(
    rule: &mut RuleAttr<'_>,
    used: &mut Vec<Used<'a, ibv_qp>>,
    context: *mut ibv_context,
    action: *const mlx5dv_flow_action_attr,
    len: usize,
) -> Outcome<()> {
    // SAFETY: every action has this field (the contract of this function).
    let kind = unsafe { (*action).r#type };
    // SAFETY: as for `kind`; the union has 8 bytes at least.
    let value = unsafe { &raw const (*action).value };
    let devx = || {
        // SAFETY: the union has an object of a command in the actions that call this; it is NULL or live (the contract of this function).
        devx::object(unsafe { value.cast::<Option<&devx::DevxObj>>().read() })
    };
    let target = match kind {
        action::DEST_IBV_QP => {
            // SAFETY: the union has a QP.
            let qp = unsafe { value.cast::<*mut ibv_qp>().read() };
            ensure(!qp.is_null())?;
            // SAFETY: `qp` is a live object, which begins with the pointer to its context (the contract of this function).
            used.extend(unsafe { Arg::new(qp) }.enter_in(context)?);
            // SAFETY: a QP of a context of mlx5, which exists as long as `used`.
            RuleTarget::Qp(unsafe { qp::private::<Mlx5>(qp) }.object().handle())
        }
        action::DEST_DEVX => RuleTarget::Devx(devx()?),
        action::DROP => RuleTarget::Drop,
        action::DEFAULT_MISS => RuleTarget::DefaultMiss,
        action::TAG => {
            ensure(rule.tag.is_none())?;
            // SAFETY: the union has a number.
            rule.tag = Some(unsafe { value.cast::<u32>().read() });
            return Ok(());
        }
        action::COUNTERS_DEVX | action::COUNTERS_DEVX_WITH_OFFSET => {
            if rule.counter.is_some() {
                return Err(Errno::EOPNOTSUPP);
            }
            let offset = if kind == action::COUNTERS_DEVX {
                None
            } else {
                ensure(len >= size_of::<mlx5dv_flow_action_attr>())?;
                // SAFETY: the action has this field (checked above).
                Some(unsafe { (*action).offset })
            };
            rule.counter = Some((devx()?, offset));
            return Ok(());
        }
        _ => return Err(Errno::EOPNOTSUPP),
    };
    match rule.target.replace(target) {
        None => Ok(()),
        Some(_) => Err(Errno::EOPNOTSUPP),
    }
}

/// # Safety
/// As in mlx5dv_create_flow(3), for actions of `len` bytes.
unsafe fn create(
    matcher: Option<&FlowMatcher>,
    value: *mut mlx5dv_flow_match_parameters,
    num_actions: usize,
    actions: *mut mlx5dv_flow_action_attr,
    len: usize,
) -> *mut ibv_flow {
    pointer(|| {
        let matcher = matcher.ok_or(Errno::EINVAL)?;
        // SAFETY: the context is not closed during this call (contract of the man page).
        let here = unsafe { Arg::new(matcher.context) }.open()?;
        ensure(num_actions == 0 || !actions.is_null())?;
        ensure(len >= LEGACY && len.is_multiple_of(align_of::<mlx5dv_flow_action_attr>()))?;
        // SAFETY: `value` is NULL or valid with its bytes (contract of the man page).
        let mut rule = RuleAttr { value: unsafe { bytes(value) }?, ..RuleAttr::default() };
        let mut used = Vec::new();
        for i in 0..num_actions {
            let action = actions.wrapping_byte_add(i.checked_mul(len).ok_or(Errno::EINVAL)?);
            // SAFETY: an action of `len` bytes, whose object is live (contract of the man page).
            unsafe { add_action(&mut rule, &mut used, matcher.context, action, len) }?;
        }
        Ok(flow::finish(here, matcher.context, matcher.matcher.create_rule(&rule)?))
    })
}

/// Bytes of an action of the first version.
const LEGACY: usize = offset_of!(mlx5dv_flow_action_attr, offset);

/// # Safety
/// As in mlx5dv_create_flow(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_flow(
    matcher: Option<&FlowMatcher>,
    value: *mut mlx5dv_flow_match_parameters,
    num_actions: usize,
    actions: *mut mlx5dv_flow_action_attr,
) -> *mut ibv_flow {
    // SAFETY: the contract of this function is that of `create`; programs that call this function have actions of the first
    // version.
    unsafe { create(matcher, value, num_actions, actions, LEGACY) }
}

/// # Safety
/// As in mlx5dv_create_flow(3), for actions of `len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs___mlx5dv_create_flow(
    matcher: Option<&FlowMatcher>,
    value: *mut mlx5dv_flow_match_parameters,
    num_actions: usize,
    actions: *mut mlx5dv_flow_action_attr,
    len: usize,
) -> *mut ibv_flow {
    // SAFETY: the contract of this function is that of `create`.
    unsafe { create(matcher, value, num_actions, actions, len) }
}
