// SPDX-License-Identifier: MIT OR Apache-2.0
//! The timers of the QPs that the connection manager connects, in the time of the fabric: a receiver that falls behind costs what it
//! costs with endpoints, and a dead peer is noticed within seconds.

use crate::{Hosts, LIMIT, LONG, channel, hosts};
use core::time::Duration;
use uverbs::attr::{QpAttr, QpAttrMask, QpCap, QpState, QpType};
use uverbs::wc::WcStatus;
use uverbs::{ConnectAttr, Context, Cq, Exclusive, Pool, Private, Qp, Rc, XrcSend, mlx5::Mlx5};
use uverbs_cm::{ConnParam, Connectable, Connection, Listener, PortSpace, Resolved};
use uverbs_hca::Hca;

const RECEIVES: u32 = 8;
const MESSAGES: usize = 200;
/// The receiver's work for a message.
const WORK: Duration = Duration::from_micros(100);
/// What "within seconds" is.
const SECONDS: Duration = Duration::from_secs(5);

/// A QP with its queue of completions and its memory.
struct Queues {
    qp: Qp<Rc, Exclusive, Mlx5>,
    cq: Cq<Exclusive, Mlx5>,
    pool: Pool<Private, Mlx5>,
}

fn queues(hca: &Hca) -> Queues {
    let cap = QpCap::new(16, RECEIVES).inline(64);
    let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.cq_with(64, None).unwrap());
    let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
    Queues { qp, cq, pool: pd.pool(RECEIVES, 64).unwrap() }
}

/// Connects QPs of the client and of the server.
fn connect<A: Connectable + Send, B: Connectable + Send>(
    hosts: &Hosts,
    [active, passive]: [PortSpace; 2],
    (a, client): (A, &ConnParam),
    (b, server): (B, &ConnParam),
) -> (Connection<A>, Connection<B>) {
    let listener = Listener::with(&hosts.at_server, passive, hosts.address(), 0).unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let request = listener.wait(LONG).unwrap().expect("a request");
            request.accept(b, server, LONG).unwrap()
        });
        let id = channel(&hosts.client).create_id(active).unwrap();
        let resolved = Resolved::from_id(id, None, hosts.address(), LIMIT).unwrap();
        (resolved.connect(a, client, LONG).unwrap(), accepting.join().unwrap())
    })
}

const TCP: [PortSpace; 2] = [PortSpace::Tcp, PortSpace::Tcp];

/// The client and the server, connected with the parameters that a program has which sets none.
fn by_manager(hosts: &Hosts) -> ([Queues; 2], impl Sized + use<>) {
    let (a, b, param) = (queues(&hosts.client), queues(&hosts.server), ConnParam::default());
    let (active, passive) = connect(hosts, TCP, (a.qp, &param), (b.qp, &param));
    let ((qp_a, id_a), (qp_b, id_b)) = (active.into_parts(), passive.into_parts());
    ([Queues { qp: qp_a, ..a }, Queues { qp: qp_b, ..b }], [id_a, id_b])
}

fn by_endpoints(hosts: &Hosts) -> [Queues; 2] {
    let (a, b, attr) = (queues(&hosts.client), queues(&hosts.server), ConnectAttr::default());
    for qp in [&a.qp, &b.qp] {
        qp.init(&attr).unwrap();
    }
    let [here, there] = [&a.qp, &b.qp].map(|qp| qp.control().endpoint(7, &attr).unwrap());
    a.qp.connect(&here, &there, &attr).unwrap();
    b.qp.connect(&there, &here, &attr).unwrap();
    [a, b]
}

