// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC: operations of a send QP, messages of shared queues, and what is in flight at the end of either.

use crate::bed::{BUFS, Bed, DEPTH, End, attr, poll_once};
use core::time::Duration;
use uverbs::mlx5::Mlx5;
use uverbs::qp::QpControl;
use uverbs::wr::ImmData;
use uverbs::{WcStatus, XrcDomain, XrcSend};
use uverbs_aio::{Error, Qp, SrqDestination, XrcSrq};
use uverbs_hca::Fabric;

/// The receiving side: a domain with queues, and an XRC receive QP.
struct Peer {
    queues: Vec<XrcSrq<Mlx5>>,
    receiver: QpControl<Mlx5>,
    _domain: XrcDomain<Mlx5>,
}

impl Peer {
    fn new(end: &End, queues: usize, depth: u32) -> Self {
        let domain = end.dispatcher.context().open_xrcd(None, true, false).unwrap();
        let srq = |_| end.dispatcher.xrc_srq(&end.pd, &domain, &end.incoming, depth).unwrap();
        let queues = (0..queues).map(srq).collect();
        Self { queues, receiver: domain.recv_qp().create_recv().unwrap(), _domain: domain }
    }

    fn to(&self, queue: usize) -> SrqDestination {
        SrqDestination::new(self.queues[queue].srq_num().unwrap())
    }
}

/// A send QP that is connected to the peer.
fn connected(end: &End, peer: &Peer, depth: u32) -> Qp<XrcSend, Mlx5> {
    let qp = end.dispatcher.xrc_qp(&end.pd).depth(depth, 0).create().unwrap();
    reconnect(&qp, peer);
    qp
}

fn reconnect(qp: &Qp<XrcSend, Mlx5>, peer: &Peer) {
    let attr = attr();
    qp.init(&attr).unwrap();
    peer.receiver.modify_state(uverbs::attr::QpState::RESET).unwrap();
    peer.receiver.init(&attr).unwrap();
    let (here, there) = (qp.endpoint(1, &attr).unwrap(), peer.receiver.endpoint(2, &attr).unwrap());
    qp.connect(&here, &there, &attr).unwrap();
    peer.receiver.connect(&there, &here, &attr).unwrap();
}

#[test]
fn every_operation_names_its_queue() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 2, 8);
    let qp = connected(a, &peer, 8);
    let (one, two) = (peer.to(0), peer.to(1));
    assert_ne!(one, two);
    let table = b.exposed();
    let at = table.remote_region();
    bed.run(async {
        let buf = qp.send_to(a.filled(b"one"), &one).await?;
        qp.send_imm_to(buf, ImmData::new(2), &two).await?;
        qp.send_inline_to(b"inline", &one).await?;
        qp.send_imm_inline_to(b"last", ImmData::new(3), &two).detach().await?;
        let message = peer.queues[0].recv().await?;
        assert_eq!((&*message, message.imm()), (&b"one"[..], None));
        assert_eq!(message.completion().qp_num, peer.receiver.qp_num());
        assert_eq!(&*peer.queues[0].recv().await?, b"inline");
        assert!(peer.queues[0].try_recv().is_none());
        let message = peer.queues[1].recv().await?;
        assert_eq!((&*message, message.imm()), (&b"one"[..], Some(ImmData::new(2))));
        assert_eq!(&*peer.queues[1].recv().await?, b"last");

        let buf = qp.write_to(a.filled(b"stored"), &at, &one).await?;
        let back = qp.read_from(buf, &at, &two).await?;
        assert_eq!(&*back, b"stored");
        qp.write_inline_to(&5_u64.to_ne_bytes(), &at, &one).await?;
        let back = qp.fetch_add_to(back, &at, 10, &one).await?;
        assert_eq!(&*back, 5_u64.to_ne_bytes());
        let back = qp.compare_swap_to(back, &at, (15, 99), &one).await?;
        assert_eq!(&*back, 15_u64.to_ne_bytes());
        qp.write_imm_to(back, &at, ImmData::new(4), &two).await?;
        assert_eq!(peer.queues[1].recv().await?.imm(), Some(ImmData::new(4)));
        qp.write_imm_inline_to(b"x", &at, ImmData::new(5), &one).await?;
        assert_eq!(peer.queues[0].recv().await?.imm(), Some(ImmData::new(5)));
        let shared = a.filled(b"shared").share();
        qp.send_to(shared.slice(0..3)?, &one).await?;
        assert_eq!(&*peer.queues[0].recv().await?, b"sha");
        qp.shutdown().await?;
        Ok::<_, Error>(())
    })
    .unwrap();
    drop((qp, peer));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

