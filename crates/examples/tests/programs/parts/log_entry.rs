// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::log::entry`].

use uverbs::RemoteRegion;
use uverbs_examples::log::entry::*;

#[test]
fn an_entry_that_is_changed_or_cut_is_none() {
    let entry = Entry { term: 3, number: 7, data: b"bytes".to_vec() };
    let bytes = entry.encode().unwrap();
    let mut slot = [0; SLOT];
    slot[..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(Entry::decode(&slot, 7), Some(entry));
    assert_eq!(Entry::decode(&slot, 8), None);
    for at in 0..bytes.len() {
        let mut wrong = slot;
        wrong[at] ^= 1;
        assert_eq!(Entry::decode(&wrong, 7), None, "byte {at}");
    }
    assert_eq!(Entry::decode(&slot[..HEAD], 7), None);
    assert_eq!(Entry::decode(&[0xff; SLOT], u64::MAX), None);
    assert!(Entry { term: 1, number: 1, data: vec![0; MAX_DATA + 1] }.encode().is_none());
}

#[test]
fn a_log_ends_at_the_first_gap() {
    let mut log = vec![0; LOG];
    for number in [1, 2, 4] {
        let bytes = Entry { term: 1, number, data: vec![9; 3] }.encode().unwrap();
        let at = number as usize * SLOT;
        log[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(entries(&log).map(|entry| entry.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((entries(&[]).count(), durable(&log), durable(&[])), (0, 0, 0));
}

#[test]
fn messages_are_read_as_they_were_written() {
    let region = RemoteRegion::new(0x1000, LOG as u64, 77).unwrap();
    for message in [Message::Open(5), Message::Opened(6, region), Message::Refused(7)] {
        let bytes = message.encode();
        assert!(bytes.len() <= MESSAGE);
        assert_eq!(Message::decode(&bytes), Some(message));
        assert_eq!(Message::decode(&bytes[..bytes.len() - 1]), None);
    }
    assert_eq!(Message::decode(&[9; 9]), None);
}
