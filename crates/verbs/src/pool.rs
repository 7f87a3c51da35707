// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools of registered memory, and the buffers that they lend.
//!
//! A pool is one region that is divided into buffers of one size. A [`Buf`] is a buffer that its owner has for itself: it
//! can be written and read, posted, and sent to other threads. When it is dropped it goes back to its pool. The region stays
//! registered until the pool and all its buffers are dropped.
//!
//! The type says who may access the memory, see [`Access`].
#![expect(unsafe_code)]
// UNSAFETY: lends the bytes of a buffer that has one owner; counts the references to a pool.

use crate::access::{Access, Unmapped};
use crate::buf::NoBuf;
use crate::held::{Held, contain};
use crate::memory::{PageSize, Placement, PoolMemory};
use crate::mr::{Exposed, MemoryRegion, Private};
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uverbs_core::attr::AccessFlags;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PostError, WireSge};
use uverbs_core::sync::IndexStack;
use uverbs_core::sync::in_flight::TAG_BITS;

/// The registered memory.
#[derive(Debug)]
enum Region<D: Driver> {
    Private { _mr: MemoryRegion<PoolMemory, Private, D> },
    Exposed(MemoryRegion<PoolMemory, Exposed, D>),
    Unmapped { _mr: MemoryRegion<NoBuf, Exposed, D> },
}

/// The pool that its buffers hold.
struct PoolInner<D: Driver> {
    slots: Box<[Slot<D>]>,
    /// Bytes of a buffer.
    size: u32,
    lkey: u32,
    rkey: u32,
    free: IndexStack,
    region: Region<D>,
}

/// A buffer's place. All that a post needs is in one cache line.
#[repr(align(64))]
struct Slot<D: Driver> {
    /// The entry of the whole buffer. Its address is that of the first byte for the device; of mapped memory also for this
    /// process.
    whole: D::Sge,
    used: UnsafeCell<Used<D>>,
    /// See [`domain_of`].
    domain: u64,
    pool: *const PoolInner<D>,
    /// Bytes of the buffer.
    size: u32,
    index: u32,
}

/// The part of a buffer that is used. Only the owner of the buffer accesses it.
struct Used<D: Driver> {
    /// At most the size of the buffer.
    len: u32,
    /// The entry of these bytes, which is made when the length is set, so that posts need not make it.
    sge: D::Sge,
}

/// The identity of a protection domain. Keys are numbers of one domain of one device, so a buffer is posted only to queues of
/// its own domain: with another device the same number could be the key of other memory.
///
/// It has the bits of a slab's tag: one compare checks that a slot is free and that the domains agree.
pub(super) fn domain_of<D: Driver>(pd: &Arc<PdInner<D>>) -> u64 {
    const { assert!(align_of::<PdInner<D>>() > TAG_BITS as usize) };
    Arc::as_ptr(pd).addr() as u64 | TAG_BITS
}

/// The domain of no queue.
pub(super) const NO_DOMAIN: u64 = TAG_BITS;

/// Distance of buffers: they share no cache line, which a device writes as a whole.
const ALIGN: u32 = 64;

/// A pool of registered buffers. Clones share it.
pub struct Pool<A: Access = Private, D: Driver = AnyDriver> {
    inner: Arc<PoolInner<D>>,
    _access: PhantomData<A>,
}

impl<D: Driver, A: Access> Clone for Pool<A, D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), _access: PhantomData }
    }
}

impl<D: Driver, A: Access> fmt::Debug for Pool<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("region", &self.inner.region)
            .field("size", &self.inner.size)
            .field("available", &self.available())
            .finish()
    }
}

impl<D: Driver, A: Access> Pool<A, D> {
    /// A buffer, whose length is its whole capacity.
    ///
    /// It has the bytes that its last user left in it.
    ///
    /// # Errors
    /// [`PoolEmpty`] if all are lent.
    #[inline]
    pub fn get(&self) -> Result<Buf<A, D>, PoolEmpty> {
        self.try_get().ok_or(PoolEmpty { count: self.inner.slots.len(), size: self.inner.size })
    }

    /// As [`get`](Self::get), for a program that does something else while all buffers are lent.
    #[inline]
    #[must_use]
    pub fn try_get(&self) -> Option<Buf<A, D>> {
        let index = self.inner.free.pop()?;
        let slot = self.inner.slots.get(index as usize)?;
        // SAFETY: the pointer is that of the `Arc` that `self.inner` is.
        unsafe { Arc::increment_strong_count(slot.pool) };
        let mut raw = RawBuf(NonNull::from(slot));
        raw.clamp_len(slot.size);
        Some(Buf { raw, _access: PhantomData })
    }

