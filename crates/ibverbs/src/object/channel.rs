// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion channels, and their events (ibv_create_comp_channel(3), ibv_get_cq_event(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::whole::{Owned, Whole, create};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, minus_one, nothing, number, pointer};
use crate::events;
use crate::live::Live;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::{AsFd, AsRawFd};
use uverbs_core::control::{CompChannelHandle, comp_channel};

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for ibv_comp_channel {
    type Public = Self;
    type Own = CompChannelHandle;
}

/// The kernel's object. `EBADF`, as from the kernel, unless the descriptor in C's part is that of the channel, or another one of the same
/// file: programs may replace it.
pub(crate) fn checked<'a>(channel: &'a Live<'_, ibv_comp_channel>) -> Outcome<&'a CompChannelHandle> {
    // SAFETY: the channel exists as long as `channel`. The field is copied.
    let fd = unsafe { (*channel.pointer()).fd };
    let own = channel.own().as_fd().as_raw_fd();
    if fd == own || is_same_file(fd, own) { Ok(channel.own()) } else { Err(Errno::EBADF) }
}

/// Whether two descriptors of this process are of one open file (kcmp(2)); `false` if the kernel can't tell.
fn is_same_file(one: c_int, other: c_int) -> bool {
    const KCMP_FILE: libc::c_long = 0;
    let pid = libc::c_long::from(std::process::id().cast_signed());
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    // SAFETY: the call takes numbers only, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, one, other) == 0 }
}

/// Counts a CQ of a channel in C's part, so that the channel is not freed before this value is dropped.
pub(crate) struct ChannelUser(*mut ibv_comp_channel);

// SAFETY: the pointer is used for an atomic only.
unsafe impl Send for ChannelUser {}
// SAFETY: as for `Send`.
unsafe impl Sync for ChannelUser {}

impl ChannelUser {
    pub(crate) fn new(channel: &Live<'_, ibv_comp_channel>) -> Self {
        // SAFETY: the channel exists as long as `channel`.
        unsafe { users(channel.pointer()) }.fetch_add(1, Ordering::Relaxed);
        Self(channel.pointer())
    }
}

impl Drop for ChannelUser {
    fn drop(&mut self) {
        // Release: the CQ's last use of the channel comes before the channel is freed.
        // SAFETY: a channel with users is not freed.
        unsafe { users(self.0) }.fetch_sub(1, Ordering::Release);
    }
}

/// The number of CQs that use a channel.
///
/// # Safety
/// `channel` is a channel of this library, which is not freed as long as the reference is used.
unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: `channel` exists (contract of this function), and this module accesses the field only as an atomic.
    unsafe { AtomicI32::from_ptr(channel.wrapping_byte_add(offset_of!(ibv_comp_channel, refcnt)).cast()) }
}

/// Frees a channel that the program has not destroyed before it closes the context, and closes its file.
///
/// # Safety
/// `channel` is a channel of this library, which was removed from the table and is not used later.
pub(crate) unsafe fn free(channel: *mut ibv_comp_channel) {
    // SAFETY: a `Box` of this type (`Owned`); it is not used later (contract of this function).
    drop(unsafe { Box::from_raw(channel.cast::<Whole<ibv_comp_channel, CompChannelHandle>>()) });
}

/// # Safety
/// As in ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: Arg<'_, ibv_context>,
) -> *mut ibv_comp_channel {
    pointer(|| {
        let here = context.open()?;
        let own = comp_channel::create(here.kernel())?;
        let public = ibv_comp_channel { context: context.pointer(), fd: own.as_fd().as_raw_fd(), refcnt: 0 };
        let mut channels = here.channels()?;
        let channel = create(here, public, own);
        channels.0.push(channel);
        Ok(channel)
    })
}

/// # Safety
/// As in ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: Arg<'_, ibv_comp_channel>) -> c_int {
    number(|| {
        let channel = channel.claim()?;
        // SAFETY: the channel exists as long as `channel`.
        if unsafe { users(channel.pointer()) }.load(Ordering::Acquire) != 0 {
            return Err(Errno::EBUSY);
        }
        checked(&channel)?;
        channel.channels()?.0.retain(|other| *other != channel.pointer());
        channel.free();
        Ok(())
    })
}

/// # Safety
/// As in ibv_get_cq_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: Arg<'_, ibv_comp_channel>,
    cq: Option<&mut MaybeUninit<*mut ibv_cq>>,
    cq_context: Option<&mut MaybeUninit<*mut c_void>>,
) -> c_int {
    minus_one(|| {
        // This call waits, and does not keep the channel: as in C, another thread may destroy it.
        let channel = channel.peek()?;
        let (Some(cq), Some(cq_context)) = (cq, cq_context) else { return Err(Errno::EINVAL) };
        loop {
            let mut record = [0; 8];
            // The descriptor is read from the public field, because programs may replace it. A signal ends the read
            // (`EINTR`).
            // SAFETY: `channel` exists: it was found, and the program does not destroy it before the call waits (contract of the man
            // page).
            events::read(unsafe { (*channel.pointer()).fd }, &mut record)?;
            let number = comp_channel::parse_event(&record).ok_or(Errno::EIO)?;
            // The queue was destroyed after the event was written: no object has the number.
            let Some(found) = channel.numbered_cq(number) else { continue };
            // SAFETY: `found` is in the table of objects, so it exists, and it is not destroyed before this event is
            // acknowledged.
            unsafe { channel.verbs().cq_event(found) };
            cq.write(found);
            // SAFETY: as before.
            cq_context.write(unsafe { (*found).cq_context });
            return Ok(0);
        }
    })
}

/// # Safety
/// As in ibv_ack_cq_events(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: Arg<'_, ibv_cq>, nevents: c_uint) {
    nothing(|| events::acknowledge_all(cq, events::COMPLETION, nevents));
}
