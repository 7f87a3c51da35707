// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive queues of each driver, of a QP or shared.
#![expect(unsafe_code)]
// UNSAFETY: passes the caller's guarantee about memory on to the driver's queue, and moves a batch out of its place and back.

use super::parts::{self, Part};
use super::{Any, Member as _, WqeSge, format};
use core::{fmt, ptr};
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue};
use uverbs_core::wr::RecvWr;

/// An open batch of a receive queue. `P` is [`parts::RecvBatch`] or [`parts::SharedRecvBatch`].
pub struct AnyRecvBatch<P: Part> {
    batch: Any<P>,
    /// Why an entry could not be converted to the driver's format.
    refused: Option<PostError>,
}

impl<P: Part> fmt::Debug for AnyRecvBatch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyRecvBatch").finish_non_exhaustive()
    }
}

/// Pushes a receive with its entries in the format of the batch. The code of the first driver does not make room for it. The batch is
/// passed by value, so that one of the first driver stays in registers. With the ABI of C, no panic can leave it: the batch is not lost.
///
/// # Safety
/// As [`RecvBatch::push`].
#[cold]
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "only the rule for panics of this ABI is used")]
unsafe extern "C" fn push_converted<B: RecvBatch>(
    mut batch: B,
    wr_id: u64,
    sges: &[WqeSge],
) -> (B, Option<PostError>) {
    let mut room = format::room();
    match format::convert(sges, &mut room) {
        Ok(sges) => {
            // SAFETY: the entries name the same memory, which fulfils the contract of this function.
            unsafe { batch.push(wr_id, sges) };
            (batch, None)
        }
        Err(error) => (batch, Some(error)),
    }
}

/// As [`RecvBatch::complete`], for a driver with another format: by value, as [`push_converted`].
#[cold]
#[inline(never)]
fn complete_converted<B: RecvBatch>(batch: B, refused: Option<PostError>) -> Result<(), PostError> {
    refused.map_or_else(|| batch.complete(), Err)
}

/// As [`push_converted`], for a post.
///
/// # Safety
/// As [`RecvQueue::post`].
#[cold]
#[inline(never)]
unsafe fn post_converted<Q: RecvQueue>(queue: &mut Q, wr_id: u64, sges: &[WqeSge]) -> Result<(), PostError> {
    let mut room = format::room();
    let sges = format::convert(sges, &mut room)?;
    // SAFETY: as in `push_converted`.
    unsafe { queue.post(wr_id, sges) }
}

