// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests in flight, and the tasks that wait for them.
//!
//! The key of a slot is in the `wr_id` of its work request: the index, and the generation, which changes whenever the slot is
//! used again. So a completion finds its task by an index, and a key that is out of date finds nothing.
//!
//! | state | next |
//! |---|---|
//! | free | pending, by a post |
//! | pending: a future waits for the completion | done, by the completion; abandoned, if the future is dropped |
//! | done: has the result | free, when the future takes the result or is dropped |
//! | abandoned | free, by the completion, whose buffer goes back to its pool |

use core::task::{Poll, Waker};
use uverbs_core::wake::{Caller, discard};

/// Bits of the index in a key. A queue has fewer work requests.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Bits of a key.
pub(crate) const KEY_BITS: u32 = 39;
const GENERATION_MASK: u64 = (1 << (KEY_BITS - INDEX_BITS)) - 1;

#[derive(Debug)]
enum State<T> {
    Free,
    Pending(Waker),
    Done(T),
    Abandoned,
}

/// What a future leaves that is dropped: its waker, if it was waiting, or the result.
#[derive(Debug)]
pub(crate) enum Left<T> {
    Waker(Waker),
    Result(T),
}

impl<T> Left<T> {
    /// The waker. It has no result if nothing was posted.
    #[cfg(not(loom))]
    pub(crate) fn waker(self) -> Option<Waker> {
        match self {
            Self::Waker(waker) => Some(waker),
            Self::Result(_) => None,
        }
    }

