// SPDX-License-Identifier: MIT OR Apache-2.0
//! What connection managers send each other, and the events that it makes.
//!
//! Messages are lost, delayed and repeated as the fabric's packets are: a message that is lost comes later by the time after
//! which it is repeated, and if all repetitions are lost, its sender gets an event.

use super::away::Letter;
use super::ident::{Ident, State, first_psn, gid, host_of, place_of};
use super::{Call, Cm, Queued};
use crate::engine::Net;
use crate::engine::net::PortLocation;
use core::net::SocketAddr;
use uverbs_core::Errno;
use uverbs_uapi::layout::Bytes;
use uverbs_uapi::rdma_cm::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_UNREACHABLE, RDMA_MAX_PRIVATE_DATA,
    rdma_ucm_conn_param, rdma_ucm_ece, rdma_ucm_event_param, rdma_ucm_event_resp, rdma_ucm_ud_param,
};
use uverbs_uapi::verbs::{IB_UVERBS_QPT_UD, IB_UVERBS_QPT_XRC_INI, IB_UVERBS_QPT_XRC_TGT};

/// Bytes of private data in each message (`ib_cm.h`); the address takes 36 of a request.
pub(super) const REQ: usize = 92 - 36;
pub(super) const REP: usize = 196;
pub(super) const REJ: usize = 148;
pub(super) const SIDR_REQ: usize = 216 - 36;
pub(super) const SIDR_REP: usize = 136;

/// Reasons of a REJ, and the status of a SIDR REP.
const TIMEOUT: u32 = 4;
const INVALID_SERVICE_ID: u32 = 8;
pub(super) const CONSUMER_DEFINED: u32 = 28;
const SIDR_UNSUPPORTED: u32 = 1;
pub(super) const SIDR_REJECT: u32 = 2;

/// The time after which a message is repeated, ns: about that of the kernel.
const REPEAT: u64 = 4_000_000_000;
/// How often it is sent (`CMA_MAX_CM_RETRIES` and the first).
const TRIES: u64 = 16;
/// How long a QP number is not used again, ns.
const TIMEWAIT: u64 = 100_000_000;

/// A message on its way.
#[derive(Debug)]
pub(super) struct Message {
    /// The identifier that it is for, or that has sent it if it is a request.
    pub(super) ident: u32,
    pub(super) body: Body,
}

/// The parameters that a request or an answer has.
#[derive(Clone, Debug, Default)]
pub(super) struct Param {
    pub(super) conn: rdma_ucm_conn_param,
    pub(super) ece: rdma_ucm_ece,
    pub(super) psn: u32,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
struct Sender {
    /// Its identifier, in its process.
    number: u32,
    /// Whether it is of this process.
    is_here: bool,
    source: SocketAddr,
    to: SocketAddr,
    ps: u16,
    qp_type: u8,
}

#[derive(Debug)]
pub(super) enum Body {
    /// An event of this host: number, status.
    Event(u32, i32),
    /// A membership's event.
    Joined,
    Request(Param),
    /// The sender of the answer, and what it has.
    Reply(Param),
    ReadyToUse,
    Reject(u32, Vec<u8>),
    Disconnect,
    DisconnectReply,
    /// The answer to a request for datagrams.
    Datagrams(Param, [u8; 16]),
    DatagramsRefused(u32, Vec<u8>),
}

impl Cm {
    /// Queues something that happens at this host after a time.
    pub(super) fn later(&mut self, now: u64, after: u64, ident: u32, body: Body) {
        self.queue(now, after, ident, body);
    }

    /// As [`later`](Self::later); returns its place among the messages.
    fn queue(&mut self, now: u64, after: u64, ident: u32, body: Body) -> (u64, u64) {
        self.sequence += 1;
        let place = (now.saturating_add(after), self.sequence);
        self.messages.insert(place, Message { ident, body });
        place
    }

