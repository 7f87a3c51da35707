// SPDX-License-Identifier: MIT OR Apache-2.0
//! The macros that declare the format and emit its description for the header test.
//!
//! Every struct states its size, which is asserted at compile time, and its C type; every field states its offset. An
//! empty C name marks an item that `<infiniband/mlx5dv.h>` does not have.

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in Rust.
    pub name: &'static str,
    /// Path in C; empty if C has none.
    pub c: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// One struct.
#[derive(Clone, Copy, Debug)]
pub struct Struct {
    /// Name in Rust.
    pub name: &'static str,
    /// Type in C; empty if the header has none.
    pub c: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// The fields in order.
    pub fields: &'static [Field],
}

/// One constant.
#[derive(Clone, Copy, Debug)]
pub struct Const {
    /// Name in Rust.
    pub name: &'static str,
    /// Name in C; empty if the header has none.
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

/// Declares `#[repr(C)]` structs, asserts sizes and offsets, and emits the module's `STRUCTS`.
macro_rules! hw_structs {
    ($(
        $(#[doc = $doc:literal])*
        #[c = $c:literal]
        pub struct $name:ident: $bytes:literal {
            $(
                $(#[doc = $fdoc:literal])*
                $(#[c = $fc:literal])?
                pub $field:ident: $ty:ty = $offset:literal,
            )*
        }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[derive(
                Clone, Copy, Debug, Default, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $name {
                $(
                    $(#[doc = $fdoc])*
                    pub $field: $ty,
                )*
            }

            const _: () = assert!(size_of::<$name>() == $bytes);
            $(const _: () = assert!(core::mem::offset_of!($name, $field) == $offset);)*
        )*

        /// The layout of this module's structs, for the header test.
        pub(crate) const STRUCTS: &[$crate::layout::Struct] = &[$(
            $crate::layout::Struct {
                name: stringify!($name),
                c: $c,
                size: size_of::<$name>(),
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

/// Declares constants and the module's `CONSTS`.
macro_rules! hw_consts {
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
macro_rules! c_name {
    ([$c:literal] $rule:expr) => {
        $c
    };
    ([] $rule:expr) => {
        $rule
    };
}

pub(crate) use {c_name, hw_consts, hw_structs};
