// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::kv::proto`].

use uverbs::RemoteRegion;

use proptest::collection::vec;
use proptest::prelude::*;
use uverbs_examples::kv::proto::*;

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..80)) {
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.len(), bytes.len());
        }
        if let Some(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(answer.len(), bytes.len());
        }
        let _ = Welcome::decode(&bytes);
    }

    #[test]
    fn messages_are_decoded_as_they_were_encoded(
        key in vec(any::<u8>(), 0..=MAX_KEY),
        value in vec(any::<u8>(), 0..=MAX_SMALL),
        id: u32,
        arg: u32,
        cut in 0..HEADER,
    ) {
        let mut out = [0; MESSAGE];
        let request = Request { op: Op::Put, id, arg, key: &key, value: &value };
        request.encode(&mut out);
        prop_assert_eq!(Request::decode(&out[..request.len()]), Ok(request));
        prop_assert_eq!(Request::decode(&out[..cut]), Err(None));
        let answer = Answer { status: Status::Large, id, arg, value: &value };
        answer.encode(&mut out);
        prop_assert_eq!(Answer::decode(&out[..answer.len()]), Some(answer));
    }
}

#[test]
fn lengths_that_do_not_add_up_are_refused() {
    let mut out = [0; 64];
    let request = Request { op: Op::Put, id: 7, arg: 0, key: b"key", value: b"value" };
    request.encode(&mut out);
    let len = request.len();
    for wrong in [&out[..len - 1], &out[..len + 1], &out[..HEADER]] {
        assert_eq!(Request::decode(wrong), Err(Some(7)));
    }
    for (at, value) in [(0, 9), (1, 99), (2, 255)] {
        let mut changed = out;
        changed[at] = value;
        assert_eq!(Request::decode(&changed[..len]), Err(Some(7)), "byte {at}");
    }
}

#[test]
fn slots_outside_the_region_are_refused() {
    let welcome = Welcome {
        credits: 8,
        max_value: 1000,
        slot_size: 1300,
        slot_stride: 1344,
        slots: 4,
        immediate: true,
        region: RemoteRegion::new(4096, 4 * 1344, 3).unwrap(),
    };
    assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
    let wide = Welcome {
        max_value: MAX_VALUE,
        slot_size: MAX_SLOT,
        slot_stride: MAX_SLOT,
        region: RemoteRegion::new(4096, 1 << 60, 3).unwrap(),
        ..welcome
    };
    assert_eq!(Welcome::decode(&wide.encode()), Some(wide));
    for wrong in [
        Welcome { slots: 5, ..welcome },
        Welcome { slot_size: 1200, ..welcome },
        Welcome { slot_stride: 1299, ..welcome },
        Welcome { credits: 0, ..welcome },
        // A client would run out of memory.
        Welcome { slots: u32::MAX, region: RemoteRegion::new(4096, 1 << 60, 3).unwrap(), ..welcome },
        Welcome { max_value: u32::MAX - 300, slot_size: u32::MAX, slot_stride: u32::MAX, ..wide },
        Welcome { slot_size: MAX_SLOT + 1, slot_stride: MAX_SLOT + 1, ..wide },
    ] {
        assert_eq!(Welcome::decode(&wrong.encode()), None);
    }
}
