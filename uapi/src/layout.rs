// SPDX-License-Identifier: MIT OR Apache-2.0
//! The macros that declare the ABI and emit its description for the header test. `uverbs-mlx5-hw` declares the format of
//! the hardware with them, too.
//!
//! Every struct and constant is declared once, inside `abi_structs!` or `abi_consts!`. The macro emits the item and an
//! entry of the module's `STRUCTS` or `CONSTS` list, so the test covers every declaration. `#[c = "..."]` on a struct
//! is its C type if that is not `struct <name>`; on a field, its path if that is not the field's name; on a constant,
//! its C name. `"."` on a field is the whole object (the storage of a union), `""` marks a struct or constant that no
//! header exports.
//!
//! A struct may state its size, and a field its offset (`pub struct name: 16 { pub field: u32 = 0, .. }`), which are
//! asserted at compile time.

/// An array of bytes that is too long for `Default` of the standard library.
#[derive(Clone, Copy, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(transparent)]
pub struct Bytes<const N: usize>(pub [u8; N]);

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> core::fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Data for the test of one field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in Rust.
    pub name: &'static str,
    /// Path in C; empty if C has none.
    pub c: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes; 0 for a flexible array.
    pub size: usize,
}

/// Data for the test of one struct.
#[derive(Clone, Copy, Debug)]
pub struct Struct {
    /// Name in Rust.
    pub name: &'static str,
    /// Type in C; empty if the header has none.
    pub c: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// The fields in order.
    pub fields: &'static [Field],
}

/// Data for the test of one constant.
#[derive(Clone, Copy, Debug)]
pub struct Const {
    /// Name in Rust.
    pub name: &'static str,
    /// Name in C; empty if no header exports it.
    pub c: &'static str,
    /// The value, widened.
    pub value: u64,
}

/// A source module and its declarations.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Its path below `src`.
    pub path: &'static str,
    /// Its structs.
    pub structs: &'static [Struct],
    /// Its constants.
    pub consts: &'static [Const],
}

/// Declares `#[repr(C)]` structs and the module's `STRUCTS` list. At most once in a module.
#[doc(hidden)]
#[macro_export]
macro_rules! abi_structs {
    ($(
        $(#[doc = $doc:literal])*
        $(#[c = $c:literal])?
        pub struct $name:ident $(: $bytes:literal)? {
            $(
                $(#[doc = $fdoc:literal])*
                $(#[c = $fc:literal])?
                pub $field:ident: $ty:ty $(= $offset:literal)?,
            )*
        }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[derive(
                Clone, Copy, Debug, Default, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            )]
            #[repr(C)]
            pub struct $name {
                $(
                    $(#[doc = $fdoc])*
                    pub $field: $ty,
                )*
            }

            $(const _: () = assert!(size_of::<$name>() == $bytes);)?
            $($(const _: () = assert!(core::mem::offset_of!($name, $field) == $offset);)?)*
        )*

        /// The layout of this module's structs, for the header test.
        pub(crate) const STRUCTS: &[$crate::layout::Struct] = &[$(
            $crate::layout::Struct {
                name: stringify!($name),
                c: $crate::layout::c_name!([$($c)?] concat!("struct ", stringify!($name))),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[$(
                    $crate::layout::Field {
                        name: stringify!($field),
                        c: $crate::layout::c_name!([$($fc)?] stringify!($field)),
                        offset: core::mem::offset_of!($name, $field),
                        size: size_of::<$ty>(),
                    },
                )*],
            },
        )*];
    };
}

/// Declares constants and the module's `CONSTS` list. At most once in a module.
#[doc(hidden)]
#[macro_export]
macro_rules! abi_consts {
    ($(
        $(#[doc = $doc:literal])*
        $(#[c = $c:literal])?
        pub const $name:ident: $ty:ty = $value:expr;
    )*) => {
        $(
            $(#[doc = $doc])*
            pub const $name: $ty = $value;
        )*

        /// The values of this module's constants, for the header test.
        pub(crate) const CONSTS: &[$crate::layout::Const] = &[$(
            $crate::layout::Const {
                name: stringify!($name),
                c: $crate::layout::c_name!([$($c)?] stringify!($name)),
                value: $name as u64,
            },
        )*];
    };
}

/// The stated C name, or `$rule` if none is stated.
#[doc(hidden)]
#[macro_export]
macro_rules! c_name {
    ([$c:literal] $rule:expr) => {
        $c
    };
    ([] $rule:expr) => {
        $rule
    };
}

/// Declares how a C union, which is stored as plain words, is read and written as one of its members.
macro_rules! abi_union {
    ($union:ident { $($(#[doc = $doc:literal])* $get:ident, $set:ident: $arm:ty;)* }) => {
        $(
            const _: () = assert!(size_of::<$arm>() <= size_of::<$union>());
            const _: () = assert!(align_of::<$arm>() <= align_of::<$union>());

            impl From<$arm> for $union {
                /// The member, followed by zeros.
                #[inline]
                fn from(arm: $arm) -> Self {
                    let mut union = Self::default();
                    union.$set(arm);
                    union
                }
            }
        )*

        impl $union {
            $(
                $(#[doc = $doc])*
                #[inline]
                pub fn $get(&self) -> $arm {
                    // The assertion above makes the `Err` case unreachable.
                    <$arm as zerocopy::FromBytes>::read_from_prefix(zerocopy::IntoBytes::as_bytes(self))
                        .map(|(arm, _)| arm)
                        .unwrap_or_default()
                }

                /// Stores this member over the first bytes and leaves the rest unchanged.
                #[inline]
                pub fn $set(&mut self, arm: $arm) {
                    let fits = zerocopy::IntoBytes::write_to_prefix(
                        &arm, zerocopy::IntoBytes::as_mut_bytes(self));
                    debug_assert!(fits.is_ok());
                }
            )*
        }
    };
}

pub(crate) use abi_union;
pub use {abi_consts, abi_structs, c_name};
