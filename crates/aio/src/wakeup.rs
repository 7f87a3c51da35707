// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waking the thread that sleeps on the completion channel.
//!
//! The sleeper announces that it will sleep, then checks once more whether there is something to do, and then sleeps. Others
//! store what there is to do, and then wake it up. So at least one of the two sees what the other did: the sleeper finds it, or the
//! wakeup finds the announcement and raises the event.
//!
//! | sleeper | others |
//! |---|---|
//! | `announce` | store what there is to do |
//! | fence | fence |
//! | check; arm the CQ, and poll it | `wake_up`: if announced, raise the event |
//! | sleep until the event, or that of the CQ | |
//!
//! The CQ is armed unless its last event was not read yet. So a completion that the poll does not find makes the channel readable,
//! or the channel is readable already; and the channel has at most one event.

use crate::sync::{AtomicBool, Ordering, fence};

/// The event that ends a sleep.
pub(crate) trait Event {
    fn raise(&self);
}

/// Who sleeps; they may do so at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    /// The thread that leads.
    Leader,
    /// An event loop of the program.
    Loop,
    /// Tasks of tokio, for which their runtimes sleep.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "there are none"))]
    Tasks,
}

#[derive(Debug)]
pub(crate) struct Wakeup<E> {
    asleep: AtomicBool,
    loop_asleep: AtomicBool,
    tasks_asleep: AtomicBool,
    /// An event loop has passed on what it has read last.
    passed: AtomicBool,
    event: E,
}

impl<E: Event> Wakeup<E> {
    pub(crate) fn new(event: E) -> Self {
        let [asleep, loop_asleep, tasks_asleep, passed] = [(); 4].map(|()| AtomicBool::new(false));
        Self { asleep, loop_asleep, tasks_asleep, passed, event }
    }

    pub(crate) fn event(&self) -> &E {
        &self.event
    }

    #[inline]
    fn asleep(&self, who: Who) -> &AtomicBool {
        match who {
            Who::Leader => &self.asleep,
            Who::Loop => &self.loop_asleep,
            Who::Tasks => &self.tasks_asleep,
        }
    }

    /// Before the last check.
    #[inline]
    pub(crate) fn announce(&self, who: Who) {
        self.asleep(who).store(true, Ordering::Relaxed);
        // Pairs with the fence of `wake_up`: either the check after this sees what was stored before the wakeup, or the wakeup sees
        // the announcement.
        fence(Ordering::SeqCst);
    }

    /// After the sleep, or instead of it.
    #[inline]
    pub(crate) fn cancel(&self, who: Who) {
        self.asleep(who).store(false, Ordering::Relaxed);
    }

    /// An event loop has read the event, for which tasks may wait. So it raises the event again, but not for what it has raised itself.
    pub(crate) fn pass(&self) {
        if self.passed.swap(true, Ordering::Relaxed) {
            self.passed.store(false, Ordering::Relaxed);
        } else {
            self.event.raise();
        }
    }

    /// Whether an event loop sleeps, for a leader that leaves. The loop finds what was stored before its check. For what is stored later
    /// there is a wakeup that sees the announcement; a leader that reads the event of that wakeup sees it, too.
    #[inline]
    pub(crate) fn is_loop_asleep(&self) -> bool {
        self.loop_asleep.load(Ordering::Relaxed)
    }

    /// Ends the sleeps, if there are any.
    #[inline]
    pub(crate) fn wake_up(&self) {
        // Pairs with the fence of `announce`.
        fence(Ordering::SeqCst);
        let ends =
            |asleep: &AtomicBool| asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed);
        let (leader, tasks) = (ends(&self.asleep), ends(&self.tasks_asleep));
        // That of a loop stays: a leader that sleeps, too, may read the event first, and raises it again when it leaves.
        if leader || tasks || self.loop_asleep.load(Ordering::Relaxed) {
            self.passed.store(false, Ordering::Relaxed);
            self.event.raise();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};

    /// An event as eventfd(2): raised until it is read.
    #[derive(Default)]
    struct Raised {
        raised: Mutex<bool>,
        changed: Condvar,
    }

    impl Event for Arc<Raised> {
        fn raise(&self) {
            *self.raised.lock().unwrap() = true;
            self.changed.notify_all();
        }
    }

