// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events, and the numbers by which events name objects (ibv_get_async_event(3)).
//!
//! An object is not freed before each of its events that a program has read is acknowledged. When the kernel destroys
//! the object, it reports how many events were read. The object stays in the table until the last acknowledgement, so a
//! thread that has read an event still finds its object.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and descriptors from C programs.

use crate::abi::context::ibv_context;
use crate::abi::object::{Element, ibv_async_event, ibv_cq, ibv_srq};
use crate::abi::qp::ibv_qp;
use crate::abi::wq::ibv_wq;
use crate::arg::Arg;
use crate::context::Private;
use crate::errno::{Errno, Outcome, minus_one, nothing};
use crate::live::Object;
use core::ffi::c_int;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, PoisonError};
use uverbs_core::attr::{AsyncEvent, EventScope, EventType};
use uverbs_core::control::async_event;
use uverbs_core::sync::StaticMutex;

/// The object that the number in an event names.
#[derive(Clone, Copy)]
pub(crate) enum Numbered {
    /// An object that is not created yet. A correct kernel reports no event for it.
    Nothing,
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
    Wq(*mut ibv_wq),
}

// SAFETY: the pointers are dereferenced only in functions that C calls, whose contract allows any thread.
unsafe impl Send for Numbered {}

impl Numbered {
    pub(crate) const NONE: Self = Self::Nothing;
}

/// Sets the object of a number.
pub(crate) fn complete(here: &Private, number: u64, object: Numbered) {
    if let Ok(mut objects) = here.objects()
        && let Some(place) = objects.get_mut(number)
    {
        *place = object;
    }
}

/// A kind of objects with events.
///
/// # Safety
/// `COUNTS` are the offsets of counts of acknowledged events, of type `u32`.
pub(crate) unsafe trait Evented<const N: usize>: Object {
    const COUNTS: [usize; N];
}

/// The places in [`COUNTS`](Evented::COUNTS).
pub(crate) const ASYNC: usize = 0;
pub(crate) const COMPLETION: usize = 1;

macro_rules! evented {
    ($($ty:ident has $n:literal: $($count:ident),+;)*) => {
        $(
            // SAFETY: fields of this type, which count acknowledged events.
            unsafe impl Evented<$n> for $ty {
                const COUNTS: [usize; $n] = [$(offset_of!($ty, $count)),+];
            }
        )*
    };
}

evented! {
    ibv_cq has 2: async_events_completed, comp_events_completed;
    ibv_qp has 1: events_completed;
    ibv_srq has 1: events_completed;
    ibv_wq has 1: events_completed;
}

/// Whether as many events are acknowledged as were read. In a child of fork(2) the kernel is not called, and the number
/// of events read is 0.
pub(crate) fn are_acked(completed: u32, reported: u32) -> bool {
    completed.wrapping_sub(reported).cast_signed() >= 0
}

/// Threads that wait for the acknowledgement of events, of all contexts. They are not counted in the object or its context, because the
/// last acknowledgement of an object lets another thread free both.
static WAITERS: AtomicUsize = AtomicUsize::new(0);
/// Held by a waiting thread while it reads the counts.
static WAITING: StaticMutex<()> = StaticMutex::new();
static ACKED: Condvar = Condvar::new();

/// Adds acknowledged events to a count, and wakes the threads that wait for them.
///
/// # Safety
/// `count` is the count of an object that exists. It may be freed by another thread as soon as the events are added.
#[inline]
unsafe fn acknowledge(count: *mut u32, events: u32) {
    // SAFETY: the count exists (contract of this function), and this module accesses it only as an atomic.
    let count = unsafe { AtomicU32::from_ptr(count) };
    // With `wait_for_acks`: either this thread sees the waiter, or the waiter sees the sum, because all four accesses have one order.
    count.fetch_add(events, Ordering::SeqCst);
    if WAITERS.load(Ordering::SeqCst) != 0 {
        wake();
    }
}

#[cold]
fn wake() {
    // A waiter that has read the old count sleeps when this lock is free.
    drop(WAITING.lock());
    ACKED.notify_all();
}

/// Waits until as many events are acknowledged as were read, for each count.
///
/// # Safety
/// The counts are those of an object that exists during this call.
pub(crate) unsafe fn wait_for_acks<const N: usize>(counts: [(*mut u32, u32); N]) {
    let is_acked = |(count, reported): &(*mut u32, u32)| {
        // SAFETY: the count exists (contract of this function), and this module accesses it only as an atomic.
        are_acked(unsafe { AtomicU32::from_ptr(*count) }.load(Ordering::SeqCst), *reported)
    };
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let waiting = WAITING.lock();
    let result = ACKED.wait_while(waiting, |()| !counts.iter().all(is_acked));
    drop(result.unwrap_or_else(PoisonError::into_inner));
    WAITERS.fetch_sub(1, Ordering::SeqCst);
}

