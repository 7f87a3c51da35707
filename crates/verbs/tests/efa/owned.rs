// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every operation of owned queues.

use crate::bed::{BUFS, End, on_both, pair};
use uverbs::wr::ImmData;
use uverbs::{Buf, BufList, Done, Driver, Exposed, Private, WcOpcode, WcStatus};

on_both! { sends_arrive_with_their_source reads_and_writes_name_their_peer batches_have_one_doorbell lists_and_parts }

fn sends_arrive_with_their_source<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(1);
    b.receives(4);
    let (qpn, qkey) = (b.here.qp_num, crate::bed::QKEY);
    // Not signaled: each request has a completion nevertheless.
    let buf = a.filled(b"a buffer");
    a.qp.sq().post_to(1, &to_b, qpn, qkey).send(buf).unwrap();
    let done = a.ok();
    assert_eq!((done.wc.wr_id, done.wc.opcode), (1, WcOpcode::SEND));
    assert_eq!(&*done.buf().unwrap(), b"a buffer");
    a.qp.sq().post_to(2, &to_b, qpn, qkey).signaled().send_inline(b"inline").unwrap();
    drop(a.ok());
    let buf = a.filled(b"with imm");
    a.qp.sq().post_to(3, &to_b, qpn, qkey).send_imm(buf, ImmData::new(7)).unwrap();
    drop(a.ok());
    a.qp.sq().post_to(4, &to_b, qpn, qkey).send_imm_inline(b"", ImmData::new(8)).unwrap();
    drop(a.ok());
    let expected: [(&[u8], _); 4] =
        [(b"a buffer", None), (b"inline", None), (b"with imm", Some(7)), (b"", Some(8))];
    for (n, (bytes, imm)) in expected.into_iter().enumerate() {
        let done = b.ok();
        assert_eq!((done.wc.wr_id, done.wc.src_qp), (100 + n as u64, a.here.qp_num));
        assert_eq!(done.wc.imm_data().map(ImmData::get), imm);
        // The number of the sender's address handle: the only one that this side has.
        assert_ne!(done.wc.slid, 0xffff);
        assert_eq!(&*done.buf().unwrap(), bytes);
    }
    assert_eq!((a.pool.available(), b.pool.available()), (BUFS, BUFS));
    assert_eq!((a.device.violations(), b.device.violations()), (vec![], vec![]));
}

fn reads_and_writes_name_their_peer<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(2);
    let (qpn, qkey) = (b.here.qp_num, crate::bed::QKEY);
    let table = b.exposed.get().unwrap();
    table.write_at(0, b"in the memory of b").unwrap();
    let region = table.remote_region();

    let mut buf = a.pool.get().unwrap();
    buf.set_len(18).unwrap();
    a.qp.sq().post_to(1, &to_b, qpn, qkey).read(buf, &region).unwrap();
    assert_eq!(&*a.ok().buf().unwrap(), b"in the memory of b");

    let buf = a.filled(b"written");
    a.qp.sq().post_to(2, &to_b, qpn, qkey).write(buf, &region).unwrap();
    assert_eq!(a.ok().wc.opcode, WcOpcode::RDMA_WRITE);
    let mut bytes = [0; 18];
    table.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"writtenmemory of b");

    b.receives(1);
    let buf = a.filled(b"and told");
    a.qp.sq().post_to(3, &to_b, qpn, qkey).write_imm(buf, &region, ImmData::new(5)).unwrap();
    drop(a.ok());
    let done = b.ok();
    assert_eq!((done.wc.opcode, done.wc.byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 8));
    assert_eq!(done.wc.imm_data().map(ImmData::get), Some(5));
    assert_eq!(done.buf().unwrap().len(), 0);
    table.read_at(0, &mut bytes[..8]).unwrap();
    assert_eq!(&bytes[..8], b"and told");

    // An operation of a value, as queues of futures post it.
    let op = uverbs::Operation::Read(region);
    let mut buf = a.pool.get().unwrap();
    buf.set_len(8).unwrap();
    a.qp.sq().post_to(4, &to_b, qpn, qkey).op_with(&op, buf).unwrap();
    assert_eq!(&*a.ok().buf().unwrap(), b"and told");
    assert_eq!((a.device.violations(), b.device.violations()), (vec![], vec![]));
}