    impl Raised {
        fn sleep(&self) {
            let mut raised = self.raised.lock().unwrap();
            while !*raised {
                raised = self.changed.wait(raised).unwrap();
            }
            *raised = false;
        }
    }

    /// If the sleeper missed the message, it would sleep for ever, which loom reports as a deadlock.
    #[test]
    fn a_wakeup_is_not_lost() {
        loom::model(|| {
            let event = Arc::new(Raised::default());
            let wakeup = Arc::new(Wakeup::new(event.clone()));
            let message = Arc::new(AtomicBool::new(false));
            let other = loom::thread::spawn({
                let (wakeup, message) = (wakeup.clone(), message.clone());
                move || {
                    message.store(true, Ordering::Relaxed);
                    wakeup.wake_up();
                }
            });
            while !message.load(Ordering::Relaxed) {
                wakeup.announce(Who::Leader);
                if !message.load(Ordering::Relaxed) {
                    event.sleep();
                }
                wakeup.cancel(Who::Leader);
            }
            other.join().unwrap();
        });
    }

    /// A leader and an event loop share the event. If the leader kept what it has read from the loop, the loop would sleep for ever.
    #[test]
    fn a_leader_that_leaves_passes_its_wakeups_to_the_loop() {
        // All interleavings take hours; those with three changes of a running thread take seconds.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let event = Arc::new(Raised::default());
            let wakeup = Arc::new(Wakeup::new(event.clone()));
            let [work, message] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let other = loom::thread::spawn({
                let (wakeup, work, message) = (wakeup.clone(), work.clone(), message.clone());
                move || {
                    work.store(true, Ordering::Relaxed);
                    wakeup.wake_up();
                    message.store(true, Ordering::Relaxed);
                    wakeup.wake_up();
                }
            });
            let leader = loom::thread::spawn({
                let (wakeup, event) = (wakeup.clone(), event.clone());
                move || {
                    while !message.load(Ordering::Relaxed) {
                        wakeup.announce(Who::Leader);
                        if !message.load(Ordering::Relaxed) {
                            event.sleep();
                        }
                        wakeup.cancel(Who::Leader);
                    }
                    if wakeup.is_loop_asleep() {
                        event.raise();
                    }
                }
            });
            while !work.load(Ordering::Relaxed) {
                wakeup.announce(Who::Loop);
                if !work.load(Ordering::Relaxed) {
                    event.sleep();
                    // As `pass_wakeup`: the leader may wait for it.
                    event.raise();
                }
                wakeup.cancel(Who::Loop);
            }
            leader.join().unwrap();
            other.join().unwrap();
        });
    }

    /// A completion queue that adds one event to its channel, at the first completion after it was armed.
    #[derive(Default)]
    struct Cq {
        state: Mutex<(u32, bool)>,
        events: Mutex<u32>,
        changed: Condvar,
    }

    impl Cq {
        fn complete(&self) {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            if core::mem::take(&mut state.1) {
                *self.events.lock().unwrap() += 1;
                self.changed.notify_one();
            }
        }

        fn arm(&self) {
            self.state.lock().unwrap().1 = true;
        }

        fn poll(&self) -> u32 {
            core::mem::take(&mut self.state.lock().unwrap().0)
        }

        /// Sleeps until the channel is readable, and reads one event.
        fn sleep(&self) {
            let mut events = self.events.lock().unwrap();
            while *events == 0 {
                events = self.changed.wait(events).unwrap();
            }
            *events -= 1;
        }
    }

    /// The order of the dispatcher: arm, unless an event was not read yet; poll; sleep if there was nothing, and read one event;
    /// poll without arming. A device completes at any time.
    #[test]
    fn no_completion_is_lost_between_arm_and_poll() {
        loom::model(|| {
            let cq = Arc::new(Cq::default());
            let device = loom::thread::spawn({
                let cq = cq.clone();
                move || {
                    for _ in 0..3 {
                        cq.complete();
                    }
                }
            });
            let (mut seen, mut armed, mut last) = (0, false, true);
            while seen < 3 {
                if last && !armed {
                    cq.arm();
                    armed = true;
                }
                let polled = cq.poll();
                seen += polled;
                if polled == 0 && last {
                    cq.sleep();
                    (armed, last) = (false, false);
                } else {
                    last = true;
                }
            }
            device.join().unwrap();
            assert!(
                *cq.events.lock().unwrap() <= u32::from(armed),
                "the channel has events of the last arm only"
            );
        });
    }
}
