// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dynamic connections: one initiator reaches several targets, and what is in flight at the end of either.

use crate::bed::{BUFS, Bed, DEPTH, End, attr, poll_once};
use core::time::Duration;
use uverbs::mlx5::Mlx5;
use uverbs::wr::ImmData;
use uverbs::{Dci, WcStatus};
use uverbs_aio::{DcDestination, DcTarget, Error, Qp, Srq};
use uverbs_hca::Fabric;

const KEY: u64 = 0x1122_3344_5566_7788;
const SRQ_DEPTH: u32 = 16;

fn srq(end: &End) -> Srq<Mlx5> {
    end.dispatcher.srq(&end.pd, &end.incoming, SRQ_DEPTH).unwrap()
}

/// A target, and how `from` reaches it.
fn target(end: &End, srq: &Srq<Mlx5>, from: &End) -> (DcTarget<Mlx5>, DcDestination<Mlx5>) {
    let target = end.dispatcher.dc_target(&end.pd, srq, KEY).unwrap();
    assert_eq!(target.dctn(), None);
    let there = target.start(&attr()).unwrap();
    assert_eq!(target.dctn(), Some(there.qp_num));
    let attr = attr().on(from.dispatcher.context()).unwrap();
    (target, DcDestination::new(from.pd.create_ah(&attr.ah_attr(&there)).unwrap(), there.qp_num, KEY))
}

fn initiator(end: &End, depth: u32) -> Qp<Dci, Mlx5> {
    let qp = end.dispatcher.dc_initiator(&end.pd).depth(depth, 0).create().unwrap();
    qp.start(&attr()).unwrap();
    qp
}

/// The address handles that a device has.
fn handles(end: &End) -> usize {
    end.hca.objects().get("ah").copied().unwrap_or(0)
}

#[test]
fn every_operation_names_its_target() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let ((first, one), (second, two)) = (target(b, &queue, a), target(b, &queue, a));
    let qp = initiator(a, 8);
    let table = b.exposed();
    let at = table.remote_region();
    bed.run(async {
        let buf = qp.send_to(a.filled(b"one"), &one).await?;
        qp.send_imm_to(buf, ImmData::new(2), &two).await?;
        qp.send_inline_to(b"inline", &one).await?;
        qp.send_imm_inline_to(b"last", ImmData::new(3), &two).detach().await?;
        // A message belongs to the target that it names, although both have one queue.
        let message = second.recv().await?;
        assert_eq!((&*message, message.imm()), (&b"one"[..], Some(ImmData::new(2))));
        assert_eq!(&*second.recv().await?, b"last");
        assert_eq!(&*first.recv().await?, b"one");
        assert_eq!(&*first.recv().await?, b"inline");
        assert!(first.try_recv().is_none() && second.try_recv().is_none());

        let buf = qp.write_to(a.filled(b"stored"), &at, &one).await?;
        let back = qp.read_from(buf, &at, &two).await?;
        assert_eq!(&*back, b"stored");
        qp.write_inline_to(&5_u64.to_ne_bytes(), &at, &one).await?;
        let back = qp.fetch_add_to(back, &at, 10, &one).await?;
        assert_eq!(&*back, 5_u64.to_ne_bytes());
        let back = qp.compare_swap_to(back, &at, (15, 99), &one).await?;
        assert_eq!(&*back, 15_u64.to_ne_bytes());
        qp.write_imm_to(back, &at, ImmData::new(4), &two).await?;
        assert_eq!(second.recv().await?.imm(), Some(ImmData::new(4)));
        qp.shutdown().await?;
        Ok::<_, Error>(())
    })
    .unwrap();
    drop((qp, first, second, queue, one, two));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
    assert_eq!(handles(a), 0);
}

/// A wrong key is an error of the initiator, which must be connected again.
#[test]
fn a_wrong_key_is_refused_and_a_reset_repairs() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let (target, to) = target(b, &queue, a);
    let qp = initiator(a, 4);
    let attr_on = attr().on(a.dispatcher.context()).unwrap();
    let gid = b.dispatcher.context().query_gid(1, attr_on.sgid_index.unwrap().into()).unwrap();
    let there = uverbs::Endpoint { gid, ..uverbs::Endpoint::default() };
    let wrong = DcDestination::new(a.pd.create_ah(&attr_on.ah_attr(&there)).unwrap(), to.dctn(), KEY + 1);
    let failed = bed.run(qp.send_to(a.filled(b"refused"), &wrong)).unwrap_err();
    assert!(matches!(failed.error, Error::Completion { .. }), "{failed}");
    assert_eq!(failed.returned.as_deref(), Some(&b"refused"[..]));
    drop(failed);
    let mut sends: Vec<_> = (0..6_u8).map(|i| qp.send_to(a.filled(&[i]), &to)).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    qp.reset().unwrap();
    for (i, send) in sends.into_iter().enumerate() {
        let error = bed.run(send).unwrap_err().error;
        let flushed = matches!(error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. });
        assert!(if i < 4 { flushed } else { matches!(error, Error::Closed) }, "{error}");
    }
    a.assert_no_leak(DEPTH);
    qp.start(&attr()).unwrap();
    bed.run(qp.send_to(a.filled(b"again"), &to)).unwrap();
    assert_eq!(&*bed.run(target.recv()).unwrap(), b"again");
    bed.run(qp.abort()).unwrap();
    assert!(matches!(bed.run(qp.send_to(a.filled(b"late"), &to)).unwrap_err().error, Error::Closed));
}

