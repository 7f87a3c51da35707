// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager between software NICs of this process: every call, event and error.
//!
//! Where the QPs do not matter, there are none: a connection manager only transfers their numbers. The fabric is
//! deterministic, so an event is there when the call that causes it returns.

mod groups;
mod one_call;
mod removal;
mod states;
mod timers;
#[cfg(feature = "tracing")]
mod tracing;
mod waits;
mod xrc;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::time::Instant;
use uverbs::attr::{Ece, Gid, QpAttrMask, QpCap, QpState};
use uverbs::{Context, Errno, Rc, Ud, mlx5::Mlx5};
use uverbs_cm::{
    ConnParam, ConnectRequest, Error, Event, EventChannel, EventKind, Id, Listener, Peer, PortSpace,
    RejectReason, Resolved,
};
use uverbs_hca::{Fabric, Hca, Link};

const PORT: u16 = 7471;
const LIMIT: Duration = Duration::from_secs(2);
/// A time limit that ends a test that hangs.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Two hosts.
struct Hosts {
    fabric: Fabric,
    client: Hca,
    server: Hca,
    at_client: EventChannel,
    at_server: EventChannel,
}

fn channel(hca: &Hca) -> EventChannel {
    EventChannel::from_port(hca.connection_manager().unwrap())
}

fn hosts() -> Hosts {
    hosts_on(Fabric::deterministic(7))
}

fn hosts_on(fabric: Fabric) -> Hosts {
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    Hosts { at_client: channel(&client), at_server: channel(&server), fabric, client, server }
}

impl Hosts {
    fn address(&self) -> SocketAddr {
        (self.server.addresses()[0], PORT).into()
    }

