// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that several owners read: the source of several posts at once.
//!
//! The owners of a buffer are counted, those in the slabs of queues like those of the program. The last one gives it back to its
//! pool, in whatever thread it is.
#![expect(unsafe_code)]
// UNSAFETY: counts the owners of a buffer, and lends its bytes.

use super::owned::too_long;
use super::{Buf, RawBuf, Slot};
use crate::access::Access;
use crate::held::Held;
use crate::list::{Source, sealed as list};
use crate::mr::{Exposed, Private};
use crate::open::AnyDriver;
use crate::rejected::{Lend, sealed};
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, Range};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, WireSge};

/// An owner of a buffer that has several.
///
/// # Invariants
/// The pointer is to a place of a living pool. The owners have together what a [`RawBuf`] has: the place, and a count of the pool.
/// Their number is in [`PoolInner::owners`](super::PoolInner). None of them changes the buffer or its length, which is the same at all
/// homes of the pool.
pub(crate) struct RawShare<D: Driver>(NonNull<Slot<D>>);

// SAFETY: the number of owners is atomic, the bytes are only read, and the last owner is a `RawBuf`, which is `Send`.
unsafe impl<D: Driver> Send for RawShare<D> {}
// SAFETY: as above.
unsafe impl<D: Driver> Sync for RawShare<D> {}

impl<D: Driver> RawShare<D> {
    fn new(mut buf: RawBuf<D>) -> Self {
        // It may be moved while other owners read the length.
        buf.spread();
        let this = Self(ManuallyDrop::new(buf).0);
        this.owners().store(1, Ordering::Relaxed);
        this
    }

    /// As what has the same place: only to look at it.
    fn buf(&self) -> &RawBuf<D> {
        let place: *const NonNull<Slot<D>> = &raw const self.0;
        // SAFETY: a `RawBuf` is this pointer. The invariant of this type is that of `RawBuf`, except that others have `&RawBuf`s of
        // the place, too, and nobody has a `&mut`.
        unsafe { &*place.cast::<RawBuf<D>>() }
    }

    fn owners(&self) -> &AtomicU64 {
        let buf = self.buf();
        // There is one for each index.
        &buf.pool().owners[buf.slot().index as usize]
    }

    pub(crate) fn into_pointer(self) -> NonNull<()> {
        ManuallyDrop::new(self).0.cast()
    }

    /// # Safety
    /// The pointer is that of [`into_pointer`](Self::into_pointer), and not used again.
    pub(crate) unsafe fn from_pointer(at: *mut ()) -> Self {
        // SAFETY: the pointer is that of a place (the contract of this function), so it is not null.
        Self(unsafe { NonNull::new_unchecked(at.cast()) })
    }

    /// Moves this owner to the home in this domain, if there is one.
    fn move_to(&mut self, domain: u64) -> bool {
        let place = self.buf().place_in(domain).map(NonNull::from);
        place.map(|place| self.0 = place).is_some()
    }

    /// The buffer, if this is its only owner.
    fn into_only(self) -> Result<RawBuf<D>, Self> {
        // Acquire pairs with the Release of `drop`: the others have read the bytes before.
        match self.owners().compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(RawBuf(ManuallyDrop::new(self).0)),
            Err(_) => Err(self),
        }
    }
}

impl<D: Driver> Clone for RawShare<D> {
    fn clone(&self) -> Self {
        // Relaxed: the caller is an owner during the call. It can't overflow: 2^64 clones take centuries.
        self.owners().fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<D: Driver> Drop for RawShare<D> {
    fn drop(&mut self) {
        if self.owners().fetch_sub(1, Ordering::Release) == 1 {
            // Pairs with the Release of the other owners: they have read the bytes before the next user writes them.
            fence(Ordering::Acquire);
            drop(RawBuf(self.0));
        }
    }
}

/// A buffer of a pool that has several owners, or a part of it: the source of several sends and writes, of one queue or of
/// several.
///
/// It is read-only, and goes back to its pool when the last owner is dropped and the last work request is complete. A clone is
/// another owner. The completion of a work request gives the whole buffer, not the part, as an owner again.
///
/// ```
/// # use uverbs::{Buf, Exclusive, Private, Qp, RemoteRegion, Rejected, SharedBuf};
/// # use uverbs::{Driver, Error, Rc};
/// # fn replicate<D: Driver>(
/// #     followers: &mut [(Qp<Rc, Exclusive, D>, RemoteRegion)],
/// #     buf: Buf<Private, D>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let entry = buf.share();
/// for (qp, log) in followers {
///     qp.sq().post(1).signaled().write(entry.clone(), log).map_err(|rejected| rejected.error)?;
/// }
/// // The front again, as a message of its own.
/// let head = entry.slice(0..16)?;
/// # Ok(())
/// # }
/// ```
pub struct SharedBuf<A: Access = Private, D: Driver = AnyDriver> {
    share: RawShare<D>,
    /// The entry of its bytes, which are in the length of the buffer.
    sge: D::Sge,
    _access: PhantomData<A>,
}

impl<D: Driver, A: Access> Clone for SharedBuf<A, D> {
    fn clone(&self) -> Self {
        Self { share: self.share.clone(), ..*self }
    }
}

impl<D: Driver, A: Access> fmt::Debug for SharedBuf<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuf")
            .field("index", &self.share.buf().slot().index)
            .field("start", &self.start())
            .field("len", &self.len())
            .finish()
    }
}

