// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3), ibv_reg_dmabuf_mr(3), ibv_advise_mr(3), ibv_alloc_null_mr(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and memory that a C program registers with the device.

use super::buf::Buf;
use super::destroy_handle;
use super::whole::{Owned, create, create_without_number};
use crate::abi::attr::ibv_mr_init_attr;
use crate::abi::object::ibv_pd;
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, minus_one, nothing, number, pointer};
use crate::live::Live;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use core::{ptr, slice};
use std::os::fd::BorrowedFd;
use uverbs_core::attr::{AccessFlags, AdviseFlags, MrAdvice, ReregFlags};
use uverbs_core::control::{MrHandle, MrRange, Rereg, mr};
use uverbs_core::kernel::Uhw;
use uverbs_core::sync::ProcessMutex;
use uverbs_core::wr::{IbvMr, Sge};

/// The handle; `None` for the null region, which has no kernel object.
pub(crate) type MrPrivate = Option<ProcessMutex<ManuallyDrop<MrHandle>>>;

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for IbvMr {
    type Public = Self;
    type Own = MrPrivate;
}

/// `IBV_REREG_MR_ERR_INPUT`: the region is as before.
const ERR_INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`: the region must not be used any more.
const ERR_CMD: c_int = -4;

pub(super) fn new(pd: &Live<'_, ibv_pd>, addr: *mut c_void, length: usize, handle: MrHandle) -> *mut IbvMr {
    let public = IbvMr {
        context: pd.context().cast(),
        pd: pd.pointer().cast(),
        addr,
        length,
        handle: handle.handle(),
        lkey: handle.lkey(),
        rkey: handle.rkey(),
    };
    create(pd.here(), public, Some(ProcessMutex::new(ManuallyDrop::new(handle))))
}

/// # Safety
/// As in ibv_reg_mr(3).
pub(super) unsafe fn register(
    pd: Arg<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Outcome<*mut IbvMr> {
    let pd = pd.enter()?;
    let range = MrRange { addr: addr.expose_provenance() as u64, length: length as u64, iova };
    let access = AccessFlags::from_bits_retain(access);
    // SAFETY: the memory stays valid as long as it is registered, and it is not accessed in conflict with the device
    // (the contract of ibv_reg_mr(3)).
    let handle = unsafe { pd.verbs().reg_mr(pd.own().handle(), range, access) }?;
    Ok(new(&pd, addr, length, handle))
}

/// # Safety
/// As in ibv_reg_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: Arg<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: `pd` is NULL or exists, and the memory stays valid as long as it is registered (contract of the man
    // page).
    pointer(|| unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) })
}

/// # Safety
/// As in ibv_reg_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: Arg<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: `pd` is NULL or exists, and the memory stays valid as long as it is registered (contract of the man
    // page).
    pointer(|| unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

/// # Safety
/// As in ibv_reg_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: Arg<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut IbvMr {
    // SAFETY: `pd` is NULL or exists, and the memory stays valid as long as it is registered (contract of the man
    // page).
    pointer(|| unsafe { register(pd, addr, length, iova, access) })
}

/// # Safety
/// As in ibv_reg_dmabuf_mr(3).
pub(crate) unsafe fn register_dmabuf(
    pd: Arg<'_, ibv_pd>,
    fd: c_int,
    range: MrRange,
    access: u32,
    driver_flags: Option<(u16, u32)>,
) -> Outcome<*mut IbvMr> {
    let pd = pd.enter()?;
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: `fd` is not negative, and the program does not close it during this call (contract of the man page).
    let dmabuf = unsafe { BorrowedFd::borrow_raw(fd) };
    let access = AccessFlags::from_bits_retain(access);
    let (core, domain) = (pd.verbs().core_support(), pd.own().handle());
    let handle = mr::reg_dmabuf_with(core, domain, dmabuf, range, access, driver_flags)?;
    Ok(new(&pd, ptr::null_mut(), range.length as usize, handle))
}

/// # Safety
/// As in ibv_reg_dmabuf_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: Arg<'_, ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: `pd` is NULL or exists, and `fd` is not closed during this call (contract of the man page).
    pointer(|| unsafe {
        register_dmabuf(
            pd,
            fd,
            MrRange { addr: offset, length: length as u64, iova },
            access.cast_unsigned(),
            None,
        )
    })
}

/// `IBV_REG_MR_MASK_*`
mod mask {
    pub(super) const IOVA: u64 = 1 << 0;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    /// TPH handles, which this library does not have.
    pub(super) const DMAH: u64 = 1 << 4;
    pub(super) const BUF: u64 = 1 << 5;
}

/// # Safety
/// As in ibv_reg_mr_ex(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: Arg<'_, ibv_pd>,
    attr: Option<&ibv_mr_init_attr>,
) -> *mut IbvMr {
    pointer(|| {
        let attr = attr.ok_or(Errno::EINVAL)?;
        let has = |bit| attr.comp_mask & bit != 0;
        if has(!(mask::IOVA | mask::ADDR | mask::FD | mask::FD_OFFSET | mask::BUF)) {
            return Err(if has(mask::DMAH) { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        let access = attr.access.cast_unsigned();
        if has(mask::BUF) {
            ensure(has(mask::ADDR) && !has(mask::FD | mask::FD_OFFSET))?;
            // SAFETY: it is NULL or a handle that was not freed (contract of the man page), and nothing changes it.
            let buf = unsafe { attr.buf.cast::<Buf>().as_ref() }.ok_or(Errno::EINVAL)?;
            buf.check(pd.pointer(), attr.addr, attr.length)?;
        }
        if has(mask::FD) {
            ensure(has(mask::IOVA) && has(mask::FD_OFFSET) && !has(mask::ADDR))?;
            // SAFETY: `pd` is NULL or exists, and the descriptor is not closed during this call (contract of the man
            // page).
            return unsafe {
                register_dmabuf(
                    pd,
                    attr.fd,
                    MrRange { addr: attr.fd_offset, length: attr.length as u64, iova: attr.iova },
                    access,
                    None,
                )
            };
        }
        ensure(has(mask::ADDR) && !has(mask::FD_OFFSET))?;
        let iova = if has(mask::IOVA) { attr.iova } else { attr.addr.addr() as u64 };
        // SAFETY: `pd` is NULL or exists, and the memory stays valid as long as it is registered (contract of the man
        // page).
        unsafe { register(pd, attr.addr, attr.length, iova, access) }
    })
}

/// # Safety
/// As in ibv_rereg_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: Arg<'_, IbvMr>,
    flags: c_int,
    pd: Arg<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut failure = ERR_INPUT;
    let result = minus_one(|| {
        let mr = mr.enter()?;
        let Some(handle) = mr.own() else { return Err(Errno::EINVAL) };
        let flags = ReregFlags::from_bits(flags.cast_unsigned()).ok_or(Errno::EINVAL)?;
        let has = |flag| flags.contains(flag);
        let moves = has(ReregFlags::CHANGE_TRANSLATION);
        ensure(!flags.is_empty() && !(moves && (addr.is_null() || length == 0)))?;
        let changes_pd = has(ReregFlags::CHANGE_PD);
        let new_pd = if changes_pd { Some(pd.enter_in(mr.context())?.ok_or(Errno::EINVAL)?) } else { None };
        let start = addr.expose_provenance() as u64;
        let access = AccessFlags::from_bits_retain(access.cast_unsigned());
        let change = Rereg {
            range: moves.then_some(MrRange { addr: start, length: length as u64, iova: start }),
            pd: new_pd.as_ref().map(|pd| pd.own().handle()),
            access: has(ReregFlags::CHANGE_ACCESS).then_some(access),
        };
        let mut handle = handle.lock().map_err(|_| Errno::ESTALE)?;
        failure = ERR_CMD;
        // SAFETY: the new memory stays valid as long as it is registered, and it is not accessed in conflict with the
        // device (the contract of ibv_rereg_mr(3)).
        unsafe { handle.rereg(mr.verbs().core_support(), &change, Uhw::none()) }?;
        // SAFETY: `mr` exists as long as `mr` is used. Nothing else accesses its public part during this call
        // (contract of the man page).
        let public = unsafe { &mut *mr.pointer() };
        (public.lkey, public.rkey) = (handle.lkey(), handle.rkey());
        if let Some(pd) = &new_pd {
            public.pd = pd.pointer().cast();
        }
        if moves {
            (public.addr, public.length) = (addr, length);
        }
        Ok(0)
    });
    if result == 0 { 0 } else { failure }
}

/// # Safety
/// As in ibv_reg_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: Arg<'_, IbvMr>) -> c_int {
    number(|| {
        let mr = mr.claim()?;
        if let Some(handle) = mr.own() {
            let handle = handle.lock().map_err(|_| Errno::ESTALE)?;
            // SAFETY: if this succeeds, the object is freed below.
            unsafe { destroy_handle(&handle, MrHandle::destroy) }?;
        }
        mr.free();
        Ok(())
    })
}

/// # Safety
/// As in ibv_import_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: Arg<'_, ibv_pd>, mr_handle: u32) -> *mut IbvMr {
    pointer(|| {
        let pd = pd.enter()?;
        // SAFETY: the number is that of a region that the program may use (contract of the man page).
        let (handle, info) = unsafe { mr::import(pd.kernel(), mr_handle) }?;
        let length = usize::try_from(info.length).map_err(|_| Errno::EOVERFLOW)?;
        Ok(new(&pd, ptr::null_mut(), length, handle))
    })
}

/// Frees the struct; the kernel's object remains.
///
/// # Safety
/// As in ibv_unimport_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: Arg<'_, IbvMr>) {
    nothing(|| {
        // Handles do nothing when they are dropped.
        mr.claim()?.free();
        Ok(())
    });
}

/// # Safety
/// As in ibv_advise_mr(3).
pub(crate) unsafe extern "C" fn advise_mr(
    pd: Arg<'_, ibv_pd>,
    advice: u32,
    flags: u32,
    sg_list: *mut Sge,
    num_sge: u32,
) -> c_int {
    number(|| {
        let pd = pd.enter()?;
        let advice = [MrAdvice::Prefetch, MrAdvice::PrefetchWrite, MrAdvice::PrefetchNoFault]
            .into_iter()
            .find(|known| *known as u32 == advice)
            .ok_or(Errno::EINVAL)?;
        ensure(!sg_list.is_null() && num_sge != 0)?;
        // SAFETY: `sg_list` is not NULL (checked above) and has `num_sge` entries (contract of the man page).
        let sges = unsafe { slice::from_raw_parts(sg_list, num_sge as usize) };
        Ok(mr::advise(pd.own().handle(), advice, AdviseFlags::from_bits_retain(flags), sges)?)
    })
}

/// # Safety
/// As in ibv_alloc_null_mr(3).
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: Arg<'_, ibv_pd>) -> *mut IbvMr {
    pointer(|| {
        let pd = pd.enter()?;
        let public = IbvMr {
            context: pd.context().cast(),
            pd: pd.pointer().cast(),
            addr: ptr::null_mut(),
            length: usize::MAX,
            handle: 0,
            lkey: pd.verbs().null_lkey()?,
            rkey: 0,
        };
        Ok(create_without_number(pd.here(), public, None))
    })
}