    fn listen(&self, port_space: PortSpace, backlog: u32) -> Id {
        let id = self.at_server.create_id(port_space).unwrap();
        id.bind_addr(self.address()).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    fn resolve(&self, port_space: PortSpace, to: SocketAddr) -> Id {
        let id = self.at_client.create_id(port_space).unwrap();
        id.resolve_addr(None, to, LIMIT).unwrap();
        assert!(matches!(event_of(&self.at_client, &id), EventKind::AddrResolved));
        id.resolve_route(LIMIT).unwrap();
        assert!(matches!(event_of(&self.at_client, &id), EventKind::RouteResolved));
        id
    }

    fn request(&self, listener: &Id) -> ConnectRequest {
        match event_of(&self.at_server, listener) {
            EventKind::ConnectRequest(request) => request,
            other => panic!("{other:?}"),
        }
    }

    /// An established connection, of both ends.
    fn connected(&self) -> (Id, Id, Id) {
        let listener = self.listen(PortSpace::Tcp, 0);
        let active = self.resolve(PortSpace::Tcp, self.address());
        active.connect(&ConnParam::new().qp_num(5)).unwrap();
        let passive = self.request(&listener).id;
        passive.accept(&ConnParam::new().qp_num(6)).unwrap();
        assert!(matches!(event_of(&self.at_client, &active), EventKind::ConnectResponse(_)));
        active.establish().unwrap();
        assert!(matches!(event_of(&self.at_server, &passive), EventKind::Established(_)));
        (listener, active, passive)
    }
}

/// The event that is available, which must be of this identifier.
fn event_of(channel: &EventChannel, id: &Id) -> EventKind {
    let Event { token, kind, .. } = channel.next_event().unwrap().expect("an event");
    assert_eq!(token, id.token(), "{kind:?}");
    kind
}

fn failure(channel: &EventChannel, id: &Id) -> Error {
    match event_of(channel, id) {
        EventKind::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

fn none(channel: &EventChannel) {
    if let Some(event) = channel.next_event().unwrap() {
        panic!("{event:?}");
    }
}

/// Private data, and the padding of its message.
fn padded(data: &[u8], size: usize) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(size, 0);
    data
}

#[test]
fn a_connection_carries_parameters_and_private_data_both_ways() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    let ece = Ece { vendor_id: 0x15b3, options: 3 };
    let request = ConnParam::new()
        .private_data(*b"question")
        .responder_resources(3)
        .initiator_depth(4)
        .retry_count(5)
        .rnr_retry_count(6)
        .qp_num(0x123)
        .srq(true)
        .ece(ece);
    active.connect(&request).unwrap();
    let ConnectRequest { id: passive, peer, .. } = hosts.request(&listener);
    let mut expected = Peer::default();
    (expected.private_data, expected.qp_num) = (padded(b"question", 56), 0x123);
    (expected.responder_resources, expected.initiator_depth) = (4, 3);
    (expected.retry_count, expected.rnr_retry_count) = (5, 6);
    (expected.srq, expected.ece) = (true, ece);
    assert_eq!(peer, expected);
    let bound = passive.bound().unwrap();
    assert_eq!((bound.local, bound.remote), (Some(hosts.address()), active.bound().unwrap().local));
    assert_eq!(
        bound.node_guid,
        Some(Context::<Mlx5>::from_kernel(hosts.server.open()).unwrap().query_device().unwrap().node_guid)
    );

    let answer =
        ConnParam::new().private_data(*b"answer").responder_resources(2).initiator_depth(1).qp_num(0x456);
    passive.accept(&answer).unwrap();
    none(&hosts.at_server);
    match event_of(&hosts.at_client, &active) {
        EventKind::ConnectResponse(peer) => {
            assert_eq!(peer.private_data, padded(b"answer", 196));
            assert_eq!((peer.qp_num, peer.responder_resources, peer.initiator_depth), (0x456, 1, 2));
        }
        other => panic!("{other:?}"),
    }
    let (attr, mask) = active.init_qp_attr(QpState::RTR).unwrap();
    assert!(mask.contains(QpAttrMask::AV | QpAttrMask::DEST_QPN | QpAttrMask::PATH_MTU));
    assert_eq!((attr.dest_qp_num, attr.max_dest_rd_atomic), (0x456, 1));
    assert_eq!(attr.ah_attr.grh.unwrap().dgid, Gid::from(hosts.address().ip()));
    let (attr, _) = active.init_qp_attr(QpState::RTS).unwrap();
    assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic), (5, 6, 2));
    active.establish().unwrap();
    assert!(matches!(event_of(&hosts.at_server, &passive), EventKind::Established(_)));

    active.disconnect().unwrap();
    assert!(matches!(event_of(&hosts.at_server, &passive), EventKind::Disconnected));
    none(&hosts.at_client);
    passive.disconnect().unwrap();
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::Disconnected));
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::TimewaitExit));
}

#[test]
fn a_rejection_has_a_reason_and_private_data() {
    let hosts = hosts();
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::default()).unwrap();
    let error = failure(&hosts.at_client, &active);
    assert!(matches!(error, Error::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }), "{error}");
    assert!(error.to_string().ends_with("rejected: no program listens on this port"), "{error}");

    let listener = hosts.listen(PortSpace::Tcp, 1);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::default()).unwrap();
    // The backlog of 1 is full.
    let second = hosts.resolve_silently();
    second.connect(&ConnParam::default()).unwrap();
    let error = failure(&hosts.at_client, &second);
    assert!(matches!(error, Error::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. }), "{error}");

    let request = hosts.request(&listener);
    let reason = request.id.reject(RejectReason::INVALID_MTU, &[]).unwrap_err();
    assert_eq!(reason.errno(), Errno::EINVAL);
    request.id.reject(RejectReason::VENDOR_OPTION_NOT_SUPPORTED, b"no").unwrap();
    match failure(&hosts.at_client, &active) {
        Error::Rejected { reason, private_data, verb, .. } => {
            assert_eq!((reason, verb), (RejectReason::VENDOR_OPTION_NOT_SUPPORTED, "connect"));
            assert_eq!(private_data, padded(b"no", 148));
        }
        other => panic!("{other}"),
    }

    // A request that is dropped is rejected; so is one that was not read when its listener is destroyed.
    for is_read in [true, false] {
        let active = hosts.resolve_silently();
        active.connect(&ConnParam::default()).unwrap();
        let listener = is_read.then(|| drop(hosts.request(&listener)));
        if listener.is_none() {
            break;
        }
        let error = failure(&hosts.at_client, &active);
        assert!(matches!(error, Error::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. }), "{error}");
    }
    listener.close().unwrap();
    none(&hosts.at_server);
    let event = hosts.at_client.next_event().unwrap();
    assert!(event.is_none(), "the identifier of the last request was destroyed: {event:?}");
}