/// A task that does not receive stops the peer, and loses nothing.
#[test]
fn a_queue_with_messages_holds_its_peers_back() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 1, 4);
    let (qp, to) = (connected(a, &peer, 32), peer.to(0));
    let mut sends: Vec<_> = (0..20_u8).map(|i| qp.send_to(a.filled(&[i]), &to)).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    bed.fabric.run_for(Duration::from_millis(3));
    bed.settle();
    assert_eq!(BUFS - DEPTH - b.incoming.available() as u32, 4, "as many as the depth are posted or wait");
    for i in 0..20 {
        assert_eq!(*bed.run(peer.queues[0].recv()).unwrap(), [i]);
    }
    for send in sends {
        bed.run(send).unwrap();
    }
}

/// A receive that is dropped or forgotten loses no message.
#[test]
fn receives_that_are_dropped_lose_nothing() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 1, 8);
    let (qp, to, queue) = (connected(a, &peer, 8), peer.to(0), &peer.queues[0]);
    let mut waiting: Vec<_> = (0..3).map(|_| queue.recv()).collect();
    assert!(waiting.iter_mut().all(|recv| poll_once(recv).is_pending()));
    drop(waiting.remove(0));
    for i in 0..2_u8 {
        bed.run(qp.send_to(a.filled(&[i]), &to)).unwrap();
    }
    bed.step();
    // The message of this one goes to the next one.
    drop(waiting.remove(0));
    assert_eq!(*bed.run(waiting.remove(0)).unwrap(), [0]);
    assert_eq!(*bed.run(queue.recv()).unwrap(), [1]);
    let mut dropped = qp.send_to(a.filled(b"dropped"), &to);
    let mut forgotten = qp.send_to(a.filled(b"forgotten"), &to);
    assert!(poll_once(&mut dropped).is_pending() && poll_once(&mut forgotten).is_pending());
    drop(dropped);
    core::mem::forget(forgotten);
    assert_eq!(&*bed.run(queue.recv()).unwrap(), b"dropped");
    assert_eq!(&*bed.run(queue.recv()).unwrap(), b"forgotten");
    assert_eq!(a.pool.available() as u32, BUFS - 1);
}

/// Tasks wait while the queue is destroyed; its messages that were polled can be received.
#[test]
fn the_end_of_a_queue_ends_those_that_wait() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 2, 8);
    let (qp, to) = (connected(a, &peer, 8), peer.to(0));
    let queue = peer.queues[0].clone();
    bed.run(qp.send_to(a.filled(b"polled"), &to)).unwrap();
    bed.step();
    let mut other = peer.queues[1].recv();
    assert!(poll_once(&mut other).is_pending());
    peer.queues[1].close().unwrap();
    assert!(matches!(bed.run(other), Err(Error::Closed)));
    queue.close().unwrap();
    queue.close().unwrap();
    assert!(matches!(queue.srq_num(), Err(Error::Closed)));
    assert_eq!(&*bed.run(queue.recv()).unwrap(), b"polled");
    assert!(matches!(bed.run(queue.recv()), Err(Error::Closed)));
    assert_eq!(b.incoming.available() as u32, BUFS - DEPTH, "its receives came back");
    // Its peer gets an error, with the buffer.
    let failed = bed.run(qp.send_to(a.filled(b"late"), &to)).unwrap_err();
    assert_eq!(failed.returned.as_deref(), Some(&b"late"[..]));
    drop((qp, peer, queue, failed));
    bed.step();
    a.assert_no_leak(DEPTH);
}

