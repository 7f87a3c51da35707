// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a work request uses until it is complete, as one word.
//!
//! A post moves it into a slot of the queue's slab, and a poll moves it out. It is `Copy` and has no drop glue: a value with drop
//! glue would be kept in memory on its way, because its address would be passed to the code of a path that fails. [`HeldOnce`]
//! owns the value where it must not be lost.
#![expect(unsafe_code)]
// UNSAFETY: converts values to words and back.

use super::pool::RawBuf;
use super::scope::Ticket;
use super::window::WindowParts;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use uverbs_core::provider::Driver;

/// The type of the value: the low bits of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldKind(usize);

impl HeldKind {
    /// Buffers, by the kind of their access.
    pub(super) const PRIVATE: Self = Self(0);
    pub(super) const EXPOSED: Self = Self(1);
    pub(super) const UNMAPPED: Self = Self(2);
    /// A [`WindowParts`]; with a null pointer, nothing: inline data.
    const WINDOW: Self = Self(3);
    /// A [`Ticket`]: memory that a scope borrows. The only one with this bit.
    const SCOPED: Self = Self(4);
    const MASK: usize = 7;
}

// The values that the pointers are to leave the bits free.
const _: () = assert!(align_of::<Ticket>() > HeldKind::MASK);

/// What a work request uses until it is complete.
///
/// # Invariants
/// The word is a pointer of a value of the type that its low bits name. One copy of it is used: [`open`](Self::open) and the
/// functions that call it are called once for each value.
///
/// It is never null, so an `Option` of it is a word, too, and one of an entry of the slab is returned in registers.
pub(super) struct Held<D: Driver> {
    word: NonNull<()>,
    _driver: PhantomData<D>,
}

impl<D: Driver> Clone for Held<D> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Driver> Copy for Held<D> {}

// SAFETY: the word stands for a value of one of these types, which are `Send`.
unsafe impl<D: Driver> Send for Held<D> where Value<D>: Send {}

/// The value that a word is.
pub(super) enum Value<D: Driver> {
    Nothing,
    Buf(#[expect(dead_code, reason = "buffers are dropped here, or taken by `into_buf`")] RawBuf<D>),
    Window(Box<WindowParts<D>>),
    Scoped(Box<Ticket>),
}

impl<D: Driver> Held<D> {
    /// Inline data, or none: the kind without a pointer.
    pub(super) const NOTHING: Self = {
        const WORD: NonZeroUsize = NonZeroUsize::new(HeldKind::WINDOW.0).unwrap();
        Self { word: NonNull::without_provenance(WORD), _driver: PhantomData }
    };

    #[inline(always)]
    fn new(kind: HeldKind, at: NonNull<()>) -> Self {
        // Or, because it can't become null: the bits are 0 in the pointer.
        Self { word: at.map_addr(|addr| addr | kind.0), _driver: PhantomData }
    }

    /// A buffer; the kind is that of its access.
    #[inline(always)]
    pub(super) fn buf(kind: HeldKind, buf: RawBuf<D>) -> Self {
        Self::new(kind, buf.into_pointer())
    }

    pub(super) fn window(parts: Box<WindowParts<D>>) -> Self {
        const { assert!(align_of::<WindowParts<D>>() > HeldKind::MASK) };
        Self::new(HeldKind::WINDOW, NonNull::from(Box::leak(parts)).cast())
    }

    pub(super) fn scoped(ticket: Ticket) -> Self {
        Self::new(HeldKind::SCOPED, NonNull::from(Box::leak(Box::new(ticket))).cast())
    }

    #[inline(always)]
    pub(super) fn is(self, kind: HeldKind) -> bool {
        self.word.addr().get() & HeldKind::MASK == kind.0
    }

    #[inline(always)]
    pub(super) fn is_scoped(self) -> bool {
        self.word.addr().get() & HeldKind::SCOPED.0 != 0
    }

    fn pointer(self) -> *mut () {
        self.word.as_ptr().map_addr(|addr| addr & !HeldKind::MASK)
    }

    /// The buffer.
    ///
    /// # Safety
    /// The kind is `kind`, which is that of a buffer, and the word is not used again.
    #[inline(always)]
    pub(super) unsafe fn into_buf(self, kind: HeldKind) -> RawBuf<D> {
        // SAFETY: without its kind it is the pointer of a buffer (the invariant of this type), which is not used again.
        unsafe { RawBuf::from_pointer(self.word.as_ptr().wrapping_byte_sub(kind.0)) }
    }

    /// The value.
    ///
    /// # Safety
    /// The word is not used again.
    pub(super) unsafe fn open(self) -> Value<D> {
        let pointer = self.pointer();
        if self.is_scoped() {
            // SAFETY: `scoped` made the pointer from a box (the invariant of this type), which is used once (the contract).
            return Value::Scoped(unsafe { Box::from_raw(pointer.cast()) });
        }
        if !self.is(HeldKind::WINDOW) {
            // SAFETY: the other kinds are those of buffers, and the word is not used again (the contract of this function).
            return Value::Buf(unsafe { RawBuf::from_pointer(pointer) });
        }
        if pointer.is_null() {
            return Value::Nothing;
        }
        // SAFETY: `window` made the pointer from a box (the invariant of this type), which is used once (the contract).
        Value::Window(unsafe { Box::from_raw(pointer.cast()) })
    }

    /// Drops the value: a buffer goes back to its pool.
    ///
    /// # Safety
    /// The word is not used again.
    #[inline(never)]
    pub(super) unsafe fn release(self) {
        // SAFETY: the contract of this function.
        drop(unsafe { self.open() });
    }
}

/// The only copy of a word. Its drop releases the value.
pub(super) struct HeldOnce<D: Driver>(Held<D>);

impl<D: Driver> HeldOnce<D> {
    /// # Safety
    /// No other copy of the word is used.
    #[inline(always)]
    pub(super) unsafe fn new(held: Held<D>) -> Self {
        Self(held)
    }

    #[inline(always)]
    pub(super) fn is_scoped(&self) -> bool {
        self.0.is_scoped()
    }

    /// The word; the caller releases the value.
    #[inline(always)]
    pub(super) fn into_inner(self) -> Held<D> {
        ManuallyDrop::new(self).0
    }
}

impl<D: Driver> Drop for HeldOnce<D> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this value has the only copy of the word, and ends here.
        unsafe { self.0.release() }
    }
}
