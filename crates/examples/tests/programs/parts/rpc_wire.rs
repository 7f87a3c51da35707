// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::rpc::wire`].

use core::time::Duration;
use uverbs_examples::rpc::wire::*;

#[test]
fn messages_are_read_as_they_were_written() {
    let mut bytes = [0xff; MESSAGE];
    for (kind, body) in [(Kind::Call, &b"body"[..]), (Kind::Call, &[7; MAX_BODY]), (Kind::Ping, &[])] {
        let request = Request { call: u64::MAX - 1, limit: Duration::from_millis(20), kind, body };
        let len = request.encode(&mut bytes).unwrap();
        assert_eq!(Request::decode(&bytes[..len]), Some(request));
    }
    for status in [Status::Done, Status::Expired, Status::TooLong] {
        let body = if status == Status::Done { &b"body"[..] } else { &[] };
        let answer = Answer { call: 9, status, body };
        let len = answer.encode(&mut bytes).unwrap();
        assert_eq!(Answer::decode(&bytes[..len]), Some(answer));
    }
    let forever = Request { call: 1, limit: Duration::MAX, kind: Kind::Call, body: &[] };
    let len = forever.encode(&mut bytes).unwrap();
    assert_eq!(Request::decode(&bytes[..len]).unwrap().limit, Duration::from_micros(u32::MAX.into()));
}

#[test]
fn other_bytes_are_no_messages() {
    let mut bytes = [0; MESSAGE];
    let too_long = Answer { call: 1, status: Status::Done, body: &[0; MAX_BODY + 1] };
    assert_eq!(too_long.encode(&mut bytes), None);
    for len in 0..HEAD {
        assert_eq!((Request::decode(&bytes[..len]), Answer::decode(&bytes[..len])), (None, None));
    }
    for (at, value) in [(8, 1), (12, 3), (13, 1), (15, 1)] {
        let mut wrong = [0; HEAD];
        wrong[at] = value;
        assert_eq!(Answer::decode(&wrong), None, "byte {at}");
    }
    // A ping with bytes.
    assert_eq!(Request::decode(&[&[0; 12][..], &[1, 0, 0, 0], b"x"].concat()), None);
}

#[test]
fn terms_may_be_padded() {
    let terms = Terms { credits: 300 };
    let mut bytes = terms.encode().to_vec();
    bytes.extend([0; 50]);
    assert_eq!(Terms::decode(&bytes), Some(terms));
    assert_eq!((Terms::decode(&bytes[..7]), Terms::decode(&[0; 56])), (None, None));
    assert_eq!(Terms::decode(&Terms { credits: 0 }.encode()), None);
}
