// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations whose completion no task waits for.

use crate::bed::{BUFS, Bed, DEPTH, Task, join, poll_once};
use uverbs::WcStatus;
use uverbs_aio::Error;

#[test]
fn detached_sends_wait_for_entries_and_arrive_in_their_order() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async {
            for i in 0..100_u8 {
                match i % 5 {
                    0 => a.qp.send_inline(&[i]).detach().await?,
                    // An operation with a completion frees those before it, too.
                    1 => _ = a.qp.send(a.filled(&[i])).await?,
                    _ => a.qp.send(a.filled(&[i])).detach().await.map_err(Error::from)?,
                }
            }
            Ok(())
        }),
        Box::pin(async {
            for i in 0..100 {
                assert_eq!(&*b.qp.recv().await?, [i]);
            }
            Ok(())
        }),
    ];
    bed.run(join(tasks)).unwrap();
    bed.step();
    let kept = BUFS as usize - a.pool.available();
    assert!(kept < DEPTH as usize / 2, "{kept} buffers are with the queue");
    // All of them come back with the next completion.
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async { a.qp.send_inline(b"last").await.map_err(Error::from) }),
        Box::pin(async { b.qp.recv().await.map(drop) }),
    ];
    bed.run(join(tasks)).unwrap();
    bed.step();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
    bed.run(a.qp.shutdown()).unwrap();
}

#[test]
fn few_detached_sends_make_a_completion() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let mut completions = 0;
    for i in 0..32_u8 {
        bed.run(a.qp.send_inline(&[i]).detach()).unwrap();
        bed.fabric.run_for(core::time::Duration::from_millis(1));
        completions += a.dispatcher.poll_once().unwrap();
        assert_eq!(&*bed.run(b.qp.recv()).unwrap(), [i]);
    }
    assert!(completions <= 32 / (DEPTH as usize / 2), "{completions} completions");
}

#[test]
fn a_detached_send_that_fails_ends_the_queue() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    b.hca.kill();
    for i in 0..3 {
        assert!(poll_once(&mut a.qp.send(a.filled(&[i])).detach()).is_ready());
    }
    let Err(Error::Completion { status, .. }) = bed.run(a.qp.recv()) else { panic!("the peer is dead") };
    assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    let failed = bed.run(a.qp.send(a.filled(b"late"))).unwrap_err();
    assert!(failed.returned.is_some(), "{failed}");
    drop(failed);
    bed.step();
    a.assert_no_leak(0);
    bed.run(a.qp.shutdown()).unwrap();
    let failed = bed.run(a.qp.send_inline(b"closed").detach()).unwrap_err();
    assert!(matches!(failed.error, Error::Closed), "{failed}");
}

/// A program may poll an operation by hand, and decide then that it waits for it no longer.
#[test]
fn an_operation_that_was_posted_is_detached() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let ops: Vec<_> = (0..2 * DEPTH)
        .map(|i| {
            let mut op = a.qp.send(a.filled(&[i as u8]));
            assert!(poll_once(&mut op).is_pending());
            op
        })
        .collect();
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async {
            // The first half was posted, and the others wait for entries.
            for op in ops {
                op.detach().await?;
            }
            a.qp.send_inline(b"last").await.map_err(Error::from)
        }),
        Box::pin(async {
            for i in 0..2 * DEPTH {
                assert_eq!(&*b.qp.recv().await?, [i as u8]);
            }
            b.qp.recv().await.map(drop)
        }),
    ];
    bed.run(join(tasks)).unwrap();
    bed.step();
    a.assert_no_leak(DEPTH);
    // Also one that is complete already.
    let mut op = a.qp.send(a.filled(b"done"));
    assert!(poll_once(&mut op).is_pending());
    bed.step();
    bed.run(op.detach()).unwrap();
    bed.step();
    a.assert_no_leak(DEPTH);
}
