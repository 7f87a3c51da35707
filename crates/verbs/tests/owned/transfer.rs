// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every operation: the data arrive, and the completion gives the buffer back.

use crate::bed::{BUFS, CAP, End, SIZE, attr, pair};
use uverbs::attr::{AccessFlags, MwType};
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, Cq, Exposed, Window};
use uverbs::{ImmData, PostError, Rc, WcOpcode, WcStatus};
use uverbs_hca::Fabric;

#[test]
fn completions_give_buffers_back() {
    let (mut a, mut b) = pair();
    b.receives(2);
    let buf = a.filled(b"hello");
    let at = buf.as_ptr();
    a.qp.sq().post(7).signaled().send(buf).unwrap();
    assert_eq!(a.available(), BUFS - 1);

    let sent = a.next();
    assert_eq!((sent.wc.wr_id, sent.wc.status), (7, WcStatus::SUCCESS));
    let buf = sent.buf().unwrap();
    assert_eq!((buf.as_ptr(), &*buf), (at, &b"hello"[..]), "the same buffer");
    drop(buf);
    assert_eq!(a.available(), BUFS);

    let received = b.next();
    assert_eq!((received.wc.wr_id, received.wc.opcode), (100, WcOpcode::RECV));
    let buf = received.buf().unwrap();
    assert_eq!((&*buf, buf.capacity()), (&b"hello"[..], SIZE as usize));

    // Inline data own no buffer; immediate data arrive.
    a.qp.sq().post(8).signaled().send_imm_inline(b"inline", ImmData::new(42)).unwrap();
    assert!(a.next().buf().is_none());
    let received = b.next();
    assert_eq!(received.wc.imm_data().map(|imm| imm.get()), Some(42));
    assert_eq!(&*received.buf().unwrap(), b"inline");
    assert!(a.hca.violations().is_empty() && b.hca.violations().is_empty());
}

#[test]
fn exposed_buffers_are_written_and_read_by_the_peer() {
    let (mut a, mut b) = pair();
    let rights = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let exposed = b.pd.pool_with(4, 64).exposed(rights).build().unwrap();
    let table = exposed.get().unwrap();
    let to = table.remote_region();
    assert_eq!(to.len(), 64);

    let buf = a.filled(b"written!");
    a.qp.sq().post(1).signaled().write(buf, &to).unwrap();
    let mut buf = a.next().buf().unwrap();
    let mut copy = [0; 8];
    table.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy, b"written!");

    table.write_at(0, b"answered").unwrap();
    buf.fill(&[0; 8]).unwrap();
    a.qp.sq().post(2).signaled().read(buf, &to).unwrap();
    let done = a.next();
    assert_eq!((done.wc.opcode, done.wc.byte_len), (WcOpcode::RDMA_READ, 8));
    let buf = done.buf().unwrap();
    assert_eq!(&*buf, b"answered");

    let word = to.slice(8..16).unwrap();
    a.qp.sq().post(3).signaled().fetch_add(buf, &word, 5).unwrap();
    let buf = a.next().buf().unwrap();
    assert_eq!(&*buf, &0_u64.to_ne_bytes());
    a.qp.sq().post(4).signaled().compare_swap(buf, &word, 5, 9).unwrap();
    let buf = a.next().buf().unwrap();
    assert_eq!(&*buf, &5_u64.to_ne_bytes());
    drop(buf);

    // A receive of a write with immediate has no message.
    b.receives(1);
    a.qp.sq().post(5).signaled().write_imm_inline(b"imm", &to, ImmData::new(3)).unwrap();
    assert_eq!(a.next().wc.status, WcStatus::SUCCESS);
    let received = b.next();
    assert_eq!(received.wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!(received.buf().unwrap().len(), 0);
    table.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy[..3], b"imm");
}

#[test]
fn a_remote_region_that_is_too_short_refuses_the_post() {
    let (mut a, b) = pair();
    let exposed = b.pd.pool_with(1, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap();
    let to = exposed.get().unwrap().remote_region().slice(0..4).unwrap();
    let buf = a.filled(b"12345");
    let rejected = a.qp.sq().post(1).write(buf, &to).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidLength);
    assert_eq!(&*rejected.returned.unwrap(), b"12345");
    let inline = a.qp.sq().post(1).write_inline(b"12345", &to);
    assert_eq!(inline.unwrap_err(), PostError::InvalidLength);
}

