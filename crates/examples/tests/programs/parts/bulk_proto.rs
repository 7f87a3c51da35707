// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::bulk::proto`].

use uverbs::RemoteRegion;
use uverbs_examples::bulk::proto::*;

#[test]
fn messages_are_read_as_they_were_written() {
    let region = RemoteRegion::new(0x1000, 4096, 7).unwrap();
    for taken in [None, Some(0), Some(u32::MAX - 1)] {
        let grant = Grant { area: 3, taken, region };
        assert_eq!(Grant::decode(&grant.encode()), Some(grant));
        assert_eq!(Grant::decode(&grant.encode()[1..]), None);
    }
    let finished = Finished { area: 5, batch: 9 };
    assert_eq!(Finished::decode(&finished.encode()), Some(finished));
    assert_eq!((Finished::decode(&[0; 7]), Finished::decode(&[0; 9])), (None, None));
}

#[test]
fn blocks_differ() {
    let block = |batch, block| {
        let mut bytes = [0; 64];
        pattern(&mut bytes, batch, block);
        bytes
    };
    let first = block(1, 2);
    for other in [block(1, 3), block(2, 2), block(2, 1)] {
        assert!(first.chunks(8).zip(other.chunks(8)).all(|(a, b)| a != b));
    }
}
