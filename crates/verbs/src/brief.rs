// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Debug` of an object is one short line: what it is, its number and its device. It does not print the objects that it holds: an
//! object holds its context, and the context all its objects.

/// Implements `Debug` by a format string: `brief!([generics] Type, |this| "..", args)`.
macro_rules! brief {
    ([$($generics:tt)*] $ty:ty, |$this:ident| $($format:tt)+) => {
        impl<$($generics)*> core::fmt::Debug for $ty {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let $this = self;
                write!(f, $($format)+)
            }
        }
    };
}
pub(crate) use brief;