/// Implements the traits for a part that is a receive queue, and for its batches.
macro_rules! recv_queue {
    ($queue:ty, $batch:ident) => {
        impl RecvBatch for AnyRecvBatch<$batch<'_>> {
            type Sge = WqeSge;

            #[cfg_attr(not(debug_assertions), inline(always))]
            unsafe fn push(&mut self, wr_id: u64, sges: &[WqeSge]) {
                let Self { batch, refused } = self;
                first_of_each!(batch, D(batch) => match D::as_own(sges) {
                    // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
                    Some(sges) => unsafe { batch.push(wr_id, sges) },
                    None => {
                        // SAFETY: the value is written back; no panic leaves the call.
                        let moved = unsafe { ptr::read(batch) };
                        // SAFETY: as for the first driver.
                        let (moved, error) = unsafe { push_converted(moved, wr_id, sges) };
                        // SAFETY: the place of the value that was moved out.
                        unsafe { ptr::write(batch, moved) };
                        *refused = refused.or(error);
                    }
                })
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn complete(self) -> Result<(), PostError> {
                let Self { batch, refused } = self;
                first_of_each!(batch, D(batch) => if D::CONVERTS { complete_converted(batch, refused) } else { batch.complete() })
            }
        }

        impl RecvQueue for Any<$queue> {
            type Sge = WqeSge;
            type Batch<'q> = AnyRecvBatch<$batch<'q>>;

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn batch(&mut self) -> Self::Batch<'_> {
                let batch = first_of_each!(self, D(queue) => D::any(queue.batch()));
                AnyRecvBatch { batch, refused: None }
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            unsafe fn post(&mut self, wr_id: u64, sges: &[WqeSge]) -> Result<(), PostError> {
                first_of_each!(self, D(queue) => match D::as_own(sges) {
                    // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
                    Some(sges) => unsafe { queue.post(wr_id, sges) },
                    // SAFETY: as above.
                    None => unsafe { post_converted(queue, wr_id, sges) },
                })
            }

            unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
                // SAFETY: `list` fulfils the contract of this function, which is that of the driver's.
                each!(self, queue => unsafe { queue.post_recv(list) })
            }

            fn untaken(&self) -> Option<(u32, u32)> {
                each!(self, queue => queue.untaken())
            }
        }
    };
}
use parts::{RecvBatch as OfQp, SharedRecvBatch as OfSrq};
recv_queue!(parts::RecvQueue, OfQp);
recv_queue!(parts::SharedRecvQueue, OfSrq);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{DRIVER_IDS, Member};
    use core::fmt::Debug;
    use core::marker::PhantomData;
    use parts::sealed::Sealed;
    use uverbs_core::drivers;
    use uverbs_core::provider::{Driver, WireSge};

    /// A queue that keeps the number of entries of each receive.
    #[derive(Debug)]
    struct Keeps<S> {
        driver_id: u32,
        receives: Vec<usize>,
        of: PhantomData<S>,
    }

    struct KeepsBatch<'q, S>(&'q mut Keeps<S>);

    impl<S: WireSge> RecvBatch for KeepsBatch<'_, S> {
        type Sge = S;
        unsafe fn push(&mut self, _: u64, sges: &[S]) {
            self.0.receives.push(sges.len());
        }
        fn complete(self) -> Result<(), PostError> {
            Ok(())
        }
    }

    impl<S: WireSge> RecvQueue for Keeps<S> {
        type Sge = S;
        type Batch<'q> = KeepsBatch<'q, S>;
        fn batch(&mut self) -> KeepsBatch<'_, S> {
            KeepsBatch(self)
        }
        unsafe fn post_recv(&mut self, _: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
            Ok(())
        }
        fn untaken(&self) -> Option<(u32, u32)> {
            Some((self.driver_id, 7))
        }
    }

    /// The part of a driver that is such a queue.
    enum Kept {}
    impl Sealed for Kept {}
    impl Part for Kept {
        type Of<D: Driver> = Keeps<D::Sge>;
        fn debug<D: Driver>(part: &Keeps<D::Sge>) -> &dyn Debug {
            part
        }
    }

    struct KeptBatch<'q>(PhantomData<&'q ()>);
    impl Sealed for KeptBatch<'_> {}
    impl<'q> Part for KeptBatch<'q> {
        type Of<D: Driver> = KeepsBatch<'q, D::Sge>;
        fn debug<D: Driver>(_: &Self::Of<D>) -> &dyn Debug {
            &"a batch"
        }
    }
    recv_queue!(Kept, KeptBatch);

    macro_rules! of_each_driver {
        (() $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
            [$(
                #[cfg(feature = $feature)]
                {
                    type D = $krate::$name;
                    let queue = Keeps { driver_id: D::DRIVER_ID, receives: Vec::new(), of: PhantomData };
                    (D::any::<Kept>(queue), D::CONVERTS)
                },
            )*]
        };
    }

    /// A drain of a QP with a shared queue relies on it where the device raises no event.
    #[test]
    fn the_receives_that_a_device_has_not_taken_are_those_of_its_driver() {
        let untaken = drivers!(of_each_driver()).map(|(queue, _)| queue.untaken());
        let expected: Vec<_> = DRIVER_IDS.iter().map(|&id| Some((id, 7))).collect();
        assert_eq!(untaken.as_slice(), expected);
    }

    /// The first driver has the format of the entries. For the others they are converted, and more than these drivers take are
    /// refused: none is left out of a receive.
    #[test]
    fn a_receive_has_all_its_entries_or_fails() {
        let sges = [WqeSge::new(0x1000, 64, 1).unwrap(); 34];
        let mut converting = 0;
        let queues = drivers!(of_each_driver());
        for (mut queue, converts) in queues {
            let mut batch = queue.batch();
            // SAFETY: no device accesses the memory.
            unsafe { batch.push(1, &sges[..2]) };
            assert_eq!(batch.complete(), Ok(()));
            let mut batch = queue.batch();
            // SAFETY: as above.
            unsafe { batch.push(2, &sges) };
            // SAFETY: as above.
            unsafe { batch.push(3, &sges[..1]) };
            let completed = batch.complete();
            // SAFETY: as above.
            let posted = unsafe { queue.post(4, &sges) };
            let receives = each!(&queue, queue => queue.receives.clone());
            if converts {
                assert_eq!([completed, posted], [Err(PostError::TooManySge); 2]);
                assert_eq!(receives, [2, 1]);
                converting += 1;
            } else {
                assert_eq!([completed, posted], [Ok(()); 2]);
                assert_eq!(receives, [2, 34, 1, 34]);
            }
        }
        assert_eq!(converting, DRIVER_IDS.len() - 1);
    }
}
