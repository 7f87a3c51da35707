// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events, and the numbers by which events name objects (ibv_get_async_event(3)).
//!
//! An object is not freed before each of its events that a program has read is acknowledged. The kernel tells how many were
//! read when it destroys the object; the object stays in the table until the last acknowledgement, so that a thread that has
//! read an event and not yet looked up its object still finds it.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and descriptors that C programs gave us.

use crate::abi::context::ibv_context;
use crate::abi::object::{Element, ibv_async_event, ibv_cq, ibv_srq};
use crate::abi::qp::ibv_qp;
use crate::context::{self, Private};
use crate::errno::{Errno, Outcome, ensure, minus_one, nothing};
use core::ffi::c_int;
use std::os::fd::BorrowedFd;
use uverbs_core::attr::{AsyncEvent, EventScope, EventType};
use uverbs_core::control::async_event;

/// What a number in an event stands for.
#[derive(Clone, Copy)]
pub(crate) enum Numbered {
    /// Something that is not created yet; an event names it only if the kernel is wrong.
    Nothing,
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
}

// SAFETY: pointers that are followed only under the promise of C's functions, on any thread.
unsafe impl Send for Numbered {}

impl Numbered {
    pub(crate) const NONE: Self = Self::Nothing;
}

/// Gives a number its object.
pub(crate) fn complete(here: &Private, number: u64, object: Numbered) {
    if let Some(place) = here.objects().get_mut(number) {
        *place = object;
    }
}

/// Whether as many events are acknowledged as were read. In a child of fork(2) the kernel was not asked, and 0 were read.
pub(crate) fn are_acked(completed: u32, reported: u32) -> bool {
    completed.wrapping_sub(reported).cast_signed() >= 0
}

/// Reads a record of an event file. `EINTR` and `EAGAIN` are the caller's business, as in C.
pub(crate) fn read(fd: c_int, record: &mut [u8]) -> Outcome<()> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: open during the call: that of the object, or one that a C program has put in its place.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match nix::unistd::read(fd, record) {
        Ok(n) if n == record.len() => Ok(()),
        // The end of the file is the end of the device; the kernel gives whole records.
        Ok(_) => Err(Errno::EIO),
        Err(errno) => Err(errno.into()),
    }
}

/// The element of an event in C's form; `None` for an object that is gone.
fn element(here: &Private, event: AsyncEvent) -> Option<Element> {
    let number = || here.objects().get(event.element).copied();
    match event.event_type.scope() {
        EventScope::Cq => match number()? {
            Numbered::Cq(cq) => Some(Element { object: cq.cast() }),
            _ => None,
        },
        EventScope::Qp => match number()? {
            Numbered::Qp(qp) => Some(Element { object: qp.cast() }),
            _ => None,
        },
        EventScope::Srq => match number()? {
            Numbered::Srq(srq) => Some(Element { object: srq.cast() }),
            _ => None,
        },
        // This library makes none.
        EventScope::Wq => None,
        EventScope::Port | EventScope::Device | EventScope::Unknown => {
            // All of the union, as C compares nothing but the port.
            let mut element = Element { object: core::ptr::null_mut() };
            element.port_num = c_int::try_from(event.element).unwrap_or(0);
            Some(element)
        }
    }
}

/// # Safety
/// As in ibv_get_async_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's promise.
        let here = unsafe { context::of(context) }?;
        ensure(!event.is_null())?;
        loop {
            let mut record = [0; 16];
            // SAFETY: a live context.
            read(unsafe { (*context).async_fd }, &mut record)?;
            let found = async_event::parse_event(&record).ok_or(Errno::EIO)?;
            // An event that was on its way when its object was destroyed names nothing.
            let Some(element) = element(here, found) else { continue };
            // SAFETY: valid for writing by the caller's promise.
            unsafe { event.write(ibv_async_event { element, event_type: found.event_type.0 }) };
            return Ok(0);
        }
    })
}

/// # Safety
/// As in ibv_ack_async_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    nothing(|| {
        // SAFETY: NULL or valid, by the caller's promise.
        let event = unsafe { event.as_ref() }.ok_or(Errno::EINVAL)?;
        let scope = EventType(event.event_type).scope();
        if !matches!(scope, EventScope::Cq | EventScope::Qp | EventScope::Srq) {
            return Ok(());
        }
        // SAFETY: events of this kind have a pointer there.
        let object = unsafe { event.element.object };
        // SAFETY: the caller's promise.
        let here = unsafe { context::of_object(object) }?;
        here.acknowledge(|| {
            let completed = match scope {
                // SAFETY: the public part of a live object; changed under the lock only.
                EventScope::Cq => unsafe { &mut (*object.cast::<ibv_cq>()).async_events_completed },
                // SAFETY: as above.
                EventScope::Qp => unsafe { &mut (*object.cast::<ibv_qp>()).events_completed },
                // SAFETY: as above.
                _ => unsafe { &mut (*object.cast::<ibv_srq>()).events_completed },
            };
            *completed = completed.wrapping_add(1);
        });
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::are_acked;

    #[test]
    fn more_acks_than_events_are_enough_and_counts_wrap() {
        assert!(are_acked(0, 0) && are_acked(3, 3) && are_acked(1, 0) && are_acked(2, u32::MAX));
        assert!(!are_acked(0, 1) && !are_acked(u32::MAX, 2));
    }
}