/// The peer destroys its identifier while it waits for an answer.
#[test]
fn a_client_that_gives_up_is_an_error_of_the_acceptance_at_once() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let param = ConnParam::new().qp_num(6);
    let active = hosts.resolve_silently();
    active.connect(&ConnParam::default()).unwrap();
    drop(active);
    // The kernel delivers no event of an identifier that was not accepted.
    let passive = hosts.request(&listener).id;
    none(&hosts.at_server);
    let gone = |error: Error| assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        gone(passive.init_qp_attr(state).map(drop).unwrap_err());
    }
    let error = passive.accept(&param).unwrap_err();
    assert!(error.to_string().ends_with("disconnected") && error.verb() == "accept", "{error}");
    gone(error);
    let error = passive.reject(RejectReason::CONSUMER_DEFINED, b"late").unwrap_err();
    assert_eq!(error.verb(), "reject");
    gone(error);
    passive.close().unwrap();
    // A second acceptance is another error.
    let active = hosts.resolve_silently();
    active.connect(&ConnParam::default()).unwrap();
    hosts.fabric.run();
    let passive = hosts.request(&listener).id;
    passive.accept(&param).unwrap();
    assert_eq!(passive.accept(&param).unwrap_err().errno(), Errno::EINVAL);
}

/// The answer is on its way when the peer destroys its identifier, in real time.
#[test]
fn a_client_that_gives_up_ends_an_acceptance_that_waits() {
    let fabric = Fabric::new(7);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let hosts = Hosts { at_client: channel(&client), at_server: channel(&server), fabric, client, server };
    let wait = |channel: &EventChannel| channel.wait(LONG).unwrap().expect("an event").kind;
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.at_client.create_id(PortSpace::Tcp).unwrap();
    active.resolve_addr(None, hosts.address(), LIMIT).unwrap();
    assert!(matches!(wait(&hosts.at_client), EventKind::AddrResolved));
    active.resolve_route(LIMIT).unwrap();
    assert!(matches!(wait(&hosts.at_client), EventKind::RouteResolved));
    hosts.fabric.delay(Duration::from_millis(100));
    active.connect(&ConnParam::default()).unwrap();
    let EventKind::ConnectRequest(ConnectRequest { id: passive, .. }) = wait(&hosts.at_server) else {
        panic!("a request")
    };
    passive.accept(&ConnParam::new().qp_num(6)).unwrap();
    drop(active);
    let EventKind::Failed(error) = wait(&hosts.at_server) else { panic!("a failure") };
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
    drop(listener);
}

/// The event of the kernel is that of a connection. The error names the call that waited.
#[test]
fn an_acceptance_that_fails_names_the_acceptance() {
    let fabric = Fabric::new(8);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let listener = Listener::bind(&channel(&server), (server.addresses()[0], PORT).into()).unwrap();
    let resolved = Resolved::new(&channel(&client), (server.addresses()[0], PORT).into()).unwrap();
    let [(_pd, _cq, a), (_pd2, _cq2, b)] = [&client, &server].map(|hca| {
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
        let qp = pd.raw_qp::<Rc>().cq(&cq).create().unwrap();
        (pd, cq, qp)
    });
    fabric.delay(Duration::from_millis(400));
    let connecting = std::thread::spawn(move || {
        resolved.connect(a, &ConnParam::default(), Some(Duration::from_millis(600))).map(drop)
    });
    let request = listener.accept().unwrap();
    let error = request.accept(b, &ConnParam::default(), LONG).map(drop).unwrap_err();
    assert!(matches!(error, Error::Rejected { verb: "accept", .. }), "{error}");
    assert!(matches!(connecting.join().unwrap(), Err(Error::TimedOut { .. })));
}

