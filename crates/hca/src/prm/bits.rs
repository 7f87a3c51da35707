// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields of big-endian bit layouts: a command's input or answer, a context, a register.
//!
//! Reading outside of the bytes gives 0 and writing there does nothing, so any length that a guest chooses is harmless.
//! Callers for which the length matters check it first.

/// A field. Bits are numbered from the most significant bit of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    at: usize,
    len: usize,
}

impl Field {
    /// The field of `len` bits from bit `at` on.
    #[must_use]
    pub const fn new(at: usize, len: usize) -> Self {
        Self { at, len }
    }

    /// First bit and number of bits, for comparison with the kernel's header.
    #[must_use]
    pub fn place(self) -> (usize, usize) {
        (self.at, self.len)
    }

    /// The value of a field of up to 64 bits.
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u64 {
        (self.at..self.at + self.len.min(64)).fold(0, |value, bit| {
            let byte = bytes.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// The value of a field of up to 32 bits.
    #[must_use]
    pub fn get32(self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Stores a value in a field of up to 64 bits; bits beyond its width are dropped.
    pub fn set(self, bytes: &mut [u8], value: impl Into<u64>) {
        let (value, len) = (value.into(), self.len.min(64));
        for i in 0..len {
            let bit = self.at + i;
            if let Some(byte) = bytes.get_mut(bit / 8) {
                let mask = 0x80 >> (bit % 8);
                *byte = if value >> (len - 1 - i) & 1 != 0 { *byte | mask } else { *byte & !mask };
            }
        }
    }

    /// The bytes of a nested layout, as far as they exist.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> &[u8] {
        let rest = bytes.get(self.at / 8..).unwrap_or_default();
        rest.get(..self.len / 8).unwrap_or(rest)
    }

    /// The bytes of a nested layout, to be written.
    pub fn bytes_mut(self, bytes: &mut [u8]) -> &mut [u8] {
        let rest = bytes.get_mut(self.at / 8..).unwrap_or_default();
        let len = rest.len().min(self.len / 8);
        &mut rest[..len]
    }

    /// All bytes from the field's first byte to the end, for an array at the end of a layout.
    #[must_use]
    pub fn rest(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.at / 8..).unwrap_or_default()
    }

    /// As [`Field::rest`], to be written.
    pub fn rest_mut(self, bytes: &mut [u8]) -> &mut [u8] {
        bytes.get_mut(self.at / 8..).unwrap_or_default()
    }

    /// Copies the field from other bytes of the same layout.
    pub fn copy(self, from: &[u8], to: &mut [u8]) {
        if self.len <= 64 {
            self.set(to, self.get(from));
        } else {
            let source = self.bytes(from);
            let target = self.bytes_mut(to);
            let len = source.len().min(target.len());
            target[..len].copy_from_slice(&source[..len]);
        }
    }
}

/// Declares layouts: a module for each with a [`Field`] for each line, and the table for the test.
macro_rules! layouts {
    ($($name:ident { $($field:ident: $at:expr, $len:expr;)* })*) => {
        $(
            #[doc = concat!("`struct mlx5_ifc_", stringify!($name), "_bits`")]
            pub mod $name {
                use $crate::prm::bits::Field;
                $(
                    #[doc = concat!("`", stringify!($field), "`")]
                    pub const $field: Field = Field::new($at, $len);
                )*
            }
        )*

        /// Every layout with its fields.
        pub const ALL: &[(&str, &[(&str, $crate::prm::bits::Field)])] =
            &[$((stringify!($name), &[$((stringify!($field), $name::$field)),*])),*];
    };
}
pub(crate) use layouts;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_offsets_start_at_the_first_bytes_top_bit() {
        let bytes = [0x12, 0x34, 0x56, 0x78];
        assert_eq!(Field::new(0, 8).get(&bytes), 0x12);
        assert_eq!(Field::new(4, 8).get(&bytes), 0x23);
        assert_eq!(Field::new(8, 24).get(&bytes), 0x34_5678);
        assert_eq!(Field::new(28, 8).get(&bytes), 0x80, "what is outside reads as 0");
        let mut out = [0xff; 4];
        Field::new(4, 8).set(&mut out, 0x123_u32);
        assert_eq!(out, [0xf2, 0x3f, 0xff, 0xff]);
        Field::new(28, 64).set(&mut out, 0_u32);
        assert_eq!(out, [0xf2, 0x3f, 0xff, 0xf0], "what is outside is not written");
        assert_eq!(Field::new(8, 64).bytes(&bytes), [0x34, 0x56, 0x78]);
        assert!(Field::new(64, 8).bytes_mut(&mut out).is_empty());
    }
}
