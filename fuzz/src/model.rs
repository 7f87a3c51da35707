// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model of a queue of rxe, for the targets that post: the WRs that are published and not consumed, the state of
//! the QP, and the expected doorbells.

use core::fmt::Debug;
use core::ptr::null;
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{BadWr, PostError};
use uverbs_rxe::QpShared;
use uverbs_rxe::testing::{FakeBell, KernelSide};

/// The error of a doorbell that fails.
const DOORBELL: Errno = Errno::ENODEV;

/// A queue of WRs, which decode to `T`.
#[derive(Debug)]
pub struct Model<T> {
    kernel: KernelSide,
    bell: FakeBell,
    /// The QP; an SRQ has no state.
    qp: Option<Arc<QpShared>>,
    ring: VecDeque<T>,
    published: u32,
    rings: u32,
    /// The number of resets.
    pub resets: u32,
    bell_fails: bool,
}

impl<T: Debug + PartialEq> Model<T> {
    /// An empty queue, whose ring is filled with a byte.
    #[must_use]
    pub fn new(kernel: KernelSide, bell: FakeBell, qp: Option<Arc<QpShared>>, dirt: u8) -> Self {
        kernel.fill(dirt);
        let ring = VecDeque::new();
        Self { kernel, bell, qp, ring, published: 0, rings: 0, resets: 0, bell_fails: false }
    }

    /// The state of the QP; `None` for an SRQ.
    #[must_use]
    pub fn state(&self) -> Option<QpState> {
        self.qp.as_ref().map(|qp| qp.state())
    }

    /// Whether there is room for a WR behind those that are published and `written` others.
    #[must_use]
    pub fn has_room(&self, written: usize) -> bool {
        self.ring.len() + written < self.kernel.slots() as usize - 1
    }

    /// Sets the QP's state. In RESET the kernel drops the WRs that it has not consumed.
    pub fn set_state(&mut self, state: u8) {
        let Some(qp) = &self.qp else { return };
        let state = QpState(u32::from(state % 9));
        qp.set_state(state);
        if state == QpState::RESET {
            self.resets += 1;
            self.ring.clear();
            self.kernel.set_consumer(self.kernel.producer());
        }
    }

    /// Selects whether doorbells fail.
    pub fn fail_doorbells(&mut self, fail: bool) {
        self.bell_fails = fail;
        self.bell.fail(fail.then_some(DOORBELL));
    }

    /// Consumes WQEs as the kernel does, and compares them.
    pub fn consume(&mut self, n: u32, decode: impl Fn(&[u8], Option<&T>) -> T) {
        for _ in 0..n {
            let expected = self.ring.pop_front();
            let got = self.kernel.consume().map(|bytes| decode(&bytes, expected.as_ref()));
            assert_eq!(got, expected);
            if expected.is_none() {
                break;
            }
        }
    }

    /// Adds WRs to the model, for which a doorbell is rung if `rings`. Returns the expected result of the post.
    pub fn publish(&mut self, wrs: Vec<T>, rings: bool) -> Result<(), PostError> {
        if wrs.is_empty() {
            return Ok(());
        }
        self.published = (self.published + wrs.len() as u32) & (self.kernel.slots() - 1);
        self.ring.extend(wrs);
        self.rings += u32::from(rings);
        if rings && self.bell_fails { Err(PostError::Doorbell(DOORBELL)) } else { Ok(()) }
    }

    /// Adds the valid WRs at the front of a list to the model, and compares the result of the list's post. `wr` returns
    /// the WR at an index, or `None` if it is invalid. The list is refused as a whole if `closed`.
    pub fn publish_list<W: Debug>(
        &mut self,
        list: &[W],
        result: Result<(), BadWr<W>>,
        closed: bool,
        rings: bool,
        wr: impl Fn(usize) -> Option<T>,
    ) {
        let fits = |i: &usize| !closed && self.has_room(*i);
        let wrs: Vec<T> = (0..list.len()).take_while(fits).map_while(wr).collect();
        let bad = list.get(wrs.len()).map_or(null(), core::ptr::from_ref);
        match (self.publish(wrs, rings), result) {
            (Ok(()), Ok(())) => assert!(bad.is_null()),
            (Ok(()), Err(got)) => assert!(!bad.is_null() && got.wr == bad, "{got:?}"),
            (Err(doorbell), got) => {
                let got = got.expect_err("the doorbell fails");
                assert_eq!((got.error, got.wr), (doorbell, bad));
            }
        }
    }

    /// Checks the producer index, and the number of doorbells so far.
    pub fn check(&self, rings: impl Fn(&FakeBell) -> u32, step: &impl Debug) {
        assert_eq!(self.kernel.producer(), self.published, "after {step:?}");
        assert_eq!(rings(&self.bell), self.rings, "after {step:?}");
    }
}

/// Ends a batch as an [`End`](crate::steps::End) says. Returns the result of `complete`, if it is called.
#[macro_export]
macro_rules! end_batch {
    ($batch:expr, $end:expr) => {
        match $end {
            $crate::steps::End::Complete => Some($batch.complete()),
            $crate::steps::End::Abort => {
                $batch.abort();
                None
            }
            $crate::steps::End::Drop => {
                drop($batch);
                None
            }
            $crate::steps::End::Forget => {
                let _ = core::mem::ManuallyDrop::new($batch);
                None
            }
        }
    };
}