impl Hosts {
    fn resolve_silently(&self) -> Id {
        self.resolve(PortSpace::Tcp, self.address())
    }
}

#[test]
fn private_data_that_a_message_cannot_carry_is_an_error_that_names_the_limit() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    let error = active.connect(&ConnParam::with_private_data([1; 57])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "connect: invalid private_data: 57 bytes; InfiniBand and RoCE carry at most 56 here"
    );
    active.connect(&ConnParam::with_private_data([1; 56])).unwrap();
    let request = hosts.request(&listener);
    assert_eq!(request.peer.private_data, [1; 56]);
    assert!(request.id.accept(&ConnParam::with_private_data([1; 197])).is_err());
    assert!(request.id.reject(RejectReason::CONSUMER_DEFINED, &[1; 149]).is_err());
    request.id.accept(&ConnParam::with_private_data([2; 196])).unwrap();
}

#[test]
fn addresses_without_a_route_or_a_host_are_typed_errors() {
    let hosts = hosts();
    let far: SocketAddr = "192.0.2.1:1".parse().unwrap();
    let id = hosts.at_client.create_id(PortSpace::Tcp).unwrap();
    let error = id.resolve_addr(None, far, LIMIT).unwrap_err();
    assert!(
        matches!(error, Error::NoRoute { verb: "resolve_addr", errno: Errno::ENETUNREACH, .. }),
        "{error}"
    );
    // In the network of the devices, but no device has it.
    let silent: SocketAddr = "10.77.9.9:1".parse().unwrap();
    let before = hosts.fabric.now();
    let error = Resolved::with(&hosts.at_client, PortSpace::Tcp, None, silent, LIMIT).unwrap_err();
    assert!(matches!(error, Error::TimedOut { verb: "resolve_addr", .. }), "{error}");
    assert!(hosts.fabric.now() - before >= LIMIT);
    // An address of another host.
    let error = id.bind_addr(hosts.address()).unwrap_err();
    assert!(matches!(error, Error::NoRoute { verb: "bind_addr", errno: Errno::ENODEV, .. }), "{error}");
    // InfiniBand without IP.
    let bare = hosts.fabric.device("ib0").link(Link::InfiniBand).build();
    assert!(bare.addresses().is_empty());
    let error = Resolved::new(&channel(&bare), hosts.address()).unwrap_err();
    assert!(matches!(error, Error::NoRoute { .. }), "{error}");
    assert_eq!(id.bound().unwrap().node_guid, None);
    assert_eq!(id.bound().unwrap().device().unwrap_err().errno(), Errno::ENODEV);
}

#[test]
fn a_host_that_does_not_answer_is_a_timeout() {
    let hosts = hosts();
    let _listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    hosts.server.set_link_up(false);
    active.connect(&ConnParam::default()).unwrap();
    let error = failure(&hosts.at_client, &active);
    assert!(matches!(error, Error::TimedOut { verb: "connect", .. }), "{error}");
    assert!(hosts.fabric.now() > Duration::from_secs(60));
}

#[test]
fn loss_delays_a_connection_and_the_same_seed_gives_the_same_run() {
    let run = || {
        let hosts = hosts();
        hosts.fabric.loss(0.4).delay(Duration::from_millis(3));
        let (_listener, active, passive) = hosts.connected();
        active.disconnect().unwrap();
        assert!(matches!(event_of(&hosts.at_server, &passive), EventKind::Disconnected));
        hosts.fabric.now()
    };
    let first = run();
    assert_eq!(first, run());
    assert!(first > Duration::from_millis(12));
}

