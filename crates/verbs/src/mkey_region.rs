// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys with the memory of several buffers: one region for work requests of this process, or for a peer.
//!
//! A work request gives the key its memory, and its completion gives the region back, open. Then the region is the memory of posts,
//! as a buffer is, or a peer gets its [`remote_region`](MkeyRegion::remote_region). Its addresses begin at 0. A drop ends the key before
//! the buffers go back to their pools; a work request ends it, too: [`Wr::mkey_invalidate`](crate::Wr::mkey_invalidate).
//!
//! A tensor in three buffers, which a peer reads as one region:
//! ```
//! use uverbs::attr::AccessFlags;
//! use uverbs::mlx5::{Devx, Mlx5, Options};
//! use uverbs::{Buf, ConnectAttr, Context, Exposed, MkeyRegion, Rc};
//! # use uverbs_hca::Hca;
//!
//! # fn main() -> uverbs::Result<()> {
//! let mut options = Options::from_env()?;
//! options.devx = Devx::Required; // indirect keys are created by commands for the firmware
//! # let kernel = Hca::new().open();
//! // On a machine with a NIC: `Context::open_with(&device, ..)`.
//! let context = Context::from_kernel_with(kernel, |kernel| Mlx5::open_with(kernel, &options))?;
//! let (pd, mut cq) = (context.alloc_pd()?, context.cq(16)?);
//! let mut qp = pd.qp::<Rc>().cq(&cq).depth(8, 8).mkeys(4).create()?;
//! # let attr = ConnectAttr::new().access(AccessFlags::REMOTE_READ);
//! # qp.init(&attr)?;
//! # let end = qp.control().endpoint(1, &attr)?;
//! # qp.connect(&end, &end, &attr)?;
//! let pieces = pd.pool_with(3, 1000).exposed(AccessFlags::REMOTE_READ).build()?;
//! let tensor: Vec<_> = (0..3).map(|_| pieces.get()).collect::<Result<_, _>>()?;
//! for (n, piece) in tensor.iter().enumerate() {
//!     piece.write_at(0, &[n as u8; 1000])?;
//! }
//! let region = MkeyRegion::new(pd.create_mkey(4)?, tensor)?;
//! qp.sq().post(1).signaled().mkey_expose(region, AccessFlags::REMOTE_READ)?;
//! let region: MkeyRegion<Buf<Exposed, Mlx5>, Mlx5> = cq.wait()?.take().expect("what was posted");
//! let whole = region.remote_region().expect("it is open");
//! assert_eq!(whole.len(), 3000);
//! // The peer (here: the same QP) reads the end of the first piece and the begin of the second.
//! let mut into = pd.pool(1, 4)?.get()?;
//! into.set_len(4)?;
//! qp.sq().post(2).signaled().read(into, &whole.slice(998..1002)?)?;
//! assert_eq!(cq.wait()?.buf().expect("a buffer")[..], [0, 0, 1, 1]);
//! // The device refuses the key before the pieces go back to their pool.
//! drop(region);
//! assert_eq!(pieces.available(), 3);
//! # Ok(())
//! # }
//! ```
//! A region of private buffers is not for peers:
//! ```compile_fail,E0277
//! use uverbs::{Buf, Driver, Exclusive, MkeyRegion, Private, Qp, Rc, attr::AccessFlags};
//! fn open<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, region: MkeyRegion<Buf<Private, D>, D>) {
//!     let _ = qp.sq().post(1).mkey_expose(region, AccessFlags::REMOTE_READ);
//! }
//! ```
//! One of shared buffers is no target:
//! ```compile_fail,E0277
//! use uverbs::{Driver, Exclusive, MkeyRegion, Private, Qp, Rc, RemoteRegion, SharedBuf};
//! fn read<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, region: MkeyRegion<SharedBuf<Private, D>, D>, from: &RemoteRegion) {
//!     let _ = qp.sq().post(1).read(region, from);
//! }
//! ```
//! Its buffers can't be taken out or exchanged while it has them:
//! ```compile_fail,E0596
//! use uverbs::{Buf, Driver, MkeyRegion, Private};
//! fn exchange<D: Driver>(region: &mut MkeyRegion<Buf<Private, D>, D>, other: &mut Buf<Private, D>) {
//!     core::mem::swap(&mut region.bufs()[0], other);
//! }
//! ```
//! While a work request has it, nobody has:
//! ```compile_fail,E0382
//! use uverbs::{Buf, Driver, Exclusive, MkeyRegion, Private, Qp, Rc, RemoteRegion};
//! fn early<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, region: MkeyRegion<Buf<Private, D>, D>, from: &RemoteRegion) -> u8 {
//!     let _ = qp.sq().post(1).read(region, from);
//!     region.bufs()[0][0]
//! }
//! ```
//! Other transports than RC do not change keys:
//! ```compile_fail,E0277
//! use uverbs::{Driver, ProtectionDomain, Ud};
//! fn make<D: Driver>(pd: &ProtectionDomain<D>) {
//!     let _ = pd.qp::<Ud>().mkeys(4);
//! }
//! ```
//! Signatures of blocks are those of the driver ([`SignatureBlock`](crate::mlx5::dv::SignatureBlock)), whose posts are `unsafe`.
#![expect(unsafe_code)]
// UNSAFETY: takes a region out of the word that a work request holds, and its parts out of the region.

