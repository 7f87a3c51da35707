// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys and the ends of their regions: posts that fail, flushes, QPs and devices that end, refused destruction, reuse of numbers,
//! and threads.

use crate::bed::{BUFS, CAP, End, connect, connect_self, loopback};
use crate::ends::{What, refuses};
use crate::mkeys::{
    ENTRIES, Opened, back, configure, end, expose, exposed, invalidate, open, opened, pair, pair_on, write,
};
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, Cq, MkeyRegion, Pool, PostError, Private, Rc, Segment, Shared, WcOpcode, WcStatus};
use uverbs_hca::{Fabric, Hca};

type Region = MkeyRegion<Buf<Private, Mlx5>, Mlx5>;

/// A region of two private buffers, which is not open.
fn region(end: &End) -> Region {
    let key = end.pd.create_mkey(ENTRIES as u16).unwrap();
    MkeyRegion::new(key, [end.filled(b"first "), end.filled(b"second")]).unwrap()
}

fn one() -> End {
    let hca = Fabric::deterministic(7).device("hca0").build();
    let kernel = hca.open();
    let end = end(hca, kernel);
    loopback(&end);
    end
}

fn keys(end: &End) -> usize {
    end.hca.objects().get("devx_obj").copied().unwrap_or_default()
}

#[test]
fn a_region_that_a_queue_can_not_take_comes_back() {
    let mut a = one();
    // Not open: it is no memory, and its access can't be ended.
    let new = region(&a);
    let rejected = a.qp.send(new).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    let rejected = a.qp.sq().post(1).mkey_invalidate(rejected.returned.unwrap()).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    // Open: it is not configured again.
    let opened = configure(&mut a, rejected.returned.unwrap());
    let rejected = a.qp.sq().post(1).mkey_configure(opened).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    let opened = rejected.returned.unwrap();
    // A QP without keys, one with a shorter list, one of another domain, and one that can't post.
    let plain = a.pd.qp::<Rc>().cq(&a.cq).cap(CAP.inline(0)).create().unwrap();
    let short = a.pd.qp::<Rc>().cq(&a.cq).cap(CAP.inline(0)).mkeys(1).create().unwrap();
    let domain = a.context.alloc_pd().unwrap();
    let foreign = domain.qp::<Rc>().cq(&a.cq).cap(CAP).mkeys(ENTRIES).create().unwrap();
    let idle = a.pd.qp::<Rc>().cq(&a.cq).cap(CAP).mkeys(ENTRIES).create().unwrap();
    for (mut qp, parts, error) in [
        (plain, 2, PostError::IllegalOpcode),
        (short, 48, PostError::InlineTooLong),
        (foreign, 2, PostError::InvalidArgument),
    ] {
        connect_self(&qp);
        let segments = (0..parts).map(|_| Segment::new(0, 0..4));
        let region = MkeyRegion::list(a.pd.create_mkey(48).unwrap(), [a.filled(b"part")], segments).unwrap();
        let rejected = qp.sq().post(1).mkey_configure(region).unwrap_err();
        assert_eq!(rejected.error, error);
        let (key, bufs) = rejected.returned.unwrap().into_parts().expect("closed");
        // The region can be opened by another queue.
        if parts == 2 {
            let again = configure(&mut a, MkeyRegion::new(key, bufs).unwrap());
            drop(invalidate(&mut a, again));
        }
    }
    let mut idle = idle;
    let rejected = idle.sq().post(1).mkey_invalidate(opened).unwrap_err();
    assert_eq!(rejected.error, PostError::BadState);
    // The invalidation that was not posted does not end the access.
    let opened = rejected.returned.unwrap();
    assert!(opened.is_open());
    let rejected = idle.sq().post(1).mkey_configure(region(&a)).unwrap_err();
    assert_eq!(rejected.error, PostError::BadState);
    assert!(!rejected.returned.as_ref().unwrap().is_open());
    drop((rejected, opened));
    // A full queue.
    let last = region(&a);
    while a.qp.sq().post(0).write_inline(b"", &uverbs::RemoteRegion::new(0, 0, 0).unwrap()).is_ok() {}
    let rejected = a.qp.sq().post(1).mkey_configure(last).unwrap_err();
    assert_eq!(rejected.error, PostError::QueueFull);
    drop(rejected);
    assert_eq!((a.available(), keys(&a)), (BUFS, 0));
    // A pool of another domain.
    let buf = domain.pool(1, 64).unwrap().get().unwrap();
    let error = MkeyRegion::new(a.pd.create_mkey(1).unwrap(), [buf]).unwrap_err().to_string();
    assert!(error.starts_with("mkey_region: invalid bufs"), "{error}");
    assert_eq!(keys(&a), 0);
    assert!(a.hca.violations().is_empty());
}

