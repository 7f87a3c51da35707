// SPDX-License-Identifier: MIT OR Apache-2.0
//! The payload of a WR: registered memory by scatter/gather entries, or bytes that are copied to the WQE.
//!
//! As with operations, the kind of payload is a type: the accessors for other kinds return a constant `None`.

use super::wire::WireSge;

/// The data of a WR.
pub trait Payload<S: WireSge>: Copy {
    /// Whether the bytes are copied into the WQE.
    const INLINE: bool;

    /// The entries, when not inline.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sges(&self) -> &[S] {
        &[]
    }
    /// The buffers, when inline: calls `f` for each, in order.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn for_each_buf(&self, f: impl FnMut(&[u8])) {
        let _ = f;
    }
    /// Sum of the buffers' lengths, when inline.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn inline_len(&self) -> usize {
        0
    }
    /// The bytes, when inline, if they are one buffer: the same bytes as those of [`for_each_buf`](Self::for_each_buf),
    /// by a shorter path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn one_buf(&self) -> Option<&[u8]> {
        None
    }
}

/// No data: a message of 0 bytes.
#[derive(Clone, Copy, Debug)]
pub struct NoData;
impl<S: WireSge> Payload<S> for NoData {
    const INLINE: bool = false;
}

impl<S: WireSge> Payload<S> for &[S] {
    const INLINE: bool = false;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sges(&self) -> &[S] {
        self
    }
}

impl<S: WireSge, const N: usize> Payload<S> for &[S; N] {
    const INLINE: bool = false;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sges(&self) -> &[S] {
        *self
    }
}

/// Bytes to copy.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);
impl<S: WireSge> Payload<S> for Inline<'_> {
    const INLINE: bool = true;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn for_each_buf(&self, mut f: impl FnMut(&[u8])) {
        f(self.0);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn inline_len(&self) -> usize {
        self.0.len()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn one_buf(&self) -> Option<&[u8]> {
        Some(self.0)
    }
}

/// Inline data whose length is a constant, so the copy compiles to stores.
#[derive(Clone, Copy, Debug)]
pub struct InlineArray<'a, const N: usize>(pub &'a [u8; N]);
impl<S: WireSge, const N: usize> Payload<S> for InlineArray<'_, N> {
    const INLINE: bool = true;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn for_each_buf(&self, mut f: impl FnMut(&[u8])) {
        f(self.0);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn inline_len(&self) -> usize {
        N
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn one_buf(&self) -> Option<&[u8]> {
        Some(self.0)
    }
}

/// Several buffers to copy one after the other.
#[derive(Clone, Copy, Debug)]
pub struct InlineList<'a>(pub &'a [&'a [u8]]);
impl<S: WireSge> Payload<S> for InlineList<'_> {
    const INLINE: bool = true;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn for_each_buf(&self, f: impl FnMut(&[u8])) {
        self.0.iter().copied().for_each(f);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn inline_len(&self) -> usize {
        // Saturating: a sum beyond usize is too long by any limit.
        self.0.iter().fold(0, |sum: usize, b| sum.saturating_add(b.len()))
    }
}
