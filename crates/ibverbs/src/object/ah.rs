// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles (ibv_create_ah(3), ibv_create_ah_from_wc(3)) and the Ethernet addresses of peers.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::whole::{Handled, Owned, create_of, handled};
use crate::abi::attr::ibv_ah_attr;
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_pd;
use crate::arg::Arg;
use crate::context::Private;
use crate::convert::path;
use crate::errno::{Errno, Outcome, minus_one, negative, number, pointer};
use crate::live::{Claim, Live};
use crate::neighbour::{self, Mac};
use crate::verbs::Open;
use core::ffi::c_int;
use core::mem::{ManuallyDrop, MaybeUninit};
use uverbs_core::attr::AhAttr;
use uverbs_core::control::{AhHandle, query, reply};
use uverbs_core::provider::Driver;
use uverbs_core::sync::ProcessMutex;
use uverbs_core::wc::{WcFlags, WorkCompletion};
use uverbs_core::wr::{IbvAh, RawAh};
use uverbs_mlx5::Mlx5;
use uverbs_mlx5::devx::DevxObject;

/// Our part of an address handle. The driver's data path reads the driver's part, which is before it.
pub(crate) struct AhPrivate {
    handle: ManuallyDrop<AhHandle>,
    /// Whether it has a global route.
    is_global: bool,
    /// The firmware's object that maps it to a QP (mlx5).
    mapping: ProcessMutex<Option<DevxObject>>,
}

handled! { AhPrivate: handle, AhHandle; }

// SAFETY: `RawAh` begins with the fields; only this module makes such objects.
unsafe impl<D: Driver> Owned<D> for IbvAh {
    type Public = RawAh<D::Ah>;
    type Own = AhPrivate;
}

/// The driver's data of an address handle; `EINVAL` if it is not of this driver.
pub(crate) fn driver<'a, D: Driver>(open: &Open<D>, ah: &'a Live<'_, IbvAh>) -> Outcome<&'a D::Ah> {
    ah.own_of(open)?;
    // SAFETY: an address handle of this driver (checked above), which exists as long as `ah`; this part of it is not changed.
    Ok(unsafe { &(*ah.pointer().cast::<RawAh<D::Ah>>()).driver })
}

/// Maps an address handle to a QP number by `map`, once; later calls have no effect, as with rdma-core.
pub(crate) fn map_once(
    open: &Open<Mlx5>,
    ah: &Live<'_, IbvAh>,
    map: impl FnOnce(&uverbs_mlx5::Ah, bool) -> uverbs_core::Result<DevxObject>,
) -> Outcome<()> {
    let own = ah.own_of(open)?;
    let mut mapping = own.mapping.lock().map_err(|_| Errno::ESTALE)?;
    if mapping.is_none() {
        *mapping = Some(map(driver(open, ah)?, own.is_global)?);
    }
    Ok(())
}

/// As in ibv_create_ah(3).
pub(crate) fn create<D: Driver>(open: &Open<D>, pd: &Live<'_, ibv_pd>, attr: &AhAttr) -> Outcome<*mut IbvAh> {
    let (handle, driver) = open.driver.create_ah(pd.own().handle(), attr)?;
    let base = IbvAh { context: pd.context().cast(), pd: pd.pointer().cast(), handle: handle.handle() };
    let handle = ManuallyDrop::new(handle);
    let own = AhPrivate { handle, is_global: attr.grh.is_some(), mapping: ProcessMutex::default() };
    create_of(open, pd.here(), RawAh { base, driver }, own)
}

/// As in ibv_destroy_ah(3).
pub(crate) fn destroy<D: Driver>(open: &Open<D>, ah: Claim<'_, IbvAh>) -> Outcome<()> {
    let own = ah.own_of(open)?;
    let mut mapping = own.mapping.lock().map_err(|_| Errno::ESTALE)?;
    if let Some(object) = mapping.take() {
        object.destroy().map_err(|(object, error)| {
            *mapping = Some(object);
            error
        })?;
    }
    drop(mapping);
    ah.destroy_of(open, AhHandle::destroy)
}

/// # Safety
/// As in ibv_create_ah(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(pd: Arg<'_, ibv_pd>, attr: Option<&ibv_ah_attr>) -> *mut IbvAh {
    pointer(|| {
        let pd = pd.enter()?;
        let attr = path::from_c(attr.ok_or(Errno::EINVAL)?);
        pd.verbs().create_ah(&pd, &attr)
    })
}

/// # Safety
/// As in ibv_create_ah(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: Arg<'_, IbvAh>) -> c_int {
    number(|| {
        let ah = ah.claim()?;
        ah.here().verbs().destroy_ah(ah)
    })
}

/// The attributes of the sender of a message. The header has no alignment.
fn attr_from_wc(
    here: &Private,
    port_num: u8,
    wc: Option<&WorkCompletion>,
    grh: Option<&[u8; 40]>,
) -> Outcome<AhAttr> {
    let wc = wc.ok_or(Errno::EINVAL)?;
    let none = [0; 40];
    let header = if wc.wc_flags.contains(WcFlags::GRH) { grh.ok_or(Errno::EINVAL)? } else { &none };
    Ok(reply::ah_attr(here.kernel(), wc, header, port_num)?)
}

/// # Safety
/// As in ibv_init_ah_from_wc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    wc: Option<&WorkCompletion>,
    grh: Option<&[u8; 40]>,
    attr: Option<&mut MaybeUninit<ibv_ah_attr>>,
) -> c_int {
    minus_one(|| {
        let attr = attr.ok_or(Errno::EINVAL)?;
        attr.write(path::to_c(&attr_from_wc(context.open()?, port_num, wc, grh)?));
        Ok(0)
    })
}

/// # Safety
/// As in ibv_create_ah_from_wc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: Arg<'_, ibv_pd>,
    wc: Option<&WorkCompletion>,
    grh: Option<&[u8; 40]>,
    port_num: u8,
) -> *mut IbvAh {
    pointer(|| {
        let pd = pd.enter()?;
        let attr = attr_from_wc(pd.here(), port_num, wc, grh)?;
        pd.verbs().create_ah(&pd, &attr)
    })
}

/// The Ethernet address and the VLAN of a peer. No man page describes it; rdma-core returns a negative errno.
///
/// # Safety
/// `context` is NULL or open, and not closed during this call. `attr` is NULL or valid for reads, `eth_mac` and `vid` are
/// NULL or valid for writes of 6 and 2 bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_ah_attr>,
    eth_mac: Option<&mut MaybeUninit<Mac>>,
    vid: Option<&mut MaybeUninit<u16>>,
) -> c_int {
    let resolve = || {
        let here = context.open()?;
        let attr = path::from_c(&ibv_ah_attr { is_global: 1, ..*attr.ok_or(Errno::EINVAL)? });
        let (Some(route), Some(eth_mac)) = (attr.grh, eth_mac) else { return Err(Errno::EINVAL) };
        let source = query::gid_entry(here.kernel(), attr.port_num, route.sgid_index.into())?;
        let mac = match here.verbs().as_any().downcast_ref::<Open<Mlx5>>() {
            Some(open) => open.driver.resolve_mac(&attr)?,
            None => neighbour::resolve(&source, route.dgid)?,
        };
        eth_mac.write(mac);
        if let Some(vid) = vid {
            vid.write(neighbour::vlan(source.ndev_ifindex));
        }
        Ok(0)
    };
    negative(resolve) as c_int
}
