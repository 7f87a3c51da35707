// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair queue of tasks that wait for units of something: free entries of a send queue, messages that have arrived.
//!
//! It has no lock and does not count the units; the queue to which it belongs does both. A task passes if there are enough units
//! for it and for all that came before it. So no task overtakes another, and one that needs many units is not
//! starved by those that need one.

use core::task::Waker;
use std::collections::BTreeMap;
use uverbs_core::wake::Caller;

#[derive(Debug)]
struct Entry {
    want: u32,
    /// `None` after it was woken.
    waker: Option<Waker>,
}

/// The place of a task in the queue, if it has one. A task that stops waiting [leaves](FairQueue::leave).
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<u64>);

impl Ticket {
    /// Whether it has a place.
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    /// Apart from the others, because it is the only one in most cases.
    first: Option<(u64, Entry)>,
    /// By their numbers. Empty if there is no first.
    others: BTreeMap<u64, Entry>,
    /// The units that the others want.
    wanted: u64,
    /// The others before this number may pass, or could when that was looked for last. They were woken.
    granted: u64,
    /// The units that those of the others want.
    granted_units: u64,
    next: u64,
    /// The tickets before this number have lost their places.
    dismissed: u64,
}

impl FairQueue {
    /// Whether the task may take `want` of the `available` units; if so, the caller takes them. Otherwise the task has a place in
    /// the queue, and is woken when it may take them; or it needs a clone of its waker first, and nothing has changed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn pass(
        &mut self,
        ticket: &mut Ticket,
        want: u32,
        available: u32,
        caller: &mut Caller<'_>,
    ) -> bool {
        match &mut self.first {
            None if want <= available => {}
            None => {
                self.first = self.enter(ticket, want, caller);
                return false;
            }
            Some((number, first)) if ticket.0 == Some(*number) => {
                if want > available {
                    first.want = want;
                    store(&mut first.waker, caller);
                    return false;
                }
                caller.leave(first.waker.take());
                self.advance();
            }
            Some(_) => return self.pass_in_turn(ticket, want, available, caller),
        }
        ticket.0 = None;
        true
    }

    /// As [`pass`](Self::pass) for a task that no other one precedes or follows. `false` if `pass` has to decide.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn pass_alone(&mut self, ticket: &mut Ticket, want: u32, available: u32) -> bool {
        if want > available {
            return false;
        }
        match &self.first {
            // With a ticket it may have been dismissed.
            None if ticket.0.is_none() => {}
            // It was woken, so there is no waker to drop.
            Some((number, Entry { waker: None, .. }))
                if ticket.0 == Some(*number) && self.others.is_empty() =>
            {
                self.first = None;
            }
            _ => return false,
        }
        ticket.0 = None;
        true
    }

    /// Takes the places of all, and wakes them.
    pub(crate) fn dismiss_all(&mut self, wakes: &mut Vec<Waker>) {
        self.dismissed = self.next;
        let first = self.first.take().map(|(_, first)| first);
        let others = core::mem::take(&mut self.others).into_values();
        wakes.extend(first.into_iter().chain(others).filter_map(|entry| entry.waker));
        (self.wanted, self.granted_units) = (0, 0);
    }

    /// Whether the ticket has lost its place. If so, it is none any more.
    pub(crate) fn dismisses(&self, ticket: &mut Ticket) -> bool {
        ticket.0.take_if(|number| *number < self.dismissed).is_some()
    }

    /// Gives the task a number. `None` without a clone of its waker.
    #[inline]
    fn enter(&mut self, ticket: &mut Ticket, want: u32, caller: &mut Caller<'_>) -> Option<(u64, Entry)> {
        let waker = Some(caller.take()?);
        let number = self.next;
        self.next += 1;
        ticket.0 = Some(number);
        Some((number, Entry { want, waker }))
    }

    /// The first one has left.
    #[inline]
    fn advance(&mut self) {
        self.first = if self.others.is_empty() { None } else { self.others.pop_first() };
        if let Some((number, first)) = &self.first {
            let units = u64::from(first.want);
            self.wanted -= units;
            if *number < self.granted {
                self.granted_units -= units;
            }
        }
    }

    /// For a task that is not the first.
    #[inline(never)]
    fn pass_in_turn(
        &mut self,
        ticket: &mut Ticket,
        want: u32,
        available: u32,
        caller: &mut Caller<'_>,
    ) -> bool {
        let ahead = self.first.as_ref().map_or(0, |(_, first)| u64::from(first.want));
        let (want_units, units) = (u64::from(want), u64::from(available));
        let place = ticket.0.and_then(|number| self.others.get_mut(&number).map(|entry| (number, entry)));
        let Some((number, entry)) = place else {
            // Behind all others.
            if ahead + self.wanted + want_units <= units {
                ticket.0 = None;
                return true;
            }
            if let Some((number, entry)) = self.enter(ticket, want, caller) {
                self.wanted += want_units;
                self.others.insert(number, entry);
            }
            return false;
        };
        let had = u64::from(core::mem::replace(&mut entry.want, want));
        self.wanted = self.wanted - had + want_units;
        if number < self.granted {
            self.granted_units = self.granted_units - had + want_units;
            if ahead + self.granted_units > units {
                // There are fewer units than before.
                self.grant_again(ahead, units);
            }
        } else if ahead + self.granted_units + want_units <= units
            && self.others.range(self.granted..).next().is_some_and(|(next, _)| *next == number)
        {
            (self.granted, self.granted_units) = (number + 1, self.granted_units + want_units);
        }
        if number < self.granted
            && let Some(entry) = self.others.remove(&number)
        {
            self.wanted -= want_units;
            self.granted_units -= want_units;
            caller.leave(entry.waker);
            ticket.0 = None;
            return true;
        }
        if let Some(entry) = self.others.get_mut(&number) {
            store(&mut entry.waker, caller);
        }
        false
    }

    /// Finds those behind the first that still may pass, of those that were woken; the first one wants `ahead` units.
    #[cold]
    fn grant_again(&mut self, ahead: u64, units: u64) {
        (self.granted, self.granted_units) = (0, 0);
        for (number, entry) in &self.others {
            let granted_units = self.granted_units + u64::from(entry.want);
            if ahead + granted_units > units || entry.waker.is_some() {
                break;
            }
            (self.granted, self.granted_units) = (number + 1, granted_units);
        }
    }

    /// Wakes further ones behind the first that may pass; the first one wants `ahead` units.
    fn grant(&mut self, ahead: u64, units: u64, wakes: &mut Vec<Waker>) {
        for (number, entry) in self.others.range_mut(self.granted..) {
            let granted_units = self.granted_units + u64::from(entry.want);
            if ahead + granted_units > units {
                break;
            }
            (self.granted, self.granted_units) = (number + 1, granted_units);
            wakes.extend(entry.waker.take());
        }
    }

    /// Gives up the place. Those behind it move up. Returns the waker of the place, which the caller drops without its lock.
    pub(crate) fn leave(
        &mut self,
        ticket: &mut Ticket,
        available: u32,
        wakes: &mut Vec<Waker>,
    ) -> Option<Waker> {
        let number = ticket.0.take()?;
        let left = if let Some((_, first)) = self.first.take_if(|(first, _)| *first == number) {
            self.advance();
            Some(first)
        } else {
            let left = self.others.remove(&number);
            let units = left.as_ref().map_or(0, |left| u64::from(left.want));
            self.wanted -= units;
            if number < self.granted {
                self.granted_units -= units;
            }
            left
        };
        self.wake(available, wakes);
        left?.waker
    }

    /// Wakes those that may pass, after units have become available.
    #[inline]
    pub(crate) fn wake(&mut self, available: u32, wakes: &mut Vec<Waker>) {
        let Some((_, first)) = &mut self.first else { return };
        if first.want <= available {
            if let Some(waker) = first.waker.take() {
                wakes.push(waker);
            }
            if !self.others.is_empty() {
                let ahead = u64::from(first.want);
                self.grant(ahead, available.into(), wakes);
            }
        }
    }

    /// Wakes all, because there will be no more units.
    pub(crate) fn wake_all(&mut self, wakes: &mut Vec<Waker>) {
        let first = self.first.iter_mut().map(|(_, first)| first);
        wakes.extend(first.chain(self.others.values_mut()).filter_map(|entry| entry.waker.take()));
    }

    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

