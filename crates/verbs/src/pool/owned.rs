// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffers of a pool that have one owner.
#![expect(unsafe_code)]
// UNSAFETY: lends the bytes of a buffer that has one owner; counts the references to a pool.

use super::{BufPart, Filled, Home, PoolInner, Region, SharedBuf, Slot, Used, domain_of};
use crate::access::{Access, Unmapped};
use crate::held::{Held, contain};
use crate::memory::HomeMemory;
use crate::mr::{Exposed, MemoryRegion, Private};
use crate::open::AnyDriver;
use crate::pd::ProtectionDomain;
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PostError, WireSge};

/// A buffer of any kind of access: a pointer to its place. It is the only one of its place.
///
/// # Invariants
/// The pointer is to a place of a living pool: the value has a strong count of the pool's [`Arc`].
// codegen: words
#[repr(transparent)]
pub(crate) struct RawBuf<D: Driver>(pub(super) NonNull<Slot<D>>);

// SAFETY: it is an `Arc` of a pool, and the right to use a part of its region.
unsafe impl<D: Driver> Send for RawBuf<D> {}
// SAFETY: as above. `&self` only reads, and `&mut self` excludes it.
unsafe impl<D: Driver> Sync for RawBuf<D> {}
impl<D: Driver> Drop for RawBuf<D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        // SAFETY: this value has the place and a count of the pool, and ends here.
        unsafe { give_back(self.0) }
    }
}

/// Gives a buffer back to its pool. With the ABI of C, no panic can leave it, so code that drops a buffer need not be prepared for
/// one.
///
/// # Safety
/// The caller has the place, and a count of the `Arc`, which is this function's from now on.
// codegen: drop
#[inline(never)]
unsafe extern "C" fn give_back<D: Driver>(slot: NonNull<Slot<D>>) {
    // SAFETY: the pool, which has the slots, lives: the caller has a count of it.
    let slot = unsafe { slot.as_ref() };
    let index = slot.index;
    // SAFETY: the pointer is that of the `Arc`, and the caller's count is dropped here.
    let pool = unsafe { Arc::from_raw(slot.pool) };
    // SAFETY: the pool has lent the buffer with this number, so it is below their number, and not in the stack.
    if unsafe { !pool.free.push(index) } {
        pool.give(index);
    }
    if let Some(pool) = Arc::into_inner(pool) {
        destroy(pool);
    }
}

/// The place of a buffer at the home in this domain; the same place, if there is none. With the ABI of C, no panic can leave it.
///
/// # Safety
/// The caller has the place, which becomes the one that is returned.
// codegen: call
#[cold]
#[inline(never)]
unsafe extern "C" fn moved<D: Driver>(from: NonNull<Slot<D>>, domain: u64) -> NonNull<Slot<D>> {
    // Only the pointer is read; the buffer stays with its owner.
    let buf = ManuallyDrop::new(RawBuf(from));
    let Some(slot) = buf.place_in(domain) else { return from };
    let Used { len, sge } = *buf.used();
    let Ok(sge) = D::Sge::new(sge.addr(), sge.length(), slot.whole.lkey()) else { return from };
    // The next user of the buffer begins at the first home, with the entry of the whole.
    // SAFETY: the caller is the only owner of the place (the contract of this function).
    unsafe { *buf.slot().used.get() = Used { len, sge: buf.whole() } };
    // SAFETY: the place is the same buffer's at another home, so it has the same owner.
    unsafe { *slot.used.get() = Used { len, sge } };
    NonNull::from(slot)
}

/// Deregisters the memory of a pool after its last use.
#[cold]
#[inline(never)]
fn destroy<D: Driver>(pool: PoolInner<D>) {
    contain(|| drop(pool));
}

