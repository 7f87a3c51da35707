// SPDX-License-Identifier: MIT OR Apache-2.0
//! The macros behind the integer newtypes: constants, names, `Debug` and `Display`.

/// Declares an integer newtype without `Display`; see [`open_values`].
macro_rules! named_values {
    ($(#[$meta:meta])* $name:ident($int:ty), $prefix:literal {
        $($(#[$vmeta:meta])* $konst:ident = $value:literal $text:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            $(
                #[doc = concat!("`", $prefix, stringify!($konst), "`: ", $text, ".")]
                $(#[$vmeta])*
                pub const $konst: Self = Self($value);
            )*

            /// The constant's name, or `None` for a value that has none.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($konst)),)*
                    _ => None,
                }
            }

            /// A description of the value.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "unknown",
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
    };
}

/// Declares an integer newtype for a value that the kernel or the device may write.
///
/// `CONST = number "words";` defines the constant, its name for `Debug` and its words for `Display`. A number without a
/// name is printed as a number.
macro_rules! open_values {
    ($(#[$meta:meta])* $name:ident($int:ty), $prefix:literal { $($values:tt)* }) => {
        $crate::attr::values::named_values! { $(#[$meta])* $name($int), $prefix { $($values)* } }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(_) => f.write_str(self.describe()),
                    None => write!(f, "unknown ({})", self.0),
                }
            }
        }
    };
}

pub(crate) use {named_values, open_values};
