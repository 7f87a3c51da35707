// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver-private data of a command.
// UNSAFETY: declares the `unsafe` constructor by which a driver passes memory to its kernel driver. This module has no
// unsafe block.
#![expect(unsafe_code)]

/// Driver-private input and output: the two attributes `UVERBS_ATTR_UHW_IN` and `UVERBS_ATTR_UHW_OUT`.
///
/// The bytes are the driver's (`rdma/<driver>-abi.h`); an empty slice means no such attribute.
#[derive(Debug, Default)]
pub struct Uhw<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) output: &'a mut [u8],
}

impl<'a> Uhw<'a> {
    /// No private data.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Only output; this gives the kernel access to no other memory.
    #[must_use]
    pub fn answer(output: &'a mut [u8]) -> Self {
        Self { input: &[], output }
    }

    /// Input and output.
    ///
    /// # Safety
    /// The caller may give access to the memory that `input` names by address, and keeps it valid (allocated, and not
    /// referenced as Rust data that must not change) as long as the kernel driver and the device use it: a ring until
    /// its object is destroyed, memory for an answer until the command returns.
    #[must_use]
    pub unsafe fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input, output }
    }
}