impl<D: Driver> RawBuf<D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn into_pointer(self) -> NonNull<()> {
        ManuallyDrop::new(self).0.cast()
    }

    /// # Safety
    /// The pointer is that of [`into_pointer`](Self::into_pointer), and not used again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) unsafe fn from_pointer(at: *mut ()) -> Self {
        // SAFETY: the pointer is that of a buffer (the contract of this function), so it is not null.
        Self(unsafe { NonNull::new_unchecked(at.cast()) })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn slot(&self) -> &Slot<D> {
        // SAFETY: this value has a count of the pool, which has the slots; nothing makes a `&mut` of them.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn pool(&self) -> &PoolInner<D> {
        // SAFETY: this value has a count of the pool, of which nothing makes a `&mut`.
        unsafe { &*self.slot().pool }
    }

    /// The identity of its protection domain.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn domain(&self) -> u64 {
        self.slot().domain
    }

    /// The entry of the whole buffer.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn whole(&self) -> D::Sge {
        self.slot().whole
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn used(&self) -> &Used<D> {
        // SAFETY: this value is the only one of its place, and nobody has `&mut self`.
        unsafe { &*self.slot().used.get() }
    }

    /// The entry of the bytes that are used.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn sge(&self) -> D::Sge {
        self.used().sge
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn len(&self) -> u32 {
        self.used().len
    }

    /// At least 1.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn capacity(&self) -> u32 {
        self.slot().size
    }

    /// Sets the length, at most to the capacity.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn clamp_len(&mut self, len: u32) {
        let len = len.min(self.capacity());
        // SAFETY: this value is the only one of its place, and `&mut self` excludes other accesses.
        let used = unsafe { &mut *self.slot().used.get() };
        used.len = len;
        // In its place: where the length is a word of the entry, only this word is written.
        used.sge = used.sge.with_length(len);
    }

    /// Limits the entry of the bytes that are used to a part of the capacity, until [`widen`](Self::widen). The length is that of
    /// the buffer, and at least to the end of the part.
    pub(super) fn narrow(&mut self, start: u32, len: u32) -> Result<(), PostError> {
        let end = start.checked_add(len).filter(|end| *end <= self.capacity());
        let (end, whole) = (end.ok_or(PostError::InvalidLength)?, self.whole());
        let sge = D::Sge::new(whole.addr() + u64::from(start), len, whole.lkey())?;
        // SAFETY: this value is the only one of its place, and `&mut self` excludes other accesses.
        let used = unsafe { &mut *self.slot().used.get() };
        (used.len, used.sge) = (used.len.max(end), sge);
        Ok(())
    }

    /// After [`narrow`](Self::narrow): the entry is that of the length again.
    pub(super) fn widen(&mut self) {
        let whole = self.whole();
        // SAFETY: this value is the only one of its place, and `&mut self` excludes other accesses.
        let used = unsafe { &mut *self.slot().used.get() };
        used.sge = whole.with_length(used.len);
    }

    /// Moved to the home in this domain, if there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn moved_to(self, domain: u64) -> Self {
        // SAFETY: the value is this one, and is not used again.
        Self(unsafe { moved(ManuallyDrop::new(self).0, domain) })
    }

    /// [`moved_to`](Self::moved_to), in its place.
    pub(crate) fn move_to(&mut self, domain: u64) {
        // SAFETY: this value is the owner of the place, before and after.
        self.0 = unsafe { moved(self.0, domain) };
    }

    /// Its place at the home in this domain.
    pub(super) fn place_in(&self, domain: u64) -> Option<&Slot<D>> {
        let pool = self.pool();
        let home = pool.home(domain)?;
        pool.slots.get(home * pool.count as usize + self.slot().index as usize)
    }

    /// Makes the length that of its places at all homes.
    pub(super) fn spread(&mut self) {
        let pool = self.pool();
        for place in pool.homes.iter().filter_map(|home| self.place_in(home.domain)) {
            let Used { len, sge } = *self.used();
            let Ok(sge) = D::Sge::new(sge.addr(), sge.length(), place.whole.lkey()) else { continue };
            // SAFETY: as in `move_to`; the reference to the present place's value has ended.
            unsafe { *place.used.get() = Used { len, sge } };
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.whole().lkey()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn addr(&self) -> u64 {
        self.slot().whole.addr()
    }

    /// Where it is in the region.
    fn offset(&self) -> u64 {
        self.pool().slots.first().map_or(0, |first| self.addr().wrapping_sub(first.whole.addr()))
    }
}

/// A buffer of a pool, owned.
///
/// Its length is the number of bytes that a post sends, writes or reads; a receive uses the capacity, and its completion
/// sets the length to that of the message.
pub struct Buf<A: Access = Private, D: Driver = AnyDriver> {
    raw: RawBuf<D>,
    _access: PhantomData<A>,
}

impl<D: Driver, A: Access> fmt::Debug for Buf<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("index", &self.raw.slot().index).field("len", &self.len()).finish()
    }
}

