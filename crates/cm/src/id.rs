// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifiers: one per listener or connection (rdma_create_id(3) and the calls that take its result).
//!
//! The kernel checks the order of the calls. An identifier has no typestate, because its state also changes by events;
//! [`Resolved`](crate::Resolved), [`Request`](crate::Request) and [`Connection`](crate::Connection) are the types of
//! the usual path.

use crate::address;
use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::param::{ConnParam, Peer, private_data_len};
use crate::reason::RejectReason;
use crate::wait::Waits;
use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs::attr::{QpState, QpType};
use uverbs_core::Errno;
use uverbs_uapi::rdma_cm::{
    RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_USER_CM_CMD_ACCEPT, RDMA_USER_CM_CMD_BIND,
    RDMA_USER_CM_CMD_CONNECT, RDMA_USER_CM_CMD_CREATE_ID, RDMA_USER_CM_CMD_DESTROY_ID,
    RDMA_USER_CM_CMD_DISCONNECT, RDMA_USER_CM_CMD_LISTEN, RDMA_USER_CM_CMD_MIGRATE_ID,
    RDMA_USER_CM_CMD_NOTIFY, RDMA_USER_CM_CMD_REJECT, RDMA_USER_CM_CMD_RESOLVE_ADDR,
    RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_accept, rdma_ucm_bind, rdma_ucm_connect, rdma_ucm_create_id,
    rdma_ucm_create_id_resp, rdma_ucm_destroy_id, rdma_ucm_destroy_id_resp, rdma_ucm_disconnect,
    rdma_ucm_listen, rdma_ucm_migrate_id, rdma_ucm_migrate_resp, rdma_ucm_notify, rdma_ucm_reject,
    rdma_ucm_resolve_addr, rdma_ucm_resolve_route,
};
use zerocopy::{Immutable, IntoBytes};

/// The port space of an identifier, which determines the type of its QP (`enum rdma_port_space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortSpace {
    /// `RDMA_PS_TCP`: reliable connections, RC.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams, UD.
    Udp,
    /// `RDMA_PS_IPOIB`: datagrams to and from IP over InfiniBand.
    Ipoib,
    /// `RDMA_PS_IB`: QPs of this type, such as XRC.
    Ib(QpType),
}

impl PortSpace {
    const fn raw(self) -> u16 {
        match self {
            Self::Tcp => RDMA_PS_TCP,
            Self::Udp => RDMA_PS_UDP,
            Self::Ipoib => RDMA_PS_IPOIB,
            Self::Ib(_) => RDMA_PS_IB,
        }
    }

    /// The type of its QPs.
    #[must_use]
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Tcp => QpType::Rc,
            Self::Udp | Self::Ipoib => QpType::Ud,
            Self::Ib(qp_type) => qp_type,
        }
    }
}

/// Names an identifier or a membership in events. It is unique in a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub(crate) u64);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.0 >> Self::SHIFT)
    }
}

impl Token {
    /// Whether the parameters in its events are those of datagrams, which the events themselves do not report.
    const DATAGRAM: u64 = 1;
    const SHIFT: u32 = 1;

    pub(crate) fn new(is_datagram: bool) -> Self {
        // The kernel delivers no events for 0.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self((number << Self::SHIFT) | (u64::from(is_datagram) * Self::DATAGRAM))
    }

    pub(crate) fn is_datagram(self) -> bool {
        self.0 & Self::DATAGRAM != 0
    }
}

/// An identifier (`struct rdma_cm_id`), comparable to a socket. Dropping it destroys it; a connection then ends.
///
/// It can be shared by threads; the kernel serialises them. Destroying it while another thread waits for events is
/// allowed: events that were not read yet are discarded.
#[derive(Debug)]
pub struct Id {
    channel: EventChannel,
    number: u32,
    token: Token,
    /// Whether a request created it.
    is_passive: bool,
    is_destroyed: bool,
    place: Arc<Place>,
    waits: Waits,
    /// What the peer of a request asks for: the reads and atomics that this side serves, and that it may have outstanding.
    asked: Option<(u8, u8)>,
    /// Whether [`Id::set_ack_timeout`] was called.
    has_ack_timeout: AtomicBool,
}

/// The channel to which an identifier belongs, for its memberships: only that one can end them. `None` after the end of the identifier,
/// which ends its memberships, too: the kernel gives their numbers to others.
#[derive(Debug)]
pub(crate) struct Place(Mutex<Option<EventChannel>>);

