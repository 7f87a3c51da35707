// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends, reads and writes to a destination; what overtakes what; a failure that ends nothing but its operation.

use crate::bed::{BUFS, Bed, DEPTH, poll_once};
use core::future::Future;
use core::pin::Pin;
use core::task::Poll;
use std::collections::BTreeSet;
use uverbs::wr::ImmData;
use uverbs::{RemoteRegion, WcStatus};
use uverbs_aio::Error;

#[test]
fn messages_reads_and_writes_name_their_destination() {
    let bed = Bed::new(1);
    let (a, b) = (&bed.a, &bed.b);
    let (to_b, to_a) = (a.to(&b.here), b.to(&a.here));
    let table = b.exposed();
    bed.run(async {
        a.qp.send_to(a.filled(b"question"), &to_b).await?;
        let question = b.qp.recv_from().await?;
        // There is no header before the message.
        assert_eq!((&*question, question.completion().src_qp), (&b"question"[..], a.qp.qp_num()));
        b.qp.send_imm_inline_to(b"answer", ImmData::new(7), &to_a).await?;
        let answer = a.qp.recv_from().await?;
        assert_eq!((&*answer, answer.imm()), (&b"answer"[..], Some(ImmData::new(7))));

        let region = table.remote_region();
        a.qp.write_to(a.filled(b"written"), &region, &to_b).await?;
        let mut buf = a.pool.get().unwrap();
        buf.set_len(7)?;
        assert_eq!(&*a.qp.read_from(buf, &region, &to_b).await?, b"written");
        a.qp.write_imm_to(a.filled(b"and told"), &region, ImmData::new(8), &to_b).await?;
        let told = b.qp.recv_from().await?;
        assert_eq!((told.len(), told.imm(), told.completion().byte_len), (0, Some(ImmData::new(8)), 8));
        a.qp.send_inline_to(b"detached", &to_b).detach().await?;
        assert_eq!(&*b.qp.recv_from().await?, b"detached");
        assert!(b.qp.try_recv_from().is_none());
        Ok::<_, Error>(())
    })
    .unwrap();
    for end in [a, b] {
        bed.run(end.qp.shutdown()).unwrap();
        assert_eq!((end.pool.available() as u32, end.device.violations()), (BUFS, vec![]));
    }
}

/// More operations than the queue has entries, with loss: each one ends with its own buffer, and every message arrives once.
#[test]
fn operations_complete_in_any_order() {
    let mut overtaken = false;
    for seed in 0..8 {
        let bed = Bed::new(seed);
        let (a, b) = (&bed.a, &bed.b);
        bed.fabric.loss(0.1);
        let to_b = a.to(&b.here);
        let mut sends: Vec<_> = (0..40_u8)
            .map(|i| a.qp.send_to(a.filled(&vec![i; if i % 2 == 0 { 4000 } else { 1 }]), &to_b))
            .collect();
        assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
        let mut arrived = Vec::new();
        for (i, send) in sends.into_iter().enumerate() {
            let buf = bed.run(send).unwrap();
            assert!(buf.iter().all(|byte| usize::from(*byte) == i), "the buffer of another operation");
            arrived.extend(core::iter::from_fn(|| b.qp.try_recv_from()).map(|message| message[0]));
        }
        bed.step();
        arrived.extend(core::iter::from_fn(|| b.qp.try_recv_from()).map(|message| message[0]));
        overtaken |= !arrived.is_sorted();
        assert_eq!(arrived.len(), 40, "seed {seed}");
        assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>().len(), 40);
        assert_eq!(a.pool.available() as u32, BUFS);
    }
    assert!(overtaken, "a message has overtaken another one");
}

/// The work requests of a batch complete in any order, so each one makes a completion: no buffer goes back before its own.
#[test]
fn a_batch_ends_with_all_of_its_work_requests() {
    for seed in 0..8 {
        let bed = Bed::new(seed);
        let (a, b) = (&bed.a, &bed.b);
        bed.fabric.loss(0.1);
        let to_b = a.to(&b.here);
        let mut batch = a.qp.batch();
        (0..40_u8).for_each(|i| {
            batch.send_to(a.filled(&vec![i; if i % 2 == 0 { 4000 } else { 1 }]), &to_b);
        });
        // The receives are fewer than the messages.
        let (mut arrived, mut recv) = (Vec::new(), b.qp.recv_from());
        bed.run(core::future::poll_fn(|cx| {
            while let Poll::Ready(message) = Pin::new(&mut recv).poll(cx) {
                arrived.push(message.unwrap()[0]);
                recv = b.qp.recv_from();
            }
            Pin::new(&mut batch).poll(cx)
        }))
        .unwrap();
        bed.step();
        arrived.extend(core::iter::from_fn(|| b.qp.try_recv_from()).map(|message| message[0]));
        assert_eq!(arrived.len(), 40, "seed {seed}");
        assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>().len(), 40);
        assert_eq!(a.pool.available() as u32, BUFS);
    }
}

/// An operation that fails does not end the QP: neither later operations, nor receives, nor their errors.
#[test]
fn a_failed_operation_ends_alone() {
    let bed = Bed::new(3);
    let (a, b) = (&bed.a, &bed.b);
    let (to_b, _to_a) = (a.to(&b.here), b.to(&a.here));
    let table = b.exposed();
    let region = table.remote_region();
    let wrong = RemoteRegion::new(region.addr(), 8, region.rkey() ^ 1).unwrap();
    let failed = bed.run(a.qp.write_to(a.filled(b"refused"), &wrong, &to_b)).unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::REM_ACCESS_ERR, .. }), "{failed}");
    assert!(failed.returned.is_some());
    bed.run(a.qp.write_to(a.filled(b"and on"), &region, &to_b)).unwrap();
    bed.run(b.qp.send_inline_to(b"to a", &_to_a)).unwrap();
    assert_eq!(&*bed.run(a.qp.recv_from()).unwrap(), b"to a");
    // The end of the receives has no reason but the end itself.
    let recv = a.qp.recv_from();
    a.qp.control().modify_state(uverbs::attr::QpState::ERR).unwrap();
    let ended = bed.run(recv).unwrap_err();
    assert!(matches!(ended, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. }), "{ended}");
}

/// A queue without a receive: the sender tries again, until there is one.
#[test]
fn a_late_receive_is_waited_for() {
    let bed = Bed::new(4);
    let (a, b) = (&bed.a, &bed.b);
    let to_b = a.to(&b.here);
    let n = DEPTH as u8 + 4;
    // Nobody takes messages, and the pool has no more buffers than the queue.
    let held: Vec<_> = core::iter::from_fn(|| b.incoming.get().ok()).collect();
    let mut sends: Vec<_> = (0..n).map(|i| a.qp.send_to(a.filled(&[i]), &to_b)).collect();
    sends.iter_mut().for_each(|send| assert!(poll_once(send).is_pending()));
    (0..20).for_each(|_| bed.step());
    drop(held);
    let mut arrived = BTreeSet::new();
    for send in sends {
        bed.run(send).unwrap();
        arrived.extend(core::iter::from_fn(|| b.qp.try_recv_from()).map(|message| message[0]));
    }
    bed.step();
    arrived.extend(core::iter::from_fn(|| b.qp.try_recv_from()).map(|message| message[0]));
    assert_eq!(arrived, (0..n).collect());
}
