// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that one thread does at a time. Who asks for it meanwhile goes on, and the work is done once more.

use crate::sync::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Solo {
    /// How often it was asked for since no one does it.
    asked: AtomicUsize,
}

impl Solo {
    pub(crate) fn new() -> Self {
        Self { asked: AtomicUsize::new(0) }
    }

    /// Begins the work. `None` if another one does it: that one will do it again.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Turn<'_>> {
        // What this one did before is visible to the one that does the work, and what that one did to this one.
        (self.asked.fetch_add(1, Ordering::AcqRel) == 0).then(|| Turn { solo: self, done: 1 })
    }
}

/// The right to do the work. If it is dropped before its [end](Turn::ends), by an unwinding, another one may do it.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    solo: &'a Solo,
    done: usize,
}

impl Turn<'_> {
    /// The work is done. Returns whether it ends there: otherwise someone has asked for it meanwhile, and it is done again.
    #[inline]
    pub(crate) fn ends(&mut self) -> bool {
        let asked = self.solo.asked.fetch_sub(self.done, Ordering::AcqRel);
        self.done = asked - self.done;
        self.done == 0
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.done != 0 {
            self.solo.asked.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicBool;
    use loom::sync::Arc;

    /// Each of three threads has something to do, and asks for the work. All of it is done when all have returned.
    #[test]
    fn no_work_is_left() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let solo = Arc::new(Solo::new());
            let wanted = Arc::new([(); 3].map(|()| AtomicBool::new(false)));
            let done = Arc::new([(); 3].map(|()| AtomicBool::new(false)));
            let ask = {
                let (solo, wanted, done) = (solo.clone(), wanted.clone(), done.clone());
                move |i: usize| {
                    wanted[i].store(true, Ordering::Relaxed);
                    let Some(mut turn) = solo.enter() else { return };
                    loop {
                        for (wanted, done) in wanted.iter().zip(&*done) {
                            done.store(wanted.load(Ordering::Relaxed), Ordering::Relaxed);
                        }
                        if turn.ends() {
                            return;
                        }
                    }
                }
            };
            let others = [1, 2].map(|i| {
                let ask = ask.clone();
                loom::thread::spawn(move || ask(i))
            });
            ask(0);
            for other in others {
                other.join().unwrap();
            }
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed)));
        });
    }
}