    /// The buffers that are not lent. Other threads may change the number at any time.
    #[must_use]
    pub fn available(&self) -> usize {
        self.inner.free.len()
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn buf_size(&self) -> usize {
        self.inner.size as usize
    }

    /// Whether it is a pool of this domain. Queues of other domains refuse its buffers.
    #[must_use]
    pub fn is_of(&self, pd: &ProtectionDomain<D>) -> bool {
        self.inner.slots.first().is_some_and(|slot| slot.domain == domain_of(pd.inner()))
    }
}

/// All buffers of a pool are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolEmpty {
    count: usize,
    size: u32,
}

impl fmt::Display for PoolEmpty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all {} buffers of {} bytes of the pool are lent", self.count, self.size)
    }
}

impl core::error::Error for PoolEmpty {}

impl From<PoolEmpty> for Error {
    fn from(empty: PoolEmpty) -> Self {
        Self::os("get", empty.to_string(), uverbs_core::Errno::ENOMEM)
    }
}

/// The parameters of a pool that is to be created.
#[derive(Debug)]
#[must_use]
pub struct PoolBuilder<'a, A, D: Driver> {
    pd: &'a ProtectionDomain<D>,
    count: u32,
    size: u32,
    access: AccessFlags,
    place: Placement,
    _access: PhantomData<A>,
}

impl<D: Driver> ProtectionDomain<D> {
    /// Creates a pool of `count` buffers with `size` bytes each, which no peer can access.
    ///
    /// # Errors
    /// As [`PoolBuilder::build`].
    pub fn pool(&self, count: u32, size: u32) -> Result<Pool<Private, D>> {
        self.pool_with(count, size).build()
    }

    /// Begins the creation of a pool with options: huge pages, a NUMA node, access for peers.
    pub fn pool_with(&self, count: u32, size: u32) -> PoolBuilder<'_, Private, D> {
        let (access, place) = (AccessFlags::LOCAL_WRITE, Placement::default());
        PoolBuilder { pd: self, count, size, access, place, _access: PhantomData }
    }

    /// A pool in a dma-buf: `count` buffers with `size` bytes each, from `offset` on. The device uses the memory without this
    /// process, which can't read it. `iova` is the address of the first byte for peers.
    ///
    /// # Errors
    /// An invalid argument, or the kernel's refusal: `EINVAL` for a file that is no dma-buf. (The software NIC also takes a memfd
    /// with the seal `F_SEAL_SHRINK`.) [`Error::Unsupported`] where the driver has no dma-buf.
    pub fn dmabuf_pool(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        iova: u64,
        (count, size): (u32, u32),
        access: AccessFlags,
    ) -> Result<Pool<Unmapped, D>> {
        let layout = Layout::new(count, size, 1)?;
        check_access(access)?;
        if iova.checked_add(layout.bytes as u64).is_none() {
            let reason = format!("{} bytes from {iova:#x} on end after the last address", layout.bytes);
            return Err(Error::invalid("pool", "iova", reason));
        }
        let mr = self.reg_dmabuf_mr(fd, offset, layout.bytes as u64, iova, access)?;
        let (addr, keys) = (mr.addr(), (mr.lkey(), mr.rkey()));
        Pool::new(self, &layout, addr, keys, Region::Unmapped { _mr: mr })
    }
}

/// Work requests and peers name buffers by their addresses.
fn check_access(access: AccessFlags) -> Result<()> {
    if access.contains(AccessFlags::ZERO_BASED) {
        return Err(Error::invalid("pool", "access", "ZERO_BASED: a pool has addresses".to_owned()));
    }
    Ok(())
}

/// How a region is divided.
struct Layout {
    count: u32,
    size: u32,
    stride: u32,
    bytes: usize,
}

impl Layout {
    fn new(count: u32, size: u32, align: u32) -> Result<Self> {
        let wrong = |field, reason: &str| Err(Error::invalid("pool", field, reason.to_owned()));
        if count == 0 || count > 1 << 30 {
            return wrong("count", "a pool has 1 to 2^30 buffers");
        }
        if size == 0 || size > 1 << 30 {
            return wrong("size", "a buffer has 1 to 2^30 bytes");
        }
        let stride = size.next_multiple_of(align);
        let Some(bytes) = (stride as usize).checked_mul(count as usize) else {
            return wrong("size", "the pool would be larger than the address space");
        };
        Ok(Self { count, size, stride, bytes })
    }
}

