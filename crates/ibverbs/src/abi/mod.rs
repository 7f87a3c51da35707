// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structs of `<infiniband/verbs.h>` and `<infiniband/mlx5dv.h>` (those of `<infiniband/efadv.h>` are in `efadv`), under their C names, with the fields of
//! rdma-core 65.
//!
//! [`c_struct`] also records the offset of each field. The tests compare the offsets with the tables in `data/`, which
//! were generated with a C compiler from the headers of rdma-core 44 and 65, and with the installed header.
//!
//! Enumerations are integers here, because a C caller may pass any number. The structs of the data path are declared in
//! `uverbs_core::{wr, wc}`, because C's lists are posted without conversion.
#![expect(unsafe_code)]
// UNSAFETY: structs of zeros.

/// Declares structs with the layout of C, and a table of their fields for the tests.
macro_rules! c_struct {
    ($(
        $(#[$meta:meta])*
        struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty),* $(,)? }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name { $($(#[$fmeta])* pub(crate) $field: $ty),* }
        )*

        #[cfg(test)]
        pub(crate) const LAYOUTS: &[$crate::abi::Layout] = &[$(
            $crate::abi::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), core::mem::offset_of!($name, $field))),*],
            }
        ),*];
    };
}

/// Structs whose bytes may all be 0: this means missing functions, no pointers, and numbers of 0.
///
/// # Safety
/// Zeros are a value of the struct.
pub(crate) unsafe trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: the contract of the trait.
        unsafe { core::mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($ty:ty),* $(,)?) => {
        $(
            // SAFETY: the fields are integers, pointers, types of pthread, optional functions, and structs and arrays of these.
            unsafe impl $crate::abi::Zeroed for $ty {}
        )*
    };
}
pub(crate) use {c_struct, zeroed};

zeroed! {
    attr::ibv_srq_init_attr_ex,
    context::verbs_context,
    mlx5dv::mlx5dv_qp_ex,
    object::ibv_cq_ex,
    object::ibv_srq,
    qp::ibv_qp_ex,
    qp::ibv_qp_init_attr_ex,
    wq::ibv_wq,
}

pub(crate) mod attr;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod flow;
pub(crate) mod kern;
pub(crate) mod mlx5dv;
pub(crate) mod object;
pub(crate) mod qp;
pub(crate) mod wq;

#[cfg(test)]
mod tests;

/// The offsets of the fields of a struct.
#[cfg(test)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize)],
}
