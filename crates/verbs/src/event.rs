// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events as values (ibv_get_async_event(3)): they name the event and its object by numbers, so they need no
//! acknowledgement before the object is destroyed.
//!
//! The file of a context has one reader at a time: [`Context::get_async_event`], or
//! [`QpControl::drain`](crate::qp::QpControl::drain), which waits for an event of its QP and keeps the others for the
//! next reader. The descriptor for event loops is also readable while events are kept.

use crate::context::{Context, ContextInner, Object};
use crate::id::{CqId, SrqId};
use core::sync::atomic::{AtomicBool, Ordering};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::{AsyncEvent, EventScope, EventType};
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;
use uverbs_core::sync::{LockError, ProcessMutex};

/// An asynchronous event (ibv_get_async_event(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Type of the event.
    pub event_type: EventType,
    /// The object of the event.
    pub source: EventSource,
}

/// The object or port of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// The QP with this number.
    Qp(u32),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
    /// The work queue with this number.
    Wq(u32),
    /// A port.
    Port(u32),
    /// The device, or an object of a kind that this crate does not have.
    Device,
}

impl EventSource {
    /// The source of an event that was read. Records the event in its object. `None` if the object is destroyed.
    pub(crate) fn of<D: Driver>(context: &ContextInner<D>, event: AsyncEvent) -> Option<Self> {
        let id = event.element;
        match event.event_type.scope() {
            EventScope::Port => Some(event.port_num().map_or(Self::Device, Self::Port)),
            EventScope::Cq | EventScope::Qp | EventScope::Srq | EventScope::Wq => {
                Some(match context.object(id)? {
                    Object::Cq(_) => Self::Cq(CqId(id)),
                    Object::Qp(events) => {
                        if event.event_type == EventType::QP_LAST_WQE_REACHED {
                            events.last_wqe.store(true, Ordering::Release);
                        }
                        Self::Qp(events.qp_num)
                    }
                    Object::Srq => Self::Srq(SrqId(id)),
                    Object::Wq(wq_num) => Self::Wq(wq_num),
                })
            }
            EventScope::Device | EventScope::Unknown => Some(Self::Device),
        }
    }
}

/// The number of a QP in events, and the event for which `drain` waits.
#[derive(Clone, Debug)]
pub(crate) struct QpEvents {
    qp_num: u32,
    /// Whether `QP_LAST_WQE_REACHED` was read.
    last_wqe: Arc<AtomicBool>,
}

impl QpEvents {
    pub(crate) fn new(qp_num: u32) -> Self {
        Self { qp_num, last_wqe: Arc::default() }
    }

    pub(crate) fn has_last_wqe(&self) -> bool {
        self.last_wqe.load(Ordering::Acquire)
    }

    /// Clears the record, for a QP that is reset.
    pub(crate) fn forget_last_wqe(&self) {
        self.last_wqe.store(false, Ordering::Release);
    }
}

/// The lock for reading the file of asynchronous events, and the events that were read for others.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    turn: ProcessMutex<()>,
    kept: ProcessMutex<VecDeque<Event>>,
    /// Made when the program requests the descriptor; `None` if the kernel refused.
    readable: OnceLock<Option<Readable>>,
}

/// A descriptor that is readable if the file of events is, or if events were kept.
#[derive(Debug)]
struct Readable {
    epoll: Epoll,
    /// In `epoll`: signaled while events are kept. It changes under the lock of `kept`.
    has_kept: EventFd,
}

impl Readable {
    fn new(file: BorrowedFd<'_>, has_kept: bool) -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let has_kept = EventFd::from_value_and_flags(has_kept.into(), flags)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        epoll.add(&has_kept, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Self { epoll, has_kept })
    }
}

/// The error in a child of fork(2) whose parent's thread was reading an event at the time of the fork.
fn forked(_: LockError) -> Error {
    Error::os("get_async_event", "asynchronous events of the parent process", Errno::ESTALE)
}