/// The dispatcher uses its numbers of queues and QPs again, also with messages on their way: none goes to the next queue.
#[test]
fn numbers_are_used_again() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    for round in 0..20_u8 {
        let peer = Peer::new(b, 1, 4);
        let (qp, to) = (connected(a, &peer, 4), peer.to(0));
        let mut sends: Vec<_> = (0..3).map(|_| qp.send_to(a.filled(&[round]), &to)).collect();
        assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
        if round % 2 == 0 {
            assert_eq!(*bed.run(peer.queues[0].recv()).unwrap(), [round]);
        } else {
            // The device works, and no one polls.
            bed.fabric.run_for(Duration::from_micros(100));
        }
        assert!(peer.queues[0].try_recv().is_none_or(|message| *message == [round]));
        drop((sends, qp, peer));
        bed.step();
        a.assert_no_leak(DEPTH);
        b.assert_no_leak(DEPTH);
    }
}

#[test]
fn a_reset_ends_what_is_in_flight() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 1, 8);
    let (qp, to) = (connected(a, &peer, 4), peer.to(0));
    let mut sends: Vec<_> = (0..6_u8).map(|i| qp.send_to(a.filled(&[i]), &to)).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    qp.reset().unwrap();
    for (i, send) in sends.into_iter().enumerate() {
        let error = bed.run(send).unwrap_err().error;
        let flushed = matches!(error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. });
        assert!(if i < 4 { flushed } else { matches!(error, Error::Closed) }, "{error}");
    }
    a.assert_no_leak(DEPTH);
    bed.step();
    while peer.queues[0].try_recv().is_some() {}
    reconnect(&qp, &peer);
    bed.run(qp.send_to(a.filled(b"again"), &to)).unwrap();
    assert_eq!(&*bed.run(peer.queues[0].recv()).unwrap(), b"again");
    bed.run(qp.abort()).unwrap();
    assert!(matches!(bed.run(qp.send_to(a.filled(b"late"), &to)).unwrap_err().error, Error::Closed));
}

/// A message that is longer than the buffers fails at its receiver; the queue serves others.
#[test]
fn an_error_of_one_peer_does_not_end_the_queue() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let domain = b.dispatcher.context().open_xrcd(None, true, false).unwrap();
    let small = b.pd.pool(16, 64).unwrap();
    let queue = b.dispatcher.xrc_srq(&b.pd, &domain, &small, 8).unwrap();
    let peers: Vec<_> = (0..2)
        .map(|_| {
            let receiver = domain.recv_qp().create_recv().unwrap();
            let peer = Peer {
                queues: vec![queue.clone()],
                receiver,
                _domain: b.dispatcher.context().open_xrcd(None, true, false).unwrap(),
            };
            (connected(a, &peer, 4), peer)
        })
        .collect();
    let to = SrqDestination::new(queue.srq_num().unwrap());
    assert!(bed.run(peers[0].0.send_to(a.filled(&[1; 100]), &to)).is_err());
    for _ in 0..20 {
        bed.run(peers[1].0.send_to(a.filled(&[2; 64]), &to)).unwrap();
        assert_eq!(*bed.run(queue.recv()).unwrap(), [2; 64]);
    }
    bed.step();
    assert!(small.available() >= 8, "{}", small.available());
}

#[test]
fn a_removed_device_ends_all() {
    for receiver in [false, true] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let peer = Peer::new(b, 1, 4);
        let (qp, to, queue) = (connected(a, &peer, 4), peer.to(0), &peer.queues[0]);
        let mut recv = queue.recv();
        assert!(poll_once(&mut recv).is_pending());
        let table = b.exposed();
        let mut send = qp.write_to(a.filled(b"x"), &table.remote_region(), &to);
        assert!(poll_once(&mut send).is_pending());
        if receiver {
            b.hca.unplug()
        } else {
            a.hca.unplug()
        }
        if receiver {
            assert!(matches!(bed.run(recv), Err(Error::DeviceRemoved)));
            assert!(matches!(bed.run(queue.recv()), Err(Error::DeviceRemoved)));
            assert!(b.dispatcher.xrc_srq(&b.pd, &peer._domain, &b.incoming, 4).is_err());
            drop((send, queue.close()));
        } else {
            let sent = bed.run(send).map_err(|failed| failed.error);
            assert!(matches!(sent, Ok(_) | Err(Error::DeviceRemoved)), "{sent:?}");
            let failed = bed.run(qp.send_to(a.filled(b"late"), &to)).unwrap_err();
            assert!(matches!(failed.error, Error::DeviceRemoved), "{failed}");
            queue.close().unwrap();
            assert!(matches!(bed.run(recv), Err(Error::Closed)));
        }
    }
}

