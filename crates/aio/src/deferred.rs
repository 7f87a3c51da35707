// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a dispatcher does besides passing completions on: it ends queues that were dropped, and refills receive queues whose pools
//! were empty.
//!
//! A queue that was dropped keeps its number and its entries of the CQ until the CQ was polled empty, because its completions
//! may still be there (drivers of rings that the kernel shares do not remove them).
//!
//! A QP with an SRQ is also destroyed later. Only a completion says which receive of the SRQ the QP has taken, and the driver
//! removes the completions of a QP that is destroyed. The receive would be lost, and the SRQ would become shorter. So the QP moves
//! to ERR, the device reports that it takes no more receives (`LAST_WQE_REACHED`), and the CQ is polled empty.

use crate::route::RouteId;
use crate::sends::Queue;
use crate::sync::{Mutex, lock};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::sync::Arc;
use uverbs::Driver;
use uverbs::qp::{QpControl, QpLife};
use uverbs_core::wake::{Caller, discard};

/// How long a QP with an SRQ waits for `LAST_WQE_REACHED`: rxe does not raise it in old kernels (6.1).
pub(crate) const LAST_WQE_LIMIT: Duration = Duration::from_millis(500);

/// A QP that is destroyed when this is dropped.
pub(crate) struct Linger<D: Driver> {
    pub(crate) control: QpControl<D>,
    pub(crate) _queue: Option<Queue<D>>,
    /// The end of the wait for the event, by the dispatcher's clock.
    pub(crate) until: Duration,
}

/// A shared queue whose receives have to be counted when a target that received from it has ended.
pub(crate) trait Recount: Send + Sync {
    /// Counts them, while no thread polls: the messages that the target had, and that were not polled, have no completions.
    fn recount(&self);
}

/// A queue that ended: its number, and the entries of the CQ that were reserved for it.
pub(crate) struct Ended<D: Driver> {
    pub(crate) route: RouteId,
    pub(crate) qp_num: Option<u32>,
    pub(crate) entries: u32,
    pub(crate) linger: Option<Linger<D>>,
    /// Of a QP: the program may have its control still, and then it has completions until the program drops that.
    pub(crate) life: Option<QpLife>,
    /// Of a DC target: where it has received.
    pub(crate) srq: Option<Box<dyn Recount>>,
}

impl<D: Driver> Ended<D> {
    /// Whether the QP exists, although the dispatcher does not keep it.
    pub(crate) fn is_held(&self) -> bool {
        self.linger.is_none() && self.life.as_ref().is_some_and(|life| !life.has_ended())
    }
}

/// A wait until the CQ was polled empty. Its task has it, too, until it waits no more.
#[derive(Debug, Default)]
pub(crate) struct Dry {
    done: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Dry {
    /// Whether it is over. If not, the task is woken then. The caller holds no lock.
    pub(crate) fn poll(&self, waker: &Waker) -> bool {
        let mut caller = Caller::new(waker);
        loop {
            let mut task = lock(&self.task);
            match &mut *task {
                Some(place) => {
                    caller.store(place);
                }
                none => *none = caller.take(),
            }
            drop(task);
            if !caller.supply() {
                // Either this finds that it is over, or `finish` finds the task.
                return self.done.load(Ordering::Acquire);
            }
        }
    }

    fn finish(&self, wakes: &mut Vec<Waker>) {
        self.done.store(true, Ordering::Release);
        wakes.extend(lock(&self.task).take());
    }

    /// The task waits no more. The caller holds no lock.
    pub(crate) fn leave(&self) {
        let task = lock(&self.task).take();
        discard(task);
    }
}

/// Work for the next poll, which any thread may add.
pub(crate) struct Added<D: Driver> {
    pub(crate) ended: Vec<Ended<D>>,
    pub(crate) starved: Vec<RouteId>,
    dry: Vec<Arc<Dry>>,
    /// The number of waits at which those are removed whose tasks wait no more.
    dry_most: usize,
}

impl<D: Driver> Added<D> {
    pub(crate) fn new() -> Self {
        Self { ended: Vec::new(), starved: Vec::new(), dry: Vec::new(), dry_most: 0 }
    }

