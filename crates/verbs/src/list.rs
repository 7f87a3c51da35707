// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of buffers: a work request gathers from several buffers, or scatters to them.
//!
//! The list is made once and goes round as a single buffer does, so a post of it allocates nothing: the slab of the queue gets
//! the pointer of the list.

use crate::access::Access;
use crate::held::Held;
use crate::open::AnyDriver;
use crate::pool::{Buf, NO_DOMAIN};
use crate::rejected::{Lend, sealed as lend};
use core::fmt;
use core::ops::{Deref, DerefMut};
use uverbs_core::provider::Driver;

/// The maximum number of buffers in a list. The devices of this crate's drivers have at most 32 entries in a work request.
pub const MAX_BUFS: usize = 32;

/// The buffers of a list. Aligned so that the low bits of its address are free for the kind, see [`Held`].
#[repr(align(16))]
pub(super) struct ListParts<A: Access, D: Driver> {
    bufs: Vec<Buf<A, D>>,
}

/// Buffers of one protection domain that a work request uses together: a send or a write gathers from them in their order, a read
/// or a receive scatters to them.
///
/// It is a slice of its [`Buf`]s while it is owned. After a receive each buffer has the length of its part of the message. A
/// queue refuses a list that is longer than its `max_send_sge` or `max_recv_sge`, and one without buffers.
///
/// ```
/// # use uverbs::{BufList, Exclusive, Pool, Private, Qp};
/// # use uverbs::{Driver, Rc};
/// # fn send<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, pool: &Pool<Private, D>) -> Option<()> {
/// let (mut header, mut body) = (pool.try_get()?, pool.try_get()?);
/// header.fill(b"length: 4;").ok()?;
/// body.fill(b"body").ok()?;
/// qp.sq().post(1).signaled().send(BufList::from([header, body])).ok()?;
/// # Some(())
/// # }
/// ```
pub struct BufList<A: Access = super::Private, D: Driver = AnyDriver> {
    parts: Box<ListParts<A, D>>,
}

impl<D: Driver, A: Access> fmt::Debug for BufList<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<D: Driver, A: Access> Default for BufList<A, D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Driver, A: Access> BufList<A, D> {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self { parts: Box::new(ListParts { bufs: Vec::new() }) }
    }

    /// Adds a buffer.
    ///
    /// # Errors
    /// The buffer, if the list has [`MAX_BUFS`].
    pub fn push(&mut self, buf: Buf<A, D>) -> Result<(), Buf<A, D>> {
        if self.len() == MAX_BUFS {
            return Err(buf);
        }
        self.parts.bufs.push(buf);
        Ok(())
    }

    /// Takes the last buffer out.
    pub fn pop(&mut self) -> Option<Buf<A, D>> {
        self.parts.bufs.pop()
    }

    /// Takes all buffers out; the list can be filled again.
    pub fn drain(&mut self) -> impl Iterator<Item = Buf<A, D>> {
        self.parts.bufs.drain(..)
    }

    /// The sum of the lengths of the buffers.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|buf| buf.len() as u64).sum()
    }
}

impl<D: Driver, A: Access, const N: usize> From<[Buf<A, D>; N]> for BufList<A, D> {
    fn from(bufs: [Buf<A, D>; N]) -> Self {
        const { assert!(N <= MAX_BUFS, "a list has at most MAX_BUFS buffers") };
        Self { parts: Box::new(ListParts { bufs: bufs.into() }) }
    }
}

impl<D: Driver, A: Access> Deref for BufList<A, D> {
    type Target = [Buf<A, D>];
    fn deref(&self) -> &[Buf<A, D>] {
        &self.parts.bufs
    }
}

impl<D: Driver, A: Access> DerefMut for BufList<A, D> {
    fn deref_mut(&mut self) -> &mut [Buf<A, D>] {
        &mut self.parts.bufs
    }
}

impl<D: Driver, A: Access> IntoIterator for BufList<A, D> {
    type Item = Buf<A, D>;
    type IntoIter = std::vec::IntoIter<Buf<A, D>>;
    fn into_iter(self) -> Self::IntoIter {
        self.parts.bufs.into_iter()
    }
}

