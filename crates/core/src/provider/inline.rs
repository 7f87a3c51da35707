// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline data: bytes that are copied to the WQE during the post.
#![expect(unsafe_code)]
// UNSAFETY: the entries and buffers of C programs are pointers; the contracts of the constructors make them readable.

use crate::wr::{IbvDataBuf, Sge};

/// Bytes that are copied during the post.
#[derive(Clone, Copy, Debug)]
pub enum Inline<'a> {
    /// One buffer. If its length is a constant of the caller, the copy compiles to stores.
    Bytes(&'a [u8]),
    /// Buffers, one after the other.
    List(&'a [&'a [u8]]),
    /// The entries of a WR of C with `SEND_INLINE`.
    Sges(InlineSges<'a>),
    /// The buffers of `wr_set_inline_data_list`.
    Bufs(InlineBufs<'a>),
}

impl Inline<'_> {
    /// Calls `f` for each buffer, in order.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn for_each_buf(&self, mut f: impl FnMut(&[u8])) {
        match self {
            Self::Bytes(bytes) => f(bytes),
            Self::List(bufs) => bufs.iter().for_each(|buf| f(buf)),
            Self::Sges(InlineSges(sges)) => {
                for sge in sges.iter().filter(|sge| sge.length != 0) {
                    // SAFETY: an entry of non-zero length is readable (the contract of `InlineSges::new`).
                    f(unsafe { memory_of(sge) });
                }
            }
            Self::Bufs(InlineBufs(bufs)) => {
                for buf in bufs.iter().filter(|buf| buf.length != 0) {
                    // SAFETY: a buffer of non-zero length is readable (the contract of `InlineBufs::new`), so its address is
                    // not NULL.
                    f(unsafe { core::slice::from_raw_parts(buf.addr, buf.length) });
                }
            }
        }
    }

    /// Copies the buffers, one after the other; one for which there is no room is left out. Without a call, for the few bytes that an entry
    /// has.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn copy_to(&self, to: &mut [u8]) {
        let mut at = 0;
        let mut put = |buf: &[u8]| {
            if let Some(to) = to.get_mut(at..at + buf.len()) {
                copy_short(to, buf);
                at += buf.len();
            }
        };
        match self.one_buf() {
            Some(buf) => put(buf),
            None => self.for_each_buf(put),
        }
    }

    /// The sum of the buffers' lengths. It saturates: a sum beyond `usize` is too long by any limit.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn len(&self) -> usize {
        let sum = |sum: usize, len: usize| sum.saturating_add(len);
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::List(bufs) => bufs.iter().map(|buf| buf.len()).fold(0, sum),
            Self::Sges(InlineSges([one])) => one.length as usize,
            Self::Sges(InlineSges(sges)) => sges.iter().map(|sge| sge.length as usize).fold(0, sum),
            Self::Bufs(InlineBufs(bufs)) => bufs.iter().map(|buf| buf.length).fold(0, sum),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are one buffer and its length is not known to be 0: the same bytes as those of
    /// [`for_each_buf`](Self::for_each_buf), by a shorter path.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn one_buf(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Sges(InlineSges([one])) if one.length != 0 => {
                // SAFETY: an entry of non-zero length is readable (the contract of `InlineSges::new`).
                Some(unsafe { memory_of(one) })
            }
            _ => None,
        }
    }
}

/// Copies as many bytes as both have, which are few, without a call.
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_short(to: &mut [u8], from: &[u8]) {
    /// Copies the first `N` bytes and the last, which may be the same in part, if there are as many.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
        let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
            return false;
        };
        if let Some(to) = to.first_chunk_mut::<N>() {
            *to = *first;
        }
        if let Some(to) = to.last_chunk_mut::<N>() {
            *to = *last;
        }
        true
    }
    if from.len() > 32 {
        ends::<32>(to, from);
        // Those between the first and the last 32.
        let mut at = 32;
        while at + 32 < from.len() {
            let (to, from) = (to.get_mut(at..).and_then(|to| to.first_chunk_mut::<16>()), from.get(at..));
            if let (Some(to), Some(from)) = (to, from.and_then(|from| from.first_chunk())) {
                *to = *from;
            }
            at += 16;
        }
    } else if !ends::<16>(to, from) && !ends::<8>(to, from) && !ends::<4>(to, from) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// The memory of an entry.
