// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spreading of flows over work queues by a hash (RSS).

use super::headers::Headers;

/// A hashed receiver: `IBV_RX_HASH_*`.
#[derive(Clone, Debug)]
pub struct Rss {
    /// The hashed fields, `MLX5_RX_HASH_*`.
    pub fields: u64,
    /// The key of the Toeplitz hash.
    pub key: Vec<u8>,
    /// Numbers of work queues; their count is a power of two.
    pub table: Vec<u32>,
}

/// `MLX5_RX_HASH_*`
mod field {
    pub(super) const SRC_IP: u64 = 1 | 1 << 2;
    pub(super) const DST_IP: u64 = 1 << 1 | 1 << 3;
    pub(super) const SRC_PORT: u64 = 1 << 4 | 1 << 6;
    pub(super) const DST_PORT: u64 = 1 << 5 | 1 << 7;
    pub(super) const IPV4: u64 = 0b11;
    pub(super) const IPV6: u64 = 0b1100;
    pub(super) const TCP: u64 = 0b11 << 4;
    pub(super) const UDP: u64 = 0b11 << 6;
}

impl Rss {
    /// The WQ of a flow. Frames without the hashed headers are steered to the first one.
    #[must_use]
    pub fn pick(&self, h: &Headers) -> Option<u32> {
        Self::pick_by(self.fields, &self.key, &self.table, h)
    }

    /// As [`pick`](Self::pick), for these fields, this key and this table.
    #[must_use]
    pub fn pick_by(fields: u64, key: &[u8], table: &[u32], h: &Headers) -> Option<u32> {
        let ip = match h.ip_version {
            4 => fields & field::IPV4,
            6 => fields & field::IPV6,
            _ => 0,
        };
        let l4 = match h.proto {
            6 => fields & field::TCP,
            17 => fields & field::UDP,
            _ => 0,
        };
        let bytes = if h.ip_version == 4 { 4 } else { 16 };
        let mut input = Vec::with_capacity(36);
        if ip & field::SRC_IP != 0 {
            input.extend_from_slice(&h.src[..bytes]);
        }
        if ip & field::DST_IP != 0 {
            input.extend_from_slice(&h.dst[..bytes]);
        }
        if let Some((src, dst)) = h.ports {
            if l4 & field::SRC_PORT != 0 {
                input.extend_from_slice(&src.to_be_bytes());
            }
            if l4 & field::DST_PORT != 0 {
                input.extend_from_slice(&dst.to_be_bytes());
            }
        }
        let hash = toeplitz(key, &input) as usize;
        table.get(hash & table.len().checked_sub(1)?).copied()
    }
}

/// The Toeplitz hash: for each set bit of the input, the 32 bits of the key that start there.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |i: usize| key.get(i / 8).map_or(0, |b| u32::from(b >> (7 - i % 8) & 1));
    let mut window = (0..32).fold(0, |w, i| w << 1 | bit(i));
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for j in 0..8 {
            if byte >> (7 - j) & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | bit(i * 8 + j + 32);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_has_the_published_value() {
        // Verification suite of Microsoft's RSS: 66.9.149.187:2794 -> 161.142.100.80:1766.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &addresses), 0x323e_8fc2);
        let ports = [&addresses[..], &2794_u16.to_be_bytes(), &1766_u16.to_be_bytes()].concat();
        assert_eq!(toeplitz(&key, &ports), 0x51cc_c178);
    }
}
