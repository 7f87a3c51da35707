// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a driver's poll calls a claimant: [`Claimant::claim`] while control calls wait, [`Claimant::pass`] while they do not.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::Instant;
use uverbs_core::provider::completion::{Claimant, CompletionQueue};

/// A control call in another thread.
#[derive(Debug, Default)]
struct Call {
    begun: AtomicBool,
    ended: AtomicBool,
}

struct Watch<'s, 'e, F> {
    scope: &'s Scope<'s, 'e>,
    control: &'e F,
}

impl<'s, 'e: 's, Q: CompletionQueue + ?Sized, F: Fn() + Sync> Claimant<Q> for Watch<'s, 'e, F> {
    type Claim = Arc<Call>;

    fn claim(&mut self, _: &Q::Completion<'_>) -> Arc<Call> {
        let (call, control) = (Arc::<Call>::default(), self.control);
        self.scope.spawn({
            let call = call.clone();
            move || {
                call.begun.store(true, Ordering::Release);
                control();
                call.ended.store(true, Ordering::Release);
            }
        });
        while !call.begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!call.ended.load(Ordering::Acquire), "a control call ended while a completion was claimed");
        call
    }

    fn pass(&mut self, _: &Q::Completion<'_>, call: Arc<Call>) {
        let begin = Instant::now();
        while !call.ended.load(Ordering::Acquire) {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "a control call waits for code of the program"
            );
            thread::yield_now();
        }
    }
}

/// Polls `completions` completions, and calls `control`, a control call of the queue, in another thread while each is claimed.
///
/// # Panics
/// If a control call ends before the claim, or waits for what comes after it; if there are not as many completions.
pub fn check_claims<Q: CompletionQueue>(queue: &mut Q, completions: usize, control: impl Fn() + Sync) {
    thread::scope(|scope| {
        let mut done = 0;
        while done < completions {
            let polled = queue.poll_claiming(completions - done, Watch { scope, control: &control });
            match polled {
                Ok(1..) => done += polled.unwrap_or_default(),
                other => panic!("{other:?} after {done} completions"),
            }
        }
    });
}
