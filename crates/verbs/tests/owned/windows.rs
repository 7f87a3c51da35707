// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows that are read while they are open, and that a work request ends; words of exposed buffers.

use crate::bed::{BUFS, End, pair};
use core::sync::atomic::Ordering;
use uverbs::attr::{AccessFlags, MwType};
use uverbs::mlx5::Mlx5;
use uverbs::{Exposed, Pool, PostError, RemoteRegion, WcOpcode, WcStatus, Window};
use uverbs_hca::Fabric;

const RIGHTS: AccessFlags =
    AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

fn pool(end: &End) -> Pool<Exposed, Mlx5> {
    end.pd.pool_with(2, 64).exposed(RIGHTS | AccessFlags::MW_BIND).build().unwrap()
}

/// An open window.
fn open(end: &mut End, pool: &Pool<Exposed, Mlx5>, kind: MwType) -> Window<Mlx5> {
    let window = Window::new(end.pd.alloc_mw(kind).unwrap(), pool.get().unwrap());
    bind(end, window)
}

fn bind(end: &mut End, window: Window<Mlx5>) -> Window<Mlx5> {
    end.qp.sq().post(1).signaled().bind(window, RIGHTS).unwrap();
    let done = end.next();
    assert_eq!((done.wc.opcode, done.wc.status), (WcOpcode::BIND_MW, WcStatus::SUCCESS));
    done.take().unwrap()
}

/// The status of a write of the peer.
fn write(peer: &mut End, to: &RemoteRegion, data: &[u8]) -> WcStatus {
    peer.qp.sq().post(2).signaled().write_inline(data, to).unwrap();
    peer.next().wc.status
}

#[test]
fn an_open_window_is_read_and_has_words() {
    let (mut a, mut b) = pair();
    let pool = pool(&b);
    let window = open(&mut b, &pool, MwType::Type2);
    let to = window.remote_region().unwrap();
    assert_eq!(write(&mut a, &to, b"an entry"), WcStatus::SUCCESS);
    let mut copy = [0; 8];
    window.read_at(0, &mut copy).unwrap();
    assert_eq!(&copy, b"an entry");
    window.write_at(8, &5_u64.to_ne_bytes()).unwrap();
    let word = window.atomic_u64(8).unwrap();
    let buf = a.pool.get().unwrap();
    a.qp.sq().post(3).signaled().fetch_add(buf, &to.slice(8..16).unwrap(), 2).unwrap();
    assert_eq!(*a.next().buf().unwrap(), 5_u64.to_ne_bytes());
    assert_eq!(word.load(Ordering::Acquire), 7);
    assert_eq!(word.compare_exchange(7, 40, Ordering::AcqRel, Ordering::Acquire), Ok(7));
    let buf = a.pool.get().unwrap();
    a.qp.sq().post(4).signaled().compare_swap(buf, &to.slice(8..16).unwrap(), 40, 41).unwrap();
    assert_eq!(*a.next().buf().unwrap(), 40_u64.to_ne_bytes());
    assert_eq!(word.swap(0, Ordering::AcqRel), 41);
    assert!(window.read_at(60, &mut copy).is_err() && window.write_at(usize::MAX, &copy).is_err());
    for offset in [4, 57, 64, usize::MAX] {
        assert!(window.atomic_u64(offset).is_err(), "{offset}");
    }

    // The same words, in the buffer itself.
    let buf = window.close().unwrap();
    buf.atomic_u64(56).unwrap().store(u64::from_ne_bytes(*b"the word"), Ordering::Release);
    buf.read_at(56, &mut copy).unwrap();
    assert_eq!(&copy, b"the word");
    for offset in [4, 57, 64, usize::MAX] {
        assert!(buf.atomic_u64(offset).is_err(), "{offset}");
    }
    assert!(a.hca.violations().is_empty() && b.hca.violations().is_empty());
}

/// A follower of a log refuses its old leader without a system call, and opens the same buffer to a new one.
#[test]
fn a_work_request_ends_a_window() {
    let (mut a, mut b) = pair();
    let pool = pool(&b);
    let window = open(&mut b, &pool, MwType::Type2);
    let old = window.remote_region().unwrap();
    assert_eq!(write(&mut a, &old, b"old term"), WcStatus::SUCCESS);
    b.qp.sq().post(5).signaled().local_inv(window).unwrap();
    let done = b.next();
    assert_eq!((done.wc.opcode, done.wc.status), (WcOpcode::LOCAL_INV, WcStatus::SUCCESS));
    let window: Window<Mlx5> = done.take().unwrap();
    assert!(window.remote_region().is_none(), "closed");
    // A new bind, with another key.
    let window = bind(&mut b, window);
    let new = window.remote_region().unwrap();
    assert_ne!(old.rkey(), new.rkey());
    assert_eq!(write(&mut a, &new, b"new term"), WcStatus::SUCCESS);
    b.qp.sq().post(6).signaled().local_inv(window).unwrap();
    let (mw, buf) = b.next().take::<Window<Mlx5>>().unwrap().into_parts().expect("it is closed");
    assert_eq!(write(&mut a, &new, b"too late"), WcStatus::REM_ACCESS_ERR);
    let mut copy = [0; 8];
    buf.read_at(0, &mut copy).unwrap();
    assert_eq!((&copy, pool.available(), b.hca.objects().get("mw")), (b"new term", 1, Some(&1)));
    // Both can be used again.
    b.qp.reset().unwrap();
    a.qp.reset().unwrap();
    crate::bed::connect(&a.qp, &b.qp).unwrap();
    let window = bind(&mut b, Window::new(mw, buf));
    assert_eq!(write(&mut a, &window.remote_region().unwrap(), b"reopened"), WcStatus::SUCCESS);
    drop(window);
    assert_eq!((pool.available(), b.hca.objects().get("mw")), (2, None));
    assert!(b.hca.violations().is_empty());
}

