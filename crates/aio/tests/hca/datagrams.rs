// SPDX-License-Identifier: MIT OR Apache-2.0
//! QPs of datagrams: destinations, sources, and what is in flight when a future is dropped.

use crate::bed::{BUFS, Bed, DEPTH, End, poll_once};
use uverbs::attr::QpState;
use uverbs::mlx5::Mlx5;
use uverbs::wr::ImmData;
use uverbs::{ConnectAttr, Endpoint, Ud};
use uverbs_aio::{Destination, Error, Qp};

const QKEY: u32 = 0x1234;

fn attr() -> ConnectAttr {
    ConnectAttr::new().qkey(QKEY)
}

/// A QP of datagrams that receives, and how it is reached.
fn receiver(end: &End, depth: u32) -> (Qp<Ud, Mlx5>, Endpoint) {
    let qp = end.dispatcher.datagram_qp(&end.pd).depth(depth, depth).pool(&end.incoming).create().unwrap();
    let here = qp.start(&attr()).unwrap();
    assert_eq!(qp.control().state().unwrap(), QpState::RTS);
    (qp, here)
}

fn destination(end: &End, to: &Endpoint) -> Destination<Mlx5> {
    let attr = attr().on(end.dispatcher.context()).unwrap();
    Destination::new(end.pd.create_ah(&attr.ah_attr(to)).unwrap(), to.qp_num, QKEY)
}

/// The address handles that a device has.
fn handles(end: &End) -> usize {
    end.hca.objects().get("ah").copied().unwrap_or(0)
}

#[test]
fn datagrams_have_a_source_to_which_answers_go() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let ((client, _), (server, address)) = (receiver(a, 4), receiver(b, 4));
    let to = destination(a, &address);
    bed.run(async {
        client.send_to(a.filled(b"question"), &to).await?;
        client.send_imm_to(a.filled(b""), ImmData::new(7), &to).await?;
        client.send_inline_to(b"inline", &to).await?;
        client.send_imm_inline_to(b"last", ImmData::new(8), &to).detach().await?;
        let question = server.recv_from().await?;
        assert_eq!(
            (&*question, question.src_qp(), question.imm()),
            (&b"question"[..], client.qp_num(), None)
        );
        assert_eq!(question.completion().byte_len, 48);
        let empty = server.recv_from().await?;
        assert_eq!((&*empty, empty.imm()), (&b""[..], Some(ImmData::new(7))));
        assert_eq!(&*server.recv_from().await?, b"inline");
        let last = server.recv_from().await?;
        assert_eq!((&*last, last.imm()), (&b"last"[..], Some(ImmData::new(8))));
        assert_eq!(question.source(&b.pd, 1)?, last.source(&b.pd, 1)?);

        let back = question.answer_to(&b.pd, 1, QKEY)?;
        assert_eq!(back.qp_num(), client.qp_num());
        server.send_to(b.filled(b"answer"), &back).await?;
        let answer = client.recv_from().await?;
        assert_eq!((&*answer, answer.src_qp()), (&b"answer"[..], server.qp_num()));
        assert!(client.try_recv_from().is_none());
        Ok::<_, Error>(())
    })
    .unwrap();
    bed.run(client.shutdown()).unwrap();
    bed.run(server.shutdown()).unwrap();
    drop((client, server, to));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
    assert_eq!((handles(a), handles(b)), (0, 0));
}

/// A datagram that finds no receive, or another queue key, is lost; its sender does not notice.
#[test]
fn lost_datagrams_are_complete() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let ((client, _), (server, address)) = (receiver(a, 16), receiver(b, 4));
    let to = destination(a, &address);
    let attr = attr().on(a.dispatcher.context()).unwrap();
    let wrong = Destination::new(a.pd.create_ah(&attr.ah_attr(&address)).unwrap(), address.qp_num, QKEY + 1);
    bed.run(client.send_inline_to(b"wrong key", &wrong)).unwrap();
    // The dispatcher of the receiver does not poll, so it posts no receives.
    let mut sends: Vec<_> = (0..10_u8).map(|i| client.send_to(a.filled(&[i]), &to)).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    for send in sends {
        bed.run(send).unwrap();
    }
    let arrived: Vec<_> =
        core::iter::from_fn(|| server.try_recv_from()).map(|datagram| datagram.to_vec()).collect();
    assert_eq!(arrived, [[0], [1], [2], [3]]);
}

/// More datagrams than the queue has entries wait for one, in their order.
#[test]
fn datagrams_wait_for_an_entry() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let ((client, _), (server, address)) = (receiver(a, 4), receiver(b, 32));
    let to = destination(a, &address);
    let mut sends: Vec<_> = (0..20_u8).map(|i| client.send_to(a.filled(&[i]), &to)).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    for send in sends {
        bed.run(send).unwrap();
    }
    for i in 0..20 {
        assert_eq!(*bed.run(server.recv_from()).unwrap(), [i]);
    }
}

