// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads and tasks that wait for the end of one identifier, of which one reads the event: all get it.
//!
//! The kernel does not end the poll(2) of a thread whose event another one has read before the thread looked. Here no poll(2) is ended by
//! an event, so the order of the threads does not matter.

use crate::{LONG, PORT, channel};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::Waker;
use core::time::Duration;
use nix::sys::eventfd::EventFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::task::Wake;
use std::thread;
use uverbs::{Context, Errno, Exclusive, Rc, mlx5::Mlx5, raw::Qp};
use uverbs_cm::{CmPort, ConnParam, Connection, Error, EventChannel, EventKind, Id, Listener, Resolved};
use uverbs_hca::{Fabric, Hca};

/// A port whose channels become silent: their descriptors are not readable any more.
#[derive(Debug)]
struct Silent {
    port: Arc<dyn CmPort>,
    is_silent: Arc<AtomicBool>,
    never: EventFd,
}

impl Silent {
    fn over(port: Arc<dyn CmPort>, is_silent: Arc<AtomicBool>) -> Arc<dyn CmPort> {
        Arc::new(Self { port, is_silent, never: EventFd::new().unwrap() })
    }
}

impl CmPort for Silent {
    fn command(&self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        self.port.command(cmd, input, output)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        if self.is_silent.load(Ordering::Relaxed) { self.never.as_fd() } else { self.port.fd() }
    }

    fn open_channel(&self) -> uverbs::Result<Arc<dyn CmPort>> {
        Ok(Self::over(self.port.open_channel()?, self.is_silent.clone()))
    }

    fn is_creator_process(&self) -> bool {
        self.port.is_creator_process()
    }
}

/// A server whose channels are silent, and its client.
struct Bed {
    server: Hca,
    listener: Arc<Listener>,
    passive: Arc<Connection<Qp<Rc, Exclusive, Mlx5>>>,
    active: Connection<Qp<Rc, Exclusive, Mlx5>>,
}

impl Bed {
    fn new() -> Self {
        let fabric = Fabric::new(12);
        let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
        let is_silent = Arc::new(AtomicBool::new(false));
        let address: SocketAddr = (server.addresses()[0], PORT).into();
        let port = Silent::over(server.connection_manager().unwrap(), is_silent.clone());
        let listener = Listener::bind(&EventChannel::from_port(port), address).unwrap();
        let qp = |hca: &Hca| {
            let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
            pd.raw_qp::<Rc>().cq(&cq).create().unwrap()
        };
        let (active, passive) = thread::scope(|scope| {
            let param = ConnParam::default();
            let accepting = scope.spawn(|| {
                listener.accept().unwrap().accept(qp(&server), &ConnParam::default(), LONG).unwrap()
            });
            let resolved = Resolved::new(&channel(&client), address).unwrap();
            (resolved.connect(qp(&client), &param, LONG).unwrap(), accepting.join().unwrap())
        });
        is_silent.store(true, Ordering::Relaxed);
        Self { server, listener: Arc::new(listener), passive: Arc::new(passive), active }
    }