impl Place {
    fn new(channel: &EventChannel) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(channel.clone()))))
    }

    /// It is locked during a command that changes it or depends on it. Not in a child of fork(2), where another thread may have it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<EventChannel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Id {
    pub(crate) fn create(channel: &EventChannel, port_space: PortSpace) -> Result<Self> {
        const VERB: &str = "create_id";
        let token = Token::new(port_space.qp_type() == QpType::Ud);
        let qp_type = port_space.qp_type();
        let command = rdma_ucm_create_id {
            uid: token.0,
            ps: port_space.raw(),
            qp_type: u8::try_from(qp_type as u32)
                .ok()
                .filter(|_| !matches!(qp_type, QpType::Driver | QpType::RawPacket))
                .ok_or_else(|| Error::invalid(VERB, "qp_type", format!("{qp_type} has no connections")))?,
            ..Default::default()
        };
        let mut answer = rdma_ucm_create_id_resp::default();
        channel
            .port()
            .command(RDMA_USER_CM_CMD_CREATE_ID, command.as_bytes(), answer.as_mut_bytes())
            .map_err(|errno| Error::command(VERB, format!("{port_space:?}"), errno))?;
        Ok(Self {
            channel: channel.clone(),
            number: answer.id,
            token,
            is_passive: false,
            is_destroyed: false,
            place: Place::new(channel),
            waits: Waits::default(),
            asked: None,
            has_ack_timeout: AtomicBool::new(false),
        })
    }

    /// The identifier of the connection request of `peer` to the identifier `listener`.
    pub(crate) fn of_request(channel: &EventChannel, number: u32, listener: Token, peer: &Peer) -> Self {
        Self {
            channel: channel.clone(),
            number,
            token: Token::new(listener.is_datagram()),
            is_passive: true,
            is_destroyed: false,
            place: Place::new(channel),
            waits: Waits::default(),
            asked: Some((peer.responder_resources, peer.initiator_depth)),
            has_ack_timeout: AtomicBool::new(false),
        }
    }

    /// The depths of a connection that is accepted: of each direction the minimum of this side's and the peer's.
    pub(crate) fn agreed_depths(&self, param: &ConnParam) -> Option<(u8, u8)> {
        let (served, outstanding) = self.asked?;
        Some((param.responder_resources.min(served), param.initiator_depth.min(outstanding)))
    }

    /// The kernel has an ACK timeout for it that the program selected.
    pub(crate) fn has_ack_timeout(&self) -> bool {
        self.has_ack_timeout.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_ack_timeout(&self) {
        self.has_ack_timeout.store(true, Ordering::Relaxed);
    }

    /// The value by which events name it.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// The channel of its events.
    #[must_use]
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Whether its QP is a datagram QP.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.token.is_datagram()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Its name in errors.
    pub(crate) fn object(&self) -> String {
        format!("id {}", self.number)
    }

    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::command(verb, self.object(), errno)
    }

    /// Runs a command.
    pub(crate) fn command(
        &self,
        verb: &'static str,
        cmd: u32,
        command: &(impl IntoBytes + Immutable),
        answer: &mut [u8],
    ) -> Result<()> {
        self.channel.port().command(cmd, command.as_bytes(), answer).map_err(|errno| self.error(verb, errno))
    }

    /// `rdma_bind_addr`: binds it to a local address. An unspecified IP address is allowed for listening; port 0
    /// selects a port.
    ///
    /// # Errors
    /// [`Error::NoRoute`] if no RDMA device has the address; `EADDRINUSE`.
    pub fn bind_addr(&self, local: SocketAddr) -> Result<()> {
        let (addr, addr_size) = address::encode(local);
        let command = rdma_ucm_bind { id: self.number, addr_size, reserved: 0, addr };
        self.channel
            .port()
            .command(RDMA_USER_CM_CMD_BIND, command.as_bytes(), &mut [])
            .map_err(|errno| Error::command("bind_addr", format!("{local}, {}", self.object()), errno))
    }

    /// `rdma_resolve_addr`: finds the device by which `remote` is reached, and binds to it, and to `local` if it is
    /// given. An event reports the result.
    ///
    /// # Errors
    /// [`Error::NoRoute`] if there is no route, which may also be reported by the event.
    pub fn resolve_addr(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let (dst_addr, dst_size) = address::encode(remote);
        let (src_addr, src_size) = local.map(address::encode).unwrap_or_default();
        let command = rdma_ucm_resolve_addr {
            id: self.number,
            timeout_ms: millis(timeout),
            src_size,
            dst_size,
            reserved: 0,
            src_addr,
            dst_addr,
        };
        self.channel
            .port()
            .command(RDMA_USER_CM_CMD_RESOLVE_ADDR, command.as_bytes(), &mut [])
            .map_err(|errno| Error::command("resolve_addr", format!("{remote}, {}", self.object()), errno))
    }

    /// `rdma_resolve_route`: finds the path to the address that was resolved. An event reports the result.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` if no address was resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let command = rdma_ucm_resolve_route { id: self.number, timeout_ms: millis(timeout) };
        self.command("resolve_route", RDMA_USER_CM_CMD_RESOLVE_ROUTE, &command, &mut [])
    }

    /// `rdma_listen`: listens for connection requests. `backlog` is the number of requests that may wait; 0 is the maximum.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let command = rdma_ucm_listen { id: self.number, backlog };
        self.command("listen", RDMA_USER_CM_CMD_LISTEN, &command, &mut [])
    }

    /// `rdma_connect`: sends a connection request; for datagrams a request for the peer's QP number. The QP must be in
    /// INIT, and `param` have its number. An event reports the result.
    ///
    /// # Errors
    /// The kernel's error; an `EINVAL` is explained if the private data are too long.
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        const VERB: &str = "connect";
        let command = rdma_ucm_connect {
            conn_param: param.encode(VERB)?,
            id: self.number,
            reserved: 0,
            ece: param.encode_ece(),
        };
        let limit = if self.is_datagram() { 180 } else { 56 };
        self.channel
            .port()
            .command(RDMA_USER_CM_CMD_CONNECT, command.as_bytes(), &mut [])
            .map_err(|errno| self.explain(VERB, param.private_data.len(), limit, errno))
    }

    /// `rdma_accept`: accepts a connection request. The QP must be in RTR or RTS, and `param` have its number. Its depths
    /// are sent with the minimum of this side's and the peer's.
    ///
    /// # Errors
    /// As [`Id::connect`]; [`Error::Disconnected`] if the peer has given up.
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        const VERB: &str = "accept";
        let mut conn_param = param.encode(VERB)?;
        if let Some((served, outstanding)) = self.agreed_depths(param) {
            (conn_param.responder_resources, conn_param.initiator_depth) = (served, outstanding);
        }
        let command = rdma_ucm_accept {
            uid: self.token.0,
            conn_param,
            id: self.number,
            reserved: 0,
            ece: param.encode_ece(),
        };
        let limit = if self.is_datagram() { 136 } else { 196 };
        self.channel.port().command(RDMA_USER_CM_CMD_ACCEPT, command.as_bytes(), &mut []).map_err(|errno| {
            self.ended(VERB, errno, self.explain(VERB, param.private_data.len(), limit, errno))
        })
    }

    /// `rdma_establish`: notifies the peer, whose [`ConnectResponse`](crate::EventKind::ConnectResponse) was received,
    /// that the QP is connected.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn establish(&self) -> Result<()> {
        let command = rdma_ucm_accept { uid: self.token.0, id: self.number, ..Default::default() };
        self.command("establish", RDMA_USER_CM_CMD_ACCEPT, &command, &mut [])
    }

    /// `rdma_reject`: rejects a connection request, or the answer to one.
    ///
    /// # Errors
    /// As [`Id::accept`]; the kernel accepts two reasons from a program,
    /// [`CONSUMER_DEFINED`](RejectReason::CONSUMER_DEFINED) and
    /// [`VENDOR_OPTION_NOT_SUPPORTED`](RejectReason::VENDOR_OPTION_NOT_SUPPORTED).
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        const VERB: &str = "reject";
        let mut command = rdma_ucm_reject {
            id: self.number,
            private_data_len: private_data_len(VERB, private_data)?,
            reason: u8::try_from(reason.0)
                .map_err(|_| Error::invalid(VERB, "reason", format!("{reason:?} is not that of a REJ")))?,
            ..Default::default()
        };
        command.private_data.0[..private_data.len()].copy_from_slice(private_data);
        let limit = if self.is_datagram() { 136 } else { 148 };
        self.channel
            .port()
            .command(RDMA_USER_CM_CMD_REJECT, command.as_bytes(), &mut [])
            .map_err(|errno| self.ended(VERB, errno, self.explain(VERB, private_data.len(), limit, errno)))
    }

    /// The error of an answer to a request. If the peer has given up it is an `EINVAL`: the kernel has no other errno for it, and gives the
    /// attributes of RTR until the connection ends.
    fn ended(&self, verb: &'static str, errno: Errno, error: Error) -> Error {
        match error {
            Error::Verbs(error) if errno == Errno::EINVAL => match self.init_qp_attr(QpState::RTR) {
                Err(Error::Disconnected { object, .. }) => Error::Disconnected { verb, object },
                _ => error.into(),
            },
            error => error,
        }
    }

    /// `rdma_disconnect`: ends the connection. Both sides get an event.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` if there is no connection.
    pub fn disconnect(&self) -> Result<()> {
        let command = rdma_ucm_disconnect { id: self.number };
        self.command("disconnect", RDMA_USER_CM_CMD_DISCONNECT, &command, &mut [])
    }

    /// `rdma_notify`: reports an asynchronous event of the QP, such as `COMM_EST` when a message arrived before the
    /// peer's last message of the connection.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn notify(&self, event: uverbs::attr::EventType) -> Result<()> {
        let command = rdma_ucm_notify { id: self.number, event: event.0 };
        self.command("notify", RDMA_USER_CM_CMD_NOTIFY, &command, &mut [])
    }

    /// `rdma_migrate_id`: moves it, and its events that were not read yet, to another channel of the same connection
    /// manager.
    ///
    /// # Errors
    /// The kernel's error. It then still belongs to its present channel.
    pub fn migrate(&mut self, to: &EventChannel) -> Result<()> {
        let fd = u32::try_from(self.channel.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        let command = rdma_ucm_migrate_id { response: 0, id: self.number, fd };
        let mut answer = rdma_ucm_migrate_resp::default();
        if !self.channel.port().is_creator_process() {
            return Err(self.error("migrate_id", Errno::ESTALE));
        }
        let mut place = self.place.lock();
        to.port()
            .command(RDMA_USER_CM_CMD_MIGRATE_ID, command.as_bytes(), answer.as_mut_bytes())
            .map_err(|errno| self.error("migrate_id", errno))?;
        *place = Some(to.clone());
        drop(place);
        self.channel = to.clone();
        Ok(())
    }

    /// `rdma_destroy_id`: destroys it and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<()> {
        // In a child of fork(2) the identifier belongs to the parent.
        if self.is_destroyed || !self.channel.port().is_creator_process() {
            return Ok(());
        }
        self.is_destroyed = true;
        #[cfg(feature = "tracing")]
        crate::names::remove(self.token);
        let command = rdma_ucm_destroy_id { id: self.number, ..Default::default() };
        let mut answer = rdma_ucm_destroy_id_resp::default();
        let mut place = self.place.lock();
        self.command("destroy_id", RDMA_USER_CM_CMD_DESTROY_ID, &command, answer.as_mut_bytes())?;
        *place = None;
        Ok(())
    }

    /// Whether the connection of a request has ended, if the attributes of this state are an `EINVAL`: from the request to the end,
    /// `ib_cm_init_qp_attr()` gives those of all three states.
    pub(crate) fn has_ended(&self, state: QpState, errno: Errno) -> bool {
        let is_connected = matches!(state, QpState::INIT | QpState::RTR | QpState::RTS);
        self.is_passive && !self.is_datagram() && is_connected && errno == Errno::EINVAL
    }

    /// The error of a step between the peer's acceptance and the connection. A peer that gives up meanwhile makes it an `EINVAL`; the
    /// reason is that of the event, which is read. For connections whose identifier has a channel of its own.
    #[doc(hidden)]
    #[must_use]
    pub fn given_up(&self, verb: &'static str, error: Error) -> Error {
        let has_ended =
            matches!(error.verb(), "init_qp_attr" | "establish") && error.errno() == Errno::EINVAL;
        if !has_ended {
            return error;
        }
        while let Ok(Some(event)) = self.next_own() {
            if let Err(reason) = self.check(event, verb) {
                return reason;
            }
        }
        Error::Disconnected { verb, object: self.object() }
    }

    /// The meaning of an `EINVAL` to private data.
    fn explain(&self, verb: &'static str, len: usize, limit: usize, errno: Errno) -> Error {
        if errno == Errno::EINVAL && len > limit {
            let reason = format!("{len} bytes; InfiniBand and RoCE carry at most {limit} here");
            return Error::invalid(verb, "private_data", reason);
        }
        self.error(verb, errno)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            uverbs::report!(warn, { id = self.number }, "{error}");
        }
    }
}

/// Milliseconds, rounded up.
fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}