#[test]
fn a_drop_ends_the_access_and_a_forgotten_region_keeps_it() {
    let (mut a, mut b) = pair();
    let (pool, region) = opened(&mut b, 2);
    let kept = region.remote_region().unwrap();
    core::mem::forget(region);
    assert_eq!((pool.available(), keys(&b)), (0, 1));
    drop(pool);
    assert_eq!(write(&mut a, &kept, b"still there"), WcStatus::SUCCESS);
    let (pool, region) = opened(&mut b, 2);
    let gone = region.remote_region().unwrap();
    drop(region);
    assert_eq!((pool.available(), keys(&b)), (2, 1));
    assert_eq!(write(&mut a, &gone, b"too late"), WcStatus::REM_ACCESS_ERR);
    assert!(b.hca.violations().is_empty());
}

#[test]
fn regions_in_flight_end_with_their_queue() {
    // Unsignaled: a later completion drops the region, and with it the key.
    let mut a = one();
    let unsignaled = region(&a);
    a.qp.sq().post(1).mkey_configure(unsignaled).unwrap();
    a.hca.run();
    assert_eq!((a.available(), keys(&a)), (BUFS - 2, 1));
    a.qp.sq().post(2).signaled().write_inline(b"", &uverbs::RemoteRegion::new(0, 0, 0).unwrap()).unwrap();
    assert!(a.next().wc.status.is_success());
    assert_eq!((a.available(), keys(&a)), (BUFS, 0));
    // Taken as something else.
    let other = region(&a);
    a.qp.sq().post(3).signaled().mkey_configure(other).unwrap();
    assert!(a.next().buf().is_none());
    let other = region(&a);
    a.qp.sq().post(3).signaled().mkey_configure(other).unwrap();
    assert!(a.next().take::<Opened>().is_none());
    assert_eq!((a.available(), keys(&a)), (BUFS, 0));
    // As a receive, of a queue that is reset, and of one that is dropped.
    let first = region(&a);
    let first = configure(&mut a, first);
    let second = region(&a);
    let second = configure(&mut a, second);
    a.qp.rq().unwrap().post(4, first).unwrap();
    a.qp.reset().unwrap();
    assert_eq!((a.available(), keys(&a)), (BUFS - 2, 1));
    loopback(&a);
    a.qp.rq().unwrap().post(5, second).unwrap();
    let End { qp, cq, pool, pd, context, hca } = a;
    drop((qp, cq));
    assert_eq!((pool.available() as u32, hca.objects().get("devx_obj")), (BUFS, None));
    drop((pool, pd, context));
    assert!(hca.violations().is_empty());
    assert!(hca.objects().is_empty(), "{:?}", hca.objects());
}

