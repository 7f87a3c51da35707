// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events as values (ibv_get_async_event(3)): they name the event and its object by numbers, so they need no
//! acknowledgement before the object is destroyed.
//!
//! The file of a context has one reader at a time: [`Context::get_async_event`], or
//! [`QpControl::drain`](crate::qp::QpControl::drain), which waits for an event of its QP and keeps the others for the
//! next reader. The descriptor for event loops is also readable while events are kept. A reader waits without its turn; the file does
//! not block (`O_NONBLOCK`).

use crate::brief::brief;
use crate::context::{Context, ContextInner, Object};
use crate::id::{CqId, SrqId};
use crate::open::AnyDriver;
use core::sync::atomic::{AtomicBool, Ordering};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::{AsyncEvent, EventScope, EventType};
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;
use uverbs_core::sync::{LockError, ProcessMutex};

/// An asynchronous event (ibv_get_async_event(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    ///
    /// Only [`Turn::read`] calls it, so that the event is recorded before the next reader, or [`EventReader::begin_life`], has its turn.
    fn of<D: Driver>(context: &ContextInner<D>, event: AsyncEvent) -> Option<Self> {
        let id = event.element;
        match event.event_type.scope() {
            EventScope::Port => Some(event.port_num().map_or(Self::Device, Self::Port)),
            EventScope::Cq | EventScope::Qp | EventScope::Srq | EventScope::Wq => {
                Some(match context.object(id)? {
                    Object::Cq(_) => Self::Cq(CqId(id)),
                    Object::Qp(events, _) => {
                        if event.event_type == EventType::QP_LAST_WQE_REACHED {
                            events.last_wqe.store(true, Ordering::Release);
                        }
                        Self::Qp(events.qp_num)
                    }
                    Object::Srq(_) => Self::Srq(SrqId(id)),
                    Object::Wq(wq_num, _) => Self::Wq(wq_num),
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
}

/// The right to read the file of asynchronous events, which does not block: a turn is short.
#[derive(Debug, Default)]
struct Turn;

/// What a read has found.
enum Read {
    /// No event.
    Nothing,
    /// The event of an object that is destroyed.
    Late,
    Event(Kept),
}

impl Turn {
    /// Reads an event, if there is one, and records it in its object.
    fn read<D: Driver>(&mut self, context: &ContextInner<D>) -> Result<Read> {
        let raw = context.async_fd().next_event().inspect_err(|error| {
            if error.errno() == Errno::EIO {
                context.removal().note();
            }
        })?;
        let Some(raw) = raw else { return Ok(Read::Nothing) };
        if raw.event_type == EventType::DEVICE_FATAL {
            context.removal().note();
        }
        let source = EventSource::of(context, raw);
        let kept = |source| Kept { id: raw.element, event: Event { event_type: raw.event_type, source } };
        Ok(source.map_or(Read::Late, |source| Read::Event(kept(source))))
    }
}

/// An event that was read for others.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// As the kernel names its object.
    id: u64,
    event: Event,
}

/// The events that were read for others.
#[derive(Debug, Default)]
struct KeptEvents {
    events: VecDeque<Kept>,
    /// When there are as many, those that no program misses are removed.
    limit: usize,
}

impl KeptEvents {
    /// The first [limit](Self::limit).
    const LIMIT: usize = 256;

    /// Adds an event. A program that does not read its events keeps those of its objects, each once.
    fn push<D: Driver>(&mut self, context: &ContextInner<D>, kept: Kept) {
        if self.events.len() >= self.limit.max(Self::LIMIT) {
            let mut seen = HashSet::new();
            let mut is_new = |kept: &Kept| {
                let is_there = match kept.event.source {
                    EventSource::Port(_) | EventSource::Device => true,
                    _ => context.object(kept.id).is_some(),
                };
                is_there && seen.insert((kept.id, kept.event.event_type.0))
            };
            // The last one of several that are equal.
            let mut events: VecDeque<_> = self.events.drain(..).rev().filter(|kept| is_new(kept)).collect();
            events.make_contiguous().reverse();
            self.events = events;
            self.limit = self.events.len() * 2;
        }
        self.events.push_back(kept);
    }
}

/// The lock for reading the file of asynchronous events, and the events that were read for others.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    turn: ProcessMutex<Turn>,
    /// Whether [`Context::get_async_event`] returns `EAGAIN` instead of waiting.
    nonblocking: AtomicBool,
    kept: ProcessMutex<KeptEvents>,
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
        let readable = reader.readable.get_or_init(|| match Readable::new(file, !kept.events.is_empty()) {
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

    fn keep<D: Driver>(&self, context: &ContextInner<D>, event: Kept) {
        let Ok(mut kept) = self.kept.lock() else { return };
        kept.push(context, event);
        // The counter can't overflow: it is at most the number of events that were kept.
        if let Some(readable) = self.readable() {
            let _ = readable.has_kept.write(1);
        }
    }

    fn take_kept(&self) -> Option<Event> {
        let mut kept = self.kept.lock().ok()?;
        let kept_event = kept.events.pop_front()?;
        if let (true, Some(readable)) = (kept.events.is_empty(), self.readable()) {
            // Clears the counter.
            let _ = readable.has_kept.read();
        }
        Some(kept_event.event)
    }

    /// Waits up to a millisecond for an event, which it keeps for the next [`Context::get_async_event`].
    pub(crate) fn step<D: Driver>(context: &ContextInner<D>) -> Result<()> {
        const STEP: u16 = 1;
        let reader = context.event_reader();
        let mut files = [PollFd::new(context.async_fd().as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut files, PollTimeout::from(STEP)), Ok(1..)) {
            return Ok(());
        }
        let mut turn = reader.turn.lock().map_err(forked)?;
        if let Read::Event(event) = turn.read(context)? {
            reader.keep(context, event);
        }
        Ok(())
    }

    /// A QP begins another life: it was reset, or is about to be connected. The events until now do not count for it. Those that are
    /// there are read, and kept for the next [`Context::get_async_event`].
    ///
    /// A reader that has read an event has recorded it when this has its turn, so none is recorded later.
    pub(crate) fn begin_life<D: Driver>(context: &ContextInner<D>, qp: &QpEvents) {
        let reader = context.event_reader();
        // In a child of fork(2) the QP is the parent's.
        let Ok(mut turn) = reader.turn.lock() else { return };
        loop {
            match turn.read(context) {
                Ok(Read::Event(event)) => reader.keep(context, event),
                Ok(Read::Late) => {}
                Ok(Read::Nothing) | Err(_) => break,
            }
        }
        qp.last_wqe.store(false, Ordering::Release);
    }

    /// The next event, if there is one.
    fn try_next<D: Driver>(context: &ContextInner<D>) -> Result<Option<Event>> {
        let reader = context.event_reader();
        loop {
            let mut turn = reader.turn.lock().map_err(forked)?;
            if let Some(event) = reader.take_kept() {
                return Ok(Some(event));
            }
            match turn.read(context)? {
                Read::Event(Kept { event, .. }) => return Ok(Some(event)),
                Read::Late => {}
                Read::Nothing => return Ok(None),
            }
        }
    }

    fn next<D: Driver>(context: &ContextInner<D>) -> Result<Event> {
        loop {
            if let Some(event) = Self::try_next(context)? {
                return Ok(event);
            }
            if context.event_reader().nonblocking.load(Ordering::Relaxed) {
                let object = format!("async events of {}", context.kernel().name());
                return Err(Error::os("get_async_event", object, Errno::EAGAIN));
            }
            Self::wait(context);
        }
    }

    /// Waits until there may be an event, also one that another thread keeps. Nothing is read, so others have their turns.
    fn wait<D: Driver>(context: &ContextInner<D>) {
        /// If the descriptor for event loops can't be made, how often it looks for events that were kept.
        const TURN: u16 = 50;
        let fd = Self::fd(context);
        let whole = context.event_reader().readable().is_some();
        let timeout = if whole { PollTimeout::NONE } else { PollTimeout::from(TURN) };
        // An error, of a signal for example, is one more turn of the loop.
        let _ = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout);
    }

    /// Sets whether [`Context::get_async_event`] returns `EAGAIN` instead of waiting.
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }
}

/// The asynchronous events of a context, as an object that event loops accept (`AsFd`, `AsRawFd`). Clones share the
/// events: each event is read once.
pub struct AsyncEvents<D: Driver = AnyDriver> {
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] AsyncEvents<D>, |this| "AsyncEvents of {}", this.context.name());

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

    /// As [`Context::try_async_event`].
    ///
    /// # Errors
    /// As [`Context::try_async_event`].
    pub fn try_next(&self) -> Result<Option<Event>> {
        EventReader::try_next(&self.context)
    }

    /// Sets whether [`get_event`](Self::get_event) returns `EAGAIN` instead of waiting; this applies to all clones and to the
    /// context.
    ///
    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.context.event_reader().set_nonblocking(nonblocking);
        Ok(())
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

    /// The next asynchronous event, or `None` at once: for a loop that polls. It allocates nothing.
    ///
    /// # Errors
    /// As [`get_async_event`](Self::get_async_event), without `EAGAIN`.
    pub fn try_async_event(&self) -> Result<Option<Event>> {
        EventReader::try_next(self.inner())
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests;
