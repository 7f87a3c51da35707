// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a work request uses until it is complete, as one word.
//!
//! A post moves it into a slot of the queue's slab, and a poll moves it out. It is `Copy` and has no drop glue.
//! [`HeldOnce`] owns the value where it must not be lost.
// codegen: drop
#![expect(unsafe_code)]
// UNSAFETY: converts values to words and back.

use crate::access::{Access, Unmapped};
use crate::list::ListParts;
use crate::mkey_region::MkeyParts;
use crate::mr::{Exposed, Private};
use crate::pool::{RawBuf, RawPart, RawShare};
use crate::scope::Ticket;
use crate::window::WindowParts;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::num::NonZeroUsize;
use core::panic::AssertUnwindSafe;
use core::ptr::NonNull;
use std::panic::catch_unwind;
use uverbs_core::provider::Driver;

/// The type of the value: the low bits of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct HeldKind(usize);

impl HeldKind {
    /// Buffers, by the kind of their access.
    pub(super) const PRIVATE: Self = Self(0);
    pub(super) const EXPOSED: Self = Self(1);
    pub(super) const UNMAPPED: Self = Self(2);
    /// A [`WindowParts`]; with a null pointer, nothing: inline data.
    const WINDOW: Self = Self(3);
    /// A [`Ticket`]: memory that a scope borrows.
    const SCOPED: Self = Self(4);
    /// Owners of shared buffers, by the kind of the access.
    pub(super) const PRIVATE_SHARED: Self = Self(5);
    pub(super) const EXPOSED_SHARED: Self = Self(6);
    pub(super) const UNMAPPED_SHARED: Self = Self(7);
    /// Lists, by the kind of the access to their buffers.
    pub(super) const PRIVATE_LIST: Self = Self(8);
    pub(super) const EXPOSED_LIST: Self = Self(9);
    pub(super) const UNMAPPED_LIST: Self = Self(10);
    /// Parts of buffers, by the kind of the access.
    pub(super) const PRIVATE_PART: Self = Self(11);
    pub(super) const EXPOSED_PART: Self = Self(12);
    pub(super) const UNMAPPED_PART: Self = Self(13);
    /// A [`MkeyParts`].
    const MKEY: Self = Self(14);
    const MASK: usize = 15;
}

// The values that the pointers are to leave the bits free.
const _: () = assert!(align_of::<Ticket>() > HeldKind::MASK);

/// What a work request uses until it is complete.
///
/// # Invariants
/// The word is a pointer of a value of the type that its low bits name. One copy of it is used: [`open`](Self::open) and the
/// functions that call it are called once for each value.
///
/// It is never null, so an `Option` of it is a word, too.
// codegen: words
#[repr(transparent)]
pub(super) struct Held<D: Driver> {
    word: NonNull<()>,
    _driver: PhantomData<D>,
}

impl<D: Driver> Clone for Held<D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Driver> Copy for Held<D> {}

// SAFETY: the word stands for a value of one of these types, which are `Send` for each driver (`values_are_send`). A bound in place of the
// proof would make each crate that names a QP prove it again, and the proof is longer than the default recursion limit.
unsafe impl<D: Driver> Send for Held<D> {}

const fn values_are_send<D: Driver>() {
    const fn is_send<T: Send>() {}
    is_send::<Value<D>>();
}

