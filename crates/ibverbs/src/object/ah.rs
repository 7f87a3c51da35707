// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles (ibv_create_ah(3), ibv_create_ah_from_wc(3)) and the Ethernet addresses of peers.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::{destroy_handle, pd};
use crate::abi::attr::{ibv_ah_attr, ibv_grh};
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_pd;
use crate::context;
use crate::convert::path;
use crate::errno::{Errno, Outcome, minus_one, negative, number, pointer};
use crate::live;
use crate::neighbour::{self, Mac};
use crate::verbs::Open;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use uverbs_core::attr::AhAttr;
use uverbs_core::control::{AhHandle, query, reply};
use uverbs_core::provider::Driver;
use uverbs_core::sync::ProcessMutex;
use uverbs_core::wc::{WcFlags, WorkCompletion};
use uverbs_core::wr::{IbvAh, RawAh};
use uverbs_mlx5::Mlx5;
use uverbs_mlx5::devx::DevxObject;

/// An address handle: the part that the driver's data path reads, and the kernel's object.
#[repr(C)]
struct Ah<D: Driver> {
    raw: RawAh<D::Ah>,
    private: AhPrivate,
}

struct AhPrivate {
    handle: ManuallyDrop<AhHandle>,
    /// Whether it has a global route.
    is_global: bool,
    /// The firmware's object that maps it to a QP (mlx5).
    mapping: ProcessMutex<Option<DevxObject>>,
}

/// The driver's data of an address handle.
///
/// # Safety
/// `ah` is a live address handle of this driver.
pub(crate) unsafe fn driver<'a, D: Driver>(ah: *mut IbvAh) -> &'a D::Ah {
    // SAFETY: `ah` is a live object of this type (contract of this function); this part of it is not changed.
    unsafe { &(*ah.cast::<Ah<D>>()).raw.driver }
}

/// Maps an address handle to a QP number by `map`, once; later calls have no effect, as with rdma-core.
///
/// # Safety
/// `ah` is a live address handle of this driver.
pub(crate) unsafe fn map_once(
    ah: *mut IbvAh,
    map: impl FnOnce(&uverbs_mlx5::Ah, bool) -> uverbs_core::Result<DevxObject>,
) -> Outcome<()> {
    // SAFETY: `ah` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    let private = unsafe { &(*ah.cast::<Ah<Mlx5>>()).private };
    // SAFETY: `ah` is live (contract of this function).
    let driver = unsafe { driver::<Mlx5>(ah) };
    let mut mapping = private.mapping.lock().map_err(|_| Errno::ESTALE)?;
    if mapping.is_none() {
        *mapping = Some(map(driver, private.is_global)?);
    }
    Ok(())
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn create<D: Driver>(
    open: &Open<D>,
    pd: *mut ibv_pd,
    attr: &AhAttr,
) -> Outcome<*mut IbvAh> {
    // SAFETY: `pd` is a live object of this driver (contract of `Verbs`).
    let (handle, driver) = open.driver.create_ah(unsafe { pd::handle(pd) }, attr)?;
    // SAFETY: `pd` is a live object (contract of `Verbs`).
    let context = unsafe { (*pd).context };
    let base = IbvAh { context: context.cast(), pd: pd.cast(), handle: handle.handle() };
    let handle = ManuallyDrop::new(handle);
    let private = AhPrivate { handle, is_global: attr.grh.is_some(), mapping: ProcessMutex::default() };
    let ah = Box::into_raw(Box::new(Ah::<D> { raw: RawAh { base, driver }, private }));
    // SAFETY: a new object, whose context is not closed during this call (contract of `Verbs`).
    Ok(unsafe { live::add(ah.cast()) })
}

/// # Safety
/// See [`Verbs`](crate::verbs::Verbs#safety-of-the-verbs).
pub(crate) unsafe fn destroy<D: Driver>(_: &Open<D>, ah: *mut IbvAh) -> Outcome<()> {
    // SAFETY: the caller has claimed the object; the context is not closed during this call (contract of `Verbs`).
    let here = unsafe { context::of_known(ah) }?;
    let (public, ah) = (ah, ah.cast::<Ah<D>>());
    // SAFETY: `ah` is an existing address handle of this driver (contract of `Verbs`); no mutable reference to its
    // private part exists.
    let private = unsafe { &(*ah).private };
    let mut mapping = private.mapping.lock().map_err(|_| Errno::ESTALE)?;
    if let Some(object) = mapping.take() {
        object.destroy().map_err(|(object, error)| {
            *mapping = Some(object);
            error
        })?;
    }
    drop(mapping);
    // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
    // `Verbs`).
    unsafe { destroy_handle(&private.handle, AhHandle::destroy) }?;
    live::remove(here, public);
    // SAFETY: `create` allocated it as a `Box` of this type; the program does not use it after this call (contract of
    // `Verbs`).
    drop(unsafe { Box::from_raw(ah) });
    Ok(())
}

/// # Safety
/// As in ibv_create_ah(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut IbvAh {
    pointer(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(pd) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = path::from_c(unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?);
        // SAFETY: `pd` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().create_ah(pd, &attr) }
    })
}

