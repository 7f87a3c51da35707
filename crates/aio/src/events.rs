// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events of a context as a stream.

use crate::error::Result;
use crate::sync::{Mutex, lock};
use core::fmt;
use core::pin::Pin;
use core::task::{Context as TaskContext, Poll, Waker};
use futures_core::Stream;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use uverbs::attr::EventType;
use uverbs::{AnyDriver, AsyncEvents, Context, Driver, Errno, Event, EventSource};
use uverbs_core::kernel::Process;
use uverbs_core::wake::{Caller, Wakes, discard};

/// Events that a stream keeps for a task that does not read them. The oldest are dropped.
const KEPT: usize = 256;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    ended: bool,
}

/// A dispatcher: it gets the events of its QPs, and the removal of the device.
pub(crate) trait Subscriber: fmt::Debug + Send + Sync {
    /// The QP with this number had an event, if it is one of the dispatcher.
    fn qp_event(&self, qp_num: u32, event_type: EventType, wakes: &mut Vec<Waker>);

    /// The device was removed: there are no more completions.
    fn removed(&self, wakes: &mut Vec<Waker>);
}

#[derive(Debug)]
struct Members {
    subscribers: Living<dyn Subscriber>,
    streams: Living<Mutex<Queue>>,
    /// The device was removed.
    ended: bool,
}

/// Those of a list that were not dropped yet.
#[derive(Debug)]
struct Living<T: ?Sized> {
    list: Vec<Weak<T>>,
    /// The length at which those are removed that were dropped. So a step does not depend on the length, except each time that it has
    /// doubled.
    most: usize,
}

impl<T: ?Sized> Living<T> {
    fn new() -> Self {
        Self { list: Vec::new(), most: 0 }
    }

    fn push(&mut self, member: &Arc<T>) {
        if self.list.len() >= self.most {
            self.list.retain(|other| other.strong_count() > 0);
            self.most = 2 * self.list.len() + 16;
        }
        self.list.push(Arc::downgrade(member));
    }

    fn all(&self) -> Vec<Arc<T>> {
        self.list.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The reader of a context's asynchronous events, and the streams that get them.
#[derive(Debug)]
pub(crate) struct Hub<D: Driver> {
    events: AsyncEvents<D>,
    members: Mutex<Members>,
}

impl<D: Driver> Hub<D> {
    pub(crate) fn new(context: &Context<D>) -> Result<Arc<Self>> {
        let events = context.async_events();
        events.set_nonblocking(true)?;
        let members = Members { subscribers: Living::new(), streams: Living::new(), ended: false };
        Ok(Arc::new(Self { events, members: Mutex::new(members) }))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(crate) fn add(&self, subscriber: &Arc<dyn Subscriber>) {
        let mut members = lock(&self.members);
        members.subscribers.push(subscriber);
        let ended = members.ended;
        drop(members);
        if ended {
            subscriber.removed(&mut Wakes::new());
        }
    }

    /// A stream; in a child of fork(2), where a thread that the child does not have may hold the lock, one that has ended.
    pub(crate) fn subscribe(self: &Arc<Self>, is_forked: bool) -> Events<D> {
        let queue = Arc::new(Mutex::new(Queue { ended: is_forked, ..Queue::default() }));
        if !is_forked {
            let mut members = lock(&self.members);
            lock(&queue).ended = members.ended;
            members.streams.push(&queue);
        }
        Events { queue, _hub: self.clone(), home: Process::register() }
    }

    /// Reads what there is, and passes it on.
    pub(crate) fn read(hub: &Arc<Self>, wakes: &mut Vec<Waker>) {
        loop {
            match hub.events.get_event() {
                Ok(event) => hub.publish(&event, wakes),
                Err(error) if error.errno() == Errno::EAGAIN => return,
                Err(error) => {
                    // The kernel closed the file with the device.
                    uverbs::report!(debug, {}, "asynchronous events: {error}");
                    hub.end(wakes);
                    return;
                }
            }
        }
    }

    fn publish(&self, event: &Event, wakes: &mut Vec<Waker>) {
        for queue in self.streams() {
            let mut queue = lock(&queue);
            if queue.events.len() == KEPT {
                queue.events.pop_front();
            }
            queue.events.push_back(*event);
            wakes.extend(queue.waker.take());
        }
        match (event.event_type, event.source) {
            // No event follows.
            (EventType::DEVICE_FATAL, _) => self.end(wakes),
            (event_type, EventSource::Qp(number)) => {
                for subscriber in self.subscribers() {
                    subscriber.qp_event(number, event_type, wakes);
                }
            }
            _ => {}
        }
    }

    fn end(&self, wakes: &mut Vec<Waker>) {
        lock(&self.members).ended = true;
        for queue in self.streams() {
            let mut queue = lock(&queue);
            queue.ended = true;
            wakes.extend(queue.waker.take());
        }
        for subscriber in self.subscribers() {
            subscriber.removed(wakes);
        }
    }

    fn streams(&self) -> Vec<Arc<Mutex<Queue>>> {
        lock(&self.members).streams.all()
    }

    fn subscribers(&self) -> Vec<Arc<dyn Subscriber>> {
        lock(&self.members).subscribers.all()
    }
}

/// A stream of asynchronous events; see [`Dispatcher::events`](crate::Dispatcher::events).
///
/// It ends after the event `DEVICE_FATAL`, and at once in a child of fork(2). It keeps up to 256 events for a task that does not read them.
pub struct Events<D: Driver = AnyDriver> {
    queue: Arc<Mutex<Queue>>,
    _hub: Arc<Hub<D>>,
    home: Process,
}

impl<D: Driver> fmt::Debug for Events<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl<D: Driver> Events<D> {
    /// The next event; `None` after the device was removed.
    pub async fn next(&mut self) -> Option<Event> {
        core::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<D: Driver> Drop for Events<D> {
    fn drop(&mut self) {
        if self.home.is_current() {
            let waker = lock(&self.queue).waker.take();
            discard(waker);
        }
    }
}

impl<D: Driver> Stream for Events<D> {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Event>> {
        if !self.home.is_current() {
            return Poll::Ready(None);
        }
        let mut caller = Caller::new(cx.waker());
        loop {
            let mut queue = lock(&self.queue);
            if let Some(event) = queue.events.pop_front() {
                return Poll::Ready(Some(event));
            }
            if queue.ended {
                return Poll::Ready(None);
            }
            match &mut queue.waker {
                Some(place) => {
                    caller.store(place);
                }
                none => *none = caller.take(),
            }
            drop(queue);
            if !caller.supply() {
                return Poll::Pending;
            }
        }
    }
}
