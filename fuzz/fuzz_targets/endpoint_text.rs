// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text with which two programs exchange the addresses of their QPs.
//!
//! Checked: there is no panic; an accepted endpoint is in range and is the same after a round trip through its text; an
//! endpoint from values has these values after a round trip; a stream gives the same as its text.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use uverbs::connect::ENDPOINT_LEN;
use uverbs::{ConnectAttr, Endpoint};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    values: Option<Values>,
    bytes: &'a [u8],
}

#[derive(Arbitrary, Debug)]
struct Values {
    lid: u16,
    qp_num: u32,
    psn: u32,
    gid: [u8; 16],
}

fuzz_target!(|input: Input<'_>| {
    let Input { values, bytes } = input;
    if let Some(Values { lid, qp_num, psn, gid }) = values {
        let endpoint = Endpoint { lid, qp_num: qp_num >> 8, psn: psn >> 8, gid: uverbs::attr::Gid(gid) };
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }
    let received = Endpoint::receive(bytes);
    assert!(bytes.len() >= ENDPOINT_LEN || received.is_err());
    if let Ok(endpoint) = &received {
        same_again(endpoint);
    }
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        same_again(&endpoint);
        let mut padded = bytes.to_vec();
        padded.resize(ENDPOINT_LEN.max(bytes.len()), 0);
        if bytes.len() < ENDPOINT_LEN {
            assert_eq!(Endpoint::receive(&padded[..]).ok(), Some(endpoint));
        }
    }
});

fn same_again(endpoint: &Endpoint) {
    assert!(endpoint.qp_num < 1 << 24 && endpoint.psn < 1 << 24);
    let text = endpoint.to_string();
    assert!(text.len() < ENDPOINT_LEN);
    assert_eq!(text.parse(), Ok(*endpoint));
    let mut wire = Vec::new();
    endpoint.send(&mut wire).expect("writing to a vector");
    assert_eq!(wire.len(), ENDPOINT_LEN);
    assert_eq!(Endpoint::receive(&wire[..]).ok(), Some(*endpoint));
    let attr = ConnectAttr::new().sgid_index(Some(1));
    assert_eq!(attr.ah_attr(endpoint).grh.map(|g| g.dgid).unwrap_or_default(), endpoint.gid);
}
