// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive queues of each driver, of a QP or shared.
#![expect(unsafe_code)]
// UNSAFETY: passes the caller's guarantee about memory on to the driver's queue.

use super::{Any, WqeSge};
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue, WireSge as _};
use uverbs_core::wr::{RecvWr, Sge};

/// More entries than a receive of rxe can have (`RXE_MAX_SGE` is 32), so the driver still refuses too many entries.
pub(super) const MAX_SGE: usize = 33;

/// The entries in the kernel's format, that of rxe and siw, in `room`.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn to_plain<'r>(sges: &[WqeSge], room: &'r mut [Sge; MAX_SGE]) -> &'r [Sge] {
    let used = sges.len().min(MAX_SGE);
    for (to, from) in room.iter_mut().zip(sges) {
        *to = Sge { addr: from.addr(), length: from.length(), lkey: from.lkey() };
    }
    &room[..used]
}

/// Room for [`to_plain`].
pub(super) const EMPTY: [Sge; MAX_SGE] = [Sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE];

impl<M, R, S> RecvBatch for Any<M, R, S>
where
    M: RecvBatch<Sge = WqeSge>,
    R: RecvBatch<Sge = Sge>,
    S: RecvBatch<Sge = Sge>,
{
    type Sge = WqeSge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[WqeSge]) {
        match self {
            // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
            Self::Mlx5(batch) => unsafe { batch.push(wr_id, sges) },
            // SAFETY: as above.
            Self::Rxe(batch) => unsafe { batch.push(wr_id, to_plain(sges, &mut { EMPTY })) },
            // SAFETY: as above.
            Self::Siw(batch) => unsafe { batch.push(wr_id, to_plain(sges, &mut { EMPTY })) },
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        match self {
            Self::Mlx5(batch) => batch.complete(),
            Self::Rxe(batch) => batch.complete(),
            Self::Siw(batch) => batch.complete(),
        }
    }
}

impl<M, R, S> RecvQueue for Any<M, R, S>
where
    M: RecvQueue<Sge = WqeSge>,
    R: RecvQueue<Sge = Sge>,
    S: RecvQueue<Sge = Sge>,
{
    type Sge = WqeSge;
    type Batch<'q>
        = Any<M::Batch<'q>, R::Batch<'q>, S::Batch<'q>>
    where
        Self: 'q;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Self::Batch<'_> {
        match self {
            Self::Mlx5(queue) => Any::Mlx5(queue.batch()),
            Self::Rxe(queue) => Any::Rxe(queue.batch()),
            Self::Siw(queue) => Any::Siw(queue.batch()),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr_id: u64, sges: &[WqeSge]) -> Result<(), PostError> {
        match self {
            // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
            Self::Mlx5(queue) => unsafe { queue.post(wr_id, sges) },
            // SAFETY: as above.
            Self::Rxe(queue) => unsafe { queue.post(wr_id, to_plain(sges, &mut { EMPTY })) },
            // SAFETY: as above.
            Self::Siw(queue) => unsafe { queue.post(wr_id, to_plain(sges, &mut { EMPTY })) },
        }
    }

    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        match self {
            // SAFETY: `list` fulfils the contract of this function, which is that of the driver's.
            Self::Mlx5(queue) => unsafe { queue.post_recv(list) },
            // SAFETY: as above.
            Self::Rxe(queue) => unsafe { queue.post_recv(list) },
            // SAFETY: as above.
            Self::Siw(queue) => unsafe { queue.post_recv(list) },
        }
    }
    fn untaken(&self) -> Option<(u32, u32)> {
        match self {
            Self::Mlx5(queue) => queue.untaken(),
            Self::Rxe(queue) => queue.untaken(),
            Self::Siw(queue) => queue.untaken(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::marker::PhantomData;
    use uverbs_core::provider::WireSge;

    /// A shared queue that shows what it has taken.
    #[derive(Debug)]
    struct Shows<S>(u32, PhantomData<S>);

    struct NoBatch<S>(PhantomData<S>);

    impl<S: WireSge> RecvBatch for NoBatch<S> {
        type Sge = S;
        unsafe fn push(&mut self, _: u64, _: &[S]) {}
        fn complete(self) -> Result<(), PostError> {
            Ok(())
        }
    }

    impl<S: WireSge + core::fmt::Debug + Send> RecvQueue for Shows<S> {
        type Sge = S;
        type Batch<'q>
            = NoBatch<S>
        where
            Self: 'q;
        fn batch(&mut self) -> NoBatch<S> {
            NoBatch(self.1)
        }
        unsafe fn post_recv(&mut self, _: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
            Ok(())
        }
        fn untaken(&self) -> Option<(u32, u32)> {
            Some((self.0, 7))
        }
    }

    /// A drain of a QP with a shared queue relies on it where the device raises no event.
    #[test]
    fn the_receives_that_a_device_has_not_taken_are_those_of_its_driver() {
        type Queue = Any<Shows<WqeSge>, Shows<Sge>, Shows<Sge>>;
        let queues = [
            Queue::Mlx5(Shows(1, PhantomData)),
            Queue::Rxe(Shows(2, PhantomData)),
            Queue::Siw(Shows(3, PhantomData)),
        ];
        assert_eq!(queues.map(|queue| queue.untaken()), [1, 2, 3].map(|n| Some((n, 7))));
    }
}
