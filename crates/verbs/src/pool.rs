// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools of registered memory, and the buffers that they lend.
//!
//! `owned`: buffers with one owner. `share`: buffers that several owners read. `part`: a part of a buffer in a work request. `acquire`:
//! waiting for a buffer.
//!
//! A pool is one region that is divided into buffers of one size. A [`Buf`] is a buffer that its owner has for itself: it
//! can be written and read, posted, and sent to other threads. When it is dropped it goes back to its pool. The region stays
//! registered until the pool and all its buffers are dropped.
//!
//! A pool can have several domains, also of several devices, with a registration of the same memory in each: its *homes*. A buffer is
//! at one of them, whose key its entry has. A post to a queue of another one moves it there, outside the usual path.
//!
//! The type says who may access the memory, see [`Access`].
#![expect(unsafe_code)]
// UNSAFETY: counts the references to a pool, and promises that it can be shared by threads.

mod acquire;
mod owned;
mod part;
mod share;

pub use acquire::Acquire;
pub use owned::Buf;
pub(crate) use owned::{RawBuf, describe};
pub use part::BufPart;
pub(crate) use part::RawPart;
pub(crate) use share::RawShare;
pub use share::SharedBuf;

use crate::access::{Access, Unmapped};
use crate::brief::brief;
use crate::buf::NoBuf;
use crate::count::PoolCounts;
use crate::memory::{HomeMemory, PageSize, Placement, PoolMemory};
use crate::mr::{Exposed, MemoryRegion, Private};
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::rejected::Rejected;
use acquire::Waiters;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uverbs_core::attr::AccessFlags;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PostError, WireSge};
use uverbs_core::sync::IndexStack;
use uverbs_core::sync::in_flight::TAG_BITS;

/// The registered memory, in one domain.
#[derive(Debug)]
enum Region<D: Driver> {
    Private(MemoryRegion<HomeMemory, Private, D>),
    Exposed(MemoryRegion<HomeMemory, Exposed, D>),
    Unmapped(MemoryRegion<NoBuf, Exposed, D>),
}

impl<D: Driver> Region<D> {
    /// The address of the first byte, and the keys.
    fn keys(&self) -> (u64, u32, u32) {
        match self {
            Self::Private(mr) => (mr.addr(), mr.lkey(), mr.rkey()),
            Self::Exposed(mr) => (mr.addr(), mr.lkey(), mr.rkey()),
            Self::Unmapped(mr) => (mr.addr(), mr.lkey(), mr.rkey()),
        }
    }
}

/// A domain of a pool.
struct Home<D: Driver> {
    /// See [`domain_of`].
    domain: u64,
    region: Region<D>,
}

/// The pool that its buffers hold.
struct PoolInner<D: Driver> {
    /// `count` for each home.
    slots: Box<[Slot<D>]>,
    count: u32,
    /// Bytes of a buffer.
    size: u32,
    free: IndexStack,
    waiters: Waiters,
    counts: PoolCounts,
    /// The owners of each buffer that is shared, see [`RawShare`]. Not in the slots, which are full.
    owners: Box<[AtomicU64]>,
    /// At least one, with the memory at the same address.
    homes: Box<[Home<D>]>,
}

/// A buffer's place at one of the homes. All that a post needs is in one cache line.
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
    /// The entry of these bytes, which is made when the length is set, so that posts need not make it. While a [`BufPart`] has the
    /// buffer, that of the part.
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

brief!(
    [D: Driver, A: Access] Pool<A, D>,
    |this| "Pool of {} buffers of {} bytes, {} available",
    this.inner.count,
    this.inner.size,
    this.available()
);

impl<D: Driver, A: Access> Pool<A, D> {
    /// A buffer, whose length is its whole capacity.
    ///
    /// It has the bytes that its last user left in it.
    ///
    /// # Errors
    /// [`PoolEmpty`] if all are lent, or if others [wait](Self::acquire) for one.
    #[inline]
    pub fn get(&self) -> Result<Buf<A, D>, PoolEmpty> {
        self.try_get().ok_or(PoolEmpty { count: self.inner.count, size: self.inner.size })
    }

