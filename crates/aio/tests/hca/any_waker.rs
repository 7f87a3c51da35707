// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wakers of a program's own: their functions clone, wake and drop use the library, or panic. Neither happens under a lock, and
//! nothing is lost but the call that panics.
#![expect(unsafe_code)]
// UNSAFETY: a waker whose clone runs code of the program is made of functions.

use crate::bed::{Bed, DEPTH, poll_once};
use core::future::Future;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::{Context, RawWaker, RawWakerVTable, Waker};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::{Arc, mpsc};
use std::thread;

type Hook = Box<dyn Fn() + Send + Sync>;

/// What a waker calls before it is cloned, woken and dropped.
struct Hooks {
    clone: Hook,
    wake: Hook,
    drop: Hook,
}

impl Hooks {
    fn none() -> Self {
        let [clone, wake, drop] = [(); 3].map(|()| Box::new(|| ()) as Hook);
        Self { clone, wake, drop }
    }

    fn waker(self) -> Waker {
        let data = Arc::into_raw(Arc::new(self)).cast();
        // SAFETY: the data are those of an `Arc<Hooks>`, which is `Send` and `Sync`, and the functions of the table count it.
        unsafe { Waker::new(data, &TABLE) }
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// The hooks of a waker, which remains.
///
/// # Safety
/// The data are those of a waker of `TABLE`.
unsafe fn hooks(data: *const ()) -> ManuallyDrop<Arc<Hooks>> {
    // SAFETY: they come from `Arc::into_raw`, and the count of the waker is not given up.
    ManuallyDrop::new(unsafe { Arc::from_raw(data.cast()) })
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the contract of the table.
    let hooks = unsafe { hooks(data) };
    (hooks.clone)();
    RawWaker::new(Arc::into_raw(Arc::clone(&hooks)).cast(), &TABLE)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: the contract of the table.
    let hooks = ManuallyDrop::into_inner(unsafe { hooks(data) });
    (hooks.wake)();
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the contract of the table.
    let hooks = unsafe { hooks(data) };
    (hooks.wake)();
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the contract of the table.
    let hooks = ManuallyDrop::into_inner(unsafe { hooks(data) });
    (hooks.drop)();
}

/// `None` after it was ready.
type Wait = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// Something that a task waits for.
struct Kind {
    name: &'static str,
    begin: fn(&Bed) -> Wait,
}

/// Fills the send queue.
fn fill(bed: &Bed) -> impl Sized + use<> {
    let mut others: Vec<_> = (0..DEPTH).map(|_| bed.a.qp.send_inline(b"other")).collect();
    assert!(others.iter_mut().all(|other| poll_once(other).is_pending()));
    others
}

macro_rules! kind {
    ($name:literal, |$bed:ident| $begin:expr) => {
        Kind {
            name: $name,
            begin: |$bed| {
                let wait = $begin;
                Some(Box::pin(async move {
                    let _ = wait.await;
                }))
            },
        }
    };
}

fn kinds() -> Vec<Kind> {
    let mut kinds = vec![
        kind!("send", |bed| bed.a.qp.send(bed.a.filled(b"x"))),
        kind!("full queue", |bed| {
            let (others, send) = (fill(bed), bed.a.qp.send(bed.a.filled(b"x")));
            async move {
                let _others = others;
                send.await
            }
        }),
        kind!("detached", |bed| {
            let (others, send) = (fill(bed), bed.a.qp.send(bed.a.filled(b"x")).detach());
            async move {
                let _others = others;
                send.await
            }
        }),
        kind!("batch", |bed| {
            let mut batch = bed.a.qp.batch();
            (0..2 * DEPTH).for_each(|_| batch.send(bed.a.filled(b"x")));
            batch
        }),
        kind!("reads", |bed| {
            let (mut reads, from) = (bed.a.qp.read_batch(), bed.b.exposed());
            (0..2 * DEPTH).for_each(|_| reads.read(bed.a.pool.get().unwrap(), &from.remote_region()));
            async move {
                let _from = from;
                reads.await
            }
        }),
        kind!("receive", |bed| bed.a.qp.recv()),
        kind!("receive of XRC", |bed| {
            let domain = bed.a.dispatcher.context().open_xrcd(None, true, false).unwrap();
            let queue = bed.a.dispatcher.xrc_srq(&bed.a.pd, &domain, &bed.a.incoming, 4).unwrap();
            async move {
                let _domain = domain;
                queue.recv().await
            }
        }),
        kind!("second receive", |bed| {
            let (mut first, second) = (bed.a.qp.recv(), bed.a.qp.recv());
            assert!(poll_once(&mut first).is_pending());
            async move {
                let _first = first;
                second.await
            }
        }),
        kind!("sleep", |bed| bed.a.dispatcher.sleep(Duration::from_secs(9))),
        kind!("descriptor", |bed| {
            let ((near, far), dispatcher) = (std::io::pipe().unwrap(), bed.a.dispatcher.clone());
            async move {
                let _far = far;
                dispatcher.readable(near).await
            }
        }),
        kind!("events", |bed| {
            let mut events = bed.a.dispatcher.events();
            async move { events.next().await }
        }),
        kind!("block_on", |bed| {
            let dispatcher = bed.a.dispatcher.clone();
            let mut recv = Box::pin(bed.a.qp.recv());
            core::future::poll_fn(move |cx| {
                // As a program that passes its own waker on.
                dispatcher.block_on(core::future::ready(()));
                recv.as_mut().poll(cx)
            })
        }),
    ];
    kinds.extend(kinds_of_tokio());
    kinds
}

#[cfg(not(feature = "tokio"))]
fn kinds_of_tokio() -> [Kind; 0] {
    []
}

#[cfg(feature = "tokio")]
fn kinds_of_tokio() -> [Kind; 2] {
    [
        kind!("drive_with", |bed| {
            let (dispatcher, recv) = (bed.a.dispatcher.clone(), bed.a.qp.recv());
            in_runtime(async move { dispatcher.drive_with(recv).await })
        }),
        kind!("drive", |bed| in_runtime(bed.a.dispatcher.clone().drive())),
    ]
}

/// The ends of a QP.
fn ends() -> Vec<Kind> {
    vec![
        kind!("shutdown", |bed| {
            let (others, qp) = (fill(bed), bed.a.qp.clone());
            async move {
                let _others = others;
                qp.shutdown().await
            }
        }),
        kind!("abort", |bed| {
            let qp = bed.a.qp.clone();
            async move { qp.abort().await }
        }),
    ]
}

/// A future that is polled in a runtime, which is not run.
#[cfg(feature = "tokio")]
fn in_runtime<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut future = Box::pin(future);
    core::future::poll_fn(move |cx| {
        let _entered = runtime.enter();
        future.as_mut().poll(cx)
    })
}

/// A message each way.
fn goes_on(bed: &Bed, kind: &str) {
    // Until those of the test have arrived.
    for _ in 0..4 {
        bed.fabric.run_for(Duration::from_secs(1));
        bed.settle();
        for end in [&bed.a, &bed.b] {
            while end.qp.try_recv().is_some() {}
        }
    }
    for (from, to) in [(&bed.a, &bed.b), (&bed.b, &bed.a)] {
        bed.run(from.qp.send(from.filled(b"last"))).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
        while *bed.run(to.qp.recv()).unwrap() != *b"last" {}
    }
    assert_eq!(bed.a.hca.violations(), []);
}

/// Calls `f` for each kind, in a thread that may wait for itself.
fn each(kinds: Vec<Kind>, f: fn(&Bed, &Kind)) {
    for kind in kinds {
        let name = kind.name;
        let (ended, end) = mpsc::channel();
        let thread = thread::spawn(move || {
            f(&Bed::new(), &kind);
            ended.send(()).unwrap();
        });
        if end.recv_timeout(Duration::from_secs(30)) == Err(mpsc::RecvTimeoutError::Timeout) {
            panic!("{name}: it hangs");
        }
        thread.join().unwrap_or_else(|_| panic!("{name}: it fails"));
    }
}

fn poll(wait: &mut Wait, waker: &Waker) {
    let mut cx = Context::from_waker(waker);
    if wait.as_mut().is_some_and(|future| future.as_mut().poll(&mut cx).is_ready()) {
        *wait = None;
    }
}

/// Uses what the wait uses.
fn reenter(bed: &Bed) -> (Hook, Arc<AtomicU32>) {
    let (qp, dispatcher) = (bed.a.qp.clone(), bed.a.dispatcher.clone());
    let count = Arc::new(AtomicU32::new(0));
    let calls = count.clone();
    let hook = move || {
        let mut events = dispatcher.events();
        let (mut send, mut recv, mut sleep) =
            (qp.send_inline(b"hook"), qp.recv(), dispatcher.sleep(Duration::from_secs(9)));
        let _ = (poll_once(&mut send), poll_once(&mut recv), poll_once(&mut sleep));
        let _ = poll_once(&mut Box::pin(events.next()));
        drop((send, recv, sleep, qp.try_recv()));
        assert!(dispatcher.poll_once().is_ok() && dispatcher.after_sleep().is_ok());
        count.fetch_add(1, Ordering::Relaxed);
    };
    (Box::new(hook), calls)
}

#[test]
fn a_clone_may_use_the_library() {
    let test = |bed: &Bed, kind: &Kind| {
        let (clone, calls) = reenter(bed);
        let waker = Hooks { clone, ..Hooks::none() }.waker();
        let mut wait = (kind.begin)(bed);
        // Another task polls it, too.
        for waker in [&waker, Waker::noop(), &waker] {
            poll(&mut wait, waker);
        }
        assert!(calls.load(Ordering::Relaxed) > 0, "{}: the waker was not stored", kind.name);
    };
    each(kinds(), test);
    each(ends(), test);
}

#[test]
fn a_clone_that_panics_harms_only_its_call() {
    fn test(kind: &Kind, goes_on: impl Fn(&Bed)) {
        for is_first in [true, false] {
            let bed = &Bed::new();
            let waker =
                Hooks { clone: Box::new(|| panic!("a test of clones that panic")), ..Hooks::none() }.waker();
            let mut wait = (kind.begin)(bed);
            if !is_first {
                poll(&mut wait, Waker::noop());
            }
            let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut wait, &waker)));
            drop(wait);
            // The operations of the test are complete.
            bed.step();
            goes_on(bed);
        }
    }
    each(kinds(), |_, kind| test(kind, |bed| goes_on(bed, kind.name)));
    each(ends(), |_, kind| test(kind, |_| ()));
}

