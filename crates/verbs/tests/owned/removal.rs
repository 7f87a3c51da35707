// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes whose device is removed, or whose kernel refuses to end the access: the process goes on, and the memory is the owner's again.

use crate::bed::{CAP, End, SIZE, connect, connect_self, real_time_pair};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use uverbs::attr::AccessFlags;
use uverbs::{Errno, RemoteRegion, Uc};
use uverbs::{ScopeError, ScopedOp};
use uverbs_core::kernel::{Kernel, RawCommand};
use uverbs_hca::{Fabric, Hca};
use uverbs_testkit::kernel::{Script, Scripted};

const SHORT: Duration = Duration::from_millis(300);

/// What the closure does at its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Exit {
    Returns,
    Panics,
    Forgets,
}

/// Removes a device after a time, as an unplug or as the death of its process does.
fn remove_later(hca: &Hca, unplug: bool) -> thread::JoinHandle<()> {
    let hca = hca.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        if unplug { hca.unplug() } else { hca.kill() }
    })
}

/// Leaves the closure.
fn leave(exit: Exit, op: ScopedOp) -> Option<ScopedOp> {
    match exit {
        Exit::Returns => Some(op),
        Exit::Panics => panic!("of the test"),
        Exit::Forgets => {
            core::mem::forget(op);
            None
        }
    }
}

/// A scope whose work request can't complete, on a device that is removed. `limit` is longer than the test may take, if the wait notices the
/// removal by itself.
fn removed(limit: Duration, exit: Exit, unplug: bool, read: bool) {
    let (mut a, b) = real_time_pair();
    let table = b.pd.pool_with(1, SIZE).exposed(AccessFlags::REMOTE_READ).build().unwrap().get().unwrap();
    let from = table.remote_region();
    if read {
        // The requests are repeated for long enough.
        b.hca.set_link_up(false);
    }
    let mut memory = vec![7; 64];
    let (remover, begin) = (remove_later(&a.hca, unplug), Instant::now());
    let ended = catch_unwind(AssertUnwindSafe(|| {
        a.qp.scope(&mut a.cq, limit, |scope| {
            let op = if read { scope.read(&mut memory, &from) } else { scope.recv(&mut memory) };
            if exit == Exit::Panics {
                // The device is removed before the wait.
                thread::sleep(Duration::from_millis(100));
            }
            leave(exit, op.unwrap())
        })
    }));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    match (exit, ended) {
        (Exit::Panics, Err(payload)) => assert_eq!(payload.downcast_ref(), Some(&"of the test")),
        (Exit::Returns | Exit::Forgets, Ok(Err(ScopeError::Device(error)))) => {
            assert_eq!(error.errno(), Errno::EIO)
        }
        (exit, ended) => panic!("{exit:?}: {ended:?}"),
    }
    memory.fill(1);
    remover.join().unwrap();
    // The objects of a removed device can be closed.
    let End { qp, cq, pool, pd, context, .. } = a;
    qp.close().unwrap();
    assert_eq!(pool.available() as u32, crate::bed::BUFS);
    drop((cq, pool, pd, context));
}

#[test]
fn the_wait_notices_that_the_device_is_removed() {
    for unplug in [true, false] {
        removed(Duration::MAX, Exit::Returns, unplug, false);
        removed(Duration::MAX, Exit::Returns, unplug, true);
    }
}

#[test]
fn a_removal_ends_a_scope_with_a_limit_or_a_panic_or_a_forgotten_op() {
    for exit in [Exit::Returns, Exit::Panics, Exit::Forgets] {
        for unplug in [true, false] {
            removed(SHORT, exit, unplug, false);
        }
    }
}

