// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scatter/gather entries and remote addresses in the format of a driver's WQE.
//!
//! A driver defines its own types, which are converted once and stored without change: on mlx5 they are the big-endian
//! segments, which saves the byte swaps of every post.

use super::error::PostError;
use crate::wr::Sge;

/// The longest scatter/gather entry: the wire format encodes 2^31 as 0 and has no longer length.
pub const MAX_SGE_LENGTH: u32 = 1 << 31;

/// A scatter/gather entry as the driver's WQE holds it.
pub trait WireSge: Copy + Send + Sync + core::fmt::Debug + 'static {
    /// Converts host values. [`PostError::InvalidLength`] above [`MAX_SGE_LENGTH`].
    ///
    /// # Errors
    /// [`PostError::InvalidLength`] as above.
    fn new(addr: u64, length: u32, lkey: u32) -> Result<Self, PostError>;
    /// The same with another length, at most [`MAX_SGE_LENGTH`].
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn with_length(self, length: u32) -> Self {
        Self::new(self.addr(), length, self.lkey()).unwrap_or(self)
    }
    /// Start address.
    fn addr(&self) -> u64;
    /// Bytes.
    fn length(&self) -> u32;
    /// Local key.
    fn lkey(&self) -> u32;
}

impl WireSge for Sge {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(addr: u64, length: u32, lkey: u32) -> Result<Self, PostError> {
        if length > MAX_SGE_LENGTH {
            return Err(PostError::InvalidLength);
        }
        Ok(Self { addr, length, lkey })
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn addr(&self) -> u64 {
        self.addr
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn length(&self) -> u32 {
        self.length
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn lkey(&self) -> u32 {
        self.lkey
    }
}

/// A remote address and its key as the driver's WQE holds them.
pub trait WireRemote: Copy + Send + Sync + core::fmt::Debug + 'static {
    /// Converts host values.
    fn new(addr: u64, rkey: u32) -> Self;
    /// Remote virtual address.
    fn addr(&self) -> u64;
    /// Remote key.
    fn rkey(&self) -> u32;
}

/// The plain form: host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Remote virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

impl WireRemote for RemoteAddr {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(addr: u64, rkey: u32) -> Self {
        Self { addr, rkey }
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn addr(&self) -> u64 {
        self.addr
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn rkey(&self) -> u32 {
        self.rkey
    }
}