#[test]
fn a_drop_may_panic() {
    let test = |_: &Bed, kind: &Kind| {
        for is_dropped in [true, false] {
            let bed = &Bed::new();
            let (drops, panics) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(true)));
            let (count, does) = (drops.clone(), panics.clone());
            let drop_hook = move || {
                count.fetch_add(1, Ordering::Relaxed);
                assert!(!does.load(Ordering::Relaxed), "a test of drops that panic");
            };
            let waker = Hooks { drop: Box::new(drop_hook), ..Hooks::none() }.waker();
            let mut wait = (kind.begin)(bed);
            poll(&mut wait, &waker);
            let before = drops.load(Ordering::Relaxed);
            if !is_dropped {
                poll(&mut wait, Waker::noop());
            }
            drop(wait);
            bed.step();
            assert!(drops.load(Ordering::Relaxed) > before, "{}: the waker is kept", kind.name);
            panics.store(false, Ordering::Relaxed);
        }
    };
    each(kinds(), test);
    each(ends(), test);
}

/// Two tasks wait, and the first one's waker panics, or uses the library.
#[test]
fn a_wake_may_panic_and_use_the_library() {
    each(kinds(), |bed, kind| {
        for panics in [true, false] {
            let (hook, _) = reenter(bed);
            let wake: Hook = if panics { Box::new(|| panic!("a test of wakes that panic")) } else { hook };
            let waker = Hooks { wake, ..Hooks::none() }.waker();
            let mut wait = (kind.begin)(bed);
            poll(&mut wait, &waker);
            let mut other = bed.a.qp.recv();
            let woken = Arc::new(AtomicU32::new(0));
            let counts = woken.clone();
            let hook = move || {
                counts.fetch_add(1, Ordering::Relaxed);
            };
            let counting = Hooks { wake: Box::new(hook), ..Hooks::none() }.waker();
            assert!(Pin::new(&mut other).poll(&mut Context::from_waker(&counting)).is_pending());
            // One message for each that receives.
            for _ in 0..3 {
                bed.run(bed.b.qp.send(bed.b.filled(b"x"))).unwrap();
            }
            bed.step();
            let has_message = woken.load(Ordering::Relaxed) > 0 || kind.name.contains("receive");
            assert!(has_message, "{}: the other one was not woken", kind.name);
            drop((wait, other));
            while bed.a.qp.try_recv().is_some() {}
            bed.step();
            while bed.b.qp.try_recv().is_some() {}
        }
    });
}