#[test]
fn listeners_and_ports() {
    let hosts = hosts();
    let any: SocketAddr = "[::]:0".parse().unwrap();
    let first = Listener::bind(&hosts.at_server, any).unwrap();
    let port = first.local_addr().unwrap().port();
    assert_ne!(port, 0);
    let taken = Listener::bind(&hosts.at_server, (IpAddr::from([0, 0, 0, 0]), port).into()).unwrap_err();
    // `EADDRNOTAVAIL`, because one of the addresses is that of all (`cma_check_port()`).
    assert_eq!((taken.verb(), taken.errno()), ("bind_addr", Errno::EADDRNOTAVAIL));
    assert!(taken.to_string().ends_with("(EADDRNOTAVAIL)"), "{taken}");
    // Another port space, and another host.
    Listener::with(&hosts.at_server, PortSpace::Udp, (any.ip(), port).into(), 0).unwrap();
    Listener::bind(&hosts.at_client, (any.ip(), port).into()).unwrap();
    // A listener on `::` takes IPv4, unless it is for IPv6 only.
    let v4: SocketAddr = (hosts.server.addresses()[0], port).into();
    let active = hosts.resolve(PortSpace::Tcp, v4);
    active.connect(&ConnParam::default()).unwrap();
    assert!(first.wait(LONG).unwrap().is_some());
    drop(first);
    let id = hosts.at_server.open_another().unwrap().create_id(PortSpace::Tcp).unwrap();
    id.set_ipv6_only(true).unwrap();
    let _only = Listener::from_id(id, (any.ip(), port).into(), 0).unwrap();
    // The request that was not answered was rejected.
    let error = failure(&hosts.at_client, &active);
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
    let active = hosts.resolve(PortSpace::Tcp, v4);
    active.connect(&ConnParam::default()).unwrap();
    let error = failure(&hosts.at_client, &active);
    assert!(matches!(error, Error::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }), "{error}");
}

#[test]
fn ipv6_addresses_connect() {
    let hosts = hosts();
    for (hca, last) in [(&hosts.client, 1), (&hosts.server, 2)] {
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xfd, last);
        hca.add_gid(gid);
    }
    for index in [1, 2] {
        let address: SocketAddr = (hosts.server.addresses()[index], PORT + index as u16).into();
        assert!(address.is_ipv6());
        let listener = hosts.at_server.create_id(PortSpace::Tcp).unwrap();
        listener.bind_addr(address).unwrap();
        listener.listen(0).unwrap();
        let active = hosts.resolve(PortSpace::Tcp, address);
        let local = active.bound().unwrap().local.unwrap();
        assert_eq!(local.ip(), hosts.client.addresses()[index]);
        let route = active.route().unwrap().unwrap();
        assert_eq!((route.sgid, route.dgid), (Gid::from(local.ip()), Gid::from(address.ip())));
        active.connect(&ConnParam::default()).unwrap();
        assert_eq!(hosts.request(&listener).id.bound().unwrap().remote, Some(local));
    }
}

#[test]
fn datagrams_get_the_way_to_the_peer() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Udp, 0);
    let active = hosts.resolve(PortSpace::Udp, hosts.address());
    active.connect(&ConnParam::with_private_data([7; 180])).unwrap();
    let request = hosts.request(&listener);
    assert_eq!(request.peer.private_data, [7; 180]);
    request.id.accept(&ConnParam::with_private_data(*b"yes").qp_num(0x77)).unwrap();
    match event_of(&hosts.at_client, &active) {
        EventKind::Established(peer) => {
            assert_eq!((peer.qp_num, peer.qkey), (0x77, 0x0123_4567));
            assert_eq!(peer.private_data, padded(b"yes", 136));
            assert_eq!(peer.ah_attr.unwrap().grh.unwrap().dgid, Gid::from(hosts.address().ip()));
        }
        other => panic!("{other:?}"),
    }
    let (attr, mask) = active.init_qp_attr(QpState::INIT).unwrap();
    assert!(mask.contains(QpAttrMask::QKEY) && attr.qkey == 0x0123_4567);
    // There is no connection, but an identifier of `cm.c`.
    active.disconnect().unwrap();
    none(&hosts.at_client);

    let refused = hosts.resolve(PortSpace::Udp, hosts.address());
    refused.connect(&ConnParam::default()).unwrap();
    drop(hosts.request(&listener));
    let error = failure(&hosts.at_client, &refused);
    assert!(matches!(error, Error::Rejected { reason: RejectReason::SIDR_REJECT, .. }), "{error}");
    listener.close().unwrap();
    let alone = hosts.resolve(PortSpace::Udp, hosts.address());
    alone.connect(&ConnParam::default()).unwrap();
    let error = failure(&hosts.at_client, &alone);
    assert!(matches!(error, Error::Rejected { reason: RejectReason::SIDR_UNSUPPORTED, .. }), "{error}");
}

