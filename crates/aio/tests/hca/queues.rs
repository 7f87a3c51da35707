// SPDX-License-Identifier: MIT OR Apache-2.0
//! Full queues, empty pools, shared receive queues, shutdown.

use crate::bed::{BUFS, Bed, DEPTH, End, SIZE, Task, connect, join, poll_once};
use core::cell::RefCell;
use core::task::Poll;
use core::time::Duration;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Error, Qp};

#[test]
fn operations_wait_for_an_entry_of_the_queue_in_their_order() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let order = RefCell::new(Vec::new());
    let order = &order;
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for i in 0..48_u8 {
        tasks.push(Box::pin(async move {
            a.qp.send(a.filled(&[i])).await?;
            order.borrow_mut().push(i);
            Ok(())
        }));
    }
    tasks.push(Box::pin(async {
        for i in 0..48 {
            assert_eq!(&*b.qp.recv().await?, [i]);
        }
        Ok(())
    }));
    bed.run(join(tasks)).unwrap();
    assert_eq!(order.borrow().len(), 48);
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_task_that_does_not_receive_stops_its_peer_only() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let mut sends: Vec<_> = (0..20_u8).map(|i| a.qp.send(a.filled(&[i]))).collect();
    for _ in 0..10 {
        sends.retain_mut(|send| poll_once(send).is_pending());
        bed.step();
    }
    // Its buffers are posted, or have messages that were not taken.
    assert_eq!(b.incoming.available() as u32, BUFS - DEPTH);
    let mut tasks: Vec<Task<'_>> = vec![Box::pin(async {
        for i in 0..20 {
            assert_eq!(&*b.qp.recv().await?, [i]);
        }
        Ok(())
    })];
    for send in sends {
        tasks.push(Box::pin(async { send.await.map(drop).map_err(Error::from) }));
    }
    bed.run(join(tasks)).unwrap();
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn receives_are_posted_when_buffers_return_to_an_empty_pool() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let small = b.pd.pool(2, SIZE).unwrap();
    let qp = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&small).create().unwrap();
    let peer = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
    connect(&peer, &qp);
    bed.run(async {
        for i in 0..5_u8 {
            let (first, second) = (peer.send(a.filled(&[i])).await?, peer.send(a.filled(&[i + 100])).await?);
            drop((first, second));
            // The program has all buffers, and no receive is posted.
            let messages = (qp.recv().await?, qp.recv().await?);
            assert_eq!((messages.0[0], messages.1[0], small.available()), (i, i + 100, 0));
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// A server with an SRQ, and its clients.
fn clients(server: &End, client: &End, n: usize) -> Vec<(Qp<Rc, Mlx5>, Qp<Rc, Mlx5>)> {
    let srq = server.dispatcher.srq(&server.pd, &server.incoming, 16).unwrap();
    (0..n)
        .map(|_| {
            let here = server.dispatcher.qp(&server.pd).depth(4, 0).srq(&srq).create().unwrap();
            let there = client.dispatcher.qp(&client.pd).depth(4, 4).pool(&client.incoming).create().unwrap();
            connect(&here, &there);
            (here, there)
        })
        .collect()
}

#[test]
fn a_shared_receive_queue_serves_several_clients() {
    let bed = Bed::new();
    let pairs = clients(&bed.b, &bed.a, 3);
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (i, (here, there)) in pairs.iter().enumerate() {
        tasks.push(Box::pin(async move {
            for _ in 0..100 {
                let message = here.recv().await?;
                assert_eq!(message[0], i as u8, "the message of another client");
                here.send(message.into_buf()).await?;
            }
            Ok(())
        }));
        let a = &bed.a;
        tasks.push(Box::pin(async move {
            for j in 0..100 {
                there.send(a.filled(&[i as u8, j])).await?;
                assert_eq!(&*there.recv().await?, [i as u8, j]);
            }
            Ok(())
        }));
    }
    bed.run(join(tasks)).unwrap();
    assert_eq!(bed.b.incoming.available() as u32, BUFS - 16 - DEPTH);
    bed.run(join(pairs.iter().map(|(here, _)| Box::pin(here.shutdown()) as Task<'_>).collect())).unwrap();
    drop(pairs);
    bed.step();
    bed.a.assert_no_leak(DEPTH);
    bed.b.assert_no_leak(DEPTH);
}

#[test]
fn a_shutdown_completes_what_is_in_flight_and_flushes_the_receives() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let mut sends: Vec<_> = (0..3_u8).map(|i| a.qp.send(a.filled(&[i]))).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    bed.run(a.qp.shutdown()).unwrap();
    for send in sends {
        bed.run(send).unwrap();
    }
    let failed = bed.run(a.qp.send(a.filled(b"late"))).unwrap_err();
    assert!(matches!(failed.error, Error::Closed) && failed.returned.is_some_and(|buf| &*buf == b"late"));
    assert!(matches!(bed.run(a.qp.recv()), Err(Error::Closed)));
    a.assert_no_leak(0);
    // What has arrived can be received after the shutdown of the receiver.
    bed.run(b.qp.shutdown()).unwrap();
    for i in 0..3 {
        assert_eq!(&*bed.run(b.qp.recv()).unwrap(), [i]);
    }
    assert!(matches!(bed.run(b.qp.recv()), Err(Error::Closed)));
    b.assert_no_leak(0);
    bed.run(b.qp.shutdown()).unwrap();
}

#[test]
fn an_abort_flushes_what_is_in_flight() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    bed.fabric.loss(1.0);
    let mut send = a.qp.send(a.filled(b"lost"));
    assert!(poll_once(&mut send).is_pending());
    let mut recv = b.qp.recv();
    assert!(poll_once(&mut recv).is_pending());
    bed.run(join(vec![Box::pin(a.qp.abort()), Box::pin(b.qp.abort())])).unwrap();
    let failed = bed.run(send).unwrap_err();
    assert!(
        matches!(failed.error, Error::Completion { status: uverbs::WcStatus::WR_FLUSH_ERR, .. }),
        "{failed}"
    );
    drop(failed.returned.expect("the buffer"));
    assert!(matches!(bed.run(recv), Err(Error::Closed)));
    a.assert_no_leak(0);
    b.assert_no_leak(0);
}

#[test]
fn a_dispatcher_refuses_queues_that_could_overrun_its_cq() {
    let bed = Bed::new();
    let a = &bed.a;
    let create = |depth| a.dispatcher.qp(&a.pd).depth(depth, 0).pool(&a.pool).create();
    // 1024 entries, of which the QP of the bed has 16.
    let error = create(1009).unwrap_err();
    assert!(error.to_string().contains("1024 entries, of which 16 are reserved"), "{error}");
    let qp = create(1008).unwrap();
    assert!(create(1).is_err());
    drop(qp);
    assert!(create(1008).is_ok(), "a QP that ended gives its entries back");
}

#[test]
fn a_pool_of_another_domain_is_refused() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let sibling = a.dispatcher.context().alloc_pd().unwrap();
    assert!(a.pool.is_of(&a.pd.clone()) && !a.pool.is_of(&sibling) && !a.pool.is_of(&b.pd));
    // The queues would refuse each buffer, and wait for ever for a message.
    for (pd, pool) in [(&a.pd, &b.incoming), (&sibling, &a.incoming)] {
        let qp = a.dispatcher.qp(pd).pool(pool).create().map(drop);
        let srq = a.dispatcher.srq(pd, pool, 8).map(drop);
        for error in [qp.unwrap_err(), srq.unwrap_err()] {
            assert!(error.to_string().contains("pool: it is that of another protection domain"), "{error}");
        }
    }
    assert_eq!(a.hca.objects().get("srq"), None, "refused before anything is created");
}

#[test]
fn messages_that_wait_for_a_task_are_taken_in_order() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let (mut first, mut second) = (b.qp.recv(), b.qp.recv());
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    bed.run(a.qp.send(a.filled(&[1]))).unwrap();
    assert!(b.qp.try_recv().is_none(), "the message is that of the first task");
    assert!(poll_once(&mut second).is_pending());
    let Poll::Ready(Ok(message)) = poll_once(&mut first) else { panic!("the first has a message") };
    assert_eq!(&*message, [1]);
    drop(second);
    bed.run(a.qp.send(a.filled(&[2]))).unwrap();
    assert_eq!(&*b.qp.try_recv().expect("a message"), [2]);
}

/// The program keeps the controls of QPs that are dropped with sends in flight: the completions of these need their entries.
#[test]
fn a_control_that_is_kept_keeps_the_entries_of_its_qp() {
    for is_kept in [true, false] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let dispatcher = a.dispatcher.another().cqe(32).spin(Duration::ZERO).build().unwrap();
        let create = || dispatcher.qp(&a.pd).depth(24, 1).create();
        let qp = create().unwrap();
        // Without receives, so that no send ends.
        let peer = b.dispatcher.qp(&b.pd).depth(1, 1).create().unwrap();
        connect(&qp, &peer);
        for _ in 0..24 {
            assert!(poll_once(&mut qp.send(a.pool.get().unwrap())).is_pending());
        }
        let control = is_kept.then(|| qp.control().clone());
        drop(qp);
        bed.step();
        assert_eq!(dispatcher.poll_once().unwrap(), 0);
        assert_eq!(create().is_err(), is_kept);
        if let Some(control) = control {
            // They were in flight, and end with the QP.
            control.modify_state(uverbs::attr::QpState::ERR).unwrap();
            assert!(create().is_err());
            bed.step();
            dispatcher.poll_once().unwrap();
            assert_eq!(a.pool.available() as u32, BUFS, "no completion is lost");
            drop(control);
            create().unwrap();
        }
        assert_eq!(a.pool.available() as u32, BUFS);
    }
}