impl<D: Driver, A: Access> Lend<D> for BufList<A, D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver, A: Access> lend::Lend<D> for BufList<A, D> {
    type Note = ();
    fn note(&self) {}
    fn lend(self) -> Held<D> {
        A::hold_list(self.parts)
    }
    #[expect(unsafe_code, reason = "takes the value out of the word")]
    unsafe fn give_back(held: Held<D>, received: impl FnOnce() -> Option<u32>) -> Option<Self> {
        // SAFETY: the contract of this function.
        let mut list = A::list(unsafe { held.open() }).map(|parts| Self { parts })?;
        if let Some(mut len) = received() {
            for buf in &mut *list.parts.bufs {
                buf.clamp_len(len);
                len -= buf.len() as u32;
            }
        }
        Some(list)
    }
}

/// Registered memory that a send or a write can read: [`Memory`], or a [`SharedBuf`](super::SharedBuf).
pub trait Source<D: Driver>: Lend<D> + sealed::Source<D> {}

/// Registered memory of any work request, also of those that write to it: a [`Buf`], a [`BufPart`](super::BufPart) or a
/// [`BufList`].
pub trait Memory<D: Driver>: Source<D> + sealed::Memory<D> {}

pub(super) mod sealed {
    use uverbs_core::provider::Driver;

    pub trait Source<D: Driver> {
        /// Entries of a work request.
        type Sges: AsRef<[D::Sge]> + Copy;
        /// The identity of its protection domain, see `domain_of`; that of no queue, if there is none.
        fn domain(&self) -> u64;
        /// Moved to this domain, if its pool is registered there.
        #[must_use]
        fn moved_to(self, domain: u64) -> Self;
        /// The bytes that are used.
        fn bytes(&self) -> u64;
        /// The entries of the bytes that are used.
        fn used(&self) -> Self::Sges;
    }

    pub trait Memory<D: Driver>: Source<D> {
        /// The entries of the capacity.
        fn whole(&self) -> Self::Sges;
    }
}

impl<D: Driver, A: Access> Source<D> for Buf<A, D> {}
impl<D: Driver, A: Access> sealed::Source<D> for Buf<A, D> {
    type Sges = [D::Sge; 1];
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.raw().domain()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn moved_to(self, domain: u64) -> Self {
        self.moved(domain)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn bytes(&self) -> u64 {
        self.raw().len().into()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn used(&self) -> [D::Sge; 1] {
        [self.raw().sge()]
    }
}

impl<D: Driver, A: Access> Memory<D> for Buf<A, D> {}
impl<D: Driver, A: Access> sealed::Memory<D> for Buf<A, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn whole(&self) -> [D::Sge; 1] {
        [self.raw().whole()]
    }
}

impl<D: Driver, A: Access> Source<D> for BufList<A, D> {}
impl<D: Driver, A: Access> sealed::Source<D> for BufList<A, D> {
    type Sges = Sges<D::Sge>;
    fn domain(&self) -> u64 {
        let mut domains = self.iter().map(|buf| buf.raw().domain());
        match domains.next() {
            Some(first) if domains.all(|domain| domain == first) => first,
            _ => NO_DOMAIN,
        }
    }
    #[cold]
    #[inline(never)]
    fn moved_to(mut self, domain: u64) -> Self {
        for buf in &mut *self {
            buf.raw_mut().move_to(domain);
        }
        self
    }
    fn bytes(&self) -> u64 {
        self.total()
    }
    fn used(&self) -> Sges<D::Sge> {
        Sges::new(self.iter().map(|buf| buf.raw().sge()))
    }
}

impl<D: Driver, A: Access> Memory<D> for BufList<A, D> {}
impl<D: Driver, A: Access> sealed::Memory<D> for BufList<A, D> {
    fn whole(&self) -> Sges<D::Sge> {
        Sges::new(self.iter().map(|buf| buf.raw().whole()))
    }
}

/// The entries of a list, copied: as soon as the work request is posted, a poll of another thread can free the list.
#[derive(Clone, Copy, Debug)]
pub struct Sges<S> {
    /// `None` if there are none.
    sges: Option<[S; MAX_BUFS]>,
    len: usize,
}

impl<S> AsRef<[S]> for Sges<S> {
    fn as_ref(&self) -> &[S] {
        self.sges.as_ref().and_then(|sges| sges.get(..self.len)).unwrap_or_default()
    }
}

impl<S: Copy> Sges<S> {
    fn new(mut sges: impl ExactSizeIterator<Item = S>) -> Self {
        let len = sges.len();
        let sges = sges.next().map(|first| {
            let mut copied = [first; MAX_BUFS];
            copied.iter_mut().skip(1).zip(sges).for_each(|(place, sge)| *place = sge);
            copied
        });
        Self { sges, len }
    }
}
