// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening and querying devices (ibv_open_device(3), ibv_query_device(3), ibv_query_port(3), ibv_query_gid(3),
//! ibv_query_pkey(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::context::{ibv_context, ibv_device};
use crate::abi::device::{
    Gid64, ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_query_device_ex_input,
    ibv_values_ex,
};
use crate::arg::Arg;
use crate::context::{self, Private};
use crate::driver_library;
use crate::errno::{Errno, Outcome, ensure, minus_one, negative, number, pointer};
use crate::{convert::device as convert, devices};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use uverbs_core::attr::DeviceAttr;
use uverbs_core::control::query;
use uverbs_core::device::parse;

/// Bytes of `struct ibv_port_attr` that the exported function writes: the size of the struct in its first version.
const COMPAT_PORT_ATTR: usize = 48;

/// Copies the part of a struct that fits into `room` bytes.
///
/// # Safety
/// `room` bytes from `to` on are valid for writing.
unsafe fn write_part<T>(value: &T, to: *mut T, room: usize) {
    let bytes = size_of::<T>().min(room);
    // SAFETY: `bytes` is at most the size of `value` and at most `room`, for which `to` is valid (the contract of this
    // function). `value` is a struct of this library, so the two do not overlap.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), bytes) };
}

/// # Safety
/// As in ibv_open_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: `device` is NULL or a device of a list (contract of the man page).
    pointer(|| unsafe { devices::open(device) })
}

/// # Safety
/// As in ibv_open_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: no verb of the context is in progress, and none of its objects is used later (contract of the man page).
    minus_one(|| unsafe { context::close(context) }.map(|()| 0))
}

/// # Safety
/// As in ibv_import_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    // SAFETY: nothing else uses the descriptor (contract of the man page).
    pointer(|| unsafe { devices::import(cmd_fd) })
}

/// The device's attributes, and its firmware's version.
fn ask(here: &Private) -> Outcome<(DeviceAttr, Option<String>)> {
    let attr = here.verbs().query_device()?;
    let from_sysfs = || here.kernel().attribute("fw_ver").ok().and_then(|bytes| parse::text(&bytes));
    let fw_ver = driver_library::firmware_version(here, &attr).or_else(from_sysfs);
    Ok((attr, fw_ver))
}

/// # Safety
/// As in ibv_query_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: Arg<'_, ibv_context>,
    attr: Option<&mut MaybeUninit<ibv_device_attr>>,
) -> c_int {
    number(|| {
        let (found, fw_ver) = ask(context.open()?)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        attr.write(convert::device_attr(&found, fw_ver.as_deref()));
        Ok(())
    })
}

