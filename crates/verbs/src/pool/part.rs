// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of a buffer as the memory of one work request.
#![expect(unsafe_code)]
// UNSAFETY: takes a buffer out of the word that a work request holds, and out of a value with a drop.

use super::{Buf, RawBuf};
use crate::access::Access;
use crate::held::Held;
use crate::list::{Memory, Source, sealed as list};
use crate::mr::Private;
use crate::open::AnyDriver;
use crate::rejected::{Lend, Rejected, sealed};
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use uverbs_core::provider::{Driver, PostError, WireSge};

/// A buffer whose entry is that of a part: it is [narrow](RawBuf::narrow). It is widened before the buffer is used otherwise.
pub(crate) struct RawPart<D: Driver>(ManuallyDrop<RawBuf<D>>);

impl<D: Driver> RawPart<D> {
    /// The whole buffer.
    pub(crate) fn into_whole(self) -> RawBuf<D> {
        // SAFETY: the value is not used again, and its drop does not run.
        let mut buf = unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) };
        buf.widen();
        buf
    }

    /// The whole buffer, after a message of `len` bytes arrived in the part: its length is to the end of the message.
    pub(crate) fn into_received(self, len: u32) -> RawBuf<D> {
        let end = self.range().start + (len as usize).min(self.range().len());
        let mut buf = self.into_whole();
        buf.clamp_len(end as u32);
        buf
    }

    fn range(&self) -> Range<usize> {
        let sge = self.0.sge();
        let start = sge.addr().wrapping_sub(self.0.addr()) as usize;
        start..start + sge.length() as usize
    }

    pub(crate) fn into_pointer(self) -> NonNull<()> {
        // SAFETY: the value is not used again, and its drop does not run.
        unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) }.into_pointer()
    }

    /// # Safety
    /// The pointer is that of [`into_pointer`](Self::into_pointer), and not used again.
    pub(crate) unsafe fn from_pointer(at: *mut ()) -> Self {
        // SAFETY: the contract of this function.
        Self(ManuallyDrop::new(unsafe { RawBuf::from_pointer(at) }))
    }
}

impl<D: Driver> Drop for RawPart<D> {
    fn drop(&mut self) {
        self.0.widen();
        // SAFETY: the value is not used again.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// A part of a buffer, as the memory of one work request: what a post sends, writes or reads, or where it receives.
///
/// The completion gives the whole [`Buf`]. It has the length that it had before, and at least that to the end of the part; after a
/// receive, that to the end of the message. So a message that was received behind a header of 64 bytes is `&buf[64..]`. The
/// completion can also be taken as the part.
///
/// ```
/// # use uverbs::{Exclusive, Pool, Private, Qp, RemoteRegion};
/// # use uverbs::{Driver, PostError, Rc};
/// # fn write<D: Driver>(
/// #     qp: &mut Qp<Rc, Exclusive, D>,
/// #     pool: &Pool<Private, D>,
/// #     to: &RemoteRegion,
/// # ) -> Result<(), PostError> {
/// let Some(buf) = pool.try_get() else { return Ok(()) };
/// qp.sq().post(1).signaled().write(buf.part(64..128)?, to)?;
/// # Ok(())
/// # }
/// ```
pub struct BufPart<A: Access = Private, D: Driver = AnyDriver> {
    raw: RawPart<D>,
    _access: PhantomData<A>,
}

impl<D: Driver, A: Access> fmt::Debug for BufPart<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.raw.0.slot().index;
        f.debug_struct("BufPart").field("index", &index).field("range", &self.range()).finish()
    }
}

impl<D: Driver, A: Access> BufPart<A, D> {
    pub(super) fn new(buf: Buf<A, D>, range: Range<usize>) -> Result<Self, Rejected<Buf<A, D>>> {
        let mut raw = buf.into_raw();
        let narrowed = match (u32::try_from(range.start), u32::try_from(range.end)) {
            (Ok(start), Ok(end)) if start <= end => raw.narrow(start, end - start),
            _ => Err(PostError::InvalidLength),
        };
        match narrowed {
            Ok(()) => Ok(Self { raw: RawPart(ManuallyDrop::new(raw)), _access: PhantomData }),
            Err(error) => Err(Rejected { error: error.into(), returned: Some(Buf::from_raw(raw)) }),
        }
    }

    /// Which bytes of the buffer it has. After a receive, those of the message.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.raw.range()
    }

    /// The whole buffer.
    #[must_use]
    pub fn into_buf(self) -> Buf<A, D> {
        Buf::from_raw(self.raw.into_whole())
    }
}

impl<D: Driver, A: Access> Lend<D> for BufPart<A, D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, A: Access> sealed::Lend<D> for BufPart<A, D> {
    type Note = ();
    fn lend(self) -> Held<D> {
        Held::part(A::PART, self.raw)
    }
    fn note(&self) {}
    unsafe fn give_back(held: Held<D>, received: impl FnOnce() -> Option<u32>) -> Option<Self> {
        if !held.is(A::PART) {
            // SAFETY: the contract of this function.
            unsafe { held.release() };
            return None;
        }
        // SAFETY: it is a part of a buffer with this kind of access; the contract of this function.
        let mut part = Self { raw: unsafe { held.into_part() }, _access: PhantomData };
        if let Some(len) = received() {
            let range = part.range();
            // It is in the part, so it can't fail.
            let _ = part.raw.0.narrow(range.start as u32, len.min(range.len() as u32));
        }
        Some(part)
    }
}

impl<D: Driver, A: Access> Source<D> for BufPart<A, D> {}
impl<D: Driver, A: Access> list::Source<D> for BufPart<A, D> {
    type Sges = [D::Sge; 1];
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.raw.0.domain()
    }
    #[cold]
    #[inline(never)]
    fn moved_to(mut self, domain: u64) -> Self {
        self.raw.0.move_to(domain);
        self
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn bytes(&self) -> u64 {
        self.raw.0.sge().length().into()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn used(&self) -> [D::Sge; 1] {
        [self.raw.0.sge()]
    }
}

impl<D: Driver, A: Access> Memory<D> for BufPart<A, D> {}
impl<D: Driver, A: Access> list::Memory<D> for BufPart<A, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn whole(&self) -> [D::Sge; 1] {
        [self.raw.0.sge()]
    }
}
