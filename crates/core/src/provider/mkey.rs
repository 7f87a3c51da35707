// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect memory keys: one key for parts of the memory of other keys. A control verb creates the key, a work request gives it
//! memory and rights.

#![expect(unsafe_code)]
// UNSAFETY: declares the contract of the work request that gives peers access to memory.

use super::wr::Head;
use crate::attr::AccessFlags;
use crate::error::Error;
use crate::wr::Sge;
use core::fmt::Debug;

/// The memory of an indirect key: parts of other keys, one after the other. Addresses of the key are offsets in it.
#[derive(Clone, Copy, Debug)]
pub enum MkeyLayout<'a> {
    /// Parts of up to 2^31 bytes.
    List(&'a [Sge]),
    /// Parts that are repeated, with bytes between a part and its next repetition.
    Interleaved {
        /// Repetitions of all parts.
        repeat: u32,
        /// The parts.
        parts: &'a [MkeyPart],
    },
}

/// A part of an interleaved layout (`struct mlx5dv_mr_interleaved`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MkeyPart {
    /// Address of the first repetition.
    pub addr: u64,
    /// Bytes of a repetition. With the skipped ones, at most 65,535.
    pub bytes_count: u32,
    /// Bytes before the next repetition.
    pub bytes_skip: u32,
    /// Key of the memory.
    pub lkey: u32,
}

/// What a work request gives an indirect key.
#[derive(Clone, Copy, Debug)]
pub struct MkeyMemory<'a> {
    /// The new low 8 bits of the key.
    pub tag: u8,
    /// The rights: local write, and remote access.
    pub access: AccessFlags,
    /// The memory.
    pub layout: MkeyLayout<'a>,
}

/// An indirect key of a driver whose send queues are `Q`.
pub trait MkeyObject<Q>: Debug + Send + Sync {
    /// The key as created. Its upper 24 bits are its number.
    fn key(&self) -> u32;

    /// Entries of the list that it has room for. An interleaved layout needs one more than it has parts.
    fn max_entries(&self) -> u32;

    /// Adds a work request to the open session of a queue, which gives the key memory. An error latches, as that of a builder.
    ///
    /// # Safety
    /// The memory that is accessible by the key fulfils the contract of [`SendBatch::push`](super::SendBatch::push) in all work requests
    /// that name the key, and for peers that of registered memory, until the key is changed again, invalidated or destroyed. The key is
    /// one of the queue's context.
    unsafe fn configure(&self, queue: &mut Q, head: Head, memory: &MkeyMemory<'_>);

    /// Destroys the key. The device refuses it then.
    ///
    /// # Errors
    /// The kernel's error, with the key.
    fn destroy(self: Box<Self>) -> Result<(), (Box<dyn MkeyObject<Q>>, Error)>;
}
