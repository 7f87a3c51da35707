// SPDX-License-Identifier: MIT OR Apache-2.0
//! The removal of a device: events, errors of calls, and calls that wait.

use crate::{LIMIT, LONG, PORT, channel, event_of, failure, hosts, none};
use core::net::SocketAddr;
use core::time::Duration;
use uverbs::{Context, Rc, mlx5::Mlx5};
use uverbs_cm::{ConnParam, Error, EventChannel, EventKind, Id, Listener, PortSpace, Resolved};
use uverbs_hca::{Fabric, Hca};

/// In each state of an identifier that is bound to a device: the event, the typed error of each call, and the peer, which gets
/// no answer.
#[test]
fn the_removal_of_a_device_is_reported() {
    let gone = |channel: &EventChannel, id: &Id| {
        let event = channel.next_event().unwrap().expect("an event");
        assert_eq!(event.token, id.token());
        assert!(matches!(event.ok("wait"), Err(Error::DeviceGone { .. })));
    };
    // Connected, and the listener on one address: the server's device.
    let hosts_ = hosts();
    let (listener, active, passive) = hosts_.connected();
    hosts_.server.unplug();
    let mut removed: Vec<_> = [(); 2].map(|()| hosts_.at_server.next_event().unwrap().unwrap()).into();
    removed.sort_by_key(|event| event.token != listener.token());
    for (event, id) in removed.into_iter().zip([&listener, &passive]) {
        assert_eq!(event.token, id.token());
        assert!(matches!(event.kind, EventKind::DeviceRemoval), "{event:?}");
    }
    assert!(matches!(passive.disconnect(), Err(Error::DeviceGone { .. })));
    assert!(matches!(listener.listen(1), Err(Error::DeviceGone { .. })));
    // The client's disconnection is not answered; its own retries end it.
    none(&hosts_.at_client);
    active.disconnect().unwrap();
    hosts_.fabric.run();
    assert!(matches!(event_of(&hosts_.at_client, &active), EventKind::Disconnected));
    for id in [listener, active, passive] {
        id.close().unwrap();
    }
    // While it connects: the client's device.
    let hosts_ = hosts();
    let listener = hosts_.listen(PortSpace::Tcp, 0);
    let active = hosts_.resolve(PortSpace::Tcp, hosts_.address());
    active.connect(&ConnParam::new().qp_num(5)).unwrap();
    hosts_.client.unplug();
    gone(&hosts_.at_client, &active);
    none(&hosts_.at_client);
    assert!(matches!(active.establish(), Err(Error::DeviceGone { .. })));
    // The acceptance times out.
    let passive = hosts_.request(&listener).id;
    passive.accept(&ConnParam::new().qp_num(6)).unwrap();
    hosts_.fabric.run();
    assert!(matches!(failure(&hosts_.at_server, &passive), Error::TimedOut { .. }));
    // A new identifier of this host finds no device.
    let id = hosts_.at_client.create_id(PortSpace::Tcp).unwrap();
    assert!(matches!(
        id.resolve_addr(None, hosts_.address(), LIMIT),
        Err(Error::NoRoute { .. } | Error::DeviceGone { .. })
    ));
    // A request to a host without its device.
    let hosts_ = hosts();
    let _listener = hosts_.listen(PortSpace::Tcp, 0);
    let active = hosts_.resolve(PortSpace::Tcp, hosts_.address());
    hosts_.server.unplug();
    active.connect(&ConnParam::new().qp_num(5)).unwrap();
    hosts_.fabric.run();
    assert!(matches!(failure(&hosts_.at_client, &active), Error::TimedOut { .. }));
}

/// A peer whose device is removed, or whose messages are lost, ends each step that waits for it.
#[test]
fn a_step_ends_when_its_peer_is_gone() {
    // The request was received, but is not answered.
    for port_space in [PortSpace::Tcp, PortSpace::Udp] {
        let hosts = hosts();
        let _listener = hosts.listen(port_space, 0);
        let active = hosts.resolve(port_space, hosts.address());
        active.connect(&ConnParam::default()).unwrap();
        hosts.server.unplug();
        hosts.fabric.run();
        assert!(matches!(failure(&hosts.at_client, &active), Error::TimedOut { .. }));
    }
    // The answer was received.
    let hosts_ = hosts();
    let listener = hosts_.listen(PortSpace::Tcp, 0);
    let active = hosts_.resolve(PortSpace::Tcp, hosts_.address());
    active.connect(&ConnParam::default()).unwrap();
    let passive = hosts_.request(&listener).id;
    passive.accept(&ConnParam::default()).unwrap();
    hosts_.client.unplug();
    hosts_.fabric.run();
    assert!(matches!(failure(&hosts_.at_server, &passive), Error::TimedOut { .. }));
    // The disconnection was received.
    let hosts_ = hosts();
    let (_listener, active, _passive) = hosts_.connected();
    active.disconnect().unwrap();
    hosts_.server.unplug();
    hosts_.fabric.run();
    assert!(matches!(event_of(&hosts_.at_client, &active), EventKind::Disconnected));
    // All messages of the peer's disconnection are lost.
    let hosts_ = hosts();
    let (_listener, active, passive) = hosts_.connected();
    hosts_.fabric.loss(1.0);
    drop(passive);
    hosts_.fabric.loss(0.0);
    none(&hosts_.at_client);
    active.disconnect().unwrap();
    assert!(matches!(event_of(&hosts_.at_client, &active), EventKind::Disconnected));
}

