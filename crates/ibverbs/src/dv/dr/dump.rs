// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptions of objects as text (mlx5dv_dump_dr_domain(3)).
//!
//! Each line is a record: its number, the address of the object, that of its parent, and values, with commas between them.
//! The numbers are those that rdma-core's library writes, which scripts for its dumps know. The records of a domain about
//! its device (capabilities, parsers, virtual ports) are missing, because this library does not query them. As with
//! rdma-core, a domain or a table is dumped without the matchers of a root table.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and files.

use super::action::Action;
use super::rule::{Matcher, Rule};
use super::{Domain, Table, held};
use crate::arg::Arg;
use crate::dv::devx::DevxObj;
use crate::dv::steering::action;
use crate::errno::{Errno, Outcome, ensure, negative};
use core::ffi::c_int;
use core::fmt::Write as _;
use libc::FILE;
use std::sync::Arc;

/// Numbers of records.
mod record {
    pub(super) const DOMAIN: u32 = 3000;
    pub(super) const TABLE: u32 = 3100;
    pub(super) const MATCHER: u32 = 3200;
    pub(super) const RULE: u32 = 3300;
    pub(super) const DROP: u32 = 3403;
    pub(super) const QP: u32 = 3404;
    pub(super) const COUNTER: u32 = 3406;
    pub(super) const TAG: u32 = 3407;
    pub(super) const TIR: u32 = 3411;
    pub(super) const MISS: u32 = 3423;
}

/// The address of an object, as its identity.
fn id<T>(object: &T) -> usize {
    (&raw const *object).addr()
}

/// The number of a domain in its record and those of its tables: the process and the type.
fn domain_id(domain: &Domain) -> u64 {
    u64::from(std::process::id()) << 8 | u64::from(domain.kind)
}

/// The record of a domain: type, device function (unknown), whether it has other tables than root tables, version, device,
/// flags, the numbers of three kinds of device memory, and the format of steering entries, of which it has none.
fn of_domain(text: &mut String, domain: &Domain) -> Outcome<()> {
    // SAFETY: the context is not closed during this call (contract of the man page).
    let here = unsafe { Arg::new(domain.context) }.open()?;
    let (number, id, kind) = (record::DOMAIN, domain_id(domain), domain.kind);
    let (version, name) = (env!("CARGO_PKG_VERSION"), here.kernel().name());
    line(text, format_args!("{number},{id:#x},{kind},0x0,0,{version},{name},0,0,0,0,0"))
}

fn of_table(text: &mut String, table: &Table) -> Outcome<()> {
    // The last two are the type of a table's memory and the level.
    let (number, domain) = (record::TABLE, domain_id(&table.domain));
    line(text, format_args!("{number},{:#x},{domain:#x},0,0", id(table)))
}

fn of_matcher(text: &mut String, matcher: &Matcher) -> Outcome<()> {
    let (number, table, priority) = (record::MATCHER, id(&*matcher.table), matcher.priority);
    line(text, format_args!("{number},{:#x},{table:#x},{priority}", id(matcher)))
}

fn of_rule(text: &mut String, rule: &Rule) -> Outcome<()> {
    line(text, format_args!("{},{:#x},{:#x}", record::RULE, id(rule), id(&*rule.matcher)))?;
    rule.actions.iter().try_for_each(|action| of_action(text, action, id(rule)))
}

