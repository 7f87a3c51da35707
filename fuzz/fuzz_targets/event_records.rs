// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of event files.
//!
//! Checked: only a record of the correct size is accepted; its fields are the bytes at the offsets of
//! `<rdma/ib_user_verbs.h>`; its object follows from its type.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uverbs_core::attr::EventScope;
use uverbs_core::control::{async_event, comp_channel};

fuzz_target!(|record: &[u8]| {
    let u64_at =
        |at: usize| record.get(at..at + 8).map(|b| u64::from_ne_bytes(b.try_into().expect("8 bytes")));

    let completion = comp_channel::parse_event(record);
    assert_eq!(completion, if record.len() == 8 { u64_at(0) } else { None });

    let event = async_event::parse_event(record);
    assert_eq!(event.is_some(), record.len() == 16);
    let Some(event) = event else { return };
    let element = u64_at(0).expect("16 bytes");
    assert_eq!(event.element, element);
    assert_eq!(event.event_type.0.to_ne_bytes(), record[8..12]);
    assert!(!format!("{event:?} {}", event.event_type).is_empty());
    let scope = event.event_type.scope();
    assert_eq!(scope == EventScope::Unknown, event.event_type.0 > 20);
    let about_object = matches!(scope, EventScope::Cq | EventScope::Qp | EventScope::Srq | EventScope::Wq);
    assert_eq!(event.user_handle(), about_object.then_some(element));
    let port = u32::try_from(element).ok().filter(|p| *p != 0 && scope == EventScope::Port);
    assert_eq!(event.port_num(), port);
});
