// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared buffers and parts of buffers: many operations of one buffer, which comes back when the last one is done.

use crate::bed::{BUFS, Bed, DEPTH, Task, connect, join, poll_once};
use core::time::Duration;
use uverbs::mlx5::Mlx5;
use uverbs::{BufList, Context, Exposed, PostError, SharedBuf, WcStatus};
use uverbs_aio::{Dispatcher, Error};
use uverbs_hca::Fabric;

/// A page whose bytes are different, as far as possible.
fn page() -> Vec<u8> {
    (0..4096_u32).map(|i| (i % 251) as u8).collect()
}

fn bytes(buf: &uverbs::Buf<Exposed, Mlx5>) -> Vec<u8> {
    let mut out = vec![0; 4096];
    buf.read_at(0, &mut out).unwrap();
    out
}

#[test]
fn parts_of_a_shared_buffer_are_written_at_once() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let at = table.remote_region();
    let shared = a.filled(&page()).share();
    // More than the queue has entries.
    let mut writes: Vec<_> = (0..64)
        .map(|i| {
            let (from, to) = (i * 64, i as u64 * 64);
            a.qp.write(shared.slice(from..from + 64).unwrap(), &at.slice(to..to + 64).unwrap())
        })
        .collect();
    assert!(writes.iter_mut().all(|write| poll_once(write).is_pending()));
    let mut shared = shared.try_unwrap().unwrap_err();
    for write in writes {
        // The whole buffer, as an owner.
        let back = bed.run(write).unwrap();
        assert_eq!((back.len(), &*back == page().as_slice()), (4096, true));
        shared = shared.try_unwrap().unwrap_err();
    }
    assert_eq!(bytes(&table), page());
    let mut buf = shared.try_unwrap().expect("the last owner");
    buf[0] = 1;
    drop(buf);
    a.assert_no_leak(DEPTH);
}

/// Futures are dropped before the first poll, while they wait for an entry, in flight, and when they are done.
#[test]
fn a_shared_buffer_of_dropped_futures_comes_back_with_the_last_completion() {
    for count in [1, DEPTH, 2 * DEPTH] {
        let bed = Bed::new();
        let a = &bed.a;
        let table = bed.b.exposed();
        let at = table.remote_region();
        let shared = a.filled(&page()).share();
        let write = || a.qp.write(shared.slice(8..16).unwrap(), &at);
        let mut writes: Vec<_> = (0..count).map(|_| write()).collect();
        let new = write();
        assert!(writes.iter_mut().all(|write| poll_once(write).is_pending()));
        drop((shared, new));
        let last = writes.pop().unwrap();
        drop(writes);
        assert_eq!(a.pool.available() as u32, BUFS - 1, "it is in flight");
        match count {
            1 => drop(last),
            _ => assert_eq!(&*bed.run(last).unwrap(), page()),
        }
        bed.step();
        a.assert_no_leak(DEPTH);
        assert_eq!(bytes(&table)[..8], page()[8..16]);
    }
}

/// A future that is forgotten is an owner for ever; the others end, and the queue goes on.
#[test]
fn a_forgotten_future_keeps_its_owner_only() {
    let bed = Bed::new();
    let a = &bed.a;
    let shared = a.filled(&page()).share();
    let mut forgotten = a.qp.send(shared.clone());
    assert!(poll_once(&mut forgotten).is_pending());
    core::mem::forget(forgotten);
    for _ in 0..2 * DEPTH {
        bed.run(a.qp.send(shared.clone())).unwrap();
        drop(bed.b.qp.try_recv());
    }
    assert!(shared.try_unwrap().is_err());
    assert_eq!(a.pool.available() as u32, BUFS - 1);
}

