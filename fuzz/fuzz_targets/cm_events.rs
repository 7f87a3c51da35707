// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager on a kernel whose answers, events and private data of peers are any bytes.
//!
//! Checked: every call returns an error or a result, and does not panic or wait forever; the private data and numbers of
//! events are the bytes at the offsets of `<rdma/rdma_user_cm.h>`; each identifier and membership that the kernel gave is
//! destroyed once; a QP that was moved with the kernel's attributes is usable or refused.
#![no_main]

use arbitrary::Arbitrary;
use core::net::SocketAddr;
use core::time::Duration;
use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs::mlx5::Mlx5;
use uverbs::{
    Context, ProtectionDomain, Rc, Shared,
    raw::{Cq, Qp},
};
use uverbs::{
    Exclusive,
    attr::{EventType, QpCap, QpState, QpType},
};
use uverbs_cm::{
    CmPort, ConnParam, Event, EventChannel, EventKind, Id, Listener, Membership, Peer, PortSpace,
    RejectReason, Resolved,
};
use uverbs_core::Errno;
use uverbs_hca::Fabric;
use uverbs_uapi::rdma_cm::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_USER_CM_CMD_ACCEPT, RDMA_USER_CM_CMD_CREATE_ID,
    RDMA_USER_CM_CMD_DESTROY_ID, RDMA_USER_CM_CMD_GET_EVENT, RDMA_USER_CM_CMD_JOIN_MCAST,
    RDMA_USER_CM_CMD_LEAVE_MCAST, rdma_ucm_event_resp,
};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    steps: Vec<Step>,
    answers: &'a [u8],
}

#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Create(u8),
    Bind(u8, Address),
    Listen(u8),
    ResolveAddr(u8, Address, bool),
    ResolveRoute(u8),
    Connect(u8, u16),
    Accept(u8, u16),
    Establish(u8),
    Reject(u8, u8, u16),
    Disconnect(u8),
    Notify(u8, u32),
    Migrate(u8),
    Join(u8, Address, bool),
    Leave(u8),
    Options(u8, u8),
    Query(u8),
    Attr(u8, u8),
    Next,
    Wait,
    Drop(u8),
    Close(u8),
    /// The usual paths.
    Server(Address, bool),
    Client(Address, bool),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Address {
    V4([u8; 4], u16),
    V6([u8; 16], u16),
}

impl From<Address> for SocketAddr {
    fn from(address: Address) -> Self {
        match address {
            Address::V4(ip, port) => (ip, port).into(),
            Address::V6(ip, port) => (ip, port).into(),
        }
    }
}

const MAX_STEPS: usize = 30;

/// The answers that are left, and what the kernel has given.
#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    at: usize,
    ids: Vec<u32>,
    memberships: Vec<u32>,
    /// The identifiers of the memberships.
    members: Vec<u32>,
    /// Memberships that ended with an identifier of this number. A kernel that lies may have given the number to another one, whose
    /// memberships have not ended.
    orphans: Vec<u32>,
    /// The values of identifiers and memberships.
    tokens: Vec<u64>,
    /// The last event, as it was written.
    event: Vec<u8>,
}

impl State {
    fn byte(&mut self) -> Option<u8> {
        self.at += 1;
        self.bytes.get(self.at - 1).copied()
    }

    fn word(&mut self) -> u32 {
        u32::from_ne_bytes([(); 4].map(|()| self.byte().unwrap_or(0)))
    }

    /// Writes bytes from some offset on.
    fn scatter(&mut self, output: &mut [u8]) {
        let (from, len) = (usize::from(self.byte().unwrap_or(0)) * 2, self.byte().unwrap_or(0));
        for place in output.iter_mut().skip(from).take(len.into()) {
            *place = self.byte().unwrap_or(0);
        }
    }

    fn errno(&mut self) -> Errno {
        let errnos =
            [Errno::EAGAIN, Errno::EINVAL, Errno::ENODEV, Errno::ETIMEDOUT, Errno::ENOENT, Errno::ENOSYS];
        let byte = self.byte().unwrap_or(2);
        errnos.get(usize::from(byte)).copied().unwrap_or(Errno::from_raw(byte.into()))
    }