/// Reads a record of an event file. As in C, `EINTR` and `EAGAIN` are returned to the program.
pub(crate) fn read(fd: c_int, record: &mut [u8]) -> Outcome<()> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is open during the call: it is that of the object, or one that the program has set
    // instead.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match nix::unistd::read(fd, record) {
        Ok(n) if n == record.len() => Ok(()),
        // The end of the file means that the device is gone; the kernel returns whole records.
        Ok(_) => Err(Errno::EIO),
        Err(errno) => Err(errno.into()),
    }
}

/// The element of an event in C's form; `None` if the object was destroyed.
fn element(here: &Private, event: AsyncEvent) -> Option<Element> {
    let number = || here.numbered(event.element);
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
        EventScope::Wq => match number()? {
            Numbered::Wq(wq) => Some(Element { object: wq.cast() }),
            _ => None,
        },
        EventScope::Port | EventScope::Device | EventScope::Unknown => {
            // All bytes of the union are set; C programs use only the port.
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
    context: Arg<'_, ibv_context>,
    event: Option<&mut MaybeUninit<ibv_async_event>>,
) -> c_int {
    minus_one(|| {
        let here = context.open()?;
        let event = event.ok_or(Errno::EINVAL)?;
        loop {
            let mut record = [0; 16];
            // SAFETY: `context` is open: `of` found it, and the program does not close it during this call (contract of
            // the man page).
            read(unsafe { (*context.pointer()).async_fd }, &mut record)?;
            let found = async_event::parse_event(&record).ok_or(Errno::EIO)?;
            // The object was destroyed after the event was written: no object has the number.
            let Some(element) = element(here, found) else { continue };
            event.write(ibv_async_event { element, event_type: found.event_type.0 });
            return Ok(0);
        }
    })
}

/// Adds acknowledged events to a count of an object.
#[inline]
pub(crate) fn acknowledge_all<T: Evented<N>, const N: usize>(
    object: Arg<'_, T>,
    which: usize,
    events: u32,
) -> Outcome<()> {
    let object = object.peek()?;
    let count = T::COUNTS.get(which).ok_or(Errno::EINVAL)?;
    // SAFETY: a count of the object (`Evented`), which is not freed before these events are acknowledged.
    unsafe { acknowledge(object.pointer().wrapping_byte_add(*count).cast(), events) };
    Ok(())
}

/// # Safety
/// As in ibv_ack_async_event(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: Option<&ibv_async_event>) {
    nothing(|| {
        let event = event.ok_or(Errno::EINVAL)?;
        let scope = EventType(event.event_type).scope();
        if !matches!(scope, EventScope::Cq | EventScope::Qp | EventScope::Srq | EventScope::Wq) {
            return Ok(());
        }
        // SAFETY: events with this scope have a pointer in the union (see `element`).
        let object = unsafe { event.element.object };
        match scope {
            EventScope::Cq => {
                // SAFETY: a CQ, whose context is not closed during this call (contract of the man page).
                acknowledge_all(unsafe { Arg::new(object.cast::<ibv_cq>()) }, ASYNC, 1)
            }
            EventScope::Qp => {
                // SAFETY: as for a CQ.
                acknowledge_all(unsafe { Arg::new(object.cast::<ibv_qp>()) }, ASYNC, 1)
            }
            EventScope::Wq => {
                // SAFETY: as for a CQ.
                acknowledge_all(unsafe { Arg::new(object.cast::<ibv_wq>()) }, ASYNC, 1)
            }
            _ => {
                // SAFETY: as for a CQ.
                acknowledge_all(unsafe { Arg::new(object.cast::<ibv_srq>()) }, ASYNC, 1)
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{acknowledge, are_acked, wait_for_acks};
    use core::ptr;
    use core::time::Duration;

    #[test]
    fn an_object_is_acked_if_acks_reach_the_events_and_counts_wrap() {
        assert!(are_acked(0, 0) && are_acked(3, 3) && are_acked(1, 0) && are_acked(2, u32::MAX));
        assert!(!are_acked(0, 1) && !are_acked(u32::MAX, 2));
    }

    #[test]
    fn a_waiter_returns_when_both_counts_are_reached() {
        let mut counts = [0_u32; 2];
        let [comp, other] = counts.each_mut().map(|count| ptr::from_mut(count).expose_provenance());
        let pointer = ptr::with_exposed_provenance_mut::<u32>;
        std::thread::scope(|scope| {
            // SAFETY: the counts outlive the threads, which access them by these functions only.
            let waiter =
                scope.spawn(move || unsafe { wait_for_acks([(pointer(comp), 2), (pointer(other), 1)]) });
            for count in [comp, comp, other] {
                std::thread::sleep(Duration::from_millis(5));
                assert!(!waiter.is_finished());
                // SAFETY: as above.
                unsafe { acknowledge(pointer(count), 1) };
            }
            waiter.join().unwrap();
        });
        assert_eq!(counts, [2, 1]);
    }
}