use crate::access::{Access, Unmapped};
use crate::held::{Held, Value};
use crate::list::{Memory, Source, sealed as list};
use crate::mkey::{Mkey, Object};
use crate::mr::{Exposed, Private};
use crate::open::AnyDriver;
use crate::pool::{Buf, NO_DOMAIN, SharedBuf, domain_of};
use crate::rejected::{Lend, sealed};
use crate::remote::RemoteRegion;
use crate::window::may_be_executed;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Range;
use std::sync::Arc;
use uverbs_core::attr::AccessFlags;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{Driver, MkeyLayout, MkeyPart, WireSge};
use uverbs_core::wc::WcStatus;
use uverbs_core::wr::Sge;

/// A buffer of a region: a [`Buf`], or a [`SharedBuf`], which makes a region that is only read.
pub trait Piece<D: Driver>: Source<D> + Send + Sync + 'static {
    /// The rights of this process.
    #[doc(hidden)]
    const LOCAL: AccessFlags;
}

/// A buffer of a region that peers may access.
pub trait PeerPiece<D: Driver>: Piece<D> {
    /// The rights that a peer can have: those of a [`SharedBuf`] are to read.
    const PEER: AccessFlags;
}

impl<D: Driver, A: Access> Piece<D> for Buf<A, D> {
    const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;
}
impl<D: Driver, A: Access> Piece<D> for SharedBuf<A, D> {
    const LOCAL: AccessFlags = AccessFlags::empty();
}

macro_rules! peer_pieces {
    ($($access:ident),*) => {$(
        impl<D: Driver> PeerPiece<D> for Buf<$access, D> {
            const PEER: AccessFlags =
                AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);
        }
        impl<D: Driver> PeerPiece<D> for SharedBuf<$access, D> {
            const PEER: AccessFlags = AccessFlags::REMOTE_READ;
        }
    )*};
}
peer_pieces!(Exposed, Unmapped);

/// A part of a [list](MkeyRegion::list).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Which of the buffers.
    pub buf: usize,
    /// Which of its bytes. They are inside its length.
    pub range: Range<usize>,
}

impl Segment {
    /// These bytes of a buffer, which is given by its number in the list of buffers.
    #[must_use]
    pub const fn new(buf: usize, range: Range<usize>) -> Self {
        Self { buf, range }
    }
}

/// A part of an [interleaved](MkeyRegion::interleaved) layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strided {
    /// Which of the buffers.
    pub buf: usize,
    /// Where its first repetition begins in it.
    pub offset: usize,
    /// Bytes of a repetition. With the skipped ones, at most 65,535.
    pub bytes: u16,
    /// Bytes between a repetition and the next one.
    pub skip: u16,
}

