// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software devices of a build behind one type.
//!
//! A model has one line in the list below. Programs that have software devices, such as the C library, know no model: they ask [`MODELS`]
//! for fabrics and devices by name, by the environment, or by number.
//!
//! ```
//! # #[cfg(feature = "hca")]
//! # {
//! let model = uverbs_software::model_of("hca0").expect("a build with the feature `hca`");
//! let fabric = model.fabric(7);
//! let (a, b) = (fabric.device("hca0"), fabric.device("hca1"));
//! let context = a.open();
//! # let _ = (b, context);
//! # }
//! ```

mod device;
mod environment;
mod fabric;
mod model;
mod named;

pub use device::Device;
pub use environment::{Made, of_environment};
pub use fabric::Fabric;
pub use model::{Model, model_of};
pub use named::{named, opened};
pub use uverbs_softkernel::software::{Handle, Software};

/// The port and the QPs of a device at a time. The types of QPs are their numbers in `enum ib_qp_type`.
pub type Stat = uverbs_fabric::Stat<u8>;
/// A QP.
pub type QpStat = uverbs_fabric::QpStat<u8>;

/// Calls a macro with its arguments (one token tree) and the models, in the order in which their devices are listed.
///
/// A model is `[TYPE FEATURE MODULE CRATE]`: the type of its device in the root of its crate; the feature, of this crate and of `uverbs`, that
/// selects it; the name that its crate has in `uverbs`; the crate.
#[doc(hidden)]
#[macro_export]
macro_rules! models {
    ($then:ident $args:tt) => {
        $then! { $args
            [Hca "hca" hca uverbs_hca]
            [EfaDevice "efa-device" efa_device uverbs_efa_device]
        }
    };
}

macro_rules! list {
    (() $([$device:ident $feature:literal $module:ident $krate:ident])*) => {
        /// The models of this build.
        pub const MODELS: &[Model] = &[$(
            #[cfg(feature = $feature)]
            Model::of::<$krate::$device>(),
        )*];

        $(#[cfg(feature = $feature)]
        #[doc(hidden)]
        pub use $krate as $module;)*
    };
}
models!(list());
