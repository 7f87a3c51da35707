// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver-private data of a command.
// UNSAFETY: declares the `unsafe` constructor through which a driver hands memory to its kernel half. No unsafe
// block stands here.
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

    /// Only an answer, which hands nothing to the kernel.
    #[must_use]
    pub fn answer(output: &'a mut [u8]) -> Self {
        Self { input: &[], output }
    }

    /// Input and output.
    ///
    /// # Safety
    /// Memory that `input` names by address is the caller's to give away, and stays so (allocated, registered with
    /// nobody else's rights, not referenced as Rust data that may not change) for as long as the driver's kernel half
    /// and the device use it: for a ring until its object is destroyed, for an answer until the command returns.
    #[must_use]
    pub unsafe fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input, output }
    }
}
