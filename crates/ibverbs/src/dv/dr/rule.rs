// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matchers of root tables, and their rules (mlx5dv_dr_matcher_create(3), mlx5dv_dr_rule_create(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::super::steering::{add_action, bytes};
use super::action::Action;
use super::{Table, ensure_unused, held, into_c};
use crate::abi::mlx5dv::{mlx5dv_flow_action_attr, mlx5dv_flow_match_parameters};
use crate::errno::{Outcome, ensure, number, pointer};
use crate::object::destroy_handle;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use std::sync::Arc;
use uverbs_core::control::FlowHandle;
use uverbs_mlx5::steering::{MatcherAttr, RuleAttr};

/// `struct mlx5dv_dr_matcher`
#[derive(Debug)]
pub(crate) struct Matcher {
    pub(super) table: Arc<Table>,
    pub(super) priority: u16,
    matcher: ManuallyDrop<uverbs_mlx5::steering::Matcher>,
}

/// `struct mlx5dv_dr_rule`
pub(crate) struct Rule {
    pub(super) matcher: Arc<Matcher>,
    pub(super) actions: Vec<Arc<Action>>,
    flow: ManuallyDrop<FlowHandle>,
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_matcher_create(
    table: *mut Table,
    priority: u16,
    criteria: u8,
    mask: *mut mlx5dv_flow_match_parameters,
) -> *mut Matcher {
    pointer(|| {
        // SAFETY: `table` is NULL or exists (contract of the man page).
        let table = unsafe { held(table) }?;
        let domain = &table.domain;
        // SAFETY: the context is not closed during this call (contract of the man page).
        let open = unsafe { super::super::of_kept(domain.context) }?;
        // SAFETY: the mask is NULL or valid with its bytes (contract of the man page).
        let mask = unsafe { bytes(mask) }?;
        let attr =
            MatcherAttr { mask, criteria, priority, table_type: Some(domain.kind), ..MatcherAttr::default() };
        let matcher = ManuallyDrop::new(open.driver.create_matcher(&attr)?);
        Ok(into_c(Matcher { table: Arc::clone(&table), priority, matcher }))
    })
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_matcher_destroy(matcher: *mut Matcher) -> c_int {
    number(|| {
        // SAFETY: `matcher` is NULL or exists (contract of the man page).
        let matcher = unsafe { held(matcher) }?;
        ensure_unused(&matcher)?;
        // SAFETY: if this succeeds, the matcher is dropped below, and the program does not use it any more (contract of the
        // man page).
        unsafe { destroy_handle(&matcher.matcher, uverbs_mlx5::steering::Matcher::destroy) }?;
        drop(ManuallyDrop::into_inner(matcher));
        Ok(())
    })
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_rule_create(
    matcher: *mut Matcher,
    value: *mut mlx5dv_flow_match_parameters,
    num_actions: usize,
    actions: *mut *mut Action,
) -> *mut Rule {
    pointer(|| {
        // SAFETY: `matcher` is NULL or exists (contract of the man page).
        let matcher = unsafe { held(matcher) }?;
        let context = matcher.table.domain.context;
        // SAFETY: the context is not closed during this call (contract of the man page).
        unsafe { super::super::of_kept(context) }?;
        ensure(num_actions == 0 || !actions.is_null())?;
        // SAFETY: `value` is NULL or valid with its bytes (contract of the man page).
        let mut attr = RuleAttr { value: unsafe { bytes(value) }?, ..RuleAttr::default() };
        let (mut used, mut objects) = (Vec::new(), Vec::new());
        for i in 0..num_actions {
            // SAFETY: the array has as many pointers, and this one is inside it (contract of the man page).
            let action = unsafe { actions.wrapping_add(i).read() };
            // SAFETY: the action is NULL or exists (contract of the man page).
            let action = unsafe { held(action) }?;
            // A rule has at most one action of a kind, so this ends after a few actions, whatever their number is.
            // SAFETY: a whole action, whose object lives (contract of the man page).
            unsafe {
                add_action(
                    &mut attr,
                    &mut objects,
                    context,
                    &raw const action.0,
                    size_of::<mlx5dv_flow_action_attr>(),
                )
            }?;
            used.push(Arc::clone(&action));
        }
        let flow = ManuallyDrop::new(matcher.matcher.create_rule(&attr)?);
        Ok(Box::into_raw(Box::new(Rule { matcher: Arc::clone(&matcher), actions: used, flow })))
    })
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_rule_destroy(rule: *mut Rule) -> c_int {
    number(|| {
        // SAFETY: `rule` is NULL or exists (contract of the man page).
        unsafe { destroy(rule) }
    })
}

/// # Safety
/// `rule` is NULL, or exists and is not used any more if this succeeds.
unsafe fn destroy(rule: *mut Rule) -> Outcome<()> {
    // SAFETY: NULL, or a `Box` of `uverbs_mlx5dv_dr_rule_create`, which is not used any more if this succeeds (the contract of this
    // function).
    unsafe { super::super::destroy(rule, |rule| &rule.flow, FlowHandle::destroy) }
}
