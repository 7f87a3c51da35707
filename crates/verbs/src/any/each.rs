// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expressions that are compiled for each driver.

/// An expression for the driver whose part a value is; it is compiled for each driver.
///
/// `each!(any, part => expression)`, or `each!(any, D(part) => expression)`, in which `D` is the driver.
macro_rules! each {
    ($any:expr, $($pattern:tt)*) => {
        uverbs_core::drivers!(each_arm ($any, $($pattern)*))
    };
}

/// As `each!(any, D(part) => expression)`. The compiler is told that the first driver of a build is the likely one, so it is compared first;
/// otherwise four of them are a table of jumps.
macro_rules! first_of_each {
    ($any:expr, $D:ident($part:ident) => $then:expr) => {
        each!($any, $D($part) => {
            if $D::CONVERTS {
                core::hint::cold_path();
            }
            $then
        })
    };
}

macro_rules! each_arm {
    (($any:expr, $D:ident($part:ident) => $then:expr) $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        match $any {
            $(
                #[cfg(feature = $feature)]
                $crate::any::Any::$name($part) => {
                    type $D = $krate::$name;
                    $then
                }
            )*
            $crate::any::Any::Never(never) => never.any(),
        }
    };
    (($any:expr, $part:ident => $then:expr) $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        match $any {
            $(
                #[cfg(feature = $feature)]
                $crate::any::Any::$name($part) => $then,
            )*
            $crate::any::Any::Never(never) => never.any(),
        }
    };
}

/// An expression of type `Result`, for the driver with an id: `for_id!(verb, id, D => expression)`, in which `D` is the driver.
macro_rules! for_id {
    ($verb:expr, $id:expr, $D:ident => $then:expr) => {
        uverbs_core::drivers!(for_id_arm ($verb, $id, $D => $then))
    };
}

macro_rules! for_id_arm {
    (($verb:expr, $id:expr, $D:ident => $then:expr) $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        match $id {
            $(
                #[cfg(feature = $feature)]
                <$krate::$name as uverbs_core::provider::Driver>::DRIVER_ID => {
                    type $D = $krate::$name;
                    $then
                }
            )*
            other => Err(uverbs_core::Error::unsupported($verb, format!("no driver of this build has the driver id {other}"))),
        }
    };
}
