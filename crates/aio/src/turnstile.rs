// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair queue of tasks that wait for units of something: free entries of a send queue, messages that have arrived.
//!
//! It has no lock and does not count the units; the queue to which it belongs does both. A task passes if there are enough units
//! for it and for all that came before it. So no task overtakes another, and one that needs many units is not
//! starved by those that need one.

use crate::sync::replace_waker;
use core::task::Waker;
use std::collections::VecDeque;

#[derive(Debug)]
struct Entry {
    number: u64,
    want: u32,
    /// `None` after it was woken.
    waker: Option<Waker>,
}

impl Entry {
    #[inline]
    fn set_waker(&mut self, waker: &Waker, old: &mut Option<Waker>) {
        match &mut self.waker {
            Some(place) => replace_waker(place, waker, old),
            none => *none = Some(waker.clone()),
        }
    }
}

/// The place of a task in the queue, if it has one. A task that stops waiting [leaves](Turnstile::leave).
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<u64>);

impl Ticket {
    /// Whether it has a place.
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    /// Apart from the others, because it is the only one in most cases.
    first: Option<Entry>,
    /// Empty if there is no first.
    others: VecDeque<Entry>,
    next: u64,
    /// The tickets before this number have lost their places.
    dismissed: u64,
}

impl Turnstile {
    /// Whether the task may take `want` of the `available` units; if so, the caller takes them. Otherwise the task has a place in
    /// the queue, and is woken when it may take them. The caller drops what is put into `old` without its lock.
    #[inline(always)]
    pub(crate) fn pass(
        &mut self,
        ticket: &mut Ticket,
        want: u32,
        available: u32,
        waker: &Waker,
        old: &mut Option<Waker>,
    ) -> bool {
        match &mut self.first {
            None if want <= available => {}
            None => {
                self.first = Some(self.enter(ticket, want, waker));
                return false;
            }
            Some(first) if ticket.0 == Some(first.number) => {
                if want > available {
                    first.set_waker(waker, old);
                    return false;
                }
                *old = first.waker.take();
                self.first = if self.others.is_empty() { None } else { self.others.pop_front() };
            }
            Some(first) => {
                let ahead = first.want;
                return self.pass_in_turn((ahead, want, available), ticket, waker, old);
            }
        }
        ticket.0 = None;
        true
    }

    /// As [`pass`](Self::pass) for a task that no other one precedes or follows. `false` if `pass` has to decide.
    #[inline(always)]
    pub(crate) fn pass_alone(&mut self, ticket: &mut Ticket, want: u32, available: u32) -> bool {
        if want > available {
            return false;
        }
        match &self.first {
            // With a ticket it may have been dismissed.
            None if ticket.0.is_none() => {}
            // It was woken, so there is no waker to drop.
            Some(Entry { waker: None, number, .. })
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
        let entries = self.first.take().into_iter().chain(self.others.drain(..));
        wakes.extend(entries.filter_map(|entry| entry.waker));
    }

    /// Whether the ticket has lost its place. If so, it is none any more.
    pub(crate) fn dismisses(&self, ticket: &mut Ticket) -> bool {
        ticket.0.take_if(|number| *number < self.dismissed).is_some()
    }

    /// Gives the task a number.
    #[inline]
    fn enter(&mut self, ticket: &mut Ticket, want: u32, waker: &Waker) -> Entry {
        let number = self.next;
        self.next += 1;
        ticket.0 = Some(number);
        Entry { number, want, waker: Some(waker.clone()) }
    }

    /// For a task that is not the first; that one wants `ahead` units.
    #[inline(never)]
    fn pass_in_turn(
        &mut self,
        (mut ahead, want, available): (u32, u32, u32),
        ticket: &mut Ticket,
        waker: &Waker,
        old: &mut Option<Waker>,
    ) -> bool {
        let mut position = None;
        for (i, entry) in self.others.iter().enumerate() {
            if Some(entry.number) == ticket.0 {
                position = Some(i);
                break;
            }
            ahead = ahead.saturating_add(entry.want);
        }
        if ahead.saturating_add(want) <= available {
            if let Some(i) = position {
                *old = self.others.remove(i).and_then(|entry| entry.waker);
            }
            ticket.0 = None;
            return true;
        }
        match position.and_then(|i| self.others.get_mut(i)) {
            Some(entry) => entry.set_waker(waker, old),
            None => {
                let entry = self.enter(ticket, want, waker);
                self.others.push_back(entry);
            }
        }
        false
    }

    /// Gives up the place. Those behind it move up. Returns the waker of the place, which the caller drops without its lock.
    pub(crate) fn leave(
        &mut self,
        ticket: &mut Ticket,
        available: u32,
        wakes: &mut Vec<Waker>,
    ) -> Option<Waker> {
        let number = ticket.0.take()?;
        let left = if self.first.as_ref().is_some_and(|first| first.number == number) {
            core::mem::replace(&mut self.first, self.others.pop_front())
        } else {
            let at = self.others.iter().position(|entry| entry.number == number);
            at.and_then(|at| self.others.remove(at))
        };
        self.wake(available, wakes);
        left?.waker
    }

    /// Wakes those that may pass, after units have become available.
    #[inline]
    pub(crate) fn wake(&mut self, available: u32, wakes: &mut Vec<Waker>) {
        let Some(first) = &mut self.first else { return };
        if first.want <= available {
            if let Some(waker) = first.waker.take() {
                wakes.push(waker);
            }
            if !self.others.is_empty() {
                let ahead = first.want;
                self.wake_others(ahead, available, wakes);
            }
        }
    }

    /// Wakes those behind the first, which wants `ahead` units.
    fn wake_others(&mut self, mut ahead: u32, available: u32, wakes: &mut Vec<Waker>) {
        for entry in &mut self.others {
            ahead = ahead.saturating_add(entry.want);
            if ahead > available {
                break;
            }
            wakes.extend(entry.waker.take());
        }
    }

    /// Wakes all, because there will be no more units.
    pub(crate) fn wake_all(&mut self, wakes: &mut Vec<Waker>) {
        wakes.extend(self.first.iter_mut().chain(&mut self.others).filter_map(|entry| entry.waker.take()));
    }

    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
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

        fn pass(&mut self, turnstile: &mut Turnstile, want: u32, available: u32) -> bool {
            turnstile.pass(&mut self.ticket, want, available, &self.waker, &mut None)
        }

        fn wakes(&self) -> u32 {
            self.count.0.load(Ordering::Relaxed)
        }
    }