impl<'a, D: Driver, A> PoolBuilder<'a, A, D> {
    /// Uses pages of this size. Fewer and larger pages need fewer entries in the device's translation table.
    pub fn pages(mut self, pages: PageSize) -> Self {
        self.place.pages = pages;
        self
    }

    /// Allocates the memory on this NUMA node only, for example on the device's (`numa_node` in its sysfs folder).
    pub fn numa_node(mut self, node: u32) -> Self {
        self.place.node = Some(node);
        self
    }

    /// Lets peers access the buffers with the rights `access` (`LOCAL_WRITE` is added). This process then accesses them by
    /// copies.
    pub fn exposed(self, access: AccessFlags) -> PoolBuilder<'a, Exposed, D> {
        let Self { pd, count, size, place, .. } = self;
        let access = access | AccessFlags::LOCAL_WRITE;
        PoolBuilder { pd, count, size, access, place, _access: PhantomData }
    }

    fn memory(&self) -> Result<(Layout, PoolMemory)> {
        let layout = Layout::new(self.count, self.size, ALIGN)?;
        let memory = PoolMemory::new(layout.bytes, self.place)?;
        Ok((layout, memory))
    }
}

impl<D: Driver> PoolBuilder<'_, Private, D> {
    /// Allocates and registers the memory.
    ///
    /// # Errors
    /// An invalid size, too little memory of the requested kind, or the kernel's refusal to register it (`ENOMEM` above the
    /// locked-memory limit).
    pub fn build(self) -> Result<Pool<Private, D>> {
        let (layout, memory) = self.memory()?;
        let mr = self.pd.reg_private(memory, self.access)?;
        let (addr, keys) = (mr.addr(), (mr.lkey(), mr.rkey()));
        Pool::new(self.pd, &layout, addr, keys, Region::Private { _mr: mr })
    }
}

impl<D: Driver> PoolBuilder<'_, Exposed, D> {
    /// Allocates and registers the memory.
    ///
    /// # Errors
    /// As of a [private](ProtectionDomain::pool) pool, and access flags that the device does not have, or `ZERO_BASED`.
    pub fn build(self) -> Result<Pool<Exposed, D>> {
        check_access(self.access)?;
        let (layout, memory) = self.memory()?;
        let mr = self.pd.reg_mr(memory, self.access)?;
        let (addr, keys) = (mr.addr(), (mr.lkey(), mr.rkey()));
        Pool::new(self.pd, &layout, addr, keys, Region::Exposed(mr))
    }
}

impl<D: Driver, A: Access> Pool<A, D> {
    fn new(
        pd: &ProtectionDomain<D>,
        layout: &Layout,
        addr: u64,
        (lkey, rkey): (u32, u32),
        region: Region<D>,
    ) -> Result<Self> {
        let Layout { count, size, stride, .. } = *layout;
        let domain = domain_of(pd.inner());
        let slot = |index: u32, pool| {
            // The sum fits: `Layout::new` and the registration, or `dmabuf_pool`, have checked the range of the region.
            let addr = addr.wrapping_add(u64::from(index) * u64::from(stride));
            let whole = D::Sge::new(addr, size, lkey)
                .map_err(|_| Error::invalid("pool", "size", "larger than an entry of a work request"))?;
            let used = UnsafeCell::new(Used { len: size, sge: whole });
            Ok(Slot { whole, used, domain, pool, size, index })
        };
        // The slots need the address of the pool, so they are made when it is known.
        let mut slots = Ok(());
        let inner = Arc::new_cyclic(|pool| {
            let made: Result<Box<[_]>> = (0..count).map(|index| slot(index, pool.as_ptr())).collect();
            let made = made.unwrap_or_else(|error| {
                slots = Err(error);
                Box::default()
            });
            PoolInner { slots: made, size, lkey, rkey, free: IndexStack::full(count), region }
        });
        slots.map(|()| Self { inner, _access: PhantomData })
    }
}

/// A buffer of any kind of access: a pointer to its place, which functions pass in a register. It is the only one of its
/// place.
///
/// # Invariants
/// The pointer is to a place of a living pool: the value has a strong count of the pool's [`Arc`].
pub(super) struct RawBuf<D: Driver>(NonNull<Slot<D>>);

