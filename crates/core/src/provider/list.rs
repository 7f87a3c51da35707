// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists of work requests (ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3)): what does not depend on the queue.
//!
//! A driver opens its queue, passes each node to its encoder ([`push_nodes`]), publishes what was written, and returns
//! [`outcome`]. The WRs before the first one that can't be posted are published with one doorbell.
#![expect(unsafe_code)]
// UNSAFETY: lists and entries are C pointers; the contracts of the functions require that they are valid.

use super::error::{BadWr, PostError};
use super::raw::Room;
use crate::wr::{RecvWr, SendWr, Sge};

/// A node of a list: [`SendWr`], [`RecvWr`].
pub trait Node {
    /// The next node, or NULL.
    fn next(&self) -> *const Self;
}

impl Node for SendWr {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(&self) -> *const Self {
        self.next
    }
}

impl Node for RecvWr {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(&self) -> *const Self {
        self.next
    }
}

/// Passes each node of a list to `push`, up to the first one that `push` refuses, and returns that one.
///
/// # Safety
/// `list`, and `next` of each node, are NULL or valid.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn push_nodes<W: Node>(
    list: *const W,
    mut push: impl FnMut(&W) -> Result<(), PostError>,
) -> Option<BadWr<W>> {
    let mut next = list;
    // SAFETY: each node is NULL or valid (the contract of this function).
    while let Some(wr) = unsafe { next.as_ref() } {
        if let Err(error) = push(wr) {
            return Some(BadWr { error, wr: next });
        }
        next = wr.next();
    }
    None
}

/// The result of a call with a list, from that of the publication and the WR that was refused.
///
/// # Errors
/// `bad`; or the error of the publication.
#[inline]
pub fn outcome<W>(
    published: Result<(), PostError>,
    list: *const W,
    bad: Option<BadWr<W>>,
) -> Result<(), BadWr<W>> {
    match published {
        Ok(()) => bad.map_or(Ok(()), Err),
        // A failed doorbell is reported before a bad WR, because the WRs before the bad one may not run. `wr` is the
        // bad WR, or NULL.
        Err(error @ PostError::Doorbell(_)) => {
            Err(BadWr { error, wr: bad.map_or(core::ptr::null(), |b| b.wr) })
        }
        // The state changed meanwhile, and nothing was posted.
        Err(error) => Err(BadWr { error, wr: list }),
    }
}

/// The number of entries of a WR, which is at most `max`.
///
/// # Errors
/// [`PostError::TooManySge`], also for a negative number.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn num_sge(num: i32, max: u32) -> Result<usize, PostError> {
    match usize::try_from(num) {
        Ok(n) if n <= max as usize => Ok(n),
        _ => Err(PostError::TooManySge),
    }
}

/// The entries of a WR, copied to `room` if the list is not aligned.
///
/// # Errors
/// As [`num_sge`]; [`PostError::InvalidArgument`] if the pointer is NULL and the number is not 0.
///
/// # Safety
/// `list` is NULL or points to `num` entries.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn entries(list: *const Sge, num: i32, max: u32, room: &mut Room) -> Result<&[Sge], PostError> {
    let num = num_sge(num, max)?;
    // SAFETY: `list` is NULL or points to `num` valid entries (the contract of this function).
    unsafe { room.entries(list, num) }.ok_or(PostError::InvalidArgument)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use core::ptr;

    fn chain() -> [RecvWr; 3] {
        [0, 1, 2].map(RecvWr::new)
    }

    #[test]
    fn a_list_ends_at_the_first_wr_that_is_refused() {
        let mut wrs = chain();
        let (second, third) = (&raw mut wrs[1], &raw mut wrs[2]);
        wrs[0].next = second;
        wrs[1].next = third;
        let mut ids = Vec::new();
        let mut push = |limit: u64, wr: &RecvWr| {
            ids.push(wr.wr_id);
            if wr.wr_id < limit { Ok(()) } else { Err(PostError::QueueFull) }
        };
        // SAFETY: the nodes are valid.
        let bad = unsafe { push_nodes(&raw const wrs[0], |wr| push(1, wr)) }.unwrap();
        assert_eq!((bad.error, bad.wr), (PostError::QueueFull, second.cast_const()));
        // SAFETY: the nodes are valid.
        assert!(unsafe { push_nodes(&raw const wrs[0], |wr| push(3, wr)) }.is_none());
        // SAFETY: an empty list has no nodes.
        assert!(unsafe { push_nodes(ptr::null(), |wr| push(0, wr)) }.is_none());
        assert_eq!(ids, [0, 1, 0, 1, 2]);
    }

    #[test]
    fn the_doorbell_is_reported_before_a_bad_wr_and_the_state_for_the_whole_list() {
        let wrs = chain();
        let (first, second) = (&raw const wrs[0], &raw const wrs[1]);
        let bad = || Some(BadWr { error: PostError::QueueFull, wr: second });
        let got = |published, bad| outcome(published, first, bad).map_err(|bad| (bad.error, bad.wr));
        assert_eq!(got(Ok(()), None), Ok(()));
        assert_eq!(got(Ok(()), bad()), Err((PostError::QueueFull, second)));
        let doorbell = PostError::Doorbell(Errno::EINVAL);
        assert_eq!(got(Err(doorbell), None), Err((doorbell, ptr::null())));
        assert_eq!(got(Err(doorbell), bad()), Err((doorbell, second)));
        assert_eq!(got(Err(PostError::BadState), bad()), Err((PostError::BadState, first)));
    }

    #[test]
    fn entries_are_compared_with_the_limit_before_they_are_read() {
        let one = [Sge { addr: 1, length: 2, lkey: 3 }];
        let got = |list, num| {
            let mut room = Room::new();
            // SAFETY: NULL, or as many entries as the number says.
            unsafe { entries(list, num, 1, &mut room) }.map(<[Sge]>::len)
        };
        assert_eq!(got(one.as_ptr(), 1), Ok(1));
        assert_eq!(got(ptr::null(), 0), Ok(0));
        assert_eq!(got(ptr::null(), 1), Err(PostError::InvalidArgument));
        assert_eq!(got(ptr::null(), 2), Err(PostError::TooManySge));
        assert_eq!(got(ptr::null(), -1), Err(PostError::TooManySge));
    }
}
