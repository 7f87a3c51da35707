// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands as bytes: the accessors of the port and the ioctl's array return the attributes that were added.
//!
//! Checked: attributes keep their order, ids, flags and lengths; short inputs are in the data word, longer ones behind
//! an address; an answer is stored in its attribute, truncated or filled with zeros; a command that does not fit is
//! refused as a whole.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: a finished command may name memory; no kernel gets these.

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use uverbs_core::Errno;
use uverbs_core::kernel::{Command, RawCommand};
use uverbs_uapi::ioctl::{
    UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr, ib_uverbs_ioctl_hdr,
};
use zerocopy::FromBytes;

/// The capacity of the commands.
const ROOM: usize = 8;

#[derive(Arbitrary, Debug)]
struct Program {
    object: u16,
    method: u16,
    driver_id: u32,
    attrs: Vec<(u16, Attr, bool)>,
    answers: Vec<(u8, Vec<u8>, u64)>,
}

#[derive(Arbitrary, Debug)]
enum Attr {
    Input(Vec<u8>),
    /// Longer than the length field counts.
    Long(u16),
    U32(u32),
    U64(u64),
    Enum(u8, Vec<u8>),
    Output(u8),
    Handle(u32),
    Handles(Vec<u32>),
    New,
}

impl Attr {
    /// Bytes of an input.
    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Input(bytes) | Self::Enum(_, bytes) => Some(bytes.clone()),
            Self::Long(extra) => Some(vec![0x5a; 0xfff0 + usize::from(*extra % 32)]),
            Self::U32(value) => Some(value.to_ne_bytes().to_vec()),
            Self::U64(value) => Some(value.to_ne_bytes().to_vec()),
            Self::Handles(all) => Some(all.iter().flat_map(|h| h.to_ne_bytes()).collect()),
            Self::Output(_) | Self::Handle(_) | Self::New => None,
        }
    }
}

fuzz_target!(|program: Program| {
    let mut ids = std::collections::BTreeSet::new();
    let attrs: Vec<_> = program.attrs.iter().filter(|(id, ..)| ids.insert(*id)).take(ROOM + 2).collect();
    let inputs: Vec<_> = attrs.iter().map(|(_, attr, _)| attr.bytes().unwrap_or_default()).collect();
    let mut outputs: Vec<Vec<u8>> = attrs
        .iter()
        .map(|(_, attr, _)| match attr {
            Attr::Output(len) => vec![0xee; usize::from(*len)],
            _ => Vec::new(),
        })
        .collect();
    let fits = attrs.len() <= ROOM && inputs.iter().all(|bytes| bytes.len() <= 0xffff);

    let mut command = Command::<ROOM>::new(program.object, program.method);
    for (((id, attr, optional), input), output) in attrs.iter().zip(&inputs).zip(&mut outputs) {
        match attr {
            Attr::Input(_) | Attr::Long(_) => command.input_bytes(*id, input),
            Attr::U32(value) => command.u32(*id, *value),
            Attr::U64(value) => command.u64(*id, *value),
            Attr::Enum(elem, _) => command.enum_in(*id, *elem, input),
            Attr::Output(_) => command.output_bytes(*id, output),
            Attr::Handle(handle) => command.handle_in(*id, *handle),
            Attr::Handles(handles) => command.handles_in(*id, handles),
            Attr::New => command.handle_new(*id),
        };
        if *optional {
            command.optional();
        }
    }
    // SAFETY: no kernel gets the command.
    let raw = unsafe { command.raw(program.driver_id) };
    let mut raw = match raw {
        Ok(raw) => raw,
        Err(errno) => {
            assert!(!fits && errno == Errno::EOVERFLOW, "{errno}");
            return;
        }
    };
    assert!(fits, "a command that does not fit was built");
    assert_eq!(
        (raw.object(), raw.method(), raw.driver_id()),
        (program.object, program.method, program.driver_id)
    );
    array(&program, &attrs, &raw);

    let mut valid = Vec::new();
    for (which, bytes, handle) in &program.answers {
        let Some((id, attr, _)) = attrs.get(usize::from(*which) % attrs.len().max(1)) else { break };
        let answered = raw.answer(*id, bytes);
        assert_eq!(answered, matches!(attr, Attr::Output(_)));
        if let Some(output) = raw.output(*id) {
            let n = output.len().min(bytes.len());
            assert!(output[..n] == bytes[..n] && output[n..].iter().all(|b| *b == 0));
            valid.push(*id);
        }
        assert_eq!(raw.new_handle(*id, *handle), matches!(attr, Attr::New));
        assert!(
            !raw.answer(id.wrapping_add(1), bytes)
                || attrs.iter().any(|(other, ..)| *other == id.wrapping_add(1))
        );
        valid.extend(
            attrs
                .iter()
                .filter(|(other, a, _)| *other == id.wrapping_add(1) && matches!(a, Attr::Output(_)))
                .map(|(id, ..)| *id),
        );
    }
    for (id, attr, _) in &attrs {
        assert_eq!(command.is_answered(*id), valid.contains(id));
        let handle = command.handle(*id);
        assert!(handle.is_none() || matches!(attr, Attr::New));
        // A number outside of the range of handles is not returned as a handle.
        assert!(handle.is_none_or(|handle| i32::try_from(handle).is_ok()));
    }
});

/// Checks that the ioctl's array has the attributes of the command.
fn array(program: &Program, attrs: &[&(u16, Attr, bool)], raw: &RawCommand<'_, '_>) {
    let bytes = raw.to_bytes();
    let (header, mut rest) = ib_uverbs_ioctl_hdr::read_from_prefix(&bytes).expect("a header");
    assert_eq!((header.object_id, header.method_id), (program.object, program.method));
    assert_eq!((usize::from(header.length), usize::from(header.num_attrs)), (bytes.len(), attrs.len()));
    assert_eq!(header.driver_id, program.driver_id);
    for (id, attr, optional) in attrs {
        let (got, next) = ib_uverbs_attr::read_from_prefix(rest).expect("an attribute");
        rest = next;
        assert_eq!(got.attr_id, *id);
        assert_eq!(got.flags & UVERBS_ATTR_F_MANDATORY != 0, !optional);
        assert_eq!(got.flags & UVERBS_ATTR_F_VALID_OUTPUT, 0);
        let want = attr.bytes();
        assert_eq!(raw.input(*id).map(<[u8]>::to_vec).filter(|_| want.is_some()), want);
        match attr {
            Attr::Output(len) => assert_eq!(got.len, u16::from(*len)),
            Attr::Handle(handle) => {
                assert_eq!((got.len, got.data), (0, u64::from(*handle)));
                assert_eq!(raw.handle(*id), Some(u64::from(*handle)));
            }
            Attr::New => assert_eq!((got.len, raw.handle(*id)), (0, None)),
            _ => {
                let want = want.unwrap_or_default();
                assert_eq!(usize::from(got.len), want.len());
                if want.len() <= 8 {
                    assert_eq!(got.data.to_ne_bytes()[..want.len()], want[..]);
                }
            }
        }
        if let Attr::Enum(elem, _) = attr {
            assert_eq!(got.elem_id(), *elem);
        }
    }
    assert!(rest.is_empty());
}
