// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a work request owns, and how it comes back.
#![expect(unsafe_code)]
// UNSAFETY: takes values out of the word that a work request holds.

use crate::access::Access;
use crate::flight::Flight;
use crate::held::{Held, HeldKind};
use crate::pool::{Buf, RawBuf};
use core::fmt;
use core::ptr::NonNull;
use uverbs_core::errno::Errno;
use uverbs_core::error::Error;
use uverbs_core::provider::{Driver, PostError, QueueError};

/// A post that failed.
///
/// The buffer comes back, except after [`PostError::Doorbell`]: then the work request is published and may run, so the queue
/// keeps the buffer until the completion or the end of the queue.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rejected<B> {
    /// The reason.
    pub error: QueueError,
    /// What was to be posted.
    pub returned: Option<B>,
}

impl<B> fmt::Display for Rejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> core::error::Error for Rejected<B> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<Rejected<B>> for PostError {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error.reason
    }
}

impl<B> From<Rejected<B>> for QueueError {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error
    }
}

impl<B> From<Rejected<B>> for Error {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error.into()
    }
}

impl<B> From<Rejected<B>> for std::io::Error {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error.into()
    }
}

impl<B> Rejected<B> {
    /// A post that failed for this reason, with what comes back.
    #[must_use]
    pub fn new(error: impl Into<QueueError>, returned: Option<B>) -> Self {
        Self { error: error.into(), returned }
    }

    /// The errno that C would get.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.error.errno()
    }
}

/// A value that a work request can own: a [`Buf`], a part or a list of them, a [`SharedBuf`](super::SharedBuf), a
/// [`Window`](super::Window), a [`MkeyRegion`](super::MkeyRegion).
pub trait Lend<D: Driver>: Sized + sealed::Lend<D> {}

pub(super) mod sealed {
    use super::super::held::Held;
    use uverbs_core::provider::Driver;
    use uverbs_core::wc::WcStatus;

    #[expect(private_interfaces, reason = "only this crate implements it")]
    pub trait Lend<D: Driver>: Sized {
        /// Whether it is the memory of a scope: its completion is not passed to the program.
        const SCOPED: bool = false;
        /// What the word lacks. A post that fails gives it to the value that comes back.
        type Note: Copy;
        fn note(&self) -> Self::Note;
        fn lend(self) -> Held<D>;
        /// The value. If it is of another type, it is dropped. `received` has the length of a message, after a receive.
        ///
        /// # Safety
        /// The word is not used again.
        unsafe fn give_back(held: Held<D>, received: impl FnOnce() -> Option<u32>) -> Option<Self>;
        /// The value of a post that failed.
        fn noted(self, note: Self::Note) -> Self {
            let _ = note;
            self
        }
        /// After the completion of the work request.
        #[cfg_attr(not(debug_assertions), inline(always))]
        fn completed(&mut self, status: WcStatus) {
            let _ = status;
        }
    }
}

impl<D: Driver, A: Access> Lend<D> for Buf<A, D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, A: Access> sealed::Lend<D> for Buf<A, D> {
    type Note = ();
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn note(&self) {}
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn lend(self) -> Held<D> {
        self.into_held()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn give_back(held: Held<D>, received: impl FnOnce() -> Option<u32>) -> Option<Self> {
        if held.is(A::KIND) {
            // SAFETY: it is a buffer with this kind of access; the contract of this function.
            let mut buf = Self::from_raw(unsafe { held.into_buf(A::KIND) });
            if let Some(len) = received() {
                buf.clamp_len(len);
            }
            Some(buf)
        } else {
            let len = received().map_or(u64::MAX, u64::from);
            // SAFETY: the contract of this function.
            let buf = NonNull::new(unsafe { whole(held, A::PART, len) });
            // SAFETY: it is the pointer of a buffer with this kind of access, which is not used again.
            buf.map(|buf| Self::from_raw(unsafe { RawBuf::from_pointer(buf.as_ptr()) }))
        }
    }
}

/// The pointer of the buffer of a work request that had a part of it, of the kind `part`; `received` is the length of its message, if it is a
/// `u32`. Anything else is dropped, and the pointer is null. With the ABI of C, no panic can leave it, so a poll need not be prepared for
/// one.
///
/// # Safety
/// The word is not used again.
#[cold]
#[inline(never)]
unsafe extern "C" fn whole<D: Driver>(held: Held<D>, part: HeldKind, received: u64) -> *mut () {
    if !held.is(part) {
        // SAFETY: the contract of this function.
        unsafe { held.release() };
        return core::ptr::null_mut();
    }
    // SAFETY: it is of that kind, which is one of those of parts; the contract of this function.
    let part = unsafe { held.into_part() };
    let buf = match u32::try_from(received) {
        Ok(len) => part.into_received(len),
        Err(_) => part.into_whole(),
    };
    buf.into_pointer().as_ptr()
}

/// Takes back what a post that failed would have owned.
#[cold]
#[inline(never)]
pub(super) fn reject<D: Driver, B: sealed::Lend<D>>(
    flight: &Flight<D>,
    number: u64,
    note: B::Note,
    error: PostError,
) -> Rejected<B> {
    flight.counts.posts_not();
    let named = flight.error(error);
    if let PostError::Doorbell(_) = error {
        flight.counts.published(1);
        return Rejected { error: named, returned: None };
    }
    // SAFETY: the entry was taken out, so this is the only copy.
    let returned =
        flight.slab.take_any(number).and_then(|entry| unsafe { B::give_back(entry.held, || None) });
    Rejected { error: named, returned: returned.map(|value| value.noted(note)) }
}