impl<D: Driver, A: Access> Buf<A, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn into_raw(self) -> RawBuf<D> {
        self.raw
    }

    /// As what a work request holds.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn into_held(self) -> Held<D> {
        Held::buf(A::KIND, self.raw)
    }

    /// A buffer that was posted.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn from_raw(raw: RawBuf<D>) -> Self {
        Self { raw, _access: PhantomData }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn raw(&self) -> &RawBuf<D> {
        &self.raw
    }

    /// See [`RawBuf::moved_to`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn moved(self, domain: u64) -> Self {
        Self::from_raw(self.raw.moved_to(domain))
    }

    pub(crate) fn raw_mut(&mut self) -> &mut RawBuf<D> {
        &mut self.raw
    }

    /// Sets the length, at most to the capacity.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn clamp_len(&mut self, len: u32) {
        self.raw.clamp_len(len);
    }

    /// Bytes that a post sends, writes or reads.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len() as usize
    }

    /// Whether they are none.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.len() == 0
    }

    /// The greatest length.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.raw.capacity() as usize
    }

    /// Sets the length. The bytes behind the old length are those that earlier users of the buffer left there.
    ///
    /// # Errors
    /// A length above the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        match u32::try_from(len) {
            Ok(len) if len <= self.raw.capacity() => {
                self.raw.clamp_len(len);
                Ok(())
            }
            _ => Err(too_long(len, self.raw.capacity())),
        }
    }

    /// Makes it the source of several posts: the shared buffer can be cloned, and is read-only. Its bytes are those of the
    /// buffer's length.
    #[must_use]
    pub fn share(self) -> SharedBuf<A, D> {
        SharedBuf::new(self.raw)
    }

    /// Makes these bytes of the capacity those that a post sends, writes or reads, or into which it receives. The completion gives
    /// the whole buffer back.
    ///
    /// # Errors
    /// [`PostError::InvalidLength`], with the buffer, for a range outside the capacity.
    pub fn part(self, range: Range<usize>) -> Result<BufPart<A, D>, Rejected<Self>> {
        BufPart::new(self, range)
    }
}

impl<D: Driver> Buf<Private, D> {
    /// The buffer with a copy of `data`, for a post. If `data` has more bytes than the capacity, the post refuses it.
    pub fn filled(mut self, data: &[u8]) -> Filled<D> {
        let fits = self.fill(data).is_ok();
        Filled::new(self, fits)
    }

    /// Copies `data` to the front and sets the length to that of `data`.
    ///
    /// # Errors
    /// More bytes than the capacity.
    pub fn fill(&mut self, data: &[u8]) -> Result<()> {
        self.set_len(data.len())?;
        self.copy_from_slice(data);
        Ok(())
    }
}

impl<D: Driver> Deref for Buf<Private, D> {
    type Target = [u8];
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn deref(&self) -> &[u8] {
        let at = core::ptr::with_exposed_provenance(self.raw.addr() as usize);
        // SAFETY: `addr` is the address that the registration exposed, plus the buffer's offset; `len` is at most the stride, so
        // these bytes are inside the pool's mapping, which the buffer keeps. They are initialised (zeroed at first). Peers have
        // no access to a private pool. The device accesses the bytes only for a posted work request, which owns the buffer; so
        // nothing writes them while this value is borrowed.
        unsafe { core::slice::from_raw_parts(at, self.raw.len() as usize) }
    }
}

impl<D: Driver> DerefMut for Buf<Private, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = core::ptr::with_exposed_provenance_mut(self.raw.addr() as usize);
        // SAFETY: as in `deref`; the place of the buffer has one owner, which is borrowed exclusively, so no other reference
        // to these bytes exists.
        unsafe { core::slice::from_raw_parts_mut(at, self.raw.len() as usize) }
    }
}