/// The key belongs to no QP: it is open after the end of the QP that has opened it.
#[test]
fn a_region_outlives_its_queue() {
    let (mut a, mut b) = pair();
    let (pool, region) = opened(&mut b, 2);
    let whole = region.remote_region().unwrap();
    b.qp.reset().unwrap();
    a.qp.reset().unwrap();
    b.qp = b.pd.qp::<Rc>().mkeys(ENTRIES).cq(&b.cq).cap(CAP).create().unwrap();
    connect(&a.qp, &b.qp).unwrap();
    assert_eq!(write(&mut a, &whole, b"another queue"), WcStatus::SUCCESS);
    b.receives(0);
    a.receives(1);
    b.qp.send(region).unwrap();
    let region: Opened = back(b.next(), WcOpcode::SEND);
    assert_eq!(&a.next().buf().unwrap()[..13], b"another queue");
    // And after the program has dropped everything else of the device, until it is dropped.
    let End { qp, cq, pd, context, hca, pool: own } = b;
    drop((qp, cq, pd, context, own, pool));
    assert_eq!(hca.objects().get("devx_obj"), Some(&1));
    drop(region);
    assert!(hca.objects().is_empty() && hca.violations().is_empty(), "{:?}", hca.objects());
}

#[test]
fn flushed_work_requests_leave_a_region_as_it_was() {
    let mut a = one();
    let opened = region(&a);
    let opened = configure(&mut a, opened);
    let closed = region(&a);
    a.qp.control().modify_state(uverbs::attr::QpState::ERR).unwrap();
    a.qp.sq().post(1).signaled().mkey_configure(closed).unwrap();
    a.qp.sq().post(2).signaled().mkey_invalidate(opened).unwrap();
    let regions: [Region; 2] = [(); 2].map(|()| {
        let done = a.next();
        assert_eq!(done.wc.status, WcStatus::WR_FLUSH_ERR);
        done.take().unwrap()
    });
    assert_eq!([0, 1].map(|i| regions[i].is_open()), [false, true]);
    let [closed, opened] = regions;
    // A flush does not say whether the device has executed it.
    let closed = closed.into_parts().expect_err("it may be open");
    let opened = opened.into_parts().expect_err("it is open still");
    drop((closed, opened));
    assert_eq!((a.available(), keys(&a)), (BUFS, 0));
    assert!(a.hca.violations().is_empty());
}

/// The device does not wait for the peer's answer to an earlier work request: a configuration that is flushed after its error has opened the
/// region.
#[test]
fn a_flushed_configuration_may_have_been_executed() {
    let fabric = Fabric::deterministic(7);
    let (mut a, mut b) = pair_on(&fabric);
    let (pool, bufs) = exposed(&b, 2, 16);
    let key = b.pd.create_mkey(ENTRIES as u16).unwrap();
    // "Mkey 0x.. of ..": the configuration has the next value of the low 8 bits.
    let number =
        format!("{key:?}").split(['x', ' ']).nth(2).and_then(|n| u32::from_str_radix(n, 16).ok()).unwrap();
    let executed = number & !0xff | number.wrapping_add(1) & 0xff;
    let region = MkeyRegion::new(key, bufs).unwrap();
    fabric.script("packet device=hca1 opcode=send : drop").unwrap();
    b.qp.send(b.filled(b"lost")).unwrap();
    b.qp.sq().post(1).signaled().mkey_expose(region, crate::mkeys::RIGHTS).unwrap();
    assert_eq!(b.next().wc.status, WcStatus::RETRY_EXC_ERR);
    let done = b.next();
    assert_eq!(done.wc.status, WcStatus::WR_FLUSH_ERR);
    let region: Opened = done.take().unwrap();
    assert!(!region.is_open() && region.remote_region().is_none());
    fabric.script("").unwrap();
    a.qp.reset().unwrap();
    b.qp = b.pd.qp::<Rc>().mkeys(ENTRIES).cq(&b.cq).cap(CAP).create().unwrap();
    connect(&a.qp, &b.qp).unwrap();
    let executed = uverbs::RemoteRegion::new(0, 32, executed).unwrap();
    assert_eq!(write(&mut a, &executed, b"it was executed"), WcStatus::SUCCESS);
    // So the buffers come back after an end of the key, or of a new configuration.
    let region = region.into_parts().expect_err("it may be open");
    let region = expose(&mut b, region);
    drop(invalidate(&mut b, region).into_parts().expect("closed"));
    assert_eq!((pool.available(), keys(&b)), (2, 0));
    assert!(b.hca.violations().is_empty());
}

