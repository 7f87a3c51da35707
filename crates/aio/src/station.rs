// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dispatcher in a runtime of tokio.
//!
//! The future of a task may be dropped, be forgotten, or not be polled for long (`select!` on a reference to it). So no future keeps the
//! right to run the dispatcher when it returns: what is common to the futures of a runtime is here, and the runtime itself calls it when
//! the dispatcher's descriptor is readable.
//!
//! | who runs the dispatcher | when |
//! |---|---|
//! | the runtime, by the waker of the descriptor ([`Bell`]) | the descriptor is readable |
//! | a future that is polled | its task was woken, and completions are expected soon: it *spins*, and yields in between |
//! | a thread | it leads. When it leaves it makes the descriptor readable |
//!
//! One call leaves the dispatcher either asleep (the CQ is armed, and what ends the sleep makes the descriptor readable), or with a future
//! that spins or was called to do so. That one may never be polled again: the alarm ends its time, unless it has polled meanwhile.
//! The descriptor is that of all runtimes, and each call does all there is to do: so a runtime that is run no more holds none up.

use crate::error::Result;
use crate::life::FORKED;
use crate::poller::Poller;
use crate::rounds::{Leader, Next, Rounds};
use crate::sleeper::Sleeper;
use crate::solo::Solo;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};
use crate::task_waker::TaskWaker;
use crate::wakeup::Who;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::AtomicU64;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Weak};
use std::task::Wake;
use std::time::Instant;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::task::unconstrained;
use uverbs::{Driver, PollError};
use uverbs_core::wake::{Place, Wakes, discard};

/// How long a future that spins need not poll.
const PATIENCE: Duration = Duration::from_millis(2);

/// Rounds of one call of the runtime, at most.
const MOST_ROUNDS: u32 = 32;

/// The number of wakers that are examined to find one that waits.
const MOST_LOOKS: u32 = 8;

/// No future spins.
const NONE: u64 = 0;
/// A future was called, and will spin.
const CALLED: u64 = 1;

#[derive(Debug)]
struct Descriptor(Arc<Sleeper>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The futures of a runtime.
#[derive(Debug)]
struct Members {
    /// Those that can be called to spin, by their numbers.
    idle: BTreeMap<u64, Arc<TaskWaker>>,
    last: u64,
}

/// A dispatcher in a runtime.
#[derive(Debug)]
pub(crate) struct Station<D: Driver> {
    runtime: Id,
    poller: Arc<Poller<D>>,
    /// `None` after its last future has left.
    fd: Mutex<Option<AsyncFd<Descriptor>>>,
    /// The waker of the descriptor.
    bell: Waker,
    /// Whose turn it is to do a round.
    solo: Solo,
    /// Of the one whose turn it is. A waker that it calls may call the library, but gets no turn.
    work: Mutex<(Rounds, Wakes)>,
    /// The number of the future that spins, [`NONE`] or [`CALLED`].
    spinner: AtomicU64,
    /// Rounds of futures.
    spins: AtomicU64,
    /// When the future that spins is looked after, and the rounds before that.
    watch: Mutex<Option<(Instant, u64)>>,
    is_watched: AtomicBool,
    /// The last round has left the dispatcher asleep.
    is_asleep: AtomicBool,
    members: Mutex<Members>,
    /// How often the CQ has failed, and how.
    failures: AtomicUsize,
    failure: Mutex<Option<PollError>>,
    /// The runtime was shut down.
    is_gone: AtomicBool,
}

/// The stations of a dispatcher, with the numbers of their futures.
pub(crate) type Stations<D> = Mutex<Vec<(Arc<Station<D>>, usize)>>;

/// The waker of the descriptor.
struct Bell<D: Driver>(Weak<Station<D>>);

impl<D: Driver> Wake for Bell<D> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(station) = self.0.upgrade()
            && !station.poller.sleeper().is_forked()
        {
            station.call(false);
        }
    }
}

/// The runtime itself, or a task that has nothing else to do.
pub(crate) struct Runtime;

impl Leader for Runtime {
    const WHO: Who = Who::Tasks;

    #[inline]
    fn is_woken(&self) -> bool {
        false
    }

    #[inline]
    fn takes(&self, _: &Waker) -> bool {
        false
    }
}

/// What a future does after its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There were completions, or tasks to wake.
    Work {
        /// The next round is the one before a sleep.
        sleeps_next: bool,
    },
    /// Nothing happened, and something is expected soon.
    Spin,
    /// Waits for its wake, or its call.
    Wait,
}

