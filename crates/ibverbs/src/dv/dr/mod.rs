// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packet steering by tables (mlx5dv_dr_domain_create(3)), for root tables.
//!
//! Packets begin at the root table of a domain, level 0. Its rules are rules of the kernel's driver, like those of
//! [`steering`](super::steering), so this library only keeps the objects of the API. A table of another level is memory of
//! the device that the library itself would have to write in the format of the device's steering entries. That is not done:
//! such a table fails with `EOPNOTSUPP`, as it does with rdma-core on a device without that ability.
//!
//! | module | contents |
//! |---|---|
//! | this | domains and tables |
//! | `rule` | matchers and rules |
//! | `action` | what rules do with a packet |
//! | `dump` | the text that describes objects |
//!
//! A C pointer is one count of an [`Arc`], and each object holds those that it needs. An object that another one holds is
//! not destroyed (`EBUSY`), as with rdma-core.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

pub(super) mod action;
mod dump;
pub(super) mod rule;

use crate::abi::context::ibv_context;
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use uverbs_core::attr::LinkLayer;
use uverbs_core::control::query;
use uverbs_core::provider::Driver as _;
use uverbs_core::sync::ProcessMutex;

/// `MLX5DV_DR_DOMAIN_TYPE_FDB`, the last type. The types before it are `NIC_RX` and `NIC_TX`. The numbers are those of the
/// kernel's tables (`enum mlx5_ib_uapi_flow_table_type`).
const LAST_TYPE: u32 = 2;
/// `enum mlx5dv_dr_domain_sync_flags`
const SYNC_FLAGS: u32 = 7;

/// `struct mlx5dv_dr_domain`, which is opaque for programs, as are the other structs of this API.
#[derive(Debug)]
pub(crate) struct Domain {
    context: *mut ibv_context,
    kind: u32,
    /// Its tables, for descriptions. Locked while a table is destroyed.
    tables: ProcessMutex<Vec<Weak<Table>>>,
}

// SAFETY: the pointer is dereferenced only in functions that C calls, whose contract allows any thread.
unsafe impl Send for Domain {}
// SAFETY: as for `Send`; the other fields are synchronised themselves.
unsafe impl Sync for Domain {}

/// `struct mlx5dv_dr_table`: a root table.
#[derive(Debug)]
pub(crate) struct Table {
    domain: Arc<Domain>,
}

/// A C pointer to a new object.
fn into_c<T>(object: T) -> *mut T {
    Arc::into_raw(Arc::new(object)).cast_mut()
}

/// The object at a C pointer, without a count of its own.
///
/// # Safety
/// `object` is NULL or was made by [`into_c`], and is not destroyed while the result is used.
unsafe fn held<T>(object: *mut T) -> Outcome<ManuallyDrop<Arc<T>>> {
    ensure(!object.is_null())?;
    // SAFETY: `into_c` made it and has left its count to the pointer (the contract of this function); `ManuallyDrop` does
    // not give that count back.
    Ok(ManuallyDrop::new(unsafe { Arc::from_raw(object) }))
}

/// `EBUSY` if other objects hold the object.
fn ensure_unused<T>(object: &Arc<T>) -> Outcome<()> {
    if Arc::strong_count(object) == 1 { Ok(()) } else { Err(Errno::EBUSY) }
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_domain_create(
    context: Arg<'_, ibv_context>,
    kind: u32,
) -> *mut Domain {
    pointer(|| {
        let open = super::of(context)?;
        ensure(kind <= LAST_TYPE)?;
        if query::port(open.driver.kernel(), 1_u8)?.link_layer != LinkLayer::ETHERNET {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(into_c(Domain { context: context.pointer(), kind, tables: ProcessMutex::new(Vec::new()) }))
    })
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_domain_destroy(domain: *mut Domain) -> c_int {
    number(|| {
        // SAFETY: `domain` is NULL or exists (contract of the man page).
        let domain = unsafe { held(domain) }?;
        ensure_unused(&domain)?;
        // The program does not use it after this call (contract of the man page).
        drop(ManuallyDrop::into_inner(domain));
        Ok(())
    })
}

/// The kernel adds and removes the rules of a root table before its call returns, so nothing waits to be written. rdma-core
/// returns `EOPNOTSUPP` on devices that have no other tables.
///
/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_domain_sync(domain: *mut Domain, flags: u32) -> c_int {
    number(|| {
        // SAFETY: `domain` is NULL or exists (contract of the man page).
        unsafe { held(domain) }?;
        if flags & !SYNC_FLAGS == 0 { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    })
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_table_create(domain: *mut Domain, level: u32) -> *mut Table {
    pointer(|| {
        // SAFETY: `domain` is NULL or exists (contract of the man page).
        let domain = unsafe { held(domain) }?;
        if level != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut tables = domain.tables.lock().map_err(|_| Errno::ESTALE)?;
        let table = Arc::new(Table { domain: Arc::clone(&domain) });
        tables.push(Arc::downgrade(&table));
        Ok(Arc::into_raw(table).cast_mut())
    })
}

/// # Safety
/// As in mlx5dv_dr_domain_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dr_table_destroy(table: *mut Table) -> c_int {
    number(|| {
        // SAFETY: `table` is NULL or exists (contract of the man page).
        let table = unsafe { held(table) }?;
        let domain = Arc::clone(&table.domain);
        let mut tables = domain.tables.lock().map_err(|_| Errno::ESTALE)?;
        ensure_unused(&table)?;
        tables.retain(|other| !core::ptr::eq(other.as_ptr(), &raw const **table));
        // The program does not use it after this call (contract of the man page).
        drop(ManuallyDrop::into_inner(table));
        Ok(())
    })
}