// SAFETY: it is an `Arc` of a pool, and the right to use a part of its region.
unsafe impl<D: Driver> Send for RawBuf<D> {}
// SAFETY: as above. `&self` only reads, and `&mut self` excludes it.
unsafe impl<D: Driver> Sync for RawBuf<D> {}
// SAFETY: the pointers of the slots are to the pool itself; the other fields are `Send` and `Sync` (the bound, and numbers).
unsafe impl<D: Driver> Send for PoolInner<D> where Region<D>: Send + Sync {}
// SAFETY: as above; what changes is atomic, or accessed by the owner of a buffer only.
unsafe impl<D: Driver> Sync for PoolInner<D> where Region<D>: Send + Sync {}
impl<D: Driver> Drop for RawBuf<D> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this value has the place and a count of the pool, and ends here.
        unsafe { give_back(self.0) }
    }
}

/// Gives a buffer back to its pool. Not inlined, so that the drop of a buffer is a call with its pointer, not its address. With
/// the ABI of C, no panic can leave it, so code that drops a buffer need not be prepared for one.
///
/// # Safety
/// The caller has the place, and a count of the `Arc`, which is this function's from now on.
#[inline(never)]
unsafe extern "C" fn give_back<D: Driver>(slot: NonNull<Slot<D>>) {
    // SAFETY: the pool, which has the slots, lives: the caller has a count of it.
    let slot = unsafe { slot.as_ref() };
    let index = slot.index;
    // SAFETY: the pointer is that of the `Arc`, and the caller's count is dropped here.
    let pool = unsafe { Arc::from_raw(slot.pool) };
    pool.free.push(index);
    if let Some(pool) = Arc::into_inner(pool) {
        destroy(pool);
    }
}

/// Deregisters the memory of a pool after its last use.
#[cold]
#[inline(never)]
fn destroy<D: Driver>(pool: PoolInner<D>) {
    contain(|| drop(pool));
}

impl<D: Driver> RawBuf<D> {
    #[inline(always)]
    pub(super) fn into_pointer(self) -> NonNull<()> {
        ManuallyDrop::new(self).0.cast()
    }

    /// # Safety
    /// The pointer is that of [`into_pointer`](Self::into_pointer), and not used again.
    #[inline(always)]
    pub(super) unsafe fn from_pointer(at: *mut ()) -> Self {
        // SAFETY: the pointer is that of a buffer (the contract of this function), so it is not null.
        Self(unsafe { NonNull::new_unchecked(at.cast()) })
    }

    #[inline(always)]
    fn slot(&self) -> &Slot<D> {
        // SAFETY: this value has a count of the pool, which has the slots; nothing makes a `&mut` of them.
        unsafe { self.0.as_ref() }
    }

    fn pool(&self) -> &PoolInner<D> {
        // SAFETY: this value has a count of the pool, of which nothing makes a `&mut`.
        unsafe { &*self.slot().pool }
    }

    /// The identity of its protection domain.
    #[inline(always)]
    pub(super) fn domain(&self) -> u64 {
        self.slot().domain
    }

    /// The entry of the whole buffer.
    #[inline(always)]
    pub(super) fn whole(&self) -> D::Sge {
        self.slot().whole
    }

    #[inline(always)]
    fn used(&self) -> &Used<D> {
        // SAFETY: this value is the only one of its place, and nobody has `&mut self`.
        unsafe { &*self.slot().used.get() }
    }

    /// The entry of the bytes that are used.
    #[inline(always)]
    pub(super) fn sge(&self) -> D::Sge {
        self.used().sge
    }

    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        self.used().len
    }

    /// At least 1.
    #[inline(always)]
    pub(super) fn capacity(&self) -> u32 {
        self.slot().size
    }

    /// Sets the length, at most to the capacity.
    #[inline(always)]
    pub(super) fn clamp_len(&mut self, len: u32) {
        let len = len.min(self.capacity());
        // SAFETY: this value is the only one of its place, and `&mut self` excludes other accesses.
        let used = unsafe { &mut *self.slot().used.get() };
        used.len = len;
        // In its place: where the length is a word of the entry, only this word is written.
        used.sge = used.sge.with_length(len);
    }

    pub(super) fn lkey(&self) -> u32 {
        self.pool().lkey
    }

    #[inline(always)]
    pub(super) fn addr(&self) -> u64 {
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
    #[inline(always)]
    pub(super) fn into_raw(self) -> RawBuf<D> {
        self.raw
    }

    /// As what a work request holds.
    #[inline(always)]
    pub(super) fn into_held(self) -> Held<D> {
        Held::buf(A::KIND, self.raw)
    }

    /// A buffer that was posted.
    #[inline(always)]
    pub(super) fn from_raw(raw: RawBuf<D>) -> Self {
        Self { raw, _access: PhantomData }
    }

    #[inline(always)]
    pub(super) fn raw(&self) -> &RawBuf<D> {
        &self.raw
    }

    /// Sets the length, at most to the capacity.
    #[inline(always)]
    pub(super) fn clamp_len(&mut self, len: u32) {
        self.raw.clamp_len(len);
    }

    /// Bytes that a post sends, writes or reads.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len() as usize
    }

    /// Whether they are none.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.len() == 0
    }

    /// The greatest length.
    #[inline(always)]
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
            _ => Err(self.too_long(len)),
        }
    }

    #[cold]
    fn too_long(&self, len: usize) -> Error {
        Error::invalid("buf", "len", format!("{len} bytes, where the capacity is {}", self.capacity()))
    }
}