impl<D: Driver> RawBuf<D> {
    /// The range of the buffer in the memory that peers may access.
    fn exposed_at(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<(&MemoryRegion<HomeMemory, Exposed, D>, usize)> {
        let end = offset.saturating_add(len);
        if end > self.capacity() as usize {
            return Err(too_long(end, self.capacity()));
        }
        match &self.home().region {
            Region::Exposed(region) => Ok((region, self.offset() as usize + offset)),
            _ => Err(Error::unsupported("buf", "this memory is not mapped here")),
        }
    }

    /// Of an exposed buffer; so are the two below.
    pub(crate) fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let (region, at) = self.exposed_at(offset, out.len())?;
        region.read_at(at, out)
    }

    pub(crate) fn write_at(&self, offset: usize, data: &[u8]) -> Result<()> {
        let (region, at) = self.exposed_at(offset, data.len())?;
        region.write_at(at, data)
    }

    pub(crate) fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        let (region, at) = self.exposed_at(offset, 8)?;
        region.atomic_u64(at)
    }

    /// That which the buffer is at.
    fn home(&self) -> &Home<D> {
        let pool = self.pool();
        // The buffer's place was made for one of them.
        &pool.homes[pool.home(self.domain()).unwrap_or_default()]
    }

    /// A description for peers, with the key of the pool.
    pub(crate) fn remote_region(&self) -> RemoteRegion {
        describe(self.addr(), self, self.home().region.keys().2)
    }

    /// As [`remote_region`](Self::remote_region), with the key in this domain.
    pub(crate) fn remote_region_in(&self, pd: &ProtectionDomain<D>) -> Result<RemoteRegion> {
        let pool = self.pool();
        let home = pool.home(domain_of(pd.inner())).and_then(|home| pool.homes.get(home));
        let home = home.ok_or_else(|| Error::invalid("buf", "pd", "the pool is not in this domain"))?;
        Ok(describe(self.addr(), self, home.region.keys().2))
    }
}

#[cold]
pub(super) fn too_long(len: usize, capacity: u32) -> Error {
    Error::invalid("buf", "len", format!("{len} bytes, where the capacity is {capacity}"))
}

impl<D: Driver> Buf<Exposed, D> {
    /// Copies bytes out, from `offset` on. Data that a peer writes at the same time may be copied in part.
    ///
    /// # Errors
    /// A range outside the capacity.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.raw.read_at(offset, out)
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// A range outside the capacity.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.raw.write_at(offset, data)
    }

    /// The aligned word of 8 bytes at `offset`, the size of remote atomics.
    ///
    /// A peer's read or write of the whole word is one access on all devices of this crate's drivers. A peer's *atomic* is atomic
    /// with respect to this process only if the device says so: `atomic_cap` of
    /// [`query_device`](crate::Context::query_device) is `GLOB`. With `HCA`, it is atomic with respect to the atomics of
    /// that device only: this process may then load the word, but a store or a compare-and-swap of its own can be lost. (To change
    /// such a word, post an atomic of a QP that is connected to itself.)
    ///
    /// # Errors
    /// A word outside the capacity, or not aligned.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        self.raw.atomic_u64(offset)
    }

    /// A description of the whole buffer for peers, with the key of the pool (in the domain of the buffer's last post). The key stays valid when the buffer is given back;
    /// to end the access of a peer, give it a [`Window`](crate::Window) instead.
    #[must_use]
    pub fn remote_region(&self) -> RemoteRegion {
        self.raw.remote_region()
    }

    /// As [`remote_region`](Self::remote_region), for peers whose QPs are connected to those of this domain: each domain of a
    /// [pool](crate::PoolBuilder::also_in) has a key of its own.
    ///
    /// # Errors
    /// A domain in which the pool is not registered.
    pub fn remote_region_in(&self, pd: &ProtectionDomain<D>) -> Result<RemoteRegion> {
        self.raw.remote_region_in(pd)
    }
}

impl<D: Driver> Buf<Unmapped, D> {
    /// A description of the whole buffer for peers, with the key of the pool.
    #[must_use]
    pub fn remote_region(&self) -> RemoteRegion {
        self.raw.remote_region()
    }
}

/// The capacity of a buffer as a peer names it: from `addr` on.
pub(crate) fn describe<D: Driver>(addr: u64, raw: &RawBuf<D>, rkey: u32) -> RemoteRegion {
    RemoteRegion::new(addr, raw.capacity().into(), rkey)
        .or_else(|_| RemoteRegion::new(0, 0, rkey))
        .expect("a range of 0 bytes ends nowhere")
}