fn batches_have_one_doorbell<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(3);
    b.receives(16);
    let bufs: Vec<_> = (0..16_u8).map(|i| a.filled(&[i; 100])).collect();
    let mut batch = a.qp.sq().batch();
    for (n, buf) in bufs.into_iter().enumerate() {
        batch.wr_to(n as u64, &to_b, b.here.qp_num, crate::bed::QKEY).send(buf);
    }
    batch.complete().unwrap();
    // The queue is full.
    let buf = a.filled(b"one too many");
    let full = a.qp.sq().post_to(99, &to_b, b.here.qp_num, crate::bed::QKEY).send(buf).unwrap_err();
    assert_eq!(full.error.reason, uverbs::PostError::QueueFull);
    drop(full);
    let mut sent: Vec<_> = (0..16).map(|_| a.ok().wc.wr_id).collect();
    sent.sort_unstable();
    assert_eq!(sent, (0..16).collect::<Vec<_>>());
    let mut received: Vec<_> = (0..16)
        .map(|_| match b.ok().ok().unwrap() {
            Done::Received(message) => message[0],
            other => panic!("{other:?}"),
        })
        .collect();
    received.sort_unstable();
    assert_eq!(received, (0..16).collect::<Vec<_>>());
}

fn lists_and_parts<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(4);
    b.receives(1);
    let list = BufList::from([a.filled(b"one"), a.filled(b"two")]);
    a.qp.sq().post_to(1, &to_b, b.here.qp_num, crate::bed::QKEY).send(list).unwrap();
    assert!(a.ok().take::<BufList<Private, D>>().is_some());
    assert_eq!(&*b.ok().buf().unwrap(), b"onetwo");
    // A read has one entry.
    let table = b.exposed.get().unwrap();
    let list = BufList::from([a.filled(b"one"), a.filled(b"two")]);
    let read =
        a.qp.sq().post_to(2, &to_b, b.here.qp_num, crate::bed::QKEY).read(list, &table.remote_region());
    assert_eq!(read.unwrap_err().error.reason, uverbs::PostError::TooManySge);

    // Scattered to two buffers.
    let scatter = BufList::from([b.filled(b"---"), b.filled(b"---")]);
    b.qp.rq().unwrap().post(7, scatter).unwrap();
    let buf = a.filled(&[9; 5000][..4096]);
    a.qp.sq().post_to(3, &to_b, b.here.qp_num, crate::bed::QKEY).send(buf).unwrap();
    drop(a.ok());
    let received = b.ok();
    assert_eq!((received.wc.byte_len, received.wc.status), (4096, WcStatus::SUCCESS));
    assert!(received.take::<BufList<Private, D>>().is_some());
    let exposed: Buf<Exposed, D> = a.exposed.get().unwrap();
    exposed.write_at(0, b"exposed").unwrap();
    b.receives(1);
    a.qp.sq().post_to(4, &to_b, b.here.qp_num, crate::bed::QKEY).send(exposed).unwrap();
    assert!(a.ok().take::<Buf<Exposed, D>>().is_some());
    assert_eq!(b.ok().wc.byte_len, 4096);
    assert_eq!((a.pool.available(), b.pool.available()), (BUFS, BUFS));
}

/// The same as a function over any driver shows that nothing else is needed.
#[test]
fn an_end_sends_to_itself() {
    let device = uverbs_efa_device::EfaDevice::new();
    let mut end = End::<uverbs::efa::Efa>::new(&device);
    let to = end.ah(&end.here);
    end.receives(1);
    let buf = end.filled(b"to itself");
    end.qp.sq().post_to(1, &to, end.here.qp_num, crate::bed::QKEY).send(buf).unwrap();
    let (mut sent, mut received) = (false, false);
    let begin = std::time::Instant::now();
    while !(sent && received) {
        assert!(begin.elapsed().as_secs() < 60);
        match end.cq.poll_one().unwrap().map(|done| done.ok().unwrap()) {
            Some(Done::Sent(_)) => sent = true,
            Some(Done::Received(message)) => received = &*message == b"to itself",
            _ => std::thread::yield_now(),
        }
    }
}