#[test]
fn a_key_that_the_kernel_does_not_destroy_leaks_its_buffers() {
    for close in [false, true] {
        let hca = Fabric::deterministic(7).device("hca0").build();
        let (kernel, refuse) = refuses(hca.open(), What::Firmware);
        let mut a = end(hca, kernel);
        loopback(&a);
        let (pool, region) = opened(&mut a, 2);
        let whole = region.remote_region().unwrap();
        refuse.store(true, Ordering::Relaxed);
        if close {
            assert!(region.close().is_err());
        } else {
            drop(region);
        }
        assert_eq!(pool.available(), 0);
        drop(pool);
        assert_eq!(write(&mut a, &whole, b"late"), WcStatus::SUCCESS, "the key is that of the lost buffers");
    }
}

#[test]
fn a_region_of_a_removed_device_keeps_its_bytes() {
    for unplug in [false, true] {
        let mut a = one();
        let (pool, opened) = opened(&mut a, 2);
        let local = region(&a);
        let mut local = configure(&mut a, local);
        if unplug {
            a.hca.unplug()
        } else {
            a.hca.kill()
        }
        local.buf_mut(0).unwrap().fill(b'x');
        opened.bufs()[0].write_at(0, b"still mapped").unwrap();
        let rejected = a.qp.sq().post(1).signaled().mkey_invalidate(local);
        let local: Option<Region> = rejected.err().and_then(|rejected| rejected.returned);
        if let Some(local) = &local {
            assert_eq!(&local.bufs()[0][..], b"xxxxxx");
        }
        drop((local, opened));
        drop(a);
        // The kernel has destroyed the key with the device.
        assert_eq!(pool.available(), 2);
    }
}