    /// As [`get`](Self::get), for a program that does something else while all buffers are lent.
    #[inline]
    #[must_use]
    pub fn try_get(&self) -> Option<Buf<A, D>> {
        let Some(index) = self.inner.free.pop() else {
            self.inner.counts.empty();
            return None;
        };
        self.buf_at(index)
    }

    /// The buffer with this number, which was taken.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn buf_at(&self, index: u32) -> Option<Buf<A, D>> {
        let slot = self.inner.slots.get(index as usize)?;
        // SAFETY: the pointer is that of the `Arc` that `self.inner` is.
        unsafe { Arc::increment_strong_count(slot.pool) };
        let mut raw = RawBuf(NonNull::from(slot));
        raw.clamp_len(slot.size);
        Some(Buf::from_raw(raw))
    }

    /// The buffers that are not lent. Other threads may change the number at any time.
    #[must_use]
    pub fn available(&self) -> usize {
        self.inner.free.len()
    }

    #[cfg(feature = "counters")]
    pub(crate) fn counts(&self) -> &PoolCounts {
        &self.inner.counts
    }

    /// The number of buffers.
    #[cfg(feature = "counters")]
    pub(crate) fn buffers(&self) -> u32 {
        self.inner.count
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn buf_size(&self) -> usize {
        self.inner.size as usize
    }

    /// Whether it is a pool of this domain. Queues of other domains refuse its buffers.
    #[must_use]
    pub fn is_of(&self, pd: &ProtectionDomain<D>) -> bool {
        self.inner.home(domain_of(pd.inner())).is_some()
    }
}

impl<D: Driver> PoolInner<D> {
    /// Which home is in this domain.
    fn home(&self, domain: u64) -> Option<usize> {
        self.homes.iter().position(|home| home.domain == domain)
    }
}

/// All buffers of a pool are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolEmpty {
    count: u32,
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
    /// At least one.
    pds: Vec<&'a ProtectionDomain<D>>,
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
        PoolBuilder { pds: vec![self], count, size, access, place, _access: PhantomData }
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
        Pool::new(&layout, vec![Home { domain: domain_of(self.inner()), region: Region::Unmapped(mr) }])
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

    /// Registers the memory in this domain, too, which can be one of another device. The buffers can be posted to queues of all its
    /// domains: a post chooses the key. A post to a queue of another domain than that of the last post costs some tens of instructions
    /// more.
    ///
    /// ```
    /// # use uverbs::{Context, mlx5::Mlx5};
    /// # use uverbs_hca::Hca;
    /// # fn main() -> uverbs::Result<()> {
    /// # let nics = [(); 2].map(|()| Context::<Mlx5>::from_kernel(Hca::new().open()).unwrap());
    /// let [first, second] = [nics[0].alloc_pd()?, nics[1].alloc_pd()?];
    /// let pool = first.pool_with(64, 4096).also_in(&second).build()?;
    /// assert!(pool.is_of(&first) && pool.is_of(&second));
    /// # Ok(())
    /// # }
    /// ```
    pub fn also_in(mut self, pd: &'a ProtectionDomain<D>) -> Self {
        if !self.pds.iter().any(|other| Arc::ptr_eq(other.inner(), pd.inner())) {
            self.pds.push(pd);
        }
        self
    }

    /// Lets peers access the buffers with the rights `access` (`LOCAL_WRITE` is added). This process then accesses them by
    /// copies.
    pub fn exposed(self, access: AccessFlags) -> PoolBuilder<'a, Exposed, D> {
        let Self { pds, count, size, place, .. } = self;
        let access = access | AccessFlags::LOCAL_WRITE;
        PoolBuilder { pds, count, size, access, place, _access: PhantomData }
    }

    /// Allocates the memory, and registers it in each domain.
    fn homes(
        &self,
        register: impl Fn(&ProtectionDomain<D>, HomeMemory) -> Result<Region<D>>,
    ) -> Result<(Layout, Vec<Home<D>>)> {
        let layout = Layout::new(self.count, self.size, ALIGN)?;
        let memory = Arc::new(PoolMemory::new(layout.bytes, self.place)?);
        let home = |pd: &&ProtectionDomain<D>| {
            let region = register(pd, HomeMemory::new(&memory))?;
            Ok(Home { domain: domain_of(pd.inner()), region })
        };
        Ok((layout, self.pds.iter().map(home).collect::<Result<_>>()?))
    }
}