    /// Drops it. The caller holds no lock.
    pub(crate) fn discard(self) {
        match self {
            Self::Waker(waker) => discard(Some(waker)),
            Self::Result(result) => drop(result),
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    state: State<T>,
}

#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// A slot for a work request that is about to be posted. Returns the waker if there are 2^20 already.
    #[inline]
    pub(crate) fn insert(&mut self, waker: Waker) -> Result<u64, Waker> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let Some(index) = u32::try_from(self.slots.len()).ok().filter(|i| u64::from(*i) < INDEX_MASK)
                else {
                    return Err(waker);
                };
                self.slots.push(Slot { generation: 0, state: State::Free });
                index
            }
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(waker) };
        slot.state = State::Pending(waker);
        Ok(slot.generation << INDEX_BITS | u64::from(index))
    }

    #[inline]
    fn get(&mut self, key: u64) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut((key & INDEX_MASK) as usize)?;
        (slot.generation == key >> INDEX_BITS && !matches!(slot.state, State::Free)).then_some(slot)
    }

    /// Frees a slot. Returns what it had, which the caller drops without its lock.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64) -> Option<Left<T>> {
        let slot = self.get(key)?;
        let state = core::mem::replace(&mut slot.state, State::Free);
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push((key & INDEX_MASK) as u32);
        match state {
            State::Done(value) => Some(Left::Result(value)),
            State::Pending(waker) => Some(Left::Waker(waker)),
            State::Free | State::Abandoned => None,
        }
    }

    /// A work request is complete. `value` makes its result if a future waits for it, and is dropped otherwise. Returns whether
    /// one waits.
    #[inline]
    pub(crate) fn complete(&mut self, key: u64, value: impl FnOnce() -> T, wakes: &mut Vec<Waker>) -> bool {
        let Some(slot) = self.get(key) else { return false };
        match &slot.state {
            State::Pending(_) => {
                if let State::Pending(waker) = core::mem::replace(&mut slot.state, State::Done(value())) {
                    wakes.push(waker);
                }
                true
            }
            State::Done(_) | State::Free => false,
            State::Abandoned => {
                self.remove(key);
                false
            }
        }
    }

    /// Takes the result, or waits for it. `None` for a key that has no slot.
    #[inline]
    pub(crate) fn poll(&mut self, key: u64, caller: &mut Caller<'_>) -> Poll<Option<T>> {
        match self.get(key).map(|slot| &mut slot.state) {
            Some(State::Pending(place)) => {
                caller.store(place);
                Poll::Pending
            }
            _ => Poll::Ready(match self.remove(key) {
                Some(Left::Result(value)) => Some(value),
                _ => None,
            }),
        }
    }

    /// The future is dropped. Returns what it leaves, which the caller drops without its lock.
    pub(crate) fn abandon(&mut self, key: u64) -> Option<Left<T>> {
        let slot = self.get(key)?;
        if let State::Pending(_) = slot.state
            && let State::Pending(waker) = core::mem::replace(&mut slot.state, State::Abandoned)
        {
            return Some(Left::Waker(waker));
        }
        self.remove(key)
    }

    /// Ends all that are pending, with this result.
    pub(crate) fn fail_all(&mut self, mut value: impl FnMut() -> T, wakes: &mut Vec<Waker>) {
        for slot in &mut self.slots {
            if let State::Pending(_) = slot.state
                && let State::Pending(waker) = core::mem::replace(&mut slot.state, State::Done(value()))
            {
                wakes.push(waker);
            }
        }
    }

    /// As [`fail_all`](Self::fail_all), and frees those that are abandoned: no work request has a completion any more.
    pub(crate) fn discard_all(&mut self, value: impl FnMut() -> T, wakes: &mut Vec<Waker>) {
        self.fail_all(value, wakes);
        for index in 0..self.slots.len() {
            if let Some(Slot { generation, state: State::Abandoned }) = self.slots.get(index) {
                self.remove(generation << INDEX_BITS | index as u64);
            }
        }
    }

    /// The slots that are not free.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slots() -> (Slots<u32>, Vec<Waker>) {
        (Slots::new(), Vec::new())
    }

    #[test]
    fn a_result_wakes_and_is_taken_once() {
        let (mut slots, mut wakes) = slots();
        let key = slots.insert(Waker::noop().clone()).unwrap();
        let noop = &mut Caller::new(Waker::noop());
        assert_eq!(slots.poll(key, noop), Poll::Pending);
        assert!(slots.complete(key, || 7, &mut wakes));
        assert_eq!((wakes.len(), slots.complete(key, || 8, &mut wakes)), (1, false), "reported twice");
        assert_eq!(slots.poll(key, noop), Poll::Ready(Some(7)));
        assert_eq!(slots.poll(key, noop), Poll::Ready(None));
        assert_eq!(slots.used(), 0);
    }

    #[test]
    fn the_result_of_a_dropped_future_is_dropped() {
        let (mut slots, mut wakes) = slots();
        let key = slots.insert(Waker::noop().clone()).unwrap();
        assert!(matches!(slots.abandon(key), Some(Left::Waker(_))));
        assert_eq!(slots.used(), 1, "the slot waits for the completion");
        assert_eq!((slots.complete(key, || 7, &mut wakes), slots.used()), (false, 0));
        let key = slots.insert(Waker::noop().clone()).unwrap();
        slots.complete(key, || 8, &mut wakes);
        assert!(matches!(slots.abandon(key), Some(Left::Result(8))));
        assert_eq!(slots.used(), 0);
    }

    #[test]
    fn a_key_of_an_earlier_use_finds_nothing() {
        let (mut slots, mut wakes) = slots();
        let old = slots.insert(Waker::noop().clone()).unwrap();
        slots.remove(old);
        let new = slots.insert(Waker::noop().clone()).unwrap();
        assert_eq!(old & INDEX_MASK, new & INDEX_MASK);
        assert!(!slots.complete(old, || 7, &mut wakes));
        assert!(slots.abandon(old).is_none());
        assert_eq!((slots.poll(new, &mut Caller::new(Waker::noop())), wakes.len()), (Poll::Pending, 0));
        for bit in 0..64 {
            assert!(!slots.complete(new ^ 1 << bit, || 9, &mut wakes), "bit {bit}");
        }
    }

    #[test]
    fn pending_work_requests_can_be_ended() {
        let (mut slots, mut wakes) = slots();
        let keys: Vec<_> = (0..3).map(|_| slots.insert(Waker::noop().clone()).unwrap()).collect();
        slots.complete(keys[0], || 1, &mut wakes);
        slots.abandon(keys[1]);
        slots.fail_all(|| 9, &mut wakes);
        assert_eq!(slots.poll(keys[0], &mut Caller::new(Waker::noop())), Poll::Ready(Some(1)));
        assert_eq!(slots.poll(keys[2], &mut Caller::new(Waker::noop())), Poll::Ready(Some(9)));
        assert_eq!((slots.used(), wakes.len()), (1, 2));
    }

    #[test]
    fn slots_without_completions_are_free_again() {
        let (mut slots, mut wakes) = slots();
        let keys: Vec<_> = (0..3).map(|_| slots.insert(Waker::noop().clone()).unwrap()).collect();
        slots.complete(keys[0], || 1, &mut wakes);
        slots.abandon(keys[1]);
        slots.discard_all(|| 9, &mut wakes);
        assert_eq!((slots.used(), wakes.len()), (2, 2));
        assert_eq!(slots.poll(keys[0], &mut Caller::new(Waker::noop())), Poll::Ready(Some(1)));
        assert_eq!(slots.poll(keys[2], &mut Caller::new(Waker::noop())), Poll::Ready(Some(9)));
        assert!(!slots.complete(keys[1], || 3, &mut wakes) && slots.used() == 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Mutex, lock};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    /// A buffer that counts how often it is given back.
    struct Buf(Arc<AtomicU32>);

    impl Drop for Buf {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Unpark(loom::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    fn complete(slots: &Mutex<Slots<Buf>>, key: u64, buf: Buf) {
        let mut wakes = Vec::new();
        lock(slots).complete(key, || buf, &mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn a_future_that_waits_is_woken_by_the_completion() {
        loom::model(|| {
            let slots = Arc::new(Mutex::new(Slots::new()));
            let returned = Arc::new(AtomicU32::new(0));
            let waker = Waker::from(std::sync::Arc::new(Unpark(loom::thread::current())));
            let key = lock(&slots).insert(waker.clone()).unwrap();
            let poller = loom::thread::spawn({
                let (slots, buf) = (slots.clone(), Buf(returned.clone()));
                move || complete(&slots, key, buf)
            });
            let buf = loop {
                let polled = lock(&slots).poll(key, &mut Caller::new(&waker));
                match polled {
                    Poll::Ready(buf) => break buf,
                    Poll::Pending => loom::thread::park(),
                }
            };
            assert_eq!((buf.is_some(), returned.load(Ordering::Relaxed)), (true, 0));
            poller.join().unwrap();
        });
    }

    /// The buffer goes back once, whether the completion or the drop comes first.
    #[test]
    fn the_buffer_of_a_dropped_future_goes_back_once() {
        loom::model(|| {
            let slots = Arc::new(Mutex::new(Slots::new()));
            let returned = Arc::new(AtomicU32::new(0));
            let key = lock(&slots).insert(Waker::noop().clone()).unwrap();
            let poller = loom::thread::spawn({
                let (slots, buf) = (slots.clone(), Buf(returned.clone()));
                move || complete(&slots, key, buf)
            });
            let outcome = lock(&slots).abandon(key);
            outcome.into_iter().for_each(Left::discard);
            poller.join().unwrap();
            assert_eq!(returned.load(Ordering::Relaxed), 1);
            assert!(lock(&slots).slots.iter().all(|slot| matches!(slot.state, State::Free)));
        });
    }
}