    /// A wait for the end of the connection, or of the listener. Returns whether it was the end.
    fn wait(&self, of_listener: bool, how: Wait) -> impl FnOnce() -> bool + Send + 'static {
        let (listener, passive) = (self.listener.clone(), self.passive.clone());
        move || match how {
            Wait::Task => {
                let id = if of_listener { listener.id() } else { passive.id() };
                wait_in_task(id)
            }
            Wait::Thread(limit) if of_listener => {
                is_end(listener.wait(limit).map(|request| request.is_some()))
            }
            Wait::Thread(limit) => is_end(passive.wait_disconnected(limit)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    Thread(Option<Duration>),
    Task,
}

const KINDS: [Wait; 3] = [Wait::Thread(None), Wait::Thread(LONG), Wait::Task];
/// Those that do not wait.
const TAKERS: [Wait; 2] = [Wait::Thread(Some(Duration::ZERO)), Wait::Task];

fn is_end(result: Result<bool, Error>) -> bool {
    match result {
        Ok(ended) => ended,
        Err(Error::DeviceGone { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

fn is_end_event(id: &Id, polled: Result<Option<uverbs_cm::Event>, Error>) -> bool {
    let Some(event) = polled.unwrap() else { return false };
    matches!(event.kind, EventKind::Disconnected | EventKind::TimewaitExit | EventKind::DeviceRemoval)
        && event.token == id.token()
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait_in_task(id: &Id) -> bool {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut events = id.own_events();
    while !is_end_event(id, events.poll_next(&waker)) {
        thread::park();
    }
    true
}

/// Takes the end without waiting for it.
fn take(bed: &Bed, of_listener: bool, taker: Wait) {
    let id = if of_listener { bed.listener.id() } else { bed.passive.id() };
    let taken = || match taker {
        Wait::Task => is_end_event(id, id.own_events().poll_next(Waker::noop())),
        Wait::Thread(_) => bed.wait(of_listener, taker)(),
    };
    while !taken() {
        thread::yield_now();
    }
}

/// Each pair of waits, whichever call reads the end.
#[test]
fn a_wait_ends_although_another_call_reads_the_end() {
    for taker in TAKERS {
        for (of_listener, is_removed) in [(false, false), (false, true), (true, true)] {
            let bed = Bed::new();
            let (ended, ends) = mpsc::channel();
            for (i, how) in [KINDS, KINDS].concat().into_iter().enumerate() {
                let (wait, ended) = (bed.wait(of_listener, how), ended.clone());
                thread::spawn(move || ended.send((i, wait())));
            }
            // They wait; if one does not yet, it finds the end.
            thread::sleep(Duration::from_millis(30));
            if is_removed {
                bed.server.unplug();
            } else {
                bed.active.disconnect().unwrap();
            }
            take(&bed, of_listener, taker);
            for n in 0..2 * KINDS.len() {
                let end = ends.recv_timeout(Duration::from_secs(20));
                assert!(
                    matches!(end, Ok((_, true))),
                    "{taker:?}, removed: {is_removed}, {n} have ended: {end:?}"
                );
            }
        }
    }
}

/// The thread whose turn it was to wait by poll(2) leaves: another one waits so, and rings no one else's bell.
#[test]
fn a_turn_passes_on_when_its_time_limit_ends() {
    let bed = Bed::new();
    let (ended, ends) = mpsc::channel();
    let limits = [Some(Duration::from_millis(5)), Some(Duration::from_millis(40)), None];
    for limit in limits {
        let (wait, ended) = (bed.wait(false, Wait::Thread(limit)), ended.clone());
        thread::spawn(move || ended.send(wait()));
        thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..2 {
        assert_eq!(ends.recv_timeout(Duration::from_secs(20)), Ok(false));
    }
    bed.active.disconnect().unwrap();
    take(&bed, false, TAKERS[0]);
    assert_eq!(ends.recv_timeout(Duration::from_secs(20)), Ok(true));
}

/// Counts its wakes, and panics if it shall.
#[derive(Default)]
struct Count {
    wakes: AtomicUsize,
    panics: bool,
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "a test of wakers that panic");
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_wait_from_its_end() {
    let bed = Bed::new();
    let tasks = [true, false, true, false].map(|panics| Arc::new(Count { panics, ..Count::default() }));
    let mut waits = tasks.each_ref().map(|_| bed.passive.id().own_events());
    for (wait, task) in waits.iter_mut().zip(&tasks) {
        assert!(wait.poll_next(&task.clone().into()).unwrap().is_none());
    }
    let (ended, ends) = mpsc::channel();
    let thread = bed.wait(false, KINDS[0]);
    thread::spawn(move || ended.send(thread()));
    thread::sleep(Duration::from_millis(30));
    bed.active.disconnect().unwrap();
    take(&bed, false, TAKERS[0]);
    assert_eq!(ends.recv_timeout(Duration::from_secs(20)), Ok(true));
    assert_eq!(tasks.map(|task| task.wakes.load(Ordering::Relaxed)), [1; 4]);
}

/// Each of many tasks is woken once, and none that has left.
#[test]
fn many_tasks_wait_for_an_end() {
    const TASKS: usize = 10_000;
    let bed = Bed::new();
    let id = bed.passive.id();
    let tasks: Vec<_> = (0..TASKS).map(|_| Arc::new(Count::default())).collect();
    let mut waits: Vec<_> = tasks.iter().map(|_| id.own_events()).collect();
    for _ in 0..3 {
        for (wait, task) in waits.iter_mut().zip(&tasks) {
            assert!(wait.poll_next(&task.clone().into()).unwrap().is_none());
        }
    }
    waits.truncate(TASKS / 2);
    let alive = |tasks: &[Arc<Count>]| tasks.iter().filter(|task| Arc::strong_count(task) > 1).count();
    assert_eq!((alive(&tasks), alive(&tasks[TASKS / 2..])), (TASKS / 2, 0));
    bed.active.disconnect().unwrap();
    take(&bed, false, TAKERS[0]);
    let wakes = |tasks: &[Arc<Count>]| tasks.iter().map(|task| task.wakes.load(Ordering::Relaxed)).sum();
    assert_eq!((wakes(&tasks), wakes(&tasks[..TASKS / 2])), (TASKS / 2, TASKS / 2));
    assert_eq!(alive(&tasks), 0);
}
