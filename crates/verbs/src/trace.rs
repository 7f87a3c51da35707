// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports for an operator: an event of `tracing` with fields (feature `tracing`), or a line of `log`.
//!
//! Nothing of the data path is reported that succeeds. `tracing` is built so that a program without a subscriber gets the line of `log`
//! with the feature, too.

#[doc(hidden)]
#[cfg(feature = "tracing")]
pub use tracing;

/// Reports what has happened, at a level: `report!(warn, { device = %name, qp_num }, "..", ..)`. The fields are those of `tracing`, which
/// are not evaluated without it.
#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! report {
    ($level:ident, {}, $($message:tt)+) => {
        $crate::trace::tracing::$level!($($message)+)
    };
    ($level:ident, { $($fields:tt)+ }, $($message:tt)+) => {
        $crate::trace::tracing::$level!({ $($fields)+ }, $($message)+)
    };
}

/// Reports what has happened, at a level.
#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! report {
    ($level:ident, { $($fields:tt)* }, $($message:tt)+) => {
        ::log::$level!($($message)+)
    };
}
