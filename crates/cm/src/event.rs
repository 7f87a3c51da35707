// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the kernel, decoded and typed.

use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::id::{Id, Token};
use crate::multicast::Multicast;
use crate::param::Peer;
use crate::reason::RejectReason;
use uverbs_core::Errno;
use uverbs_uapi::rdma_cm::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_UNREACHABLE, rdma_ucm_event_resp,
};

/// An event of an identifier or of a membership. It is a value, and needs no acknowledgement.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub struct Event {
    /// The identifier ([`Id::token`]) or the membership ([`Membership::token`](crate::Membership::token)) of the event.
    /// For a connection request this is the identifier that listens.
    pub token: Token,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kinds of events (`enum rdma_cm_event_type`).
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The address was resolved, and the identifier is bound to a device.
    AddrResolved,
    /// The route was resolved.
    RouteResolved,
    /// A peer has requested a connection. If the event is dropped with the request, the peer is rejected.
    ConnectRequest(ConnectRequest),
    /// The peer has accepted. The program must connect the QP and then notify the peer ([`Id::establish`]).
    ConnectResponse(Peer),
    /// The connection is established. For datagrams, `Peer` has the address of the peer.
    Established(Peer),
    /// The connection has ended.
    Disconnected,
    /// The connection has left the timewait state: its QP can be used for another one.
    TimewaitExit,
    /// The network interface changed; connections continue.
    AddrChange,
    /// The device is removed. The identifier must be destroyed.
    DeviceRemoval,
    /// A group was joined.
    MulticastJoin(Multicast),
    /// A step failed: no route, a rejection, no answer in time.
    Failed(Error),
    /// An event of a kind that this crate does not have.
    Other {
        /// Its number.
        event: u32,
        /// Its status.
        status: i32,
    },
}

/// A connection request: the identifier of the new connection, and the parameters of the peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectRequest {
    /// The new identifier. Dropping it rejects the peer.
    pub id: Id,
    /// The peer's parameters.
    pub peer: Peer,
}

impl Event {
    pub(crate) fn decode(channel: &EventChannel, raw: &rdma_ucm_event_resp) -> Self {
        let token = Token(raw.uid);
        // The kernel's field is signed.
        let status = raw.status.cast_signed();
        let object = || format!("id {}", raw.id);
        let peer = || Peer::decode(raw, token.is_datagram());
        let failed = |verb, reason| EventKind::Failed(failure(verb, object(), status, reason));
        let kind = match raw.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddrResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                let peer = peer();
                let id = Id::of_request(channel, raw.id, token, &peer);
                EventKind::ConnectRequest(ConnectRequest { id, peer })
            }
            RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::ConnectResponse(peer()),
            RDMA_CM_EVENT_ESTABLISHED => EventKind::Established(peer()),
            RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
            RDMA_CM_EVENT_ADDR_CHANGE => EventKind::AddrChange,
            RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoval,
            RDMA_CM_EVENT_MULTICAST_JOIN => EventKind::MulticastJoin(Multicast::decode(raw)),
            RDMA_CM_EVENT_ADDR_ERROR => failed("resolve_addr", Reason::NoRoute),
            RDMA_CM_EVENT_ROUTE_ERROR => failed("resolve_route", Reason::NoRoute),
            RDMA_CM_EVENT_CONNECT_ERROR => failed("connect", Reason::Other),
            RDMA_CM_EVENT_MULTICAST_ERROR => failed("join_multicast", Reason::Other),
            // A negative answer to a request for datagrams has a status greater than 0.
            RDMA_CM_EVENT_UNREACHABLE if status > 0 => {
                let reason = RejectReason(RejectReason::SIDR.saturating_add(raw.status));
                failed("connect", Reason::Rejected(reason, peer().private_data))
            }
            RDMA_CM_EVENT_UNREACHABLE => failed("connect", Reason::NoRoute),
            RDMA_CM_EVENT_REJECTED => {
                let reason = RejectReason::of_status(status);
                failed("connect", Reason::Rejected(reason, peer().private_data))
            }
            event => EventKind::Other { event, status },
        };
        Self { token, kind }
    }

    /// The name of its kind, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.kind {
            EventKind::AddrResolved => "ADDR_RESOLVED",
            EventKind::RouteResolved => "ROUTE_RESOLVED",
            EventKind::ConnectRequest(_) => "CONNECT_REQUEST",
            EventKind::ConnectResponse(_) => "CONNECT_RESPONSE",
            EventKind::Established(_) => "ESTABLISHED",
            EventKind::Disconnected => "DISCONNECTED",
            EventKind::TimewaitExit => "TIMEWAIT_EXIT",
            EventKind::AddrChange => "ADDR_CHANGE",
            EventKind::DeviceRemoval => "DEVICE_REMOVAL",
            EventKind::MulticastJoin(_) => "MULTICAST_JOIN",
            EventKind::Failed(_) => "a failure",
            EventKind::Other { .. } => "an unknown event",
        }
    }

    /// This event, or the error that it reports: a failed step, the removal of the device.
    ///
    /// # Errors
    /// The error that the event reports.
    pub fn ok(self, verb: &'static str) -> Result<Self> {
        match self.kind {
            EventKind::Failed(error) => Err(error),
            EventKind::DeviceRemoval => Err(Error::DeviceGone { verb, object: format!("{:?}", self.token) }),
            _ => Ok(self),
        }
    }
}

enum Reason {
    NoRoute,
    Rejected(RejectReason, Vec<u8>),
    Other,
}

fn failure(verb: &'static str, object: String, status: i32, reason: Reason) -> Error {
    let errno = Errno::from_raw(status.saturating_neg());
    match reason {
        Reason::Rejected(reason, private_data) => Error::Rejected { verb, object, reason, private_data },
        _ if errno == Errno::ETIMEDOUT => Error::TimedOut { verb, object },
        Reason::NoRoute => Error::NoRoute { verb, object, errno },
        Reason::Other => Error::command(verb, object, errno),
    }
}
