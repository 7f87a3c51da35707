// SPDX-License-Identifier: MIT OR Apache-2.0
//! Core of the uverbs RDMA provider: the interface to the kernel, the control verbs, the provider traits and the
//! C-style face.

pub mod attr;
pub mod control;
pub mod device;
pub mod errno;
pub mod error;
pub mod kernel;
pub mod provider;
pub mod sync;
pub mod wc;
pub mod wr;

pub use errno::Errno;
pub use error::{Error, Result};
