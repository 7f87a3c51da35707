// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions of rules (mlx5dv_dr_action_create_drop(3)): those that a rule of the kernel's driver can have. Actions that
//! change packets, count them in ways of their own or send them to other tables are missing.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::super::devx::{DevxObj, object};
use super::super::steering::action;
use super::{ensure_unused, held, into_c};
use crate::abi::mlx5dv::mlx5dv_flow_action_attr;
use crate::abi::qp::ibv_qp;
use crate::arg::Arg;
use crate::errno::{Outcome, ensure, number, pointer};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr;
use uverbs_core::attr::QpType;

/// The opcodes of commands that create objects which actions use (PRM, "Command opcodes").
mod opcode {
    pub(super) const CREATE_TIR: u16 = 0x900;
    pub(super) const ALLOC_FLOW_COUNTER: u16 = 0x939;
}

/// The bits of a tag that a completion has room for.
const TAG: u32 = 0xff_ffff;

/// `struct mlx5dv_dr_action`: the same action in the form of mlx5dv_create_flow(3). Its object lives as long as rules are
/// made with the action, as the man page requires.
pub(crate) struct Action(pub(super) mlx5dv_flow_action_attr);

// SAFETY: the pointer in it is dereferenced only in functions that C calls, whose contract allows any thread.
unsafe impl Send for Action {}
// SAFETY: as for `Send`; an action does not change.
unsafe impl Sync for Action {}

/// An action without an object.
fn plain(r#type: u32, value: u32) -> Outcome<*mut Action> {
    // A number is in the union's first four bytes, which are the low ones of a pointer.
    let value = ptr::without_provenance_mut(value as usize);
    Ok(into_c(Action(mlx5dv_flow_action_attr { r#type, value, offset: 0 })))
}

/// An action with an object that a command with a certain opcode has created, `EINVAL` for another object.
fn of_command(r#type: u32, obj: Option<&DevxObj>, opcode: u16, offset: u32) -> Outcome<*mut Action> {
    ensure(object(obj)?.opcode() == opcode)?;
    let value = obj.map_or(ptr::null(), ptr::from_ref).cast_mut().cast::<c_void>();
    Ok(into_c(Action(mlx5dv_flow_action_attr { r#type, value, offset })))
}

/// The packet is dropped.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn uverbs_mlx5dv_dr_action_create_drop() -> *mut Action {
    pointer(|| plain(action::DROP, 0))
}

/// The packet goes where packets without a rule go.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn uverbs_mlx5dv_dr_action_create_default_miss() -> *mut Action {
    pointer(|| plain(action::DEFAULT_MISS, 0))
}

/// The packet's completion has a tag, of which the lower 24 bits are used.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn uverbs_mlx5dv_dr_action_create_tag(tag: u32) -> *mut Action {
    pointer(|| plain(action::TAG, tag & TAG))
}

/// A QP receives the packet.
///
/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_action_create_dest_ibv_qp(
    qp: Arg<'_, ibv_qp>,
) -> *mut Action {
    pointer(|| {
        let qp = qp.enter()?;
        // SAFETY: the QP exists as long as `qp`.
        ensure(unsafe { (*qp.pointer()).qp_type } == QpType::RawPacket as u32)?;
        let attr = mlx5dv_flow_action_attr {
            r#type: action::DEST_IBV_QP,
            value: qp.pointer().cast::<c_void>(),
            offset: 0,
        };
        Ok(into_c(Action(attr)))
    })
}

/// A receiver that a command for the firmware has created gets the packet.
///
/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_action_create_dest_devx_tir(
    obj: Option<&DevxObj>,
) -> *mut Action {
    pointer(|| of_command(action::DEST_DEVX, obj, opcode::CREATE_TIR, 0))
}

/// A counter that a command for the firmware has created counts the packet.
///
/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_action_create_flow_counter(
    obj: Option<&DevxObj>,
    offset: u32,
) -> *mut Action {
    // Kernels before the offset accept the first counter only without one.
    let kind = if offset == 0 { action::COUNTERS_DEVX } else { action::COUNTERS_DEVX_WITH_OFFSET };
    pointer(|| of_command(kind, obj, opcode::ALLOC_FLOW_COUNTER, offset))
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_action_destroy(action: *mut Action) -> c_int {
    number(|| {
        // SAFETY: `action` is NULL or exists (contract of the man page).
        let action = unsafe { held(action) }?;
        ensure_unused(&action)?;
        // The program does not use it after this call (contract of the man page).
        drop(ManuallyDrop::into_inner(action));
        Ok(())
    })
}
