// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events (ibv_get_async_event(3)).

open_values! {
    /// `enum ibv_event_type`.
    EventType(u32), "IBV_EVENT_" {
        CQ_ERR = 0 "CQ error",
        QP_FATAL = 1 "QP fatal error",
        QP_REQ_ERR = 2 "invalid request from the peer",
        QP_ACCESS_ERR = 3 "access violation by the peer",
        COMM_EST = 4 "communication established",
        SQ_DRAINED = 5 "send queue drained",
        PATH_MIG = 6 "path migrated",
        PATH_MIG_ERR = 7 "path migration failed",
        DEVICE_FATAL = 8 "device fatal error, or removed",
        PORT_ACTIVE = 9 "port active",
        PORT_ERR = 10 "port down",
        LID_CHANGE = 11 "LID changed",
        PKEY_CHANGE = 12 "P_Key table changed",
        SM_CHANGE = 13 "subnet manager changed",
        SRQ_ERR = 14 "SRQ error",
        SRQ_LIMIT_REACHED = 15 "SRQ limit reached",
        QP_LAST_WQE_REACHED = 16 "QP took its last WQE from the SRQ",
        CLIENT_REREGISTER = 17 "client reregistration requested",
        GID_CHANGE = 18 "GID table changed",
        WQ_FATAL = 19 "WQ fatal error",
        DEVICE_SPEED_CHANGE = 20 "device speed changed",
    }
}

/// The kind of object that an event is about, which determines the meaning of its `element`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventScope {
    /// A completion queue; `element` is its user handle.
    Cq,
    /// A queue pair; `element` is its user handle.
    Qp,
    /// A shared receive queue; `element` is its user handle.
    Srq,
    /// A work queue; `element` is its user handle.
    Wq,
    /// A port; `element` is its number.
    Port,
    /// The device; `element` has no meaning.
    Device,
    /// An unknown type.
    Unknown,
}

impl EventType {
    /// The kind of object that events of this type are about.
    #[must_use]
    pub const fn scope(self) -> EventScope {
        match self {
            Self::CQ_ERR => EventScope::Cq,
            Self::QP_FATAL
            | Self::QP_REQ_ERR
            | Self::QP_ACCESS_ERR
            | Self::COMM_EST
            | Self::SQ_DRAINED
            | Self::PATH_MIG
            | Self::PATH_MIG_ERR
            | Self::QP_LAST_WQE_REACHED => EventScope::Qp,
            Self::SRQ_ERR | Self::SRQ_LIMIT_REACHED => EventScope::Srq,
            Self::WQ_FATAL => EventScope::Wq,
            Self::PORT_ACTIVE
            | Self::PORT_ERR
            | Self::LID_CHANGE
            | Self::PKEY_CHANGE
            | Self::SM_CHANGE
            | Self::CLIENT_REREGISTER
            | Self::GID_CHANGE => EventScope::Port,
            Self::DEVICE_FATAL | Self::DEVICE_SPEED_CHANGE => EventScope::Device,
            _ => EventScope::Unknown,
        }
    }
}

/// One asynchronous event as the kernel recorded it. Nothing about it is checked: `element` may be stale or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// Type of the event.
    pub event_type: EventType,
    /// The object or port of the event, see [`EventScope`].
    pub element: u64,
}

impl AsyncEvent {
    /// The port number of an event of a port; `None` for other events, and for an invalid number.
    #[must_use]
    pub fn port_num(self) -> Option<u32> {
        match self.event_type.scope() {
            EventScope::Port => u32::try_from(self.element).ok().filter(|port| *port != 0),
            _ => None,
        }
    }

    /// The user handle of the object; `None` for an event of a port or of the device.
    #[must_use]
    pub const fn user_handle(self) -> Option<u64> {
        match self.event_type.scope() {
            EventScope::Cq | EventScope::Qp | EventScope::Srq | EventScope::Wq => Some(self.element),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_type_determines_the_meaning_of_the_element() {
        let event = |event_type, element| AsyncEvent { event_type, element };
        assert_eq!(event(EventType::PORT_ERR, 1).port_num(), Some(1));
        assert_eq!(event(EventType::PORT_ERR, 1 << 40).port_num(), None);
        assert_eq!(event(EventType::PORT_ERR, 1).user_handle(), None);
        assert_eq!(event(EventType::QP_FATAL, 77).user_handle(), Some(77));
        assert_eq!(event(EventType(999), 77).user_handle(), None);
        assert_eq!(event(EventType(999), 77).event_type.scope(), EventScope::Unknown);
    }
}
