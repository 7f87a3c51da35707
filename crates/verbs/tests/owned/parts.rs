// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of buffers as the memory of work requests, and receives without memory.

use crate::bed::{BUFS, End, SIZE, pair, srq};
use uverbs::attr::AccessFlags;
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, BufPart, Done, Exposed, ImmData, PostError, Private, Rc, WcOpcode, WcStatus};

fn exposed(end: &End, rights: AccessFlags) -> Buf<Exposed, Mlx5> {
    end.pd.pool_with(1, 256).exposed(rights).build().unwrap().get().unwrap()
}

/// A buffer with the numbers from 0 on.
fn numbers(end: &End, len: u8) -> Buf<Private, Mlx5> {
    end.filled(&(0..len).collect::<Vec<_>>())
}

#[test]
fn a_part_is_sent_written_and_read() {
    let (mut a, mut b) = pair();
    let table = exposed(&b, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE);
    let to = table.remote_region();
    b.receives(1);
    let buf = numbers(&a, 128);
    let at = buf.as_ptr();
    a.qp.sq().post(1).signaled().write(buf.part(64..100).unwrap(), &to).unwrap();
    let buf = a.next().buf().expect("the whole buffer");
    assert_eq!((buf.as_ptr(), buf.len(), buf[..3].to_vec()), (at, 128, vec![0, 1, 2]), "as it was");
    let mut copy = [0xff; 40];
    table.read_at(0, &mut copy).unwrap();
    assert_eq!((copy[0], copy[35], copy[36]), (64, 99, 0));

    a.qp.sq().post(2).signaled().send(buf.part(3..5).unwrap()).unwrap();
    assert_eq!(&*b.next().buf().unwrap(), &[3, 4]);
    // A read into a part behind the length: the buffer has it then.
    let mut buf = a.next().buf().unwrap();
    buf.set_len(2).unwrap();
    table.write_at(0, b"read").unwrap();
    a.qp.sq().post(3).signaled().read(buf.part(8..12).unwrap(), &to).unwrap();
    let buf = a.next().buf().unwrap();
    assert_eq!((buf.len(), &buf[8..], &buf[..3]), (12, &b"read"[..], &[0, 1, 2][..]));
    // As the part, which has the bytes of its range only.
    a.qp.sq().post(4).signaled().read(buf.part(1..3).unwrap(), &to).unwrap();
    let part: BufPart<Private, Mlx5> = a.next().take().unwrap();
    assert_eq!(part.range(), 1..3);
    assert_eq!(&part.into_buf()[..4], [0, b'r', b'e', 3]);
    assert_eq!((a.available(), a.hca.violations()), (BUFS, vec![]));
}

/// A message behind a place for a header.
#[test]
fn a_part_receives() {
    let (mut a, mut b) = pair();
    for as_part in [false, true] {
        let mut buf = b.filled(b"header..and more");
        buf[9] = 0xee;
        b.qp.rq().unwrap().post(9, buf.part(8..64).unwrap()).unwrap();
        a.qp.sq().post(1).send_inline(b"body").unwrap();
        let done = b.next();
        assert_eq!((done.wc.status, done.wc.byte_len), (WcStatus::SUCCESS, 4));
        if as_part {
            let part: BufPart<Private, Mlx5> = done.take().unwrap();
            assert_eq!(part.range(), 8..12);
            assert_eq!(&part.into_buf()[8..12], b"body");
        } else {
            let Ok(Done::Received(buf)) = done.ok() else { panic!("a receive") };
            assert_eq!(&*buf, b"header..body", "to the end of the message");
        }
    }
    // It is no longer than the part, and nothing is written behind it.
    let mut buf = b.filled(&[7; 32]);
    buf.set_len(0).unwrap();
    b.qp.rq().unwrap().post(9, buf.part(8..10).unwrap()).unwrap();
    a.qp.sq().post(2).signaled().send_inline(b"four").unwrap();
    let done = b.next();
    assert_eq!(done.wc.status, WcStatus::LOC_LEN_ERR);
    let mut buf = done.buf().unwrap();
    buf.set_len(32).unwrap();
    assert_eq!(buf[10..], [7; 22]);
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "a range that must be refused")]
fn a_part_outside_the_buffer_is_refused() {
    let (a, _b) = pair();
    let mut buf = a.filled(b"12345");
    for range in
        [0..SIZE as usize + 1, 300..300, 5..2, 0..usize::MAX, usize::MAX..usize::MAX, 1 << 32..(1 << 32) + 1]
    {
        let rejected = buf.part(range).unwrap_err();
        assert_eq!(rejected.error, PostError::InvalidLength);
        buf = rejected.returned.unwrap();
        assert_eq!(&*buf, b"12345");
    }
    // The whole capacity, and nothing.
    let part = buf.part(0..SIZE as usize).unwrap();
    let part = part.into_buf().part(256..256).unwrap();
    assert_eq!((part.range(), part.into_buf().len()), (256..256, SIZE as usize));
}