#[test]
fn a_transport_without_receives_takes_none() {
    let bed = Bed::new();
    let a = &bed.a;
    for builder in [a.dispatcher.xrc_qp(&a.pd).depth(4, 4), a.dispatcher.xrc_qp(&a.pd).pool(&a.incoming)] {
        let error = builder.create().unwrap_err();
        assert!(error.to_string().contains("has no receives"), "{error}");
    }
    assert!(a.dispatcher.xrc_qp(&a.pd).create().is_ok());
    let other = bed.b.pd.pool(4, 64).unwrap();
    let domain = a.dispatcher.context().open_xrcd(None, true, false).unwrap();
    assert!(a.dispatcher.xrc_srq(&a.pd, &domain, &other, 4).is_err());
}

/// Each side has a dispatcher and a thread; several tasks of each send and receive.
#[test]
fn two_dispatchers_in_two_threads() {
    let fabric = Fabric::new(13);
    fabric.loss(0.01);
    let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build(), false));
    let peer = Peer::new(&b, 2, 16);
    let qp = connected(&a, &peer, 8);
    let to = [peer.to(0), peer.to(1)];
    let _threads = [&a, &b].map(|end| end.dispatcher.spawn().unwrap());
    std::thread::scope(|scope| {
        let (a, b, qp) = (&a, &b, &qp);
        for (n, to) in to.iter().enumerate() {
            let queue = &peer.queues[n];
            scope.spawn(move || {
                b.dispatcher.block_on(async {
                    let mut sum = 0;
                    for _ in 0..200 {
                        let recv = b.dispatcher.timeout(Duration::from_secs(60), queue.recv());
                        sum += u32::from_ne_bytes((*recv.await.unwrap()).try_into().unwrap());
                    }
                    assert_eq!(sum, 199 * 200 / 2);
                });
            });
            scope.spawn(move || {
                a.dispatcher.block_on(async {
                    for i in 0..200_u32 {
                        let limited = a
                            .dispatcher
                            .timeout(Duration::from_secs(60), qp.send_to(a.filled(&i.to_ne_bytes()), to));
                        limited.await.unwrap();
                    }
                });
            });
        }
    });
    drop((qp, peer));
}

/// A batch is posted in parts of half of the queue. Each of its work requests goes to the queue that it names.
#[test]
fn a_batch_names_the_queues() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 2, 16);
    let (qp, to) = (connected(a, &peer, 8), [peer.to(0), peer.to(1)]);
    let table = b.exposed();
    let at = table.remote_region();
    bed.run(async {
        let mut batch = qp.batch();
        (0..20_u8).for_each(|i| batch.send_to(a.filled(&[i]), &to[usize::from(i % 2)]));
        assert_eq!(batch.len(), 20);
        batch.await?;
        for i in 0..20_u8 {
            assert_eq!(*peer.queues[usize::from(i % 2)].recv().await?, [i]);
        }
        let mut batch = qp.batch();
        (0..6_u8).for_each(|i| {
            let region = at.slice(u64::from(i) * 8..u64::from(i) * 8 + 8).unwrap();
            batch.write_to(a.filled(&[i; 8]), &region, &to[0]);
        });
        batch.write_imm_to(a.filled(b"x"), &at.slice(100..101)?, ImmData::new(9), &to[1]);
        batch.send_imm_to(a.filled(b"end"), ImmData::new(10), &to[0]);
        batch.await?;
        assert_eq!(peer.queues[1].recv().await?.imm(), Some(ImmData::new(9)));
        let end = peer.queues[0].recv().await?;
        assert_eq!((&*end, end.imm()), (&b"end"[..], Some(ImmData::new(10))));

        let mut reads = qp.read_batch();
        (1..6_u8).for_each(|i| {
            let region = at.slice(u64::from(i) * 8..u64::from(i) * 8 + 8).unwrap();
            reads.read_from(a.filled(&[0; 8]), &region, &to[0]);
        });
        reads.fetch_add_to(a.filled(&[0; 8]), &at, 5, &to[1]);
        reads.compare_swap_to(a.filled(&[0; 8]), &at, (5, 77), &to[1]);
        let bufs = reads.await?;
        assert_eq!(bufs.len(), 7);
        for (i, buf) in (1..6_u8).zip(&bufs) {
            assert_eq!(**buf, [i; 8]);
        }
        assert_eq!((&*bufs[5], &*bufs[6]), (&0_u64.to_ne_bytes()[..], &5_u64.to_ne_bytes()[..]));
        drop(bufs);
        qp.shutdown().await
    })
    .unwrap();
    assert!(matches!(bed.run(qp.batch::<uverbs::Private>()), Ok(())));
    let mut late = qp.batch();
    late.send_to(a.filled(b"late"), &to[0]);
    assert!(matches!(bed.run(late), Err(Error::Closed)));
    drop((qp, peer));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