/// A peer that has the key of a former region can't use that of the next one, which may have the same number.
#[test]
fn numbers_are_used_again_with_other_keys() {
    let (mut a, mut b) = pair();
    let (_pool, mut bufs) = exposed(&b, 2, 16);
    let (mut former, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..100 {
        let region = MkeyRegion::new(b.pd.create_mkey(2).unwrap(), bufs).unwrap();
        let region = expose(&mut b, region);
        let whole = region.remote_region().unwrap();
        assert_eq!(write(&mut a, &whole, b"this one"), WcStatus::SUCCESS);
        let region = invalidate(&mut b, region);
        let region = expose(&mut b, region);
        let again = region.remote_region().unwrap();
        assert!(former.insert(whole.rkey()) && former.insert(again.rkey()), "{whole:?} {again:?}");
        numbers.insert(whole.rkey() >> 8);
        bufs = region.close().unwrap();
    }
    assert_eq!((former.len(), keys(&b)), (200, 0));
    assert!(numbers.len() <= 100);
    assert!(b.hca.violations().is_empty());
}

#[test]
fn ten_thousand_keys() {
    const KEYS: u32 = 10_000;
    let mut a = one();
    let pool: Pool<Private, Mlx5> = a.pd.pool(2 * KEYS, 64).unwrap();
    let buf = |n: u32| {
        let mut buf = pool.get().unwrap();
        buf.fill(&n.to_ne_bytes()).unwrap();
        buf
    };
    let regions: Vec<_> = (0..KEYS)
        .map(|n| {
            let region = MkeyRegion::new(a.pd.create_mkey(2).unwrap(), [buf(n), buf(!n)]).unwrap();
            configure(&mut a, region)
        })
        .collect();
    assert_eq!((keys(&a), pool.available()), (KEYS as usize, 0));
    for (n, region) in (0..).zip(regions).filter(|(n, _)| n % 97 == 0) {
        a.receives(1);
        a.qp.send(region).unwrap();
        let both = [a.next(), a.next()];
        let message = both.into_iter().find_map(|done| {
            assert!(done.wc.status.is_success());
            (done.wc.opcode == WcOpcode::RECV).then(|| done.buf().unwrap())
        });
        assert_eq!(*message.unwrap(), [u32::to_ne_bytes(n), u32::to_ne_bytes(!n)].concat());
    }
    assert_eq!((keys(&a), pool.available() as u32), (0, 2 * KEYS));
    assert!(a.hca.violations().is_empty());
}

/// One thread opens, uses and ends regions, another one polls, and a third one creates and drops others.
#[test]
fn regions_go_round_between_threads() {
    const ROUNDS: u32 = 600;
    let hca = Hca::new();
    let context = open(hca.open());
    let pd = context.alloc_pd().unwrap();
    let cq: Cq<Shared, Mlx5> = context.cq_with(64, None).unwrap();
    let qp = pd.qp::<Rc>().shared().cq(&cq).cap(CAP).mkeys(ENTRIES).create().unwrap();
    let attr = crate::bed::attr();
    qp.init(&attr).unwrap();
    let here = qp.control().endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
    let pool = pd.pool(16, 64).unwrap();
    let (polled, regions) = mpsc::channel::<(WcOpcode, Option<Region>)>();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                match cq.poll_one().unwrap() {
                    Some(completed) => {
                        assert!(completed.wc.status.is_success(), "{completed:?}");
                        // What the third thread has posted is dropped here, with its key.
                        if completed.wc.wr_id == 1 {
                            let _ = polled.send((completed.wc.opcode, completed.take()));
                        }
                    }
                    None => thread::yield_now(),
                }
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let Some(buf) = pool.try_get() else { continue };
                let region = MkeyRegion::new(pd.create_mkey(2).unwrap(), [buf]).unwrap();
                if qp.sq().lock().unwrap().post(9).signaled().mkey_configure(region).is_err() {
                    thread::yield_now();
                }
            }
        });
        let get = || loop {
            match pool.try_get() {
                Some(buf) => break buf,
                None => thread::yield_now(),
            }
        };
        let mut region = MkeyRegion::new(pd.create_mkey(ENTRIES as u16).unwrap(), [get(), get()]).unwrap();
        let next = || loop {
            if let (opcode, Some(region)) = regions.recv().unwrap() {
                break (opcode, region);
            }
        };
        for _ in 0..ROUNDS {
            for step in [WcOpcode::DRIVER1, WcOpcode::RDMA_WRITE, WcOpcode::LOCAL_INV] {
                let mut mine = Some(region);
                while let Some(region) = mine.take() {
                    let mut queue = qp.sq().lock().unwrap();
                    let wr = queue.post(1).signaled();
                    let posted = match step {
                        WcOpcode::DRIVER1 => wr.mkey_configure(region),
                        WcOpcode::LOCAL_INV => wr.mkey_invalidate(region),
                        _ => {
                            let mut region = region;
                            region.set_used(0..0).unwrap();
                            wr.write(region, &uverbs::RemoteRegion::new(0, 0, 0).unwrap())
                        }
                    };
                    if let Err(rejected) = posted {
                        assert_eq!(rejected.error, PostError::QueueFull);
                        drop(queue);
                        thread::yield_now();
                        mine = rejected.returned;
                    }
                }
                let (opcode, back) = next();
                assert_eq!(opcode, step);
                region = back;
            }
        }
        drop(region);
        done.store(true, Ordering::Release);
    });
    drop(qp);
    assert_eq!(pool.available(), 16);
    assert_eq!(hca.objects().get("devx_obj"), None);
    assert!(hca.violations().is_empty());
}