/// The handle lives until the completion, also if the future is dropped.
#[test]
fn dropped_and_forgotten_futures_lose_nothing() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let (target, to) = target(b, &queue, a);
    let qp = initiator(a, 4);
    let mut sends: Vec<_> = (0..6_u8).map(|i| qp.send_to(a.filled(&[i]), &to)).collect();
    drop(to);
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    core::mem::forget(sends.remove(3));
    drop(sends);
    assert_eq!(handles(a), 1, "four are in flight");
    let mut waiting: Vec<_> = (0..2).map(|_| target.recv()).collect();
    assert!(waiting.iter_mut().all(|recv| poll_once(recv).is_pending()));
    bed.step();
    // The message of this one goes to the next one.
    drop(waiting.remove(0));
    assert_eq!(*bed.run(waiting.remove(0)).unwrap(), [0]);
    for i in 1..4 {
        assert_eq!(*bed.run(target.recv()).unwrap(), [i]);
    }
    assert!(target.try_recv().is_none());
    assert_eq!((handles(a), a.pool.available() as u32), (1, BUFS - 1), "those of the forgotten one");
}

/// Each work request of a batch goes to the target that it names, and the handles live as long as the batch needs them.
#[test]
fn a_batch_names_the_targets() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let ((first, one), (second, two)) = (target(b, &queue, a), target(b, &queue, a));
    let qp = initiator(a, 8);
    let table = b.exposed();
    let at = table.remote_region();
    let (mut batch, mut reads) = (qp.batch(), qp.read_batch());
    (0..12_u8).for_each(|i| batch.send_to(a.filled(&[i]), if i % 3 == 0 { &one } else { &two }));
    batch.write_to(a.filled(&7_u64.to_ne_bytes()), &at, &one);
    batch.write_imm_to(a.filled(b"x"), &at.slice(8..9).unwrap(), ImmData::new(1), &two);
    reads.read_from(a.filled(&[0; 9]), &at, &two);
    reads.fetch_add_to(a.filled(&[0; 8]), &at, 1, &one);
    reads.compare_swap_to(a.filled(&[0; 8]), &at, (8, 9), &one);
    drop((one, two));
    bed.try_run(batch).expect("the batch ends").unwrap();
    for i in 0..12_u8 {
        let target = if i % 3 == 0 { &first } else { &second };
        assert_eq!(*bed.try_run(target.recv()).expect("a message").unwrap(), [i]);
    }
    let message = bed.try_run(second.recv()).expect("the immediate");
    assert_eq!(message.unwrap().imm(), Some(ImmData::new(1)));
    assert_eq!(handles(a), 2, "the reads have them");
    let bufs = bed.try_run(reads).expect("the reads end").unwrap();
    assert_eq!(&bufs[0][8..], b"x");
    assert_eq!((&*bufs[1], &*bufs[2]), (&7_u64.to_ne_bytes()[..], &8_u64.to_ne_bytes()[..]));
    assert_eq!(handles(a), 0);
    drop((bufs, qp, first, second, queue));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn operations_in_flight_name_several_targets() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let ((first, one), (second, two)) = (target(b, &queue, a), target(b, &queue, a));
    let qp = initiator(a, 8);
    let mut sends: Vec<_> =
        (0..8_u8).map(|i| qp.send_to(a.filled(&[i]), if i % 2 == 0 { &one } else { &two })).collect();
    assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
    for (i, send) in sends.into_iter().enumerate() {
        bed.try_run(send).unwrap_or_else(|| panic!("send {i}")).unwrap();
    }
    for i in 0..8_u8 {
        let target = if i % 2 == 0 { &first } else { &second };
        assert_eq!(*bed.run(target.recv()).unwrap(), [i]);
    }
}

