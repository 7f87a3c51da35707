// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pointers to contexts and objects that C passes to a function.
//!
//! A function that C calls declares such an argument as [`Arg`], so what its man page demands of the pointer is written once, here, and
//! the functions need no unsafe code to find the object. Pointers to structs are declared as `Option<&T>`, and as
//! `Option<&mut MaybeUninit<T>>` if the function writes a result there: C passes NULL or a pointer that is valid during the call.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to contexts and objects.

use crate::abi::context::ibv_context;
use crate::context::{self, Private};
use crate::errno::{Errno, Outcome};
use crate::live::{self, Claim, Live, Object, Used};
use core::marker::PhantomData;

/// A pointer to a context or to an object, of a call `'a`.
///
/// By the man pages it is NULL, or a pointer that a function of this library, or of another one, has returned. If the context, or that of
/// the object, is one of this library, it is not closed during the call. The program does not destroy an object during a call that uses it;
/// in which order threads do so is checked all the same ([`live`]), except for calls that only read the object. No function of the data
/// path uses an object during the call that destroys it, or later.
///
/// A pointer in a struct that C passes becomes one by [`new`](Self::new), the only unsafe function: the man pages demand the same of it.
#[repr(transparent)]
pub(crate) struct Arg<'a, T> {
    pointer: *mut T,
    call: PhantomData<&'a T>,
}

impl<T> Clone for Arg<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Arg<'_, T> {}

impl<T> Arg<'_, T> {
    /// For pointers in structs, and for calls that C does not make.
    ///
    /// # Safety
    /// The pointer is as described for the [type](Arg).
    pub(crate) const unsafe fn new(pointer: *mut T) -> Self {
        Self { pointer, call: PhantomData }
    }

    pub(crate) const fn pointer(self) -> *mut T {
        self.pointer
    }

    pub(crate) fn is_null(self) -> bool {
        self.pointer.is_null()
    }
}

impl<'a> Arg<'a, ibv_context> {
    /// Our part of the context; `EINVAL` if it is not one of this library.
    pub(crate) fn open(self) -> Outcome<&'a Private> {
        // SAFETY: the context is not closed during the call (see the type).
        unsafe { context::of(self.pointer) }
    }
}

impl<'a, T: Object> Arg<'a, T> {
    /// The object, for a verb that uses it; `EINVAL` if it is NULL or unknown.
    pub(crate) fn enter(self) -> Outcome<Used<'a, T>> {
        // SAFETY: its context is not closed during the call (see the type).
        unsafe { live::enter(self.pointer) }
    }

    /// An object that another one is created from; `None` if it is NULL. `EINVAL` if it is of another context: objects of different
    /// contexts can't be used together.
    pub(crate) fn enter_in(self, context: *mut ibv_context) -> Outcome<Option<Used<'a, T>>> {
        if self.is_null() {
            return Ok(None);
        }
        let used = self.enter()?;
        if used.context() == context { Ok(Some(used)) } else { Err(Errno::EINVAL) }
    }

    /// The object, for a verb that destroys it.
    pub(crate) fn claim(self) -> Outcome<Claim<'a, T>> {
        // SAFETY: its context is not closed during the call (see the type).
        unsafe { live::claim(self.pointer) }
    }

    /// The object, for a call that only reads it in this process: the number in its public part is not compared.
    pub(crate) fn peek(self) -> Outcome<Live<'a, T>> {
        // SAFETY: its context is not closed during the call, and the program does not destroy it during a call that is not its end (see
        // the type).
        unsafe { live::peek(self.pointer) }
    }
}

#[cfg(all(test, feature = "hca"))]
impl<T> Arg<'_, T> {
    /// For calls by tests, which keep the contracts of the man pages.
    pub(crate) fn test(pointer: *mut T) -> Self {
        // SAFETY: the tests pass objects that exist, of contexts that are open.
        unsafe { Self::new(pointer) }
    }
}