    fn write_event(&mut self, output: &mut [u8]) {
        output.fill(0);
        let token = self.byte().unwrap_or(0);
        let uid = match self.tokens.len() {
            0 => u64::from(token),
            n if token < 0xf0 => self.tokens[usize::from(token) % n],
            _ => u64::from(self.word()),
        };
        let (id, event) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
        let event = if event < 0xf0 { u32::from(event % 20) } else { self.word() };
        let status = match self.byte().unwrap_or(0) {
            0x80 => self.word(),
            status => i32::from(status.cast_signed()).cast_unsigned(),
        };
        output[..8].copy_from_slice(&uid.to_ne_bytes());
        output[8..12].copy_from_slice(&u32::from(id).to_ne_bytes());
        output[12..16].copy_from_slice(&event.to_ne_bytes());
        output[16..20].copy_from_slice(&status.to_ne_bytes());
        // The union: for datagrams, an address is between the numbers and the private data.
        self.scatter(&mut output[20..]);
        output[20 + 264] = self.byte().unwrap_or(0);
        output[20 + 296] = self.byte().unwrap_or(0);
        self.event = output.to_vec();
    }

    fn command(&mut self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        let number =
            |at: usize| input.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("4 bytes")));
        // Events name identifiers and memberships by these values.
        let uid = match cmd {
            RDMA_USER_CM_CMD_CREATE_ID | RDMA_USER_CM_CMD_ACCEPT => input.first_chunk(),
            RDMA_USER_CM_CMD_JOIN_MCAST => input[8..].first_chunk(),
            _ => None,
        };
        self.tokens.extend(uid.map(|bytes| u64::from_ne_bytes(*bytes)));
        // The end of an object is asked for once, whatever the answer is.
        let place = |objects: &[u32]| {
            let number = number(8).expect("the struct has a number");
            objects.iter().position(|n| *n == number)
        };
        match cmd {
            RDMA_USER_CM_CMD_DESTROY_ID => {
                let found = place(&self.ids).expect("the kernel did not give this identifier");
                self.ids.swap_remove(found);
            }
            RDMA_USER_CM_CMD_LEAVE_MCAST => match place(&self.memberships) {
                Some(found) => {
                    self.memberships.swap_remove(found);
                    self.members.swap_remove(found);
                }
                None => {
                    let found = place(&self.orphans).expect("the kernel did not give this membership");
                    self.orphans.swap_remove(found);
                }
            },
            _ => {}
        }
        // The device is removed when there are no more answers.
        let control = self.byte().ok_or(Errno::ENODEV)?;
        if control & 0xe0 == 0xe0 {
            return Err(self.errno());
        }
        if cmd == RDMA_USER_CM_CMD_GET_EVENT {
            self.write_event(output);
            if number_of(&self.event, 12) == RDMA_CM_EVENT_CONNECT_REQUEST {
                self.ids.push(number_of(&self.event, 8));
            }
            return Ok(());
        }
        for _ in 0..control & 3 {
            self.scatter(output);
        }
        match cmd {
            RDMA_USER_CM_CMD_CREATE_ID => self.ids.push(number_of(output, 0)),
            RDMA_USER_CM_CMD_JOIN_MCAST => {
                self.memberships.push(number_of(output, 0));
                self.members.push(number(16).expect("the struct has an identifier"));
            }
            // The kernel ends the memberships of an identifier with it.
            RDMA_USER_CM_CMD_DESTROY_ID => {
                let id = number(8).expect("the struct has a number");
                while let Some(i) = self.members.iter().position(|member| *member == id) {
                    self.members.swap_remove(i);
                    self.orphans.push(self.memberships.swap_remove(i));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn number_of(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The kernel's connection manager.
#[derive(Clone, Debug)]
struct Port {
    state: Arc<Mutex<State>>,
    /// Always readable.
    fd: Arc<File>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CmPort for Port {
    fn command(&self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        lock(&self.state).command(cmd, input, output)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn open_channel(&self) -> uverbs_core::Result<Arc<dyn CmPort>> {
        Ok(Arc::new(self.clone()))
    }

    fn is_creator_process(&self) -> bool {
        true
    }
}

/// What QPs are made from.
struct Device {
    pd: ProtectionDomain<Mlx5>,
    cq: Cq<Shared, Mlx5>,
    zero: Arc<File>,
}

thread_local! {
    static DEVICE: Device = {
        let hca = Fabric::deterministic(1).device("hca0").build();
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("the software HCA");
        let (pd, cq) = (context.alloc_pd().expect("a domain"), context.create_cq(16, None).expect("a CQ"));
        Device { pd, cq, zero: Arc::new(File::open("/dev/zero").expect("/dev/zero")) }
    };
}

fn qp() -> Qp<Rc, Exclusive, Mlx5> {
    let cap = QpCap::new(4, 4);
    DEVICE.with(|device| device.pd.raw_qp::<Rc>().cq(&device.cq).cap(cap).create()).expect("a QP")
}

fn param(len: u16) -> ConnParam {
    ConnParam::with_private_data(vec![7; usize::from(len % 300)]).retry_count((len >> 12) as u8)
}

fuzz_target!(|input: Input<'_>| {
    let state = Arc::new(Mutex::new(State { bytes: input.answers.to_vec(), ..State::default() }));
    let port = Port { state: state.clone(), fd: DEVICE.with(|device| device.zero.clone()) };
    let channel = EventChannel::from_port(Arc::new(port));
    let mut objects = Objects { channel, state: state.clone(), ids: Vec::new(), memberships: Vec::new() };
    for step in input.steps.iter().take(MAX_STEPS) {
        // Errors are the kernel's.
        let _ = objects.step(step);
    }
    drop(objects);
    let state = lock(&state);
    assert_eq!(
        (&state.ids[..], &state.memberships[..]),
        (&[][..], &[][..]),
        "objects that were not destroyed"
    );
});

struct Objects {
    channel: EventChannel,
    state: Arc<Mutex<State>>,
    ids: Vec<Id>,
    memberships: Vec<Membership>,
}

/// The object of a number, if there is any.
fn at<T>(objects: &[T], number: u8) -> Option<usize> {
    usize::from(number).checked_rem(objects.len())
}

impl Objects {
    fn id(&self, number: u8) -> Option<&Id> {
        at(&self.ids, number).map(|i| &self.ids[i])
    }

    fn step(&mut self, step: &Step) -> uverbs_cm::Result<()> {
        const LIMIT: Duration = Duration::from_secs(1);
        let (number, ids) = match *step {
            Step::Bind(n, _) | Step::Listen(n) | Step::ResolveAddr(n, ..) | Step::ResolveRoute(n) => {
                (n, true)
            }
            Step::Connect(n, _) | Step::Accept(n, _) | Step::Establish(n) | Step::Reject(n, ..) => (n, true),
            Step::Disconnect(n) | Step::Notify(n, _) | Step::Migrate(n) | Step::Join(n, ..) => (n, true),
            Step::Options(n, _) | Step::Query(n) | Step::Attr(n, _) | Step::Drop(n) | Step::Close(n) => {
                (n, true)
            }
            _ => (0, false),
        };
        let Some(id) = self.id(number) else {
            return if ids { Ok(()) } else { self.without_id(step, LIMIT) };
        };
        match *step {
            Step::Bind(_, address) => id.bind_addr(address.into()),
            Step::Listen(backlog) => id.listen(backlog.into()),
            Step::ResolveAddr(_, address, local) => {
                id.resolve_addr(local.then_some(address.into()), address.into(), LIMIT)
            }
            Step::ResolveRoute(_) => id.resolve_route(LIMIT),
            Step::Connect(_, len) => id.connect(&param(len)),
            Step::Accept(_, len) => id.accept(&param(len)),
            Step::Establish(_) => id.establish(),
            Step::Reject(_, reason, len) => {
                id.reject(RejectReason(reason.into()), &vec![1; usize::from(len % 300)])
            }
            Step::Disconnect(_) => id.disconnect(),
            Step::Notify(_, event) => id.notify(EventType(event)),
            Step::Join(_, group, send_only) => {
                let joined = id.join_multicast(group.into(), send_only)?;
                self.memberships.push(joined);
                Ok(())
            }
            Step::Options(_, value) => {
                id.set_tos(value)?;
                id.set_reuse_addr(value & 1 != 0)?;
                id.set_ipv6_only(value & 2 != 0)?;
                id.set_ack_timeout(value)
            }
            Step::Query(_) => {
                let bound = id.bound()?;
                let _ = (format!("{bound:?}"), bound.device());
                id.route().map(|route| drop(format!("{route:?}")))
            }
            Step::Attr(_, state) => {
                let states = [QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR, QpState(77)];
                id.init_qp_attr(states[usize::from(state) % states.len()])?;
                let qp = qp();
                id.init_qp(&qp.control, &param(0))?;
                id.connect_qp(&qp.control, &param(0))
            }
            Step::Migrate(n) => {
                let to = self.channel.open_another()?;
                let Some(i) = at(&self.ids, n) else { return Ok(()) };
                self.ids[i].migrate(&to)
            }
            Step::Drop(n) | Step::Close(n) => {
                let Some(i) = at(&self.ids, n) else { return Ok(()) };
                let id = self.ids.swap_remove(i);
                if matches!(step, Step::Close(_)) { id.close() } else { Ok(()) }
            }
            _ => self.without_id(step, LIMIT),
        }
    }

    /// The steps that do not use an identifier that exists.
    fn without_id(&mut self, step: &Step, limit: Duration) -> uverbs_cm::Result<()> {
        match *step {
            Step::Create(space) => {
                let spaces = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ipoib, PortSpace::Ib(QpType::Rc)];
                let id = self.channel.create_id(spaces[usize::from(space) % spaces.len()])?;
                self.ids.push(id);
            }
            Step::Leave(n) => {
                if let Some(i) = at(&self.memberships, n) {
                    self.memberships.swap_remove(i).leave()?;
                }
            }
            Step::Next => {
                if let Some(event) = self.channel.next_event()? {
                    self.received(event);
                }
            }
            Step::Wait => {
                let event = self.channel.get_event()?;
                self.received(event);
            }
            Step::Server(address, wait) => {
                let listener = Listener::bind(&self.channel, address.into())?;
                let _ = listener.local_addr();
                let request = listener.accept()?;
                let connection = request.accept(qp(), &param(5), None)?;
                if wait {
                    connection.wait_disconnected(None)?;
                }
                connection.disconnect()?;
                connection.close()?;
            }
            Step::Client(address, wait) => {
                let id = self.channel.create_id(PortSpace::Tcp)?;
                let resolved = Resolved::from_id(id, None, address.into(), limit)?;
                let connection = resolved.connect(qp(), &param(9), None)?;
                if wait {
                    connection.wait_disconnected(None)?;
                }
                connection.close()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn received(&mut self, event: Event) {
        let raw = lock(&self.state).event.clone();
        assert_eq!(raw.len(), size_of::<rdma_ucm_event_resp>());
        let is_datagram = raw[0] & 1 != 0;
        assert!(!event.name().is_empty() && !format!("{event:?}").is_empty());
        match &event.kind {
            EventKind::ConnectRequest(request) => compare(&request.peer, &raw, is_datagram),
            EventKind::ConnectResponse(peer) | EventKind::Established(peer) => {
                compare(peer, &raw, is_datagram)
            }
            EventKind::Other { event, status } => {
                assert_eq!((*event, status.cast_unsigned()), (number_of(&raw, 12), number_of(&raw, 16)));
            }
            EventKind::MulticastJoin(group) => {
                assert_eq!((group.qp_num, group.qkey), (number_of(&raw, 20), number_of(&raw, 24)));
            }
            _ => {}
        }
        if let Ok(Event { kind: EventKind::ConnectRequest(request), .. }) = event.ok("fuzz") {
            self.ids.push(request.id);
        }
    }
}

/// The parameters are the bytes of the event.
fn compare(peer: &Peer, raw: &[u8], is_datagram: bool) {
    let data = if is_datagram { 20 + 40 } else { 20 + 8 };
    let len = usize::from(raw[data + 256]);
    assert_eq!(peer.private_data, raw[data..data + len]);
    assert_eq!((peer.qp_num, peer.qkey), (number_of(raw, 20), number_of(raw, 24)));
    if !is_datagram {
        assert_eq!(peer.responder_resources, raw[data + 258]);
        assert_eq!(peer.initiator_depth, raw[data + 259]);
    }
    let ece = raw.len() - 8;
    assert_eq!((peer.ece.vendor_id, peer.ece.options), (number_of(raw, ece), number_of(raw, ece + 4)));
}
