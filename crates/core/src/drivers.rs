// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of the drivers.
//!
//! A driver has one line here. The crate `uverbs` makes `AnyDriver`, the search of a device's driver and its re-exports from the list, and
//! the C library makes its search. `docs/src/guides/adding-a-driver.md` lists what else a driver needs.

/// Calls a macro with its arguments (one token tree) and the drivers, in the order in which a device is probed for them.
///
/// A driver is `[TYPE FEATURE MODULE CRATE]`: its type in the root of its crate, the feature of `uverbs` that selects it, the name that
/// its crate has there, and the crate. The first driver of a build determines the format of the entries and addresses of `AnyDriver`, so
/// drivers that do not convert them come first.
#[doc(hidden)]
#[macro_export]
macro_rules! drivers {
    ($then:ident $args:tt) => {
        $then! { $args
            [Mlx5 "mlx5" mlx5 uverbs_mlx5]
            [Efa "efa" efa uverbs_efa]
            [Rxe "rxe" rxe uverbs_rxe]
            [Siw "siw" siw uverbs_siw]
        }
    };
}
