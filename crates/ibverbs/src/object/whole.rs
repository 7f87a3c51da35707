// SPDX-License-Identifier: MIT OR Apache-2.0
//! The beginning and the end of an object, for all kinds.
//!
//! An object is allocated with C's part first. It is in the [table](crate::live) from its creation to its end, so what the table has found
//! is an object of the type that [`Owned`] names: our part is reached by safe functions from there on.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::destroy_handle;
use crate::context::Private;
use crate::errno::{Outcome, ensure};
use crate::events::{self, Evented};
use crate::live::{self, Claim, Live, Object};
use crate::verbs::Open;
use core::mem::ManuallyDrop;
use core::{array, ptr};
use uverbs_core::Error;
use uverbs_core::control::CqEvents;
use uverbs_core::provider::{self, Driver, QpEnd};

/// An object in memory: the part that programs see, and ours. References exist to ours only, because programs write the other part.
#[repr(C)]
pub(crate) struct Whole<P, O> {
    pub(crate) public: P,
    pub(crate) own: O,
}

/// The parts of objects: of the driver `D`, or of all drivers if that is `()`.
///
/// # Safety
/// `Public` begins with the fields of `Self`, and each object of this kind in the table, of a context of the driver, was made by
/// [`create`] or [`create_of`] with these types.
pub(crate) unsafe trait Owned<D>: Object {
    type Public;
    type Own;
}

/// Our part of an object that has a kernel's object.
///
/// # Safety
/// `own_handle` returns a part of the value, and only the functions of this module take the handle out.
pub(crate) unsafe trait Handled {
    type Handle;
    fn own_handle(&self) -> &ManuallyDrop<Self::Handle>;
}

// SAFETY: the value is the handle; the modules of these objects only borrow it.
unsafe impl<H> Handled for ManuallyDrop<H> {
    type Handle = H;

    fn own_handle(&self) -> &Self {
        self
    }
}

/// Declares that a part has the handle in a field.
macro_rules! handled {
    ($($own:ident$(<$driver:ident>)?: $field:ident, $handle:ty;)*) => {
        $(
            // SAFETY: a field, which its module only borrows.
            unsafe impl$(<$driver: Driver>)? Handled for $own$(<$driver>)? {
                type Handle = $handle;

                fn own_handle(&self) -> &ManuallyDrop<$handle> {
                    &self.$field
                }
            }
        )*
    };
}
pub(crate) use handled;

/// Our part of an object that events name by a number.
pub(crate) trait Numbered {
    fn number(&self) -> u64;
}

/// What the kernel reports of a destroyed object: for each count of acknowledged events, how many were read.
pub(crate) trait Reported<const N: usize> {
    fn counts(&self) -> [u32; N];
}

impl Reported<1> for u32 {
    fn counts(&self) -> [u32; 1] {
        [*self]
    }
}

impl Reported<1> for QpEnd {
    fn counts(&self) -> [u32; 1] {
        [self.events_reported]
    }
}

impl Reported<2> for CqEvents {
    fn counts(&self) -> [u32; 2] {
        [self.async_events_reported, self.comp_events_reported]
    }
}

/// Allocates an object, and adds it to the table.
fn make<D, T: Owned<D>>(here: &Private, public: T::Public, own: T::Own, compares: bool) -> *mut T {
    let object = Box::into_raw(Box::new(Whole { public, own })).cast();
    // SAFETY: the new object.
    unsafe { live::add::<T>(here, object, compares) };
    object
}

/// A new object of a context.
pub(crate) fn create<T: Owned<()>>(here: &Private, public: T::Public, own: T::Own) -> *mut T {
    make(here, public, own, true)
}

/// [`create`] for an object without a kernel's object of its own, whose public number is not compared.
pub(crate) fn create_without_number<T: Owned<()>>(here: &Private, public: T::Public, own: T::Own) -> *mut T {
    make(here, public, own, false)
}

/// A new object of a context of the driver.
pub(crate) fn create_of<D: Driver, T: Owned<D>>(
    open: &Open<D>,
    here: &Private,
    public: T::Public,
    own: T::Own,
) -> Outcome<*mut T> {
    ensure(is_driver_of(open, here))?;
    Ok(make(here, public, own, true))
}

