// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that drive the device as a driver does: by the kernel's commands and by the bytes of queue entries.
#![expect(unsafe_code)]
// UNSAFETY: commands give the device access to memory of the tests.

mod hostile;
mod kernel;
mod order;
mod rig;
mod script;
mod srd;
mod trace;
mod ud;