impl<D: Driver> Buf<Private, D> {
    /// The buffer with a copy of `data`, for a post. If `data` has more bytes than the capacity, the post refuses it.
    pub fn filled(mut self, data: &[u8]) -> Filled<D> {
        let fits = self.fill(data).is_ok();
        Filled { buf: self, fits }
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
    #[inline(always)]
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
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = core::ptr::with_exposed_provenance_mut(self.raw.addr() as usize);
        // SAFETY: as in `deref`; the place of the buffer has one owner, which is borrowed exclusively, so no other reference
        // to these bytes exists.
        unsafe { core::slice::from_raw_parts_mut(at, self.raw.len() as usize) }
    }
}

impl<D: Driver> Buf<Exposed, D> {
    /// Copies bytes out, from `offset` on. Data that a peer writes at the same time may be copied in part.
    ///
    /// # Errors
    /// A range outside the capacity.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let (region, at) = self.at(offset, out.len())?;
        region.read_at(at, out)
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// A range outside the capacity.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<()> {
        let (region, at) = self.at(offset, data.len())?;
        region.write_at(at, data)
    }

    /// A description of the whole buffer for peers, with the key of the pool. The key stays valid when the buffer is given back;
    /// to end the access of a peer, give it a [`Window`](super::Window) instead.
    #[must_use]
    pub fn remote_region(&self) -> RemoteRegion {
        describe(self.raw.addr(), &self.raw, self.raw.pool().rkey)
    }

    fn at(&self, offset: usize, len: usize) -> Result<(&MemoryRegion<PoolMemory, Exposed, D>, usize)> {
        if offset.checked_add(len).is_none_or(|end| end > self.capacity()) {
            return Err(self.too_long(offset.saturating_add(len)));
        }
        match &self.raw.pool().region {
            Region::Exposed(region) => Ok((region, self.raw.offset() as usize + offset)),
            _ => Err(Error::unsupported("buf", "this memory is not mapped here")),
        }
    }
}

impl<D: Driver> Buf<Unmapped, D> {
    /// A description of the whole buffer for peers, with the key of the pool.
    #[must_use]
    pub fn remote_region(&self) -> RemoteRegion {
        describe(self.raw.addr(), &self.raw, self.raw.pool().rkey)
    }
}

/// The capacity of a buffer as a peer names it: from `addr` on.
pub(super) fn describe<D: Driver>(addr: u64, raw: &RawBuf<D>, rkey: u32) -> RemoteRegion {
    RemoteRegion::new(addr, raw.capacity().into(), rkey)
        .or_else(|_| RemoteRegion::new(0, 0, rkey))
        .expect("a range of 0 bytes ends nowhere")
}

/// A buffer that was given bytes; see [`Buf::filled`].
#[derive(Debug)]
#[must_use = "the buffer goes back to its pool when this is dropped"]
pub struct Filled<D: Driver = AnyDriver> {
    buf: Buf<Private, D>,
    fits: bool,
}

impl<D: Driver> Filled<D> {
    /// The buffer.
    ///
    /// # Errors
    /// The buffer is too small for the bytes; it is returned.
    pub fn into_buf(self) -> Result<Buf<Private, D>, Rejected<Buf<Private, D>>> {
        match self {
            Self { buf, fits: true } => Ok(buf),
            Self { buf, .. } => Err(Rejected { error: PostError::InvalidLength, returned: Some(buf) }),
        }
    }
}