/// Of each kind of QP that can post borrowed memory.
#[test]
fn a_removal_ends_scopes_of_other_transports() {
    let value = [7; 64];
    for unplug in [true, false] {
        // A UC QP without a peer that answers: its receive waits.
        let fabric = Fabric::new(7);
        let mut a = End::new(fabric.device("hca0").build());
        let mut qp = a.pd.qp::<Uc>().cq(&a.cq).cap(CAP).create().unwrap();
        let attr = crate::bed::attr();
        qp.init(&attr).unwrap();
        let here = qp.control().endpoint(1, &attr).unwrap();
        qp.connect(&here, &here, &attr).unwrap();
        let (remover, mut text) = (remove_later(&a.hca, unplug), [0; 64]);
        let ended = qp.scope(&mut a.cq, Duration::MAX, |scope| scope.recv(&mut text).unwrap());
        assert!(matches!(ended, Err(ScopeError::Device(_))), "{ended:?}");
        remover.join().unwrap();
    }
    // A send and a write to a QP that has gone.
    for write in [false, true] {
        let (mut a, b) = real_time_pair();
        let to = RemoteRegion::new(0x1000, 64, 1).unwrap();
        b.hca.set_link_up(false);
        let remover = remove_later(&a.hca, true);
        let ended = a.qp.scope(&mut a.cq, Duration::MAX, |scope| {
            if write { scope.write(&value, &to).unwrap() } else { scope.send(&value).unwrap() }
        });
        assert!(matches!(ended, Err(ScopeError::Device(_))), "{ended:?}");
        remover.join().unwrap();
    }
}

/// A kernel that answers EIO to the methods of QPs, or to everything, from a time on.
#[derive(Debug)]
struct Refusing {
    inner: Arc<dyn Kernel>,
    refuses: Arc<AtomicU32>,
}

const NOTHING: u32 = 0;
const QPS: u32 = 1;
const ALL: u32 = 2;

impl Script for Refusing {
    fn inner(&self) -> Option<&dyn Kernel> {
        Some(&*self.inner)
    }
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let is_mr = command.object() == uverbs_uapi::ids::UVERBS_OBJECT_MR;
        match self.refuses.load(Ordering::Relaxed) {
            NOTHING => self.inner.ioctl(command),
            QPS if is_mr => self.inner.ioctl(command),
            _ => Err(Errno::EIO),
        }
    }
}

fn refusing() -> (End, Arc<AtomicU32>) {
    let refuses = Arc::<AtomicU32>::default();
    let hca = Fabric::new(7).device("hca0").build();
    let kernel = Refusing { inner: hca.open(), refuses: refuses.clone() };
    (End::on(hca, Arc::new(Scripted(kernel)), 64), refuses)
}

/// The device is there, and only the kernel refuses: what was deregistered is not written any more.
#[test]
fn deregistered_memory_is_not_written() {
    let (mut a, refuses) = refusing();
    let mut b = End::new(Fabric::device(&a.hca.fabric(), "hca1").build());
    connect(&a.qp, &b.qp).unwrap();
    let mut memory = [7; 64];
    let ended = a.qp.scope(&mut a.cq, SHORT, |scope| {
        let op = scope.recv(&mut memory).unwrap();
        refuses.store(QPS, Ordering::Relaxed);
        op
    });
    assert!(matches!(ended, Err(ScopeError::Device(_))), "{ended:?}");
    let buf = b.filled(b"written into memory that has another owner");
    b.qp.sq().post(1).signaled().send(buf).unwrap();
    assert!(!b.next().wc.status.is_success());
    assert_eq!(memory, [7; 64]);
    refuses.store(NOTHING, Ordering::Relaxed);
}

/// While the kernel removes a device, it may refuse everything for some time.
#[test]
fn a_kernel_that_refuses_for_a_while_is_asked_again() {
    let (mut a, refuses) = refusing();
    connect_self(&a.qp);
    let mut memory = [7; 64];
    let begin = Instant::now();
    let ended = thread::scope(|threads| {
        a.qp.scope(&mut a.cq, Duration::MAX, |scope| {
            let op = scope.recv(&mut memory).unwrap();
            refuses.store(ALL, Ordering::Relaxed);
            threads.spawn(|| {
                thread::sleep(Duration::from_secs(1));
                refuses.store(QPS, Ordering::Relaxed);
            });
            op
        })
    });
    assert!(matches!(ended, Err(ScopeError::Device(_))), "{ended:?}");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    refuses.store(NOTHING, Ordering::Relaxed);
    assert_eq!(a.hca.objects().get("mr"), Some(&1));
}