#[test]
fn an_identifier_takes_its_events_to_another_channel() {
    let hosts = hosts();
    let mut listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::default()).unwrap();
    let other = hosts.at_server.open_another().unwrap();
    listener.migrate(&other).unwrap();
    none(&hosts.at_server);
    let EventKind::ConnectRequest(mut request) = event_of(&other, &listener) else { panic!() };
    request.id.accept(&ConnParam::default()).unwrap();
    request.id.migrate(&hosts.at_server).unwrap();
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::ConnectResponse(_)));
    active.establish().unwrap();
    none(&other);
    assert!(matches!(event_of(&hosts.at_server, &request.id), EventKind::Established(_)));
    // Another connection manager does not have it.
    assert_eq!(listener.migrate(&hosts.at_client).unwrap_err().errno(), Errno::EINVAL);
    listener.listen(0).unwrap_err();
}

#[test]
fn options_are_seen_in_the_route_and_in_the_attributes_of_the_qp() {
    let hosts = hosts();
    let id = hosts.at_client.open_another().unwrap().create_id(PortSpace::Tcp).unwrap();
    id.set_tos(0x68).unwrap();
    id.set_reuse_addr(true).unwrap();
    id.set_ack_timeout(17).unwrap();
    assert!(id.set_ack_timeout(32).unwrap_err().to_string().contains("5 bits"));
    let _listener = hosts.listen(PortSpace::Tcp, 0);
    let resolved = Resolved::from_id(id, None, hosts.address(), LIMIT).unwrap();
    assert_eq!(resolved.id().route().unwrap().unwrap().traffic_class, 0x68);
    assert!(resolved.id().set_ipv6_only(true).is_err(), "it is bound already");
    assert!(matches!(
        hosts.at_client.create_id(PortSpace::Udp).unwrap().set_ack_timeout(3),
        Err(Error::Verbs(_))
    ));
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let hosts = hosts();
    let id = hosts.at_client.create_id(PortSpace::Tcp).unwrap();
    let param = ConnParam::default();
    let einval = |result: uverbs_cm::Result<()>, verb| {
        let error = result.unwrap_err();
        assert_eq!((error.verb(), error.errno()), (verb, Errno::EINVAL));
    };
    einval(id.resolve_route(LIMIT), "resolve_route");
    einval(id.connect(&param), "connect");
    einval(id.accept(&param), "accept");
    einval(id.establish(), "establish");
    einval(id.reject(RejectReason::CONSUMER_DEFINED, &[]), "reject");
    einval(id.disconnect(), "disconnect");
    einval(id.init_qp_attr(QpState::RTR).map(drop), "init_qp_attr");
    id.listen(0).unwrap();
    einval(id.listen(0), "listen");
    assert_eq!(id.route().unwrap(), None);
}

#[test]
fn identifiers_of_a_closed_channel_and_late_events() {
    let hosts = hosts();
    let (listener, active, passive) = hosts.connected();
    // The handle of the channel goes before its identifiers.
    let Hosts { at_client, at_server, .. } = hosts;
    drop((at_client, listener));
    active.disconnect().unwrap();
    assert!(matches!(event_of(&at_server, &passive), EventKind::Disconnected));
    drop(active);
    // The peer's end is gone; the events of a destroyed identifier, too.
    passive.disconnect().unwrap();
    drop(passive);
    none(&at_server);
}