    fn wake(turnstile: &mut Turnstile, available: u32) {
        let mut wakes = Vec::new();
        turnstile.wake(available, &mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn tasks_pass_in_the_order_of_their_arrival() {
        let mut turnstile = Turnstile::default();
        let [mut a, mut b, mut c] = [Task::new(), Task::new(), Task::new()];
        assert!(!a.pass(&mut turnstile, 1, 0));
        assert!(!b.pass(&mut turnstile, 1, 0));
        wake(&mut turnstile, 1);
        assert_eq!((a.wakes(), b.wakes()), (1, 0));
        assert!(!c.pass(&mut turnstile, 1, 1), "the unit is that of the first");
        assert!(!b.pass(&mut turnstile, 1, 1));
        assert!(a.pass(&mut turnstile, 1, 1));
        wake(&mut turnstile, 2);
        assert!(c.pass(&mut turnstile, 1, 2) && b.pass(&mut turnstile, 1, 1));
        assert!(turnstile.is_empty());
    }

    #[test]
    fn a_task_that_needs_many_is_not_overtaken() {
        let mut turnstile = Turnstile::default();
        let [mut many, mut one] = [Task::new(), Task::new()];
        assert!(!many.pass(&mut turnstile, 3, 2));
        assert!(!one.pass(&mut turnstile, 1, 2));
        wake(&mut turnstile, 2);
        assert_eq!((many.wakes(), one.wakes()), (0, 0));
        wake(&mut turnstile, 4);
        assert_eq!((many.wakes(), one.wakes()), (1, 1));
        assert!(many.pass(&mut turnstile, 3, 4) && one.pass(&mut turnstile, 1, 1));
    }

    #[test]
    fn a_task_that_leaves_after_it_was_woken_wakes_the_next() {
        let mut turnstile = Turnstile::default();
        let [mut a, mut b] = [Task::new(), Task::new()];
        assert!(!a.pass(&mut turnstile, 1, 0) && !b.pass(&mut turnstile, 1, 0));
        wake(&mut turnstile, 1);
        let mut wakes = Vec::new();
        let left = turnstile.leave(&mut a.ticket, 1, &mut wakes);
        assert!(wakes.len() == 1 && left.is_none());
        wakes.into_iter().for_each(Waker::wake);
        assert_eq!((a.wakes(), b.wakes()), (1, 1));
        assert!(b.pass(&mut turnstile, 1, 1));
    }

    #[test]
    fn the_last_waker_is_woken() {
        let mut turnstile = Turnstile::default();
        let (mut task, other) = (Task::new(), Task::new());
        assert!(!task.pass(&mut turnstile, 1, 0));
        let mut old = None;
        assert!(!turnstile.pass(&mut task.ticket, 1, 0, &other.waker, &mut old), "the task has moved");
        assert!(old.is_some_and(|old| old.will_wake(&task.waker)), "the caller drops it");
        wake(&mut turnstile, 1);
        assert_eq!((task.wakes(), other.wakes()), (0, 1));
    }
}