impl Strided {
    /// `bytes` from `offset` on, in the buffer with this number in the list of buffers, and again after `skip` bytes.
    #[must_use]
    pub const fn new(buf: usize, offset: usize, bytes: u16, skip: u16) -> Self {
        Self { buf, offset, bytes, skip }
    }
}

/// The memory of a key.
#[derive(Debug)]
pub(super) enum Layout {
    List(Vec<Sge>),
    Interleaved(u32, Vec<MkeyPart>),
}

impl Layout {
    pub(super) fn borrow(&self) -> MkeyLayout<'_> {
        match self {
            Self::List(parts) => MkeyLayout::List(parts),
            Self::Interleaved(repeat, parts) => MkeyLayout::Interleaved { repeat: *repeat, parts },
        }
    }
}

/// The key and the rights of an open region.
#[derive(Clone, Copy, Debug)]
struct Open {
    key: u32,
    access: AccessFlags,
}

/// The work request about the key that was posted last, until its completion.
#[derive(Clone, Copy, Debug, Default)]
enum Posted {
    #[default]
    Nothing,
    Configure(Open),
    Invalidate,
}

/// The parts of a region. A drop ends the key before it gives the buffers back, as [`MkeyRegion::close`].
///
/// Aligned so that the low bits of its address are free for the kind, see [`Held`].
#[repr(align(16))]
pub(super) struct MkeyParts<D: Driver>(ManuallyDrop<Parts<D>>);

struct Parts<D: Driver> {
    key: Mkey<D>,
    /// A `Vec` of the buffers, which is not changed while the region has it.
    bufs: Box<dyn Any + Send + Sync>,
    /// A post has a clone while it writes the work request.
    layout: Arc<Layout>,
    /// Bytes of the layout.
    len: u64,
    /// Those that a post sends, writes or reads, as an entry: its key is that of the region while it is open.
    used: D::Sge,
    open: Option<Open>,
    posted: Posted,
    /// Whether a configuration has ended with an error after which the device may have executed it.
    is_unsure: bool,
}

impl<D: Driver> MkeyParts<D> {
    fn into_parts(self) -> Parts<D> {
        // SAFETY: the value is not used again, and its drop does not run.
        unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) }
    }
}

impl<D: Driver> Drop for MkeyParts<D> {
    fn drop(&mut self) {
        // SAFETY: the value is not used again.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Err(error) = parts.close() {
            log::error!("{error}; the buffers of an indirect key are lost");
        }
    }
}

impl<D: Driver> Parts<D> {
    /// Ends the key and returns the buffers. If the kernel refuses, they are leaked, because the device may still access them.
    fn close(self) -> Result<Box<dyn Any + Send + Sync>> {
        let Self { key, bufs, .. } = self;
        match key.close() {
            Ok(()) => Ok(bufs),
            Err(error) => {
                core::mem::forget(bufs);
                Err(error)
            }
        }
    }
}

/// A region that an indirect key makes of several buffers.
///
/// A drop is a [`close`](Self::close) that gives the buffers back to their pools; a failure is logged.
pub struct MkeyRegion<B, D: Driver = AnyDriver> {
    parts: Box<MkeyParts<D>>,
    _bufs: PhantomData<fn() -> B>,
}

impl<B, D: Driver> fmt::Debug for MkeyRegion<B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { key, len, open, .. } = &*self.parts.0;
        f.debug_struct("MkeyRegion")
            .field("key", key)
            .field("len", len)
            .field("open", &open.is_some())
            .finish()
    }
}

fn wrong<T>(field: &'static str, reason: impl Into<String>) -> Result<T> {
    Err(Error::invalid("mkey_region", field, reason.into()))
}

impl<D: Driver, B: Piece<D>> MkeyRegion<B, D> {
    /// The bytes of these buffers, one after the other. It has no access before [`mkey_configure`](crate::Wr::mkey_configure) or
    /// [`mkey_expose`](crate::Wr::mkey_expose).
    ///
    /// # Errors
    /// As of [`list`](Self::list). After an error the key is destroyed, and the buffers go back to their pools.
    pub fn new(key: Mkey<D>, bufs: impl Into<Vec<B>>) -> Result<Self> {
        let bufs = bufs.into();
        let segment = |(buf, piece): (usize, &B)| Segment { buf, range: 0..piece.bytes() as usize };
        let segments: Vec<_> = bufs.iter().enumerate().map(segment).collect();
        Self::list(key, bufs, segments)
    }