    /// Waits for the answer to a DREQ, which is the program's at the other end. Without one the connection ends when no repetition was
    /// answered (`IB_CM_DREQ_ERROR` of `cma_ib_handler()`). On a virtual clock the wait has no end: that clock advances while the other
    /// program runs.
    pub(super) fn await_answer(&mut self, call: &Call<'_>, number: u32) {
        if !call.net.in_real_time {
            return;
        }
        let now = call.now;
        let ended = Body::Event(RDMA_CM_EVENT_DISCONNECTED, -Errno::ETIMEDOUT.raw());
        let place = self.queue(now, TRIES * REPEAT, number, ended);
        if let Some(ident) = self.idents.get_mut(&number) {
            ident.wait = Some(place);
        }
    }

    /// Sends a message from an identifier to the host of an address. It is sent until it arrives.
    pub(super) fn send(&mut self, call: &mut Call<'_>, from: u32, ident: u32, to: SocketAddr, body: Body) {
        let host = self.idents.get(&from).map(|i| i.host);
        let target = place_of(call.net, to.ip());
        let mut tries = 0;
        let arrives = loop {
            let is_lost = match (host, target) {
                (Some(host), Some(target)) if self.gone.contains(&host) || self.gone.contains(&target) => {
                    true
                }
                (Some(host), Some(target)) => call.net.loses(host, target),
                _ => true,
            };
            if !is_lost {
                break true;
            }
            tries += 1;
            if tries == TRIES {
                break false;
            }
        };
        let after = tries.saturating_mul(REPEAT).saturating_add(call.net.delay());
        let location = target.and_then(|target| call.net.ports.get(target)).map(|port| port.location);
        if arrives && matches!(location, Some(PortLocation::Away { .. })) {
            // The clock of the other process is another one, so the fabric's delay does not apply.
            let to = if matches!(body, Body::Request(_)) { 0 } else { ident };
            let letter = self.idents.get(&from).and_then(|sender| Letter::of(from, sender, to, body));
            if let (Some(target), Some(letter)) = (target, letter) {
                self.send_away(call.net, target, &letter);
            }
            return;
        }
        if arrives {
            self.later(call.now, after, ident, body);
            return;
        }
        let timed_out = -Errno::ETIMEDOUT.raw();
        match body {
            // As `IB_CM_REQ_ERROR` and `IB_CM_REP_ERROR` of `cma_ib_handler()`.
            Body::Request(_) | Body::Reply(_) => {
                self.later(call.now, after, from, Body::Event(RDMA_CM_EVENT_UNREACHABLE, timed_out));
            }
            Body::Disconnect => self.later(call.now, after, from, Body::DisconnectReply),
            _ => {}
        }
    }

    /// Sends a message to the identifier at the other end.
    pub(super) fn send_to_peer(&mut self, call: &mut Call<'_>, from: u32, body: Body) {
        let Some(ident) = self.idents.get(&from) else { return };
        if let (Some(peer), Some(remote)) = (ident.peer, ident.remote) {
            self.send(call, from, peer, remote, body);
        }
    }

    /// The sender of a request does not wait for the answer any longer: the other end gets a REJ (`cm_destroy_id()`, which sends
    /// none for datagrams). An end in another process has not told its number; it finds its identifier by that of the sender, as
    /// `cm_acquire_rejected_id()` does.
    pub(super) fn give_up(&mut self, call: &mut Call<'_>, from: u32) {
        let Some(ident) = self.idents.get(&from) else { return };
        if let Some(remote) = ident.remote {
            // If the request is still on its way in this process, it is dropped with its sender.
            self.send(call, from, ident.peer.unwrap_or(0), remote, Body::Reject(TIMEOUT, vec![]));
        }
    }

    /// The connection ends; later its QP can be used again (`cm_enter_timewait()`).
    pub(super) fn wait_in_timewait(&mut self, now: u64, number: u32) {
        self.set_state(number, State::Closed);
        self.later(now, TIMEWAIT, number, Body::Event(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0));
    }

    /// The identifier that a request of the identifier `from` of another process has created.
    fn created_by(&self, host: usize, from: u32, source: SocketAddr, destination: SocketAddr) -> Option<u32> {
        let found = self.of_peer(from).find(|(_, i)| {
            matches!(i.state, State::Requested | State::Accepted)
                && !i.is_datagram()
                && i.host == host
                && (i.local, i.remote) == (Some(destination), Some(source))
        });
        found.map(|(number, _)| number)
    }