impl<D: Driver, A: Access> SharedBuf<A, D> {
    pub(super) fn new(buf: RawBuf<D>) -> Self {
        Self::whole(RawShare::new(buf))
    }

    fn whole(share: RawShare<D>) -> Self {
        let sge = share.buf().sge();
        Self { share, sge, _access: PhantomData }
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.sge.length() as usize
    }

    /// Whether they are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its bytes begin in the buffer.
    fn start(&self) -> usize {
        self.sge.addr().wrapping_sub(self.share.buf().addr()) as usize
    }

    /// A part of it, which is another owner of the buffer. The range is relative to this part.
    ///
    /// # Errors
    /// A range outside these bytes.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len() {
            let reason = format!("{range:?} is outside the {} bytes of the buffer", self.len());
            return Err(Error::invalid("shared_buf", "range", reason));
        }
        // Both fit: they are at most the length, which is a `u32`.
        let (start, len) = (range.start as u64, range.len() as u32);
        let sge = D::Sge::new(self.sge.addr() + start, len, self.sge.lkey())
            .map_err(|_| Error::invalid("shared_buf", "range", "larger than an entry of a work request"))?;
        Ok(Self { share: self.share.clone(), sge, _access: PhantomData })
    }

    /// The whole buffer, to be changed again, if this is its only owner and no work request of it is in flight.
    ///
    /// # Errors
    /// This owner, if there are others.
    pub fn try_unwrap(self) -> Result<Buf<A, D>, Self> {
        let Self { share, sge, .. } = self;
        share.into_only().map(Buf::from_raw).map_err(|share| Self { share, sge, _access: PhantomData })
    }
}

impl<D: Driver> Deref for SharedBuf<Private, D> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let at = core::ptr::with_exposed_provenance(self.sge.addr() as usize);
        // SAFETY: as in `Buf::deref`: the entry is inside the buffer's length, which `slice` keeps, and the owner keeps the
        // mapping. Nothing writes the bytes: the owners can't, peers have no access to a private pool, and work requests of a
        // shared buffer are sends and writes, which only read it.
        unsafe { core::slice::from_raw_parts(at, self.len()) }
    }
}

impl<D: Driver> SharedBuf<Exposed, D> {
    /// Copies bytes out, from `offset` on. Data that a peer writes at the same time may be copied in part.
    ///
    /// # Errors
    /// A range outside these bytes.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(out.len());
        if end > self.len() {
            return Err(too_long(end, self.sge.length()));
        }
        self.share.buf().read_at(self.start() + offset, out)
    }
}

impl<D: Driver, A: Access> Lend<D> for SharedBuf<A, D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, A: Access> sealed::Lend<D> for SharedBuf<A, D> {
    /// The entry of a part.
    type Note = D::Sge;
    fn lend(self) -> Held<D> {
        Held::shared(A::SHARED, self.share)
    }
    fn note(&self) -> D::Sge {
        self.sge
    }
    fn noted(self, sge: D::Sge) -> Self {
        Self { sge, ..self }
    }
    unsafe fn give_back(held: Held<D>, _: impl FnOnce() -> Option<u32>) -> Option<Self> {
        if held.is(A::SHARED) {
            // SAFETY: it is an owner of a buffer with this kind of access; the contract of this function.
            Some(Self::whole(unsafe { held.into_share() }))
        } else {
            // SAFETY: the contract of this function.
            unsafe { held.release() };
            None
        }
    }
}

impl<D: Driver, A: Access> Source<D> for SharedBuf<A, D> {}
impl<D: Driver, A: Access> list::Source<D> for SharedBuf<A, D> {
    type Sges = [D::Sge; 1];
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.share.buf().domain()
    }
    #[cold]
    #[inline(never)]
    fn moved_to(mut self, domain: u64) -> Self {
        if self.share.move_to(domain)
            && let Ok(sge) = D::Sge::new(self.sge.addr(), self.sge.length(), self.share.buf().lkey())
        {
            self.sge = sge;
        }
        self
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn bytes(&self) -> u64 {
        self.sge.length().into()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn used(&self) -> [D::Sge; 1] {
        [self.sge]
    }
}