    /// Parts of buffers, one after the other. A buffer can have several parts.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a buffer whose pool is not in the domain of the key, a part outside of its buffer, no bytes, or more parts
    /// than the key has entries.
    pub fn list(
        key: Mkey<D>,
        bufs: impl Into<Vec<B>>,
        segments: impl IntoIterator<Item = Segment>,
    ) -> Result<Self> {
        let bufs = in_domain(&key, bufs.into())?;
        let parts = segments.into_iter().filter(|segment| !segment.range.is_empty()).map(|segment| {
            let Segment { buf, range: Range { start, end } } = segment;
            let (addr, lkey) = place(&bufs, buf, start, end as u64)?;
            match u32::try_from(end - start) {
                Ok(length) => Ok(Sge { addr, length, lkey }),
                Err(_) => wrong("segments", format!("{start}..{end} is longer than an entry")),
            }
        });
        let parts: Vec<_> = parts.collect::<Result<_>>()?;
        let len = parts.iter().map(|part| u64::from(part.length)).sum();
        let entries = parts.len();
        Self::of(key, bufs, Layout::List(parts), len, entries)
    }

    /// Parts of buffers, and again with the bytes behind those that are skipped, `repeat` times: for example the columns of a matrix.
    ///
    /// # Errors
    /// As of [`list`](Self::list). The layout needs one entry more than it has parts.
    pub fn interleaved(
        key: Mkey<D>,
        bufs: impl Into<Vec<B>>,
        repeat: u32,
        parts: impl IntoIterator<Item = Strided>,
    ) -> Result<Self> {
        let bufs = in_domain(&key, bufs.into())?;
        let parts = parts.into_iter().map(|Strided { buf, offset, bytes, skip }| {
            let (bytes_count, bytes_skip) = (u32::from(bytes), u32::from(skip));
            if bytes == 0 || bytes_count + bytes_skip > u16::MAX.into() {
                return wrong("parts", format!("{bytes} bytes, and {skip} between them"));
            }
            let last = u64::from(repeat.max(1) - 1) * u64::from(bytes_count + bytes_skip);
            let end = (offset as u64).saturating_add(last + u64::from(bytes_count));
            let (addr, lkey) = place(&bufs, buf, offset, end)?;
            Ok(MkeyPart { addr, bytes_count, bytes_skip, lkey })
        });
        let parts: Vec<_> = parts.collect::<Result<_>>()?;
        let once: u64 = parts.iter().map(|part| u64::from(part.bytes_count)).sum();
        let entries = parts.len() + 1;
        let Some(len) = once.checked_mul(repeat.into()) else {
            return wrong("parts", "more bytes than addresses");
        };
        Self::of(key, bufs, Layout::Interleaved(repeat, parts), len, entries)
    }

    fn of(key: Mkey<D>, bufs: Vec<B>, layout: Layout, len: u64, entries: usize) -> Result<Self> {
        if len == 0 {
            return wrong("segments", "they have no bytes");
        }
        if entries > key.max_entries() as usize {
            return wrong("segments", format!("{entries} entries, where the key has {}", key.max_entries()));
        }
        let longest = len.min(MAX_SGE_LENGTH.into()) as u32;
        let Ok(used) = D::Sge::new(0, longest, 0) else {
            return wrong("segments", "no entry of the device can have these bytes");
        };
        let (layout, bufs) = (Arc::new(layout), Box::new(bufs));
        let posted = Posted::Nothing;
        let parts = Parts { key, bufs, layout, len, used, open: None, posted, is_unsure: false };
        Ok(Self { parts: Box::new(MkeyParts(ManuallyDrop::new(parts))), _bufs: PhantomData })
    }

