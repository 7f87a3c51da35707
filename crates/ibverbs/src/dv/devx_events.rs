// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the firmware's objects, and asynchronous queries (mlx5dv_devx_create_event_channel(3),
//! mlx5dv_devx_create_cmd_comp(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and records.

use super::devx::{DevxObj, object};
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::{
    mlx5dv_devx_async_cmd_hdr, mlx5dv_devx_async_event_hdr, mlx5dv_devx_cmd_comp, mlx5dv_devx_event_channel,
};
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use core::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use uverbs_mlx5::devx::{self, CommandChannel, EventChannel};

/// A channel for answers: C's part and ours.
#[repr(C)]
struct CmdComp {
    public: mlx5dv_devx_cmd_comp,
    channel: CommandChannel,
}

/// A channel for events: C's part and ours.
#[repr(C)]
struct Events {
    public: mlx5dv_devx_event_channel,
    channel: EventChannel,
}

/// Reads a record, which has a header of `header` bytes. Returns the number of bytes.
///
/// # Safety
/// `record` is NULL or valid for writes of `len` bytes, and no other thread accesses it during the call.
unsafe fn read(fd: BorrowedFd<'_>, record: *mut c_void, len: usize, header: usize) -> Outcome<usize> {
    // SAFETY: the contract of this function.
    let record = unsafe { devx::mailbox_mut(record, len) }?;
    let bytes = nix::unistd::read(fd, record)?;
    ensure(bytes == 0 || bytes >= header)?;
    Ok(bytes)
}

/// # Safety
/// As in mlx5dv_devx_create_cmd_comp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_create_cmd_comp(
    context: *mut ibv_context,
) -> *mut mlx5dv_devx_cmd_comp {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let channel = unsafe { super::of(context) }?.driver.devx_command_channel()?;
        let public = mlx5dv_devx_cmd_comp { fd: channel.as_fd().as_raw_fd() };
        Ok(Box::into_raw(Box::new(CmdComp { public, channel })).cast())
    })
}

/// # Safety
/// As in mlx5dv_devx_destroy_cmd_comp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_destroy_cmd_comp(cmd_comp: *mut mlx5dv_devx_cmd_comp) {
    if !cmd_comp.is_null() {
        // SAFETY: `uverbs_mlx5dv_devx_create_cmd_comp` allocated it as a `Box` of this type; the program does not use
        // it after this call (contract of the man page).
        drop(unsafe { Box::from_raw(cmd_comp.cast::<CmdComp>()) });
    }
}

/// # Safety
/// As in mlx5dv_devx_obj_query_async(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_obj_query_async(
    obj: *mut DevxObj,
    input: *const c_void,
    inlen: usize,
    outlen: usize,
    wr_id: u64,
    cmd_comp: *mut mlx5dv_devx_cmd_comp,
) -> c_int {
    number(|| {
        // SAFETY: `obj` is NULL or exists (contract of the man page).
        let object = unsafe { object(obj) }?;
        // SAFETY: the mailbox is valid (contract of the man page).
        let input = unsafe { devx::mailbox(input, inlen) }?;
        let outlen = u16::try_from(outlen).map_err(|_| Errno::EINVAL)?;
        // SAFETY: `cmd_comp` is NULL or exists (contract of the man page).
        let comp = unsafe { cmd_comp.cast::<CmdComp>().as_ref() }.ok_or(Errno::EINVAL)?;
        Ok(object.query_async(input, outlen, wr_id, &comp.channel)?)
    })
}

/// # Safety
/// As in mlx5dv_devx_get_async_cmd_comp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_get_async_cmd_comp(
    cmd_comp: *mut mlx5dv_devx_cmd_comp,
    record: *mut mlx5dv_devx_async_cmd_hdr,
    len: usize,
) -> c_int {
    number(|| {
        // SAFETY: `cmd_comp` is NULL or exists (contract of the man page).
        let comp = unsafe { cmd_comp.cast::<CmdComp>().as_ref() }.ok_or(Errno::EINVAL)?;
        let header = size_of::<mlx5dv_devx_async_cmd_hdr>();
        // SAFETY: `record` is valid for writes of `len` bytes (contract of the man page).
        let bytes = unsafe { read(comp.channel.as_fd(), record.cast(), len, header) }?;
        ensure(bytes != 0)
    })
}