#[test]
fn exposed_buffers_are_posted_too() {
    let (mut a, mut b) = pair();
    let pool = a.pd.pool_with(2, 64).exposed(AccessFlags::empty()).build().unwrap();
    let mut source = pool.get().unwrap();
    source.write_at(0, b"from an exposed one").unwrap();
    source.set_len(19).unwrap();
    assert!(source.write_at(60, b"12345").is_err() && source.set_len(65).is_err());
    b.receives(1);
    a.qp.sq().post(1).signaled().send(source).unwrap();
    let done = a.next();
    let back: Buf<Exposed, Mlx5> = done.buf_of().unwrap();
    assert_eq!(back.len(), 19);
    assert_eq!(&*b.next().buf().unwrap(), b"from an exposed one");
    // A buffer of the other kind is not given out as a private one.
    b.receives(1);
    a.qp.sq().post(2).signaled().send(back).unwrap();
    assert!(a.next().buf().is_none());
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_window_ends_when_it_is_dropped() {
    let (mut a, mut b) = pair();
    let rights = AccessFlags::MW_BIND | AccessFlags::REMOTE_WRITE;
    let pool = b.pd.pool_with(2, 64).exposed(rights).build().unwrap();
    let window = Window::new(b.pd.alloc_mw(MwType::Type2).unwrap(), pool.get().unwrap());
    assert!(window.remote_region().is_none(), "not open yet");
    b.qp.sq().post(1).signaled().bind(window, AccessFlags::REMOTE_WRITE).unwrap();
    assert_eq!((pool.available(), b.hca.objects().get("mw")), (1, Some(&1)));
    let done = b.next();
    assert_eq!((done.wc.opcode, done.wc.status), (WcOpcode::BIND_MW, WcStatus::SUCCESS));
    let window: Window<Mlx5> = done.take().unwrap();
    let to = window.remote_region().unwrap();

    a.qp.sq().post(2).signaled().write_inline(b"open", &to).unwrap();
    assert_eq!(a.next().wc.status, WcStatus::SUCCESS);
    let buf = window.close().unwrap();
    let mut copy = [0; 4];
    buf.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy, b"open");
    a.qp.sq().post(3).signaled().write_inline(b"shut", &to).unwrap();
    assert_eq!(a.next().wc.status, WcStatus::REM_ACCESS_ERR);
    buf.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy, b"open");
}

/// The peer counts its bytes from 0, wherever the buffer is in the pool.
#[test]
fn a_zero_based_window_is_described_from_0_on() {
    let (mut a, mut b) = pair();
    let rights = AccessFlags::MW_BIND | AccessFlags::REMOTE_WRITE;
    let pool = b.pd.pool_with(2, 64).exposed(rights).build().unwrap();
    let first = pool.get().unwrap();
    let mut window = Window::new(b.pd.alloc_mw(MwType::Type1).unwrap(), pool.get().unwrap());
    for access in [AccessFlags::ZERO_BASED, AccessFlags::empty()] {
        b.qp.sq().post(1).signaled().bind(window, AccessFlags::REMOTE_WRITE | access).unwrap();
        window = b.next().take().unwrap();
        let to = window.remote_region().unwrap();
        assert_eq!((to.addr() == 0, to.len()), (!access.is_empty(), 64));
        a.qp.sq().post(2).signaled().write_inline(b"there", &to.slice(59..64).unwrap()).unwrap();
        assert_eq!(a.next().wc.status, WcStatus::SUCCESS);
    }
    let buf = window.close().unwrap();
    let mut copy = [0; 5];
    buf.read_at(59, &mut copy).unwrap();
    assert_eq!(&copy, b"there");
    first.read_at(59, &mut copy).unwrap();
    assert_eq!(copy, [0; 5]);
}

#[test]
fn a_zero_based_pool_is_refused() {
    let (a, _b) = pair();
    let error = a.pd.pool_with(2, 64).exposed(AccessFlags::ZERO_BASED).build().unwrap_err().to_string();
    assert!(error.starts_with("pool: invalid access"), "{error}");
    assert_eq!(a.hca.objects().get("mr"), Some(&1));
}