impl<D: Driver> Station<D> {
    fn new(poller: &Arc<Poller<D>>, runtime: Id) -> Result<Arc<Self>> {
        let sleeper = poller.sleeper();
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `Descriptor` returns the same open descriptor as long as it lives"
        )]
        let fd = AsyncFd::with_interest(Descriptor(sleeper.clone()), Interest::READABLE)?;
        let station = Arc::new_cyclic(|station| Self {
            runtime,
            poller: poller.clone(),
            fd: Mutex::new(Some(fd)),
            bell: Arc::new(Bell(station.clone())).into(),
            solo: Solo::new(),
            work: Mutex::new((Rounds::new(sleeper.spin()), Wakes::new())),
            spinner: AtomicU64::new(NONE),
            spins: AtomicU64::new(0),
            watch: Mutex::new(None),
            is_watched: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            members: Mutex::new(Members { idle: BTreeMap::new(), last: CALLED }),
            failures: AtomicUsize::new(0),
            failure: Mutex::new(None),
            is_gone: AtomicBool::new(false),
        });
        Ok(station)
    }

    /// What a future that spins need not look after: the calls of the runtime. If there is no turn for it, another one does it.
    fn call(&self, spins: bool) {
        let Some(mut turn) = self.solo.enter() else { return };
        loop {
            self.serve(spins);
            if turn.ends() {
                return;
            }
        }
    }

    /// Does what there is to do. `spins`: whether a future is called if there is nothing.
    fn serve(&self, spins: bool) {
        let sleeper = self.poller.sleeper();
        let is_led = sleeper.leader_lock().is_led();
        self.read(!is_led);
        // What the thread leaves makes the descriptor readable, for which the bell waits again.
        if !is_led && !self.is_spun() {
            self.run(spins);
        }
    }

    /// Reads the descriptor, until the bell waits for it.
    fn read(&self, takes: bool) {
        loop {
            let fd = lock(&self.fd);
            let Some(descriptor) = &*fd else { return };
            // There is no task here whose budget it could use.
            let ready = pin!(unconstrained(poll_fn(|cx| {
                descriptor.poll_read_ready(cx).map_ok(|mut ready| ready.clear_ready())
            })))
            .poll(&mut Context::from_waker(&self.bell));
            drop(fd);
            match ready {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if takes => {
                    let (rounds, wakes) = &mut *lock(&self.work);
                    self.read_descriptors(rounds, &Runtime, true, wakes);
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    uverbs::report!(debug, {}, "dispatcher: {error}");
                    self.is_gone.store(true, Ordering::Release);
                    self.call_all();
                    return;
                }
            }
        }
    }

    /// Polls the dispatcher until it is asleep, or a future was woken or called that goes on with it.
    fn run(&self, spins: bool) {
        let sleeper = self.poller.sleeper();
        let (rounds, wakes) = &mut *lock(&self.work);
        self.is_asleep.store(false, Ordering::Relaxed);
        for _ in 0..MOST_ROUNDS {
            sleeper.woke().store(false, Ordering::Relaxed);
            match rounds.poll(&self.poller, &Runtime, wakes) {
                Ok(Next::Sleep) => return self.sleep(),
                Ok(Next::Again) if spins && self.call_one() => return self.expect(CALLED),
                Ok(Next::Again) => rounds.stop_spinning(),
                Ok(next) => {
                    if next == Next::Check {
                        self.read_descriptors(rounds, &Runtime, false, wakes);
                    }
                    // A future that was woken runs it next.
                    if !rounds.never_spins() && (sleeper.woke().load(Ordering::Relaxed) || self.call_one()) {
                        return self.expect(CALLED);
                    }
                }
                Err(error) => self.fail(error),
            }
        }
        // There is more, and the runtime has other tasks.
        sleeper.raise();
    }

    /// Reads what has made the descriptor readable. See [`Rounds::read`].
    fn read_descriptors(
        &self,
        rounds: &mut Rounds,
        leader: &impl Leader,
        after_sleep: bool,
        wakes: &mut Wakes,
    ) {
        if let Err(error) = rounds.read(&self.poller, leader, after_sleep, wakes) {
            uverbs::report!(error, {}, "dispatcher: {error}");
        }
    }

    /// A round of a future.
    #[inline]
    fn do_round(&self, number: u64, leader: &impl Leader) -> Step {
        self.spins.fetch_add(1, Ordering::Relaxed);
        self.is_asleep.store(false, Ordering::Relaxed);
        let (rounds, wakes) = &mut *lock(&self.work);
        let next = rounds.poll(&self.poller, leader, wakes);
        let step = match next {
            Ok(Next::Sleep) => Step::Wait,
            Ok(Next::Again) => Step::Spin,
            Ok(Next::Work) => Step::Work { sleeps_next: rounds.sleeps_next() },
            Ok(Next::Check) => {
                self.read_descriptors(rounds, leader, false, wakes);
                Step::Work { sleeps_next: false }
            }
            Err(error) => {
                self.fail(error);
                Step::Spin
            }
        };
        if step == Step::Wait {
            self.sleep();
        } else {
            self.expect(number);
        }
        step
    }

    /// As [`do_round`](Self::do_round), if it has the turn. Other calls for which there was no turn meanwhile follow.
    fn round(&self, number: u64, leader: &impl Leader) -> Step {
        let spinner = self.spinner.load(Ordering::Relaxed);
        let other_spins = spinner > CALLED && spinner != number;
        if other_spins {
            return Step::Wait;
        }
        let Some(mut turn) = self.solo.enter() else { return Step::Wait };
        let step = self.do_round(number, leader);
        while !turn.ends() {
            self.serve(false);
        }
        step
    }

    /// The CQ is armed, and nothing is to be done.
    fn sleep(&self) {
        self.spinner.store(NONE, Ordering::Relaxed);
        self.is_asleep.store(true, Ordering::Release);
        if let Some(limit) = self.poller.sleeper().time_to_sleep() {
            self.poller.sleeper().set_alarm(limit);
        }
    }

    /// All operations have ended with this error. The next rounds run the timers only.
    fn fail(&self, error: PollError) {
        uverbs::report!(error, {}, "dispatcher: {error}");
        *lock(&self.failure) = Some(error);
        self.failures.fetch_add(1, Ordering::Release);
        self.call_all();
    }

    /// Calls a future that waits, to spin. Returns whether there was one.
    fn call_one(&self) -> bool {
        for _ in 0..MOST_LOOKS {
            let idle = lock(&self.members).idle.pop_first();
            let Some((_, task_waker)) = idle else { return false };
            task_waker.set_listed(false);
            if task_waker.call() {
                return true;
            }
        }
        false
    }

    fn call_all(&self) {
        let idle = core::mem::take(&mut lock(&self.members).idle);
        for task_waker in idle.into_values() {
            task_waker.set_listed(false);
            task_waker.call();
        }
    }

    /// A future will do the next round. If it does not, the alarm ends its time.
    fn expect(&self, spinner: u64) {
        self.spinner.store(spinner, Ordering::Relaxed);
        // Of several runtimes another one may have read the alarm.
        if !self.is_watched.load(Ordering::Relaxed) || self.poller.sleeper().has_several_stations() {
            self.is_watched.store(true, Ordering::Relaxed);
            let spins = self.spins.load(Ordering::Relaxed);
            *lock(&self.watch) = Some((Instant::now() + PATIENCE, spins));
            self.poller.sleeper().set_alarm(PATIENCE);
        }
    }

    /// Whether a future spins, and goes on.
    fn is_spun(&self) -> bool {
        let mut watch = lock(&self.watch);
        let Some((until, before)) = &mut *watch else { return false };
        let (now, spins) = (Instant::now(), self.spins.load(Ordering::Relaxed));
        let has_spinner = self.spinner.load(Ordering::Relaxed) != NONE;
        if has_spinner && (now < *until || *before != spins) {
            if now >= *until {
                (*until, *before) = (now + PATIENCE, spins);
            }
            self.poller.sleeper().set_alarm(*until - now);
            return true;
        }
        if now >= *until {
            *watch = None;
            self.is_watched.store(false, Ordering::Relaxed);
            self.spinner.store(NONE, Ordering::Relaxed);
        }
        false
    }
}