    /// Appends an event of an identifier.
    fn event(
        &mut self,
        number: u32,
        event: u32,
        status: i32,
        param: rdma_ucm_event_param,
        ece: rdma_ucm_ece,
    ) {
        let Some(ident) = self.idents.get(&number) else { return };
        // The kernel delivers no events of an identifier that the program has not accepted yet.
        if ident.uid == 0 {
            return;
        }
        let event = rdma_ucm_event_resp {
            uid: ident.uid,
            id: number,
            event,
            status: status.cast_unsigned(),
            param,
            reserved: 0,
            ece,
        };
        self.report(ident.channel, Queued { owner: number, event, created: None });
    }

    fn plain_event(&mut self, number: u32, event: u32, status: i32) {
        self.event(number, event, status, rdma_ucm_event_param::default(), rdma_ucm_ece::default());
    }

    /// The device of an identifier is removed.
    pub(super) fn removed(&mut self, number: u32) {
        self.set_state(number, State::Closed);
        self.plain_event(number, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
    }

    /// A message arrives.
    pub(super) fn receive(&mut self, call: &mut Call<'_>, message: Message) {
        let Message { ident: number, body } = message;
        if let Body::Joined = body {
            return self.joined(call, number);
        }
        let Some((state, host)) = self.idents.get(&number).map(|i| (i.state, i.host)) else {
            return self.unanswered(call, number, &body, 0);
        };
        // A request is an event of its sender's identifier, until it arrives.
        if self.gone.contains(&host) {
            return self.unanswered(call, number, &body, TRIES * REPEAT);
        }
        match body {
            Body::Joined => {}
            Body::Event(event, status) => {
                match event {
                    RDMA_CM_EVENT_ADDR_ERROR => self.set_state(number, State::Bound),
                    // The answer has come meanwhile.
                    RDMA_CM_EVENT_UNREACHABLE if !matches!(state, State::Connecting | State::Accepted) => {
                        return;
                    }
                    RDMA_CM_EVENT_UNREACHABLE => self.set_state(number, State::Closed),
                    RDMA_CM_EVENT_DISCONNECTED => self.wait_in_timewait(call.now, number),
                    _ => {}
                }
                self.plain_event(number, event, status);
            }
            Body::Request(param) => self.requested(call, number, &param),
            Body::Reply(param) if state == State::Connecting => {
                let Some(ident) = self.idents.get_mut(&number) else { return };
                ident.state = State::Answered;
                ident.remote_qp_num = param.conn.qp_num;
                ident.remote_psn = param.psn;
                // Each side's value limits the other's.
                ident.responder_resources = param.conn.initiator_depth;
                ident.initiator_depth = param.conn.responder_resources;
                let shown = conn_param(&param.conn, REP);
                self.event(number, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, shown.into(), param.ece);
            }
            // Its program has rejected the connection. An answer in this state is dropped (`cm_rep_handler()`).
            Body::Reply(_) if state == State::Closed => self.unanswered(call, number, &body, 0),
            Body::ReadyToUse if state == State::Accepted => {
                self.set_state(number, State::Connected);
                self.plain_event(number, RDMA_CM_EVENT_ESTABLISHED, 0);
            }
            // In the last two states the peer has given up before it had the last message (`cm_rej_handler()`).
            Body::Reject(reason, data)
                if matches!(
                    state,
                    State::Connecting
                        | State::Answered
                        | State::Accepted
                        | State::Requested
                        | State::Connected
                        | State::Disconnecting
                ) =>
            {
                self.set_state(number, State::Closed);
                let shown = conn_param(&with_data(&data), REJ);
                let status = i32::try_from(reason).unwrap_or(0);
                self.event(number, RDMA_CM_EVENT_REJECTED, status, shown.into(), rdma_ucm_ece::default());
            }
            Body::Disconnect if matches!(state, State::Connected | State::Accepted) => {
                self.set_state(number, State::Disconnected);
                self.plain_event(number, RDMA_CM_EVENT_DISCONNECTED, 0);
            }
            // Both sides ask at the same time, and each answers.
            Body::Disconnect if state == State::Disconnecting => {
                self.set_state(number, State::Disconnected);
                self.plain_event(number, RDMA_CM_EVENT_DISCONNECTED, 0);
            }
            // As in the timewait state of `cm_dreq_handler()`.
            Body::Disconnect if state == State::Closed => {
                self.send_to_peer(call, number, Body::DisconnectReply);
            }
            // The event came with the request of the other side.
            Body::DisconnectReply if state == State::Disconnected => {
                self.wait_in_timewait(call.now, number);
            }
            Body::DisconnectReply if state == State::Disconnecting => {
                self.plain_event(number, RDMA_CM_EVENT_DISCONNECTED, 0);
                self.wait_in_timewait(call.now, number);
            }
            Body::Datagrams(param, dgid) if state == State::Connecting => {
                let Some(ident) = self.idents.get_mut(&number) else { return };
                ident.state = State::Connected;
                let ah_attr = ident.way(call.net, dgid);
                let conn = conn_param(&param.conn, SIDR_REP);
                let shown = rdma_ucm_ud_param {
                    qp_num: param.conn.qp_num,
                    qkey: param.conn.qkey,
                    ah_attr,
                    private_data: conn.private_data,
                    private_data_len: conn.private_data_len,
                    reserved: [0; 7],
                };
                self.event(number, RDMA_CM_EVENT_ESTABLISHED, 0, shown.into(), param.ece);
            }
            Body::DatagramsRefused(status, data) if state == State::Connecting => {
                self.set_state(number, State::Closed);
                let conn = conn_param(&with_data(&data), SIDR_REP);
                let shown = rdma_ucm_ud_param {
                    private_data: conn.private_data,
                    private_data_len: conn.private_data_len,
                    ..Default::default()
                };
                let status = i32::try_from(status).unwrap_or(0);
                self.event(number, RDMA_CM_EVENT_UNREACHABLE, status, shown.into(), rdma_ucm_ece::default());
            }
            // Late messages.
            _ => {}
        }
    }

    /// A message of this process reaches no identifier. Its sender waits until no repetition is answered; a disconnection is
    /// answered after this time, because a connection manager also answers one of an unknown connection (`cm_issue_drep()`).
    fn unanswered(&mut self, call: &Call<'_>, number: u32, body: &Body, reply: u64) {
        let (state, after, result) = match body {
            Body::Reply(_) => {
                let failed = Body::Event(RDMA_CM_EVENT_UNREACHABLE, -Errno::ETIMEDOUT.raw());
                (State::Accepted, TRIES * REPEAT, failed)
            }
            Body::Disconnect => (State::Disconnecting, reply, Body::DisconnectReply),
            _ => return,
        };
        let is_here = |i: &Ident| i.remote.is_some_and(|to| host_of(call.net, to.ip()).is_some());
        let sender = self.of_peer(number).find(|(_, i)| i.state == state && is_here(i));
        if let Some(sender) = sender.map(|(sender, _)| sender) {
            self.later(call.now, after, sender, result);
        }
    }

    /// An identifier ends without a message. If its peer waits for one, it waits until no repetition is answered.
    pub(super) fn fall_silent(&mut self, net: &Net, now: u64, number: u32) {
        let Some(ident) = self.idents.get(&number) else { return };
        let timed_out = -Errno::ETIMEDOUT.raw();
        let result = match ident.state {
            State::Requested | State::Answered => Body::Event(RDMA_CM_EVENT_UNREACHABLE, timed_out),
            State::Disconnected => Body::DisconnectReply,
            _ => return,
        };
        let is_here = ident.remote.is_some_and(|to| host_of(net, to.ip()).is_some());
        if let Some(peer) = ident.peer.filter(|_| is_here) {
            self.later(now, TRIES * REPEAT, peer, result);
        }
    }

    pub(super) fn set_state(&mut self, number: u32, state: State) {
        let Some(ident) = self.idents.get_mut(&number) else { return };
        ident.state = state;
        if let Some(place) = ident.wait.take() {
            self.messages.remove(&place);
        }
    }

    /// A message of another process arrives at the host `call.host`.
    pub(super) fn receive_letter(&mut self, call: &mut Call<'_>, letter: Letter) {
        let Letter { from, to: number, source, destination, ps, qp_type, body } = letter;
        if self.gone.contains(&call.host) || host_of(call.net, destination.ip()) != Some(call.host) {
            return;
        }
        if let Body::Request(param) = body {
            let sender = Sender { number: from, is_here: false, source, to: destination, ps, qp_type };
            return self.requested_by(call, &sender, &param);
        }
        let number = match body {
            // The sender of a request has given up before an answer named the identifier.
            Body::Reject(..) if number == 0 => {
                self.created_by(call.host, from, source, destination).unwrap_or(number)
            }
            _ => number,
        };
        let Some(ident) = self.idents.get(&number) else {
            // As `unanswered()`.
            if let (Body::Disconnect, Some(place)) = (&body, place_of(call.net, source.ip())) {
                let (source, destination, body) = (destination, source, Body::DisconnectReply);
                let reply = Letter { from: number, to: from, source, destination, ps, qp_type, body };
                self.send_away(call.net, place, &reply);
            }
            return;
        };
        // The first answer names the identifier at the other end.
        let is_first = ident.state == State::Connecting && ident.peer.is_none();
        if ident.remote != Some(source) || !(is_first || ident.peer == Some(from)) {
            return;
        }
        self.set_peer(number, from);
        self.receive(call, Message { ident: number, body });
    }

    /// A request of the identifier `from`, of this process, arrives at its destination.
    fn requested(&mut self, call: &mut Call<'_>, from: u32, param: &Param) {
        let Some(sender) = self.idents.get(&from) else { return };
        let (Some(to), Some(source)) = (sender.remote, sender.local) else { return };
        let (ps, qp_type) = (sender.ps, sender.qp_type);
        self.requested_by(call, &Sender { number: from, is_here: true, source, to, ps, qp_type }, param);
    }

    /// Refuses a request.
    fn refuse(&mut self, call: &mut Call<'_>, sender: &Sender, refusal: Body) {
        if sender.is_here {
            return self.later(call.now, call.net.delay(), sender.number, refusal);
        }
        let letter = Letter {
            from: 0,
            to: sender.number,
            source: sender.to,
            destination: sender.source,
            ps: sender.ps,
            qp_type: sender.qp_type,
            body: refusal,
        };
        if let Some(place) = place_of(call.net, sender.source.ip()) {
            self.send_away(call.net, place, &letter);
        }
    }

    /// A request arrives at its destination.
    fn requested_by(&mut self, call: &mut Call<'_>, sender: &Sender, param: &Param) {
        let Sender { number: from, to, source, .. } = *sender;
        let Some(host) = host_of(call.net, to.ip()) else { return };
        if self.gone.contains(&host) {
            let timed_out = Body::Event(RDMA_CM_EVENT_UNREACHABLE, -Errno::ETIMEDOUT.raw());
            return self.later(call.now, TRIES * REPEAT, from, timed_out);
        }
        let is_datagram = sender.qp_type == IB_UVERBS_QPT_UD;
        let refuse = |reason, status| match is_datagram {
            true => Body::DatagramsRefused(status, vec![]),
            false => Body::Reject(reason, vec![]),
        };
        // The target of an XRC initiator is of another type.
        let qp_type =
            if sender.qp_type == IB_UVERBS_QPT_XRC_INI { IB_UVERBS_QPT_XRC_TGT } else { sender.qp_type };
        let listener = self.listener(host, sender.ps, to);
        let Some(number) = listener else {
            return self.refuse(call, sender, refuse(INVALID_SERVICE_ID, SIDR_UNSUPPORTED));
        };
        let Some(listener) = self.idents.get_mut(&number).filter(|l| l.backlog > 0 && l.qp_type == qp_type)
        else {
            return self.refuse(call, sender, refuse(CONSUMER_DEFINED, SIDR_REJECT));
        };
        listener.backlog -= 1;
        let conn = &param.conn;
        let created = Ident {
            channel: listener.channel,
            host,
            ps: sender.ps,
            qp_type,
            state: State::Requested,
            local: Some(to),
            remote: Some(source),
            has_device: true,
            peer: Some(from),
            remote_qp_num: conn.qp_num,
            remote_psn: param.psn,
            responder_resources: conn.initiator_depth,
            initiator_depth: conn.responder_resources,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            tos: listener.tos,
            ack_timeout: listener.ack_timeout,
            ..Ident::default()
        };
        let (uid, channel) = (listener.uid, listener.channel);
        let id = self.new_number();
        let shown = if is_datagram {
            let data = conn_param(conn, SIDR_REQ);
            rdma_ucm_ud_param {
                private_data: data.private_data,
                private_data_len: data.private_data_len,
                ..Default::default()
            }
            .into()
        } else {
            conn_param(conn, REQ).into()
        };
        // Before the program moves its QP to RTS.
        self.add_ident(id, Ident { psn: first_psn(id), ..created });
        if sender.is_here {
            self.set_peer(from, id);
        }
        let event = rdma_ucm_event_resp {
            uid,
            id,
            event: RDMA_CM_EVENT_CONNECT_REQUEST,
            status: 0,
            param: shown,
            reserved: 0,
            ece: param.ece,
        };
        self.report(channel, Queued { owner: number, event, created: Some(id) });
    }

    pub(super) fn new_number(&mut self) -> u32 {
        loop {
            self.last_ident = self.last_ident.wrapping_add(1) & 0x7fff_ffff;
            let number = self.last_ident;
            if number != 0 && !self.idents.contains_key(&number) && !self.members.contains_key(&number) {
                return number;
            }
        }
    }

    /// A group was joined.
    fn joined(&mut self, call: &Call<'_>, number: u32) {
        use uverbs_uapi::rdma_cm::{RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_UDP_QKEY};
        let Some(member) = self.members.get(&number) else { return };
        let Some(ident) = self.idents.get(&member.ident) else { return };
        let shown = rdma_ucm_ud_param {
            qp_num: 0xff_ffff,
            qkey: RDMA_UDP_QKEY,
            ah_attr: ident.way(call.net, member.group),
            ..Default::default()
        };
        let event = rdma_ucm_event_resp {
            uid: member.uid,
            id: number,
            event: RDMA_CM_EVENT_MULTICAST_JOIN,
            param: shown.into(),
            ..Default::default()
        };
        let channel = ident.channel;
        self.report(channel, Queued { owner: number, event, created: None });
    }
}

/// Parameters with nothing but private data.
fn with_data(data: &[u8]) -> rdma_ucm_conn_param {
    let mut private_data = Bytes([0; RDMA_MAX_PRIVATE_DATA]);
    for (to, from) in private_data.0.iter_mut().zip(data) {
        *to = *from;
    }
    rdma_ucm_conn_param { private_data, private_data_len: data.len() as u8, ..Default::default() }
}

/// The parameters of a peer as an event has them: each side's depth is the other's resources, and private data have the size
/// of the message.
fn conn_param(sent: &rdma_ucm_conn_param, size: usize) -> rdma_ucm_conn_param {
    let mut shown =
        with_data(sent.private_data.0.get(..usize::from(sent.private_data_len)).unwrap_or_default());
    shown.private_data_len = size as u8;
    rdma_ucm_conn_param {
        qp_num: sent.qp_num,
        srq: sent.srq,
        responder_resources: sent.initiator_depth,
        initiator_depth: sent.responder_resources,
        flow_control: sent.flow_control,
        retry_count: sent.retry_count,
        rnr_retry_count: sent.rnr_retry_count,
        ..shown
    }
}

/// The GID of an identifier's address, for datagrams to it.
pub(super) fn own_gid(ident: &Ident) -> [u8; 16] {
    ident.local.map(|local| gid(local.ip())).unwrap_or_default()
}