/// # Safety
/// As in mlx5dv_devx_create_event_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_create_event_channel(
    context: *mut ibv_context,
    flags: u32,
) -> *mut mlx5dv_devx_event_channel {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let channel = unsafe { super::of(context) }?.driver.devx_event_channel(flags)?;
        let public = mlx5dv_devx_event_channel { fd: channel.as_fd().as_raw_fd() };
        Ok(Box::into_raw(Box::new(Events { public, channel })).cast())
    })
}

/// # Safety
/// As in mlx5dv_devx_destroy_event_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_destroy_event_channel(
    channel: *mut mlx5dv_devx_event_channel,
) {
    if !channel.is_null() {
        // SAFETY: `uverbs_mlx5dv_devx_create_event_channel` allocated it as a `Box` of this type; the program does not
        // use it after this call (contract of the man page).
        drop(unsafe { Box::from_raw(channel.cast::<Events>()) });
    }
}

/// The channel, and the object if there is one.
///
/// # Safety
/// Both are NULL or exist.
unsafe fn subscription<'a>(
    channel: *mut mlx5dv_devx_event_channel,
    obj: *mut DevxObj,
) -> Outcome<(&'a EventChannel, Option<&'a devx::DevxObject>)> {
    // SAFETY: `channel` is NULL or exists (the contract of this function).
    let events = unsafe { channel.cast::<Events>().as_ref() }.ok_or(Errno::EINVAL)?;
    // SAFETY: `obj` is NULL or exists (the contract of this function).
    Ok((&events.channel, unsafe { object(obj) }.ok()))
}

/// # Safety
/// As in mlx5dv_devx_subscribe_devx_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_subscribe_devx_event(
    channel: *mut mlx5dv_devx_event_channel,
    obj: *mut DevxObj,
    events_sz: u16,
    events_num: *const u16,
    cookie: u64,
) -> c_int {
    number(|| {
        // SAFETY: both are NULL or exist (contract of the man page).
        let (channel, object) = unsafe { subscription(channel, obj) }?;
        ensure(!events_num.is_null() && events_sz.is_multiple_of(2))?;
        // SAFETY: `events_num` is valid for reads of `events_sz` bytes (contract of the man page).
        let events = unsafe { core::slice::from_raw_parts(events_num, usize::from(events_sz) / 2) };
        Ok(channel.subscribe(object, events, cookie)?)
    })
}

/// # Safety
/// As in mlx5dv_devx_subscribe_devx_event_fd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_subscribe_devx_event_fd(
    channel: *mut mlx5dv_devx_event_channel,
    fd: c_int,
    obj: *mut DevxObj,
    event_num: u16,
) -> c_int {
    number(|| {
        // SAFETY: both are NULL or exist (contract of the man page).
        let (channel, object) = unsafe { subscription(channel, obj) }?;
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: the descriptor is not negative, and the program does not close it during this call (contract of the
        // man page).
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(channel.subscribe_fd(fd, object, event_num)?)
    })
}

/// # Safety
/// As in mlx5dv_devx_get_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_get_event(
    channel: *mut mlx5dv_devx_event_channel,
    record: *mut mlx5dv_devx_async_event_hdr,
    len: usize,
) -> isize {
    let mut bytes = 0;
    let failed = crate::errno::minus_one(|| {
        // SAFETY: `channel` is NULL or exists (contract of the man page).
        let events = unsafe { channel.cast::<Events>().as_ref() }.ok_or(Errno::EINVAL)?;
        let header = size_of::<mlx5dv_devx_async_event_hdr>();
        // SAFETY: `record` is valid for writes of `len` bytes (contract of the man page).
        bytes = unsafe { read(events.channel.as_fd(), record.cast(), len, header) }?.cast_signed();
        Ok(0)
    });
    if failed == 0 { bytes } else { -1 }
}