/// The time of 200 messages to a receiver with 8 buffers that works on each.
fn slow_receiver(hosts: &Hosts, sender: &mut Queues, receiver: &mut Queues) -> Duration {
    let rq = receiver.qp.rq().unwrap();
    for id in 0..u64::from(RECEIVES) {
        rq.post(id, receiver.pool.get().unwrap()).unwrap();
    }
    let (begin, mut sent, mut received) = (hosts.fabric.now(), 0, 0);
    while received < MESSAGES {
        while sent < MESSAGES && sender.qp.sq().post(sent as u64).signaled().send_inline(b"x").is_ok() {
            sent += 1;
        }
        hosts.fabric.run_for(WORK);
        while let Some(done) = sender.cq.poll_one().unwrap() {
            done.wc.status.ok().unwrap();
        }
        if let Some(done) = receiver.cq.poll_one().unwrap() {
            done.wc.status.ok().unwrap();
            received += 1;
            receiver.qp.rq().unwrap().post(0, done.buf().unwrap()).unwrap();
        }
        assert!(hosts.fabric.now() - begin < Duration::from_secs(60), "{received} messages");
    }
    hosts.fabric.now() - begin
}

#[test]
fn a_receiver_that_falls_behind_costs_what_it_costs_with_endpoints() {
    for is_server in [true, false] {
        let (with_endpoints, with_manager) = (hosts(), hosts());
        let [mut a, mut b] = by_endpoints(&with_endpoints);
        let expected = slow_receiver(&with_endpoints, &mut a, &mut b);
        let ([mut a, mut b], _ids) = by_manager(&with_manager);
        let (sender, receiver) = if is_server { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let time = slow_receiver(&with_manager, sender, receiver);
        assert!(
            time < expected * 2,
            "the server receives: {is_server}: {time:?}, with endpoints {expected:?}"
        );
    }
}

#[test]
fn a_dead_peer_is_noticed_within_seconds() {
    for dies in [false, true] {
        let hosts = hosts();
        let ([a, b], _ids) = by_manager(&hosts);
        let (mut alive, dead) = if dies { (b, &hosts.client) } else { (a, &hosts.server) };
        dead.kill();
        let begin = hosts.fabric.now();
        alive.qp.sq().post(1).send_inline(b"x").unwrap();
        let done = loop {
            if let Some(done) = alive.cq.poll_one().unwrap() {
                break done;
            }
            hosts.fabric.run_for(Duration::from_millis(10));
            assert!(hosts.fabric.now() - begin < SECONDS, "the client dies: {dies}");
        };
        assert_eq!(done.wc.status, WcStatus::RETRY_EXC_ERR);
        // A pause of a second is not the end.
        assert!(hosts.fabric.now() - begin > Duration::from_secs(1));
    }
}

/// The timers of a QP: `min_rnr_timer` and `timeout`.
fn timers<Q: Connectable>(connection: &Connection<Q>) -> (u8, u8) {
    let attr = attr_of(connection, QpAttrMask::MIN_RNR_TIMER | QpAttrMask::TIMEOUT);
    (attr.min_rnr_timer, attr.timeout)
}

fn attr_of<Q: Connectable>(connection: &Connection<Q>, mask: QpAttrMask) -> QpAttr {
    let control = connection.qp.control();
    assert_eq!(control.state().unwrap(), QpState::RTS);
    control.query(mask).unwrap().0
}

#[test]
fn each_side_has_the_timers_of_its_own_parameters() {
    let hosts = hosts();
    let default = ConnParam::new();
    let own = default.clone().min_rnr_timer(5).ack_timeout(18);
    let end = |hca| queues(hca).qp;
    for (client, server) in [(&default, &own), (&own, &default)] {
        let ends = ((end(&hosts.client), client), (end(&hosts.server), server));
        let (active, passive) = connect(&hosts, TCP, ends.0, ends.1);
        let expected = |param| if param == &default { (12, 16) } else { (5, 18) };
        assert_eq!((timers(&active), timers(&passive)), (expected(client), expected(server)));
    }
    // Shared queues have the same control path.
    let shared = |hca: &Hca| {
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
        pd.raw_qp::<Rc>().cq(&cq).shared().create().unwrap()
    };
    let ends = (shared(&hosts.client), shared(&hosts.server));
    let (active, passive) = connect(&hosts, TCP, (ends.0, &default), (ends.1, &default));
    assert_eq!((timers(&active), timers(&passive)), ((12, 16), (12, 16)));
}

/// An option that the program has set has precedence over the default, and the parameter over the option.
#[test]
fn an_option_of_the_identifier_counts_if_the_parameters_have_no_timeout() {
    let hosts = hosts();
    for (param, expected) in [(ConnParam::new(), 14), (ConnParam::new().ack_timeout(18), 18)] {
        let (a, b) = (queues(&hosts.client).qp, queues(&hosts.server).qp);
        let listener = hosts.at_server.open_another().unwrap();
        let listener = Listener::with(&listener, PortSpace::Tcp, hosts.address(), 0).unwrap();
        let (active, passive) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let request = listener.wait(LONG).unwrap().expect("a request");
                request.id().set_ack_timeout(14).unwrap();
                request.accept(b, &param, LONG).unwrap()
            });
            let id = channel(&hosts.client).create_id(PortSpace::Tcp).unwrap();
            id.set_ack_timeout(14).unwrap();
            let resolved = Resolved::from_id(id, None, hosts.address(), LIMIT).unwrap();
            // The parameters of the last step count for it.
            let prepared = resolved.prepare(&a, &ConnParam::new().ack_timeout(9).min_rnr_timer(9)).unwrap();
            (prepared.connect(a, &param, LONG).unwrap(), accepting.join().unwrap())
        });
        assert_eq!((timers(&active), timers(&passive)), ((12, expected), (12, expected)));
    }
}