#[test]
fn an_identifier_is_destroyed_while_another_thread_waits() {
    let fabric = Fabric::new(1);
    let hca = fabric.device("hca0").build();
    let channel = channel(&hca);
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let last = channel.create_id(PortSpace::Tcp).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.get_event().unwrap());
        drop(id);
        // The waiter gets the event of another identifier.
        last.resolve_addr(None, (hca.addresses()[0], 1).into(), LIMIT).unwrap();
        let event = waiter.join().unwrap();
        assert_eq!(event.token, last.token());
    });
    assert!(channel.wait(Some(Duration::ZERO)).unwrap().is_none());
}

#[test]
fn typed_queue_pairs_are_established_and_refused() {
    let fabric = Fabric::new(3);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let cap = QpCap::new(4, 4).inline(16);
    let listener = Listener::bind(&channel(&server), (server.addresses()[0], PORT).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let manager = channel(&client);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let context = Context::<Mlx5>::from_kernel(server.open()).unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
            let request = listener.wait(LONG).unwrap().unwrap();
            let qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
            let connection = request.accept(qp, &ConnParam::default(), LONG).unwrap();
            assert_eq!(connection.qp.control.state().unwrap(), QpState::RTS);
            assert!(connection.wait_disconnected(LONG).unwrap());
            connection.close().unwrap();
            listener.wait(LONG).unwrap().unwrap().reject(b"busy").unwrap();
        });
        let context = Context::<Mlx5>::from_kernel(client.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
        let qp = || pd.raw_qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
        let resolved = Resolved::new(&manager, address).unwrap();
        let connection = resolved.connect(qp(), &ConnParam::default(), LONG).unwrap();
        assert_eq!(connection.qp.control.state().unwrap(), QpState::RTS);
        // Dropping it disconnects.
        drop(connection);
        let error = Resolved::new(&manager, address).unwrap().connect(qp(), &ConnParam::default(), LONG);
        assert!(
            matches!(error, Err(Error::Rejected { private_data, .. }) if private_data.starts_with(b"busy"))
        );
        serving.join().unwrap();
    });
    assert!(client.violations().is_empty() && server.violations().is_empty());
    assert_eq!(client.objects().get("qp").copied().unwrap_or(0), 0);
}

#[test]
fn a_queue_pair_of_another_device_is_refused() {
    let fabric = Fabric::new(3);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let listener = Listener::bind(&channel(&server), (server.addresses()[0], PORT).into()).unwrap();
    let resolved = Resolved::new(&channel(&client), listener.local_addr().unwrap()).unwrap();
    let qp_of = |hca: &Hca| {
        let cap = QpCap::new(4, 4).inline(16);
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
        let qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
        assert_eq!(qp.control.node_guid().unwrap(), context.query_device().unwrap().node_guid);
        qp
    };
    // A device of the same host that the route does not use: without the check both ends were established, without data.
    let other = fabric.device("hca2").build();
    let error = resolved.id().init_qp(&qp_of(&other).control, &ConnParam::new()).unwrap_err();
    assert!(
        error.to_string().starts_with("init_qp: invalid qp: of the device with the node_guid 0x"),
        "{error}"
    );
    let error = resolved.connect(qp_of(&other), &ConnParam::default(), LONG).unwrap_err();
    assert!(matches!(error, Error::Verbs(uverbs::Error::Invalid { verb: "init_qp", .. })), "{error}");
    assert!(listener.wait(Some(Duration::ZERO)).unwrap().is_none(), "no request was sent");
    // Another context of the right device is accepted.
    let resolved = Resolved::new(&channel(&client), listener.local_addr().unwrap()).unwrap();
    let qp = qp_of(&client);
    let _prepared = resolved.prepare(&qp, &ConnParam::default()).unwrap();
}