    /// Adds a wait. If no one polls, tasks may begin and end any number of them.
    pub(crate) fn add_dry(&mut self, dry: Arc<Dry>) {
        if self.dry.len() >= self.dry_most {
            self.dry.retain(|dry| Arc::strong_count(dry) > 1);
            self.dry_most = 2 * self.dry.len() + 16;
        }
        self.dry.push(dry);
    }

    fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.starved.is_empty() && self.dry.is_empty()
    }
}

/// Something that waits until the CQ was polled empty.
struct Waiting<T> {
    what: T,
    /// The count of completions at the beginning of the wait. `None` while a QP still waits for its event, or is
    /// [held](Ended::is_held).
    since: Option<u64>,
}

impl<D: Driver> Waiting<Ended<D>> {
    fn was_held(&self) -> bool {
        self.since.is_none() && self.what.linger.is_none()
    }
}

/// The work that a dispatcher has begun.
pub(crate) struct Deferred<D: Driver> {
    ending: Vec<Waiting<Ended<D>>>,
    dry: Vec<Waiting<Arc<Dry>>>,
    /// Receive queues that are empty because their pools are.
    pub(crate) starved: Vec<RouteId>,
    /// Completions that were polled while there was something to do.
    total: u64,
    /// Entries of the CQ.
    cqe: u32,
}

impl<D: Driver> Deferred<D> {
    pub(crate) fn new(cqe: u32) -> Self {
        Self { ending: Vec::new(), dry: Vec::new(), starved: Vec::new(), total: 0, cqe }
    }

    /// Before a poll.
    pub(crate) fn begin(&mut self, added: &mut Added<D>, now: impl FnOnce() -> Duration) {
        self.ending.extend(added.ended.drain(..).map(|what| Waiting { what, since: None }));
        self.dry.extend(added.dry.drain(..).map(|what| Waiting { what, since: Some(self.total) }));
        for id in added.starved.drain(..) {
            if !self.starved.contains(&id) {
                self.starved.push(id);
            }
        }
        if self.ending.iter().any(|ending| ending.since.is_none()) {
            let now = now();
            for Waiting { what, since } in self.ending.iter_mut().filter(|ending| ending.since.is_none()) {
                let is_quiet = |linger: &Linger<D>| linger.control.has_last_wqe() || linger.until <= now;
                if what.linger.as_ref().is_none_or(is_quiet) && !what.is_held() {
                    *since = Some(self.total);
                }
            }
        }
    }

    /// After a poll of `n` completions, which took all if `is_dry`. Returns the queues that have no more completions.
    pub(crate) fn finish(&mut self, n: usize, is_dry: bool, wakes: &mut Vec<Waker>) -> Vec<Ended<D>> {
        self.total += n as u64;
        let (total, cqe) = (self.total, u64::from(self.cqe));
        // A CQ that is never empty: all that were in it at the beginning are polled.
        let is_over = |since: Option<u64>| since.is_some_and(|since| is_dry || total - since >= cqe);
        for waiting in self.dry.extract_if(.., |waiting| is_over(waiting.since)) {
            waiting.what.finish(wakes);
        }
        self.ending.extract_if(.., |ending| is_over(ending.since)).map(|ending| ending.what).collect()
    }

    /// Keeps the entries of a QP that the program holds.
    pub(crate) fn hold(&mut self, what: Ended<D>) {
        self.ending.push(Waiting { what, since: None });
    }

    /// Whether there is a QP that was held. Whether it still is, the next poll with deferred work finds out.
    pub(crate) fn any_held(&self) -> bool {
        self.ending.iter().any(Waiting::was_held)
    }

    /// Whether nothing is left to do until the entries of a held QP are needed.
    pub(crate) fn is_done(&self, added: &Added<D>) -> bool {
        self.ending.iter().all(Waiting::was_held)
            && self.dry.is_empty()
            && self.starved.is_empty()
            && added.is_empty()
    }

    /// The device was removed: nothing will be complete.
    pub(crate) fn give_up(&mut self, wakes: &mut Vec<Waker>) -> Vec<Ended<D>> {
        self.starved.clear();
        for waiting in self.dry.drain(..) {
            waiting.what.finish(wakes);
        }
        self.ending.drain(..).map(|ending| ending.what).collect()
    }
}
