// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of a stream: a header of 8 bytes, and data.
//!
//! | bytes | |
//! |---|---|
//! | 0 | kind: `h` (hello), `d` (data), `c` (credits), `f` (end of this side's data) |
//! | 1 | version, 1 |
//! | 2..4 | credits: data messages that the receiver of this message may send in addition, network byte order |
//! | 4..8 | hello: the bytes of a message that the sender of the hello can receive; else 0 |

/// Bytes of a header.
pub(super) const HEADER: usize = 8;
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello { message: u32 },
    Data,
    Credits,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) credits: u16,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER] {
        let (kind, message) = match self.kind {
            Kind::Hello { message } => (b'h', message),
            Kind::Data => (b'd', 0),
            Kind::Credits => (b'c', 0),
            Kind::End => (b'f', 0),
        };
        let ([a, b], [c, d, e, f]) = (self.credits.to_be_bytes(), message.to_be_bytes());
        [kind, VERSION, a, b, c, d, e, f]
    }

    /// `None` if these bytes do not begin with a header.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let &[kind, VERSION, a, b, c, d, e, f] = bytes.first_chunk::<HEADER>()? else { return None };
        let message = u32::from_be_bytes([c, d, e, f]);
        let kind = match (kind, message) {
            (b'h', 1..) => Kind::Hello { message },
            (b'd', 0) => Kind::Data,
            (b'c', 0) => Kind::Credits,
            (b'f', 0) => Kind::End,
            _ => return None,
        };
        Some(Self { kind, credits: u16::from_be_bytes([a, b]) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn headers_are_decoded_as_they_were_encoded() {
        for kind in [Kind::Hello { message: 0x1234_5678 }, Kind::Data, Kind::Credits, Kind::End] {
            let header = Header { kind, credits: 0xabcd };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        assert_eq!(Header { kind: Kind::Data, credits: 0x102 }.encode(), *b"d\x01\x01\x02\0\0\0\0");
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [
            &b""[..],
            b"d\x01\0\0\0\0\0",
            b"d\x02\0\0\0\0\0\0",
            b"x\x01\0\0\0\0\0\0",
            b"h\x01\0\0\0\0\0\0",
            b"d\x01\0\0\0\0\0\x01",
        ] {
            assert_eq!(Header::decode(bytes), None, "{bytes:?}");
        }
    }
}