#[test]
fn a_queue_pair_of_another_type_is_refused() {
    let fabric = Fabric::new(3);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address = (server.addresses()[0], PORT).into();
    let context = Context::<Mlx5>::from_kernel(client.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
    let manager = channel(&client);
    let resolve = |space| Resolved::with(&manager, space, None, address, LIMIT).unwrap();
    let (rc, ud) = (pd.raw_qp::<Rc>().cq(&cq).create().unwrap(), pd.raw_qp::<Ud>().cq(&cq).create().unwrap());
    let param = ConnParam::default();
    for (result, reason) in [
        (resolve(PortSpace::Udp).prepare(&rc, &param), "RC, but id "),
        (resolve(PortSpace::Tcp).prepare(&ud, &param), "UD, but id "),
    ] {
        let error = result.map(drop).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    for control in [&rc.control, &ud.control] {
        assert_eq!(control.state().unwrap(), QpState::RESET);
    }
}

#[test]
fn a_server_that_gives_up_after_its_acceptance() {
    let fabric = Fabric::new(7);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address = (server.addresses()[0], PORT).into();
    let at_server = channel(&server);
    let listener = at_server.create_id(PortSpace::Tcp).unwrap();
    listener.bind_addr(address).unwrap();
    listener.listen(0).unwrap();
    let context = Context::<Mlx5>::from_kernel(client.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
    let cap = QpCap::new(4, 4).inline(16);
    let qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
    let resolved = Resolved::new(&channel(&client), address).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let EventKind::ConnectRequest(request) = at_server.get_event().unwrap().kind else {
                panic!("no request")
            };
            // The acceptance and the end arrive together.
            fabric.delay(Duration::from_millis(50));
            let begin = Instant::now();
            request.id.accept(&ConnParam::new().qp_num(6)).unwrap();
            drop(request);
            begin.elapsed()
        });
        let connected = resolved.connect(qp, &ConnParam::default(), LONG).map(drop);
        let apart = server.join().unwrap();
        match connected {
            Err(Error::Rejected { .. }) => {}
            Err(other) => panic!("{other}"),
            // On a busy machine the end can be so late that there is a connection before.
            Ok(()) => assert!(apart > Duration::from_micros(100), "it is connected, after {apart:?}"),
        }
    });
}

/// The server gives up while the client establishes the connection: the messages cross. The client is told, although its connection is
/// established.
#[test]
fn a_server_that_gives_up_while_the_client_establishes() {
    let gives_up = |disconnects: bool| {
        // In real time: in virtual time each call waits until its messages have arrived.
        let hosts = hosts_on(Fabric::new(7));
        let listener = hosts.listen(PortSpace::Tcp, 0);
        let active = hosts.resolve(PortSpace::Tcp, hosts.address());
        active.connect(&ConnParam::new().qp_num(5)).unwrap();
        let passive = hosts.request(&listener).id;
        passive.accept(&ConnParam::new().qp_num(6)).unwrap();
        assert!(matches!(event_of(&hosts.at_client, &active), EventKind::ConnectResponse(_)));
        hosts.fabric.delay(Duration::from_secs(1));
        drop(passive);
        active.establish().unwrap();
        if disconnects {
            active.disconnect().unwrap();
        }
        none(&hosts.at_client);
        let event = hosts.at_client.wait(Some(Duration::from_secs(10))).unwrap().expect("an event");
        assert!(
            matches!(
                event.kind,
                EventKind::Failed(Error::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. })
            ),
            "{event:?}"
        );
    };
    // Beside each other: most of the time they wait.
    std::thread::scope(|scope| {
        scope.spawn(|| gives_up(true));
        gives_up(false);
    });
}

/// The kernel disconnects established connections only.
#[test]
fn a_server_that_disconnects_before_the_client_has_established() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::new().qp_num(5)).unwrap();
    let passive = hosts.request(&listener).id;
    passive.accept(&ConnParam::new().qp_num(6)).unwrap();
    passive.disconnect().unwrap();
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::ConnectResponse(_)));
    active.establish().unwrap();
    assert!(matches!(event_of(&hosts.at_server, &passive), EventKind::Established(_)));
    active.disconnect().unwrap();
    assert!(matches!(event_of(&hosts.at_server, &passive), EventKind::Disconnected));
    passive.disconnect().unwrap();
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::Disconnected));
}