    /// The buffers.
    #[must_use]
    pub fn bufs(&self) -> &[B] {
        self.parts.0.bufs.downcast_ref::<Vec<B>>().map_or(&[], Vec::as_slice)
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.parts.0.len
    }

    /// Whether it has no bytes, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which bytes a post sends, writes or reads, or into which it receives: at first all, or the first 2^31. After a receive, those of the
    /// message.
    #[must_use]
    pub fn used(&self) -> Range<u64> {
        let used = &self.parts.0.used;
        used.addr()..used.addr() + u64::from(used.length())
    }

    /// Changes [`used`](Self::used).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range outside the region, or of more than 2^31 bytes.
    pub fn set_used(&mut self, range: Range<u64>) -> Result<()> {
        let Parts { used, len, .. } = &mut *self.parts.0;
        let bytes = range.end.checked_sub(range.start).and_then(|bytes| u32::try_from(bytes).ok());
        let entry =
            bytes.filter(|_| range.end <= *len).and_then(|n| D::Sge::new(range.start, n, used.lkey()).ok());
        let Some(entry) = entry else { return wrong("range", format!("{range:?} of {len} bytes")) };
        *used = entry;
        Ok(())
    }

    /// Whether work requests, or peers, can use the key.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.parts.0.open.is_some()
    }

    /// The key and the buffers, each for itself, without a system call.
    ///
    /// # Errors
    /// The region, if it is open: [`mkey_invalidate`](crate::Wr::mkey_invalidate) ends its access, and so does [`close`](Self::close). Also if
    /// its last configuration was flushed: the device may have executed it before the error of an earlier work request.
    pub fn into_parts(self) -> Result<(Mkey<D>, Vec<B>), Self> {
        if self.is_open() || self.parts.0.is_unsure {
            return Err(self);
        }
        let Parts { key, bufs, .. } = self.parts.into_parts();
        Ok((key, unboxed(bufs)))
    }

    /// Destroys the key and returns the buffers.
    ///
    /// # Errors
    /// The kernel's refusal to destroy the key. The buffers are then lost, because the device may still access them.
    pub fn close(self) -> Result<Vec<B>> {
        self.parts.into_parts().close().map(unboxed)
    }

    /// Whose entries it names.
    pub(super) fn domain(&self) -> u64 {
        domain_of(self.parts.0.key.pd())
    }

    /// Before the work request that gives the key its memory with these rights: the object, the new key and the memory. `None` if it is
    /// open.
    pub(super) fn begin(&mut self, access: AccessFlags) -> Option<(Arc<Object<D>>, u32, Arc<Layout>)> {
        let Parts { key, layout, open, posted, .. } = &mut *self.parts.0;
        if open.is_some() {
            return None;
        }
        let (object, key) = key.next()?;
        *posted = Posted::Configure(Open { key, access });
        Some((object, key, layout.clone()))
    }

    /// Before the work request that ends the access: the key, if it is open.
    pub(super) fn begin_end(&mut self) -> Option<u32> {
        let Parts { open, posted, .. } = &mut *self.parts.0;
        let open = open.as_ref()?;
        *posted = Posted::Invalidate;
        Some(open.key)
    }
}

impl<D: Driver> MkeyRegion<Buf<Private, D>, D> {
    /// The bytes of one of the buffers, to be changed.
    pub fn buf_mut(&mut self, buf: usize) -> Option<&mut [u8]> {
        let bufs = self.parts.0.bufs.downcast_mut::<Vec<Buf<Private, D>>>()?;
        bufs.get_mut(buf).map(|buf| &mut **buf)
    }
}

impl<D: Driver, B: PeerPiece<D>> MkeyRegion<B, D> {
    /// The description for the peer; `None` if the region is not open, or not for peers.
    #[must_use]
    pub fn remote_region(&self) -> Option<RemoteRegion> {
        let Parts { open, len, .. } = &*self.parts.0;
        let Open { key, access } = (*open)?;
        if !access.intersects(B::PEER) {
            return None;
        }
        RemoteRegion::new(0, *len, key).ok()
    }
}

