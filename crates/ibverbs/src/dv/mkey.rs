// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys (mlx5dv_create_mkey(3), mlx5dv_mkey_check(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::mlx5dv::{mlx5dv_mkey, mlx5dv_mkey_err, mlx5dv_mkey_init_attr, mlx5dv_sig_err};
use crate::abi::object::ibv_pd;
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use uverbs_mlx5::dv::{Mkey, MkeyOptions, SignaturePart};

/// `enum mlx5dv_mkey_init_attr_flags`. Those about encryption and the tag of the key are missing.
mod flag {
    pub(super) const INDIRECT: u32 = 1 << 0;
    pub(super) const BLOCK_SIGNATURE: u32 = 1 << 1;
    pub(super) const REMOTE_INVALIDATE: u32 = 1 << 4;
    pub(super) const ALL: u32 = INDIRECT | BLOCK_SIGNATURE | REMOTE_INVALIDATE;
}

/// A key: C's part and ours.
#[repr(C)]
struct MkeyObject {
    public: mlx5dv_mkey,
    mkey: ManuallyDrop<Mkey>,
}

/// The key behind a pointer of a program.
///
/// # Safety
/// `mkey` is NULL or from [`uverbs_mlx5dv_create_mkey`], and the key is not destroyed while the reference is used.
pub(super) unsafe fn of<'a>(mkey: *mut mlx5dv_mkey) -> Outcome<&'a Mkey> {
    // SAFETY: NULL, or the first field of an `MkeyObject` that exists (the contract of this function), which is not changed.
    let object = unsafe { mkey.cast::<MkeyObject>().as_ref() };
    Ok(&object.ok_or(Errno::EINVAL)?.mkey)
}

/// # Safety
/// As in mlx5dv_create_mkey(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_mkey(
    attr: Option<&mut mlx5dv_mkey_init_attr>,
) -> *mut mlx5dv_mkey {
    pointer(|| {
        let attr = attr.ok_or(Errno::EINVAL)?;
        // SAFETY: the domain is NULL or exists (contract of the man page).
        let pd: Arg<'_, ibv_pd> = unsafe { Arg::new(attr.pd) };
        let pd = super::of_object(pd)?;
        let flags = attr.create_flags;
        if flags == 0 || flags & !flag::ALL != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let options = MkeyOptions {
            max_entries: attr.max_entries,
            signature: flags & flag::BLOCK_SIGNATURE != 0,
            remote_invalidate: flags & flag::REMOTE_INVALIDATE != 0,
        };
        let mkey = pd.driver.create_mkey(pd.object.own().handle(), options)?;
        // The largest number is rounded up to one more than the field has.
        attr.max_entries = u16::try_from(mkey.max_entries()).unwrap_or(u16::MAX);
        let public = mlx5dv_mkey { lkey: mkey.lkey(), rkey: mkey.rkey() };
        Ok(Box::into_raw(Box::new(MkeyObject { public, mkey: ManuallyDrop::new(mkey) })).cast())
    })
}

/// # Safety
/// As in mlx5dv_create_mkey(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int {
    number(|| {
        // SAFETY: NULL or from `uverbs_mlx5dv_create_mkey`; if this succeeds, the program does not use it any more (contract of
        // the man page).
        unsafe { super::destroy(mkey.cast::<MkeyObject>(), |object| &object.mkey, Mkey::destroy) }
    })
}

/// `enum mlx5dv_mkey_err_type`
const NO_ERR: u32 = 0;
const BAD_GUARD: u32 = 1;
const BAD_REFTAG: u32 = 2;
const BAD_APPTAG: u32 = 3;

/// # Safety
/// As in mlx5dv_mkey_check(3), whose inline function passes the size of its struct.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_mkey_check(
    mkey: *mut mlx5dv_mkey,
    err_info: *mut mlx5dv_mkey_err,
    err_info_size: usize,
) -> c_int {
    number(|| {
        ensure(!err_info.is_null() && err_info_size >= size_of::<mlx5dv_mkey_err>())?;
        // SAFETY: a key that exists (contract of the man page).
        let found = unsafe { of(mkey) }?.check()?;
        let err_type = match found.map(|error| error.part) {
            None => NO_ERR,
            Some(SignaturePart::Guard) => BAD_GUARD,
            Some(SignaturePart::RefTag) => BAD_REFTAG,
            Some(SignaturePart::AppTag) => BAD_APPTAG,
        };
        // SAFETY: valid for writes of so many bytes (contract of the man page).
        unsafe { (*err_info).err_type = err_type };
        if let Some(error) = found {
            let err = mlx5dv_sig_err {
                actual_value: error.actual,
                expected_value: error.expected,
                offset: error.offset,
            };
            // SAFETY: as for the field before.
            unsafe { (*err_info).err = err };
        }
        Ok(())
    })
}