#[test]
fn batches_post_all_or_give_all_back() {
    let (mut a, mut b) = pair();
    b.receives(4);
    let [one, two, three] = [b"1", b"2", b"3"].map(|data| a.filled(data));
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(one);
    batch.wr(2).send(two);
    batch.wr(3).signaled().send(three);
    batch.complete().unwrap();
    let done = a.next();
    assert_eq!((done.wc.wr_id, a.available()), (3, BUFS - 1), "the unsignaled ones are back in the pool");
    for expected in [b"1", b"2", b"3"] {
        assert_eq!(&*b.next().buf().unwrap(), expected);
    }

    // Dropped, failed, and forgotten batches.
    drop(done);
    let (one, two) = (a.filled(b"1"), a.filled(b"2"));
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(one);
    batch.wr(2).send(two);
    drop(batch);
    assert_eq!(a.available(), BUFS);
    let one = a.filled(b"1");
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(one);
    batch.wr(2).send_inline(&[0; 4096]);
    assert_eq!(batch.complete().unwrap_err(), PostError::InlineTooLong);
    assert_eq!(a.available(), BUFS);
    let one = a.filled(b"1");
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(one);
    core::mem::forget(batch);
    assert_eq!(a.available(), BUFS - 1, "it stays with the queue");
    a.qp.sq().post(4).signaled().send_inline(b"4").unwrap();
    assert_eq!(a.next().wc.wr_id, 4);
    assert_eq!((a.available(), &*b.next().buf().unwrap()), (BUFS, &b"4"[..]));

    // Receives.
    let before = b.available();
    let (one, two) = (b.filled(b""), b.filled(b""));
    let mut batch = b.qp.rq().unwrap().batch();
    batch.push(1, one);
    batch.push(2, two);
    drop(batch);
    assert_eq!(b.available(), before);
}

#[test]
fn a_full_queue_gives_the_buffer_back() {
    let (mut a, _b) = pair();
    let mut posted = 0;
    let rejected = loop {
        let buf = a.filled(b"x");
        match a.qp.sq().post(posted).send(buf) {
            Ok(()) => posted += 1,
            Err(rejected) => break rejected,
        }
    };
    assert!(posted >= 16, "{posted}");
    assert_eq!((rejected.error.reason, rejected.returned.is_some()), (PostError::QueueFull, true));
}

#[test]
fn buffers_of_another_domain_are_refused() {
    let (mut a, b) = pair();
    let buf = b.filled(b"foreign");
    let rejected = a.qp.sq().post(1).send(buf).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    let rejected = a.qp.rq().unwrap().post(1, rejected.returned.unwrap()).unwrap_err();
    assert_eq!((rejected.error.reason, b.available()), (PostError::InvalidArgument, BUFS - 1));
    drop(rejected);
    assert_eq!(b.available(), BUFS);
    // The batch drops it.
    let other = a.context.alloc_pd().unwrap().pool(1, 64).unwrap();
    let mut batch = a.qp.sq().batch();
    batch.wr(1).send(other.get().unwrap());
    assert_eq!(batch.complete().unwrap_err(), PostError::InvalidArgument);
    assert_eq!(other.available(), 1);
}

/// Any thread may post and poll through `&`.
#[test]
fn shared_queues_work_the_same() {
    let a = End::new(Fabric::new(3).device("hca0").build());
    let cq: Cq<uverbs::Shared, Mlx5> = a.context.cq_with(64, None).unwrap();
    let shared = a.pd.qp::<Rc>().shared().cq(&cq).cap(CAP).create().unwrap();
    let attr = attr();
    shared.init(&attr).unwrap();
    let here = shared.control().endpoint(1, &attr).unwrap();
    shared.connect(&here, &here, &attr).unwrap();
    let buf = a.pool.get().unwrap();
    shared.rq().unwrap().lock().unwrap().post(9, buf).unwrap();
    let buf = a.filled(b"shared");
    shared.sq().lock().unwrap().post(1).signaled().send(buf).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        cq.poll_each(8, |done| {
            assert!(matches!(cq.poll_one(), Err(uverbs::PollError::SessionOpen)), "polled in a callback");
            let id = done.wr_id();
            seen.push((id, done.buf().unwrap().to_vec()));
        })
        .unwrap();
    }
    seen.sort();
    assert_eq!(seen, [(1, b"shared".to_vec()), (9, b"shared".to_vec())]);
}
