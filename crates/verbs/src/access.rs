// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may access the memory of a pool, as a type of its buffers.

use crate::held::{Held, HeldKind, Value};
use crate::list::ListParts;
use crate::mr::{Exposed, Private};
use core::fmt;
use uverbs_core::provider::Driver;

/// Memory that this process can't read, such as a dma-buf of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Unmapped;

mod sealed {
    use super::{Access, Driver, Held, HeldKind, ListParts, Value};

    #[expect(private_interfaces, reason = "only this crate implements it")]
    pub trait Sealed: Sized {
        /// The kind of what a work request holds.
        const KIND: HeldKind;
        /// The kind of an owner of a shared buffer.
        const SHARED: HeldKind;
        /// The kind of a part of a buffer.
        const PART: HeldKind;
        /// As what a work request holds.
        fn hold_list<D: Driver>(parts: Box<ListParts<Self, D>>) -> Held<D>
        where
            Self: Access;
        /// The list, if the value is one with this access.
        fn list<D: Driver>(value: Value<D>) -> Option<Box<ListParts<Self, D>>>
        where
            Self: Access;
    }
}
use sealed::Sealed;

macro_rules! kinds {
    ($($kind:ident = $value:ident, $shared:ident, $part:ident, $list:ident, $list_value:ident;)*) => {$(
        #[expect(private_interfaces, reason = "only this crate implements it")]
        impl Sealed for $kind {
            const KIND: HeldKind = HeldKind::$value;
            const SHARED: HeldKind = HeldKind::$shared;
            const PART: HeldKind = HeldKind::$part;
            fn hold_list<D: Driver>(parts: Box<ListParts<Self, D>>) -> Held<D> {
                Held::list(HeldKind::$list, parts)
            }
            fn list<D: Driver>(value: Value<D>) -> Option<Box<ListParts<Self, D>>> {
                match value {
                    Value::$list_value(parts) => Some(parts),
                    _ => None,
                }
            }
        }
        impl Access for $kind {}
    )*};
}
kinds! {
    Private = PRIVATE, PRIVATE_SHARED, PRIVATE_PART, PRIVATE_LIST, PrivateList;
    Exposed = EXPOSED, EXPOSED_SHARED, EXPOSED_PART, EXPOSED_LIST, ExposedList;
    Unmapped = UNMAPPED, UNMAPPED_SHARED, UNMAPPED_PART, UNMAPPED_LIST, UnmappedList;
}

/// Who may access the memory of a pool, as a type:
///
/// | | peers | this process |
/// |---|---|---|
/// | [`Private`] | none | `&[u8]` and `&mut [u8]` while it owns the buffer |
/// | [`Exposed`] | as the access flags allow, at any time | copies: a peer may write meanwhile |
/// | [`Unmapped`] | as the access flags allow | none |
pub trait Access: Sealed + Send + Sync + fmt::Debug + 'static {}