/// The value that a word is.
pub(super) enum Value<D: Driver> {
    Nothing,
    Buf(#[expect(dead_code, reason = "buffers are dropped here, or taken by `into_buf`")] RawBuf<D>),
    Shared(#[expect(dead_code, reason = "as above, by `into_share`")] RawShare<D>),
    Part(#[expect(dead_code, reason = "as above, by `into_part`")] RawPart<D>),
    Window(Box<WindowParts<D>>),
    Scoped(Box<Ticket>),
    PrivateList(Box<ListParts<Private, D>>),
    ExposedList(Box<ListParts<Exposed, D>>),
    UnmappedList(Box<ListParts<Unmapped, D>>),
    Mkey(Box<MkeyParts<D>>),
}

impl<D: Driver> Held<D> {
    /// Inline data, or none: the kind without a pointer.
    pub(super) const NOTHING: Self = {
        const WORD: NonZeroUsize = NonZeroUsize::new(HeldKind::WINDOW.0).unwrap();
        Self { word: NonNull::without_provenance(WORD), _driver: PhantomData }
    };

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(kind: HeldKind, at: NonNull<()>) -> Self {
        const { values_are_send::<D>() };
        // Or, because it can't become null: the bits are 0 in the pointer.
        Self { word: at.map_addr(|addr| addr | kind.0), _driver: PhantomData }
    }

    /// A buffer; the kind is that of its access.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn buf(kind: HeldKind, buf: RawBuf<D>) -> Self {
        Self::new(kind, buf.into_pointer())
    }

    /// An owner of a shared buffer; the kind is that of its access.
    pub(super) fn shared(kind: HeldKind, share: RawShare<D>) -> Self {
        Self::new(kind, share.into_pointer())
    }

    /// A part of a buffer; the kind is that of its access.
    pub(super) fn part(kind: HeldKind, part: RawPart<D>) -> Self {
        Self::new(kind, part.into_pointer())
    }

    pub(super) fn window(parts: Box<WindowParts<D>>) -> Self {
        const { assert!(align_of::<WindowParts<D>>() > HeldKind::MASK) };
        Self::new(HeldKind::WINDOW, NonNull::from(Box::leak(parts)).cast())
    }

    /// A list; the kind is that of the access to its buffers.
    pub(super) fn list<A: Access>(kind: HeldKind, parts: Box<ListParts<A, D>>) -> Self {
        const { assert!(align_of::<ListParts<A, D>>() > HeldKind::MASK) };
        Self::new(kind, NonNull::from(Box::leak(parts)).cast())
    }

    pub(super) fn mkey(parts: Box<MkeyParts<D>>) -> Self {
        const { assert!(align_of::<MkeyParts<D>>() > HeldKind::MASK) };
        Self::new(HeldKind::MKEY, NonNull::from(Box::leak(parts)).cast())
    }

    pub(super) fn scoped(ticket: Ticket) -> Self {
        Self::new(HeldKind::SCOPED, NonNull::from(Box::leak(Box::new(ticket))).cast())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn is(self, kind: HeldKind) -> bool {
        self.word.addr().get() & HeldKind::MASK == kind.0
    }

    fn pointer(self) -> *mut () {
        self.word.as_ptr().map_addr(|addr| addr & !HeldKind::MASK)
    }

    /// The buffer.
    ///
    /// # Safety
    /// The kind is `kind`, which is that of a buffer, and the word is not used again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn into_buf(self, kind: HeldKind) -> RawBuf<D> {
        // SAFETY: without its kind it is the pointer of a buffer (the invariant of this type), which is not used again.
        unsafe { RawBuf::from_pointer(self.word.as_ptr().wrapping_byte_sub(kind.0)) }
    }

    /// The owner of a shared buffer.
    ///
    /// # Safety
    /// The kind is one of those of shared buffers, and the word is not used again.
    pub(super) unsafe fn into_share(self) -> RawShare<D> {
        // SAFETY: the pointer is that of a shared buffer (the invariant of this type), which is not used again.
        unsafe { RawShare::from_pointer(self.pointer()) }
    }

    /// The part of a buffer.
    ///
    /// # Safety
    /// The kind is one of those of parts, and the word is not used again.
    pub(super) unsafe fn into_part(self) -> RawPart<D> {
        // SAFETY: the pointer is that of a part (the invariant of this type), which is not used again.
        unsafe { RawPart::from_pointer(self.pointer()) }
    }

    /// The value.
    ///
    /// # Safety
    /// The word is not used again.
    pub(super) unsafe fn open(self) -> Value<D> {
        let pointer = self.pointer();
        match HeldKind(self.word.addr().get() & HeldKind::MASK) {
            HeldKind::WINDOW if pointer.is_null() => Value::Nothing,
            // SAFETY: `window` made the pointer from a box (the invariant of this type), which is used once (the contract).
            HeldKind::WINDOW => Value::Window(unsafe { Box::from_raw(pointer.cast()) }),
            // SAFETY: `scoped` made the pointer from a box (the invariant of this type), which is used once (the contract).
            HeldKind::SCOPED => Value::Scoped(unsafe { Box::from_raw(pointer.cast()) }),
            // SAFETY: `list` made the pointer from a box of buffers with this access (the invariant of this type), which is used
            // once (the contract).
            HeldKind::PRIVATE_LIST => Value::PrivateList(unsafe { Box::from_raw(pointer.cast()) }),
            // SAFETY: as above.
            HeldKind::EXPOSED_LIST => Value::ExposedList(unsafe { Box::from_raw(pointer.cast()) }),
            // SAFETY: as above.
            HeldKind::UNMAPPED_LIST => Value::UnmappedList(unsafe { Box::from_raw(pointer.cast()) }),
            // SAFETY: `mkey` made the pointer from a box (the invariant of this type), which is used once (the contract).
            HeldKind::MKEY => Value::Mkey(unsafe { Box::from_raw(pointer.cast()) }),
            HeldKind::PRIVATE_SHARED | HeldKind::EXPOSED_SHARED | HeldKind::UNMAPPED_SHARED => {
                // SAFETY: it is of these kinds, and is not used again (the contract).
                Value::Shared(unsafe { self.into_share() })
            }
            HeldKind::PRIVATE_PART | HeldKind::EXPOSED_PART | HeldKind::UNMAPPED_PART => {
                // SAFETY: it is of these kinds, and is not used again (the contract).
                Value::Part(unsafe { self.into_part() })
            }
            // SAFETY: the other kinds are those of buffers, and the word is not used again (the contract of this function).
            _ => Value::Buf(unsafe { RawBuf::from_pointer(pointer) }),
        }
    }

    /// Drops the value: a buffer goes back to its pool.
    ///
    /// # Safety
    /// The word is not used again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn release(self) {
        // SAFETY: the contract of this function.
        unsafe { release(self) }
    }
}

/// [`Held::release`]. With the ABI of C, no panic can leave it, so a poll need not be prepared for one.
///
/// # Safety
/// The word is not used again.
#[cold]
#[inline(never)]
unsafe extern "C" fn release<D: Driver>(held: Held<D>) {
    if held.word == Held::<D>::NOTHING.word {
        return;
    }
    contain(|| {
        // Most buffers are of this kind.
        if held.is(HeldKind::PRIVATE) {
            // SAFETY: it is of that kind, and is not used again (the contract of this function).
            return drop(unsafe { held.into_buf(HeldKind::PRIVATE) });
        }
        // SAFETY: the contract of this function.
        drop(unsafe { held.open() });
    });
}

/// Runs code that may call a logger or a driver, in functions that no panic may leave: they have the ABI of C, and the process
/// would be aborted. A panic ends here, after the panic hook has reported it.
pub(super) fn contain(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        // Its drop could panic, too.
        core::mem::forget(payload);
    }
}

/// The only copy of a word. Its drop releases the value.
pub(super) struct HeldOnce<D: Driver>(Held<D>);

impl<D: Driver> HeldOnce<D> {
    /// # Safety
    /// No other copy of the word is used.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn new(held: Held<D>) -> Self {
        Self(held)
    }

    /// Without a value.
    pub(super) fn nothing() -> Self {
        Self(Held::NOTHING)
    }

    /// Whether it has this kind of value.
    pub(super) fn is(&self, kind: HeldKind) -> bool {
        self.0.is(kind)
    }

    /// Whether it has no value.
    pub(super) fn is_nothing(&self) -> bool {
        self.0.word == Held::<D>::NOTHING.word
    }

    /// The word; the caller releases the value.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn into_inner(self) -> Held<D> {
        ManuallyDrop::new(self).0
    }
}

impl<D: Driver> Drop for HeldOnce<D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        // SAFETY: this value has the only copy of the word, and ends here.
        unsafe { self.0.release() }
    }
}