/// The processes of a host die: their channels end with an error, and their peers are not told.
#[test]
fn a_killed_host_leaves_its_peers_alone() {
    let hosts = hosts();
    let (listener, active, passive) = hosts.connected();
    let pending = hosts.resolve(PortSpace::Tcp, hosts.address());
    pending.connect(&ConnParam::default()).unwrap();
    let group = hosts.at_server.create_id(PortSpace::Udp).unwrap();
    group.bind_addr((hosts.address().ip(), 0).into()).unwrap();
    let member = group.join_multicast("239.1.2.3:0".parse().unwrap(), false).unwrap();
    hosts.server.kill();
    for _ in 0..2 {
        let error = hosts.at_server.wait(LONG).unwrap_err();
        assert!(matches!(error, Error::DeviceGone { verb: "get_cm_event", .. }), "{error}");
    }
    assert!(matches!(hosts.at_server.create_id(PortSpace::Tcp), Err(Error::DeviceGone { .. })));
    assert!(matches!(passive.disconnect(), Err(Error::DeviceGone { .. })));
    // A request that was received times out. The connection remains until this side ends it.
    hosts.fabric.run();
    assert!(matches!(failure(&hosts.at_client, &pending), Error::TimedOut { .. }));
    none(&hosts.at_client);
    active.disconnect().unwrap();
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::Disconnected));
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::TimewaitExit));
    // The next process has the port.
    let again = channel(&hosts.server);
    let second = again.create_id(PortSpace::Tcp).unwrap();
    second.bind_addr(hosts.address()).unwrap();
    second.listen(0).unwrap();
    for id in [listener, passive, group] {
        id.close().unwrap();
    }
    member.leave().unwrap();
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::default()).unwrap();
    drop(hosts.at_server);
    assert!(matches!(event_of(&again, &second), EventKind::ConnectRequest(_)));
}

/// The types of the usual path return the error from the call that waits.
#[test]
fn calls_that_wait_return_when_the_device_is_removed() {
    let fabric = Fabric::new(11);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address: SocketAddr = (server.addresses()[0], PORT).into();
    let listener = Listener::bind(&channel(&server), address).unwrap();
    let context = Context::<Mlx5>::from_kernel(client.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
    let resolved = Resolved::new(&channel(&client), address).unwrap();
    std::thread::scope(|scope| {
        // Nothing answers the request, so the client waits until its device is removed.
        let waiting = scope.spawn(|| {
            let qp = pd.raw_qp::<Rc>().cq(&cq).create().unwrap();
            resolved.connect(qp, &ConnParam::default(), LONG).map(drop)
        });
        let _request = listener.wait(LONG).unwrap().expect("a request");
        client.unplug();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
        let accepting = scope.spawn(|| listener.wait(LONG).map(drop));
        server.unplug();
        let error = accepting.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    });
}

/// The end is one event, and more than one call gets it.
#[test]
fn an_end_is_reported_to_each_call_that_waits() {
    let fabric = Fabric::new(12);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address: SocketAddr = (server.addresses()[0], PORT).into();
    let listener = Listener::bind(&channel(&server), address).unwrap();
    let qp = |hca: &Hca| {
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
        pd.raw_qp::<Rc>().cq(&cq).create().unwrap()
    };
    let (active, passive) = std::thread::scope(|scope| {
        let param = ConnParam::default();
        let accepting = scope
            .spawn(|| listener.accept().unwrap().accept(qp(&server), &ConnParam::default(), LONG).unwrap());
        let resolved = Resolved::new(&channel(&client), address).unwrap();
        (resolved.connect(qp(&client), &param, LONG).unwrap(), accepting.join().unwrap())
    });
    std::thread::scope(|scope| {
        let waiting = [(); 3].map(|()| scope.spawn(|| passive.wait_disconnected(LONG)));
        assert!(!passive.wait_disconnected(Some(Duration::from_millis(50))).unwrap());
        active.disconnect().unwrap();
        waiting.into_iter().for_each(|waiting| assert!(waiting.join().unwrap().unwrap()));
    });
    assert!(passive.wait_disconnected(Some(Duration::ZERO)).unwrap());
    assert!(passive.wait_disconnected(LONG).unwrap());

    let is_gone = |result: Result<(), Error>| {
        let Err(Error::DeviceGone { verb: "accept", object, .. }) = result else { panic!("{result:?}") };
        assert!(object.starts_with("id "), "{object}");
    };
    std::thread::scope(|scope| {
        let waiting = [(); 3].map(|()| scope.spawn(|| listener.accept().map(drop)));
        assert!(listener.wait(Some(Duration::from_millis(50))).unwrap().is_none());
        server.unplug();
        waiting.into_iter().for_each(|waiting| is_gone(waiting.join().unwrap()));
    });
    is_gone(listener.accept().map(drop));
}
