// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests: a removed device leaves no task asleep, in whichever order the dispatcher sees that its channel is closed, that the event
//! `DEVICE_FATAL` was raised, and that a completion has arrived.

use super::*;
use crate::{Dispatcher, Events, Qp, SleepLimit};
use core::future::Future;
use core::task::Poll;
use std::os::fd::AsFd;
use std::thread;
use uverbs::mlx5::Mlx5;
use uverbs::{ConnectAttr, Context, Rc};
use uverbs_hca::{Fabric, Hca};

/// How long a task may wait. None does, unless its test fails.
const LIMIT: Duration = Duration::from_secs(60);

/// A dispatcher of a device, with a QP that is connected to itself.
struct Victim {
    hca: Hca,
    dispatcher: Dispatcher<Mlx5>,
    qp: Qp<Rc, Mlx5>,
    events: Events<Mlx5>,
    _fabric: Fabric,
}

impl Victim {
    fn new() -> Self {
        let fabric = Fabric::new(1);
        let hca = fabric.device("hca0").build();
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let dispatcher = Dispatcher::builder(&context).spin(Duration::ZERO).build().unwrap();
        let pd = context.alloc_pd().unwrap();
        let incoming = pd.pool(8, 64).unwrap();
        let qp = dispatcher.qp(&pd).depth(4, 4).pool(&incoming).create().unwrap();
        let attr = ConnectAttr::default();
        qp.init(&attr).unwrap();
        let end = qp.endpoint(1, &attr).unwrap();
        qp.connect(&end, &end, &attr).unwrap();
        let events = dispatcher.events();
        Self { hca, dispatcher, qp, events, _fabric: fabric }
    }

    fn poller(&self) -> &Poller<Mlx5> {
        &self.dispatcher.inner.poller
    }

    /// Waits until a message arrives, if there is one; until the device is removed; and until the events end.
    async fn wait(self) -> Result<()> {
        let Self { dispatcher, qp, mut events, .. } = self;
        let wait = async {
            let error = loop {
                match qp.recv().await {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            while events.next().await.is_some() {}
            // A failure that comes first may be another one, but not a time limit.
            Err::<(), _>(error)
        };
        match dispatcher.timeout(LIMIT, wait).await {
            Err(Error::DeviceRemoved | Error::Completion { .. }) => Ok(()),
            other => other,
        }
    }

    fn ends(self) {
        let dispatcher = self.dispatcher.clone();
        let ended = dispatcher.block_on(self.wait());
        assert!(ended.is_ok(), "{ended:?}");
        assert!(matches!(dispatcher.inner.poller.life.failure(), Some(Error::DeviceRemoved)));
        // The closed channel is readable for ever: it must not end sleeps any more.
        assert_eq!(dispatcher.prepare_sleep().unwrap(), Some(SleepLimit(None)));
        let readable = dispatcher.inner.poller.sleeper.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        assert!(!readable.channel && !readable.async_events, "{readable:?}");
    }
}

#[test]
fn the_channel_closes_before_the_event() {
    let victim = Victim::new();
    victim.hca.unplug();
    victim.poller().read_channel(&mut Vec::new());
    assert!(victim.poller().life.failure().is_some());
    victim.ends();
}

#[test]
fn the_event_is_read_before_the_channel() {
    let victim = Victim::new();
    victim.hca.unplug();
    Hub::read(&victim.poller().hub, &mut Vec::new());
    assert!(victim.poller().life.failure().is_some());
    victim.poller().read_channel(&mut Vec::new());
    victim.ends();
}

/// There is no event, but the file ends.
#[test]
fn the_process_of_the_context_is_killed() {
    let victim = Victim::new();
    victim.hca.kill();
    victim.ends();
}

/// The thread that slept reads the end of the channel in its next poll.
#[test]
fn a_poll_finds_the_end_of_the_channel() {
    let victim = Victim::new();
    victim.hca.unplug();
    assert_eq!(victim.poller().poll(true, false, &mut Vec::new()), Ok(0));
    assert!(victim.poller().life.failure().is_some());
    victim.ends();
}

/// Nothing raises the event for which the CQ was armed.
#[test]
fn the_cq_stays_armed() {
    let victim = Victim::new();
    assert_eq!(victim.poller().poll(false, true, &mut Vec::new()), Ok(0));
    assert!(lock(&victim.poller().state).armed);
    victim.hca.unplug();
    victim.ends();
}

/// The channel has an event, which is read first; only then it is at its end.
#[test]
fn an_event_of_the_cq_was_not_read() {
    for polled_before in [false, true] {
        let victim = Victim::new();
        assert_eq!(victim.poller().poll(false, true, &mut Vec::new()), Ok(0));
        let mut send = victim.qp.send_inline(b"x");
        assert!(
            core::pin::Pin::new(&mut send)
                .poll(&mut core::task::Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let mut fds = [nix::poll::PollFd::new(victim.poller().channel.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, nix::poll::PollTimeout::MAX), Ok(1), "an event of the CQ");
        if polled_before {
            assert!(victim.poller().poll(false, true, &mut Vec::new()).unwrap() > 0);
        }
        victim.hca.unplug();
        drop(send);
        victim.ends();
    }
}

/// A thread sleeps, with the CQ armed, or was about to.
#[test]
fn a_thread_that_sleeps_is_woken() {
    for pause in [0, 20] {
        let victim = Victim::new();
        let hca = victim.hca.clone();
        let thread = thread::spawn(move || victim.ends());
        thread::sleep(Duration::from_millis(pause));
        hca.unplug();
        thread.join().unwrap();
    }
}

/// A task of tokio waits for edges of the dispatcher's descriptor.
#[cfg(feature = "tokio")]
#[test]
fn a_task_of_tokio_that_sleeps_is_woken() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (pause, own_task) in [(0, false), (20, false), (0, true), (20, true)] {
        let victim = Victim::new();
        let hca = victim.hca.clone();
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                let dispatcher = victim.dispatcher.clone();
                if own_task {
                    let driving = tokio::spawn(dispatcher.drive());
                    let ended = victim.wait().await;
                    driving.abort();
                    ended
                } else {
                    dispatcher.drive_with(victim.wait()).await.unwrap()
                }
            })
        });
        thread::sleep(Duration::from_millis(pause));
        hca.unplug();
        let ended = thread.join().unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    }
}

/// Work that another thread adds after the dispatcher has given up all work.
#[test]
fn work_that_comes_too_late_waits_for_no_poll() {
    let victim = Victim::new();
    victim.hca.unplug();
    victim.poller().read_channel(&mut Vec::new());
    let late = victim.poller().life.defer(RouteId(0), |added, id| added.starved.push(id));
    assert_eq!(late, Err(RouteId(0)));
    assert!(!victim.poller().life.has_deferred(), "no poll does it");
    assert_eq!(victim.poller().life.poll_dry(&mut None, Waker::noop()), Poll::Ready(()));
    victim.ends();
}