///
/// # Safety
/// It has a length other than 0, and the memory is readable for `'a`.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn memory_of<'a>(sge: &Sge) -> &'a [u8] {
    let start = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
    // SAFETY: the memory is readable (the contract of this function).
    unsafe { core::slice::from_raw_parts(start, sge.length as usize) }
}

/// The entries of a WR with `SEND_INLINE`: their addresses are pointers to the bytes.
#[derive(Clone, Copy, Debug)]
pub struct InlineSges<'a>(&'a [Sge]);

impl<'a> InlineSges<'a> {
    /// # Safety
    /// Every entry of non-zero length is readable memory for as long as the value is used.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn new(sges: &'a [Sge]) -> Self {
        Self(sges)
    }
}

/// `wr_set_inline_data_list`'s buffers.
#[derive(Clone, Copy, Debug)]
pub struct InlineBufs<'a>(&'a [IbvDataBuf]);

impl<'a> InlineBufs<'a> {
    /// # Safety
    /// Every buffer of non-zero length is readable memory for as long as the value is used.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn new(bufs: &'a [IbvDataBuf]) -> Self {
        Self(bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_copied_one_after_the_other() {
        let data: Vec<u8> = (1..=200).collect();
        for len in 0..=130 {
            for cut in [0, len / 3, len] {
                let mut to = [0; 131];
                let (first, rest) = data[..len].split_at(cut);
                Inline::List(&[first, rest]).copy_to(&mut to[..130]);
                assert_eq!((&to[..len], &to[len..]), (&data[..len], &[0; 131][len..]), "{cut} of {len}");
            }
            let mut to = [0; 131];
            Inline::Bytes(&data[..len]).copy_to(&mut to[..130]);
            assert_eq!((&to[..len], &to[len..]), (&data[..len], &[0; 131][len..]));
        }
        let mut to = [0; 8];
        Inline::List(&[&data[..6], &data[..3]]).copy_to(&mut to);
        assert_eq!(to, [1, 2, 3, 4, 5, 6, 0, 0], "no room for the second one");
    }

    fn bytes(data: Inline<'_>) -> (Vec<Vec<u8>>, usize, Option<Vec<u8>>) {
        let mut all = Vec::new();
        data.for_each_buf(|buf| all.push(buf.to_vec()));
        (all, data.len(), data.one_buf().map(<[u8]>::to_vec))
    }

    #[test]
    fn every_kind_has_the_bytes_of_its_buffers() {
        let (a, b) = (&b"abc"[..], &b"de"[..]);
        let (one, two) = (vec![a.to_vec()], vec![a.to_vec(), b.to_vec()]);
        assert_eq!(bytes(Inline::Bytes(a)), (one.clone(), 3, Some(a.to_vec())));
        assert!(Inline::Bytes(&[]).is_empty());
        assert_eq!(bytes(Inline::List(&[a, b])), (two.clone(), 5, None));

        let sge = |buf: &[u8]| Sge {
            addr: buf.as_ptr().expose_provenance() as u64,
            length: buf.len() as u32,
            lkey: 0,
        };
        // Entries and buffers without bytes may have any address.
        let empty = Sge::default();
        for (entries, expected) in [
            (vec![sge(a)], (one, 3, Some(a.to_vec()))),
            (vec![sge(a), empty, sge(b)], (two.clone(), 5, None)),
            (vec![empty], (vec![], 0, None)),
        ] {
            // SAFETY: the entries name live bytes.
            assert_eq!(bytes(Inline::Sges(unsafe { InlineSges::new(&entries) })), expected);
        }

        let buf = |buf: &[u8]| IbvDataBuf { addr: buf.as_ptr(), length: buf.len() };
        let bufs = [buf(a), IbvDataBuf { addr: core::ptr::null(), length: 0 }, buf(b)];
        // SAFETY: the buffers are live.
        assert_eq!(bytes(Inline::Bufs(unsafe { InlineBufs::new(&bufs) })), (two, 5, None));
    }

    #[test]
    fn a_sum_of_lengths_does_not_wrap() {
        let long = IbvDataBuf { addr: core::ptr::null(), length: usize::MAX };
        let bufs = [long, long];
        // SAFETY: the buffers are not read here.
        assert_eq!(Inline::Bufs(unsafe { InlineBufs::new(&bufs) }).len(), usize::MAX);
    }
}