impl EventReader {
    /// The descriptor for event loops.
    pub(crate) fn fd<D: Driver>(context: &ContextInner<D>) -> BorrowedFd<'_> {
        let (reader, file) = (context.event_reader(), context.async_fd().as_fd());
        // Until the descriptor is made, no event is kept without a signal.
        let Ok(kept) = reader.kept.lock() else { return file };
        let readable = reader.readable.get_or_init(|| match Readable::new(file, !kept.is_empty()) {
            Ok(readable) => Some(readable),
            Err(errno) => {
                log::warn!("asynchronous events: {errno}; events that `drain` keeps are not signaled");
                None
            }
        });
        readable.as_ref().map_or(file, |readable| readable.epoll.0.as_fd())
    }

    fn readable(&self) -> Option<&Readable> {
        self.readable.get().and_then(Option::as_ref)
    }

    fn keep(&self, event: Event) {
        let Ok(mut kept) = self.kept.lock() else { return };
        kept.push_back(event);
        // The counter can't overflow: it is at most the number of events that are kept.
        if let Some(readable) = self.readable() {
            let _ = readable.has_kept.write(1);
        }
    }

    fn take_kept(&self) -> Option<Event> {
        let mut kept = self.kept.lock().ok()?;
        let event = kept.pop_front()?;
        if let (true, Some(readable)) = (kept.is_empty(), self.readable()) {
            // Clears the counter.
            let _ = readable.has_kept.read();
        }
        Some(event)
    }

    /// Waits up to a millisecond for an event, which it keeps for the next [`Context::get_async_event`]. It does not
    /// read while another thread reads, because that thread records the event.
    pub(crate) fn step<D: Driver>(context: &ContextInner<D>) -> Result<()> {
        const STEP: u16 = 1;
        let reader = context.event_reader();
        let Some(turn) = reader.turn.try_lock().map_err(forked)? else {
            std::thread::sleep(core::time::Duration::from_millis(STEP.into()));
            return Ok(());
        };
        let mut files = [PollFd::new(context.async_fd().as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut files, PollTimeout::from(STEP)), Ok(1..)) {
            let raw = context.async_fd().read()?;
            if let Some(source) = EventSource::of(context, raw) {
                let event = Event { event_type: raw.event_type, source };
                reader.keep(event);
            }
        }
        drop(turn);
        Ok(())
    }

    /// Reads the events that are there, and keeps them for the next [`Context::get_async_event`]. So those of a QP that was reset are
    /// known before its next ones.
    pub(crate) fn read_all<D: Driver>(context: &ContextInner<D>) {
        /// How often it waits for a thread that reads.
        const TURNS: u32 = 20;
        let reader = context.event_reader();
        let mut waited = 0;
        loop {
            let mut files = [PollFd::new(context.async_fd().as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut files, PollTimeout::ZERO), Ok(1..)) {
                return;
            }
            match reader.turn.try_lock() {
                Ok(Some(_turn)) => {
                    // Another thread may have read it before.
                    if !matches!(poll(&mut files, PollTimeout::ZERO), Ok(1..)) {
                        return;
                    }
                    let Ok(raw) = context.async_fd().read() else { return };
                    if let Some(source) = EventSource::of(context, raw) {
                        reader.keep(Event { event_type: raw.event_type, source });
                    }
                }
                Ok(None) if waited < TURNS => {
                    waited += 1;
                    std::thread::sleep(core::time::Duration::from_millis(1));
                }
                // A child of fork(2), or a thread that does not continue.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn next<D: Driver>(context: &ContextInner<D>) -> Result<Event> {
        let reader = context.event_reader();
        loop {
            let turn = reader.turn.lock().map_err(forked)?;
            if let Some(event) = reader.take_kept() {
                return Ok(event);
            }
            let raw = context.async_fd().read()?;
            drop(turn);
            if let Some(source) = EventSource::of(context, raw) {
                return Ok(Event { event_type: raw.event_type, source });
            }
        }
    }
}

/// The asynchronous events of a context, as an object that event loops accept (`AsFd`, `AsRawFd`). Clones share the
/// events: each event is read once.
#[derive(Debug)]
pub struct AsyncEvents<D: Driver> {
    context: Arc<ContextInner<D>>,
}

impl<D: Driver> Clone for AsyncEvents<D> {
    fn clone(&self) -> Self {
        Self { context: self.context.clone() }
    }
}

impl<D: Driver> AsyncEvents<D> {
    /// As [`Context::get_async_event`].
    ///
    /// # Errors
    /// As [`Context::get_async_event`].
    pub fn get_event(&self) -> Result<Event> {
        EventReader::next(&self.context)
    }

    /// Sets whether [`get_event`](Self::get_event) returns `EAGAIN` instead of waiting (`O_NONBLOCK`); this applies to all
    /// clones and to the context.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.context.async_fd().set_nonblocking(nonblocking)
    }
}

impl<D: Driver> AsFd for AsyncEvents<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        EventReader::fd(&self.context)
    }
}

impl<D: Driver> AsRawFd for AsyncEvents<D> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<D: Driver> Context<D> {
    /// The asynchronous events, for an event loop.
    #[must_use]
    pub fn async_events(&self) -> AsyncEvents<D> {
        AsyncEvents { context: self.inner().clone() }
    }

    /// `ibv_get_async_event`: waits for the next asynchronous event.
    ///
    /// Events of objects that are already destroyed are skipped. `EAGAIN` if the descriptor is non-blocking and there
    /// is no event. No event follows [`DEVICE_FATAL`](uverbs_core::attr::EventType::DEVICE_FATAL), so a program should
    /// stop waiting for events then. All verbs return `EIO` from then on, but objects can be closed.
    ///
    /// # Errors
    /// `EAGAIN` as above; `EIO` if the kernel closed the file with the device;
    /// [`Error::Protocol`] for an invalid record.
    pub fn get_async_event(&self) -> Result<Event> {
        EventReader::next(self.inner())
    }
}