fn of_action(text: &mut String, Action(attr): &Action, rule: usize) -> Outcome<()> {
    let number = match attr.r#type {
        action::DROP => record::DROP,
        action::DEST_IBV_QP => record::QP,
        action::DEST_DEVX => record::TIR,
        action::TAG => record::TAG,
        action::DEFAULT_MISS => record::MISS,
        _ => record::COUNTER,
    };
    let (id, value) = (id(attr), attr.value.addr());
    match number {
        record::DROP | record::MISS => line(text, format_args!("{number},{id:#x},{rule:#x}")),
        record::TAG => line(text, format_args!("{number},{id:#x},{rule:#x},{value:#x}")),
        record::QP => {
            // SAFETY: the QP lives as long as rules have the action (contract of the man page).
            let qpn = unsafe { (*attr.value.cast::<crate::abi::qp::ibv_qp>()).qp_num };
            line(text, format_args!("{number},{id:#x},{rule:#x},{qpn:#x}"))
        }
        _ => {
            // SAFETY: the object lives as long as rules have the action (contract of the man page).
            let object = crate::dv::devx::object(unsafe { attr.value.cast::<DevxObj>().as_ref() })?;
            // The kernel's number, because this library does not know the firmware's.
            line(text, format_args!("{number},{id:#x},{rule:#x},{:#x}", object.handle()))
        }
    }
}

fn line(text: &mut String, record: core::fmt::Arguments<'_>) -> Outcome<()> {
    writeln!(text, "{record}").map_err(|_| Errno::ENOMEM)
}

/// Writes to a stream of C.
///
/// # Safety
/// `file` is NULL or an open stream.
unsafe fn write(file: *mut FILE, make: impl FnOnce(&mut String) -> Outcome<()>) -> c_int {
    let written = negative(|| {
        ensure(!file.is_null())?;
        let mut text = String::new();
        make(&mut text)?;
        // SAFETY: an open stream (the contract of this function), and a buffer with as many bytes.
        let bytes = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), file) };
        if bytes == text.len() { Ok(0) } else { Err(Errno::last()) }
    });
    written as c_int
}

/// # Safety
/// As in mlx5dv_dump_dr_domain(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dump_dr_domain(file: *mut FILE, domain: *mut Domain) -> c_int {
    let make = |text: &mut String| {
        // SAFETY: `domain` is NULL or exists (contract of the man page).
        let domain = unsafe { held(domain) }?;
        of_domain(text, &domain)?;
        let tables = domain.tables.lock().map_err(|_| Errno::ESTALE)?;
        tables.iter().filter_map(std::sync::Weak::upgrade).try_for_each(|table| of_table(text, &table))
    };
    // SAFETY: `file` is NULL or open (contract of the man page).
    unsafe { write(file, make) }
}

/// # Safety
/// As in mlx5dv_dump_dr_domain(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dump_dr_table(file: *mut FILE, table: *mut Table) -> c_int {
    let make = |text: &mut String| {
        // SAFETY: `table` is NULL or exists (contract of the man page).
        let table = unsafe { held(table) }?;
        of_domain(text, &table.domain)?;
        of_table(text, &table)
    };
    // SAFETY: `file` is NULL or open (contract of the man page).
    unsafe { write(file, make) }
}

/// # Safety
/// As in mlx5dv_dump_dr_domain(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dump_dr_matcher(
    file: *mut FILE,
    matcher: *mut Matcher,
) -> c_int {
    let make = |text: &mut String| {
        // SAFETY: `matcher` is NULL or exists (contract of the man page).
        let matcher = unsafe { held(matcher) }?;
        above(text, &matcher)
    };
    // SAFETY: `file` is NULL or open (contract of the man page).
    unsafe { write(file, make) }
}

/// A matcher, after the objects that it needs.
fn above(text: &mut String, matcher: &Arc<Matcher>) -> Outcome<()> {
    of_domain(text, &matcher.table.domain)?;
    of_table(text, &matcher.table)?;
    of_matcher(text, matcher)
}

/// # Safety
/// As in mlx5dv_dump_dr_domain(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dump_dr_rule(file: *mut FILE, rule: Option<&Rule>) -> c_int {
    let make = |text: &mut String| {
        let rule = rule.ok_or(Errno::EINVAL)?;
        above(text, &rule.matcher)?;
        of_rule(text, rule)
    };
    // SAFETY: `file` is NULL or open (contract of the man page).
    unsafe { write(file, make) }
}
