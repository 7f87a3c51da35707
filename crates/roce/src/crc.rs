// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CRCs of a packet (IBA volume 1, section 7.8; over IP: annex 17).
//!
//! The invariant CRC covers what no switch changes: fields that one may change count as ones. The variant CRC covers all of an InfiniBand
//! packet. Both process the bits of a byte from the lowest one, so their bytes are in little-endian order.

/// What the ICRC has in place of LRH where there is none: 8 bytes of ones.
const NO_LRH: [u8; 8] = [0xff; 8];

/// The invariant CRC of a packet whose link header is not LRH.
///
/// `headers` are the bytes from the IP header (or GRH) to the base transport header, with ones in the fields that do not count; `rest` are
/// the bytes after them.
#[must_use]
pub fn icrc_of_ip(headers: &[u8], rest: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    for part in [&NO_LRH, headers, rest] {
        crc.update(part);
    }
    crc.finalize()
}

/// The invariant CRC of an InfiniBand packet: `headers` begin with LRH.
#[must_use]
pub fn icrc_of_lrh(headers: &[u8], rest: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(headers);
    crc.update(rest);
    crc.finalize()
}

/// The generator of the variant CRC, 0x100b, with its bits in reverse order.
const VARIANT: u16 = 0xd008;

/// The variant CRC of an InfiniBand packet: of all bytes from LRH to the ICRC.
#[must_use]
pub fn vcrc(bytes: &[u8]) -> u16 {
    !bytes.iter().fold(u16::MAX, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ VARIANT })
    })
}
