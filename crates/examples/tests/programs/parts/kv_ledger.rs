// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::kv::ledger`].

use uverbs::RemoteRegion;
use uverbs_examples::kv::ledger::*;
use uverbs_examples::kv::proto::{Answer, MESSAGE, Status, Welcome};

fn ledger() -> Ledger {
    let region = RemoteRegion::new(4096, 4 * 1344, 3).unwrap();
    let welcome = Welcome {
        credits: 3,
        max_value: 1000,
        slot_size: 1300,
        slot_stride: 1344,
        slots: 2,
        immediate: true,
        region,
    };
    Ledger::new(&welcome, 8)
}

fn answer(status: Status, id: u32, value: &[u8]) -> Vec<u8> {
    let mut out = [0; MESSAGE];
    let answer = Answer { status, id, arg: 77, value };
    answer.encode(&mut out);
    out[..answer.len()].to_vec()
}

#[test]
fn requests_use_credits_and_slots_until_they_are_answered() {
    let mut ledger = ledger();
    assert_eq!((ledger.next_id(), ledger.free_slot()), (Some(1), Some(1)));
    ledger.asked(true);
    ledger.asked(true);
    assert_eq!((ledger.next_id(), ledger.free_slot()), (Some(3), None));
    ledger.asked(false);
    assert_eq!(ledger.next_id(), None);
    assert_eq!(ledger.answered(&answer(Status::Ok, 2, b"")), Ok((2, Answered::Done)));
    assert_eq!((ledger.next_id(), ledger.free_slot(), ledger.outstanding()), (Some(4), Some(0), 2));
}

#[test]
fn a_request_is_answered_once() {
    let mut ledger = ledger();
    ledger.asked(false);
    let region = RemoteRegion::new(0, 1300, 1).unwrap();
    let large = answer(Status::Large, 1, &region.encode());
    assert_eq!(ledger.answered(&large), Ok((1, Answered::Large(region))));
    // A server that repeats the answer would make the list of values to read grow without limit.
    for again in [large, answer(Status::Ok, 1, b"")] {
        let error = ledger.answered(&again).unwrap_err();
        assert_eq!(error.to_string(), "the server answered a request twice");
    }
    assert_eq!((ledger.outstanding(), ledger.read(1), ledger.read(1)), (1, Some(77), None));
    assert!(ledger.answered(&answer(Status::Ok, 1, b"")).is_err());
}

#[test]
fn a_value_above_the_limit_is_refused() {
    let mut ledger = ledger();
    ledger.asked(false);
    let region = RemoteRegion::new(0, 1301, 1).unwrap();
    assert!(ledger.answered(&answer(Status::Large, 1, &region.encode())).is_err());
}
