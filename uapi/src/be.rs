// SPDX-License-Identifier: MIT OR Apache-2.0
//! Big-endian words: the `__be16`, `__be32` and `__be64` of the kernel headers.
//!
//! They keep the alignment of the plain integer (zerocopy's own byte-order types are unaligned), because the
//! headers rely on it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! big_endian {
    ($(#[doc = $doc:literal])* $name:ident, $int:ty) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Stores a host-order value.
            #[inline]
            pub const fn new(host: $int) -> Self {
                Self(host.to_be())
            }

            /// The value in host order.
            #[inline]
            pub const fn get(self) -> $int {
                <$int>::from_be(self.0)
            }

            /// Takes the word as it stands in memory, for a union member that is not big-endian.
            #[inline]
            pub const fn from_bits(bits: $int) -> Self {
                Self(bits)
            }

            /// The word as it stands in memory, for a union member that is not big-endian.
            #[inline]
            pub const fn to_bits(self) -> $int {
                self.0
            }
        }

        impl From<$int> for $name {
            #[inline]
            fn from(host: $int) -> Self {
                Self::new(host)
            }
        }

        impl From<$name> for $int {
            #[inline]
            fn from(be: $name) -> Self {
                be.get()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }
    };
}

big_endian!(
    /// A 16-bit word in network order.
    Be16,
    u16
);
big_endian!(
    /// A 32-bit word in network order.
    Be32,
    u32
);
big_endian!(
    /// A 64-bit word in network order.
    Be64,
    u64
);