/// The handles of a batch that is dropped live until what was posted is complete, or the queue has ended it.
#[test]
fn a_dropped_batch_keeps_its_handles() {
    for end in ["completions", "reset", "removal", "forgotten"] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let queue = srq(b);
        let ((first, one), (second, two)) = (target(b, &queue, a), target(b, &queue, a));
        let qp = initiator(a, 8);
        if end != "completions" {
            bed.fabric.loss(1.0);
        }
        let mut batch = qp.batch();
        // The first part names both targets, and so does what is not posted.
        (0..12_u8).for_each(|i| batch.send_to(a.filled(&[i]), if i % 2 == 0 { &one } else { &two }));
        drop((one, two));
        assert!(poll_once(&mut batch).is_pending());
        assert_eq!(batch.len(), 4);
        if end == "forgotten" {
            core::mem::forget(batch);
        } else {
            drop(batch);
        }
        assert_eq!(handles(a), 2, "{end}: eight are in flight");
        match end {
            "completions" => {
                for i in 0..8_u8 {
                    let target = if i % 2 == 0 { &first } else { &second };
                    assert_eq!(
                        *bed.try_run(target.recv()).unwrap_or_else(|| panic!("message {i}")).unwrap(),
                        [i]
                    );
                }
                bed.step();
                assert!(first.try_recv().is_none() && second.try_recv().is_none());
            }
            "removal" => {
                a.hca.unplug();
                bed.settle();
                drop(qp);
                continue;
            }
            _ => qp.reset().unwrap(),
        }
        let forgotten = end == "forgotten";
        assert_eq!(handles(a), if forgotten { 2 } else { 0 }, "{end}");
        let left = if forgotten { 4 } else { 0 };
        assert_eq!(a.pool.available() as u32, BUFS - left, "{end}: what was not posted of the forgotten one");
        if end != "completions" {
            bed.fabric.loss(0.0);
            qp.start(&attr()).unwrap();
        }
        let (third, to) = target(b, &queue, a);
        let mut batch = qp.batch();
        batch.send_to(a.filled(b"again"), &to);
        bed.run(batch).unwrap();
        assert_eq!(&*bed.run(third.recv()).unwrap(), b"again");
    }
}

/// A part of which one work request fails is an error of the batch, and of those behind it.
#[test]
fn a_batch_with_a_wrong_key_fails() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let (target, to) = target(b, &queue, a);
    let attr_on = attr().on(a.dispatcher.context()).unwrap();
    let gid = b.dispatcher.context().query_gid(1, attr_on.sgid_index.unwrap().into()).unwrap();
    let there = uverbs::Endpoint { gid, ..uverbs::Endpoint::default() };
    let wrong = DcDestination::new(a.pd.create_ah(&attr_on.ah_attr(&there)).unwrap(), to.dctn(), KEY + 1);
    let qp = initiator(a, 8);
    let mut batch = qp.batch();
    for i in 0..6_u8 {
        batch.send_to(a.filled(&[i]), if i == 1 { &wrong } else { &to });
    }
    drop(wrong);
    let error = bed.run(batch).unwrap_err();
    let named = |error: &Error| matches!(error, Error::Completion { status, .. } if *status != WcStatus::WR_FLUSH_ERR);
    assert!(named(&error), "{error}");
    assert_eq!(*bed.run(target.recv()).unwrap(), [0]);
    assert_eq!(handles(a), 1);
    qp.reset().unwrap();
    qp.start(&attr()).unwrap();
    bed.run(qp.send_to(a.filled(b"again"), &to)).unwrap();
    assert_eq!(&*bed.run(target.recv()).unwrap(), b"again");
}

/// Tasks wait while the target is destroyed. Messages that arrive meanwhile make the queue no shorter.
#[test]
fn the_end_of_a_target_gives_its_receives_back() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    for round in 0..2 * SRQ_DEPTH {
        let (target, to) = target(b, &queue, a);
        let qp = initiator(a, 8);
        bed.run(qp.send_to(a.filled(b"polled"), &to)).unwrap();
        bed.step();
        let mut sends: Vec<_> = (0..4_u8).map(|i| qp.send_to(a.filled(&[i]), &to)).collect();
        assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
        // The device works; no one polls.
        bed.fabric.run_for(Duration::from_micros(100));
        // Then by the drop.
        if round < SRQ_DEPTH {
            target.close().unwrap();
            target.close().unwrap();
            assert_eq!(&*bed.run(target.recv()).unwrap(), b"polled");
            assert!(matches!(bed.run(target.recv()), Err(Error::Closed)));
            let failed = bed.run(initiator(a, 4).send_to(a.filled(b"late"), &to)).unwrap_err();
            assert!(failed.returned.is_some());
        }
        drop((target, sends, qp));
        bed.step();
    }
    // The queue has all its receives.
    let posted = BUFS - DEPTH - b.incoming.available() as u32;
    assert!(posted > SRQ_DEPTH * 3 / 4, "{posted} receives are posted");
    let (target, to) = target(b, &queue, a);
    let qp = initiator(a, 8);
    for i in 0..posted as u8 {
        bed.run(qp.send_to(a.filled(&[i]), &to)).unwrap();
    }
    bed.step();
    for i in 0..posted as u8 {
        assert_eq!(*target.try_recv().expect("it has arrived"), [i]);
    }
    drop((target, queue, qp, to));
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

