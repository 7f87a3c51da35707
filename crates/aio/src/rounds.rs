// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rounds of what runs a dispatcher: when it polls, arms the CQ, and sleeps.

use crate::error::Result;
use crate::life::FORKED;
use crate::poller::Poller;
use crate::sleeper::{Readable, Sleeper};
use crate::wakeup::Who;
use core::task::Waker;
use core::time::Duration;
use nix::errno::Errno;
use uverbs::{Driver, PollError};
use uverbs_core::wake::Wakes;

/// The time for which an idle CQ is polled: the whole budget after a completion, half as much after each time for nothing.
#[derive(Debug)]
pub(crate) struct Spin {
    most: Duration,
    budget: Duration,
    since: Option<Duration>,
}

impl Spin {
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, budget: most, since: None }
    }

    /// Whether the dispatcher sleeps at once if there is no completion.
    pub(crate) fn is_off(&self) -> bool {
        self.most.is_zero()
    }

    /// There was a completion.
    pub(crate) fn hit(&mut self) {
        (self.budget, self.since) = (self.most, None);
    }

    /// There was none. Returns whether to poll again without arming the CQ.
    pub(crate) fn again(&mut self, now: impl FnOnce() -> Duration) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        let now = now();
        if now.saturating_sub(*self.since.get_or_insert(now)) < self.budget {
            return true;
        }
        self.budget = (self.budget / 2).max(self.most / 16);
        self.since = None;
        false
    }
}

/// How many polls pass between two checks of the descriptors, if the CQ is never idle.
const BUSY_POLLS: u32 = 256;

/// The thread or task that leads.
pub(crate) trait Leader {
    const WHO: Who;

    /// Whether it was woken: it has something else to do.
    fn is_woken(&self) -> bool;

    /// Whether this waker is its own; if so, notes the wake. It neither sleeps nor waits for the lead, so that is all that the
    /// waker would do.
    fn takes(&self, waker: &Waker) -> bool;
}

/// When the leader polls, arms the CQ, and sleeps: the part that threads and tasks of tokio share.
#[derive(Debug)]
pub(crate) struct Rounds {
    spin: Spin,
    /// Whether the next poll is the one before a sleep: the CQ is armed for it.
    last: bool,
    /// Whether the channel was readable after the last sleep.
    event: bool,
    polls: u32,
}

/// What the leader does after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There were completions, or tasks to wake.
    Work,
    /// As `Work`, and the descriptors were not read for long: calls [`Rounds::read`].
    Check,
    /// Nothing happened; polls again.
    Again,
    /// Sleeps until a descriptor is readable, and then calls [`Rounds::read`].
    Sleep,
}

impl Rounds {
    pub(crate) fn new(spin: Duration) -> Self {
        let spin = Spin::new(spin);
        Self { last: spin.is_off(), spin, event: false, polls: 0 }
    }

    /// Whether the next round is the one before a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn sleeps_next(&self) -> bool {
        self.last
    }

    /// The next round is the one before a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn stop_spinning(&mut self) {
        self.last = true;
    }

    /// Whether it sleeps at once if there is no completion.
    #[cfg(feature = "tokio")]
    pub(crate) fn never_spins(&self) -> bool {
        self.spin.is_off()
    }

    /// Polls once; `wakes` is empty before and after it. If the result is [`Next::Sleep`], others can end the sleep.
    #[inline]
    pub(crate) fn poll<D: Driver, L: Leader>(
        &mut self,
        poller: &Poller<D>,
        leader: &L,
        wakes: &mut Wakes,
    ) -> Result<Next, PollError> {
        let sleeper: &Sleeper = poller.sleeper();
        if self.last {
            sleeper.announce(L::WHO);
        }
        let event = core::mem::take(&mut self.event);
        let polled = poller.poll(event, self.last, wakes);
        if matches!(polled, Ok(0)) && wakes.is_empty() && !leader.is_woken() {
            if self.last {
                return Ok(Next::Sleep);
            }
            self.last = !self.spin.again(|| sleeper.now());
            return Ok(Next::Again);
        }
        if self.last {
            sleeper.cancel(L::WHO);
        }
        match wakes.as_slice() {
            [] => {}
            [one] if leader.takes(one) => wakes.clear(),
            _ => wakes.wake(),
        }
        if polled? > 0 {
            self.spin.hit();
        }
        self.last = self.spin.is_off();
        self.polls = self.polls.wrapping_add(1);
        Ok(if self.polls.is_multiple_of(BUSY_POLLS) { Next::Check } else { Next::Work })
    }

    /// Reads the descriptors without waiting: after a sleep, or because they were not read for long.
    #[inline]
    pub(crate) fn read<D: Driver, L: Leader>(
        &mut self,
        poller: &Poller<D>,
        _: &L,
        after_sleep: bool,
        wakes: &mut Wakes,
    ) -> Result<()> {
        if poller.sleeper().is_forked() {
            return Err(FORKED);
        }
        let readable =
            if after_sleep { poller.sleep(Some(Duration::ZERO), wakes) } else { poller.check(wakes) };
        self.has_read::<D, L>(poller, readable, wakes)
    }

    /// Sleeps at most for `limit`, right after [`poll`](Self::poll) has returned [`Next::Sleep`]: it has found that this is no child of
    /// fork(2), and no code of the program has run since.
    #[inline]
    fn sleep<D: Driver, L: Leader>(
        &mut self,
        poller: &Poller<D>,
        limit: Option<Duration>,
        wakes: &mut Wakes,
    ) -> Result<()> {
        let readable = poller.sleep(limit, wakes);
        self.has_read::<D, L>(poller, readable, wakes)
    }

    /// After the descriptors were read.
    #[inline]
    fn has_read<D: Driver, L: Leader>(
        &mut self,
        poller: &Poller<D>,
        readable: Result<Readable, Errno>,
        wakes: &mut Wakes,
    ) -> Result<()> {
        poller.sleeper().cancel(L::WHO);
        wakes.wake();
        // What ended the sleep is polled first: the CQ is armed if that was the last.
        self.last = false;
        // If this leader polls no more, the channel stays readable for the next one.
        self.event |= readable?.channel;
        Ok(())
    }
}

impl Rounds {
    /// Polls, spins and sleeps, until the leader is woken. `wakes` is empty before and after it.
    pub(crate) fn run_until<D: Driver, L: Leader>(
        &mut self,
        poller: &Poller<D>,
        leader: &L,
        wakes: &mut Wakes,
    ) -> Result<()> {
        loop {
            match self.poll(poller, leader, wakes)? {
                Next::Work => {}
                Next::Again => core::hint::spin_loop(),
                Next::Check => self.read(poller, leader, false, wakes)?,
                Next::Sleep => self.sleep::<D, L>(poller, poller.sleeper().time_to_sleep(), wakes)?,
            }
            if leader.is_woken() {
                return Ok(());
            }
        }
    }
}
