// SPDX-License-Identifier: MIT OR Apache-2.0
//! QPs that are created and connected by one call.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use uverbs::attr::{AccessFlags, QpState};
use uverbs::{Done, Rc, Uc};
use uverbs_cm::{ConnParam, ConnectTo as _, Error, EventChannel, Listener};
use uverbs_hca::{Fabric, Hca};

fn devices() -> [Hca; 2] {
    let fabric = Fabric::new(4);
    ["hca0", "hca1"].map(|name| fabric.device(name).build())
}

#[test]
fn both_ends_connect_and_have_their_parameters() {
    let [client, server] = devices();
    let address = SocketAddr::from((server.addresses()[0], 7490));
    let (client, server) = (uverbs::open(client.open()).unwrap(), uverbs::open(server.open()).unwrap());
    let listener = Listener::bind(&EventChannel::of(&server).unwrap(), address).unwrap();
    let serving = thread::spawn(move || {
        let (pd, mut cq) = (server.alloc_pd().unwrap(), server.cq(8).unwrap());
        let pool = pd.pool(4, 64).unwrap();
        let request = listener.accept().unwrap();
        assert_eq!(request.peer().private_data[..5], *b"hello");
        let param = ConnParam::with_private_data(*b"welcome");
        let mut connection = pd.qp::<Rc>().cq(&cq).depth(4, 4).accept(request, &param).unwrap();
        connection.qp.recv(pool.get().unwrap()).unwrap();
        let Done::Received(message) = cq.wait().unwrap().ok().unwrap() else { panic!("not received") };
        connection.qp.send(message).unwrap();
        connection.wait_disconnected(None).unwrap();
    });
    let (pd, mut cq) = (client.alloc_pd().unwrap(), client.cq(8).unwrap());
    let pool = pd.pool(4, 64).unwrap();
    let param = ConnParam::with_private_data(*b"hello").access(AccessFlags::REMOTE_READ);
    let mut connection = pd.qp::<Rc>().cq(&cq).depth(4, 4).connect_to_with(address, &param).unwrap();
    assert_eq!(connection.peer().private_data[..7], *b"welcome");
    assert_eq!(connection.qp.control().state().unwrap(), QpState::RTS);
    connection.qp.recv(pool.get().unwrap()).unwrap();
    connection.qp.send(pool.get().unwrap().filled(b"there and back")).unwrap();
    let answer = loop {
        if let Done::Received(answer) = cq.wait().unwrap().ok().unwrap() {
            break answer;
        }
    };
    assert_eq!(&*answer, b"there and back");
    connection.disconnect().unwrap();
    serving.join().unwrap();
}

/// The QP of a call that fails is gone, and the next call succeeds.
#[test]
fn a_server_that_is_not_there_is_an_error() {
    let [client, server] = devices();
    let hca = client.clone();
    let context = uverbs::open(client.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.cq(8).unwrap());
    let connect = |address| pd.qp::<Rc>().cq(&cq).depth(4, 4).connect_to(address).unwrap_err();
    let refused = connect(SocketAddr::from((server.addresses()[0], 9)));
    assert!(matches!(refused, Error::Rejected { .. }), "{refused}");
    let nobody = connect(SocketAddr::from((IpAddr::from(Ipv4Addr::new(203, 0, 113, 9)), 9)));
    assert!(matches!(nobody, Error::NoRoute { .. } | Error::TimedOut { .. }), "{nobody}");
    assert_eq!(hca.objects().get("qp"), None, "{:?}", hca.objects());
    // A transport that the connection manager does not connect.
    let unconnected =
        pd.qp::<Uc>().cq(&cq).depth(4, 4).connect_to(SocketAddr::from((server.addresses()[0], 9)));
    assert!(unconnected.is_err());
}
