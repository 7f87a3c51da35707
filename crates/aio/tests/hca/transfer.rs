// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that succeed.

use crate::bed::{Bed, DEPTH, Task, join};
use core::time::Duration;
use uverbs::Window;
use uverbs::attr::AccessFlags;
use uverbs::wr::ImmData;
use uverbs_aio::{Error, Result};

#[test]
fn every_operation_gives_its_buffer_back() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let at = table.remote_region();
    bed.run(async {
        let buf = a.qp.send(a.filled(b"hello")).await?;
        assert_eq!(&*buf, b"hello");
        assert_eq!(&*b.qp.recv().await?, b"hello");
        a.qp.send_imm(buf, ImmData::new(7)).await?;
        assert_eq!(b.qp.recv().await?.imm(), Some(ImmData::new(7)));
        a.qp.send_inline(b"inline").await?;
        assert_eq!(&*b.qp.recv().await?, b"inline");

        let buf = a.qp.write(a.filled(b"stored"), &at).await?;
        let mut back = a.qp.read(buf, &at).await?;
        assert_eq!(&*back, b"stored");
        a.qp.write_inline(&5_u64.to_ne_bytes(), &at).await?;
        let old = a.qp.fetch_add(back, &at, 10).await?;
        assert_eq!(&*old, 5_u64.to_ne_bytes());
        back = a.qp.compare_swap(old, &at, 15, 99).await?;
        assert_eq!(&*back, 15_u64.to_ne_bytes());
        back.set_len(8)?;
        assert_eq!(&*a.qp.read(back, &at).fenced().await?, 99_u64.to_ne_bytes());

        a.qp.write_imm(a.filled(b"with"), &at, ImmData::new(8)).solicited().await?;
        let message = b.qp.recv().await?;
        assert_eq!(
            (message.imm(), message.len(), message.completion().byte_len),
            (Some(ImmData::new(8)), 0, 4)
        );
        a.qp.write_imm_inline(b"too", &at, ImmData::new(9)).await?;
        assert_eq!(b.qp.recv().await?.imm(), Some(ImmData::new(9)));
        Ok::<_, Error>(())
    })
    .unwrap();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_window_is_opened_for_the_peer() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::MW_BIND;
    let buf = b.pd.pool_with(1, 4096).exposed(access).build().unwrap().get().unwrap();
    let window = Window::new(b.pd.alloc_mw(uverbs::attr::MwType::Type1).unwrap(), buf);
    bed.run(async {
        let window = b.qp.bind(window, AccessFlags::REMOTE_WRITE).await?;
        let at = window.remote_region().expect("it is open");
        a.qp.write(a.filled(b"through the window"), &at).await?;
        let mut bytes = [0; 18];
        window.close()?.read_at(0, &mut bytes)?;
        assert_eq!(&bytes, b"through the window");
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn requests_and_answers_with_many_in_flight_and_lost_packets() {
    let bed = Bed::seeded(42);
    bed.fabric.loss(0.01).duplicate(0.01).reorder(0.01).delay(Duration::from_micros(5));
    let (a, b) = (&bed.a, &bed.b);
    let echo = async {
        for _ in 0..1000 {
            let message = b.qp.recv().await?;
            b.qp.send(message.into_buf()).await?;
        }
        Ok(())
    };
    let ask = async |first: u32| -> Result<()> {
        for i in (first..1000).step_by(4) {
            a.qp.send(a.filled(&i.to_ne_bytes())).await?;
        }
        Ok(())
    };
    let check = async {
        let mut seen = vec![false; 1000];
        for _ in 0..1000 {
            let message = a.qp.recv().await?;
            let i = u32::from_ne_bytes(message[..].try_into().unwrap());
            assert!(!core::mem::replace(&mut seen[i as usize], true), "{i} twice");
        }
        Ok(())
    };
    let mut tasks: Vec<Task<'_>> = vec![Box::pin(echo), Box::pin(check)];
    tasks.extend((0..4).map(|first| Box::pin(ask(first)) as Task<'_>));
    bed.run(join(tasks)).unwrap();
    assert!(a.hca.repairs() + b.hca.repairs() > 0, "packets were lost");
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_time_limit_ends_the_wait_and_not_the_operation() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let limit = Duration::from_millis(50);
    let before = bed.fabric.now();
    let error = bed.run(a.dispatcher.timeout(limit, a.qp.recv())).unwrap_err();
    assert!(matches!(error, Error::TimedOut), "{error}");
    let waited = bed.fabric.now() - before;
    assert!((limit..limit * 2).contains(&waited), "{waited:?}");
    // The message that arrives later goes to the next future.
    bed.run(b.qp.send(b.filled(b"late"))).unwrap();
    let message = bed.run(a.dispatcher.timeout(limit, a.qp.recv())).unwrap();
    assert_eq!(&*message, b"late");

    bed.fabric.loss(1.0);
    let failed =
        bed.run(a.dispatcher.timeout(Duration::from_micros(10), a.qp.send(a.filled(b"slow")))).unwrap_err();
    assert!(matches!(failed.error, Error::TimedOut) && failed.returned.is_none());
    bed.fabric.loss(0.0);
    assert_eq!(&*bed.run(b.qp.recv()).unwrap(), b"slow", "it was posted");
    bed.step();
    drop(message);
    a.assert_no_leak(DEPTH);
}

#[test]
fn sleeps_end_in_their_order() {
    let bed = Bed::new();
    let order = core::cell::RefCell::new(Vec::new());
    let sleep = async |ms: u64| {
        bed.a.dispatcher.sleep(Duration::from_millis(ms)).await;
        order.borrow_mut().push(ms);
        Ok(())
    };
    bed.run(join(vec![Box::pin(sleep(30)), Box::pin(sleep(10)), Box::pin(sleep(20))])).unwrap();
    assert_eq!(*order.borrow(), [10, 20, 30]);
}

#[test]
fn batches_of_any_length_have_one_result() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let at = |i: usize| table.remote_region().slice(i as u64 * 4..i as u64 * 4 + 4).unwrap();
    bed.run(async {
        // More than the queue has entries, by two tasks at once.
        let fill = async |first: usize| -> Result<()> {
            let mut batch = a.qp.batch();
            for i in first..first + 25 {
                batch.write(a.filled(&(i as u32).to_ne_bytes()), &at(i));
            }
            batch.write_imm(a.filled(b"done"), &at(100 + first), ImmData::new(first as u32));
            assert_eq!(batch.len(), 26);
            batch.await
        };
        join(vec![Box::pin(fill(0)), Box::pin(fill(25))]).await?;
        for _ in 0..2 {
            assert!(b.qp.recv().await?.imm().is_some());
        }
        let mut bytes = [0; 200];
        table.read_at(0, &mut bytes)?;
        let numbers: Vec<_> = bytes.chunks(4).map(|n| u32::from_ne_bytes(n.try_into().unwrap())).collect();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
        a.qp.batch::<uverbs::mr::Private>().await
    })
    .unwrap();
    bed.run(a.qp.shutdown()).unwrap();
    a.assert_no_leak(0);
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_batch_reports_the_first_error_and_gives_its_buffers_back() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let good = table.remote_region();
    let bad = uverbs::RemoteRegion::new(good.addr(), 4, good.rkey() ^ 0x100).unwrap();
    let mut batch = a.qp.batch();
    for i in 0..20 {
        batch.write(a.filled(b"data"), if i == 5 { &bad } else { &good });
    }
    let error = bed.run(batch).unwrap_err();
    assert!(matches!(error, Error::Completion { status: uverbs::WcStatus::REM_ACCESS_ERR, .. }), "{error}");
    bed.run(a.qp.shutdown()).unwrap();
    bed.step();
    a.assert_no_leak(0);
    // One that can't be posted.
    let mut batch = b.qp.batch();
    batch.send(b.filled(b"fine"));
    batch.write(b.filled(b"longer than the region"), &bad);
    assert!(matches!(bed.run(batch).unwrap_err(), Error::Post(_)));
    // Its receives were flushed, too.
    b.assert_no_leak(0);
}

#[test]
fn batches_of_reads_give_their_buffers_back_in_order() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let at = |i: usize| table.remote_region().slice(i as u64 * 8..i as u64 * 8 + 8).unwrap();
    bed.run(async {
        for i in 0..50_u64 {
            a.qp.write_inline(&i.to_ne_bytes(), &at(i as usize)).await?;
        }
        // More than the queue has entries, by two tasks at once, while a third one sends.
        let fetch = async |first: usize| -> Result<()> {
            let mut batch = a.qp.read_batch();
            for i in first..first + 24 {
                batch.read(a.filled(&[0; 8]), &at(i));
            }
            batch.fetch_add(a.filled(&[0; 8]), &at(first + 24), 100);
            batch.compare_swap(a.filled(&[0; 8]), &at(first + 24), first as u64 + 124, 7);
            assert_eq!((batch.len(), batch.is_empty()), (26, false));
            let numbers: Vec<_> =
                batch.await?.iter().map(|buf| u64::from_ne_bytes(buf[..8].try_into().unwrap())).collect();
            let mut expected: Vec<_> = (first as u64..first as u64 + 25).collect();
            expected.push(first as u64 + 124);
            assert_eq!(numbers, expected);
            Ok(())
        };
        let send = async {
            for _ in 0..20 {
                a.qp.send_inline(b"between").await?;
                b.qp.recv().await?;
            }
            Ok(())
        };
        join(vec![Box::pin(fetch(0)), Box::pin(fetch(25)), Box::pin(send)]).await?;
        let mut word = [0; 8];
        table.read_at(24 * 8, &mut word)?;
        assert_eq!(u64::from_ne_bytes(word), 7, "it was swapped");
        assert!(a.qp.read_batch::<uverbs::mr::Private>().await?.is_empty());
        Ok::<_, Error>(())
    })
    .unwrap();
    bed.run(a.qp.shutdown()).unwrap();
    a.assert_no_leak(0);
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_batch_of_reads_reports_the_first_error_and_gives_its_buffers_back() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let table = b.exposed();
    let good = table.remote_region();
    let bad = uverbs::RemoteRegion::new(good.addr(), 8, good.rkey() ^ 0x100).unwrap();
    let mut batch = b.qp.read_batch();
    batch.read(b.filled(b"12345678"), &good);
    batch.read(b.filled(b"longer than the region"), &bad);
    assert!(matches!(bed.run(batch).unwrap_err(), Error::Post(_)), "one that can't be posted");
    b.assert_no_leak(DEPTH);
    let mut batch = a.qp.read_batch();
    for i in 0..20 {
        batch.read(a.filled(b"12345678"), if i == 5 { &bad } else { &good });
    }
    let error = bed.run(batch).unwrap_err();
    assert!(matches!(error, Error::Completion { status: uverbs::WcStatus::REM_ACCESS_ERR, .. }), "{error}");
    bed.run(a.qp.shutdown()).unwrap();
    bed.step();
    a.assert_no_leak(0);
}
