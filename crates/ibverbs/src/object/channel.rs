// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion channels, and their events (ibv_create_comp_channel(3), ibv_get_cq_event(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::context::{self, Private};
use crate::errno::{Errno, ensure, minus_one, nothing, number, pointer};
use crate::events::{self, Numbered};
use core::ffi::{c_int, c_uint, c_void};
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
/// NULL, or a live channel of ours.
pub(crate) unsafe fn handle<'a>(channel: *mut ibv_comp_channel) -> Option<&'a CompChannelHandle> {
    if channel.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; nobody has `&mut` to this part.
    Some(unsafe { &(*channel.cast::<Channel>()).private })
}

/// Counts a queue whose events go there.
///
/// # Safety
/// As for [`handle`].
pub(crate) unsafe fn add_user(here: &Private, channel: *mut ibv_comp_channel) {
    let _counts = here.acks();
    // SAFETY: the caller's promise; changed under the lock only.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.refcnt += 1;
    }
}

/// Counts it no more.
///
/// # Safety
/// As for [`handle`].
pub(crate) unsafe fn remove_user(here: &Private, channel: *mut ibv_comp_channel) {
    let _counts = here.acks();
    // SAFETY: the caller's promise; changed under the lock only.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.refcnt -= 1;
    }
}

/// # Safety
/// As in ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: the caller's promise.
        let private = comp_channel::create(unsafe { context::of(context) }?.kernel())?;
        let public = ibv_comp_channel { context, fd: private.as_fd().as_raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Channel { public, private })).cast())
    })
}

/// # Safety
/// As in ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(channel) }?;
        let counts = here.acks();
        // SAFETY: a live channel; read under the lock.
        if unsafe { (*channel).refcnt } != 0 {
            return Err(Errno::EBUSY);
        }
        drop(counts);
        // SAFETY: made by `ibv_create_comp_channel`, and gone for C with this call.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
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
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(channel) }?;
        ensure(!cq.is_null() && !cq_context.is_null())?;
        loop {
            let mut record = [0; 8];
            // The channel's own field, because programs put another descriptor there, and because a signal ends the read.
            // SAFETY: a live channel.
            events::read(unsafe { (*channel).fd }, &mut record)?;
            let number = comp_channel::parse_event(&record).ok_or(Errno::EIO)?;
            let found = here.objects().get(number).copied();
            // An event that was on its way when its queue was destroyed names nothing.
            let Some(Numbered::Cq(found)) = found else { continue };
            // SAFETY: in the table, so it is alive; and it is not destroyed before this event is acknowledged.
            unsafe { here.verbs().cq_event(found) };
            // SAFETY: valid for writing by the caller's promise.
            unsafe { cq.write(found) };
            // SAFETY: the public part of a live queue.
            let context = unsafe { (*found).cq_context };
            // SAFETY: valid for writing by the caller's promise.
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
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(cq) }?;
        here.acknowledge(|| {
            // SAFETY: the public part of a live queue; changed under the lock only.
            let completed = unsafe { &mut (*cq).comp_events_completed };
            *completed = completed.wrapping_add(nevents);
        });
        Ok(())
    });
}
