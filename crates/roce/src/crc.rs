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

/// The polynomial of the invariant CRC, with its bits in reverse order: the coefficient of x^0 is the highest bit.
const INVARIANT: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// The product of two polynomials modulo the CRC's.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut sum, mut bit) = (0, 31_u32);
    loop {
        if a >> bit & 1 != 0 {
            sum ^= b;
        }
        if bit == 0 {
            return sum;
        }
        bit -= 1;
        b = if b & 1 == 0 { b >> 1 } else { b >> 1 ^ INVARIANT };
    }
}

/// x to the power of -8 * 2^i: what takes back 2^i bytes.
const BACK: [u32; 16] = {
    // The polynomial is primitive, so x^-1 = x^(2^32 - 2), and x^-8 = x^(2^32 - 9).
    let (mut power, mut square, mut left) = (ONE, ONE >> 1, u32::MAX - 8);
    while left != 0 {
        if left & 1 != 0 {
            power = product(power, square);
        }
        square = product(square, square);
        left >>= 1;
    }
    let mut table = [power; 16];
    let mut i = 1;
    while i < table.len() {
        table[i] = product(table[i - 1], table[i - 1]);
        i += 1;
    }
    table
};

/// The two bytes that make the difference between two CRCs, and are followed by `after` bytes, which are the same; `None` if these two
/// bytes are not the only difference.
#[must_use]
pub(crate) fn two_bytes(difference: u32, after: u16) -> Option<[u8; 2]> {
    // The CRC of a message M is M * x^32 modulo the polynomial, so the difference is D * x^(8 * after + 32), where D has 16 bits.
    let bytes = u32::from(after) + 4;
    let steps = (0..BACK.len()).filter(|i| bytes >> i & 1 != 0);
    let value = steps.fold(difference, |value, i| product(value, BACK[i]));
    // The bit that was processed first is the lowest one of the upper half.
    let found = (value as u16 == 0).then_some((value >> 16) as u16);
    found.filter(|_| bytes <= u32::from(u16::MAX)).map(u16::to_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bytes_that_differ_are_found_at_any_distance() {
        for after in [0_usize, 1, 2, 3, 7, 30, 1024, 4132, 60_000] {
            for bytes in [[0, 1], [1, 0], [0x12, 0x34], [0xff, 0xff]] {
                let crc = |two: [u8; 2]| {
                    let all = [&[9; 5][..], &two, &vec![0x5a; after]].concat();
                    crc32fast::hash(&all)
                };
                let difference = crc(bytes) ^ crc([0, 0]);
                assert_eq!(two_bytes(difference, after as u16), Some(bytes), "{after}");
                // A bit behind them is another difference.
                assert_eq!(two_bytes(difference ^ 1 << 9, after as u16), None, "{after}");
            }
        }
        assert_eq!(two_bytes(1, u16::MAX), None);
    }
}