/// Whether it is the driver of a context.
fn is_driver_of<D: Driver>(open: &Open<D>, here: &Private) -> bool {
    ptr::addr_eq(open, here.verbs())
}

impl<T> Live<'_, T> {
    /// # Safety
    /// The object's parts are those of `D`.
    unsafe fn part<D>(&self) -> &T::Own
    where
        T: Owned<D>,
    {
        // SAFETY: an object of this type (`Owned`, and the contract of this function), which exists as long as this value; no mutable
        // reference to its own part exists.
        unsafe { &(*self.pointer().cast::<Whole<T::Public, T::Own>>()).own }
    }

    /// Our part of the object.
    pub(crate) fn own(&self) -> &T::Own
    where
        T: Owned<()>,
    {
        // SAFETY: objects of this kind have the same parts with all drivers.
        unsafe { self.part() }
    }

    /// Our part of the object; `EINVAL` if it is not of this driver.
    pub(crate) fn own_of<D: Driver>(&self, open: &Open<D>) -> Outcome<&T::Own>
    where
        T: Owned<D>,
    {
        ensure(is_driver_of(open, self.here()))?;
        // SAFETY: the object is of a context of this driver, as checked above.
        Ok(unsafe { self.part() })
    }
}

impl<T: Object> Claim<'_, T> {
    /// Removes the object from the table, and frees it.
    ///
    /// # Safety
    /// The object's parts are those of `D`.
    unsafe fn end<D>(self)
    where
        T: Owned<D>,
    {
        live::remove(self.here(), self.pointer());
        // SAFETY: a `Box` of this type (`Owned`, and the contract of this function). No verb uses the object, because it was claimed, and
        // the program does not use it later (`Arg`).
        drop(unsafe { Box::from_raw(self.pointer().cast::<Whole<T::Public, T::Own>>()) });
    }

    /// Frees the object.
    pub(crate) fn free(self)
    where
        T: Owned<()>,
    {
        // SAFETY: objects of this kind have the same parts with all drivers.
        unsafe { self.end() };
    }

    /// Destroys the kernel's object by its handle, and frees the object. If the first fails, the object stays.
    pub(crate) fn destroy<H, R: Default>(
        self,
        destroy: impl FnOnce(H) -> Result<R, (H, Error)>,
    ) -> Outcome<()>
    where
        T: Owned<(), Own: Handled<Handle = H>>,
    {
        // SAFETY: if this succeeds, the object with the handle (`Handled`) is freed next.
        unsafe { destroy_handle(self.own().own_handle(), destroy) }?;
        self.free();
        Ok(())
    }

    /// [`destroy`](Self::destroy) for an object of a driver.
    pub(crate) fn destroy_of<D: Driver, H, R: Default>(
        self,
        open: &Open<D>,
        destroy: impl FnOnce(H) -> Result<R, (H, Error)>,
    ) -> Outcome<()>
    where
        T: Owned<D, Own: Handled<Handle = H>>,
    {
        // SAFETY: if this succeeds, the object with the handle (`Handled`) is freed next.
        unsafe { destroy_handle(self.own_of(open)?.own_handle(), destroy) }?;
        // SAFETY: the object is of a context of this driver (`own_of`).
        unsafe { self.end() };
        Ok(())
    }

    /// [`destroy`](Self::destroy) for an object with events, which is freed when all of them are acknowledged.
    pub(crate) fn destroy_with_events<D: Driver, H, const N: usize>(self, open: &Open<D>) -> Outcome<()>
    where
        T: Owned<D, Own: Handled<Handle = H> + Numbered> + Evented<N>,
        H: provider::Object<Reported: Default + Reported<N>>,
    {
        let own = self.own_of(open)?;
        // SAFETY: if this succeeds, the object with the handle (`Handled`) is freed below.
        let reported = unsafe { destroy_handle(own.own_handle(), H::destroy) }?.counts();
        live::mark_gone(self.pointer());
        let counts: [_; N] =
            array::from_fn(|i| (self.pointer().wrapping_byte_add(T::COUNTS[i]).cast(), reported[i]));
        // SAFETY: counts of the object (`Evented`), which is freed below.
        unsafe { events::wait_for_acks(counts) };
        self.here().forget(own.number());
        // SAFETY: the object is of a context of this driver (`own_of`).
        unsafe { self.end() };
        Ok(())
    }
}
