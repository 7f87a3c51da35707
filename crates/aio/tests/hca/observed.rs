// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a dispatcher counts, and what is reported by `tracing`.

use crate::bed::Bed;

#[cfg(feature = "counters")]
#[test]
fn a_dispatcher_counts_polls_completions_and_sleeps() {
    use crate::bed::End;
    use core::time::Duration;
    use std::time::Instant;
    use uverbs_hca::Hca;

    let bed = Bed::new();
    let before = bed.a.dispatcher.counters().unwrap();
    for i in 0..10 {
        let mut send = bed.a.qp.send(bed.a.filled(&[i]));
        assert!(crate::bed::poll_once(&mut send).is_pending());
        assert_eq!(*bed.run(bed.b.qp.recv()).unwrap(), [i]);
        bed.run(send).unwrap();
    }
    let now = bed.a.dispatcher.counters().unwrap();
    assert_eq!((now.completions - before.completions, now.errors), (10, 0));
    assert!(now.polls >= before.polls + 10, "{now:?}");
    assert_eq!(bed.b.dispatcher.counters().unwrap().completions, 10);
    // The queues of the dispatcher are those of its context.
    let context = bed.a.dispatcher.context().counters().unwrap();
    assert_eq!((context.send.posts, context.send.completed, context.cq.completions), (10, 10, 10));

    // In real time it sleeps, and another thread ends the sleep.
    let end = End::new(Hca::new(), false);
    let thread = end.dispatcher.spawn().unwrap();
    let begin = Instant::now();
    while end.dispatcher.counters().unwrap().sleeps == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not sleep");
        std::thread::yield_now();
    }
    drop(thread);
    let now = end.dispatcher.counters().unwrap();
    assert!(now.sleeps >= 1 && now.wakeups >= 1, "{now:?}");
    // On a busy machine the time can be over before the first look.
    while end.dispatcher.counters().unwrap().sleeps == now.sleeps {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not sleep");
        end.dispatcher.block_on(end.dispatcher.sleep(Duration::from_millis(1)));
    }
}

/// A dispatcher that always has something to do reads its descriptors now and then, which is no sleep.
#[cfg(feature = "counters")]
#[test]
fn a_busy_dispatcher_counts_no_sleeps() {
    use crate::bed::End;
    use core::task::Poll;
    use uverbs_hca::Hca;

    let end = End::new(Hca::new(), false);
    let (before, mut turns) = (end.dispatcher.counters().unwrap(), 0);
    end.dispatcher.block_on(core::future::poll_fn(|cx| {
        turns += 1;
        cx.waker().wake_by_ref();
        if turns < 5000 { Poll::Pending } else { Poll::Ready(()) }
    }));
    let now = end.dispatcher.counters().unwrap();
    assert!(now.polls > before.polls, "{now:?}");
    assert_eq!(now.sleeps, before.sleeps);
}

/// The recorder of these tests keeps what its own thread reports, whichever thread reports the event for the first time.
#[cfg(feature = "tracing")]
#[test]
fn an_event_that_another_thread_reaches_first_is_seen() {
    fn report() {
        tracing::info!(target: "uverbs_aio", "reached");
    }
    let ((), seen) = uverbs_testkit::recorder::events(|| {
        std::thread::spawn(report).join().unwrap();
        report();
    });
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].field("message"), "reached");
}

#[cfg(feature = "tracing")]
#[test]
fn reconnects_and_errors_are_reported_with_the_qp() {
    use crate::bed::connect;
    use tracing::Level;
    use uverbs::RemoteRegion;
    use uverbs_testkit::recorder::{Seen, events};

    let bed = Bed::new();
    let ((), seen) = events(|| {
        bed.a.qp.reset().unwrap();
        bed.b.qp.reset().unwrap();
        connect(&bed.a.qp, &bed.b.qp);
    });
    let qp_num = bed.a.qp.qp_num().to_string();
    let of_a = |event: &&Seen| event.field("device") == "hca0" && event.field("state") == "RTS";
    let again: Vec<_> = seen.iter().filter(of_a).collect();
    assert_eq!(
        (again.len(), again[0].field("connects"), again[0].field("qp_num")),
        (1, "2", &*qp_num),
        "{seen:?}"
    );
    assert!(again[0].field("peer").starts_with(&format!("qp {:#x} at ", bed.b.qp.qp_num())), "{again:?}");

    let wrong = RemoteRegion::new(0x1000, 64, 0x1234).unwrap();
    let (written, seen) = events(|| bed.run(bed.a.qp.write(bed.a.filled(b"12345678"), &wrong)));
    assert!(written.is_err());
    let warnings: Vec<_> = seen.iter().filter(|event| event.level == Level::WARN).collect();
    assert_eq!(warnings.len(), 1, "{seen:?}");
    assert_eq!((warnings[0].field("qp_num"), warnings[0].field("status")), (&*qp_num, "10"));

    // A batch that nobody awaits, which is a line of `log` without the feature.
    let (_, seen) = events(|| {
        let mut batch = bed.b.qp.batch();
        batch.send(bed.b.filled(b"x"));
        drop(batch);
    });
    assert_eq!((seen.len(), seen[0].level, seen[0].field("device")), (1, Level::WARN, "hca1"), "{seen:?}");
    assert!(seen[0].field("message").contains("not awaited"), "{seen:?}");
}