impl<D: Driver> PoolBuilder<'_, Private, D> {
    /// Allocates and registers the memory.
    ///
    /// # Errors
    /// An invalid size, too little memory of the requested kind, or the kernel's refusal to register it (`ENOMEM` above the
    /// locked-memory limit).
    pub fn build(self) -> Result<Pool<Private, D>> {
        let (layout, homes) =
            self.homes(|pd, memory| Ok(Region::Private(pd.reg_private(memory, self.access)?)))?;
        Pool::new(&layout, homes)
    }
}

impl<D: Driver> PoolBuilder<'_, Exposed, D> {
    /// Allocates and registers the memory.
    ///
    /// # Errors
    /// As of a [private](ProtectionDomain::pool) pool, and access flags that the device does not have, or `ZERO_BASED`.
    pub fn build(self) -> Result<Pool<Exposed, D>> {
        check_access(self.access)?;
        let (layout, homes) =
            self.homes(|pd, memory| Ok(Region::Exposed(pd.reg_mr(memory, self.access)?)))?;
        Pool::new(&layout, homes)
    }
}

impl<D: Driver, A: Access> Pool<A, D> {
    fn new(layout: &Layout, homes: Vec<Home<D>>) -> Result<Self> {
        let Layout { count, size, stride, .. } = *layout;
        let slot = |home: &Home<D>, index: u32, pool| {
            let (addr, lkey, _) = home.region.keys();
            // The sum fits: `Layout::new` and the registration, or `dmabuf_pool`, have checked the range of the region.
            let addr = addr.wrapping_add(u64::from(index) * u64::from(stride));
            let whole = D::Sge::new(addr, size, lkey)
                .map_err(|_| Error::invalid("pool", "size", "larger than an entry of a work request"))?;
            let used = UnsafeCell::new(Used { len: size, sge: whole });
            Ok(Slot { whole, used, domain: home.domain, pool, size, index })
        };
        // The slots need the address of the pool, so they are made when it is known.
        let mut slots = Ok(());
        let inner = Arc::new_cyclic(|pool| {
            let places = homes.iter().flat_map(|home| (0..count).map(move |index| (home, index)));
            let made: Result<Box<[_]>> =
                places.map(|(home, index)| slot(home, index, pool.as_ptr())).collect();
            let made = made.unwrap_or_else(|error| {
                slots = Err(error);
                Box::default()
            });
            PoolInner {
                slots: made,
                count,
                size,
                free: IndexStack::full(count),
                waiters: Waiters::default(),
                counts: PoolCounts::default(),
                owners: (0..count).map(|_| AtomicU64::new(0)).collect(),
                homes: homes.into(),
            }
        });
        slots.map(|()| Self { inner, _access: PhantomData })
    }
}

// SAFETY: the pointers of the slots are to the pool itself; the other fields are `Send` and `Sync` (the bound, and numbers).
unsafe impl<D: Driver> Send for PoolInner<D> where Region<D>: Send + Sync {}
// SAFETY: as above; what changes is atomic, or accessed by the owner of a buffer only.
unsafe impl<D: Driver> Sync for PoolInner<D> where Region<D>: Send + Sync {}

/// A buffer that was given bytes; see [`Buf::filled`].
#[derive(Debug)]
#[must_use = "the buffer goes back to its pool when this is dropped"]
pub struct Filled<D: Driver = AnyDriver> {
    buf: Buf<Private, D>,
    fits: bool,
}

impl<D: Driver> Filled<D> {
    const fn new(buf: Buf<Private, D>, fits: bool) -> Self {
        Self { buf, fits }
    }

    /// The buffer.
    ///
    /// # Errors
    /// The buffer is too small for the bytes; it is returned.
    pub fn into_buf(self) -> Result<Buf<Private, D>, Rejected<Buf<Private, D>>> {
        match self {
            Self { buf, fits: true } => Ok(buf),
            Self { buf, .. } => Err(Rejected { error: PostError::InvalidLength.into(), returned: Some(buf) }),
        }
    }
}
