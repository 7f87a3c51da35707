// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a peer: a description that is sent over the network and checked on receipt.
//!
//! The owner describes a range of a region by [`MemoryRegion::remote_region`](crate::MemoryRegion::remote_region) and
//! sends it with its [`Endpoint`](crate::Endpoint). The peer narrows it ([`RemoteRegion::slice`]), and converts it to
//! the driver's format for a post ([`RemoteRegion::remote`]). Both refuse a range outside the region. (The peer's
//! device would refuse the access with `REM_ACCESS_ERR`, which ends the connection.)
//!
//! ```
//! use uverbs::{RemoteRegion, provider::WireRemote, provider::wire::RemoteAddr};
//! # fn main() -> uverbs::Result<()> {
//! // What the peer sent: 4096 bytes.
//! let received = RemoteRegion::new(0x7f00_0000_1000, 4096, 0x1234)?.encode();
//!
//! let region = RemoteRegion::decode(&received)?;
//! let value: RemoteAddr = region.remote(64..128)?;
//! assert_eq!((value.addr(), value.rkey()), (0x7f00_0000_1040, 0x1234));
//! assert!(region.slice(4090..4100).is_err());
//! # Ok(())
//! # }
//! ```

use core::fmt;
use core::ops::Range;
use std::io::{self, Read, Write};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::WireRemote;

/// Bytes of an encoded [`RemoteRegion`].
pub const REMOTE_REGION_LEN: usize = 24;

/// The first bytes of an encoded region: a name, and the version of the format.
const TAG: [u8; 4] = *b"uvr1";

/// A range of a peer's memory: its address, length and key.
///
/// It is a value without a connection to the region, so it does not keep the region registered. A work request that
/// uses it after the peer has deregistered the region, or with rights that the region does not grant, completes with
/// `REM_ACCESS_ERR`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// In network byte order, which the work requests of most devices have, as the key.
    addr: u64,
    len: u64,
    rkey: u32,
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("addr", &self.addr())
            .field("len", &self.len)
            .field("rkey", &self.rkey())
            .finish()
    }
}

impl RemoteRegion {
    /// `len` bytes from `addr` on, by the key `rkey`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range ends after the last address.
    pub fn new(addr: u64, len: u64, rkey: u32) -> Result<Self> {
        if addr.checked_add(len).is_none() {
            let reason = format!("{len} bytes from {addr:#x} on end after the last address");
            return Err(Error::invalid("remote_region", "length", reason));
        }
        Ok(Self { addr: addr.to_be(), len, rkey: rkey.to_be() })
    }

    /// The address of the first byte, for the peer's device.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn addr(&self) -> u64 {
        u64::from_be(self.addr)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key of the peer's region or window.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn rkey(&self) -> u32 {
        u32::from_be(self.rkey)
    }

    /// A part of it; `range` is relative to its first byte.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside.
    pub fn slice(&self, range: Range<u64>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            let reason = format!("{range:?} is outside the remote region's {} bytes", self.len);
            return Err(Error::invalid("remote_region", "range", reason));
        }
        let addr = self.addr() + range.start;
        Ok(Self { addr: addr.to_be(), len: range.end - range.start, rkey: self.rkey })
    }

    /// The address of these bytes for a work request, in the driver's format. The work request's entries must not be
    /// longer than `range`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside.
    pub fn remote<R: WireRemote>(&self, range: Range<u64>) -> Result<R> {
        let part = self.slice(range)?;
        Ok(R::new(part.addr(), part.rkey()))
    }

    /// Its bytes on the network: a tag, then address, length and key in network byte order.
    #[must_use]
    pub fn encode(&self) -> [u8; REMOTE_REGION_LEN] {
        let mut bytes = [0; REMOTE_REGION_LEN];
        bytes[..4].copy_from_slice(&TAG);
        bytes[4..12].copy_from_slice(&self.addr().to_be_bytes());
        bytes[12..20].copy_from_slice(&self.len.to_be_bytes());
        bytes[20..].copy_from_slice(&self.rkey().to_be_bytes());
        bytes
    }

    /// The region that [`encode`](Self::encode) wrote. Only the peer's device can check whether the region exists.
    ///
    /// # Errors
    /// [`Error::Invalid`] if these are not exactly the bytes of one region, or if its range ends after the last
    /// address.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = |reason: String| Error::invalid("remote_region", "bytes", reason);
        let bytes: &[u8; REMOTE_REGION_LEN] = bytes
            .try_into()
            .map_err(|_| wrong(format!("{} instead of {REMOTE_REGION_LEN} bytes", bytes.len())))?;
        let (tag, rest) = bytes.split_at(4);
        if *tag != TAG {
            return Err(wrong(format!("they begin with {tag:02x?}, not with {TAG:02x?}")));
        }
        let number =
            |range: Range<usize>| rest[range].iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
        // The last field has 4 bytes, so nothing is lost.
        Self::new(number(0..8), number(8..16), number(16..20) as u32)
    }

    /// Sends it over a byte stream, for example after [`Endpoint::exchange`](crate::Endpoint::exchange) on the same
    /// stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send(&self, mut stream: impl Write) -> io::Result<()> {
        stream.write_all(&self.encode())?;
        stream.flush()
    }

    /// Receives the peer's.
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` if [`decode`](Self::decode) refuses the bytes.
    pub fn receive(mut stream: impl Read) -> io::Result<Self> {
        let mut bytes = [0; REMOTE_REGION_LEN];
        stream.read_exact(&mut bytes)?;
        Self::decode(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::provider::wire::RemoteAddr;

    #[test]
    fn a_remote_region_is_sent_over_a_stream() {
        let region = RemoteRegion::new(0x0123_4567_89ab_cdef, 0x1_0000_0001, 0xfedc_ba98).unwrap();
        let mut wire = Vec::new();
        region.send(&mut wire).unwrap();
        assert_eq!(wire, b"uvr1\x01\x23\x45\x67\x89\xab\xcd\xef\0\0\0\x01\0\0\0\x01\xfe\xdc\xba\x98");
        assert_eq!(RemoteRegion::receive(&wire[..]).unwrap(), region);
    }

    #[test]
    fn bytes_that_do_not_encode_a_region_are_refused() {
        let good = RemoteRegion::new(4096, 100, 7).unwrap().encode();
        let mut wraps = good;
        wraps[4..12].fill(0xff);
        let mut other_version = good;
        other_version[3] = b'2';
        let mut long = good.to_vec();
        long.push(0);
        for bytes in [&[][..], &good[..23], &long, &wraps, &other_version] {
            let error = RemoteRegion::decode(bytes).unwrap_err();
            assert!(error.to_string().starts_with("remote_region: invalid"), "{error}");
        }
        assert_eq!(RemoteRegion::receive(&wraps[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(RemoteRegion::receive(&good[..10]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "a range that must be refused")]
    fn parts_are_inside_the_region() {
        let region = RemoteRegion::new(u64::MAX - 100, 100, 7).unwrap();
        assert_eq!(region.slice(10..30).unwrap(), RemoteRegion::new(u64::MAX - 90, 20, 7).unwrap());
        assert_eq!(region.slice(10..30).unwrap().slice(20..20).unwrap().len(), 0);
        for range in [0..101, 101..101, 30..10, 0..u64::MAX] {
            assert!(region.slice(range.clone()).is_err(), "{range:?}");
            assert!(region.remote::<RemoteAddr>(range).is_err());
        }
        assert!(region.slice(10..30).unwrap().slice(0..21).is_err(), "a part does not grow again");
        assert!(RemoteRegion::new(u64::MAX, 1, 7).is_err());
    }
}