/// A future of a task that waits and runs the dispatcher, until this is dropped.
pub(crate) struct Member<'a, D: Driver> {
    poller: &'a Arc<Poller<D>>,
    stations: &'a Stations<D>,
    task_waker: &'a Arc<TaskWaker>,
    station: Option<Arc<Station<D>>>,
    /// Its number in the station.
    number: u64,
    /// Its place among the followers of a thread, before it has a station.
    follows: Place,
    /// The failures before it began.
    failures: usize,
}

impl<'a, D: Driver> Member<'a, D> {
    pub(crate) fn new(
        poller: &'a Arc<Poller<D>>,
        stations: &'a Stations<D>,
        task_waker: &'a Arc<TaskWaker>,
    ) -> Self {
        Self {
            poller,
            stations,
            task_waker,
            station: None,
            number: NONE,
            follows: Place::default(),
            failures: 0,
        }
    }

    /// Does a round, unless another one does. The caller polls on, yields, or [waits](Self::poll_wait).
    ///
    /// # Errors
    /// Tokio refuses the descriptor, or this is a child of fork(2).
    #[inline]
    pub(crate) fn round(&mut self, leader: &impl Leader) -> Result<Step> {
        let sleeper = self.poller.sleeper();
        if sleeper.is_forked() {
            return Err(FORKED);
        }
        let is_led = sleeper.leader_lock().is_led();
        if self.station.as_ref().is_none_or(|station| station.is_gone.load(Ordering::Acquire)) {
            if sleeper.leader_lock().is_taken() {
                return Ok(Step::Wait);
            }
            self.attach()?;
        }
        match &self.station {
            Some(station) if !is_led => Ok(station.round(self.number, leader)),
            _ => Ok(Step::Wait),
        }
    }

