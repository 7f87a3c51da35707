// SPDX-License-Identifier: MIT OR Apache-2.0
//! Methods of structs that other crates can't write as literals, because they may get more fields.

/// Methods that set a field of their name.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("Sets [`", stringify!($name), "`](field@Self::", stringify!($name), ").")]
        #[must_use]
        pub const fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}