/// Whatever becomes of a part, the next user of the buffer has the whole one.
#[test]
fn a_part_that_is_dropped_is_a_whole_buffer_again() {
    let (mut a, b) = pair();
    let pool = a.pd.pool(1, 64).unwrap();
    let check = |step: &str| {
        let mut buf = pool.get().expect(step);
        assert_eq!(buf.len(), 64, "{step}");
        buf.fill(step.as_bytes()).unwrap();
        (buf.as_ptr(), buf)
    };
    let (at, buf) = check("new");
    drop(buf.part(32..64).unwrap());
    let (again, buf) = check("dropped");
    // In a batch that is dropped, with a completion, with a later one, in a queue that ends.
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(buf.part(8..9).unwrap());
    drop(batch);
    let (_, buf) = check("batch");
    let table = exposed(&b, AccessFlags::REMOTE_WRITE);
    a.qp.sq().post(1).signaled().write(buf.part(8..16).unwrap(), &table.remote_region()).unwrap();
    drop(a.next());
    let (_, buf) = check("completion");
    a.qp.sq().post(2).write(buf.part(8..16).unwrap(), &table.remote_region()).unwrap();
    a.qp.sq().post(3).signaled().write_inline(b"x", &table.remote_region()).unwrap();
    drop(a.next());
    let (_, buf) = check("later");
    a.qp.rq().unwrap().post(9, buf.part(8..16).unwrap()).unwrap();
    a.qp.reset().unwrap();
    let (_, buf) = check("reset");
    // A refused one keeps its range.
    let other = a.context.alloc_pd().unwrap();
    let mut qp = other.qp::<Rc>().cq(&a.cq).cap(crate::bed::CAP).create().unwrap();
    let rejected = qp.rq().unwrap().post(1, buf.part(8..16).unwrap()).unwrap_err();
    let part = rejected.returned.unwrap();
    assert_eq!((rejected.error.reason, part.range()), (PostError::InvalidArgument, 8..16));
    assert_eq!((again, part.into_buf().as_ptr()), (at, at));
    assert_eq!(pool.available(), 1);
}

#[test]
fn parts_of_exposed_buffers() {
    let (mut a, mut b) = pair();
    let table = exposed(&b, AccessFlags::REMOTE_WRITE);
    let source = exposed(&a, AccessFlags::empty());
    source.write_at(16, b"exposed").unwrap();
    b.qp.rq().unwrap().post(9, table.part(100..200).unwrap()).unwrap();
    a.qp.sq().post(1).signaled().send(source.part(16..23).unwrap()).unwrap();
    let source: Buf<Exposed, Mlx5> = a.next().take().unwrap();
    assert_eq!((source.len(), source.remote_region().len()), (256, 256));
    let table: Buf<Exposed, Mlx5> = b.next().take().unwrap();
    let mut copy = [0; 7];
    table.read_at(100, &mut copy).unwrap();
    assert_eq!((&copy, table.len()), (b"exposed", 107));
    assert!(a.hca.violations().is_empty() && b.hca.violations().is_empty());
}

/// Immediates need no memory.
#[test]
fn receives_without_memory_take_immediates() {
    let (mut a, mut b) = pair();
    let table = exposed(&b, AccessFlags::REMOTE_WRITE);
    b.qp.rq().unwrap().post_empty(1).unwrap();
    let mut batch = b.qp.rq().unwrap().batch();
    batch.push_empty(2);
    batch.push_empty(3);
    batch.complete().unwrap();
    let mut batch = b.qp.rq().unwrap().batch();
    batch.push_empty(4);
    drop(batch);
    for i in 1..4 {
        a.qp.sq()
            .post(i)
            .signaled()
            .write_imm_inline(b"imm", &table.remote_region(), ImmData::new(7))
            .unwrap();
        let done = b.next();
        assert_eq!((done.wc.wr_id, done.wc.opcode), (i, WcOpcode::RECV_RDMA_WITH_IMM));
        assert_eq!(done.wc.imm_data(), Some(ImmData::new(7)));
        assert!(done.buf().is_none());
        drop(a.next());
    }
    // As many as the queue has, and no more.
    let mut posted = 0;
    let full = loop {
        match b.qp.rq().unwrap().post_empty(posted) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
    };
    assert!(full == PostError::QueueFull && posted >= 16, "{full:?} after {posted}");
    let mut batch = b.qp.rq().unwrap().batch();
    batch.push_empty(1);
    assert_eq!(batch.complete().unwrap_err(), PostError::QueueFull);
    // A message with bytes does not fit.
    a.qp.sq().post(9).signaled().send_inline(b"bytes").unwrap();
    assert_eq!(b.next().wc.status, WcStatus::LOC_LEN_ERR);
    assert!(!a.next().wc.status.is_success());
    assert_eq!((b.available(), b.hca.violations()), (BUFS, vec![]));
}

#[test]
fn receives_without_memory_of_a_shared_queue() {
    let (mut a, mut b) = pair();
    let mut srq = srq(&b.pd, 4);
    let mut qp = b.pd.qp::<Rc>().cq(&b.cq).srq(&srq).cap(crate::bed::CAP).create().unwrap();
    a.qp = a.pd.qp::<Rc>().cq(&a.cq).cap(crate::bed::CAP).create().unwrap();
    crate::bed::connect(&a.qp, &qp).unwrap();
    let table = exposed(&b, AccessFlags::REMOTE_WRITE);
    srq.post_empty(1).unwrap();
    srq.post(2, b.pool.get().unwrap()).unwrap();
    srq.post_empty(3).unwrap();
    for i in 1..4 {
        a.qp.sq()
            .post(i)
            .signaled()
            .write_imm_inline(b"imm", &table.remote_region(), ImmData::new(i as u32))
            .unwrap();
        let done = b.next();
        assert_eq!((done.wc.wr_id, done.wc.imm_data()), (i, Some(ImmData::new(i as u32))));
        assert_eq!(done.buf().is_some(), i == 2);
    }
    while srq.post_empty(9).is_ok() {}
    assert_eq!(srq.post_empty(9), Err(PostError::QueueFull));
    qp.reset().unwrap();
    drop(qp);
    srq.close().unwrap();
    assert_eq!(b.available(), BUFS);
}