    /// The error of the CQ, if it has failed since this began.
    pub(crate) fn failure(&mut self) -> Option<PollError> {
        let station = self.station.as_ref()?;
        let failures = station.failures.load(Ordering::Acquire);
        if core::mem::replace(&mut self.failures, failures) == failures {
            return None;
        }
        *lock(&station.failure)
    }

    /// Waits until the future is woken, or this is called to do a round. `begun` is whether the wait has begun.
    pub(crate) fn poll_wait(&mut self, cx: &Context<'_>, begun: &mut bool) -> Poll<()> {
        let was_called = *begun && !self.task_waker.waits();
        if was_called || self.task_waker.wait(cx.waker()) {
            return Poll::Ready(());
        }
        *begun = true;
        let Some(station) = &self.station else {
            let follows = self.poller.sleeper().leader_lock().follow_in_task(&mut self.follows, cx.waker());
            return if follows { Poll::Pending } else { Poll::Ready(()) };
        };
        if !self.task_waker.set_listed(true) {
            lock(&station.members).idle.insert(self.number, self.task_waker.clone());
        }
        // Either this finds it, or the runtime's last call finds this.
        if station.is_gone.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Enters the station of this runtime.
    #[cold]
    fn attach(&mut self) -> Result<()> {
        self.detach();
        let sleeper = self.poller.sleeper();
        discard(sleeper.leader_lock().leave_in_task(&mut self.follows));
        let runtime = Handle::current().id();
        let mut stations = lock(self.stations);
        let is_here =
            |station: &Station<D>| station.runtime == runtime && !station.is_gone.load(Ordering::Acquire);
        let known = stations.iter_mut().find(|(station, _)| is_here(station));
        let is_new = known.is_none();
        let station = match known {
            Some((station, members)) => {
                *members += 1;
                station.clone()
            }
            None => {
                let station = Station::new(self.poller, runtime)?;
                sleeper.add_station()?;
                stations.push((station.clone(), 1));
                station
            }
        };
        drop(stations);
        if is_new && let Some(mut turn) = station.solo.enter() {
            // The bell waits for the descriptor.
            station.read(false);
            while !turn.ends() {
                station.serve(false);
            }
        }
        let mut members = lock(&station.members);
        members.last += 1;
        self.number = members.last;
        drop(members);
        self.failures = station.failures.load(Ordering::Acquire);
        self.station = Some(station);
        Ok(())
    }

    /// Leaves its station. The last one closes it.
    fn detach(&mut self) {
        let Some(station) = self.station.take() else { return };
        lock(&station.members).idle.remove(&self.number);
        self.task_waker.set_listed(false);
        let mut stations = lock(self.stations);
        let mut is_last = false;
        if let Some(i) = stations.iter().position(|(other, _)| Arc::ptr_eq(other, &station))
            && let Some((_, members)) = stations.get_mut(i)
        {
            *members -= 1;
            is_last = *members == 0;
            if is_last {
                stations.swap_remove(i);
                self.poller.sleeper().remove_station();
                // Before another one of this runtime registers the descriptor.
                let fd = lock(&station.fd).take();
                drop(fd);
            }
        }
        drop(stations);
        let spinner = station.spinner.load(Ordering::Relaxed);
        let was_responsible = spinner <= CALLED || spinner == self.number;
        if station.is_asleep.load(Ordering::Acquire) || !was_responsible {
            return;
        }
        if is_last {
            self.poller.sleeper().leave();
        } else {
            station.spinner.store(NONE, Ordering::Relaxed);
            station.call(true);
        }
    }
}

impl<D: Driver> Drop for Member<'_, D> {
    fn drop(&mut self) {
        if self.poller.sleeper().is_forked() {
            // The descriptor is registered in the runtime of the parent.
            core::mem::forget(self.station.take());
            return;
        }
        discard(self.poller.sleeper().leader_lock().leave_in_task(&mut self.follows));
        self.detach();
    }
}