#[test]
fn detached_operations_of_one_buffer() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let shared = a.filled(&page()).share();
    bed.run(async {
        for _ in 0..100 {
            a.qp.send(shared.slice(0..4)?).detach().await?;
            assert_eq!(&*b.qp.recv().await?, &page()[..4]);
        }
        // Its completion frees those before it.
        a.qp.send_inline(b"last").await?;
        assert_eq!(&*b.qp.recv().await?, b"last");
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(shared.try_unwrap().expect("no other owner").len(), 4096);
}

#[test]
fn parts_and_lists_of_buffers() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let at = table.remote_region();
    bed.run(async {
        let part = a.qp.write(a.filled(&page()).part(100..200)?, &at).await?;
        assert_eq!((part.range(), &bytes(&table)[..100]), (100..200, &page()[100..200]));
        // Into another part of the buffer.
        let part = part.into_buf().part(0..50)?;
        let buf = a.qp.read(part, &at.slice(50..100)?).await?.into_buf();
        assert_eq!((&buf[..50], &buf[50..]), (&page()[150..200], &page()[50..]));
        table.write_at(0, &7_u64.to_ne_bytes())?;
        let buf = a.qp.fetch_add(buf.part(8..16)?, &at, 1).await?.into_buf();
        assert_eq!((&buf[..8], &buf[8..16]), (&page()[150..158], &7_u64.to_ne_bytes()[..]));
        let failed = a.qp.fetch_add(buf.part(0..16)?, &at, 1).await.unwrap_err();
        assert!(matches!(failed.error, Error::Post(error) if error == PostError::InvalidLength));
        a.qp.send(failed.returned.expect("it was not posted")).await?;
        assert_eq!(b.qp.recv().await?.len(), 16);
        // The QP has one entry for each work request.
        let failed = a.qp.send(BufList::from([a.filled(b"1"), a.filled(b"2")])).await.unwrap_err();
        assert_eq!(failed.returned.expect("it was not posted").len(), 2);
        let list = a.qp.send(BufList::from([a.filled(b"one")])).await?;
        assert_eq!((list.len(), &*b.qp.recv().await?), (1, &b"one"[..]));
        let [qp, other] = [a, b].map(|end| {
            let qp = end.dispatcher.qp(&end.pd).depth(4, 4).sge(3).pool(&end.incoming);
            qp.create().unwrap()
        });
        connect(&qp, &other);
        let list = qp.send(BufList::from([a.filled(b"one"), a.filled(b"two")])).await?;
        assert_eq!((list.len(), &*other.recv().await?), (2, &b"onetwo"[..]));
        let mut list = BufList::from([a.filled(b"123"), a.filled(b"456")]);
        list = qp.read(list, &at).await?;
        let mut six = [0; 6];
        table.read_at(0, &mut six)?;
        assert_eq!([&*list[0], &*list[1]].concat(), six);
        Ok::<_, Error>(())
    })
    .unwrap();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn batches_of_buffers_parts_and_owners() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let at = table.remote_region();
    let shared = a.filled(&page()).share();
    bed.run(async {
        let mut batch = a.qp.batch();
        for i in 0..62_usize {
            batch.write(shared.slice(i * 64..(i + 1) * 64)?, &at.slice(i as u64 * 64..(i as u64 + 1) * 64)?);
        }
        batch.write(a.filled(&page()[3968..4032]), &at.slice(3968..4032)?);
        batch.write(a.filled(&page()).part(4032..4096)?, &at.slice(4032..4096)?);
        batch.send(shared.slice(0..1)?);
        batch.await?;
        assert_eq!((bytes(&table), &*b.qp.recv().await?), (page(), &page()[..1]));

        let mut batch = a.qp.read_batch();
        batch.read(a.filled(&[0; 4096]).part(0..64)?, &at);
        batch.fetch_add(a.filled(&page()), &at, 0);
        let bufs = batch.await?;
        assert_eq!((&bufs[0][..64], bufs[0].len(), bufs[1].len()), (&page()[..64], 4096, 8));
        Ok::<_, Error>(())
    })
    .unwrap();
    // One that is dropped after a part of it was posted.
    let mut batch = a.qp.batch();
    for _ in 0..3 * DEPTH {
        batch.write(shared.clone(), &at);
    }
    assert!(poll_once(&mut batch).is_pending());
    drop(batch);
    let shared = shared.try_unwrap().unwrap_err();
    bed.step();
    assert!(shared.try_unwrap().is_ok());
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

/// After an error, each operation gives its owner back, and so does the end of the QP.
#[test]
fn an_error_gives_the_owners_back() {
    let bed = Bed::new();
    let a = &bed.a;
    let table = bed.b.exposed();
    let wrong = uverbs::RemoteRegion::new(table.remote_region().addr(), 64, 0xdead).unwrap();
    let shared = a.filled(&page()).share();
    let mut writes: Vec<_> = (0..4).map(|_| a.qp.write(shared.slice(0..64).unwrap(), &wrong)).collect();
    assert!(writes.iter_mut().all(|write| poll_once(write).is_pending()));
    for (i, write) in writes.into_iter().enumerate() {
        let failed = bed.run(write).unwrap_err();
        let expected = if i == 0 { WcStatus::REM_ACCESS_ERR } else { WcStatus::WR_FLUSH_ERR };
        assert!(matches!(failed.error, Error::Completion { status, .. } if status == expected), "{failed}");
        assert_eq!(failed.returned.expect("the device is done").len(), 4096);
    }
    let mut late = a.qp.write(shared.clone(), &table.remote_region());
    assert!(poll_once(&mut late).is_pending());
    a.qp.reset().unwrap();
    assert!(bed.run(late).is_err());
    assert!(shared.try_unwrap().is_ok(), "a reset ends what is in flight");
    a.assert_no_leak(0);
}

/// One buffer is the source of writes of two devices at once, each with a dispatcher and a thread; one device is removed.
#[test]
fn two_devices_write_from_one_buffer() {
    let fabric = Fabric::new(11);
    let nics = ["a0", "a1"].map(|name| fabric.device(name).build());
    let ends = nics.clone().map(|nic| {
        let context = Context::<Mlx5>::from_kernel(nic.open()).unwrap();
        (context.alloc_pd().unwrap(), Dispatcher::new(&context).unwrap())
    });
    let peer = crate::bed::End::new(fabric.device("b").build(), false);
    let _polled = peer.dispatcher.spawn().unwrap();
    let (pds, tables) = ([&ends[0].0, &ends[1].0], [peer.exposed(), peer.exposed()]);
    let pool = pds[0].pool_with(4, 4096).also_in(pds[1]).build().unwrap();
    let mut buf = pool.get().unwrap();
    buf.fill(&page()).unwrap();
    let shared = buf.share();
    let qps: Vec<_> = ends
        .iter()
        .map(|(pd, dispatcher)| {
            let qp = dispatcher.qp(pd).depth(DEPTH, DEPTH).create().unwrap();
            let theirs = peer.dispatcher.qp(&peer.pd).depth(DEPTH, DEPTH).create().unwrap();
            connect(&qp, &theirs);
            (qp, theirs)
        })
        .collect();
    std::thread::scope(|scope| {
        for (((_, dispatcher), (qp, _)), (table, nic)) in ends.iter().zip(&qps).zip(tables.iter().zip(&nics))
        {
            let (shared, removed) = (&shared, nic.name() == "a1");
            scope.spawn(move || {
                let at = table.remote_region();
                let tasks = (0..8_usize).map(|task| -> Task<'_> {
                    Box::pin(async move {
                        for turn in 0..50 {
                            if removed && task == 0 && turn == 40 {
                                nic.unplug();
                            }
                            let (from, to) = (task * 512, task as u64 * 512);
                            let part: SharedBuf<_, _> = shared.slice(from..from + 512)?;
                            qp.write(part, &at.slice(to..to + 512)?).await?;
                        }
                        Ok(())
                    })
                });
                let all = dispatcher.timeout(Duration::from_secs(60), join(tasks.collect()));
                let ended = dispatcher.block_on(all);
                match removed {
                    true => assert!(matches!(ended, Err(Error::DeviceRemoved)), "{ended:?}"),
                    false => ended.unwrap(),
                }
            });
        }
    });
    assert_eq!(tables.each_ref().map(bytes), [page(), page()]);
    // What the removed device had in flight ends with its QP.
    drop((qps, ends));
    assert!(shared.try_unwrap().is_ok());
    assert_eq!(pool.available(), 4);
}