/// A task that waits for a message keeps its target.
#[test]
fn a_target_lives_as_long_as_its_futures() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let queue = srq(b);
    let (target, to) = target(b, &queue, a);
    let mut recv = target.recv();
    assert!(poll_once(&mut recv).is_pending());
    drop((target, queue));
    let qp = initiator(a, 4);
    bed.run(qp.send_to(a.filled(b"late"), &to)).unwrap();
    assert_eq!(&*bed.run(recv).unwrap(), b"late");
    bed.step();
    assert!(bed.run(qp.send_to(a.filled(b"too late"), &to)).is_err());
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_removed_device_ends_all() {
    for receiver in [false, true] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let queue = srq(b);
        let (target, to) = target(b, &queue, a);
        let qp = initiator(a, 4);
        let mut recv = target.recv();
        assert!(poll_once(&mut recv).is_pending());
        let table = b.exposed();
        let mut send = qp.write_to(a.filled(b"x"), &table.remote_region(), &to);
        assert!(poll_once(&mut send).is_pending());
        if receiver {
            b.hca.unplug();
            assert!(matches!(bed.run(recv), Err(Error::DeviceRemoved)));
            assert!(matches!(bed.run(target.recv()), Err(Error::DeviceRemoved)));
            assert!(b.dispatcher.dc_target(&b.pd, &queue, KEY).is_err());
            drop((send, target.close()));
        } else {
            a.hca.unplug();
            let sent = bed.run(send).map_err(|failed| failed.error);
            assert!(matches!(sent, Ok(_) | Err(Error::DeviceRemoved)), "{sent:?}");
            let failed = bed.run(qp.send_to(a.filled(b"late"), &to)).unwrap_err();
            assert!(matches!(failed.error, Error::DeviceRemoved), "{failed}");
            target.close().unwrap();
            assert!(matches!(bed.run(recv), Err(Error::Closed)));
        }
    }
}

#[test]
fn a_queue_of_another_dispatcher_is_refused() {
    let bed = Bed::new();
    let a = &bed.a;
    let other = a.dispatcher.another().build().unwrap();
    let queue = other.srq(&a.pd, &a.incoming, 4).unwrap();
    assert!(
        a.dispatcher.dc_target(&a.pd, &queue, KEY).unwrap_err().to_string().contains("another dispatcher")
    );
    assert!(a.dispatcher.dc_initiator(&a.pd).pool(&a.incoming).create().is_err());
}

/// Two initiators, each with a dispatcher and a thread, reach two targets of a third one, which are destroyed and created meanwhile.
#[test]
fn initiators_and_targets_in_threads() {
    let fabric = Fabric::new(17);
    fabric.loss(0.01);
    let [a, b, c] = ["hca0", "hca1", "hca2"].map(|name| End::new(fabric.device(name).build(), false));
    let queue = srq(&c);
    let _threads = [&a, &b, &c].map(|end| end.dispatcher.spawn().unwrap());
    std::thread::scope(|scope| {
        let (c, queue) = (&c, &queue);
        for end in [&a, &b] {
            scope.spawn(move || {
                let qp = initiator(end, 8);
                for round in 0..10_u32 {
                    let (target, to) = target(c, queue, end);
                    end.dispatcher.block_on(async {
                        for i in 0..20 {
                            let send = qp.send_to(end.filled(&(round * 20 + i).to_ne_bytes()), &to);
                            end.dispatcher.timeout(Duration::from_secs(60), send).await.unwrap();
                        }
                    });
                    c.dispatcher.block_on(async {
                        for i in 0..20 {
                            let recv = c.dispatcher.timeout(Duration::from_secs(60), target.recv());
                            assert_eq!(*recv.await.unwrap(), (round * 20 + i).to_ne_bytes());
                        }
                    });
                    if round % 2 == 0 {
                        target.close().unwrap();
                    }
                }
            });
        }
    });
    drop(queue);
}