#[test]
fn a_window_that_can_not_be_ended_by_a_post_comes_back() {
    let (mut a, mut b) = pair();
    let pool = pool(&b);
    // Not open, of type 1, and of another domain.
    let closed = Window::new(b.pd.alloc_mw(MwType::Type2).unwrap(), pool.get().unwrap());
    let rejected = b.qp.sq().post(1).local_inv(closed).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    let (mw, buf) = rejected.returned.unwrap().into_parts().expect("it was never open");
    drop((mw, buf));
    let first = open(&mut b, &pool, MwType::Type1);
    let rejected = b.qp.sq().post(1).local_inv(first).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    drop(rejected);
    let window = open(&mut b, &pool, MwType::Type2);
    let rejected = a.qp.sq().post(1).local_inv(window).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    let window = rejected.returned.unwrap().into_parts().expect_err("it is open");
    // A batch that is dropped ends the window with the buffer.
    let mut batch = b.qp.sq().batch();
    batch.wr(1).local_inv(window);
    drop(batch);
    assert_eq!((pool.available(), b.hca.objects().get("mw")), (2, None));
}

/// An invalidation that is flushed leaves the window open.
#[test]
fn a_flushed_invalidation_leaves_the_window_open() {
    let (_a, mut b) = pair();
    let pool = pool(&b);
    let window = open(&mut b, &pool, MwType::Type1);
    drop(window);
    let window = open(&mut b, &pool, MwType::Type2);
    b.qp.control().modify_state(uverbs::attr::QpState::ERR).unwrap();
    b.qp.sq().post(5).signaled().local_inv(window).unwrap();
    let done = b.next();
    assert_eq!(done.wc.status, WcStatus::WR_FLUSH_ERR);
    let window: Window<Mlx5> = done.take().unwrap();
    let window = window.into_parts().expect_err("open");
    assert!(window.remote_region().is_some());
    let buf = window.close().unwrap();
    drop(buf);
    assert_eq!((pool.available(), b.available()), (2, BUFS));
}

/// The device does not wait for the peer's answer to an earlier work request: a bind that is flushed after its error may have been executed.
#[test]
fn a_flushed_bind_may_have_been_executed() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let fabric = Fabric::deterministic(7);
        let (mut a, mut b) = crate::bed::pair_on(&fabric);
        let pool = pool(&b);
        let (mw, buf) = (b.pd.alloc_mw(mw_type).unwrap(), pool.get().unwrap());
        let key = mw.rkey() & !0xff | mw.rkey().wrapping_add(1) & 0xff;
        let executed = RemoteRegion::new(buf.remote_region().addr(), 16, key).unwrap();
        fabric.script("packet device=hca1 opcode=send : drop").unwrap();
        b.qp.send(b.filled(b"lost")).unwrap();
        b.qp.sq().post(1).signaled().bind(Window::new(mw, buf), RIGHTS).unwrap();
        assert_eq!(b.next().wc.status, WcStatus::RETRY_EXC_ERR);
        let done = b.next();
        assert_eq!(done.wc.status, WcStatus::WR_FLUSH_ERR);
        let window: Window<Mlx5> = done.take().unwrap();
        assert!(window.remote_region().is_none());
        fabric.script("").unwrap();
        // A window of type 2 belongs to its QP, which has another number of packets then.
        b.qp.reset().unwrap();
        a.qp.reset().unwrap();
        crate::bed::connect(&a.qp, &b.qp).unwrap();
        assert_eq!(write(&mut a, &executed, b"it was executed"), WcStatus::SUCCESS, "{mw_type:?}");
        // So the buffer comes back after its end only.
        let window = window.into_parts().expect_err("it may be open");
        drop(window.close().unwrap());
        assert_eq!((pool.available(), b.hca.objects().get("mw")), (2, None));
        assert!(b.hca.violations().is_empty());
    }
}

/// A bind that was not posted is not that of a later completion.
#[test]
fn a_bind_that_is_refused_leaves_no_trace() {
    let (mut a, mut b) = pair();
    let pool = pool(&b);
    let window = open(&mut b, &pool, MwType::Type2);
    let nowhere = RemoteRegion::new(0, 0, 0).unwrap();
    let mut posted = 0;
    while b.qp.sq().post(7).signaled().write_inline(b"", &nowhere).is_ok() {
        posted += 1;
    }
    let rejected = b.qp.sq().post(8).signaled().bind(window, RIGHTS).unwrap_err();
    assert_eq!(rejected.error, PostError::QueueFull);
    let window = rejected.returned.unwrap();
    for _ in 0..posted {
        assert_eq!(b.next().wc.status, WcStatus::SUCCESS);
    }
    let to = window.remote_region().unwrap();
    assert_eq!(write(&mut a, &to, b"as open as before"), WcStatus::SUCCESS);
    b.qp.sq().post(9).signaled().local_inv(window).unwrap();
    let window: Window<Mlx5> = b.next().take().unwrap();
    assert!(window.remote_region().is_none());
    window.into_parts().expect("it is closed");
}