/// The buffers of a region, whose type has them.
fn unboxed<B: 'static>(bufs: Box<dyn Any + Send + Sync>) -> Vec<B> {
    bufs.downcast().map_or_else(|_| Vec::new(), |bufs| *bufs)
}

/// The buffers with the keys of the domain of a key.
fn in_domain<D: Driver, B: Piece<D>>(key: &Mkey<D>, bufs: Vec<B>) -> Result<Vec<B>> {
    let domain = domain_of(key.pd());
    let bufs: Vec<_> = bufs.into_iter().map(|buf| buf.moved_to(domain)).collect();
    if let Some(other) = bufs.iter().position(|buf| buf.domain() != domain) {
        return wrong("bufs", format!("the pool of buffer {other} is not in the domain of the key"));
    }
    Ok(bufs)
}

/// The address and the key of the bytes of a buffer from `start` on, which end before `end`.
fn place<D: Driver, B: Piece<D>>(bufs: &[B], buf: usize, start: usize, end: u64) -> Result<(u64, u32)> {
    let Some(piece) = bufs.get(buf) else {
        return wrong("buf", format!("buffer {buf} of {}", bufs.len()));
    };
    let used = piece.used();
    let entry = used.as_ref().first().filter(|entry| end <= entry.length().into());
    let Some(entry) = entry else {
        return wrong(
            "range",
            format!("{start}..{end} is outside the {} bytes of buffer {buf}", piece.bytes()),
        );
    };
    Ok((entry.addr() + start as u64, entry.lkey()))
}

impl<D: Driver, B: Piece<D>> Lend<D> for MkeyRegion<B, D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, B: Piece<D>> sealed::Lend<D> for MkeyRegion<B, D> {
    type Note = ();
    fn note(&self) {}
    fn lend(self) -> Held<D> {
        Held::mkey(self.parts)
    }
    unsafe fn give_back(held: Held<D>, received: impl FnOnce() -> Option<u32>) -> Option<Self> {
        // SAFETY: the contract of this function.
        let Value::Mkey(mut parts) = (unsafe { held.open() }) else { return None };
        if !parts.0.bufs.is::<Vec<B>>() {
            return None;
        }
        if let Some(len) = received() {
            let used = &mut parts.0.used;
            *used = used.with_length(used.length().min(len));
        }
        Some(Self { parts, _bufs: PhantomData })
    }
    fn noted(mut self, (): ()) -> Self {
        self.parts.0.posted = Posted::Nothing;
        self
    }
    fn completed(&mut self, status: WcStatus) {
        let Parts { open, posted, used, is_unsure, .. } = &mut *self.parts.0;
        let posted = core::mem::take(posted);
        if matches!(posted, Posted::Configure(_)) {
            *is_unsure = may_be_executed(status);
        }
        if !status.is_success() {
            return;
        }
        match posted {
            Posted::Nothing => {}
            Posted::Invalidate => *open = None,
            Posted::Configure(new) => {
                *open = Some(new);
                // The range does not change, so it fits.
                *used = D::Sge::new(used.addr(), used.length(), new.key).unwrap_or(*used);
            }
        }
    }
}

impl<D: Driver, B: Piece<D>> Source<D> for MkeyRegion<B, D> {}
impl<D: Driver, B: Piece<D>> list::Source<D> for MkeyRegion<B, D> {
    type Sges = [D::Sge; 1];
    fn domain(&self) -> u64 {
        if self.is_open() { Self::domain(self) } else { NO_DOMAIN }
    }
    fn moved_to(self, _: u64) -> Self {
        self
    }
    fn bytes(&self) -> u64 {
        self.parts.0.used.length().into()
    }
    fn used(&self) -> [D::Sge; 1] {
        [self.parts.0.used]
    }
}

impl<D: Driver, A: Access> Memory<D> for MkeyRegion<Buf<A, D>, D> {}
impl<D: Driver, A: Access> list::Memory<D> for MkeyRegion<Buf<A, D>, D> {
    fn whole(&self) -> [D::Sge; 1] {
        [self.parts.0.used]
    }
}