/// rxe reads the address from the kernel's object when it sends: the handle lives until the completion, also if the future
/// is dropped.
#[test]
fn an_address_handle_lives_as_long_as_its_datagrams() {
    for detached in [false, true] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let ((client, _), (server, address)) = (receiver(a, 4), receiver(b, 4));
        let to = destination(a, &address);
        let sends: Vec<_> = (0..6_u8).map(|i| client.send_to(a.filled(&[i]), &to)).collect();
        drop(to);
        assert_eq!(handles(a), 1);
        for mut send in sends {
            // Two find the queue full, and are not sent.
            match detached {
                false => assert!(poll_once(&mut send).is_pending()),
                true => drop(poll_once(&mut send.detach())),
            }
        }
        assert_eq!(handles(a), 1, "four are in flight");
        bed.step();
        assert_eq!(handles(a), 0, "none is in flight");
        for i in 0..4 {
            assert_eq!(*bed.run(server.recv_from()).unwrap(), [i]);
        }
        assert!(server.try_recv_from().is_none());
        assert_eq!(a.pool.available() as u32, BUFS);
        // Before the first poll, and after the last one.
        let to = destination(a, &address);
        let mut done = client.send_inline_to(b"x", &to);
        bed.run(&mut done).unwrap();
        drop((client.send_inline_to(b"y", &to), to, done));
        assert_eq!(handles(a), 0);
    }
}

/// A reset, or the drop of the QP, ends what is in flight, with its address handle.
#[test]
fn an_end_of_the_qp_ends_its_datagrams() {
    for reset in [false, true] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let ((client, _), (server, address)) = (receiver(a, 4), receiver(b, 4));
        let to = destination(a, &address);
        let mut kept = client.send_to(a.filled(b"kept"), &to);
        let mut dropped = client.send_to(a.filled(b"dropped"), &to);
        assert!(poll_once(&mut kept).is_pending() && poll_once(&mut dropped).is_pending());
        drop((dropped, to));
        assert_eq!(handles(a), 1);
        if reset {
            client.reset().unwrap();
            assert!(bed.run(kept).is_err());
            assert_eq!(handles(a), 0);
            let here = client.start(&attr()).unwrap();
            bed.run(server.send_inline_to(b"again", &destination(b, &here))).unwrap();
            assert_eq!(&*bed.run(client.recv_from()).unwrap(), b"again");
        } else {
            drop((kept, client));
            bed.step();
            assert_eq!(handles(a), 0);
        }
        assert_eq!(a.pool.available() as u32, BUFS);
        assert_eq!(a.hca.violations(), []);
    }
}

/// Datagrams of several QPs arrive in a shared queue.
#[test]
fn datagrams_arrive_in_a_shared_queue() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let srq = b.dispatcher.srq(&b.pd, &b.incoming, 16).unwrap();
    let qps: Vec<_> =
        (0..2).map(|_| b.dispatcher.datagram_qp(&b.pd).depth(4, 0).srq(&srq).create().unwrap()).collect();
    let (client, _) = receiver(a, 8);
    for (i, qp) in qps.iter().enumerate() {
        let to = destination(a, &qp.start(&attr()).unwrap());
        bed.run(client.send_to(a.filled(&[i as u8; 5]), &to)).unwrap();
        assert_eq!(*bed.run(qp.recv_from()).unwrap(), [i as u8; 5]);
    }
    for qp in &qps {
        bed.run(qp.abort()).unwrap();
    }
}

/// Of a device that is removed, datagrams end as all operations do.
#[test]
fn a_removed_device_ends_datagrams() {
    let bed = Bed::new();
    let a = &bed.a;
    let (client, here) = receiver(a, 4);
    let to = destination(a, &here);
    let mut send = client.send_to(a.filled(b"x"), &to);
    assert!(poll_once(&mut send).is_pending());
    let recv = client.recv_from();
    a.hca.unplug();
    // The device may have done both before.
    let sent = bed.run(send).map_err(|failed| failed.error);
    assert!(matches!(sent, Ok(_) | Err(Error::DeviceRemoved)), "{sent:?}");
    let received = bed.run(recv).map(|datagram| datagram.len());
    assert!(matches!(received, Ok(1) | Err(Error::DeviceRemoved)), "{received:?}");
    let failed = bed.run(client.send_inline_to(b"late", &to)).unwrap_err();
    assert!(matches!(failed.error, Error::DeviceRemoved), "{failed}");
}

#[test]
fn a_batch_names_the_destinations() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let (client, _) = receiver(a, 4);
    let [(first, one), (second, two)] = [(); 2].map(|()| receiver(b, 8));
    let (one, two) = (destination(a, &one), destination(a, &two));
    let mut batch = client.batch();
    (0..10_u8).for_each(|i| batch.send_to(a.filled(&[i]), if i % 2 == 0 { &one } else { &two }));
    batch.send_imm_to(a.filled(b"end"), ImmData::new(1), &one);
    drop((one, two));
    bed.run(batch).unwrap();
    for i in 0..10_u8 {
        let server = if i % 2 == 0 { &first } else { &second };
        assert_eq!(*bed.run(server.recv_from()).unwrap(), [i]);
    }
    assert_eq!(bed.run(first.recv_from()).unwrap().imm(), Some(ImmData::new(1)));
    assert_eq!((handles(a), a.pool.available() as u32), (0, BUFS));
}