/// # Safety
/// As in ibv_create_ah(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut IbvAh) -> c_int {
    number(|| {
        // SAFETY: `ah` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(ah) }?;
        // SAFETY: `ah` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().destroy_ah(ah) }
    })
}

/// # Safety
/// As in ibv_init_ah_from_wc(3).
unsafe fn attr_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut WorkCompletion,
    grh: *mut ibv_grh,
) -> Outcome<AhAttr> {
    // SAFETY: `context` is not closed during this call (contract of the man page).
    let here = unsafe { context::of(context) }?;
    // SAFETY: `wc` is NULL or valid, and no other thread changes it during this call (contract of the man page).
    let wc = unsafe { wc.as_ref() }.ok_or(Errno::EINVAL)?;
    let mut bytes = [0; 40];
    if wc.wc_flags.contains(WcFlags::GRH) {
        if grh.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `grh` is not NULL, so it is valid for reads of 40 bytes (contract of the man page); the read needs no
        // alignment.
        bytes = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    }
    Ok(reply::ah_attr(here.kernel(), wc, &bytes, port_num)?)
}

/// # Safety
/// As in ibv_init_ah_from_wc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut WorkCompletion,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(|| {
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the context is not closed during this call; `wc` and `grh` are NULL or valid (contract of the man
        // page).
        let found = unsafe { attr_from_wc(context, port_num, wc, grh) }?;
        // SAFETY: `attr` is valid for writes (contract of the man page).
        unsafe { attr.write(path::to_c(&found)) };
        Ok(0)
    })
}

/// # Safety
/// As in ibv_create_ah_from_wc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut WorkCompletion,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut IbvAh {
    pointer(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(pd) }?;
        let context = here.context();
        // SAFETY: the context is not closed during this call; `wc` and `grh` are NULL or valid (contract of the man
        // page).
        let attr = unsafe { attr_from_wc(context, port_num, wc, grh) }?;
        // SAFETY: `pd` is a live object of a context of this library, as checked above.
        unsafe { here.verbs().create_ah(pd, &attr) }
    })
}

/// The Ethernet address and the VLAN of a peer. No man page describes it; rdma-core returns a negative errno.
///
/// # Safety
/// `context` is NULL or open, and not closed during this call. `attr` is NULL or valid for reads, `eth_mac` and `vid` are
/// NULL or valid for writes of 6 and 2 bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut Mac,
    vid: *mut u16,
) -> c_int {
    let resolve = || {
        // SAFETY: `context` is not closed during this call (the contract of this function).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid for reads (the contract of this function).
        let attr = path::from_c(&ibv_ah_attr {
            is_global: 1,
            ..unsafe { attr.as_ref() }.copied().ok_or(Errno::EINVAL)?
        });
        let (Some(route), false) = (attr.grh, eth_mac.is_null()) else { return Err(Errno::EINVAL) };
        let source = query::gid_entry(here.kernel(), attr.port_num, route.sgid_index.into())?;
        let mac = match here.verbs().as_any().downcast_ref::<Open<Mlx5>>() {
            Some(open) => open.driver.resolve_mac(&attr)?,
            None => neighbour::resolve(&source, route.dgid)?,
        };
        // SAFETY: `eth_mac` is not NULL, so it is valid for writes (the contract of this function).
        unsafe { eth_mac.write(mac) };
        if !vid.is_null() {
            // SAFETY: `vid` is not NULL, so it is valid for writes (the contract of this function).
            unsafe { vid.write(neighbour::vlan(source.ndev_ifindex)) };
        }
        Ok(0)
    };
    negative(resolve) as c_int
}
