// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion channels, and their events (ibv_create_comp_channel(3), ibv_get_cq_event(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::context::ibv_context;
use crate::abi::field;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::context;
use crate::errno::{Errno, Outcome, ensure, minus_one, nothing, number, pointer};
use crate::events;
use crate::live;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::{AsFd, AsRawFd};
use uverbs_core::control::{CompChannelHandle, comp_channel};

/// A channel.
#[repr(C)]
struct Channel {
    public: ibv_comp_channel,
    private: CompChannelHandle,
}

/// The kernel's object.
///
/// # Safety
/// `channel` is NULL, or a live channel of this library.
pub(crate) unsafe fn handle<'a>(channel: *mut ibv_comp_channel) -> Option<&'a CompChannelHandle> {
    if channel.is_null() {
        return None;
    }
    // SAFETY: `channel` is a live object of this type (contract of this function); no mutable reference to its private
    // part exists.
    Some(unsafe { &(*channel.cast::<Channel>()).private })
}

/// `EBADF`, as from the kernel, unless the descriptor in C's part is that of the channel, or another one of the same file:
/// programs may replace it.
///
/// # Safety
/// As for [`handle`].
pub(crate) unsafe fn check_file(channel: *mut ibv_comp_channel) -> Outcome<()> {
    // SAFETY: the contract of this function.
    let Some(own) = (unsafe { handle(channel) }) else { return Ok(()) };
    // SAFETY: not NULL, so it exists (contract of this function). The field is copied.
    let fd = unsafe { (*channel).fd };
    let own = own.as_fd().as_raw_fd();
    if fd == own || is_same_file(fd, own) { Ok(()) } else { Err(Errno::EBADF) }
}

/// Whether two descriptors of this process are of one open file (kcmp(2)); `false` if the kernel can't tell.
fn is_same_file(one: c_int, other: c_int) -> bool {
    const KCMP_FILE: libc::c_long = 0;
    let pid = libc::c_long::from(std::process::id().cast_signed());
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    // SAFETY: the call takes numbers only, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, one, other) == 0 }
}

/// Counts a CQ that uses a channel from now on, or until now.
///
/// # Safety
/// As for [`handle`].
pub(crate) unsafe fn count_user(channel: *mut ibv_comp_channel, is_new: bool) {
    if channel.is_null() {
        return;
    }
    // SAFETY: `channel` exists (contract of this function).
    let users = unsafe { users(channel) };
    // Release: the CQ's last use of the channel comes before the channel is freed.
    if is_new {
        users.fetch_add(1, Ordering::Relaxed)
    } else {
        users.fetch_sub(1, Ordering::Release)
    };
}

/// The number of CQs that use a channel.
///
/// # Safety
/// `channel` is a live channel of this library.
unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: `channel` exists (contract of this function), and this module accesses the field only as an atomic.
    unsafe { AtomicI32::from_ptr(field!(channel, ibv_comp_channel.refcnt)) }
}

/// Frees a channel, and closes its file.
///
/// # Safety
/// `channel` is a live channel of this library, which is not used later.
pub(crate) unsafe fn free(channel: *mut ibv_comp_channel) {
    // SAFETY: `ibv_create_comp_channel` allocated it as a `Box` of this type; it is not used later (contract of this
    // function).
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
}

/// # Safety
/// As in ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        let private = comp_channel::create(here.kernel())?;
        let public = ibv_comp_channel { context, fd: private.as_fd().as_raw_fd(), refcnt: 0 };
        let mut channels = here.channels()?;
        let channel: *mut ibv_comp_channel = Box::into_raw(Box::new(Channel { public, private })).cast();
        channels.0.push(channel);
        drop(channels);
        // SAFETY: a new object; the context is not closed during this call (contract of the man page).
        Ok(unsafe { live::add(channel) })
    })
}

/// # Safety
/// As in ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        // SAFETY: `channel` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(channel) }?;
        // SAFETY: the channel exists and is claimed.
        if unsafe { users(channel) }.load(Ordering::Acquire) != 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: the channel exists and is claimed.
        unsafe { check_file(channel) }?;
        here.channels()?.0.retain(|other| *other != channel);
        live::remove(&here, channel);
        // SAFETY: the program does not use it after this call (contract of the man page), and it is no longer in the
        // list.
        unsafe { free(channel) };
        Ok(())
    })
}

/// # Safety
/// As in ibv_get_cq_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    minus_one(|| {
        // This call waits, and does not keep the channel: as in C, another thread may destroy it.
        // SAFETY: the context is not closed during this call (contract of the man page).
        let here = unsafe { live::peek(channel) }?;
        ensure(!cq.is_null() && !cq_context.is_null())?;
        loop {
            let mut record = [0; 8];
            // The descriptor is read from the public field, because programs may replace it. A signal ends the read
            // (`EINTR`).
            // SAFETY: `channel` exists: `of_object` found its context, and the program does not destroy it during this
            // call (contract of the man page).
            events::read(unsafe { (*channel).fd }, &mut record)?;
            let number = comp_channel::parse_event(&record).ok_or(Errno::EIO)?;
            // The queue was destroyed after the event was written: no object has the number.
            let Some(found) = here.numbered_cq(number) else { continue };
            // SAFETY: `found` is in the table of objects, so it exists, and it is not destroyed before this event is
            // acknowledged.
            unsafe { here.verbs().cq_event(found) };
            // SAFETY: `cq` is valid for writes (contract of the man page).
            unsafe { cq.write(found) };
            // SAFETY: `found` is in the table of objects, and is not destroyed before this event is acknowledged.
            let context = unsafe { (*found).cq_context };
            // SAFETY: `cq_context` is valid for writes (contract of the man page).
            unsafe { cq_context.write(context) };
            return Ok(0);
        }
    })
}

/// # Safety
/// As in ibv_ack_cq_events(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    nothing(|| {
        // SAFETY: the context is not closed during this call (contract of the man page).
        unsafe { live::peek(cq) }?;
        // SAFETY: `cq` exists: it was found, and it is not freed before these events are acknowledged.
        unsafe { events::acknowledge(field!(cq, ibv_cq.comp_events_completed), nevents) };
        Ok(())
    });
}
