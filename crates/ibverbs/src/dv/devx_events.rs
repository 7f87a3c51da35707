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
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use core::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use uverbs_mlx5::devx::{self, CommandChannel, EventChannel};

/// A channel for answers: C's part and ours.
#[repr(C)]
pub(crate) struct CmdComp {
    public: mlx5dv_devx_cmd_comp,
    channel: CommandChannel,
}

/// A channel for events: C's part and ours.
#[repr(C)]
pub(crate) struct Events {
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
    context: Arg<'_, ibv_context>,
) -> *mut mlx5dv_devx_cmd_comp {
    pointer(|| {
        let channel = super::of(context)?.driver.devx_command_channel()?;
        let public = mlx5dv_devx_cmd_comp { fd: channel.as_fd().as_raw_fd() };
        Ok(Box::into_raw(Box::new(CmdComp { public, channel })).cast())
    })
}

/// # Safety
/// As in mlx5dv_devx_destroy_cmd_comp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_destroy_cmd_comp(cmd_comp: Option<Box<CmdComp>>) {
    drop(cmd_comp);
}

/// # Safety
/// As in mlx5dv_devx_obj_query_async(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_obj_query_async(
    obj: Option<&DevxObj>,
    input: *const c_void,
    inlen: usize,
    outlen: usize,
    wr_id: u64,
    cmd_comp: Option<&CmdComp>,
) -> c_int {
    number(|| {
        let object = object(obj)?;
        // SAFETY: the mailbox is valid (contract of the man page).
        let input = unsafe { devx::mailbox(input, inlen) }?;
        let outlen = u16::try_from(outlen).map_err(|_| Errno::EINVAL)?;
        let comp = cmd_comp.ok_or(Errno::EINVAL)?;
        Ok(object.query_async(input, outlen, wr_id, &comp.channel)?)
    })
}

/// # Safety
/// As in mlx5dv_devx_get_async_cmd_comp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_get_async_cmd_comp(
    cmd_comp: Option<&CmdComp>,
    record: *mut mlx5dv_devx_async_cmd_hdr,
    len: usize,
) -> c_int {
    number(|| {
        let comp = cmd_comp.ok_or(Errno::EINVAL)?;
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
    context: Arg<'_, ibv_context>,
    flags: u32,
) -> *mut mlx5dv_devx_event_channel {
    pointer(|| {
        let channel = super::of(context)?.driver.devx_event_channel(flags)?;
        let public = mlx5dv_devx_event_channel { fd: channel.as_fd().as_raw_fd() };
        Ok(Box::into_raw(Box::new(Events { public, channel })).cast())
    })
}

/// # Safety
/// As in mlx5dv_devx_destroy_event_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_destroy_event_channel(channel: Option<Box<Events>>) {
    drop(channel);
}

/// # Safety
/// As in mlx5dv_devx_subscribe_devx_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_subscribe_devx_event(
    channel: Option<&Events>,
    obj: Option<&DevxObj>,
    events_sz: u16,
    events_num: *const u16,
    cookie: u64,
) -> c_int {
    number(|| {
        let (channel, object) = (&channel.ok_or(Errno::EINVAL)?.channel, object(obj).ok());
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
    channel: Option<&Events>,
    fd: c_int,
    obj: Option<&DevxObj>,
    event_num: u16,
) -> c_int {
    number(|| {
        let (channel, object) = (&channel.ok_or(Errno::EINVAL)?.channel, object(obj).ok());
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
    channel: Option<&Events>,
    record: *mut mlx5dv_devx_async_event_hdr,
    len: usize,
) -> isize {
    let mut bytes = 0;
    let failed = crate::errno::minus_one(|| {
        let events = channel.ok_or(Errno::EINVAL)?;
        let header = size_of::<mlx5dv_devx_async_event_hdr>();
        // SAFETY: `record` is valid for writes of `len` bytes (contract of the man page).
        bytes = unsafe { read(events.channel.as_fd(), record.cast(), len, header) }?.cast_signed();
        Ok(0)
    });
    if failed == 0 { bytes } else { -1 }
}
