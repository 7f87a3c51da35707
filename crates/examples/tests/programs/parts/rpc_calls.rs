// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::rpc::calls`].

use std::sync::Arc;
use tokio::sync::Semaphore;
use uverbs_examples::rpc::calls::Calls;
use uverbs_examples::rpc::wire::{Answer, Status};

fn answer(call: u64) -> Answer<'static> {
    Answer { call, status: Status::Done, body: b"body" }
}

#[tokio::test]
async fn an_answer_goes_to_its_call_or_to_none() {
    let (calls, credits) = (Arc::new(Calls::default()), Arc::new(Semaphore::new(3)));
    let begin = || calls.begin(credits.clone().try_acquire_owned().unwrap()).unwrap();
    let (a, b, c) = (begin(), begin(), begin());
    assert_eq!((credits.available_permits(), calls.counts()), (0, (3, 0)));
    let numbers = [a.number, b.number, c.number];
    // A call that is dropped keeps its credit until its answer comes, which is discarded.
    drop(b);
    assert_eq!(credits.available_permits(), 0);
    calls.answered(&answer(numbers[1])).unwrap();
    assert_eq!((credits.available_permits(), calls.counts()), (1, (2, 1)));
    let d = begin();
    assert!(!numbers.contains(&d.number));
    for twice in [numbers[1], 0, u64::MAX] {
        assert!(calls.answered(&answer(twice)).is_err());
    }
    calls.answered(&answer(numbers[2])).unwrap();
    assert_eq!(c.answer().await.unwrap().unwrap(), b"body");
    calls.close();
    assert!(a.answer().await.is_none() && d.answer().await.is_none());
    assert_eq!((credits.available_permits(), calls.counts()), (3, (0, 1)));
    assert!(calls.begin(credits.try_acquire_owned().unwrap()).is_none());
}