/// What was posted of a batch that is dropped or forgotten takes place, and the rest does not.
#[test]
fn a_batch_can_be_dropped_at_any_time() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let peer = Peer::new(b, 1, 16);
    let (qp, to, queue) = (connected(a, &peer, 8), peer.to(0), &peer.queues[0]);
    for polls in 0..5 {
        let mut batch = qp.batch();
        (0..12_u8).for_each(|i| batch.send_to(a.filled(&[i]), &to));
        for _ in 0..polls {
            assert!(poll_once(&mut batch).is_pending() || polls > 2);
            bed.step();
        }
        let posted = 12 - batch.len();
        assert!(if polls == 0 { posted == 0 } else { posted >= 8 }, "{posted} of {polls} polls");
        drop(batch);
        bed.step();
        for i in 0..posted as u8 {
            assert_eq!(*bed.run(queue.recv()).unwrap(), [i]);
        }
        assert!(queue.try_recv().is_none());
        assert_eq!(a.pool.available() as u32, BUFS);
        bed.run(qp.send_to(a.filled(b"next"), &to)).unwrap();
        assert_eq!(&*bed.run(queue.recv()).unwrap(), b"next");
    }
    let mut batch = qp.batch();
    (0..8_u8).for_each(|i| batch.send_to(a.filled(&[i]), &to));
    assert!(poll_once(&mut batch).is_pending());
    core::mem::forget(batch);
    for i in 0..8_u8 {
        assert_eq!(*bed.run(queue.recv()).unwrap(), [i]);
    }
    bed.step();
    assert_eq!(a.pool.available() as u32, BUFS - 2, "the last one of each part of the forgotten one");
}

/// A batch in flight, and one that waits for entries, end with a reset and with the device.
#[test]
fn a_batch_ends_with_its_queue() {
    for removal in [false, true] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let peer = Peer::new(b, 1, 16);
        let (qp, to) = (connected(a, &peer, 8), peer.to(0));
        bed.fabric.loss(1.0);
        let [mut sends, mut waiting] = [(); 2].map(|()| {
            let mut batch = qp.batch();
            (0..12_u8).for_each(|i| batch.send_to(a.filled(&[i]), &to));
            batch
        });
        let table = b.exposed();
        let mut reads = qp.read_batch();
        reads.read_from(a.filled(&[0; 8]), &table.remote_region(), &to);
        assert!(poll_once(&mut sends).is_pending() && poll_once(&mut waiting).is_pending());
        assert!(poll_once(&mut reads).is_pending());
        assert_eq!((sends.len(), waiting.len(), reads.len()), (4, 12, 1));
        bed.step();
        if removal {
            a.hca.unplug();
            assert!(matches!(bed.run(sends), Err(Error::DeviceRemoved)));
            assert!(matches!(bed.run(waiting), Err(Error::DeviceRemoved)));
            assert!(matches!(bed.run(reads), Err(Error::DeviceRemoved)));
            continue;
        }
        qp.reset().unwrap();
        assert!(bed.run(sends).is_err(), "the first part is flushed");
        assert!(matches!(bed.run(waiting), Err(Error::Closed)));
        assert!(matches!(bed.run(reads), Err(Error::Closed)));
        a.assert_no_leak(DEPTH);
        bed.fabric.loss(0.0);
        reconnect(&qp, &peer);
        let mut batch = qp.batch();
        (0..12_u8).for_each(|i| batch.send_to(a.filled(&[i]), &to));
        bed.run(batch).unwrap();
        for i in 0..12 {
            assert_eq!(*bed.run(peer.queues[0].recv()).unwrap(), [i]);
        }
    }
}