/// # Safety
/// As in ibv_query_device_ex(3); `attr` has room for `attr_size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: Arg<'_, ibv_context>,
    input: Option<&ibv_query_device_ex_input>,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    number(|| {
        let here = context.open()?;
        ensure(input.is_none_or(|input| input.comp_mask == 0))?;
        ensure(!attr.is_null() && attr_size >= size_of::<ibv_device_attr>())?;
        let (found, fw_ver) = ask(here)?;
        // The struct of a newer program has more fields at its end, which are 0.
        // SAFETY: `attr` is valid for writes of `attr_size` bytes (the contract of this function).
        unsafe { attr.cast::<u8>().write_bytes(0, attr_size) };
        // SAFETY: `attr` is valid for writes of `attr_size` bytes (the contract of this function).
        unsafe { write_part(&convert::device_attr_ex(&found, fw_ver.as_deref()), attr, attr_size) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_query_port(3); `attr` has room for `attr_len` bytes.
pub(crate) unsafe extern "C" fn query_port(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    number(|| {
        let here = context.open()?;
        ensure(!attr.is_null())?;
        let found = query::port(here.kernel(), port_num)?;
        // SAFETY: `attr` is valid for writes of `attr_len` bytes (the contract of this function).
        unsafe { attr.cast::<u8>().write_bytes(0, attr_len) };
        // SAFETY: `attr` is valid for writes of `attr_len` bytes (the contract of this function).
        unsafe { write_part(&convert::port_attr(&found), attr, attr_len) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_query_port(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: `context` and `attr` are valid (contract of the man page); the struct has at least this size in every
    // version of the header.
    unsafe { query_port(context, port_num, attr, COMPAT_PORT_ATTR) }
}

/// # Safety
/// As in ibv_query_port_speed(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: Arg<'_, ibv_context>,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    number(|| {
        let here = context.open()?;
        ensure(!port_speed.is_null())?;
        let speed = query::port_speed(here.kernel(), port_num)?;
        // SAFETY: `port_speed` is valid for writes (contract of the man page).
        unsafe { port_speed.write(speed) };
        Ok(())
    })
}

/// `IBV_VALUES_MASK_RAW_CLOCK`
const RAW_CLOCK: u32 = 1;

/// # Safety
/// As in ibv_query_rt_values_ex(3).
pub(crate) unsafe extern "C" fn query_rt_values(
    context: Arg<'_, ibv_context>,
    values: Option<&mut ibv_values_ex>,
) -> c_int {
    number(|| {
        let here = context.open()?;
        let values = values.ok_or(Errno::EINVAL)?;
        ensure(values.comp_mask & !RAW_CLOCK == 0)?;
        let wanted = core::mem::take(&mut values.comp_mask);
        if wanted & RAW_CLOCK != 0 {
            // Ticks, not nanoseconds; all of them are in this field.
            let ticks = here.verbs().raw_clock()?;
            (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (0, ticks.cast_signed());
            values.comp_mask = RAW_CLOCK;
        }
        Ok(())
    })
}

/// # Safety
/// As in ibv_query_gid(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    index: c_int,
    gid: *mut Gid64,
) -> c_int {
    minus_one(|| {
        let here = context.open()?;
        ensure(!gid.is_null())?;
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        let found = match query::gid_entry(here.kernel(), port_num, index) {
            Ok(entry) => entry.gid.into(),
            // An empty entry of the table is a GID of zeros here.
            Err(error) if error.errno() == Errno::ENODATA => Gid64::default(),
            Err(error) => return Err(error.errno()),
        };
        // SAFETY: `gid` is valid for writes (contract of the man page).
        unsafe { gid.write_unaligned(found) };
        Ok(0)
    })
}

/// # Safety
/// As in ibv_query_gid_ex(3); `entry` has room for `entry_size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: Arg<'_, ibv_context>,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    number(|| {
        let here = context.open()?;
        ensure(!entry.is_null() && entry_size >= size_of::<ibv_gid_entry>())?;
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let found = query::gid_entry(here.kernel(), port_num, gid_index)?;
        // SAFETY: `entry` is valid for writes of `entry_size` bytes (the contract of this function).
        unsafe { write_part(&convert::gid_entry(&found), entry, entry_size) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_query_gid_table(3); `entries` has room for `max_entries` of `entry_size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: Arg<'_, ibv_context>,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    negative(|| {
        let here = context.open()?;
        ensure(entry_size >= size_of::<ibv_gid_entry>())?;
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let found = query::gid_table(here.kernel())?;
        if found.len() > max_entries {
            return Err(Errno::EINVAL);
        }
        ensure(!entries.is_null() || found.is_empty())?;
        for (i, entry) in found.iter().enumerate() {
            let place = entries.cast::<u8>().wrapping_add(i * entry_size).cast();
            // SAFETY: the index of the entry is below `max_entries`, and `entries` is valid for that many of
            // `entry_size` bytes (the contract of this function).
            unsafe { write_part(&convert::gid_entry(entry), place, entry_size) };
        }
        Ok(found.len() as isize)
    })
}

/// `enum ibv_gid_type_sysfs`: RoCE version 1 has the value of InfiniBand.
const GID_TYPE_IB_ROCE_V1: u32 = 0;
const GID_TYPE_ROCE_V2: u32 = 1;

/// Called by `ibv_devinfo` and librdmacm, although no header declares it.
///
/// # Safety
/// As in ibv_query_gid(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    minus_one(|| {
        let here = context.open()?;
        ensure(!gid_type.is_null())?;
        let found = match query::gid_entry(here.kernel(), port_num, index) {
            Ok(entry) if entry.gid_type == uverbs_core::attr::GidType::ROCE_V2 => GID_TYPE_ROCE_V2,
            Ok(_) => GID_TYPE_IB_ROCE_V1,
            Err(error) if error.errno() == Errno::ENODATA => GID_TYPE_IB_ROCE_V1,
            Err(error) => return Err(error.errno()),
        };
        // SAFETY: `gid_type` is valid for writes (contract of the man page).
        unsafe { gid_type.write(found) };
        Ok(0)
    })
}

/// # Safety
/// As in ibv_query_pkey(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    minus_one(|| {
        let here = context.open()?;
        ensure(!pkey.is_null())?;
        let index = u16::try_from(index).map_err(|_| Errno::EINVAL)?;
        let found = query::pkey(here.kernel(), port_num, index)?;
        // SAFETY: `pkey` is valid for writes (contract of the man page).
        unsafe { pkey.write(found.to_be()) };
        Ok(0)
    })
}

/// # Safety
/// As in ibv_get_pkey_index(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: Arg<'_, ibv_context>,
    port_num: u8,
    pkey: u16,
) -> c_int {
    minus_one(|| {
        let here = context.open()?;
        let length = query::port(here.kernel(), port_num)?.pkey_tbl_len;
        let wanted = u16::from_be(pkey);
        let is_wanted = |index: &u16| query::pkey(here.kernel(), port_num, *index).is_ok_and(|p| p == wanted);
        (0..length).find(is_wanted).map(c_int::from).ok_or(Errno::ENOENT)
    })
}
