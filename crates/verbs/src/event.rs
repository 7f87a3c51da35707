// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events as values: they name the event and its object by numbers, so they need no acknowledgement before
//! the object is destroyed.

use crate::context::{Context, ContextInner, Object};
use crate::id::{CqId, SrqId};
use uverbs_core::attr::{AsyncEvent, EventScope, EventType};
use uverbs_core::error::Result;
use uverbs_core::provider::Driver;

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
    /// The device, or what this crate does not know.
    Device,
}

impl EventSource {
    /// `None` if the object is destroyed.
    pub(crate) fn of<D: Driver>(context: &ContextInner<D>, event: AsyncEvent) -> Option<Self> {
        let id = event.element;
        match event.event_type.scope() {
            EventScope::Port => Some(event.port_num().map_or(Self::Device, Self::Port)),
            EventScope::Cq | EventScope::Qp | EventScope::Srq | EventScope::Wq => {
                Some(match context.object(id)? {
                    Object::Cq(_) => Self::Cq(CqId(id)),
                    Object::Qp(qp_num) => Self::Qp(qp_num),
                    Object::Srq => Self::Srq(SrqId(id)),
                    Object::Wq(wq_num) => Self::Wq(wq_num),
                })
            }
            EventScope::Device | EventScope::Unknown => Some(Self::Device),
        }
    }
}

impl<D: Driver> Context<D> {
    /// `ibv_get_async_event`: waits for the next asynchronous event.
    ///
    /// Events of objects that are already destroyed are skipped. `EAGAIN` if the descriptor is non-blocking and there
    /// is no event. No event follows [`DEVICE_FATAL`](uverbs_core::attr::EventType::DEVICE_FATAL), so a program should
    /// stop waiting for events then. All verbs return `EIO` from then on, but objects can be closed.
    pub fn get_async_event(&self) -> Result<Event> {
        loop {
            let raw = self.inner().async_fd().read()?;
            if let Some(source) = EventSource::of(self.inner(), raw) {
                return Ok(Event { event_type: raw.event_type, source });
            }
        }
    }
}
