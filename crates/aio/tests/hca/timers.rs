// SPDX-License-Identifier: MIT OR Apache-2.0
//! The timers of QPs that the connection manager connects: a receiver that falls behind costs what it costs with endpoints, and a dead
//! peer is noticed within seconds.

use crate::bed::{Bed, End, SIZE, connect, join};
use crate::stream::both;
use core::time::Duration;
use uverbs::Rc;
use uverbs::WcStatus;
use uverbs::attr::QpAttrMask;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Error, Link, Listener, Qp};
use uverbs_cm::{ConnParam, EventChannel, PortSpace};

const RECEIVES: u32 = 8;
const MESSAGES: u32 = 100;
const WORK: Duration = Duration::from_millis(1);

/// A QP whose receives have as many buffers as its queue has entries.
fn queues(end: &End) -> Qp<Rc, Mlx5> {
    let pool = end.pd.pool(RECEIVES, SIZE).unwrap();
    end.dispatcher.qp(&end.pd).depth(8, RECEIVES).pool(&pool).create().unwrap()
}

/// Connects QPs of both ends, the first as the client; `option` is the ACK timeout of both identifiers.
fn by_manager(
    bed: &Bed,
    qps: [&Qp<Rc, Mlx5>; 2],
    [client, server]: [&ConnParam; 2],
    option: Option<u8>,
) -> [Link; 2] {
    let [at_a, at_b] =
        [&bed.a, &bed.b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let listener = Listener::bind(&bed.b.dispatcher, &at_b, (bed.b.hca.addresses()[0], 7471).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = async {
        let request = listener.accept().await?;
        option.map_or(Ok(()), |timeout| request.id().set_ack_timeout(timeout))?;
        request.accept(qps[1], server).await
    };
    let connects = async {
        let Some(timeout) = option else { return qps[0].connect_to(&at_a, address, client).await };
        let id = at_a.open_another()?.create_id(PortSpace::Tcp)?;
        id.set_ack_timeout(timeout)?;
        qps[0].connect_by(id, None, address, client).await
    };
    let (active, passive) = both(bed, connects, accepts);
    [active.unwrap(), passive.unwrap()]
}

/// The time of 100 messages to a receiver with 8 buffers that works on each.
fn slow_receiver(bed: &Bed, [sender, receiver]: [(&End, &Qp<Rc, Mlx5>); 2]) -> Duration {
    let begin = bed.fabric.now();
    let send = async {
        let mut sends = Vec::new();
        for i in 0..MESSAGES {
            sends.push(sender.1.send(sender.0.filled(&i.to_ne_bytes())));
            if sends.len() == 8 {
                for send in sends.drain(..) {
                    send.await?;
                }
            }
        }
        for send in sends {
            send.await?;
        }
        Ok::<_, Error>(())
    };
    let receive = async {
        for i in 0..MESSAGES {
            let message = receiver.1.recv().await?;
            receiver.0.dispatcher.sleep(WORK).await;
            assert_eq!(*message, i.to_ne_bytes());
        }
        Ok(())
    };
    bed.run(join(vec![Box::pin(send), Box::pin(receive)])).unwrap();
    bed.fabric.now() - begin
}

#[test]
fn a_receiver_that_falls_behind_costs_what_it_costs_with_endpoints() {
    for is_server in [true, false] {
        let bed = Bed::new();
        let (a, b) = (queues(&bed.a), queues(&bed.b));
        connect(&a, &b);
        let expected = slow_receiver(&bed, [(&bed.a, &a), (&bed.b, &b)]);
        let (a, b, param) = (queues(&bed.a), queues(&bed.b), ConnParam::new());
        let _links = by_manager(&bed, [&a, &b], [&param; 2], None);
        let (a, b) = ((&bed.a, &a), (&bed.b, &b));
        let time = slow_receiver(&bed, if is_server { [a, b] } else { [b, a] });
        assert!(
            time < expected * 2,
            "the server receives: {is_server}: {time:?}, with endpoints {expected:?}"
        );
    }
}

#[test]
fn a_dead_peer_is_noticed_within_seconds() {
    for dies in [false, true] {
        let bed = Bed::new();
        let (a, b, param) = (queues(&bed.a), queues(&bed.b), ConnParam::new());
        let _links = by_manager(&bed, [&a, &b], [&param; 2], None);
        let (qp, end, dead) = if dies { (b, &bed.b, &bed.a) } else { (a, &bed.a, &bed.b) };
        dead.hca.kill();
        let begin = bed.fabric.now();
        // `run` waits for 5 s.
        let failed = bed.run(qp.send(end.filled(b"x"))).unwrap_err();
        let is_timeout = matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. });
        assert!(is_timeout, "the client dies: {dies}: {failed}");
        assert!(bed.fabric.now() - begin > Duration::from_secs(1), "a pause of a second is not the end");
    }
}

/// `min_rnr_timer` and `timeout` of a QP.
fn timers(qp: &Qp<Rc, Mlx5>) -> (u8, u8) {
    let (attr, _) = qp.control().query(QpAttrMask::MIN_RNR_TIMER | QpAttrMask::TIMEOUT).unwrap();
    (attr.min_rnr_timer, attr.timeout)
}

#[test]
fn each_side_has_the_timers_of_its_own_parameters() {
    let default = ConnParam::new();
    let own = ConnParam::new().min_rnr_timer(5).ack_timeout(18);
    for (client, server, option, expected) in [
        (&default, &own, None, [(12, 16), (5, 18)]),
        (&own, &default, None, [(5, 18), (12, 16)]),
        (&own, &default, Some(14), [(5, 18), (12, 14)]),
        (&default, &own, Some(14), [(12, 14), (5, 18)]),
    ] {
        let bed = Bed::new();
        let (a, b) = (queues(&bed.a), queues(&bed.b));
        let _links = by_manager(&bed, [&a, &b], [client, server], option);
        assert_eq!([timers(&a), timers(&b)], expected, "{option:?}");
    }
}

/// The QP that accepts has the depths of its answer, and not those that the peer asks for.
#[test]
fn the_depths_of_an_acceptance_are_those_of_both_sides() {
    let bed = Bed::new();
    let (a, b) = (queues(&bed.a), queues(&bed.b));
    let client = ConnParam::new().responder_resources(3).initiator_depth(9);
    let server = ConnParam::new().responder_resources(4).initiator_depth(4);
    let [link, _passive] = by_manager(&bed, [&a, &b], [&client, &server], None);
    let mask = QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::MAX_DEST_RD_ATOMIC;
    let (attr, _) = b.control().query(mask).unwrap();
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (4, 3));
    assert_eq!((link.peer().responder_resources, link.peer().initiator_depth), (3, 4));
}