/// Stores the waker of a task that waits on.
#[inline]
fn store(place: &mut Option<Waker>, caller: &mut Caller<'_>) {
    match place {
        Some(place) => {
            caller.store(place);
        }
        none => *none = caller.take(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::count::Count;
    use core::sync::atomic::Ordering;
    use std::sync::Arc;

    struct Task {
        count: Arc<Count>,
        waker: Waker,
        ticket: Ticket,
    }

    impl Task {
        fn new() -> Self {
            let count = Arc::new(Count::default());
            Self { waker: count.clone().into(), count, ticket: Ticket::default() }
        }

        fn pass(&mut self, queue: &mut FairQueue, want: u32, available: u32) -> bool {
            queue.pass(&mut self.ticket, want, available, &mut Caller::with_clone(&self.waker))
        }

        fn wakes(&self) -> u32 {
            self.count.0.load(Ordering::Relaxed)
        }
    }

    fn wake(queue: &mut FairQueue, available: u32) {
        let mut wakes = Vec::new();
        queue.wake(available, &mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn tasks_pass_in_the_order_of_their_arrival() {
        let mut queue = FairQueue::default();
        let [mut a, mut b, mut c] = [Task::new(), Task::new(), Task::new()];
        assert!(!a.pass(&mut queue, 1, 0));
        assert!(!b.pass(&mut queue, 1, 0));
        wake(&mut queue, 1);
        assert_eq!((a.wakes(), b.wakes()), (1, 0));
        assert!(!c.pass(&mut queue, 1, 1), "the unit is that of the first");
        assert!(!b.pass(&mut queue, 1, 1));
        assert!(a.pass(&mut queue, 1, 1));
        wake(&mut queue, 2);
        assert!(c.pass(&mut queue, 1, 2) && b.pass(&mut queue, 1, 1));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_task_that_needs_many_is_not_overtaken() {
        let mut queue = FairQueue::default();
        let [mut many, mut one] = [Task::new(), Task::new()];
        assert!(!many.pass(&mut queue, 3, 2));
        assert!(!one.pass(&mut queue, 1, 2));
        wake(&mut queue, 2);
        assert_eq!((many.wakes(), one.wakes()), (0, 0));
        wake(&mut queue, 4);
        assert_eq!((many.wakes(), one.wakes()), (1, 1));
        assert!(many.pass(&mut queue, 3, 4) && one.pass(&mut queue, 1, 1));
    }

    #[test]
    fn a_task_that_leaves_after_it_was_woken_wakes_the_next() {
        let mut queue = FairQueue::default();
        let [mut a, mut b] = [Task::new(), Task::new()];
        assert!(!a.pass(&mut queue, 1, 0) && !b.pass(&mut queue, 1, 0));
        wake(&mut queue, 1);
        let mut wakes = Vec::new();
        let left = queue.leave(&mut a.ticket, 1, &mut wakes);
        assert!(wakes.len() == 1 && left.is_none());
        wakes.into_iter().for_each(Waker::wake);
        assert_eq!((a.wakes(), b.wakes()), (1, 1));
        assert!(b.pass(&mut queue, 1, 1));
    }

    #[test]
    fn the_last_waker_is_woken() {
        let mut queue = FairQueue::default();
        let (mut task, other) = (Task::new(), Task::new());
        assert!(!task.pass(&mut queue, 1, 0));
        let mut caller = Caller::new(&other.waker);
        assert!(!queue.pass(&mut task.ticket, 1, 0, &mut caller), "the task has moved");
        assert!(
            caller.supply() && !queue.pass(&mut task.ticket, 1, 0, &mut caller),
            "it was not cloned under a lock"
        );
        assert_eq!(Arc::strong_count(&task.count), 3, "the caller drops it");
        drop(caller);
        assert_eq!(Arc::strong_count(&task.count), 2);
        wake(&mut queue, 1);
        assert_eq!((task.wakes(), other.wakes()), (0, 1));
    }

    /// Any order of arrivals, passes, leaves and units, compared with the definition: a task passes if there are enough units for it and
    /// for all that came before it, and each that may pass was woken.
    #[test]
    fn tasks_pass_as_defined() {
        for seed in 0..200_u64 {
            let mut state = seed;
            let mut random = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % n
            };
            let mut queue = FairQueue::default();
            let mut available = 0_u32;
            let mut tasks: Vec<(Task, u32, u32)> = Vec::new();
            for _ in 0..300 {
                let ahead =
                    |tasks: &[(Task, u32, u32)], i: usize| tasks[..i].iter().map(|task| task.1).sum::<u32>();
                match random(5) {
                    0 => {
                        let (mut task, want) = (Task::new(), 1 + random(3) as u32);
                        let may = ahead(&tasks, tasks.len()) + want <= available;
                        assert_eq!(task.pass(&mut queue, want, available), may);
                        if may {
                            available -= want;
                        } else {
                            tasks.push((task, want, 0));
                        }
                    }
                    1 if !tasks.is_empty() => {
                        let i = random(tasks.len() as u64) as usize;
                        let may = ahead(&tasks, i + 1) <= available;
                        let (task, want, _) = &mut tasks[i];
                        assert_eq!(task.pass(&mut queue, *want, available), may, "seed {seed}");
                        if may {
                            available -= *want;
                            tasks.remove(i);
                        } else {
                            tasks[i].2 = tasks[i].0.wakes();
                        }
                    }
                    2 if !tasks.is_empty() => {
                        let mut task = tasks.remove(random(tasks.len() as u64) as usize).0;
                        let mut wakes = Vec::new();
                        queue.leave(&mut task.ticket, available, &mut wakes);
                        wakes.into_iter().for_each(Waker::wake);
                    }
                    3 if random(8) == 0 => available = random(u64::from(available) + 1) as u32,
                    _ => {
                        available += 1 + random(3) as u32;
                        wake(&mut queue, available);
                    }
                }
                for i in 0..tasks.len() {
                    let was_woken = tasks[i].0.wakes() > tasks[i].2;
                    assert!(was_woken || ahead(&tasks, i + 1) > available, "seed {seed}: {i} was not woken");
                }
                assert_eq!(queue.is_empty(), tasks.is_empty());
            }
        }
    }

    /// Each step is for one task: of many that wait, those that leave, and those that pass, are found by their numbers.
    #[test]
    fn many_tasks_wait() {
        const TASKS: usize = 10_000;
        let mut queue = FairQueue::default();
        let mut tasks: Vec<_> = core::iter::repeat_with(Task::new).take(TASKS).collect();
        for task in &mut tasks {
            assert!(!task.pass(&mut queue, 1, 0) && !task.pass(&mut queue, 1, 0));
        }
        // The last ones leave first, and then all that have an odd number.
        for task in tasks[TASKS / 2..].iter_mut().rev() {
            assert!(queue.leave(&mut task.ticket, 0, &mut Vec::new()).is_some());
        }
        for task in tasks[..TASKS / 2].iter_mut().skip(1).step_by(2) {
            assert!(queue.leave(&mut task.ticket, 0, &mut Vec::new()).is_some());
        }
        let alive = tasks.iter().filter(|task| Arc::strong_count(&task.count) > 2).count();
        assert_eq!(alive, TASKS / 4, "wakers of tasks that have left");
        for i in (0..TASKS / 2).step_by(2) {
            wake(&mut queue, 1);
            assert_eq!(tasks[i].wakes(), 1);
            assert!(tasks[i].pass(&mut queue, 1, 1));
        }
        assert!(queue.is_empty());
        assert_eq!(tasks.iter().map(Task::wakes).sum::<u32>() as usize, TASKS / 4, "each was woken once");
    }
}