#[test]
fn values_out_of_range_are_refused_before_the_qp_changes() {
    let hosts = hosts();
    let _listener = hosts.listen(PortSpace::Tcp, 0);
    for (param, field) in [
        (ConnParam::new().min_rnr_timer(32), "min_rnr_timer"),
        (ConnParam::new().ack_timeout(32), "ack_timeout"),
        (ConnParam::new().retry_count(8), "retry_count"),
    ] {
        let a = queues(&hosts.client).qp;
        let resolved = Resolved::new(&hosts.at_client, hosts.address()).unwrap();
        let error = resolved.prepare(&a, &param).map(drop).unwrap_err();
        assert!(error.to_string().contains(&format!("invalid {field}: ")), "{error}");
        assert_eq!(a.control().state().unwrap(), QpState::RESET);
    }
}

/// Of each side of XRC, only one of the timers is an attribute.
#[test]
fn xrc_has_a_timer_on_each_side() {
    let hosts = hosts();
    let context = Context::<Mlx5>::from_kernel(hosts.client.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
    let cap = QpCap::new(1, 0).sge(1, 0);
    let sends = pd.raw_qp::<XrcSend>().send_cq(&cq).cap(cap).create().unwrap();
    let context = Context::<Mlx5>::from_kernel(hosts.server.open()).unwrap();
    let receives = context.open_xrcd(None, true, false).unwrap().recv_qp().create_recv().unwrap();
    let types = [PortSpace::Ib(QpType::XrcSend), PortSpace::Ib(QpType::XrcRecv)];
    let param = ConnParam::new();
    let (active, passive) = connect(&hosts, types, (sends, &param), (receives, &param));
    assert_eq!(attr_of(&active, QpAttrMask::TIMEOUT).timeout, 16);
    assert_eq!(timers(&passive), (12, 16));
}

/// An acceptance uses what both sides have, in the QP and in its message, whichever way it is made.
#[test]
fn the_depths_of_an_acceptance_are_those_of_both_sides() {
    let hosts = hosts();
    let client = ConnParam::new().responder_resources(3).initiator_depth(9);
    let server = ConnParam::new().responder_resources(4).initiator_depth(4);
    let (a, b) = (queues(&hosts.client).qp, queues(&hosts.server).qp);
    let (active, passive) = connect(&hosts, TCP, (a, &client), (b, &server));
    let mask = QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::MAX_DEST_RD_ATOMIC;
    let attr = attr_of(&passive, mask);
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (4, 3));
    assert_eq!((active.peer().responder_resources, active.peer().initiator_depth), (3, 4));
    // By the identifiers.
    drop((active, passive));
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&client.qp_num(5)).unwrap();
    let (request, b) = (hosts.request(&listener).id, queues(&hosts.server).qp);
    request.init_qp(b.control(), &server).unwrap();
    request.connect_qp(b.control(), &server).unwrap();
    let (attr, _) = b.control().query(mask).unwrap();
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (4, 3));
}
