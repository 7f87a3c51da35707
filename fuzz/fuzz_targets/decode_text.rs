// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dumps of queues as text, and entries and rings of any bytes, of each device.
//!
//! Checked: no text and no bytes make the decoder panic; a ring has at most as many entries as slots; each bit of an entry is in the
//! table that is printed; the text of a trace is steps or an error.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use uverbs_decode::ring::{Ring, RxeHeader};
use uverbs_decode::{Device, Format, QueueKind, What, decode, text};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    device: u8,
    what: u8,
    kind: u8,
    stride: u8,
    first: u16,
    flip: u16,
    text: &'a str,
    bytes: &'a [u8],
}

const KINDS: [QueueKind; 7] = [
    QueueKind::Rc,
    QueueKind::Uc,
    QueueKind::Ud,
    QueueKind::Xrc,
    QueueKind::Dci,
    QueueKind::Raw,
    QueueKind::Keys,
];

/// Values of more bytes are printed in part.
const CUT: usize = 256;

fn each_bit_is_shown(format: Format, bytes: &[u8], flip: u16) {
    let entry = decode(format, bytes);
    let len = entry.len.min(bytes.len());
    let bit = usize::from(flip) % (8 * len).max(1);
    if len == 0 || entry.fields.iter().any(|field| field.len > CUT) {
        return;
    }
    let mut other = bytes.to_vec();
    other[bit / 8] ^= 1 << (bit % 8);
    let other = decode(format, &other);
    if other.fields.iter().all(|field| field.len <= CUT) {
        assert_ne!(format!("{entry:#}"), format!("{other:#}"), "bit {bit}");
    }
}

fuzz_target!(|input: Input<'_>| {
    let format = Format {
        device: Device::ALL[usize::from(input.device) % 4],
        what: What::ALL[usize::from(input.what) % 4],
        kind: KINDS[usize::from(input.kind) % 7],
    };
    let parsed = text::parse(input.text).unwrap_or_default();
    for bytes in [input.bytes, &parsed] {
        each_bit_is_shown(format, bytes, input.flip);
        let ring =
            Ring { stride: input.stride.into(), first: input.first.into(), ..Ring::new(format, bytes) };
        assert!(ring.slots().count() <= ring.count());
        let _ = RxeHeader::of(bytes);
    }
    let _ = uverbs_hca::trace::read(input.text);
});
